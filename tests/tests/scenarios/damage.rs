//! One partition's records are damaged on its leader's disk: whoever follows it cannot go on there, and goes on with all
//! others (LOG-11, LOG-12).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, scenario};

use crate::tree::ids;

const TOPIC: &str = "t";
const REPLICAS: [&str; 3] = ["[1,2,3]", "[2,1,3]", "[1,3,2]"];
const RECORDS: usize = 20;
/// The broker that has to copy everything anew.
const EMPTIED: i32 = 3;

#[test]
fn log_11_a_damaged_partition_holds_up_no_other() {
    scenario("log_11_a_damaged_partition_holds_up_no_other", copy_around_the_damage);
}

fn copy_around_the_damage(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder()
        .zookeeper(ZooKeeperKind::InProcess)
        .set_for_brokers("min.insync.replicas", 2)
        .start(directory)?;
    cluster.create_topic(TOPIC, &REPLICAS)?;
    produce(&cluster)?;
    let emptied = cluster.broker(EMPTIED)?;
    emptied.stop(Duration::from_secs(10))?;
    let data = emptied.data().to_owned();
    for partition in 0..REPLICAS.len() {
        std::fs::remove_dir_all(data.join(format!("{TOPIC}-{partition}")))?;
    }
    for partition in 0..3 {
        eventually("the emptied broker leaves the ISR", START_LIMIT, || {
            Ok((!in_sync(&cluster, partition)?).then_some(()))
        })?;
    }
    let damaged = cluster.broker(1)?.data().join(format!("{TOPIC}-0/00000000000000000000.log"));
    let mut bytes = std::fs::read(&damaged)?;
    // In the first record of the first batch.
    *bytes.get_mut(75).context("the log is empty")? ^= 1;
    std::fs::write(&damaged, bytes)?;
    cluster.broker(EMPTIED)?.start()?;
    for partition in [1, 2] {
        eventually("the others are copied", START_LIMIT, || Ok(in_sync(&cluster, partition)?.then_some(())))?;
    }
    ensure!(!in_sync(&cluster, 0)?, "a copy of damaged records counts as in sync");
    // The same fetcher goes on: with three in sync, acks=all waits for it.
    produce(&cluster)?;
    ensure!(in_sync(&cluster, 1)? && in_sync(&cluster, 2)?, "the others fell behind");
    cluster.check_running()
}

fn produce(cluster: &Cluster) -> Result<()> {
    let mut client = cluster.client();
    for partition in 0..3 {
        for number in 0..RECORDS {
            let value = format!("value-{number}");
            let batch = encode_batch(&[value.as_bytes()], now_ms(), Compression::None)?;
            let (code, _) = client.produce(TOPIC, partition, batch, -1)?;
            ensure!(code == 0, "{TOPIC}-{partition} answered {code}");
        }
    }
    Ok(())
}

fn in_sync(cluster: &Cluster, partition: i32) -> Result<bool> {
    let stored = cluster.znodes.text(&format!("/brokers/topics/{TOPIC}/{partition}/ISR"))?;
    Ok(ids(&stored.context("no ISR")?)?.contains(&i64::from(EMPTIED)))
}
