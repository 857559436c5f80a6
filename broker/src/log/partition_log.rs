//! The log of one partition: an ordered set of segments, and what the broker knows about their contents.
//!
//! Synchronous, one owner at a time; time comes in as an argument. Reads are planned here ([`super::ReadPlan`]) and
//! carried out without the owner's lock. All ends are exclusive ("next offset"):
//! `log_start_offset <= high_watermark <= log_end_offset`, `recovery_point <= log_end_offset` (R14, L2).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tracing::{error, warn};
use uuid::Uuid;
use zurau_common::config::TimestampType;

use super::batch::{BatchHeader, HEADER_BYTES};
use super::cleaner::CleanedOffset;
use super::config::LogConfig;
use super::epoch_file::EpochFile;
use super::epochs::LeaderEpochs;
use super::error::{AppendError, LogError, StorageError};
use super::files::write_file;
use super::inspect::InspectedProducer;
use super::marker::Marker;
use super::producers::{Admission, ProducerStates, StoredBatch};
use super::segment::{Segment, WriteOutcome};
use super::transaction_index::AbortedTransaction;
use super::turned_away::TurnedAway;
use super::validate::{AppendOrigin, BatchRules, CheckedBatches, FetchedBatches, Prepared};
use super::verification::{Verification, Verifications};

/// What an append came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendInfo {
    pub first_offset: i64,
    /// Inclusive.
    pub last_offset: i64,
    /// Set when the topic stamps append times.
    pub log_append_time_ms: Option<i64>,
    pub log_start_offset: i64,
    /// The batch was stored before (an idempotent producer's retry); offsets and time are those of the stored one.
    pub duplicate: bool,
    pub record_count: i64,
    pub size_bytes: usize,
}

/// A file taken out of the log that is removed later.
#[derive(Debug)]
pub(crate) struct PendingRemoval {
    pub(crate) path: PathBuf,
    pub(crate) due_ms: i64,
}

/// The log of one partition.
#[derive(Debug)]
pub struct PartitionLog {
    /// Plans are of this log and no other.
    pub(crate) identity: Arc<()>,
    pub(crate) directory: PathBuf,
    /// See [`super::copying::GENERATION`].
    pub(crate) generation: u64,
    pub(crate) topic_id: Option<Uuid>,
    pub(crate) config: LogConfig,
    /// By base offset; never empty, the last one takes appends. Boxed, because a map takes memory for eleven values at
    /// once and most logs have one segment: 3.4 KiB for each idle partition.
    pub(crate) segments: BTreeMap<i64, Box<Segment>>,
    pub(crate) log_start_offset: i64,
    pub(crate) log_end_offset: i64,
    pub(crate) high_watermark: i64,
    /// Everything below is on disk for sure.
    pub(crate) recovery_point: i64,
    /// Set while the log directory's checkpoint may name a higher recovery point than is true after a truncation: that
    /// higher one. [`super::flush::LOWERED_RECOVERY_POINT`] then holds a true one.
    pub(crate) overstated_recovery_point: Option<i64>,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) epoch_file: EpochFile,
    pub(crate) producers: ProducerStates,
    pub(crate) verifications: Verifications,
    pub(crate) turned_away: TurnedAway,
    /// Offsets at which the directory has a producer snapshot.
    pub(crate) snapshots: BTreeSet<i64>,
    /// Files that the next flush syncs besides the segments.
    pub(crate) unsynced_snapshots: Vec<PathBuf>,
    /// Files were created, renamed or removed since the directory's last sync was planned.
    pub(crate) directory_changed: bool,
    /// Counts changes of the directory by the plans that were to sync them, and those that were synced.
    pub(crate) directory_changes: u64,
    pub(crate) directory_changes_synced: u64,
    /// Counts truncations, so that a flush planned before one is not believed after it.
    pub(crate) truncations: u64,
    pub(crate) unflushed_records: i64,
    /// When the oldest unflushed record was appended.
    pub(crate) unflushed_since_ms: Option<i64>,
    pub(crate) pending_removals: Vec<PendingRemoval>,
    pub(crate) cleaned: CleanedOffset,
    /// A copy of the log is being made, which must stay like it (C1).
    pub(crate) compaction_paused: bool,
    pub(crate) stopped: Option<String>,
}

impl PartitionLog {
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Takes a changed topic configuration; it holds from the next operation on.
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    pub fn topic_id(&self) -> Option<Uuid> {
        self.topic_id
    }

