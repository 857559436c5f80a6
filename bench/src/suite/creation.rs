//! W9: many topics at once, by the API and as an admin with nothing but a ZooKeeper shell makes them, until each takes
//! records.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest};
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::zookeeper::four_letters;

use super::Context;
use crate::probe::Probe;
use crate::system::{CREATE_TOPICS_VERSION, PATIENCE, System};

/// Topics of one request.
const AT_ONCE: usize = 100;

pub(super) fn topics(context: &mut Context<'_>) -> Result<()> {
    let count = context.scale.pick(1_000, 10);
    by_api(context, count)?;
    if context.target.is_own() {
        by_znodes(context, count)?;
    }
    Ok(())
}

fn names(way: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("bench-{}-{way}-{index}", std::process::id())).collect()
}

fn by_api(context: &mut Context<'_>, count: usize) -> Result<()> {
    let mut system = context.start(3, &[])?;
    let names = names("api", count);
    let operations = operations(&mut system);
    let start = Instant::now();
    let mut client = system.client();
    let address = client.any_address()?;
    for some in names.chunks(AT_ONCE) {
        let topic = |name: &String| {
            CreatableTopic::default()
                .with_name(topic_name(name))
                .with_num_partitions(1)
                .with_replication_factor(3)
        };
        let request = CreateTopicsRequest::default()
            .with_topics(some.iter().map(topic).collect())
            .with_timeout_ms(60_000);
        let answer = client.call(&address, CREATE_TOPICS_VERSION, &request)?;
        let refused = answer.topics.iter().find(|topic| topic.error_code != 0);
        ensure!(refused.is_none(), "creating topics: {refused:?}");
    }
    tell(context, &mut system, &names, "the API", start, operations)?;
    delete(&mut client, &names)?;
    system.finish()
}

fn delete(client: &mut KafkaClient, names: &[String]) -> Result<()> {
    let address = client.any_address()?;
    for some in names.chunks(AT_ONCE) {
        let some = some.iter().map(|name| topic_name(name)).collect();
        let request = DeleteTopicsRequest::default().with_topic_names(some).with_timeout_ms(60_000);
        let answer = client.call(&address, 4, &request)?;
        let refused = answer.responses.iter().find(|topic| topic.error_code != 0);
        ensure!(refused.is_none(), "deleting topics: {refused:?}");
    }
    Ok(())
}

fn by_znodes(context: &mut Context<'_>, count: usize) -> Result<()> {
    let mut system = context.start(3, &[])?;
    let names = names("znodes", count);
    let operations = operations(&mut system);
    let start = Instant::now();
    let znodes = &system.own()?.znodes;
    for (name, preferred) in names.iter().zip(0..) {
        let topic = format!("/brokers/topics/{name}");
        let replicas: Vec<usize> = (0..3).map(|next| 1 + (preferred + next) % 3).collect();
        znodes.create(&topic, "")?;
        znodes.create(&format!("{topic}/0"), "")?;
        znodes.create(&format!("{topic}/0/replicas"), &format!("{replicas:?}"))?;
    }
    context.report.add(
        format!("{count} topics by raw znodes: written"),
        start.elapsed().as_secs_f64(),
        "s",
        None,
    );
    tell(context, &mut system, &names, "raw znodes", start, operations)?;
    system.finish()
}

fn tell(
    context: &mut Context<'_>,
    system: &mut System,
    names: &[String],
    way: &str,
    start: Instant,
    before: Option<u64>,
) -> Result<()> {
    let mut probe = Probe::new(names.iter().map(|name| (name.clone(), 0)).collect(), None)?;
    probe.finish(&mut system.client(), PATIENCE)?;
    let count = names.len();
    let report = &mut *context.report;
    let all = probe.since(start).max().as_secs_f64();
    report.add(format!("{count} topics by {way}: all take records"), all, "s", None);
    if let Some(sum) = before.and_then(|before| operations(system)?.checked_sub(before)) {
        let each = sum as f64 / count as f64;
        report.add(format!("{count} topics by {way}: requests to ZooKeeper for each"), each, "", None);
    }
    Ok(())
}

/// Requests that ZooKeeper has received, if it is ours and says so.
fn operations(system: &mut System) -> Option<u64> {
    let address = system.own().ok()?.zookeeper_connect();
    received(&four_letters(&address, "srvr").ok()?).ok()
}

fn received(text: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Received:")).context("no line Received")?;
    Ok(line.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_requests_is_read_from_what_zookeeper_says() {
        assert_eq!(received("Zookeeper version: 3.8\nReceived: 1234\nSent: 5\n").unwrap(), 1234);
        assert!(received("Sent: 5\n").is_err());
    }
}
