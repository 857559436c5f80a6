//! What a topic needs next: an id, the entry of its id, partitions marked as started, its end. One write at a time.

use zurau_common::id::{TopicId, TopicName, TopicPartition};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::topic::TopicIdEntry;

use crate::action::{Action, Note, Write};
use crate::cluster::{Partition, Topic};
use crate::event::{Read, Subject, Versioned, WriteOutcome};
use crate::machine::Machine;
use crate::pending::{Pending, TopicChange};

/// Partitions marked as started in one multi, each with a check.
const STARTED_AT_ONCE: usize = 250;

impl Machine {
    pub(crate) fn step_topic(&mut self, name: &TopicName) {
        self.count_contiguous(name);
        let Some(topic) = self.cluster.topics.get_mut(name) else { return };
        if topic.in_flight || topic.stale {
            return;
        }
        let fresh = std::mem::take(&mut topic.fresh);
        let (deleting, node) = (topic.delete_requested, topic.node.clone());
        let ids = self.cluster.ids_of(name);
        match node {
            _ if deleting && !self.config.delete_topics => self.refuse_deletion(name),
            _ if deleting => self.delete_topic(name, &node),
            // Removed by hand: only the topic's own node counts (F7). No znode is removed that may be a new topic's.
            Read::Absent => match ids.first() {
                Some(topic_id) => self.remove_entry(name, *topic_id),
                None => self.forget_topic(name),
            },
            Read::Bad { why, .. } => self.topic_problem(name, Some(why)),
            Read::Value(Versioned { value: None, version, .. }) => {
                self.name_topic(name, version, &ids, fresh)
            }
            Read::Value(Versioned { value: Some(id), .. }) => self.keep_topic(name, id, &ids),
        }
    }

    /// Partitions 0 to n−1 exist; those that this sets free are looked at.
    fn count_contiguous(&mut self, name: &TopicName) {
        let existing = self.cluster.partitions_of(name).filter(|(_, partition)| partition.exists);
        let contiguous =
            existing.map(|(tp, _)| tp.partition).zip(0..).take_while(|(id, expected)| id == expected).count();
        let contiguous = i32::try_from(contiguous).unwrap_or(i32::MAX);
        let Some(topic) = self.cluster.topics.get_mut(name) else { return };
        let before = std::mem::replace(&mut topic.contiguous, contiguous);
        let freed = self.cluster.partitions_of(name).filter(|(tp, _)| before.min(contiguous) <= tp.partition);
        let freed: Vec<_> = freed.map(|(tp, _)| tp.clone()).collect();
        if before != contiguous {
            self.cluster.dirty_partitions.extend(freed);
        }
    }

    fn forget_topic(&mut self, name: &TopicName) {
        let empty = self.cluster.partitions_of(name).next().is_none();
        if empty && self.cluster.topics.get(name).is_some_and(|topic| topic.unclean_election.is_none()) {
            self.cluster.topics.remove(name);
        }
    }

    fn topic_problem(&mut self, name: &TopicName, problem: Option<String>) {
        let Some(topic) = self.cluster.topics.get_mut(name) else { return };
        if topic.problem == problem {
            return;
        }
        topic.problem.clone_from(&problem);
        let partitions: Vec<_> = self.cluster.partitions_of(name).map(|(tp, _)| tp.clone()).collect();
        self.cluster.dirty_partitions.extend(partitions);
        if let Some(why) = problem {
            self.note(Note::Rejected { subject: format!("topic {name}"), why });
        }
    }

    fn change_topic(&mut self, name: &TopicName, write: Write, change: TopicChange) {
        if let Some(topic) = self.cluster.topics.get_mut(name) {
            topic.in_flight = true;
        }
        self.issue(write, Pending::Topic { topic: name.clone(), change });
    }

    fn draw_id(&mut self, name: &TopicName, version: i32) {
        self.topic_problem(name, None);
        let topic_id = self.draw_topic_id();
        let entry = Some(TopicIdEntry::new(name.clone()));
        let write = Write::NameTopic { topic: name.clone(), version, topic_id, entry: entry.clone() };
        self.change_topic(name, write, TopicChange::Named { topic_id, entry, version });
    }

