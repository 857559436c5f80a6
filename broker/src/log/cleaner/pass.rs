//! One pass over one log: read the dirty part for the newest offset of each key, then write every segment below the
//! end of that part anew without what is superseded, group by group, oldest first.
//!
//! The order matters: what a tombstone deletes is gone before the tombstone is. A pass that ends half-way (crash,
//! error, the log changed) leaves a correct log that the next pass cleans again.

use std::hash::RandomState;
use std::ops::Range;

use thiserror::Error;

use super::LogAccess;
use super::choice::group;
use super::filter::{malformed, offset_of, plain_records};
use super::offset_map::OffsetMap;
use super::plan::{CleaningPlan, Source};
use super::rewriter::{Keep, Rewriter};
use super::transactions::Transactions;
use crate::log::batch::{BatchHeader, HEADER_BYTES};
use crate::log::error::{LogError, StorageContext, StorageError};
use crate::log::marker::Marker;
use crate::log::records::Records;
use crate::log::scan::{BatchScan, damaged};
use crate::log::segment::Segment;

/// Settings of one cleaner thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CleaningSettings {
    /// Memory for keys: `log.cleaner.dedupe.buffer.size` by the number of threads.
    pub offset_map_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`, above 0, at most 1.
    pub load_factor: f64,
}

impl Default for CleaningSettings {
    fn default() -> Self {
        Self { offset_map_bytes: 128 << 20, load_factor: 0.9 }
    }
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleaningReport {
    pub first_dirty_offset: i64,
    /// Exclusive: the next pass begins here.
    pub end_offset: i64,
    pub keys: usize,
    /// Bytes of segment files that were read, those of the dirty part twice.
    pub bytes_read: u64,
    /// Bytes of the cleanable segments before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_before: u64,
    pub records_after: u64,
    pub segments_before: usize,
    pub segments_after: usize,
}

/// Why a pass ended early. The log is as good as before.
#[derive(Debug, Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log was truncated, shortened by retention, deleted or closed meanwhile: no failure.
    #[error("the log changed meanwhile")]
    LogChanged,
    #[error("the cleaner stops")]
    Stopped,
}

impl From<StorageError> for PassError {
    fn from(error: StorageError) -> Self {
        Self::Log(error.into())
    }
}

/// Told of every piece of work in bytes moved; may pause. `Err` ends the pass.
pub(crate) type Pace<'a> = dyn FnMut(u64) -> Result<(), PassError> + 'a;

/// Cleans a log once; `None` when there is nothing to clean.
///
/// # Errors
/// See [`PassError`].
pub(crate) fn clean(
    access: &impl LogAccess,
    settings: &CleaningSettings,
    pace: &mut Pace<'_>,
    now_ms: i64,
) -> Result<Option<CleaningReport>, PassError> {
    let plan = access.with_log(|log| log.cleaning_plan(now_ms)).ok_or(PassError::LogChanged)??;
    let Some(plan) = plan else { return Ok(None) };
    let mut pass = Pass { access, plan: &plan, pace, now_ms, report: CleaningReport::default() };
    let result = pass.run(settings);
    let report = pass.report;
    match result {
        Ok(()) => Ok(Some(report)),
        Err(error) => Err(explain(access, &plan, error)),
    }
}

/// A file that is gone because the log changed is no failure.
fn explain(access: &impl LogAccess, plan: &CleaningPlan, error: PassError) -> PassError {
    let PassError::Log(LogError::Storage(storage)) = &error else { return error };
    let unchanged =
        access.with_log(|log| plan.directory == log.directory && plan.truncations == log.truncations);
    let gone = storage.source.kind() == std::io::ErrorKind::NotFound;
    if unchanged == Some(true) && !gone { error } else { PassError::LogChanged }
}

struct Pass<'a, 'p, A> {
    access: &'a A,
    plan: &'a CleaningPlan,
    pace: &'a mut Pace<'p>,
    now_ms: i64,
    report: CleaningReport,
}

impl<A: LogAccess> Pass<'_, '_, A> {
    fn run(&mut self, settings: &CleaningSettings) -> Result<(), PassError> {
        let plan = self.plan;
        let (map, end_offset) = self.build_map(settings)?;
        self.report.first_dirty_offset = plan.first_dirty_offset;
        self.report.end_offset = end_offset;
        self.report.keys = map.len();
        let facts = plan.facts();
        let covered = facts.partition_point(|segment| segment.base_offset < end_offset);
        let first = facts.first().map_or(0, |segment| segment.base_offset);
        let mut transactions = Transactions::new(self.aborted_since(first)?);
        for range in group(&facts[..covered], u64::from(plan.config.segment_bytes)) {
            self.clean_group(range, &map, end_offset, &mut transactions)?;
        }
        let finished = self.access.with_log(|log| {
            if log.truncations == plan.truncations {
                log.set_cleaned_offset(end_offset);
                return true;
            }
            false
        });
        if finished == Some(true) { Ok(()) } else { Err(PassError::LogChanged) }
    }

    /// Aborted transactions whose marker is at or after `offset`.
    fn aborted_since(
        &self,
        offset: i64,
    ) -> Result<Vec<crate::log::transaction_index::AbortedTransaction>, StorageError> {
        let mut aborted = Vec::new();
        for index in &self.plan.transactions {
            aborted.extend(index.all()?.into_iter().filter(|transaction| transaction.last_offset >= offset));
        }
        Ok(aborted)
    }

    /// The newest offset of each key in the dirty part, and where that part ends: at the end of what may be cleaned,
    /// or before the first record whose key found no room (CMP-05).
    fn build_map(&mut self, settings: &CleaningSettings) -> Result<(OffsetMap, i64), PassError> {
        let plan = self.plan;
        let (from, end) = (plan.first_dirty_offset, plan.cleanable_end());
        let records_max = end.saturating_sub(from).max(0) as u64;
        let hashers = [RandomState::new(), RandomState::new()];
        let mut map = OffsetMap::new(settings.offset_map_bytes, settings.load_factor, records_max, hashers);
        let mut transactions = Transactions::new(self.aborted_since(from)?);
        for source in plan.sources.iter().filter(|source| source.facts.end_offset > from) {
            let mut scan = BatchScan::new(&source.log, 0, source.facts.size_bytes)?;
            while let Some((header, bytes)) = next_batch(&mut scan, source)? {
                (self.pace)(bytes.len() as u64)?;
                self.report.bytes_read += bytes.len() as u64;
                if header.last_offset() < from {
                    continue;
                }
                if header.is_control() {
                    transactions.on_control(&header, Marker::parse(&header, &bytes[HEADER_BYTES..]));
                } else if !transactions.on_data(&header) {
                    let full_at =
                        note_keys(&mut map, &header, bytes, from).storage("read", &source.log.path())?;
                    if let Some(offset) = full_at {
                        return Ok((map, offset));
                    }
                }
            }
        }
        Ok((map, end))
    }

    /// Writes one group of segments anew and puts the result in their place.
    fn clean_group(
        &mut self,
        range: Range<usize>,
        map: &OffsetMap,
        end_offset: i64,
        transactions: &mut Transactions,
    ) -> Result<(), PassError> {
        let plan = self.plan;
        let sources = &plan.sources[range];
        let keep = Keep {
            map,
            end_offset,
            last_batches: &plan.last_batches,
            now_ms: self.now_ms,
            delete_retention_ms: plan.config.delete_retention_ms,
        };
        let Some(first) = sources.first() else { return Ok(()) };
        let mut rewriter = Rewriter::create(plan, first.facts.base_offset, keep)?;
        let written = self.rewrite(sources, &mut rewriter, transactions);
        let result = written.and_then(|()| self.put_in_place(sources, &mut rewriter));
        if result.is_err() {
            rewriter.discard();
        }
        result
    }

    fn rewrite(
        &mut self,
        sources: &[Source],
        rewriter: &mut Rewriter<'_>,
        transactions: &mut Transactions,
    ) -> Result<(), PassError> {
        for source in sources {
            let mut scan = BatchScan::new(&source.log, 0, source.facts.size_bytes)?;
            while let Some((header, bytes)) = next_batch(&mut scan, source)? {
                let written =
                    rewriter.add(&header, bytes, transactions).storage("read", &source.log.path())?;
                rewriter.write_if_full()?;
                self.report.bytes_read += bytes.len() as u64;
                (self.pace)(bytes.len() as u64 + written)?;
            }
            rewriter.note_source(source);
        }
        rewriter.finish()?;
        Ok(())
    }

    fn put_in_place(&mut self, sources: &[Source], rewriter: &mut Rewriter<'_>) -> Result<(), PassError> {
        let (plan, now_ms) = (self.plan, self.now_ms);
        let bytes_before: u64 = sources.iter().map(|source| source.facts.size_bytes).sum();
        let (records_before, records_after) = rewriter.records();
        self.report.bytes_before += bytes_before;
        self.report.records_before += records_before;
        self.report.records_after += records_after;
        self.report.segments_before += sources.len();
        self.report.segments_after += 1;
        if sources.len() == 1 && rewriter.is_unchanged() {
            self.report.bytes_after += bytes_before;
            rewriter.discard();
            return Ok(());
        }
        let Some(segment) = rewriter.take_synced()? else { return Ok(()) };
        self.report.bytes_after += segment.size_bytes;
        let bases: Vec<i64> = sources.iter().map(|source| source.facts.base_offset).collect();
        let mut segment: Option<Segment> = Some(segment);
        let swapped = self.access.with_log(|log| {
            if !log.still_has(sources, plan.truncations) {
                return Err(PassError::LogChanged);
            }
            let new = segment.take().into_iter().collect();
            log.replace_segments(&bases, new, now_ms).map_err(PassError::from)
        });
        if let Some(segment) = segment {
            super::rewriter::remove_files(&segment);
        }
        swapped.unwrap_or(Err(PassError::LogChanged))
    }
}

/// The next batch of a segment; what is no valid batch is an error: the segment was whole when it was written.
fn next_batch<'s>(
    scan: &'s mut BatchScan,
    source: &Source,
) -> Result<Option<(BatchHeader, &'s [u8])>, StorageError> {
    match scan.next()? {
        None => Ok(None),
        Some(Ok(found)) => Ok(Some(found)),
        Some(Err(error)) => Err(damaged(&source.log.path(), source.facts.base_offset as u64, error)),
    }
}

/// Notes the keys of a batch from offset `from` on; the offset of the first record that found no room.
fn note_keys(
    map: &mut OffsetMap,
    header: &BatchHeader,
    bytes: &[u8],
    from: i64,
) -> std::io::Result<Option<i64>> {
    let plain = plain_records(header, bytes)?;
    for record in Records::new(&plain, header.record_count) {
        let record = record.map_err(|_| malformed(header))?;
        let offset = offset_of(header, &record);
        if let Some(key) = record.key
            && offset >= from
            && !map.put(key, offset)
        {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}
