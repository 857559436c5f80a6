//! The control plane against a real ZooKeeper: creation by raw znodes, failover, controlled shutdown and takeover over
//! numbers of partitions, with brokers that keep no records; failover and controlled shutdown with real brokers; and 1,000
//! topics on real brokers until each accepts a produce.

mod brokers;
mod plane;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use futures::{StreamExt as _, TryStreamExt as _};
use kafka_protocol::records::Compression;
use serde_json::json;
use tokio::runtime::Runtime;
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
    /// Numbers of partitions to measure with on three real brokers, ascending.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    broker_partitions: Vec<usize>,
    /// Failovers of a single partition on real brokers.
    #[arg(long, default_value_t = 20)]
    broker_rounds: usize,
    /// Topics of one partition that are made by raw znodes on three real brokers.
    #[arg(long, default_value_t = 1_000)]
    topics: usize,
    /// Only these measurements.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// The in-process ZooKeeper server instead of Apache's.
    #[arg(long)]
    in_process: bool,
    /// Tiny sizes: shows that everything works; the numbers mean nothing and no bar is held against them.
    #[arg(long)]
    smoke: bool,
    /// Where bench.json and bench.md go.
    #[arg(long, value_name = "DIR", default_value = "target/bench-control")]
    output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A controller and brokers that keep no records.
    Plane,
    /// Failover and controlled shutdown with real brokers.
    Brokers,
    /// Creation of topics on real brokers.
    Topics,
}

/// Of a run that only shows that it works.
fn tiny(arguments: &ControlArguments) -> ControlArguments {
    ControlArguments {
        partitions: vec![10, 20],
        rounds: 2,
        broker_partitions: vec![4, 150],
        broker_rounds: 1,
        topics: 5,
        ..arguments.clone()
    }
}

pub(crate) fn run(arguments: &ControlArguments) -> Result<()> {
    let arguments = &if arguments.smoke { tiny(arguments) } else { arguments.clone() };
    let wants = |part: Part| arguments.only.is_empty() || arguments.only.contains(&part);
    let kind = if arguments.in_process { ZooKeeperKind::InProcess } else { ZooKeeperKind::Real };
    if let Some(why) = kind.missing() {
        bail!("{why}");
    }
    let mut report = Report::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("a runtime")?;
    let mut tables = String::new();
    if wants(Part::Plane) {
        tables += &planes(&mut report, kind, arguments, &runtime)?;
    }
    if wants(Part::Brokers) {
        tables += &real_brokers(&mut report, kind, arguments, &runtime)?;
    }
    if wants(Part::Topics) && 0 < arguments.topics {
        topics(&mut report, kind, arguments.topics, &runtime)?;
    }
    let settings = json!({"zookeeper": format!("{kind:?}"), "partitions": arguments.partitions,
        "rounds": arguments.rounds, "broker_partitions": arguments.broker_partitions,
        "broker_rounds": arguments.broker_rounds, "topics": arguments.topics});
    report.write(&arguments.output, &settings)?;
    print!("{tables}");
    println!("written to {}", arguments.output.display());
    let missed = report.missed();
    if !missed.is_empty() && !arguments.smoke {
        bail!("missed:\n{}", missed.join("\n"));
    }
    Ok(())
}

/// Everything with brokers that keep no records. Returns the table of the curves.
fn planes(
    report: &mut Report,
    kind: ZooKeeperKind,
    arguments: &ControlArguments,
    runtime: &Runtime,
) -> Result<String> {
    runtime.block_on(single(report, kind, arguments.rounds))?;
    let mut curves: Vec<(usize, Costs)> = Vec::new();
    for partitions in &arguments.partitions {
        let costs = runtime.block_on(plane::measure(kind, *partitions))?;
        add(report, *partitions, &costs);
        curves.push((*partitions, costs));
    }
    for pair in curves.windows(2) {
        compare(report, &pair[0], &pair[1]);
    }
    Ok(curve_table(&curves))
}

/// What is measured on real brokers, at each number of partitions.
const MEASURED_ON_BROKERS: [&str; 5] =
    ["creation", "controlled shutdown", "until it has ended", "failover", "and acknowledged by all"];

/// Failover and shutdown with real brokers. Returns the table of the curves.
fn real_brokers(
    report: &mut Report,
    kind: ZooKeeperKind,
    arguments: &ControlArguments,
    runtime: &Runtime,
) -> Result<String> {
    if 0 < arguments.broker_rounds {
        let times = brokers::single(kind, arguments.broker_rounds, runtime)?;
        let name = "real brokers: failover of 1 partition after detection";
        report.add_latencies(name, &times, Some(Bar::Below(200.0)));
    }
    let mut curves: Vec<(usize, [Duration; 5])> = Vec::new();
    for count in &arguments.broker_partitions {
        let costs = brokers::measure(kind, *count, runtime)?;
        let bar = |seconds: f64| (*count == FAILED_OVER).then_some(Bar::Below(seconds));
        let mut row = |what: &str, time: Duration, bar: Option<Bar>| {
            report.add(format!("real brokers: {what} of {count}"), time.as_secs_f64(), "s", bar);
        };
        let (shut_down, failed_over) = (&costs.shut_down, &costs.failed_over);
        row("creation by raw znodes until all are served", costs.created, None);
        row("controlled shutdown, p50 until served again", shut_down.served.percentile(0.5), None);
        row("controlled shutdown, all served again", shut_down.served.max(), bar(3.0));
        row("controlled shutdown, metadata complete", shut_down.told, None);
        row("controlled shutdown, process ended", costs.ended, None);
        row("failover, p50 until served again", failed_over.served.percentile(0.5), None);
        row("failover, all served again", failed_over.served.max(), bar(2.0));
        row("failover, metadata complete", failed_over.told, None);
        row("failover, each acknowledged a record on all that are left", costs.acknowledged, None);
        let curve = [
            costs.created,
            shut_down.served.max(),
            costs.ended,
            failed_over.served.max(),
            costs.acknowledged,
        ];
        curves.push((*count, curve));
    }
    for pair in curves.windows(2) {
        let grown = pair[1].0 as f64 / pair[0].0 as f64;
        for (index, name) in MEASURED_ON_BROKERS.iter().enumerate() {
            let ratio = pair[1].1[index].as_secs_f64() / pair[0].1[index].as_secs_f64();
            let name = format!("real brokers, {name}: time per partition, {} over {}", pair[1].0, pair[0].0);
            report.add(name, ratio / grown, "x", Some(Bar::Below(LINEAR)));
        }
    }
    Ok(table("seconds on brokers at", MEASURED_ON_BROKERS, &curves))
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
    let times: Vec<(usize, [Duration; 5])> = curves
        .iter()
        .map(|(partitions, costs)| (*partitions, measured(*partitions, costs).map(|(_, cost)| cost.time)))
        .collect();
    table("seconds at", MEASURED, &times)
}

fn table(title: &str, names: [&str; 5], curves: &[(usize, [Duration; 5])]) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{title:<24}");
    let mut lines = names.map(|name| format!("{name:<24}"));
    for (partitions, times) in curves {
        let _ = write!(text, "{partitions:>10}");
        for (line, time) in lines.iter_mut().zip(times) {
            let _ = write!(line, "{:>10.2}", time.as_secs_f64());
        }
    }
    format!("{text}\n{}\n", lines.join("\n"))
}

/// Topics as an admin's tool makes them, one multi each, until each has acknowledged a record on all replicas.
fn topics(report: &mut Report, kind: ZooKeeperKind, count: usize, runtime: &Runtime) -> Result<()> {
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
