//! Which producers are about to begin a transaction here, and were they verified (KIP-890, TXN-01).
//!
//! Pure, and of this leader's memory only: it is no part of the state that the records make (T2). Before the first batch
//! of a transaction the leader asks the transaction's coordinator whether the partition is part of it. The question
//! takes a guard along; whatever begins or ends a transaction of the producer meanwhile makes the guard worthless, so
//! that a batch that was delayed beyond its transaction's marker cannot open one that nobody ends.
//!
//! Clients of version 2 add no partitions, and may write while the markers of the transaction before are on their way. A
//! transaction that is open here may be that one: their batches join it only if the coordinator has added the partition
//! since the last marker.

use std::collections::HashMap;

use zurau_common::rule::{Rule, holds};

use super::batch::BatchHeader;
use super::error::AppendError;
use super::partition_log::PartitionLog;
use super::producers::ProducerStates;

/// Stands for one verification that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationGuard(u64);

/// What is asked of a batch that would open a transaction, or end one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Nothing: `transaction.partition.verification.enable` is off.
    NotAsked,
    /// The guard of a verification that succeeded; without one the batch must belong to a transaction that is open.
    Asked(Option<VerificationGuard>),
    /// Of a marker of version 2: that its epoch is above the one of the transaction. The next transaction has the marker's
    /// own epoch, and must not be ended by a marker that comes late, or again (TXN-02).
    EndsLowerEpochs,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    guard: VerificationGuard,
    epoch: i16,
    /// Of the batches that asked in this epoch.
    lowest_sequence: i32,
    at_ms: i64,
    /// Whether everyone who asks has the coordinator add the partition.
    adds: bool,
}

/// Who asks: a producer (id and epoch), with the sequence of its first record, −1 without.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    pub producer: (i64, i16),
    pub sequence: i32,
    /// The coordinator is asked to add the partition (version 2), not whether it is there.
    pub adds: bool,
}

/// The verifications that were begun and neither used nor overtaken.
#[derive(Debug, Default)]
pub(crate) struct Verifications {
    by_producer: HashMap<i64, Begun>,
    /// By producer id, the epoch for which the coordinator has added the partition to the transaction that is open.
    added: HashMap<i64, i16>,
    last_guard: u64,
}

impl Verifications {
    /// Begins a verification, or joins the one that is under way.
    pub(crate) fn begin(&mut self, asking: Asking, now_ms: i64) -> VerificationGuard {
        let Asking { producer: (producer_id, epoch), sequence, adds } = asking;
        let last_guard = &mut self.last_guard;
        let begun = self.by_producer.entry(producer_id).or_insert_with(|| {
            *last_guard += 1;
            let guard = VerificationGuard(*last_guard);
            Begun { guard, epoch, lowest_sequence: sequence, at_ms: now_ms, adds }
        });
        if begun.epoch < epoch {
            (begun.epoch, begun.lowest_sequence, begun.adds) = (epoch, sequence, adds);
        } else if begun.epoch == epoch {
            begun.lowest_sequence = begun.lowest_sequence.min(sequence);
            begun.adds &= adds;
        }
        begun.guard
    }

    /// The guard for asking the coordinator whether a producer may write in its transaction here; `None` when one is open
    /// that it may join.
    pub(crate) fn begin_if_needed(
        &mut self,
        producers: &ProducerStates,
        asking: Asking,
        now_ms: i64,
    ) -> Option<VerificationGuard> {
        let (producer_id, epoch) = asking.producer;
        let is_known = !asking.adds
            || self.added.get(&producer_id) == Some(&epoch)
            || !holds(Rule::OpenIsJoinedWhenAdded);
        let may_join = is_known && producers.has_open_transaction(asking.producer);
        (!may_join && holds(Rule::OpeningIsVerified)).then(|| self.begin(asking, now_ms))
    }

    /// Whether a batch may open a transaction.
    pub(crate) fn check(&self, header: &BatchHeader, verification: Verification) -> Result<(), AppendError> {
        let Verification::Asked(given) = verification else { return Ok(()) };
        if given.is_some_and(|given| self.is_current(header.producer_id, given))
            || !holds(Rule::OpeningIsVerified)
        {
            return Ok(());
        }
        Err(AppendError::TransactionNotVerified { producer_id: header.producer_id })
    }

    /// Whether nothing has begun or ended a transaction of the producer since the guard was given out.
    pub(crate) fn is_current(&self, producer_id: i64, guard: VerificationGuard) -> bool {
        self.by_producer.get(&producer_id).is_some_and(|begun| begun.guard == guard)
    }

    /// The lowest sequence that has asked; a later one must not open the transaction, because a batch before it is
    /// still to come.
    pub(crate) fn lowest_sequence(&self, producer_id: i64) -> Option<i32> {
        self.by_producer.get(&producer_id).map(|begun| begun.lowest_sequence)
    }

    /// A transactional batch is in the log. It began or ended a transaction of the producer: no guard that was given out
    /// before counts any more.
    pub(crate) fn note(&mut self, header: &BatchHeader) {
        let begun = match holds(Rule::GuardIsOvertaken) {
            true => self.by_producer.remove(&header.producer_id),
            false => self.by_producer.get(&header.producer_id).copied(),
        };
        if header.is_control() {
            self.added.remove(&header.producer_id);
        } else if begun.is_some_and(|begun| begun.adds && begun.epoch == header.producer_epoch) {
            self.added.insert(header.producer_id, header.producer_epoch);
        }
    }

    /// Forgets verifications that nobody used in `expiration_ms`, and what is over.
    pub(crate) fn expire(&mut self, producers: &ProducerStates, now_ms: i64, expiration_ms: i64) {
        self.by_producer.retain(|_, begun| now_ms.saturating_sub(begun.at_ms) < expiration_ms);
        self.added.retain(|id, epoch| producers.has_open_transaction((*id, *epoch)));
    }
}

impl PartitionLog {
    /// See [`ProducerStates::believes_coordinator`].
    pub(crate) fn believes_coordinator(&self, producer_id: i64, coordinator_epoch: i32) -> bool {
        self.producers.believes_coordinator(producer_id, coordinator_epoch)
    }

    /// See [`Verifications::is_current`].
    pub(crate) fn is_current_verification(&self, producer_id: i64, guard: VerificationGuard) -> bool {
        self.verifications.is_current(producer_id, guard)
    }

    /// The guard for asking the coordinator whether a producer may write in its transaction here; `None` when one is open
    /// that it may join.
    pub fn begin_verification(&mut self, asking: Asking, now_ms: i64) -> Option<VerificationGuard> {
        self.verifications.begin_if_needed(&self.producers, asking, now_ms)
    }
}
