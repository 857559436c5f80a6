//! Idempotent and transactional producers, through a whole log.

use std::path::Path;

use bytes::Bytes;

use crate::log::faults::Machine;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{
    AbortedTransaction, AppendError, AppendInfo, AppendOrigin, LogConfig, OpenMode, PartitionLog,
};

const NOW: i64 = 2_000_000;

fn create(path: &Path) -> PartitionLog {
    PartitionLog::create(path, None, LogConfig::default(), NOW).unwrap()
}

fn data(producer: (i64, i16, i32), records: i32) -> Bytes {
    batch(&BatchSpec { producer: Some(producer), records, timestamp: NOW, ..BatchSpec::default() })
}

fn transactional(producer: (i64, i16, i32), records: i32) -> Bytes {
    batch(&BatchSpec {
        producer: Some(producer),
        records,
        transactional: true,
        timestamp: NOW,
        ..BatchSpec::default()
    })
}

fn append(log: &mut PartitionLog, bytes: &Bytes) -> Result<AppendInfo, AppendError> {
    log.append_as_leader(bytes, 0, NOW)
}

fn end(log: &mut PartitionLog, commit: bool, producer: (i64, i16), coordinator_epoch: i32) {
    let bytes = marker(commit, producer, coordinator_epoch, NOW);
    log.append_with_origin(&bytes, 0, AppendOrigin::Coordinator, NOW).unwrap();
}

#[test]
fn txn_03_retries_of_the_last_five_batches_are_answered_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    for sequence in 0..7 {
        append(&mut log, &data((1, 0, sequence * 2), 2)).unwrap();
    }
    for sequence in 2..7 {
        let info = append(&mut log, &data((1, 0, sequence * 2), 2)).unwrap();
        assert!(info.duplicate);
        assert_eq!(
            (info.first_offset, info.last_offset),
            (i64::from(sequence) * 2, i64::from(sequence) * 2 + 1)
        );
    }
    let old = append(&mut log, &data((1, 0, 2), 2)).unwrap_err();
    assert!(matches!(old, AppendError::OutOfOrderSequence { expected: 14, .. }), "{old}");
    let regrouped = append(&mut log, &data((1, 0, 7), 4)).unwrap_err();
    assert!(matches!(regrouped, AppendError::DuplicateSequence { .. }), "{regrouped}");
    assert_eq!(log.log_end_offset(), 14);
}

#[test]
fn d9_an_unknown_producer_does_not_leap_over_its_batch_that_was_turned_away() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    log.turn_away((1, 0), 0, NOW);
    let second = append(&mut log, &data((1, 0, 2), 2)).unwrap_err();
    assert!(matches!(second, AppendError::OutOfOrderSequence { expected: 0, .. }), "{second}");
    append(&mut log, &data((1, 0, 0), 2)).unwrap();
    append(&mut log, &data((1, 0, 2), 2)).unwrap();

    log.turn_away((1, 0), 4, NOW);
    append(&mut log, &data((1, 0, 4), 2)).expect("a known producer is held to its sequence alone");
    append(&mut log, &data((1, 0, 6), 2)).unwrap();
}

#[test]
fn txn_05_sequences_and_epochs() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    append(&mut log, &data((1, 3, 500), 2)).expect("an unknown producer starts anywhere (D9)");
    let gap = append(&mut log, &data((1, 3, 503), 1)).unwrap_err();
    assert!(matches!(gap, AppendError::OutOfOrderSequence { expected: 502, .. }), "{gap}");
    let old_epoch = append(&mut log, &data((1, 2, 502), 1)).unwrap_err();
    assert!(matches!(old_epoch, AppendError::InvalidProducerEpoch { current: 3, .. }), "{old_epoch}");
    let not_zero = append(&mut log, &data((1, 4, 502), 1)).unwrap_err();
    assert!(matches!(not_zero, AppendError::OutOfOrderSequence { expected: 0, .. }), "{not_zero}");
    append(&mut log, &data((1, 4, 0), 1)).unwrap();
    append(&mut log, &data((2, 0, i32::MAX - 1), 2)).unwrap();
    append(&mut log, &data((2, 0, 0), 1)).expect("0 follows 2^31-1 (TXN-05)");
    append(&mut log, &data((3, 0, i32::MAX), 3)).unwrap();
    append(&mut log, &data((3, 0, 2), 1)).expect("the wrap was inside a batch");
}

