//! The records of `__transaction_state`, byte for byte as Kafka writes them, so that its tools, and a Kafka broker that
//! takes the directory over, find what they expect.
//!
//! A key is version 0 and the transactional id; a null value removes the id. Values are written in version 0 as long as
//! that can say everything, else in version 1 (compact, with tagged fields); Kafka 3.9 reads both. One tagged field is
//! ours: the epoch that the producer had before (Kafka forgets it with the coordinator). Keys of other versions belong to
//! nobody here and are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use zurau_common::id::{TopicName, TopicPartition};

use crate::coordinator::{
    Producer, Reader, RecordProblem, put_compact_length, put_compact_string, put_string, put_unsigned_varint,
};

pub(crate) type TransactionalId = Arc<str>;

/// Where a transaction is. Kafka's `Dead` and `PrepareEpochFence` are never stored; here they are writes under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TransactionState {
    /// The id has a producer, and no transaction since it got it.
    Empty = 0,
    Ongoing = 1,
    /// The outcome is decided; the partitions do not all have their marker.
    PrepareCommit = 2,
    PrepareAbort = 3,
    CompleteCommit = 4,
    CompleteAbort = 5,
}

impl TransactionState {
    pub(crate) const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];

    /// As DescribeTransactions and ListTransactions spell it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
        }
    }

    /// Whether a filter may name this state: those above and the two that are never shown.
    pub(crate) fn is_name(name: &str) -> bool {
        matches!(name, "Dead" | "PrepareEpochFence") || Self::ALL.iter().any(|state| state.name() == name)
    }

    /// No transaction is open, so a producer may begin one.
    pub(crate) fn is_idle(self) -> bool {
        matches!(self, Self::Empty | Self::CompleteCommit | Self::CompleteAbort)
    }

    /// The last transaction is prepared or complete.
    pub(crate) fn is_decided(self) -> bool {
        !matches!(self, Self::Empty | Self::Ongoing)
    }

    fn of_code(code: i8) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// A transactional id as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) producer: Producer,
    /// What the producer was before its last InitProducerId named it (KIP-360), or before its last EndTxn of version 2,
    /// to recognise a retry of that; −1 if somebody else took its place.
    pub(crate) previous: Producer,
    /// The producer id from the end of this transaction on, because no epoch is left (TXN-05). Only while prepared.
    pub(crate) next_id: Option<i64>,
    /// Whether the transaction is of version 2: its end, whoever decides it, gives the producer another epoch (KIP-890).
    pub(crate) is_version_2: bool,
    pub(crate) timeout_ms: i32,
    pub(crate) state: TransactionState,
    /// Empty unless ongoing or prepared.
    pub(crate) partitions: BTreeSet<TopicPartition>,
    /// Milliseconds since the epoch of the last change, and of the first partition; −1 before that.
    pub(crate) updated_ms: i64,
    pub(crate) started_ms: i64,
}

impl Transaction {
    /// Who the client is: with a decision it becomes the producer of its next transaction.
    pub(crate) fn holder(&self) -> Producer {
        self.next_id.map_or(self.producer, |id| Producer { id, epoch: 0 })
    }
}

/// One record; `None` as a value removes the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionRecord {
    pub(crate) id: TransactionalId,
    pub(crate) value: Option<Transaction>,
}

const KEY: i16 = 0;
const VALUE: i16 = 0;
const COMPACT_VALUE: i16 = 1;
/// Tagged fields of [`COMPACT_VALUE`]: Kafka's.
const PREVIOUS_ID: u32 = 0;
const NEXT_ID: u32 = 1;
const CLIENT_VERSION: u32 = 2;
/// Ours: `i16`, the epoch of the previous producer.
const PREVIOUS_EPOCH: u32 = 10_000;
/// The client version from which on each transaction has its own epoch.
const VERSION_2: i16 = 2;
pub(crate) const NO_PRODUCER: Producer = Producer { id: -1, epoch: -1 };

impl TransactionRecord {
    /// Key and value as they are appended.
    pub(crate) fn encode(&self) -> (Bytes, Option<Bytes>) {
        let mut key = BytesMut::new();
        key.put_i16(KEY);
        put_string(&mut key, &self.id);
        (key.freeze(), self.value.as_ref().map(encode_value))
    }

