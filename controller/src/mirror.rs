//! Which znodes are known at which version, and which must be read: turns watch events and reads into changes.
//!
//! A read and a write of the same partition may overtake each other on their way to the machine. So what a read says
//! about a subject that was written meanwhile is dropped, and read once more.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::{BrokerId, TopicId, TopicName, TopicPartition};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::op::Node;
use zurau_common::zk::znode::Znode;

use crate::action::Write;
use crate::event::{Fact, Subject};
use crate::facts::fact_of;

/// What a write may change, as far as reads of it must be set aside meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Topic(TopicName),
    TopicId(TopicId),
    Partition(TopicPartition),
    Complaint(TopicPartition),
}

impl Key {
    fn of(znode: &Znode) -> Option<Self> {
        match znode {
            Znode::Topic(topic) => Some(Self::Topic(topic.clone())),
            Znode::TopicIdEntry(id) => Some(Self::TopicId(*id)),
            Znode::Replicas(tp)
            | Znode::State(tp)
            | Znode::Isr(tp)
            | Znode::Elr(tp)
            | Znode::Leader(tp)
            | Znode::Leaving(tp)
            | Znode::Reassignment(tp) => Some(Self::Partition(tp.clone())),
            Znode::PartitionError(tp) | Znode::ReassignmentError(tp) => Some(Self::Complaint(tp.clone())),
            _ => None,
        }
    }

    fn all_of(write: &Write) -> Vec<Self> {
        match write {
            Write::Partition(change) => vec![Self::Partition(change.fence.partition.clone())],
            Write::NameTopic { topic, topic_id, .. } => {
                vec![Self::Topic(topic.clone()), Self::TopicId(*topic_id)]
            }
            Write::CreateTopicIdEntry { topic_id, .. }
            | Write::SetTopicIdEntry { topic_id, .. }
            | Write::RemoveTopicIdEntry { topic_id, .. } => vec![Self::TopicId(*topic_id)],
            Write::PartitionError { partition, .. } | Write::ReassignmentError { partition, .. } => {
                vec![Self::Complaint(partition.clone())]
            }
            Write::RemoveTopic { .. }
            | Write::RefuseDeletion { .. }
            | Write::RaiseControllerEpoch { .. }
            | Write::RemovePreferredElection { .. } => Vec::new(),
        }
    }
}

/// Znodes that a write may create.
fn made_by(write: &Write) -> Vec<Znode> {
    match write {
        Write::Partition(change) => {
            let tp = || change.fence.partition.clone();
            let isr = change.write.isr.as_ref();
            let made = [
                change.write.state.is_some().then(|| Znode::State(tp())),
                isr.map(|_| Znode::Isr(tp())),
                isr.filter(|isr| !isr.elr.is_empty()).map(|_| Znode::Elr(tp())),
                change.extra.leaving.is_some().then(|| Znode::Leaving(tp())),
            ];
            made.into_iter().flatten().collect()
        }
        Write::NameTopic { topic_id, .. } | Write::CreateTopicIdEntry { topic_id, .. } => {
            vec![Znode::TopicIdEntry(*topic_id)]
        }
        Write::PartitionError { partition, .. } => vec![Znode::PartitionError(partition.clone())],
        Write::ReassignmentError { partition, .. } => vec![Znode::ReassignmentError(partition.clone())],
        _ => Vec::new(),
    }
}

/// A znode's identity and version: czxid tells a znode from another of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    czxid: i64,
    version: i32,
}

/// Of what the controller has written and not read yet: no znode has it.
const WRITTEN: Stamp = Stamp { czxid: -1, version: -1 };

/// What is to be read next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// The whole tree.
    All,
    Some {
        paths: BTreeSet<String>,
        /// Asked for by the machine: told in full, whether changed or not.
        subjects: BTreeSet<Subject>,
    },
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Mirror {
    known: BTreeMap<String, Stamp>,
    dirty: BTreeSet<String>,
    subjects: BTreeSet<Subject>,
    read_all: bool,
    reading: bool,
    being_written: BTreeMap<Key, usize>,
    written_while_reading: BTreeSet<Key>,
    /// Read in vain, because a write was in flight: what to read once it has ended.
    set_aside: BTreeMap<Key, BTreeSet<String>>,
}

impl Mirror {
    /// The watches were set anew.
    pub fn read_everything(&mut self) {
        self.read_all = true;
        self.dirty.clear();
        self.set_aside.clear();
    }

    /// A newer reset than the reading under way.
    pub fn must_read_everything(&self) -> bool {
        self.read_all
    }

    /// Nothing is being read, and nothing is to be read.
    pub(crate) fn is_idle(&self) -> bool {
        !self.reading && !self.read_all && self.dirty.is_empty() && self.subjects.is_empty()
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading
    }