#[test]
fn t1_t3_state_survives_clean_and_unclean_restarts() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let mut log = create(&path);
        append(&mut log, &data((1, 0, 0), 3)).unwrap();
        append(&mut log, &transactional((2, 5, 0), 2)).unwrap();
        log.update_high_watermark(5);
        assert_eq!(log.last_stable_offset(), 3);
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
        let mut log = PartitionLog::open(&path, LogConfig::default(), mode, NOW).unwrap();
        log.update_high_watermark(5);
        assert_eq!(log.last_stable_offset(), 3, "clean {clean}");
        assert!(append(&mut log, &data((1, 0, 0), 3)).unwrap().duplicate);
        append(&mut log, &data((1, 0, 3), 1)).unwrap();
    }
}

#[test]
fn aborted_transactions_are_listed_and_bound_the_stable_offset() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    append(&mut log, &transactional((1, 0, 0), 2)).unwrap(); // 0, 1
    append(&mut log, &transactional((2, 0, 0), 2)).unwrap(); // 2, 3
    end(&mut log, false, (1, 0), 0); // 4
    log.update_high_watermark(4);
    assert_eq!(log.last_stable_offset(), 0, "the marker is not committed yet");
    log.update_high_watermark(5);
    assert_eq!(log.last_stable_offset(), 2);
    end(&mut log, true, (2, 0), 0); // 5
    append(&mut log, &transactional((1, 0, 2), 1)).unwrap(); // 6
    end(&mut log, false, (1, 0), 1); // 7
    log.update_high_watermark(8);
    assert_eq!(log.last_stable_offset(), 8);
    let entry = |first_offset, last_offset, last_stable_offset| AbortedTransaction {
        producer_id: 1,
        first_offset,
        last_offset,
        last_stable_offset,
    };
    let (first, second) = (entry(0, 4, 2), entry(6, 7, 8));
    //   from, upper, listed
    let rows = [(0, 8, vec![first, second]), (0, 2, vec![first]), (5, 8, vec![second]), (5, 6, vec![])];
    for (from, upper, expected) in &rows {
        assert_eq!(log.aborted_transactions(*from, *upper).unwrap(), *expected, "{from}..{upper}");
    }
    drop(log);
    let log = PartitionLog::open(&path, LogConfig::default(), OpenMode::UNKNOWN, NOW).unwrap();
    assert_eq!(log.aborted_transactions(0, 8).unwrap(), [first, second], "rebuilt by recovery");
}

#[test]
fn t3_a_transaction_decided_above_the_high_watermark_stays_undecided_after_a_restart() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let config = LogConfig { segment_bytes: 300, ..LogConfig::default() };
        let mut log = PartitionLog::create(&path, None, config.clone(), NOW).unwrap();
        append(&mut log, &data((9, 0, 0), 1)).unwrap(); // 0
        append(&mut log, &transactional((1, 0, 0), 2)).unwrap(); // 1, 2
        append(&mut log, &transactional((2, 0, 0), 1)).unwrap(); // 3
        end(&mut log, true, (1, 0), 0); // 4
        end(&mut log, false, (2, 0), 0); // 5
        for sequence in 1..9 {
            append(&mut log, &data((9, 0, sequence), 1)).unwrap();
        }
        assert!(log.snapshots.last().is_some_and(|latest| *latest > 5), "a snapshot behind the markers");
        log.update_high_watermark(4);
        assert_eq!(log.last_stable_offset(), 1);
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
        let mut log = PartitionLog::open(&path, config, mode, NOW).unwrap();
        log.restore_high_watermark(4).unwrap();
        //   high watermark, last stable offset
        for (high_watermark, expected) in [(4, 1), (5, 3), (6, 6), (14, 14)] {
            log.update_high_watermark(high_watermark);
            assert_eq!(log.last_stable_offset(), expected, "{high_watermark}, clean {clean}");
        }
        // The same after a truncation.
        log.update_high_watermark(4);
        log.truncate_to(9).unwrap();
        assert_eq!((log.high_watermark(), log.last_stable_offset()), (4, 1), "clean {clean}");
    }
}

