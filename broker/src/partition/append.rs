//! Produce on the leader: checks before the append, the append, and the wait for the acknowledgement (D3, R20).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::Rejection;

use super::{Inner, Partition, Wakes};
use crate::log::{
    AppendError, AppendInfo, AppendOrigin, Asking, BatchHeader, CheckedBatches, RecordError, Verification,
    VerificationGuard,
};
use crate::replica::steps;

/// What the producer wants to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Nothing (0).
    None,
    /// That the leader has the records (1).
    Leader,
    /// That every in-sync replica has them (−1).
    All,
}

/// What is to be appended, and for whom.
#[derive(Debug, Clone)]
pub(crate) struct Append {
    pub(crate) records: Bytes,
    pub(crate) acks: Acks,
    pub(crate) origin: AppendOrigin,
    /// What is asked of a batch that opens or ends a transaction.
    pub(crate) verification: Verification,
}

impl Append {
    /// A client's, in no transaction that must be verified.
    pub(crate) fn by_client(records: Bytes, acks: Acks) -> Self {
        let verification = Verification::NotAsked;
        Self { records, acks, origin: AppendOrigin::Client, verification }
    }

    /// One of the broker's own coordinators writes.
    pub(crate) fn by_coordinator(records: Bytes, acks: Acks) -> Self {
        Self { origin: AppendOrigin::Coordinator, ..Self::by_client(records, acks) }
    }
}

/// An append that the log took.
#[derive(Debug)]
pub(crate) struct Appended {
    pub(crate) first_offset: i64,
    /// Set when the topic stamps append times.
    pub(crate) log_append_time_ms: Option<i64>,
    pub(crate) log_start_offset: i64,
    /// What the acknowledgement still has to wait for; `None` when there is nothing to wait for.
    pub(crate) committed: Option<CommitWait>,
}

/// Waits for what an acknowledgement needs: that the high watermark has passed the batch (acks=all), that the batch is
/// synced here (if `flush.messages` or `flush.ms` ask for it), or both.
///
/// Ends with an error when this broker stops leading, when too few replicas are in sync at that moment, or when the sync
/// failed.
#[derive(Debug)]
pub(crate) struct CommitWait([Option<oneshot::Receiver<Result<(), Rejection>>>; 2]);

impl CommitWait {
    pub(super) fn of_sync(synced: oneshot::Receiver<Result<(), Rejection>>) -> Self {
        Self([None, Some(synced)])
    }
}

impl Future for CommitWait {
    type Output = Result<(), Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for awaited in &mut self.0 {
            let Some(receiver) = awaited else { continue };
            if let Poll::Ready(outcome) = Pin::new(receiver).poll(context) {
                *awaited = None;
                if let Err(rejection) = outcome.unwrap_or(Err(Rejection::NotLeaderOrFollower)) {
                    return Poll::Ready(Err(rejection));
                }
            }
        }
        if self.0.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// Why a produce was refused, with what the answer may tell the client about it (KIP-467).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProduceRejection {
    pub(crate) rejection: Rejection,
    pub(crate) message: Option<String>,
    pub(crate) record_errors: Vec<RecordError>,
}

impl From<Rejection> for ProduceRejection {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, message: None, record_errors: Vec::new() }
    }
}

impl From<AppendError> for ProduceRejection {
    fn from(error: AppendError) -> Self {
        let message = Some(error.to_string());
        let (rejection, record_errors) = match error {
            AppendError::CorruptMessage(_) => (Rejection::CorruptMessage, Vec::new()),
            AppendError::MessageTooLarge { .. } => (Rejection::MessageTooLarge, Vec::new()),
            AppendError::RecordListTooLarge { .. } => (Rejection::RecordListTooLarge, Vec::new()),
            AppendError::InvalidTimestamp { record_errors, .. } => {
                (Rejection::InvalidTimestamp, record_errors)
            }
            AppendError::InvalidRecord { record_errors, .. } => (Rejection::InvalidRecord, record_errors),
            AppendError::UnsupportedForMessageFormat { .. } => {
                (Rejection::UnsupportedForMessageFormat, Vec::new())
            }
            AppendError::UnsupportedCompressionType(_) => (Rejection::UnsupportedCompressionType, Vec::new()),
            AppendError::OutOfOrderSequence { .. } => (Rejection::OutOfOrderSequenceNumber, Vec::new()),
            AppendError::DuplicateSequence { .. } => (Rejection::DuplicateSequenceNumber, Vec::new()),
            AppendError::InvalidProducerEpoch { .. } => (Rejection::InvalidProducerEpoch, Vec::new()),
            AppendError::InvalidTransactionState { .. } | AppendError::TransactionNotVerified { .. } => {
                (Rejection::InvalidTxnState, Vec::new())
            }
            AppendError::TransactionCoordinatorFenced { .. } => {
                (Rejection::TransactionCoordinatorFenced, Vec::new())
            }
            AppendError::NotContiguous { .. } => (Rejection::UnknownServerError, Vec::new()),
            AppendError::Storage(_) | AppendError::Stopped(_) => (Rejection::KafkaStorageError, Vec::new()),
        };
        Self { rejection, message, record_errors }
    }
}

