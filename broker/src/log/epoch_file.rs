//! The epoch history of a log on the disk, in `leader-epoch-checkpoint`. What a leader records must be durable before it
//! serves (HW-06): alone, in that file, or with those of many other logs at once, in one file of the log directory
//! ([`super::epoch_starts`]). What records carry in their headers need not be on the disk before they are synced: a recovery
//! finds it in them again.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::epochs::{EpochEnd, EpochEntry};
use super::error::{LogError, StorageError};
use super::files::write_atomically;
use super::partition_log::PartitionLog;

pub(crate) const EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";

/// How the file stands to the history in memory. It may lack the last epochs: those of records at or above the recovery
/// point, and one without records at the log end.
#[derive(Debug, Default)]
pub(crate) struct EpochFile {
    writer: Arc<Writer>,
    /// Texts that were made to be written; each replaces those before it.
    texts: u64,
    /// The file lacks something that came after so many texts were made.
    behind: Option<u64>,
}

/// The number of the last text that was written. Held while one is.
#[derive(Debug, Default)]
struct Writer(Mutex<u64>);

/// A whole history, to be written without the log's lock.
#[derive(Debug)]
pub(crate) struct EpochText {
    path: PathBuf,
    text: String,
    number: u64,
    writer: Arc<Writer>,
}

impl EpochText {
    /// Replaces the file, durably, unless a later text has been written.
    pub(super) fn write(&self) -> Result<(), StorageError> {
        let mut written = self.writer.0.lock();
        if *written < self.number {
            write_atomically(&self.path, self.text.as_bytes())?;
            *written = self.number;
        }
        Ok(())
    }
}

impl EpochFile {
    /// The history has changed, and is written later.
    pub(super) fn lag_behind(&mut self) {
        self.behind = Some(self.texts);
    }

    /// A copy has taken the log's place: nothing is written to this path any more, where the replica may come back to.
    pub(super) fn close(&self) {
        *self.writer.0.lock() = u64::MAX;
    }

    pub(super) fn note_written(&mut self, text: &EpochText) {
        if self.behind.is_some_and(|behind| behind < text.number) {
            self.behind = None;
        }
    }
}

impl PartitionLog {
    /// Records that the leader of `leader_epoch` starts at the log end; durable when it returns (HW-06).
    pub fn assign_epoch_start(&mut self, leader_epoch: i32) -> Result<(), LogError> {
        self.check_running()?;
        let before = self.epochs.clone();
        self.epochs.assign(leader_epoch, self.log_end_offset);
        if self.epochs != before
            && let Err(error) = self.write_epochs()
        {
            self.epochs = before;
            return Err(error.into());
        }
        Ok(self.write_missing_epochs()?)
    }

    /// As [`PartitionLog::assign_epoch_start`], but only in memory: the caller makes it durable with those of other logs,
    /// and serves in it no sooner. Returns what is to be recorded.
    pub(crate) fn begin_epoch(&mut self, leader_epoch: i32) -> Result<EpochEntry, LogError> {
        self.check_running()?;
        let start_offset = self.log_end_offset;
        if self.epochs.assign(leader_epoch, start_offset) {
            self.epoch_file.lag_behind();
        }
        Ok(EpochEntry { leader_epoch, start_offset })
    }

    /// After the log was opened: takes an epoch over that was recorded beside the file. It holds only as long as no record
    /// follows it: records tell of their epochs themselves, and what contradicts them is of the past. So at most the last
    /// epoch of a history can come from there.
    pub(crate) fn restore_epoch(&mut self, recorded: EpochEntry) {
        let is_newer = self.latest_epoch().is_none_or(|latest| latest < recorded.leader_epoch);
        if is_newer && recorded.start_offset == self.log_end_offset {
            self.epochs.assign(recorded.leader_epoch, recorded.start_offset);
            self.epoch_file.lag_behind();
        }
    }

    /// Takes the epoch of a batch that is about to be appended into the history. An epoch behind all others is on the disk
    /// no later than the batch is known to be ([`PartitionLog::missing_epochs`]); a change that contradicts what
    /// stands there is made there first.
    pub(crate) fn note_epoch_of_records(
        &mut self,
        leader_epoch: i32,
        start_offset: i64,
    ) -> Result<(), StorageError> {
        let is_behind_all = self
            .epochs
            .latest()
            .is_none_or(|last| last.leader_epoch < leader_epoch && last.start_offset < start_offset);
        if is_behind_all {
            self.epochs.assign(leader_epoch, start_offset);
            self.epoch_file.lag_behind();
            return Ok(());
        }
        let before = self.epochs.clone_if_changed(leader_epoch, start_offset);
        let Some(before) = before else { return Ok(()) };
        if let Err(error) = self.write_epochs() {
            self.epochs = before;
            return Err(error);
        }
        Ok(())
    }

    /// The history, if the file lacks some of it: to be written before the recovery point rises.
    pub(super) fn missing_epochs(&mut self) -> Option<EpochText> {
        self.epoch_file.behind.is_some().then(|| self.epoch_text())
    }

    /// Before records go of which an epoch is told: those that compaction leaves may begin later than it did.
    pub(crate) fn write_missing_epochs(&mut self) -> Result<(), StorageError> {
        if self.epoch_file.behind.is_some() { self.write_epochs() } else { Ok(()) }
    }

    fn epoch_text(&mut self) -> EpochText {
        self.epoch_file.texts += 1;
        EpochText {
            path: self.directory.join(EPOCH_CHECKPOINT),
            text: self.epochs.encode(),
            number: self.epoch_file.texts,
            writer: Arc::clone(&self.epoch_file.writer),
        }
    }

    pub(crate) fn write_epochs(&mut self) -> Result<(), StorageError> {
        let text = self.epoch_text();
        text.write()?;
        self.epoch_file.note_written(&text);
        Ok(())
    }

    pub fn latest_epoch(&self) -> Option<i32> {
        self.epochs.latest().map(|entry| entry.leader_epoch)
    }

    /// The epoch history, oldest first.
    pub fn epoch_entries(&self) -> &[EpochEntry] {
        self.epochs.entries()
    }

    /// Where the largest epoch not above `asked` ends (KIP-279); [`EpochEnd::UNDEFINED`] when that is not known.
    pub fn end_offset_for_epoch(&self, asked: i32) -> EpochEnd {
        self.epochs.end_offset_for(asked, self.log_end_offset)
    }

    /// The leader epoch under which the record at `offset` was appended.
    pub fn epoch_at(&self, offset: i64) -> Option<i32> {
        self.epochs.epoch_at(offset)
    }
}
