//! One broker: its coordinators, the markers that they want, and what it knows of who leads.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::rejection::Rejection;

use super::log::{Node, Place};
use super::messages::MarkerFor;
use super::offices::Office;
use crate::groups;
use crate::log::{Marker, Verification};
use crate::transactions::{self, Batch, Destination, MarkerQueue, Marking, MarkingId, QueueKey};

/// The markers of one decided transaction.
#[derive(Debug, Clone)]
struct Order {
    id: MarkingId,
    marking: Marking,
    coordinator_epoch: i32,
}

#[derive(Debug)]
pub(super) struct Broker {
    pub(super) number: Node,
    /// Who leads what, as far as it has heard.
    pub(super) view: BTreeMap<Place, Node>,
    pub(super) transactions: Option<Office<transactions::Shard>>,
    pub(super) groups: Option<Office<groups::Shard>>,
    queue: MarkerQueue,
    orders: BTreeMap<QueueKey, Order>,
    last_key: u64,
    /// Requests for markers that are not answered.
    pub(super) calls: BTreeMap<u64, Batch>,
}

/// What markers a request came to.
pub(super) type Outcomes = Vec<(QueueKey, Place, Result<(), Rejection>)>;

impl Broker {
    pub(super) fn new(number: Node) -> Self {
        Self {
            number,
            view: Place::all().map(|place| (place, 0)).collect(),
            transactions: None,
            groups: None,
            queue: MarkerQueue::default(),
            orders: BTreeMap::new(),
            last_key: 0,
            calls: BTreeMap::new(),
        }
    }

    pub(super) fn order(&mut self, id: MarkingId, marking: Marking, coordinator_epoch: i32, now_ms: i64) {
        self.last_key += 1;
        let key = QueueKey(self.last_key);
        self.queue.add(key, marking.partitions.clone(), now_ms);
        self.orders.insert(key, Order { id, marking, coordinator_epoch });
    }

    /// The coordinator of that epoch has ended: nobody wants its markers any more.
    pub(super) fn forget_orders(&mut self, coordinator_epoch: i32) {
        let is_over = |order: &Order| order.coordinator_epoch == coordinator_epoch;
        let over: BTreeSet<QueueKey> =
            self.orders.iter().filter(|(_, order)| is_over(order)).map(|(key, _)| *key).collect();
        for key in over {
            self.queue.remove(key);
            self.orders.remove(&key);
        }
    }

    pub(super) fn next_marker_due_ms(&self) -> Option<i64> {
        self.queue.next_due_ms()
    }

    /// What can be sent now, to whom.
    pub(super) fn take_markers(&mut self, now_ms: i64) -> Vec<(Node, Batch, Vec<MarkerFor>)> {
        let view = &self.view;
        let place = |id: &TopicPartition| {
            let leader = i32::try_from(view[&Place::of(id)]).expect("a small number");
            Some(Destination::Broker(BrokerId(leader)))
        };
        let batches = self.queue.take(now_ms, place);
        let with_markers = batches.into_iter().map(|batch| {
            let Destination::Broker(BrokerId(to)) = batch.destination else {
                panic!("everything has a leader")
            };
            let markers = batch.parts.iter().flat_map(|(key, partitions)| self.markers_of(*key, partitions));
            let markers = markers.collect();
            (Node::try_from(to).expect("a broker"), batch, markers)
        });
        with_markers.collect()
    }

    fn markers_of(&self, key: QueueKey, partitions: &[TopicPartition]) -> Vec<MarkerFor> {
        let Some(order) = self.orders.get(&key) else { return Vec::new() };
        let Order {
            marking: Marking { producer, commits, ends_lower_epochs, .. }, coordinator_epoch, ..
        } = order;
        let marker = Marker { commit: *commits, coordinator_epoch: *coordinator_epoch };
        let verification =
            if *ends_lower_epochs { Verification::EndsLowerEpochs } else { Verification::NotAsked };
        let each = partitions.iter().map(|id| {
            let place = Place::of(id);
            MarkerFor { key, place, producer: *producer, marker, verification }
        });
        each.collect()
    }

    /// A request for markers is over; without outcomes nobody knows what became of it. Returns what is marked, with the
    /// epoch of the coordinator that wanted it.
    pub(super) fn finish_markers(
        &mut self,
        request: u64,
        outcomes: Option<&Outcomes>,
        now_ms: i64,
    ) -> Vec<(MarkingId, i32, TopicPartition)> {
        let Some(batch) = self.calls.remove(&request) else { return Vec::new() };
        let outcome = |key: QueueKey, id: &TopicPartition| {
            let place = Place::of(id);
            let told = outcomes.and_then(|all| all.iter().find(|(k, p, _)| (*k, *p) == (key, place)));
            told.map_or(Err(Rejection::NetworkException), |(_, _, outcome)| *outcome)
        };
        let marked = self.queue.finish(now_ms, batch, outcome);
        let orders = &self.orders;
        let report = |(key, id): (QueueKey, TopicPartition)| {
            orders.get(&key).map(|order| (order.id, order.coordinator_epoch, id))
        };
        let marked = marked.into_iter().filter_map(report).collect();
        let queue = &self.queue;
        self.orders.retain(|key, _| queue.contains(*key));
        marked
    }
}
