//! The header of a record batch, version 2, read from borrowed bytes, and a walk over the batches of a buffer.
//!
//! Pure: no files, no clock. The layout is Kafka's (message format 2, KIP-98): base offset and partition leader
//! epoch stand before the part that the CRC covers, so a leader stamps both without touching the records.

use std::fmt;
use std::ops::Range;

/// Bytes from the start of a batch to its first record.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the part that `batch_length` counts (base offset and the length itself).
pub(crate) const LOG_OVERHEAD: usize = 12;
/// Smallest `batch_length` that still holds a header.
const LENGTH_MIN: i32 = (HEADER_BYTES - LOG_OVERHEAD) as i32;
/// First byte that the CRC covers.
pub(crate) const CRC_START: usize = 21;
pub(crate) const BASE_OFFSET_AT: usize = 0;
pub(crate) const BATCH_LENGTH_AT: usize = 8;
pub(crate) const LEADER_EPOCH_AT: usize = 12;
pub(crate) const MAGIC_AT: usize = 16;
pub(crate) const CRC_AT: usize = 17;
pub(crate) const ATTRIBUTES_AT: usize = 21;
pub(crate) const MAX_TIMESTAMP_AT: usize = 35;

/// The only message format that is stored (D7).
pub(crate) const MAGIC: i8 = 2;
/// "No producer": the batch is not idempotent.
pub(crate) const NO_PRODUCER_ID: i64 = -1;
/// "No timestamp".
pub(crate) const NO_TIMESTAMP: i64 = -1;

