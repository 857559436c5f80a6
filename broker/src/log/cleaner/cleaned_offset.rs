//! How far a log was compacted, kept right over truncations and crashes (CMP-08).
//!
//! The number stands in `cleaner-offset-checkpoint`, which is written now and then. A truncation below it must be
//! known after a crash at any moment, or other records in the same place would count as compacted for ever; so the
//! truncation leaves a small file in the partition's directory first, and the next checkpoint removes it.

use tracing::{info, warn};

use crate::log::error::StorageError;
use crate::log::files::{read_if_present, remove_if_present, write_atomically};
use crate::log::partition_log::PartitionLog;

/// Holds the offset from which on the log counts as not compacted, whatever the checkpoint says.
const RESTART_FILE: &str = "cleaner-restart-offset";

/// What the log knows about its compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanedOffset {
    /// Everything below was compacted.
    up_to: i64,
    /// The contents of the restart file, if there is one.
    restart: Option<i64>,
}

impl CleanedOffset {
    /// For a log directory whose checkpoint says so already.
    pub(crate) fn without_restart(self) -> Self {
        Self { restart: None, ..self }
    }
}

impl PartitionLog {
    /// Everything below was compacted; 0 when nothing was. What `cleaner-offset-checkpoint` is to say.
    pub fn cleaned_offset(&self) -> i64 {
        self.cleaned.up_to.min(self.log_end_offset)
    }

    /// Takes what the checkpoint says after the log was opened. Outside of the log it is not believed and the whole
    /// log counts as not compacted.
    pub fn restore_cleaned_offset(&mut self, checkpointed: Option<i64>) -> Result<(), StorageError> {
        let path = self.directory.join(RESTART_FILE);
        let mut restart = read_if_present(&path)?.map(|text| {
            let parsed = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<i64>().ok());
            parsed.unwrap_or_else(|| {
                warn!(path = %path.display(), "damaged; the whole log counts as not compacted");
                0
            })
        });
        let mut up_to = checkpointed.unwrap_or(0).min(restart.unwrap_or(i64::MAX));
        if up_to > self.log_end_offset {
            warn!(
                directory = %self.directory.display(), up_to, log_end_offset = self.log_end_offset,
                "the checkpoint says that the log was compacted beyond its end; starting again at the log start"
            );
            up_to = self.log_start_offset;
            write_atomically(&path, up_to.to_string().as_bytes())?;
            restart = Some(up_to);
        }
        self.cleaned = CleanedOffset { up_to, restart };
        Ok(())
    }

    pub(crate) fn first_dirty_offset(&self) -> i64 {
        self.cleaned.up_to.max(self.log_start_offset)
    }

    pub(crate) fn set_cleaned_offset(&mut self, up_to: i64) {
        self.cleaned.up_to = up_to;
    }

    /// Records at or above `offset` are about to be replaced by others; durable when it returns.
    pub(crate) fn lower_cleaned_offset(&mut self, offset: i64) -> Result<(), StorageError> {
        if offset >= self.cleaned.up_to {
            return Ok(());
        }
        let restart = offset.min(self.cleaned.restart.unwrap_or(i64::MAX));
        info!(directory = %self.directory.display(), from = self.cleaned.up_to, to = offset,
            "truncating below what was compacted");
        write_atomically(&self.directory.join(RESTART_FILE), restart.to_string().as_bytes())?;
        self.cleaned = CleanedOffset { up_to: offset, restart: Some(restart) };
        Ok(())
    }

    /// The checkpoint with `written` for this log is on disk: a truncation in the past need not be remembered more.
    pub fn cleaned_offset_is_checkpointed(&mut self, written: i64) -> Result<(), StorageError> {
        // Passes after the truncation may have raised the offset again: that is fine, they saw the new records.
        if self.cleaned.restart.is_some() && written == self.cleaned_offset() {
            remove_if_present(&self.directory.join(RESTART_FILE))?;
            self.cleaned.restart = None;
        }
        Ok(())
    }
}
