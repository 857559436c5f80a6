//! The cases CMP-01 to CMP-09, by name, and what compaction does to plain logs.

use std::fs;

use kafka_protocol::records::Compression;
use zurau_common::config::CleanupPolicy;

use super::support::{
    DELETE_RETENTION_MS, NOW, Origin, TestLog, batch, batches, compact, config, fold, read_committed, record,
    shown,
};
use crate::log::cleaner::{CleaningSettings, compact_once};
use crate::log::{AppendError, LogConfig};

fn producer(producer: (i64, i16, i32)) -> Origin {
    Origin { producer: Some(producer), transactional: false }
}

fn transaction(producer: (i64, i16, i32)) -> Origin {
    Origin { producer: Some(producer), transactional: true }
}

#[test]
fn newest_record_of_each_key_stays() {
    let mut test = TestLog::new();
    test.append(&["a=1", "b=1", "c=1"]);
    test.append(&["a=2", "d=1"]);
    test.roll();
    test.append(&["b=2"]);
    test.append(&["a=3"]);
    let report = test.compact_all(NOW).unwrap();
    assert_eq!(shown(&test.log), ["2:c=1", "4:d=1", "5:b=2", "6:a=3"]);
    assert_eq!((report.first_dirty_offset, report.end_offset, report.keys), (0, 7, 4));
    assert_eq!((report.records_before, report.records_after), (7, 4));
    assert_eq!((report.segments_before, report.segments_after), (2, 1));
    assert_eq!((test.log.log_end_offset(), test.log.segment_count()), (7, 2));
    assert_eq!(test.log.cleaned_offset(), 7);
    assert_eq!(compact(&mut test.log, NOW), None, "nothing is dirty any more");
    assert_eq!(test.append(&["c=2"]), 7);
    test.compact_all(NOW);
    assert_eq!(shown(&test.log), ["4:d=1", "5:b=2", "6:a=3", "7:c=2"]);
    let test = test.reopen(true);
    assert_eq!(shown(&test.log), ["4:d=1", "5:b=2", "6:a=3", "7:c=2"]);
}

#[test]
fn compressed_batches_are_packed_again() {
    for compression in
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd]
    {
        let mut test = TestLog::new();
        let old: Vec<String> = (0..200).map(|n| format!("k{}=value {n} value", n % 50)).collect();
        let old: Vec<_> = old.iter().map(|text| record(text)).collect();
        test.log.append_as_leader(&batch(&old, Origin::default(), compression, NOW), 0, NOW).unwrap();
        test.compact_all(NOW).unwrap();
        let all = batches(&test.log, 0, i64::MAX);
        let (header, _) = all[0];
        assert_eq!((all.len(), header.base_offset, header.last_offset()), (1, 0, 199), "{compression:?}");
        assert_eq!(header.record_count, 50, "{compression:?}");
        assert_eq!(header.compression() != 0, compression != Compression::None, "{compression:?}");
        let seen = read_committed(&test.log, 0);
        assert_eq!(
            seen.iter().map(|record| record.offset).collect::<Vec<_>>(),
            (150..200).collect::<Vec<_>>()
        );
        assert!(seen.iter().all(|record| record.timestamp == NOW + record.offset), "timestamps stay");
    }
}

#[test]
fn records_without_key_go_once_the_topic_is_compacted() {
    let mut test = TestLog::with(LogConfig::default());
    let records = [(None, Some("x")), (Some("a"), Some("1"))];
    test.log.append_as_leader(&batch(&records, Origin::default(), Compression::None, NOW), 0, NOW).unwrap();
    test.log.set_config(config());
    test.compact_all(NOW);
    assert_eq!(shown(&test.log), ["1:a=1"]);
}

