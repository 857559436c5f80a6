//! The group coordinators of this broker: one for each partition of `__consumer_offsets` that it leads.
//!
//! A coordinator belongs to one leader epoch. Each request looks at the partition first: a coordinator of another epoch
//! than the partition's is never asked, so it does not matter in which order leaderships come and go (GRP-03).

use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::{debug, info, warn};
use zurau_common::config::Settings;
use zurau_common::id::{LeaderEpoch, TopicName};
use zurau_common::rejection::Rejection;

use super::load::{LoadError, Loaded, load};
use super::outbox::GroupSettings;
use super::records::GroupId;
use super::request::{Answer, Ask, Listing};
use super::shard::Shard;
use super::worker::{Command, MAILBOX, Worker};
use crate::context::BrokerContext;
use crate::coordinator::{CoordinatorTopic, setting};
use crate::partition::Partition;
use crate::shared::Shared;

/// Partitions that load at the same time, which bounds the memory for it.
const LOADS_AT_ONCE: usize = 4;
/// Pause before a load that failed is tried again.
const LOAD_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A coordinator, or one in the making.
#[derive(Debug)]
struct Slot {
    leader_epoch: LeaderEpoch,
    mailbox: mpsc::Sender<Command>,
    is_loaded: Arc<AtomicBool>,
}

/// All coordinators of this broker.
#[derive(Debug)]
pub(crate) struct GroupCoordinator {
    settings: Arc<GroupSettings>,
    pub(crate) topic: CoordinatorTopic,
    /// `offsets.commit.timeout.ms`.
    commit_timeout: Duration,
    /// `offsets.load.buffer.size`.
    load_bytes: usize,
    loads: Arc<Semaphore>,
    slots: Mutex<HashMap<i32, Slot>>,
}

impl GroupCoordinator {
    pub(crate) fn new(settings: &Settings) -> Self {
        let minutes: i64 = setting(settings, "offsets.retention.minutes");
        let group_settings = GroupSettings {
            session_timeout_min_ms: setting(settings, "group.min.session.timeout.ms"),
            session_timeout_max_ms: setting(settings, "group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: setting(settings, "group.initial.rebalance.delay.ms"),
            group_size_max: setting(settings, "group.max.size"),
            offset_metadata_bytes_max: setting(settings, "offset.metadata.max.bytes"),
            offsets_retention_ms: minutes.saturating_mul(60_000),
            retention_check_interval_ms: setting(settings, "offsets.retention.check.interval.ms"),
        };
        Self {
            settings: Arc::new(group_settings),
            topic: CoordinatorTopic::consumer_offsets(settings),
            commit_timeout: Duration::from_millis(setting(settings, "offsets.commit.timeout.ms")),
            load_bytes: setting(settings, "offsets.load.buffer.size"),
            loads: Arc::new(Semaphore::new(LOADS_AT_ONCE)),
            slots: Mutex::new(HashMap::new()),
        }
    }

    /// Hands a request to the group's coordinator, if it is here. Requests that are handed over one after the other are
    /// looked at in that order.
    pub(crate) async fn hand_over<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> HandedOver<A> {
        let number = self.topic.partition_of(context, group);
        let answered = match self.mailbox(context, number) {
            Ok(mailbox) => {
                let (answer, answered) = oneshot::channel();
                let command =
                    Command::Ask { group: Arc::clone(group), request: request.into_request(), answer };
                mailbox.send(command).await.map(|()| answered).map_err(|_| Rejection::NotCoordinator)
            }
            Err(rejection) => Err(rejection),
        };
        HandedOver { answered, write_timeout: self.commit_timeout, asked: PhantomData }
    }

    /// Asks the group's coordinator, and waits for its answer.
    ///
    /// # Errors
    /// As [`HandedOver::answer`].
    pub(crate) async fn ask<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> Result<A::Answer, Rejection> {
        self.hand_over(context, group, request).await.answer().await
    }

    /// As [`GroupCoordinator::ask`] for what is answered after a write.
    ///
    /// # Errors
    /// As [`HandedOver::answer_to_write`].
    pub(crate) async fn ask_to_write<A: Ask>(
        &self,
        context: &BrokerContext,
        group: &GroupId,
        request: A,
    ) -> Result<A::Answer, Rejection> {
        self.hand_over(context, group, request).await.answer_to_write().await
    }

    /// The groups of all coordinators here, and whether some could not be asked because they load.
    pub(crate) async fn list(&self, context: &BrokerContext) -> (Vec<Listing>, Result<(), Rejection>) {
        let mut listings = Vec::new();
        let mut outcome = Ok(());
        for partition in context.partitions.of_topic(self.topic.name) {
            let mailbox = match self.mailbox(context, partition.id().partition) {
                Ok(mailbox) => mailbox,
                Err(Rejection::CoordinatorLoadInProgress) => {
                    outcome = Err(Rejection::CoordinatorLoadInProgress);
                    continue;
                }
                Err(_) => continue,
            };
            let (answer, answered) = oneshot::channel();
            if mailbox.send(Command::List { answer }).await.is_ok()
                && let Ok(Answer::List(groups)) = answered.await
            {
                listings.extend(groups);
            }
        }
        (listings, outcome)
    }

    /// The coordinator of a partition, started if this broker leads it.
    fn mailbox(&self, context: &BrokerContext, number: i32) -> Result<mpsc::Sender<Command>, Rejection> {
        let partition = context.partitions.get(self.topic.name, number).ok_or(Rejection::NotCoordinator)?;
        let leader_epoch = partition.serving_epoch().ok_or(Rejection::NotCoordinator)?;
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&number) {
            if leader_epoch < slot.leader_epoch {
                return Err(Rejection::NotCoordinator);
            }
            if slot.leader_epoch == leader_epoch && !slot.mailbox.is_closed() {
                let is_loaded = slot.is_loaded.load(Ordering::Acquire);
                let mailbox = is_loaded.then(|| slot.mailbox.clone());
                return mailbox.ok_or(Rejection::CoordinatorLoadInProgress);
            }
        }
        slots.insert(number, self.start(&context.shared, partition, leader_epoch));
        Err(Rejection::CoordinatorLoadInProgress)
    }

