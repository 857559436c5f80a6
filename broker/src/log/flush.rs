//! Making appended records durable: planned under the owner's lock, synced outside of it, then told to the log.
//!
//! Many waiting appends share one sync: whoever syncs covers everything appended before its plan was made.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::epoch_file::EpochText;
use super::error::{LogError, StorageError};
use super::files::{remove_if_present, sync_directory, sync_file, sync_path_if_present, write_atomically};
use super::partition_log::PartitionLog;

/// File of a partition directory with a recovery point below the one in the log directory's checkpoint, which is
/// written later. Kafka ignores the file.
pub(crate) const LOWERED_RECOVERY_POINT: &str = "lowered-recovery-point";

/// What must be synced so that every record below [`FlushPlan::up_to`] survives a power loss.
#[derive(Debug)]
pub struct FlushPlan {
    /// The log that it was made for.
    log: Arc<()>,
    epochs: Option<EpochText>,
    files: Vec<(PathBuf, Arc<File>)>,
    snapshots: Vec<PathBuf>,
    directory: Option<PathBuf>,
    directory_changes: u64,
    up_to: i64,
    records: i64,
    truncations: u64,
}

impl FlushPlan {
    /// The log end when the plan was made.
    pub fn up_to(&self) -> i64 {
        self.up_to
    }

    /// Syncs files and, when their directory entries are new, the directory (LOG-08).
    pub fn run(&self) -> Result<(), StorageError> {
        self.epochs.as_ref().map_or(Ok(()), EpochText::write)?;
        for (path, file) in &self.files {
            sync_file(file, path)?;
        }
        for path in &self.snapshots {
            // It may be deleted with its segment meanwhile.
            sync_path_if_present(path)?;
        }
        self.directory.as_deref().map_or(Ok(()), sync_directory)
    }
}

impl PartitionLog {
    /// Whether `flush.messages` or `flush.ms` ask for a flush now.
    pub fn flush_due(&self, now_ms: i64) -> bool {
        let waited = self.unflushed_since_ms.map(|since| now_ms.saturating_sub(since));
        self.unflushed_records >= self.config.flush_messages.max(1)
            || waited.is_some_and(|waited| waited >= self.config.flush_ms)
    }

    /// Plans a flush up to the log end; `None` when all is durable.
    pub fn flush_plan(&mut self) -> Result<Option<FlushPlan>, LogError> {
        let names_synced = !self.directory_changed && self.directory_changes == self.directory_changes_synced;
        if self.recovery_point >= self.log_end_offset && names_synced {
            return Ok(None);
        }
        let start = self.segments.range(..=self.recovery_point).next_back().map_or(0, |(base, _)| *base);
        let mut files = Vec::new();
        for segment in self.segments.range_mut(start..).map(|(_, segment)| segment) {
            segment.write_indexes(false)?;
            for file in segment.files() {
                files.push((file.path(), file.get()?));
            }
        }
        Ok(Some(self.plan(files, self.log_end_offset, self.unflushed_records)))
    }

    /// Plans to sync the segments that take no more appends, if any of them is not synced yet; call it now and then,
    /// so that a recovery has only the last segment to read.
    pub fn sealed_flush_plan(&mut self) -> Result<Option<FlushPlan>, LogError> {
        let active_base = self.segments.last_key_value().map_or(0, |(base, _)| *base);
        if active_base <= self.recovery_point {
            return Ok(None);
        }
        let start = self.segments.range(..=self.recovery_point).next_back().map_or(0, |(base, _)| *base);
        let mut files = Vec::new();
        for segment in self.segments.range(start..active_base).map(|(_, segment)| segment) {
            for file in segment.files() {
                files.push((file.path(), file.get()?));
            }
        }
        Ok(Some(self.plan(files, active_base, 0)))
    }

