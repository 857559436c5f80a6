//! The cluster as the controller knows it: what was read from ZooKeeper, by broker, topic and partition, and which of
//! it changed. Holds facts and the controller's notes about its own work; decides nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zurau_common::assignment::union;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicName, TopicPartition};
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::TopicIdEntry;

use crate::event::{Fact, LeaderNode, Read, Registration};
use crate::office::{Office, Work};
use crate::partition_map::PartitionMap;

/// A broker that has ever been heard of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Broker {
    pub(crate) registration: Option<Registration>,
    pub(crate) endpoints: Option<Endpoints>,
    /// Present from the first registration on, whether the broker lives or not.
    pub(crate) epoch: Option<BrokerEpoch>,
    /// The registration that asked for controlled shutdown; it is the last choice in elections.
    pub(crate) leaving_in: Option<BrokerEpoch>,
    /// The registration that the machine has acted upon.
    pub(crate) announced: Option<BrokerEpoch>,
    /// The registration that has been sent its full LeaderAndIsr by this controller.
    pub(crate) told_in_full: Option<BrokerEpoch>,
    /// One of its partitions that was not settled when the full LeaderAndIsr was last thought of.
    pub(crate) waits_for: Option<TopicPartition>,
}

/// A registration that can lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) epoch: BrokerEpoch,
    pub(crate) session: i64,
}

impl Broker {
    pub(crate) fn live(&self) -> Option<Live> {
        let registration = self.registration.as_ref()?;
        registration.address.as_ref().ok()?;
        Some(Live { epoch: self.epoch?, session: registration.session })
    }

    pub(crate) fn address(&self) -> Option<&Address> {
        self.registration.as_ref()?.address.as_ref().ok()
    }
}

/// A topic's node, and what the controller is doing about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Topic {
    pub(crate) node: Read<Option<TopicId>>,
    pub(crate) delete_requested: bool,
    pub(crate) unclean_election: Option<bool>,
    /// A write on the topic (not on a partition) is in flight.
    pub(crate) in_flight: bool,
    /// Its facts are being read again after a conflict.
    pub(crate) stale: bool,
    /// Why nothing can be done with the topic; shown at each of its partitions.
    pub(crate) problem: Option<String>,
    /// Partitions that have an ISR (or records) and are not marked as started yet.
    pub(crate) to_start: BTreeSet<i32>,
    /// Partitions 0 to this (exclusive) exist: clients need them without gaps.
    pub(crate) contiguous: i32,
    /// All of it was read again just now, on request.
    pub(crate) fresh: bool,
}

/// A partition's znodes, and what the controller is doing about them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Partition {
    pub(crate) exists: bool,
    pub(crate) replicas: Read<Vec<BrokerId>>,
    pub(crate) state: Read<PartitionState>,
    pub(crate) isr: Read<Vec<BrokerId>>,
    pub(crate) elr: Read<Vec<BrokerId>>,
    pub(crate) leader: Option<LeaderNode>,
    pub(crate) leaving: Read<Vec<BrokerId>>,
    pub(crate) wanted: Read<Vec<BrokerId>>,
    pub(crate) error: Option<String>,
    pub(crate) reassignment_error: Option<String>,
    /// Every broker that one of the lists names: the key of [`Cluster::hosted`].
    named: Vec<BrokerId>,
    pub(crate) work: Work,
}

impl Partition {
    /// Whether it has an ISR, or its first leader holds records of it (N4).
    pub(crate) fn has_begun(&self) -> bool {
        !self.isr.is_absent() || self.work.had_records
    }

    /// Whether nothing is left to remember.
    fn is_gone(&self) -> bool {
        !self.exists
            && self.replicas.is_absent()
            && self.state.is_absent()
            && self.isr.is_absent()
            && self.elr.is_absent()
            && self.leader.is_none()
            && self.leaving.is_absent()
            && self.wanted.is_absent()
            && self.error.is_none()
            && self.reassignment_error.is_none()
            && self.work.in_flight.is_none()
            && self.work.published.is_none()
            && self.work.hosted.is_none()
    }