#[test]
fn compact_and_delete_together() {
    let policy = CleanupPolicy { compact: true, delete: true };
    let mut test = TestLog::with(LogConfig { cleanup_policy: policy, retention_ms: 10_000, ..config() });
    test.append(&["a=1", "b=1"]);
    test.append(&["a=2"]);
    test.compact_all(NOW);
    assert_eq!(
        test.log.apply_retention(NOW + 10_000).unwrap(),
        0,
        "the new segment is as old as its records"
    );
    assert!(test.log.apply_retention(NOW + 10_003).unwrap() > 0);
    assert_eq!(shown(&test.log), [""; 0]);
    assert_eq!(test.log.log_end_offset(), 3);
}

#[test]
fn cmp_01_tombstone_stays_for_delete_retention() {
    let mut test = TestLog::new();
    test.append(&["k=v1"]);
    test.append(&["k", "x=1"]);
    test.compact_all(NOW);
    assert_eq!(shown(&test.log), ["1:k", "2:x=1"], "the first pass that covers a tombstone never removes it");
    let (header, _) = batches(&test.log, 0, i64::MAX)[0];
    assert_eq!(header.delete_horizon_ms(), Some(NOW + DELETE_RETENTION_MS));
    assert_eq!(read_committed(&test.log, 0)[0].timestamp, NOW, "record times do not change");
    for (after_ms, expected) in [(DELETE_RETENTION_MS - 1, true), (DELETE_RETENTION_MS, false)] {
        test.append(&["y=1"]);
        test.compact_all(NOW + after_ms);
        assert_eq!(shown(&test.log).contains(&"1:k".to_owned()), expected, "after {after_ms} ms");
    }
}

#[test]
fn cmp_01_a_tombstone_the_pass_does_not_cover_gets_no_horizon() {
    let mut test = TestLog::new();
    test.append(&["a=1", "b=1"]);
    test.append(&["a"]);
    test.roll();
    test.log.update_high_watermark(3);
    let two_keys = CleaningSettings { offset_map_bytes: 0, load_factor: 1.0 };
    let report = compact_once(&mut test.log, &two_keys, NOW).unwrap().unwrap();
    assert_eq!(report.end_offset, 1, "a map for one key ends before b");
    assert_eq!(shown(&test.log), ["0:a=1", "1:b=1", "2:a"]);
    assert_eq!(batches(&test.log, 2, i64::MAX)[0].0.delete_horizon_ms(), None);
}

#[test]
fn cmp_02_marker_keys_equal_to_user_keys() {
    let mut test = TestLog::new();
    let (abort_key, commit_key) = ("\0\0\0\0", "\0\0\0\u{1}");
    test.append_from(&["a=1", "b=1"], transaction((1, 0, 0)));
    test.end_transaction(true, (1, 0));
    test.append_from(&["c=1"], transaction((2, 0, 0)));
    test.end_transaction(false, (2, 0));
    test.append(&[&format!("{abort_key}=x"), &format!("{commit_key}=x"), "a=2"]);
    test.log.update_high_watermark(test.log.log_end_offset());
    let before = fold(&read_committed(&test.log, 0), Default::default());
    test.compact_all(NOW);
    let all = shown(&test.log);
    assert!(all.contains(&"1:b=1".to_owned()) && all.contains(&"2:commit".to_owned()), "{all:?}");
    assert!(all.contains(&"4:abort".to_owned()) && !all.contains(&"3:c=1".to_owned()), "{all:?}");
    assert_eq!(fold(&read_committed(&test.log, 0), Default::default()), before);
    let test = test.reopen(false);
    assert_eq!(test.log.last_stable_offset(), test.log.log_end_offset(), "no transaction hangs");
    assert_eq!(fold(&read_committed(&test.log, 0), Default::default()), before);
}

