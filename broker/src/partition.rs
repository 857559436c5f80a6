//! A partition on this broker: its replica core and its log behind one short lock. Every method is one synchronous
//! step; nothing waits inside. Whoever must be told of what a step did is told after the lock is free.
//!
//! `append`, `read` and `delete` are what clients and followers do; `follow` is what a fetcher does; `flush` syncs; `office`
//! is what the control plane does; `moving` takes the log to another log directory.

mod append;

mod delete;

mod flush;

mod follow;

mod moving;

mod observe;

mod office;

mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tracing::{error, info};
use zurau_common::id::{BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;

use crate::fetch_waiter::{FetchWaiter, WaiterList};
use crate::log::{BatchRules, LogConfig, LogError, PartitionLog, StorageError};
use crate::metrics::TopicCounters;
use crate::replica::follower::EpochEndOffset;
use crate::replica::leader::LeaderRules;
use crate::replica::steps::{self, ReplicaLog};
use crate::replica::{Replica, Role};
use crate::resignations::Resignation;
use crate::shared::{PartitionRequest, Shared};
use crate::throttle::Throttled;
use crate::waiters::OffsetWaiters;

use delete::DeletionWaiter;
use flush::Flushing;
use moving::FutureLog;

pub(crate) use append::{Acks, Append, Appended, CommitWait, ProduceRejection};
pub(crate) use delete::DeletionWait;
pub(crate) use follow::FetchStep;
pub(crate) use moving::{FormerLog, MoveFailure, MoveStep};
pub(crate) use observe::{Leading, Observation};
pub(crate) use office::Accepted;
pub(crate) use read::{FoundOffset, Isolation, OffsetQuery, ReadAnswer, ReadRequest, Reader};

/// What a topic's configuration means for each of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionConfig {
    pub(crate) log: LogConfig,
    /// `min.insync.replicas`, at least 1.
    pub(crate) min_insync_replicas: usize,
    /// `unclean.leader.election.enable`.
    pub(crate) unclean_election: bool,
    pub(crate) throttled_leader: Throttled,
    pub(crate) throttled_follower: Throttled,
}

type CommitWaiter = oneshot::Sender<Result<(), Rejection>>;

/// One replica of a partition. Shared by handlers, fetchers and the control plane.
pub(crate) struct Partition {
    id: TopicPartition,
    topic_id: TopicId,
    /// Index of its log directory in `log.dirs`; changes with the log, under the lock.
    directory: AtomicUsize,
    shared: Arc<Shared>,
    /// Of its topic.
    counters: Arc<TopicCounters>,
    inner: Mutex<Inner>,
    /// Its log in another log directory, while it moves there; boxed, because few do. Never locked after `inner`.
    future: Mutex<Option<Box<FutureLog>>>,
    /// What the topic's configuration asks of batches, for those who look at them before they take the lock.
    batch_rules: Mutex<BatchRules>,
    /// Told whenever an office that was being taken is held, or given up.
    office_decided: Notify,
}

struct Inner {
    replica: Replica,
    /// `None` once the partition is deleted or closed.
    log: Option<PartitionLog>,
    config: PartitionConfig,
    commits: OffsetWaiters<CommitWaiter>,
    /// Deletions of records that not every replica has followed yet.
    deletions: OffsetWaiters<DeletionWaiter>,
    flushing: Flushing,
    /// Fetches that wait for committed records, and those that wait for appended ones.
    committed_waiters: WaiterList,
    appended_waiters: WaiterList,
}

/// Who is to be told after the lock is free.
#[derive(Default)]
struct Wakes {
    commits: Vec<(CommitWaiter, Result<(), Rejection>)>,
    deletions: Vec<(DeletionWaiter, Result<i64, Rejection>)>,
    fetches: Vec<Arc<FetchWaiter>>,
    requests: Vec<PartitionRequest>,
    /// Somebody waits for a sync, and none is under way.
    flush: Option<Arc<Partition>>,
}

impl Wakes {
    fn fire(self, shared: &Shared) {
        for (waiter, outcome) in self.commits {
            // The producer may be gone.
            let _ = waiter.send(outcome);
        }
        for (waiter, outcome) in self.deletions {
            let _ = waiter.send(outcome);
        }
        for waiter in self.fetches {
            waiter.wake();
        }
        for request in self.requests {
            shared.request(request);
        }
        if let Some(partition) = self.flush {
            partition.start_flushing();
        }
    }
}

/// What a partition does on this broker at one moment, for status pages and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    /// `new` (not told yet), `taking office`, `leader`, `follower` or `offline`.
    pub role: &'static str,
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: Option<PartitionEpoch>,
    /// Stored ISR and ELR; empty unless this broker leads.
    pub isr: Vec<BrokerId>,
    pub elr: Vec<BrokerId>,
    pub log_start_offset: i64,
    pub high_watermark: i64,
    pub log_end_offset: i64,
}

