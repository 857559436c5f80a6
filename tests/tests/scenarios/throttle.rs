//! RSN-11: a reassignment under a replication throttle is slow, completes, and leaves the ISRs of others alone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::metrics::Metrics;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, eventually, scenario};

const MIB: usize = 1 << 20;
/// Bytes to move, and bytes a second.
const MOVED: usize = 6 * MIB;
const RATE: usize = MIB;
const LAG: &str = "kafka_server_fetcherlagmetrics_consumerlag{clientid=\"ReplicaFetcherThread-0-1\",topic=\"moved\",partition=\"0\"}";

#[test]
fn rsn_11_a_throttled_move_is_slow_and_completes() {
    scenario("rsn-11-a-throttled-move", |directory| throttled_move(directory, "leader"));
}

#[test]
fn rsn_11_a_move_throttled_by_the_follower_is_slow_and_completes() {
    scenario("rsn-11-throttled-by-the-follower", |directory| throttled_move(directory, "follower"));
}

fn throttled_move(directory: &TestDirectory, side: &str) -> Result<()> {
    let mut cluster = Cluster::builder()
        .set_for_brokers("replica.lag.time.max.ms", 2_000)
        .set_for_brokers("replica.fetch.max.bytes", 256 << 10)
        .set_for_brokers("http.metrics.partitions", true)
        .start(directory)?;
    cluster.create_topic("moved", &["[1]"])?;
    cluster.create_topic("other", &["[1,2,3]"])?;
    fill(&cluster, "moved", MOVED)?;
    let (broker, rate) = (if side == "leader" { 1 } else { 2 }, RATE.to_string());
    let entry =
        |key: String, value: &str| serde_json::json!({"version": 1, "config": {key: value}}).to_string();
    // What is in sync counts, but never waits: the other topic is throttled too.
    for topic in ["moved", "other"] {
        let replicas = if topic == "moved" { format!("0:{broker}") } else { "*".to_owned() };
        let throttled = entry(format!("{side}.replication.throttled.replicas"), &replicas);
        cluster.znodes.put(&format!("/config/topics/{topic}"), &throttled)?;
    }
    let throttled = entry(format!("{side}.replication.throttled.rate"), &rate);
    cluster.znodes.put(&format!("/config/brokers/{broker}"), &throttled)?;
    eventually("the throttle is in force", Duration::from_secs(20), || {
        let log = cluster.broker(broker)?.log_text();
        Ok((log.matches("configuration changed").count() >= 3).then_some(()))
    })?;
    let isr_before = cluster.znodes.get("/brokers/topics/other/0/ISR")?;
    let start = Instant::now();
    cluster.znodes.put("/brokers/topics/moved/0/replicas", "[2]")?;
    let metrics =
        |cluster: &Cluster, broker: usize| Metrics::get(&cluster.brokers[broker - 1].http_address());
    eventually("the new replica tells how far it is behind", Duration::from_secs(20), || {
        let lag = metrics(&cluster, 2)?.value(LAG);
        Ok(lag.is_ok_and(|lag| 0.0 < lag).then_some(()))
    })?;
    let mut client = cluster.client();
    let small = encode_batch(&[&[b'x'; 1000]], now_ms(), Compression::None)?;
    eventually("the move is complete", Duration::from_secs(90), || {
        let (error, _) = client.produce("other", 0, small.clone(), -1)?;
        ensure!(error == 0, "error {error}");
        let leaving = cluster.znodes.text("/brokers/topics/moved/0/leaving")?;
        let isr = cluster.znodes.text("/brokers/topics/moved/0/ISR")?;
        Ok((isr.as_deref() == Some("[2]") && leaving.is_none()).then_some(()))
    })?;
    let took = start.elapsed();
    let least = Duration::from_secs((MOVED / RATE) as u64) / 2;
    ensure!(least < took, "{MOVED} bytes at {RATE} a second took {took:?}");
    let name = "kafka_server_brokertopicmetrics_reassignmentbytes";
    let (moved_out, moved_in) = (format!("{name}out_total"), format!("{name}in_total"));
    for (broker, sample, moves) in
        [(1, &moved_out, true), (2, &moved_in, true), (1, &moved_in, false), (3, &moved_in, false)]
    {
        let found = metrics(&cluster, broker)?.value(sample)?;
        let expected = if moves { MOVED as f64 } else { 0.0 };
        // Some percent more are headers of batches.
        ensure!((expected..=expected * 1.1).contains(&found), "{sample} of broker {broker} is {found}");
    }
    let isr_after = cluster.znodes.get("/brokers/topics/other/0/ISR")?;
    ensure!(isr_before == isr_after, "the ISR of another partition moved: {isr_before:?}, {isr_after:?}");
    eventually("the copy is gone", START_LIMIT, || {
        Ok((!cluster.broker(1)?.data().join("moved-0").exists()).then_some(()))
    })?;
    cluster.check_running()
}

/// Writes so many bytes to the first partition, in records of 128 KiB.
pub(crate) fn fill(cluster: &Cluster, topic: &str, bytes: usize) -> Result<()> {
    let mut client = cluster.client();
    let value = vec![b'x'; 128 << 10];
    for _ in 0..bytes / value.len() {
        let batch = encode_batch(&[&value], now_ms(), Compression::None)?;
        let (error, _) = client.produce(topic, 0, batch, -1)?;
        ensure!(error == 0, "error {error}");
    }
    Ok(())
}
