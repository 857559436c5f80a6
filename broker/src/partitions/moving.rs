//! Moves of replicas between the log directories of this broker (AlterReplicaLogDirs, KIP-113): what is wished, which moves
//! are under way, and the tasks that carry them on, a step at a time. A move lives in its `-future` directory only, so it
//! goes on after a restart.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use uuid::Uuid;
use zurau_common::http::instruments::Counter;
use zurau_common::id::{TopicPartition, topic_name_problem};
use zurau_common::rejection::Rejection;

use super::Partitions;
use crate::context::BrokerContext;
use crate::log::{Aside, LogError, PartitionLog, StorageError, read_generation};
use crate::partition::{FormerLog, MoveFailure, MoveStep, Partition};
use crate::shared::wall_clock_ms;

/// Bytes of a directory's name, as file systems have it.
const NAME_BYTES_MAX: usize = 255;
/// Replicas that do not exist yet whose log directory is remembered; further wishes are forgotten.
const WISHES_MAX: usize = 100_000;
/// Pause after a step that failed, and while the disk below a copy is full.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Moves between log directories.
#[derive(Default)]
pub(super) struct Moves {
    /// Held while a wish is judged, so that two of them do not both begin.
    judging: Mutex<()>,
    waiting: Mutex<VecDeque<Arc<Partition>>>,
    grown: Notify,
    /// Copies that were lost and shall be made anew, by index in `log.dirs`.
    anew: Mutex<HashMap<TopicPartition, usize>>,
    /// Where replicas shall be created that do not exist yet, by index in `log.dirs`.
    wishes: Mutex<HashMap<TopicPartition, usize>>,
    /// How far the moves were after their last step: whoever asks does not wait for a disk.
    progress: Mutex<HashMap<TopicPartition, Progress>>,
    /// Steps that a panic ended, and their moves with them.
    dead: Counter,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    directory: usize,
    /// Records that the copy lacks.
    lag: i64,
    /// The last step failed.
    has_failed: bool,
}

/// What is told of the moves that are under way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedMoves {
    /// Partition, the index of the log directory that it moves to, and the records that the copy there lacks.
    pub(crate) lags: Vec<(TopicPartition, usize, i64)>,
    /// Those whose last step failed.
    pub(crate) failing: usize,
    /// Those that a panic ended.
    pub(crate) dead: u64,
}

impl Moves {
    fn go_on_with(&self, partition: Arc<Partition>) {
        self.waiting.lock().push_back(partition);
        self.grown.notify_one();
    }
}

/// How a task goes on with a move.
enum Next {
    Step,
    /// Look again after this time; others may move meanwhile.
    Later(Duration),
    End,
}

impl Partitions {
    /// Moves a replica to the log directory `path`, or lets it be created there if there is none. Back to where it is: a
    /// move that is under way ends. Waits for the disk.
    ///
    /// # Errors
    /// As of Kafka: `InvalidTopicException` when the name is too long for the directory of a copy; `LogDirNotFound` if `path`
    /// is none of `log.dirs`; `KafkaStorageError` if it is offline, the replica's own one is, or, for a new move, any is;
    /// `ReplicaNotAvailable` if there is no replica yet (the wish is remembered).
    pub(crate) fn alter_log_dir(&self, id: &TopicPartition, path: &Path) -> Result<(), Rejection> {
        let _judging = self.moves.judging.lock();
        if topic_name_problem(&id.topic).is_some()
            || NAME_BYTES_MAX < Aside::Future.whole_name(&id.to_string(), 0).len()
        {
            return Err(Rejection::InvalidTopicException);
        }
        let target = self.find_directory(path)?;
        let Some(partition) = self.get(&id.topic, id.partition) else {
            self.wish(id, target);
            return Err(Rejection::ReplicaNotAvailable);
        };
        if partition.with_log(|log| log.stopped().is_none()) != Some(true) {
            return Err(Rejection::KafkaStorageError);
        }
        self.moves.anew.lock().remove(id);
        match partition.future() {
            Some(future) if future.directory == target => return Ok(()),
            Some(_) => self.abandon_move(&partition, "another log directory is wished"),
            None => {}
        }
        if partition.directory() == target {
            return Ok(());
        }
        if self.has_offline_directory() {
            warn!(partition = %id, "the replica does not move while a log directory is offline: it may have a copy there");
            return Err(Rejection::KafkaStorageError);
        }
        self.begin_move(&partition, target)
    }

