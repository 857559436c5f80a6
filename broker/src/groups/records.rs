//! The records of `__consumer_offsets`, byte for byte as Kafka writes them, so that tools that read the topic, and a
//! Kafka broker that takes the directory over, find what they expect.
//!
//! A key is a version and the fields it stands for: 0 and 1 an offset, 2 a group, 3 to 8 and 16 parts of a group of the
//! consumer protocol (`consumer::records`); a value has a version of its own. A null value removes what the key names.
//! Keys of other versions belong to nobody here and are skipped. Written are the versions that Kafka 3.9 writes: offset key 1 and value 3 (1 when the client set an expiry),
//! group key 2 and value 3. Every length is checked against the bytes that are there.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use zurau_common::id::TopicName;

use super::consumer::ConsumerRecord;
pub(crate) use crate::coordinator::RecordProblem;
use crate::coordinator::{Reader, put_string};

/// A group's id.
pub(crate) type GroupId = Arc<str>;
/// The id that the coordinator gave to a member.
pub(crate) type MemberId = Arc<str>;

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedOffset {
    pub(crate) offset: i64,
    /// Of the record before `offset`; −1 when the client did not say.
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: Arc<str>,
    /// Milliseconds since the epoch.
    pub(crate) commit_time_ms: i64,
    /// Set by clients of OffsetCommit v2 to v4 only: the offset expires then, whatever the group does.
    pub(crate) expire_time_ms: Option<i64>,
}

/// A member as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredMember {
    pub(crate) member_id: MemberId,
    /// `group.instance.id` of a static member.
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) session_timeout_ms: i32,
    pub(crate) subscription: Bytes,
    pub(crate) assignment: Bytes,
}

/// A group as it is stored: after each finished rebalance, and when its last member has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredGroup {
    pub(crate) protocol_type: Arc<str>,
    pub(crate) generation: i32,
    pub(crate) protocol: Option<Arc<str>>,
    pub(crate) leader: Option<MemberId>,
    /// Since when the group is in its state, milliseconds since the epoch; unknown in records of old brokers.
    pub(crate) state_since_ms: Option<i64>,
    pub(crate) members: Vec<StoredMember>,
}

/// One record; `None` as a value removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GroupRecord {
    Offset { group: GroupId, topic: TopicName, partition: i32, value: Option<CommittedOffset> },
    Group { group: GroupId, value: Option<StoredGroup> },
    Consumer { group: GroupId, record: ConsumerRecord },
}

const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;
const OFFSET_VALUE: i16 = 3;
const OFFSET_VALUE_WITH_EXPIRY: i16 = 1;
const GROUP_VALUE: i16 = 3;

impl GroupRecord {
    /// The group that the record belongs to.
    pub(crate) fn group(&self) -> &GroupId {
        match self {
            Self::Offset { group, .. } | Self::Group { group, .. } | Self::Consumer { group, .. } => group,
        }
    }

    /// Key and value as they are appended.
    pub(crate) fn encode(&self) -> (Bytes, Option<Bytes>) {
        let mut key = BytesMut::new();
        match self {
            Self::Offset { group, topic, partition, value } => {
                key.put_i16(OFFSET_KEY);
                put_string(&mut key, group);
                put_string(&mut key, topic);
                key.put_i32(*partition);
                (key.freeze(), value.as_ref().map(encode_offset))
            }
            Self::Group { group, value } => {
                key.put_i16(GROUP_KEY);
                put_string(&mut key, group);
                (key.freeze(), value.as_ref().map(encode_group))
            }
            Self::Consumer { group, record } => record.encode(group),
        }
    }

    /// Reads a record; `None` for a key of a kind that is not handled here.
    ///
    /// # Errors
    /// Bytes that are not what their versions say.
    pub(crate) fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Option<Self>, RecordProblem> {
        let mut reader = Reader::new(key.ok_or(RecordProblem::NoKey)?, "key");
        let version = reader.i16()?;
        match version {
            0 | OFFSET_KEY => {
                let group = reader.string()?;
                let topic = reader.string()?;
                let partition = reader.i32()?;
                let value = value.map(decode_offset).transpose()?;
                Ok(Some(Self::Offset { group, topic, partition, value }))
            }
            GROUP_KEY => {
                let group = reader.string()?;
                let value = value.map(decode_group).transpose()?;
                Ok(Some(Self::Group { group, value }))
            }
            _ if ConsumerRecord::is_key(version) => {
                let (group, record) = ConsumerRecord::decode(version, &mut reader, value)?;
                Ok(Some(Self::Consumer { group, record }))
            }
            _ => Ok(None),
        }
    }
}

