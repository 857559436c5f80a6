//! Opening a log: what each file in its directory means (others are left alone), and which part is recovered. The decision
//! table stands at [`PartitionLog::open`]; its labels stand in the code where a row is carried out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tracing::{info, warn};
use uuid::Uuid;

use super::cleaner::{CLEANED_SUFFIX, CleanedOffset, SWAP_SUFFIX};
use super::config::LogConfig;
use super::copying::read_generation;
use super::epoch_file::{EPOCH_CHECKPOINT, EpochFile};
use super::epochs::LeaderEpochs;
use super::error::{LogError, StorageContext, StorageError};
use super::files::{
    read_if_present, remove_if_present, rename, sync_directory, sync_path_if_present, write_file,
};
use super::flush::LOWERED_RECOVERY_POINT;
use super::metadata::{self, PARTITION_METADATA};
use super::partition_log::PartitionLog;
use super::producers::ProducerStates;
use super::recover::Recovery;
use super::retention::DELETED_SUFFIX;
use super::segment::{
    INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX,
    file_path,
};
use super::split::{RELATIVE_OFFSET_MAX, split};
use super::turned_away::TurnedAway;
use super::verification::Verifications;

/// What the checkpoints of the log directory say about a log that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// The last stop closed this log: nothing needs to be scanned.
    pub clean: bool,
    /// Everything below is on disk for sure; 0 when nothing was ever synced, negative when that is not known.
    pub recovery_point: i64,
    /// Records below were deleted; 0 when unknown.
    pub log_start_offset: i64,
}

impl OpenMode {
    /// Nothing is known: everything is scanned.
    pub const UNKNOWN: Self = Self { clean: false, recovery_point: -1, log_start_offset: 0 };
}

impl OpenMode {
    /// With the recovery point that a truncation left in the partition's directory; 0 when that file is damaged.
    fn lowered_to(self, file: Option<&[u8]>) -> Self {
        let Some(file) = file else { return self };
        let lowered = std::str::from_utf8(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Self { recovery_point: self.recovery_point.min(lowered), ..self }
    }
}

impl PartitionLog {
    /// Creates an empty log in a new (or empty) directory, durably, with its topic id in `partition.metadata`. Records of
    /// the same topic that are there already are recovered.
    pub fn create(
        directory: &Path,
        topic_id: Option<Uuid>,
        config: LogConfig,
        now_ms: i64,
    ) -> Result<Self, LogError> {
        let log = Self::create_unsynced(directory, topic_id, config, now_ms)?;
        sync_created(directory)?;
        directory.parent().map_or(Ok(()), sync_directory)?;
        Ok(log)
    }

    /// As [`PartitionLog::create`], but nothing is synced, so that it can be for many logs at once. Before that
    /// ([`sync_created`], or the whole file system) nothing may be served from it.
    pub(crate) fn create_unsynced(
        directory: &Path,
        topic_id: Option<Uuid>,
        config: LogConfig,
        now_ms: i64,
    ) -> Result<Self, LogError> {
        fs::create_dir_all(directory).storage("create directory", directory)?;
        if let Some(topic_id) = topic_id {
            let path = directory.join(PARTITION_METADATA);
            match metadata::read_topic_id(&path)? {
                Some(found) if found != topic_id => {
                    return Err(LogError::TopicIdMismatch {
                        path: directory.to_owned(),
                        found,
                        expected: topic_id,
                    });
                }
                Some(_) => {}
                None if holds_records(directory)? => {
                    return Err(LogError::Damaged {
                        path: directory.to_owned(),
                        reason: "it holds records of a topic whose id is not known (no partition.metadata)"
                            .to_owned(),
                    });
                }
                // A creation that a power loss interrupted leaves no id, or an empty file, and a log without a record.
                None => write_file(&path, metadata::encode_topic_id(topic_id).as_bytes())?,
            }
        }
        Self::open(directory, config, OpenMode::UNKNOWN, now_ms)
    }

