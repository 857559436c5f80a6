//! The copy of a replica's log that is to take its place in another log directory (KIP-113). It has a lock of its own, so
//! that a slow disk below the copy holds nobody up who uses the replica; only the last bytes are copied under both. The
//! copy's lock is always taken first.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::error;

use super::{Inner, Partition, Wakes};
use crate::log::{AppendError, LogConfig, LogError, PartitionLog, ReadError, ReadPlan, StorageError};
use crate::replica::copying::{CopyStep, next_step};
use crate::shared::wall_clock_ms;

/// Bytes copied in one step, and at most under the replica's lock at the end.
const STEP_BYTES: usize = 1 << 20;
/// Bytes of a copy that wait for a sync at most.
const UNSYNCED_BYTES_MAX: usize = 64 << 20;
/// How often a copy that is nearly complete is synced before the rest is copied and synced under the lock of a replica
/// that keeps growing.
const LAST_SYNCS_MAX: u32 = 4;

/// A copy that is being made.
pub(crate) struct FutureLog {
    /// Index of its log directory in `log.dirs`.
    pub(crate) directory: usize,
    pub(crate) log: PartitionLog,
    unsynced_bytes: usize,
    last_syncs: u32,
}

/// What a copy is begun from.
pub(crate) struct CopyOrigin {
    pub(crate) config: LogConfig,
    pub(crate) log_start_offset: i64,
}

/// A copy at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FutureState {
    pub(crate) directory: usize,
    pub(crate) size_bytes: u64,
    pub(crate) log_start_offset: i64,
    pub(crate) log_end_offset: i64,
    pub(crate) recovery_point: i64,
}

/// What one step of a move came to.
pub(crate) enum MoveStep {
    /// So many bytes were copied, or something else was done: go on.
    Copied(usize),
    /// The copy is the replica's log now.
    Replaced(Box<FormerLog>),
    /// There is no copy any more, or no log to copy.
    Ended,
    Failed(MoveFailure),
}

/// The log whose place a copy has taken.
pub(crate) struct FormerLog {
    pub(crate) log: PartitionLog,
    pub(crate) directory: usize,
    /// Why its directory still has the partition's name, if so. The next start knows which one is right.
    pub(crate) in_the_way: Option<StorageError>,
}

/// Why a step failed, and in which log directory. The replica is as good as before.
pub(crate) struct MoveFailure {
    pub(crate) directory: usize,
    pub(crate) reason: String,
    pub(crate) error: Option<StorageError>,
    /// The copy is of no more use: it must be made anew.
    pub(crate) copy_is_lost: bool,
}

/// What a step came to, inside.
enum Moved {
    On(MoveStep),
    There { directory: usize, in_the_way: Option<StorageError> },
}

/// Which disk an error is of.
enum Failure {
    Origin(StorageError),
    Copy(LogError),
    /// What was read is no continuation of the copy.
    Refused(String),
    /// The copy may have the log's name on the disk already; the log has outlived it.
    Renamed(StorageError),
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        Self::Copy(error)
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Storage(error) => Self::Copy(error.into()),
            AppendError::Stopped(reason) => Self::Copy(LogError::Stopped(reason)),
            other => Self::Refused(other.to_string()),
        }
    }
}

/// What the replica's log says about the next step.
struct Look {
    step: CopyStep,
    plan: ReadPlan,
    /// Little more is missing than the plan reads.
    is_near_the_end: bool,
    high_watermark: i64,
    origin: PathBuf,
}

fn look(copy: &PartitionLog, log: &PartitionLog) -> Result<Look, Failure> {
    let step = next_step(copy, log);
    let plan = match step {
        CopyStep::Append => log.read_plan(copy.log_end_offset(), STEP_BYTES, i64::MAX, true),
        _ => Ok(ReadPlan::EMPTY),
    };
    let plan = plan.map_err(|error| match error {
        ReadError::Storage(error) => Failure::Origin(error),
        other => Failure::Refused(other.to_string()),
    })?;
    let is_last = plan.segment_base().is_none_or(|base| base == log.active_base_offset());
    let is_near_the_end = match step {
        CopyStep::TakePlace => true,
        CopyStep::Append => is_last && plan.len() < STEP_BYTES,
        _ => false,
    };
    let origin = log.directory().to_owned();
    Ok(Look { step, plan, is_near_the_end, high_watermark: log.high_watermark(), origin })
}

