//! ZooKeeper comes back empty while the brokers' directories are whole: nobody starts on it, and
//! `zurau recover-metadata` brings everything back.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use serde_json::Value;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::history::check_replicas_equal;
use zurau_tests::programs::binary;
use zurau_tests::records::{ReadRecord, encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers};

on_both_zookeepers!(a_lost_tree_is_rebuilt_from_the_log_directories);

const TOPIC: &str = "t";
const PARTITIONS: i32 = 3;
const REPLICAS: [&str; 3] = ["[1,2,3]", "[2,3,1]", "[3,1,2]"];
const STOP_LIMIT: Duration = Duration::from_secs(12);

fn a_lost_tree_is_rebuilt_from_the_log_directories(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let builder = Cluster::builder().zookeeper(kind).set("min.insync.replicas", 2);
    let mut cluster = builder.start(directory)?;
    cluster.create_topic(TOPIC, &REPLICAS)?;
    produce(&cluster, 30)?;
    // One replica falls behind, so that not every directory will do.
    cluster.broker(3)?.kill()?;
    produce(&cluster, 20)?;
    let before = Before::read(&cluster)?;
    stop_all(&mut cluster)?;

    cluster.zookeepers[0].kill()?;
    std::fs::remove_dir_all(directory.join("zookeeper-data")).context("emptying ZooKeeper")?;
    cluster.zookeepers[0].restart()?;
    nobody_starts_on_another_cluster(&mut cluster)?;

    let shown = text(&recover(&cluster, &[])?)?;
    ensure!(shown.contains("Nothing was written"), "{shown}");
    let told = ["best: broker 1's in ", "not in sync: broker 3's in ", "20 offsets are missing"];
    ensure!(told.iter().all(|told| shown.contains(told)), "{shown}");
    ensure!(cluster.znodes.text("/brokers/topics/t")?.is_none(), "the dry run wrote the topic");
    let written = text(&recover(&cluster, &["--execute"])?)?;
    ensure!(written.contains("Written."), "{written}");
    let again = recover(&cluster, &["--execute"])?;
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(!again.status.success() && error.contains("it has lost nothing"), "{error}");

    for node in cluster.controllers.iter_mut().chain(&mut cluster.brokers) {
        node.start()?;
    }
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
    before.check(&cluster)?;
    let continued = produce(&cluster, 1)?;
    ensure!(continued == [50; 3], "new records got the offsets {continued:?}");
    for partition in 0..PARTITIONS {
        check_replicas_equal(&cluster, TOPIC, partition, Duration::from_secs(20))?;
    }
    cluster.check_running()
}

/// Returns the offset of the first record in each partition.
fn produce(cluster: &Cluster, count: usize) -> Result<Vec<i64>> {
    let mut first = Vec::new();
    for partition in 0..PARTITIONS {
        for number in 0..count {
            let value = format!("{partition} {number} of {count}");
            let batch = encode_batch(&[value.as_bytes()], now_ms(), Compression::Lz4)?;
            let offset = eventually("a record is acknowledged", START_LIMIT, || {
                let (error, offset) = cluster.client().produce(TOPIC, partition, batch.clone(), -1)?;
                ensure!(error == 0, "{TOPIC}-{partition}: error {error}");
                Ok(Some(offset))
            })?;
            if number == 0 {
                first.push(offset);
            }
        }
    }
    Ok(first)
}

fn stop_all(cluster: &mut Cluster) -> Result<()> {
    for node in cluster.brokers.iter_mut().chain(&mut cluster.controllers) {
        if node.is_running() {
            node.stop(STOP_LIMIT)?;
        }
    }
    Ok(())
}

/// A controller finds an empty tree and begins a cluster; a broker with another one's data ends, and says what to do.
fn nobody_starts_on_another_cluster(cluster: &mut Cluster) -> Result<()> {
    cluster.controller(1)?.start()?;
    let broker = cluster.broker(1)?;
    broker.start()?;
    let status = broker.wait_for_end(START_LIMIT)?;
    ensure!(!status.success(), "the broker ended with {status}");
    let log = broker.log_text();
    let reason = log.lines().last().unwrap_or_default();
    ensure!(
        reason.contains("belongs to cluster") && reason.contains("zurau recover-metadata"),
        "the last words are: {reason}"
    );
    cluster.controller(1)?.stop(STOP_LIMIT).map(|_| ())
}

fn recover(cluster: &Cluster, flags: &[&str]) -> Result<Output> {
    let directories: Vec<&Path> = cluster.brokers.iter().map(|node| node.data()).collect();
    let mut command = Command::new(binary("zurau")?);
    command.args(["recover-metadata", "--zookeeper", &cluster.zookeeper_connect()]);
    command.args(flags).args(directories).output().context("running zurau recover-metadata")
}

fn text(output: &Output) -> Result<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "zurau recover-metadata ended with {}: {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What the cluster was before ZooKeeper lost it.
struct Before {
    topic: String,
    cluster_id: String,
    leader_epochs: Vec<i64>,
    records: Vec<Vec<ReadRecord>>,
}

impl Before {
    fn read(cluster: &Cluster) -> Result<Self> {
        let text = |path: &str| cluster.znodes.text(path)?.with_context(|| format!("{path} is absent"));
        let mut records = Vec::new();
        for partition in 0..PARTITIONS {
            records.push(cluster.client().read_partition(TOPIC, partition)?);
        }
        Ok(Self {
            topic: text("/brokers/topics/t")?,
            cluster_id: text("/cluster/id")?,
            leader_epochs: leader_epochs(cluster)?,
            records,
        })
    }

    fn check(&self, cluster: &Cluster) -> Result<()> {
        let after = eventually("every partition can be read", START_LIMIT, || Self::read(cluster).map(Some))?;
        ensure!(after.topic == self.topic, "the topic is {} instead of {}", after.topic, self.topic);
        ensure!(after.cluster_id == self.cluster_id, "the cluster is {}", after.cluster_id);
        ensure!(after.records == self.records, "the records changed");
        let epochs = after.leader_epochs.iter().zip(&self.leader_epochs);
        for (after, before) in epochs {
            ensure!(before < after, "leader epoch {after} follows {before}");
        }
        Ok(())
    }
}

fn leader_epochs(cluster: &Cluster) -> Result<Vec<i64>> {
    let epoch = |partition| {
        let state = cluster.znodes.text(&format!("/brokers/topics/{TOPIC}/{partition}/state"))?;
        let state: Value = serde_json::from_str(&state.context("no state")?)?;
        state["leader_epoch"].as_i64().context("no leader epoch")
    };
    (0..PARTITIONS).map(epoch).collect()
}
