//! Looking up offsets among batches of every size: what is remembered of indexes must not outlive what they say (L3).

use std::fs;
use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use zurau_common::config::CleanupPolicy;
use zurau_common::page_cache;

use crate::log::faults::Machine;
use crate::log::files::read_up_to;
use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{Batches, LogConfig, OpenMode, PartitionLog, ReadPlan, STREAMED_FROM_BYTES, Wait};

const NOW: i64 = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    /// Batches in one append: the gap before each, its records, and bytes of a record's value.
    Append(Vec<(i64, i32, usize)>),
    Truncate {
        share: u8,
    },
    Roll,
    /// The log start goes up, and segments below it go away.
    Delete {
        share: u8,
    },
    Reopen,
    /// As after a crash that left another index: entries are moved by that much, in offset and position.
    ReopenWithIndexes {
        offsets: i32,
        positions: i32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let value_bytes = prop_oneof![Just(10usize), Just(900), Just(5_000), Just(20_000)];
    let batches = prop::collection::vec((0..3i64, 1..4i32, value_bytes), 1..12);
    prop_oneof![
        6 => batches.prop_map(Step::Append),
        2 => any::<u8>().prop_map(|share| Step::Truncate { share }),
        1 => Just(Step::Roll),
        1 => any::<u8>().prop_map(|share| Step::Delete { share }),
        2 => Just(Step::Reopen),
        1 => (0..4i32, 0..300i32).prop_map(|(offsets, positions)| Step::ReopenWithIndexes { offsets, positions }),
    ]
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 300_000,
        index_interval_bytes: 4096,
        max_message_bytes: 1 << 20,
        file_delete_delay_ms: 0,
        cleanup_policy: CleanupPolicy { compact: true, delete: true },
        ..LogConfig::default()
    }
}

/// The log and the batches it should hold: first and last offset of each.
struct Run {
    log: Option<PartitionLog>,
    batches: Vec<(i64, i64)>,
}

impl Run {
    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().unwrap()
    }

    fn take(&mut self, path: &Path, step: &Step) {
        match step {
            Step::Append(specs) => self.append(specs),
            Step::Truncate { share } => {
                let end = self.log().log_end_offset();
                let (start, share) = (self.log().log_start_offset(), i64::from(*share));
                let offset = start + (end - start) * share / 255;
                let end = self.log().truncate_to(offset).unwrap();
                self.batches.retain(|(_, last)| *last < end);
            }
            Step::Roll => {
                let end = self.log().log_end_offset();
                if self.log().active().base_offset < end {
                    self.log().roll(end, NOW).unwrap();
                }
            }
            Step::Delete { share } => {
                let end = self.log().log_end_offset();
                self.log().update_high_watermark(end);
                let offset = self.log().log_start_offset();
                let offset = offset + (end - offset) * i64::from(*share) / 510;
                self.log().advance_log_start_offset(offset).unwrap();
                self.log().apply_retention(NOW).unwrap();
                self.log().remove_due_files(NOW);
            }
            Step::Reopen => self.reopen(path, (0, 0)),
            Step::ReopenWithIndexes { offsets, positions } => self.reopen(path, (*offsets, *positions)),
        }
    }

    fn append(&mut self, specs: &[(i64, i32, usize)]) {
        let mut next = self.log().log_end_offset();
        let mut encoded = Vec::new();
        for &(gap, records, value_bytes) in specs {
            let base_offset = next + gap;
            encoded.push(batch(&BatchSpec { base_offset, records, value_bytes, ..BatchSpec::default() }));
            next = base_offset + i64::from(records);
            self.batches.push((base_offset, next - 1));
        }
        self.log().append_as_follower(&Bytes::from(encoded.concat()), NOW).unwrap();
    }

    fn reopen(&mut self, path: &Path, (offsets, positions): (i32, i32)) {
        let log = self.log.take().unwrap();
        let (recovery_point, log_start_offset) = (log.log_end_offset(), log.log_start_offset());
        log.close().unwrap();
        let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        for index in files.filter(|path| path.extension().is_some_and(|extension| extension == "index")) {
            let mut bytes = Vec::new();
            for entry in fs::read(&index).unwrap().as_chunks::<8>().0 {
                let number = |at: usize| i32::from_be_bytes(entry[at..at + 4].try_into().unwrap());
                bytes.extend((number(0) + offsets).to_be_bytes());
                bytes.extend((number(4) + positions).to_be_bytes());
            }
            fs::write(&index, bytes).unwrap();
        }
        let mode = OpenMode { clean: true, recovery_point, log_start_offset };
        self.log = Some(PartitionLog::open(path, config(), mode, NOW).unwrap());
    }

    /// Every offset leads to the first batch that ends there or later.
    fn check(&mut self) {
        let log = self.log.as_ref().unwrap();
        for offset in log.log_start_offset()..log.log_end_offset() {
            let bytes = log.read_plan(offset, 1, i64::MAX, true).unwrap().read().unwrap();
            let found = Batches::new(&bytes).next().map(|batch| batch.unwrap().0.base_offset);
            let linear = self.batches.iter().find(|(_, last)| *last >= offset).map(|(base, _)| *base);
            assert_eq!(found, linear, "offset {offset}");
        }
        for offset in (log.log_start_offset()..log.log_end_offset()).step_by(5) {
            for max_bytes in [20_000, 40_000, 100_000, 280_000] {
                check_stream(&log.read_plan(offset, max_bytes, i64::MAX, true).unwrap());
            }
        }
    }
}

