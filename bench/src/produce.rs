//! The produce benchmark: floors of the machine, idle memory, full rate, fixed rate, cold start; everything written is
//! read back.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, machine};

use crate::cold_start::{self, create_topic};
use crate::full_rate::{self, Plan};
use crate::paced::{self, PacedPlan};
use crate::report::{Bar, Report, milliseconds};
use crate::verify::read_back;

/// User data at full rate with 16 partitions, replication 3, acks=all.
const BAR_MEGABYTES: f64 = 100.0;
/// p99 of the produce latency at 5 MB/s.
const BAR_P99_MS: f64 = 10.0;
const BAR_IDLE_MIB: f64 = 30.0;
const BAR_COLD_START_S: f64 = 2.0;
/// The bar of the latency is meant for this rate.
const BAR_RATE: f64 = 5.0;

#[derive(Args, Debug, Clone)]
pub(crate) struct ProduceArguments {
    /// Brokers, all on this machine.
    #[arg(long, default_value_t = 3)]
    brokers: i32,
    /// Copies of each partition.
    #[arg(long, default_value_t = 3)]
    replicas: i16,
    /// Numbers of partitions to measure at full rate.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 1])]
    partitions: Vec<i32>,
    /// Bytes of each record's value.
    #[arg(long, default_value_t = 1024)]
    record_bytes: usize,
    /// Bytes of a full batch; librdkafka's default.
    #[arg(long, default_value_t = 1_000_000)]
    batch_bytes: usize,
    /// Requests in flight on each connection at full rate.
    #[arg(long, default_value_t = 5)]
    in_flight: usize,
    /// Seconds at full rate, after two seconds of warm-up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Fixed rates in MB/s of user data.
    #[arg(long, value_delimiter = ',', default_values_t = [5.0])]
    rates: Vec<f64>,
    /// Seconds at each fixed rate, after five seconds of warm-up.
    #[arg(long, default_value_t = 20)]
    paced_seconds: u64,
    /// How long a paced producer collects records for a batch.
    #[arg(long, default_value_t = 1)]
    linger_ms: u64,
    /// Memory to touch first, in GB: a page cache on memory never used before is several times slower.
    #[arg(long, default_value_t = 8)]
    touch_gb: u64,
    /// Leave out the cold start of `zurau dev`.
    #[arg(long)]
    no_cold_start: bool,
    /// Where the cluster's data lies; a temporary directory if absent.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where bench.json and bench.md go.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &ProduceArguments) -> Result<()> {
    let directory = match &arguments.data {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("a directory for the cluster's data")?;
    let mut report = Report::default();
    floors(&mut report, directory.path(), arguments.touch_gb)?;
    for partitions in &arguments.partitions {
        let folder = directory.path().join(format!("full-{partitions}"));
        full_rate_run(&mut report, &folder, arguments, *partitions)?;
    }
    for rate in &arguments.rates {
        paced_run(&mut report, &directory.path().join(format!("paced-{rate}")), arguments, *rate)?;
    }
    if !arguments.no_cold_start {
        let times = cold_start::measure(directory.path())?;
        report.add("zurau dev: ready after", times.ready.as_secs_f64(), "s", None);
        let bar = Some(Bar::Below(BAR_COLD_START_S));
        let first = times.first_acknowledged.as_secs_f64();
        report.add("zurau dev: first acknowledged record after", first, "s", bar);
    }
    let settings = json!({
        "brokers": arguments.brokers, "replicas": arguments.replicas, "acks": "all",
        "record_bytes": arguments.record_bytes, "batch_bytes": arguments.batch_bytes,
        "in_flight": arguments.in_flight, "seconds": arguments.seconds, "linger_ms": arguments.linger_ms,
    });
    report.write(&arguments.output, &settings)?;
    println!("written to {}", arguments.output.display());
    let missed = report.missed();
    if !missed.is_empty() {
        bail!("missed:\n{}", missed.join("\n"));
    }
    Ok(())
}

fn floors(report: &mut Report, directory: &Path, touch_gb: u64) -> Result<()> {
    machine::touch_memory(directory, touch_gb << 30)?;
    report.add("machine: loopback TCP, one flow", machine::loopback_rate(4 << 30)?, "MB/s", None);
    report.add("machine: page-cache append", machine::append_rate(directory, 2 << 30)?, "MB/s", None);
    let sync = milliseconds(machine::sync_time(directory, 200)?);
    report.add("machine: append 4 KiB + fdatasync, median", sync, "ms", None);
    let block = vec![7_u8; 64 << 20];
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..8 {
        sum ^= crc32c::crc32c(std::hint::black_box(&block));
    }
    std::hint::black_box(sum);
    let rate = (8 * block.len()) as f64 / 1e6 / start.elapsed().as_secs_f64();
    report.add("machine: CRC32C", rate, "MB/s", None);
    Ok(())
}

fn start(directory: &Path, brokers: i32) -> Result<Cluster> {
    std::fs::create_dir_all(directory)?;
    Cluster::builder()
        .brokers(brokers)
        .set("zookeeper.session.timeout.ms", 18_000)
        .set("min.insync.replicas", 2.min(brokers))
        .start_in(directory)
}

fn cpu_time(cluster: &mut Cluster) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for broker in &mut cluster.brokers {
        sum += broker.process()?.cpu_time()?;
    }
    Ok(sum)
}

