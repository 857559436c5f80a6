//! The cases of damaged, torn, full and restarted logs, each by its name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use zurau_common::config::CleanupPolicy;

use crate::log::faults::Machine;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{
    AppendError, AppendOrigin, Batches, Disk, EpochEnd, LogConfig, LogError, OpenMode, PartitionLog,
};

const NOW: i64 = 2_000_000;

fn config() -> LogConfig {
    LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() }
}

fn create(path: &Path) -> PartitionLog {
    PartitionLog::create(path, None, config(), NOW).unwrap()
}

fn append(log: &mut PartitionLog, records: i32, epoch: i32, timestamp: i64) {
    let bytes = batch(&BatchSpec { records, timestamp, ..BatchSpec::default() });
    log.append_as_leader(&bytes, epoch, NOW).unwrap();
}

fn open(path: &Path, clean: bool) -> PartitionLog {
    let mode = OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
    PartitionLog::open(path, config(), mode, NOW).unwrap()
}

/// Base and last offset, epoch and largest timestamp of every batch.
fn contents(log: &PartitionLog) -> Vec<(i64, i64, i32, i64)> {
    let mut offset = log.log_start_offset();
    let mut all = Vec::new();
    while offset < log.log_end_offset() {
        let bytes = log.read_plan(offset, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
        let headers = Batches::new(&bytes).map(|batch| batch.unwrap().0);
        all.extend(
            headers.map(|h| (h.base_offset, h.last_offset(), h.partition_leader_epoch, h.max_timestamp)),
        );
        let Some(last) = all.last().filter(|last| last.1 >= offset) else { break };
        offset = last.1 + 1;
    }
    all
}

/// Copies a log directory.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Log file of the last segment.
fn last_log(path: &Path) -> std::path::PathBuf {
    let mut logs: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    logs.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    logs.pop().unwrap()
}

#[test]
fn log_01_a_tail_torn_or_flipped_at_any_byte_is_cut_to_the_longest_valid_prefix() {
    let directory = super::directory_in_memory();
    let (path, copied) = (directory.path().join("t-0"), directory.path().join("u-0"));
    let mut log = PartitionLog::create(&path, None, LogConfig::default(), NOW).unwrap();
    let mut ends = vec![0];
    for epoch in 0..4 {
        log.assign_epoch_start(epoch).unwrap();
        append(&mut log, 2, epoch, NOW);
        ends.push(log.size_bytes());
    }
    drop(log);
    let whole = fs::read(last_log(&path)).unwrap();
    for at in ends[1] as usize..whole.len() {
        let mut flipped = whole.clone();
        // Offset and epoch are stamped by the leader and lie outside of what the CRC covers.
        let within = at - *ends.iter().rfind(|end| **end as usize <= at).unwrap() as usize;
        let is_covered = !(0..8).contains(&within) && !(12..16).contains(&within);
        flipped[at] ^= 0x10;
        let end = *ends.iter().find(|end| at < **end as usize).unwrap() as usize;
        let is_zero_already = whole[at..end].iter().all(|byte| *byte == 0);
        let mut zeros = whole[..at].to_vec();
        zeros.resize(whole.len() + 4096, 0);
        let damages = [
            ("cut", whole[..at].to_vec(), true),
            ("flipped", flipped, is_covered),
            ("zeros", zeros, !is_zero_already),
        ];
        for (name, bytes, _) in damages.into_iter().filter(|(_, _, is_seen)| *is_seen) {
            copy(&path, &copied);
            fs::write(last_log(&copied), bytes).unwrap();
            let batches = ends.iter().filter(|end| **end as usize <= at).count() as i64 - 1;
            for round in ["first", "second"] {
                let log = open(&copied, false);
                assert_eq!(log.log_end_offset(), 2 * batches, "{name} at {at}, {round} recovery");
                assert_eq!(contents(&log).len() as i64, batches, "{name} at {at}, {round} recovery");
                // An epoch that begins at the end stays: its leader recorded it (HW-06).
                assert_eq!(log.latest_epoch(), Some(3.min(batches as i32)), "{name} at {at}");
                assert_eq!(log.size_bytes(), ends[batches as usize], "{name} at {at}");
                assert!(log.recovery_point() <= log.log_end_offset());
            }
        }
    }
}

#[test]
fn log_02_deletion_of_files_that_are_gone_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    for _ in 0..20 {
        append(&mut log, 2, 0, NOW);
    }
    log.update_high_watermark(40);
    log.advance_log_start_offset(30).unwrap();
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("00000000000000000000") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(log.apply_retention(NOW).unwrap() > 1);
    assert_eq!(contents(&log).first().unwrap().0, 30);
    fs::remove_dir_all(&path).unwrap();
    log.delete().unwrap();
}

