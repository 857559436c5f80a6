//! CTL-09: ZooKeeper is gone for 30 seconds while clients write and read: healthy partitions go on, nothing is lost, and the
//! cluster recovers by itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, on_both_zookeepers, skip};

use crate::leader_loss::wait_for_other_leaders;
use crate::traffic::Traffic;
use crate::tree;

on_both_zookeepers!(zookeeper_is_gone_for_30_seconds, and_leaders_store_isr);

const OUTAGE: Duration = Duration::from_secs(30);
const PARTITIONS: i32 = 3;

fn zookeeper_is_gone_for_30_seconds(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("zookeeper_is_gone_for_30_seconds", &why);
        return Ok(());
    }
    let mut cluster = Cluster::builder().zookeeper(kind).set("min.insync.replicas", 2).start(directory)?;
    cluster.create_topic("t", &["[1,2,3]", "[2,3,1]", "[3,1,2]"])?;
    let mut traffic = Traffic::start(&cluster, directory, "t", PARTITIONS)?;

    cluster.zookeepers[0].kill()?;
    let start = Instant::now();
    while start.elapsed() < OUTAGE {
        traffic
            .wait_for_more("healthy partitions go on without ZooKeeper", 200, Duration::from_secs(8))
            .with_context(|| format!("{:?} into the outage", start.elapsed()))?;
        for broker in &mut cluster.brokers {
            broker.process()?.check_running()?;
        }
    }
    cluster.zookeepers[0].restart()?;

    cluster.wait_until_complete(START_LIMIT)?;
    cluster.wait_for_full_isr("t", PARTITIONS as usize, START_LIMIT)?;
    traffic.wait_for_more("traffic goes on afterwards", 200, Duration::from_secs(30))?;
    cluster.create_topic("after", &["[2,3,1]"])?;
    ensure!(tree::topic_id(&cluster, "after")?.len() == 22, "a topic id has 22 characters");
    // Elections work again.
    cluster.broker(2)?.kill()?;
    wait_for_other_leaders(&cluster, "t", 2, START_LIMIT)?;
    cluster.broker(2)?.start()?;
    cluster.wait_for_full_isr("t", PARTITIONS as usize, START_LIMIT)?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}