    fn find_directory(&self, path: &Path) -> Result<usize, Rejection> {
        let is = |other: &Path| std::path::absolute(other).is_ok_and(|other| other == path);
        if self.unopened.iter().any(|unopened| is(unopened)) {
            return Err(Rejection::KafkaStorageError);
        }
        let found = self.directories.iter().position(|directory| is(&directory.path));
        let found = found.ok_or(Rejection::LogDirNotFound)?;
        if self.has_failed(found) { Err(Rejection::KafkaStorageError) } else { Ok(found) }
    }

    fn wish(&self, id: &TopicPartition, directory: usize) {
        let mut wishes = self.moves.wishes.lock();
        if WISHES_MAX <= wishes.len() && !wishes.contains_key(id) {
            warn!(partition = %id, limit = WISHES_MAX, "too many wishes for log directories; this one is forgotten");
            return;
        }
        wishes.insert(id.clone(), directory);
    }

    /// Where a replica shall be created, if that was wished and the directory is not offline.
    pub(super) fn wished_directory(&self, id: &TopicPartition) -> Option<usize> {
        let wished = self.moves.wishes.lock().get(id).copied()?;
        (!self.has_failed(wished)).then_some(wished)
    }

    pub(super) fn forget_wish(&self, id: &TopicPartition) {
        self.moves.wishes.lock().remove(id);
    }

    /// Begins a copy in a log directory that has none.
    pub(super) fn begin_move(&self, partition: &Arc<Partition>, target: usize) -> Result<(), Rejection> {
        let id = partition.id();
        let parent = &self.directories[target].path;
        let path = parent.join(Aside::Future.whole_name(&id.to_string(), Uuid::new_v4().as_u128()));
        let begun = partition.begin_future(target, |origin| {
            self.clear_the_place(partition, target)?;
            // Nothing that a former log left there is true of the copy (M11).
            self.directories[target].opened.lock().checkpoints.forget(id)?;
            let topic_id = Some(partition.topic_id().0);
            PartitionLog::create_copy(
                &path,
                topic_id,
                origin.config,
                origin.log_start_offset,
                wall_clock_ms(),
            )
        });
        match begun {
            Ok(true) => {
                info!(partition = %id, from = partition.directory(), to = target, path = %path.display(), "the replica moves to another log directory");
                self.note_progress(partition);
                self.moves.go_on_with(Arc::clone(partition));
                Ok(())
            }
            Ok(false) => Err(Rejection::KafkaStorageError),
            Err(reason) => {
                // What was made of it; else the next start finds it.
                let _ = std::fs::remove_dir_all(&path);
                error!(partition = %id, directory = %parent.display(), %reason, "the replica cannot move there");
                if let LogError::Storage(error) = &reason {
                    self.note_error(target, error);
                }
                Err(Rejection::KafkaStorageError)
            }
        }
    }

    /// Removes a former copy of the replica that is in the way of a new one: its last renaming had failed.
    fn clear_the_place(&self, partition: &Partition, target: usize) -> Result<(), LogError> {
        let path = self.directories[target].path.join(partition.id().to_string());
        if partition.directory() == target || !path.exists() {
            return Ok(());
        }
        let own = partition.with_log(|log| log.generation()).unwrap_or(0);
        if own <= read_generation(&path)? {
            let reason = "it is in the way, and no older than the replica".to_owned();
            return Err(LogError::Damaged { path, reason });
        }
        Ok(self.remove_copy(&path, partition.id())?)
    }

    /// Removes a directory that is no partition's log, or a copy of it: under a name that the next start removes too.
    pub(super) fn remove_copy(&self, path: &Path, id: &TopicPartition) -> Result<(), StorageError> {
        let parent = path.parent().unwrap_or_else(|| Path::new("."));
        crate::log::remove_directory(path, &parent.join(Aside::ToDelete.name(&id.to_string())))
    }

