//! Sets of partitions, by the ids of their topics.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::TopicId;

/// A set of partitions. No topic is in it without a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Partitions(BTreeMap<TopicId, BTreeSet<i32>>);

impl Partitions {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, topic: TopicId, partition: i32) -> bool {
        self.0.get(&topic).is_some_and(|partitions| partitions.contains(&partition))
    }

    pub(crate) fn insert(&mut self, topic: TopicId, partition: i32) {
        self.0.entry(topic).or_default().insert(partition);
    }

    /// Each partition, by ascending topic id and number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TopicId, i32)> + '_ {
        self.0.iter().flat_map(|(topic, partitions)| partitions.iter().map(|partition| (*topic, *partition)))
    }

    /// Each topic with its partitions.
    pub(crate) fn topics(&self) -> impl ExactSizeIterator<Item = (TopicId, &BTreeSet<i32>)> + '_ {
        self.0.iter().map(|(topic, partitions)| (*topic, partitions))
    }

    pub(crate) fn is_subset_of(&self, other: &Self) -> bool {
        self.iter().all(|(topic, partition)| other.contains(topic, partition))
    }

    pub(crate) fn intersects(&self, other: &Self) -> bool {
        self.iter().any(|(topic, partition)| other.contains(topic, partition))
    }

    /// What is in both, and what is in this one only.
    pub(crate) fn split_by(&self, other: &Self) -> (Self, Self) {
        self.iter().partition(|(topic, partition)| other.contains(*topic, *partition))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

impl Extend<(TopicId, i32)> for Partitions {
    fn extend<I: IntoIterator<Item = (TopicId, i32)>>(&mut self, partitions: I) {
        for (topic, partition) in partitions {
            self.insert(topic, partition);
        }
    }
}

impl FromIterator<(TopicId, i32)> for Partitions {
    fn from_iter<I: IntoIterator<Item = (TopicId, i32)>>(partitions: I) -> Self {
        let mut set = Self::default();
        set.extend(partitions);
        set
    }
}
