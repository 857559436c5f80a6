//! What the controller last said about the cluster: live brokers, topics, leaders. An image is never changed, only
//! replaced, so a request sees one consistent picture however long it takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kafka_protocol::messages::UpdateMetadataRequest;
use kafka_protocol::messages::update_metadata_request::{UpdateMetadataBroker, UpdateMetadataPartitionState};
use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TYPE_FULL, from_wire_ids};

/// The leader of a partition that is being deleted, in UpdateMetadata.
const LEADER_DURING_DELETE: i32 = -2;

/// Topics that clients use through APIs of their own.
pub(crate) const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

pub(crate) fn is_internal(topic: &str) -> bool {
    INTERNAL_TOPICS.contains(&topic)
}

/// One address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerAddress {
    pub(crate) listener: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A registered broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LiveBroker {
    pub(crate) addresses: Vec<BrokerAddress>,
    pub(crate) rack: Option<String>,
}

impl LiveBroker {
    /// The address on a listener. A broker that registered with one address alone has that one on every listener.
    pub(crate) fn address(&self, listener: &str) -> Option<&BrokerAddress> {
        let named = self.addresses.iter().find(|address| address.listener == listener);
        let only =
            self.addresses.first().filter(|only| self.addresses.len() == 1 && only.listener.is_empty());
        named.or(only)
    }
}

/// A partition as the controller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionImage {
    /// `None` while the partition is offline.
    pub(crate) leader: Option<BrokerId>,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) isr: Vec<BrokerId>,
    pub(crate) replicas: Vec<BrokerId>,
    pub(crate) offline_replicas: Vec<BrokerId>,
}

/// A topic and its partitions by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicImage {
    pub(crate) name: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) partitions: BTreeMap<i32, PartitionImage>,
}

/// One consistent picture of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MetadataImage {
    pub(crate) controller_epoch: Option<ControllerEpoch>,
    pub(crate) brokers: BTreeMap<BrokerId, LiveBroker>,
    topics: HashMap<TopicName, Arc<TopicImage>>,
    names: HashMap<TopicId, TopicName>,
}

impl MetadataImage {
    /// The same image, ready to believe any controller.
    pub(crate) fn without_controller_epoch(&self) -> Self {
        Self { controller_epoch: None, ..self.clone() }
    }

    /// Whether a controller has told of the cluster: then this broker, at least, is alive.
    pub(crate) fn is_told(&self) -> bool {
        !self.brokers.is_empty()
    }

    pub(crate) fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    pub(crate) fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.topics.get(self.names.get(&id)?)
    }

    pub(crate) fn partition(&self, topic: &str, partition: i32) -> Option<&PartitionImage> {
        self.topics.get(topic)?.partitions.get(&partition)
    }

    /// Whether the broker lives and has an address on the listener.
    pub(crate) fn reaches(&self, broker: BrokerId, listener: &str) -> bool {
        self.brokers.get(&broker).is_some_and(|live| live.address(listener).is_some())
    }

    /// All topics, in no particular order.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<TopicImage>> {
        self.topics.values()
    }

    /// Who is shown to clients as controller: every broker names the live one with the lowest id, and every broker
    /// answers what clients send to it (coordination.md, section 8).
    pub(crate) fn shown_controller(&self) -> Option<BrokerId> {
        self.brokers.keys().next().copied()
    }

    /// The image after a request of the controller.
    ///
    /// # Errors
    /// [`Rejection::StaleControllerEpoch`]: a controller that was replaced sent it; nothing of it applies (M4).
    pub(crate) fn after(&self, request: &UpdateMetadataRequest) -> Result<Self, Rejection> {
        let epoch = ControllerEpoch(request.controller_epoch);
        if self.controller_epoch.is_some_and(|known| epoch < known) {
            return Err(Rejection::StaleControllerEpoch);
        }
        let mut next = if request._type == TYPE_FULL { Self::default() } else { self.clone() };
        next.controller_epoch = Some(epoch);
        next.brokers =
            request.live_brokers.iter().map(|broker| (BrokerId(broker.id.0), live_broker(broker))).collect();
        for topic in &request.topic_states {
            next.apply_topic(topic.topic_name.as_str(), TopicId(topic.topic_id), &topic.partition_states);
        }
        Ok(next)
    }

    /// A nil id stands for whatever incarnation is known: the controller says so of partitions that are no more.
    fn apply_topic(&mut self, name: &str, topic_id: TopicId, states: &[UpdateMetadataPartitionState]) {
        let is_this = |known: &&Arc<TopicImage>| topic_id.0.is_nil() || known.topic_id == topic_id;
        let mut topic = self.topics.get(name).filter(is_this).map_or_else(
            || TopicImage { name: name.into(), topic_id, partitions: BTreeMap::new() },
            |known| TopicImage::clone(known),
        );
        // Another id under this name is another incarnation: nothing of the old one stays (D11).
        self.remove_topic(name);
        for state in states {
            if state.leader.0 == LEADER_DURING_DELETE {
                topic.partitions.remove(&state.partition_index);
            } else {
                topic.partitions.insert(state.partition_index, partition_image(state));
            }
        }
        if !topic.partitions.is_empty() {
            self.names.insert(topic.topic_id, Arc::clone(&topic.name));
            self.topics.insert(Arc::clone(&topic.name), Arc::new(topic));
        }
    }

    fn remove_topic(&mut self, name: &str) {
        if let Some(old) = self.topics.remove(name) {
            self.names.remove(&old.topic_id);
        }
    }
}

