//! The record batches that the benches append, encoded by the wire crate.

use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};

pub(crate) const NOW: i64 = 1_700_000_000_000;

/// A value of so many bytes, not all alike.
pub(crate) fn value(value_bytes: usize) -> Bytes {
    (0..value_bytes).map(|n| (n * 31 % 251) as u8).collect()
}

/// One batch of so many records of this value, with the key of each.
pub(crate) fn encode(
    records: usize,
    value: &Bytes,
    compression: Compression,
    key: impl Fn(usize) -> Option<Bytes>,
) -> Bytes {
    let record = |index: usize| Record {
        transactional: false,
        control: false,
        partition_leader_epoch: 0,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: index as i64,
        sequence: index as i32 - 1,
        timestamp: NOW,
        key: key(index),
        value: Some(value.clone()),
        headers: Default::default(),
    };
    let records: Vec<Record> = (0..records).map(record).collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression };
    RecordBatchEncoder::encode(&mut bytes, records.iter(), &options).expect("encodes");
    bytes.freeze()
}
