//! Which producers are about to begin a transaction here, and were they verified (KIP-890, TXN-01).
//!
//! Pure, and of this leader's memory only: it is no part of the state that the records make (T2). Before the first batch
//! of a transaction the leader asks the transaction's coordinator whether the partition is part of it. The question
//! takes a guard along; whatever begins or ends a transaction of the producer meanwhile makes the guard worthless, so
//! that a batch that was delayed beyond its transaction's marker cannot open one that nobody ends.

use std::collections::HashMap;

use zurau_common::rule::{Rule, holds};

use super::batch::BatchHeader;
use super::error::AppendError;
use super::partition_log::PartitionLog;
use super::producers::ProducerStates;

/// Stands for one verification that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationGuard(u64);

/// What is asked of a batch that would open a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Nothing: `transaction.partition.verification.enable` is off.
    NotAsked,
    /// The guard of a verification that succeeded; without one the batch must belong to a transaction that is open.
    Asked(Option<VerificationGuard>),
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    guard: VerificationGuard,
    epoch: i16,
    /// Of the batches that asked in this epoch.
    lowest_sequence: i32,
    at_ms: i64,
}

/// The verifications that were begun and neither used nor overtaken.
#[derive(Debug, Default)]
pub(crate) struct Verifications {
    by_producer: HashMap<i64, Begun>,
    last_guard: u64,
}

impl Verifications {
    /// Begins a verification, or joins the one that is under way. `sequence`: of the first record; −1 without.
    pub(crate) fn begin(
        &mut self,
        (producer_id, epoch): (i64, i16),
        sequence: i32,
        now_ms: i64,
    ) -> VerificationGuard {
        let last_guard = &mut self.last_guard;
        let begun = self.by_producer.entry(producer_id).or_insert_with(|| {
            *last_guard += 1;
            Begun { guard: VerificationGuard(*last_guard), epoch, lowest_sequence: sequence, at_ms: now_ms }
        });
        if begun.epoch < epoch {
            (begun.epoch, begun.lowest_sequence) = (epoch, sequence);
        } else if begun.epoch == epoch {
            begun.lowest_sequence = begun.lowest_sequence.min(sequence);
        }
        begun.guard
    }

    /// The guard for asking the coordinator whether a producer (id and epoch) may open a transaction here; `None` when one
    /// of the producer is open.
    pub(crate) fn begin_if_needed(
        &mut self,
        producers: &ProducerStates,
        producer: (i64, i16),
        sequence: i32,
        now_ms: i64,
    ) -> Option<VerificationGuard> {
        let is_open = producers.has_open_transaction(producer.0) || !holds(Rule::OpeningIsVerified);
        (!is_open).then(|| self.begin(producer, sequence, now_ms))
    }

    /// Whether a batch may open a transaction.
    pub(crate) fn check(&self, header: &BatchHeader, verification: Verification) -> Result<(), AppendError> {
        let Verification::Asked(given) = verification else { return Ok(()) };
        let begun = self.by_producer.get(&header.producer_id).map(|begun| begun.guard);
        if begun.is_some() && begun == given || !holds(Rule::OpeningIsVerified) {
            return Ok(());
        }
        Err(AppendError::TransactionNotVerified { producer_id: header.producer_id })
    }

    /// The lowest sequence that has asked; a later one must not open the transaction, because a batch before it is
    /// still to come.
    pub(crate) fn lowest_sequence(&self, producer_id: i64) -> Option<i32> {
        self.by_producer.get(&producer_id).map(|begun| begun.lowest_sequence)
    }

    /// A transaction of the producer began or ended: no guard that was given out before counts any more.
    pub(crate) fn end(&mut self, producer_id: i64) {
        if holds(Rule::GuardIsOvertaken) {
            self.by_producer.remove(&producer_id);
        }
    }

    /// Forgets verifications that nobody used in `expiration_ms`.
    pub(crate) fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        self.by_producer.retain(|_, begun| now_ms.saturating_sub(begun.at_ms) < expiration_ms);
    }
}

impl PartitionLog {
    /// See [`ProducerStates::believes_coordinator`].
    pub(crate) fn believes_coordinator(&self, producer_id: i64, coordinator_epoch: i32) -> bool {
        self.producers.believes_coordinator(producer_id, coordinator_epoch)
    }

    /// The guard for asking the coordinator whether a producer (id and epoch) may open a transaction here, with the
    /// sequence of its first record; `None` when a transaction of the producer is open.
    pub fn begin_verification(
        &mut self,
        producer: (i64, i16),
        sequence: i32,
        now_ms: i64,
    ) -> Option<VerificationGuard> {
        self.verifications.begin_if_needed(&self.producers, producer, sequence, now_ms)
    }
}
