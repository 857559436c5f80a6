//! Published failures that take a whole cluster to show, named by case.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, on_both_zookeepers};

on_both_zookeepers!(isr_01_a_version_that_moved_is_read_again, and_leaders_store_isr);
on_both_zookeepers!(ctl_15_one_of_many_creations_wins);

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