    pub fn mark(&mut self, paths: impl IntoIterator<Item = String>) {
        for path in paths {
            if let Some(Znode::Broker(id) | Znode::Endpoints(id) | Znode::BrokerEpoch(id)) =
                Znode::parse(&path)
            {
                self.dirty.extend(broker_paths(id));
            } else {
                self.dirty.insert(path);
            }
        }
    }

    pub fn ask(&mut self, subject: Subject) {
        self.subjects.insert(subject);
    }

    pub fn write_began(&mut self, write: &Write) {
        for key in Key::all_of(write) {
            *self.being_written.entry(key).or_default() += 1;
        }
    }

    pub fn write_ended(&mut self, write: &Write) {
        // The machine believes in what it has stored. If that is removed before it was ever read, this must be told.
        for znode in made_by(write).iter().filter(|_| holds(Rule::OwnWriteIsKnown)) {
            self.known.entry(znode.path()).or_insert(WRITTEN);
        }
        for key in Key::all_of(write) {
            if let Some(count) = self.being_written.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.being_written.remove(&key);
                    self.dirty.extend(self.set_aside.remove(&key).unwrap_or_default());
                }
            }
            if self.reading {
                self.written_while_reading.insert(key);
            }
        }
    }

    /// The next thing to read, one at a time; [`Self::told`] ends it.
    pub fn next_reading(&mut self) -> Option<Reading> {
        if self.reading || (!self.read_all && self.dirty.is_empty() && self.subjects.is_empty()) {
            return None;
        }
        self.reading = true;
        self.written_while_reading.clear();
        if std::mem::take(&mut self.read_all) {
            return Some(Reading::All);
        }
        let paths = std::mem::take(&mut self.dirty);
        let subjects = std::mem::take(&mut self.subjects);
        Some(Reading::Some { paths, subjects })
    }

    /// The read failed; what it was for is still to be read.
    pub fn failed(&mut self, reading: Reading) {
        self.reading = false;
        match reading {
            Reading::All => self.read_everything(),
            Reading::Some { paths, subjects } => {
                self.dirty.extend(paths);
                self.subjects.extend(subjects);
            }
        }
    }

    /// What was read, as facts about what changed. A whole reading tells of everything it did not find, too.
    pub fn told(&mut self, reading: &Reading, found: Vec<(String, Option<Node>)>) -> Vec<Fact> {
        self.reading = false;
        let mut facts = Vec::new();
        let forced: &BTreeSet<Subject> = match reading {
            Reading::All => &BTreeSet::new(),
            Reading::Some { subjects, .. } => subjects,
        };
        let mut seen = BTreeSet::new();
        for (path, node) in found {
            let Some(znode) = Znode::parse(&path) else { continue };
            if *reading == Reading::All {
                seen.insert(path.clone());
            }
            let forced = subjects_of(&znode).iter().any(|subject| forced.contains(subject));
            facts.extend(self.compare(path, znode, node.as_ref(), forced));
        }
        if *reading == Reading::All {
            let vanished: Vec<String> =
                self.known.keys().filter(|path| !seen.contains(*path)).cloned().collect();
            for path in vanished {
                if let Some(znode) = Znode::parse(&path) {
                    facts.extend(self.compare(path, znode, None, false));
                }
            }
        }
        facts.extend(forced.iter().cloned().map(Fact::Fresh));
        // Brokers first: a leader that vanished with its broker has not resigned.
        facts.sort_by_key(|fact| match fact {
            Fact::Broker { .. } | Fact::BrokerEpoch { .. } | Fact::Endpoints { .. } => 0,
            Fact::Fresh(_) => 2,
            _ => 1,
        });
        facts
    }

    fn compare(&mut self, path: String, znode: Znode, node: Option<&Node>, forced: bool) -> Option<Fact> {
        if let Some(key) = Key::of(&znode) {
            if self.being_written.contains_key(&key) {
                self.set_aside.entry(key).or_default().insert(path);
                return None;
            }
            if self.written_while_reading.contains(&key) {
                self.dirty.insert(path);
                return None;
            }
        }
        let stamp = node.map(|node| Stamp { czxid: node.czxid, version: node.version });
        let before = match stamp {
            Some(stamp) => self.known.insert(path, stamp),
            None => self.known.remove(&path),
        };
        if before == stamp && !forced { None } else { fact_of(znode, node) }
    }

    /// Known paths of the topics that a reading is about, so that what vanished is noticed.
    pub fn known_of(&self, reading: &Reading) -> Vec<String> {
        let Reading::Some { subjects, .. } = reading else { return Vec::new() };
        let mut paths = Vec::new();
        for subject in subjects {
            if let Subject::Topic(topic) = subject {
                let below = Znode::Topic(topic.clone()).path() + "/";
                let range = self.known.range(below.clone()..);
                paths
                    .extend(range.map(|(path, _)| path).take_while(|path| path.starts_with(&below)).cloned());
            }
        }
        paths
    }
}

