//! Faults of the control plane while real clients write and read: controllers that die in the middle of moves, processes
//! that stand still for less and for more than their session, ZooKeeper that stands still.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::{SESSION_TIMEOUT, START_LIMIT};
use zurau_tests::wait::throughout;
use zurau_tests::{
    Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, records::now_ms, skip,
};

use crate::controller_loss::{active, wait_for_another};
use crate::leader_loss::{leader_in_office, wait_for_other_leaders};
use crate::reassignment::{wait_until_moved, wish};
use crate::traffic::Traffic;

on_both_zookeepers!(rsn_02_a_controller_dies_in_the_middle_of_a_move, and_leaders_store_isr);
on_both_zookeepers!(rsn_01_the_controller_and_a_target_die_together);
on_both_zookeepers!(processes_stand_still, and_leaders_store_isr);
on_both_zookeepers!(zookeeper_stands_still);

const TOPIC: &str = "t";
const SHORT: Duration = Duration::from_millis(SESSION_TIMEOUT.as_millis() as u64 / 3);
const MORE: Duration = Duration::from_secs(40);

/// Whether the record of the partition names these hosts as its target, in any order.
fn target_is(cluster: &Cluster, partition: i32, replicas: &[i64]) -> Result<bool> {
    let state = cluster.znodes.text(&format!("/brokers/topics/{TOPIC}/{partition}/state"))?;
    let state: serde_json::Value = serde_json::from_str(&state.context("no state")?)?;
    let target: Vec<i64> = serde_json::from_value(state["target"].clone())?;
    Ok(target.iter().all(|id| replicas.contains(id)) && target.len() == replicas.len())
}

fn start(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
    replicas: &[&str],
) -> Result<Option<(Cluster, Traffic)>> {
    if let Some(why) = python_missing() {
        skip("a scenario with real clients", &why);
        return Ok(None);
    }
    let builder = Cluster::builder().zookeeper(kind).controllers(2).set("min.insync.replicas", 2);
    let cluster = builder.set("auto.leader.rebalance.enable", false).start(directory)?;
    cluster.create_topic(TOPIC, replicas)?;
    let partitions = i32::try_from(replicas.len())?;
    let traffic = Traffic::start(&cluster, directory, TOPIC, partitions)?;
    Ok(Some((cluster, traffic)))
}

