//! One step of a replica over its log, whatever the log is made of: production gives it files, the model in the tests
//! gives it a list. Whoever holds both calls these functions and carries out what they decide.

use zurau_common::config::TruncationPath;
use zurau_common::id::{BrokerId, LeaderEpoch};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::follower::{
    Asked, EpochEndOffset, FetchPosition, FetchedOutcome, Follower, FollowerAction, StartDecision,
};
use super::leader::{Leader, LogEnds};
use super::progress::FollowerFetch;
use super::{LogFacts, Replica, Role};
use crate::waiters::OffsetWaiters;

/// What the rules ask of a log. Ends are exclusive; `log_start <= high_watermark <= log_end` (R14).
pub trait ReplicaLog {
    fn log_start_offset(&self) -> i64;
    fn log_end_offset(&self) -> i64;
    fn high_watermark(&self) -> i64;
    /// Takes the high watermark over, kept within log start and log end.
    fn update_high_watermark(&mut self, high_watermark: i64);
    /// The last epoch of the history.
    fn latest_epoch(&self) -> Option<i32>;
    /// The epoch under which the record at `offset` was appended.
    fn epoch_at(&self, offset: i64) -> Option<i32>;
    /// Where the largest epoch not above `epoch` ends (KIP-279).
    fn end_offset_for_epoch(&self, epoch: i32) -> EpochEndOffset;
}

/// What an order is judged by.
pub fn log_facts(log: &impl ReplicaLog) -> LogFacts {
    LogFacts { latest_epoch: log.latest_epoch().map(LeaderEpoch), is_empty: log.log_end_offset() == 0 }
}

pub fn log_ends(log: &impl ReplicaLog) -> LogEnds {
    LogEnds { high_watermark: log.high_watermark(), log_end: log.log_end_offset() }
}

/// What the replica asks its leader; `None` when it does not follow. One that asks where epochs end fetches nothing before
/// its log agrees with the leader's (KIP-101): its fetches say nothing of its epochs, and count as progress.
pub fn fetch_position(replica: &Replica, log: &impl ReplicaLog) -> Option<FetchPosition> {
    let follower = replica.follower()?;
    let last_epoch = last_epoch(log);
    let (asked, last_fetched_epoch) = match follower.path {
        TruncationPath::Fetch => (Asked::Records, last_epoch),
        TruncationPath::OffsetsForLeaderEpoch => {
            let open = 0 <= last_epoch && !follower.agrees && holds(Rule::TruncateBeforeFetch);
            if open { (Asked::EpochEnd, last_epoch) } else { (Asked::Records, -1) }
        }
    };
    Some(FetchPosition {
        leader: follower.leader,
        leader_epoch: follower.leader_epoch,
        offset: log.log_end_offset(),
        last_fetched_epoch,
        log_start: log.log_start_offset(),
        asked,
    })
}

/// The epoch of the last record; an epoch that was begun without a record has been fetched from nobody.
pub(super) fn last_epoch(log: &impl ReplicaLog) -> i32 {
    if log.log_end_offset() == log.log_start_offset() {
        return -1;
    }
    log.epoch_at(log.log_end_offset() - 1).unwrap_or(-1)
}

/// What the answer to the question `asked` means now; `None` when the replica does not follow any more. Whoever has cut
/// the log as it says tells [`Replica::agree`] so, if it agrees then.
pub fn decide_on_answer(
    replica: &mut Replica,
    log: &impl ReplicaLog,
    asked: FetchPosition,
    outcome: FetchedOutcome,
) -> Option<FollowerAction> {
    let current = fetch_position(replica, log)?;
    let action = Follower::decide(asked, current, outcome, |epoch| log.end_offset_for_epoch(epoch));
    if matches!(action, FollowerAction::Append { .. }) {
        // One that had no records had nothing to compare, and has only the leader's from now on.
        replica.agree();
    }
    Some(action)
}

/// What the leader's log start means for one that asked for it; `None` when the question is of the past.
pub fn decide_on_start(
    replica: &mut Replica,
    log: &impl ReplicaLog,
    asked: FetchPosition,
    leader_start: i64,
) -> Option<StartDecision> {
    let current = fetch_position(replica, log).filter(|current| *current == asked)?;
    let decision = Follower::decide_start(current, leader_start);
    if decision == StartDecision::Keep {
        replica.doubt();
    }
    Some(decision)
}

/// Where the largest epoch not above `asked` ends in the leader's log: at its log end, whatever is committed, for
/// replicas and consumers alike, as in Kafka (OffsetsForLeaderEpoch).
///
/// # Errors
/// Not the leader; the asker is in another epoch.
pub fn epoch_end(
    replica: &Replica,
    log: &impl ReplicaLog,
    current_leader_epoch: LeaderEpoch,
    asked: LeaderEpoch,
) -> Result<EpochEndOffset, Rejection> {
    replica.leader_in(current_leader_epoch)?;
    Ok(log.end_offset_for_epoch(asked.0))
}

