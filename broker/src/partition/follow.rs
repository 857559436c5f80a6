//! What a fetcher does with a partition: asks where it stands, and applies what the leader answered.

use std::sync::Arc;

use bytes::Bytes;
use tracing::{info, warn};
use zurau_common::rejection::Rejection;

use super::{Inner, Partition, Wakes};
use crate::log::{AppendError, FetchedBatches, LogError, PartitionLog, StorageError};
use crate::replica::follower::{FetchPosition, FetchedOutcome, FollowerAction, StartDecision};
use crate::replica::steps;

/// How a fetcher goes on with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchStep {
    /// Ask again at once.
    Continue,
    /// Ask the leader where its log begins, then [`Partition::apply_leader_start`].
    AskLeaderStart,
    /// Ask again after a pause.
    BackOff(Rejection),
    /// This broker does not follow any more, or follows somebody else.
    Stop,
}

fn position(inner: &Inner) -> Option<FetchPosition> {
    steps::fetch_position(&inner.replica, inner.log.as_ref()?)
}

impl Partition {
    /// What to ask the leader; `None` when this broker does not follow.
    pub(crate) fn fetch_position(&self) -> Option<FetchPosition> {
        position(&self.inner.lock())
    }

    /// Applies the leader's answer to the question `asked`. `now_ms`: milliseconds since 1970.
    pub(crate) fn apply_fetch(
        self: &Arc<Self>,
        asked: FetchPosition,
        outcome: FetchedOutcome,
        records: &Bytes,
        now_ms: i64,
    ) -> FetchStep {
        let is_full = self.shared.is_exhausted(self.directory()) && !records.is_empty();
        // Looked at before the lock is taken: readers of this copy do not wait for that.
        let nothing = Bytes::new();
        let batches = FetchedBatches::new(if is_full { &nothing } else { records });
        let step = self.step(|inner, wakes| {
            let Some(current) = position(inner) else { return FetchStep::Stop };
            let Inner { replica, log: Some(log), .. } = inner else { return FetchStep::Stop };
            let committed = log.high_watermark();
            let action = steps::decide_on_answer(replica, log, asked, outcome);
            let applied = match action.unwrap_or(FollowerAction::Ignore) {
                FollowerAction::Append { high_watermark, log_start } => {
                    append_fetched(log, batches, (high_watermark, log_start), now_ms)
                }
                FollowerAction::Truncate { end, agrees } => {
                    let cut = self.truncate(log, current, end);
                    if agrees && cut.is_ok() {
                        replica.agree();
                    }
                    cut
                }
                FollowerAction::AskLeaderStart => return FetchStep::AskLeaderStart,
                FollowerAction::BackOff(rejection) => return FetchStep::BackOff(rejection),
                FollowerAction::Ignore => return FetchStep::Continue,
            };
            if log.high_watermark() != committed {
                // Consumers wait here too (KIP-392).
                inner.committed_waiters.take(&mut wakes.fetches);
            }
            self.conclude(inner, wakes, applied)
        });
        // Records are not taken below the hard mark; high watermark and log start are, since deletion goes on (D17).
        match step {
            FetchStep::Continue if is_full => FetchStep::BackOff(Rejection::KafkaStorageError),
            step => step,
        }
    }

    /// Applies the leader's log start, asked for because it does not hold this follower's offset.
    pub(crate) fn apply_leader_start(self: &Arc<Self>, asked: FetchPosition, leader_start: i64) -> FetchStep {
        self.step(|inner, wakes| {
            let Some(current) = position(inner) else { return FetchStep::Stop };
            let Inner { replica, log: Some(log), .. } = inner else { return FetchStep::Stop };
            match steps::decide_on_start(replica, log, asked, leader_start) {
                None => FetchStep::Continue,
                Some(StartDecision::Keep) => FetchStep::BackOff(Rejection::OffsetOutOfRange),
                Some(StartDecision::ResetTo(start)) => {
                    warn!(
                        partition = %self.id, leader_epoch = %current.leader_epoch, log_end_offset = current.offset, start,
                        "the leader's log begins after the end of this one: dropping all and starting there"
                    );
                    let applied = log.truncate_fully_and_start_at(start).map(|()| log.update_high_watermark(start));
                    self.conclude(inner, wakes, applied.map_err(Failure::from))
                }
            }
        })
    }

    fn truncate(&self, log: &mut PartitionLog, current: FetchPosition, end: i64) -> Result<(), Failure> {
        if current.offset <= end {
            return Ok(());
        }
        let high_watermark = log.high_watermark();
        info!(
            partition = %self.id, leader_epoch = %current.leader_epoch, from = current.offset, to = end, high_watermark,
            "truncating to where the leader's history parts from this one"
        );
        if end < high_watermark {
            warn!(
                partition = %self.id, leader_epoch = %current.leader_epoch, to = end, high_watermark,
                "records that were committed are removed: the leader was elected uncleanly"
            );
        }
        log.truncate_to(end)?;
        log.update_high_watermark(high_watermark.min(end));
        Ok(())
    }

    fn conclude(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        applied: Result<(), Failure>,
    ) -> FetchStep {
        match applied {
            Ok(()) => FetchStep::Continue,
            Err(Failure::Stopped(reason)) => {
                self.fail(inner, wakes, &reason);
                FetchStep::Stop
            }
            Err(Failure::Storage(error)) => {
                warn!(partition = %self.id, %error, "fetched records were not appended; trying again");
                self.report(error);
                FetchStep::BackOff(Rejection::KafkaStorageError)
            }
            Err(Failure::Refused(reason)) => {
                warn!(partition = %self.id, %reason, "fetched records were not appended; trying again");
                FetchStep::BackOff(Rejection::CorruptMessage)
            }
        }
    }
}

/// Why fetched records did not get into the log.
enum Failure {
    /// This log is of no more use.
    Stopped(String),
    Storage(StorageError),
    Refused(String),
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Storage(error) => Self::Storage(error),
            other => Self::Stopped(other.to_string()),
        }
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Stopped(reason) => Self::Stopped(reason),
            AppendError::Storage(error) => Self::Storage(error),
            other => Self::Refused(other.to_string()),
        }
    }
}

fn append_fetched(
    log: &mut PartitionLog,
    batches: FetchedBatches,
    (high_watermark, leader_start): (i64, i64),
    now_ms: i64,
) -> Result<(), Failure> {
    if !batches.is_empty() {
        log.append_fetched(batches, now_ms)?;
    }
    steps::adopt_high_watermark(log, high_watermark);
    if log.log_start_offset() < leader_start && leader_start <= log.high_watermark() {
        log.advance_log_start_offset(leader_start)?;
    }
    Ok(())
}
