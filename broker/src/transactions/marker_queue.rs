//! The markers that partitions still need: which go to which broker in one request, and when a failed one is tried again.
//!
//! Pure. One request is under way to each broker at a time, so markers that come meanwhile share the next one. A leader
//! that changes, or fails, costs a pause and another look at the metadata; a marker is never given up while its
//! coordinator wants it (TXN-11).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::rejection::Rejection;

/// Pause after the first failure; it doubles up to the longest.
const PAUSE_MS: i64 = 50;
const PAUSE_MAX_MS: i64 = 1_000;
/// Partitions in one request at most.
const PARTITIONS_PER_REQUEST: usize = 5_000;

/// A marking of any coordinator of this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueKey(pub(crate) u64);

/// Where a marker has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Destination {
    Broker(BrokerId),
    /// The metadata does not name the partition: ZooKeeper is asked whether it exists.
    Unknown,
}

/// What goes into one request: partitions by marking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) destination: Destination,
    pub(crate) parts: BTreeMap<QueueKey, Vec<TopicPartition>>,
}

/// What a partition's leader said.
pub(crate) type Outcome = Result<(), Rejection>;

#[derive(Debug)]
struct Queued {
    /// Neither marked nor under way.
    ready: BTreeSet<TopicPartition>,
    under_way: usize,
    failures: u32,
    due_ms: i64,
}

#[derive(Debug, Default)]
pub(crate) struct MarkerQueue {
    queued: HashMap<QueueKey, Queued>,
    /// What has ready partitions, by the time they are due.
    due: BTreeSet<(i64, QueueKey)>,
    /// What was due, but its broker was busy.
    parked: BTreeSet<QueueKey>,
    busy: BTreeSet<Destination>,
}

impl MarkerQueue {
    pub(crate) fn add(&mut self, key: QueueKey, partitions: BTreeSet<TopicPartition>, now_ms: i64) {
        self.queued.insert(key, Queued { ready: partitions, under_way: 0, failures: 0, due_ms: now_ms });
        self.due.insert((now_ms, key));
    }

    /// Nobody wants the marking any more.
    pub(crate) fn remove(&mut self, key: QueueKey) {
        if let Some(queued) = self.queued.remove(&key) {
            self.due.remove(&(queued.due_ms, key));
            self.parked.remove(&key);
        }
    }

    pub(crate) fn contains(&self, key: QueueKey) -> bool {
        self.queued.contains_key(&key)
    }

