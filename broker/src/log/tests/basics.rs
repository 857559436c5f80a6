//! Append, read, roll, truncate, restart.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{
    BatchHeader, Batches, Disk, EpochEnd, EpochEntry, LogConfig, OpenMode, PartitionLog, ReadError,
    bytes_to_recover,
};

const NOW: i64 = 2_000_000;

const CLEAN: OpenMode = OpenMode { clean: true, recovery_point: 0, log_start_offset: 0 };

fn small_segments() -> LogConfig {
    LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() }
}

fn create(path: &Path, config: LogConfig) -> PartitionLog {
    PartitionLog::create(path, None, config, NOW).unwrap()
}

fn append(log: &mut PartitionLog, records: i32, epoch: i32) -> i64 {
    let bytes = batch(&BatchSpec { records, timestamp: NOW, ..BatchSpec::default() });
    log.append_as_leader(&bytes, epoch, NOW).unwrap().first_offset
}

/// Base and last offset of every batch from `offset` on.
fn read(log: &PartitionLog, offset: i64, max_bytes: usize, upper: i64) -> Vec<(i64, i64)> {
    let bytes = log.read_plan(offset, max_bytes, upper, true).unwrap().read().unwrap();
    headers(&bytes).iter().map(|header| (header.base_offset, header.last_offset())).collect()
}

fn headers(bytes: &Bytes) -> Vec<BatchHeader> {
    Batches::new(bytes).map(|batch| batch.unwrap().0).collect()
}

/// Every batch, over all segments.
fn read_all(log: &PartitionLog) -> Vec<(i64, i64)> {
    let mut offset = log.log_start_offset();
    let mut all = Vec::new();
    while offset < log.log_end_offset() {
        let part = read(log, offset, 1 << 20, i64::MAX);
        let Some((_, last)) = part.last() else { break };
        offset = last + 1;
        all.extend(part);
    }
    all
}

#[test]
fn append_stamps_offset_and_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"), LogConfig::default());
    assert_eq!(append(&mut log, 3, 7), 0);
    assert_eq!(append(&mut log, 2, 7), 3);
    assert_eq!(log.log_end_offset(), 5);
    let bytes = log.read_plan(4, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
    let header = headers(&bytes)[0];
    assert_eq!((header.base_offset, header.partition_leader_epoch), (3, 7));
    crate::log::check_crc(&header, &bytes).unwrap();
}

#[test]
fn read_limits() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"), LogConfig::default());
    for _ in 0..4 {
        append(&mut log, 2, 0);
    }
    let one = log.size_bytes() as usize / 4;
    type Expected = &'static [(i64, i64)];
    //   offset, max bytes, upper bound, expected batches
    let rows: [(i64, usize, i64, Expected); 9] = [
        (0, 1 << 20, 8, &[(0, 1), (2, 3), (4, 5), (6, 7)]),
        (3, 1 << 20, 8, &[(2, 3), (4, 5), (6, 7)]),
        (0, 2 * one, 8, &[(0, 1), (2, 3)]),
        (0, 2 * one + 60, 8, &[(0, 1), (2, 3)]),
        (0, 1, 8, &[(0, 1)]),
        (0, 1 << 20, 4, &[(0, 1), (2, 3)]),
        (0, 1 << 20, 5, &[(0, 1), (2, 3)]), // the bound is in the middle of a batch
        (8, 1 << 20, 8, &[]),
        (4, 1 << 20, 4, &[]),
    ];
    for (offset, max_bytes, upper, expected) in rows {
        assert_eq!(read(&log, offset, max_bytes, upper), expected, "{offset} {max_bytes} {upper}");
    }
    assert!(log.read_plan(0, 1, 8, false).unwrap().is_empty(), "without the first-batch rule");
    for offset in [-1, 9] {
        let error = log.read_plan(offset, 100, 8, true).unwrap_err();
        assert!(matches!(error, ReadError::OffsetOutOfRange { .. }), "{offset}: {error}");
    }
}

#[test]
fn rolls_and_survives_a_clean_and_an_unclean_restart() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let mut log = create(&path, small_segments());
        for _ in 0..20 {
            append(&mut log, 2, 3);
        }
        assert!(log.segment_count() > 3);
        let before = read_all(&log);
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
        let mut log = PartitionLog::open(&path, small_segments(), mode, NOW).unwrap();
        assert_eq!(log.log_end_offset(), 40);
        assert_eq!(read_all(&log), before, "clean {clean}");
        assert_eq!(log.latest_epoch(), Some(3));
        assert_eq!(append(&mut log, 1, 3), 40);
    }
}