    /// Reads a record; `None` for a key of a kind that is not handled here.
    ///
    /// # Errors
    /// Bytes that are not what their versions say.
    pub(crate) fn decode(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Option<Self>, RecordProblem> {
        let mut reader = Reader::new(key.ok_or(RecordProblem::NoKey)?, "key");
        if reader.i16()? != KEY {
            return Ok(None);
        }
        let id = reader.string()?;
        let value = value.map(decode_value).transpose()?;
        Ok(Some(Self { id, value }))
    }
}

fn encode_value(value: &Transaction) -> Bytes {
    let is_compact = value.is_version_2 || value.next_id.is_some() || 0 <= value.previous.epoch;
    let mut bytes = BytesMut::new();
    bytes.put_i16(if is_compact { COMPACT_VALUE } else { VALUE });
    bytes.put_i64(value.producer.id);
    bytes.put_i16(value.producer.epoch);
    bytes.put_i32(value.timeout_ms);
    bytes.put_i8(value.state as i8);
    if value.state == TransactionState::Empty {
        put_count(&mut bytes, None, is_compact);
    } else {
        let mut topics: BTreeMap<&TopicName, Vec<i32>> = BTreeMap::new();
        for partition in &value.partitions {
            topics.entry(&partition.topic).or_default().push(partition.partition);
        }
        put_count(&mut bytes, Some(topics.len()), is_compact);
        for (topic, partitions) in topics {
            if is_compact {
                put_compact_string(&mut bytes, topic);
            } else {
                put_string(&mut bytes, topic);
            }
            put_count(&mut bytes, Some(partitions.len()), is_compact);
            for partition in partitions {
                bytes.put_i32(partition);
            }
            if is_compact {
                put_unsigned_varint(&mut bytes, 0);
            }
        }
    }
    bytes.put_i64(value.updated_ms);
    bytes.put_i64(value.started_ms);
    if is_compact {
        put_tagged_fields(&mut bytes, value);
    }
    bytes.freeze()
}

/// Elements of an array; `None` for null.
fn put_count(bytes: &mut BytesMut, count: Option<usize>, is_compact: bool) {
    match (count, is_compact) {
        (Some(count), true) => put_compact_length(bytes, count),
        (None, true) => put_unsigned_varint(bytes, 0),
        (count, false) => bytes.put_i32(count.map_or(-1, |count| count as i32)),
    }
}

/// As everywhere, what has its default is left out.
fn put_tagged_fields(bytes: &mut BytesMut, value: &Transaction) {
    let has_previous = 0 <= value.previous.epoch;
    let version = value.is_version_2.then(|| VERSION_2.to_be_bytes().to_vec());
    let fields = [
        (PREVIOUS_ID, has_previous.then(|| value.previous.id.to_be_bytes().to_vec())),
        (NEXT_ID, value.next_id.map(|id| id.to_be_bytes().to_vec())),
        (CLIENT_VERSION, version),
        (PREVIOUS_EPOCH, has_previous.then(|| value.previous.epoch.to_be_bytes().to_vec())),
    ];
    let present: Vec<(u32, Vec<u8>)> =
        fields.into_iter().filter_map(|(tag, value)| value.map(|value| (tag, value))).collect();
    put_unsigned_varint(bytes, present.len() as u32);
    for (tag, value) in present {
        put_unsigned_varint(bytes, tag);
        put_unsigned_varint(bytes, value.len() as u32);
        bytes.put_slice(&value);
    }
}

fn decode_value(bytes: &[u8]) -> Result<Transaction, RecordProblem> {
    let mut reader = Reader::new(bytes, "value of a transactional id");
    let version = reader.i16()?;
    let is_compact = match version {
        VALUE => false,
        COMPACT_VALUE => true,
        other => return Err(RecordProblem::ValueVersion(other)),
    };
    let producer = Producer { id: reader.i64()?, epoch: reader.i16()? };
    let timeout_ms = reader.i32()?;
    let state = TransactionState::of_code(reader.i8()?);
    let state = state.ok_or(RecordProblem::Malformed("state of a transactional id"))?;
    let mut partitions = BTreeSet::new();
    for _ in 0..count(&mut reader, is_compact)? {
        let topic = if is_compact {
            let length = reader.unsigned_varint()?.saturating_sub(1);
            reader.text(length as usize)?
        } else {
            reader.string()?
        };
        for _ in 0..count(&mut reader, is_compact)? {
            partitions.insert(TopicPartition { topic: Arc::clone(&topic), partition: reader.i32()? });
        }
        if is_compact {
            tagged_fields(&mut reader)?;
        }
    }
    let updated_ms = reader.i64()?;
    let started_ms = reader.i64()?;
    let tagged = if is_compact { tagged_fields(&mut reader)? } else { Tagged::default() };
    let is_version_2 = tagged.client_version.is_some_and(|version| VERSION_2 <= version);
    let previous = match (tagged.previous_id, tagged.previous_epoch) {
        (Some(id), Some(epoch)) => Producer { id, epoch },
        (Some(id), None) if is_version_2 && state.is_decided() => replaced_in_kafka(id, producer),
        _ => NO_PRODUCER,
    };
    let next_id = tagged.next_id.filter(|id| 0 <= *id);
    Ok(Transaction {
        producer,
        previous,
        next_id,
        is_version_2,
        timeout_ms,
        state,
        partitions,
        updated_ms,
        started_ms,
    })
}

/// Whom an EndTxn has made the producer, by a record of Kafka, which does not tell the epoch.
fn replaced_in_kafka(id: i64, producer: Producer) -> Producer {
    match producer.epoch {
        // No epoch was left but the last, which is nobody's.
        0 if id != producer.id => Producer { id, epoch: i16::MAX - 1 },
        epoch if 0 < epoch && id == producer.id => Producer { id, epoch: epoch - 1 },
        _ => NO_PRODUCER,
    }
}

/// Elements of an array; 0 if it is null.
fn count(reader: &mut Reader<'_>, is_compact: bool) -> Result<u32, RecordProblem> {
    if is_compact {
        return Ok(reader.unsigned_varint()?.saturating_sub(1));
    }
    Ok(u32::try_from(reader.i32()?).unwrap_or(0))
}

/// What the tagged fields say.
#[derive(Default)]
struct Tagged {
    previous_id: Option<i64>,
    next_id: Option<i64>,
    client_version: Option<i16>,
    previous_epoch: Option<i16>,
}

/// Fields that are not known here were added by a later version, and are skipped.
fn tagged_fields(reader: &mut Reader<'_>) -> Result<Tagged, RecordProblem> {
    let mut tagged = Tagged::default();
    for _ in 0..reader.unsigned_varint()? {
        let tag = reader.unsigned_varint()?;
        let length = reader.unsigned_varint()? as usize;
        match (tag, length) {
            (PREVIOUS_ID, 8) => tagged.previous_id = Some(reader.i64()?),
            (NEXT_ID, 8) => tagged.next_id = Some(reader.i64()?),
            (CLIENT_VERSION, 2) => tagged.client_version = Some(reader.i16()?),
            (PREVIOUS_EPOCH, 2) => tagged.previous_epoch = Some(reader.i16()?),
            (PREVIOUS_ID | NEXT_ID | CLIENT_VERSION | PREVIOUS_EPOCH, _) => {
                return Err(RecordProblem::Malformed("tagged field of a transactional id"));
            }
            _ => reader.skip(length)?,
        }
    }
    Ok(tagged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ongoing() -> Transaction {
        let partitions = [("a", 0), ("a", 2), ("b", 1)];
        Transaction {
            producer: Producer { id: 7, epoch: 3 },
            previous: NO_PRODUCER,
            next_id: None,
            is_version_2: false,
            timeout_ms: 60_000,
            state: TransactionState::Ongoing,
            partitions: partitions.map(|(topic, number)| TopicPartition::new(topic, number)).into(),
            updated_ms: 0x0102,
            started_ms: 0x0101,
        }
    }

    fn decoded(record: &TransactionRecord) -> TransactionRecord {
        let (key, value) = record.encode();
        TransactionRecord::decode(Some(&key), value.as_deref()).unwrap().unwrap()
    }

    #[test]
    fn records_are_what_kafka_writes() {
        let record = TransactionRecord { id: "tx".into(), value: Some(ongoing()) };
        let (key, value) = record.encode();
        assert_eq!(key[..], [0, 0, 0, 2, b't', b'x']);
        #[rustfmt::skip]
        let golden: Vec<u8> = [
            &[0u8, 0][..],
            &[0, 0, 0, 0, 0, 0, 0, 7], &[0, 3], &[0, 0, 0xea, 0x60], &[1],
            &[0, 0, 0, 2],
            &[0, 1, b'a'], &[0, 0, 0, 2], &[0, 0, 0, 0], &[0, 0, 0, 2],
            &[0, 1, b'b'], &[0, 0, 0, 1], &[0, 0, 0, 1],
            &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 0, 0, 0, 0, 1, 1],
        ]
        .concat();
        assert_eq!(value.unwrap()[..], golden);
        assert_eq!(decoded(&record), record);

        // Without a transaction the list is null, not empty.
        let state = TransactionState::Empty;
        let empty = Transaction { state, partitions: BTreeSet::new(), started_ms: -1, ..ongoing() };
        let record = TransactionRecord { id: "tx".into(), value: Some(empty) };
        let (_, value) = record.encode();
        assert_eq!(value.unwrap()[17..21], [0xff; 4]);
        assert_eq!(decoded(&record), record);
        let removed = TransactionRecord { id: "tx".into(), value: None };
        assert_eq!(decoded(&removed), removed);
    }

    #[test]
    fn the_compact_version_is_read() {
        #[rustfmt::skip]
        let bytes: Vec<u8> = [
            &[0u8, 1][..],
            &[0, 0, 0, 0, 0, 0, 0, 7], &[0, 3], &[0, 0, 0xea, 0x60], &[1],
            &[3],
            &[2, b'a'], &[3], &[0, 0, 0, 0], &[0, 0, 0, 2], &[0],
            &[2, b'b'], &[2], &[0, 0, 0, 1], &[0],
            &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 0, 0, 0, 0, 1, 1],
            &[1, 9, 2, 0xaa, 0xbb],
        ]
        .concat();
        assert_eq!(decode_value(&bytes), Ok(ongoing()));
        // Who was replaced is told by Kafka's fields where ours is missing.
        let with_fields = |state: u8, epoch: u8, fields: &[u8]| {
            let mut bytes = [&bytes[..bytes.len() - 5], fields].concat();
            (bytes[11], bytes[16]) = (epoch, state);
            decode_value(&bytes).unwrap()
        };
        let version_2: &[u8] = &[2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 2, 2, 0, 2];
        let found = with_fields(4, 3, version_2);
        assert_eq!((found.previous, found.is_version_2), (Producer { id: 7, epoch: 2 }, true));
        let found = with_fields(1, 3, version_2);
        assert_eq!((found.previous, found.is_version_2), (NO_PRODUCER, true), "it may be open for long");
        let other: &[u8] = &[3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5, 1, 8, 0, 0, 0, 0, 0, 0, 0, 9, 2, 2, 0, 2];
        let found = with_fields(4, 0, other);
        assert_eq!((found.previous, found.next_id), (Producer { id: 5, epoch: i16::MAX - 1 }, Some(9)));
        let no_partitions = [&bytes[..17], &[0], &bytes[bytes.len() - 21..]].concat();
        assert!(decode_value(&no_partitions).unwrap().partitions.is_empty());
    }

