//! Records of one read plan, read part by part while they are sent, so that a long answer never lies in memory as a whole.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use zurau_common::page_cache::{self, FilePart};

use super::batch::{BatchHeader, HEADER_BYTES};
use super::buffers::{BUFFER_BYTES, Wait, read_pooled};
use super::error::StorageError;
use super::faults;
use super::read::Slice;
use super::scan::damaged;

/// Shorter reads are done at once.
pub(crate) const STREAMED_FROM_BYTES: usize = 32 << 10;

/// Size of a part that is lent, at most.
const LENT_BYTES_MAX: usize = 1 << 20;
/// A shorter part, or one of more or smaller batches, is read: looking at its headers costs as much.
const LENT_BYTES_MIN: usize = 64 << 10;
const LENT_BATCHES_MAX: usize = 32;
const LENT_BATCH_BYTES_MIN: usize = LENT_BYTES_MIN / LENT_BATCHES_MAX;
/// Distance of the bytes that are asked for to see whether a part is in the page cache.
const PROBE_BYTES: usize = 64 << 10;

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
            next_batch = self.end_of_batch(&bytes[next_batch..], next_batch)?;
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

    /// The next part, without reading it: what stands there does not change ([`LogFile::lend`]). `None` if it has to be
    /// read: it is not below the high watermark, where nothing is cut in an orderly life; not in the page cache; or of
    /// small batches, whose headers would cost too much to look at.
    ///
    /// # Errors
    /// As [`RecordStream::next`].
    ///
    /// [`LogFile::lend`]: super::files::LogFile::lend
    pub(crate) fn lend(&mut self) -> Result<Option<FilePart>, StorageError> {
        if !self.left.is_committed {
            return Ok(None);
        }
        let wanted = self.left.length.min(LENT_BYTES_MAX);
        let mut next_batch = self.to_next_batch;
        let mut batches = 0;
        while next_batch + HEADER_BYTES <= wanted && batches < LENT_BATCHES_MAX {
            let mut bytes = [0; HEADER_BYTES];
            if !self.read_cached(&mut bytes, next_batch)? {
                break;
            }
            next_batch = self.end_of_batch(&bytes, next_batch)?;
            batches += 1;
            if next_batch - self.to_next_batch < batches * LENT_BATCH_BYTES_MIN {
                return Ok(None);
            }
        }
        let end = wanted.min(next_batch);
        let mut length = 0;
        while length < end && self.read_cached(&mut [0], length)? {
            length = end.min(length + PROBE_BYTES);
        }
        if length < LENT_BYTES_MIN.min(self.left.length) || self.left.length < next_batch {
            return Ok(None);
        }
        let Slice { file, log, position, .. } = &self.left;
        let part = FilePart { file: Arc::clone(file), position: *position, length };
        log.lend(part.position + length as u64);
        self.left.position += length as u64;
        self.left.length -= length;
        self.to_next_batch = next_batch.saturating_sub(length);
        Ok(Some(part))
    }

    /// Where the batch ends whose header `bytes` begins with, which stands so far behind the stream's place.
    fn end_of_batch(&self, bytes: &[u8], at: usize) -> Result<usize, StorageError> {
        let header = BatchHeader::parse(bytes)
            .map_err(|error| damaged(&self.left.log.path(), self.left.position + at as u64, error))?;
        Ok(at + header.size_bytes())
    }

    /// Fills `bytes` from so far behind the stream's place; false if that is not in the page cache.
    fn read_cached(&self, bytes: &mut [u8], at: usize) -> Result<bool, StorageError> {
        let file = &self.left.file;
        let read = faults::before_read(file)
            .and_then(|()| page_cache::read(file, bytes, self.left.position + at as u64));
        Ok(read.map_err(|error| self.failed(error))? == Some(bytes.len()))
    }

    fn failed(&self, source: io::Error) -> StorageError {
        StorageError { action: "read", path: self.left.log.path(), source }
    }
}

fn ended_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the batches end elsewhere than they did")
}
