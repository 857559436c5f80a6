//! The coordinators of one kind on this broker: one for each partition of their topic that it leads.
//!
//! A coordinator belongs to one leader epoch. Each request looks at the partition first: a coordinator of another epoch
//! than the partition's is never asked, so it does not matter in which order leaderships come and go (GRP-03).

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, info, warn};
use zurau_common::http::instruments::SeldomTimer;
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::Rejection;

use super::load::{LoadError, Loaded, Replay, load};
use super::topic::CoordinatorTopic;
use crate::context::BrokerContext;
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::shared::Shared;

/// Partitions that load at the same time, which bounds the memory for it.
const LOADS_AT_ONCE: usize = 4;
/// Pause before a load that failed is tried again.
const LOAD_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Requests that wait in a mailbox; more senders wait outside.
const MAILBOX: usize = 1_024;

/// What coordinators of one kind are made of.
pub(crate) trait Kind: Send + Sync + 'static {
    type Shard: Replay;
    /// What a mailbox takes.
    type Command: Send + 'static;
    /// For the log of people.
    const NAME: &'static str;

    /// Where it is noted how long a coordinator took to load.
    fn loads(metrics: &Metrics) -> &SeldomTimer;

    /// A core before its log is replayed.
    fn empty_shard(&self) -> Self::Shard;

    /// Serves until the mailbox ends, or until it cannot be said what the log holds: then it is loaded again.
    fn serve(
        &self,
        office: Office,
        shard: Self::Shard,
        mailbox: mpsc::Receiver<Self::Command>,
    ) -> impl Future<Output = ()> + Send;
}

/// The leadership of a coordinator.
#[derive(Debug, Clone)]
pub(crate) struct Office {
    pub(crate) partition: Arc<Partition>,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) shared: Arc<Shared>,
}

/// A coordinator, or one in the making.
#[derive(Debug)]
struct Slot<C> {
    leader_epoch: LeaderEpoch,
    mailbox: mpsc::Sender<C>,
    is_loaded: Arc<AtomicBool>,
}

/// All coordinators of a kind.
#[derive(Debug)]
pub(crate) struct Offices<K: Kind> {
    pub(crate) topic: CoordinatorTopic,
    kind: Arc<K>,
    /// Read at once when a coordinator loads.
    load_bytes: usize,
    loads: Arc<Semaphore>,
    slots: Mutex<HashMap<i32, Slot<K::Command>>>,
}

impl<K: Kind> Offices<K> {
    pub(crate) fn new(kind: K, topic: CoordinatorTopic, load_bytes: usize) -> Self {
        Self {
            topic,
            kind: Arc::new(kind),
            load_bytes,
            loads: Arc::new(Semaphore::new(LOADS_AT_ONCE)),
            slots: Mutex::new(HashMap::new()),
        }
    }

    /// The coordinator of a partition, started if this broker leads it.
    ///
    /// # Errors
    /// `NotCoordinator`, `CoordinatorLoadInProgress`.
    pub(crate) fn mailbox(
        &self,
        context: &BrokerContext,
        number: i32,
    ) -> Result<mpsc::Sender<K::Command>, Rejection> {
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
        let office = Office { partition, leader_epoch, shared: Arc::clone(&context.shared) };
        slots.insert(number, self.start(office));
        Err(Rejection::CoordinatorLoadInProgress)
    }

