//! Whether a leader's ISR change may be stored (D16). A table of refusals in the order in which they are looked for.

use zurau_common::assignment::{difference, same_set, union};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use crate::event::Proposal;

/// What is stored of the partition.
#[derive(Debug, Clone)]
pub(crate) struct Stored<'a> {
    pub(crate) leader: BrokerId,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) hosts: &'a [BrokerId],
    pub(crate) isr: &'a [BrokerId],
    pub(crate) elr: &'a [BrokerId],
    pub(crate) partition_epoch: PartitionEpoch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Store it, under the broker epochs of the added members (F3).
    Store {
        isr: Vec<BrokerId>,
        elr: Vec<BrokerId>,
        added: Vec<(BrokerId, BrokerEpoch)>,
    },
    /// It is stored already: the answer to an earlier try was lost.
    AlreadyStored,
    /// The cache is behind the leader: read again, then judge again.
    ReadAgain,
    Refuse(Rejection),
}

/// Judges one proposal of `sender`. `epoch_of`: the broker epoch of a live broker that is not shutting down.
pub(crate) fn judge(
    stored: &Stored<'_>,
    sender: BrokerId,
    proposal: &Proposal,
    epoch_of: impl Fn(BrokerId) -> Option<BrokerEpoch>,
) -> Judgement {
    use Judgement::{AlreadyStored, ReadAgain, Refuse};
    if proposal.leader_epoch < stored.leader_epoch {
        return Refuse(Rejection::FencedLeaderEpoch);
    }
    if proposal.leader_epoch > stored.leader_epoch {
        return ReadAgain;
    }
    let malformed = proposal.isr.is_empty()
        || !proposal.isr.contains(&sender)
        || has_duplicates(&proposal.isr)
        || proposal.broker_epochs.len() != proposal.isr.len();
    if sender != stored.leader || malformed {
        return Refuse(Rejection::InvalidRequest);
    }
    // A request that does not carry an ELR does not change who is eligible, except that members of the ISR are not.
    let elr = proposal.elr.clone().unwrap_or_else(|| difference(stored.elr, &proposal.isr));
    let before = union(stored.isr, stored.elr);
    let foreign = elr.iter().any(|id| proposal.isr.contains(id) || !before.contains(id));
    let same = same_set(&proposal.isr, stored.isr) && same_set(&elr, stored.elr);
    if proposal.partition_epoch > stored.partition_epoch {
        return ReadAgain;
    }
    // The same over the version that it was decided from is no retry: its leader wants that version to move, so that
    // nothing of what it proposed earlier can be stored any more (L2).
    let retried = proposal.partition_epoch < stored.partition_epoch || !holds(Rule::ClearUpIsStored);
    if same && retried && holds(Rule::RetryIsRecognised) {
        return AlreadyStored;
    }
    if proposal.partition_epoch < stored.partition_epoch && holds(Rule::PartitionVersion) {
        return Refuse(Rejection::InvalidUpdateVersion);
    }
    if foreign || has_duplicates(&elr) {
        return Refuse(Rejection::InvalidRequest);
    }
    let mut added = Vec::new();
    for (id, epoch) in proposal.isr.iter().zip(&proposal.broker_epochs) {
        if stored.isr.contains(id) {
            continue;
        }
        match (epoch_of(*id), epoch) {
            (Some(current), Some(fetched))
                if (current == *fetched || !holds(Rule::MemberRegistration)) && stored.hosts.contains(id) =>
            {
                added.push((*id, current));
            }
            _ => return Refuse(Rejection::IneligibleReplica),
        }
    }
    Judgement::Store { isr: proposal.isr.clone(), elr, added }
}