fn live_broker(broker: &UpdateMetadataBroker) -> LiveBroker {
    let addresses = broker.endpoints.iter().filter_map(|endpoint| {
        let port = u16::try_from(endpoint.port).ok()?;
        Some(BrokerAddress { listener: endpoint.listener.to_string(), host: endpoint.host.to_string(), port })
    });
    LiveBroker { addresses: addresses.collect(), rack: broker.rack.as_ref().map(ToString::to_string) }
}

fn partition_image(state: &UpdateMetadataPartitionState) -> PartitionImage {
    PartitionImage {
        leader: (0 <= state.leader.0).then_some(BrokerId(state.leader.0)),
        leader_epoch: LeaderEpoch(state.leader_epoch),
        isr: from_wire_ids(&state.isr),
        replicas: from_wire_ids(&state.replicas),
        offline_replicas: from_wire_ids(&state.offline_replicas),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use kafka_protocol::messages::update_metadata_request::{
        UpdateMetadataEndpoint, UpdateMetadataTopicState,
    };
    use kafka_protocol::protocol::StrBytes;
    use uuid::Uuid;
    use zurau_common::wire::control::{to_wire_ids, to_wire_topic};

    use super::*;

    pub(crate) fn id(number: u128) -> TopicId {
        TopicId(Uuid::from_u128(number))
    }

    fn broker(id: i32, listeners: &[&str]) -> UpdateMetadataBroker {
        let endpoints = listeners.iter().enumerate().map(|(index, listener)| {
            UpdateMetadataEndpoint::default()
                .with_listener(StrBytes::from_string((*listener).to_owned()))
                .with_host(StrBytes::from_string(format!("host-{id}")))
                .with_port(9000 + index as i32)
        });
        UpdateMetadataBroker::default()
            .with_id(id.into())
            .with_endpoints(endpoints.collect())
            .with_rack(Some(StrBytes::from_string(format!("rack-{id}"))))
    }

    /// A topic whose partitions are led by these brokers; the replicas are brokers 1 and 2.
    pub(crate) fn topic(name: &str, topic_id: TopicId, leaders: &[i32]) -> UpdateMetadataTopicState {
        let states = leaders.iter().enumerate().map(|(index, leader)| {
            UpdateMetadataPartitionState::default()
                .with_partition_index(index as i32)
                .with_leader((*leader).into())
                .with_leader_epoch(5)
                .with_isr(to_wire_ids(&[BrokerId(1)]))
                .with_replicas(to_wire_ids(&[BrokerId(1), BrokerId(2)]))
        });
        UpdateMetadataTopicState::default()
            .with_topic_name(to_wire_topic(name))
            .with_topic_id(topic_id.0)
            .with_partition_states(states.collect())
    }

    /// An update with brokers 1 and 2 alive, each with two listeners.
    pub(crate) fn update(epoch: i32, topics: Vec<UpdateMetadataTopicState>) -> UpdateMetadataRequest {
        UpdateMetadataRequest::default()
            .with_controller_epoch(epoch)
            .with_live_brokers(vec![
                broker(1, &["PLAINTEXT", "INTERNAL"]),
                broker(2, &["PLAINTEXT", "INTERNAL"]),
            ])
            .with_topic_states(topics)
    }

    /// An image with brokers 1 and 2 and these topics.
    pub(crate) fn image(topics: Vec<UpdateMetadataTopicState>) -> MetadataImage {
        MetadataImage::default().after(&update(1, topics)).unwrap()
    }

    #[test]
    fn updates_add_up_and_full_ones_replace() {
        let first = image(vec![topic("a", id(1), &[1, 2]), topic("b", id(2), &[-1])]);
        assert_eq!(first.partition("a", 1).unwrap().leader, Some(BrokerId(2)));
        assert_eq!(first.partition("b", 0).unwrap().leader, None, "offline");
        assert_eq!(first.topic_by_id(id(2)).unwrap().name, "b".into());
        assert_eq!(first.shown_controller(), Some(BrokerId(1)));
        assert_eq!(first.brokers[&BrokerId(2)].address("INTERNAL").unwrap().port, 9001);
        assert_eq!(first.brokers[&BrokerId(2)].address("SSL"), None);

        let second = first.after(&update(1, vec![topic("b", id(2), &[2])])).unwrap();
        assert_eq!(second.partition("b", 0).unwrap().leader, Some(BrokerId(2)));
        assert_eq!(second.topic("a"), first.topic("a"));

        let full = second.after(&update(1, vec![topic("c", id(3), &[1])]).with_type(TYPE_FULL)).unwrap();
        assert_eq!(full.topics().count(), 1);
        assert!(full.topic_by_id(id(1)).is_none());
    }

    #[test]
    fn deleted_and_recreated_topics_leave_nothing_behind() {
        let first = image(vec![topic("a", id(1), &[1, 2])]);
        let part = first.after(&update(1, vec![topic("a", id(1), &[1, LEADER_DURING_DELETE])])).unwrap();
        assert_eq!(part.topic("a").unwrap().partitions.len(), 1);
        let gone = part.after(&update(1, vec![topic("a", id(1), &[LEADER_DURING_DELETE])])).unwrap();
        assert!(gone.topic("a").is_none() && gone.topic_by_id(id(1)).is_none());
        let nameless = topic("a", id(0), &[LEADER_DURING_DELETE]);
        let part = first.after(&update(1, vec![nameless])).unwrap();
        assert_eq!(part.topic_by_id(id(1)).unwrap().partitions.keys().collect::<Vec<_>>(), [&1]);
        let again = first.after(&update(1, vec![topic("a", id(9), &[2])])).unwrap();
        assert_eq!(again.topic("a").unwrap().partitions.len(), 1);
        assert!(again.topic_by_id(id(1)).is_none());
    }
}
