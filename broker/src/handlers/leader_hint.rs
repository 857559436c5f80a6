//! Who leads instead (KIP-951): an answer that refuses a client because this broker does not lead names the leader and
//! its address, so that the client need not ask for metadata first.

use std::collections::BTreeMap;

use zurau_common::id::{BrokerId, LeaderEpoch, TopicId};
use zurau_common::rejection::Rejection;

use crate::metadata::{BrokerAddress, MetadataImage};

/// A topic as a request names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TopicRef {
    Name(zurau_common::id::TopicName),
    Id(TopicId),
}

/// The rejection of a partition that this broker does not host: unknown, or led elsewhere (CLI-10).
pub(super) fn not_hosted(image: &MetadataImage, topic: &TopicRef, partition: i32) -> Rejection {
    let known = match topic {
        TopicRef::Name(name) => image.topic(name),
        TopicRef::Id(id) => image.topic_by_id(*id),
    };
    match (known, topic) {
        (Some(topic), _) if topic.partitions.contains_key(&partition) => Rejection::NotLeaderOrFollower,
        (None, TopicRef::Id(_)) => Rejection::UnknownTopicId,
        _ => Rejection::UnknownTopicOrPartition,
    }
}

/// Leaders named in one answer, and where they are.
#[derive(Debug)]
pub(super) struct LeaderHints<'a> {
    image: &'a MetadataImage,
    listener: &'a str,
    endpoints: BTreeMap<BrokerId, (BrokerAddress, Option<String>)>,
}

impl<'a> LeaderHints<'a> {
    pub(super) fn new(image: &'a MetadataImage, listener: &'a str) -> Self {
        Self { image, listener, endpoints: BTreeMap::new() }
    }

    /// The leader to name beside a rejection, if it is one that calls for it and the leader is known.
    pub(super) fn leader(
        &mut self,
        rejection: Rejection,
        topic: &TopicRef,
        partition: i32,
    ) -> Option<(BrokerId, LeaderEpoch)> {
        if !matches!(rejection, Rejection::NotLeaderOrFollower | Rejection::FencedLeaderEpoch) {
            return None;
        }
        let topic = match topic {
            TopicRef::Name(name) => self.image.topic(name)?,
            TopicRef::Id(id) => self.image.topic_by_id(*id)?,
        };
        let partition = topic.partitions.get(&partition)?;
        let leader = partition.leader?;
        let broker = self.image.brokers.get(&leader)?;
        let address = broker.address(self.listener)?.clone();
        self.endpoints.insert(leader, (address, broker.rack.clone()));
        Some((leader, partition.leader_epoch))
    }

    /// Addresses of the leaders named so far: id, address, rack.
    pub(super) fn endpoints(
        &self,
    ) -> impl ExactSizeIterator<Item = (BrokerId, &BrokerAddress, Option<&str>)> {
        self.endpoints.iter().map(|(id, (address, rack))| (*id, address, rack.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::{id, image, topic};

    #[test]
    fn partitions_elsewhere_and_unknown_ones_are_told_apart() {
        let image = image(vec![topic("a", id(1), &[1, 2])]);
        let rows = [
            (TopicRef::Name("a".into()), 0, 6),
            (TopicRef::Name("a".into()), 2, 3),
            (TopicRef::Name("b".into()), 0, 3),
            (TopicRef::Id(id(1)), 1, 6),
            (TopicRef::Id(id(1)), 2, 3),
            (TopicRef::Id(id(2)), 0, 100),
        ];
        for (topic, partition, code) in rows {
            assert_eq!(not_hosted(&image, &topic, partition).code(), code, "{topic:?} {partition}");
        }
    }

    #[test]
    fn only_rejections_for_another_leader_name_it() {
        let image = image(vec![topic("a", id(1), &[2, -1])]);
        let mut hints = LeaderHints::new(&image, "PLAINTEXT");
        let a = TopicRef::Name("a".into());
        assert_eq!(hints.leader(Rejection::UnknownTopicOrPartition, &a, 0), None);
        assert_eq!(hints.leader(Rejection::NotLeaderOrFollower, &a, 1), None, "offline");
        assert_eq!(hints.endpoints().len(), 0);
        assert_eq!(hints.leader(Rejection::FencedLeaderEpoch, &a, 0), Some((BrokerId(2), LeaderEpoch(5))));
        let endpoints: Vec<i32> = hints.endpoints().map(|(id, ..)| id.0).collect();
        assert_eq!(endpoints, [2]);
    }
}
