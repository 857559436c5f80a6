//! Compaction: `cleanup.policy=compact` keeps the newest record of every key, and what else is needed to read the log.
//!
//! Reading order: `choice` (what may be cleaned, which log first), `offset_map`, `transactions`, `filter` (what is left
//! of a batch), all pure; then `plan`, `pass` and `rewriter` (the work, outside of the log's lock), `swap` (the only
//! step inside of it), `cleaned_offset`; `worker` runs passes in supervised threads. Rules: cases CMP-*, invariants
//! C1-C4, KIP-58, KIP-354, KIP-534.

mod choice;
mod cleaned_offset;
mod filter;
mod offset_map;
mod pass;
mod plan;
mod rewriter;
mod swap;
mod throttle;
mod transactions;
mod worker;

#[cfg(test)]
mod tests;

use parking_lot::Mutex;

pub(crate) use cleaned_offset::CleanedOffset;
pub use pass::{CleaningReport, CleaningSettings};
pub(crate) use swap::{CLEANED_SUFFIX, SWAP_SUFFIX};
pub(crate) use worker::{Cleaner, CleanerLogs, CleanerStatus, WorkerSettings};

use super::error::LogError;
use super::partition_log::PartitionLog;
use pass::PassError;

/// A log behind its owner's lock.
pub(crate) trait LogAccess {
    /// Runs `work` under the lock; `None` when there is no log any more.
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T>;
}

impl LogAccess for Mutex<&mut PartitionLog> {
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        Some(work(&mut self.lock()))
    }
}

/// Cleans a log that nobody else uses, once and whatever its dirty ratio; `None` when there is nothing to clean.
/// For tools, tests and benchmarks; a broker's logs are cleaned by its cleaner threads.
///
/// # Errors
/// A damaged segment or a failed disk operation; the log is as good as before, or stopped.
pub fn compact_once(
    log: &mut PartitionLog,
    settings: &CleaningSettings,
    now_ms: i64,
) -> Result<Option<CleaningReport>, LogError> {
    let result = pass::clean(&Mutex::new(log), settings, &mut |_| Ok(()), now_ms);
    result.map_err(|error| match error {
        PassError::Log(error) => error,
        other => LogError::Stopped(other.to_string()),
    })
}
