//! Topics come and go by znodes alone and by real clients; the tree is the documented one.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::clients::{python_missing, python_script};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, skip};

use crate::tree;

on_both_zookeepers!(topics_by_znodes_only);
on_both_zookeepers!(topics_by_clients);

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;

/// Writes one record to every partition and reads it back.
fn write_and_read(cluster: &Cluster, topic: &str, partitions: i32) -> Result<()> {
    let mut client = cluster.client();
    for partition in 0..partitions {
        let value = format!("{topic} {partition}");
        let batch = encode_batch(&[value.as_bytes()], now_ms(), Compression::None)?;
        let (error, offset) = client.produce(topic, partition, batch, -1)?;
        ensure!((error, offset) == (0, 0), "{topic}-{partition}: error {error}, offset {offset}");
        let records = client.read_partition(topic, partition)?;
        ensure!(records.len() == 1 && records[0].value == value, "{topic}-{partition}: {records:?}");
    }
    Ok(())
}

fn topics_by_znodes_only(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    tree::check_cluster(&cluster)?;

    cluster.create_topic("plain", &["[1,2,3]", "[2,3,1]"])?;
    tree::check_fresh_topic(&cluster, "plain", &[&[1, 2, 3], &[2, 3, 1]])?;
    write_and_read(&cluster, "plain", 2)?;

    any_order_and_any_spelling(&cluster)?;
    by_zookeepers_own_shell(&cluster)?;
    partitions_are_added(&cluster)?;
    deleted_both_ways(&cluster)?;
    cluster.check_running()
}

/// Partition 1 is complete long before partition 0; sets are written as people type them.
fn any_order_and_any_spelling(cluster: &Cluster) -> Result<()> {
    let znodes = &cluster.znodes;
    znodes.create("/brokers/topics/odd", "")?;
    znodes.create("/brokers/topics/odd/1", "")?;
    znodes.create("/brokers/topics/odd/1/replicas", "{3,1}")?;
    // Another topic goes through the whole controller meanwhile: 1 had its chance to start too early.
    cluster.create_topic("between", &["1 2"])?;
    ensure!(znodes.get("/brokers/topics/odd/1/state")?.is_none(), "partition 1 started before partition 0");
    znodes.create("/brokers/topics/odd/0", "")?;
    znodes.create("/brokers/topics/odd/0/replicas", "2,3")?;
    cluster.wait_for_full_isr("odd", 2, START_LIMIT)?;
    tree::check_fresh_topic(cluster, "odd", &[&[2, 3], &[3, 1]])?;
    write_and_read(cluster, "odd", 2)
}

/// zkCli.sh of Apache ZooKeeper, driven by its standard input as an admin would type.
fn by_zookeepers_own_shell(cluster: &Cluster) -> Result<()> {
    if let Some(why) = ZooKeeperKind::Real.missing() {
        skip("topics_by_znodes_only: zkCli.sh", &why);
        return Ok(());
    }
    let mut shell = Command::new("java")
        .args(["-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.ZooKeeperMain", "-server"])
        .arg(cluster.zookeeper_connect())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting ZooKeeper's shell")?;
    let commands = "create /brokers/topics/typed\ncreate /brokers/topics/typed/0\n\
                    create /brokers/topics/typed/0/replicas {1,2,3}\nquit\n";
    shell.stdin.take().context("its input")?.write_all(commands.as_bytes())?;
    shell.wait()?;
    cluster.wait_for_full_isr("typed", 1, START_LIMIT)?;
    tree::check_fresh_topic(cluster, "typed", &[&[1, 2, 3]])?;
    write_and_read(cluster, "typed", 1)
}

fn partitions_are_added(cluster: &Cluster) -> Result<()> {
    cluster.znodes.create("/brokers/topics/plain/2", "")?;
    cluster.znodes.create("/brokers/topics/plain/2/replicas", "[3,1,2]")?;
    cluster.wait_for_full_isr("plain", 3, START_LIMIT)?;
    tree::check_fresh_topic(cluster, "plain", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]])
}

