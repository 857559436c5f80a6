//! One segment: a `.log` file of batches, its indexes, and what is known about it without reading it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::batch::{BatchHeader, NO_TIMESTAMP};
use super::config::LogConfig;
use super::error::{StorageContext, StorageError};
use super::files::{LogFile, write_vectored_all_at};
use super::index::{Around, OffsetIndex, TimeIndex};
use super::scan::{HEADER_READ_BYTES, HeaderScan};
use super::transaction_index::TransactionIndex;

/// Batches at the end of the active segment whose place is remembered: reads at the tail need no disk.
const RECENT_BATCHES_MAX: usize = 32;

pub(crate) const LOG_SUFFIX: &str = ".log";
pub(crate) const INDEX_SUFFIX: &str = ".index";
pub(crate) const TIME_INDEX_SUFFIX: &str = ".timeindex";
pub(crate) const TRANSACTION_INDEX_SUFFIX: &str = ".txnindex";
pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";

/// `directory/00000000000000000042.log`.
pub(crate) fn file_path(directory: &Path, offset: i64, suffix: &str) -> PathBuf {
    directory.join(format!("{offset:020}{suffix}"))
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) position: u64,
    pub(crate) size_bytes: u64,
}

impl BatchPosition {
    pub(crate) fn new(header: &BatchHeader, position: u64) -> Self {
        Self {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            position,
            size_bytes: header.size_bytes() as u64,
        }
    }
}

/// Batches between two index entries that are looked at, at most, for where one ends; they are at least a header long
/// each, and an index interval is a few kilobytes.
const HEADERS_SCANNED_MAX: usize = 1024;

/// What an append to a segment came to.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    Written,
    /// The records are in the log but an index lacks entries (LOG-09): the log end advances, the log stops.
    IndexFailed(StorageError),
    /// Nothing was added.
    NotWritten(StorageError),
    /// Bytes may stand behind the end and could not be cut off (L6): the log stops.
    NotCutBack(StorageError),
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base_offset: i64,
    pub(crate) log: Arc<LogFile>,
    pub(crate) size_bytes: u64,
    pub(crate) offset_index: OffsetIndex,
    pub(crate) time_index: TimeIndex,
    pub(crate) transactions: TransactionIndex,
    /// Largest timestamp and the last offset of the (first) batch that has it; (-1, base offset) without any.
    pub(crate) largest_timestamp: (i64, i64),
    /// Largest timestamp of the first batch, once known: what `segment.ms` counts from.
    pub(crate) first_timestamp: Option<i64>,
    pub(crate) created_ms: i64,
    /// When the broker last appended here (the file's modification time after a restart).
    pub(crate) last_append_ms: i64,
    bytes_since_index_entry: u64,
    recent: VecDeque<BatchPosition>,
}

impl Segment {
    /// Creates an empty segment with its files. The directory entry becomes durable at the next flush.
    pub(crate) fn create(
        directory: &Path,
        base_offset: i64,
        config: &LogConfig,
        now_ms: i64,
    ) -> Result<Self, StorageError> {
        let segment = Self::create_with_suffix(directory, base_offset, "", config, now_ms)?;
        if config.preallocate {
            preallocate(&segment.log, config.segment_bytes)?;
        }
        Ok(segment)
    }

    /// As [`Segment::create`], every file name with `suffix` behind it.
    pub(crate) fn create_with_suffix(
        directory: &Path,
        base_offset: i64,
        suffix: &str,
        config: &LogConfig,
        now_ms: i64,
    ) -> Result<Self, StorageError> {
        let path = |kind: &str| file_path(directory, base_offset, &format!("{kind}{suffix}"));
        let log = LogFile::new(path(LOG_SUFFIX));
        log.create()?;
        let transactions = path(TRANSACTION_INDEX_SUFFIX);
        let index = path(INDEX_SUFFIX);
        let time_index = path(TIME_INDEX_SUFFIX);
        Ok(Self {
            base_offset,
            log,
            size_bytes: 0,
            offset_index: OffsetIndex::create(index, base_offset, config.segment_index_bytes)?,
            time_index: TimeIndex::create(time_index, base_offset, config.segment_index_bytes)?,
            transactions: TransactionIndex::empty(transactions),
            largest_timestamp: (NO_TIMESTAMP, base_offset),
            first_timestamp: None,
            created_ms: now_ms,
            last_append_ms: now_ms,
            bytes_since_index_entry: 0,
            recent: VecDeque::new(),
        })
    }