    fn start(&self, office: Office) -> Slot<K::Command> {
        let (mailbox, receiver) = mpsc::channel(MAILBOX);
        let is_loaded = Arc::new(AtomicBool::new(false));
        let slot = Slot { leader_epoch: office.leader_epoch, mailbox, is_loaded: Arc::clone(&is_loaded) };
        let (kind, loads, load_bytes) = (Arc::clone(&self.kind), Arc::clone(&self.loads), self.load_bytes);
        let began = Instant::now();
        tokio::spawn(async move {
            let shard = {
                let _permit = loads.acquire().await.expect("the semaphore is never closed");
                load_until_it_works(&*kind, &office, load_bytes).await
            };
            if let Some(shard) = shard {
                // As in Kafka, with the wait for other loads.
                K::loads(&office.shared.metrics).record(began.elapsed());
                is_loaded.store(true, Ordering::Release);
                kind.serve(office, shard, receiver).await;
            }
        });
        slot
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

    /// The coordinators here that can be asked, and whether some cannot because they load.
    pub(crate) fn mailboxes(
        &self,
        context: &BrokerContext,
    ) -> (Vec<mpsc::Sender<K::Command>>, Result<(), Rejection>) {
        let mut mailboxes = Vec::new();
        let mut outcome = Ok(());
        for partition in context.partitions.of_topic(self.topic.name) {
            match self.mailbox(context, partition.id().partition) {
                Ok(mailbox) => mailboxes.push(mailbox),
                Err(Rejection::CoordinatorLoadInProgress) => {
                    outcome = Err(Rejection::CoordinatorLoadInProgress);
                }
                Err(_) => {}
            }
        }
        (mailboxes, outcome)
    }

    /// The coordinators that have loaded, without a look at the partitions.
    pub(crate) fn serving(&self) -> Vec<mpsc::Sender<K::Command>> {
        let slots = self.slots.lock();
        let loaded = slots.values().filter(|slot| slot.is_loaded.load(Ordering::Acquire));
        loaded.map(|slot| slot.mailbox.clone()).collect()
    }

    /// Asks every coordinator that has loaded and still leads; starts none. `None` when one of them does not answer
    /// within `limit`. One that ends meanwhile is left out: what it held is not here any more.
    pub(crate) async fn observe<T>(
        &self,
        context: &BrokerContext,
        limit: Duration,
        question: impl Fn(oneshot::Sender<T>) -> K::Command,
    ) -> Option<Vec<T>> {
        let asked: Vec<mpsc::Sender<K::Command>> = {
            let slots = self.slots.lock();
            let leads = |(number, slot): &(&i32, &Slot<K::Command>)| {
                let partition = context.partitions.get(self.topic.name, **number);
                slot.is_loaded.load(Ordering::Acquire)
                    && partition.is_some_and(|partition| partition.leads_in(slot.leader_epoch))
            };
            slots.iter().filter(leads).map(|(_, slot)| slot.mailbox.clone()).collect()
        };
        let asking = asked.into_iter().map(|mailbox| {
            let (answer, answered) = oneshot::channel();
            let question = question(answer);
            async move {
                mailbox.send(question).await.ok()?;
                answered.await.ok()
            }
        });
        let answers = timeout(limit, join_all(asking)).await.ok()?;
        Some(answers.into_iter().flatten().collect())
    }
}

/// Loads the partition; `None` when this broker leads it no more.
async fn load_until_it_works<K: Kind>(kind: &K, office: &Office, load_bytes: usize) -> Option<K::Shard> {
    let (partition, leader_epoch) = (&office.partition, office.leader_epoch);
    loop {
        let started = Instant::now();
        match load(partition, leader_epoch, load_bytes, kind.empty_shard()).await {
            Ok((shard, Loaded { records: 0, skipped: 0 })) => {
                debug!(partition = %partition.id(), %leader_epoch, "{} begins with an empty log", K::NAME);
                return Some(shard);
            }
            Ok((shard, loaded)) => {
                info!(
                    partition = %partition.id(), %leader_epoch, records = loaded.records,
                    skipped = loaded.skipped, milliseconds = started.elapsed().as_millis(),
                    "{} loaded", K::NAME
                );
                return Some(shard);
            }
            Err(LoadError::Over) => return None,
            Err(LoadError::Failed(reason)) => {
                warn!(partition = %partition.id(), %leader_epoch, reason, "{} cannot load; trying again", K::NAME);
            }
        }
        tokio::time::sleep(LOAD_RETRY_PAUSE).await;
    }
}