    fn all_named(&self) -> Vec<BrokerId> {
        let lists = [&self.replicas, &self.isr, &self.elr, &self.leaving, &self.wanted];
        let hosts = self.state.value().map_or(Vec::new(), |state| state.replicas.clone());
        lists.iter().filter_map(|list| list.value()).fold(hosts, |all, list| union(&all, list))
    }

    /// The stored ISR; empty when there is none or it is unreadable.
    pub(crate) fn isr(&self) -> &[BrokerId] {
        self.isr.value().map_or(&[], Vec::as_slice)
    }

    /// The stored ELR; empty when there is none or it is unreadable.
    pub(crate) fn elr(&self) -> &[BrokerId] {
        self.elr.value().map_or(&[], Vec::as_slice)
    }
}

/// Topics whose last leader epoch is remembered after they ended; beyond, the oldest one is forgotten.
const FORMER_TOPICS_MAX: usize = 1000;

/// The highest leader epochs of topics that ended in this controller's time. A topic that is created again starts there,
/// because clients that do not look at topic ids, or do so too late, take a lower epoch for old news (CLI-11).
#[derive(Debug, Clone, Default)]
pub(crate) struct FormerEpochs {
    /// The oldest one first.
    topics: VecDeque<(TopicName, LeaderEpoch)>,
}

impl FormerEpochs {
    pub(crate) fn note(&mut self, topic: &TopicName, epoch: LeaderEpoch) {
        let known = self.topics.iter().position(|(name, _)| name == topic);
        let before = known.and_then(|index| self.topics.remove(index)).map(|(_, epoch)| epoch);
        if self.topics.len() == FORMER_TOPICS_MAX {
            self.topics.pop_front();
        }
        self.topics.push_back((topic.clone(), before.unwrap_or(epoch).max(epoch)));
    }

    /// [`LeaderEpoch::UNKNOWN`] for a name that had no topic.
    pub(crate) fn of(&self, topic: &TopicName) -> LeaderEpoch {
        let found = self.topics.iter().find(|(name, _)| name == topic);
        found.map_or(LeaderEpoch::UNKNOWN, |(_, epoch)| *epoch)
    }
}

/// All facts, and which of them changed since the machine last looked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) brokers: BTreeMap<BrokerId, Broker>,
    pub(crate) topics: BTreeMap<TopicName, Topic>,
    pub(crate) topic_ids: BTreeMap<TopicId, Read<TopicIdEntry>>,
    pub(crate) partitions: PartitionMap,
    pub(crate) preferred_election: Read<Option<Vec<TopicPartition>>>,
    pub(crate) unclean_default: Option<bool>,
    pub(crate) former_epochs: FormerEpochs,
    /// Incarnations by the name that their entries give.
    ids_of: BTreeMap<TopicName, BTreeSet<TopicId>>,
    /// Partitions by broker that they name.
    hosted: BTreeMap<BrokerId, BTreeSet<TopicPartition>>,
    pub(crate) changed_brokers: BTreeSet<BrokerId>,
    pub(crate) dirty_topics: BTreeSet<TopicName>,
    pub(crate) dirty_partitions: BTreeSet<TopicPartition>,
}

/// Takes the newer of what is known and what was read. A read that was overtaken by a later write is dropped.
fn take<T: PartialEq>(known: &mut Read<T>, read: Read<T>) -> bool {
    if let (Read::Value(old), Read::Value(new)) = (&*known, &read)
        && (new.version < old.version && new.mzxid < old.mzxid || new == old)
    {
        return false;
    }
    let changed = *known != read;
    *known = read;
    changed
}

fn set<T: PartialEq>(known: &mut T, read: T) -> bool {
    let changed = *known != read;
    *known = read;
    changed
}

