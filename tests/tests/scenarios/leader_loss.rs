//! Leaders are killed, stopped and frozen while real clients write and read. Nothing acknowledged may be lost,
//! doubled or moved, and leadership moves in time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use serde_json::Value;
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::{SESSION_TIMEOUT, START_LIMIT};
use zurau_tests::history::check_replicas_equal;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, scenario, skip};

use crate::traffic::Traffic;
use crate::tree;

on_both_zookeepers!(a_killed_leader_loses_nothing, and_leaders_store_isr);
on_both_zookeepers!(a_frozen_leader_is_replaced_and_fenced, and_leaders_store_isr);
on_both_zookeepers!(a_restart_of_everything_changes_nothing, and_leaders_store_isr);
on_both_zookeepers!(a_departure_that_nobody_saw_is_made_up_for, and_leaders_store_isr);

const TOPIC: &str = "t";
const PARTITIONS: i32 = 3;
const REPLICAS: [&str; 3] = ["[1,2,3]", "[2,3,1]", "[3,1,2]"];

/// Who is recorded as the leader of a partition and has taken office, and in which epoch.
pub(crate) fn leader_in_office(cluster: &Cluster, topic: &str, partition: i32) -> Result<Option<(i32, i64)>> {
    let path = format!("/brokers/topics/{topic}/{partition}");
    let Some(state) = cluster.znodes.get(&format!("{path}/state"))? else { return Ok(None) };
    let Some(leader) = cluster.znodes.get(&format!("{path}/leader"))? else { return Ok(None) };
    let value: Value = serde_json::from_str(&state.text).context("reading state")?;
    let epoch = value["leader_epoch"].as_i64().context("no leader epoch")?;
    let holder: i32 = leader.text.parse().context("reading leader")?;
    let in_office = leader.czxid > state.mzxid && value["leader"] == holder;
    Ok(in_office.then_some((holder, epoch)))
}

/// Waits until somebody else leads every partition that `lost` led, and says how long it took.
pub(crate) fn wait_for_other_leaders(
    cluster: &Cluster,
    topic: &str,
    lost: i32,
    limit: Duration,
) -> Result<Duration> {
    let start = Instant::now();
    for partition in 0..PARTITIONS {
        let what = format!("another leader of {topic}-{partition}");
        eventually(&what, limit.saturating_sub(start.elapsed()), || {
            let leader = leader_in_office(cluster, topic, partition)?;
            Ok(leader.filter(|(leader, _)| *leader != lost))
        })?;
    }
    Ok(start.elapsed())
}

fn start(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<Cluster> {
    let builder = Cluster::builder().zookeeper(kind).set("min.insync.replicas", 2);
    let cluster = builder.start(directory)?;
    cluster.create_topic(TOPIC, &REPLICAS)?;
    Ok(cluster)
}

fn a_killed_leader_loses_nothing(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("a_killed_leader_loses_nothing", &why);
        return Ok(());
    }
    let mut cluster = start(directory, kind)?;
    let mut traffic = Traffic::start(&cluster, directory, TOPIC, PARTITIONS)?;
    for _round in 0..2 {
        let (leader, _) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
        kill_and_return(&mut cluster, &mut traffic, leader)?;
    }
    hand_over(&mut cluster, &mut traffic)?;
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

fn kill_and_return(cluster: &mut Cluster, traffic: &mut Traffic, victim: i32) -> Result<()> {
    cluster.broker(victim)?.kill()?;
    let took = wait_for_other_leaders(cluster, TOPIC, victim, START_LIMIT)?;
    eprintln!("broker {victim} killed: every partition has another leader after {took:?}");
    let bound = SESSION_TIMEOUT + Duration::from_secs(1);
    ensure!(took <= bound, "leadership moved after {took:?}, later than {bound:?}");
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(30))?;
    cluster.broker(victim)?.start()?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
    traffic.wait_for_more("traffic goes on", 200, Duration::from_secs(30))
}

/// HW-16: SIGTERM: leadership moves before the process ends, with next to no gap; then the broker returns.
fn hand_over(cluster: &mut Cluster, traffic: &mut Traffic) -> Result<()> {
    let (leader, _) = leader_in_office(cluster, TOPIC, 0)?.context("no leader")?;
    let took = cluster.broker(leader)?.stop(Duration::from_secs(10))?;
    let moved = wait_for_other_leaders(cluster, TOPIC, leader, Duration::from_secs(1))?;
    eprintln!("broker {leader} stopped in {took:?}, every partition led by others {moved:?} later");
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(15))?;
    cluster.broker(leader)?.start()?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)
}