#[test]
fn log_04_a_segment_truncated_to_its_base_takes_appends_again() {
    let directory = tempfile::tempdir().unwrap();
    let config = LogConfig { segment_index_bytes: 36, index_interval_bytes: 1, ..LogConfig::default() };
    let path = directory.path().join("t-0");
    let mut log = PartitionLog::create(&path, None, config, NOW).unwrap();
    for _ in 0..20 {
        append(&mut log, 1, 0, NOW);
    }
    let base = *log.segments.last_key_value().unwrap().0;
    for round in 0..3 {
        while !log.segments.last_key_value().unwrap().1.offset_index.is_full() {
            append(&mut log, 1, 0, NOW);
        }
        assert_eq!(log.truncate_to(base).unwrap(), base);
        append(&mut log, 1, 0, NOW);
        let bases: Vec<i64> = log.segments.keys().copied().collect();
        assert_eq!((bases.last(), log.log_end_offset()), (Some(&base), base + 1), "round {round}");
    }
}

#[test]
fn log_06_a_torn_epoch_checkpoint_is_rebuilt_from_the_batches() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copied) = (directory.path().join("t-0"), directory.path().join("u-0"));
    let mut log = create(&path);
    for epoch in [0, 0, 3, 3, 7] {
        append(&mut log, 2, epoch, NOW);
    }
    let expected = log.epoch_entries().to_vec();
    log.close().unwrap();
    let good = fs::read(path.join("leader-epoch-checkpoint")).unwrap();
    let damages: [(&str, Option<&[u8]>); 8] = [
        ("absent", None),
        ("empty", Some(b"")),
        ("half", Some(&good[..good.len() / 2])),
        ("garbage", Some(&[0xff, 0, 0x80])),
        ("negative", Some(b"0\n1\n-3 -5\n")),
        ("more lines than stated", Some(b"0\n1\n0 0\n3 4\n")),
        ("twice the same", Some(b"0\n2\n3 4\n3 4\n")),
        ("another file's", Some(b"0\n1\nt 0 5\n")),
    ];
    for (name, damage) in damages {
        for clean in [true, false] {
            copy(&path, &copied);
            let file = copied.join("leader-epoch-checkpoint");
            match damage {
                None => fs::remove_file(&file).unwrap(),
                Some(bytes) => fs::write(&file, bytes).unwrap(),
            }
            assert_eq!(open(&copied, clean).epoch_entries(), &expected[..], "{name}, clean {clean}");
            assert_eq!(fs::read(&file).unwrap(), good, "{name}, clean {clean}: written anew");
        }
    }
}

#[test]
fn log_07_hw_15_epoch_0_is_in_the_rebuilt_history() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    append(&mut log, 3, 0, NOW);
    append(&mut log, 3, 2, NOW);
    log.flush().unwrap();
    drop(log);
    fs::remove_file(path.join("leader-epoch-checkpoint")).unwrap();
    let log = open(&path, false);
    assert_eq!(log.end_offset_for_epoch(0), EpochEnd { leader_epoch: 0, end_offset: 3 });
    assert_eq!(log.end_offset_for_epoch(1), EpochEnd { leader_epoch: 0, end_offset: 3 });
    assert_eq!(log.end_offset_for_epoch(-1), EpochEnd::UNDEFINED, "undefined in, undefined out (HW-15)");
}

