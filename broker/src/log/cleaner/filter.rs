//! What is left of one batch after compaction, as bytes: the original, a smaller one, an empty one, or nothing.
//!
//! Pure. Whatever is left keeps its base offset, last offset, leader epoch and sequences, so that log end, epoch
//! history and producer state survive (C4, CMP-06, CMP-07).

use std::io;

use crate::log::batch::{
    ATTRIBUTES_AT, BatchHeader, COMPRESSION_MASK, CRC_AT, CRC_START, DELETE_HORIZON_MASK, HEADER_BYTES,
    LOG_OVERHEAD, MAX_TIMESTAMP_AT, NO_TIMESTAMP,
};
use crate::log::compression::{compress, decompress};
use crate::log::records::{RecordView, Records};

const BATCH_LENGTH_AT: usize = 8;
const BASE_TIMESTAMP_AT: usize = 27;
const RECORD_COUNT_AT: usize = 57;

/// What is left of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing changed.
    Original,
    /// The new bytes, a whole batch.
    Rewritten(Vec<u8>),
    Nothing,
}

/// The answer to a filter's question, and how many records there were and are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filtered {
    pub(crate) left: Left,
    pub(crate) records_read: u64,
    pub(crate) records_kept: u64,
}

/// A data batch whose records are looked at one by one.
pub(crate) struct DataBatch<'a> {
    pub(crate) header: &'a BatchHeader,
    /// All of it, the CRC checked.
    pub(crate) bytes: &'a [u8],
    /// It has to stay even without records.
    pub(crate) keep_empty: bool,
    /// The delete horizon that the batch gets if tombstones stay in it and it has none.
    pub(crate) horizon_ms: Option<i64>,
}

impl DataBatch<'_> {
    /// Keeps the records for which `wanted` (offset, record) holds.
    ///
    /// # Errors
    /// Records that cannot be read, or not be packed again.
    pub(crate) fn filter(
        &self,
        mut wanted: impl FnMut(i64, &RecordView<'_>) -> bool,
    ) -> io::Result<Filtered> {
        let header = self.header;
        let plain = plain_records(header, self.bytes)?;
        let mut kept: Vec<RecordView<'_>> = Vec::new();
        let mut records_read = 0;
        let mut tombstones = false;
        for record in Records::new(&plain, header.record_count) {
            let record = record.map_err(|_| malformed(header))?;
            records_read += 1;
            if wanted(offset_of(header, &record), &record) {
                tombstones |= record.value.is_none();
                kept.push(record);
            }
        }
        let horizon_ms = self.horizon_ms.filter(|_| tombstones && header.delete_horizon_ms().is_none());
        let left = if kept.is_empty() {
            match (self.keep_empty, header.record_count) {
                (true, 0) => Left::Original,
                (true, _) => Left::Rewritten(empty_batch(self.bytes, header)),
                (false, _) => Left::Nothing,
            }
        } else if kept.len() as u64 == records_read && horizon_ms.is_none() {
            Left::Original
        } else {
            Left::Rewritten(rewrite(header, self.bytes, &kept, horizon_ms)?)
        };
        Ok(Filtered { left, records_read, records_kept: kept.len() as u64 })
    }
}

