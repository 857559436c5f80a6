//! Batches with chosen keys, a reader, and a log that is easy to compact.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{
    Compression, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use zurau_common::config::CleanupPolicy;

use crate::log::cleaner::{CleaningReport, CleaningSettings, compact_once};
use crate::log::compression::decompress;
use crate::log::marker::Marker;
use crate::log::records::Records;
use crate::log::test_batches::marker;
use crate::log::{AppendOrigin, BatchHeader, Batches, HEADER_BYTES, LogConfig, OpenMode, PartitionLog};

pub(super) const NOW: i64 = 2_000_000;
pub(super) const DELETE_RETENTION_MS: i64 = 1_000;

pub(super) fn config() -> LogConfig {
    LogConfig {
        cleanup_policy: CleanupPolicy { compact: true, delete: false },
        delete_retention_ms: DELETE_RETENTION_MS,
        index_interval_bytes: 100,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

/// A record to append: key and value, `None` for null.
pub(super) type KeyValue<'a> = (Option<&'a str>, Option<&'a str>);

/// `k=v`, or `k` for a tombstone.
pub(super) fn record(text: &str) -> KeyValue<'_> {
    match text.split_once('=') {
        Some((key, value)) => (Some(key), Some(value)),
        None => (Some(text), None),
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    /// Producer id, epoch, first sequence.
    pub(super) producer: Option<(i64, i16, i32)>,
    pub(super) transactional: bool,
}

pub(super) fn batch(
    records: &[KeyValue<'_>],
    origin: Origin,
    compression: Compression,
    timestamp: i64,
) -> Bytes {
    let (producer_id, producer_epoch, sequence) =
        origin.producer.unwrap_or((NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE));
    let records: Vec<Record> = records
        .iter()
        .enumerate()
        .map(|(index, (key, value))| Record {
            transactional: origin.transactional,
            control: false,
            partition_leader_epoch: 0,
            producer_id,
            producer_epoch,
            timestamp_type: TimestampType::Creation,
            offset: index as i64,
            sequence: sequence.wrapping_add(index as i32),
            timestamp: timestamp + index as i64,
            key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
            value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
            headers: Default::default(),
        })
        .collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression };
    RecordBatchEncoder::encode(&mut bytes, records.iter(), &options).unwrap();
    bytes.freeze()
}

pub(super) struct TestLog {
    pub(super) directory: tempfile::TempDir,
    pub(super) log: PartitionLog,
}

impl TestLog {
    pub(super) fn new() -> Self {
        Self::with(config())
    }

    pub(super) fn with(config: LogConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = PartitionLog::create(&directory.path().join("t-0"), None, config, NOW).unwrap();
        Self { directory, log }
    }

    /// One plain batch; see [`record`].
    pub(super) fn append(&mut self, records: &[&str]) -> i64 {
        self.append_from(records, Origin::default())
    }

    pub(super) fn append_from(&mut self, records: &[&str], origin: Origin) -> i64 {
        let records: Vec<_> = records.iter().map(|text| record(text)).collect();
        let bytes = batch(&records, origin, Compression::None, NOW);
        self.log.append_as_leader(&bytes, 0, NOW).unwrap().first_offset
    }

    pub(super) fn end_transaction(&mut self, commit: bool, producer: (i64, i16)) -> i64 {
        let bytes = marker(commit, producer, 0, NOW);
        self.log.append_with_origin(&bytes, 0, AppendOrigin::Coordinator, NOW).unwrap().first_offset
    }

    pub(super) fn roll(&mut self) {
        let end = self.log.log_end_offset();
        if self.log.segments.last_key_value().is_some_and(|(base, _)| *base < end) {
            self.log.roll(end, NOW).unwrap();
        }
    }

    /// Rolls, commits everything, compacts.
    pub(super) fn compact_all(&mut self, now_ms: i64) -> Option<CleaningReport> {
        self.roll();
        self.log.update_high_watermark(self.log.log_end_offset());
        compact(&mut self.log, now_ms)
    }

    /// Everything again after a kill; with `snapshots` false, producer state comes from the batches alone.
    pub(super) fn reopen(self, snapshots: bool) -> Self {
        let Self { directory, log } = self;
        let (path, config) = (log.directory().to_owned(), log.config().clone());
        let (cleaned, high_watermark) = (log.cleaned_offset(), log.high_watermark());
        drop(log);
        if !snapshots {
            for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
                if entry.path().extension().is_some_and(|extension| extension == "snapshot") {
                    std::fs::remove_file(entry.path()).unwrap();
                }
            }
        }
        let mut log = open(&path, config);
        log.restore_cleaned_offset(Some(cleaned)).unwrap();
        log.restore_high_watermark(high_watermark).unwrap();
        Self { directory, log }
    }
}

pub(super) fn open(path: &Path, config: LogConfig) -> PartitionLog {
    PartitionLog::open(path, config, OpenMode::UNKNOWN, NOW).unwrap()
}

pub(super) fn compact(log: &mut PartitionLog, now_ms: i64) -> Option<CleaningReport> {
    compact_once(log, &CleaningSettings { offset_map_bytes: 1 << 20, load_factor: 0.9 }, now_ms).unwrap()
}

/// A record as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) offset: i64,
    pub(super) timestamp: i64,
    pub(super) key: Option<String>,
    pub(super) value: Option<String>,
}