    pub(crate) fn next_due_ms(&self) -> Option<i64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Takes what can be sent now. `place`: the destination of a partition; `None` while it has no leader.
    pub(crate) fn take(
        &mut self,
        now_ms: i64,
        place: impl Fn(&TopicPartition) -> Option<Destination>,
    ) -> Vec<Batch> {
        let mut parts: BTreeMap<Destination, BTreeMap<QueueKey, Vec<TopicPartition>>> = BTreeMap::new();
        let mut sizes: BTreeMap<Destination, usize> = BTreeMap::new();
        while let Some((due_ms, key)) = self.due.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.due.remove(&(due_ms, key));
            let queued = self.queued.get_mut(&key).expect("what is due is queued");
            let (mut has_homeless, mut has_parked) = (false, false);
            let mut left = BTreeSet::new();
            for partition in std::mem::take(&mut queued.ready) {
                let Some(destination) = place(&partition) else {
                    has_homeless = true;
                    left.insert(partition);
                    continue;
                };
                let size = sizes.entry(destination).or_default();
                if self.busy.contains(&destination) || PARTITIONS_PER_REQUEST <= *size {
                    has_parked = true;
                    left.insert(partition);
                    continue;
                }
                *size += 1;
                queued.under_way += 1;
                parts.entry(destination).or_default().entry(key).or_default().push(partition);
            }
            queued.ready = left;
            if has_homeless {
                queued.failures += 1;
                queued.due_ms = now_ms + pause_ms(queued.failures);
                self.due.insert((queued.due_ms, key));
            } else if has_parked {
                self.parked.insert(key);
            }
        }
        self.busy.extend(parts.keys().copied());
        parts.into_iter().map(|(destination, parts)| Batch { destination, parts }).collect()
    }

    /// A request is over. `outcome`: of each partition. Returns what is marked.
    pub(crate) fn finish(
        &mut self,
        now_ms: i64,
        batch: Batch,
        outcome: impl Fn(QueueKey, &TopicPartition) -> Outcome,
    ) -> Vec<(QueueKey, TopicPartition)> {
        self.busy.remove(&batch.destination);
        for key in std::mem::take(&mut self.parked) {
            self.make_due(key, now_ms);
        }
        let mut marked = Vec::new();
        for (key, partitions) in batch.parts {
            let mut has_failed = false;
            for partition in partitions {
                let Some(queued) = self.queued.get_mut(&key) else { break };
                queued.under_way -= 1;
                match outcome(key, &partition) {
                    // A newer producer wrote there: its transaction of this epoch has ended before.
                    Ok(()) | Err(Rejection::InvalidProducerEpoch) => marked.push((key, partition)),
                    Err(Rejection::TransactionCoordinatorFenced) => self.remove(key),
                    Err(_) => {
                        has_failed = true;
                        queued.ready.insert(partition);
                    }
                }
            }
            self.settle(key, has_failed, now_ms);
        }
        marked
    }

    fn settle(&mut self, key: QueueKey, has_failed: bool, now_ms: i64) {
        let Some(queued) = self.queued.get_mut(&key) else { return };
        if queued.ready.is_empty() && queued.under_way == 0 {
            return self.remove(key);
        }
        if has_failed {
            queued.failures += 1;
            let due_ms = now_ms + pause_ms(queued.failures);
            self.make_due(key, due_ms);
        }
    }

    fn make_due(&mut self, key: QueueKey, due_ms: i64) {
        if let Some(queued) = self.queued.get_mut(&key) {
            self.due.remove(&(queued.due_ms, key));
            queued.due_ms = due_ms;
            self.due.insert((due_ms, key));
        }
    }
}