#[test]
fn log_08_a_flush_makes_the_names_of_new_segments_durable() {
    for seed in 0..20 {
        let directory = super::directory_in_memory();
        let path = directory.path().join("t-0");
        Machine::start(seed);
        let mut log = create(&path);
        for _ in 0..20 {
            append(&mut log, 2, 0, NOW);
        }
        log.flush().unwrap();
        let (recovery_point, expected) = (log.recovery_point(), contents(&log));
        assert_eq!(recovery_point, 40);
        drop(log);
        Machine::lose_unsynced(&path);
        let mode = OpenMode { clean: false, recovery_point, log_start_offset: 0 };
        let log = PartitionLog::open(&path, config(), mode, NOW).unwrap();
        assert_eq!(contents(&log), expected, "seed {seed}");
    }
}

#[test]
fn log_09_records_in_the_log_keep_their_offsets_when_an_index_write_fails() {
    let mut failed_after_the_records = 0;
    for changes in 1..8 {
        let directory = super::directory_in_memory();
        let path = directory.path().join("t-0");
        Machine::start(1);
        let mut log = create(&path);
        let data = BatchSpec {
            producer: Some((7, 0, 0)),
            transactional: true,
            records: 2,
            timestamp: NOW,
            ..BatchSpec::default()
        };
        log.append_as_leader(&batch(&data), 0, NOW).unwrap();
        log.update_high_watermark(2);
        Machine::stop_after(changes);
        let abort = marker(false, (7, 0), 0, NOW);
        let result = log.append_with_origin(&abort, 0, AppendOrigin::Coordinator, NOW);
        Machine::restart();
        if let (Err(error), 3) = (&result, log.log_end_offset()) {
            failed_after_the_records += 1;
            assert!(matches!(error, AppendError::Storage(_)), "{error}");
            log.update_high_watermark(3);
            assert_eq!(log.last_stable_offset(), 0, "the abort is in no index: nobody may read past it");
            let next = log.append_as_leader(&batch(&BatchSpec::default()), 0, NOW);
            assert!(matches!(next, Err(AppendError::Stopped(_))), "{next:?}");
        }
        drop(log);
        let log = open(&path, false);
        assert_eq!(log.aborted_transactions(0, 3).unwrap().len() as i64, log.log_end_offset() - 2);
    }
    assert!(failed_after_the_records > 0);
}

#[test]
fn log_12_a_follower_never_stores_a_batch_with_a_changed_byte() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = create(&directory.path().join("t-0"));
    let good = batch(&BatchSpec { records: 2, ..BatchSpec::default() });
    for at in (0..good.len()).filter(|at| *at >= 16) {
        let mut changed = good.to_vec();
        changed[at] ^= 4;
        assert!(log.append_as_follower(&Bytes::from(changed), NOW).is_err(), "byte {at}");
        assert_eq!((log.log_end_offset(), log.size_bytes()), (0, 0), "byte {at}");
    }
    log.append_as_follower(&good, NOW).unwrap();
}

#[test]
fn log_13_a_full_disk_refuses_appends_whole_and_gives_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = PartitionLog::create(&path, None, LogConfig { retention_ms: 1, ..config() }, NOW).unwrap();
    for epoch in 0..20 {
        append(&mut log, 2, epoch, NOW);
    }
    log.update_high_watermark(40);
    let before = contents(&log);
    let disk = Disk::watch(&path);
    disk.fill(true);
    for records in 1..4 {
        let bytes = batch(&BatchSpec { records, timestamp: NOW, ..BatchSpec::default() });
        let refused = log.append_as_leader(&bytes, 19, NOW).unwrap_err();
        assert!(matches!(&refused, AppendError::Storage(error) if !error.is_disk_failure()), "{refused}");
    }
    assert_eq!((contents(&log), log.log_end_offset(), log.stopped()), (before, 40, None));
    // Deleting records needs no space, whole segments included.
    log.advance_log_start_offset(9).unwrap();
    let size_bytes = log.size_bytes();
    assert!(matches!(log.apply_retention(NOW + 1000), Ok(1..) | Err(LogError::Storage(_))));
    assert!(log.size_bytes() < size_bytes / 2, "{} of {size_bytes} bytes are left", log.size_bytes());
    log.remove_due_files(i64::MAX);
    disk.fill(false);
    append(&mut log, 2, 19, NOW);
    assert_eq!(log.log_end_offset(), 42);
    let kept = contents(&log);
    drop(log);
    let log = open(&path, false);
    assert_eq!(contents(&log), kept);
    assert_eq!(log.epoch_entries().last().unwrap().leader_epoch, 19);
}

