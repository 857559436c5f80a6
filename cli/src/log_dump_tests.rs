//! Dumps of files that our log wrote, of damaged ones, and of a real Kafka cluster's.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use kafka_protocol::records::{
    Compression, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use zurau_broker::log::{LogConfig, PartitionLog};

use super::*;

fn dumped(files: &[PathBuf], verify: bool, records: bool, output: Output) -> (usize, String) {
    let arguments = LogDumpArguments { files: files.to_vec(), verify, records, output };
    let mut bytes = Vec::new();
    let problems = dump(&arguments, &mut bytes).unwrap();
    (problems, String::from_utf8(bytes).unwrap())
}

fn batch(compression: Compression, timestamp: i64) -> Bytes {
    let record = |index: i64| Record {
        transactional: false,
        control: false,
        partition_leader_epoch: 0,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: index,
        sequence: NO_SEQUENCE.wrapping_add(index as i32),
        timestamp: timestamp + index,
        key: Some(Bytes::from_static(b"key")),
        value: (index > 0).then(|| Bytes::from_static(&[0, 255])),
        headers: Default::default(),
    };
    let records: Vec<Record> = (0..2).map(record).collect();
    let mut bytes = bytes::BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression };
    RecordBatchEncoder::encode(&mut bytes, records.iter(), &options).unwrap();
    bytes.freeze()
}

fn written(directory: &Path) -> PathBuf {
    let path = directory.join("t-0");
    let config = LogConfig { index_interval_bytes: 150, ..LogConfig::default() };
    let mut log = PartitionLog::create(&path, None, config, 5_000).unwrap();
    for n in 0..10 {
        let compression = if n % 2 == 0 { Compression::None } else { Compression::Zstd };
        log.append_as_leader(&batch(compression, 1_000 + n), 3, 5_000).unwrap();
    }
    log.close().unwrap();
    path
}

fn files_of(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| !path.ends_with("partition.metadata")).collect();
    files.sort();
    files
}

#[test]
fn own_files_are_right() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path());
    let (problems, text) = dumped(&files_of(&path), true, true, Output::Text);
    assert_eq!(problems, 0, "{text}");
    for expected in
        ["epoch leader_epoch: 3 start_offset: 0", "compression: zstd", "key: key", "value: 0x00ff"]
    {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let (_, json) = dumped(&files_of(&path), true, true, Output::Json);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_kind = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!((of_kind("batch"), of_kind("record"), of_kind("log")), (10, 20, 1));
    assert!(of_kind("entry") > 4);
    let first = lines.iter().find(|line| line["kind"] == "record").unwrap();
    assert_eq!(
        (&first["key"], &first["value"], &first["timestamp"]),
        (&json!("key"), &Value::Null, &json!(1000))
    );
}

#[test]
fn damage_is_found() {
    type Change = fn(&mut Vec<u8>);
    //   file, change, part of the reason
    let rows: [(&str, Change, &str); 9] = [
        ("00000000000000000000.log", |bytes| *bytes.last_mut().unwrap() ^= 1, "CRC"),
        ("00000000000000000000.log", |bytes| bytes.extend([0; 30]), "no batch at byte"),
        ("00000000000000000000.log", |bytes| bytes[7] = 1, "where 3 or more"),
        ("00000000000000000000.index", |bytes| bytes[7] ^= 1, "no batch begins"),
        ("00000000000000000000.index", |bytes| bytes[3] ^= 1, "no batch ends"),
        ("00000000000000000000.index", |bytes| bytes.push(0), "behind the last whole entry"),
        ("00000000000000000000.timeindex", |bytes| bytes[7] -= 1, "above"),
        ("00000000000000000000.timeindex", |bytes| bytes[6] += 1, "has timestamp"),
        ("leader-epoch-checkpoint", |bytes| bytes.push(b'x'), "entries"),
    ];
    for (name, change, expected) in rows {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path()).join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let (problems, text) = dumped(std::slice::from_ref(&path), true, true, Output::Text);
        assert!(problems > 0 && text.contains(expected), "{name}: {expected} is not in\n{text}");
    }
}

#[test]
fn files_that_are_none() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["x.txt", "0.log", "0.index", "0.snapshot", "0.txnindex", "replication-offset-checkpoint"] {
        let path = directory.path().join(name);
        assert_eq!(dumped(std::slice::from_ref(&path), true, true, Output::Text).0, 1, "{name} is absent");
        std::fs::write(&path, "garbage garbage garbage").unwrap();
        let (problems, text) = dumped(&[path], true, true, Output::Json);
        assert!(problems > 0, "{name}: {text}");
    }
}

/// The archives are not part of the project: they are looked for in `$ZURAU_SHARED` or `../shared` beside it.
#[test]
fn logs_of_kafka_3_9_are_right() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("ZURAU_SHARED").map_or_else(beside, PathBuf::from);
    let archive = shared.join("fixtures/kafka-logs/kafka-3.9-clean.tar.xz");
    if !archive.is_file() {
        eprintln!("SKIPPED: no Kafka log directories at {} (set ZURAU_SHARED)", archive.display());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let status =
        Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(archive).status().unwrap();
    assert!(status.success());
    let mut dumps = 0;
    for broker in ["broker-0", "broker-1", "broker-2"] {
        let broker = directory.path().join("kafka-3.9-clean").join(broker);
        for entry in std::fs::read_dir(broker).unwrap().map(|entry| entry.unwrap().path()) {
            let files = if entry.is_dir() { files_of(&entry) } else { vec![entry] };
            let known = |path: &&PathBuf| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.ends_with("checkpoint") || name.starts_with("0000")
            };
            let files: Vec<PathBuf> = files.iter().filter(known).cloned().collect();
            let (problems, text) = dumped(&files, true, false, Output::Text);
            let shown: Vec<&str> =
                text.lines().filter(|line| line.starts_with("problem") || line.starts_with("==")).collect();
            assert_eq!(problems, 0, "{shown:#?}");
            dumps += files.len();
        }
    }
    assert!(dumps > 200, "{dumps} files");
}
