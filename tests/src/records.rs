//! Record batches for and from the raw client.

use anyhow::{Context, Result, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

/// Bytes before the length of a batch counts: base offset and the length itself.
const BATCH_PREFIX: usize = 12;

/// A record as a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    pub offset: i64,
    pub key: Option<Bytes>,
    pub value: Bytes,
}

/// One batch of values without keys, offsets from 0, stamped with `timestamp` (milliseconds since 1970).
///
/// # Errors
/// The codec refuses the records.
pub fn encode_batch(values: &[&[u8]], timestamp: i64, compression: Compression) -> Result<Bytes> {
    let records: Vec<Record> = values
        .iter()
        .zip(0..)
        .map(|(value, offset)| Record {
            transactional: false,
            control: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            timestamp_type: TimestampType::Creation,
            offset,
            // The codec starts a new batch where sequences do not follow each other, also when there are none.
            sequence: NO_SEQUENCE + i32::try_from(offset).unwrap_or_default(),
            timestamp,
            key: None,
            value: Some(Bytes::copy_from_slice(value)),
            headers: Default::default(),
        })
        .collect();
    let mut buffer = BytesMut::new();
    RecordBatchEncoder::encode(&mut buffer, &records, &RecordEncodeOptions { version: 2, compression })?;
    Ok(buffer.freeze())
}

/// The records of all complete batches; a cut-off last batch is left out, as every consumer does.
///
/// # Errors
/// A complete batch does not decode.
pub fn decode_batches(mut bytes: Bytes) -> Result<Vec<ReadRecord>> {
    let mut records = Vec::new();
    while let Some(batch) = next_batch(&mut bytes)? {
        let mut batch = batch;
        let set = RecordBatchDecoder::decode(&mut batch).context("decoding a record batch")?;
        for record in set.records.into_iter().filter(|record| !record.control) {
            records.push(ReadRecord {
                offset: record.offset,
                key: record.key,
                value: record.value.unwrap_or_default(),
            });
        }
    }
    Ok(records)
}

/// Splits one complete batch off the front.
///
/// # Errors
/// A length that no batch can have.
pub fn next_batch(bytes: &mut Bytes) -> Result<Option<Bytes>> {
    if bytes.len() < BATCH_PREFIX {
        return Ok(None);
    }
    let length = (&bytes[8..BATCH_PREFIX]).get_i32();
    let length = usize::try_from(length).context("a batch has a negative length")?;
    ensure!(length >= 49, "a batch says that it has {length} bytes, a header alone has 49");
    let whole = length + BATCH_PREFIX;
    Ok((bytes.len() >= whole).then(|| bytes.split_to(whole)))
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.ok().and_then(|time| i64::try_from(time.as_millis()).ok()).unwrap_or_default()
}
