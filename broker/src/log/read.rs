//! Reading without holding up appends: a plan is made under the owner's lock, the bytes are read outside of it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::{BatchHeader, Batches, HEADER_BYTES, NO_TIMESTAMP, check_crc};
use super::buffers::{Wait, read_pooled};
use super::compression::decompress;
use super::error::{ReadError, StorageContext, StorageError};
use super::files::{LogFile, read_up_to};
use super::partition_log::PartitionLog;
use super::records::Records;
use super::scan::damaged;
use super::segment::Segment;
use super::stream::{RecordStream, STREAMED_FROM_BYTES};

/// Where the bytes of a read are. Holds the file open: a segment that is deleted meanwhile can still be read. After
/// a truncation meanwhile the bytes are those of the new log or end early; callers that may be truncated check
/// their epoch after the read.
#[derive(Debug, Clone)]
pub struct ReadPlan {
    slice: Option<Slice>,
}

#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) file: Arc<File>,
    /// Knows the path, should the read fail.
    pub(super) log: Arc<LogFile>,
    /// Where its segment begins.
    base_offset: i64,
    pub(super) position: u64,
    pub(super) length: usize,
    /// Whether it ends where a batch does.
    is_whole: bool,
    /// Whether all of it is below the high watermark.
    pub(super) is_committed: bool,
}

impl ReadPlan {
    pub(crate) const EMPTY: Self = Self { slice: None };

    /// Bytes that will be read at most; an incomplete batch at the end is not returned.
    pub fn len(&self) -> usize {
        self.slice.as_ref().map_or(0, |slice| slice.length)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The base offset of the segment that is read; `None` when nothing is.
    pub(crate) fn segment_base(&self) -> Option<i64> {
        self.slice.as_ref().map(|slice| slice.base_offset)
    }

    /// Reads whole batches.
    ///
    /// # Errors
    /// The disk fails, or what is stored is no batch any more.
    pub fn read(&self) -> Result<Bytes, StorageError> {
        let Some(slice) = &self.slice else { return Ok(Bytes::new()) };
        let read = read_pooled(&slice.file, slice.length, slice.position, Wait::Yes);
        let failed = |source| StorageError { action: "read", path: slice.log.path(), source };
        let bytes = read.map_err(failed)?;
        let mut walk = Batches::new(&bytes);
        for batch in walk.by_ref() {
            if let Err(error) = batch {
                return Err(damaged(&slice.log.path(), slice.position, error));
            }
        }
        let whole = walk.consumed();
        Ok(bytes.slice(..whole))
    }

    /// For reading part by part: exactly [`Self::len`] bytes. `None` when there is nothing to read, or when where the last
    /// batch ends is not known before reading.
    pub(crate) fn stream(&self) -> Option<RecordStream> {
        self.slice.as_ref().filter(|slice| slice.is_whole).cloned().map(RecordStream::new)
    }

    /// Whether there is a [`Self::stream`].
    pub(crate) fn can_be_streamed(&self) -> bool {
        self.slice.as_ref().is_some_and(|slice| slice.is_whole)
    }
}

impl PartitionLog {
    /// Plans to read from the batch that holds `offset`, at most `max_bytes`, no batch that ends at or above
    /// `upper_bound_offset`. With `minimum_one_batch` the first batch is returned whole even if it is larger.
    ///
    /// # Errors
    /// `OffsetOutOfRange` outside log start and log end (the end itself reads nothing).
    pub fn read_plan(
        &self,
        offset: i64,
        max_bytes: usize,
        upper_bound_offset: i64,
        minimum_one_batch: bool,
    ) -> Result<ReadPlan, ReadError> {
        if offset < self.log_start_offset || offset > self.log_end_offset {
            return Err(ReadError::OffsetOutOfRange {
                offset,
                log_start_offset: self.log_start_offset,
                log_end_offset: self.log_end_offset,
            });
        }
        let upper = upper_bound_offset.min(self.log_end_offset);
        if offset >= upper {
            return Ok(ReadPlan::EMPTY);
        }
        let start = self.segments.range(..=offset).next_back().map_or(offset, |(base, _)| *base);
        for (base_offset, segment) in self.segments.range(start..) {
            if *base_offset >= upper {
                break;
            }
            if let Some(first) = segment.find(offset)? {
                let end = self.end_position(segment, upper)?;
                let available = end.saturating_sub(first.position) as usize;
                let wanted =
                    if minimum_one_batch { max_bytes.max(first.size_bytes as usize) } else { max_bytes };
                let length = available.min(wanted);
                if length < first.size_bytes as usize {
                    break;
                }
                let whole = if length == available {
                    Some(end)
                } else if STREAMED_FROM_BYTES <= length {
                    segment.last_end_up_to(first.position, first.position + length as u64)
                } else {
                    None
                };
                let slice = Slice {
                    file: segment.log.get()?,
                    log: segment.log.clone(),
                    base_offset: *base_offset,
                    position: first.position,
                    length: whole.map_or(length, |end| (end - first.position) as usize),
                    is_whole: whole.is_some(),
                    is_committed: upper <= self.high_watermark,
                };
                return Ok(ReadPlan { slice: Some(slice) });
            }
        }
        Ok(ReadPlan::EMPTY)
    }