#[test]
fn txn_04_followers_and_recovery_adopt_any_sequence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    let at = |base_offset, sequence, epoch| {
        batch(&BatchSpec {
            base_offset,
            producer: Some((1, epoch, sequence)),
            timestamp: NOW,
            ..BatchSpec::default()
        })
    };
    //   sequence, producer epoch: unknown producer, gap, repetition, older epoch
    for (offset, (sequence, epoch)) in [(500, 3), (700, 3), (700, 3), (0, 2)].into_iter().enumerate() {
        log.append_as_follower(&at(offset as i64, sequence, epoch), NOW).unwrap();
    }
    assert_eq!(log.log_end_offset(), 4);
    let state = log.producers.encode();
    drop(log);
    let log = PartitionLog::open(&path, LogConfig::default(), OpenMode::UNKNOWN, NOW).unwrap();
    assert_eq!((log.log_end_offset(), log.producers.encode()), (4, state));
}

#[test]
fn txn_05_a_wrapped_sequence_survives_snapshots_and_recovery() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let mut log = create(&path);
        append(&mut log, &data((1, 0, i32::MAX - 1), 4)).unwrap();
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
        let mut log = PartitionLog::open(&path, LogConfig::default(), mode, NOW).unwrap();
        assert!(append(&mut log, &data((1, 0, i32::MAX - 1), 4)).unwrap().duplicate, "clean {clean}");
        append(&mut log, &data((1, 0, 2), 1)).expect("2^31-2, 2^31-1, 0, 1, then 2");
    }
}

#[test]
fn txn_06_an_append_that_fails_leaves_no_state() {
    for changes in 1..12 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        Machine::start(1);
        let config = LogConfig { segment_bytes: 100, ..LogConfig::default() };
        let mut log = PartitionLog::create(&path, None, config.clone(), NOW).unwrap();
        append(&mut log, &data((1, 0, 0), 1)).unwrap();
        let state = log.producers.encode();
        Machine::stop_after(changes);
        let failed = append(&mut log, &data((1, 0, 1), 1)).is_err();
        Machine::restart();
        if failed {
            assert_eq!((log.producers.encode(), log.log_end_offset()), (state, 1), "after {changes} changes");
        }
        drop(log);
        let mut log = PartitionLog::open(&path, config, OpenMode::UNKNOWN, NOW).unwrap();
        let retried = append(&mut log, &data((1, 0, 1), 1)).unwrap();
        assert_eq!((retried.first_offset, log.log_end_offset()), (1, 2), "stored once, at one place");
        assert!(!failed || !retried.duplicate, "success without a stored batch");
    }
}

#[test]
fn txn_07_markers_keep_a_producer_and_old_coordinators_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    append(&mut log, &transactional((1, 0, 0), 1)).unwrap();
    let day_ms = 24 * 3_600_000;
    let abort = marker(false, (1, 0), 5, NOW + day_ms);
    log.append_with_origin(&abort, 0, AppendOrigin::Coordinator, NOW + day_ms).unwrap();
    log.expire_producers(NOW + day_ms + 1);
    assert_eq!(log.producer_count(), 1, "the marker was just written");
    let mut old = marker(true, (1, 0), 3, NOW + day_ms).to_vec();
    old[..8].copy_from_slice(&2_i64.to_be_bytes());
    log.append_as_follower(&Bytes::from(old), NOW).expect("followers take what the leader has");
    let zombie = marker(true, (1, 0), 4, NOW);
    let fenced = log.append_with_origin(&zombie, 0, AppendOrigin::Coordinator, NOW).unwrap_err();
    assert!(matches!(fenced, AppendError::TransactionCoordinatorFenced { current: 5, .. }), "{fenced}");
}

