//! LOG-11: one partition whose records cannot be copied holds up nobody else, whether its fetcher has all partitions or some
//! (KIP-461); and it goes on when it can.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::history::check_replicas_equal;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::wait::throughout;
use zurau_tests::{Cluster, TestDirectory, scenario};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 6;

#[test]
fn one_bad_partition_does_not_stop_the_others_of_its_fetcher() {
    scenario("one-bad-partition-one-fetcher", |directory| one_bad_partition(directory, 1));
}

#[test]
fn one_bad_partition_does_not_stop_other_fetchers() {
    scenario("one-bad-partition-three-fetchers", |directory| one_bad_partition(directory, 3));
}

fn one_bad_partition(directory: &TestDirectory, fetchers: usize) -> Result<()> {
    let mut cluster = Cluster::builder()
        .brokers(2)
        .set_for_brokers("num.replica.fetchers", fetchers)
        .set_for_brokers("replica.lag.time.max.ms", 3_000)
        .start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2]"; PARTITIONS as usize])?;
    cluster.broker(2)?.stop(Duration::from_secs(12))?;
    for partition in 0..PARTITIONS {
        let path = format!("/brokers/topics/{TOPIC}/{partition}/ISR");
        cluster.znodes.wait_for(&path, START_LIMIT, |isr| isr == Some("[1]"))?;
        for _ in 0..5 {
            let batch = encode_batch(&[&[b'x'; 1000]], now_ms(), Compression::None)?;
            let (error, _) = cluster.client().produce(TOPIC, partition, batch, 1)?;
            ensure!(error == 0, "{TOPIC}-{partition}: error {error}");
        }
    }
    let segment = cluster.broker(1)?.data().join(format!("{TOPIC}-0/00000000000000000000.log"));
    flip_last_byte(&segment)?;
    cluster.broker(2)?.start()?;
    for partition in 1..PARTITIONS {
        let path = format!("/brokers/topics/{TOPIC}/{partition}/ISR");
        cluster.znodes.wait_for(&path, START_LIMIT, |isr| isr == Some("[1,2]"))?;
        let batch = encode_batch(&[b"goes on"], now_ms(), Compression::None)?;
        let (error, _) = cluster.client().produce(TOPIC, partition, batch, -1)?;
        ensure!(error == 0, "{TOPIC}-{partition}: error {error}");
    }
    throughout("the damaged records are not copied", Duration::from_secs(2), || {
        let isr = cluster.znodes.text(&format!("/brokers/topics/{TOPIC}/0/ISR"))?;
        ensure!(isr.as_deref() == Some("[1]"), "the ISR is {isr:?}");
        Ok(())
    })?;
    flip_last_byte(&segment)?;
    cluster.wait_for_full_isr(TOPIC, PARTITIONS as usize, START_LIMIT)?;
    check_replicas_equal(&cluster, TOPIC, 0, Duration::from_secs(20))?;
    cluster.check_running()
}

fn flip_last_byte(path: &Path) -> Result<()> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let at = text.iter().rposition(|byte| *byte != 0).context("there are no records")?;
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&[text[at] ^ 1], at as u64)?;
    Ok(())
}