#[test]
fn log_15_indexes_of_any_content_change_no_answer() {
    let directory = super::directory_in_memory();
    let (path, copied) = (directory.path().join("t-0"), directory.path().join("u-0"));
    let roomy = LogConfig { segment_bytes: 4000, ..config() };
    let mut log = PartitionLog::create(&path, None, roomy.clone(), NOW).unwrap();
    for number in 0..120 {
        append(&mut log, 1 + number % 3, 0, NOW + i64::from(number * 7 % 50));
    }
    log.close().unwrap();
    let mode = |clean| OpenMode { clean, recovery_point: 0, log_start_offset: 0 };
    let answers = |log: &PartitionLog| {
        let offsets: Vec<_> = (0..log.log_end_offset())
            .map(|offset| {
                let bytes = log.read_plan(offset, 1, i64::MAX, true).unwrap().read().unwrap();
                Batches::new(&bytes).next().unwrap().unwrap().0.base_offset
            })
            .collect();
        let times: Vec<_> = (NOW - 2..NOW + 60).map(|time| log.offset_for_timestamp(time).unwrap()).collect();
        (offsets, times, log.max_timestamp_offset().unwrap())
    };
    let log = PartitionLog::open(&path, roomy.clone(), mode(true), NOW).unwrap();
    let expected = answers(&log);
    assert!(log.segment_count() > 2);
    log.close().unwrap();
    let mut indexes: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    indexes.retain(|name| name.to_string_lossy().ends_with("index"));
    indexes.sort();
    for (number, name) in indexes.iter().enumerate() {
        let good = fs::read(path.join(name)).unwrap();
        let kind = |name: &std::ffi::OsString| name.to_string_lossy().rsplit_once('.').unwrap().1.to_owned();
        let other = indexes.iter().rfind(|other| *other != name && kind(other) == kind(name)).unwrap();
        let noise: Vec<u8> = (0..good.len()).map(|at| (at * 131 + number * 17 + 5) as u8 & 0x3f).collect();
        let damages: [(&str, Option<Vec<u8>>); 6] = [
            ("absent", None),
            ("empty", Some(Vec::new())),
            ("half an entry", Some(good[..good.len() - 3].to_vec())),
            ("noise", Some(noise)),
            ("another segment's", Some(fs::read(path.join(other)).unwrap())),
            ("newer than the log", Some([good.clone(), vec![0x7f; good.len()]].concat())),
        ];
        for (what, damage) in damages {
            for clean in [true, false] {
                // Times that could be right are not doubted after a clean stop: that would cost a read of each segment.
                if clean && what == "another segment's" && kind(name) == "timeindex" {
                    continue;
                }
                copy(&path, &copied);
                match &damage {
                    None => fs::remove_file(copied.join(name)).unwrap(),
                    Some(bytes) => fs::write(copied.join(name), bytes).unwrap(),
                }
                let log = PartitionLog::open(&copied, roomy.clone(), mode(clean), NOW).unwrap();
                assert_eq!(answers(&log), expected, "{name:?} {what}, clean {clean}");
            }
        }
    }
}

#[test]
fn log_17_a_reader_at_the_end_is_never_out_of_range() {
    let directory = super::directory_in_memory();
    let log = parking_lot::Mutex::new(create(&directory.path().join("t-0")));
    const BATCHES: i64 = 500;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..BATCHES).for_each(|_| append(&mut log.lock(), 2, 0, NOW)));
        let mut offset = 0;
        while offset < 2 * BATCHES {
            let plan = {
                let log = log.lock();
                assert!(offset <= log.log_end_offset());
                log.read_plan(offset, 300, log.log_end_offset(), true).unwrap()
            };
            for found in Batches::new(&plan.read().unwrap()) {
                let header = found.unwrap().0;
                assert_eq!(header.base_offset, offset);
                offset = header.next_offset();
            }
        }
    });
}