impl FutureLog {
    pub(crate) fn new(directory: usize, log: PartitionLog) -> Self {
        Self { directory, log, unsynced_bytes: 0, last_syncs: 0 }
    }

    fn append(&mut self, look: &Look) -> Result<usize, Failure> {
        let records = look.plan.read().map_err(Failure::Origin)?;
        let base = look.plan.segment_base().unwrap_or(0);
        if records.is_empty() {
            return Err(Failure::Refused(format!("there is no batch in segment {base}")));
        }
        self.log.append_copied(&records, base, &look.origin, wall_clock_ms())?;
        self.log.update_high_watermark(look.high_watermark);
        self.unsynced_bytes += records.len();
        Ok(records.len())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.log.flush()?;
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Any step but the last one.
    fn carry_out(&mut self, look: &Look) -> Result<usize, Failure> {
        match look.step {
            CopyStep::StartAt(offset) => self.log.truncate_fully_and_start_at(offset)?,
            CopyStep::Truncate(end) => {
                self.log.truncate_to(end)?;
            }
            CopyStep::AdvanceStart(start) => {
                self.log.advance_log_start_offset(start)?;
                self.log.drop_segments_below_start(wall_clock_ms())?;
            }
            CopyStep::Append => {
                let bytes = self.append(look)?;
                if UNSYNCED_BYTES_MAX <= self.unsynced_bytes {
                    self.sync()?;
                }
                return Ok(bytes);
            }
            CopyStep::TakePlace => {}
        }
        Ok(0)
    }
}

impl Partition {
    pub(crate) fn future(&self) -> Option<FutureState> {
        self.future.lock().as_ref().map(|future| FutureState {
            directory: future.directory,
            size_bytes: future.log.size_bytes(),
            log_start_offset: future.log.log_start_offset(),
            log_end_offset: future.log.log_end_offset(),
            recovery_point: future.log.recovery_point(),
        })
    }