/// The records of a batch as plain bytes.
pub(crate) fn plain_records<'a>(
    header: &BatchHeader,
    bytes: &'a [u8],
) -> io::Result<std::borrow::Cow<'a, [u8]>> {
    decompress(header.compression(), &bytes[HEADER_BYTES..]).map_err(|error| {
        let reason = format!("batch at offset {} cannot be unpacked: {error}", header.base_offset);
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

pub(crate) fn malformed(header: &BatchHeader) -> io::Error {
    let reason = format!("batch at offset {} has malformed records", header.base_offset);
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

pub(crate) fn offset_of(header: &BatchHeader, record: &RecordView<'_>) -> i64 {
    header.base_offset.saturating_add(i64::from(record.offset_delta))
}

fn rewrite(
    header: &BatchHeader,
    original: &[u8],
    kept: &[RecordView<'_>],
    horizon_ms: Option<i64>,
) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    for record in kept {
        match horizon_ms {
            None => plain.extend_from_slice(record.bytes),
            Some(horizon_ms) => {
                let timestamp = header.base_timestamp.wrapping_add(record.timestamp_delta);
                put_record(&mut plain, record, timestamp.wrapping_sub(horizon_ms));
            }
        }
    }
    let newest = kept.iter().map(|record| header.base_timestamp.wrapping_add(record.timestamp_delta)).max();
    let mut batch = original[..HEADER_BYTES].to_vec();
    if header.compression() == 0 {
        batch.append(&mut plain);
    } else {
        batch.append(&mut compress(header.compression(), None, &plain)?);
    }
    if let Some(horizon_ms) = horizon_ms {
        set_horizon(&mut batch, header, horizon_ms);
    }
    if !header.has_log_append_time() {
        put(&mut batch, MAX_TIMESTAMP_AT, &newest.unwrap_or(NO_TIMESTAMP).to_be_bytes());
    }
    put(&mut batch, RECORD_COUNT_AT, &(kept.len() as i32).to_be_bytes());
    seal(&mut batch);
    Ok(batch)
}

/// A marker with its delete horizon set: kept whole, its record's time unchanged.
pub(crate) fn marker_with_horizon(
    header: &BatchHeader,
    original: &[u8],
    horizon_ms: i64,
) -> io::Result<Vec<u8>> {
    let plain = plain_records(header, original)?;
    let records: Vec<_> =
        Records::new(&plain, header.record_count).collect::<Result<_, _>>().map_err(|_| malformed(header))?;
    rewrite(header, original, &records, Some(horizon_ms))
}

/// The batch without its records: not compressed, no horizon, both timestamps the largest it had.
pub(crate) fn empty_batch(original: &[u8], header: &BatchHeader) -> Vec<u8> {
    let mut batch = original[..HEADER_BYTES].to_vec();
    let attributes = header.attributes & !(COMPRESSION_MASK | DELETE_HORIZON_MASK);
    put(&mut batch, ATTRIBUTES_AT, &attributes.to_be_bytes());
    put(&mut batch, BASE_TIMESTAMP_AT, &header.max_timestamp.to_be_bytes());
    put(&mut batch, RECORD_COUNT_AT, &0_i32.to_be_bytes());
    seal(&mut batch);
    batch
}

fn set_horizon(batch: &mut [u8], header: &BatchHeader, horizon_ms: i64) {
    put(batch, ATTRIBUTES_AT, &(header.attributes | DELETE_HORIZON_MASK).to_be_bytes());
    put(batch, BASE_TIMESTAMP_AT, &horizon_ms.to_be_bytes());
}

fn put(batch: &mut [u8], at: usize, value: &[u8]) {
    batch[at..at + value.len()].copy_from_slice(value);
}

/// Length and CRC of a finished batch.
fn seal(batch: &mut [u8]) {
    let length = (batch.len() - LOG_OVERHEAD) as i32;
    put(batch, BATCH_LENGTH_AT, &length.to_be_bytes());
    let crc = crc32c::crc32c(&batch[CRC_START..]);
    put(batch, CRC_AT, &crc.to_be_bytes());
}

/// A record with another timestamp delta.
fn put_record(bytes: &mut Vec<u8>, record: &RecordView<'_>, timestamp_delta: i64) {
    let mut delta = Vec::with_capacity(10);
    put_varlong(&mut delta, timestamp_delta);
    put_varlong(bytes, (1 + delta.len() + record.rest.len()) as i64);
    bytes.push(record.attributes);
    bytes.extend_from_slice(&delta);
    bytes.extend_from_slice(record.rest);
}

/// Zigzag; a small number has the same bytes as a varint and as a varlong.
fn put_varlong(bytes: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    while raw >= 0x80 {
        bytes.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    bytes.push(raw as u8);
}
