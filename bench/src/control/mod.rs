//! The control plane against a real ZooKeeper: creation by raw znodes, failover, controlled shutdown and takeover over
//! numbers of partitions; and 1,000 topics on real brokers until each accepts a produce.

mod plane;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _};
use kafka_protocol::records::Compression;
use serde_json::json;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, ZooKeeperKind};

use crate::report::{Bar, Report};
use plane::{Cost, Costs, Plane, session};

/// Nothing that is measured may take longer.
const LIMIT: Duration = Duration::from_secs(300);
/// What the bars are meant for.
const FAILED_OVER: usize = 10_000;
const TAKEN_OVER: usize = 50_000;
/// Topics that are being written at a time.
const WRITTEN_AT_ONCE: usize = 16;
/// Clients that produce to the new topics side by side, and their pause after a refusal.
const PRODUCERS: usize = 16;
const PRODUCE_PAUSE: Duration = Duration::from_millis(5);
/// A curve is linear if a partition of the larger cluster costs at most so many times what one of the smaller one does:
/// as much as the machine's noise.
const LINEAR: f64 = 1.25;

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
    let mut curves: Vec<(usize, Costs)> = Vec::new();
    for partitions in &arguments.partitions {
        let costs = runtime.block_on(plane::measure(kind, *partitions))?;
        add(&mut report, *partitions, &costs);
        curves.push((*partitions, costs));
    }
    for pair in curves.windows(2) {
        compare(&mut report, &pair[0], &pair[1]);
    }
    if 0 < arguments.topics {
        topics(&mut report, kind, arguments.topics, &runtime)?;
    }
    let settings = json!({"zookeeper": format!("{kind:?}"), "partitions": arguments.partitions,
        "rounds": arguments.rounds, "topics": arguments.topics});
    report.write(&arguments.output, &settings)?;
    print!("{}", curve_table(&curves));
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

/// What is measured at each number of partitions.
const MEASURED: [&str; 5] = ["creation", "controlled shutdown", "failover", "warm takeover", "cold takeover"];

/// The costs in the order of [`MEASURED`], each with the number of partitions that it is in proportion to.
fn measured(partitions: usize, costs: &Costs) -> [(usize, Cost); 5] {
    [
        (partitions, costs.created),
        (costs.led, costs.shut_down),
        (costs.led, costs.failed_over),
        (partitions, costs.warm),
        (partitions, costs.cold),
    ]
}

fn add(report: &mut Report, partitions: usize, costs: &Costs) {
    let bar = |at: usize, seconds: f64| (partitions == at).then_some(Bar::Below(seconds));
    let led = costs.led;
    let mut row = |what: String, cost: Cost, bar: Option<Bar>| {
        report.add(&*what, cost.time.as_secs_f64(), "s", bar);
        if bar.is_some() {
            report.add(
                format!("  CPU of the controllers: {what}"),
                cost.controllers.as_secs_f64(),
                "s",
                None,
            );
            report.add(format!("  CPU of ZooKeeper: {what}"), cost.zookeeper.as_secs_f64(), "s", None);
        }
    };
    row(format!("{partitions} partitions by raw znodes until all lead"), costs.created, None);
    row(format!("controlled shutdown of {led} of {partitions}"), costs.shut_down, bar(FAILED_OVER, 3.0));
    row(format!("failover of {led} of {partitions}"), costs.failed_over, bar(FAILED_OVER, 2.0));
    row(format!("takeover with {partitions} partitions, warm"), costs.warm, bar(TAKEN_OVER, 1.0));
    row(format!("takeover with {partitions} partitions, cold"), costs.cold, bar(TAKEN_OVER, 5.0));
}

/// Growth of a time over the growth of the number that it is in proportion to. Where that number is the same, a larger
/// cluster shall be no worse than in proportion to its size.
fn compare(report: &mut Report, small: &(usize, Costs), large: &(usize, Costs)) {
    let pairs = measured(small.0, &small.1).into_iter().zip(measured(large.0, &large.1));
    for (name, ((few, before), (many, after))) in MEASURED.into_iter().zip(pairs) {
        let ratio = after.time.as_secs_f64() / before.time.as_secs_f64();
        let (what, grown, bar) = match many as f64 / few as f64 {
            1.0 => ("time", 1.0, LINEAR * large.0 as f64 / small.0 as f64),
            grown => ("time per partition", grown, LINEAR),
        };
        let name = format!("{name}: {what}, {} over {}", large.0, small.0);
        report.add(name, ratio / grown, "x", Some(Bar::Below(bar)));
    }
}

/// Seconds by number of partitions.
fn curve_table(curves: &[(usize, Costs)]) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{:<24}", "seconds at");
    let mut lines = MEASURED.map(|name| format!("{name:<24}"));
    for (partitions, costs) in curves {
        let _ = write!(text, "{partitions:>10}");
        for (line, (_, cost)) in lines.iter_mut().zip(measured(*partitions, costs)) {
            let _ = write!(line, "{:>10.2}", cost.time.as_secs_f64());
        }
    }
    format!("{text}\n{}\n", lines.join("\n"))
}

/// Topics as an admin's tool makes them, one multi each, until each has acknowledged a record on all replicas.
fn topics(
    report: &mut Report,
    kind: ZooKeeperKind,
    count: usize,
    runtime: &tokio::runtime::Runtime,
) -> Result<()> {
    let directory = tempfile::tempdir().context("a directory for the cluster")?;
    let mut cluster = Cluster::builder().zookeeper(kind).start_in(directory.path())?;
    let admin = runtime.block_on(session(&cluster.zookeepers[0].address()))?;
    let create = |path: String, data: String| Op::Create {
        path,
        data: data.into_bytes(),
        lifetime: Lifetime::Persistent,
    };
    let topic = |index: usize| {
        let topic = format!("/brokers/topics/topic-{index}");
        let replicas: Vec<usize> = (0..3).map(|next| 1 + (index + next) % 3).collect();
        [
            create(topic.clone(), String::new()),
            create(format!("{topic}/0"), String::new()),
            create(format!("{topic}/0/replicas"), format!("{replicas:?}")),
        ]
    };
    let start = Instant::now();
    let writing = futures::stream::iter(0..count)
        .map(|index| {
            let admin = admin.clone();
            async move { admin.multi(&topic(index)).await }
        })
        .buffer_unordered(WRITTEN_AT_ONCE);
    runtime.block_on(writing.try_for_each(async |_| Ok(()))).context("writing topics")?;
    let written = start.elapsed();
    // As the producers of many applications, each with topics of its own.
    std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|first| {
                let mut client = cluster.client();
                scope.spawn(move || -> Result<()> {
                    for index in (first..count).step_by(PRODUCERS) {
                        let batch = encode_batch(&[b"first"], now_ms(), Compression::None)?;
                        while !matches!(
                            client.produce(&format!("topic-{index}"), 0, batch.clone(), -1),
                            Ok((0, _))
                        ) {
                            ensure!(start.elapsed() < LIMIT, "topic-{index} accepts no record");
                            std::thread::sleep(PRODUCE_PAUSE);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for producer in producers {
            producer.join().map_err(|_| anyhow!("a producer panicked"))??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    let accepted = start.elapsed();
    report.add(format!("{count} topics: znodes written after"), written.as_secs_f64(), "s", None);
    let bar = (count == 1_000).then_some(Bar::Below(10.0));
    report.add(format!("{count} topics: all accept a produce after"), accepted.as_secs_f64(), "s", bar);
    cluster.check_running()
}
