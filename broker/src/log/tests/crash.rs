//! The machine stops at any change of any file, with and without losing what was not synced. The log comes back as a
//! prefix of what was appended: all of it after a mere kill, at least the flushed part after a power loss (L1, L2).
//!
//! `ZURAU_CRASH_SEED=n` replays one schedule, `ZURAU_CRASH_SCHEDULES=n` sets how many run.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::directory_in_memory;
use crate::log::faults::Machine;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{AppendOrigin, BatchHeader, EpochEntry, LogConfig, OpenMode, PartitionLog};

const NOW: i64 = 1_000_000;
const SCHEDULES: u64 = 10_000;

/// Small, seeded, good enough to choose operations.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 600, index_interval_bytes: 100, ..LogConfig::default() }
}

/// What must come back.
#[derive(Default)]
struct Promise {
    /// Stored bytes of every batch whose append returned, and of the one under way at the stop, in order.
    batches: Vec<Bytes>,
    /// Batches whose append returned.
    appended: usize,
    /// What the checkpoint says; nothing below may be lost.
    recovery_point: i64,
    /// The last epoch that a leader began.
    led: Option<EpochEntry>,
    /// What the log directory says of such epochs.
    recorded: Option<EpochEntry>,
}

struct Run {
    random: Random,
    log: PartitionLog,
    promise: Promise,
    sequence: i32,
    epoch: i32,
}

impl Run {
    /// One random operation; false when the machine went off during it.
    fn step(&mut self) -> bool {
        match self.random.below(10) {
            0..6 => self.append(),
            6 => {
                self.epoch += 1;
                self.begin_epoch()
            }
            7 => self.end_transaction(),
            _ => {
                let flushed = self.log.flush().is_ok();
                if flushed {
                    self.promise.recovery_point = self.log.recovery_point();
                }
                flushed
            }
        }
    }

    /// As a leader, alone or with those of many other partitions.
    fn begin_epoch(&mut self) -> bool {
        let start_offset = self.log.log_end_offset();
        let entry = EpochEntry { leader_epoch: self.epoch, start_offset };
        if self.random.below(2) == 0 {
            self.promise.recorded = Some(self.log.begin_epoch(self.epoch).unwrap());
            assert_eq!(self.promise.recorded, Some(entry));
        } else if self.log.assign_epoch_start(self.epoch).is_err() {
            return false;
        }
        self.promise.led = Some(entry);
        true
    }

    fn append(&mut self) -> bool {
        // As a follower sees a new epoch: with its first record.
        self.epoch += i32::from(self.random.below(6) == 0);
        let records = 1 + self.random.below(3) as i32;
        let spec = BatchSpec {
            base_offset: self.log.log_end_offset(),
            leader_epoch: self.epoch,
            records,
            timestamp: NOW + self.random.below(50) as i64,
            value_bytes: self.random.below(120) as usize,
            producer: Some((7, 0, self.sequence)),
            transactional: true,
            ..BatchSpec::default()
        };
        let bytes = batch(&spec);
        self.promise.batches.push(bytes.clone());
        if self.log.append_as_leader(&bytes, self.epoch, NOW).is_err() {
            return false;
        }
        self.promise.appended += 1;
        self.sequence += records;
        true
    }

    fn end_transaction(&mut self) -> bool {
        let bytes = marker(self.random.below(2) == 0, (7, 0), 0, NOW);
        let mut stored = bytes.to_vec();
        stored[..8].copy_from_slice(&self.log.log_end_offset().to_be_bytes());
        stored[12..16].copy_from_slice(&self.epoch.to_be_bytes());
        self.promise.batches.push(Bytes::from(stored));
        let appended =
            self.log.append_with_origin(&bytes, self.epoch, AppendOrigin::Coordinator, NOW).is_ok();
        self.promise.appended += usize::from(appended);
        appended
    }
}

/// All stored bytes.
fn contents(log: &PartitionLog) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = 0;
    while offset < log.log_end_offset() {
        let part = log.read_plan(offset, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
        let (last, _) = crate::log::Batches::new(&part).map(Result::unwrap).last().expect("no hole");
        offset = last.next_offset();
        bytes.extend_from_slice(&part);
    }
    bytes
}

