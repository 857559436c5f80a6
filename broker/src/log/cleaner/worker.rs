//! The cleaner threads: each takes the log that needs it most, cleans it, and goes on. Supervised: a log that cannot
//! be cleaned is set aside and named, the others are cleaned all the same (CMP-05); a panic is no more than that.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::{debug, error, info};
use zurau_common::id::TopicPartition;

use super::LogAccess;
use super::choice::Dirtiness;
use super::pass::{CleaningReport, CleaningSettings, PassError, clean};
use super::throttle::Throttle;
use crate::log::error::{LogError, StorageError};

/// A log that failed is tried again after this time.
const RETRY_FAILED_AFTER: Duration = Duration::from_secs(600);
/// Bytes moved between two looks at the clock.
const PACE_BYTES: u64 = 64 << 10;

/// Where the logs are and where their cleaned offsets go.
pub(crate) trait CleanerLogs: Send + Sync + 'static {
    type Log: LogAccess;

    /// All logs of this broker.
    fn logs(&self) -> Vec<(TopicPartition, Self::Log)>;

    /// A pass over this log ended with an error of the system; the disk may have failed.
    fn note_disk_error(&self, log: &Self::Log, error: &StorageError);

    /// Writes the cleaned offsets of all compacted logs to the checkpoints.
    fn checkpoint_cleaned_offsets(&self);

    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;
}

