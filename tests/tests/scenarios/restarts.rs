//! Starting and stopping as a container engine does it: in any order, one by one under load, and with topics that the
//! environment asks for.

use std::time::Duration;

use anyhow::{Result, ensure};
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, scenario, skip};

use crate::traffic::Traffic;

on_both_zookeepers!(a_rolling_restart_fails_no_produce);

const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Every process once, under load: each ends within ten seconds, and no record with acks=all is refused for good.
fn a_rolling_restart_fails_no_produce(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("a_rolling_restart_fails_no_produce", &why);
        return Ok(());
    }
    let builder = Cluster::builder().zookeeper(kind).controllers(2).set("min.insync.replicas", 2);
    let mut cluster = builder.start(directory)?;
    cluster.create_topic("t", &["[1,2,3]", "[2,3,1]", "[3,1,2]"])?;
    let mut traffic = Traffic::start(&cluster, directory, "t", 3)?;
    for id in 1..=3 {
        let took = cluster.broker(id)?.stop(STOP_LIMIT)?;
        eprintln!("broker {id} stopped in {took:?}");
        cluster.broker(id)?.start()?;
        cluster.wait_for_full_isr("t", 3, START_LIMIT)?;
        traffic.wait_for_more("traffic goes on", 100, Duration::from_secs(30))?;
    }
    for id in 1..=2 {
        let took = cluster.controller(id)?.stop(STOP_LIMIT)?;
        eprintln!("controller {id} stopped in {took:?}");
        traffic.wait_for_more("traffic goes on", 50, Duration::from_secs(30))?;
        cluster.controller(id)?.start()?;
        cluster.wait_until_complete(START_LIMIT)?;
    }
    traffic.finish_and_check(&cluster)?;
    cluster.check_running()
}

/// Brokers and controllers come before ZooKeeper: they say what they wait for, can be stopped meanwhile, and go on when
/// it is there.
#[test]
fn everything_waits_for_zookeeper() {
    scenario("waits-for-zookeeper", |directory| {
        let mut cluster = Cluster::builder().brokers(2).start(directory)?;
        for node in cluster.brokers.iter_mut().chain(&mut cluster.controllers) {
            node.stop(STOP_LIMIT)?;
        }
        cluster.zookeepers[0].kill()?;
        for node in cluster.brokers.iter_mut().chain(&mut cluster.controllers) {
            node.start()?;
            eventually("it says what it waits for", START_LIMIT, || {
                Ok(node.log_text().contains("cannot be reached").then_some(()))
            })?;
        }
        for id in 1..=2 {
            cluster.broker(id)?.stop(STOP_LIMIT)?;
            cluster.broker(id)?.start()?;
        }
        cluster.zookeepers[0].restart()?;
        cluster.wait_until_complete(START_LIMIT)
    });
}

/// `KAFKA_CREATE_TOPICS`, told to every broker, at every start.
#[test]
fn topics_of_the_environment_are_created_once() {
    scenario("create-topics", |directory| {
        let topics = "a:2:3,\n b:1:2:compact\n";
        let builder = Cluster::builder().environment("KAFKA_CREATE_TOPICS", topics);
        let mut cluster = builder.environment("KAFKA_HEAP_OPTS", "-Xmx1G").start(directory)?;
        cluster.wait_for_full_isr("a", 2, START_LIMIT)?;
        cluster.wait_for_full_isr("b", 1, START_LIMIT)?;
        let config = cluster.znodes.text("/config/topics/b")?.unwrap_or_default();
        ensure!(config.contains(r#""cleanup.policy":"compact""#), "the configuration of b is {config}");
        let before = cluster.znodes.tree("/brokers/topic_ids")?;

        let broker = cluster.broker(1)?;
        broker.stop(STOP_LIMIT)?;
        broker.start()?;
        eventually("the broker has seen that the topics exist", START_LIMIT, || {
            let log = broker.log_text();
            Ok((log.matches("of KAFKA_CREATE_TOPICS exists").count() >= 2).then_some(()))
        })?;
        ensure!(broker.log_text().contains("there is no JVM: KAFKA_HEAP_OPTS"), "JVM variables are not told");
        ensure!(cluster.znodes.tree("/brokers/topic_ids")? == before, "a topic was created again");
        cluster.check_running()
    });
}
