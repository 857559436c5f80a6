//! Writes the segment that a group of segments becomes: decides batch by batch what stays, and adds it to a segment
//! whose files are not part of the log yet.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;

use super::filter::{DataBatch, Left, empty_batch, marker_with_horizon};
use super::offset_map::OffsetMap;
use super::plan::{CleaningPlan, Source};
use super::swap::CLEANED_SUFFIX;
use super::transactions::Transactions;
use crate::log::batch::{BatchHeader, HEADER_BYTES};
use crate::log::error::{StorageContext, StorageError};
use crate::log::files::{remove_if_present, sync_file};
use crate::log::marker::Marker;
use crate::log::records::RecordView;
use crate::log::segment::{Segment, TRANSACTION_INDEX_SUFFIX, WriteOutcome, file_path};
use crate::log::transaction_index::AbortedTransaction;

/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// What a pass knows when it decides about a record.
pub(crate) struct Keep<'a> {
    pub(crate) map: &'a OffsetMap,
    /// The map covers the records below.
    pub(crate) end_offset: i64,
    pub(crate) last_batches: &'a HashMap<i64, (i16, Option<i64>)>,
    pub(crate) now_ms: i64,
    pub(crate) delete_retention_ms: i64,
}

impl Keep<'_> {
    /// The newest record of its key; a tombstone only until the horizon of its batch (CMP-01). Records without key
    /// can never be superseded and go, as in Kafka; only a changed `cleanup.policy` leaves any.
    fn wants_record(&self, header: &BatchHeader, offset: i64, record: &RecordView<'_>) -> bool {
        if offset >= self.end_offset {
            return true;
        }
        let Some(key) = record.key else { return false };
        let newest = self.map.get(key).is_none_or(|newest| offset >= newest);
        newest && (record.value.is_some() || !self.is_over(header))
    }

    fn is_over(&self, header: &BatchHeader) -> bool {
        header.delete_horizon_ms().is_some_and(|horizon_ms| horizon_ms <= self.now_ms)
    }

    /// The horizon for tombstones and markers that get one in this pass: only what the pass covers wholly, so that
    /// everything they end is gone when the time begins to run.
    fn new_horizon_ms(&self, header: &BatchHeader) -> Option<i64> {
        let covered = header.last_offset() < self.end_offset && header.delete_horizon_ms().is_none();
        covered.then(|| self.now_ms.saturating_add(self.delete_retention_ms))
    }

    /// Whether a producer's sequence or epoch would be forgotten without this batch (CMP-06).
    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        match self.last_batches.get(&header.producer_id) {
            Some((_, Some(last_offset))) => header.last_offset() == *last_offset,
            Some((epoch, None)) => header.is_control() && header.producer_epoch == *epoch,
            None => false,
        }
    }
}

/// A segment that is being written.
pub(crate) struct Rewriter<'a> {
    keep: Keep<'a>,
    segment: Option<Segment>,
    index_interval_bytes: u32,
    headers: Vec<BatchHeader>,
    buffer: Vec<u8>,
    /// The last batch so far, if it was dropped: as the last of all it must stay, though empty (CMP-09).
    dropped_last: Option<Vec<u8>>,
    unchanged: bool,
    last_append_ms: i64,
    records: (u64, u64),
}

impl<'a> Rewriter<'a> {
    pub(crate) fn create(
        plan: &CleaningPlan,
        base_offset: i64,
        keep: Keep<'a>,
    ) -> Result<Self, StorageError> {
        let directory = &plan.directory;
        let left_over = format!("{TRANSACTION_INDEX_SUFFIX}{CLEANED_SUFFIX}");
        remove_if_present(&file_path(directory, base_offset, &left_over))?;
        let segment =
            Segment::create_with_suffix(directory, base_offset, CLEANED_SUFFIX, &plan.config, keep.now_ms)?;
        Ok(Self {
            keep,
            segment: Some(segment),
            index_interval_bytes: plan.config.index_interval_bytes,
            headers: Vec::new(),
            buffer: Vec::new(),
            dropped_last: None,
            unchanged: true,
            last_append_ms: 0,
            records: (0, 0),
        })
    }

    /// Takes what is to stay of a batch; returns how many bytes that is.
    pub(crate) fn add(
        &mut self,
        header: &BatchHeader,
        bytes: &[u8],
        transactions: &mut Transactions,
    ) -> io::Result<u64> {
        let left = if header.is_control() {
            self.control(header, bytes, transactions)?
        } else {
            self.data(header, bytes, transactions)?
        };
        self.unchanged &= left == Left::Original;
        self.dropped_last = None;
        let before = self.buffer.len();
        match left {
            Left::Original => self.put(*header, bytes),
            Left::Rewritten(bytes) => self.put_parsed(&bytes)?,
            Left::Nothing => self.dropped_last = Some(empty_batch(bytes, header)),
        }
        Ok((self.buffer.len() - before) as u64)
    }