pub(crate) const COMPRESSION_MASK: i16 = 0x07;
pub(crate) const TIMESTAMP_TYPE_MASK: i16 = 0x08;
const TRANSACTIONAL_MASK: i16 = 0x10;
const CONTROL_MASK: i16 = 0x20;
/// The base timestamp is the time from which compaction may drop the batch's tombstones or marker (KIP-534).
pub(crate) const DELETE_HORIZON_MASK: i16 = 0x40;

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// Fewer bytes than the header, or than the header announces.
    Short { needed: usize, available: usize },
    /// The length field cannot be right.
    Length(i32),
    /// Message format 0 or 1 (refused, D7) or an unknown one.
    Magic(i8),
    /// The bytes changed after the producer wrote them.
    Checksum { stored: u32, computed: u32 },
    /// Header fields that contradict each other.
    Inconsistent(&'static str),
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, available } => {
                write!(f, "{available} bytes where a batch of {needed} should be")
            }
            Self::Length(length) => {
                write!(f, "batch length {length} is not possible (at least {LENGTH_MIN})")
            }
            Self::Magic(magic) => write!(f, "message format {magic} where only {MAGIC} is stored"),
            Self::Checksum { stored, computed } => {
                write!(f, "stored CRC {stored:#010x} differs from the computed {computed:#010x}")
            }
            Self::Inconsistent(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for BatchError {}

/// The fields of a batch header. Offsets and the epoch are what the bytes say; before a leader stamps them they
/// are the producer's and mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: i64,
    /// Bytes after the length field.
    pub batch_length: i32,
    pub partition_leader_epoch: i32,
    pub crc: u32,
    pub attributes: i16,
    /// Last offset minus base offset; after compaction it may exceed `record_count - 1`.
    pub last_offset_delta: i32,
    /// Milliseconds since the epoch, of the first record.
    pub base_timestamp: i64,
    /// Milliseconds since the epoch, the largest in the batch (or the append time).
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller checked that the header is complete")
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`. Checks length, magic and what must hold for every stored batch;
    /// the CRC is checked by [`check_crc`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        if bytes.len() <= MAGIC_AT {
            return Err(BatchError::Short { needed: HEADER_BYTES, available: bytes.len() });
        }
        let magic = bytes[MAGIC_AT] as i8;
        let batch_length = i32::from_be_bytes(array(bytes, BATCH_LENGTH_AT));
        if magic != MAGIC {
            return Err(BatchError::Magic(magic));
        }
        if batch_length < LENGTH_MIN {
            return Err(BatchError::Length(batch_length));
        }
        if bytes.len() < HEADER_BYTES {
            return Err(BatchError::Short { needed: HEADER_BYTES, available: bytes.len() });
        }
        let header = Self {
            base_offset: i64::from_be_bytes(array(bytes, BASE_OFFSET_AT)),
            batch_length,
            partition_leader_epoch: i32::from_be_bytes(array(bytes, LEADER_EPOCH_AT)),
            crc: u32::from_be_bytes(array(bytes, CRC_AT)),
            attributes: i16::from_be_bytes(array(bytes, ATTRIBUTES_AT)),
            last_offset_delta: i32::from_be_bytes(array(bytes, 23)),
            base_timestamp: i64::from_be_bytes(array(bytes, 27)),
            max_timestamp: i64::from_be_bytes(array(bytes, MAX_TIMESTAMP_AT)),
            producer_id: i64::from_be_bytes(array(bytes, 43)),
            producer_epoch: i16::from_be_bytes(array(bytes, 51)),
            base_sequence: i32::from_be_bytes(array(bytes, 53)),
            record_count: i32::from_be_bytes(array(bytes, 57)),
        };
        if header.last_offset_delta < 0 {
            return Err(BatchError::Inconsistent("the last offset delta is negative"));
        }
        if header.record_count < 0 {
            return Err(BatchError::Inconsistent("the record count is negative"));
        }
        if header.base_offset.checked_add(i64::from(header.last_offset_delta) + 1).is_none() {
            return Err(BatchError::Inconsistent("the last offset is beyond 2^63"));
        }
        Ok(header)
    }

    /// Bytes of the whole batch, header included.
    pub fn size_bytes(&self) -> usize {
        self.batch_length as usize + LOG_OVERHEAD
    }

    /// The batch's last offset (inclusive).
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// The offset after the batch.
    pub fn next_offset(&self) -> i64 {
        self.last_offset() + 1
    }

    /// 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; larger numbers are unknown.
    pub fn compression(&self) -> u8 {
        (self.attributes & COMPRESSION_MASK) as u8
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL_MASK != 0
    }

    /// Transaction markers; clients never write them.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL_MASK != 0
    }

    /// The broker's append time stands in `max_timestamp` and holds for every record.
    pub fn has_log_append_time(&self) -> bool {
        self.attributes & TIMESTAMP_TYPE_MASK != 0
    }

    /// From when on, in milliseconds, compaction may drop the batch's tombstones, or the marker it is (KIP-534).
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes & DELETE_HORIZON_MASK != 0).then_some(self.base_timestamp)
    }

    pub fn has_producer(&self) -> bool {
        self.producer_id != NO_PRODUCER_ID
    }

    /// Sequence of the last record; sequences go from 2^31-1 to 0 (TXN-05).
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return self.base_sequence;
        }
        add_sequence(self.base_sequence, self.last_offset_delta)
    }
}

/// `sequence + delta` modulo 2^31.
pub(crate) fn add_sequence(sequence: i32, delta: i32) -> i32 {
    ((i64::from(sequence) + i64::from(delta)) & i64::from(i32::MAX)) as i32
}

/// Checks the CRC of one whole batch.
pub fn check_crc(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let computed = crc32c::crc32c(&batch[CRC_START..header.size_bytes()]);
    if computed == header.crc {
        return Ok(());
    }
    Err(BatchError::Checksum { stored: header.crc, computed })
}

/// Walks the whole batches at the start of a buffer. Ends before an incomplete last batch (a fetch answer may end
/// in one); [`Batches::consumed`] tells how far it came.
pub struct Batches<'a> {
    bytes: &'a [u8],
    position: usize,
    failed: bool,
}

impl<'a> Batches<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, failed: false }
    }

    /// Bytes of the whole batches that were returned so far.
    pub fn consumed(&self) -> usize {
        self.position
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<(BatchHeader, Range<usize>), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.position..];
        if self.failed || rest.is_empty() {
            return None;
        }
        let header = match BatchHeader::parse(rest) {
            Ok(header) => header,
            Err(BatchError::Short { .. }) => return None,
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        if rest.len() < header.size_bytes() {
            return None;
        }
        let range = self.position..self.position + header.size_bytes();
        self.position = range.end;
        Some(Ok((header, range)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_batches::{BatchSpec, batch};

    #[test]
    fn reads_back_every_field() {
        let bytes = batch(&BatchSpec { base_offset: 7, records: 3, leader_epoch: 5, ..BatchSpec::default() });
        let header = BatchHeader::parse(&bytes).unwrap();
        assert_eq!((header.base_offset, header.last_offset(), header.record_count), (7, 9, 3));
        assert_eq!((header.partition_leader_epoch, header.size_bytes()), (5, bytes.len()));
        check_crc(&header, &bytes).unwrap();
    }

    #[test]
    fn refuses_what_is_not_a_batch() {
        let good = batch(&BatchSpec::default());
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good.to_vec();
            bytes[at..at + value.len()].copy_from_slice(value);
            bytes
        };
        let rows: [(&str, Vec<u8>, BatchError); 6] = [
            ("empty", vec![], BatchError::Short { needed: 61, available: 0 }),
            ("half a header", good[..40].to_vec(), BatchError::Short { needed: 61, available: 40 }),
            ("magic 1", with(16, &[1]), BatchError::Magic(1)),
            ("length 0", with(8, &[0; 4]), BatchError::Length(0)),
            ("length negative", with(8, &[0xff; 4]), BatchError::Length(-1)),
            ("offset overflow", with(0, &i64::MAX.to_be_bytes()), {
                BatchError::Inconsistent("the last offset is beyond 2^63")
            }),
        ];
        for (name, bytes, expected) in rows {
            assert_eq!(BatchHeader::parse(&bytes), Err(expected), "{name}");
        }
    }

    #[test]
    fn walk_ends_before_an_incomplete_batch() {
        let one = batch(&BatchSpec::default());
        let mut bytes = one.to_vec();
        bytes.extend_from_slice(&one[..one.len() - 1]);
        let mut walk = Batches::new(&bytes);
        assert!(walk.next().unwrap().is_ok());
        assert!(walk.next().is_none());
        assert_eq!(walk.consumed(), one.len());
    }

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(add_sequence(i32::MAX, 1), 0);
        assert_eq!(add_sequence(i32::MAX - 1, 3), 1);
        assert_eq!(add_sequence(5, 4), 9);
    }
}
