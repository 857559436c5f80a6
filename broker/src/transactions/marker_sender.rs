//! Sends the markers of all transaction coordinators of this broker to the leaders of the partitions, its own included:
//! one connection and one request at a time for each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, info};
use zurau_common::id::{BrokerId, LeaderEpoch, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_ENDS_LOWER_EPOCHS, to_wire_topic};
use zurau_common::wire::peer::Peer;
use zurau_common::zk::znode::Znode;

use super::marker_queue::{Batch, Destination, MarkerQueue, Outcome, QueueKey};
use super::shard::{Marking, MarkingId};
use crate::context::BrokerContext;

const VERSION: i16 = 1;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer comes when the markers are replicated.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Orders taken at once.
const ORDERS_AT_ONCE: usize = 1_024;

/// A coordinator wants markers.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) id: MarkingId,
    pub(super) marking: Marking,
    /// Of the coordinator: its leader epoch.
    pub(super) coordinator_epoch: LeaderEpoch,
    /// Closed when the coordinator has ended. Holds no more than the partitions that were ordered.
    pub(super) reports: mpsc::UnboundedSender<(MarkingId, TopicPartition)>,
}

/// Codes by producer id and partition; empty if the request failed as a whole.
type Codes = HashMap<(i64, TopicPartition), i16>;

pub(super) struct MarkerSender {
    context: Arc<BrokerContext>,
    queue: MarkerQueue,
    orders: HashMap<QueueKey, Order>,
    last_key: u64,
    peers: HashMap<BrokerId, Arc<Mutex<Option<Peer>>>>,
    calls: FuturesUnordered<BoxFuture<'static, (Batch, Codes)>>,
}

