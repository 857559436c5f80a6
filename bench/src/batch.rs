//! One uncompressed record batch, built once and patched for each use, so that the generator costs next to nothing:
//! the sequence numbers and the CRC change, the rest stays.

use bytes::BufMut as _;

/// Bytes before the records of a batch.
const HEADER: usize = 61;
/// The CRC covers everything from the attributes on.
const CRC_FROM: usize = 21;
const CRC_AT: usize = 17;
/// Each value begins with its sequence number.
const SEQUENCE_BYTES: usize = 8;

/// A batch of equally long records, each with its own number at the front of its value.
pub(crate) struct BatchTemplate {
    bytes: Vec<u8>,
    /// Where each record's sequence number stands.
    sequences: Vec<usize>,
}

impl BatchTemplate {
    /// # Panics
    /// If a value is too short for its number, or there is no record: a mistake in the command line's limits.
    pub(crate) fn new(records: usize, value_bytes: usize) -> Self {
        assert!(value_bytes >= SEQUENCE_BYTES && records > 0, "{records} records of {value_bytes} bytes");
        let mut bytes = vec![0; HEADER];
        let mut sequences = Vec::with_capacity(records);
        for index in 0..records {
            let mut record = vec![0_u8]; // attributes
            put_varint(&mut record, 0); // timestamp delta
            put_varint(&mut record, index as i64);
            put_varint(&mut record, -1); // no key
            put_varint(&mut record, value_bytes as i64);
            let value_at = record.len();
            record.extend(filler(index, value_bytes));
            put_varint(&mut record, 0); // no headers
            put_varint(&mut bytes, record.len() as i64);
            sequences.push(bytes.len() + value_at);
            bytes.extend_from_slice(&record);
        }
        let mut header: Vec<u8> = Vec::with_capacity(HEADER);
        header.put_i64(0); // base offset
        header.put_i32(i32::try_from(bytes.len() - 12).expect("a batch is far below 2 GiB"));
        header.put_i32(-1); // leader epoch
        header.put_i8(2);
        header.put_u32(0); // CRC
        header.put_i16(0); // attributes
        header.put_i32(i32::try_from(records - 1).expect("fewer records than bytes"));
        header.put_i64(0); // base timestamp
        header.put_i64(0); // largest timestamp
        header.put_i64(-1); // producer id
        header.put_i16(-1); // producer epoch
        header.put_i32(-1); // base sequence
        header.put_i32(i32::try_from(records).expect("fewer records than bytes"));
        bytes[..HEADER].copy_from_slice(&header);
        Self { bytes, sequences }
    }

    /// Numbers the records from `first` on, stamps them with the time and seals the batch.
    pub(crate) fn fill(&mut self, first: i64, timestamp_ms: i64) -> &[u8] {
        self.bytes[27..35].copy_from_slice(&timestamp_ms.to_be_bytes());
        self.bytes[35..43].copy_from_slice(&timestamp_ms.to_be_bytes());
        for (at, sequence) in self.sequences.iter().zip(first..) {
            self.bytes[*at..*at + SEQUENCE_BYTES].copy_from_slice(&sequence.to_be_bytes());
        }
        let crc = crc32c::crc32c(&self.bytes[CRC_FROM..]);
        self.bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        &self.bytes
    }
}

/// Bytes that do not compress, different from record to record.
fn filler(seed: usize, count: usize) -> impl Iterator<Item = u8> {
    let mut state = seed as u64 + 0x9e37_79b9_7f4a_7c15;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
}

/// Kafka's variable-length integers: zigzag, then seven bits a byte.
fn put_varint(buffer: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        buffer.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    buffer.push(rest as u8);
}

/// The sequence number at the front of a value.
pub(crate) fn sequence_of(value: &[u8]) -> Option<i64> {
    value.first_chunk().map(|bytes| i64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_batch_is_one_that_every_consumer_reads() {
        let mut template = BatchTemplate::new(3, 100);
        let bytes = bytes::Bytes::copy_from_slice(template.fill(40, 1_700_000_000_000));
        let records = zurau_tests::records::decode_batches(bytes).unwrap();
        let numbers: Vec<_> = records.iter().map(|record| sequence_of(&record.value)).collect();
        assert_eq!(numbers, [Some(40), Some(41), Some(42)]);
        assert!(records.iter().all(|record| record.value.len() == 100));
    }
}
