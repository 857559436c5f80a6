//! Control requests between controller and brokers: LeaderAndIsr as a domain value and on the wire, and the tagged
//! fields that carry what Kafka's messages lack (coordination.md, section 3, "Numbers").
//!
//! Kafka's own tags are small and dense, so ours start at 10,000. A peer that does not know them skips them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::leader_and_isr_request::{
    LeaderAndIsrLiveLeader, LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState,
};
use kafka_protocol::messages::{BrokerId as WireBrokerId, TopicName as WireTopicName};
use kafka_protocol::protocol::StrBytes;
use thiserror::Error;
use uuid::Uuid;

use crate::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use crate::leader_and_isr::LeaderAndIsr;

/// The versions in which controller and brokers speak to each other: the newest that the wire crate carries.
pub const LEADER_AND_ISR_VERSION: i16 = 7;
pub const STOP_REPLICA_VERSION: i16 = 4;
pub const UPDATE_METADATA_VERSION: i16 = 8;
pub const ALTER_PARTITION_VERSION: i16 = 3;
pub const CONTROLLED_SHUTDOWN_VERSION: i16 = 3;

/// `i32`, LeaderAndIsr partition: data version of the partition's `state` znode.
pub const TAG_STATE_VERSION: i32 = 10_000;
/// Ids, LeaderAndIsr partition, AlterPartition partition and its answer: the eligible leader replicas that belong to
/// the partition epoch beside it. Missing means "read it from the znode", never "empty" (N15).
pub const TAG_ELR: i32 = 10_001;
/// Uuid, StopReplica topic and OffsetForLeaderEpoch topic: the incarnation that is meant (F9, M11).
pub const TAG_TOPIC_ID: i32 = 10_002;
/// `i32`, LeaderAndIsr answer, partition: the highest leader epoch that the broker's log has seen.
pub const TAG_HIGHEST_KNOWN_EPOCH: i32 = 10_003;

/// `i64`, ListOffsets answer to replica id −2, partition: the high watermark of this very replica.
pub const TAG_HIGH_WATERMARK: i32 = 10_004;

/// `i32`, AddPartitionsToTxn answer to a broker that verifies or adds, transaction: the leader epoch in which the coordinator
/// answers.
pub const TAG_COORDINATOR_EPOCH: i32 = 10_005;

/// Empty, WriteTxnMarkers marker: it is of version 2, and ends transactions of lower epochs than its own only (KIP-890).
pub const TAG_ENDS_LOWER_EPOCHS: i32 = 10_006;

/// `type` of LeaderAndIsr (KIP-291): names only what changed.
pub const TYPE_INCREMENTAL: i8 = 1;
/// `type` of LeaderAndIsr: names every partition that concerns the broker; one per controller and registration (F8).
pub const TYPE_FULL: i8 = 2;

/// What a message keeps of tags that the wire crate does not know.
pub type TaggedFields = BTreeMap<i32, Bytes>;

/// A control message that says something impossible. The sender is of another software version, or broken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ControlError {
    #[error("tagged field {tag} holds {size} bytes, which is not a {expected}")]
    BadTag { tag: i32, size: usize, expected: &'static str },
    #[error("{partition}: the request lacks tagged field {tag}; the controller is not a Zürau controller")]
    MissingTag { partition: TopicPartition, tag: i32 },
    #[error("topic '{topic}' has no topic id in the request")]
    NoTopicId { topic: String },
}

pub fn put_i32(fields: &mut TaggedFields, tag: i32, value: i32) {
    fields.insert(tag, Bytes::copy_from_slice(&value.to_be_bytes()));
}

/// # Errors
/// [`ControlError::BadTag`] when the field is there and is no `i32`.
pub fn get_i32(fields: &TaggedFields, tag: i32) -> Result<Option<i32>, ControlError> {
    let Some(value) = fields.get(&tag) else { return Ok(None) };
    let bytes = <[u8; 4]>::try_from(&value[..]).map_err(|_| ControlError::BadTag {
        tag,
        size: value.len(),
        expected: "32-bit number",
    })?;
    Ok(Some(i32::from_be_bytes(bytes)))
}

pub fn put_i64(fields: &mut TaggedFields, tag: i32, value: i64) {
    fields.insert(tag, Bytes::copy_from_slice(&value.to_be_bytes()));
}

/// # Errors
/// [`ControlError::BadTag`] when the field is there and is no `i64`.
pub fn get_i64(fields: &TaggedFields, tag: i32) -> Result<Option<i64>, ControlError> {
    let Some(value) = fields.get(&tag) else { return Ok(None) };
    let bytes: [u8; 8] = value.as_ref().try_into().map_err(|_| ControlError::BadTag {
        tag,
        size: value.len(),
        expected: "number of 8 bytes",
    })?;
    Ok(Some(i64::from_be_bytes(bytes)))
}