    /// Everything that only the compact version can say.
    fn of_version_2() -> Transaction {
        let previous = Producer { id: 5, epoch: 2 };
        Transaction { previous, next_id: Some(9), is_version_2: true, ..ongoing() }
    }

    #[test]
    fn what_version_0_cannot_say_is_written_in_version_1() {
        let value = encode_value(&of_version_2());
        #[rustfmt::skip]
        let golden: Vec<u8> = [
            &[0u8, 1][..],
            &[0, 0, 0, 0, 0, 0, 0, 7], &[0, 3], &[0, 0, 0xea, 0x60], &[1],
            &[3],
            &[2, b'a'], &[3], &[0, 0, 0, 0], &[0, 0, 0, 2], &[0],
            &[2, b'b'], &[2], &[0, 0, 0, 1], &[0],
            &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 0, 0, 0, 0, 1, 1],
            &[4],
            &[0, 8, 0, 0, 0, 0, 0, 0, 0, 5], &[1, 8, 0, 0, 0, 0, 0, 0, 0, 9], &[2, 2, 0, 2],
            &[0x90, 0x4e, 2, 0, 2],
        ]
        .concat();
        assert_eq!(value[..], golden);
        let only = |previous, next_id, is_version_2| {
            [
                Transaction { previous, ..ongoing() },
                Transaction { next_id, ..ongoing() },
                Transaction { is_version_2, ..ongoing() },
            ]
        };
        let empty =
            Transaction { state: TransactionState::Empty, partitions: BTreeSet::new(), ..of_version_2() };
        let Transaction { previous, next_id, is_version_2, .. } = empty;
        for value in only(previous, next_id, is_version_2).into_iter().chain([empty, of_version_2()]) {
            assert_eq!(encode_value(&value)[..2], [0, 1]);
            assert_eq!(decode_value(&encode_value(&value)), Ok(value));
        }
    }

    #[test]
    fn damaged_records_are_refused() {
        let (key, value) = TransactionRecord { id: "tx".into(), value: Some(ongoing()) }.encode();
        let value = value.unwrap();
        let compact = encode_value(&of_version_2());
        for whole in [&value, &compact] {
            for length in 0..whole.len() {
                assert!(decode_value(&whole[..length]).is_err(), "{length}");
            }
        }
        let mut short = compact.to_vec();
        short[compact.len() - 5 - 3] = 1;
        assert!(decode_value(&short).is_err(), "a client version of one byte");
        for length in 0..key.len() {
            assert!(TransactionRecord::decode(Some(&key[..length]), None).is_err(), "{length}");
        }
        assert_eq!(TransactionRecord::decode(None, None), Err(RecordProblem::NoKey));
        assert_eq!(TransactionRecord::decode(Some(&[0, 9]), None), Ok(None));
        let mut dead = value.to_vec();
        dead[16] = 6;
        assert!(decode_value(&dead).is_err());
        assert_eq!(decode_value(&[0, 2]), Err(RecordProblem::ValueVersion(2)));
    }
}