/// What is read part by part is what is read at once, and as much as was announced.
fn check_stream(plan: &ReadPlan) {
    let Some(mut stream) = plan.stream() else { return };
    assert_eq!(stream.remaining(), plan.len());
    let mut parts = Vec::new();
    while 0 < stream.remaining() {
        let wait = if parts.is_empty() { Wait::No } else { Wait::Yes };
        let part = match stream.next(wait).unwrap() {
            Some(part) => part,
            None => stream.next(Wait::Yes).unwrap().unwrap(),
        };
        assert!(!part.is_empty());
        parts.extend_from_slice(&part);
    }
    assert_eq!(parts, plan.read().unwrap(), "whole batches");
}

/// Long answers can be streamed however they are cut, from what is remembered of the end and from the index.
#[test]
fn long_plans_end_where_a_batch_does() {
    let directory = super::directory_in_memory();
    let roomy = LogConfig { segment_bytes: 8 << 20, ..config() };
    for value_bytes in [10, 3_000, 70_000, 300_000] {
        let path = directory.path().join(format!("t-{value_bytes}"));
        let mut log = PartitionLog::create(&path, None, roomy.clone(), NOW).unwrap();
        let one = batch(&BatchSpec { value_bytes, ..BatchSpec::default() });
        while log.size_bytes() < 2 << 20 {
            log.append_as_leader(&one, 0, NOW).unwrap();
        }
        let mode = OpenMode { clean: true, recovery_point: log.log_end_offset(), log_start_offset: 0 };
        log.close().unwrap();
        let mut log = PartitionLog::open(&path, roomy.clone(), mode, NOW).unwrap();
        for round in 0..2 {
            for max_bytes in [STREAMED_FROM_BYTES, 50_000, 400_000, 1 << 20] {
                let offset = log.log_end_offset() / 3;
                let plan = log.read_plan(offset, max_bytes, i64::MAX, true).unwrap();
                let largest = max_bytes.max(one.len());
                assert!(plan.len() <= largest && largest < plan.len() + one.len(), "{max_bytes}");
                assert!(plan.stream().is_some(), "{value_bytes} {max_bytes} {round}");
                check_stream(&plan);
            }
            // And now from what is remembered.
            while log.size_bytes() < 5 << 20 && round == 0 {
                log.append_as_leader(&one, 0, NOW).unwrap();
            }
        }
    }
}

