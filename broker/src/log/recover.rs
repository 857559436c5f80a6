//! Reading a log again: segments that may be torn, lost epoch histories, producer state.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{info, warn};

use super::batch::{BatchHeader, HEADER_BYTES};
use super::epochs::LeaderEpochs;
use super::error::{LogError, StorageContext, StorageError};
use super::files::{LogFile, read_if_present, read_up_to};
use super::marker::Marker;
use super::partition_log::PartitionLog;
use super::producers::ProducerStates;
use super::scan::{BatchScan, HeaderScan};
use super::segment::Segment;
use super::split::RELATIVE_OFFSET_MAX;
use super::transaction_index::AbortedTransaction;

/// What the recovery of a segment came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    Whole,
    /// It ends before the first batch that was not valid.
    Cut,
    /// It holds offsets too far from its base (LOG-03), and must be split first. Its indexes are incomplete.
    TooFar,
}

impl PartitionLog {
    /// Reads every batch of a segment, rebuilds its indexes and its part of the epoch history, and cuts it before
    /// the first batch that is not valid. Earlier segments are in place already.
    /// `carried` is the producer state at the end of the segment recovered before, and then of this one;
    /// `scanned` counts bytes.
    pub(crate) fn recover_segment(
        &mut self,
        segment: &mut Segment,
        carried: &mut Option<ProducerStates>,
        scanned: &AtomicU64,
    ) -> Result<Recovery, LogError> {
        let file_bytes = segment.size_bytes;
        let mut producers = match carried.take() {
            Some(producers) if producers.end_offset == segment.base_offset => producers,
            _ => self.producers_at(segment.base_offset)?,
        };
        self.directory_changed = true;
        segment.reset_indexes()?;
        let mut scan = BatchScan::new(&segment.log, 0, file_bytes)?;
        let mut expected = segment.base_offset;
        let mut reason = None;
        loop {
            let (header, batch) = match scan.next()? {
                None => break,
                Some(Err(error)) => {
                    reason = Some(error.to_string());
                    break;
                }
                Some(Ok(found)) => found,
            };
            if header.base_offset < expected {
                reason = Some(format!("offset {} where {expected} or more must follow", header.base_offset));
                break;
            }
            if header.last_offset() - segment.base_offset > RELATIVE_OFFSET_MAX {
                return Ok(Recovery::TooFar);
            }
            scanned.fetch_add(header.size_bytes() as u64, Ordering::Relaxed);
            expected = header.next_offset();
            let marker = Marker::parse(&header, &batch[HEADER_BYTES..]);
            segment.note(&header, self.config.index_interval_bytes)?;
            adopt(&mut producers, segment, &header, marker)?;
            note_epoch(&mut self.epochs, &header, self.log_start_offset);
        }
        let cut = segment.size_bytes < file_bytes;
        if cut {
            warn!(directory = %self.directory.display(), segment = segment.base_offset, at = segment.size_bytes,
                dropped_bytes = file_bytes - segment.size_bytes, reason = reason.unwrap_or_default(), log_end = expected,
                "cutting the log at the first invalid batch");
            segment.trim()?;
        }
        // The largest timestamp goes into the time index, which is all that a later clean start reads.
        segment.write_indexes(true)?;
        info!(directory = %self.directory.display(), segment = segment.base_offset, bytes = segment.size_bytes,
            log_end = expected, "recovered segment");
        *carried = Some(producers);
        Ok(if cut { Recovery::Cut } else { Recovery::Whole })
    }

    /// Rebuilds the epoch history from the batch headers (LOG-06, LOG-07).
    pub(crate) fn rebuild_epochs(&mut self) -> Result<(), LogError> {
        self.epochs.clear();
        for segment in self.segments.values() {
            let mut scan = HeaderScan::new(&segment.log, 0, segment.size_bytes)?;
            while let Some((header, _)) = scan.next()? {
                note_epoch(&mut self.epochs, &header, self.log_start_offset);
            }
        }
        Ok(())
    }

    /// Producer state as of the log end, from the latest usable snapshot and the batches after it.
    pub(crate) fn rebuild_producers(&mut self) -> Result<(), LogError> {
        self.producers = self.producers_at(self.log_end_offset)?;
        self.producers.end_offset = self.log_end_offset;
        self.producers.note_high_watermark(self.high_watermark);
        Ok(())
    }

