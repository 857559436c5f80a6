//! Log directories of real Kafka brokers open, recover and read back as an independent reader says.
//!
//! The archives are not part of the project: they are looked for in `$ZURAU_SHARED` or `../shared` beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use serde_json::Value;
use tempfile::TempDir;
use zurau_common::id::TopicPartition;

use crate::log::compression::decompress;
use crate::log::marker::Marker;
use crate::log::records::Records;
use crate::log::{
    BatchHeader, Batches, FoundDirectory, HEADER_BYTES, LogConfig, LogDirectory, OpenMode, PartitionLog,
};

const NOW: i64 = 1_900_000_000_000;

/// The folder with the archives; says loudly when there is none.
fn archives() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("ZURAU_SHARED").map_or_else(beside, PathBuf::from);
    let folder = shared.join("fixtures/kafka-logs");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no Kafka log directories in {} (set ZURAU_SHARED)", folder.display());
    None
}

fn unpack(archive: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let status =
        Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(archive).status().unwrap();
    assert!(status.success(), "tar could not unpack {}", archive.display());
    directory
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn partitions(directory: &LogDirectory) -> Vec<(TopicPartition, PathBuf)> {
    let found = directory.list().unwrap().into_iter().filter_map(|found| match found {
        FoundDirectory::Partition { partition, path } => Some((partition, path)),
        _ => None,
    });
    found.collect()
}

/// All stored bytes in order, segment after segment.
fn stored(log: &PartitionLog, upper: i64) -> Vec<Bytes> {
    let mut offset = log.log_start_offset();
    let mut parts = Vec::new();
    loop {
        let bytes = log.read_plan(offset, 1 << 16, upper, true).unwrap().read().unwrap();
        let Some((last, _)) = Batches::new(&bytes).map(Result::unwrap).last() else { return parts };
        offset = last.next_offset();
        parts.push(bytes);
    }
}

/// A consumed record: offset, and its part of the bytes that the expected hash runs over (README of the archives).
struct Consumed {
    offset: i64,
    bytes: Vec<u8>,
}

fn put(field: Option<&[u8]>, bytes: &mut Vec<u8>) {
    let Some(field) = field else { return bytes.push(b'-') };
    bytes.extend_from_slice(&(field.len() as u32).to_be_bytes());
    bytes.extend_from_slice(field);
}

fn decode(header: &BatchHeader, batch: &Bytes) -> Vec<Consumed> {
    let body = batch.slice(HEADER_BYTES..);
    let plain = decompress(header.compression(), &body).unwrap();
    let records = Records::new(&plain, header.record_count).map(|record| {
        let record = record.unwrap();
        let offset = header.base_offset + i64::from(record.offset_delta);
        let timestamp = match header.has_log_append_time() {
            true => header.max_timestamp,
            false => header.base_timestamp + record.timestamp_delta,
        };
        let mut bytes = [offset.to_be_bytes(), timestamp.to_be_bytes()].concat();
        put(record.key, &mut bytes);
        put(record.value, &mut bytes);
        for (name, value) in record.headers() {
            put(Some(name), &mut bytes);
            put(value, &mut bytes);
        }
        Consumed { offset, bytes }
    });
    records.collect()
}

/// What a consumer gets: records at or above the log start, no control records, aborted ones left out if asked.
fn consume(log: &PartitionLog, committed: bool) -> Vec<Consumed> {
    let upper = if committed { log.last_stable_offset() } else { log.high_watermark() };
    let mut aborted = log.aborted_transactions(log.log_start_offset(), upper).unwrap();
    aborted.sort_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
    let mut skipping = BTreeSet::new();
    let mut records = Vec::new();
    for bytes in stored(log, upper) {
        for (header, range) in Batches::new(&bytes).map(Result::unwrap) {
            while committed && aborted.last().is_some_and(|next| next.first_offset <= header.last_offset()) {
                skipping.insert(aborted.pop().unwrap().producer_id);
            }
            let batch = bytes.slice(range);
            if header.is_control() {
                if Marker::parse(&header, &batch[HEADER_BYTES..]).is_some_and(|marker| !marker.commit) {
                    skipping.remove(&header.producer_id);
                }
                continue;
            }
            if header.is_transactional() && skipping.contains(&header.producer_id) {
                continue;
            }
            records.extend(
                decode(&header, &batch).into_iter().filter(|record| record.offset >= log.log_start_offset()),
            );
        }
    }
    records
}

fn sha256(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let output = Command::new("sha256sum").arg(file.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

fn check_partition(log: &PartitionLog, name: &str, expected: &Value) {
    for (isolation, committed) in [("read_uncommitted", false), ("read_committed", true)] {
        let Some(row) = expected[isolation].get(name) else { continue };
        let records = consume(log, committed);
        let end = if committed { log.last_stable_offset() } else { log.high_watermark() };
        let found = (log.log_start_offset(), end, records.len() as i64);
        let number = |key: &str| row[key].as_i64().unwrap();
        assert_eq!(found, (number("low"), number("high"), number("records")), "{name} {isolation}");
        assert_eq!(
            sha256(&records.iter().flat_map(|record| record.bytes.clone()).collect::<Vec<u8>>()),
            row["sha256"].as_str().unwrap(),
            "{name} {isolation}"
        );
    }
}

/// Opens every partition of a broker's directory, checks it, closes it. Returns how many there were.
fn check_broker(path: &Path, expected: &Value, clean: bool) -> usize {
    let mut directory = LogDirectory::open(path).unwrap();
    assert_eq!(directory.was_clean(), clean);
    let partitions = partitions(&directory);
    for (partition, path) in &partitions {
        let mode = directory.open_mode(partition);
        let mode = if clean { mode } else { OpenMode { recovery_point: -1, ..mode } };
        let index_interval_bytes = if &*partition.topic == "segments" { 500 } else { 4096 };
        let config = LogConfig { index_interval_bytes, ..LogConfig::default() };
        let mut log = PartitionLog::open(path, config, mode, NOW).unwrap();
        assert!(log.topic_id().is_some(), "{partition}");
        let high_watermark = directory.checkpoints.high_watermarks.get(partition).unwrap();
        assert_eq!(log.log_end_offset(), high_watermark, "{partition}");
        log.update_high_watermark(high_watermark);
        check_partition(&log, &partition.to_string(), expected);
        if partition.to_string() == "epochs-0" {
            let epochs: Vec<_> =
                log.epoch_entries().iter().map(|entry| (entry.leader_epoch, entry.start_offset)).collect();
            assert_eq!(epochs[..4], [(0, 0), (1, 30), (3, 60), (4, 90)]);
        }
        log.close().unwrap();
    }
    directory.mark_clean(-1).unwrap();
    partitions.len()
}

/// Name to contents of all files, without those that a start and stop may change.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(contents(&entry.path()));
        } else if entry.file_name() != ".lock" {
            files.insert(entry.path(), fs::read(entry.path()).unwrap());
        }
    }
    files
}