/// Some file systems do not (tmpfs): nothing of theirs is lent.
fn tells_what_is_cached(directory: &tempfile::TempDir) -> bool {
    let mut file = tempfile::tempfile_in(directory).unwrap();
    file.write_all(b"x").unwrap();
    page_cache::holds(&file, 0).unwrap()
}

/// What is lent is what is read, part for part; nothing is lent that may be cut, nor what is cheaper to read.
#[test]
fn parts_below_the_high_watermark_are_lent() {
    let directory = tempfile::tempdir().unwrap();
    let roomy = LogConfig { segment_bytes: 8 << 20, ..config() };
    for (value_bytes, is_lent) in
        [(10, false), (1_000, false), (3_000, true), (70_000, true), (900_000, true)]
    {
        let path = directory.path().join(format!("t-{value_bytes}"));
        let mut log = PartitionLog::create(&path, None, roomy.clone(), NOW).unwrap();
        let one = batch(&BatchSpec { value_bytes, ..BatchSpec::default() });
        while log.size_bytes() < 4 << 20 {
            log.append_as_leader(&one, 0, NOW).unwrap();
        }
        let high_watermark = log.log_end_offset() / 2;
        log.update_high_watermark(high_watermark);
        for upper in [high_watermark, high_watermark + 1] {
            let plan = log.read_plan(0, 8 << 20, upper, true).unwrap();
            let mut stream = plan.stream().unwrap();
            let mut got = Vec::new();
            let mut lent_bytes = 0;
            while 0 < stream.remaining() {
                if let Some(part) = stream.lend().unwrap() {
                    lent_bytes += part.length;
                    got.extend(read_up_to(&part.file, part.length, part.position).unwrap());
                } else {
                    got.extend_from_slice(&stream.next(Wait::Yes).unwrap().unwrap());
                }
            }
            assert_eq!(got, plan.read().unwrap(), "{value_bytes}");
            let is_told = tells_what_is_cached(&directory);
            let expected = if is_lent && is_told && upper == high_watermark { got.len() } else { 0 };
            // The rest of a plan may be too short.
            assert!(
                (expected.saturating_sub(64 << 10)..=expected).contains(&lent_bytes),
                "{lent_bytes} of {value_bytes}"
            );
        }
    }
}

/// An unclean leader makes its followers cut what was served: those who have a part of it see the old records.
#[test]
fn what_was_lent_stays_as_it_is_when_the_log_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t-0");
    let roomy = LogConfig { segment_bytes: 8 << 20, ..config() };
    let mut log = PartitionLog::create(&path, None, roomy.clone(), NOW).unwrap();
    let spec = BatchSpec { value_bytes: 50_000, ..BatchSpec::default() };
    for _ in 0..20 {
        log.append_as_leader(&batch(&spec), 0, NOW).unwrap();
    }
    log.update_high_watermark(18);
    let plan = log.read_plan(0, 8 << 20, 18, true).unwrap();
    let before = plan.read().unwrap();
    let Some(lent) = plan.stream().unwrap().lend().unwrap() else {
        return assert!(!tells_what_is_cached(&directory));
    };
    assert_eq!(lent.length, before.len());
    // Above what was lent it is cut in place.
    for end in [19, 18, 10, 3] {
        log.truncate_to(end).unwrap();
        assert_eq!(log.log_end_offset(), end);
        let other = BatchSpec { tag: 7, ..spec.clone() };
        log.append_as_leader(&batch(&other), 1, NOW).unwrap();
        assert_eq!(read_up_to(&lent.file, lent.length, lent.position).unwrap(), before, "cut at {end}");
        let start = (end * before.len() as i64 / 18) as usize;
        let now = log.read_plan(0, 8 << 20, i64::MAX, true).unwrap().read().unwrap();
        assert_eq!(now[..start.min(before.len())], before[..start.min(before.len())]);
    }
    let mode = OpenMode { clean: true, recovery_point: log.log_end_offset(), log_start_offset: 0 };
    log.close().unwrap();
    let log = PartitionLog::open(&path, roomy, mode, NOW).unwrap();
    assert_eq!(log.log_end_offset(), 4);
    let names = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("copy")));
}