    /// Opens the log in an existing directory, recovering it as far as `mode` makes necessary. Opening twice gives the
    /// same log (L1). Decisions, those about whole directories included:
    ///
    /// | row | found | done |
    /// |---|---|---|
    /// | A1 | the log directory's clean mark | removed as soon as it is read (LOG-05); its logs are opened `clean` |
    /// | A2 | a directory `*-delete` | removed |
    /// | A3 | a directory `*-stray` | kept for `stray.retention.ms` (D6) |
    /// | A4 | a directory of no partition's name | left alone |
    /// | A5 | no topic id, or another than the one asked for | left alone, nothing is served from it (M11) |
    /// | A6 | the boot id changed, or the log ends below its checkpointed high watermark or recovery point | unclean: leaves the ISR |
    /// | A7 | a directory `*-future`, its partition's log elsewhere | the move goes on, anew if the log is compacted (C1) |
    /// | A8 | a directory `*-future` without that log; of another topic id | left alone; `-stray` |
    /// | A9 | a log in two directories | the higher `copy-generation` stands; the other goes once that one is open |
    /// | F1 | a file of another name | left alone |
    /// | F2 | `*.deleted` | removed: the log had given it up |
    /// | F3 | `*.cleaned` | removed: compaction had not finished writing it |
    /// | F4 | `*.swap` at or above the lowest `.cleaned` | removed: its set is incomplete, the originals stand |
    /// | F5 | other `*.swap` | completed: originals in its range removed, then renamed into place |
    /// | F6 | `.index`, `.timeindex`, `.txnindex` without `.log` | removed |
    /// | S1 | no `.log` at all | one empty segment at the log start |
    /// | S2 | a `.log` of no bytes | a segment without records: its base may be the log end |
    /// | S3 | `.log` with an absent or damaged index | index rebuilt from the batches |
    /// | S4 | offsets 2^31 or more above the segment's base | split (LOG-03) |
    /// | S5 | opened `clean`, or below the recovery point | not scanned: ends with its last index entry and what follows |
    /// | S6 | not clean, from the recovery point on | every batch is scanned |
    /// | S7 | in S6, torn bytes at the end or a wrong CRC anywhere | cut before the first invalid batch |
    /// | S8 | in S6, the next segment begins above the end; not compacted, recovery point known | the end is lost, as after S7 |
    /// | S9 | a segment after S7 or S8 | removed: its records would leave a hole |
    /// | E1 | `leader-epoch-checkpoint` absent or damaged | rebuilt from the batch headers (LOG-06) |
    /// | E2 | it goes beyond the log's ends | cut there; an epoch that begins at the end stays (HW-06) |
    /// | E3 | it lacks epochs of batches that S6 scans | added: they are written before the recovery point rises |
    /// | P1 | a `.snapshot` above the log end, or at no segment's base and not the latest | removed |
    /// | P2 | the latest snapshot is damaged | removed, the one before is used; without any, the batches |
    /// | O1 | log end below the log start | everything removed, empty log at the log start (LOG-19) |
    /// | O2 | recovery point above the log end | lowered to it |
    pub fn open(directory: &Path, config: LogConfig, mode: OpenMode, now_ms: i64) -> Result<Self, LogError> {
        Self::open_counting(directory, config, mode, now_ms, &AtomicU64::new(0))
    }

    /// As [`PartitionLog::open`]; adds the bytes that recovery has read to `scanned` while it reads.
    pub fn open_counting(
        directory: &Path,
        config: LogConfig,
        mode: OpenMode,
        now_ms: i64,
        scanned: &AtomicU64,
    ) -> Result<Self, LogError> {
        let topic_id = metadata::read_topic_id(&directory.join(PARTITION_METADATA))?;
        let lowered = read_if_present(&directory.join(LOWERED_RECOVERY_POINT))?;
        let overstated_recovery_point = lowered.is_some().then_some(mode.recovery_point);
        let mode = mode.lowered_to(lowered.as_deref());
        // F1 to F6.
        settle_interrupted_operations(directory)?;
        let found = Listing::of(directory)?;
        let mut log = Self {
            identity: Arc::default(),
            directory: directory.to_owned(),
            generation: read_generation(directory)?,
            topic_id,
            config,
            segments: BTreeMap::new(),
            log_start_offset: mode.log_start_offset,
            log_end_offset: 0,
            high_watermark: 0,
            recovery_point: mode.recovery_point.max(0),
            overstated_recovery_point,
            epochs: LeaderEpochs::default(),
            epoch_file: EpochFile::default(),
            producers: ProducerStates::default(),
            verifications: Verifications::default(),
            turned_away: TurnedAway::default(),
            snapshots: found.snapshots,
            unsynced_snapshots: Vec::new(),
            directory_changed: false,
            directory_changes: 0,
            directory_changes_synced: 0,
            truncations: 0,
            unflushed_records: 0,
            unflushed_since_ms: None,
            pending_removals: Vec::new(),
            cleaned: CleanedOffset::default(),
            compaction_paused: false,
            stopped: None,
        };
        // E1; S1 to S9; O1, O2.
        let epochs_known = log.load_epochs()?;
        let stored_epochs = log.epochs.clone();
        log.load_segments(&found.logs, mode, now_ms, scanned)?;
        log.settle_offsets(mode, now_ms)?;
        if !epochs_known {
            log.rebuild_epochs()?;
        }
        // E3.
        if log.epochs != stored_epochs {
            log.epoch_file.lag_behind();
        }
        // E2. An epoch that began exactly at the end, without records, is kept: its leader recorded it (HW-06).
        let end_changed = log.epochs.truncate_from_end(log.log_end_offset + 1);
        let start_changed = log.epochs.truncate_from_start(log.log_start_offset);
        let rebuilt = !epochs_known && !log.epochs.entries().is_empty();
        if end_changed || start_changed || rebuilt {
            log.write_epochs()?;
        }
        // P1, P2.
        let end = log.log_end_offset;
        log.remove_snapshots(|offset| offset > end)?;
        log.rebuild_producers()?;
        log.remove_stray_snapshots()?;
        if mode.clean {
            log.recovery_point = log.log_end_offset;
            log.forget_lowered_recovery_point()?;
        }
        Ok(log)
    }

