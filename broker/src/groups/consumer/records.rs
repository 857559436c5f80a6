//! The records of groups of the consumer protocol, as Kafka 4.0 writes them: keys 3 to 8 and 16, values of version 0.
//! Members of the classic protocol in such a group (tag 0 of a member) are not known here; the tag is passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use zurau_common::id::{TopicId, TopicName};

use super::member::{CurrentAssignment, MemberState, Subscription};
use super::partitions::Partitions;
use crate::coordinator::{
    Reader, RecordProblem, put_compact_length, put_compact_nullable_string, put_compact_string, put_string,
    put_unsigned_varint,
};
use crate::groups::records::{GroupId, MemberId};

/// What a group knows of a topic that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopicFacts {
    pub(crate) id: TopicId,
    pub(crate) partitions: i32,
}

/// The topics that a regular expression stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResolvedRegex {
    pub(crate) topics: BTreeSet<TopicName>,
    /// Milliseconds since the epoch.
    pub(crate) resolved_ms: i64,
}

/// One fact about a group; `None` takes it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConsumerRecord {
    /// The group's epoch. Removing it removes the group, and comes last.
    Epoch(Option<i32>),
    /// The topics that members read.
    Topics(Option<BTreeMap<TopicName, TopicFacts>>),
    Member(MemberId, Option<Box<Subscription>>),
    /// The group's epoch that the targets were made for.
    TargetEpoch(Option<i32>),
    Target(MemberId, Option<Partitions>),
    Current(MemberId, Option<CurrentAssignment>),
    Regex(Arc<str>, Option<ResolvedRegex>),
}

const EPOCH_KEY: i16 = 3;
const TOPICS_KEY: i16 = 4;
const MEMBER_KEY: i16 = 5;
const TARGET_EPOCH_KEY: i16 = 6;
const TARGET_KEY: i16 = 7;
const CURRENT_KEY: i16 = 8;
const REGEX_KEY: i16 = 16;
/// Version of every value.
const VALUE: i16 = 0;

impl ConsumerRecord {
    pub(crate) fn is_key(version: i16) -> bool {
        matches!(version, EPOCH_KEY..=CURRENT_KEY | REGEX_KEY)
    }

    /// Key and value as they are appended.
    pub(crate) fn encode(&self, group: &GroupId) -> (Bytes, Option<Bytes>) {
        let (version, part) = match self {
            Self::Epoch(_) => (EPOCH_KEY, None),
            Self::Topics(_) => (TOPICS_KEY, None),
            Self::Member(member, _) => (MEMBER_KEY, Some(member)),
            Self::TargetEpoch(_) => (TARGET_EPOCH_KEY, None),
            Self::Target(member, _) => (TARGET_KEY, Some(member)),
            Self::Current(member, _) => (CURRENT_KEY, Some(member)),
            Self::Regex(regex, _) => (REGEX_KEY, Some(regex)),
        };
        let mut key = BytesMut::new();
        key.put_i16(version);
        put_string(&mut key, group);
        if let Some(part) = part {
            put_string(&mut key, part);
        }
        let value = match self {
            Self::Epoch(epoch) | Self::TargetEpoch(epoch) => {
                epoch.map(|epoch| value(|bytes| bytes.put_i32(epoch)))
            }
            Self::Topics(topics) => topics.as_ref().map(|topics| value(|bytes| put_topics(bytes, topics))),
            Self::Member(_, member) => member.as_ref().map(|member| value(|bytes| put_member(bytes, member))),
            Self::Target(_, target) => {
                target.as_ref().map(|target| value(|bytes| put_partitions(bytes, target)))
            }
            Self::Current(_, current) => {
                current.as_ref().map(|current| value(|bytes| put_current(bytes, current)))
            }
            Self::Regex(_, regex) => regex.as_ref().map(|regex| value(|bytes| put_regex(bytes, regex))),
        };
        (key.freeze(), value)
    }

    /// Reads what follows the version of a key for which [`ConsumerRecord::is_key`] holds.
    ///
    /// # Errors
    /// Bytes that are not what their versions say.
    pub(crate) fn decode(
        version: i16,
        key: &mut Reader<'_>,
        value: Option<&[u8]>,
    ) -> Result<(GroupId, Self), RecordProblem> {
        let group = key.string()?;
        let record = match version {
            EPOCH_KEY => Self::Epoch(read(value, "value of a group's epoch", |reader| reader.i32())?),
            TOPICS_KEY => Self::Topics(read(value, "value of a group's topics", read_topics)?),
            MEMBER_KEY => {
                let member = key.string()?;
                Self::Member(member, read(value, "value of a member", read_member)?.map(Box::new))
            }
            TARGET_EPOCH_KEY => {
                Self::TargetEpoch(read(value, "value of a target's epoch", |reader| reader.i32())?)
            }
            TARGET_KEY => {
                let member = key.string()?;
                Self::Target(member, read(value, "value of a target", read_partitions)?)
            }
            CURRENT_KEY => {
                let member = key.string()?;
                Self::Current(member, read(value, "value of an assignment", read_current)?)
            }
            _ => {
                let regex = key.string()?;
                Self::Regex(regex, read(value, "value of a regular expression", read_regex)?)
            }
        };
        Ok((group, record))
    }
}

fn value(fields: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(VALUE);
    fields(&mut bytes);
    no_tags(&mut bytes);
    bytes.freeze()
}

