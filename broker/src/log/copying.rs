//! A copy of a log in another log directory, and how it takes the log's place (KIP-113).
//!
//! The copy stands in a directory `topic-partition.uniqueid-future`. It gets the batches as they are, segment by segment.
//! What records do not tell it gets last: epochs that began without a record (HW-06), producers whose records are gone
//! (D9), how far the log was compacted (CMP-08).
//!
//! | step | a crash after it finds | loading makes of it |
//! |---|---|---|
//! | 1 the copy is complete and synced, its [`GENERATION`] one above the log's | the log, and a `-future` directory | the move goes on |
//! | 2 the checkpoints of the copy's log directory name it | the same | the same |
//! | 3 the copy gets the log's name, and that is synced | the log in two directories | the copy; it has the higher generation |
//! | 4 the former log is renamed `-delete` | that | it is removed |
//!
//! Step 3 decides, and no copy is ever without a name that loading knows (R9). If it fails, nobody knows whether the new
//! name is on the disk: the log then takes a generation above the copy's before anything more is appended to it.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use tracing::{debug, warn};
use uuid::Uuid;

use super::config::LogConfig;
use super::error::{AppendError, LogError, StorageContext, StorageError};
use super::files::{read_if_present, rename, sync_directory, write_atomically, write_file};
use super::metadata::PARTITION_METADATA;
use super::partition_log::{PartitionLog, into_append_error};
use super::producers::ProducerStates;
use super::retention::DeletionReason;
use super::segment::{SNAPSHOT_SUFFIX, file_path};
use super::validate::FetchedBatches;

/// File of a partition directory: how often the replica has moved between log directories. Of two directories of one
/// partition the one with the higher number is right. Kafka ignores the file.
pub(crate) const GENERATION: &str = "copy-generation";

/// The generation of the log in a directory; 0 when it never moved.
pub(crate) fn read_generation(directory: &Path) -> Result<u64, StorageError> {
    let path = directory.join(GENERATION);
    let Some(text) = read_if_present(&path)? else { return Ok(0) };
    let parsed = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    Ok(parsed.unwrap_or_else(|| {
        warn!(path = %path.display(), "damaged; if the partition is in two log directories, the other one is taken");
        0
    }))
}

/// Of two directories of one partition the one with the greater value is served: that of the last move, which is complete
/// since the log directory knows it by the partition's name; else the one that is known to hold the most.
pub(crate) fn precedence(
    generation: u64,
    high_watermark: Option<i64>,
    recovery_point: Option<i64>,
) -> (u64, Option<i64>) {
    (generation, high_watermark.max(recovery_point))
}

/// Removes a partition's directory, after it got the name `doomed`, which the next start removes too.
pub(crate) fn remove_directory(path: &Path, doomed: &Path) -> Result<(), StorageError> {
    rename_durably(path, doomed)?;
    fs::remove_dir_all(doomed).storage("remove", doomed)
}

/// Renames within one directory; the new name is on the disk when this returns.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<(), StorageError> {
    rename(from, to)?;
    sync_directory(to.parent().unwrap_or_else(|| Path::new(".")))
}

/// The topic id that a partition's directory tells, if any.
pub(crate) fn read_topic_id(directory: &Path) -> Result<Option<Uuid>, StorageError> {
    super::metadata::read_topic_id(&directory.join(PARTITION_METADATA))
}

impl PartitionLog {
    /// How often the replica has moved between log directories.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// An empty copy in a directory that is made for it, of a log that begins at `log_start_offset`.
    pub(crate) fn create_copy(
        directory: &Path,
        topic_id: Option<Uuid>,
        config: LogConfig,
        log_start_offset: i64,
        now_ms: i64,
    ) -> Result<Self, LogError> {
        let mut copy = Self::create(directory, topic_id, config, now_ms)?;
        if log_start_offset != 0 {
            copy.truncate_fully_and_start_at(log_start_offset)?;
        }
        Ok(copy)
    }