/// Settings of the cleaner as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WorkerSettings {
    /// `log.cleaner.threads`, at least 1.
    pub(crate) threads: usize,
    /// `log.cleaner.dedupe.buffer.size`, of all threads together.
    pub(crate) dedupe_buffer_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`.
    pub(crate) load_factor: f64,
    /// `log.cleaner.io.max.bytes.per.second`, of all threads together.
    pub(crate) bytes_per_second: f64,
    /// `log.cleaner.backoff.ms`: rest when there is nothing to clean.
    pub(crate) backoff: Duration,
}

/// A log that could not be cleaned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uncleanable {
    pub(crate) reason: String,
    pub(crate) since_ms: i64,
}

/// For metrics and status pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanerStatus {
    pub(crate) uncleanable: BTreeMap<TopicPartition, Uncleanable>,
    /// Dirty bytes of the dirtiest log when it was last looked for, in percent.
    pub(crate) max_dirty_percent: u32,
    /// When a pass last ended, milliseconds since 1970.
    pub(crate) last_run_ms: Option<i64>,
    pub(crate) last_report: Option<CleaningReport>,
}

#[derive(Default)]
struct State {
    stopping: bool,
    in_progress: HashSet<TopicPartition>,
    /// Not to be tried again before.
    resting: BTreeMap<TopicPartition, Instant>,
}

struct Core<L> {
    logs: Arc<L>,
    settings: WorkerSettings,
    state: Mutex<State>,
    /// Never locked before `state`.
    status: Arc<Mutex<CleanerStatus>>,
    wake: Condvar,
}

/// The running cleaner threads; they end when it is dropped.
pub(crate) struct Cleaner {
    stop: Box<dyn Fn() + Send + Sync>,
    threads: Vec<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the threads. `status` is theirs to write, and outlives them.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start<L: CleanerLogs>(
        logs: Arc<L>,
        settings: WorkerSettings,
        status: Arc<Mutex<CleanerStatus>>,
    ) -> std::io::Result<Self> {
        let state = Mutex::new(State::default());
        let core = Arc::new(Core { logs, settings, state, status, wake: Condvar::new() });
        let stopped = Arc::clone(&core);
        let mut cleaner = Self { stop: Box::new(move || stopped.stop()), threads: Vec::new() };
        for number in 0..settings.threads.max(1) {
            let core = Arc::clone(&core);
            let thread = std::thread::Builder::new().name(format!("cleaner-{number}"));
            cleaner.threads.push(thread.spawn(move || core.run())?);
        }
        Ok(cleaner)
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        (self.stop)();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a cleaner thread had panicked");
            }
        }
    }
}

impl std::fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cleaner({} threads)", self.threads.len())
    }
}

impl<L: CleanerLogs> Core<L> {
    fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake.notify_all();
    }

    fn run(&self) {
        loop {
            let found = catch_unwind(AssertUnwindSafe(|| self.take_dirtiest())).unwrap_or_else(|_| {
                error!("choosing a log to clean panicked");
                None
            });
            if self.state.lock().stopping {
                return;
            }
            match found {
                Some((name, log)) => self.clean_one(&name, &log),
                None => {
                    self.logs.checkpoint_cleaned_offsets();
                    self.rest(Instant::now() + self.settings.backoff);
                }
            }
        }
    }

    /// Waits; ends early when the cleaner stops.
    fn rest(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.stopping && !self.wake.wait_until(&mut state, until).timed_out() {}
    }

    fn take_dirtiest(&self) -> Option<(TopicPartition, L::Log)> {
        let now_ms = self.logs.now_ms();
        let mut best: Option<(Dirtiness, TopicPartition, L::Log)> = None;
        let mut max_dirty_millionths = 0;
        for (name, log) in self.logs.logs() {
            let looked = log.with_log(|log| (log.dirtiness(now_ms), log.config().min_cleanable_millionths));
            let (dirtiness, min_cleanable) = match looked {
                Some((Ok(Some(dirtiness)), min_cleanable)) => (dirtiness, min_cleanable),
                Some((Err(error), _)) => {
                    self.set_aside(&name, error.to_string());
                    continue;
                }
                _ => continue,
            };
            max_dirty_millionths = max_dirty_millionths.max(dirtiness.ratio_millionths());
            let better = best.as_ref().is_none_or(|(known, _, _)| dirtiness.rank() > known.rank());
            if better && dirtiness.wants_cleaning(min_cleanable) && self.is_free(&name) {
                best = Some((dirtiness, name, log));
            }
        }
        self.status.lock().max_dirty_percent = max_dirty_millionths / 10_000;
        let (_, name, log) = best?;
        self.state.lock().in_progress.insert(name.clone()).then_some((name, log))
    }

    fn is_free(&self, name: &TopicPartition) -> bool {
        let state = self.state.lock();
        let rests = state.resting.get(name).is_some_and(|until| Instant::now() < *until);
        !rests && !state.in_progress.contains(name)
    }

    fn clean_one(&self, name: &TopicPartition, log: &L::Log) {
        let threads = self.settings.threads.max(1);
        let settings = CleaningSettings {
            offset_map_bytes: self.settings.dedupe_buffer_bytes / threads,
            load_factor: self.settings.load_factor,
        };
        let started = Instant::now();
        let mut throttle = Throttle::new(self.settings.bytes_per_second / threads as f64);
        let mut moved = 0;
        let mut pace = |bytes: u64| {
            moved += bytes;
            if moved < PACE_BYTES {
                return Ok(());
            }
            let pause = throttle.pause_after(std::mem::take(&mut moved), started.elapsed());
            self.pause(pause)
        };
        let now_ms = self.logs.now_ms();
        let result = catch_unwind(AssertUnwindSafe(|| clean(log, &settings, &mut pace, now_ms)));
        match result {
            Ok(Ok(report)) => self.finished(name, report, started.elapsed()),
            Ok(Err(PassError::Log(error))) => {
                if let LogError::Storage(error) = &error {
                    self.logs.note_disk_error(log, error);
                }
                self.set_aside(name, error.to_string());
            }
            Ok(Err(reason)) => {
                debug!(partition = %name, %reason, "a compaction pass was given up");
                let until = Instant::now() + self.settings.backoff;
                self.state.lock().resting.insert(name.clone(), until);
            }
            Err(_) => self.set_aside(name, "the compaction panicked: a bug".to_owned()),
        }
        self.state.lock().in_progress.remove(name);
        self.logs.checkpoint_cleaned_offsets();
    }

    fn pause(&self, pause: Duration) -> Result<(), PassError> {
        if !pause.is_zero() {
            self.rest(Instant::now() + pause);
        }
        if self.state.lock().stopping { Err(PassError::Stopped) } else { Ok(()) }
    }

    fn finished(&self, name: &TopicPartition, report: Option<CleaningReport>, took: Duration) {
        self.state.lock().resting.remove(name);
        let mut status = self.status.lock();
        if status.uncleanable.remove(name).is_some() {
            info!(partition = %name, "can be compacted again");
        }
        let Some(report) = report else { return };
        status.last_run_ms = Some(self.logs.now_ms());
        status.last_report = Some(report);
        drop(status);
        info!(
            partition = %name, from = report.first_dirty_offset, to = report.end_offset, keys = report.keys,
            bytes_before = report.bytes_before, bytes_after = report.bytes_after,
            records_before = report.records_before, records_after = report.records_after,
            segments_before = report.segments_before, segments_after = report.segments_after,
            took_ms = took.as_millis() as u64, "compacted"
        );
    }

    fn set_aside(&self, name: &TopicPartition, reason: String) {
        error!(
            partition = %name, reason, retry_after_s = RETRY_FAILED_AFTER.as_secs(),
            "this partition cannot be compacted and is set aside; it is still served, but grows until that is repaired"
        );
        let since_ms = self.logs.now_ms();
        self.state.lock().resting.insert(name.clone(), Instant::now() + RETRY_FAILED_AFTER);
        let mut status = self.status.lock();
        let entry = status.uncleanable.entry(name.clone());
        entry.or_insert(Uncleanable { reason, since_ms });
    }
}