#[test]
fn txn_08_state_outlives_the_records_and_a_restart() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let config = LogConfig { segment_bytes: 150, retention_ms: 1, ..LogConfig::default() };
        let mut log = PartitionLog::create(&path, None, config.clone(), NOW).unwrap();
        append(&mut log, &data((1, 0, 0), 3)).unwrap();
        append(&mut log, &data((2, 0, 0), 1)).unwrap();
        log.update_high_watermark(4);
        assert!(log.apply_retention(NOW + 1000).unwrap() > 0);
        assert_eq!((log.log_start_offset(), log.size_bytes()), (4, 0));
        if clean {
            log.close().unwrap()
        } else {
            log.flush().unwrap();
            drop(log)
        }
        let mode = OpenMode { clean, recovery_point: 4, log_start_offset: 4 };
        let mut log = PartitionLog::open(&path, config, mode, NOW).unwrap();
        let retried = append(&mut log, &data((1, 0, 0), 3)).unwrap();
        assert!(retried.duplicate && retried.first_offset == 0, "clean {clean}: {retried:?}");
        append(&mut log, &data((1, 0, 3), 1)).unwrap();
    }
}

#[test]
fn coordinators_and_clients_are_kept_apart() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    let bytes = marker(true, (1, 0), 5, NOW);
    assert!(matches!(append(&mut log, &bytes), Err(AppendError::InvalidRecord { .. })));
    append(&mut log, &transactional((1, 0, 0), 1)).unwrap();
    let plain = append(&mut log, &data((1, 0, 1), 1)).unwrap_err();
    assert!(matches!(plain, AppendError::InvalidTransactionState { .. }), "{plain}");
    end(&mut log, true, (1, 0), 5);
    let zombie = marker(true, (1, 0), 4, NOW);
    let fenced = log.append_with_origin(&zombie, 0, AppendOrigin::Coordinator, NOW).unwrap_err();
    assert!(matches!(fenced, AppendError::TransactionCoordinatorFenced { current: 5, .. }), "{fenced}");
}

#[test]
fn expiry_spares_open_transactions() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    append(&mut log, &data((1, 0, 0), 1)).unwrap();
    append(&mut log, &transactional((2, 0, 0), 1)).unwrap();
    log.expire_producers(NOW + 24 * 3_600_000 - 1);
    assert_eq!(log.producer_count(), 2);
    log.expire_producers(NOW + 24 * 3_600_000);
    assert_eq!(log.producer_count(), 1);
}

#[test]
fn clean_stops_leave_one_snapshot_each_and_starts_remove_all_but_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    create(&path).close().unwrap();
    let snapshots = || {
        let names = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|name| name.extension().is_some_and(|extension| extension == "snapshot")).count()
    };
    for sequence in 0..5 {
        let mode = OpenMode { clean: true, recovery_point: 0, log_start_offset: 0 };
        let mut log = PartitionLog::open(&path, LogConfig::default(), mode, NOW).unwrap();
        append(&mut log, &data((1, 0, sequence), 1)).unwrap();
        log.close().unwrap();
        assert!(snapshots() <= 2, "{} snapshots", snapshots());
    }
}

#[test]
fn snapshots_of_any_bytes_are_refused_or_read_without_panic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    append(&mut log, &data((1, 0, 0), 3)).unwrap();
    log.close().unwrap();
    let snapshot = path.join("00000000000000000003.snapshot");
    let good = std::fs::read(&snapshot).unwrap();
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x5a;
        for bytes in [&damaged[..], &good[..at]] {
            std::fs::write(&snapshot, bytes).unwrap();
            let mode = OpenMode { clean: true, recovery_point: 0, log_start_offset: 0 };
            let mut log = PartitionLog::open(&path, LogConfig::default(), mode, NOW).unwrap();
            assert!(append(&mut log, &data((1, 0, 0), 3)).unwrap().duplicate, "rebuilt from the records");
        }
    }
}
