//! `compression.type`: in which form a leader stores the records of its clients.

use bytes::Bytes;
use kafka_protocol::records::{Compression, RecordBatchDecoder};
use zurau_common::config::{CompressionType, TimestampType};

use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{
    AppendError, AppendOrigin, BatchHeader, HEADER_BYTES, LogConfig, PartitionLog, Recompression, check_crc,
};

const NOW: i64 = 2_000_000_000;

fn log(config: LogConfig) -> (tempfile::TempDir, PartitionLog) {
    let directory = tempfile::tempdir().unwrap();
    let log = PartitionLog::create(&directory.path().join("t-0"), None, config, NOW).unwrap();
    (directory, log)
}

fn config(target: CompressionType) -> LogConfig {
    LogConfig { compression: Recompression { target, level: None }, ..LogConfig::default() }
}

fn spec(compression: Compression) -> BatchSpec {
    BatchSpec {
        records: 20,
        timestamp: NOW,
        value_bytes: 200,
        producer: Some((7, 0, 0)),
        compression,
        ..BatchSpec::default()
    }
}

/// The batch that a log was given as its second one, as it is stored.
fn stored(config: LogConfig, sent: &Bytes) -> (BatchHeader, Bytes) {
    let (_directory, mut log) = log(config);
    log.append_as_leader(&batch(&BatchSpec { timestamp: NOW, ..BatchSpec::default() }), 3, NOW).unwrap();
    let info = log.append_as_leader(sent, 3, NOW).unwrap();
    assert_eq!((info.first_offset, info.last_offset), (1, 20));
    let bytes = log.read_plan(1, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
    let header = BatchHeader::parse(&bytes).unwrap();
    assert_eq!(info.size_bytes, header.size_bytes(), "the size is that of the stored batch");
    assert_eq!(header.size_bytes(), bytes.len());
    (header, bytes)
}

/// Offset, timestamp, sequence, key and value.
type Decoded = (i64, i64, i32, Option<Bytes>, Option<Bytes>);

/// The plain records: by the wire crate's decoder, except for framed snappy, which it does not read.
fn decode(header: &BatchHeader, stored: &Bytes) -> Vec<Decoded> {
    let mut bytes = stored.clone();
    if header.compression() == 2 && stored[HEADER_BYTES..].starts_with(b"\x82SNAPPY\0") {
        let (_, blocks) = stored[HEADER_BYTES..].split_at(16);
        let length = u32::from_be_bytes(blocks[..4].try_into().unwrap()) as usize;
        assert_eq!(blocks.len(), 4 + length, "one block");
        let mut unframed = [&stored[..HEADER_BYTES], &blocks[4..]].concat();
        let batch_length = (unframed.len() - 12) as i32;
        unframed[8..12].copy_from_slice(&batch_length.to_be_bytes());
        let crc = crc32c::crc32c(&unframed[21..]);
        unframed[17..21].copy_from_slice(&crc.to_be_bytes());
        bytes = unframed.into();
    }
    let records = RecordBatchDecoder::decode(&mut bytes).unwrap().records;
    records.into_iter().map(|r| (r.offset, r.timestamp, r.sequence, r.key, r.value)).collect()
}

#[test]
fn every_type_becomes_every_type() {
    let types = [
        (CompressionType::Uncompressed, Compression::None, 0),
        (CompressionType::Gzip, Compression::Gzip, 1),
        (CompressionType::Snappy, Compression::Snappy, 2),
        (CompressionType::Lz4, Compression::Lz4, 3),
        (CompressionType::Zstd, Compression::Zstd, 4),
    ];
    let (header, plain) = stored(LogConfig::default(), &batch(&spec(Compression::None)));
    let expected = decode(&header, &plain);
    assert_eq!(expected.len(), 20);
    for (_, sent, code) in types {
        let sent_bytes = batch(&spec(sent));
        let kept = stored(LogConfig::default(), &sent_bytes);
        assert_eq!(kept.0.compression(), code, "'producer' keeps {sent:?}");
        assert_eq!(kept.1[HEADER_BYTES..], sent_bytes[HEADER_BYTES..]);
        for (target, _, code) in types {
            let (header, bytes) = stored(config(target), &sent_bytes);
            assert_eq!(header.compression(), code, "{sent:?} to {target:?}");
            check_crc(&header, &bytes).unwrap();
            assert_eq!(decode(&header, &bytes), expected, "{sent:?} to {target:?}");
            assert_eq!((header.partition_leader_epoch, header.producer_id, header.base_sequence), (3, 7, 0));
            assert_eq!((header.base_timestamp, header.max_timestamp), (NOW, NOW + 19));
            if sent_bytes[22] & 7 == code {
                assert_eq!(
                    bytes[HEADER_BYTES..],
                    sent_bytes[HEADER_BYTES..],
                    "the same type is not packed anew"
                );
            }
        }
    }
}

#[test]
fn append_time_and_compression_change_together() {
    let config =
        LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..config(CompressionType::Zstd) };
    let (header, bytes) = stored(config, &batch(&spec(Compression::Gzip)));
    check_crc(&header, &bytes).unwrap();
    assert!(header.has_log_append_time());
    assert_eq!((header.compression(), header.max_timestamp), (4, NOW));
}

#[test]
fn a_retry_of_a_batch_that_was_packed_anew_is_a_duplicate() {
    let (_directory, mut log) = log(config(CompressionType::Lz4));
    let sent = batch(&spec(Compression::None));
    assert!(!log.append_as_leader(&sent, 0, NOW).unwrap().duplicate);
    let again = log.append_as_leader(&sent, 0, NOW).unwrap();
    assert!(again.duplicate);
    assert_eq!((again.first_offset, log.log_end_offset()), (0, 20));
}

#[test]
fn size_limits_hold_for_what_is_stored() {
    let packed = batch(&spec(Compression::Gzip));
    let limit = packed.len() as i32 + 10;
    let config = LogConfig { max_message_bytes: limit, ..config(CompressionType::Uncompressed) };
    let (_directory, mut log) = log(config);
    let refused = log.append_as_leader(&packed, 0, NOW).unwrap_err();
    assert!(matches!(refused, AppendError::MessageTooLarge { .. }), "{refused}");
    assert_eq!(log.log_end_offset(), 0);
}

#[test]
fn markers_stay_as_they_are() {
    let (_directory, mut log) = log(config(CompressionType::Gzip));
    let bytes = marker(true, (7, 0), 0, NOW);
    log.append_with_origin(&bytes, 0, AppendOrigin::Coordinator, NOW).unwrap();
    let stored = log.read_plan(0, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
    assert_eq!(BatchHeader::parse(&stored).unwrap().compression(), 0);
    assert_eq!(stored[HEADER_BYTES..], bytes[HEADER_BYTES..]);
}
