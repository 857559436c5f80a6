//! Splitting a segment whose last offset is too far from its base for the indexes' 32-bit relative offsets (LOG-03). Our
//! own appends and compaction never make one; old versions of Kafka's cleaner did.
//!
//! What lies too far is copied into a segment of its own, durably, before it is cut off the old one. After a stop between
//! the two the old segment is still too long, so the next start copies the same bytes under the same name again.

use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use super::error::{LogError, StorageContext, StorageError};
use super::files::{
    LogFile, read_up_to, remove_if_present, rename, sync_directory, sync_file, write_vectored_all_at,
};
use super::scan::BatchScan;
use super::segment::{INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, file_path};

/// Largest distance from a segment's base to an offset in it.
pub(crate) const RELATIVE_OFFSET_MAX: i64 = i32::MAX as i64;

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Moves the batches that are too far from `base` into a new segment. Returns its base offset; `None` if there are none.
/// The indexes of both must be rebuilt.
pub(crate) fn split(directory: &Path, base: i64) -> Result<Option<i64>, LogError> {
    let path = file_path(directory, base, LOG_SUFFIX);
    let size_bytes = std::fs::metadata(&path).storage("look at", &path)?.len();
    let log = LogFile::new(path.clone());
    let Some((new_base, position)) = first_too_far(&log, base, size_bytes)? else { return Ok(None) };
    warn!(path = %path.display(), new_base, position, "splitting a segment whose offsets are too far from its base");
    // The indexes first: what is left of them after a stop would say nothing true of either segment.
    for base in [base, new_base] {
        for suffix in [INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX] {
            remove_if_present(&file_path(directory, base, suffix))?;
        }
    }
    let target = file_path(directory, new_base, LOG_SUFFIX);
    copy_tail(&log, (position, size_bytes), &target)?;
    sync_directory(directory)?;
    log.set_len(position)?;
    sync_file(&*log.get()?, &path)?;
    log.close();
    Ok(Some(new_base))
}

/// The first batch that does not fit behind `base`: its base offset and position. Ends at what is no valid batch.
fn first_too_far(log: &Arc<LogFile>, base: i64, size_bytes: u64) -> Result<Option<(i64, u64)>, StorageError> {
    let mut scan = BatchScan::new(log, 0, size_bytes)?;
    let mut position = 0;
    while let Some(Ok((header, bytes))) = scan.next()? {
        if header.last_offset().saturating_sub(base) > RELATIVE_OFFSET_MAX {
            return Ok(Some((header.base_offset, position)));
        }
        position += bytes.len() as u64;
    }
    Ok(None)
}

/// Copies the bytes of a file from a position on into a new file, by way of a temporary name.
fn copy_tail(log: &Arc<LogFile>, (mut position, end): (u64, u64), target: &Path) -> Result<(), StorageError> {
    let temporary = target.with_extension("log.split");
    remove_if_present(&temporary)?;
    let copy = LogFile::new(temporary.clone());
    copy.create()?;
    let (from, to) = (log.get()?, copy.get()?);
    let mut written = 0;
    while position < end {
        let wanted = COPY_BYTES.min(usize::try_from(end - position).unwrap_or(usize::MAX));
        let bytes = read_up_to(&from, wanted, position).storage("read", &log.path())?;
        if bytes.is_empty() {
            break;
        }
        position += bytes.len() as u64;
        let length = bytes.len() as u64;
        write_vectored_all_at(&to, || temporary.clone(), &[bytes.into()], written)
            .storage("write", &temporary)?;
        written += length;
    }
    sync_file(&to, &temporary)?;
    copy.close();
    rename(&temporary, target)
}
