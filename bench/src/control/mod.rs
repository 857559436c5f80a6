//! The control plane against a real ZooKeeper: creation by raw znodes, failover, controlled shutdown and takeover over
//! numbers of partitions; and 1,000 topics on real brokers until each accepts a produce.

mod host;
mod plane;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use kafka_protocol::records::Compression;
use serde_json::json;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, ZooKeeperKind};

use crate::report::{Bar, Report};
use plane::{Plane, Times};

/// Nothing that is measured may take longer.
const LIMIT: Duration = Duration::from_secs(300);
/// What the bars are meant for.
const FAILED_OVER: usize = 10_000;
const TAKEN_OVER: usize = 50_000;

#[derive(Args, Debug, Clone)]
pub(crate) struct ControlArguments {
    /// Numbers of partitions to measure with, ascending.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 50_000])]
    partitions: Vec<usize>,
    /// Failovers of a single partition.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Topics of one partition that are made by raw znodes on three real brokers.
    #[arg(long, default_value_t = 1_000)]
    topics: usize,
    /// The in-process ZooKeeper server instead of Apache's.
    #[arg(long)]
    in_process: bool,
    /// Where bench.json and bench.md go.
    #[arg(long, value_name = "DIR", default_value = "target/bench-control")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &ControlArguments) -> Result<()> {
    let kind = if arguments.in_process { ZooKeeperKind::InProcess } else { ZooKeeperKind::Real };
    if let Some(why) = kind.missing() {
        bail!("{why}");
    }
    let mut report = Report::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("a runtime")?;
    runtime.block_on(single(&mut report, kind, arguments.rounds))?;
    let mut curves: Vec<(usize, Times)> = Vec::new();
    for partitions in &arguments.partitions {
        let times = runtime.block_on(plane::measure(kind, *partitions))?;
        add(&mut report, *partitions, &times);
        curves.push((*partitions, times));
    }
    for pair in curves.windows(2) {
        compare(&mut report, &pair[0], &pair[1]);
    }
    topics(&mut report, kind, arguments.topics)?;
    let settings = json!({"zookeeper": format!("{kind:?}"), "partitions": arguments.partitions,
        "rounds": arguments.rounds, "topics": arguments.topics});
    report.write(&arguments.output, &settings)?;
    println!("written to {}", arguments.output.display());
    let missed = report.missed();
    if !missed.is_empty() {
        bail!("missed:\n{}", missed.join("\n"));
    }
    Ok(())
}

/// Failover of one partition, again and again.
async fn single(report: &mut Report, kind: ZooKeeperKind, rounds: usize) -> Result<()> {
    let mut plane = Plane::start(kind, 2).await?;
    plane.create(1).await?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        times.push(plane.fail_over_leader_of_first().await?);
    }
    times.sort();
    report.add_times("failover of 1 partition after detection", &times, Some(Bar::Below(200.0)));
    plane.stop()
}

fn add(report: &mut Report, partitions: usize, times: &Times) {
    let bar = |at: usize, seconds: f64| (partitions == at).then_some(Bar::Below(seconds));
    let led = times.led;
    let mut row = |what: String, time: Duration, bar| report.add(what, time.as_secs_f64(), "s", bar);
    row(format!("{partitions} partitions by raw znodes until all lead"), times.created, None);
    row(format!("controlled shutdown of {led} leaders"), times.shut_down, bar(FAILED_OVER, 3.0));
    row(format!("failover of {led} partitions after detection"), times.failed_over, bar(FAILED_OVER, 2.0));
    row(format!("takeover with {partitions} partitions, warm"), times.warm, bar(TAKEN_OVER, 1.0));
    row(format!("takeover with {partitions} partitions, cold"), times.cold, bar(TAKEN_OVER, 5.0));
}

/// Growth of a time over the growth of the number: above 1 it is worse than linear.
fn compare(report: &mut Report, small: &(usize, Times), large: &(usize, Times)) {
    let grown = large.0 as f64 / small.0 as f64;
    let names = ["creation", "controlled shutdown", "failover", "warm takeover", "cold takeover"];
    let pairs = small.1.all().into_iter().zip(large.1.all());
    for (name, (before, after)) in names.into_iter().zip(pairs) {
        let ratio = after.as_secs_f64() / before.as_secs_f64() / grown;
        report.add(format!("{name}: time per partition, {} over {}", large.0, small.0), ratio, "x", None);
    }
}

/// Topics as an admin makes them, until each has acknowledged a record on all replicas.
fn topics(report: &mut Report, kind: ZooKeeperKind, count: usize) -> Result<()> {
    let directory = tempfile::tempdir().context("a directory for the cluster")?;
    let mut cluster = Cluster::builder().zookeeper(kind).start_in(directory.path())?;
    let start = Instant::now();
    for index in 0..count {
        let topic = format!("/brokers/topics/topic-{index}");
        let preferred = index % 3;
        let replicas: Vec<usize> = (0..3).map(|next| 1 + (preferred + next) % 3).collect();
        cluster.znodes.create(&topic, "")?;
        cluster.znodes.create(&format!("{topic}/0"), "")?;
        cluster.znodes.create(&format!("{topic}/0/replicas"), &format!("{replicas:?}"))?;
    }
    let written = start.elapsed();
    let mut client = cluster.client();
    for index in 0..count {
        let batch = encode_batch(&[b"first"], now_ms(), Compression::None)?;
        loop {
            ensure!(start.elapsed() < LIMIT, "topic-{index} accepts no record");
            if let Ok((0, _)) = client.produce(&format!("topic-{index}"), 0, batch.clone(), -1) {
                break;
            }
        }
    }
    let accepted = start.elapsed();
    report.add(format!("{count} topics: znodes written after"), written.as_secs_f64(), "s", None);
    let bar = (count == 1_000).then_some(Bar::Below(10.0));
    report.add(format!("{count} topics: all accept a produce after"), accepted.as_secs_f64(), "s", bar);
    cluster.check_running()
}
