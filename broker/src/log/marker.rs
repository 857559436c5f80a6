//! Transaction markers: the control batches that commit or abort what a producer wrote since its last one.
//!
//! Pure. A marker is one record: key version and kind, value version and the epoch of the coordinator that wrote it.

use bytes::{BufMut, Bytes, BytesMut};

use super::batch::{BatchHeader, CRC_AT, CRC_START, HEADER_BYTES, LOG_OVERHEAD};
use super::records::Records;

const ABORT: i16 = 0;
const COMMIT: i16 = 1;
/// Attributes of the batch: transactional, control.
const ATTRIBUTES: i16 = 0x30;
const KEY_BYTES: u8 = 4;
const VALUE_BYTES: u8 = 6;
/// Attributes, two deltas, two lengths, key, value, number of headers.
const RECORD_BYTES: u8 = 6 + KEY_BYTES + VALUE_BYTES;

/// A commit or abort marker, as it stands in a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) commit: bool,
    pub(crate) coordinator_epoch: i32,
}

impl Marker {
    /// Reads the first record of a control batch; `None` for control records that end no transaction.
    pub(crate) fn parse(header: &BatchHeader, body: &[u8]) -> Option<Self> {
        if !header.is_control() {
            return None;
        }
        let record = Records::new(body, header.record_count).next()?.ok()?;
        let (key, value) = (record.key?, record.value?);
        let kind = i16::from_be_bytes(key.get(2..4)?.try_into().ok()?);
        let coordinator_epoch = i32::from_be_bytes(value.get(2..6)?.try_into().ok()?);
        matches!(kind, ABORT | COMMIT).then_some(Self { commit: kind == COMMIT, coordinator_epoch })
    }

    /// The batch that ends the transaction of a producer (id and epoch). Offset and leader epoch are stamped by the log.
    pub(crate) fn encode(self, (producer_id, producer_epoch): (i64, i16), time_ms: i64) -> Bytes {
        let record_bytes = 1 + usize::from(RECORD_BYTES);
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + record_bytes);
        bytes.put_i64(0);
        bytes.put_i32((HEADER_BYTES - LOG_OVERHEAD + record_bytes) as i32);
        bytes.put_i32(-1);
        bytes.put_i8(2);
        bytes.put_u32(0);
        bytes.put_i16(ATTRIBUTES);
        bytes.put_i32(0);
        bytes.put_i64(time_ms);
        bytes.put_i64(time_ms);
        bytes.put_i64(producer_id);
        bytes.put_i16(producer_epoch);
        bytes.put_i32(-1);
        bytes.put_i32(1);
        // Lengths are zigzag varints, which doubles these small numbers.
        bytes.put_slice(&[2 * RECORD_BYTES, 0, 0, 0, 2 * KEY_BYTES]);
        bytes.put_i16(0);
        bytes.put_i16(if self.commit { COMMIT } else { ABORT });
        bytes.put_u8(2 * VALUE_BYTES);
        bytes.put_i16(0);
        bytes.put_i32(self.coordinator_epoch);
        bytes.put_u8(0);
        let crc = crc32c::crc32c(&bytes[CRC_START..]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::check_crc;
    use crate::log::test_batches::marker;

    #[test]
    fn markers_are_encoded_as_the_wire_crate_encodes_them() {
        for (commit, producer, coordinator_epoch) in
            [(true, (7, 3), 5), (false, (i64::MAX, i16::MAX), i32::MAX), (false, (0, 0), 0)]
        {
            let expected = Marker { commit, coordinator_epoch };
            let bytes = expected.encode(producer, 1_700_000_000_000);
            let header = BatchHeader::parse(&bytes).unwrap();
            check_crc(&header, &bytes).unwrap();
            assert!(header.is_control() && header.is_transactional());
            assert_eq!(
                (header.producer_id, header.producer_epoch, header.base_sequence),
                (producer.0, producer.1, -1)
            );
            assert_eq!((header.size_bytes(), header.last_offset_delta), (bytes.len(), 0));
            assert_eq!(Marker::parse(&header, &bytes[HEADER_BYTES..]), Some(expected));
            let by_crate = marker(commit, producer, coordinator_epoch, 1_700_000_000_000);
            assert_eq!(bytes[HEADER_BYTES..], by_crate[HEADER_BYTES..]);
            assert_eq!(bytes[CRC_START..HEADER_BYTES], by_crate[CRC_START..HEADER_BYTES]);
        }
    }
}
