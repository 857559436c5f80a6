//! Passes over logs that change meanwhile, and the threads.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zurau_common::id::TopicPartition;

use super::support::{NOW, TestLog, config, shown};
use crate::log::cleaner::pass::{PassError, clean};
use crate::log::cleaner::{Cleaner, CleanerLogs, CleanerStatus, CleaningSettings, LogAccess, WorkerSettings};
use crate::log::{LogConfig, PartitionLog, StorageError};

/// Does something to the log just before the look with a given number.
struct Meddling {
    log: Mutex<Option<PartitionLog>>,
    looks: Mutex<usize>,
    at_look: usize,
    meddle: fn(&mut Option<PartitionLog>),
}

impl LogAccess for Meddling {
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        let mut log = self.log.lock();
        let mut looks = self.looks.lock();
        *looks += 1;
        if *looks == self.at_look {
            (self.meddle)(&mut log);
        }
        log.as_mut().map(work)
    }
}

fn dirty() -> TestLog {
    let mut test = TestLog::with(LogConfig { segment_bytes: 200, ..config() });
    for n in 0..10 {
        test.append(&[&format!("a={n}"), &format!("b{n}=1")]);
    }
    test.roll();
    test.log.update_high_watermark(test.log.log_end_offset());
    test
}

#[test]
fn a_log_that_changes_meanwhile_is_left_alone() {
    type Meddle = fn(&mut Option<PartitionLog>);
    let changes: [(&str, Meddle); 4] = [
        ("truncated", |log| {
            log.as_mut().unwrap().truncate_to(7).unwrap();
        }),
        ("dropped", |log| log.as_mut().unwrap().truncate_fully_and_start_at(100).unwrap()),
        ("oldest segment deleted", |log| {
            let log = log.as_mut().unwrap();
            log.advance_log_start_offset(8).unwrap();
            assert!(log.apply_retention(NOW).unwrap() > 0);
            log.remove_due_files(NOW);
        }),
        ("closed", |log| {
            log.take();
        }),
    ];
    for (name, meddle) in changes {
        for at_look in [2, 3] {
            let test = dirty();
            let before = shown(&test.log);
            let path = test.log.directory().to_owned();
            let meddling =
                Meddling { log: Mutex::new(Some(test.log)), looks: Mutex::default(), at_look, meddle };
            let result = clean(&meddling, &CleaningSettings::default(), &mut |_| Ok(()), NOW);
            assert!(matches!(result, Err(PassError::LogChanged)), "{name} at {at_look}: {result:?}");
            let log = meddling.log.into_inner();
            if let Some(log) = &log {
                assert_eq!(log.cleaned_offset(), 0, "{name} at {at_look}");
                let records = shown(log);
                assert!(records.iter().all(|record| before.contains(record) || record.ends_with("empty")));
                assert!(log.stopped().is_none());
            }
            drop(log);
            let left = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".cleaned")).collect();
            assert!(left.is_empty(), "{name} at {at_look}: {left:?}");
        }
    }
}

#[test]
fn a_pass_stops_when_it_is_told_to() {
    let mut test = dirty();
    let before = shown(&test.log);
    let mut looks = 0;
    let mut stop_soon = |_| {
        looks += 1;
        if looks > 15 { Err(PassError::Stopped) } else { Ok(()) }
    };
    let result = clean(&Mutex::new(&mut test.log), &CleaningSettings::default(), &mut stop_soon, NOW);
    assert!(matches!(result, Err(PassError::Stopped)));
    assert!(shown(&test.log).len() <= before.len());
    test.compact_all(NOW).unwrap();
}

struct Logs {
    logs: Vec<(TopicPartition, Arc<Mutex<PartitionLog>>)>,
    checkpointed: Mutex<Sender<()>>,
}

struct Shared(Arc<Mutex<PartitionLog>>);

impl LogAccess for Shared {
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        Some(work(&mut self.0.lock()))
    }
}

impl CleanerLogs for Logs {
    type Log = Shared;

    fn logs(&self) -> Vec<(TopicPartition, Shared)> {
        self.logs.iter().map(|(name, log)| (name.clone(), Shared(Arc::clone(log)))).collect()
    }

    fn note_disk_error(&self, _log: &Shared, error: &StorageError) {
        assert!(!error.is_disk_failure(), "no disk fails in these tests: {error}");
    }

    fn checkpoint_cleaned_offsets(&self) {
        let _ = self.checkpointed.lock().send(());
    }

    fn now_ms(&self) -> i64 {
        NOW
    }
}

fn settings(threads: usize) -> WorkerSettings {
    WorkerSettings {
        threads,
        dedupe_buffer_bytes: 1 << 20,
        load_factor: 0.9,
        bytes_per_second: f64::MAX,
        backoff: Duration::from_secs(3600),
    }
}

fn logs(tests: Vec<TestLog>) -> (Arc<Logs>, Receiver<()>, Vec<tempfile::TempDir>) {
    let (sender, receiver) = channel();
    let mut directories = Vec::new();
    let mut logs = Vec::new();
    for (index, test) in tests.into_iter().enumerate() {
        directories.push(test.directory);
        logs.push((TopicPartition::new("t", index as i32), Arc::new(Mutex::new(test.log))));
    }
    (Arc::new(Logs { logs, checkpointed: Mutex::new(sender) }), receiver, directories)
}

/// Waits until `done`, looking after each checkpoint.
fn wait_until(checkpointed: &Receiver<()>, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        let left = deadline.saturating_duration_since(Instant::now());
        checkpointed.recv_timeout(left).expect("the cleaner comes to an end");
    }
}

#[test]
fn a_bad_partition_is_set_aside_and_the_cleaner_goes_on() {
    for threads in [1, 3] {
        let tests: Vec<_> = (0..4).map(|_| dirty()).collect();
        let path = tests[2].log.segments.first_key_value().unwrap().1.log.path();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let (logs, checkpointed, _directories) = logs(tests);
        let status: Arc<Mutex<CleanerStatus>> = Arc::default();
        let cleaner = Cleaner::start(Arc::clone(&logs), settings(threads), Arc::clone(&status)).unwrap();
        wait_until(&checkpointed, || {
            let cleaned = logs.logs.iter().filter(|(_, log)| log.lock().cleaned_offset() == 20).count();
            cleaned == 3 && status.lock().uncleanable.len() == 1
        });
        let status = status.lock().clone();
        let (name, uncleanable) = status.uncleanable.first_key_value().unwrap();
        assert_eq!(name, &TopicPartition::new("t", 2));
        assert!(uncleanable.reason.contains("damaged batch"), "{}", uncleanable.reason);
        assert_eq!(status.last_run_ms, Some(NOW));
        drop(cleaner);
        assert_eq!(shown(&logs.logs[0].1.lock()).len(), 11);
    }
}

#[test]
fn a_throttled_cleaner_stops_at_once() {
    let mut test = TestLog::with(LogConfig { segment_bytes: 1 << 20, ..config() });
    let value = "x".repeat(100_000);
    for n in 0..3 {
        test.append(&[&format!("a{n}={value}")]);
    }
    test.roll();
    test.log.update_high_watermark(3);
    let (logs, _checkpointed, _directories) = logs(vec![test]);
    let slow = WorkerSettings { bytes_per_second: 10.0, ..settings(1) };
    let cleaner = Cleaner::start(Arc::clone(&logs), slow, Arc::default()).unwrap();
    let started = Instant::now();
    drop(cleaner);
    assert!(started.elapsed() < Duration::from_secs(30), "300 kB at 10 bytes a second take hours");
    assert_eq!(logs.logs[0].1.lock().cleaned_offset(), 0);
}