impl Partition {
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: TopicPartition,
        topic_id: TopicId,
        (directory, log): (usize, PartitionLog),
        config: PartitionConfig,
    ) -> Arc<Self> {
        let batch_rules = Mutex::new(BatchRules::of(&config.log));
        let inner = Inner {
            replica: Replica::new(shared.own, topic_id, shared.replication.truncation_path),
            log: Some(log),
            config,
            commits: OffsetWaiters::default(),
            deletions: OffsetWaiters::default(),
            flushing: Flushing::default(),
            committed_waiters: WaiterList::default(),
            appended_waiters: WaiterList::default(),
        };
        let counters = shared.metrics.topics.of(&id.topic);
        Arc::new(Self {
            counters,
            id,
            topic_id,
            directory: AtomicUsize::new(directory),
            shared,
            inner: Mutex::new(inner),
            future: Mutex::new(None),
            batch_rules,
            office_decided: Notify::new(),
        })
    }

    pub(crate) fn id(&self) -> &TopicPartition {
        &self.id
    }

    pub(crate) fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    pub(crate) fn counters(&self) -> &TopicCounters {
        &self.counters
    }

    /// Index of its log directory in `log.dirs`.
    pub(crate) fn directory(&self) -> usize {
        self.directory.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> PartitionStatus {
        let inner = self.inner.lock();
        let view = inner.replica.view();
        let stored = inner.replica.leader().map(|leader| leader.isr().stored().clone());
        let role = match (inner.replica.role(), &inner.log) {
            (_, None) | (Role::Idle(Some(_)), _) => "offline",
            (Role::Idle(None), _) => "new",
            (Role::TakingOffice { .. }, _) => "taking office",
            (Role::Leader(_), _) => "leader",
            (Role::Follower(_), _) => "follower",
        };
        PartitionStatus {
            role,
            leader: view.map(|view| view.leader),
            leader_epoch: view.map_or(LeaderEpoch::UNKNOWN, |view| view.leader_epoch),
            partition_epoch: stored.as_ref().map(|stored| stored.partition_epoch),
            isr: stored.as_ref().map(|stored| stored.isr.clone()).unwrap_or_default(),
            elr: stored.map(|stored| stored.elr).unwrap_or_default(),
            log_start_offset: inner.log.as_ref().map_or(-1, PartitionLog::log_start_offset),
            high_watermark: inner.log.as_ref().map_or(-1, PartitionLog::high_watermark),
            log_end_offset: inner.log.as_ref().map_or(-1, PartitionLog::log_end_offset),
        }
    }

    pub(crate) fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.inner.lock().replica.view().map(|view| view.leader_epoch)
    }

    /// Whether this broker leads in exactly that epoch.
    pub(crate) fn leads_in(&self, leader_epoch: LeaderEpoch) -> bool {
        self.inner.lock().replica.leader().is_some_and(|leader| leader.leader_epoch() == leader_epoch)
    }

    /// Whether this broker still has its role of exactly that epoch: a read that was planned in it may be answered.
    pub(crate) fn serves_in(&self, leader_epoch: LeaderEpoch) -> bool {
        self.inner.lock().replica.readable_in(leader_epoch).is_ok()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.inner.lock().replica.leader().is_some()
    }

    /// Whether what this broker fetches for the partition counts for the followers' quota.
    pub(crate) fn is_throttled_follower(&self) -> bool {
        self.inner.lock().config.throttled_follower.contains(self.id.partition)
    }

    /// Whether this broker follows because a reassignment adds it to the replicas.
    pub(crate) fn is_being_added(&self) -> bool {
        self.inner.lock().replica.view().is_some_and(|view| view.is_being_added)
    }

    /// Takes a changed topic configuration.
    pub(crate) fn set_config(self: &Arc<Self>, config: PartitionConfig) {
        self.step(|inner, wakes| {
            if let Some(log) = &mut inner.log {
                log.set_config(config.log.clone());
            }
            *self.batch_rules.lock() = BatchRules::of(&config.log);
            inner.config = config;
            let rules = self.rules(&inner.config);
            if let Some(leader) = inner.replica.leader_mut() {
                leader.set_rules(rules);
                self.settle(inner, wakes);
                self.propose(inner, wakes);
            }
        });
    }

    /// Runs work on the log that is neither append nor read: retention, flushes, checkpoints. `None` when the log is
    /// closed.
    pub(crate) fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        self.inner.lock().log.as_mut().map(work)
    }

    /// Stops everything and gives the log out, to be closed or deleted.
    pub(crate) fn take_log(&self) -> Option<PartitionLog> {
        self.step(|inner, wakes| {
            self.leave_roles(inner, wakes, Some(Rejection::KafkaStorageError));
            inner.log.take()
        })
    }

    /// The directory of the log is gone, and the log with it: this replica is offline until the broker restarts.
    pub(crate) fn lose_log(self: &Arc<Self>, reason: &dyn std::fmt::Display) {
        self.step(|inner, wakes| {
            self.fail(inner, wakes, reason);
            inner.log = None;
        });
    }

    fn rules(&self, config: &PartitionConfig) -> LeaderRules {
        LeaderRules {
            min_insync_replicas: config.min_insync_replicas,
            unclean_election: config.unclean_election,
            lag_max_ms: self.shared.replication.lag_max_ms,
            fetch_wait_max_ms: self.shared.replication.fetch_wait_max_ms,
        }
    }

    /// One step under the lock; what it woke is told afterwards.
    fn step<T>(&self, work: impl FnOnce(&mut Inner, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut inner: MutexGuard<'_, Inner> = self.inner.lock();
        let was_undecided = inner.replica.is_taking_office();
        let result = work(&mut inner, &mut wakes);
        let is_decided = was_undecided && !inner.replica.is_taking_office();
        drop(inner);
        wakes.fire(&self.shared);
        if is_decided {
            self.office_decided.notify_waiters();
        }
        result
    }

    /// After anything that may move the high watermark or the ISR: moves them, and gathers who must know.
    fn settle(&self, inner: &mut Inner, wakes: &mut Wakes) {
        self.settle_deletions(inner, wakes);
        let Inner { replica, log: Some(log), commits, committed_waiters, appended_waiters, .. } = inner
        else {
            return;
        };
        let settled = steps::settle(replica, log, commits, || self.shared.holds_lease());
        if settled.risen {
            committed_waiters.take(&mut wakes.fetches);
            // Followers hear of it with the next records of any partition.
            appended_waiters.note();
        }
        wakes.commits.extend(settled.acknowledged);
    }

    /// Opens a proposal if the ISR should change, and hands it to the control plane.
    fn propose(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) {
        let Inner { replica, log: Some(log), .. } = inner else { return };
        let ends = steps::log_ends(log);
        let now_ms = self.shared.now_ms();
        let Some(leader) = replica.leader_mut() else { return };
        let leader_epoch = leader.leader_epoch();
        if let Some(proposal) = leader.propose(ends, now_ms) {
            info!(
                partition = %self.id, %leader_epoch, partition_epoch = %proposal.partition_epoch,
                isr = ?proposal.isr, elr = ?proposal.elr, "ISR change proposed"
            );
            wakes.requests.push(PartitionRequest::StoreIsr(Arc::clone(self)));
        }
    }

    /// Leaves whatever role there is: waiting producers and fetches learn that they have to look elsewhere.
    fn leave_roles(&self, inner: &mut Inner, wakes: &mut Wakes, rejection: Option<Rejection>) {
        self.dismiss_waiters(inner, wakes);
        inner.replica.stop(rejection);
    }

    fn dismiss_waiters(&self, inner: &mut Inner, wakes: &mut Wakes) {
        let mut waiting = inner.commits.drain();
        waiting.extend(inner.flushing.waiting.drain());
        wakes.commits.extend(waiting.into_iter().map(|waiter| (waiter, Err(Rejection::NotLeaderOrFollower))));
        let deletions = inner.deletions.drain();
        wakes
            .deletions
            .extend(deletions.into_iter().map(|waiter| (waiter, Err(Rejection::NotLeaderOrFollower))));
        inner.committed_waiters.take(&mut wakes.fetches);
        inner.appended_waiters.take(&mut wakes.fetches);
    }

    /// The log takes no more appends: this replica is of no use until the broker restarts.
    fn fail(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes, reason: &dyn std::fmt::Display) {
        error!(partition = %self.id, %reason, "the replica goes offline: its log failed; restart the broker after repair");
        if inner.replica.leader().is_some() {
            let resignation = Resignation::of(self, &inner.replica);
            wakes.requests.extend(resignation.map(PartitionRequest::Resign));
        }
        let unsynced = inner.flushing.waiting.drain();
        wakes.commits.extend(unsynced.into_iter().map(|waiter| (waiter, Err(Rejection::KafkaStorageError))));
        self.leave_roles(inner, wakes, Some(Rejection::KafkaStorageError));
    }
}

