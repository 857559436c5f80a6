//! What one broker has still to be told, with everything that is superseded left out.
//!
//! One request is under way at a time. What comes meanwhile is merged: of a partition only the newest record is sent.
//! A request that got no answer goes back, unless something newer about a partition stands there.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::{TopicId, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;

use crate::action::{PartitionMetadata, StopReplica};

/// Most partitions of one incremental request.
const PARTITIONS_MAX: usize = 5_000;

pub type MetadataChanges = BTreeMap<TopicPartition, Option<PartitionMetadata>>;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    StopReplicas(Vec<StopReplica>),
    LeaderAndIsr {
        full: bool,
        partitions: Vec<LeaderAndIsr>,
    },
    /// Live brokers and these changes.
    Metadata(MetadataChanges),
    /// Live brokers and everything.
    FullMetadata,
    LogEnds(Vec<TopicPartition>),
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct BrokerQueue {
    stops: BTreeMap<(TopicPartition, TopicId), StopReplica>,
    leader_and_isr: BTreeMap<TopicPartition, LeaderAndIsr>,
    /// The records are a full request, even if there are none.
    full: bool,
    metadata: MetadataChanges,
    full_metadata: bool,
    brokers_changed: bool,
    log_ends: BTreeSet<TopicPartition>,
}

impl Default for BrokerQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl BrokerQueue {
    /// Of a broker that has been told nothing.
    pub fn new() -> Self {
        Self {
            stops: BTreeMap::new(),
            leader_and_isr: BTreeMap::new(),
            full: false,
            metadata: BTreeMap::new(),
            full_metadata: true,
            brokers_changed: false,
            log_ends: BTreeSet::new(),
        }
    }

    /// A broker that shall delete its copy is no host any more: an older record that still waits would make the copy
    /// again, after the stop. A full request keeps it, because it goes before the stop, and sets aside what it does not
    /// name.
    pub fn stop(&mut self, stop: StopReplica) {
        let outdated = self.leader_and_isr.get(&stop.partition).is_some_and(|record| ends(&stop, record));
        if outdated && !self.full {
            self.leader_and_isr.remove(&stop.partition);
        }
        self.stops.insert((stop.partition.clone(), stop.topic_id), stop);
    }

    /// Records that wait: orders, stops, changes of metadata and questions. A full image counts as one.
    pub(crate) fn len(&self) -> usize {
        self.leader_and_isr.len()
            + self.stops.len()
            + self.metadata.len()
            + self.log_ends.len()
            + usize::from(self.full_metadata)
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && !self.full && !self.brokers_changed
    }

    /// A record that supersedes what waits about its partition.
    pub fn tell(&mut self, record: LeaderAndIsr) {
        self.leader_and_isr.insert(record.partition.clone(), record);
    }

    pub fn tell_everything(&mut self, records: Vec<LeaderAndIsr>) {
        self.full = true;
        self.leader_and_isr = records.into_iter().map(|record| (record.partition.clone(), record)).collect();
    }

    pub fn publish(&mut self, changes: &[(TopicPartition, Option<PartitionMetadata>)]) {
        if !self.full_metadata {
            self.metadata.extend(changes.iter().cloned());
        }
    }

    pub fn brokers_changed(&mut self) {
        self.brokers_changed = true;
    }

    pub fn ask_log_end(&mut self, partition: TopicPartition) {
        self.log_ends.insert(partition);
    }