    /// Ends a move; the replica stays where it is.
    pub(super) fn abandon_move(&self, partition: &Partition, why: &str) {
        self.moves.anew.lock().remove(partition.id());
        let future = partition.take_future();
        self.note_progress(partition);
        let Some(future) = future else { return };
        let path = future.log.directory().to_owned();
        info!(partition = %partition.id(), path = %path.display(), why, "the replica does not move any more");
        drop(future.log);
        self.directories[future.directory].opened.lock().checkpoints.remove(partition.id());
        if self.has_failed(future.directory) {
            return;
        }
        if let Err(error) = self.remove_copy(&path, partition.id()) {
            self.note_error(future.directory, &error);
            warn!(partition = %partition.id(), %error, "the copy cannot be removed; trying again at the next start");
        }
    }

    /// What is told of the moves that are under way.
    pub(crate) fn observe_moves(&self) -> ObservedMoves {
        let progress = self.moves.progress.lock();
        let lags =
            progress.iter().map(|(id, Progress { directory, lag, .. })| (id.clone(), *directory, *lag));
        ObservedMoves {
            lags: lags.collect(),
            failing: progress.values().filter(|one| one.has_failed).count(),
            dead: self.moves.dead.get(),
        }
    }

    fn note_progress(&self, partition: &Partition) {
        let id = partition.id();
        let end = partition.with_log(|log| log.log_end_offset());
        match partition.future() {
            Some(future) => {
                let mut all = self.moves.progress.lock();
                let progress = all.entry(id.clone()).or_default();
                progress.directory = future.directory;
                progress.lag = end.map_or(progress.lag, |end| (end - future.log_end_offset).max(0));
            }
            None if self.moves.anew.lock().contains_key(id) => {}
            None => drop(self.moves.progress.lock().remove(id)),
        }
    }

    /// One step of a move. Waits for the disk.
    fn step_move(&self, partition: &Arc<Partition>) -> Next {
        let next = self.try_step(partition);
        self.note_progress(partition);
        next
    }

    fn try_step(&self, partition: &Arc<Partition>) -> Next {
        let Some(future) = partition.future() else { return self.begin_anew(partition) };
        if self.shared.is_exhausted(future.directory) {
            return Next::Later(RETRY_PAUSE);
        }
        let throttle = &self.shared.throttles.log_dir_moves;
        if let Some(wait_ms) = throttle.exceeded(self.shared.now_ms()) {
            return Next::Later(Duration::from_millis(wait_ms));
        }
        match partition.move_on(|directory, copy| self.note_copy(directory, partition.id(), copy)) {
            MoveStep::Copied(bytes) => {
                throttle.record(bytes, self.shared.now_ms());
                self.note_failure(partition.id(), false);
                Next::Step
            }
            MoveStep::Replaced(former) => {
                self.finish_move(partition, *former);
                Next::End
            }
            MoveStep::Ended => Next::End,
            MoveStep::Failed(failure) => self.after_failure(partition, future.directory, &failure),
        }
    }

    /// The checkpoints of the copy's log directory, durably, before the copy is the log.
    fn note_copy(
        &self,
        directory: usize,
        id: &TopicPartition,
        copy: &PartitionLog,
    ) -> Result<(), StorageError> {
        let checkpoints = &mut self.directories[directory].opened.lock().checkpoints;
        checkpoints.recovery_points.set(id, copy.recovery_point());
        checkpoints.log_starts.set(id, copy.log_start_offset());
        checkpoints.high_watermarks.set(id, copy.high_watermark());
        if 0 < copy.cleaned_offset() {
            checkpoints.cleaner_offsets.set(id, copy.cleaned_offset());
        }
        checkpoints.write()
    }

    fn finish_move(&self, partition: &Partition, former: FormerLog) {
        let id = partition.id();
        let FormerLog { log, directory, in_the_way } = former;
        info!(partition = %id, from = directory, to = partition.directory(), log_end_offset = log.log_end_offset(), "the replica has moved");
        self.directories[directory].opened.lock().checkpoints.remove(id);
        let outcome = match in_the_way {
            Some(error) => Err(error),
            None => log.delete(),
        };
        if let Err(error) = outcome {
            self.note_error(directory, &error);
            warn!(partition = %id, %error, "the replica has moved, but its former log stays; trying again at the next start");
        }
    }

    fn note_failure(&self, id: &TopicPartition, has_failed: bool) {
        if let Some(progress) = self.moves.progress.lock().get_mut(id) {
            progress.has_failed = has_failed;
        }
    }