/// An empty slice is stored as an empty field, which differs from a missing one.
pub fn put_ids(fields: &mut TaggedFields, tag: i32, ids: &[BrokerId]) {
    let mut value = BytesMut::with_capacity(4 * ids.len());
    for id in ids {
        value.put_i32(id.0);
    }
    fields.insert(tag, value.freeze());
}

/// # Errors
/// [`ControlError::BadTag`] when the field is there and is no sequence of ids.
pub fn get_ids(fields: &TaggedFields, tag: i32) -> Result<Option<Vec<BrokerId>>, ControlError> {
    let Some(value) = fields.get(&tag) else { return Ok(None) };
    if value.len() % 4 != 0 {
        return Err(ControlError::BadTag { tag, size: value.len(), expected: "sequence of broker ids" });
    }
    let mut value = value.clone();
    let count = value.len() / 4;
    Ok(Some((0..count).map(|_| BrokerId(value.get_i32())).collect()))
}

pub fn put_topic_id(fields: &mut TaggedFields, tag: i32, id: TopicId) {
    fields.insert(tag, Bytes::copy_from_slice(id.0.as_bytes()));
}

/// # Errors
/// [`ControlError::BadTag`] when the field is there and is no topic id.
pub fn get_topic_id(fields: &TaggedFields, tag: i32) -> Result<Option<TopicId>, ControlError> {
    let Some(value) = fields.get(&tag) else { return Ok(None) };
    let uuid = Uuid::from_slice(value).map_err(|_| ControlError::BadTag {
        tag,
        size: value.len(),
        expected: "topic id of 16 bytes",
    })?;
    Ok(Some(TopicId(uuid)))
}

/// Broker ids as the wire crate has them.
pub fn to_wire_ids(ids: &[BrokerId]) -> Vec<WireBrokerId> {
    ids.iter().map(|id| WireBrokerId(id.0)).collect()
}

pub fn from_wire_ids(ids: &[WireBrokerId]) -> Vec<BrokerId> {
    ids.iter().map(|id| BrokerId(id.0)).collect()
}

/// A topic name as the wire crate has it.
pub fn to_wire_topic(topic: &str) -> WireTopicName {
    WireTopicName(StrBytes::from_string(topic.to_owned()))
}

/// Who sends a LeaderAndIsr request, to which registration, and whether it is the whole truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderAndIsrHeader {
    pub controller_id: i32,
    pub controller_epoch: ControllerEpoch,
    /// Epoch of the receiving broker's registration; a broker of another one refuses the request (F3).
    pub broker_epoch: BrokerEpoch,
    pub full: bool,
}

/// Builds a LeaderAndIsr request of version [`LEADER_AND_ISR_VERSION`]. Partitions keep their order within a topic.
/// `live_leaders`: id, host and port of the brokers that lead one of them.
pub fn leader_and_isr_request(
    header: LeaderAndIsrHeader,
    partitions: &[LeaderAndIsr],
    live_leaders: &[(BrokerId, String, u16)],
) -> LeaderAndIsrRequest {
    let mut topics: Vec<LeaderAndIsrTopicState> = Vec::new();
    let mut index_of: BTreeMap<(&str, TopicId), usize> = BTreeMap::new();
    for partition in partitions {
        let key = (&*partition.partition.topic, partition.topic_id);
        let index = *index_of.entry(key).or_insert_with(|| {
            topics.push(
                LeaderAndIsrTopicState::default()
                    .with_topic_name(to_wire_topic(&partition.partition.topic))
                    .with_topic_id(partition.topic_id.0),
            );
            topics.len() - 1
        });
        topics[index].partition_states.push(to_partition_state(partition));
    }
    let leaders = live_leaders.iter().map(|(id, host, port)| {
        LeaderAndIsrLiveLeader::default()
            .with_broker_id(WireBrokerId(id.0))
            .with_host_name(StrBytes::from_string(host.clone()))
            .with_port(i32::from(*port))
    });
    LeaderAndIsrRequest::default()
        .with_controller_id(WireBrokerId(header.controller_id))
        .with_controller_epoch(header.controller_epoch.0)
        .with_broker_epoch(header.broker_epoch.0)
        .with_type(if header.full { TYPE_FULL } else { TYPE_INCREMENTAL })
        .with_live_leaders(leaders.collect())
        .with_topic_states(topics)
}

