//! What a leader refuses, and what it stores instead of what the client sent.

use bytes::Bytes;
use kafka_protocol::records::Compression;
use zurau_common::config::{CleanupPolicy, CompressionType, TimestampType};

use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{
    AppendError, AppendOrigin, BatchHeader, BatchRules, CheckedBatches, LogConfig, PartitionLog,
    Verification, check_crc,
};

const NOW: i64 = 2_000_000_000;

fn log(config: LogConfig) -> (tempfile::TempDir, PartitionLog) {
    let directory = tempfile::tempdir().unwrap();
    let log = PartitionLog::create(&directory.path().join("t-0"), None, config, NOW).unwrap();
    (directory, log)
}

fn spec() -> BatchSpec {
    BatchSpec { records: 3, timestamp: NOW, ..BatchSpec::default() }
}

/// The batch with `value` at byte `at` and a CRC that fits again.
fn forged(at: usize, value: &[u8]) -> Bytes {
    let mut bytes = batch(&spec()).to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(bytes)
}

fn kind(error: &AppendError) -> &'static str {
    match error {
        AppendError::CorruptMessage(_) => "corrupt",
        AppendError::MessageTooLarge { .. } => "too large",
        AppendError::RecordListTooLarge { .. } => "list too large",
        AppendError::InvalidTimestamp { .. } => "timestamp",
        AppendError::InvalidRecord { .. } => "record",
        AppendError::UnsupportedForMessageFormat { .. } => "format",
        AppendError::UnsupportedCompressionType(_) => "compression",
        _ => "other",
    }
}

/// CLI-03, CLI-04, CLI-05: and nothing of them is stored.
#[test]
fn refused_batches() {
    let good = batch(&spec());
    let mut flipped = good.to_vec();
    *flipped.last_mut().unwrap() ^= 0xff;
    let rows: [(&str, Bytes, &str); 19] = [
        ("nothing", Bytes::new(), "record"),
        ("half a header", good.slice(..30), "corrupt"),
        ("half a batch", good.slice(..good.len() - 1), "corrupt"),
        ("a batch and a half", Bytes::from([&good[..], &good[..70]].concat()), "corrupt"),
        ("wrong CRC", Bytes::from(flipped), "corrupt"),
        ("format 1", forged(16, &[1]), "format"),
        ("format 0", forged(16, &[0]), "format"),
        ("format 3", forged(16, &[3]), "corrupt"),
        ("negative length", forged(8, &[0xff; 4]), "corrupt"),
        ("length beyond the request", forged(8, &i32::MAX.to_be_bytes()), "corrupt"),
        ("no records", forged(57, &[0; 4]), "record"),
        ("fewer records than announced", forged(57, &4i32.to_be_bytes()), "record"),
        ("last offset delta without record", forged(23, &5i32.to_be_bytes()), "record"),
        ("unknown compression", forged(21, &[0, 7]), "compression"),
        ("plain bytes called gzip", forged(21, &[0, 1]), "record"),
        ("control batch", forged(21, &[0, 0x20]), "record"),
        ("log append time", forged(21, &[0, 0x08]), "timestamp"),
        ("transactional without producer", forged(21, &[0, 0x10]), "record"),
        ("producer without sequence", forged(43, &5i64.to_be_bytes()), "record"),
    ];
    let (_directory, mut log) = log(LogConfig::default());
    for (name, bytes, expected) in rows {
        let error = log.append_as_leader(&bytes, 0, NOW).expect_err(name);
        assert_eq!(kind(&error), expected, "{name}: {error}");
        assert_eq!((log.log_end_offset(), log.size_bytes()), (0, 0), "{name}");
    }
}

/// As in Kafka: the bit is the client's until compaction sets it, except in what is packed anew.
#[test]
fn a_delete_horizon_set_by_a_client_is_stored_as_it_came() {
    let horizon = forged(21, &[0, 0x40]);
    for (compression_type, expected) in [("producer", 0x40), ("lz4", 0x03)] {
        let compression = match compression_type {
            "lz4" => crate::log::Recompression { target: CompressionType::Lz4, level: None },
            _ => LogConfig::default().compression,
        };
        let (_directory, mut log) = log(LogConfig { compression, ..LogConfig::default() });
        log.append_as_leader(&horizon, 0, NOW).unwrap();
        let stored = log.read_plan(0, 1 << 20, 3, true).unwrap().read().unwrap();
        let header = BatchHeader::parse(&stored).unwrap();
        assert_eq!(header.attributes, expected, "{compression_type}");
        check_crc(&header, &stored).unwrap();
    }
}

#[test]
fn size_limits() {
    let bytes = batch(&spec());
    let size = bytes.len();
    let exact =
        LogConfig { max_message_bytes: size as i32, segment_bytes: size as u32, ..LogConfig::default() };
    log(exact.clone()).1.append_as_leader(&bytes, 0, NOW).unwrap();
    let message = LogConfig { max_message_bytes: size as i32 - 1, ..exact.clone() };
    let segment = LogConfig { segment_bytes: size as u32 - 1, ..exact };
    for (config, expected) in [(message, "too large"), (segment, "list too large")] {
        let error = log(config).1.append_as_leader(&bytes, 0, NOW).unwrap_err();
        assert_eq!(kind(&error), expected, "{error}");
    }
}