    /// Takes the next request. The full one goes first: it names also what the broker shall delete, and must not
    /// bring it back. Copies of ended incarnations go before their successors are made, roles before what clients hear
    /// of them.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        if self.full {
            self.full = false;
            let partitions = std::mem::take(&mut self.leader_and_isr).into_values().collect();
            return Some(Outgoing::LeaderAndIsr { full: true, partitions });
        }
        if !self.stops.is_empty() {
            let rest = split_off(&mut self.stops);
            let stops = std::mem::replace(&mut self.stops, rest);
            return Some(Outgoing::StopReplicas(stops.into_values().collect()));
        }
        if !self.leader_and_isr.is_empty() {
            let rest = split_off(&mut self.leader_and_isr);
            let records = std::mem::replace(&mut self.leader_and_isr, rest);
            return Some(Outgoing::LeaderAndIsr { full: false, partitions: records.into_values().collect() });
        }
        if self.full_metadata {
            self.full_metadata = false;
            self.brokers_changed = false;
            self.metadata.clear();
            return Some(Outgoing::FullMetadata);
        }
        if self.brokers_changed || !self.metadata.is_empty() {
            self.brokers_changed = false;
            let rest = split_off(&mut self.metadata);
            return Some(Outgoing::Metadata(std::mem::replace(&mut self.metadata, rest)));
        }
        if !self.log_ends.is_empty() {
            return Some(Outgoing::LogEnds(std::mem::take(&mut self.log_ends).into_iter().collect()));
        }
        None
    }

    /// A request that was not answered: to be sent again, as far as nothing newer waits.
    pub fn put_back(&mut self, request: Outgoing) {
        match request {
            Outgoing::StopReplicas(stops) => stops.into_iter().for_each(|stop| {
                self.stops.entry((stop.partition.clone(), stop.topic_id)).or_insert(stop);
            }),
            // A newer full request replaces an unanswered one.
            Outgoing::LeaderAndIsr { .. } if self.full => {}
            Outgoing::LeaderAndIsr { full, partitions } => {
                self.full = full;
                for record in partitions {
                    let stop = self.stops.get(&(record.partition.clone(), record.topic_id));
                    if !full && stop.is_some_and(|stop| ends(stop, &record)) {
                        continue;
                    }
                    self.leader_and_isr.entry(record.partition.clone()).or_insert(record);
                }
            }
            Outgoing::Metadata(changes) => {
                self.brokers_changed = true;
                for (partition, change) in changes {
                    self.metadata.entry(partition).or_insert(change);
                }
            }
            Outgoing::FullMetadata => self.full_metadata = true,
            Outgoing::LogEnds(partitions) => self.log_ends.extend(partitions),
        }
    }
}

/// Whether a record is older than the order to delete the copy that it is about.
fn ends(stop: &StopReplica, record: &LeaderAndIsr) -> bool {
    stop.topic_id == record.topic_id && record.leader_epoch <= stop.leader_epoch
}