fn encode_offset(value: &CommittedOffset) -> Bytes {
    let mut bytes = BytesMut::new();
    if let Some(expire_time_ms) = value.expire_time_ms {
        bytes.put_i16(OFFSET_VALUE_WITH_EXPIRY);
        bytes.put_i64(value.offset);
        put_string(&mut bytes, &value.metadata);
        bytes.put_i64(value.commit_time_ms);
        bytes.put_i64(expire_time_ms);
    } else {
        bytes.put_i16(OFFSET_VALUE);
        bytes.put_i64(value.offset);
        bytes.put_i32(value.leader_epoch);
        put_string(&mut bytes, &value.metadata);
        bytes.put_i64(value.commit_time_ms);
    }
    bytes.freeze()
}

fn decode_offset(bytes: &[u8]) -> Result<CommittedOffset, RecordProblem> {
    let mut reader = Reader::new(bytes, "value of an offset");
    let version = reader.i16()?;
    if !(0..=OFFSET_VALUE).contains(&version) {
        return Err(RecordProblem::ValueVersion(version));
    }
    let offset = reader.i64()?;
    let leader_epoch = if version == OFFSET_VALUE { reader.i32()? } else { -1 };
    let metadata = reader.string()?;
    let commit_time_ms = reader.i64()?;
    // The default of the expiry field, -1, means that the client set none (GRP-01).
    let expire_time_ms = if version == OFFSET_VALUE_WITH_EXPIRY {
        Some(reader.i64()?).filter(|time| 0 <= *time)
    } else {
        None
    };
    Ok(CommittedOffset { offset, leader_epoch, metadata, commit_time_ms, expire_time_ms })
}

fn encode_group(value: &StoredGroup) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(GROUP_VALUE);
    put_string(&mut bytes, &value.protocol_type);
    bytes.put_i32(value.generation);
    put_nullable_string(&mut bytes, value.protocol.as_deref());
    put_nullable_string(&mut bytes, value.leader.as_deref());
    bytes.put_i64(value.state_since_ms.unwrap_or(-1));
    bytes.put_i32(value.members.len() as i32);
    for member in &value.members {
        put_string(&mut bytes, &member.member_id);
        put_nullable_string(&mut bytes, member.instance_id.as_deref());
        put_string(&mut bytes, &member.client_id);
        put_string(&mut bytes, &member.client_host);
        bytes.put_i32(member.rebalance_timeout_ms);
        bytes.put_i32(member.session_timeout_ms);
        put_bytes(&mut bytes, &member.subscription);
        put_bytes(&mut bytes, &member.assignment);
    }
    bytes.freeze()
}

fn decode_group(bytes: &[u8]) -> Result<StoredGroup, RecordProblem> {
    let mut reader = Reader::new(bytes, "value of a group");
    let version = reader.i16()?;
    if !(0..=GROUP_VALUE).contains(&version) {
        return Err(RecordProblem::ValueVersion(version));
    }
    let protocol_type = reader.string()?;
    let generation = reader.i32()?;
    let protocol = reader.nullable_string()?;
    let leader = reader.nullable_string()?;
    let state_since_ms = if 2 <= version { Some(reader.i64()?).filter(|time| 0 <= *time) } else { None };
    let count = reader.i32()?;
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(decode_member(&mut reader, version)?);
    }
    Ok(StoredGroup { protocol_type, generation, protocol, leader, state_since_ms, members })
}

fn decode_member(reader: &mut Reader<'_>, version: i16) -> Result<StoredMember, RecordProblem> {
    let member_id = reader.string()?;
    let instance_id = if version == GROUP_VALUE { reader.nullable_string()? } else { None };
    let client_id = reader.string()?;
    let client_host = reader.string()?;
    let stored_rebalance_timeout_ms = if 1 <= version { Some(reader.i32()?) } else { None };
    let session_timeout_ms = reader.i32()?;
    Ok(StoredMember {
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms: stored_rebalance_timeout_ms.unwrap_or(session_timeout_ms),
        session_timeout_ms,
        subscription: reader.byte_string()?,
        assignment: reader.byte_string()?,
    })
}

fn put_nullable_string(bytes: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_string(bytes, text),
        None => bytes.put_i16(-1),
    }
}

fn put_bytes(bytes: &mut BytesMut, value: &[u8]) {
    bytes.put_i32(i32::try_from(value.len()).expect("a request frame is smaller than 2 GiB"));
    bytes.put_slice(value);
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
