//! DeleteRecords: the leader's log start moves up, the followers learn it from their fetches, and the deletion is done
//! when every live replica has moved (its low watermark).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tracing::info;
use zurau_common::rejection::Rejection;

use super::{Inner, Partition, Wakes};

pub(super) type DeletionWaiter = oneshot::Sender<Result<i64, Rejection>>;

/// A deletion that other replicas have still to follow. Ends with the low watermark, or with an error when this broker
/// stops leading.
#[derive(Debug)]
pub(crate) struct DeletionWait(oneshot::Receiver<Result<i64, Rejection>>);

impl Future for DeletionWait {
    type Output = Result<i64, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|outcome| outcome.unwrap_or(Err(Rejection::NotLeaderOrFollower)))
    }
}

/// What the admin asks for with the offset −1: everything that is committed.
const UP_TO_HIGH_WATERMARK: i64 = -1;

impl Partition {
    /// Deletes the records below `offset` (−1: below the high watermark). Only the log start moves here; retention takes
    /// whole segments away later.
    ///
    /// # Errors
    /// Not the leader; a topic that is compacted only (`PolicyViolation`); an offset that is negative or above the high
    /// watermark (`OffsetOutOfRange`); a disk error.
    pub(crate) fn delete_records(self: &Arc<Self>, offset: i64) -> Result<DeletionWait, Rejection> {
        self.step(|inner, wakes| {
            let leader = inner.replica.leader().ok_or(Rejection::NotLeaderOrFollower)?;
            if !self.may_serve(leader) {
                return Err(Rejection::NotLeaderOrFollower);
            }
            let leader_epoch = leader.leader_epoch();
            let log = inner.log.as_mut().ok_or(Rejection::KafkaStorageError)?;
            if !log.config().cleanup_policy.delete {
                return Err(Rejection::PolicyViolation);
            }
            let high_watermark = log.high_watermark();
            let offset = if offset == UP_TO_HIGH_WATERMARK { high_watermark } else { offset };
            if !(0..=high_watermark).contains(&offset) {
                return Err(Rejection::OffsetOutOfRange);
            }
            if log.log_start_offset() < offset {
                info!(
                    partition = %self.id, %leader_epoch, from = log.log_start_offset(), to = offset,
                    "records are deleted by request"
                );
                if let Err(error) = log.advance_log_start_offset(offset) {
                    self.fail_by(inner, wakes, error);
                    return Err(Rejection::KafkaStorageError);
                }
            }
            let (sender, receiver) = oneshot::channel();
            inner.deletions.wait(offset, sender);
            self.settle_deletions(inner, wakes);
            // A follower that waits for records is answered, and so hears of it.
            inner.appended_waiters.take(&mut wakes.fetches);
            Ok(DeletionWait(receiver))
        })
    }

    /// Drops the waits of requests that are over.
    pub(crate) fn forget_ended_deletions(&self) {
        self.inner.lock().deletions.retain(|waiter| !waiter.is_closed());
    }

    /// The lowest log start of the live replicas, if each has told it and this broker leads.
    fn low_watermark(inner: &Inner) -> Option<i64> {
        let log = inner.log.as_ref()?;
        inner.replica.leader()?.low_watermark(log.log_start_offset())
    }

    /// After anything that may raise the low watermark.
    pub(super) fn settle_deletions(&self, inner: &mut Inner, wakes: &mut Wakes) {
        if inner.deletions.is_empty() {
            return;
        }
        if let Some(low_watermark) = Self::low_watermark(inner) {
            let done = inner.deletions.release(low_watermark);
            wakes.deletions.extend(done.into_iter().map(|waiter| (waiter, Ok(low_watermark))));
        }
    }
}
