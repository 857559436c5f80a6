//! The compacted topic of a real Kafka 3.9 cluster is compacted again, by us.
//!
//! The archives are not part of the project: they are looked for in `$ZURAU_SHARED` or `../shared` beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{compact, config, fold, read_committed};
use crate::log::{LogConfig, LogDirectory, OpenMode, PartitionLog};

const NOW: i64 = 1_900_000_000_000;

fn unpacked() -> Option<tempfile::TempDir> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("ZURAU_SHARED").map_or_else(beside, PathBuf::from);
    let archive = shared.join("fixtures/kafka-logs/kafka-3.9-clean.tar.xz");
    if !archive.is_file() {
        eprintln!("SKIPPED: no Kafka log directories at {} (set ZURAU_SHARED)", archive.display());
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let status =
        Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(archive).status().unwrap();
    assert!(status.success());
    Some(directory)
}

/// Key to value, by the bytes of both.
fn map_of(log: &PartitionLog) -> BTreeMap<String, String> {
    fold(&read_committed(log, log.log_start_offset()), BTreeMap::new())
}

#[test]
fn compacted_topic_of_kafka_3_9() {
    let Some(unpacked) = unpacked() else { return };
    let mut found = 0;
    for broker in ["broker-0", "broker-1", "broker-2"] {
        let path = unpacked.path().join("kafka-3.9-clean").join(broker);
        let directory = LogDirectory::open(&path).unwrap();
        for name in ["compacted-0", "txn-0"] {
            let partition = crate::log::parse_partition(name).unwrap();
            let path = path.join(name);
            if !path.is_dir() {
                continue;
            }
            found += 1;
            let checkpointed = directory.checkpoints.cleaner_offsets.get(&partition);
            assert!(name != "compacted-0" || checkpointed.is_some(), "Kafka had compacted it");
            let config = LogConfig { segment_bytes: 1 << 20, ..config() };
            let mut log = PartitionLog::open(&path, config.clone(), OpenMode::UNKNOWN, NOW).unwrap();
            log.restore_cleaned_offset(checkpointed).unwrap();
            log.update_high_watermark(i64::MAX);
            let (end, stable) = (log.log_end_offset(), log.last_stable_offset());
            let before = map_of(&log);
            assert!(!before.is_empty());
            log.roll(end, NOW).unwrap();
            log.set_cleaned_offset(0);
            let report = compact(&mut log, NOW);
            assert!(report.is_some() || name != "compacted-0");
            assert_eq!(map_of(&log), before, "{name}");
            drop(log);
            let mut log = PartitionLog::open(&path, config, OpenMode::UNKNOWN, NOW).unwrap();
            log.update_high_watermark(i64::MAX);
            assert_eq!((log.log_end_offset(), log.last_stable_offset()), (end, stable), "{name}");
            assert_eq!(map_of(&log), before, "{name} after a restart");
        }
    }
    assert!(found >= 2, "{found} logs");
}