    /// Where the batches of `segment` that end below `upper` end.
    fn end_position(&self, segment: &Segment, upper: i64) -> Result<u64, StorageError> {
        if upper >= self.log_end_offset
            || self.segments.range(segment.base_offset + 1..=upper).next().is_some()
        {
            return Ok(segment.size_bytes);
        }
        Ok(segment.find(upper)?.map_or(segment.size_bytes, |place| place.position))
    }

    /// The first record, at or after the log start, whose timestamp is at least `timestamp`: its timestamp, offset
    /// and leader epoch.
    pub fn offset_for_timestamp(
        &self,
        timestamp: i64,
    ) -> Result<Option<(i64, i64, Option<i32>)>, StorageError> {
        let candidates = self.segments.values().filter(|segment| segment.largest_timestamp.0 >= timestamp);
        for segment in candidates {
            if let Some((timestamp, offset)) = find_timestamp(segment, timestamp, self.log_start_offset)? {
                return Ok(Some((timestamp, offset, self.epochs.epoch_at(offset))));
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp of the log (ListOffsets -3).
    pub fn max_timestamp_offset(&self) -> Result<Option<(i64, i64, Option<i32>)>, StorageError> {
        let largest = self.segments.values().map(|segment| segment.largest_timestamp.0).max();
        let Some(largest) = largest.filter(|largest| *largest != NO_TIMESTAMP) else { return Ok(None) };
        match self.offset_for_timestamp(largest)? {
            // Only a batch that compaction emptied, or records below the log start, have it.
            None => self.max_timestamp_of_records(),
            found => Ok(found),
        }
    }

    fn max_timestamp_of_records(&self) -> Result<Option<(i64, i64, Option<i32>)>, StorageError> {
        let mut best: Option<(i64, i64)> = None;
        for segment in self.segments.values() {
            let mut scan = segment.scan_for(self.log_start_offset)?;
            while let Some((header, position)) = scan.next()? {
                let mut at_least = best.map_or(0, |(timestamp, _)| timestamp + 1);
                while header.max_timestamp >= at_least
                    && let Some(found) =
                        find_in_batch(segment, &header, position, at_least, self.log_start_offset)?
                {
                    best = Some(found);
                    at_least = found.0 + 1;
                }
            }
        }
        Ok(best.map(|(timestamp, offset)| (timestamp, offset, self.epochs.epoch_at(offset))))
    }
}

fn find_timestamp(
    segment: &Segment,
    timestamp: i64,
    log_start_offset: i64,
) -> Result<Option<(i64, i64)>, StorageError> {
    let mut scan = match segment.time_index.floor(timestamp)? {
        Some((floor, offset)) if segment.has_timestamp_at(floor, offset)? => {
            segment.scan_for(offset.max(log_start_offset))?
        }
        Some(_) => segment.scan_for(segment.base_offset)?,
        None => segment.scan_for(log_start_offset)?,
    };
    while let Some((header, position)) = scan.next()? {
        if header.max_timestamp < timestamp || header.last_offset() < log_start_offset {
            continue;
        }
        if let Some(found) = find_in_batch(segment, &header, position, timestamp, log_start_offset)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn find_in_batch(
    segment: &Segment,
    header: &BatchHeader,
    position: u64,
    timestamp: i64,
    log_start_offset: i64,
) -> Result<Option<(i64, i64)>, StorageError> {
    if header.record_count == 0 {
        return Ok(None);
    }
    if header.has_log_append_time() {
        return Ok(Some((header.max_timestamp, header.base_offset.max(log_start_offset))));
    }
    let path = segment.log.path();
    let bytes = read_up_to(&*segment.log.get()?, header.size_bytes(), position).storage("read", &path)?;
    let bytes = Bytes::from(bytes);
    if bytes.len() < header.size_bytes() {
        let short = io::Error::from(io::ErrorKind::UnexpectedEof);
        return Err(short).storage("read", &path);
    }
    check_crc(header, &bytes).map_err(|error| damaged(&path, position, error))?;
    let body = bytes.slice(HEADER_BYTES..);
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let plain = decompress(header.compression(), &body)
        .map_err(|error| invalid(error.to_string()))
        .storage("decompress a batch of", &path)?;
    for record in Records::new(&plain, header.record_count).map_while(Result::ok) {
        let found = header.base_timestamp.wrapping_add(record.timestamp_delta);
        let offset = header.base_offset.saturating_add(i64::from(record.offset_delta));
        if found >= timestamp && offset >= log_start_offset {
            return Ok(Some((found, offset)));
        }
    }
    Ok(None)
}