    /// A sync of `files`, and of what else has to be on disk before the recovery point is `up_to`.
    fn plan(&mut self, files: Vec<(PathBuf, Arc<File>)>, up_to: i64, records: i64) -> FlushPlan {
        let (snapshots, directory) = self.unsynced_names();
        FlushPlan {
            log: Arc::clone(&self.identity),
            epochs: self.missing_epochs(),
            files,
            snapshots,
            directory,
            directory_changes: self.directory_changes,
            up_to,
            records,
            truncations: self.truncations,
        }
    }

    /// Snapshots and directory entries that are not known to be on disk. What a plan under way syncs is planned again: the
    /// later plan may be the first that is done, and then must not claim more than it synced.
    fn unsynced_names(&mut self) -> (Vec<PathBuf>, Option<PathBuf>) {
        if std::mem::take(&mut self.directory_changed) {
            self.directory_changes += 1;
        }
        let changed = self.directory_changes_synced < self.directory_changes;
        (self.unsynced_snapshots.clone(), changed.then(|| self.directory.clone()))
    }

    /// Takes the result of a plan that was run. A failed sync stops the log: what reached the disk is unknown, and
    /// asking the kernel again would claim success. A plan of the log whose place this one has taken means nothing.
    pub fn finish_flush(
        &mut self,
        plan: &FlushPlan,
        result: Result<(), StorageError>,
        now_ms: i64,
    ) -> Result<(), LogError> {
        if !Arc::ptr_eq(&plan.log, &self.identity) {
            return Ok(());
        }
        if let Err(error) = result {
            self.stop(error.to_string());
            return Err(error.into());
        }
        if let Some(epochs) = &plan.epochs {
            self.epoch_file.note_written(epochs);
        }
        self.unsynced_snapshots.retain(|path| !plan.snapshots.contains(path));
        if plan.directory.is_some() {
            self.directory_changes_synced = self.directory_changes_synced.max(plan.directory_changes);
        }
        if plan.truncations != self.truncations {
            // Records below the planned end may be others than those that were synced.
            return Ok(());
        }
        self.recovery_point = self.recovery_point.max(plan.up_to);
        if self.overstated_recovery_point.is_some_and(|overstated| overstated <= self.recovery_point) {
            self.forget_lowered_recovery_point()?;
        }
        self.unflushed_records = (self.unflushed_records - plan.records).max(0);
        self.unflushed_since_ms = (self.unflushed_records > 0).then_some(now_ms);
        Ok(())
    }

    /// Lowers the recovery point to `new_end`, durably, before anything is appended there: the checkpoint of the log
    /// directory is written later, and would hide from a recovery that new records are not synced.
    pub(crate) fn lower_recovery_point(&mut self, new_end: i64) -> Result<(), LogError> {
        if new_end >= self.recovery_point {
            return Ok(());
        }
        let overstated =
            self.overstated_recovery_point.map_or(self.recovery_point, |o| o.max(self.recovery_point));
        self.overstated_recovery_point = Some(overstated);
        self.recovery_point = new_end;
        let path = self.directory.join(LOWERED_RECOVERY_POINT);
        Ok(write_atomically(&path, format!("{new_end}\n").as_bytes())?)
    }

    pub(crate) fn forget_lowered_recovery_point(&mut self) -> Result<(), LogError> {
        self.overstated_recovery_point = None;
        Ok(remove_if_present(&self.directory.join(LOWERED_RECOVERY_POINT))?)
    }

    /// Flushes in one go; for small tools, tests and the clean stop.
    pub fn flush(&mut self) -> Result<(), LogError> {
        let Some(plan) = self.flush_plan()? else { return Ok(()) };
        let result = plan.run();
        self.finish_flush(&plan, result, 0)
    }

    /// Completes indexes and snapshot and syncs everything. The caller then records the clean stop of the whole log
    /// directory; a log that a disk error stopped cannot be closed cleanly.
    pub fn close(mut self) -> Result<(), LogError> {
        self.check_running()?;
        self.complete_active()?;
        self.directory_changed = true;
        self.flush()?;
        for pending in std::mem::take(&mut self.pending_removals) {
            remove_if_present(&pending.path)?;
        }
        Ok(())
    }
}
