//! KIP-392: consumers read from an in-sync replica in their rack, as librdkafka does it.

use std::time::Duration;

use anyhow::{Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::clients::{python_missing, python_script};
use zurau_tests::cluster::{SESSION_TIMEOUT, START_LIMIT};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, eventually, scenario, skip};

const TOPIC: &str = "t";

#[test]
fn consumers_read_in_their_rack() {
    if let Some(why) = python_missing() {
        return skip("consumers_read_in_their_rack", &why);
    }
    scenario("consumers-read-in-their-rack", run);
}

fn produce(cluster: &Cluster, count: usize) -> Result<()> {
    for number in 0..count {
        let batch = encode_batch(&[format!("{number}").as_bytes()], now_ms(), Compression::None)?;
        eventually("a record is acknowledged", START_LIMIT, || {
            let (error, _) = cluster.client().produce(TOPIC, 0, batch.clone(), -1)?;
            ensure!(error == 0, "error {error}");
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// Reads everything with librdkafka in a rack, and expects to be served by a broker.
fn read(cluster: &Cluster, rack: &str, count: usize, from: i32) -> Result<()> {
    let (count, from) = (count.to_string(), from.to_string());
    python_script("rack_reads.py", &[&cluster.bootstrap(), TOPIC, rack, &count, &from]).map(|_| ())
}

fn run(directory: &TestDirectory) -> Result<()> {
    let mut builder = Cluster::builder()
        .set_for_brokers("replica.selector.class", "rack-aware")
        .set_for_brokers("replica.lag.time.max.ms", 2_000);
    for id in 1..=3 {
        builder = builder.set_for_broker(id, "broker.rack", format!("rack-{id}"));
    }
    let mut cluster = builder.start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2,3]"])?;
    produce(&cluster, 50)?;
    for (rack, from) in [("rack-1", 1), ("rack-2", 2), ("rack-3", 3), ("rack-9", 1), ("", 1)] {
        read(&cluster, rack, 50, from)?;
    }
    // A replica that is not in sync is offered to nobody: the leader serves its rack.
    cluster.broker(3)?.process()?.pause()?;
    cluster.znodes.wait_for("/brokers/topics/t/0/ISR", START_LIMIT, |isr| isr == Some("[1,2]"))?;
    read(&cluster, "rack-3", 50, 1)?;
    cluster.broker(3)?.process()?.resume()?;
    cluster.wait_for_full_isr(TOPIC, 1, START_LIMIT)?;
    // The leader dies while a follower serves: the consumer goes on with whoever leads then.
    cluster.broker(1)?.kill()?;
    cluster.znodes.wait_for(
        "/brokers/topics/t/0/leader",
        SESSION_TIMEOUT + Duration::from_secs(10),
        |leader| leader.is_some_and(|leader| leader != "1"),
    )?;
    produce(&cluster, 10)?;
    read(&cluster, "rack-3", 60, 3)?;
    cluster.broker(1)?.start()?;
    cluster.wait_for_full_isr(TOPIC, 1, START_LIMIT)?;
    cluster.check_running()
}