    fn start(&self, shared: &Arc<Shared>, partition: Arc<Partition>, leader_epoch: LeaderEpoch) -> Slot {
        let (mailbox, receiver) = mpsc::channel(MAILBOX);
        let is_loaded = Arc::new(AtomicBool::new(false));
        let (loaded, loads, load_bytes) = (Arc::clone(&is_loaded), Arc::clone(&self.loads), self.load_bytes);
        let (settings, shared) = (Arc::clone(&self.settings), Arc::clone(shared));
        tokio::spawn(async move {
            let shard = {
                let _permit = loads.acquire().await.expect("the semaphore is never closed");
                load_until_it_works(&partition, leader_epoch, load_bytes, &settings).await
            };
            if let Some(shard) = shard {
                let worker = Worker::new(partition, leader_epoch, shared, shard);
                loaded.store(true, Ordering::Release);
                worker.run(receiver).await;
            }
        });
        Slot { leader_epoch, mailbox, is_loaded }
    }

    /// Starts coordinators for what this broker leads by now, and ends those of former leaderships.
    pub(crate) fn keep_up(&self, context: &BrokerContext) {
        for partition in context.partitions.of_topic(self.topic.name) {
            // A refusal says that it loads, or that it is not here.
            let _ = self.mailbox(context, partition.id().partition);
        }
        self.slots.lock().retain(|number, slot| {
            let partition = context.partitions.get(self.topic.name, *number);
            partition.is_some_and(|partition| partition.leads_in(slot.leader_epoch))
        });
    }

    fn serving(&self) -> Vec<mpsc::Sender<Command>> {
        let slots = self.slots.lock();
        let loaded = slots.values().filter(|slot| slot.is_loaded.load(Ordering::Acquire));
        loaded.map(|slot| slot.mailbox.clone()).collect()
    }

    /// The topics that any coordinator here holds offsets of.
    pub(crate) async fn topics(&self) -> BTreeSet<TopicName> {
        let mut topics = BTreeSet::new();
        for mailbox in self.serving() {
            let (answer, answered) = oneshot::channel();
            if mailbox.send(Command::Topics { answer }).await.is_ok() {
                topics.extend(answered.await.unwrap_or_default());
            }
        }
        topics
    }

    /// Topics are gone: their offsets go too (GRP-07).
    pub(crate) async fn forget_topics(&self, topics: &[TopicName]) {
        for mailbox in self.serving() {
            // A coordinator that ends meanwhile is followed by one that looks at its topics again.
            let _ = mailbox.send(Command::TopicsDeleted(topics.to_vec())).await;
        }
    }
}

/// A request that a coordinator has, or will never have.
#[derive(Debug)]
pub(crate) struct HandedOver<A> {
    answered: Result<oneshot::Receiver<Answer>, Rejection>,
    write_timeout: Duration,
    asked: PhantomData<fn() -> A>,
}

impl<A: Ask> HandedOver<A> {
    /// # Errors
    /// `NotCoordinator`, `CoordinatorLoadInProgress`: nobody has looked at the request, or nobody can answer it now.
    pub(crate) async fn answer(self) -> Result<A::Answer, Rejection> {
        let answer = self.answered?.await.map_err(|_| Rejection::NotCoordinator)?;
        Ok(A::answer_from(answer).expect("a coordinator answers what it was asked"))
    }

    /// A write that takes longer than `offsets.commit.timeout.ms` may still succeed; the client is told to look again.
    ///
    /// # Errors
    /// As [`HandedOver::answer`], and `CoordinatorNotAvailable`.
    pub(crate) async fn answer_to_write(self) -> Result<A::Answer, Rejection> {
        let answered = tokio::time::timeout(self.write_timeout, self.answer()).await;
        answered.unwrap_or(Err(Rejection::CoordinatorNotAvailable))
    }
}

/// Loads the partition; `None` when this broker leads it no more.
async fn load_until_it_works(
    partition: &Arc<Partition>,
    leader_epoch: LeaderEpoch,
    load_bytes: usize,
    settings: &Arc<GroupSettings>,
) -> Option<Shard> {
    loop {
        let started = Instant::now();
        match load(partition, leader_epoch, load_bytes, Shard::new(Arc::clone(settings))).await {
            Ok((shard, Loaded { records: 0, skipped: 0 })) => {
                debug!(partition = %partition.id(), %leader_epoch, "group coordinator begins with an empty log");
                return Some(shard);
            }
            Ok((shard, loaded)) => {
                info!(
                    partition = %partition.id(), %leader_epoch, records = loaded.records,
                    skipped = loaded.skipped, milliseconds = started.elapsed().as_millis(),
                    "group coordinator loaded"
                );
                return Some(shard);
            }
            Err(LoadError::Over) => return None,
            Err(LoadError::Failed(reason)) => {
                warn!(partition = %partition.id(), %leader_epoch, reason, "group coordinator cannot load; trying again");
            }
        }
        tokio::time::sleep(LOAD_RETRY_PAUSE).await;
    }
}