fn pause_ms(failures: u32) -> i64 {
    (PAUSE_MS << failures.saturating_sub(1).min(10)).min(PAUSE_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Destination = Destination::Broker(BrokerId(1));
    const TWO: Destination = Destination::Broker(BrokerId(2));

    fn partitions(names: &[(&str, i32)]) -> BTreeSet<TopicPartition> {
        names.iter().map(|(topic, number)| TopicPartition::new(*topic, *number)).collect()
    }

    /// Partition n is led by broker n.
    fn place(partition: &TopicPartition) -> Option<Destination> {
        Some(Destination::Broker(BrokerId(partition.partition)))
    }

    fn queue(markings: &[&[(&str, i32)]]) -> MarkerQueue {
        let mut queue = MarkerQueue::default();
        for (number, names) in (0..).zip(markings) {
            queue.add(QueueKey(number), partitions(names), 0);
        }
        queue
    }

    fn only(batches: Vec<Batch>) -> Batch {
        assert_eq!(batches.len(), 1, "{batches:?}");
        batches.into_iter().next().unwrap()
    }

    #[test]
    fn markers_are_grouped_by_broker_and_one_request_is_under_way_to_each() {
        let mut queue = queue(&[&[("t", 1), ("t", 2)], &[("u", 1)]]);
        let batches = queue.take(0, place);
        let shown: Vec<_> = batches.iter().map(|batch| (batch.destination, batch.parts.len())).collect();
        assert_eq!(shown, [(ONE, 2), (TWO, 1)]);
        queue.add(QueueKey(9), partitions(&[("v", 1)]), 0);
        assert_eq!((queue.take(5, place), queue.next_due_ms()), (vec![], None), "broker 1 is busy");
        let mut batches = batches.into_iter();
        let marked = queue.finish(6, batches.next().unwrap(), |_, _| Ok(()));
        assert_eq!(marked.len(), 2);
        assert_eq!(queue.queued.len(), 2, "key 0 waits for broker 2, key 9 for its turn");
        let next = only(queue.take(6, place));
        assert_eq!((next.destination, next.parts.keys().next()), (ONE, Some(&QueueKey(9))));
        queue.finish(7, next, |_, _| Ok(()));
        queue.finish(7, batches.next().unwrap(), |_, _| Ok(()));
        assert_eq!((queue.queued.len(), queue.next_due_ms()), (0, None));
    }

    #[test]
    fn txn_11_a_marker_is_tried_again_until_its_partition_has_it_or_is_gone() {
        let mut queue = queue(&[&[("t", 1)]]);
        let mut now_ms = 0;
        for rejection in [
            Rejection::NotLeaderOrFollower,
            Rejection::KafkaStorageError,
            Rejection::UnknownTopicOrPartition,
            Rejection::NetworkException,
        ] {
            let batch = only(queue.take(now_ms, place));
            assert_eq!(queue.finish(now_ms, batch, |_, _| Err(rejection)), []);
            let due_ms = queue.next_due_ms().unwrap();
            assert!(now_ms < due_ms && due_ms <= now_ms + PAUSE_MAX_MS);
            assert_eq!(queue.take(due_ms - 1, place), []);
            now_ms = due_ms;
        }
        // No leader for a while, then another broker leads, then the topic is gone.
        assert_eq!(queue.take(now_ms, |_| None), []);
        now_ms = queue.next_due_ms().unwrap();
        let batch = only(queue.take(now_ms, |_| Some(TWO)));
        queue.finish(now_ms, batch, |_, _| Err(Rejection::UnknownTopicOrPartition));
        now_ms = queue.next_due_ms().unwrap();
        let batch = only(queue.take(now_ms, |_| Some(Destination::Unknown)));
        let marked = queue.finish(now_ms, batch, |_, _| Ok(()));
        assert_eq!(marked, [(QueueKey(0), TopicPartition::new("t", 1))]);
        assert_eq!(queue.queued.len(), 0);
    }

    #[test]
    fn a_fenced_coordinator_stops_and_a_newer_producer_counts_as_marked() {
        let mut queue = queue(&[&[("t", 1), ("u", 1)], &[("t", 1)]]);
        let batch = only(queue.take(0, place));
        let marked = queue.finish(0, batch, |key, _| {
            Err(if key.0 == 0 {
                Rejection::TransactionCoordinatorFenced
            } else {
                Rejection::InvalidProducerEpoch
            })
        });
        assert_eq!(marked, [(QueueKey(1), TopicPartition::new("t", 1))]);
        assert_eq!((queue.queued.len(), queue.next_due_ms()), (0, None));
    }

    #[test]
    fn what_nobody_wants_any_more_is_forgotten_also_under_way() {
        let mut queue = queue(&[&[("t", 1)], &[("t", 1)]]);
        let batch = only(queue.take(0, place));
        queue.remove(QueueKey(0));
        let marked = queue.finish(0, batch, |_, _| Ok(()));
        assert_eq!(marked, [(QueueKey(1), TopicPartition::new("t", 1))]);
    }

    #[test]
    fn requests_are_bounded() {
        let mut queue = MarkerQueue::default();
        let partitions = (0..7_000).map(|number| TopicPartition::new("t", number)).collect();
        queue.add(QueueKey(0), partitions, 0);
        let first = only(queue.take(0, |_| Some(ONE)));
        assert_eq!(first.parts[&QueueKey(0)].len(), PARTITIONS_PER_REQUEST);
        assert_eq!(queue.finish(1, first, |_, _| Ok(())).len(), PARTITIONS_PER_REQUEST);
        let second = only(queue.take(1, |_| Some(ONE)));
        assert_eq!(queue.finish(2, second, |_, _| Ok(())).len(), 2_000);
        assert_eq!(queue.queued.len(), 0);
    }
}
