//! What a leader has stored of the ISR: the write of a proposal, what the answers to it mean, and how what is stored
//! settles what is open (D16, L2, L7, N15). How a broker resigns, and how it leaves an ISR that it cannot honour.

use zurau_common::assignment::difference;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::fence::{self, Expected, Fence, IsrWrite, PartitionWrite};
use zurau_common::zk::isr::{StoredIsr, decode_ids};
use zurau_common::zk::op::{Node, Op};
use zurau_common::zk::znode::Znode;

use super::isr::Proposal;

/// What a write on the partition has to check (coordination.md, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredFacts {
    pub leader_epoch: LeaderEpoch,
    pub state_version: i32,
    pub partition_epoch: PartitionEpoch,
}

/// A proposal in flight, and what it was decided from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenProposal {
    pub facts: StoredFacts,
    pub stored: StoredIsr,
    pub proposal: Proposal,
}

impl OpenProposal {
    /// The multi of a leader that stores it itself, under the same fences as the controller would.
    pub fn operations(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        own: (BrokerId, BrokerEpoch),
    ) -> Vec<Op> {
        let Self { facts, stored, proposal } = self;
        let added = difference(&proposal.isr, &stored.isr);
        let mut broker_epochs = vec![own];
        broker_epochs.extend(proposal.broker_epochs.iter().filter(|(id, _)| added.contains(id)));
        let fence = Fence {
            partition: tp.clone(),
            topic_id,
            state: Expected::Version(facts.state_version),
            isr: Expected::Version(proposal.partition_epoch.0),
            controller_epoch_version: None,
            broker_epochs,
        };
        let isr = IsrWrite {
            isr: proposal.isr.clone(),
            elr: proposal.elr.clone(),
            elr_exists: !stored.elr.is_empty(),
        };
        fence::build(&fence, &PartitionWrite { isr: Some(isr), ..PartitionWrite::default() })
    }

    /// What is stored once the multi is.
    pub fn stored_by(&self) -> StoredIsr {
        StoredIsr {
            isr: self.proposal.isr.clone(),
            elr: self.proposal.elr.clone(),
            partition_epoch: fence::partition_epoch_after(Expected::Version(self.proposal.partition_epoch.0)),
        }
    }
}

/// The controller's answer about one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposalAnswer {
    pub leader_epoch: LeaderEpoch,
    pub isr: Vec<BrokerId>,
    /// `None` when the answer does not carry it, or not readably.
    pub elr: Option<Vec<BrokerId>>,
    pub partition_epoch: PartitionEpoch,
}

/// What became of one proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Stored(StoredIsr),
    Refused(Rejection),
    /// Look at what is stored.
    Look,
    /// Send it again; `lost`: it may have been stored.
    Retry {
        lost: bool,
    },
}

/// Which answers mean what: a clear refusal, something that has moved, or "not now".
pub fn fate_of(facts: &StoredFacts, answer: Result<ProposalAnswer, Rejection>) -> Fate {
    match answer {
        Err(Rejection::InvalidUpdateVersion) if !holds(Rule::RetryIsRecognised) => {
            Fate::Refused(Rejection::InvalidUpdateVersion)
        }
        Ok(ProposalAnswer { isr, elr: None, partition_epoch, .. }) if !holds(Rule::MissingElrIsRead) => {
            Fate::Stored(StoredIsr { isr, elr: Vec::new(), partition_epoch })
        }
        Ok(ProposalAnswer { leader_epoch, isr, elr: Some(elr), partition_epoch })
            if leader_epoch == facts.leader_epoch =>
        {
            Fate::Stored(StoredIsr { isr, elr, partition_epoch })
        }
        // A missing ELR means "read it", never "empty" (N15).
        Ok(_) => Fate::Look,
        Err(rejection @ (Rejection::IneligibleReplica | Rejection::InvalidRequest)) => {
            Fate::Refused(rejection)
        }
        Err(
            Rejection::InvalidUpdateVersion
            | Rejection::FencedLeaderEpoch
            | Rejection::NewLeaderElected
            | Rejection::NotLeaderOrFollower
            | Rejection::UnknownTopicId
            | Rejection::UnknownTopicOrPartition,
        ) => Fate::Look,
        Err(Rejection::UnknownServerError | Rejection::RequestTimedOut) => Fate::Retry { lost: true },
        Err(_) => Fate::Retry { lost: false },
    }
}

/// The znodes that [`look`] needs.
pub fn paths(tp: &TopicPartition) -> [String; 3] {
    [Znode::State(tp.clone()), Znode::Isr(tp.clone()), Znode::Elr(tp.clone())].map(|znode| znode.path())
}

/// What the znodes say to a leader whose proposal has an unclear fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It still leads; this is stored.
    Stored(StoredIsr),
    /// Another election is recorded.
    Replaced,
    /// Something is missing or unreadable: look again.
    Nothing,
}

/// `nodes`: `state`, `ISR` and `ELR`.
pub fn look(facts: &StoredFacts, nodes: &[Option<Node>]) -> Seen {
    let [Some(state), isr, elr] = nodes else { return Seen::Nothing };
    if state.version != facts.state_version {
        return Seen::Replaced;
    }
    let elr = match elr {
        None => Some(Vec::new()),
        Some(elr) => decode_ids(&elr.data).ok(),
    };
    let stored = isr.as_ref().and_then(|node| {
        let partition_epoch = PartitionEpoch(node.version);
        Some(StoredIsr { isr: decode_ids(&node.data).ok()?, elr: elr?, partition_epoch })
    });
    stored.map_or(Seen::Nothing, Seen::Stored)
}

