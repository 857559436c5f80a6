//! The records of `__transaction_state`, byte for byte as Kafka writes them, so that its tools, and a Kafka broker that
//! takes the directory over, find what they expect.
//!
//! A key is version 0 and the transactional id; a null value removes the id. Values are written in version 0, as Kafka
//! 3.9 does; version 1 (compact, with tagged fields) is read too. Keys of other versions belong to nobody here and are
//! skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use zurau_common::id::{TopicName, TopicPartition};

use crate::coordinator::{Producer, Reader, RecordProblem, put_string};

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

    fn of_code(code: i8) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// A transactional id as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) producer: Producer,
    /// What the producer was before its last InitProducerId named it, to recognise a retry of that (KIP-360); −1 if it
    /// named nothing. Not stored: a retry that meets another coordinator is refused, as by Kafka 3.9.
    pub(crate) previous: Producer,
    pub(crate) timeout_ms: i32,
    pub(crate) state: TransactionState,
    /// Empty unless ongoing or prepared.
    pub(crate) partitions: BTreeSet<TopicPartition>,
    /// Milliseconds since the epoch of the last change, and of the first partition; −1 before that.
    pub(crate) updated_ms: i64,
    pub(crate) started_ms: i64,
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
    let mut bytes = BytesMut::new();
    bytes.put_i16(VALUE);
    bytes.put_i64(value.producer.id);
    bytes.put_i16(value.producer.epoch);
    bytes.put_i32(value.timeout_ms);
    bytes.put_i8(value.state as i8);
    if value.state == TransactionState::Empty {
        bytes.put_i32(-1);
    } else {
        let mut topics: BTreeMap<&TopicName, Vec<i32>> = BTreeMap::new();
        for partition in &value.partitions {
            topics.entry(&partition.topic).or_default().push(partition.partition);
        }
        bytes.put_i32(topics.len() as i32);
        for (topic, partitions) in topics {
            put_string(&mut bytes, topic);
            bytes.put_i32(partitions.len() as i32);
            for partition in partitions {
                bytes.put_i32(partition);
            }
        }
    }
    bytes.put_i64(value.updated_ms);
    bytes.put_i64(value.started_ms);
    bytes.freeze()
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
        skip_tagged_fields(&mut reader, is_compact)?;
    }
    let updated_ms = reader.i64()?;
    let started_ms = reader.i64()?;
    skip_tagged_fields(&mut reader, is_compact)?;
    Ok(Transaction { producer, previous: NO_PRODUCER, timeout_ms, state, partitions, updated_ms, started_ms })
}

/// Elements of an array; 0 if it is null.
fn count(reader: &mut Reader<'_>, is_compact: bool) -> Result<u32, RecordProblem> {
    if is_compact {
        return Ok(reader.unsigned_varint()?.saturating_sub(1));
    }
    Ok(u32::try_from(reader.i32()?).unwrap_or(0))
}

/// Fields that a later version added: this broker does not know them, and need not.
fn skip_tagged_fields(reader: &mut Reader<'_>, is_compact: bool) -> Result<(), RecordProblem> {
    let fields = if is_compact { reader.unsigned_varint()? } else { 0 };
    for _ in 0..fields {
        reader.unsigned_varint()?;
        let length = reader.unsigned_varint()?;
        reader.skip(length as usize)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ongoing() -> Transaction {
        let partitions = [("a", 0), ("a", 2), ("b", 1)];
        Transaction {
            producer: Producer { id: 7, epoch: 3 },
            previous: NO_PRODUCER,
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
        let no_partitions = [&bytes[..17], &[0], &bytes[bytes.len() - 21..]].concat();
        assert!(decode_value(&no_partitions).unwrap().partitions.is_empty());
    }

    #[test]
    fn damaged_records_are_refused() {
        let (key, value) = TransactionRecord { id: "tx".into(), value: Some(ongoing()) }.encode();
        let value = value.unwrap();
        for length in 0..value.len() {
            assert!(decode_value(&value[..length]).is_err(), "{length}");
        }
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
