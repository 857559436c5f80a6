//! The take-over write: the new leader creates its `leader` znode and the `ISR` it serves with, for many partitions in
//! few multis (coordination.md, "Becoming leader"). A write whose ground has moved is decided again from what is
//! stored; a lost answer is settled by looking (L2).

use std::sync::Arc;

use tracing::{debug, error, warn};
use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerEpoch, BrokerId, PartitionEpoch};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::fence::{self, Expected, Fence, IsrWrite, PartitionWrite};
use zurau_common::zk::isr::{StoredIsr, decode_ids};
use zurau_common::zk::op::{MultiError, Node, Op};
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::partition::{Partition, TakeOver};

/// How often a write is decided anew before the office is refused.
const ROUNDS_MAX: usize = 6;

/// An office to be taken.
pub(crate) struct Candidate {
    pub(crate) partition: Arc<Partition>,
    pub(crate) order: LeaderAndIsr,
    pub(crate) take_over: TakeOver,
}

/// What is stored of a partition when the write is decided; `None`: there is no `ISR` yet.
type Stored = Option<StoredIsr>;

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

/// A write that is decided.
struct Attempt {
    candidate: Candidate,
    stored: Stored,
    delete_leader: bool,
    isr: Vec<BrokerId>,
    elr: Vec<BrokerId>,
}

type Outcome = (Candidate, Result<StoredIsr, Rejection>);

/// Takes all the offices that can be taken. Outcomes in no particular order.
pub(crate) async fn take_over(
    zookeeper: &ZooKeeper,
    own: (BrokerId, BrokerEpoch),
    candidates: Vec<Candidate>,
) -> Vec<Outcome> {
    let mut done = Vec::new();
    let (mut attempts, mut look) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match assumed(&candidate) {
            Some(stored) => prepare(candidate, stored, (own.0, false), &mut attempts, &mut done),
            None => look.push(candidate),
        }
    }
    for round in 0..ROUNDS_MAX {
        look_and_prepare(zookeeper, own.0, std::mem::take(&mut look), &mut attempts, &mut done).await;
        if attempts.is_empty() {
            return done;
        }
        debug!(round, offices = attempts.len(), "storing take-overs");
        let groups = std::mem::take(&mut attempts).into_iter().map(|attempt: Attempt| {
            let ops = attempt_ops(&attempt, own);
            (attempt, ops)
        });
        for (attempt, result) in zookeeper.multi_batched(groups.collect()).await {
            match result {
                Ok(_) => {
                    let stored = stored_by(&attempt);
                    done.push((attempt.candidate, Ok(stored)));
                }
                Err(MultiError::SessionEnded | MultiError::Refused(_)) => {
                    done.push((attempt.candidate, Err(Rejection::NotLeaderOrFollower)));
                }
                Err(error) => {
                    debug!(partition = %attempt.candidate.order.partition, %error, "looking at the znodes again");
                    look.push(attempt.candidate);
                }
            }
        }
    }
    for candidate in look {
        warn!(partition = %candidate.order.partition, "the take-over was not stored after {ROUNDS_MAX} attempts");
        done.push((candidate, Err(Rejection::NotLeaderOrFollower)));
    }
    done
}

/// What is stored, as far as the order says it completely: the ISR of an order lacks dead members, which matter only
/// when an ELR has to be stored.
fn assumed(candidate: &Candidate) -> Option<Stored> {
    let Candidate { order, take_over, .. } = candidate;
    if order.partition_epoch == PartitionEpoch::CREATE {
        return Some(None);
    }
    let elr = order.elr.clone()?;
    let complete = take_over.min_in_sync <= order.isr.len() && !order.recovery;
    complete.then(|| Some(StoredIsr { isr: order.isr.clone(), elr, partition_epoch: order.partition_epoch }))
}

