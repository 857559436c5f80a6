//! Walking the batches of a segment file: headers only (lookups), or whole batches with their CRC (recovery).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::batch::{BatchError, BatchHeader, HEADER_BYTES, check_crc};
use super::error::StorageError;
use super::files::{LogFile, read_again};

/// Bytes read at once when only headers are wanted: an index interval and a bit.
pub(crate) const HEADER_READ_BYTES: usize = 8 << 10;
/// Bytes read at once when everything is read.
const SEQUENTIAL_READ_BYTES: usize = 1 << 20;

/// Reads a file in windows: asks for bytes at a position, keeps what came along for the next question. One buffer serves
/// all windows: memory that the system has just given out costs more than the reading.
struct Window {
    log: Arc<LogFile>,
    file: Arc<File>,
    start: u64,
    buffer: Vec<u8>,
    /// Read at once; only the first may be less than [`HEADER_READ_BYTES`].
    read_bytes: usize,
}

impl Window {
    fn new(log: &Arc<LogFile>, read_bytes: usize) -> Result<Self, StorageError> {
        let (log, file) = (Arc::clone(log), log.get()?);
        Ok(Self { log, file, start: 0, buffer: Vec::new(), read_bytes })
    }

    /// The bytes from `position`, at least `needed` of them unless `end` is nearer.
    fn at(&mut self, position: u64, needed: usize, end: u64) -> Result<&[u8], StorageError> {
        let available = usize::try_from(end.saturating_sub(position)).unwrap_or(usize::MAX);
        let needed = needed.min(available);
        let held =
            position >= self.start && position + needed as u64 <= self.start + self.buffer.len() as u64;
        if !held {
            let length = self.read_bytes.max(needed).min(available);
            read_again(&self.file, &mut self.buffer, length, position).map_err(|source| StorageError {
                action: "read",
                path: self.log.path(),
                source,
            })?;
            self.start = position;
            self.read_bytes = self.read_bytes.max(HEADER_READ_BYTES);
        }
        let from = (position - self.start) as usize;
        let until = self.buffer.len().min(from + available);
        Ok(&self.buffer[from..until])
    }
}

/// Headers of successive batches from a position to an end.
pub(crate) struct HeaderScan {
    window: Window,
    position: u64,
    end: u64,
}

impl HeaderScan {
    pub(crate) fn new(log: &Arc<LogFile>, position: u64, end: u64) -> Result<Self, StorageError> {
        Ok(Self { window: Window::new(log, HEADER_READ_BYTES)?, position, end })
    }

    /// As [`HeaderScan::new`] for a scan whose last header most likely begins within `first_bytes`: no more is read at
    /// first, as copying bytes that nobody looks at costs more than the system call.
    pub(crate) fn short(
        log: &Arc<LogFile>,
        (position, end): (u64, u64),
        first_bytes: u64,
    ) -> Result<Self, StorageError> {
        let first_bytes =
            (first_bytes.min(HEADER_READ_BYTES as u64) as usize + HEADER_BYTES).min(HEADER_READ_BYTES);
        Ok(Self { window: Window::new(log, first_bytes)?, position, end })
    }

    /// The header at the current position, without moving on.
    pub(crate) fn peek(&mut self) -> Result<BatchHeader, StorageError> {
        let bytes = self.window.at(self.position, HEADER_BYTES, self.end)?;
        BatchHeader::parse(bytes).map_err(|error| damaged(&self.window.log.path(), self.position, error))
    }

    /// The next header and the position of its batch; `None` at the end. Bytes that are not a batch are an error:
    /// what is below a segment's size was validated when it was written or recovered.
    pub(crate) fn next(&mut self) -> Result<Option<(BatchHeader, u64)>, StorageError> {
        if self.position >= self.end {
            return Ok(None);
        }
        let position = self.position;
        let bytes = self.window.at(position, HEADER_BYTES, self.end)?;
        let parsed = BatchHeader::parse(bytes);
        let header = parsed.map_err(|error| damaged(&self.window.log.path(), position, error))?;
        self.position += header.size_bytes() as u64;
        Ok(Some((header, position)))
    }
}

/// A stored batch that is not what it was when it was written.
pub(crate) fn damaged(path: &Path, position: u64, error: BatchError) -> StorageError {
    let message = format!("damaged batch at byte {position}: {error}");
    StorageError {
        action: "read",
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, message),
    }
}

/// A whole valid batch, or why the bytes are none.
pub(crate) type ScannedBatch<'a> = Result<(BatchHeader, &'a [u8]), BatchError>;

/// Whole batches from a position to an end, each checked; the walk ends at the first that is not valid.
pub(crate) struct BatchScan {
    window: Window,
    position: u64,
    end: u64,
}

impl BatchScan {
    pub(crate) fn new(log: &Arc<LogFile>, position: u64, end: u64) -> Result<Self, StorageError> {
        Ok(Self { window: Window::new(log, SEQUENTIAL_READ_BYTES)?, position, end })
    }

    /// The next batch: its header and bytes; `None` at the end, an error inside for bytes that are no valid batch.
    pub(crate) fn next(&mut self) -> Result<Option<ScannedBatch<'_>>, StorageError> {
        if self.position >= self.end {
            return Ok(None);
        }
        let available = (self.end - self.position) as usize;
        let header = match BatchHeader::parse(self.window.at(self.position, HEADER_BYTES, self.end)?) {
            Ok(header) => header,
            Err(error) => return Ok(Some(Err(error))),
        };
        let size = header.size_bytes();
        if size > available {
            return Ok(Some(Err(BatchError::Short { needed: size, available })));
        }
        let bytes = self.window.at(self.position, size, self.end)?;
        let Some(batch) = bytes.get(..size) else {
            return Ok(Some(Err(BatchError::Short { needed: size, available: bytes.len() })));
        };
        if let Err(error) = check_crc(&header, batch) {
            return Ok(Some(Err(error)));
        }
        self.position += size as u64;
        Ok(Some(Ok((header, batch))))
    }
}
