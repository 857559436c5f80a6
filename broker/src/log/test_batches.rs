//! Hand-made record batches for tests, written by the wire crate's encoder and independent of our own parser.

use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};

/// What a test batch holds; the rest is fixed by the record's index.
#[derive(Clone, Debug)]
pub(crate) struct BatchSpec {
    pub(crate) base_offset: i64,
    pub(crate) records: i32,
    pub(crate) leader_epoch: i32,
    /// Of the first record; each next one is a millisecond later.
    pub(crate) timestamp: i64,
    pub(crate) value_bytes: usize,
    pub(crate) key: Option<&'static str>,
    pub(crate) compression: Compression,
    /// Producer id, epoch, first sequence.
    pub(crate) producer: Option<(i64, i16, i32)>,
    pub(crate) transactional: bool,
    pub(crate) control: bool,
    pub(crate) tag: u8,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            base_offset: 0,
            records: 1,
            leader_epoch: 0,
            timestamp: 1_000,
            value_bytes: 10,
            key: Some("k"),
            compression: Compression::None,
            producer: None,
            transactional: false,
            control: false,
            tag: b'v',
        }
    }
}

/// One encoded batch.
pub(crate) fn batch(spec: &BatchSpec) -> Bytes {
    let value = Bytes::from(vec![spec.tag; spec.value_bytes]);
    let records: Vec<Record> = (0..spec.records).map(|index| record(spec, index, &value)).collect();
    encode(&records, spec.compression)
}

fn record(spec: &BatchSpec, index: i32, value: &Bytes) -> Record {
    let (producer_id, producer_epoch, sequence) =
        spec.producer.unwrap_or((NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE));
    Record {
        transactional: spec.transactional,
        control: spec.control,
        partition_leader_epoch: spec.leader_epoch,
        producer_id,
        producer_epoch,
        timestamp_type: TimestampType::Creation,
        offset: spec.base_offset + i64::from(index),
        // The encoder keeps records in one batch only while sequences follow offsets.
        sequence: sequence.wrapping_add(index),
        timestamp: spec.timestamp + i64::from(index),
        key: spec.key.map(|key| Bytes::from_static(key.as_bytes())),
        value: Some(value.clone()),
        headers: Default::default(),
    }
}

fn encode(records: &[Record], compression: Compression) -> Bytes {
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression };
    RecordBatchEncoder::encode(&mut bytes, records.iter(), &options).expect("test records encode");
    bytes.freeze()
}

/// A transaction marker: `commit` or abort, by producer id and epoch, from a coordinator of the given epoch.
pub(crate) fn marker(commit: bool, producer: (i64, i16), coordinator_epoch: i32, timestamp: i64) -> Bytes {
    let mut key = vec![0, 0];
    key.extend_from_slice(&i16::from(commit).to_be_bytes());
    let mut value = vec![0, 0];
    value.extend_from_slice(&coordinator_epoch.to_be_bytes());
    let spec = BatchSpec {
        timestamp,
        transactional: true,
        control: true,
        producer: Some((producer.0, producer.1, -1)),
        ..BatchSpec::default()
    };
    let mut record = record(&spec, 0, &Bytes::from(value));
    record.key = Some(Bytes::from(key));
    record.sequence = -1;
    encode(&[record], Compression::None)
}