    /// Of the snapshots that no segment begins at (each clean stop leaves one) only the latest is kept.
    fn remove_stray_snapshots(&mut self) -> Result<(), LogError> {
        let latest = self.snapshots.last().copied();
        let bases: BTreeSet<i64> = self.segments.keys().copied().collect();
        Ok(self.remove_snapshots(|offset| !bases.contains(&offset) && Some(offset) != latest)?)
    }

    /// Reads the epoch checkpoint; false when it must be rebuilt.
    fn load_epochs(&mut self) -> Result<bool, LogError> {
        let path = self.directory.join(EPOCH_CHECKPOINT);
        let Some(text) = read_if_present(&path)? else { return Ok(false) };
        match LeaderEpochs::decode(&text) {
            Ok(epochs) => {
                self.epochs = epochs;
                Ok(true)
            }
            Err(reason) => {
                warn!(path = %path.display(), %reason, "epoch history is damaged; rebuilding it from the batches");
                Ok(false)
            }
        }
    }

    /// Opens all segments in order; rebuilds indexes and recovers what lies after the recovery point.
    fn load_segments(
        &mut self,
        bases: &[i64],
        mode: OpenMode,
        now_ms: i64,
        scanned: &AtomicU64,
    ) -> Result<(), LogError> {
        let unflushed_base = bases.get(first_unflushed(bases, mode.recovery_point)).copied().unwrap_or(0);
        let mut waiting: VecDeque<i64> = bases.iter().copied().collect();
        let (mut cut, mut producers) = (false, None);
        while let Some(base) = waiting.pop_front() {
            if cut {
                // S9.
                self.remove_unreachable(base)?;
                continue;
            }
            // S4.
            if waiting.front().is_some_and(|next| next - base > RELATIVE_OFFSET_MAX + 1) {
                self.split_off(base, &mut waiting)?;
            }
            let unflushed = !mode.clean && base >= unflushed_base;
            let (mut segment, sound) = Segment::open(&self.directory, base, &self.config, !mode.clean)?;
            let next = waiting.front().copied();
            let sound = sound && (unflushed || segment.has_plausible_times(next)?);
            // S3, S6, S7; else S5.
            if !sound || unflushed {
                if !sound && !unflushed {
                    warn!(directory = %self.directory.display(), segment = base, "index absent or damaged; rebuilding");
                }
                let recovery = self.recover_segment(&mut segment, &mut producers, scanned)?;
                if recovery == Recovery::TooFar {
                    if !self.split_off(base, &mut waiting)? {
                        let reason = "offsets are too far from the segment's base".to_owned();
                        return Err(LogError::Damaged { path: segment.log.path(), reason });
                    }
                    waiting.push_front(base);
                    continue;
                }
                cut = recovery == Recovery::Cut;
            }
            // S8.
            if unflushed
                && mode.recovery_point >= 0
                && let Some(next) = waiting.front()
            {
                cut |= self.lost_end(&segment, *next)?;
            }
            self.segments.insert(base, Box::new(segment));
        }
        // S1.
        if self.segments.is_empty() {
            self.add_empty_segment(self.log_start_offset, now_ms)?;
        }
        Ok(())
    }

    /// Splits a segment if it holds offsets too far from its base; the new one is the next that waits.
    fn split_off(&self, base: i64, waiting: &mut VecDeque<i64>) -> Result<bool, LogError> {
        let Some(new_base) = split(&self.directory, base)? else { return Ok(false) };
        if waiting.front() != Some(&new_base) {
            waiting.push_front(new_base);
        }
        Ok(true)
    }