/// A stop at any step of such a cut leaves the log as it was or as it shall be.
#[test]
fn l1_a_cut_of_what_was_lent_survives_a_stop_at_every_change() {
    for power_lost in [false, true] {
        for changes in 1.. {
            assert!(changes < 100);
            let directory = super::directory_in_memory();
            let path = directory.path().join("t-0");
            Machine::start(changes);
            let mut log = PartitionLog::create(&path, None, config(), NOW).unwrap();
            for _ in 0..10 {
                let spec = BatchSpec { value_bytes: 300, ..BatchSpec::default() };
                log.append_as_leader(&batch(&spec), 0, NOW).unwrap();
            }
            log.flush().unwrap();
            let contents =
                |log: &PartitionLog| log.read_plan(0, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
            let (whole, recovery_point) = (contents(&log), log.recovery_point());
            for segment in log.segments.values() {
                segment.log.lend(u64::MAX);
            }
            Machine::stop_after(changes);
            let is_cut = log.truncate_to(4).is_ok();
            let is_off = Machine::is_off();
            drop(log);
            Machine::restart();
            if power_lost {
                Machine::lose_unsynced(&path);
            }
            let mode = OpenMode { clean: false, recovery_point, log_start_offset: 0 };
            let log = PartitionLog::open(&path, config(), mode, NOW).unwrap();
            let end = log.log_end_offset();
            assert!(whole.starts_with(&contents(&log)), "stopped at change {changes}");
            assert!(if is_cut { end == 4 } else { end == 4 || end == 10 }, "{end} after a stop at {changes}");
            let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("copy")));
            if !is_off {
                assert!(is_cut);
                break;
            }
        }
    }
}

#[test]
fn a_stream_from_a_file_that_was_cut_is_an_error() {
    let directory = super::directory_in_memory();
    let mut log = PartitionLog::create(&directory.path().join("t-0"), None, config(), NOW).unwrap();
    let one = batch(&BatchSpec { value_bytes: 1000, ..BatchSpec::default() });
    for _ in 0..100 {
        log.append_as_leader(&one, 0, NOW).unwrap();
    }
    let plan = log.read_plan(0, 90_000, i64::MAX, true).unwrap();
    let mut stream = plan.stream().unwrap();
    log.truncate_to(50).unwrap();
    let mut got = 0;
    let error = loop {
        match stream.next(Wait::Yes) {
            Ok(part) => got += part.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert_eq!(got, 50 * one.len());
    assert!(error.to_string().contains("t-0"), "{error}");
}

/// Entries of another index point into records, which may look like a header there.
#[test]
fn log_15_an_index_entry_that_points_into_a_record_is_not_believed() {
    let batches = [(1, 900), (1, 5_000), (3, 5_000), (3, 5_000), (2, 10), (2, 900), (2, 900)];
    let batches = batches.map(|(records, value_bytes)| (0, records, value_bytes)).to_vec();
    run(&[Step::Append(batches), Step::ReopenWithIndexes { offsets: 0, positions: 65 }]);
}

fn run(steps: &[Step]) {
    let directory = super::directory_in_memory();
    let path = directory.path().join("t-0");
    let log = PartitionLog::create(&path, None, config(), NOW).unwrap();
    let mut run = Run { log: Some(log), batches: Vec::new() };
    for step in steps {
        run.take(&path, step);
        run.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn l3_every_offset_is_found_after_every_change(steps in prop::collection::vec(step(), 1..14)) {
        run(&steps);
    }
}