impl Cluster {
    /// Remembers a fact and marks what it concerns. [`Fact::Fresh`] is the machine's business.
    pub(crate) fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Broker { broker, registration } => {
                self.brokers.entry(broker).or_default().registration = registration;
                self.changed_brokers.insert(broker);
            }
            Fact::Endpoints { broker, endpoints } => {
                self.brokers.entry(broker).or_default().endpoints = endpoints;
                self.changed_brokers.insert(broker);
            }
            Fact::BrokerEpoch { broker, epoch } => {
                self.brokers.entry(broker).or_default().epoch = epoch;
                self.changed_brokers.insert(broker);
            }
            Fact::Topic { topic, node } => self.learn_topic(topic, |known| take(&mut known.node, node)),
            Fact::DeleteTopic { topic, requested } => {
                self.learn_topic(topic, |known| set(&mut known.delete_requested, requested));
            }
            Fact::UncleanElection { topic, enabled } => {
                self.learn_topic(topic, |known| set(&mut known.unclean_election, enabled));
            }
            Fact::TopicIdEntry { topic_id, entry } => self.learn_topic_id(topic_id, entry),
            Fact::PreferredElection { request } => self.preferred_election = request,
            Fact::UncleanElectionDefault { enabled } => {
                if set(&mut self.unclean_default, enabled) {
                    self.dirty_partitions.extend(self.partitions.keys().cloned());
                }
            }
            Fact::Fresh(_) => {}
            fact => self.learn_partition_fact(fact),
        }
    }

    fn learn_partition_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Partition { partition, exists } => {
                // Higher partitions wait for lower ones.
                self.dirty_topics.insert(partition.topic.clone());
                self.learn_partition(partition, |known| set(&mut known.exists, exists));
            }
            Fact::Replicas { partition, ids } => {
                self.learn_partition(partition, |known| take(&mut known.replicas, ids));
            }
            Fact::State { partition, state } => {
                if state.is_absent() {
                    self.dirty_topics.insert(partition.topic.clone());
                }
                self.learn_partition(partition, |known| {
                    let before = known.state.version();
                    let changed = take(&mut known.state, state);
                    if known.state.version() != before {
                        // Not what this controller wrote: look at everything anew.
                        known.work.office = Office::Unjudged;
                    }
                    changed
                });
            }
            Fact::Isr { partition, ids } => {
                self.learn_partition(partition, |known| take(&mut known.isr, ids))
            }
            Fact::Elr { partition, ids } => {
                self.learn_partition(partition, |known| take(&mut known.elr, ids))
            }
            Fact::Leader { partition, node } => {
                self.learn_partition(partition, |known| set(&mut known.leader, node));
            }
            Fact::Leaving { partition, ids } => {
                self.learn_partition(partition, |known| take(&mut known.leaving, ids));
            }
            Fact::Wanted { partition, ids } => {
                self.learn_partition(partition, |known| take(&mut known.wanted, ids));
            }
            Fact::PartitionError { partition, text } => {
                self.learn_partition(partition, |known| set(&mut known.error, text));
            }
            Fact::ReassignmentError { partition, text } => {
                self.learn_partition(partition, |known| set(&mut known.reassignment_error, text));
            }
            other => unreachable!("{other:?} is not a fact about a partition"),
        }
    }

    fn learn_topic(&mut self, topic: TopicName, change: impl FnOnce(&mut Topic) -> bool) {
        if change(self.topics.entry(topic.clone()).or_default()) {
            self.mark_topic(&topic);
        }
    }

    fn learn_topic_id(&mut self, topic_id: TopicId, entry: Read<TopicIdEntry>) {
        let name_of = |read: Option<&Read<TopicIdEntry>>| {
            read.and_then(Read::value).map(|entry| TopicName::clone(&entry.topic))
        };
        let before = name_of(self.topic_ids.get(&topic_id));
        let after = name_of(Some(&entry));
        if before != after {
            if let Some(topic) = &before
                && let Some(ids) = self.ids_of.get_mut(topic)
            {
                ids.remove(&topic_id);
            }
            if let Some(topic) = &after {
                self.ids_of.entry(topic.clone()).or_default().insert(topic_id);
            }
        }
        let known = self.topic_ids.entry(topic_id).or_default();
        let changed = take(known, entry);
        if known.is_absent() {
            self.topic_ids.remove(&topic_id);
        }
        if changed {
            // An unreadable entry is found by the id that a topic's node holds.
            let holders: Vec<TopicName> = match before.or(after) {
                Some(topic) => vec![topic],
                None => self
                    .topics
                    .iter()
                    .filter(|(_, topic)| topic.node.value() == Some(&Some(topic_id)))
                    .map(|(name, _)| name.clone())
                    .collect(),
            };
            for topic in holders {
                self.topics.entry(topic.clone()).or_default();
                self.mark_topic(&topic);
            }
        }
    }

    fn learn_partition(&mut self, partition: TopicPartition, change: impl FnOnce(&mut Partition) -> bool) {
        let known = self.partitions.get_or_insert(&partition);
        if change(known) {
            self.reindex(&partition);
            self.dirty_partitions.insert(partition);
        }
    }

    /// Brings the index by broker up to date after a change of the partition's lists.
    pub(crate) fn reindex(&mut self, partition: &TopicPartition) {
        let Some(known) = self.partitions.get_mut(partition) else { return };
        let named = known.all_named();
        let before = std::mem::replace(&mut known.named, named.clone());
        for broker in before.iter().filter(|broker| !named.contains(broker)) {
            if let Some(hosted) = self.hosted.get_mut(broker) {
                hosted.remove(partition);
            }
        }
        for broker in named.iter().filter(|broker| !before.contains(broker)) {
            self.hosted.entry(*broker).or_default().insert(partition.clone());
        }
    }

    /// The topic and all its partitions are looked at again.
    pub(crate) fn mark_topic(&mut self, topic: &TopicName) {
        self.dirty_topics.insert(topic.clone());
        self.dirty_partitions.extend(self.partitions.of_topic(topic).map(|(tp, _)| tp.clone()));
    }

    pub(crate) fn mark_broker(&mut self, broker: BrokerId) {
        if let Some(hosted) = self.hosted.get(&broker) {
            self.dirty_partitions.extend(hosted.iter().cloned());
        }
    }

    /// Partitions that name the broker in any of their lists, in order.
    pub(crate) fn hosted_by(&self, broker: BrokerId) -> impl DoubleEndedIterator<Item = &TopicPartition> {
        self.hosted.get(&broker).into_iter().flatten()
    }

    /// Drops what is no more, so that a deleted topic leaves nothing behind.
    pub(crate) fn forget_if_gone(&mut self, partition: &TopicPartition) {
        if self.partitions.get(partition).is_some_and(Partition::is_gone) {
            self.partitions.remove(partition);
        }
    }

    pub(crate) fn live(&self, broker: BrokerId) -> Option<Live> {
        self.brokers.get(&broker)?.live()
    }

    /// Whether the broker ever registered: a set that names another one has a typing error in it.
    pub(crate) fn is_known(&self, broker: BrokerId) -> bool {
        self.brokers.get(&broker).is_some_and(|known| known.epoch.is_some())
    }

    /// Incarnations whose entries name the topic.
    pub(crate) fn ids_of(&self, topic: &TopicName) -> Vec<TopicId> {
        self.ids_of.get(topic).map_or(Vec::new(), |ids| ids.iter().copied().collect())
    }

    pub(crate) fn partitions_of(
        &self,
        topic: &TopicName,
    ) -> impl Iterator<Item = (&TopicPartition, &Partition)> {
        self.partitions.of_topic(topic)
    }

    /// The current incarnation of a topic: its node's id, when the id's entry exists and names the topic.
    pub(crate) fn incarnation(&self, topic: &TopicName) -> Option<(TopicId, &TopicIdEntry, i32)> {
        let id = (*self.topics.get(topic)?.node.value()?)?;
        match self.topic_ids.get(&id)? {
            Read::Value(entry) if entry.value.topic == *topic => Some((id, &entry.value, entry.version)),
            _ => None,
        }
    }

    /// `unclean.leader.election.enable` of the topic.
    pub(crate) fn unclean_election(&self, topic: &TopicName, configured: bool) -> bool {
        let own = self.topics.get(topic).and_then(|topic| topic.unclean_election);
        own.or(self.unclean_default).unwrap_or(configured)
    }
}
