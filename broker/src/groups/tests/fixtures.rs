//! What a real Kafka 3.9 broker wrote into `__consumer_offsets` loads into what its clients had committed.
//!
//! The archive is not part of the project: it is looked for in `$ZURAU_SHARED` or `../shared` beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::coordinator::partition_of;
use crate::coordinator::{Loaded, replay};

fn archive() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("ZURAU_SHARED").map_or_else(beside, PathBuf::from);
    let archive = shared.join("fixtures/kafka-logs/kafka-3.9-clean.tar.xz");
    if archive.is_file() {
        return Some(archive);
    }
    eprintln!("SKIPPED: no {} (set ZURAU_SHARED)", archive.display());
    None
}

#[test]
fn the_offsets_of_a_kafka_cluster_load() {
    let Some(archive) = archive() else { return };
    let directory = tempfile::tempdir().unwrap();
    let tar = Command::new("tar").arg("-C").arg(directory.path()).arg("-xf").arg(archive).status().unwrap();
    assert!(tar.success());
    let root = directory.path().join("kafka-3.9-clean");
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(root.join("expected.json")).unwrap()).unwrap();
    let number = partition_of("golden-group", 8);
    for broker in ["broker-0", "broker-1", "broker-2"] {
        let log = root.join(broker).join(format!("__consumer_offsets-{number}/00000000000000000000.log"));
        let bytes = Bytes::from(std::fs::read(log).unwrap());
        let mut world = World::new();
        let mut loaded = Loaded::default();
        replay(&mut world.shard, &bytes, &mut loaded).unwrap();
        assert_eq!((loaded.records, loaded.skipped), (5, 0), "{broker}");
        let group = &world.shard.groups()["golden-group"];
        let found: BTreeMap<String, i64> = group
            .offsets
            .iter()
            .map(|(topic, partition, value)| (format!("{topic}-{partition}"), value.offset))
            .collect();
        let committed = expected["group"].as_object().unwrap().iter();
        let committed = committed.map(|(name, offset)| (name.clone(), offset.as_i64().unwrap())).collect();
        assert_eq!(found, committed, "{broker}");
        assert_eq!((group.generation, group.state.name()), (2, "Empty"));
        assert!(group.offsets.iter().all(|(_, _, value)| &*value.metadata == "golden\0"));
    }
}