    fn after_failure(&self, partition: &Arc<Partition>, target: usize, failure: &MoveFailure) -> Next {
        let id = partition.id();
        warn!(
            partition = %id, reason = failure.reason, copy_is_lost = failure.copy_is_lost,
            "a step of a replica's move to another log directory failed"
        );
        self.note_failure(id, true);
        if let Some(error) = &failure.error {
            self.note_error(failure.directory, error);
        }
        if self.has_failed(target) || self.has_failed(partition.directory()) {
            // Goes on, if at all, after the disk was repaired and the broker restarted.
            return Next::End;
        }
        if failure.copy_is_lost {
            self.remove_copies(id, target);
            self.moves.anew.lock().insert(id.clone(), target);
        }
        Next::Later(RETRY_PAUSE)
    }

    fn begin_anew(&self, partition: &Arc<Partition>) -> Next {
        let _judging = self.moves.judging.lock();
        let Some(target) = self.moves.anew.lock().get(partition.id()).copied() else { return Next::End };
        let is_there = partition.with_log(|_| ()).is_some();
        if !is_there || self.has_failed(target) || self.begin_move(partition, target).is_ok() {
            // It is queued then.
            self.moves.anew.lock().remove(partition.id());
            return Next::End;
        }
        Next::Later(RETRY_PAUSE)
    }

    /// Removes what is left of copies of a partition in a log directory.
    fn remove_copies(&self, id: &TopicPartition, directory: usize) {
        let found = self.directories[directory].opened.lock().list().unwrap_or_default();
        for found in found {
            if let crate::log::FoundDirectory::Future { partition, path } = found
                && partition == *id
                && let Err(error) = self.remove_copy(&path, id)
            {
                warn!(partition = %id, %error, "a copy cannot be removed; trying again at the next start");
            }
        }
    }

    /// Takes the moves up that a log directory cannot go on with.
    pub(super) fn drop_moves_to(&self, directory: usize) {
        for partition in self.all() {
            if partition.future().is_some_and(|future| future.directory == directory) {
                warn!(partition = %partition.id(), "the replica stays: the log directory it was moving to is offline");
                drop(partition.take_future());
                self.note_progress(&partition);
            }
        }
    }

    /// Goes on with a copy that was found at the start.
    pub(super) fn resume_move(&self, partition: &Arc<Partition>, directory: usize, copy: PartitionLog) {
        let mut copy = Some(copy);
        let resumed = partition.begin_future(directory, |_| copy.take().ok_or(()));
        if resumed == Ok(true) && copy.is_none() {
            info!(partition = %partition.id(), to = directory, "the move of a replica goes on");
            self.note_progress(partition);
            self.moves.go_on_with(Arc::clone(partition));
        }
    }
}

/// Carries moves on until `stopping`, as many at a time as `num.replica.alter.log.dirs.threads` says, else one for each log
/// directory.
pub(crate) async fn run_moves(context: Arc<BrokerContext>, stopping: CancellationToken) {
    let threads = context.config.settings.get("num.replica.alter.log.dirs.threads");
    let threads = threads.and_then(|(value, _)| value.trim().parse().ok());
    let at_a_time = threads.unwrap_or(context.config.log_dirs.len()).max(1);
    let moves = &context.partitions.moves;
    let mut running = JoinSet::new();
    loop {
        while running.len() < at_a_time {
            let Some(partition) = moves.waiting.lock().pop_front() else { break };
            running.spawn(carry_on(Arc::clone(&context), partition));
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            () = moves.grown.notified() => {}
            Some(_) = running.join_next() => {}
        }
    }
}

async fn carry_on(context: Arc<BrokerContext>, partition: Arc<Partition>) {
    loop {
        let (for_step, of_step) = (Arc::clone(&context), Arc::clone(&partition));
        let step = tokio::task::spawn_blocking(move || for_step.partitions.step_move(&of_step));
        let step = step.await.unwrap_or_else(|error| {
            // Else the process is stopping.
            context.partitions.moves.dead.add(u64::from(error.is_panic()));
            Next::End
        });
        match step {
            Next::Step => {}
            Next::Later(pause) => {
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    context.partitions.moves.go_on_with(partition);
                });
                return;
            }
            Next::End => return,
        }
    }
}

#[cfg(test)]
mod tests;
