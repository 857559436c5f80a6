//! What one transaction becomes by a request, as Kafka 3.9 decides it. Whether the request comes from the current producer
//! and whether a write is under way has been looked at before.
//!
//! Pure.

use std::collections::BTreeSet;

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::records::{Transaction, TransactionState};
use super::request::InitRequest;
use crate::coordinator::Producer;

/// From this epoch on, a producer gets a new id instead of a higher epoch. One more epoch is left to fence with (TXN-05).
const EPOCH_LAST: i16 = i16::MAX - 1;

fn is_exhausted(epoch: i16) -> bool {
    EPOCH_LAST <= epoch
}

/// An id without an open transaction gets its next producer; `None` if it needs a fresh producer id.
///
/// # Errors
/// `ProducerFenced`: the producer says that it is one which has been replaced.
pub(super) fn initialize(
    transaction: &Transaction,
    request: &InitRequest,
    now_ms: i64,
) -> Result<Option<Transaction>, Rejection> {
    let (current, previous) = (transaction.producer, transaction.previous);
    let next = |producer: Producer, previous: Producer| Transaction {
        producer,
        previous,
        timeout_ms: request.timeout_ms,
        state: TransactionState::Empty,
        partitions: BTreeSet::new(),
        updated_ms: now_ms,
        started_ms: -1,
    };
    if let Some(expected) = request.expected
        && expected != current
    {
        // The same request again, whose answer was lost: a new incarnation would have forgotten `previous`.
        let is_retry = expected.epoch == previous.epoch
            && (expected == previous || expected.id == current.id)
            && 0 <= previous.epoch;
        return if is_retry { Ok(Some(next(current, previous))) } else { Err(Rejection::ProducerFenced) };
    }
    let replaced = match request.expected {
        Some(expected) => expected,
        None => Producer { id: current.id, epoch: -1 },
    };
    if !is_exhausted(current.epoch) {
        let epoch = if holds(Rule::EpochOfEachRun) { current.epoch + 1 } else { current.epoch.max(0) };
        let bumped = Producer { id: current.id, epoch };
        return Ok(Some(next(bumped, replaced)));
    }
    let fresh = request.fresh_producer_id.map(|id| Producer { id, epoch: 0 });
    Ok(fresh.map(|fresh| next(fresh, replaced)))
}

/// An ongoing transaction that is aborted against the will of its producer.
pub(super) fn abort_with_higher_epoch(transaction: &Transaction, now_ms: i64) -> Transaction {
    let Producer { id, epoch } = transaction.producer;
    // The last epoch is given to no producer; somebody who uses it all the same is not fenced.
    let epoch = if holds(Rule::TimeoutFences) { epoch.saturating_add(1) } else { epoch };
    Transaction {
        producer: Producer { id, epoch },
        previous: Producer { id, epoch: -1 },
        state: TransactionState::PrepareAbort,
        updated_ms: now_ms,
        ..transaction.clone()
    }
}

/// The transaction with more partitions, begun if there was none; `None` if it has them all.
pub(super) fn with_partitions(
    transaction: &Transaction,
    added: &[TopicPartition],
    now_ms: i64,
) -> Option<Transaction> {
    let is_ongoing = transaction.state == TransactionState::Ongoing;
    if is_ongoing && added.iter().all(|partition| transaction.partitions.contains(partition)) {
        return None;
    }
    let mut partitions = transaction.partitions.clone();
    partitions.extend(added.iter().cloned());
    Some(Transaction {
        state: TransactionState::Ongoing,
        partitions,
        updated_ms: now_ms,
        started_ms: if is_ongoing { transaction.started_ms } else { now_ms },
        ..transaction.clone()
    })
}

/// The decided transaction; `None` if it was decided like this before and is complete.
///
/// # Errors
/// `ConcurrentTransactions` while the markers of the same decision are written, `InvalidTxnState` otherwise.
pub(super) fn after_end(
    transaction: &Transaction,
    commits: bool,
    now_ms: i64,
) -> Result<Option<Transaction>, Rejection> {
    let state = match (transaction.state, commits) {
        (TransactionState::Ongoing, true) => TransactionState::PrepareCommit,
        (TransactionState::Ongoing, false) => TransactionState::PrepareAbort,
        (TransactionState::CompleteCommit, true) | (TransactionState::CompleteAbort, false) => {
            return Ok(None);
        }
        (TransactionState::PrepareCommit, true) | (TransactionState::PrepareAbort, false) => {
            return Err(Rejection::ConcurrentTransactions);
        }
        _ => return Err(Rejection::InvalidTxnState),
    };
    Ok(Some(Transaction { state, updated_ms: now_ms, ..transaction.clone() }))
}

/// Whether nobody has used the id since then. Those of open transactions are kept.
pub(super) fn may_expire(transaction: &Transaction, before_ms: i64) -> bool {
    transaction.state.is_idle() && transaction.updated_ms <= before_ms
}
