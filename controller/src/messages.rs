//! Control requests on the wire: UpdateMetadata and StopReplica from what the machine says, and what answers mean.

use std::collections::BTreeMap;

use kafka_protocol::messages::leader_and_isr_response::LeaderAndIsrResponse;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::stop_replica_request::{StopReplicaPartitionState, StopReplicaTopicState};
use kafka_protocol::messages::update_metadata_request::{
    UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataPartitionState, UpdateMetadataTopicState,
};
use kafka_protocol::messages::{
    BrokerId as WireBrokerId, OffsetForLeaderEpochRequest, StopReplicaRequest, UpdateMetadataRequest,
};
use kafka_protocol::protocol::StrBytes;
use zurau_common::id::{BrokerEpoch, ControllerEpoch, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{
    TAG_HIGHEST_KNOWN_EPOCH, TAG_TOPIC_ID, TYPE_FULL, TYPE_INCREMENTAL, TaggedFields, get_i32, put_topic_id,
    to_wire_ids, to_wire_topic,
};

use crate::action::{LiveBroker, PartitionMetadata, StopReplica};
use crate::event::LeaderAndIsrAnswer;

/// In UpdateMetadata: nobody leads the partition.
pub(crate) const NO_LEADER: i32 = -1;
/// In UpdateMetadata: the partition is no more (as in Kafka during deletion).
pub(crate) const DELETED: i32 = -2;

/// `replica_id` of the controller's question for a replica's log end (unclean election). The answer is the replica's
/// last epoch and log end, whether it leads or not.
pub const LOG_END_QUERY: i32 = -3;

/// Who sends a request, to which registration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) controller_id: i32,
    pub(crate) controller_epoch: ControllerEpoch,
    pub(crate) broker_epoch: BrokerEpoch,
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// UpdateMetadata with these partitions; `None`: the partition is no more.
pub(crate) fn update_metadata<'a>(
    sender: Sender,
    full: bool,
    live: &[LiveBroker],
    partitions: impl Iterator<Item = (&'a TopicPartition, Option<&'a PartitionMetadata>)>,
) -> UpdateMetadataRequest {
    let mut topics: BTreeMap<(&str, uuid::Uuid), Vec<UpdateMetadataPartitionState>> = BTreeMap::new();
    for (tp, metadata) in partitions {
        // A partition that is no more has no id left to tell.
        let topic_id = metadata.map_or(uuid::Uuid::nil(), |metadata| metadata.topic_id.0);
        topics.entry((&tp.topic, topic_id)).or_default().push(partition_state(sender, tp, metadata));
    }
    let topics = topics.into_iter().map(|((topic, topic_id), partitions)| {
        UpdateMetadataTopicState::default()
            .with_topic_name(to_wire_topic(topic))
            .with_topic_id(topic_id)
            .with_partition_states(partitions)
    });
    UpdateMetadataRequest::default()
        .with_controller_id(WireBrokerId(sender.controller_id))
        .with_controller_epoch(sender.controller_epoch.0)
        .with_broker_epoch(sender.broker_epoch.0)
        .with_type(if full { TYPE_FULL } else { TYPE_INCREMENTAL })
        .with_topic_states(topics.collect())
        .with_live_brokers(live.iter().map(live_broker).collect())
}

fn partition_state(
    sender: Sender,
    tp: &TopicPartition,
    metadata: Option<&PartitionMetadata>,
) -> UpdateMetadataPartitionState {
    let state = UpdateMetadataPartitionState::default().with_partition_index(tp.partition);
    match metadata {
        None => state.with_controller_epoch(sender.controller_epoch.0).with_leader(WireBrokerId(DELETED)),
        Some(metadata) => state
            .with_controller_epoch(metadata.controller_epoch.0)
            .with_leader(WireBrokerId(metadata.leader.map_or(NO_LEADER, |leader| leader.0)))
            .with_leader_epoch(metadata.leader_epoch.0)
            .with_isr(to_wire_ids(&metadata.isr))
            .with_zk_version(metadata.partition_epoch.0)
            .with_replicas(to_wire_ids(&metadata.replicas))
            .with_offline_replicas(to_wire_ids(&metadata.offline)),
    }
}