    /// Whether an unflushed segment lost its end at a batch boundary: the next one then begins too high. In compacted
    /// topics that is no evidence, since compaction leaves gaps; nor is it with an unknown recovery point, where a
    /// topic that once was compacted would lose everything behind its first gap.
    fn lost_end(&self, segment: &Segment, next_base: i64) -> Result<bool, LogError> {
        let end = segment.read_next_offset()?;
        let lost = end != next_base && !self.config.cleanup_policy.compact;
        if lost {
            warn!(directory = %self.directory.display(), segment = segment.base_offset, end, next_base,
                "the end of an unflushed segment is lost");
        }
        Ok(lost)
    }

    fn add_empty_segment(&mut self, base: i64, now_ms: i64) -> Result<(), LogError> {
        let segment = Segment::create(&self.directory, base, &self.config, now_ms)?;
        self.segments.insert(base, Box::new(segment));
        self.directory_changed = true;
        Ok(())
    }

    /// A segment behind a cut: its records would leave a hole.
    fn remove_unreachable(&mut self, base: i64) -> Result<(), LogError> {
        warn!(directory = %self.directory.display(), segment = base, "removing a segment behind a damaged one");
        for suffix in [TRANSACTION_INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX] {
            remove_if_present(&file_path(&self.directory, base, suffix))?;
        }
        self.directory_changed = true;
        Ok(())
    }