fn to_partition_state(partition: &LeaderAndIsr) -> LeaderAndIsrPartitionState {
    let mut fields = TaggedFields::new();
    put_i32(&mut fields, TAG_STATE_VERSION, partition.state_version);
    if let Some(elr) = &partition.elr {
        put_ids(&mut fields, TAG_ELR, elr);
    }
    LeaderAndIsrPartitionState::default()
        .with_partition_index(partition.partition.partition)
        .with_controller_epoch(partition.controller_epoch.0)
        .with_leader(WireBrokerId(partition.leader.0))
        .with_leader_epoch(partition.leader_epoch.0)
        .with_isr(to_wire_ids(&partition.isr))
        .with_partition_epoch(partition.partition_epoch.0)
        .with_replicas(to_wire_ids(&partition.replicas))
        .with_adding_replicas(to_wire_ids(&partition.adding_replicas))
        .with_removing_replicas(to_wire_ids(&partition.removing_replicas))
        .with_is_new(partition.is_new)
        .with_leader_recovery_state(i8::from(partition.recovery))
        .with_unknown_tagged_fields(fields)
}

/// Reads the header of a LeaderAndIsr request.
pub fn leader_and_isr_header(request: &LeaderAndIsrRequest) -> LeaderAndIsrHeader {
    LeaderAndIsrHeader {
        controller_id: request.controller_id.0,
        controller_epoch: ControllerEpoch(request.controller_epoch),
        broker_epoch: BrokerEpoch(request.broker_epoch),
        full: request._type == TYPE_FULL,
    }
}

/// Reads the partitions of a LeaderAndIsr request, in their order.
///
/// # Errors
/// A missing or malformed `state` version, a malformed ELR, a topic without id. Nothing of the request is usable then.
pub fn leader_and_isr_partitions(request: &LeaderAndIsrRequest) -> Result<Vec<LeaderAndIsr>, ControlError> {
    let mut partitions = Vec::new();
    for topic in &request.topic_states {
        if topic.topic_id.is_nil() {
            return Err(ControlError::NoTopicId { topic: topic.topic_name.to_string() });
        }
        let name: Arc<str> = Arc::from(topic.topic_name.as_str());
        for state in &topic.partition_states {
            let partition = TopicPartition::new(Arc::clone(&name), state.partition_index);
            partitions.push(from_partition_state(partition, TopicId(topic.topic_id), state)?);
        }
    }
    Ok(partitions)
}