/// Every batch from `offset` on: header and bytes.
pub(super) fn batches(log: &PartitionLog, from: i64, upper: i64) -> Vec<(BatchHeader, Bytes)> {
    let mut all = Vec::new();
    let mut offset = from;
    loop {
        let bytes = log.read_plan(offset, 1 << 16, upper, true).unwrap().read().unwrap();
        let before = all.len();
        for (header, range) in Batches::new(&bytes).map(Result::unwrap) {
            let batch = bytes.slice(range);
            crate::log::check_crc(&header, &batch).unwrap();
            offset = header.next_offset();
            all.push((header, batch));
        }
        if all.len() == before {
            return all;
        }
    }
}

pub(super) fn records_of(header: &BatchHeader, batch: &Bytes) -> Vec<Seen> {
    let plain = decompress(header.compression(), &batch[HEADER_BYTES..]).unwrap();
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    Records::new(&plain, header.record_count)
        .map(Result::unwrap)
        .map(|record| Seen {
            offset: header.base_offset + i64::from(record.offset_delta),
            timestamp: header.base_timestamp + record.timestamp_delta,
            key: text(record.key),
            value: text(record.value),
        })
        .collect()
}

/// What a consumer of committed data gets from `from` on.
pub(super) fn read_committed(log: &PartitionLog, from: i64) -> Vec<Seen> {
    let upper = log.last_stable_offset();
    let mut aborted = log.aborted_transactions(from, upper).unwrap();
    aborted.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
    let mut skipping = HashSet::new();
    let mut seen = Vec::new();
    for (header, bytes) in batches(log, from, upper) {
        while aborted.last().is_some_and(|next| next.first_offset <= header.last_offset()) {
            skipping.insert(aborted.pop().unwrap().producer_id);
        }
        if header.is_control() {
            if Marker::parse(&header, &bytes[HEADER_BYTES..]).is_some_and(|marker| !marker.commit) {
                skipping.remove(&header.producer_id);
            }
        } else if !(header.is_transactional() && skipping.contains(&header.producer_id)) {
            seen.extend(records_of(&header, &bytes).into_iter().filter(|record| record.offset >= from));
        }
    }
    seen
}

/// The final value of each key.
pub(super) fn fold(seen: &[Seen], mut map: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for record in seen {
        let Some(key) = record.key.clone() else { continue };
        match record.value.clone() {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
    map
}

/// All records in the log, as `offset:key=value`, aborted ones and markers included (`offset:commit`).
pub(super) fn shown(log: &PartitionLog) -> Vec<String> {
    let mut all = Vec::new();
    for (header, bytes) in batches(log, log.log_start_offset(), i64::MAX) {
        if header.is_control() {
            let marker = Marker::parse(&header, &bytes[HEADER_BYTES..]);
            let kind = marker.map_or("empty", |marker| if marker.commit { "commit" } else { "abort" });
            all.push(format!("{}:{kind}", header.base_offset));
        } else if header.record_count == 0 {
            all.push(format!("{}..{}:empty", header.base_offset, header.last_offset()));
        }
        if header.is_control() {
            continue;
        }
        for record in records_of(&header, &bytes) {
            let key = record.key.unwrap_or_default();
            let value = record.value.map(|value| format!("={value}")).unwrap_or_default();
            all.push(format!("{}:{key}{value}", record.offset));
        }
    }
    all
}