/// RSN-02: the wish outlives the controller, whichever step it had reached.
fn rsn_02_a_controller_dies_in_the_middle_of_a_move(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let Some((mut cluster, mut traffic)) = start(directory, kind, &["[1,2]", "[2,1]"])? else {
        return Ok(());
    };
    let moves: [[&[i64]; 2]; 3] = [[&[3, 2], &[2, 3]], [&[1, 3], &[3, 1]], [&[2, 1], &[1, 2]]];
    for (round, targets) in moves.into_iter().enumerate() {
        let first = active(&cluster)?.context("no active controller")?;
        for (partition, target) in (0..).zip(targets) {
            wish(&cluster, partition, &format!("{target:?}"))?;
        }
        if round > 0 {
            // Some are under way, whatever step they are at; in the first round none may be.
            eventually("a move has begun", MORE, || Ok(target_is(&cluster, 0, targets[0])?.then_some(())))?;
        }
        cluster.controller(first)?.kill()?;
        wait_for_another(&cluster, first, SESSION_TIMEOUT + Duration::from_secs(5))?;
        for (partition, target) in (0..).zip(targets) {
            wait_until_moved(&cluster, TOPIC, partition, target)?;
        }
        cluster.controller(first)?.start()?;
        traffic.wait_for_every_partition_since(now_ms(), MORE)?;
    }
    traffic.wait_for_more("traffic goes on", 200, MORE)?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// RSN-01: a target that is down when the next controller takes over is waited for.
fn rsn_01_the_controller_and_a_target_die_together(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let Some((mut cluster, traffic)) = start(directory, kind, &["[1,2]", "[2,1]"])? else { return Ok(()) };
    let first = active(&cluster)?.context("no active controller")?;
    cluster.broker(3)?.kill()?;
    cluster.controller(first)?.kill()?;
    for (partition, target) in [(0, "[3,2]"), (1, "[1,3]")] {
        wish(&cluster, partition, target)?;
    }
    wait_for_another(&cluster, first, SESSION_TIMEOUT + Duration::from_secs(5))?;
    eventually("the move is taken up", MORE, || Ok(target_is(&cluster, 0, &[3, 2])?.then_some(())))?;
    throughout("the move waits for its target", SHORT, || {
        let wish = cluster.znodes.text(&format!("/brokers/partitions_reassigned/{TOPIC}/0"))?;
        ensure!(wish.is_some(), "the wish is gone");
        Ok(())
    })?;
    cluster.broker(3)?.start()?;
    wait_until_moved(&cluster, TOPIC, 0, &[3, 2])?;
    wait_until_moved(&cluster, TOPIC, 1, &[1, 3])?;
    traffic.wait_for_every_partition_since(now_ms(), MORE)?;
    traffic.finish_and_check(&cluster)
}

/// A broker and the controller stand still: for less than the session nothing happens, for more they are replaced.
fn processes_stand_still(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    const REPLICAS: [&str; 3] = ["[1,2,3]", "[2,3,1]", "[3,1,2]"];
    let Some((mut cluster, mut traffic)) = start(directory, kind, &REPLICAS)? else { return Ok(()) };
    let first = active(&cluster)?.context("no active controller")?;
    let epoch = cluster.znodes.text("/controller_epoch")?;
    let (leader, leader_epoch) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;

    cluster.broker(leader)?.process()?.pause()?;
    cluster.controller(first)?.process()?.pause()?;
    throughout("nobody is replaced", SHORT, || {
        let now = leader_in_office(&cluster, TOPIC, 0)?;
        ensure!(now == Some((leader, leader_epoch)), "now {now:?} leads");
        ensure!(active(&cluster)? == Some(first), "another controller is active");
        Ok(())
    })?;
    cluster.broker(leader)?.process()?.resume()?;
    cluster.controller(first)?.process()?.resume()?;
    traffic.wait_for_every_partition_since(now_ms(), MORE)?;
    ensure!(cluster.znodes.text("/controller_epoch")? == epoch, "the controller was replaced");

    // CTL-01: the sleeper wakes up with an election before its eyes that somebody else has made.
    cluster.controller(first)?.process()?.pause()?;
    cluster.broker(leader)?.process()?.pause()?;
    wait_for_another(&cluster, first, SESSION_TIMEOUT + Duration::from_secs(5))?;
    wait_for_other_leaders(&cluster, TOPIC, leader, START_LIMIT)?;
    let (_, elected) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
    cluster.controller(first)?.process()?.resume()?;
    cluster.broker(leader)?.process()?.resume()?;
    cluster.wait_for_full_isr(TOPIC, REPLICAS.len(), START_LIMIT)?;
    let (_, after) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
    ensure!(elected <= after, "the leader epoch went back from {elected} to {after}");
    ensure!(active(&cluster)? != Some(first), "the sleeper took its office back");
    traffic.wait_for_more("traffic goes on", 200, MORE)?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// ZooKeeper stands still, for less and for more than every session: healthy partitions go on.
fn zookeeper_stands_still(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let Some((mut cluster, mut traffic)) = start(directory, kind, &["[1,2,3]", "[2,3,1]", "[3,1,2]"])? else {
        return Ok(());
    };
    for pause in [SHORT, 2 * SESSION_TIMEOUT] {
        cluster.zookeepers[0].process()?.pause()?;
        let begun = std::time::Instant::now();
        while begun.elapsed() < pause {
            traffic.wait_for_more("healthy partitions go on", 50, MORE)?;
        }
        cluster.zookeepers[0].process()?.resume()?;
        cluster.wait_until_complete(START_LIMIT)?;
        cluster.wait_for_full_isr(TOPIC, 3, START_LIMIT)?;
        traffic.wait_for_every_partition_since(now_ms(), MORE)?;
    }
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}
