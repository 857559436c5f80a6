//! What a leader takes office with: the `leader` znode and the `ISR` it serves with, decided from the order or from what
//! is stored by now (coordination.md, "Becoming leader"; N6, F2, L2).

use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerEpoch, BrokerId, PartitionEpoch};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::fence::{self, Expected, Fence, IsrWrite, PartitionWrite};
use zurau_common::zk::isr::{StoredIsr, decode_ids};
use zurau_common::zk::op::{Node, Op};
use zurau_common::zk::znode::Znode;

/// How often a write is decided anew before the office is refused.
pub const ROUNDS_MAX: usize = 6;

/// An office that waits for its take-over write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    /// Log end when the epoch was recorded.
    pub epoch_start: i64,
    /// min(`min.insync.replicas`, number of target replicas), which decides the ELR (F2).
    pub min_in_sync: usize,
}

/// What is stored of a partition when the write is decided; `None`: there is no `ISR` yet.
pub type Stored = Option<StoredIsr>;

/// The ISR and ELR to take office with (N6, F2), or why office cannot be taken.
///
/// The stored ISR is what the order was made from, or it has moved since: then only what both agree on counts.
fn decide(
    order: &LeaderAndIsr,
    stored: &Stored,
    min_in_sync: usize,
    own: BrokerId,
) -> Result<(Vec<BrokerId>, Vec<BrokerId>), Rejection> {
    let Some(stored) = stored else {
        return match order.partition_epoch {
            PartitionEpoch::CREATE if order.isr.contains(&own) => Ok((order.isr.clone(), Vec::new())),
            _ => Err(Rejection::NotLeaderOrFollower),
        };
    };
    let eligible = stored.elr.contains(&own) || order.recovery;
    if order.isr.contains(&own) && !holds(Rule::TakeOverOfStoredIsr) {
        return Ok((order.isr.clone(), Vec::new()));
    }
    let isr = if stored.partition_epoch == order.partition_epoch && order.isr.contains(&own) {
        order.isr.clone()
    } else if stored.isr.contains(&own) {
        let kept = stored.isr.iter().copied().filter(|id| *id == own || order.isr.contains(id));
        kept.collect()
    } else if eligible {
        vec![own]
    } else {
        return Err(Rejection::NotLeaderOrFollower);
    };
    let may_store = isr == [own] && eligible || difference(&isr, &stored.isr).is_empty();
    if !may_store {
        return Err(Rejection::NotLeaderOrFollower);
    }
    let elr = if min_in_sync <= isr.len() {
        Vec::new()
    } else {
        difference(&union(&stored.isr, &stored.elr), &isr)
    };
    Ok((isr, elr))
}

/// A take-over write that is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    stored: Stored,
    delete_leader: bool,
    isr: Vec<BrokerId>,
    elr: Vec<BrokerId>,
}

impl Plan {
    /// # Errors
    /// The ISR has moved, and this broker may not lead.
    pub fn decide(
        order: &LeaderAndIsr,
        take_over: TakeOver,
        found: (Stored, bool),
        own: BrokerId,
    ) -> Result<Self, Rejection> {
        let (stored, delete_leader) = found;
        let (isr, elr) = decide(order, &stored, take_over.min_in_sync, own)?;
        Ok(Self { stored, delete_leader, isr, elr })
    }

    /// The multi.
    pub fn operations(&self, order: &LeaderAndIsr, own: (BrokerId, BrokerEpoch)) -> Vec<Op> {
        let fence = Fence {
            partition: order.partition.clone(),
            topic_id: order.topic_id,
            state: Expected::Version(order.state_version),
            isr: isr_version(&self.stored),
            controller_epoch_version: None,
            broker_epochs: vec![own],
        };
        let elr_exists = self.stored.as_ref().is_some_and(|stored| !stored.elr.is_empty());
        let write = PartitionWrite {
            isr: Some(IsrWrite { isr: self.isr.clone(), elr: self.elr.clone(), elr_exists }),
            delete_leader: self.delete_leader,
            create_leader: Some(own.0),
            ..PartitionWrite::default()
        };
        fence::build(&fence, &write)
    }

    /// What is stored once the multi is.
    pub fn stored(&self) -> StoredIsr {
        StoredIsr {
            isr: self.isr.clone(),
            elr: self.elr.clone(),
            partition_epoch: fence::partition_epoch_after(isr_version(&self.stored)),
        }
    }
}

/// What is stored, as far as the order says it completely: the ISR of an order lacks dead members, which matter only
/// when an ELR has to be stored.
pub fn assumed(order: &LeaderAndIsr, take_over: TakeOver) -> Option<Stored> {
    if order.partition_epoch == PartitionEpoch::CREATE {
        return Some(None);
    }
    let untold = (!holds(Rule::MissingElrIsRead)).then(Vec::new);
    let elr = order.elr.clone().or(untold)?;
    let complete = take_over.min_in_sync <= order.isr.len() && !order.recovery;
    complete.then(|| Some(StoredIsr { isr: order.isr.clone(), elr, partition_epoch: order.partition_epoch }))
}

/// The znodes that [`interpret`] needs.
pub fn paths(order: &LeaderAndIsr) -> [String; 4] {
    let tp = &order.partition;
    [Znode::State(tp.clone()), Znode::Leader(tp.clone()), Znode::Isr(tp.clone()), Znode::Elr(tp.clone())]
        .map(|znode| znode.path())
}

/// What the znodes of a partition say to one that wants to lead it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Decide {
        stored: Stored,
        delete_leader: bool,
    },
    /// The own write had been stored, although no answer came.
    InOffice(StoredIsr),
}