    pub fn log_start_offset(&self) -> i64 {
        self.log_start_offset
    }

    pub fn log_end_offset(&self) -> i64 {
        self.log_end_offset
    }

    pub fn recovery_point(&self) -> i64 {
        self.recovery_point
    }

    /// As last told by [`PartitionLog::update_high_watermark`]; the log start after opening.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    pub fn size_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.size_bytes).sum()
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Producers whose state is held.
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// What is known of them, by id.
    pub fn inspect_producers(&self) -> Vec<InspectedProducer> {
        self.producers.inspect()
    }

    /// The reason why this log takes no more appends, if a disk error stopped it.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    pub(crate) fn active_base_offset(&self) -> i64 {
        self.segments.last_key_value().map_or(0, |(base, _)| *base)
    }

    pub(crate) fn active(&mut self) -> &mut Segment {
        self.segments.values_mut().next_back().expect("a log has at least one segment")
    }

    pub(crate) fn stop(&mut self, reason: String) {
        error!(directory = %self.directory.display(), %reason, "log stopped: it takes no more appends until a restart");
        self.stopped.get_or_insert(reason);
    }

    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        self.stopped.clone().map_or(Ok(()), |reason| Err(LogError::Stopped(reason)))
    }

    /// Appends a client's batches: validates them, gives them the next offsets and the leader's epoch. All or
    /// nothing. The caller makes sure that it leads in `leader_epoch`.
    ///
    /// # Errors
    /// See [`AppendError`]; the log is unchanged, except after `Storage` errors that stopped it.
    pub fn append_as_leader(
        &mut self,
        records: &Bytes,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<AppendInfo, AppendError> {
        self.append_with_origin(records, leader_epoch, AppendOrigin::Client, now_ms)
    }

    /// As [`PartitionLog::append_as_leader`], also for the broker's own coordinators, who write markers.
    pub fn append_with_origin(
        &mut self,
        records: &Bytes,
        leader_epoch: i32,
        origin: AppendOrigin,
        now_ms: i64,
    ) -> Result<AppendInfo, AppendError> {
        self.append_verified(records, leader_epoch, (origin, Verification::NotAsked), now_ms)
    }

    /// As [`PartitionLog::append_with_origin`], with what is asked of a batch that opens a transaction.
    pub fn append_verified(
        &mut self,
        records: &Bytes,
        leader_epoch: i32,
        (origin, verification): (AppendOrigin, Verification),
        now_ms: i64,
    ) -> Result<AppendInfo, AppendError> {
        let batches = CheckedBatches::new(records.clone(), BatchRules::of(&self.config), origin, now_ms);
        self.append_checked(batches, leader_epoch, verification)
    }

    /// As [`PartitionLog::append_verified`], for batches that were looked at already.
    pub fn append_checked(
        &mut self,
        batches: CheckedBatches,
        leader_epoch: i32,
        verification: Verification,
    ) -> Result<AppendInfo, AppendError> {
        self.check_running().map_err(stopped)?;
        let (origin, now_ms) = (batches.origin(), batches.now_ms());
        let first_offset = self.log_end_offset;
        let prepared = batches.stamp(BatchRules::of(&self.config), first_offset, leader_epoch)?;
        let limit_bytes = self.config.segment_bytes as usize;
        if prepared.size_bytes > limit_bytes {
            return Err(AppendError::RecordListTooLarge { size_bytes: prepared.size_bytes, limit_bytes });
        }
        let bodies = prepared.parts.iter().skip(1).step_by(2);
        let markers: Vec<_> =
            prepared.headers.iter().zip(bodies).map(|(header, body)| Marker::parse(header, body)).collect();
        let (verifications, turned_away) = (&self.verifications, &self.turned_away);
        let admission = Admission { origin, verification, verifications, turned_away, now_ms };
        if let Some(stored) = self.producers.check(&prepared.headers, &markers, &admission)? {
            return Ok(self.duplicate_info(&stored, prepared.size_bytes));
        }
        let last_offset = prepared.headers.last().map_or(first_offset, BatchHeader::last_offset);
        let info = AppendInfo {
            first_offset,
            last_offset,
            log_append_time_ms: self.append_time(now_ms),
            log_start_offset: self.log_start_offset,
            duplicate: false,
            record_count: last_offset + 1 - first_offset,
            size_bytes: prepared.size_bytes,
        };
        self.write(&prepared.headers, &prepared.parts, &markers, now_ms)?;
        Ok(info)
    }

    fn append_time(&self, time_ms: i64) -> Option<i64> {
        (self.config.message_timestamp_type == TimestampType::LogAppendTime).then_some(time_ms)
    }

    fn duplicate_info(&self, stored: &StoredBatch, size_bytes: usize) -> AppendInfo {
        AppendInfo {
            first_offset: stored.first_offset(),
            last_offset: stored.last_offset,
            log_append_time_ms: self.append_time(stored.timestamp),
            log_start_offset: self.log_start_offset,
            duplicate: true,
            record_count: i64::from(stored.offset_delta) + 1,
            size_bytes,
        }
    }

    /// Appends batches fetched from the leader, with the offsets and epochs they carry. Each must continue the log
    /// exactly, or cover the log start of an empty log (R18, LOG-18); gaps are accepted where compaction may have
    /// made them. An incomplete batch at the end is left out.
    ///
    /// # Errors
    /// `NotContiguous`, `CorruptMessage` and the like: batches before the bad one may have been appended.
    pub fn append_as_follower(&mut self, records: &Bytes, now_ms: i64) -> Result<(), AppendError> {
        self.append_fetched(FetchedBatches::new(records), now_ms)
    }

    /// As [`PartitionLog::append_as_follower`], for batches that were looked at already.
    pub(crate) fn append_fetched(&mut self, batches: FetchedBatches, now_ms: i64) -> Result<(), AppendError> {
        let may_have_gaps = self.config.cleanup_policy.compact;
        self.append_batches(batches, may_have_gaps, now_ms)
    }

    pub(super) fn append_batches(
        &mut self,
        batches: FetchedBatches,
        may_have_gaps: bool,
        now_ms: i64,
    ) -> Result<(), AppendError> {
        self.check_running().map_err(stopped)?;
        let prepared = batches.prepared()?;
        self.check_contiguous(&prepared, may_have_gaps)?;
        if let Some(first) = prepared.headers.first()
            && first.base_offset < self.log_end_offset
        {
            self.restart_below_log_start(first.base_offset)?;
        }
        let mut from = 0;
        while from < prepared.headers.len() {
            let until = self.batches_for_one_segment(&prepared, from);
            let headers = &prepared.headers[from..until];
            let parts = &prepared.parts[from..until];
            let markers: Vec<_> = headers
                .iter()
                .zip(parts)
                .map(|(header, part)| Marker::parse(header, &part[HEADER_BYTES..]))
                .collect();
            self.write(headers, parts, &markers, now_ms)?;
            from = until;
        }
        Ok(())
    }

    fn check_contiguous(&self, prepared: &Prepared, may_have_gaps: bool) -> Result<(), AppendError> {
        let mut expected = self.log_end_offset;
        for (index, header) in prepared.headers.iter().enumerate() {
            let covers_start = index == 0
                && self.log_end_offset == self.log_start_offset
                && header.base_offset <= expected
                && header.last_offset() >= expected;
            let continues =
                header.base_offset == expected || (header.base_offset > expected && may_have_gaps);
            if !continues && !covers_start {
                return Err(AppendError::NotContiguous {
                    base_offset: header.base_offset,
                    last_offset: header.last_offset(),
                    log_end_offset: expected,
                });
            }
            expected = header.next_offset();
        }
        Ok(())
    }

    /// An empty log takes a batch that begins below its log start: the segment begins where the batch does, the
    /// log start stays (LOG-18).
    fn restart_below_log_start(&mut self, base_offset: i64) -> Result<(), AppendError> {
        let (log_start_offset, high_watermark) = (self.log_start_offset, self.high_watermark);
        self.truncate_fully_and_start_at(base_offset).map_err(into_append_error)?;
        self.log_start_offset = log_start_offset;
        self.high_watermark = high_watermark;
        Ok(())
    }

    /// The end of the run of batches from `from` on that may go into one segment.
    fn batches_for_one_segment(&self, prepared: &Prepared, from: usize) -> usize {
        let base = prepared.headers[from].base_offset;
        let active_bytes = self.segments.values().next_back().map_or(0, |segment| segment.size_bytes);
        let limit = u64::from(self.config.segment_bytes);
        let mut bytes = prepared.headers[from].size_bytes() as u64;
        // The first batch decides whether the segment rolls; the others must fit behind it without rolling.
        let before = if active_bytes + bytes > limit { 0 } else { active_bytes };
        let mut until = from + 1;
        while let Some(header) = prepared.headers.get(until) {
            bytes += header.size_bytes() as u64;
            if before + bytes > limit || header.last_offset() - base > i64::from(i32::MAX) {
                break;
            }
            until += 1;
        }
        until
    }

    /// Writes stamped batches to one segment and lets everything derived from the records follow.
    fn write(
        &mut self,
        headers: &[BatchHeader],
        parts: &[Bytes],
        markers: &[Option<Marker>],
        now_ms: i64,
    ) -> Result<(), AppendError> {
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else { return Ok(()) };
        let size_bytes: usize = headers.iter().map(BatchHeader::size_bytes).sum();
        self.roll_if_needed(first, last, headers, size_bytes, now_ms).map_err(into_append_error)?;
        for header in headers.iter().filter(|header| header.partition_leader_epoch >= 0) {
            self.note_epoch_of_records(header.partition_leader_epoch, header.base_offset)?;
        }
        let interval = self.config.index_interval_bytes;
        match self.active().append(headers, parts, interval, now_ms) {
            WriteOutcome::Written => {}
            WriteOutcome::NotWritten(error) => return Err(error.into()),
            WriteOutcome::NotCutBack(error) => {
                self.stop(error.to_string());
                return Err(error.into());
            }
            WriteOutcome::IndexFailed(error) => {
                // LOG-09: the records are there, so their offsets are used up; nothing may rely on the indexes.
                self.log_end_offset = last.next_offset();
                self.stop(error.to_string());
                return Err(error.into());
            }
        }
        self.log_end_offset = last.next_offset();
        self.unflushed_records += last.next_offset() - first.base_offset;
        self.unflushed_since_ms.get_or_insert(now_ms);
        self.follow_producers(headers, markers)
    }

    /// Producer state and transaction index after the records are in the log.
    fn follow_producers(
        &mut self,
        headers: &[BatchHeader],
        markers: &[Option<Marker>],
    ) -> Result<(), AppendError> {
        for (header, marker) in headers.iter().zip(markers) {
            if header.is_transactional() {
                self.verifications.note(header);
            }
            self.turned_away.forget(header.producer_id);
            let Some(completed) = self.producers.adopt(header, *marker) else { continue };
            if completed.aborted {
                let transaction = AbortedTransaction {
                    producer_id: completed.producer_id,
                    first_offset: completed.first_offset,
                    last_offset: completed.last_offset,
                    last_stable_offset: self.producers.stable_after(&completed),
                };
                // The file may be new; without its name on disk the abort would be forgotten.
                self.directory_changed |= self.active().transactions.is_empty();
                if let Err(error) = self.active().transactions.push(&transaction) {
                    // The transaction stays open here, so committed readers never see its records (LOG-09).
                    self.stop(error.to_string());
                    return Err(error.into());
                }
            }
            self.producers.complete(&completed);
        }
        Ok(())
    }

    fn roll_if_needed(
        &mut self,
        first: &BatchHeader,
        last: &BatchHeader,
        headers: &[BatchHeader],
        size_bytes: usize,
        now_ms: i64,
    ) -> Result<(), LogError> {
        let limit = u64::from(self.config.segment_bytes);
        let roll_after_ms = self.roll_after_ms();
        let largest = headers.iter().map(|header| header.max_timestamp).max().unwrap_or(-1);
        let active = self.active();
        let too_far = last.last_offset() - active.base_offset > i64::from(i32::MAX);
        let roll = too_far
            || (active.size_bytes > 0
                && (active.size_bytes + size_bytes as u64 > limit
                    || active.offset_index.is_full()
                    || active.time_index.is_full()
                    || active.waited_ms(largest, now_ms)? > roll_after_ms));
        if roll {
            // Segments follow each other without a gap, even where compaction left one, so that a recovery can tell a
            // lost end from a gap; only a gap too wide for relative offsets is skipped.
            let near = last.last_offset() - self.log_end_offset <= i64::from(i32::MAX);
            self.roll(if near { self.log_end_offset } else { first.base_offset }, now_ms)?;
        }
        Ok(())
    }

    /// `segment.ms` less a jitter that differs from segment to segment, the same at every call.
    fn roll_after_ms(&mut self) -> i64 {
        // The active segment is never compacted, so it must not hold a record longer than compaction may wait.
        let compact = self.config.cleanup_policy.compact;
        let lag_max_ms = if compact { self.config.max_compaction_lag_ms } else { i64::MAX };
        let segment_ms = self.config.segment_ms.min(lag_max_ms);
        let jitter_ms = self.config.segment_jitter_ms;
        if jitter_ms <= 0 {
            return segment_ms;
        }
        let name = self.directory.file_name().map_or(0, |name| crc32c::crc32c(name.as_encoded_bytes()));
        let seed = crc32c::crc32c_append(name, &self.active().base_offset.to_be_bytes());
        segment_ms - i64::from(seed) % jitter_ms.min(segment_ms).max(1)
    }

    /// Nothing will be appended to the active segment any more.
    pub(super) fn complete_active(&mut self) -> Result<(), LogError> {
        self.take_snapshot()?;
        let preallocated = self.config.preallocate;
        let active = self.active();
        active.write_indexes(true)?;
        if preallocated {
            active.trim()?;
        }
        Ok(())
    }

    /// Closes the active segment and starts a new one at `base_offset`.
    pub(crate) fn roll(&mut self, base_offset: i64, now_ms: i64) -> Result<(), LogError> {
        self.complete_active()?;
        let segment = Segment::create(&self.directory, base_offset, &self.config, now_ms)?;
        self.directory_changed = true;
        self.segments.insert(base_offset, Box::new(segment));
        Ok(())
    }

    /// Writes the producer state as of the log end, unless that was done already.
    pub(crate) fn take_snapshot(&mut self) -> Result<(), StorageError> {
        let offset = self.producers.end_offset;
        if offset == 0 || self.snapshots.contains(&offset) {
            return Ok(());
        }
        let path = self.snapshot_path(offset);
        write_file(&path, &self.producers.encode())?;
        self.snapshots.insert(offset);
        self.unsynced_snapshots.push(path);
        self.directory_changed = true;
        Ok(())
    }

    /// Tells the log what is committed: retention, last stable offset and producer state depend on it. Kept within
    /// log start and log end. The replica core owns the rule.
    pub fn update_high_watermark(&mut self, high_watermark: i64) {
        self.high_watermark = high_watermark.clamp(self.log_start_offset, self.log_end_offset);
        self.producers.note_high_watermark(self.high_watermark);
    }

    /// As [`PartitionLog::update_high_watermark`], with what a checkpoint says after the log was opened.
    pub fn restore_high_watermark(&mut self, checkpointed: i64) -> Result<(), LogError> {
        self.update_high_watermark(checkpointed);
        self.find_unreplicated_transactions()
    }

    /// min(high watermark, first offset of an undecided transaction) (T3).
    pub fn last_stable_offset(&self) -> i64 {
        let unstable = self.producers.first_unstable_offset().unwrap_or(i64::MAX);
        self.high_watermark.min(unstable.max(self.log_start_offset))
    }

    /// Aborted transactions that a reader of `from..upper` must know, oldest marker first.
    pub fn aborted_transactions(
        &self,
        from: i64,
        upper: i64,
    ) -> Result<Vec<AbortedTransaction>, StorageError> {
        let mut found = Vec::new();
        let start = self.segments.range(..=from).next_back().map_or(from, |(base, _)| *base);
        for segment in self.segments.range(start..).map(|(_, segment)| segment) {
            for transaction in segment.transactions.all()? {
                if transaction.last_offset >= from && transaction.first_offset < upper {
                    found.push(transaction);
                }
                if transaction.last_stable_offset >= upper {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Drops the state of producers that were silent for `producer.id.expiration.ms`.
    pub fn expire_producers(&mut self, now_ms: i64) {
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms);
        self.verifications.expire(&self.producers, now_ms, self.config.producer_id_expiration_ms);
    }
}

fn stopped(error: LogError) -> AppendError {
    into_append_error(error)
}

pub(crate) fn into_append_error(error: LogError) -> AppendError {
    match error {
        LogError::Storage(error) => AppendError::Storage(error),
        LogError::Stopped(reason) => AppendError::Stopped(reason),
        other => {
            warn!(error = %other, "append failed");
            AppendError::Stopped(other.to_string())
        }
    }
}