fn live_broker(live: &LiveBroker) -> UpdateMetadataBroker {
    let endpoint = |name: &str, host: &str, port: u16, protocol: i16| {
        UpdateMetadataEndpoint::default()
            .with_listener(text(name))
            .with_host(text(host))
            .with_port(i32::from(port))
            .with_security_protocol(protocol)
    };
    let endpoints = match &live.endpoints {
        Some(known) if !known.listeners.is_empty() => {
            let listeners = known.listeners.iter();
            listeners.map(|e| endpoint(&e.name, &e.host, e.port, protocol_code(&e.protocol))).collect()
        }
        _ => vec![endpoint("PLAINTEXT", &live.address.host, live.address.port, 0)],
    };
    let rack = live.endpoints.as_ref().and_then(|known| known.rack.as_deref());
    UpdateMetadataBroker::default()
        .with_id(WireBrokerId(live.broker.0))
        .with_endpoints(endpoints)
        .with_rack(rack.map(text))
}

fn protocol_code(protocol: &str) -> i16 {
    match protocol {
        "SSL" => 1,
        "SASL_PLAINTEXT" => 2,
        "SASL_SSL" => 3,
        _ => 0,
    }
}

/// StopReplica that deletes. Copies of two incarnations of one name are two topics of the request.
pub(crate) fn stop_replica(sender: Sender, stops: &[StopReplica]) -> StopReplicaRequest {
    let mut topics: BTreeMap<(&str, TopicId), Vec<StopReplicaPartitionState>> = BTreeMap::new();
    for stop in stops {
        let state = StopReplicaPartitionState::default()
            .with_partition_index(stop.partition.partition)
            .with_leader_epoch(stop.leader_epoch.0)
            .with_delete_partition(true);
        topics.entry((&stop.partition.topic, stop.topic_id)).or_default().push(state);
    }
    let topics = topics.into_iter().map(|((topic, topic_id), partitions)| {
        let mut fields = TaggedFields::new();
        put_topic_id(&mut fields, TAG_TOPIC_ID, topic_id);
        StopReplicaTopicState::default()
            .with_topic_name(to_wire_topic(topic))
            .with_partition_states(partitions)
            .with_unknown_tagged_fields(fields)
    });
    StopReplicaRequest::default()
        .with_controller_id(WireBrokerId(sender.controller_id))
        .with_controller_epoch(sender.controller_epoch.0)
        .with_broker_epoch(sender.broker_epoch.0)
        .with_topic_states(topics.collect())
}

/// Asks for the last epoch and the log end of partitions.
pub(crate) fn log_end_query(partitions: &[TopicPartition]) -> OffsetForLeaderEpochRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetForLeaderPartition>> = BTreeMap::new();
    for tp in partitions {
        let question = OffsetForLeaderPartition::default()
            .with_partition(tp.partition)
            .with_current_leader_epoch(LeaderEpoch::UNKNOWN.0)
            .with_leader_epoch(i32::MAX);
        topics.entry(&tp.topic).or_default().push(question);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        OffsetForLeaderTopic::default().with_topic(to_wire_topic(topic)).with_partitions(partitions)
    });
    OffsetForLeaderEpochRequest::default()
        .with_replica_id(WireBrokerId(LOG_END_QUERY))
        .with_topics(topics.collect())
}

/// What the answer says about each partition that was sent; one that it does not name was not carried out.
pub(crate) fn leader_and_isr_answers(
    sent: &[LeaderAndIsr],
    response: &LeaderAndIsrResponse,
) -> Vec<LeaderAndIsrAnswer> {
    let mut errors = BTreeMap::new();
    for topic in &response.topics {
        for partition in &topic.partition_errors {
            errors.insert((topic.topic_id, partition.partition_index), partition);
        }
    }
    let answers = sent.iter().map(|record| {
        let found = errors.get(&(record.topic_id.0, record.partition.partition));
        let outcome = match (Rejection::from_code(response.error_code), found) {
            (Some(rejection), _) => Err(rejection),
            (None, Some(partition)) => Rejection::from_code(partition.error_code).map_or(Ok(()), Err),
            (None, None) => Err(Rejection::UnknownServerError),
        };
        let highest = found.and_then(|partition| {
            get_i32(&partition.unknown_tagged_fields, TAG_HIGHEST_KNOWN_EPOCH).ok().flatten()
        });
        LeaderAndIsrAnswer {
            partition: record.partition.clone(),
            leader_epoch: record.leader_epoch,
            outcome,
            highest_known_epoch: highest.map(LeaderEpoch),
        }
    });
    answers.collect()
}