    /// The node is empty. A new id is drawn only when no partition has `state`; else the id is put back (N3).
    fn name_topic(&mut self, name: &TopicName, version: i32, ids: &[TopicId], fresh: bool) {
        let has_state = self.cluster.partitions_of(name).any(|(_, partition)| !partition.state.is_absent());
        match (has_state, ids) {
            (false, []) => self.draw_id(name, version),
            (true, _) if !holds(Rule::IdIsPutBack) => self.draw_id(name, version),
            // A `state` may be on its way: then the id is put back.
            (false, [_, ..]) if holds(Rule::FirstStateIsAwaited) && self.is_busy(name) => {}
            (false, [_, ..]) if holds(Rule::FirstStateIsAwaited) && !fresh => self.read_topic_again(name),
            // An earlier incarnation ends before the name gets another id.
            (false, [stale, ..]) => self.remove_entry(name, *stale),
            // What is remembered of a partition under writing is not what stands there; its outcome comes.
            (true, _) if self.is_busy(name) => {}
            // What is remembered of the others may be of an incarnation that was deleted a moment ago.
            (true, _) if !fresh => self.read_topic_again(name),
            (true, [topic_id]) => {
                let topic_id = *topic_id;
                self.topic_problem(name, None);
                let write = Write::NameTopic { topic: name.clone(), version, topic_id, entry: None };
                self.change_topic(name, write, TopicChange::Named { topic_id, entry: None, version });
            }
            (true, _) => {
                let why = format!(
                    "the topic's node was emptied, and {} entries in topic_ids name the topic; write its id back: \
                     {{\"version\":1,\"topic_id\":\"…\"}}",
                    ids.len()
                );
                self.topic_problem(name, Some(why));
            }
        }
    }

    fn is_busy(&self, name: &TopicName) -> bool {
        let mut partitions = self.cluster.partitions_of(name);
        partitions.any(|(_, partition)| partition.work.in_flight.is_some() || partition.work.stale)
    }

    /// A topic without id waits for its partitions to be free.
    pub(crate) fn partition_is_free(&mut self, name: &TopicName) {
        let unnamed = |topic: &Topic| matches!(topic.node, Read::Value(Versioned { value: None, .. }));
        if self.cluster.topics.get(name).is_some_and(unnamed) {
            self.cluster.dirty_topics.insert(name.clone());
        }
    }

    pub(crate) fn read_topic_again(&mut self, name: &TopicName) {
        if let Some(topic) = self.cluster.topics.get_mut(name) {
            topic.stale = true;
            self.read_again(Subject::Topic(name.clone()));
        }
    }

    /// The node holds an id: its entry exists, names the topic, and says which partitions have had an ISR.
    fn keep_topic(&mut self, name: &TopicName, topic_id: TopicId, ids: &[TopicId]) {
        let entry = self.cluster.topic_ids.get(&topic_id).cloned().unwrap_or_default();
        match entry {
            Read::Absent => {
                let mut entry = TopicIdEntry::new(name.clone());
                for (tp, partition) in self.cluster.partitions_of(name) {
                    if !partition.state.is_absent() {
                        entry.start(tp.partition);
                    }
                }
                let write = Write::CreateTopicIdEntry { topic_id, entry: entry.clone() };
                self.change_topic(name, write, TopicChange::EntryCreated { topic_id, entry });
            }
            Read::Bad { why, .. } => self.topic_problem(name, Some(why)),
            Read::Value(entry) if entry.value.topic != *name => {
                let why = format!("the topic id {topic_id} belongs to topic '{}'", entry.value.topic);
                self.topic_problem(name, Some(why));
            }
            Read::Value(entry) => {
                self.topic_problem(name, None);
                if let Some(stale) = ids.iter().find(|id| **id != topic_id) {
                    self.remove_entry(name, *stale);
                    return;
                }
                self.start_partitions(name, topic_id, entry);
            }
        }
    }

