//! The partitions by name. One step of the machine looks a dozen times at one of perhaps 100,000, so they are found by
//! hash; they are told in order, so that the same events always lead to the same actions.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, RangeInclusive};

use zurau_common::id::{TopicName, TopicPartition};

use crate::cluster::Partition;

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub(crate) struct PartitionMap {
    /// Where each stands. Never iterated: the order is the other map's.
    places: HashMap<TopicPartition, usize>,
    order: BTreeMap<TopicPartition, usize>,
    partitions: Vec<Partition>,
    /// Places of removed ones.
    free: Vec<usize>,
}

impl PartitionMap {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, tp: &TopicPartition) -> Option<&Partition> {
        self.places.get(tp).map(|place| &self.partitions[*place])
    }

    pub(crate) fn get_mut(&mut self, tp: &TopicPartition) -> Option<&mut Partition> {
        self.places.get(tp).map(|place| &mut self.partitions[*place])
    }

    pub(crate) fn contains_key(&self, tp: &TopicPartition) -> bool {
        self.places.contains_key(tp)
    }

    /// The partition, which nothing is known of yet if it is new.
    pub(crate) fn get_or_insert(&mut self, tp: &TopicPartition) -> &mut Partition {
        let place = match self.places.get(tp) {
            Some(place) => *place,
            None => {
                let place = self.free.pop().unwrap_or(self.partitions.len());
                if place == self.partitions.len() {
                    self.partitions.push(Partition::default());
                }
                self.places.insert(tp.clone(), place);
                self.order.insert(tp.clone(), place);
                place
            }
        };
        &mut self.partitions[place]
    }

    pub(crate) fn remove(&mut self, tp: &TopicPartition) {
        if let Some(place) = self.places.remove(tp) {
            self.order.remove(tp);
            self.partitions[place] = Partition::default();
            self.free.push(place);
        }
    }

    /// In order, as all that follow.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TopicPartition, &Partition)> {
        self.order.iter().map(|(tp, place)| (tp, &self.partitions[*place]))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &TopicPartition> {
        self.order.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Partition> {
        self.order.values().map(|place| &self.partitions[*place])
    }

    pub(crate) fn of_topic(&self, topic: &TopicName) -> impl Iterator<Item = (&TopicPartition, &Partition)> {
        self.order.range(partitions_of(topic)).map(|(tp, place)| (tp, &self.partitions[*place]))
    }
}

impl Index<&TopicPartition> for PartitionMap {
    type Output = Partition;

    fn index(&self, tp: &TopicPartition) -> &Partition {
        &self.partitions[self.places[tp]]
    }
}

fn partitions_of(topic: &TopicName) -> RangeInclusive<TopicPartition> {
    TopicPartition::new(TopicName::clone(topic), 0)..=TopicPartition::new(TopicName::clone(topic), i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(map: &PartitionMap) -> Vec<String> {
        map.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn partitions_come_in_order_and_a_removed_one_leaves_nothing_behind() {
        let mut map = PartitionMap::default();
        let tp = |topic: &str, partition| TopicPartition::new(topic, partition);
        for (topic, partition) in [("b", 1), ("a", 7), ("b", 0), ("c", 3)] {
            map.get_or_insert(&tp(topic, partition)).error = Some(format!("{topic}-{partition}"));
        }
        assert_eq!(names(&map), ["a-7", "b-0", "b-1", "c-3"]);
        let of_b: Vec<&str> = map.of_topic(&"b".into()).filter_map(|(_, p)| p.error.as_deref()).collect();
        assert_eq!(of_b, ["b-0", "b-1"]);
        map.remove(&tp("b", 0));
        map.remove(&tp("b", 0));
        assert_eq!((names(&map), map.len()), (vec!["a-7".to_owned(), "b-1".to_owned(), "c-3".to_owned()], 3));
        assert!(map.get(&tp("b", 0)).is_none() && !map.contains_key(&tp("b", 0)));
        // In the place of the removed one.
        assert_eq!(map.get_or_insert(&tp("a", 0)).error, None);
        assert_eq!(map[&tp("b", 1)].error.as_deref(), Some("b-1"));
        assert_eq!(names(&map), ["a-0", "a-7", "b-1", "c-3"]);
        assert_eq!(map.values().count(), map.iter().count());
    }
}
