//! The take-over write: the new leader creates its `leader` znode and the `ISR` it serves with, for many partitions in
//! few multis (coordination.md, "Becoming leader"). A write whose ground has moved is decided again from what is
//! stored; a lost answer is settled by looking (L2). What is decided stands in `replica/take_over.rs`.

use std::sync::Arc;

use tracing::{debug, error, warn};
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::StoredIsr;
use zurau_common::zk::op::MultiError;
use zurau_common::zk::session::ZooKeeper;

use crate::partition::Partition;
use crate::replica::take_over::{Found, Plan, ROUNDS_MAX, Stored, TakeOver, assumed, interpret, paths};

/// An office to be taken.
pub(crate) struct Candidate {
    pub(crate) partition: Arc<Partition>,
    pub(crate) order: LeaderAndIsr,
    pub(crate) take_over: TakeOver,
}

type Attempt = (Candidate, Plan);

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
        match assumed(&candidate.order, candidate.take_over) {
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
            let ops = attempt.1.operations(&attempt.0.order, own);
            (attempt, ops)
        });
        for ((candidate, plan), result) in zookeeper.multi_batched(groups.collect()).await {
            match result {
                Ok(_) => done.push((candidate, Ok(plan.stored()))),
                Err(MultiError::SessionEnded | MultiError::Refused(_)) => {
                    done.push((candidate, Err(Rejection::NotLeaderOrFollower)));
                }
                Err(error) => {
                    debug!(partition = %candidate.order.partition, %error, "looking at the znodes again");
                    look.push(candidate);
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

fn prepare(
    candidate: Candidate,
    stored: Stored,
    (own, delete_leader): (BrokerId, bool),
    attempts: &mut Vec<Attempt>,
    done: &mut Vec<Outcome>,
) {
    let found = (stored.clone(), delete_leader);
    match Plan::decide(&candidate.order, candidate.take_over, found, own) {
        Ok(plan) => attempts.push((candidate, plan)),
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
    let paths: Vec<String> = candidates.iter().flat_map(|candidate| paths(&candidate.order)).collect();
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