/// The three znodes of a broker are read together: they change together.
pub fn broker_paths(id: BrokerId) -> [String; 3] {
    [Znode::Broker(id).path(), Znode::Endpoints(id).path(), Znode::BrokerEpoch(id).path()]
}

/// Every znode of a partition.
pub fn partition_paths(tp: &TopicPartition) -> Vec<String> {
    let tp = || tp.clone();
    [
        Znode::Partition(tp()),
        Znode::Replicas(tp()),
        Znode::State(tp()),
        Znode::Isr(tp()),
        Znode::Elr(tp()),
        Znode::Leader(tp()),
        Znode::Leaving(tp()),
        Znode::PartitionError(tp()),
        Znode::Reassignment(tp()),
        Znode::ReassignmentError(tp()),
    ]
    .iter()
    .map(Znode::path)
    .collect()
}

fn subjects_of(znode: &Znode) -> Vec<Subject> {
    match znode {
        Znode::Broker(id) | Znode::Endpoints(id) | Znode::BrokerEpoch(id) => vec![Subject::Broker(*id)],
        Znode::Topic(topic) | Znode::DeleteTopic(topic) => vec![Subject::Topic(topic.clone())],
        Znode::TopicIdEntry(id) => vec![Subject::TopicId(*id)],
        Znode::PreferredReplicaElection => vec![Subject::Wishes],
        Znode::Partition(tp)
        | Znode::Replicas(tp)
        | Znode::Leader(tp)
        | Znode::Isr(tp)
        | Znode::Elr(tp)
        | Znode::State(tp)
        | Znode::Leaving(tp)
        | Znode::PartitionError(tp)
        | Znode::Reassignment(tp)
        | Znode::ReassignmentError(tp) => {
            vec![Subject::Partition(tp.clone()), Subject::Topic(tp.topic.clone())]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(version: i32, data: &str) -> Option<Node> {
        Some(Node {
            data: data.as_bytes().to_vec(),
            version,
            czxid: 1,
            mzxid: i64::from(version),
            ephemeral_owner: 0,
        })
    }

    const REPLICAS: &str = "/brokers/topics/t/0/replicas";

    fn read(mirror: &mut Mirror, node: Option<Node>) -> usize {
        let reading = mirror.next_reading().unwrap();
        mirror.told(&reading, vec![(REPLICAS.to_owned(), node)]).len()
    }

    #[test]
    fn only_changes_are_told() {
        let mut mirror = Mirror::default();
        for (found, told) in
            [(node(0, "[1]"), 1), (node(0, "[1]"), 0), (node(1, "[2]"), 1), (None, 1), (None, 0)]
        {
            mirror.mark([REPLICAS.to_owned()]);
            assert_eq!(read(&mut mirror, found), told);
        }
        assert_eq!(mirror.next_reading(), None);
    }

    #[test]
    fn l1_a_whole_reading_tells_what_vanished() {
        let mut mirror = Mirror::default();
        mirror.mark([REPLICAS.to_owned()]);
        read(&mut mirror, node(0, "[1]"));
        mirror.read_everything();
        assert_eq!(mirror.next_reading(), Some(Reading::All));
        assert_eq!(mirror.told(&Reading::All, Vec::new()).len(), 1);
    }

    #[test]
    fn a_znode_that_vanishes_before_it_was_ever_read_is_told() {
        let write = Write::PartitionError {
            partition: TopicPartition::new("t", 0),
            text: Some("why".to_owned()),
            exists: false,
        };
        let path = "/brokers/topics/t/0/error".to_owned();
        let mut mirror = Mirror::default();
        mirror.write_began(&write);
        mirror.write_ended(&write);
        mirror.mark([path.clone()]);
        let reading = mirror.next_reading().unwrap();
        assert_eq!(mirror.told(&reading, vec![(path.clone(), None)]).len(), 1);
        mirror.mark([path.clone()]);
        let reading = mirror.next_reading().unwrap();
        assert_eq!(mirror.told(&reading, vec![(path, None)]), Vec::new());
    }

    #[test]
    fn a_read_that_a_write_overtook_is_dropped_and_made_again() {
        let write =
            Write::PartitionError { partition: TopicPartition::new("t", 0), text: None, exists: true };
        let path = "/brokers/topics/t/0/error".to_owned();
        let mut mirror = Mirror::default();
        mirror.mark([path.clone()]);
        let reading = mirror.next_reading().unwrap();
        mirror.write_began(&write);
        mirror.write_ended(&write);
        assert_eq!(mirror.told(&reading, vec![(path.clone(), node(0, "old"))]), Vec::new());
        let reading = mirror.next_reading().unwrap();
        mirror.write_began(&write);
        assert_eq!(mirror.told(&reading, vec![(path.clone(), node(0, "old"))]), Vec::new());
        assert_eq!(mirror.next_reading(), None, "not before the write has ended");
        mirror.write_ended(&write);
        assert!(matches!(mirror.next_reading(), Some(Reading::Some { paths, .. }) if paths.contains(&path)));
    }
}
