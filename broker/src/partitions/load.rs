//! Opening the logs at start, several at a time, and closing them at the end.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tracing::{error, info, warn};
use zurau_common::id::{TopicId, TopicPartition};

use super::Partitions;
use super::progress::{DirectoryCounters, LoadingProgress};
use super::twice::{Found, Remains};
use crate::log::{FoundDirectory, PartitionLog, bytes_to_recover};
use crate::partition::Partition;
use crate::shared::wall_clock_ms;

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Logs closed at a time; each waits for a sync.
const CLOSING_THREADS: usize = 8;

/// What loading found.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) partitions: usize,
    /// Partitions whose log came back shorter than it was known to be: the disk lost records (D1).
    pub(crate) unclean: Vec<TopicPartition>,
}

struct Job {
    directory: usize,
    partition: TopicPartition,
    path: PathBuf,
}

impl Partitions {
    /// Opens every log, with `threads` at a time for each directory. Waits for the disk. A log that cannot be opened is
    /// left out, and named in the process's log: its partition has no replica here until that is repaired.
    ///
    /// # Errors
    /// A log directory cannot be listed.
    pub(crate) fn load(&self, threads: usize, progress: &LoadingProgress) -> anyhow::Result<Loaded> {
        let (jobs, counters, remains) = self.plan_loading()?;
        let total = jobs.len();
        let counters = progress.begin(counters);
        let jobs = Mutex::new(jobs);
        let loaded = Mutex::new(Loaded::default());
        let (working, all_done) = channel::<()>();
        std::thread::scope(|scope| {
            for _ in 0..(threads * self.directories.len()).clamp(1, total.max(1)) {
                let working = working.clone();
                let (jobs, loaded) = (&jobs, &loaded);
                scope.spawn(move || {
                    loop {
                        let Some(job) = jobs.lock().pop_front() else { break };
                        let counters = &counters[job.directory];
                        self.load_one(&job, counters, loaded);
                        counters.note_log_done();
                    }
                    drop(working);
                });
            }
            drop(working);
            while all_done.recv_timeout(PROGRESS_EVERY) == Err(RecvTimeoutError::Timeout) {
                tell(progress);
            }
        });
        let loaded = loaded.into_inner();
        self.settle_remains(remains);
        info!(partitions = loaded.partitions, unclean = loaded.unclean.len(), "logs are loaded");
        Ok(loaded)
    }

    /// What there is to open, how much of it there is in each directory, and what is to be looked at afterwards. Removes what
    /// was to be deleted.
    fn plan_loading(&self) -> anyhow::Result<(VecDeque<Job>, Vec<DirectoryCounters>, Remains)> {
        let mut found: Vec<Found> = Vec::new();
        let mut remains = Remains::default();
        for (index, directory) in self.directories.iter().enumerate() {
            for one in directory.opened.lock().list()? {
                match one {
                    FoundDirectory::Partition { partition, path } => found.push((partition, index, path)),
                    FoundDirectory::Future { partition, path } => {
                        remains.copies.push((partition, index, path));
                    }
                    // A2; A3.
                    FoundDirectory::ToDelete { path } => remove(&path),
                    FoundDirectory::Stray { .. } => {}
                }
            }
        }
        // A9.
        remains.second = self.second_ones(&found)?;
        found.retain(|one| !remains.second.contains(one));
        let mut logs = vec![0; self.directories.len()];
        let mut bytes = vec![0; self.directories.len()];
        let jobs = found.into_iter().map(|(partition, directory, path)| {
            let mode = self.directories[directory].opened.lock().open_mode(&partition);
            logs[directory] += 1;
            // What cannot be looked at is reported when it is opened.
            bytes[directory] += bytes_to_recover(&path, mode).unwrap_or(0);
            Job { directory, partition, path }
        });
        let jobs = jobs.collect();
        let counters = self.directories.iter().zip(logs.into_iter().zip(bytes));
        let counters = counters.map(|(home, (logs, bytes))| DirectoryCounters::new(&home.path, logs, bytes));
        Ok((jobs, counters.collect(), remains))
    }

    fn load_one(&self, job: &Job, counters: &DirectoryCounters, loaded: &Mutex<Loaded>) {
        match self.open_log(job, counters) {
            Ok(Some((partition, clean))) => {
                let mut loaded = loaded.lock();
                loaded.partitions += 1;
                if !clean {
                    loaded.unclean.push(partition.id().clone());
                }
                drop(loaded);
                self.insert(partition);
            }
            Ok(None) => {}
            Err(reason) => {
                error!(path = %job.path.display(), "a log cannot be opened; its partition is offline here: {reason:#}");
            }
        }
    }

    fn open_log(
        &self,
        job: &Job,
        counters: &DirectoryCounters,
    ) -> anyhow::Result<Option<(Arc<Partition>, bool)>> {
        let (mode, checkpointed, cleaned) = {
            let directory = self.directories[job.directory].opened.lock();
            let checkpoints = &directory.checkpoints;
            let cleaned = checkpoints.cleaner_offsets.get(&job.partition);
            (directory.open_mode(&job.partition), checkpoints.high_watermarks.get(&job.partition), cleaned)
        };
        let config = self.config_of(&job.partition.topic);
        let scanned = &counters.bytes_scanned;
        let mut log =
            PartitionLog::open_counting(&job.path, config.log.clone(), mode, wall_clock_ms(), scanned)?;
        let Some(topic_id) = log.topic_id() else {
            // A5.
            warn!(path = %job.path.display(), "a partition directory without topic id is left alone");
            return Ok(None);
        };
        // A6.
        let known = checkpointed.unwrap_or(0).max(mode.recovery_point);
        let clean = known <= log.log_end_offset();
        if !clean {
            error!(
                path = %job.path.display(), log_end_offset = log.log_end_offset(), known,
                "the log lost records that were known to be in it: this replica leaves the ISR before it joins again"
            );
        }
        log.restore_high_watermark(checkpointed.unwrap_or(0))?;
        log.restore_cleaned_offset(cleaned)?;
        let opened = self.directories[job.directory].opened.lock();
        if let Some(begun) = opened.checkpoints.epoch_starts.get(&job.partition, TopicId(topic_id)) {
            log.restore_epoch(begun);
        }
        drop(opened);
        let id = job.partition.clone();
        let home = (job.directory, log);
        let partition = Partition::new(Arc::clone(&self.shared), id, TopicId(topic_id), home, config);
        Ok(Some((partition, clean)))
    }