impl MarkerSender {
    pub(super) fn new(context: Arc<BrokerContext>) -> Self {
        Self {
            context,
            queue: MarkerQueue::default(),
            orders: HashMap::new(),
            last_key: 0,
            peers: HashMap::new(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Runs until nobody can order any more.
    pub(super) async fn run(mut self, mut incoming: mpsc::UnboundedReceiver<Order>) {
        let mut orders = Vec::with_capacity(ORDERS_AT_ONCE);
        loop {
            self.send();
            let pause = self.pause();
            tokio::select! {
                count = incoming.recv_many(&mut orders, ORDERS_AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    for order in orders.drain(..) {
                        self.take(order);
                    }
                }
                Some((batch, codes)) = self.calls.next(), if !self.calls.is_empty() => self.finish(batch, &codes),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.context.shared.now_ms()).unwrap_or(i64::MAX)
    }

    fn pause(&self) -> Duration {
        let due_ms = self.queue.next_due_ms().unwrap_or(i64::MAX);
        Duration::from_millis(u64::try_from(due_ms.saturating_sub(self.now_ms())).unwrap_or(0))
    }

    fn take(&mut self, order: Order) {
        self.last_key += 1;
        let key = QueueKey(self.last_key);
        self.queue.add(key, order.marking.partitions.clone(), self.now_ms());
        self.orders.insert(key, order);
    }

    fn send(&mut self) {
        let now_ms = self.now_ms();
        if self.queue.next_due_ms().is_none_or(|due_ms| now_ms < due_ms) {
            return;
        }
        self.forget_finished();
        let image = self.context.metadata.image();
        let batches = self.queue.take(now_ms, |partition| {
            match image.partition(&partition.topic, partition.partition) {
                None => Some(Destination::Unknown),
                Some(known) => known.leader.map(Destination::Broker),
            }
        });
        for batch in batches {
            let context = Arc::clone(&self.context);
            self.calls.push(match batch.destination {
                Destination::Unknown => {
                    let asked = self.asked(&batch);
                    Box::pin(async move { (batch, codes_of_gone(&context, asked).await) })
                }
                Destination::Broker(broker) => {
                    let request = self.request(&batch);
                    let peer = Arc::clone(self.peers.entry(broker).or_default());
                    Box::pin(async move {
                        let codes = call(&context, broker, &peer, &request).await;
                        (batch, codes)
                    })
                }
            });
        }
    }

    fn asked(&self, batch: &Batch) -> Vec<(i64, TopicPartition)> {
        let of_part = |(key, partitions): (&QueueKey, &Vec<TopicPartition>)| {
            let producer_id = self.orders.get(key).map_or(-1, |order| order.marking.producer.id);
            let asked = partitions.iter().map(move |partition| (producer_id, partition.clone()));
            asked.collect::<Vec<_>>()
        };
        batch.parts.iter().flat_map(of_part).collect()
    }

    fn request(&self, batch: &Batch) -> WriteTxnMarkersRequest {
        let marker = |(key, partitions): (&QueueKey, &Vec<TopicPartition>)| {
            let order = self.orders.get(key)?;
            let mut topics: Vec<WritableTxnMarkerTopic> = Vec::new();
            for partition in partitions {
                if topics.last().is_none_or(|topic| *topic.name.0 != *partition.topic) {
                    topics.push(WritableTxnMarkerTopic::default().with_name(to_wire_topic(&partition.topic)));
                }
                topics.last_mut()?.partition_indexes.push(partition.partition);
            }
            let Marking { producer, commits, ends_lower_epochs, .. } = order.marking;
            let mut marker = WritableTxnMarker::default()
                .with_producer_id(producer.id.into())
                .with_producer_epoch(producer.epoch)
                .with_transaction_result(commits)
                .with_coordinator_epoch(order.coordinator_epoch.0)
                .with_topics(topics);
            if ends_lower_epochs {
                marker.unknown_tagged_fields.insert(TAG_ENDS_LOWER_EPOCHS, Bytes::new());
            }
            Some(marker)
        };
        WriteTxnMarkersRequest::default().with_markers(batch.parts.iter().filter_map(marker).collect())
    }

    fn finish(&mut self, batch: Batch, codes: &Codes) {
        let orders = &self.orders;
        let outcome = |key: QueueKey, partition: &TopicPartition| -> Outcome {
            let producer_id = orders.get(&key).map_or(-1, |order| order.marking.producer.id);
            let code = codes.get(&(producer_id, partition.clone()));
            let rejection =
                code.map_or(Some(Rejection::NetworkException), |code| Rejection::from_code(*code));
            if let Some(rejection) = rejection {
                debug!(%partition, producer_id, %rejection, "a transaction marker is not written");
            }
            rejection.map_or(Ok(()), Err)
        };
        let now_ms = i64::try_from(self.context.shared.now_ms()).unwrap_or(i64::MAX);
        for (key, partition) in self.queue.finish(now_ms, batch, outcome) {
            if let Some(order) = self.orders.get(&key) {
                // The coordinator may have ended.
                let _ = order.reports.send((order.id, partition));
            }
        }
    }

    /// Drops what is done and what belongs to coordinators that have ended.
    fn forget_finished(&mut self) {
        let queue = &mut self.queue;
        self.orders.retain(|key, order| {
            if order.reports.is_closed() {
                queue.remove(*key);
            }
            queue.contains(*key)
        });
    }
}

/// A partition that ZooKeeper does not hold needs no marker. The metadata alone does not decide: it may be incomplete.
async fn codes_of_gone(context: &BrokerContext, asked: Vec<(i64, TopicPartition)>) -> Codes {
    let mut codes = Codes::new();
    let Some(zookeeper) = context.zookeeper.current() else { return codes };
    for (producer_id, partition) in asked {
        if let Ok(false) = zookeeper.exists(&Znode::Partition(partition.clone()).path()).await {
            info!(%partition, producer_id, "a partition of a transaction is deleted: it needs no marker");
            codes.insert((producer_id, partition), 0);
        }
    }
    codes
}

/// Sends a request; no codes if there is no answer.
async fn call(
    context: &BrokerContext,
    broker: BrokerId,
    connection: &Mutex<Option<Peer>>,
    request: &WriteTxnMarkersRequest,
) -> Codes {
    let mut connection = connection.lock().await;
    if connection.as_ref().is_none_or(Peer::is_closed) {
        *connection = None;
        let client = format!("zurau-transactions-{}", context.shared.own);
        match context.connect(broker, &client, CONNECT_TIMEOUT).await {
            Ok(peer) => *connection = Some(peer),
            Err(reason) => {
                debug!(%broker, "no connection for transaction markers: {reason:#}");
                return Codes::new();
            }
        }
    }
    let Some(peer) = connection.as_ref() else { return Codes::new() };
    match peer.call_within(CALL_TIMEOUT, VERSION, request).await {
        Ok(response) => codes(&response),
        Err(error) => {
            info!(%broker, %error, "transaction markers are sent again");
            *connection = None;
            Codes::new()
        }
    }
}

fn codes(response: &WriteTxnMarkersResponse) -> Codes {
    let mut codes = Codes::new();
    for marker in &response.markers {
        for topic in &marker.topics {
            for partition in &topic.partitions {
                let id = TopicPartition::new(topic.name.0.as_str(), partition.partition_index);
                codes.insert((marker.producer_id.0, id), partition.error_code);
            }
        }
    }
    codes
}