/// Follower HW = min(own LEO, leader HW); it never goes back by an answer.
pub fn adopt_high_watermark(log: &mut impl ReplicaLog, told: i64) {
    let high_watermark = told.min(log.log_end_offset());
    if log.high_watermark() < high_watermark {
        log.update_high_watermark(high_watermark);
    }
}

/// A read on the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderRead {
    /// [`LeaderEpoch::UNKNOWN`] when the reader does not say.
    pub current_leader_epoch: LeaderEpoch,
    pub offset: i64,
    /// Epoch of the last record that the reader has; [`LeaderEpoch::UNKNOWN`] when it does not say.
    pub last_fetched_epoch: LeaderEpoch,
    /// Who follows, with its fetch and its log start (−1: not told); `None` for a consumer.
    pub follower: Option<(BrokerId, FollowerFetch, i64)>,
}

/// Whether the reader's history parts from the leader's, and where; `None` when it does not. Only then a follower's
/// offset is its progress.
///
/// # Errors
/// A follower's leader that is none, or in another epoch (whether a consumer may read here, its caller knows); an offset
/// outside the log, a follower that is no host or of an older registration.
pub fn admit_read(
    replica: &mut Replica,
    log: &impl ReplicaLog,
    read: &LeaderRead,
) -> Result<Option<EpochEndOffset>, Rejection> {
    if read.follower.is_some() {
        replica.leader_in(read.current_leader_epoch)?;
    }
    let diverging = divergence(log, read)?;
    if diverging.is_some() && holds(Rule::DivergingFetchIsNoProgress) {
        return Ok(diverging);
    }
    if read.offset < log.log_start_offset() || log.log_end_offset() < read.offset {
        return diverging.map_or(Err(Rejection::OffsetOutOfRange), |end| Ok(Some(end)));
    }
    if let Some((follower, fetch, log_start)) = read.follower {
        let leader = replica.leader_mut().ok_or(Rejection::NotLeaderOrFollower)?;
        if !leader.record_fetch(follower, fetch, log.log_end_offset()) {
            return Err(Rejection::NotLeaderOrFollower);
        }
        leader.record_log_start(follower, log_start);
    }
    Ok(diverging)
}

/// Whether the reader's last epoch ends earlier in the leader's log than the reader believes.
fn divergence(log: &impl ReplicaLog, read: &LeaderRead) -> Result<Option<EpochEndOffset>, Rejection> {
    let last = read.last_fetched_epoch;
    if last.0 < 0 {
        return Ok(None);
    }
    let end = log.end_offset_for_epoch(last.0);
    if end.leader_epoch < 0 {
        return Err(Rejection::OffsetOutOfRange);
    }
    let diverges = end.leader_epoch < last.0 || end.end_offset < read.offset;
    Ok(diverges.then_some(end))
}

/// Whether a producer may append now, and in which epoch (D3). `acks_all`: the acknowledgement waits for the ISR.
///
/// # Errors
/// Not the leader, or one that may not serve now; too few in sync; a log that failed.
pub fn admit_append(
    replica: &Replica,
    asked: LeaderEpoch,
    acks_all: bool,
    may_serve: impl FnOnce(&Leader) -> bool,
) -> Result<LeaderEpoch, Rejection> {
    if let Role::Idle(Some(Rejection::KafkaStorageError)) = replica.role() {
        return Err(Rejection::KafkaStorageError);
    }
    let leader = replica.leader_in(asked)?;
    if !may_serve(leader) {
        return Err(Rejection::NotLeaderOrFollower);
    }
    if acks_all && !leader.has_enough_in_sync() {
        return Err(Rejection::NotEnoughReplicas);
    }
    Ok(leader.leader_epoch())
}

/// What a look at the high watermark did.
#[derive(Debug)]
pub struct Settled<W> {
    /// The high watermark rose.
    pub risen: bool,
    /// Whose batch the high watermark has passed, with what they are told.
    pub acknowledged: Vec<(W, Result<(), Rejection>)>,
}

/// After anything that may move the high watermark: moves it (R12), and takes out the acknowledgements that are due
/// (R20). A replica that does not lead settles nothing.
pub fn settle<W>(
    replica: &Replica,
    log: &mut impl ReplicaLog,
    commits: &mut OffsetWaiters<W>,
    holds_lease: impl FnOnce() -> bool,
) -> Settled<W> {
    let Some(leader) = replica.leader() else {
        return Settled { risen: false, acknowledged: Vec::new() };
    };
    let higher = leader.risen_high_watermark(log_ends(log));
    if let Some(high_watermark) = higher {
        log.update_high_watermark(high_watermark);
    }
    let due = commits.release(log.high_watermark());
    if due.is_empty() {
        return Settled { risen: higher.is_some(), acknowledged: Vec::new() };
    }
    let outcome = if !leader.has_enough_in_sync() {
        Err(Rejection::NotEnoughReplicasAfterAppend)
    } else if holds_lease() || leader.acknowledges_without_lease() {
        Ok(())
    } else {
        Err(Rejection::NotLeaderOrFollower)
    };
    let acknowledged = due.into_iter().map(|waiter| (waiter, outcome)).collect();
    Settled { risen: higher.is_some(), acknowledged }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