/// `nodes`: `state`, `leader`, `ISR` and `ELR`.
///
/// # Errors
/// Another election is recorded; the znodes cannot be read.
pub fn interpret(order: &LeaderAndIsr, nodes: &[Option<Node>], session_id: i64) -> Result<Found, Rejection> {
    let [state, leader, isr, elr] = nodes else { return Err(Rejection::UnknownServerError) };
    let state = state.as_ref().filter(|state| state.version == order.state_version);
    let state = state.ok_or(Rejection::NotLeaderOrFollower)?;
    let ids = |node: &Node| decode_ids(&node.data).map_err(|_| Rejection::UnknownServerError);
    let stored = match isr {
        None => None,
        Some(isr) => Some(StoredIsr {
            isr: ids(isr)?,
            elr: elr.as_ref().map(ids).transpose()?.unwrap_or_default(),
            partition_epoch: PartitionEpoch(isr.version),
        }),
    };
    match (leader, stored) {
        (Some(leader), Some(stored))
            if leader.ephemeral_owner == session_id && state.mzxid < leader.czxid =>
        {
            Ok(Found::InOffice(stored))
        }
        (leader, stored) => Ok(Found::Decide { stored, delete_leader: leader.is_some() }),
    }
}

fn isr_version(stored: &Stored) -> Expected {
    if stored.is_none() && !holds(Rule::MinusOneIsNoVersion) {
        return Expected::Version(PartitionEpoch::CREATE.0);
    }
    stored.as_ref().map_or(Expected::Absent, |stored| Expected::Version(stored.partition_epoch.0))
}

#[cfg(test)]
mod tests {
    use zurau_common::id::{ControllerEpoch, LeaderEpoch, TopicId, TopicPartition};

    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn order(isr: &[i32], partition_epoch: i32, recovery: bool) -> LeaderAndIsr {
        LeaderAndIsr {
            partition: TopicPartition::new("t", 0),
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            controller_epoch: ControllerEpoch(3),
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(5),
            isr: ids(isr),
            partition_epoch: PartitionEpoch(partition_epoch),
            replicas: ids(&[1, 2, 3]),
            adding_replicas: Vec::new(),
            removing_replicas: Vec::new(),
            is_new: false,
            recovery,
            state_version: 8,
            elr: None,
        }
    }

    fn stored(isr: &[i32], elr: &[i32], version: i32) -> Stored {
        Some(StoredIsr { isr: ids(isr), elr: ids(elr), partition_epoch: PartitionEpoch(version) })
    }

    #[test]
    fn the_isr_to_take_office_with() {
        let refused = Err(Rejection::NotLeaderOrFollower);
        let take = |isr: &[i32], elr: &[i32]| Ok((ids(isr), ids(elr)));
        let rows = [
            ("created", order(&[1, 2], -1, false), None, take(&[1, 2], &[])),
            ("as ordered", order(&[1, 2], 4, false), stored(&[1, 2], &[], 4), take(&[1, 2], &[])),
            (
                "a dead member leaves",
                order(&[1, 2], 4, false),
                stored(&[1, 2, 3], &[], 4),
                take(&[1, 2], &[]),
            ),
            ("and stays eligible", order(&[1], 4, false), stored(&[1, 3], &[], 4), take(&[1], &[3])),
            ("from the ELR", order(&[1], 4, false), stored(&[2], &[1, 3], 4), take(&[1], &[2, 3])),
            ("uncleanly", order(&[1], 4, true), stored(&[2], &[], 4), take(&[1], &[2])),
            ("N6: 2 left itself out", order(&[1, 2], 4, false), stored(&[1, 3], &[], 5), take(&[1], &[3])),
            ("N6: now in the ELR", order(&[1, 2], 4, false), stored(&[2], &[1], 5), take(&[1], &[2])),
            ("N6: neither", order(&[1, 2], 4, false), stored(&[2], &[], 5), refused.clone()),
            ("the ISR vanished", order(&[1, 2], 4, false), None, refused.clone()),
            ("ordered from nowhere", order(&[1, 3], 4, false), stored(&[2], &[], 4), refused),
        ];
        for (name, order, stored, expected) in rows {
            assert_eq!(decide(&order, &stored, 2, BrokerId(1)), expected, "{name}");
        }
    }

    fn node(data: &str, version: i32, czxid: i64, ephemeral_owner: i64) -> Option<Node> {
        Some(Node { data: data.into(), version, czxid, mzxid: 50, ephemeral_owner })
    }

    #[test]
    fn a_lost_answer_is_settled_by_looking() {
        let order = order(&[1, 2], 4, false);
        let state = node("", 8, 10, 0);
        let isr = node("[1,2]", 5, 11, 0);
        let found = stored(&[1, 2], &[], 5);
        let decide = |delete_leader| Ok(Found::Decide { stored: found.clone(), delete_leader });
        let in_office = Ok(Found::InOffice(found.clone().unwrap()));
        let refused = Err(Rejection::NotLeaderOrFollower);
        let rows = [
            ("own, younger than state", state.clone(), node("1", 0, 51, 7), in_office),
            ("own, of an older epoch", state.clone(), node("1", 0, 49, 7), decide(true)),
            ("of another session", state.clone(), node("1", 0, 51, 6), decide(true)),
            ("none", state, None, decide(false)),
            ("another election", node("", 9, 10, 0), None, refused.clone()),
            ("no state", None, None, refused),
        ];
        for (name, state, leader, expected) in rows {
            assert_eq!(interpret(&order, &[state, leader, isr.clone(), None], 7), expected, "{name}");
        }
    }
}
