//! Record batches (format 2) that a coordinator writes into its own topic.
//!
//! Pure. Base offset and leader epoch are stamped by the log.

use bytes::{BufMut, Bytes, BytesMut};

use crate::log::{HEADER_BYTES, compress};

/// Who writes: producer id and epoch of a transaction whose offsets these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Producer {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

const TRANSACTIONAL: i16 = 0x10;
/// Offset of the first byte that the CRC covers.
const CRC_START: usize = 21;

/// Key and value of a record.
pub(crate) type KeyValue = (Bytes, Option<Bytes>);

/// How a coordinator's batches are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchStyle {
    /// Milliseconds since 1970, of every record.
    pub(crate) time_ms: i64,
    /// Transactional when there is one.
    pub(crate) producer: Option<Producer>,
    /// 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub(crate) compression: u8,
}

/// Encodes records into one batch. What the codec cannot pack stays as it is.
pub(crate) fn encode_batch(records: &[KeyValue], style: BatchStyle) -> Bytes {
    assert!(!records.is_empty(), "a batch holds at least one record");
    let BatchStyle { time_ms, producer, .. } = style;
    let mut plain = BytesMut::with_capacity(records.iter().map(record_bytes_max).sum());
    for (offset_delta, record) in (0..).zip(records) {
        put_record(&mut plain, offset_delta, record);
    }
    let (compression, body) = match compress(style.compression, None, &plain) {
        Ok(packed) if style.compression != 0 => (style.compression, Bytes::from(packed)),
        _ => (0, plain.freeze()),
    };
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body.len());
    let count = i32::try_from(records.len()).expect("a coordinator writes a bounded number of records");
    bytes.put_i64(0);
    bytes.put_i32(0);
    bytes.put_i32(-1);
    bytes.put_i8(2);
    bytes.put_u32(0);
    bytes.put_i16(i16::from(compression) | if producer.is_some() { TRANSACTIONAL } else { 0 });
    bytes.put_i32(count - 1);
    bytes.put_i64(time_ms);
    bytes.put_i64(time_ms);
    bytes.put_i64(producer.map_or(-1, |producer| producer.id));
    bytes.put_i16(producer.map_or(-1, |producer| producer.epoch));
    bytes.put_i32(-1);
    bytes.put_i32(count);
    bytes.put_slice(&body);
    let length = i32::try_from(bytes.len() - 12).expect("a coordinator writes bounded batches");
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[CRC_START..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.freeze()
}

/// Bytes of a record at most: attributes, six numbers of at most 5 bytes, key and value.
pub(crate) fn record_bytes_max((key, value): &KeyValue) -> usize {
    31 + key.len() + value.as_ref().map_or(0, Bytes::len)
}

fn put_record(bytes: &mut BytesMut, offset_delta: i32, (key, value): &KeyValue) {
    let mut record = BytesMut::with_capacity(record_bytes_max(&(key.clone(), value.clone())));
    record.put_i8(0);
    put_varint(&mut record, 0);
    put_varint(&mut record, offset_delta);
    put_field(&mut record, Some(key));
    put_field(&mut record, value.as_ref());
    put_varint(&mut record, 0);
    put_varint(bytes, record.len() as i32);
    bytes.put_slice(&record);
}

fn put_field(bytes: &mut BytesMut, field: Option<&Bytes>) {
    match field {
        Some(field) => {
            put_varint(bytes, field.len() as i32);
            bytes.put_slice(field);
        }
        None => put_varint(bytes, -1),
    }
}

/// Zigzag, seven bits a byte.
fn put_varint(bytes: &mut BytesMut, value: i32) {
    let mut rest = ((value << 1) ^ (value >> 31)) as u32;
    while 0x80 <= rest {
        bytes.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use kafka_protocol::records::RecordBatchDecoder;

    use super::*;
    use crate::log::{BatchHeader, Records, check_crc, decompress};

    const PLAIN: BatchStyle = BatchStyle { time_ms: 1_700_000_000_000, producer: None, compression: 0 };

    #[test]
    fn the_wire_crate_reads_what_was_encoded_under_every_codec() {
        let long = Bytes::from(vec![7; 3_000]);
        let records = [
            (Bytes::from_static(b"k1"), Some(long.clone())),
            (Bytes::from_static(b"k2"), None),
            (Bytes::new(), Some(Bytes::new())),
        ];
        for compression in 0..=4 {
            let bytes = encode_batch(&records, BatchStyle { compression, ..PLAIN });
            let header = BatchHeader::parse(&bytes).unwrap();
            check_crc(&header, &bytes).unwrap();
            assert_eq!((header.size_bytes(), header.record_count, header.last_offset()), (bytes.len(), 3, 2));
            assert!(!header.is_transactional() && !header.has_producer());
            assert_eq!(header.compression(), compression);
            assert_eq!(bytes.len() < 3_000, compression != 0);
            // The wire crate reads no framed snappy, as Java writes it.
            if compression != 2 {
                let decoded = RecordBatchDecoder::decode(&mut bytes.clone()).unwrap().records;
                let read =
                    decoded.into_iter().map(|record| (record.key.unwrap(), record.value, record.timestamp));
                let expected = records.iter().cloned().map(|(key, value)| (key, value, PLAIN.time_ms));
                assert_eq!(read.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
            let plain = decompress(compression, &bytes[HEADER_BYTES..]).unwrap();
            assert_eq!(Records::new(&plain, 3).filter(Result::is_ok).count(), 3);
        }
    }

    #[test]
    fn a_transactional_batch_names_its_producer() {
        let producer = Some(Producer { id: 42, epoch: 3 });
        let bytes = encode_batch(&[(Bytes::from_static(b"k"), None)], BatchStyle { producer, ..PLAIN });
        let header = BatchHeader::parse(&bytes).unwrap();
        assert!(header.is_transactional());
        assert_eq!((header.producer_id, header.producer_epoch), (42, 3));
    }
}