/// The multi by which a broker gives a leadership back: its own `leader` znode goes, unless another election has been
/// recorded (F6). `None` when the znode is not this session's.
pub fn resignation(tp: &TopicPartition, node: &Node, session_id: i64, state_version: i32) -> Option<Vec<Op>> {
    let own = node.ephemeral_owner == session_id;
    let state = Znode::State(tp.clone()).path();
    let leader = Znode::Leader(tp.clone()).path();
    let delete = Op::Delete { path: leader, version: Some(node.version) };
    if !holds(Rule::ResignInOwnEpoch) {
        return own.then(|| vec![delete]);
    }
    own.then(|| vec![Op::CheckVersion { path: state, version: state_version }, delete])
}

/// The write by which a broker leaves the ISR and ELR of a partition that it has no complete log of (D1, D2, D4, M8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departure {
    /// It is in neither set, or they cannot be read.
    NotNamed,
    /// It is the last of both: it stays, there is nothing better.
    LastOne,
    Leave(Vec<Op>),
}

/// `nodes`: `ISR`, `ELR` and `state`.
pub fn departure(
    id: &TopicPartition,
    topic_id: TopicId,
    nodes: &[Option<Node>],
    (own, epoch): (BrokerId, BrokerEpoch),
) -> Departure {
    let [Some(isr_node), elr_node, state] = nodes else { return Departure::NotNamed };
    let Ok(isr) = decode_ids(&isr_node.data) else { return Departure::NotNamed };
    let Ok(elr) = elr_node.as_ref().map_or(Ok(Vec::new()), |elr| decode_ids(&elr.data)) else {
        return Departure::NotNamed;
    };
    if !isr.contains(&own) && !elr.contains(&own) {
        return Departure::NotNamed;
    }
    let (new_isr, new_elr) = without(&isr, &elr, own);
    if new_isr.is_empty() {
        return Departure::LastOne;
    }
    let fence = Fence {
        partition: id.clone(),
        topic_id,
        state: state.as_ref().map_or(Expected::Absent, |state| Expected::Version(state.version)),
        isr: Expected::Version(isr_node.version),
        controller_epoch_version: None,
        broker_epochs: vec![(own, epoch)],
    };
    let isr = IsrWrite { isr: new_isr, elr: new_elr, elr_exists: elr_node.is_some() };
    Departure::Leave(fence::build(&fence, &PartitionWrite { isr: Some(isr), ..PartitionWrite::default() }))
}

/// Both sets without a member. If no ISR remains, the rest of the ELR takes its place (D2).
fn without(isr: &[BrokerId], elr: &[BrokerId], own: BrokerId) -> (Vec<BrokerId>, Vec<BrokerId>) {
    let (isr, elr) = (difference(isr, &[own]), difference(elr, &[own]));
    if isr.is_empty() { (elr, Vec::new()) } else { (isr, elr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_means() {
        let facts = StoredFacts {
            leader_epoch: LeaderEpoch(5),
            state_version: 8,
            partition_epoch: PartitionEpoch(3),
        };
        let ids = vec![BrokerId(1), BrokerId(2)];
        let answer = |epoch: i32, elr: Option<Vec<BrokerId>>| ProposalAnswer {
            leader_epoch: LeaderEpoch(epoch),
            isr: ids.clone(),
            elr,
            partition_epoch: PartitionEpoch(4),
        };
        assert_eq!(fate_of(&facts, Ok(answer(5, None))), Fate::Look, "N15: no ELR means read it");
        let stored = StoredIsr { isr: ids.clone(), elr: Vec::new(), partition_epoch: PartitionEpoch(4) };
        assert_eq!(fate_of(&facts, Ok(answer(5, Some(Vec::new())))), Fate::Stored(stored));
        assert_eq!(fate_of(&facts, Ok(answer(6, Some(Vec::new())))), Fate::Look);
        let rows = [
            (Rejection::IneligibleReplica, Fate::Refused(Rejection::IneligibleReplica)),
            (Rejection::InvalidRequest, Fate::Refused(Rejection::InvalidRequest)),
            (Rejection::InvalidUpdateVersion, Fate::Look),
            (Rejection::FencedLeaderEpoch, Fate::Look),
            (Rejection::UnknownTopicId, Fate::Look),
            (Rejection::UnknownServerError, Fate::Retry { lost: true }),
            (Rejection::NotController, Fate::Retry { lost: false }),
            (Rejection::StaleBrokerEpoch, Fate::Retry { lost: false }),
        ];
        for (rejection, expected) in rows {
            assert_eq!(fate_of(&facts, Err(rejection)), expected, "{rejection:?}");
        }
    }

    #[test]
    fn who_remains() {
        let ids = |numbers: &[i32]| numbers.iter().copied().map(BrokerId).collect::<Vec<_>>();
        //   ISR, ELR, what remains of both without 1
        type Ids = &'static [i32];
        let rows: [(Ids, Ids, Ids, Ids); 5] = [
            (&[1, 2], &[], &[2], &[]),
            (&[2], &[1, 3], &[2], &[3]),
            (&[1], &[2, 3], &[2, 3], &[]),
            (&[1], &[], &[], &[]),
            (&[2], &[1], &[2], &[]),
        ];
        for (isr, elr, new_isr, new_elr) in rows {
            let remaining = without(&ids(isr), &ids(elr), BrokerId(1));
            assert_eq!(remaining, (ids(new_isr), ids(new_elr)), "{isr:?} {elr:?}");
        }
    }
}