fn has_duplicates(ids: &[BrokerId]) -> bool {
    ids.iter().enumerate().any(|(index, id)| ids[..index].contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ProposalTopic;
    use Judgement::{AlreadyStored, ReadAgain, Refuse};
    use Rejection::{FencedLeaderEpoch, IneligibleReplica, InvalidRequest, InvalidUpdateVersion};

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    /// Broker n lives in broker epoch 10 + n; broker 4 is dead, broker 5 is no host.
    fn judged(
        sender: i32,
        epochs: (i32, i32),
        isr: &[i32],
        member_epoch: i64,
        elr: Option<&[i32]>,
    ) -> Judgement {
        let stored = Stored {
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(7),
            hosts: &ids(&[1, 2, 3, 4]),
            isr: &ids(&[1, 2]),
            elr: &[],
            partition_epoch: PartitionEpoch(5),
        };
        let proposal = Proposal {
            topic: ProposalTopic::Name("t".into()),
            partition: 0,
            leader_epoch: LeaderEpoch(epochs.0),
            partition_epoch: PartitionEpoch(epochs.1),
            isr: ids(isr),
            broker_epochs: isr
                .iter()
                .map(|id| (member_epoch >= 0).then(|| BrokerEpoch(member_epoch + i64::from(*id))))
                .collect(),
            elr: elr.map(ids),
        };
        judge(&stored, BrokerId(sender), &proposal, |id| {
            (id.0 != 4).then(|| BrokerEpoch(10 + i64::from(id.0)))
        })
    }

    type Row<'a> = (i32, (i32, i32), &'a [i32], i64, Option<&'a [i32]>, Judgement);

    #[test]
    fn d16_accepts_only_the_leader_of_the_epoch_and_members_of_now() {
        let store = |isr: &[i32], elr: &[i32], added: &[i32]| Judgement::Store {
            isr: ids(isr),
            elr: ids(elr),
            added: added.iter().map(|id| (BrokerId(*id), BrokerEpoch(10 + i64::from(*id)))).collect(),
        };
        #[rustfmt::skip]
        let rows: [Row<'_>; 19] = [
            // sender  epochs  isr              member  elr           judgement
            (1,       (7, 5),  &[1, 2, 3],      10,     Some(&[]),    store(&[1, 2, 3], &[], &[3])),
            (1,       (7, 5),  &[1],            10,     Some(&[]),    store(&[1], &[], &[])),
            (1,       (7, 5),  &[1],            10,     Some(&[2]),   store(&[1], &[2], &[])),
            (1,       (7, 5),  &[1],            -1,     None,         store(&[1], &[], &[])),
            (1,       (6, 5),  &[1],            10,     Some(&[]),    Refuse(FencedLeaderEpoch)),
            (1,       (8, 5),  &[1],            10,     Some(&[]),    ReadAgain),
            (2,       (7, 5),  &[1, 2],         10,     Some(&[]),    Refuse(InvalidRequest)),
            (1,       (7, 5),  &[],             10,     Some(&[]),    Refuse(InvalidRequest)),
            (1,       (7, 5),  &[2, 3],         10,     Some(&[]),    Refuse(InvalidRequest)),
            (1,       (7, 5),  &[1, 1],         10,     Some(&[]),    Refuse(InvalidRequest)),
            (1,       (7, 6),  &[1],            10,     Some(&[]),    ReadAgain),
            (1,       (7, 4),  &[1],            10,     Some(&[]),    Refuse(InvalidUpdateVersion)),
            (1,       (7, 4),  &[2, 1],         10,     Some(&[]),    AlreadyStored),
            (1,       (7, 5),  &[2, 1],         10,     Some(&[]),    store(&[2, 1], &[], &[])),
            (1,       (7, 5),  &[1],            10,     Some(&[3]),   Refuse(InvalidRequest)),
            // a member in another registration, of unknown registration, dead, or no host
            (1,       (7, 5),  &[1, 2, 3],      9,      Some(&[]),    Refuse(IneligibleReplica)),
            (1,       (7, 5),  &[1, 2, 3],      -1,     Some(&[]),    Refuse(IneligibleReplica)),
            (1,       (7, 5),  &[1, 2, 4],      10,     Some(&[]),    Refuse(IneligibleReplica)),
            (1,       (7, 5),  &[1, 2, 5],      10,     Some(&[]),    Refuse(IneligibleReplica)),
        ];
        for (sender, epochs, isr, member, elr, expected) in rows {
            let row = format!("{sender} {epochs:?} {isr:?} {member} {elr:?}");
            assert_eq!(judged(sender, epochs, isr, member, elr), expected, "{row}");
        }
    }
}