#[test]
fn r18_follower_takes_only_what_continues_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"), LogConfig::default());
    let at = |base_offset, leader_epoch| {
        batch(&BatchSpec { base_offset, leader_epoch, records: 5, ..BatchSpec::default() })
    };
    log.append_as_follower(&at(0, 2), NOW).unwrap();
    for wrong in [0, 3, 6] {
        assert!(log.append_as_follower(&at(wrong, 2), NOW).is_err(), "{wrong}");
    }
    let mut damaged = at(5, 2).to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    assert!(log.append_as_follower(&Bytes::from(damaged), NOW).is_err());
    let mut half = at(5, 4).to_vec();
    half.extend_from_slice(&at(10, 4)[..70]);
    log.append_as_follower(&Bytes::from(half), NOW).unwrap();
    assert_eq!(log.log_end_offset(), 10);
    assert_eq!(log.end_offset_for_epoch(2), EpochEnd { leader_epoch: 2, end_offset: 5 });
    assert_eq!(log.end_offset_for_epoch(4), EpochEnd { leader_epoch: 4, end_offset: 10 });
}

#[test]
fn log_18_follower_accepts_a_batch_that_covers_its_log_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, LogConfig::default());
    log.truncate_fully_and_start_at(105).unwrap();
    let bytes = batch(&BatchSpec { base_offset: 100, records: 10, ..BatchSpec::default() });
    log.append_as_follower(&bytes, NOW).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (105, 110));
    assert_eq!(read(&log, 105, 1 << 20, 110), [(100, 109)]);
    assert!(log.read_plan(104, 1, 110, true).is_err());
    drop(log);
    let mode = OpenMode { log_start_offset: 105, ..OpenMode::UNKNOWN };
    let log = PartitionLog::open(&path, LogConfig::default(), mode, NOW).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (105, 110));
}

#[test]
fn truncation_cuts_at_batch_boundaries_and_epochs_follow() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"), small_segments());
    for epoch in 0..10 {
        append(&mut log, 2, epoch);
    }
    log.update_high_watermark(20);
    assert_eq!(log.truncate_to(15).unwrap(), 14);
    assert_eq!((log.log_end_offset(), log.high_watermark()), (14, 14));
    assert_eq!(log.latest_epoch(), Some(6));
    assert_eq!(append(&mut log, 2, 12), 14);
    assert_eq!(log.truncate_to(6).unwrap(), 6);
    assert_eq!(read_all(&log), [(0, 1), (2, 3), (4, 5)]);
    assert_eq!(log.truncate_to(0).unwrap(), 0);
    assert_eq!(append(&mut log, 1, 12), 0);
}

#[test]
fn hw_06_leader_epoch_is_recorded_before_the_first_append() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, LogConfig::default());
    append(&mut log, 10, 1);
    log.assign_epoch_start(3).unwrap();
    assert_eq!(log.end_offset_for_epoch(2), EpochEnd { leader_epoch: 1, end_offset: 10 });
    drop(log);
    let text = std::fs::read_to_string(path.join("leader-epoch-checkpoint")).unwrap();
    assert_eq!(text, "0\n2\n1 0\n3 10\n");
}

#[test]
fn epochs_of_records_are_written_no_later_than_the_records_are_synced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, LogConfig::default());
    let disk = Disk::watch(&path);
    for epoch in [1, 4, 7] {
        append(&mut log, 2, epoch);
    }
    let history = log.epoch_entries().to_vec();
    assert_eq!((history.len(), disk.synced_files()), (3, 0), "a follower's append waits for no disk");
    let file = path.join("leader-epoch-checkpoint");
    assert!(!file.exists());
    // A kill: the records tell.
    let killed = directory.path().join("killed");
    std::fs::create_dir(&killed).unwrap();
    let records = "00000000000000000000.log";
    std::fs::copy(path.join(records), killed.join(records)).unwrap();
    std::fs::write(killed.join("leader-epoch-checkpoint"), "0\n1\n1 0\n").unwrap();
    let opened = PartitionLog::open(&killed, LogConfig::default(), OpenMode::UNKNOWN, NOW).unwrap();
    assert_eq!(opened.epoch_entries(), history);
    // Found again, they are written as if they had just been appended.
    opened.close().unwrap();
    let opened = PartitionLog::open(&killed, LogConfig::default(), CLEAN, NOW).unwrap();
    assert_eq!(opened.epoch_entries(), history);
    log.flush().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n3\n1 0\n4 2\n7 4\n");
    // What contradicts the file is written before the record: a recovery would believe the file.
    log.assign_epoch_start(9).unwrap();
    append(&mut log, 2, 8);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n4\n1 0\n4 2\n7 4\n8 6\n");
}

