//! Which segments go, when their files go, and lookups by time.

use std::fs;
use std::path::Path;

use zurau_common::config::CleanupPolicy;

use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{KeptBecause, LogConfig, OpenMode, PartitionLog};

const NOW: i64 = 1_000_000_000;
const HOUR: i64 = 3_600_000;

/// One batch of two records per segment.
fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 120,
        retention_ms: HOUR,
        file_delete_delay_ms: 1000,
        message_timestamp_after_max_ms: i64::MAX,
        ..LogConfig::default()
    }
}

fn append(log: &mut PartitionLog, timestamp: i64, now_ms: i64) {
    let bytes = batch(&BatchSpec { records: 2, timestamp, ..BatchSpec::default() });
    log.append_as_leader(&bytes, 0, now_ms).unwrap();
}

fn log_of(path: &Path, config: LogConfig, batches: i64) -> PartitionLog {
    let mut log = PartitionLog::create(path, None, config, NOW).unwrap();
    for index in 0..batches {
        append(&mut log, NOW + index, NOW + index);
    }
    assert_eq!(log.segment_count() as i64, batches);
    log
}

fn files(path: &Path, suffix: &str) -> usize {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
}

#[test]
fn hw_11_l5_by_time_but_never_above_the_high_watermark() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = log_of(&path, config(), 5);
    let later = NOW + 2 * HOUR;
    assert_eq!(log.apply_retention(later).unwrap(), 0, "nothing is committed (HW-11)");
    assert!(matches!(log.oldest_kept_because(later), Some(KeptBecause::AboveHighWatermark { .. })));
    log.update_high_watermark(5);
    assert_eq!(log.apply_retention(later).unwrap(), 2);
    assert_eq!(log.log_start_offset(), 4);
    assert_eq!(log.apply_retention(later).unwrap(), 0, "idempotent");
    assert_eq!((files(&path, ".log"), files(&path, ".log.deleted")), (3, 2));
    log.apply_retention(later + 1000).unwrap();
    assert_eq!(files(&path, ".deleted"), 0);
    log.update_high_watermark(10);
    assert_eq!(log.apply_retention(later + 1000).unwrap(), 3, "the active segment goes too");
    assert_eq!((log.log_start_offset(), log.log_end_offset(), log.segment_count()), (10, 10, 1));
    append(&mut log, later, later);
    assert_eq!(log.log_end_offset(), 12);
}

#[test]
fn log_14_timestamps_in_the_future_keep_nothing_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = PartitionLog::create(&directory.path().join("t-0"), None, config(), NOW).unwrap();
    append(&mut log, NOW + 10_000 * HOUR, NOW);
    append(&mut log, NOW, NOW);
    log.update_high_watermark(4);
    assert_eq!(log.apply_retention(NOW + HOUR).unwrap(), 0);
    assert_eq!(log.apply_retention(NOW + HOUR + 1).unwrap(), 2, "D8");
}

#[test]
fn by_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = log_of(&directory.path().join("t-0"), config(), 5);
    log.update_high_watermark(10);
    let one = log.size_bytes() as i64 / 5;
    log.set_config(LogConfig { retention_ms: -1, retention_bytes: 2 * one + 1, ..config() });
    log.apply_retention(NOW).unwrap();
    assert_eq!(log.segment_count(), 3, "what is left still reaches retention.bytes");
    log.set_config(LogConfig { retention_ms: -1, retention_bytes: -1, ..config() });
    assert_eq!(log.apply_retention(NOW + 1000 * HOUR).unwrap(), 0);
}

#[test]
fn log_20_below_the_log_start_under_any_policy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let compacted = LogConfig { cleanup_policy: CleanupPolicy { compact: true, delete: false }, ..config() };
    let mut log = log_of(&path, compacted.clone(), 5);
    log.update_high_watermark(10);
    assert_eq!(log.apply_retention(NOW + 1000 * HOUR).unwrap(), 0);
    log.advance_log_start_offset(5).unwrap();
    assert_eq!(log.apply_retention(NOW).unwrap(), 2);
    assert_eq!(log.apply_retention(NOW).unwrap(), 0, "idempotent");
    assert_eq!(log.log_start_offset(), 5, "in the middle of a batch");
    assert!(log.read_plan(4, 100, 10, true).is_err());
    drop(log);
    let mode = OpenMode { log_start_offset: 5, ..OpenMode::UNKNOWN };
    let log = PartitionLog::open(&path, compacted, mode, NOW).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset(), log.segment_count()), (5, 10, 3));
    assert_eq!(files(&path, ".deleted"), 0);
}

#[test]
fn log_19_all_records_deleted_and_restarted() {
    let directory = tempfile::tempdir().unwrap();
    for clean in [true, false] {
        let path = directory.path().join(format!("t-{}", i32::from(clean)));
        let mut log = log_of(&path, config(), 3);
        log.update_high_watermark(6);
        log.advance_log_start_offset(6).unwrap();
        log.apply_retention(NOW).unwrap();
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 6 };
        let mut log = PartitionLog::open(&path, config(), mode, NOW).unwrap();
        append(&mut log, NOW, NOW);
        assert_eq!((log.log_start_offset(), log.log_end_offset()), (6, 8), "LOG-19, clean {clean}");
    }
}

#[test]
fn log_02_files_gone_by_hand_start_an_empty_log_at_the_log_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    drop(log_of(&path, config(), 3));
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().ends_with(".log") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let mode = OpenMode { log_start_offset: 4, ..OpenMode::UNKNOWN };
    let log = PartitionLog::open(&path, config(), mode, NOW).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (4, 4), "LOG-02");
    assert_eq!(files(&path, ".index"), 1, "orphaned indexes are gone");
}

#[test]
fn deletion_of_the_whole_partition() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = log_of(&path, config(), 3);
    let plan = log.read_plan(0, 1 << 20, 6, true).unwrap();
    log.rename_for_deletion().unwrap();
    let renamed = log.directory().to_owned();
    assert!(renamed.is_dir() && !path.exists());
    let name = renamed.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("t-0.") && name.ends_with("-delete") && name.len() == "t-0.-delete".len() + 32,
        "{name}"
    );
    assert!(!log.read_plan(2, 1 << 20, 6, true).unwrap().read().unwrap().is_empty());
    log.delete().unwrap();
    assert!(!renamed.exists());
    assert!(!plan.read().unwrap().is_empty(), "a plan made before can still be read");
}

#[test]
fn segments_roll_by_time() {
    let directory = tempfile::tempdir().unwrap();
    let roomy = LogConfig { segment_bytes: 1 << 20, segment_ms: 100, ..config() };
    let mut log = PartitionLog::create(&directory.path().join("t-0"), None, roomy, NOW).unwrap();
    //   timestamp, segments after the append
    for (timestamp, segments) in [(NOW, 1), (NOW + 50, 1), (NOW + 100, 1), (NOW + 101, 2), (NOW + 150, 2)] {
        append(&mut log, timestamp, NOW);
        assert_eq!(log.segment_count(), segments, "{timestamp}");
    }
}
