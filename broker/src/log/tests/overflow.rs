//! Offsets in one segment too far from its base for relative offsets of 32 bits (LOG-03).

use std::path::Path;

use bytes::Bytes;
use zurau_common::config::CleanupPolicy;

use crate::log::faults::Machine;
use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{Batches, LogConfig, OpenMode, PartitionLog};

const NOW: i64 = 1_000_000;
const FAR: i64 = 1 << 31;
/// The third is the first too far from 0, the fifth the first too far from the third.
const BASES: [i64; 6] = [0, FAR - 1, FAR + 5, FAR + 6, 2 * FAR + 5, 2 * FAR + 6];

fn compacted() -> LogConfig {
    LogConfig { cleanup_policy: CleanupPolicy { compact: true, delete: false }, ..LogConfig::default() }
}

fn batches() -> Vec<Bytes> {
    BASES
        .iter()
        .map(|base_offset| batch(&BatchSpec { base_offset: *base_offset, ..BatchSpec::default() }))
        .collect()
}

fn contents(log: &PartitionLog) -> Vec<i64> {
    let mut found = Vec::new();
    let mut offset = log.log_start_offset();
    while offset < log.log_end_offset() {
        let bytes = log.read_plan(offset, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
        for batch in Batches::new(&bytes) {
            found.push(batch.unwrap().0.base_offset);
        }
        offset = found.last().unwrap() + 1;
    }
    found
}

/// The log of a broker whose cleaner did not know better: everything in one segment.
fn craft(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    std::fs::write(path.join(format!("{:020}.log", 0)), batches().concat()).unwrap();
}

fn open(path: &Path, clean: bool) -> Result<PartitionLog, crate::log::LogError> {
    let mode = OpenMode { clean, recovery_point: -1, log_start_offset: 0 };
    PartitionLog::open(path, compacted(), mode, NOW)
}

fn assert_whole(log: &PartitionLog) {
    assert_eq!(contents(log), BASES);
    assert_eq!(log.segments.keys().copied().collect::<Vec<_>>(), [0, FAR + 5, 2 * FAR + 5]);
    for offset in BASES {
        let bytes = log.read_plan(offset, 1, i64::MAX, true).unwrap().read().unwrap();
        let (header, _) = Batches::new(&bytes).next().unwrap().unwrap();
        assert_eq!(header.base_offset, offset);
    }
}

#[test]
fn log_03_a_segment_with_offsets_too_far_from_its_base_is_split() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        craft(&path);
        assert_whole(&open(&path, clean).unwrap());
        for clean in [true, false] {
            assert_whole(&open(&path, clean).unwrap());
        }
    }
}

#[test]
fn log_03_a_stop_at_any_step_of_the_split_loses_nothing() {
    for power_lost in [false, true] {
        for changes in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("t-0");
            craft(&path);
            Machine::start(changes);
            // What was there before is on the disk.
            let file = std::fs::File::open(path.join(format!("{:020}.log", 0))).unwrap();
            crate::log::files::sync_file(&file, &path.join(format!("{:020}.log", 0))).unwrap();
            crate::log::files::sync_directory(&path).unwrap();
            Machine::stop_after(changes);
            let stopped = open(&path, false).is_err();
            Machine::restart();
            if power_lost && stopped {
                Machine::lose_unsynced(&path);
            }
            assert_whole(&open(&path, false).unwrap());
            if !stopped {
                assert!(changes > 10, "a split is many changes");
                break;
            }
        }
    }
}

#[test]
fn log_03_appends_roll_before_an_offset_is_too_far() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = PartitionLog::create(&path, None, compacted(), NOW).unwrap();
    log.append_as_follower(&Bytes::from(batches().concat()), NOW).unwrap();
    assert_eq!(contents(&log), BASES);
    assert!(log.segment_count() > 2);
    for segment in log.segments.values() {
        assert!(segment.read_next_offset().unwrap() - 1 - segment.base_offset <= i64::from(i32::MAX));
    }
    log.close().unwrap();
    assert_eq!(contents(&open(&path, true).unwrap()), BASES);
}
