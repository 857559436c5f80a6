//! The transaction coordinators of this broker: one for each partition of `__transaction_state` that it leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use zurau_common::config::Settings;
use zurau_common::http::instruments::SeldomTimer;
use zurau_common::id::{LeaderEpoch, TopicPartition};
use zurau_common::rejection::Rejection;

use super::marker_sender::{MarkerSender, Order};
use super::records::{Transaction, TransactionState, TransactionalId};
use super::request::{Answer, EndRequest, InitRequest, Initialized, ListFilter, Listing, Request};
use super::shard::{Shard, TransactionSettings};
use super::worker::{Command, Worker};
use crate::context::BrokerContext;
use crate::coordinator::{CoordinatorTopic, Kind, Office, Offices, Producer, setting};
use crate::metrics::Metrics;

/// How often leaderships are looked at. A request does not wait for it: it looks itself.
const LOOK: Duration = Duration::from_millis(250);
/// How long an answer may take. What takes longer may still succeed; the client is told to look again.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Coordinators of transactions.
#[derive(Debug)]
pub(crate) struct Transactions {
    settings: Arc<TransactionSettings>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Kind for Transactions {
    type Shard = Shard;
    type Command = Command;
    const NAME: &'static str = "transaction coordinator";

    fn loads(metrics: &Metrics) -> &SeldomTimer {
        &metrics.transaction_loads
    }

    fn empty_shard(&self) -> Shard {
        Shard::new(Arc::clone(&self.settings))
    }

    async fn serve(&self, office: Office, shard: Shard, mailbox: mpsc::Receiver<Command>) {
        Worker::run(office, shard, self.orders.clone(), mailbox).await;
    }
}

/// All coordinators of this broker.
#[derive(Debug)]
pub(crate) struct TransactionCoordinator {
    pub(crate) offices: Offices<Transactions>,
    /// Taken by [`run`]. Holds at most one order for each transactional id.
    ordered: Mutex<Option<mpsc::UnboundedReceiver<Order>>>,
}

impl TransactionCoordinator {
    pub(crate) fn new(settings: &Settings) -> Self {
        let transaction_settings = TransactionSettings {
            timeout_max_ms: setting(settings, "transaction.max.timeout.ms"),
            id_expiration_ms: setting(settings, "transactional.id.expiration.ms"),
            timeout_check_interval_ms: setting(
                settings,
                "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            ),
            expiration_check_interval_ms: setting(
                settings,
                "transaction.remove.expired.transaction.cleanup.interval.ms",
            ),
        };
        let (orders, ordered) = mpsc::unbounded_channel();
        let kind = Transactions { settings: Arc::new(transaction_settings), orders };
        let topic = CoordinatorTopic::transaction_state(settings);
        let load_bytes = setting(settings, "transaction.state.log.load.buffer.size");
        Self { offices: Offices::new(kind, topic, load_bytes), ordered: Mutex::new(Some(ordered)) }
    }

    async fn ask(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
        request: Request,
    ) -> Result<Answer, Rejection> {
        if id.is_empty() {
            return Err(Rejection::InvalidRequest);
        }
        let number = self.offices.topic.partition_of(context, id);
        let mailbox = self.offices.mailbox(context, number)?;
        let (answer, answered) = oneshot::channel();
        let command = Command::Ask { id: Arc::clone(id), request, answer };
        let asking = async {
            mailbox.send(command).await.map_err(|_| Rejection::NotCoordinator)?;
            answered.await.map_err(|_| Rejection::NotCoordinator)
        };
        timeout(ANSWER_WAIT, asking).await.unwrap_or(Err(Rejection::CoordinatorNotAvailable))
    }

    /// InitProducerId. A producer id is taken only when the coordinator needs one.
    ///
    /// # Errors
    /// As Kafka's; `ProducerFenced` in its newest meaning.
    pub(crate) async fn initialize(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
        mut request: InitRequest,
    ) -> Result<Producer, Rejection> {
        loop {
            match self.ask(context, id, Request::Init(request.clone())).await? {
                Answer::Init(Ok(Initialized::Producer(producer))) => return Ok(producer),
                Answer::Init(Err(rejection)) => return Err(rejection),
                Answer::Init(Ok(Initialized::NeedsProducerId)) => {
                    request.fresh_producer_id = Some(fresh_producer_id(context).await?);
                }
                other => panic!("a coordinator answers what it was asked, not {other:?}"),
            }
        }
    }

    /// AddPartitionsToTxn and AddOffsetsToTxn. `is_version_2`: a partition's leader adds for its client.
    ///
    /// # Errors
    /// As Kafka's.
    pub(crate) async fn add(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
        (producer, partitions, is_version_2): (Producer, Vec<TopicPartition>, bool),
    ) -> Result<(), Rejection> {
        match self.ask(context, id, Request::Add { producer, partitions, is_version_2 }).await? {
            Answer::Done(outcome) => outcome,
            other => panic!("a coordinator answers what it was asked, not {other:?}"),
        }
    }

    /// EndTxn. Done means decided and stored: the markers are still on their way. Returns who the producer is from now
    /// on; a producer id is taken only when the coordinator needs one.
    ///
    /// # Errors
    /// As Kafka's.
    pub(crate) async fn end(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
        mut request: EndRequest,
    ) -> Result<Producer, Rejection> {
        loop {
            match self.ask(context, id, Request::End(request.clone())).await? {
                Answer::End(Ok(Initialized::Producer(producer))) => return Ok(producer),
                Answer::End(Err(rejection)) => return Err(rejection),
                Answer::End(Ok(Initialized::NeedsProducerId)) => {
                    request.fresh_producer_id = Some(fresh_producer_id(context).await?);
                }
                other => panic!("a coordinator answers what it was asked, not {other:?}"),
            }
        }
    }

    /// The epoch in which this broker coordinates the transactional id; `None` if it does not.
    pub(crate) fn epoch(&self, context: &BrokerContext, id: &TransactionalId) -> Option<LeaderEpoch> {
        let topic = &self.offices.topic;
        let partition = context.partitions.get(topic.name, topic.partition_of(context, id))?;
        partition.serving_epoch()
    }

    /// Whether each partition is in the producer's open transaction.
    ///
    /// # Errors
    /// As Kafka's.
    pub(crate) async fn verify(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
        (producer, partitions): (Producer, Vec<TopicPartition>),
    ) -> Result<Vec<Option<Rejection>>, Rejection> {
        match self.ask(context, id, Request::Verify { producer, partitions }).await? {
            Answer::Verify(outcomes) => outcomes,
            other => panic!("a coordinator answers what it was asked, not {other:?}"),
        }
    }

    /// # Errors
    /// `TransactionalIdNotFound`, or that this broker cannot say.
    pub(crate) async fn describe(
        &self,
        context: &BrokerContext,
        id: &TransactionalId,
    ) -> Result<Transaction, Rejection> {
        match self.ask(context, id, Request::Describe).await? {
            Answer::Describe(outcome) => outcome,
            other => panic!("a coordinator answers what it was asked, not {other:?}"),
        }
    }

    /// What all coordinators here hold.
    ///
    /// # Errors
    /// `CoordinatorLoadInProgress`: some of them cannot be asked yet.
    pub(crate) async fn list(
        &self,
        context: &BrokerContext,
        filter: &ListFilter,
    ) -> Result<Vec<Listing>, Rejection> {
        let (mailboxes, all_loaded) = self.offices.mailboxes(context);
        all_loaded?;
        let mut listings = Vec::new();
        for mailbox in mailboxes {
            let (answer, answered) = oneshot::channel();
            let command = Command::List { filter: filter.clone(), answer };
            if mailbox.send(command).await.is_ok()
                && let Ok(Answer::List(more)) = answered.await
            {
                listings.extend(more);
            }
        }
        Ok(listings)
    }

    /// How many transactional ids of the coordinators that have loaded are in each state; `None` when one of them does
    /// not answer within `limit`.
    pub(crate) async fn count(
        &self,
        context: &BrokerContext,
        limit: Duration,
    ) -> Option<BTreeMap<TransactionState, usize>> {
        let mut counts = BTreeMap::new();
        for one in self.offices.observe(context, limit, |answer| Command::Count { answer }).await? {
            for (state, count) in one {
                *counts.entry(state).or_default() += count;
            }
        }
        Some(counts)
    }
}

/// A producer id that nobody has had.
async fn fresh_producer_id(context: &BrokerContext) -> Result<i64, Rejection> {
    context.producer_ids.next(context.config.broker_id, context.zookeeper.current()).await
}

/// Starts coordinators when this broker becomes leader, so that timeouts and markers go on though nobody asks, and sends
/// the markers. Runs until the broker stops.
pub(crate) async fn run(context: Arc<BrokerContext>, stopping: CancellationToken) {
    let ordered = context.transactions.ordered.lock().take().expect("the markers have one sender");
    let sender = MarkerSender::new(Arc::clone(&context)).run(ordered);
    let keeping_up = async {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            context.transactions.offices.keep_up(&context);
        }
    };
    tokio::select! {
        () = sender => {}
        () = keeping_up => {}
        () = stopping.cancelled() => {}
    }
}