fn open(path: &Path, recovery_point: i64) -> PartitionLog {
    let mode = OpenMode { clean: false, recovery_point, log_start_offset: 0 };
    PartitionLog::open(path, config(), mode, NOW).unwrap()
}

/// As a broker does.
fn reopen(path: &Path, promise: &Promise) -> PartitionLog {
    let mut log = open(path, promise.recovery_point);
    if let Some(recorded) = promise.recorded {
        log.restore_epoch(recorded);
    }
    log
}

fn check(path: &Path, promise: &Promise, power_lost: bool) {
    let log = reopen(path, promise);
    let found = contents(&log);
    let all = promise.batches.concat();
    let headers = |bytes: &[u8]| -> Vec<BatchHeader> {
        crate::log::Batches::new(bytes).map(|batch| batch.unwrap().0).collect()
    };
    if !all.starts_with(&found) {
        let (found, all) = (headers(&found), headers(&all));
        let differs = found.iter().zip(&all).find(|(found, appended)| found != appended);
        panic!("{} batches found, {} appended, the first that differs: {differs:#?}", found.len(), all.len());
    }
    assert!(log.log_end_offset() >= promise.recovery_point, "flushed records are there");
    if let Some(led) = promise.led
        && led.start_offset <= log.log_end_offset()
    {
        let latest = log.latest_epoch().unwrap_or(-1);
        assert!(led.leader_epoch <= latest, "{led:?} was recorded, {latest} is the latest (HW-06)");
    }
    for header in headers(&found) {
        let known = log.epoch_at(header.base_offset);
        assert_eq!(known, Some(header.partition_leader_epoch), "epoch of {}", header.base_offset);
    }
    if !power_lost {
        let appended: usize = promise.batches[..promise.appended].iter().map(Bytes::len).sum();
        assert!(found.len() >= appended, "a killed process loses nothing (D1)");
    }
    let (end, epochs, producers) = (log.log_end_offset(), log.epochs.clone(), log.producers.clone());
    let aborted = log.aborted_transactions(0, end).unwrap();
    drop(log);
    let again = reopen(path, promise);
    assert_eq!(contents(&again), found, "a second recovery changes nothing (L1)");
    assert_eq!((again.log_end_offset(), &again.epochs), (end, &epochs));
    assert_eq!(again.producers.encode(), producers.encode());
    drop(again);
    let scratch = open_from_nothing(path);
    assert_eq!(scratch.producers.encode(), producers.encode(), "state equals a replay from 0 (T2)");
    assert_eq!(scratch.aborted_transactions(0, end).unwrap(), aborted);
}

/// Opens the log without indexes, snapshots and checkpoints.
fn open_from_nothing(path: &Path) -> PartitionLog {
    for entry in std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_none_or(|extension| extension != "log") {
            std::fs::remove_file(entry).unwrap();
        }
    }
    open(path, 0)
}

fn schedule(seed: u64) {
    let directory = directory_in_memory();
    let path = directory.path().join("t-0");
    Machine::start(seed);
    let log = PartitionLog::create(&path, None, config(), NOW).unwrap();
    let promise = Promise::default();
    let mut run = Run { random: Random(seed), log, promise, sequence: 0, epoch: 0 };
    let power_lost = run.random.below(2) == 0;
    Machine::stop_after(1 + run.random.below(150));
    for _ in 0..60 {
        if !run.step() {
            break;
        }
    }
    let off = Machine::is_off();
    let Run { log, promise, .. } = run;
    drop(log);
    Machine::restart();
    if power_lost {
        Machine::lose_unsynced(&path);
    }
    check(&path, &promise, power_lost);
    assert!(off || promise.appended == promise.batches.len(), "only a stop makes an append fail");
}

#[test]
fn l1_l2_l6_stop_at_any_change() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("ZURAU_CRASH_SEED") {
        return schedule(seed);
    }
    let schedules = number("ZURAU_CRASH_SCHEDULES").unwrap_or(SCHEDULES);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= schedules {
                        return;
                    }
                    if let Err(panic) = std::panic::catch_unwind(|| schedule(seed)) {
                        eprintln!("failed with ZURAU_CRASH_SEED={seed}");
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
}