fn from_partition_state(
    partition: TopicPartition,
    topic_id: TopicId,
    state: &LeaderAndIsrPartitionState,
) -> Result<LeaderAndIsr, ControlError> {
    let fields = &state.unknown_tagged_fields;
    let state_version = get_i32(fields, TAG_STATE_VERSION)?
        .ok_or_else(|| ControlError::MissingTag { partition: partition.clone(), tag: TAG_STATE_VERSION })?;
    Ok(LeaderAndIsr {
        topic_id,
        controller_epoch: ControllerEpoch(state.controller_epoch),
        leader: BrokerId(state.leader.0),
        leader_epoch: LeaderEpoch(state.leader_epoch),
        isr: from_wire_ids(&state.isr),
        partition_epoch: PartitionEpoch(state.partition_epoch),
        replicas: from_wire_ids(&state.replicas),
        adding_replicas: from_wire_ids(&state.adding_replicas),
        removing_replicas: from_wire_ids(&state.removing_replicas),
        is_new: state.is_new,
        recovery: state.leader_recovery_state != 0,
        state_version,
        elr: get_ids(fields, TAG_ELR)?,
        partition,
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{
        AlterPartitionRequest, AlterPartitionResponse, LeaderAndIsrResponse, StopReplicaRequest,
        alter_partition_request, alter_partition_response, leader_and_isr_response, stop_replica_request,
    };
    use kafka_protocol::protocol::{Decodable, Encodable};

    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn example(topic: &str, partition: i32, elr: Option<&[i32]>) -> LeaderAndIsr {
        LeaderAndIsr {
            partition: TopicPartition::new(topic, partition),
            topic_id: TopicId(Uuid::from_u128(topic.len() as u128)),
            controller_epoch: ControllerEpoch(3),
            leader: BrokerId(2),
            leader_epoch: LeaderEpoch(7),
            isr: ids(&[2, 1]),
            partition_epoch: PartitionEpoch(5),
            replicas: ids(&[1, 2, 3, 4]),
            adding_replicas: ids(&[4]),
            removing_replicas: ids(&[1]),
            is_new: partition == 0,
            recovery: partition == 1,
            state_version: 9,
            elr: elr.map(ids),
        }
    }

    fn over_the_wire<T: Encodable + Decodable>(message: &T, version: i16) -> T {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, version).unwrap();
        T::decode(&mut bytes.freeze(), version).unwrap()
    }

    #[test]
    fn leader_and_isr_survives_the_wire() {
        let header = LeaderAndIsrHeader {
            controller_id: 101,
            controller_epoch: ControllerEpoch(3),
            broker_epoch: BrokerEpoch(12),
            full: true,
        };
        let partitions = [
            example("a", 0, None),
            example("a", 1, Some(&[])),
            example("bb", 2, Some(&[3, 4])),
            example("bb", 0, None),
        ];
        let leaders = [(BrokerId(2), "host".to_owned(), 9092)];
        let request = leader_and_isr_request(header, &partitions, &leaders);
        let received = over_the_wire(&request, LEADER_AND_ISR_VERSION);
        assert_eq!(received, request);
        assert_eq!(received.topic_states.len(), 2);
        assert_eq!(leader_and_isr_header(&received), header);
        assert_eq!(leader_and_isr_partitions(&received).unwrap(), partitions);
        assert_eq!(received.live_leaders[0].host_name, *"host");
    }

    #[test]
    fn requests_of_another_controller_are_refused() {
        let header = LeaderAndIsrHeader {
            controller_id: 1,
            controller_epoch: ControllerEpoch(1),
            broker_epoch: BrokerEpoch(1),
            full: false,
        };
        let good = leader_and_isr_request(header, &[example("a", 0, None)], &[]);
        let mut untagged = good.clone();
        untagged.topic_states[0].partition_states[0].unknown_tagged_fields.clear();
        let error = leader_and_isr_partitions(&untagged).unwrap_err();
        assert_eq!(
            error,
            ControlError::MissingTag { partition: TopicPartition::new("a", 0), tag: TAG_STATE_VERSION }
        );
        let mut nameless = good.clone();
        nameless.topic_states[0].topic_id = Uuid::nil();
        assert!(matches!(leader_and_isr_partitions(&nameless), Err(ControlError::NoTopicId { .. })));
        let mut odd = good;
        odd.topic_states[0].partition_states[0]
            .unknown_tagged_fields
            .insert(TAG_ELR, Bytes::from_static(b"12345"));
        assert!(matches!(
            leader_and_isr_partitions(&odd),
            Err(ControlError::BadTag { tag: TAG_ELR, size: 5, .. })
        ));
    }

    #[test]
    fn our_tags_survive_in_every_message_that_carries_one() {
        let mut fields = TaggedFields::new();
        put_ids(&mut fields, TAG_ELR, &ids(&[1, 2]));
        put_i32(&mut fields, TAG_HIGHEST_KNOWN_EPOCH, -1);
        put_topic_id(&mut fields, TAG_TOPIC_ID, TopicId(Uuid::from_u128(77)));

        let partition =
            alter_partition_request::PartitionData::default().with_unknown_tagged_fields(fields.clone());
        let topic = alter_partition_request::TopicData::default().with_partitions(vec![partition]);
        let request = AlterPartitionRequest::default().with_topics(vec![topic]);
        let received = over_the_wire(&request, ALTER_PARTITION_VERSION);
        assert_eq!(received.topics[0].partitions[0].unknown_tagged_fields, fields);

        let partition =
            alter_partition_response::PartitionData::default().with_unknown_tagged_fields(fields.clone());
        let topic = alter_partition_response::TopicData::default().with_partitions(vec![partition]);
        let answer = AlterPartitionResponse::default().with_topics(vec![topic]);
        let received = over_the_wire(&answer, ALTER_PARTITION_VERSION);
        assert_eq!(received.topics[0].partitions[0].unknown_tagged_fields, fields);

        let topic =
            stop_replica_request::StopReplicaTopicState::default().with_unknown_tagged_fields(fields.clone());
        let request = StopReplicaRequest::default().with_topic_states(vec![topic]);
        let received = over_the_wire(&request, STOP_REPLICA_VERSION);
        assert_eq!(received.topic_states[0].unknown_tagged_fields, fields);

        let partition = leader_and_isr_response::LeaderAndIsrPartitionError::default()
            .with_unknown_tagged_fields(fields.clone());
        let topic =
            leader_and_isr_response::LeaderAndIsrTopicError::default().with_partition_errors(vec![partition]);
        let answer = LeaderAndIsrResponse::default().with_topics(vec![topic]);
        let received = over_the_wire(&answer, LEADER_AND_ISR_VERSION);
        let received = &received.topics[0].partition_errors[0].unknown_tagged_fields;
        assert_eq!(get_ids(received, TAG_ELR).unwrap(), Some(ids(&[1, 2])));
        assert_eq!(get_i32(received, TAG_HIGHEST_KNOWN_EPOCH).unwrap(), Some(-1));
        assert_eq!(get_topic_id(received, TAG_TOPIC_ID).unwrap(), Some(TopicId(Uuid::from_u128(77))));
        assert_eq!(get_i32(received, TAG_STATE_VERSION).unwrap(), None);
    }
}
