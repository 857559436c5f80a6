//! Cutting the log: to an offset told by the leader's epoch history, to the log start moved by deletions, or to nothing.

use std::path::PathBuf;

use tracing::{info, warn};

use super::error::{LogError, StorageError};
use super::files::{remove_if_present, sync_directory};
use super::partition_log::PartitionLog;
use super::producers::ProducerStates;
use super::segment::{SNAPSHOT_SUFFIX, Segment, file_path};

impl PartitionLog {
    /// Removes every record at or above `offset`. Returns the new log end, which is lower than `offset` when a batch
    /// had to go that began below it. The caller makes sure that the truncation is justified (R16).
    pub fn truncate_to(&mut self, offset: i64) -> Result<i64, LogError> {
        assert!(offset >= 0, "truncation to {offset} in {}", self.directory.display());
        if offset >= self.log_end_offset {
            if self.epochs.truncate_from_end(offset) {
                self.write_epochs()?;
            }
            return Ok(self.log_end_offset);
        }
        let first_base = self.segments.first_key_value().map_or(0, |(base, _)| *base);
        if offset < first_base {
            self.truncate_fully_and_start_at(offset)?;
            return Ok(offset);
        }
        let holding = self.segments.range(..=offset).next_back().map(|(_, segment)| segment.find(offset));
        let cut = holding.transpose()?.flatten().map_or(offset, |batch| batch.base_offset.min(offset));
        self.lower_cleaned_offset(cut)?;
        info!(directory = %self.directory.display(), from = self.log_end_offset, to = offset, "truncating the log");
        // From the newest on, so that a crash in between leaves a log without a hole.
        let mut new_end = offset;
        while let Some((base, segment)) = self.segments.last_key_value()
            && *base > offset
        {
            let base = *base;
            remove_segment_files(segment)?;
            self.segments.remove(&base);
        }
        if let Some(cut) = self.active().truncate_to(offset)? {
            new_end = new_end.min(cut);
        }
        self.finish_truncation(new_end)?;
        Ok(new_end)
    }

    fn finish_truncation(&mut self, new_end: i64) -> Result<(), LogError> {
        self.truncations += 1;
        self.directory_changed = true;
        self.log_end_offset = new_end;
        self.log_start_offset = self.log_start_offset.min(new_end);
        self.lower_recovery_point(new_end)?;
        self.high_watermark = self.high_watermark.clamp(self.log_start_offset, new_end);
        if self.epochs.truncate_from_end(new_end) {
            self.write_epochs()?;
        }
        self.remove_snapshots(|offset| offset > new_end)?;
        sync_directory(&self.directory)?;
        self.rebuild_producers()?;
        self.find_unreplicated_transactions()?;
        if self.active().read_next_offset()? < new_end {
            // The cut is in a gap that compaction left: without a segment there a restart would end the log lower and
            // use offsets again.
            let created_ms = self.active().last_append_ms;
            self.roll(new_end, created_ms)?;
        }
        Ok(())
    }

    /// Removes everything; the log is then empty and starts at `offset`: log start = high watermark = log end (HW-09).
    pub fn truncate_fully_and_start_at(&mut self, offset: i64) -> Result<(), LogError> {
        assert!(offset >= 0, "truncation to {offset} in {}", self.directory.display());
        info!(directory = %self.directory.display(), from = self.log_start_offset, to = self.log_end_offset,
            offset, "dropping the whole log");
        self.lower_cleaned_offset(offset)?;
        self.truncations += 1;
        while let Some((_, segment)) = self.segments.pop_last() {
            remove_segment_files(&segment)?;
        }
        self.remove_snapshots(|_| true)?;
        let created_ms = 0;
        let segment =
            Segment::create(&self.directory, offset, &self.config, created_ms).inspect_err(|error| {
                self.stop(format!("nothing is left of the log: {error}"));
            })?;
        self.segments.insert(offset, Box::new(segment));
        self.epochs.clear();
        self.write_epochs()?;
        sync_directory(&self.directory)?;
        self.producers = ProducerStates::new(offset);
        self.log_start_offset = offset;
        self.log_end_offset = offset;
        self.high_watermark = offset;
        self.lower_recovery_point(offset)?;
        self.recovery_point = offset;
        self.unflushed_records = 0;
        self.unflushed_since_ms = None;
        Ok(())
    }

    /// Moves the log start up (DeleteRecords, or the leader's log start heard by a follower). Lower values and values
    /// above the log end change nothing beyond the end. Segments wholly below go at the next retention pass.
    pub fn advance_log_start_offset(&mut self, offset: i64) -> Result<(), LogError> {
        let offset = offset.min(self.log_end_offset);
        if offset <= self.log_start_offset {
            return Ok(());
        }
        self.log_start_offset = offset;
        self.high_watermark = self.high_watermark.max(offset);
        if self.epochs.truncate_from_start(offset)
            && let Err(error) = self.write_epochs()
        {
            // A start cuts the history again. Deleting records must be possible on a full disk: it frees space (LOG-13).
            if error.source.kind() != std::io::ErrorKind::StorageFull {
                return Err(error.into());
            }
            warn!(%error, "the epoch history on disk begins earlier than the log");
        }
        Ok(())
    }

    /// Removes producer snapshots whose offset `unwanted` selects.
    pub(crate) fn remove_snapshots(&mut self, unwanted: impl Fn(i64) -> bool) -> Result<(), StorageError> {
        let unwanted: Vec<i64> = self.snapshots.iter().copied().filter(|offset| unwanted(*offset)).collect();
        for offset in unwanted {
            self.remove_snapshot(offset)?;
        }
        Ok(())
    }

    pub(crate) fn remove_snapshot(&mut self, offset: i64) -> Result<(), StorageError> {
        let path = self.snapshot_path(offset);
        remove_if_present(&path)?;
        self.snapshots.remove(&offset);
        self.unsynced_snapshots.retain(|unsynced| *unsynced != path);
        Ok(())
    }

    /// The path of the snapshot at `offset`.
    pub(crate) fn snapshot_path(&self, offset: i64) -> PathBuf {
        file_path(&self.directory, offset, SNAPSHOT_SUFFIX)
    }
}

/// Removes a segment's files, the log last: an index without its log is dropped at the next start, a log without
/// index is rebuilt.
pub(crate) fn remove_segment_files(segment: &Segment) -> Result<(), StorageError> {
    for file in segment.all_files().into_iter().rev() {
        file.remove()?;
    }
    Ok(())
}