    /// Opens the files of a segment. The second value is false when an index is absent or damaged: the segment
    /// then has empty indexes and must be recovered.
    pub(crate) fn open(
        directory: &Path,
        base_offset: i64,
        config: &LogConfig,
        thorough: bool,
    ) -> Result<(Self, bool), StorageError> {
        let path = file_path(directory, base_offset, LOG_SUFFIX);
        let metadata = std::fs::metadata(&path).storage("look at", &path)?;
        let size_bytes = metadata.len();
        let modified_ms = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_millis() as i64);
        let index_bytes = config.segment_index_bytes;
        let index_path = file_path(directory, base_offset, INDEX_SUFFIX);
        let time_path = file_path(directory, base_offset, TIME_INDEX_SUFFIX);
        let transaction_path = file_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX);
        let index = OffsetIndex::open(index_path.clone(), base_offset, index_bytes, size_bytes, thorough)?;
        let time_index = TimeIndex::open(time_path.clone(), base_offset, index_bytes, thorough)?;
        let transactions = TransactionIndex::open(transaction_path.clone(), base_offset)?;
        let sound = index.is_some() && time_index.is_some() && transactions.is_some();
        let mut segment = Self {
            base_offset,
            log: LogFile::new(path),
            size_bytes,
            offset_index: match index {
                Some(index) => index,
                None => OffsetIndex::create(index_path, base_offset, index_bytes)?,
            },
            time_index: match time_index {
                Some(index) => index,
                None => TimeIndex::create(time_path, base_offset, index_bytes)?,
            },
            transactions: transactions.unwrap_or_else(|| TransactionIndex::empty(transaction_path)),
            largest_timestamp: (NO_TIMESTAMP, base_offset),
            first_timestamp: None,
            created_ms: modified_ms,
            last_append_ms: modified_ms,
            bytes_since_index_entry: 0,
            recent: VecDeque::new(),
        };
        segment.largest_timestamp = segment.time_index.last_entry().unwrap_or(segment.largest_timestamp);
        let indexed = segment.offset_index.last_entry().map_or(0, |(_, position)| u64::from(position));
        segment.bytes_since_index_entry = size_bytes - indexed.min(size_bytes);
        Ok((segment, sound))
    }

    /// Appends stamped batches, whose bytes are `parts`, in one write.
    pub(crate) fn append(
        &mut self,
        headers: &[BatchHeader],
        parts: &[Bytes],
        index_interval_bytes: u32,
        now_ms: i64,
    ) -> WriteOutcome {
        let file = match self.log.get() {
            Ok(file) => file,
            Err(error) => return WriteOutcome::NotWritten(error),
        };
        if let Err(source) = write_vectored_all_at(&file, || self.log.path(), parts, self.size_bytes) {
            let error = StorageError { action: "append to", path: self.log.path(), source };
            return match self.log.set_len(self.size_bytes) {
                Ok(()) => WriteOutcome::NotWritten(error),
                Err(_) => WriteOutcome::NotCutBack(error),
            };
        }
        self.last_append_ms = now_ms;
        let mut index_error = None;
        for header in headers {
            if let Err(error) = self.note(header, index_interval_bytes) {
                index_error.get_or_insert(error);
            }
        }
        index_error.map_or(WriteOutcome::Written, WriteOutcome::IndexFailed)
    }

    /// Takes the batch at the end of the log file into size, timestamps and indexes.
    pub(crate) fn note(
        &mut self,
        header: &BatchHeader,
        index_interval_bytes: u32,
    ) -> Result<(), StorageError> {
        let place = BatchPosition::new(header, self.size_bytes);
        self.size_bytes += place.size_bytes;
        if self.recent.len() == RECENT_BATCHES_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(place);
        self.first_timestamp.get_or_insert(header.max_timestamp);
        if header.max_timestamp > self.largest_timestamp.0 {
            self.largest_timestamp = (header.max_timestamp, place.last_offset);
        }
        let since = self.bytes_since_index_entry;
        self.bytes_since_index_entry += place.size_bytes;
        if since > u64::from(index_interval_bytes) {
            self.bytes_since_index_entry = place.size_bytes;
            self.offset_index.push(place.last_offset, place.position as u32)?;
            self.time_index.push(self.largest_timestamp.0, self.largest_timestamp.1)?;
        }
        Ok(())
    }

    /// The first batch whose last offset is at least `offset`.
    pub(crate) fn find(&self, offset: i64) -> Result<Option<BatchPosition>, StorageError> {
        if let Some(oldest) = self.recent.front()
            && (offset >= oldest.base_offset || oldest.position == 0)
        {
            let index = self.recent.partition_point(|place| place.last_offset < offset);
            return Ok(self.recent.get(index).copied());
        }
        let mut scan = self.scan_for(offset)?;
        while let Some((header, position)) = scan.next()? {
            if header.last_offset() >= offset {
                return Ok(Some(BatchPosition::new(&header, position)));
            }
        }
        Ok(None)
    }

    /// A scan that starts at or before the batch with `offset`. An index entry that points at no batch start is
    /// not believed (LOG-15): the scan then starts at the beginning.
    pub(crate) fn scan_for(&self, offset: i64) -> Result<HeaderScan, StorageError> {
        let Around { floor, next } = self.offset_index.around(offset)?;
        let (floor_offset, from) = floor.map_or((self.base_offset - 1, 0), |(o, p)| (o, u64::from(p)));
        let until = next.map_or(self.size_bytes, |(_, position)| u64::from(position));
        let between = until.saturating_sub(from);
        // The batch ends at or behind the floor, and begins no later than the next entry's one. If one read does not
        // bring all of them, the batches are large, and it most likely is the next entry's.
        if next.is_some()
            && floor_offset < offset
            && between > HEADER_READ_BYTES as u64
            && let Some(scan) = self.believable_scan(until, offset, 0)?
        {
            return Ok(scan);
        }
        let first_bytes = match next {
            // Where it begins if the batches in between are alike, and a bit.
            Some((next_offset, _)) => {
                let (distance, all) = (offset.saturating_sub(floor_offset), next_offset - floor_offset);
                let expected = (between as i64).saturating_mul(distance.clamp(0, all)) / all.max(1);
                expected as u64 + between / 8
            }
            None => between,
        };
        if from > 0
            && let Some(scan) = self.believable_scan(from, offset, first_bytes)?
        {
            return Ok(scan);
        }
        let first_bytes = if from == 0 { first_bytes } else { u64::MAX };
        HeaderScan::short(&self.log, (0, self.size_bytes), first_bytes)
    }

    /// Where the last batch ends that ends at `limit` or before, from the one at `first` on, which does. `None` when that
    /// cannot be found out without reading much.
    pub(crate) fn last_end_up_to(&self, first: u64, limit: u64) -> Option<u64> {
        if self.recent.front().is_some_and(|oldest| oldest.position <= first) {
            let after = self.recent.partition_point(|place| place.position + place.size_bytes <= limit);
            return after
                .checked_sub(1)
                .map(|last| self.recent[last].position + self.recent[last].size_bytes);
        }
        // An index entry that points at no batch start is not believed (LOG-15).
        let (offset, indexed) = self.offset_index.last_pointing_up_to(limit).ok()??;
        let from = u64::from(indexed).max(first);
        let mut scan = HeaderScan::short(&self.log, (from, self.size_bytes), 0).ok()?;
        let header = scan.peek().ok()?;
        if from != first && !(self.base_offset..=offset).contains(&header.base_offset) {
            return None;
        }
        let mut last_end = (from == first).then_some(first);
        for _ in 0..HEADERS_SCANNED_MAX {
            match scan.next() {
                Ok(Some((header, position))) if position + header.size_bytes() as u64 <= limit => {
                    last_end = Some(position + header.size_bytes() as u64);
                }
                Ok(Some((_, position))) => return last_end.or(Some(position)).filter(|end| first < *end),
                Ok(None) => return last_end,
                Err(_) => return None,
            }
        }
        None
    }

    /// A scan from `position` on, if a batch starts there that may be before or hold `offset`.
    fn believable_scan(
        &self,
        position: u64,
        offset: i64,
        first_bytes: u64,
    ) -> Result<Option<HeaderScan>, StorageError> {
        let mut scan = HeaderScan::short(&self.log, (position, self.size_bytes), first_bytes)?;
        let believable = matches!(scan.peek(), Ok(header)
            if header.base_offset >= self.base_offset && header.base_offset <= offset);
        Ok(believable.then_some(scan))
    }

    /// Whether the time index can be this segment's (LOG-15): a closed one ends with an entry, unless no record has a
    /// timestamp, and means offsets below the segment's end, which is `next_base` if another one follows.
    pub(crate) fn has_plausible_times(&self, next_base: Option<i64>) -> Result<bool, StorageError> {
        if let Some((_, offset)) = self.time_index.last_entry() {
            return Ok(offset < next_base.map_or_else(|| self.read_next_offset(), Ok)?);
        }
        let first = HeaderScan::new(&self.log, 0, self.size_bytes).and_then(|mut scan| scan.next());
        // What cannot be read is not the index's fault.
        Ok(!matches!(first, Ok(Some((header, _))) if header.max_timestamp >= 0))
    }

    /// Whether a time index entry is borne out by the batch that it means: an index is a cache (LOG-15).
    pub(crate) fn has_timestamp_at(&self, timestamp: i64, offset: i64) -> Result<bool, StorageError> {
        let mut scan = self.scan_for(offset)?;
        while let Some((header, _)) = scan.next()? {
            if header.last_offset() >= offset {
                return Ok(header.base_offset <= offset && header.max_timestamp == timestamp);
            }
        }
        Ok(false)
    }

    /// The offset after the last batch; the base offset when empty.
    pub(crate) fn read_next_offset(&self) -> Result<i64, StorageError> {
        if let Some(last) = self.recent.back() {
            return Ok(last.last_offset + 1);
        }
        let mut next = self.base_offset;
        let from = self.offset_index.last_entry().map_or(self.base_offset, |(offset, _)| offset);
        let mut scan = self.scan_for(from)?;
        while let Some((header, _)) = scan.next()? {
            next = header.next_offset();
        }
        Ok(next)
    }

    /// Cuts before the batch that holds `offset`. Returns that batch's base offset, if there was one.
    pub(crate) fn truncate_to(&mut self, offset: i64) -> Result<Option<i64>, StorageError> {
        let Some(cut) = self.find(offset)? else { return Ok(None) };
        let cut_offset = cut.base_offset.min(offset);
        self.offset_index.truncate_to(cut_offset)?;
        self.time_index.truncate_to(cut_offset)?;
        self.transactions.truncate_to(cut_offset)?;
        self.log.set_len(cut.position)?;
        self.size_bytes = cut.position;
        self.recent.clear();
        if cut.position == 0 {
            self.first_timestamp = None;
        }
        self.reload_timestamps()?;
        Ok(Some(cut.base_offset))
    }

    /// Finds the largest timestamp again: from the last time index entry, then from the batches after it.
    fn reload_timestamps(&mut self) -> Result<(), StorageError> {
        self.largest_timestamp = self.time_index.last_entry().unwrap_or((NO_TIMESTAMP, self.base_offset));
        let indexed = self.offset_index.last_entry().map_or(0, |(_, position)| u64::from(position));
        self.bytes_since_index_entry = self.size_bytes - indexed.min(self.size_bytes);
        let mut scan = self.scan_for(self.largest_timestamp.1)?;
        while let Some((header, _)) = scan.next()? {
            if header.max_timestamp > self.largest_timestamp.0 {
                self.largest_timestamp = (header.max_timestamp, header.last_offset());
            }
        }
        Ok(())
    }

    /// Forgets indexes and everything derived from the batches, before a recovery notes each batch again.
    pub(crate) fn reset_indexes(&mut self) -> Result<(), StorageError> {
        self.offset_index.reset()?;
        self.time_index.reset()?;
        self.transactions.reset()?;
        self.largest_timestamp = (NO_TIMESTAMP, self.base_offset);
        self.first_timestamp = None;
        self.bytes_since_index_entry = 0;
        self.size_bytes = 0;
        self.recent.clear();
        Ok(())
    }

    /// The largest timestamp of the first batch, read once.
    pub(crate) fn first_timestamp(&mut self) -> Result<Option<i64>, StorageError> {
        if self.first_timestamp.is_none() && self.size_bytes > 0 {
            let first = HeaderScan::new(&self.log, 0, self.size_bytes)?.next()?;
            self.first_timestamp = first.map(|(header, _)| header.max_timestamp);
        }
        Ok(self.first_timestamp.filter(|timestamp| *timestamp >= 0))
    }

    /// How long the segment has taken records: by their timestamps, or by the clock when it has none.
    pub(crate) fn waited_ms(&mut self, timestamp: i64, now_ms: i64) -> Result<i64, StorageError> {
        let first = self.first_timestamp()?;
        Ok(match first {
            Some(first) if timestamp >= 0 => timestamp.saturating_sub(first),
            _ => now_ms.saturating_sub(self.created_ms),
        })
    }

    /// Completes the indexes on disk, at a roll, a flush or a clean stop. `sealed` ends the time index with the
    /// largest timestamp, as a segment has that takes no more appends.
    pub(crate) fn write_indexes(&mut self, sealed: bool) -> Result<(), StorageError> {
        if sealed {
            self.time_index.push(self.largest_timestamp.0, self.largest_timestamp.1)?;
            self.recent = VecDeque::new();
        }
        self.offset_index.write_pending()?;
        self.time_index.write_pending()
    }

    /// Gives unused preallocated space back.
    pub(crate) fn trim(&self) -> Result<(), StorageError> {
        self.log.set_len(self.size_bytes)
    }

    /// The files a flush must sync.
    pub(crate) fn files(&self) -> Vec<Arc<LogFile>> {
        let mut files =
            vec![self.log.clone(), self.offset_index.file().clone(), self.time_index.file().clone()];
        if !self.transactions.is_empty() {
            files.push(self.transactions.file().clone());
        }
        files
    }

    /// Every file the segment may have.
    pub(crate) fn all_files(&self) -> [&Arc<LogFile>; 4] {
        [&self.log, self.offset_index.file(), self.time_index.file(), self.transactions.file()]
    }
}

fn preallocate(log: &Arc<LogFile>, bytes: u32) -> Result<(), StorageError> {
    let file = log.get()?;
    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(&*file, flags, 0, u64::from(bytes)) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(std::io::Error::from(error)).storage("preallocate", &log.path()),
    }
}