fn prepare(
    candidate: Candidate,
    stored: Stored,
    (own, delete_leader): (BrokerId, bool),
    attempts: &mut Vec<Attempt>,
    done: &mut Vec<Outcome>,
) {
    match decide(&candidate.order, &stored, candidate.take_over.min_in_sync, own) {
        Ok((isr, elr)) => attempts.push(Attempt { candidate, stored, delete_leader, isr, elr }),
        Err(rejection) => {
            warn!(
                partition = %candidate.order.partition, leader_epoch = %candidate.order.leader_epoch, ?stored,
                ordered = ?candidate.order.isr, "the ISR has moved; this broker may not lead"
            );
            done.push((candidate, Err(rejection)));
        }
    }
}

/// Reads what is stored and decides from it.
async fn look_and_prepare(
    zookeeper: &ZooKeeper,
    own: BrokerId,
    candidates: Vec<Candidate>,
    attempts: &mut Vec<Attempt>,
    done: &mut Vec<Outcome>,
) {
    if candidates.is_empty() {
        return;
    }
    let paths: Vec<String> = candidates
        .iter()
        .flat_map(|candidate| {
            let tp = &candidate.order.partition;
            [
                Znode::State(tp.clone()),
                Znode::Leader(tp.clone()),
                Znode::Isr(tp.clone()),
                Znode::Elr(tp.clone()),
            ]
        })
        .map(|znode| znode.path())
        .collect();
    let nodes = match zookeeper.get_many(&paths).await {
        Ok(nodes) => nodes,
        Err(error) => {
            warn!(%error, offices = candidates.len(), "the ISRs cannot be read; leadership is refused");
            done.extend(
                candidates.into_iter().map(|candidate| (candidate, Err(Rejection::NotLeaderOrFollower))),
            );
            return;
        }
    };
    for (candidate, nodes) in candidates.into_iter().zip(nodes.chunks_exact(4)) {
        match interpret(&candidate.order, nodes, zookeeper.session_id()) {
            Ok(Found::Decide { stored, delete_leader }) => {
                prepare(candidate, stored, (own, delete_leader), attempts, done);
            }
            Ok(Found::InOffice(stored)) if stored.isr.contains(&own) => done.push((candidate, Ok(stored))),
            Ok(Found::InOffice(stored)) => {
                error!(
                    partition = %candidate.order.partition, ?stored,
                    "the stored ISR lacks its leader; was it written by hand?"
                );
                done.push((candidate, Err(Rejection::NotLeaderOrFollower)));
            }
            Err(rejection) => done.push((candidate, Err(rejection))),
        }
    }
}

/// What the znodes of a partition say to one that wants to lead it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Decide {
        stored: Stored,
        delete_leader: bool,
    },
    /// The own write had been stored, although no answer came.
    InOffice(StoredIsr),
}

/// `nodes`: `state`, `leader`, `ISR` and `ELR`.
fn interpret(order: &LeaderAndIsr, nodes: &[Option<Node>], session_id: i64) -> Result<Found, Rejection> {
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
    stored.as_ref().map_or(Expected::Absent, |stored| Expected::Version(stored.partition_epoch.0))
}

fn attempt_ops(attempt: &Attempt, own: (BrokerId, BrokerEpoch)) -> Vec<Op> {
    let order = &attempt.candidate.order;
    let fence = Fence {
        partition: order.partition.clone(),
        topic_id: order.topic_id,
        state: Expected::Version(order.state_version),
        isr: isr_version(&attempt.stored),
        controller_epoch_version: None,
        broker_epochs: vec![own],
    };
    let elr_exists = attempt.stored.as_ref().is_some_and(|stored| !stored.elr.is_empty());
    let write = PartitionWrite {
        isr: Some(IsrWrite { isr: attempt.isr.clone(), elr: attempt.elr.clone(), elr_exists }),
        delete_leader: attempt.delete_leader,
        create_leader: Some(own.0),
        ..PartitionWrite::default()
    };
    fence::build(&fence, &write)
}

fn stored_by(attempt: &Attempt) -> StoredIsr {
    StoredIsr {
        isr: attempt.isr.clone(),
        elr: attempt.elr.clone(),
        partition_epoch: fence::partition_epoch_after(isr_version(&attempt.stored)),
    }
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