#[test]
fn hw_06_an_epoch_that_is_recorded_beside_the_log_comes_back_unless_records_contradict_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, LogConfig::default());
    append(&mut log, 10, 1);
    log.assign_epoch_start(3).unwrap();
    let disk = Disk::watch(&path);
    let begun = log.begin_epoch(5).unwrap();
    assert_eq!((begun.leader_epoch, begun.start_offset, disk.synced_files()), (5, 10, 0));
    assert_eq!(log.latest_epoch(), Some(5));
    drop(log);
    let reopen = |recorded: &[(i32, i64)]| {
        let mut log = PartitionLog::open(&path, LogConfig::default(), OpenMode::UNKNOWN, NOW).unwrap();
        for (leader_epoch, start_offset) in recorded.iter().copied() {
            log.restore_epoch(EpochEntry { leader_epoch, start_offset });
        }
        log
    };
    let entries = |log: &PartitionLog| -> Vec<(i32, i64)> {
        log.epoch_entries().iter().map(|entry| (entry.leader_epoch, entry.start_offset)).collect()
    };
    assert_eq!(entries(&reopen(&[])), [(1, 0), (3, 10)], "the file is as it was");
    let mut log = reopen(&[(begun.leader_epoch, begun.start_offset)]);
    assert_eq!(entries(&log), [(1, 0), (5, 10)]);
    // Older than what the log knows, above its end, or followed by records: it says nothing.
    for recorded in [(2, 10), (5, 11), (5, 9), (5, 0)] {
        assert_eq!(entries(&reopen(&[recorded])), [(1, 0), (3, 10)], "{recorded:?}");
    }
    // The records tell of the epoch themselves, until the file does.
    append(&mut log, 2, 5);
    drop(log);
    let mut log = reopen(&[(5, 10)]);
    assert_eq!(entries(&log), [(1, 0), (5, 10)]);
    log.flush().unwrap();
    let text = std::fs::read_to_string(path.join("leader-epoch-checkpoint")).unwrap();
    assert_eq!(text, "0\n2\n1 0\n5 10\n");
}

#[test]
fn l2_a_truncation_lowers_the_recovery_point_before_the_checkpoint_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, small_segments());
    for _ in 0..10 {
        append(&mut log, 2, 0);
    }
    log.flush().unwrap();
    let checkpointed = log.recovery_point();
    assert_eq!(checkpointed, 20);
    log.truncate_to(6).unwrap();
    for _ in 0..10 {
        append(&mut log, 2, 1);
    }
    let rolled = log.sealed_flush_plan().unwrap().unwrap();
    assert!(rolled.up_to() > 6 && rolled.up_to() < 26);
    drop(log);
    // The power fails: a batch of the first segment, below the recovery point of the checkpoint, became zeros.
    let first = path.join("00000000000000000000.log");
    let length = std::fs::metadata(&first).unwrap().len();
    let file = std::fs::File::options().write(true).open(&first).unwrap();
    file.set_len(length - 10).unwrap();
    file.set_len(length).unwrap();
    let mode = OpenMode { clean: false, recovery_point: checkpointed, log_start_offset: 0 };
    let mut log = PartitionLog::open(&path, small_segments(), mode, NOW).unwrap();
    assert_eq!(read_all(&log).last().unwrap().1 + 1, log.log_end_offset());
    assert!(log.log_end_offset() < 20, "{}", log.log_end_offset());
    for _ in 0..20 {
        append(&mut log, 2, 1);
    }
    log.flush().unwrap();
    assert!(!path.join("lowered-recovery-point").exists());
}

#[test]
fn a_start_knows_beforehand_what_recovery_will_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path, small_segments());
    for _ in 0..20 {
        append(&mut log, 2, 0);
    }
    let size_bytes = log.size_bytes();
    let bases: Vec<i64> = log.segments.keys().copied().collect();
    log.close().unwrap();
    //   clean, recovery point, the base of the first segment that is read (none if beyond the end)
    for (clean, recovery_point, first) in [
        (true, 0, 99),
        (false, -1, 0),
        (false, 0, 0),
        (false, bases[2] + 1, bases[2]),
        (false, 40, bases[bases.len() - 1]),
    ] {
        let mode = OpenMode { clean, recovery_point, log_start_offset: 0 };
        let planned = bytes_to_recover(&path, mode).unwrap();
        let scanned = AtomicU64::new(0);
        let log = PartitionLog::open_counting(&path, small_segments(), mode, NOW, &scanned).unwrap();
        let expected: u64 = log.segments.range(first..).map(|(_, segment)| segment.size_bytes).sum();
        assert_eq!((planned, scanned.into_inner()), (expected, expected), "{mode:?}");
        assert_eq!(log.size_bytes(), size_bytes);
    }
}

#[test]
fn sealed_segments_are_flushed_apart() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"), small_segments());
    assert!(log.sealed_flush_plan().unwrap().is_none());
    for _ in 0..10 {
        append(&mut log, 2, 0);
    }
    let plan = log.sealed_flush_plan().unwrap().unwrap();
    let result = plan.run();
    log.finish_flush(&plan, result, NOW).unwrap();
    assert_eq!(log.recovery_point(), plan.up_to());
    assert!(log.recovery_point() < log.log_end_offset());
    assert!(log.sealed_flush_plan().unwrap().is_none());
}