    fn data(
        &mut self,
        header: &BatchHeader,
        bytes: &[u8],
        transactions: &mut Transactions,
    ) -> io::Result<Left> {
        let aborted = transactions.on_data(header);
        let keep = &self.keep;
        let batch = DataBatch {
            header,
            bytes,
            keep_empty: keep.is_last_of_producer(header),
            horizon_ms: keep.new_horizon_ms(header),
        };
        let filtered =
            batch.filter(|offset, record| !aborted && keep.wants_record(header, offset, record))?;
        self.records.0 += filtered.records_read;
        self.records.1 += filtered.records_kept;
        Ok(filtered.left)
    }

    /// A marker stays while its transaction has batches, then until its horizon, and always as the last that is known
    /// of a producer.
    fn control(
        &mut self,
        header: &BatchHeader,
        bytes: &[u8],
        transactions: &mut Transactions,
    ) -> io::Result<Left> {
        let fate = transactions.on_control(header, Marker::parse(header, &bytes[HEADER_BYTES..]));
        if let Some(transaction) = fate.indexed {
            self.index(&transaction)?;
        }
        if !fate.unneeded || self.keep.is_last_of_producer(header) {
            return Ok(Left::Original);
        }
        if header.record_count == 0 || self.keep.is_over(header) {
            return Ok(Left::Nothing);
        }
        match self.keep.new_horizon_ms(header) {
            Some(horizon_ms) => Ok(Left::Rewritten(marker_with_horizon(header, bytes, horizon_ms)?)),
            None => Ok(Left::Original),
        }
    }

    fn index(&mut self, transaction: &AbortedTransaction) -> io::Result<()> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        segment.transactions.push(transaction).map_err(|error| error.source)
    }

    fn put(&mut self, header: BatchHeader, bytes: &[u8]) {
        self.headers.push(header);
        self.buffer.extend_from_slice(bytes);
    }

    fn put_parsed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let header = BatchHeader::parse(bytes).map_err(io::Error::other)?;
        self.put(header, bytes);
        Ok(())
    }

    pub(crate) fn write_if_full(&mut self) -> Result<(), StorageError> {
        if self.buffer.len() < WRITE_BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StorageError> {
        let Some(segment) = &mut self.segment else { return Ok(()) };
        let parts = [Bytes::from(std::mem::take(&mut self.buffer))];
        let headers = std::mem::take(&mut self.headers);
        match segment.append(&headers, &parts, self.index_interval_bytes, self.keep.now_ms) {
            WriteOutcome::Written => {
                // The memory serves again: new memory costs more than the writing.
                let [part] = parts;
                self.buffer = part.into();
                self.buffer.clear();
                Ok(())
            }
            WriteOutcome::IndexFailed(error)
            | WriteOutcome::NotWritten(error)
            | WriteOutcome::NotCutBack(error) => Err(error),
        }
    }

    /// All batches of a source were added: the new segment is as young as the youngest of them.
    pub(crate) fn note_source(&mut self, source: &Source) {
        self.last_append_ms = self.last_append_ms.max(source.last_append_ms);
    }

    /// Completes the files.
    pub(crate) fn finish(&mut self) -> Result<(), StorageError> {
        if let Some(last) = self.dropped_last.take() {
            let path = self.segment.as_ref().map(|segment| segment.log.path()).unwrap_or_default();
            self.put_parsed(&last).storage("write", &path)?;
        }
        self.write()?;
        let Some(segment) = &mut self.segment else { return Ok(()) };
        segment.last_append_ms = self.last_append_ms;
        segment.created_ms = self.last_append_ms;
        segment.write_indexes(true)
    }

    /// Nothing was dropped or changed.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.unchanged
    }

    /// Records that were read and kept.
    pub(crate) fn records(&self) -> (u64, u64) {
        self.records
    }

    /// The finished segment, its contents on disk for sure; whoever takes it also takes care of its files.
    pub(crate) fn take_synced(&mut self) -> Result<Option<Segment>, StorageError> {
        let Some(segment) = &self.segment else { return Ok(None) };
        let age = std::time::Duration::from_millis(u64::try_from(self.last_append_ms).unwrap_or(0));
        for file in segment.files() {
            let path = file.path();
            let open = file.get()?;
            // Retention counts from the last append, also after a restart.
            open.set_modified(std::time::UNIX_EPOCH + age).storage("set the time of", &path)?;
            sync_file(&open, &path)?;
        }
        Ok(self.segment.take())
    }

    /// Removes the files.
    pub(crate) fn discard(&mut self) {
        if let Some(segment) = self.segment.take() {
            remove_files(&segment);
        }
    }
}

/// Removes the files of a segment that did not become part of the log. What stays is removed when the log is opened,
/// or written over by the next pass.
pub(crate) fn remove_files(segment: &Segment) {
    for file in segment.all_files() {
        if let Err(error) = file.remove() {
            tracing::warn!(%error, "a file of an unfinished compaction stays");
        }
    }
}