/// Clients repeat what is refused so, and must not find that a later batch was taken meanwhile.
fn is_for_now(rejection: Rejection) -> bool {
    matches!(rejection, Rejection::NotLeaderOrFollower | Rejection::NotEnoughReplicas)
}

impl Partition {
    /// As [`Partition::append_in_office`], without the wait.
    #[cfg(test)]
    pub(crate) fn append(
        self: &Arc<Self>,
        records: Bytes,
        acks: Acks,
        now_ms: i64,
    ) -> Result<Appended, ProduceRejection> {
        self.append_in_epoch(&Append::by_client(records, acks), LeaderEpoch::UNKNOWN, now_ms)
    }

    /// Appends for one of the broker's own coordinators, whose knowledge is of one leader epoch;
    /// [`LeaderEpoch::UNKNOWN`] for a transaction's marker, which comes from elsewhere.
    ///
    /// # Errors
    /// As [`Partition::append_in_office`]; `FencedLeaderEpoch` if that epoch is over.
    pub(crate) fn append_in_epoch(
        self: &Arc<Self>,
        what: &Append,
        leader_epoch: LeaderEpoch,
        now_ms: i64,
    ) -> Result<Appended, ProduceRejection> {
        let batches = self.check(what, now_ms);
        let appended =
            self.if_decided(|inner, wakes| self.append_counted(inner, wakes, leader_epoch, (what, batches)));
        appended.unwrap_or_else(|| Err(Rejection::NotLeaderOrFollower.into()))
    }

    /// Appends a producer's batches. `now_ms`: milliseconds since 1970. Waits, until `limit`, while this broker is taking
    /// office. A leader takes office again at each step of a reassignment: if it refused one produce of a pipeline
    /// meanwhile and took the next one after, an idempotent producer would have to start a new epoch, and would write
    /// again what was stored already.
    ///
    /// # Errors
    /// Not the leader, or a leader that may not serve now (`NotLeaderOrFollower`); too few in sync for acks=all
    /// (`NotEnoughReplicas`, nothing is appended); whatever the log refuses.
    pub(crate) async fn append_in_office(
        self: &Arc<Self>,
        what: &Append,
        now_ms: i64,
        limit: Instant,
    ) -> Result<Appended, ProduceRejection> {
        let batches = self.check(what, now_ms);
        let append = |inner: &mut Inner, wakes: &mut Wakes| {
            self.append_counted(inner, wakes, LeaderEpoch::UNKNOWN, (what, batches))
        };
        let outcome = self.when_decided(limit, append).await;
        if outcome.as_ref().is_err_and(|refused| is_for_now(refused.rejection))
            && let Ok(header) = BatchHeader::parse(&what.records)
        {
            let producer = (header.producer_id, header.producer_epoch);
            self.turn_away(producer, header.base_sequence, now_ms);
        }
        outcome
    }

    /// Begins to verify that a producer (id and epoch) may open a transaction here (TXN-01). `sequence`: of its first
    /// record. `None` when a transaction of it is open, so that nothing need be asked. Waits as
    /// [`Partition::append_in_office`] does.
    ///
    /// # Errors
    /// `NotLeaderOrFollower`, `KafkaStorageError`.
    pub(crate) async fn begin_verification(
        self: &Arc<Self>,
        asking: Asking,
        now_ms: i64,
        limit: Instant,
    ) -> Result<Option<VerificationGuard>, Rejection> {
        let begin = |inner: &mut Inner, _: &mut Wakes| {
            inner.replica.leader_in(LeaderEpoch::UNKNOWN)?;
            let log = inner.log.as_mut().ok_or(Rejection::KafkaStorageError)?;
            Ok(log.begin_verification(asking, now_ms))
        };
        let begun = self.when_decided(limit, begin).await;
        if begun.is_err_and(is_for_now) {
            self.turn_away(asking.producer, asking.sequence, now_ms);
        }
        begun
    }

    fn turn_away(&self, producer: (i64, i16), sequence: i32, now_ms: i64) {
        self.step(|inner, _| {
            inner.log.iter_mut().for_each(|log| log.turn_away(producer, sequence, now_ms));
        });
    }