/// What is beyond one request.
fn split_off<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>) -> BTreeMap<K, V> {
    match map.keys().nth(PARTITIONS_MAX).cloned() {
        Some(key) => map.split_off(&key),
        None => BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch};

    use super::*;

    fn record(partition: i32, epoch: i32) -> LeaderAndIsr {
        LeaderAndIsr {
            partition: TopicPartition::new("t", partition),
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            controller_epoch: ControllerEpoch(1),
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(epoch),
            isr: vec![BrokerId(1)],
            partition_epoch: PartitionEpoch(0),
            replicas: vec![BrokerId(1)],
            adding_replicas: vec![],
            removing_replicas: vec![],
            is_new: false,
            recovery: false,
            state_version: epoch,
            elr: Some(vec![]),
        }
    }

    fn epochs(request: Option<Outgoing>) -> (bool, Vec<(i32, i32)>) {
        match request {
            Some(Outgoing::LeaderAndIsr { full, partitions }) => {
                (full, partitions.iter().map(|r| (r.partition.partition, r.leader_epoch.0)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ctl_24_an_unanswered_request_is_sent_again_without_what_is_superseded() {
        let mut queue = BrokerQueue::new();
        queue.tell_everything(vec![record(0, 1), record(1, 1)]);
        let sent = queue.next_outgoing().unwrap();
        queue.tell(record(1, 2));
        queue.put_back(sent);
        assert_eq!(epochs(queue.next_outgoing()), (true, vec![(0, 1), (1, 2)]));
        assert_eq!(queue.next_outgoing(), Some(Outgoing::FullMetadata));
        assert_eq!(queue.next_outgoing(), None);
        queue.tell(record(0, 2));
        let sent = queue.next_outgoing().unwrap();
        queue.tell(record(0, 3));
        queue.put_back(sent);
        assert_eq!(epochs(queue.next_outgoing()), (false, vec![(0, 3)]));
    }

    #[test]
    fn changes_of_metadata_before_the_full_one_are_part_of_it() {
        let mut queue = BrokerQueue::new();
        queue.publish(&[(TopicPartition::new("t", 0), None)]);
        queue.brokers_changed();
        assert_eq!(queue.next_outgoing(), Some(Outgoing::FullMetadata));
        assert_eq!(queue.next_outgoing(), None);
        queue.publish(&[(TopicPartition::new("t", 0), None)]);
        assert!(matches!(queue.next_outgoing(), Some(Outgoing::Metadata(changes)) if changes.len() == 1));
    }

    fn stop_at(record: &LeaderAndIsr, epoch: i32) -> StopReplica {
        let (partition, topic_id) = (record.partition.clone(), record.topic_id);
        StopReplica { partition, topic_id, leader_epoch: LeaderEpoch(epoch) }
    }

    #[test]
    fn n5_what_shall_be_deleted_is_not_made_again_by_an_older_record() {
        // A move that is cancelled while the record that started it waits, or is sent and not answered.
        let mut queue = BrokerQueue::new();
        queue.full_metadata = false;
        for sent in [false, true] {
            queue.tell(record(0, 1));
            queue.tell(record(1, 1));
            let unanswered = if sent { queue.next_outgoing() } else { None };
            queue.stop(stop_at(&record(0, 1), 2));
            unanswered.into_iter().for_each(|request| queue.put_back(request));
            assert!(matches!(queue.next_outgoing(), Some(Outgoing::StopReplicas(stops)) if stops.len() == 1));
            assert_eq!(epochs(queue.next_outgoing()), (false, vec![(1, 1)]));
            assert_eq!(queue.next_outgoing(), None);
        }
        // A host again: the newer record stays. Another incarnation is another copy.
        queue.tell(record(0, 3));
        queue.stop(stop_at(&record(0, 3), 2));
        let mut other = record(1, 1);
        other.topic_id = TopicId::parse("BQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        queue.tell(record(1, 1));
        queue.stop(stop_at(&other, 9));
        assert!(matches!(queue.next_outgoing(), Some(Outgoing::StopReplicas(stops)) if stops.len() == 2));
        assert_eq!(epochs(queue.next_outgoing()), (false, vec![(0, 3), (1, 1)]));
        // A full request names what shall be deleted too, and goes first.
        queue.tell_everything(vec![record(0, 1)]);
        queue.stop(stop_at(&record(0, 1), 2));
        assert_eq!(epochs(queue.next_outgoing()), (true, vec![(0, 1)]));
        assert!(matches!(queue.next_outgoing(), Some(Outgoing::StopReplicas(_))));
    }

    #[test]
    fn stops_go_first_and_big_requests_are_cut() {
        let mut queue = BrokerQueue::new();
        queue.tell(record(0, 1));
        for partition in 0..i32::try_from(PARTITIONS_MAX).unwrap() + 1 {
            queue.stop(stop_at(&record(partition, 1), 0));
        }
        assert!(
            matches!(queue.next_outgoing(), Some(Outgoing::StopReplicas(stops)) if stops.len() == PARTITIONS_MAX)
        );
        assert!(matches!(queue.next_outgoing(), Some(Outgoing::StopReplicas(stops)) if stops.len() == 1));
        assert_eq!(epochs(queue.next_outgoing()), (false, vec![(0, 1)]));
    }
}