    fn start_partitions(&mut self, name: &TopicName, topic_id: TopicId, entry: Versioned<TopicIdEntry>) {
        let Some(topic) = self.cluster.topics.get_mut(name) else { return };
        let (mut started, version) = (entry.value, entry.version);
        let to_start = std::mem::take(&mut topic.to_start).into_iter();
        let mut missing: Vec<TopicPartition> = to_start
            .filter(|partition| !started.is_started(*partition))
            .map(|partition| TopicPartition { topic: name.clone(), partition })
            // What was seen to have begun may have been removed by hand since, and be another incarnation's.
            .filter(|tp| {
                !holds(Rule::StartedByIsr)
                    || self.cluster.partitions.get(tp).is_some_and(Partition::has_begun)
            })
            .collect();
        // The others come when this is stored.
        let later = missing.split_off(missing.len().min(STARTED_AT_ONCE));
        topic.to_start.extend(later.into_iter().map(|tp| tp.partition));
        if missing.is_empty() {
            return;
        }
        missing.iter().for_each(|tp| started.start(tp.partition));
        let has_isr =
            |tp: &TopicPartition| self.cluster.partitions.get(tp).is_some_and(|known| !known.isr.is_absent());
        let isrs = missing.into_iter().filter(has_isr).collect();
        let write = Write::SetTopicIdEntry { topic_id, version, entry: started.clone(), isrs };
        self.change_topic(name, write, TopicChange::EntrySet { topic_id, entry: started, version });
    }

    fn refuse_deletion(&mut self, name: &TopicName) {
        let why = "topics cannot be deleted: delete.topic.enable=false".to_owned();
        self.note(Note::Rejected { subject: format!("deletion of topic {name}"), why });
        let write = Write::RefuseDeletion { topic: name.clone() };
        self.change_topic(name, write, TopicChange::DeletionRefused);
    }

    fn remove_entry(&mut self, name: &TopicName, topic_id: TopicId) {
        let Some(version) = self.cluster.topic_ids.get(&topic_id).and_then(Read::version) else { return };
        let write = Write::RemoveTopicIdEntry { topic_id, version };
        self.change_topic(name, write, TopicChange::EntryRemoved { topic_id });
    }

    /// Entries first, so that no partition of the incarnation can be written any more; then the copies, then the
    /// znodes, the wish last. Goes on from wherever an earlier controller stopped.
    fn delete_topic(&mut self, name: &TopicName, node: &Read<Option<TopicId>>) {
        let mut ids = self.cluster.ids_of(name);
        if let Some(Some(id)) = node.value()
            && matches!(self.cluster.topic_ids.get(id), Some(Read::Bad { .. }))
        {
            ids.push(*id);
        }
        if let Some(topic_id) = ids.first() {
            self.remove_entry(name, *topic_id);
            return;
        }
        let write = Write::RemoveTopic { topic: name.clone() };
        self.change_topic(name, write, TopicChange::Removed);
    }

    pub(crate) fn topic_written(&mut self, name: &TopicName, change: &TopicChange, outcome: &WriteOutcome) {
        self.cluster.mark_topic(name);
        let topic = self.cluster.topics.entry(name.clone()).or_default();
        topic.in_flight = false;
        let WriteOutcome::Stored { zxid } = outcome else {
            let mut ids = self.cluster.ids_of(name);
            ids.extend(change.topic_id());
            for topic_id in ids {
                self.actions.push(Action::ReadAgain(Subject::TopicId(topic_id)));
            }
            self.read_topic_again(name);
            return;
        };
        let stored = |entry: &TopicIdEntry, version| {
            Read::Value(Versioned { value: entry.clone(), version, mzxid: *zxid })
        };
        match change {
            TopicChange::Named { topic_id, entry, version } => {
                topic.node =
                    Read::Value(Versioned { value: Some(*topic_id), version: version + 1, mzxid: *zxid });
                if let Some(entry) = entry {
                    self.learn_entry(*topic_id, stored(entry, 0));
                }
                self.note(Note::TopicNamed { topic: name.clone(), topic_id: *topic_id });
            }
            TopicChange::EntryCreated { topic_id, entry } => self.learn_entry(*topic_id, stored(entry, 0)),
            TopicChange::EntrySet { topic_id, entry, version } => {
                self.learn_entry(*topic_id, stored(entry, version + 1));
            }
            TopicChange::EntryRemoved { topic_id } => {
                self.learn_entry(*topic_id, Read::Absent);
                self.stop_incarnation(name, *topic_id);
            }
            TopicChange::DeletionRefused => self.read_topic_again(name),
            TopicChange::Removed => {
                self.note(Note::TopicRemoved { topic: name.clone() });
                self.read_topic_again(name);
            }
        }
    }

    fn learn_entry(&mut self, topic_id: TopicId, entry: Read<TopicIdEntry>) {
        self.cluster.learn(crate::event::Fact::TopicIdEntry { topic_id, entry });
    }
}