    /// Finds the transactions again whose marker is not below the high watermark, if the producer state began with a
    /// snapshot above it: a snapshot tells of open transactions only, and these would count as decided (T3). Reads the
    /// batches from an earlier snapshot on, and nothing in a log where no producer ever ended a transaction.
    pub(crate) fn find_unreplicated_transactions(&mut self) -> Result<(), LogError> {
        let (high_watermark, end) = (self.high_watermark, self.log_end_offset);
        let covered = self.snapshots.range(..=end).next_back().is_none_or(|latest| *latest <= high_watermark);
        if covered || !self.producers.knows_markers() {
            return Ok(());
        }
        let before = self.latest_snapshot(high_watermark)?;
        let replayed = self.replay(before, end)?;
        self.producers.adopt_unreplicated(&replayed, high_watermark);
        Ok(())
    }

    /// Producer state as of `end`, from the loaded segments.
    fn producers_at(&mut self, end: i64) -> Result<ProducerStates, LogError> {
        let latest = self.latest_snapshot(end)?;
        self.replay(latest, end)
    }

    /// `producers` and the batches from there to `end`.
    fn replay(&self, mut producers: ProducerStates, end: i64) -> Result<ProducerStates, LogError> {
        let from = producers.end_offset;
        if from >= end {
            return Ok(producers);
        }
        let start = self.segments.range(..=from).next_back().map_or(from, |(base, _)| *base);
        for segment in self.segments.range(start..end).map(|(_, segment)| segment) {
            let mut scan = segment.scan_for(from)?;
            while let Some((header, position)) = scan.next()? {
                if header.base_offset < from {
                    continue;
                }
                if header.base_offset >= end {
                    break;
                }
                let marker =
                    if header.is_control() { read_marker(segment, &header, position)? } else { None };
                if let Some(completed) = producers.adopt(&header, marker) {
                    producers.complete(&completed);
                }
            }
        }
        Ok(producers)
    }

    /// The latest snapshot at or below `end` that can be read; damaged ones are removed. Empty state at the start of
    /// the first segment when there is none.
    fn latest_snapshot(&mut self, end: i64) -> Result<ProducerStates, LogError> {
        let first_base = self.segments.first_key_value().map_or(end, |(base, _)| *base);
        let candidates: Vec<i64> = self.snapshots.range(..=end).rev().copied().collect();
        for offset in candidates {
            let path = self.snapshot_path(offset);
            let decoded = read_if_present(&path)?.and_then(|bytes| ProducerStates::decode(&bytes, offset));
            if let Some(states) = decoded {
                return Ok(states);
            }
            warn!(path = %path.display(), "producer snapshot is damaged; using an earlier one");
            self.remove_snapshot(offset)?;
        }
        Ok(ProducerStates::new(first_base))
    }
}

/// Takes the epoch of a batch into the history, unless the batch lies wholly below the log start.
fn note_epoch(epochs: &mut LeaderEpochs, header: &BatchHeader, log_start_offset: i64) {
    let epoch = header.partition_leader_epoch;
    let newer = epochs.latest().is_none_or(|latest| latest.leader_epoch < epoch);
    if epoch >= 0 && newer && header.last_offset() >= log_start_offset {
        epochs.assign(epoch, header.base_offset);
    }
}

/// Takes a recovered batch into the producer state and, for an abort, into the segment's transaction index.
fn adopt(
    producers: &mut ProducerStates,
    segment: &mut Segment,
    header: &BatchHeader,
    marker: Option<Marker>,
) -> Result<(), StorageError> {
    let Some(completed) = producers.adopt(header, marker) else { return Ok(()) };
    if completed.aborted {
        segment.transactions.push(&AbortedTransaction {
            producer_id: completed.producer_id,
            first_offset: completed.first_offset,
            last_offset: completed.last_offset,
            last_stable_offset: producers.stable_after(&completed),
        })?;
    }
    producers.complete(&completed);
    Ok(())
}

fn read_marker(
    segment: &Segment,
    header: &BatchHeader,
    position: u64,
) -> Result<Option<Marker>, StorageError> {
    let length = header.size_bytes() - HEADER_BYTES;
    let at = position + HEADER_BYTES as u64;
    let body = read_up_to(&*segment.log.get()?, length, at).storage("read", &segment.log.path())?;
    Ok(Marker::parse(header, &body))
}

/// The offset after the last batch of a log file; `base_offset` when it is empty.
pub(crate) fn next_offset_of_file(path: &Path, base_offset: i64) -> Result<i64, StorageError> {
    let size_bytes = std::fs::metadata(path).storage("look at", path)?.len();
    let log = LogFile::new(path.to_owned());
    let mut scan = BatchScan::new(&log, 0, size_bytes)?;
    let mut next = base_offset;
    while let Some(Ok((header, _))) = scan.next()? {
        next = header.next_offset();
    }
    Ok(next)
}