impl Partition {
    /// As [`Partition::fail`], after an error of the log.
    fn fail_by(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes, error: LogError) {
        self.fail(inner, wakes, &error);
        if let LogError::Storage(error) = error {
            self.report(error);
        }
    }

    /// A disk operation failed: whoever owns the log directory judges whether it has to go offline.
    pub(crate) fn report(&self, error: StorageError) {
        if error.is_disk_failure() {
            self.shared.request(PartitionRequest::DiskError { directory: self.directory(), error });
        }
    }
}

impl ReplicaLog for PartitionLog {
    fn log_start_offset(&self) -> i64 {
        self.log_start_offset()
    }

    fn log_end_offset(&self) -> i64 {
        self.log_end_offset()
    }

    fn high_watermark(&self) -> i64 {
        self.high_watermark()
    }

    fn update_high_watermark(&mut self, high_watermark: i64) {
        self.update_high_watermark(high_watermark);
    }

    fn latest_epoch(&self) -> Option<i32> {
        self.latest_epoch()
    }

    fn epoch_at(&self, offset: i64) -> Option<i32> {
        self.epoch_at(offset)
    }

    fn end_offset_for_epoch(&self, epoch: i32) -> EpochEndOffset {
        let end = self.end_offset_for_epoch(epoch);
        EpochEndOffset { leader_epoch: end.leader_epoch, end_offset: end.end_offset }
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Partition({} {})", self.id, self.topic_id)
    }
}
