//! What stands in a log directory of a stopped broker, for the tool that rebuilds ZooKeeper's tree from it. The directory
//! is locked, so that no broker starts meanwhile, and nothing in it is changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use zurau_common::id::{TopicId, TopicPartition};

use super::copying::{precedence, read_generation};
use super::directory::{
    Checkpoints, DirectoryError, DirectoryLock, FoundDirectory, has_clean_mark, list, lock,
    partition_set_aside, read_meta,
};
use super::epoch_file::EPOCH_CHECKPOINT;
use super::epochs::LeaderEpochs;
use super::error::{StorageContext, StorageError};
use super::files::read_if_present;
use super::flush::LOWERED_RECOVERY_POINT;
use super::incarnation::Incarnation;
use super::inspect::{BatchReader, read_epochs, read_snapshot};
use super::metadata::{PARTITION_METADATA, read_topic_id};
use super::segment::{LOG_SUFFIX, SNAPSHOT_SUFFIX};

/// A log directory; locked as long as this lives.
#[derive(Debug)]
pub struct SurveyedDirectory {
    pub path: PathBuf,
    pub broker_id: Option<i32>,
    pub cluster_id: Option<String>,
    /// Which registration of its broker the directory is complete for (D1).
    pub incarnation: Option<Incarnation>,
    pub logs: Vec<SurveyedLog>,
    /// Copies that are not served (`-stray`, `-delete`, `-future`).
    pub set_aside: Vec<PathBuf>,
    /// The highest leader epoch that anything in the directory knows of a partition, of whatever topic id.
    pub highest_epochs: BTreeMap<TopicPartition, i32>,
    _lock: DirectoryLock,
}

/// The log of one partition, as its broker will find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedLog {
    pub partition: TopicPartition,
    /// `None` without a readable `partition.metadata`; the broker leaves such a directory alone.
    pub topic_id: Option<TopicId>,
    /// The leader epoch of the last record, or of the log end if there are no records; -1 without a history.
    pub last_epoch: i32,
    /// Where each epoch of its records begins.
    pub history: LeaderEpochs,
    /// Exclusive.
    pub log_end_offset: i64,
    /// Everything below this offset was committed, as far as the checkpoints tell.
    pub committed: i64,
    /// Of two logs of one partition in a broker's log directories the one with the greater value is served: how often it has
    /// moved, and how far it is known to reach.
    pub precedence: (u64, Option<i64>),
    /// The highest producer id in sight: in the snapshots and in the records behind the last one; -1 for none.
    pub highest_producer_id: i64,
    /// The log was compacted.
    pub compacted: bool,
}

/// Locks a log directory and looks at every log in it.
///
/// # Errors
/// It is not there, in use by a broker, or not readable.
pub fn survey_directory(path: &Path) -> Result<SurveyedDirectory, DirectoryError> {
    // Before the lock, which would make the file in any directory that exists.
    let found = list(path)?;
    let lock = lock(path)?;
    let meta = read_meta(path)?;
    let checkpoints = Checkpoints::read(path)?;
    let clean = has_clean_mark(path);
    let (mut logs, mut set_aside) = (Vec::new(), Vec::new());
    let mut highest_epochs = checkpoints.epoch_starts.epochs();
    let mut count = |partition: &TopicPartition, epoch: i32| {
        let highest = highest_epochs.entry(partition.clone()).or_insert(epoch);
        *highest = epoch.max(*highest);
    };
    for directory in found {
        match directory {
            FoundDirectory::Partition { partition, path } => {
                let recovery_point = checkpoints.recovery_points.get(&partition);
                let sound_below = match clean {
                    true => i64::MAX,
                    false => recovery_point.unwrap_or(0).min(lowered_recovery_point(&path)?),
                };
                let compacted = checkpoints.cleaner_offsets.get(&partition).is_some();
                let (mut log, highest_epoch) = survey_log(&partition, &path, sound_below, compacted)?;
                let high_watermark = checkpoints.high_watermarks.get(&partition);
                log.committed = high_watermark.max(checkpoints.log_starts.get(&partition)).unwrap_or(0);
                log.precedence = precedence(read_generation(&path)?, high_watermark, recovery_point);
                count(&partition, highest_epoch);
                logs.push(log);
            }
            FoundDirectory::ToDelete { path }
            | FoundDirectory::Stray { path }
            | FoundDirectory::Future { path, .. } => {
                if let Some(partition) = partition_set_aside(&path) {
                    count(&partition, survey_log(&partition, &path, i64::MAX, true)?.1);
                }
                set_aside.push(path);
            }
        }
    }
    Ok(SurveyedDirectory {
        path: path.to_owned(),
        broker_id: meta.as_ref().and_then(|meta| meta.broker_id),
        cluster_id: meta.and_then(|meta| meta.cluster_id),
        incarnation: Incarnation::read(path)?,
        logs,
        set_aside,
        highest_epochs,
        _lock: lock,
    })
}

