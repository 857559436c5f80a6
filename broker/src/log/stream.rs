//! Records of one read plan, read part by part while they are sent, so that a long answer never lies in memory as a whole.

use std::io;

use bytes::Bytes;

use super::batch::{BatchHeader, HEADER_BYTES};
use super::buffers::{BUFFER_BYTES, Wait, read_pooled};
use super::error::StorageError;
use super::read::Slice;
use super::scan::damaged;

/// Shorter reads are done at once.
pub(crate) const STREAMED_FROM_BYTES: usize = 32 << 10;

/// What is left of a read plan that ends where a batch does.
#[derive(Debug)]
pub(crate) struct RecordStream {
    left: Slice,
    /// Bytes from here to the next batch.
    to_next_batch: usize,
}

impl RecordStream {
    pub(super) fn new(left: Slice) -> Self {
        Self { left, to_next_batch: 0 }
    }

    /// Bytes to come.
    pub(crate) fn remaining(&self) -> usize {
        self.left.length
    }

    /// The next part, unless the stream is at its end: at least one byte. `None`: not without waiting, and `wait` is
    /// [`Wait::No`]. The batches' headers are looked at, as whoever gets the records relies on their lengths.
    ///
    /// # Errors
    /// The disk fails, the file ends early, or what is stored is no batch any more. After a truncation meanwhile that is
    /// no damage: the caller checks whether there may have been one.
    pub(crate) fn next(&mut self, wait: Wait) -> Result<Option<Bytes>, StorageError> {
        let length = self.left.length.min(BUFFER_BYTES);
        let bytes = match read_pooled(&self.left.file, length, self.left.position, wait) {
            Ok(bytes) if bytes.is_empty() && 0 < length => return Err(self.failed(ended_early())),
            Ok(bytes) => bytes,
            Err(error) if wait == Wait::No && error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let mut next_batch = self.to_next_batch;
        while next_batch + HEADER_BYTES <= bytes.len() {
            let header = BatchHeader::parse(&bytes[next_batch..]).map_err(|error| {
                damaged(&self.left.log.path(), self.left.position + next_batch as u64, error)
            })?;
            next_batch += header.size_bytes();
        }
        // A header that is not here as a whole is left to the next part.
        let taken = bytes.len().min(next_batch);
        if taken == 0 && 0 < length {
            return match wait {
                Wait::No => Ok(None),
                Wait::Yes => Err(self.failed(ended_early())),
            };
        }
        self.left.position += taken as u64;
        self.left.length -= taken;
        self.to_next_batch = next_batch - taken;
        if self.left.length < self.to_next_batch {
            return Err(self.failed(ended_early()));
        }
        Ok(Some(bytes.slice(..taken)))
    }

    fn failed(&self, source: io::Error) -> StorageError {
        StorageError { action: "read", path: self.left.log.path(), source }
    }
}

fn ended_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the batches end elsewhere than they did")
}