    /// No segment is replaced from now on, not even by a compaction that is under way: a copy would keep what a
    /// tombstone deleted and miss the tombstone (C1).
    pub(crate) fn pause_compaction(&mut self) {
        if !self.compaction_paused {
            self.compaction_paused = true;
            self.truncations += 1;
        }
    }

    pub(crate) fn resume_compaction(&mut self) {
        self.compaction_paused = false;
    }

    /// Appends to a copy what was read from its log: from the segment that begins at `segment_base`, in the directory
    /// `origin`. Gaps that compaction left stay (C4).
    pub(crate) fn append_copied(
        &mut self,
        records: &Bytes,
        segment_base: i64,
        origin: &Path,
        now_ms: i64,
    ) -> Result<(), AppendError> {
        let end = self.log_end_offset;
        let active = self.active();
        if active.size_bytes > 0 && active.base_offset < segment_base && end <= segment_base {
            self.roll(segment_base, now_ms).map_err(into_append_error)?;
            self.copy_snapshot(origin, segment_base)?;
        }
        self.append_batches(FetchedBatches::new(records), true, now_ms)
    }

    /// Puts the log's own snapshot in the place of the copy's: it also knows producers whose records are gone (D9).
    fn copy_snapshot(&self, origin: &Path, offset: i64) -> Result<(), StorageError> {
        if !self.snapshots.contains(&offset) {
            return Ok(());
        }
        match read_if_present(&file_path(origin, offset, SNAPSHOT_SUFFIX)) {
            Ok(Some(bytes)) if ProducerStates::decode(&bytes, offset).is_some() => {
                write_file(&self.snapshot_path(offset), &bytes)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                debug!(%error, "the copy keeps its own producer snapshot");
                Ok(())
            }
        }
    }

    /// Lets go of a copy's segments that end at or below its log start.
    pub(crate) fn drop_segments_below_start(&mut self, now_ms: i64) -> Result<(), LogError> {
        self.remove_due_files(now_ms);
        while self.segments.len() > 1 && self.end_of_oldest() <= self.log_start_offset {
            self.delete_oldest_segment(DeletionReason::LogStart, now_ms)?;
        }
        Ok(())
    }

    /// Step 1: gives a copy that ends where its log does what the records did not tell, and syncs all of it.
    pub(crate) fn complete_copy_of(&mut self, log: &Self) -> Result<(), LogError> {
        assert_eq!(self.log_end_offset, log.log_end_offset, "the copy in {}", self.directory.display());
        assert!(self.log_start_offset <= log.log_start_offset, "the copy in {}", self.directory.display());
        self.check_running()?;
        self.advance_log_start_offset(log.log_start_offset)?;
        self.epochs = log.epochs.clone();
        self.write_epochs()?;
        self.producers = log.producers.clone();
        let end = self.producers.end_offset;
        if self.snapshots.contains(&end) {
            self.remove_snapshot(end)?;
        }
        self.take_snapshot()?;
        self.high_watermark = log.high_watermark;
        self.cleaned = log.cleaned.without_restart();
        // What was planned for the log must not be done to the copy.
        self.truncations = log.truncations + 1;
        self.generation = log.generation + 1;
        self.write_generation()?;
        self.directory_changed = true;
        self.flush()
    }

    /// After step 3: takes over what only a running leader knows.
    pub(crate) fn inherit_from(&mut self, log: &mut Self) {
        log.epoch_file.close();
        self.verifications = std::mem::take(&mut log.verifications);
        self.turned_away = std::mem::take(&mut log.turned_away);
    }

    /// Step 3 failed: makes sure that this log is the one that loading takes, whatever became of the copy.
    pub(crate) fn outlive(&mut self, copy: &Self) -> Result<(), StorageError> {
        self.generation = copy.generation + 1;
        self.write_generation()
    }

    fn write_generation(&self) -> Result<(), StorageError> {
        write_atomically(&self.directory.join(GENERATION), self.generation.to_string().as_bytes())
    }
}