/// HW-04, ISR-03: SIGSTOP for longer than the session timeout: the others go on; the old leader wakes up in an old epoch and must
/// find its way back without a trace.
fn a_frozen_leader_is_replaced_and_fenced(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("a_frozen_leader_is_replaced_and_fenced", &why);
        return Ok(());
    }
    let mut cluster = start(directory, kind)?;
    let mut traffic = Traffic::start(&cluster, directory, TOPIC, PARTITIONS)?;
    let (leader, epoch) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
    cluster.broker(leader)?.process()?.pause()?;
    let took = wait_for_other_leaders(&cluster, TOPIC, leader, START_LIMIT)?;
    eprintln!("broker {leader} frozen: every partition has another leader after {took:?}");
    traffic.wait_for_every_partition_since(now_ms(), Duration::from_secs(60))?;
    cluster.broker(leader)?.process()?.resume()?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
    traffic.wait_for_more("traffic goes on", 200, Duration::from_secs(60))?;
    let (_, now) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
    ensure!(now > epoch, "the leader epoch is still {now}");
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// CTL-13, HW-02: all brokers at once, first asked, then with kill -9 and started again before their sessions have ended:
/// what the cluster holds does not change.
fn a_restart_of_everything_changes_nothing(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = start(directory, kind)?;
    let mut before = Vec::new();
    for partition in 0..PARTITIONS {
        for number in 0..50 {
            let value = format!("{partition} {number}");
            let batch = encode_batch(&[value.as_bytes()], now_ms(), Compression::Zstd)?;
            let (error, offset) = cluster.client().produce(TOPIC, partition, batch, -1)?;
            ensure!((error, offset) == (0, number), "{TOPIC}-{partition}: error {error}, offset {offset}");
        }
        before.push(cluster.client().read_partition(TOPIC, partition)?);
    }
    for violent in [false, true] {
        for id in 1..=3 {
            let broker = cluster.broker(id)?;
            if violent { broker.kill()? } else { broker.stop(Duration::from_secs(12)).map(|_| ())? }
        }
        for id in 1..=3 {
            cluster.broker(id)?.start()?;
        }
        cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
        for (partition, before) in (0..).zip(&before) {
            // The ISR was full all along; the leader may still be on its way into office.
            let after = eventually("the partition can be read", START_LIMIT, || {
                cluster.client().read_partition(TOPIC, partition).map(Some)
            })?;
            ensure!(after == *before, "{TOPIC}-{partition} changed (killed: {violent}): {after:?}");
            check_replicas_equal(&cluster, TOPIC, partition, Duration::from_secs(20))?;
        }
    }
    cluster.check_running()
}

/// A long run: brokers are killed again and again, any of them, sometimes while another is still catching up.
#[test]
#[ignore = "long: several minutes; tests/run --long"]
fn brokers_are_killed_again_and_again() {
    scenario("kill-again", |directory| {
        let mut cluster = start(directory, ZooKeeperKind::InProcess)?;
        let mut traffic = Traffic::start(&cluster, directory, TOPIC, PARTITIONS)?;
        for round in 0..20 {
            let victim = 1 + (round * 2 + round / 3) % 3;
            kill_and_return(&mut cluster, &mut traffic, victim).with_context(|| format!("round {round}"))?;
        }
        traffic.finish_and_check(&cluster)
    });
}

/// A follower that lost records leaves the ISR by itself when it starts again (D1). If it is back before anybody has seen
/// it go, its leader learns of it all the same, and takes it in again (N1).
fn a_departure_that_nobody_saw_is_made_up_for(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let cluster = Cluster::builder().zookeeper(kind).set("min.insync.replicas", 2).start(directory)?;
    cluster.create_topic(TOPIC, &REPLICAS)?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
    let before: Vec<_> = (0..PARTITIONS)
        .map(|partition| leader_in_office(&cluster, TOPIC, partition))
        .collect::<Result<_>>()?;
    // What broker 3 stores in that case.
    for (partition, left) in [(0, "[1,2]"), (1, "[2,1]")] {
        cluster.znodes.put(&format!("/brokers/topics/{TOPIC}/{partition}/ISR"), left)?;
    }
    for partition in 0..PARTITIONS {
        let isr = format!("/brokers/topics/{TOPIC}/{partition}/ISR");
        cluster.znodes.wait_for(&isr, START_LIMIT, |isr| {
            isr.and_then(|isr| tree::ids(isr).ok()).is_some_and(|isr| isr.len() == 3)
        })?;
        let now = leader_in_office(&cluster, TOPIC, partition)?;
        ensure!(now == before[partition as usize], "partition {partition} is led by {now:?} now");
    }
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)
}