    /// Takes a step as soon as this broker is not taking office; at `limit` it is told not to lead.
    async fn when_decided<T, E: From<Rejection>>(
        &self,
        limit: Instant,
        work: impl FnOnce(&mut Inner, &mut Wakes) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut work = Some(work);
        loop {
            // Made before the look, so that no decision falls between.
            let decided = self.office_decided.notified();
            let outcome = self.if_decided(|inner, wakes| work.take().map(|work| work(inner, wakes)));
            if let Some(outcome) = outcome.flatten() {
                return outcome;
            }
            if timeout_at(limit, decided).await.is_err() {
                return Err(Rejection::NotLeaderOrFollower.into());
            }
        }
    }

    /// `None` while this broker is taking office.
    fn if_decided<T>(&self, work: impl FnOnce(&mut Inner, &mut Wakes) -> T) -> Option<T> {
        self.step(|inner, wakes| (!inner.replica.is_taking_office()).then(|| work(inner, wakes)))
    }

    /// Looks at every byte of the batches, without the lock: nobody else of the partition waits for that. Nothing is
    /// refused here, since other reasons come first.
    fn check(&self, what: &Append, now_ms: i64) -> CheckedBatches {
        let rules = *self.batch_rules.lock();
        CheckedBatches::new(what.records.clone(), rules, what.origin, now_ms)
    }

    /// As [`Partition::append_now`], and counts what is refused.
    fn append_counted(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        leader_epoch: LeaderEpoch,
        (what, batches): (&Append, CheckedBatches),
    ) -> Result<Appended, ProduceRejection> {
        let outcome = self.append_now(inner, wakes, leader_epoch, (what, batches));
        if let Err(refused) = &outcome {
            self.counters.refused(refused.rejection, what.records.len());
        }
        outcome
    }

    fn append_now(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        leader_epoch: LeaderEpoch,
        (what, batches): (&Append, CheckedBatches),
    ) -> Result<Appended, ProduceRejection> {
        let leader_epoch = self.admit(inner, what.acks, leader_epoch)?;
        let log = inner.log.as_mut().ok_or(Rejection::KafkaStorageError)?;
        let now_ms = batches.now_ms();
        let appended = log.append_checked(batches, leader_epoch.0, what.verification);
        let must_sync = log.flush_due(now_ms);
        match appended {
            Ok(info) => {
                let (records, bytes) =
                    if info.duplicate { (0, 0) } else { (info.record_count, info.size_bytes) };
                self.counters.appended(records, bytes);
                Ok(self.after_append(inner, wakes, (what.acks, must_sync), &info))
            }
            Err(AppendError::Stopped(reason)) => {
                self.fail(inner, wakes, &reason);
                Err(Rejection::KafkaStorageError.into())
            }
            Err(AppendError::Storage(error)) => {
                let stopped = log.stopped().map(ToOwned::to_owned);
                let message = Some(error.to_string());
                if let Some(reason) = stopped {
                    self.fail(inner, wakes, &reason);
                }
                self.report(error);
                Err(ProduceRejection { message, ..Rejection::KafkaStorageError.into() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is checked before anything is written.
    fn admit(&self, inner: &Inner, acks: Acks, leader_epoch: LeaderEpoch) -> Result<LeaderEpoch, Rejection> {
        let acks_all = acks == Acks::All;
        steps::admit_append(&inner.replica, leader_epoch, acks_all, |leader| self.may_serve(leader))
    }

    fn after_append(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        (acks, must_sync): (Acks, bool),
        info: &AppendInfo,
    ) -> Appended {
        inner.appended_waiters.take(&mut wakes.fetches);
        let synced = must_sync.then(|| self.wait_for_flush(inner, wakes, info.last_offset + 1));
        let committed = (acks == Acks::All).then(|| {
            let (sender, receiver) = oneshot::channel();
            inner.commits.wait(info.last_offset + 1, sender);
            receiver
        });
        self.settle(inner, wakes);
        Appended {
            first_offset: info.first_offset,
            log_append_time_ms: info.log_append_time_ms,
            log_start_offset: info.log_start_offset,
            committed: (committed.is_some() || synced.is_some()).then_some(CommitWait([committed, synced])),
        }
    }

    /// What to answer when an acks=all produce has waited for its whole timeout.
    pub(crate) fn commit_timeout(&self) -> Rejection {
        let mut inner = self.inner.lock();
        inner.commits.retain(|waiter| !waiter.is_closed());
        match inner.replica.leader() {
            None => Rejection::NotLeaderOrFollower,
            Some(leader) if !leader.has_enough_in_sync() => Rejection::NotEnoughReplicasAfterAppend,
            Some(_) => Rejection::RequestTimedOut,
        }
    }
}