#[test]
fn log_21_a_few_bytes_behind_the_last_batch_are_cut() {
    let directory = super::directory_in_memory();
    let (path, copied) = (directory.path().join("t-0"), directory.path().join("u-0"));
    let mut log = create(&path);
    append(&mut log, 3, 0, NOW);
    let size_bytes = log.size_bytes();
    drop(log);
    for count in 1..=60 {
        copy(&path, &copied);
        let file = last_log(&copied);
        let mut bytes = fs::read(&file).unwrap();
        bytes.extend((0..count).map(|at| (at * 37 + count) as u8));
        fs::write(&file, bytes).unwrap();
        let mut log = open(&copied, false);
        assert_eq!((log.log_end_offset(), log.size_bytes()), (3, size_bytes), "{count} bytes");
        append(&mut log, 1, 0, NOW);
    }
}

#[test]
fn hw_02_a_divergent_tail_is_cut_by_epochs_and_the_copies_become_equal() {
    let directory = tempfile::tempdir().unwrap();
    let create = |name: &str| {
        PartitionLog::create(&directory.path().join(name), None, LogConfig::default(), NOW).unwrap()
    };
    let (mut a, mut b) = (create("a-0"), create("b-0"));
    append(&mut a, 10, 1, NOW);
    let common = a.read_plan(0, 1 << 20, 10, true).unwrap().read().unwrap();
    b.append_as_follower(&common, NOW).unwrap();
    append(&mut a, 5, 1, NOW);
    b.assign_epoch_start(2).unwrap();
    (0..3).for_each(|_| append(&mut b, 7, 2, NOW));
    let tail = b.read_plan(10, 1 << 20, 31, true).unwrap().read().unwrap();
    let refused = a.append_as_follower(&tail, NOW).unwrap_err();
    assert!(
        matches!(refused, AppendError::NotContiguous { base_offset: 10, log_end_offset: 15, .. }),
        "{refused}"
    );
    let end = b.end_offset_for_epoch(1);
    assert_eq!(end, EpochEnd { leader_epoch: 1, end_offset: 10 });
    a.truncate_to(end.end_offset).unwrap();
    a.append_as_follower(&tail, NOW).unwrap();
    assert_eq!(contents(&a), contents(&b));
    assert_eq!(a.epoch_entries(), b.epoch_entries());
    drop(a);
    assert_eq!(contents(&open(&directory.path().join("a-0"), false)), contents(&b));
}

#[test]
fn hw_09_a_log_dropped_as_a_whole_starts_where_its_high_watermark_and_end_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    (0..8).for_each(|_| append(&mut log, 10, 0, NOW));
    log.update_high_watermark(80);
    log.truncate_fully_and_start_at(200).unwrap();
    assert_eq!((log.log_start_offset(), log.high_watermark(), log.log_end_offset()), (200, 200, 200));
    drop(log);
    // The checkpoints still tell of the log before.
    let mode = OpenMode { clean: false, recovery_point: 80, log_start_offset: 0 };
    let mut log = PartitionLog::open(&path, config(), mode, NOW).unwrap();
    log.restore_high_watermark(80).unwrap();
    assert_eq!((log.log_start_offset(), log.high_watermark(), log.log_end_offset()), (200, 200, 200));
}

#[test]
fn the_largest_timestamp_is_found_when_only_an_emptied_batch_had_it() {
    let directory = tempfile::tempdir().unwrap();
    let compact = LogConfig {
        cleanup_policy: CleanupPolicy { compact: true, delete: false },
        message_timestamp_after_max_ms: i64::MAX,
        ..config()
    };
    let mut log = PartitionLog::create(&directory.path().join("t-0"), None, compact, NOW).unwrap();
    let keyed = |key, timestamp, producer| {
        batch(&BatchSpec { key: Some(key), timestamp, producer, ..BatchSpec::default() })
    };
    log.append_as_leader(&keyed("a", NOW + 900, Some((5, 0, 0))), 0, NOW).unwrap();
    log.append_as_leader(&keyed("b", NOW + 20, None), 0, NOW).unwrap();
    log.append_as_leader(&keyed("a", NOW + 10, None), 0, NOW).unwrap();
    log.roll(3, NOW).unwrap();
    log.update_high_watermark(3);
    let report = crate::log::compact_once(&mut log, &Default::default(), NOW).unwrap().unwrap();
    assert_eq!((report.records_before, report.records_after), (3, 2), "the producer's batch stays, empty");
    assert_eq!(log.max_timestamp_offset().unwrap(), Some((NOW + 20, 1, Some(0))));
    log.advance_log_start_offset(2).unwrap();
    assert_eq!(log.max_timestamp_offset().unwrap(), Some((NOW + 10, 2, Some(0))));
}