/// Names of files that differ.
fn changed(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> String {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differing = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    differing.map(|name| format!("{}\n", name.display())).collect()
}

#[test]
fn cluster_of_kafka_3_9() {
    let Some(archives) = archives() else { return };
    let unpacked = unpack(&archives.join("kafka-3.9-clean.tar.xz"));
    let root = unpacked.path().join("kafka-3.9-clean");
    let expected = json(&root.join("expected.json"));
    let mut partitions = 0;
    for broker in ["broker-0", "broker-1", "broker-2"] {
        let path = root.join(broker);
        let mut before = contents(&path);
        partitions += check_broker(&path, &expected, true);
        // Left by an earlier clean stop of that broker; every start, there and here, removes such.
        for stray in [60, 90] {
            before.remove(&path.join(format!("epochs-0/{stray:020}.snapshot")));
        }
        assert_eq!(changed(&before, &contents(&path)), "", "a clean start and stop change nothing");
        fs::remove_file(path.join(".kafka_cleanshutdown")).unwrap();
        check_broker(&path, &expected, false);
        let mut after = contents(&path);
        // A follower of 3.9 indexed a whole fetch once; a recovery, there and here, looks at each batch.
        let coarse = path.join("epochs-0/00000000000000000000.index");
        after.insert(coarse.clone(), before[&coarse].clone());
        assert_eq!(changed(&before, &after), "", "a recovery gives Kafka's files");
    }
    assert!(partitions > 60, "{partitions} partitions");
}

#[test]
fn directories_of_2019_to_2022() {
    let Some(archives) = archives() else { return };
    let expected = json(&archives.join("expected.json"));
    for name in ["zk-2019", "zk-2022", "zk-2022-interrupted-swap"] {
        let unpacked = unpack(&archives.join(format!("{name}.tar.gz")));
        let root = unpacked.path().join(name);
        let root = if root.is_dir() { root } else { unpacked.path().to_owned() };
        let expected = &expected[name];
        for _second_recovery_changes_nothing in 0..2 {
            let directory = LogDirectory::open(&root).unwrap();
            assert!(!directory.was_clean());
            assert_eq!(directory.broker_id(), Some(0));
            let found = partitions(&directory);
            assert_eq!(found.len() as u64, expected["partitions"].as_u64().unwrap(), "{name}");
            for (partition, path) in found {
                check_old(&partition, &path, &directory, expected);
            }
        }
    }
}

fn check_old(partition: &TopicPartition, path: &Path, directory: &LogDirectory, expected: &Value) {
    let mode = directory.open_mode(partition);
    let mut log = PartitionLog::open(path, LogConfig::default(), mode, NOW).unwrap();
    log.update_high_watermark(log.log_end_offset());
    let Some(row) = expected["non_empty"].get(partition.to_string()) else {
        assert_eq!(log.size_bytes(), 0, "{partition}");
        return;
    };
    let number = |key: &str| row[key].as_u64().unwrap();
    let parts = stored(&log, i64::MAX);
    let headers: Vec<_> =
        parts.iter().flat_map(|bytes| Batches::new(bytes)).map(|batch| batch.unwrap().0).collect();
    let records: u64 = headers.iter().map(|header| header.record_count as u64).sum();
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    let found = (log.log_end_offset() as u64, headers.len() as u64, records, bytes as u64);
    let wanted = (number("log_end_offset"), number("batches"), number("records"), number("bytes"));
    assert_eq!(found, wanted, "{partition}");
    assert_eq!(log.segment_count(), row["segments"].as_array().unwrap().len(), "{partition}");
    let decoded: usize = parts
        .iter()
        .flat_map(|bytes| Batches::new(bytes).map(move |batch| (batch.unwrap(), bytes)))
        .map(|((header, range), bytes)| decode(&header, &bytes.slice(range)).len())
        .sum();
    assert_eq!(decoded as u64, records, "{partition}");
}