fn no_tags(bytes: &mut BytesMut) {
    put_unsigned_varint(bytes, 0);
}

fn put_topics(bytes: &mut BytesMut, topics: &BTreeMap<TopicName, TopicFacts>) {
    put_compact_length(bytes, topics.len());
    for (name, facts) in topics {
        bytes.put_slice(facts.id.0.as_bytes());
        put_compact_string(bytes, name);
        bytes.put_i32(facts.partitions);
        // Racks, which no assignor uses (Kafka 4.0 writes none either).
        put_compact_length(bytes, 0);
        no_tags(bytes);
    }
}

fn put_strings(bytes: &mut BytesMut, strings: &BTreeSet<Arc<str>>) {
    put_compact_length(bytes, strings.len());
    for string in strings {
        put_compact_string(bytes, string);
    }
}

fn put_member(bytes: &mut BytesMut, member: &Subscription) {
    put_compact_nullable_string(bytes, member.instance_id.as_deref());
    put_compact_nullable_string(bytes, member.rack_id.as_deref());
    put_compact_string(bytes, &member.client_id);
    put_compact_string(bytes, &member.client_host);
    put_strings(bytes, &member.topics);
    put_compact_nullable_string(bytes, member.regex.as_deref());
    bytes.put_i32(member.rebalance_timeout_ms);
    put_compact_nullable_string(bytes, member.assignor.as_deref());
}

fn put_partitions(bytes: &mut BytesMut, partitions: &Partitions) {
    let topics = partitions.topics();
    put_compact_length(bytes, topics.len());
    for (topic, numbers) in topics {
        bytes.put_slice(topic.0.as_bytes());
        put_compact_length(bytes, numbers.len());
        for number in numbers {
            bytes.put_i32(*number);
        }
        no_tags(bytes);
    }
}

fn put_current(bytes: &mut BytesMut, current: &CurrentAssignment) {
    bytes.put_i32(current.epoch);
    bytes.put_i32(current.previous_epoch);
    bytes.put_i8(current.state.code());
    put_partitions(bytes, &current.assigned);
    put_partitions(bytes, &current.pending_revocation);
}

/// The version is that of the metadata in Kafka's own log, which a broker compares with its own: 0 is always older.
fn put_regex(bytes: &mut BytesMut, regex: &ResolvedRegex) {
    put_strings(bytes, &regex.topics);
    bytes.put_i64(0);
    bytes.put_i64(regex.resolved_ms);
}

fn read<T>(
    value: Option<&[u8]>,
    what: &'static str,
    fields: impl FnOnce(&mut Reader<'_>) -> Result<T, RecordProblem>,
) -> Result<Option<T>, RecordProblem> {
    let Some(value) = value else { return Ok(None) };
    let mut reader = Reader::new(value, what);
    let version = reader.i16()?;
    if version != VALUE {
        return Err(RecordProblem::ValueVersion(version));
    }
    let read = fields(&mut reader)?;
    reader.skip_tagged_fields()?;
    Ok(Some(read))
}

fn read_topics(reader: &mut Reader<'_>) -> Result<BTreeMap<TopicName, TopicFacts>, RecordProblem> {
    let mut topics = BTreeMap::new();
    for _ in 0..reader.compact_count()? {
        let id = TopicId(reader.uuid()?);
        let name = reader.compact_string()?;
        let partitions = reader.i32()?;
        for _ in 0..reader.compact_count()? {
            reader.i32()?;
            read_strings(reader)?;
            reader.skip_tagged_fields()?;
        }
        reader.skip_tagged_fields()?;
        topics.insert(name, TopicFacts { id, partitions });
    }
    Ok(topics)
}

fn read_strings(reader: &mut Reader<'_>) -> Result<BTreeSet<Arc<str>>, RecordProblem> {
    let count = reader.compact_count()?;
    (0..count).map(|_| reader.compact_string()).collect()
}

fn read_member(reader: &mut Reader<'_>) -> Result<Subscription, RecordProblem> {
    Ok(Subscription {
        instance_id: reader.compact_nullable_string()?,
        rack_id: reader.compact_nullable_string()?,
        client_id: reader.compact_string()?,
        client_host: reader.compact_string()?,
        topics: read_strings(reader)?,
        regex: reader.compact_nullable_string()?.filter(|regex| !regex.is_empty()),
        rebalance_timeout_ms: reader.i32()?,
        assignor: reader.compact_nullable_string()?,
    })
}

fn read_partitions(reader: &mut Reader<'_>) -> Result<Partitions, RecordProblem> {
    let mut partitions = Partitions::default();
    for _ in 0..reader.compact_count()? {
        let topic = TopicId(reader.uuid()?);
        for _ in 0..reader.compact_count()? {
            partitions.insert(topic, reader.i32()?);
        }
        reader.skip_tagged_fields()?;
    }
    Ok(partitions)
}

fn read_current(reader: &mut Reader<'_>) -> Result<CurrentAssignment, RecordProblem> {
    Ok(CurrentAssignment {
        epoch: reader.i32()?,
        previous_epoch: reader.i32()?,
        state: MemberState::from_code(reader.i8()?),
        assigned: read_partitions(reader)?,
        pending_revocation: read_partitions(reader)?,
    })
}

fn read_regex(reader: &mut Reader<'_>) -> Result<ResolvedRegex, RecordProblem> {
    let topics = read_strings(reader)?;
    reader.i64()?;
    Ok(ResolvedRegex { topics, resolved_ms: reader.i64()? })
}
