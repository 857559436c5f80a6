//! Partitions with data move between brokers while real clients write and read: by znodes alone, and through the API.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::records::now_ms;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, skip};

use crate::traffic::Traffic;
use crate::tree::ids;

on_both_zookeepers!(partitions_move_by_znodes);

const TOPIC: &str = "t";
const PARTITIONS: i32 = 2;
const MOVE_LIMIT: Duration = Duration::from_secs(45);

/// Waits until a partition is where it shall be and nothing is left of where it was: not in ZooKeeper, not on disk.
fn wait_until_moved(cluster: &Cluster, topic: &str, partition: i32, replicas: &[i64]) -> Result<()> {
    eventually(&format!("{topic}-{partition} is on {replicas:?} only"), MOVE_LIMIT, || {
        check_moved(cluster, topic, partition, replicas).map(Some)
    })
    .with_context(|| format!("the tree: {:?}", cluster.znodes.tree(&format!("/brokers/topics/{topic}"))))
}

fn check_moved(cluster: &Cluster, topic: &str, partition: i32, replicas: &[i64]) -> Result<()> {
    let znodes = &cluster.znodes;
    let root = format!("/brokers/topics/{topic}/{partition}");
    let text = |leaf: &str| -> Result<String> {
        znodes.text(&format!("{root}/{leaf}"))?.with_context(|| format!("{leaf} is missing"))
    };
    let wish = znodes.text(&format!("/brokers/partitions_reassigned/{topic}/{partition}"))?;
    ensure!(wish.is_none(), "the wish {wish:?} is still there");
    let assigned: Vec<i64> = serde_json::from_str(&text("replicas")?)?;
    ensure!(assigned == replicas, "replicas is {assigned:?}");
    let state: Value = serde_json::from_str(&text("state")?)?;
    let wanted: BTreeSet<i64> = replicas.iter().copied().collect();
    ensure!(ids(&state["replicas"].to_string())? == wanted, "the hosts are {}", state["replicas"]);
    let isr = ids(&text("ISR")?)?;
    ensure!(isr == wanted, "the ISR is {isr:?}");
    let leader: i64 = text("leader")?.trim().parse()?;
    ensure!(wanted.contains(&leader), "broker {leader} leads");
    let leaving = znodes.text(&format!("{root}/leaving"))?.unwrap_or_default();
    ensure!(leaving.is_empty() || ids(&leaving)?.is_empty(), "{leaving} are still leaving");
    for broker in &cluster.brokers {
        let copy = broker.data().join(format!("{topic}-{partition}"));
        let belongs = wanted.contains(&i64::from(broker.id));
        ensure!(copy.exists() == belongs, "broker {}: a copy is there: {}", broker.id, copy.exists());
    }
    Ok(())
}

fn wish(cluster: &Cluster, partition: i32, replicas: &str) -> Result<()> {
    let parent = format!("/brokers/partitions_reassigned/{TOPIC}");
    cluster.znodes.put(&parent, "")?;
    cluster.znodes.put(&format!("{parent}/{partition}"), replicas)
}

fn partitions_move_by_znodes(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("partitions_move_by_znodes", &why);
        return Ok(());
    }
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2]", "[2,1]"])?;
    let mut traffic = Traffic::start(&cluster, directory, TOPIC, PARTITIONS)?;

    // The leader leaves; a follower leaves; both at once.
    wish(&cluster, 0, "[3,2]")?;
    wish(&cluster, 1, "[2,3]")?;
    wait_until_moved(&cluster, TOPIC, 0, &[3, 2])?;
    wait_until_moved(&cluster, TOPIC, 1, &[2, 3])?;
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(20))?;

    // Direct edits: all copies elsewhere, and back onto a broker that has deleted its copy before.
    cluster.znodes.put("/brokers/topics/t/0/replicas", "[1]")?;
    wait_until_moved(&cluster, TOPIC, 0, &[1])?;
    cluster.znodes.put("/brokers/topics/t/1/replicas", "{1, 2, 3}")?;
    eventually("three copies of t-1", MOVE_LIMIT, || {
        let isr = cluster.znodes.text("/brokers/topics/t/1/ISR")?.context("no ISR")?;
        ensure!(ids(&isr)?.len() == 3, "the ISR is {isr}");
        Ok(Some(()))
    })?;
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(20))?;

    cancelled(&mut cluster)?;
    traffic.wait_for_more("traffic goes on", 200, Duration::from_secs(30))?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// A move to a broker that is down waits; without its wish all is as before, also for the broker that returns.
fn cancelled(cluster: &mut Cluster) -> Result<()> {
    cluster.broker(3)?.stop(Duration::from_secs(15))?;
    wish(cluster, 0, "[3]")?;
    cluster.znodes.wait_for("/brokers/topics/t/0/state", MOVE_LIMIT, |state| {
        state.is_some_and(|state| {
            let value: Value = serde_json::from_str(state).unwrap_or_default();
            value["target"] == serde_json::json!([3])
        })
    })?;
    cluster.znodes.delete("/brokers/partitions_reassigned/t/0")?;
    cluster.broker(3)?.start()?;
    wait_until_moved(cluster, TOPIC, 0, &[1])?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)
}