    /// Makes a copy that is to take the log's place; from now on the log is not compacted. A copy that is there already
    /// stays. False when there is no log that could be copied.
    ///
    /// # Errors
    /// Whatever `make` says.
    pub(crate) fn begin_future<E>(
        &self,
        directory: usize,
        make: impl FnOnce(CopyOrigin) -> Result<PartitionLog, E>,
    ) -> Result<bool, E> {
        let mut future = self.future.lock();
        if future.is_some() {
            return Ok(true);
        }
        let origin = {
            let mut inner = self.inner.lock();
            let config = inner.config.log.clone();
            let Some(log) = inner.log.as_mut().filter(|log| log.stopped().is_none()) else {
                return Ok(false);
            };
            log.pause_compaction();
            CopyOrigin { config, log_start_offset: log.log_start_offset() }
        };
        match make(origin) {
            Ok(copy) => *future = Some(Box::new(FutureLog::new(directory, copy))),
            Err(error) => {
                self.resume_compaction();
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Gives the copy out, to be closed or deleted; the replica stays where it is.
    pub(crate) fn take_future(&self) -> Option<Box<FutureLog>> {
        let mut slot = self.future.lock();
        let future = slot.take()?;
        self.resume_compaction();
        Some(future)
    }

    fn resume_compaction(&self) {
        if let Some(log) = self.inner.lock().log.as_mut() {
            log.resume_compaction();
        }
    }

    /// One step of the copy. `note`: writes what the checkpoints of the copy's log directory have to say about it; called
    /// before it gets the log's name. Waits for the disk.
    pub(crate) fn move_on(
        self: &Arc<Self>,
        note: impl FnOnce(usize, &PartitionLog) -> Result<(), StorageError>,
    ) -> MoveStep {
        let mut slot = self.future.lock();
        let Some(mut future) = slot.take() else { return MoveStep::Ended };
        match self.next_move(&mut future, note) {
            Ok(Moved::On(step)) => {
                *slot = Some(future);
                step
            }
            // They have changed places.
            Ok(Moved::There { directory, in_the_way }) => {
                let former = FormerLog { log: future.log, directory, in_the_way };
                MoveStep::Replaced(Box::new(former))
            }
            Err(failure) => {
                let failed = self.failed(&future, failure);
                if failed.copy_is_lost {
                    self.resume_compaction();
                } else {
                    *slot = Some(future);
                }
                MoveStep::Failed(failed)
            }
        }
    }

    fn next_move(
        self: &Arc<Self>,
        future: &mut FutureLog,
        note: impl FnOnce(usize, &PartitionLog) -> Result<(), StorageError>,
    ) -> Result<Moved, Failure> {
        let look = {
            let inner = self.inner.lock();
            let Some(log) = inner.log.as_ref().filter(|log| log.stopped().is_none()) else {
                return Ok(Moved::On(MoveStep::Ended));
            };
            future.log.set_config(inner.config.log.clone());
            look(&future.log, log)?
        };
        if !look.is_near_the_end {
            future.last_syncs = 0;
            return Ok(Moved::On(MoveStep::Copied(future.carry_out(&look)?)));
        }
        if STEP_BYTES < future.unsynced_bytes && future.last_syncs < LAST_SYNCS_MAX {
            future.last_syncs += 1;
            future.sync()?;
            return Ok(Moved::On(MoveStep::Copied(0)));
        }
        self.step(|inner, wakes| self.take_place(inner, wakes, future, note))
    }

    fn failed(&self, future: &FutureLog, failure: Failure) -> MoveFailure {
        let (directory, error, reason, copy_is_lost) = match failure {
            Failure::Origin(error) => (self.directory(), Some(error), None, false),
            Failure::Copy(LogError::Storage(error)) => {
                (future.directory, Some(error), None, future.log.stopped().is_some())
            }
            Failure::Copy(other) => (future.directory, None, Some(other.to_string()), true),
            Failure::Refused(reason) => (future.directory, None, Some(reason), true),
            Failure::Renamed(error) => (future.directory, Some(error), None, true),
        };
        let told = error.as_ref().map(StorageError::to_string);
        MoveFailure { directory, reason: reason.or(told).unwrap_or_default(), error, copy_is_lost }
    }

    /// Copies what is left and lets the copy take the log's place, all under the replica's lock.
    fn take_place(
        self: &Arc<Self>,
        inner: &mut Inner,
        wakes: &mut Wakes,
        future: &mut FutureLog,
        note: impl FnOnce(usize, &PartitionLog) -> Result<(), StorageError>,
    ) -> Result<Moved, Failure> {
        let Some(log) = inner.log.as_mut() else { return Ok(Moved::On(MoveStep::Ended)) };
        let mut copied = 0;
        loop {
            let look = look(&future.log, log)?;
            match look.step {
                CopyStep::TakePlace => break,
                CopyStep::Append if copied < STEP_BYTES => copied += future.append(&look)?,
                _ => return Ok(Moved::On(MoveStep::Copied(copied))),
            }
        }
        future.log.complete_copy_of(log)?;
        note(future.directory, &future.log).map_err(|error| Failure::Copy(error.into()))?;
        if let Err(error) = future.log.rename_directory(&self.id.to_string()) {
            if let Err(own) = log.outlive(&future.log) {
                error!(partition = %self.id, %error, %own, "which of two copies is the right one cannot be written down");
                self.fail_by(inner, wakes, own.into());
            }
            return Err(Failure::Renamed(error));
        }
        future.log.inherit_from(log);
        std::mem::swap(log, &mut future.log);
        let directory = self.directory.swap(future.directory, Ordering::AcqRel);
        let durable = inner.flushing.waiting.release(log.recovery_point());
        wakes.commits.extend(durable.into_iter().map(|waiter| (waiter, Ok(()))));
        let in_the_way = future.log.rename_for_deletion().err();
        Ok(Moved::There { directory, in_the_way })
    }
}