#[test]
fn timestamps_within_bounds() {
    let config = LogConfig {
        message_timestamp_before_max_ms: 1000,
        message_timestamp_after_max_ms: 500,
        ..LogConfig::default()
    };
    let (_directory, mut log) = log(config);
    let mut append =
        |timestamp| log.append_as_leader(&batch(&BatchSpec { timestamp, ..BatchSpec::default() }), 0, NOW);
    for accepted in [NOW, NOW - 1000, NOW + 500, -1] {
        append(accepted).unwrap_or_else(|error| panic!("{accepted}: {error}"));
    }
    for refused in [NOW - 1001, NOW + 501, 0, i64::MAX / 2, i64::MIN / 2] {
        let error = append(refused).unwrap_err();
        let AppendError::InvalidTimestamp { record_errors, .. } = &error else {
            panic!("{refused}: {error}")
        };
        assert_eq!(record_errors[0].batch_index, 0);
    }
}

#[test]
fn only_the_bad_records_are_named() {
    let (_directory, mut log) = log(LogConfig { message_timestamp_after_max_ms: 1, ..LogConfig::default() });
    let bytes = batch(&BatchSpec { records: 4, timestamp: NOW, ..BatchSpec::default() });
    let error = log.append_as_leader(&bytes, 0, NOW).unwrap_err();
    let AppendError::InvalidTimestamp { record_errors, .. } = error else { panic!("{error}") };
    let indexes: Vec<_> = record_errors.iter().map(|error| error.batch_index).collect();
    assert_eq!(indexes, [2, 3]);
}

#[test]
fn compacted_topics_need_keys() {
    let config =
        LogConfig { cleanup_policy: CleanupPolicy { compact: true, delete: false }, ..LogConfig::default() };
    let (_directory, mut log) = log(config);
    for compression in [Compression::None, Compression::Zstd] {
        let keyless = batch(&BatchSpec { key: None, compression, ..spec() });
        let error = log.append_as_leader(&keyless, 0, NOW).unwrap_err();
        let AppendError::InvalidRecord { record_errors, .. } = &error else { panic!("{error}") };
        assert_eq!(record_errors.len(), 3, "{compression:?}");
        log.append_as_leader(&batch(&BatchSpec { compression, ..spec() }), 0, NOW).unwrap();
    }
}

#[test]
fn the_rules_at_the_append_count_not_those_of_the_check() {
    let strict =
        LogConfig { cleanup_policy: CleanupPolicy { compact: true, delete: false }, ..LogConfig::default() };
    let (_directory, mut log) = log(LogConfig::default());
    let keyless = batch(&BatchSpec { key: None, ..spec() });
    let check = |config: &LogConfig| {
        CheckedBatches::new(keyless.clone(), BatchRules::of(config), AppendOrigin::Client, NOW)
    };
    let (good, bad) = (check(&LogConfig::default()), check(&strict));
    log.set_config(strict);
    let error = log.append_checked(good, 0, Verification::NotAsked).unwrap_err();
    assert_eq!(kind(&error), "record");
    log.set_config(LogConfig::default());
    let info = log.append_checked(bad, 4, Verification::NotAsked).unwrap();
    assert_eq!((info.first_offset, info.last_offset), (0, 2));
}

#[test]
fn cli_04_compressed_batches_are_looked_into() {
    let (_directory, mut log) = log(LogConfig::default());
    for compression in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
        let good = batch(&BatchSpec { compression, records: 20, ..spec() });
        log.append_as_leader(&good, 0, NOW).unwrap();
        // One record less than the header and the last offset delta say.
        let mut bad = good.to_vec();
        bad[57..61].copy_from_slice(&21i32.to_be_bytes());
        bad[23..27].copy_from_slice(&20i32.to_be_bytes());
        let crc = crc32c::crc32c(&bad[21..]);
        bad[17..21].copy_from_slice(&crc.to_be_bytes());
        let error = log.append_as_leader(&Bytes::from(bad), 0, NOW).unwrap_err();
        assert_eq!(kind(&error), "record", "{compression:?}: {error}");
    }
}

fn stored(log: &PartitionLog) -> (BatchHeader, Bytes) {
    let bytes = log.read_plan(0, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
    (BatchHeader::parse(&bytes).unwrap(), bytes)
}

#[test]
fn a_wrong_maximum_timestamp_is_corrected() {
    let (_directory, mut log) = log(LogConfig::default());
    log.append_as_leader(&forged(35, &(NOW + 77).to_be_bytes()), 3, NOW).unwrap();
    let (header, bytes) = stored(&log);
    assert_eq!(header.max_timestamp, NOW + 2);
    check_crc(&header, &bytes).unwrap();
}

#[test]
fn append_time_replaces_the_clients() {
    let config = LogConfig { message_timestamp_type: TimestampType::LogAppendTime, ..LogConfig::default() };
    let (_directory, mut log) = log(config);
    let bytes = batch(&BatchSpec { timestamp: 5, ..spec() });
    let info = log.append_as_leader(&bytes, 3, NOW).unwrap();
    assert_eq!(info.log_append_time_ms, Some(NOW));
    let (header, bytes) = stored(&log);
    assert!(header.has_log_append_time());
    assert_eq!(header.max_timestamp, NOW);
    check_crc(&header, &bytes).unwrap();
    assert_eq!(log.offset_for_timestamp(NOW).unwrap(), Some((NOW, 0, Some(3))));
}