/// A truncation may have left it; a damaged one says that nothing is sound.
fn lowered_recovery_point(log: &Path) -> Result<i64, StorageError> {
    let text = read_if_present(&log.join(LOWERED_RECOVERY_POINT))?;
    Ok(text.map_or(i64::MAX, |text| String::from_utf8_lossy(&text).trim().parse().unwrap_or(0)))
}

/// `sound_below`: everything below this offset is known to be on disk; the broker checks the rest when it starts, and
/// cuts at the first batch that is not sound. So does this. Returns also the highest leader epoch that the log has heard of,
/// -1 for none.
fn survey_log(
    partition: &TopicPartition,
    path: &Path,
    sound_below: i64,
    compacted: bool,
) -> Result<(SurveyedLog, i32), StorageError> {
    let topic_id = read_topic_id(&path.join(PARTITION_METADATA))?.map(TopicId);
    let segments = files(path, LOG_SUFFIX)?;
    let first = segments.partition_point(|(base, _)| *base <= sound_below).saturating_sub(1);
    let mut end = segments.get(first).map_or(0, |(base, _)| *base);
    let recorded = read_epochs(&path.join(EPOCH_CHECKPOINT))?.unwrap_or_default();
    let mut history = LeaderEpochs::default();
    for entry in recorded.iter().filter(|entry| entry.start_offset < end) {
        history.assign(entry.leader_epoch, entry.start_offset);
    }
    let (mut last_batch_epoch, mut highest_producer_id) = (-1, -1);
    let mut whole = true;
    for (position, (base, segment)) in segments.iter().enumerate().skip(first) {
        // Compaction leaves gaps; elsewhere the end of a segment that was not synced is lost.
        if !whole || first < position && end < *base && !compacted {
            break;
        }
        end = *base;
        for batch in BatchReader::open(segment)? {
            match batch? {
                Ok(batch) if batch.crc.is_ok() && end <= batch.header.base_offset => {
                    end = batch.header.next_offset();
                    last_batch_epoch = batch.header.partition_leader_epoch;
                    if 0 <= last_batch_epoch && 0 <= batch.header.base_offset {
                        history.assign(last_batch_epoch, batch.header.base_offset);
                    }
                    highest_producer_id = highest_producer_id.max(batch.header.producer_id);
                }
                _ => whole = false,
            }
            if !whole {
                break;
            }
        }
    }
    for (_, snapshot) in files(path, SNAPSHOT_SUFFIX)? {
        let producers = read_snapshot(&snapshot)?.unwrap_or_default();
        highest_producer_id =
            producers.iter().map(|producer| producer.producer_id).fold(highest_producer_id, i64::max);
    }
    let highest = recorded.iter().map(|entry| entry.leader_epoch).max().unwrap_or(-1);
    let of_records = recorded.iter().rfind(|entry| entry.start_offset < end);
    let of_end = recorded.iter().rfind(|entry| entry.start_offset <= end);
    let last_epoch = of_records.or(of_end).map_or(-1, |entry| entry.leader_epoch);
    let log = SurveyedLog {
        partition: partition.clone(),
        topic_id,
        last_epoch: last_epoch.max(last_batch_epoch),
        history,
        log_end_offset: end,
        committed: 0,
        precedence: (0, None),
        highest_producer_id,
        compacted,
    };
    Ok((log, highest.max(last_batch_epoch)))
}

