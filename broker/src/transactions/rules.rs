//! What one transaction becomes by a request, as Kafka 3.9 decides it, and Kafka 4 for clients of version 2. Whether the
//! request comes from the current producer and whether a write is under way has been looked at before.
//!
//! Pure.

use std::collections::BTreeSet;

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::records::{NO_PRODUCER, Transaction, TransactionState};
use super::request::{EndRequest, InitRequest};
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
        next_id: None,
        is_version_2: false,
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
    let replaced = request.expected.unwrap_or(NO_PRODUCER);
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
        // Nobody asks again for this, so an EndTxn of the producer is no retry.
        previous: NO_PRODUCER,
        state: TransactionState::PrepareAbort,
        updated_ms: now_ms,
        ..transaction.clone()
    }
}

/// The transaction with more partitions, begun if there was none; `None` if it has them all.
pub(super) fn with_partitions(
    transaction: &Transaction,
    (added, is_version_2): (&[TopicPartition], bool),
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
        is_version_2: is_version_2 || is_ongoing && transaction.is_version_2,
        updated_ms: now_ms,
        started_ms: if is_ongoing { transaction.started_ms } else { now_ms },
        ..transaction.clone()
    })
}

/// What an EndTxn comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is decided.
    Decided(Transaction),
    /// It was decided like this before and is complete; the producer is this one since.
    Complete(Producer),
    NeedsProducerId,
}

/// What the end of the transaction comes to.
///
/// # Errors
/// `ConcurrentTransactions` while the markers of the same decision are written, `InvalidTxnState` otherwise.
pub(super) fn after_end(
    transaction: &Transaction,
    request: &EndRequest,
    now_ms: i64,
) -> Result<Ending, Rejection> {
    if request.is_version_2 {
        return after_end_of_version_2(transaction, request, now_ms);
    }
    let state = match (transaction.state, request.commits) {
        (TransactionState::Ongoing, true) => TransactionState::PrepareCommit,
        (TransactionState::Ongoing, false) => TransactionState::PrepareAbort,
        (TransactionState::CompleteCommit, true) | (TransactionState::CompleteAbort, false) => {
            return Ok(Ending::Complete(transaction.producer));
        }
        (TransactionState::PrepareCommit, true) | (TransactionState::PrepareAbort, false) => {
            return Err(Rejection::ConcurrentTransactions);
        }
        _ => return Err(Rejection::InvalidTxnState),
    };
    let decided = Transaction { state, is_version_2: false, updated_ms: now_ms, ..transaction.clone() };
    Ok(Ending::Decided(decided))
}

/// The end gives the producer its next epoch, so whatever is late of this transaction is fenced (TXN-02). A client that
/// is not sure whether anything was added aborts all the same.
fn after_end_of_version_2(
    transaction: &Transaction,
    request: &EndRequest,
    now_ms: i64,
) -> Result<Ending, Rejection> {
    let started_ms = match (transaction.state, request.commits) {
        (TransactionState::Ongoing, _) => transaction.started_ms,
        // Of the transaction before, which is not ended here but would make the producer wait.
        (TransactionState::PrepareCommit | TransactionState::PrepareAbort, _) => {
            return Err(Rejection::ConcurrentTransactions);
        }
        (_, true) => return Err(Rejection::InvalidTxnState),
        (_, false) => now_ms,
    };
    let ended = transaction.producer;
    if is_exhausted(ended.epoch) && request.fresh_producer_id.is_none() {
        return Ok(Ending::NeedsProducerId);
    }
    let epoch = if holds(Rule::EpochOfEachTransaction) { ended.epoch.saturating_add(1) } else { ended.epoch };
    Ok(Ending::Decided(Transaction {
        producer: Producer { epoch, ..ended },
        previous: ended,
        next_id: request.fresh_producer_id.filter(|_| is_exhausted(ended.epoch)),
        is_version_2: true,
        state: if request.commits { TransactionState::PrepareCommit } else { TransactionState::PrepareAbort },
        updated_ms: now_ms,
        started_ms,
        ..transaction.clone()
    }))
}

/// Whether the producer has ended its last transaction before, and asks again because it has not heard so.
pub(super) fn is_retry(transaction: &Transaction, request: &EndRequest) -> bool {
    let is_replaced = transaction.is_version_2 && transaction.previous == request.producer;
    is_replaced && transaction.state.is_decided() && request.is_version_2
}

/// What is said to a retry, which changes nothing.
///
/// # Errors
/// `ConcurrentTransactions` while the markers are written, `InvalidTxnState` if the decision was another one.
pub(super) fn after_retry(transaction: &Transaction, commits: bool) -> Result<Ending, Rejection> {
    match (transaction.state, commits) {
        (TransactionState::CompleteCommit, true) | (TransactionState::CompleteAbort, false) => {
            Ok(Ending::Complete(transaction.producer))
        }
        (TransactionState::PrepareCommit, true) | (TransactionState::PrepareAbort, false) => {
            Err(Rejection::ConcurrentTransactions)
        }
        _ => Err(Rejection::InvalidTxnState),
    }
}

/// Whether nobody has used the id since then. Those of open transactions are kept.
pub(super) fn may_expire(transaction: &Transaction, before_ms: i64) -> bool {
    transaction.state.is_idle() && transaction.updated_ms <= before_ms
}
