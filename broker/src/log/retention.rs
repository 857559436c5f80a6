//! Which segments are no longer wanted, their removal in two steps, and what happens to a log as a whole.

use std::fs;
use std::path::Path;

use tracing::{debug, info, warn};

use super::directory::Aside;
use super::error::{LogError, StorageContext, StorageError};
use super::files::{remove_if_present, rename, sync_directory, with_suffix};
use super::partition_log::{PartitionLog, PendingRemoval};
use super::segment::Segment;

pub(crate) const DELETED_SUFFIX: &str = ".deleted";

/// Why a segment was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionReason {
    /// Every record is older than `retention.ms`.
    Time,
    /// The log without it still has `retention.bytes`.
    Size,
    /// Every record is below the log start.
    LogStart,
}

/// Why the oldest segment is kept: the answer to "why is my disk not freed?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBecause {
    /// It is the only one and empty.
    Empty,
    /// Records in it are not committed yet (HW-11).
    AboveHighWatermark { high_watermark: i64, segment_end: i64 },
    /// No rule asks for its deletion.
    Wanted { age_ms: i64, log_bytes: u64 },
}

impl PartitionLog {
    /// Deletes whole segments that are wholly below the high watermark and unwanted by time, size or log start;
    /// takes their files away after `file.delete.delay.ms`. One pass at one clock value is idempotent (L5).
    /// Returns how many segments went.
    pub fn apply_retention(&mut self, now_ms: i64) -> Result<usize, LogError> {
        self.remove_due_files(now_ms);
        let mut deleted = 0;
        while let Some(reason) = self.deletion_reason(now_ms) {
            self.delete_oldest_segment(reason, now_ms)?;
            deleted += 1;
        }
        if deleted == 0 {
            debug!(directory = %self.directory.display(), kept = ?self.oldest_kept_because(now_ms), "retention");
        }
        Ok(deleted)
    }

    /// Why the oldest segment may go, if it may.
    fn deletion_reason(&self, now_ms: i64) -> Option<DeletionReason> {
        let (_, oldest) = self.segments.first_key_value()?;
        let end = self.end_of_oldest();
        if end > self.high_watermark || (self.segments.len() == 1 && oldest.size_bytes == 0) {
            return None;
        }
        if end <= self.log_start_offset && self.segments.len() > 1 {
            return Some(DeletionReason::LogStart);
        }
        if !self.config.cleanup_policy.delete {
            return None;
        }
        let retention_ms = self.config.retention_ms;
        if retention_ms >= 0 && age_ms(oldest, now_ms) > retention_ms {
            return Some(DeletionReason::Time);
        }
        let retention_bytes = u64::try_from(self.config.retention_bytes).ok()?;
        (self.size_bytes() - oldest.size_bytes >= retention_bytes).then_some(DeletionReason::Size)
    }

    /// Why the oldest segment stays.
    pub fn oldest_kept_because(&self, now_ms: i64) -> Option<KeptBecause> {
        let (_, oldest) = self.segments.first_key_value()?;
        let segment_end = self.end_of_oldest();
        if self.segments.len() == 1 && oldest.size_bytes == 0 {
            return Some(KeptBecause::Empty);
        }
        if segment_end > self.high_watermark {
            return Some(KeptBecause::AboveHighWatermark {
                high_watermark: self.high_watermark,
                segment_end,
            });
        }
        Some(KeptBecause::Wanted { age_ms: age_ms(oldest, now_ms), log_bytes: self.size_bytes() })
    }

    pub(super) fn end_of_oldest(&self) -> i64 {
        self.segments.keys().nth(1).copied().unwrap_or(self.log_end_offset)
    }

    pub(super) fn delete_oldest_segment(
        &mut self,
        reason: DeletionReason,
        now_ms: i64,
    ) -> Result<(), LogError> {
        if self.segments.len() == 1 {
            self.roll(self.log_end_offset, now_ms)?;
        }
        let end = self.end_of_oldest();
        let Some((base, segment)) = self.segments.pop_first() else { return Ok(()) };
        info!(directory = %self.directory.display(), segment = base, end, ?reason, bytes = segment.size_bytes,
            age_ms = age_ms(&segment, now_ms), "deleting segment");
        self.advance_log_start_offset(end)?;
        for file in segment.all_files() {
            let path = file.path();
            self.set_aside(&path, now_ms)?;
            file.close();
        }
        self.set_aside(&self.snapshot_path(base), now_ms)?;
        self.snapshots.remove(&base);
        self.directory_changed = true;
        Ok(())
    }

    /// Renames a file to `.deleted` and remembers to remove it; an absent file is fine.
    fn set_aside(&mut self, path: &Path, now_ms: i64) -> Result<(), StorageError> {
        let renamed = with_suffix(path, DELETED_SUFFIX);
        match rename(path, &renamed) {
            Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        self.unsynced_snapshots.retain(|unsynced| unsynced != path);
        let due_ms = now_ms.saturating_add(self.config.file_delete_delay_ms);
        self.pending_removals.push(PendingRemoval { path: renamed, due_ms });
        Ok(())
    }

    /// Removes set-aside files whose delay is over. A file that cannot be removed is tried again next time.
    pub fn remove_due_files(&mut self, now_ms: i64) {
        self.pending_removals.retain(|pending| {
            if pending.due_ms > now_ms {
                return true;
            }
            match remove_if_present(&pending.path) {
                Ok(()) => false,
                Err(error) => {
                    warn!(%error, "could not remove a deleted segment's file; trying again at the next pass");
                    true
                }
            }
        });
    }

    /// Renames the directory (to a `-delete` or `-stray` name), in the same parent. The log can still be read.
    pub fn rename_directory(&mut self, name: &str) -> Result<(), StorageError> {
        let parent = self.directory.parent().unwrap_or_else(|| Path::new("."));
        let target = parent.join(name);
        rename(&self.directory, &target)?;
        for segment in self.segments.values() {
            for file in segment.all_files() {
                if let Some(name) = file.path().file_name() {
                    file.moved_to(target.join(name));
                }
            }
        }
        for path in
            self.unsynced_snapshots.iter_mut().chain(self.pending_removals.iter_mut().map(|p| &mut p.path))
        {
            if let Some(name) = path.file_name() {
                *path = target.join(name);
            }
        }
        sync_directory(parent)?;
        self.directory = target;
        Ok(())
    }

    /// Renames the directory to `topic-partition.uniqueid-delete`, as Kafka does before it removes a partition; the
    /// caller removes it later with [`PartitionLog::delete`].
    pub fn rename_for_deletion(&mut self) -> Result<(), StorageError> {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.rename_directory(&Aside::ToDelete.name(&name))
    }

    /// Removes the directory and all files in it. Plans made before can still be read.
    pub fn delete(self) -> Result<(), StorageError> {
        for segment in self.segments.values() {
            for file in segment.all_files() {
                file.close();
            }
        }
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.storage("remove", &self.directory)?,
        }
        sync_directory(self.directory.parent().unwrap_or_else(|| Path::new(".")))
    }
}

/// How old a segment's records are: by their largest timestamp, but not younger than the last append says (D8): a
/// timestamp far in the future does not keep a segment for ever.
fn age_ms(segment: &Segment, now_ms: i64) -> i64 {
    let newest = match segment.largest_timestamp.0 {
        timestamp if timestamp >= 0 => timestamp.min(segment.last_append_ms),
        _ => segment.last_append_ms,
    };
    now_ms.saturating_sub(newest)
}