/// The largest of the brokers' resident sets, in MiB.
fn resident(cluster: &mut Cluster) -> Result<f64> {
    let mut largest = 0;
    for broker in &mut cluster.brokers {
        largest = largest.max(broker.process()?.resident_bytes()?);
    }
    Ok(largest as f64 / f64::from(1 << 20))
}

fn full_rate_run(
    report: &mut Report,
    directory: &Path,
    arguments: &ProduceArguments,
    partitions: i32,
) -> Result<()> {
    let mut cluster = start(directory, arguments.brokers)?;
    thread::sleep(Duration::from_secs(2));
    let name = format!("{partitions} partitions");
    report.add(
        format!("{name}: idle memory of a broker"),
        resident(&mut cluster)?,
        "MiB",
        Some(Bar::Below(BAR_IDLE_MIB)),
    );
    let mut client = cluster.client();
    create_topic(&mut client, &cluster.bootstrap(), "load", partitions, arguments.replicas)?;
    cluster.wait_for_full_isr("load", usize::try_from(partitions)?, START_LIMIT)?;
    let plan = Plan {
        topic: "load".to_owned(),
        partitions,
        record_bytes: arguments.record_bytes,
        batch_bytes: arguments.batch_bytes,
        in_flight: arguments.in_flight,
        warm_up: Duration::from_secs(2),
        time: Duration::from_secs(arguments.seconds),
    };
    let cpu_before = cpu_time(&mut cluster)?;
    let result = full_rate::run(&mut client, &plan)?;
    let cpu = cpu_time(&mut cluster)? - cpu_before;
    let is_measured = partitions == 16 && arguments.replicas == 3 && arguments.record_bytes == 1024;
    let bar = is_measured.then_some(Bar::Above(BAR_MEGABYTES));
    report.add(format!("{name}: user data"), result.megabytes_per_second, "MB/s", bar);
    report.add_times(&format!("{name}: request"), &result.request_times, None);
    let per_gigabyte = cpu.as_secs_f64() / (result.bytes as f64 / 1e9);
    report.add(format!("{name}: CPU of all brokers"), per_gigabyte, "s/GB", None);
    report.add(format!("{name}: memory of a broker after it"), resident(&mut cluster)?, "MiB", None);
    let count = read_back(&mut client, "load", &result.written)?;
    report.add(format!("{name}: records verified"), count as f64, "", None);
    drop(cluster);
    std::fs::remove_dir_all(directory).context("removing the data of one run")
}

fn paced_run(report: &mut Report, directory: &Path, arguments: &ProduceArguments, rate: f64) -> Result<()> {
    const PARTITIONS: i32 = 16;
    let mut cluster = start(directory, arguments.brokers)?;
    let mut client = cluster.client();
    create_topic(&mut client, &cluster.bootstrap(), "paced", PARTITIONS, arguments.replicas)?;
    cluster.wait_for_full_isr("paced", PARTITIONS as usize, START_LIMIT)?;
    let plan = PacedPlan {
        topic: "paced".to_owned(),
        partitions: PARTITIONS,
        record_bytes: arguments.record_bytes,
        bytes_per_second: rate * 1e6,
        linger: Duration::from_millis(arguments.linger_ms),
        warm_up: Duration::from_secs(5),
        time: Duration::from_secs(arguments.paced_seconds),
    };
    let cpu_before = cpu_time(&mut cluster)?;
    let result = paced::run(&mut client, &plan)?;
    let cpu = cpu_time(&mut cluster)? - cpu_before;
    let name = format!("{rate} MB/s");
    let is_measured = (rate - BAR_RATE).abs() < f64::EPSILON && arguments.replicas == 3;
    let bar = is_measured.then_some(Bar::Below(BAR_P99_MS));
    report.add_times(&format!("{name}: produce latency"), &result.latencies, bar);
    let share = cpu.as_secs_f64() / (plan.warm_up + plan.time).as_secs_f64() * 100.0;
    report.add(format!("{name}: CPU of all brokers"), share, "% of a core", None);
    let count = read_back(&mut client, "paced", &result.written)?;
    report.add(format!("{name}: records verified"), count as f64, "", None);
    drop(cluster);
    std::fs::remove_dir_all(directory).context("removing the data of one run")
}