/// Rows F1 and S2 of the table at `PartitionLog::open`.
#[test]
fn foreign_files_are_left_alone_and_empty_segments_fix_the_end() {
    for clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t-0");
        let mut log = create(&path);
        append(&mut log, 3, 0, NOW);
        log.roll(3, NOW).unwrap();
        log.close().unwrap();
        let foreign = ["notes.txt", "5.log", "00000000000000000003.log.bak", "x.index"];
        for name in foreign {
            fs::write(path.join(name), b"mine").unwrap();
        }
        let log = open(&path, clean);
        assert_eq!((log.log_end_offset(), log.segment_count()), (3, 2));
        for name in foreign {
            assert_eq!(fs::read(path.join(name)).unwrap(), b"mine", "{name}, clean {clean}");
        }
    }
}

#[test]
fn records_of_an_unknown_topic_are_not_adopted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    append(&mut log, 3, 0, NOW);
    log.close().unwrap();
    let id = uuid::Uuid::from_u128(5);
    let refused = PartitionLog::create(&path, Some(id), config(), NOW).unwrap_err();
    assert!(matches!(refused, LogError::Damaged { .. }), "{refused}");
    assert!(!path.join("partition.metadata").exists(), "nothing was changed");
    // A directory that a stop left without any file is as good as none.
    let empty = directory.path().join("u-0");
    fs::create_dir(&empty).unwrap();
    assert_eq!(PartitionLog::create(&empty, Some(id), config(), NOW).unwrap().topic_id(), Some(id));
    // So is one whose creation a power loss interrupted: no records, and an id that did not reach the disk.
    let torn = directory.path().join("v-0");
    drop(PartitionLog::create(&torn, Some(id), config(), NOW).unwrap());
    fs::write(torn.join("partition.metadata"), "").unwrap();
    assert_eq!(PartitionLog::create(&torn, Some(id), config(), NOW).unwrap().topic_id(), Some(id));
    // But not one whose records were deleted.
    let deleted = directory.path().join("w-0");
    fs::create_dir(&deleted).unwrap();
    fs::write(deleted.join("00000000000000000007.log"), "").unwrap();
    assert!(PartitionLog::create(&deleted, Some(id), config(), NOW).is_err());
}

#[test]
fn t2_state_at_any_offset_is_a_function_of_the_records_below() {
    let directory = super::directory_in_memory();
    let path = directory.path().join("t-0");
    let mut log = create(&path);
    let mut states = BTreeMap::new();
    let mut sequences = [0; 3];
    for number in 0..60_i32 {
        let index = (number % 3) as usize;
        let producer = (index as i64, 0, sequences[index]);
        let spec = BatchSpec {
            producer: Some(producer),
            transactional: index == 2,
            timestamp: NOW,
            ..BatchSpec::default()
        };
        log.append_as_leader(&batch(&spec), 0, NOW).unwrap();
        sequences[index] += 1;
        if number % 9 == 8 {
            let end = marker(number % 2 == 0, (2, 0), 0, NOW);
            log.append_with_origin(&end, 0, AppendOrigin::Coordinator, NOW).unwrap();
        }
        states.insert(log.log_end_offset(), log.producers.encode());
    }
    for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|extension| extension == "snapshot") {
            let offset: i64 = entry.file_stem().unwrap().to_str().unwrap().parse().unwrap();
            assert_eq!(fs::read(&entry).unwrap(), states[&offset], "snapshot at {offset} (TXN-06)");
        }
    }
    for (offset, state) in states.iter().rev() {
        log.truncate_to(*offset).unwrap();
        assert_eq!(log.producers.encode(), *state, "truncated to {offset}");
    }
}