    /// As at a start; `None` when the directory does not say which topic it is of.
    pub(super) fn open_again(
        &self,
        directory: usize,
        partition: &TopicPartition,
        path: PathBuf,
    ) -> anyhow::Result<Option<Arc<Partition>>> {
        let counters = DirectoryCounters::new(&path, 1, 0);
        let job = Job { directory, partition: partition.clone(), path };
        Ok(self.open_log(&job, &counters)?.map(|(partition, _)| partition))
    }

    /// Closes every log, several at a time, and marks the directories as left in order. Waits for the disk. Nothing is
    /// served any more.
    ///
    /// # Errors
    /// A log that could not be closed, so that its directory gets no mark; the others are closed all the same.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        // A directory that went offline is left as it is; its logs are not open any more.
        let online = self.all().into_iter().filter(|partition| !self.has_failed(partition.directory()));
        let partitions = Mutex::new(online.collect::<Vec<_>>());
        let closing = Closing { failed: self.close_copies(), closed: Vec::new() };
        let closing = Mutex::new(closing);
        std::thread::scope(|scope| {
            for _ in 0..CLOSING_THREADS {
                scope.spawn(|| {
                    loop {
                        let Some(partition) = partitions.lock().pop() else { return };
                        let closed = close_log(&partition);
                        let mut closing = closing.lock();
                        match closed {
                            Ok(ends) => closing.closed.push((partition, ends)),
                            Err(reason) => closing.failed[partition.directory()] = Some(reason),
                        }
                    }
                });
            }
        });
        let Closing { failed, closed } = closing.into_inner();
        for (partition, ends) in closed {
            let checkpoints = &mut self.directories[partition.directory()].opened.lock().checkpoints;
            checkpoints.high_watermarks.set(partition.id(), ends.high_watermark);
            checkpoints.log_starts.set(partition.id(), ends.log_start);
            checkpoints.recovery_points.set(partition.id(), ends.log_end);
        }
        let broker_epoch = self.shared.broker_epoch().0;
        for (directory, failed) in self.directories.iter().zip(&failed) {
            if directory.failed.get().is_some() {
                continue;
            }
            let mut opened = directory.opened.lock();
            match failed {
                None => opened.mark_clean(broker_epoch)?,
                Some(_) => opened.checkpoints.write()?,
            }
        }
        match failed.into_iter().flatten().next() {
            None => Ok(()),
            Some(reason) => Err(anyhow::anyhow!("a log was not closed cleanly: {reason}")),
        }
    }
}

impl Partitions {
    /// Closes the copies of replicas that are moving. For each directory the reason why it gets no clean mark.
    fn close_copies(&self) -> Vec<Option<String>> {
        let mut failed = vec![None; self.directories.len()];
        for partition in self.all() {
            let Some(future) = partition.take_future() else { continue };
            if self.has_failed(future.directory) {
                continue;
            }
            let ends = (future.log.log_start_offset(), future.log.log_end_offset());
            match future.log.close() {
                Ok(()) => {
                    let checkpoints = &mut self.directories[future.directory].opened.lock().checkpoints;
                    checkpoints.log_starts.set(partition.id(), ends.0);
                    checkpoints.recovery_points.set(partition.id(), ends.1);
                }
                Err(reason) => {
                    failed[future.directory] = Some(format!("a copy of {}: {reason}", partition.id()));
                }
            }
        }
        failed
    }
}

/// Where a log stood when it was closed.
struct Ends {
    log_start: i64,
    high_watermark: i64,
    log_end: i64,
}

struct Closing {
    /// For each directory the reason why it gets no clean mark.
    failed: Vec<Option<String>>,
    closed: Vec<(Arc<Partition>, Ends)>,
}

fn close_log(partition: &Partition) -> Result<Ends, String> {
    let log = partition.take_log().ok_or_else(|| format!("{} was closed before", partition.id()))?;
    let ends = Ends {
        log_start: log.log_start_offset(),
        high_watermark: log.high_watermark(),
        log_end: log.log_end_offset(),
    };
    log.close().map(|()| ends).map_err(|reason| format!("{}: {reason}", partition.id()))
}

/// A line for each directory that is not done.
fn tell(progress: &LoadingProgress) {
    for shown in progress.snapshot().iter().filter(|shown| shown.logs_done < shown.logs_total) {
        info!(
            directory = %shown.path.display(), logs_done = shown.logs_done, logs_total = shown.logs_total,
            bytes_scanned = shown.bytes_scanned, bytes_total = shown.bytes_total, "opening logs"
        );
    }
}

fn remove(path: &Path) {
    let removed = std::fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()));
    if let Err(reason) = removed {
        warn!("a deleted replica's directory stays; trying again at the next start: {reason:#}");
    }
}