/// By `/admin/delete_topics`, and by removing the topic's node by hand. A recreated topic is another one.
fn deleted_both_ways(cluster: &Cluster) -> Result<()> {
    let plain = tree::topic_id(cluster, "plain")?;
    cluster.znodes.create("/admin/delete_topics/plain", "")?;
    tree::check_gone(cluster, "plain", &plain)?;

    let between = tree::topic_id(cluster, "between")?;
    cluster.znodes.delete("/brokers/topics/between")?;
    tree::check_gone(cluster, "between", &between)?;
    expect_unknown(cluster, "plain")?;
    expect_unknown(cluster, "between")?;

    cluster.create_topic("plain", &["[1,2,3]"])?;
    tree::check_fresh_topic(cluster, "plain", &[&[1, 2, 3]])?;
    ensure!(tree::topic_id(cluster, "plain")? != plain, "the recreated topic has its old id");
    write_and_read(cluster, "plain", 1)
}

fn expect_unknown(cluster: &Cluster, topic: &str) -> Result<()> {
    let mut client = cluster.client();
    eventually(&format!("no broker knows {topic}"), Duration::from_secs(10), || {
        for broker in &cluster.brokers {
            let answer = client.metadata_from(&broker.address(), Some(&[topic]))?;
            let error = answer.topics.first().map(|topic| topic.error_code);
            ensure!(error == Some(UNKNOWN_TOPIC_OR_PARTITION), "{}: {error:?}", broker.address());
        }
        Ok(Some(()))
    })
}

fn topics_by_clients(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("topics_by_clients", &why);
        return Ok(());
    }
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    for client in ["confluent", "kafka-python"] {
        create_grow_delete(&cluster, client).with_context(|| format!("with {client}"))?;
    }
    cluster.check_running()
}

fn create_grow_delete(cluster: &Cluster, client: &str) -> Result<()> {
    let bootstrap = cluster.bootstrap();
    let topics = |arguments: &[&str]| -> Result<String> {
        let mut all = vec![client, &bootstrap];
        all.extend(arguments);
        Ok(String::from_utf8(python_script("topics.py", &all)?)?)
    };
    let topic = format!("by-{client}");
    topics(&["create", &topic, "4", "3"])?;
    check_placement(cluster, &topic, 4)?;
    write_and_read(cluster, &topic, 4)?;

    topics(&["grow", &topic, "6"])?;
    cluster.wait_for_full_isr(&topic, 6, START_LIMIT)?;
    check_placement(cluster, &topic, 6)?;
    let described = topics(&["describe", &topic])?;
    ensure!(described.lines().count() == 6, "{client} sees\n{described}");
    for line in described.lines() {
        ensure!(line.ends_with(" 1,2,3"), "{client} sees an ISR that is not full:\n{described}");
    }

    topics(&["refused", &topic, "1", "1", "TOPIC_ALREADY_EXISTS"])?;
    topics(&["refused", "too-many-copies", "1", "4", "INVALID_REPLICATION_FACTOR"])?;
    topics(&["refused", "no-partitions", "0", "1", "INVALID_PARTITIONS"])?;
    if client == "confluent" {
        // kafka-python refuses such a name itself.
        topics(&["refused", "not a name", "1", "1", "TOPIC_EXCEPTION"])?;
    }

    let id = tree::topic_id(cluster, &topic)?;
    topics(&["delete", &topic])?;
    tree::check_gone(cluster, &topic, &id)?;
    expect_unknown(cluster, &topic)
}

/// Each partition has three different replicas and the leaders are spread: with three brokers and at least three
/// partitions each broker leads some.
fn check_placement(cluster: &Cluster, topic: &str, partitions: usize) -> Result<()> {
    let replicas: Vec<Vec<i64>> = (0..partitions)
        .map(|partition| {
            let path = format!("/brokers/topics/{topic}/{partition}/replicas");
            let text = cluster.znodes.text(&path)?.with_context(|| format!("{path} is missing"))?;
            serde_json::from_str(&text).with_context(|| format!("{path} is '{text}'"))
        })
        .collect::<Result<_>>()?;
    let lists: Vec<&[i64]> = replicas.iter().map(Vec::as_slice).collect();
    tree::check_fresh_topic(cluster, topic, &lists)?;
    for list in &lists {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        ensure!(sorted == [1, 2, 3], "replicas {list:?} of a partition with three copies");
    }
    for broker in 1..=3 {
        let leads = lists.iter().filter(|list| list[0] == broker).count();
        ensure!(leads >= 1, "broker {broker} leads nothing of {lists:?}");
    }
    Ok(())
}
