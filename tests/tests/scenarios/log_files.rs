//! The broker's own `.log` files, read by an independent decoder: every codec in, every `compression.type` stored; and
//! records deleted by a real client.

use anyhow::{Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::clients::{python_missing, python_script};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, scenario, skip};

/// Values in one batch.
const VALUES: usize = 30;
const EARLIEST: i64 = -2;

#[test]
fn files_are_read_by_others() {
    match python_missing() {
        Some(why) => skip("files_are_read_by_others", &why),
        None => scenario("files_are_read_by_others", write_and_read),
    }
}

fn write_and_read(directory: &TestDirectory) -> Result<()> {
    let cluster = Cluster::builder().brokers(1).zookeeper(ZooKeeperKind::InProcess).start(directory)?;
    let sent = [
        (Compression::None, "none"),
        (Compression::Gzip, "gzip"),
        (Compression::Snappy, "snappy"),
        (Compression::Lz4, "lz4"),
        (Compression::Zstd, "zstd"),
    ];
    for kept_as in ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("stored-{kept_as}");
        let config = format!("compression.type={kept_as}");
        python_script("log_files.py", &["create", &cluster.bootstrap(), &topic, &config])?;
        let timestamp = now_ms();
        let mut client = cluster.client();
        let mut expected = String::new();
        let mut offset = 0;
        for (compression, codec) in sent {
            let values: Vec<String> =
                (0..VALUES).map(|index| format!("{codec}-{index}-{}", "x".repeat(100))).collect();
            let bytes: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
            let batch = encode_batch(&bytes, timestamp, compression)?;
            let answer = client.produce(&topic, 0, batch, -1)?;
            ensure!(answer == (0, offset), "{topic}: {codec} answered {answer:?}, 0 and {offset} expected");
            let stored = match kept_as {
                "producer" => codec,
                "uncompressed" => "none",
                other => other,
            };
            for value in values {
                expected.push_str(&format!("{stored} {offset} {timestamp} {value}\n"));
                offset += 1;
            }
        }
        let file = find_log(directory.path(), &format!("{topic}-0"))?;
        let printed = String::from_utf8(python_script("log_files.py", &["read", &file])?)?;
        ensure!(printed == expected, "{topic}: kafka-python read\n{printed}\ninstead of\n{expected}");
    }
    let arguments = ["delete", &cluster.bootstrap(), "stored-gzip", "40"];
    let low_watermark = String::from_utf8(python_script("log_files.py", &arguments)?)?;
    ensure!(low_watermark.trim() == "40", "low watermark {low_watermark}");
    let mut client = cluster.client();
    ensure!(client.offset("stored-gzip", 0, EARLIEST)? == 40, "the deletion moved the start");
    Ok(())
}

/// The first segment of a partition, somewhere below the cluster's directory.
fn find_log(directory: &std::path::Path, partition: &str) -> Result<String> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name == partition) {
                return Ok(path.join("00000000000000000000.log").display().to_string());
            }
            if path.is_dir() {
                waiting.push(path);
            }
        }
    }
    anyhow::bail!("no directory {partition}")
}
