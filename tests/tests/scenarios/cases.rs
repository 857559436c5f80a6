//! Published failures that take a whole cluster to show, named by case.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::records::Compression;
use zurau_tests::clients::{python_missing, python_script};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, on_both_zookeepers, scenario, skip};

on_both_zookeepers!(isr_01_a_version_that_moved_is_read_again, and_leaders_store_isr);
on_both_zookeepers!(ctl_15_one_of_many_creations_wins);

#[test]
fn cli_11_clients_go_on_with_a_topic_that_was_created_again() {
    scenario("recreated", recreated);
}

#[test]
fn cli_12_the_longest_name_works_through_its_whole_life() {
    scenario("longest-name", longest_name);
}

/// The ISR's version moves under its leader; the next change is made from the new one, without a restart.
fn isr_01_a_version_that_moved_is_read_again(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster =
        Cluster::builder().zookeeper(kind).set("replica.lag.time.max.ms", 2_000).start(directory)?;
    cluster.create_topic("t", &["[1,2,3]"])?;
    let path = "/brokers/topics/t/0/ISR";
    for _ in 0..3 {
        let text = cluster.znodes.text(path)?.context("no ISR")?;
        cluster.znodes.put(path, &text)?;
    }
    let leader = cluster.znodes.get("/brokers/topics/t/0/leader")?;
    cluster.broker(3)?.stop(Duration::from_secs(12))?;
    cluster.znodes.wait_for(path, START_LIMIT, |isr| isr == Some("[1,2]"))?;
    cluster.broker(3)?.start()?;
    cluster.wait_for_full_isr("t", 1, START_LIMIT)?;
    ensure!(cluster.znodes.get("/brokers/topics/t/0/leader")? == leader, "somebody else leads");
    cluster.check_running()
}

/// Ten creations at once through different brokers, with different numbers of partitions: one is stored, in one piece.
fn ctl_15_one_of_many_creations_wins(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    let addresses: Vec<String> = cluster.brokers.iter().map(|broker| broker.address()).collect();
    for round in 0..5 {
        let topic = format!("t{round}");
        let creations: Vec<_> = (0..10)
            .map(|number: usize| {
                let (address, topic) = (addresses[number % addresses.len()].clone(), topic.clone());
                thread::spawn(move || create(&address, &topic, if number.is_multiple_of(2) { 2 } else { 5 }))
            })
            .collect();
        let mut won = Vec::new();
        for creation in creations {
            let (error, partitions) = creation.join().ok().context("a creation panicked")??;
            ensure!(error == 0 || error == 36, "{topic}: error {error}");
            won.extend((error == 0).then_some(partitions));
        }
        ensure!(won.len() == 1, "{topic}: {} creations succeeded", won.len());
        let stored = cluster.znodes.children(&format!("/brokers/topics/{topic}"))?.len();
        ensure!(stored == won[0], "{topic}: {stored} partitions are stored, {} were created", won[0]);
        cluster.wait_for_full_isr(&topic, stored, START_LIMIT)?;
    }
    cluster.check_running()
}

/// The error, and the number of partitions that was asked for.
fn create(address: &str, topic: &str, partitions: usize) -> Result<(i16, usize)> {
    let wanted = CreatableTopic::default()
        .with_name(topic_name(topic))
        .with_num_partitions(i32::try_from(partitions)?)
        .with_replication_factor(3);
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(20_000);
    let answer = KafkaClient::new(address).call(address, 7, &request)?;
    Ok((answer.topics.first().context("the answer names no topic")?.error_code, partitions))
}

/// The new topic's leader epochs start at 0, below what clients know of the old one; its id is another.
fn recreated(directory: &TestDirectory) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("cli_11_clients_go_on_with_a_topic_that_was_created_again", &why);
        return Ok(());
    }
    let mut cluster =
        Cluster::builder().set_for_brokers("group.initial.rebalance.delay.ms", 0).start(directory)?;
    for client in ["confluent", "kafka-python"] {
        let topic = format!("again-{client}");
        cluster.create_topic(&topic, &["[1,2,3]"])?;
        let state = format!("/brokers/topics/{topic}/0/leader");
        for _ in 0..2 {
            let leader = cluster.znodes.text(&state)?.context("no leader")?.parse()?;
            cluster.broker(leader)?.stop(Duration::from_secs(12))?;
            cluster.broker(leader)?.start()?;
            cluster.wait_for_full_isr(&topic, 1, START_LIMIT)?;
        }
        let known = cluster.client().metadata(Some(&[&topic]))?;
        let epoch = known.topics[0].partitions[0].leader_epoch;
        ensure!(2 <= epoch, "{topic} is led in epoch {epoch}");
        python_script("recreated.py", &[client, &cluster.bootstrap(), &topic])?;
    }
    cluster.check_running()
}

/// 249 bytes: the directory's name must bear the suffix of a deletion too. And names that look like such a directory.
fn longest_name(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder().start(directory)?;
    let longest = "x".repeat(249);
    let deleted_once = "t-0.0123456789abcdef0123456789abcdef-delete";
    for name in [longest.as_str(), deleted_once, "t-0-future", "t-stray"] {
        let (error, _) = create(&cluster.brokers[0].address(), name, 2)?;
        ensure!(error == 0, "creating {name}: error {error}");
        cluster.wait_for_full_isr(name, 2, START_LIMIT)?;
        let mut client = cluster.client();
        let batch = encode_batch(&[b"v"], now_ms(), Compression::None)?;
        let (error, _) = client.produce(name, 0, batch, -1)?;
        ensure!(error == 0, "producing to {name}: error {error}");
        let found = client.read_partition(name, 0)?;
        ensure!(found.len() == 1, "{name}: {found:?}");
        // Its directories are found again.
        cluster.broker(1)?.stop(Duration::from_secs(12))?;
        cluster.broker(1)?.start()?;
        cluster.wait_for_full_isr(name, 2, START_LIMIT)?;
        cluster.znodes.create(&format!("/admin/delete_topics/{name}"), "")?;
        cluster.znodes.wait_for(&format!("/brokers/topics/{name}"), START_LIMIT, |found| found.is_none())?;
    }
    for name in ["a.b", "a_b"] {
        let (error, _) = create(&cluster.brokers[0].address(), name, 1)?;
        let expected = if name == "a_b" { 17 } else { 0 };
        ensure!(error == expected, "creating {name}: error {error}");
    }
    cluster.check_running()
}