#[test]
fn cmp_02_a_marker_goes_in_three_passes() {
    let mut test = TestLog::new();
    test.append_from(&["a=1"], transaction((1, 0, 0)));
    test.end_transaction(true, (1, 0));
    test.append_from(&["a=2"], transaction((1, 0, 1)));
    test.end_transaction(true, (1, 0));
    let has = |test: &TestLog, text: &str| shown(&test.log).contains(&text.to_owned());
    test.compact_all(NOW);
    assert!(
        !has(&test, "0:a=1") && has(&test, "1:commit"),
        "the pass that removes the data keeps the marker"
    );
    test.append(&["x=1"]);
    test.compact_all(NOW);
    assert!(has(&test, "1:commit"), "the next pass sets the horizon");
    test.append(&["x=2"]);
    test.compact_all(NOW + DELETE_RETENTION_MS - 1);
    assert!(has(&test, "1:commit"));
    test.append(&["x=3"]);
    test.compact_all(NOW + DELETE_RETENTION_MS);
    assert!(!has(&test, "1:commit"));
    assert!(has(&test, "2:a=2") && has(&test, "3:commit"), "this one's data is there");
}

#[test]
fn cmp_03_nothing_at_or_above_the_high_watermark_is_changed_or_counted() {
    let mut test = TestLog::new();
    test.append(&["k=committed"]);
    test.roll();
    test.append(&["k=uncommitted"]);
    test.roll();
    test.append(&["z=1"]);
    test.log.update_high_watermark(1);
    compact(&mut test.log, NOW);
    assert_eq!(shown(&test.log), ["0:k=committed", "1:k=uncommitted", "2:z=1"]);
    test.log.truncate_to(1).unwrap();
    assert_eq!(shown(&test.log), ["0:k=committed"]);
}

#[test]
fn cmp_03_nothing_at_or_above_an_open_transaction_is_changed() {
    let mut test = TestLog::new();
    test.append(&["k=1"]);
    test.roll();
    test.append_from(&["k=2"], transaction((1, 0, 0)));
    test.roll();
    test.append(&["k=3"]);
    test.compact_all(NOW);
    assert_eq!(shown(&test.log), ["0:k=1", "1:k=2", "2:k=3"]);
    test.end_transaction(false, (1, 0));
    test.compact_all(NOW);
    assert_eq!(shown(&test.log), ["1..1:empty", "2:k=3", "3:abort"]);
    assert_eq!(read_committed(&test.log, 0).len(), 1);
}