/// Files of a log whose names are an offset and this suffix, in the order of the offsets.
fn files(directory: &Path, suffix: &str) -> Result<Vec<(i64, PathBuf)>, StorageError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).storage("list", directory)? {
        let path = entry.storage("list", directory)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(Ok(offset)) = name.strip_suffix(suffix).map(str::parse) {
            found.push((offset, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::copying::GENERATION;
    use crate::log::epochs::EpochEntry;
    use crate::log::test_batches::{BatchSpec, batch};
    use crate::log::{LogConfig, LogDirectory, OpenMode, PartitionLog};

    const NOW: i64 = 1_000;

    fn write_log(directory: &Path) -> PartitionLog {
        let config = LogConfig { segment_bytes: 400, ..LogConfig::default() };
        let id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        let mut log = PartitionLog::create(&directory.join("t-3"), Some(id.0), config, NOW).unwrap();
        for (leader_epoch, sequence) in [(2, 0), (2, 4), (5, 8)] {
            log.assign_epoch_start(leader_epoch).unwrap();
            let batch =
                batch(&BatchSpec { records: 4, producer: Some((77, 0, sequence)), ..BatchSpec::default() });
            log.append_as_leader(&batch, leader_epoch, NOW).unwrap();
        }
        // A leader that took office and wrote nothing.
        log.assign_epoch_start(8).unwrap();
        log
    }

    #[test]
    fn a_log_is_seen_as_its_broker_will_find_it() {
        let directory = tempfile::tempdir().unwrap();
        LogDirectory::open(directory.path()).unwrap().claim(4, "c").unwrap();
        drop(write_log(directory.path()));
        let found = survey_directory(directory.path()).unwrap();
        assert_eq!((found.broker_id, found.cluster_id.as_deref()), (Some(4), Some("c")));
        let [log] = found.logs.as_slice() else { panic!("{:?}", found.logs) };
        assert_eq!(log.partition, TopicPartition::new("t", 3));
        assert_eq!((log.last_epoch, log.log_end_offset, log.highest_producer_id), (5, 12, 77));
        assert_eq!(found.highest_epochs, BTreeMap::from([(log.partition.clone(), 8)]));
        let entry = |leader_epoch, start_offset| EpochEntry { leader_epoch, start_offset };
        assert_eq!(log.history.entries(), [entry(2, 0), entry(5, 8)]);
        assert!(matches!(LogDirectory::open(directory.path()), Err(DirectoryError::Locked { .. })));
        assert!(matches!(survey_directory(directory.path()), Err(DirectoryError::Locked { .. })));
    }

    #[test]
    fn a_torn_end_counts_as_recovery_will_leave_it() {
        let directory = tempfile::tempdir().unwrap();
        LogDirectory::open(directory.path()).unwrap().claim(4, "c").unwrap();
        drop(write_log(directory.path()));
        let path = directory.path().join("t-3");
        let (_, last) = files(&path, LOG_SUFFIX).unwrap().pop().unwrap();
        let bytes = std::fs::read(&last).unwrap();
        std::fs::write(&last, &bytes[..bytes.len() - 1]).unwrap();
        let mut found = survey_directory(directory.path()).unwrap();
        let surveyed = found.logs.remove(0);
        let recovered = PartitionLog::open(&path, LogConfig::default(), OpenMode::UNKNOWN, NOW).unwrap();
        assert_eq!(surveyed.log_end_offset, recovered.log_end_offset());
        assert_eq!((surveyed.last_epoch, found.highest_epochs[&surveyed.partition]), (2, 8));
    }

    #[test]
    fn checkpoints_tell_what_was_committed_and_which_of_two_logs_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let mut opened = LogDirectory::open(directory.path()).unwrap();
        opened.claim(4, "c").unwrap();
        drop(write_log(directory.path()));
        let id = TopicPartition::new("t", 3);
        opened.checkpoints.high_watermarks.set(&id, 9);
        opened.checkpoints.recovery_points.set(&id, 11);
        opened.checkpoints.write().unwrap();
        drop(opened);
        std::fs::write(directory.path().join("t-3").join(GENERATION), "2").unwrap();
        let surveyed = survey_directory(directory.path()).unwrap().logs.remove(0);
        assert_eq!((surveyed.committed, surveyed.precedence), (9, (2, Some(11))));
    }

    #[test]
    fn epochs_of_logs_that_are_set_aside_count_too() {
        let directory = tempfile::tempdir().unwrap();
        LogDirectory::open(directory.path()).unwrap().claim(4, "c").unwrap();
        for (partition, ending) in [(5, "stray"), (6, "delete"), (7, "future")] {
            drop(write_log(directory.path()));
            let name = format!("t-{partition}.{:032x}-{ending}", 1);
            std::fs::rename(directory.path().join("t-3"), directory.path().join(name)).unwrap();
        }
        let found = survey_directory(directory.path()).unwrap();
        assert_eq!((found.logs.len(), found.set_aside.len()), (0, 3));
        let expected = [5, 6, 7].map(|partition| (TopicPartition::new("t", partition), 8));
        assert_eq!(found.highest_epochs, BTreeMap::from(expected));
    }
}