    /// Log end, log start, recovery point and high watermark from the segments and the checkpoints.
    fn settle_offsets(&mut self, mode: OpenMode, now_ms: i64) -> Result<(), LogError> {
        let (first_base, last_end) = {
            let first = self.segments.first_key_value().map_or(0, |(base, _)| *base);
            let last =
                self.segments.values().next_back().map(|segment| segment.read_next_offset()).transpose()?;
            (first, last.unwrap_or(first))
        };
        self.log_end_offset = last_end;
        // O1.
        if last_end < mode.log_start_offset {
            warn!(directory = %self.directory.display(), log_end = last_end, log_start = mode.log_start_offset,
                "the log ends below its start; starting empty at the log start");
            self.truncate_fully_and_start_at(mode.log_start_offset)?;
            self.active().created_ms = now_ms;
        }
        self.log_start_offset = mode.log_start_offset.max(first_base);
        // O2.
        self.recovery_point = self.recovery_point.min(self.log_end_offset);
        self.high_watermark = self.log_start_offset;
        Ok(())
    }
}

/// Makes what [`PartitionLog::create_unsynced`] made durable, but for the name of the directory itself.
pub(crate) fn sync_created(directory: &Path) -> Result<(), StorageError> {
    sync_path_if_present(&directory.join(PARTITION_METADATA))?;
    sync_directory(directory)
}

/// Whether there is a segment that has records, or begins behind some.
fn holds_records(directory: &Path) -> Result<bool, LogError> {
    for base in Listing::of(directory)?.logs {
        let path = file_path(directory, base, LOG_SUFFIX);
        if base != 0 || fs::metadata(&path).storage("look at", &path)?.len() != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The index of the first segment that may hold records which are not on disk for sure.
fn first_unflushed(bases: &[i64], recovery_point: i64) -> usize {
    bases.partition_point(|base| *base <= recovery_point).saturating_sub(1)
}

/// Bytes that opening the log in `directory` will scan, as far as that is known beforehand: segments with a damaged
/// index come on top.
pub fn bytes_to_recover(directory: &Path, mode: OpenMode) -> Result<u64, StorageError> {
    if mode.clean {
        return Ok(0);
    }
    let lowered = read_if_present(&directory.join(LOWERED_RECOVERY_POINT))?;
    let recovery_point = mode.lowered_to(lowered.as_deref()).recovery_point;
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let bases: Vec<i64> =
        files_of(directory)?.iter().filter(|path| is_log(path)).filter_map(|path| offset_of(path)).collect();
    let unflushed = bases.iter().skip(first_unflushed(&bases, recovery_point));
    let paths = unflushed.map(|base| file_path(directory, *base, LOG_SUFFIX));
    paths.map(|path| Ok(fs::metadata(&path).storage("look at", &path)?.len())).sum()
}

/// Completes or undoes what compaction and deletion were doing when the broker stopped (see the table above).
fn settle_interrupted_operations(directory: &Path) -> Result<(), LogError> {
    let mut cleaned = Vec::new();
    let mut swaps = Vec::new();
    for path in files_of(directory)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // F2.
        if name.ends_with(DELETED_SUFFIX) {
            remove_if_present(&path)?;
        } else if name.ends_with(CLEANED_SUFFIX) {
            cleaned.push(path);
        } else if name.ends_with(SWAP_SUFFIX) {
            swaps.push(path);
        }
    }
    let lowest_cleaned = cleaned.iter().filter_map(|path| offset_of(path)).min().unwrap_or(i64::MAX);
    let (complete, incomplete): (Vec<_>, Vec<_>) =
        swaps.into_iter().partition(|path| offset_of(path).is_some_and(|base| base < lowest_cleaned));
    // F4.
    if !incomplete.is_empty() {
        for path in incomplete {
            info!(path = %path.display(), "removing an incomplete compaction result; the originals stand");
            remove_if_present(&path)?;
        }
        // Without the `.cleaned` files, which go next, they would look complete.
        sync_directory(directory)?;
    }
    // F3.
    for path in cleaned {
        info!(path = %path.display(), "removing the output of an interrupted compaction");
        remove_if_present(&path)?;
    }
    // F5.
    complete_swaps(directory, &complete)
}

/// Puts complete compaction results in the place of what they were made from.
fn complete_swaps(directory: &Path, swaps: &[PathBuf]) -> Result<(), LogError> {
    if swaps.is_empty() {
        return Ok(());
    }
    // Each by itself: what lies between two may have its final name already.
    for path in swaps.iter().filter(|path| path.to_string_lossy().ends_with(".log.swap")) {
        let Some(base) = offset_of(path) else { continue };
        let end = super::recover::next_offset_of_file(path, base)?;
        remove_replaced(directory, base..end)?;
        remove_inner_snapshots(directory, base..end)?;
    }
    sync_directory(directory)?;
    for path in swaps {
        let target = path.with_extension("");
        info!(path = %path.display(), "completing an interrupted compaction");
        rename(path, &target)?;
    }
    sync_directory(directory)?;
    Ok(())
}

fn remove_replaced(directory: &Path, offsets: Range<i64>) -> Result<(), LogError> {
    for path in files_of(directory)? {
        if is_segment_file(&path) && offset_of(&path).is_some_and(|base| offsets.contains(&base)) {
            info!(path = %path.display(), "removing a file that compaction had replaced");
            remove_if_present(&path)?;
        }
    }
    Ok(())
}

/// Producer snapshots that were taken where replaced segments began, but not the latest of all.
fn remove_inner_snapshots(directory: &Path, offsets: Range<i64>) -> Result<(), LogError> {
    let mut snapshots = Listing::of(directory)?.snapshots;
    snapshots.pop_last();
    for offset in snapshots.into_iter().filter(|offset| *offset > offsets.start && *offset < offsets.end) {
        remove_if_present(&file_path(directory, offset, SNAPSHOT_SUFFIX))?;
    }
    Ok(())
}

/// Log or index of a segment in place. Producer snapshots are not among them: what they say stays true (CMP-04).
fn is_segment_file(path: &Path) -> bool {
    let name = path.to_string_lossy();
    [LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

fn files_of(directory: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).storage("list", directory)? {
        let entry = entry.storage("list", directory)?;
        if entry.file_type().storage("look at", &entry.path())?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// The offset that a file name starts with: twenty digits and a dot.
fn offset_of(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_str()?;
    let digits = name.split('.').next()?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The segments and snapshots of a directory.
struct Listing {
    /// Base offsets, ascending.
    logs: Vec<i64>,
    snapshots: BTreeSet<i64>,
}

impl Listing {
    /// Lists a directory and removes indexes without their log.
    fn of(directory: &Path) -> Result<Self, LogError> {
        let mut listing = Self { logs: Vec::new(), snapshots: BTreeSet::new() };
        let mut indexes = Vec::new();
        for path in files_of(directory)? {
            let Some(offset) = offset_of(&path) else { continue };
            match path.to_str().and_then(|path| path.rsplit_once('.')).map(|(_, suffix)| suffix) {
                Some("log") => listing.logs.push(offset),
                Some("snapshot") => {
                    listing.snapshots.insert(offset);
                }
                Some("index" | "timeindex" | "txnindex") => indexes.push((offset, path)),
                _ => {}
            }
        }
        // F6.
        for (offset, path) in indexes {
            if listing.logs.binary_search(&offset).is_err() {
                warn!(path = %path.display(), "removing an index without its log");
                remove_if_present(&path)?;
            }
        }
        Ok(listing)
    }
}