#[test]
fn cmp_05_more_keys_than_the_map_holds() {
    let mut test = TestLog::new();
    let texts: Vec<String> = (0..100).map(|n| format!("k{n}={n}")).collect();
    for _twice in 0..2 {
        for chunk in texts.chunks(7) {
            test.append(&chunk.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    test.roll();
    test.log.update_high_watermark(200);
    let thirty_keys = CleaningSettings { offset_map_bytes: 31 * 24, load_factor: 1.0 };
    let mut ends = Vec::new();
    while let Some(report) = compact_once(&mut test.log, &thirty_keys, NOW).unwrap() {
        assert!(report.keys <= 30);
        ends.push(report.end_offset);
        assert_eq!(fold(&read_committed(&test.log, 0), Default::default()).len(), 100);
    }
    assert_eq!(ends, [30, 60, 90, 120, 150, 180, 200], "each pass goes on where the one before stopped");
    assert_eq!(shown(&test.log).len(), 100);
}

#[test]
fn cmp_06_a_producers_last_batch_keeps_its_sequence() {
    for snapshots in [true, false] {
        let mut test = TestLog::new();
        test.append_from(&["a=1", "b=1"], producer((7, 0, 0)));
        test.append_from(&["a=2", "b=2"], producer((7, 0, 2)));
        test.append(&["a=3", "b=3"]);
        for pass in 0..3 {
            test.append(&[&format!("n={pass}")]);
            test.compact_all(NOW);
        }
        assert_eq!(shown(&test.log)[0], "2..3:empty");
        let mut test = test.reopen(snapshots);
        let retry = batch(&[record("a=2"), record("b=2")], producer((7, 0, 2)), Compression::None, NOW);
        let info = test.log.append_as_leader(&retry, 0, NOW).unwrap();
        assert!(info.duplicate);
        assert_eq!((info.first_offset, info.last_offset), (2, 3), "snapshots {snapshots}");
        let gap = batch(&[record("a=9")], producer((7, 0, 9)), Compression::None, NOW);
        let error = test.log.append_as_leader(&gap, 0, NOW).unwrap_err();
        assert!(matches!(error, AppendError::OutOfOrderSequence { expected: 4, .. }), "{error}");
        test.append_from(&["c=1"], producer((7, 0, 4)));
        test.log.expire_producers(NOW + 24 * 3_600_000 + 10);
        test.append(&["n=9"]);
        test.compact_all(NOW);
        assert!(!shown(&test.log).contains(&"2..3:empty".to_owned()), "an expired producer needs no batch");
    }
}

#[test]
fn cmp_06_a_marker_that_bumped_the_epoch_keeps_fencing() {
    let mut test = TestLog::new();
    test.append_from(&["a=1"], transaction((7, 0, 0)));
    test.end_transaction(false, (7, 1));
    for pass in 0..4 {
        test.append(&[&format!("n={pass}")]);
        test.compact_all(NOW + i64::from(pass) * 2 * DELETE_RETENTION_MS);
    }
    assert_eq!(shown(&test.log)[0], "1:abort", "the newest epoch stands only in the marker");
    let mut test = test.reopen(false);
    let zombie = batch(&[record("a=9")], transaction((7, 0, 1)), Compression::None, NOW);
    let error = test.log.append_as_leader(&zombie, 0, NOW).unwrap_err();
    assert!(matches!(error, AppendError::InvalidProducerEpoch { current: 1, .. }), "{error}");
}

#[test]
fn cmp_07_segments_of_empty_batches_only() {
    let mut test = TestLog::new();
    for id in 0..5 {
        test.append_from(&["a=1"], producer((id, 0, 0)));
    }
    test.roll();
    test.append(&["a=2"]);
    test.compact_all(NOW);
    for pass in 0..3 {
        test.append(&[&format!("a={}", pass + 3)]);
        test.log.set_config(LogConfig { segment_bytes: 400, ..config() });
        test.compact_all(NOW);
    }
    let all = shown(&test.log);
    assert_eq!(&all[..5], ["0..0:empty", "1..1:empty", "2..2:empty", "3..3:empty", "4..4:empty"]);
    let empties = batches(&test.log, 0, 5);
    assert!(empties.iter().all(|(header, _)| header.max_timestamp == NOW && header.base_timestamp == NOW));
    assert_eq!(read_committed(&test.log, 0).len(), 1, "readers skip them");
    assert_eq!(test.log.offset_for_timestamp(NOW).unwrap().map(|found| found.1), Some(8));
    let mut test = test.reopen(false);
    assert_eq!(shown(&test.log), all);
    test.append_from(&["b=1"], producer((4, 0, 1)));
}

#[test]
fn cmp_08_cleaned_offset_follows_truncation_over_crashes() {
    for reached_disk in [true, false] {
        let mut test = TestLog::new();
        for n in 0..9 {
            test.append(&[&format!("k{}={n}", n % 3)]);
        }
        test.compact_all(NOW);
        assert_eq!(test.log.cleaned_offset(), 9);
        let checkpoint = test.log.cleaned_offset();
        // An unclean leader election: other records from 7 on.
        test.log.truncate_to(7).unwrap();
        assert_eq!(test.log.cleaned_offset(), 7);
        for n in 0..5 {
            test.append(&[&format!("k{}=new{n}", n % 2)]);
        }
        if reached_disk {
            test.log.cleaned_offset_is_checkpointed(7).unwrap();
        }
        let path = test.log.directory().to_owned();
        let directory = test.directory;
        drop(test.log);
        let mut log = super::support::open(&path, config());
        log.restore_cleaned_offset(Some(if reached_disk { 7 } else { checkpoint })).unwrap();
        assert_eq!(log.cleaned_offset(), 7, "the checkpoint of before the truncation is not believed");
        let mut test = TestLog { directory, log };
        test.compact_all(NOW);
        let map = fold(&read_committed(&test.log, 0), Default::default());
        let keys: Vec<_> = read_committed(&test.log, 0).into_iter().map(|seen| seen.key).collect();
        assert_eq!(keys.len(), map.len(), "only the newest of each key: {:?}", shown(&test.log));
        test.log.cleaned_offset_is_checkpointed(test.log.cleaned_offset()).unwrap();
        assert!(!path.join("cleaner-restart-offset").exists());
    }
}

#[test]
fn cmp_08_checkpoint_outside_of_the_log() {
    let mut test = TestLog::new();
    test.append(&["a=1", "a=2"]);
    //   checkpoint, believed
    for (checkpoint, expected) in [(None, 0), (Some(1), 1), (Some(2), 2), (Some(3), 0), (Some(2), 0)] {
        test.log.restore_cleaned_offset(checkpoint).unwrap();
        assert_eq!(test.log.cleaned_offset(), expected, "{checkpoint:?}");
    }
    test.log.cleaned_offset_is_checkpointed(0).unwrap();
    test.log.restore_cleaned_offset(Some(2)).unwrap();
    assert_eq!(test.log.cleaned_offset(), 2);
    fs::write(test.log.directory().join("cleaner-restart-offset"), "garbage").unwrap();
    test.log.restore_cleaned_offset(Some(2)).unwrap();
    assert_eq!(test.log.cleaned_offset(), 0);
    test.log.truncate_fully_and_start_at(50).unwrap();
    assert_eq!(test.log.first_dirty_offset(), 50);
}

#[test]
fn cmp_09_log_end_survives_when_the_tail_is_compacted_away() {
    let mut test = TestLog::new();
    for n in 0..20 {
        test.append(&[&format!("k={n}")]);
    }
    test.roll();
    test.append(&["k=last"]);
    test.roll();
    // The second segment is the newest of the key, and then expires too.
    test.append(&["k"]);
    for pass in 0..4 {
        test.compact_all(NOW + pass * DELETE_RETENTION_MS);
        test.log.set_cleaned_offset(0);
    }
    assert_eq!(shown(&test.log), ["21..21:empty"], "the last batch stays, though empty");
    let end = test.log.log_end_offset();
    // Even if the empty active segment was lost with the power.
    let active = test.log.segments.last_key_value().unwrap().1.log.path();
    let test = test.reopen(false);
    assert_eq!(test.log.log_end_offset(), end);
    fs::remove_file(active).unwrap();
    let test = test.reopen(false);
    assert_eq!(test.log.log_end_offset(), end);
}

#[test]
fn a_damaged_segment_is_an_error_and_changes_nothing() {
    let mut test = TestLog::new();
    test.append(&["a=1", "b=1"]);
    test.roll();
    test.append(&["a=2"]);
    test.roll();
    test.log.update_high_watermark(3);
    let path = test.log.segments.first_key_value().unwrap().1.log.path();
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&path, bad).unwrap();
    let error = compact_once(&mut test.log, &CleaningSettings::default(), NOW).unwrap_err();
    assert!(error.to_string().contains("damaged batch"), "{error}");
    fs::write(&path, good).unwrap();
    assert_eq!(shown(&test.log), ["0:a=1", "1:b=1", "2:a=2"]);
    let left: Vec<_> = fs::read_dir(test.log.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".cleaned") || name.ends_with(".swap"))
        .collect();
    assert_eq!(left, [""; 0]);
    test.compact_all(NOW).unwrap();
    assert_eq!(shown(&test.log), ["1:b=1", "2:a=2"]);
}
