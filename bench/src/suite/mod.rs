//! The load harness: one command that starts fresh clusters, runs the workloads, verifies what they wrote and tells
//! every number beside its bar and the floors of the machine. With another cluster to compare to, both run every
//! workload in turns.

mod connections;
mod consume;
mod creation;
mod faults;
mod footprint;
mod load;
mod members;
mod offsets;
mod throughput;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;
use zurau_tests::{ZooKeeperKind, machine};

use crate::floors::{Effort, Floors};
use crate::report::{Bar, Floor, Report};
use crate::summary::Summary;
use crate::system::{Keys, System, Target, busy, check_versions, settle};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ZooKeeper {
    /// Apache's if it is installed, else the in-process one.
    Auto,
    Apache,
    InProcess,
}

impl ZooKeeper {
    fn kind(self) -> Result<ZooKeeperKind> {
        let kind = match self {
            Self::InProcess => ZooKeeperKind::InProcess,
            Self::Auto if ZooKeeperKind::Real.missing().is_some() => ZooKeeperKind::InProcess,
            Self::Auto | Self::Apache => ZooKeeperKind::Real,
        };
        match kind.missing() {
            Some(why) => bail!("{why}"),
            None => Ok(kind),
        }
    }
}

#[derive(Args, Debug, Clone)]
pub(crate) struct SuiteArguments {
    /// Only these workloads.
    #[arg(long, value_delimiter = ',', value_name = "W1,W2,…")]
    only: Vec<String>,
    /// Tiny sizes: shows in a minute that everything works; the numbers mean nothing and no bar is held against them.
    #[arg(long)]
    smoke: bool,
    /// How often each workload runs on each system; 1, or 2 with --against.
    #[arg(long)]
    rounds: Option<usize>,
    /// A bootstrap server of another cluster that speaks Kafka's protocol: both run each workload in turns.
    #[arg(long, value_name = "HOST:PORT")]
    against: Option<String>,
    /// Process ids of the other cluster's brokers on this machine, for their CPU and memory.
    #[arg(long, value_delimiter = ',', value_name = "PID,…", requires = "against")]
    against_pids: Vec<u32>,
    /// Every combination of partitions, record size, batch size and replicas in W1.
    #[arg(long)]
    matrix: bool,
    /// Seconds of each run at full rate, after a warm-up.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Seconds of each run at a fixed rate, after a warm-up.
    #[arg(long, default_value_t = 10)]
    paced_seconds: u64,
    #[arg(long, value_enum, default_value_t = ZooKeeper::Auto)]
    zookeeper: ZooKeeper,
    /// Where the clusters' data lies; a temporary directory if absent.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where bench.json, bench.md and the plots go.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
}

/// Sizes of a run.
#[derive(Debug, Clone, Copy)]
struct Scale {
    smoke: bool,
    matrix: bool,
    /// Warm-up and time at full rate.
    full: (Duration, Duration),
    /// The same at a fixed rate.
    paced: (Duration, Duration),
}

impl Scale {
    fn new(arguments: &SuiteArguments) -> Self {
        if arguments.smoke {
            let short = (Duration::from_millis(200), Duration::from_millis(800));
            return Self { smoke: true, matrix: false, full: short, paced: short };
        }
        let full = (Duration::from_secs(2), Duration::from_secs(arguments.seconds));
        let paced = (Duration::from_secs(3), Duration::from_secs(arguments.paced_seconds));
        Self { smoke: false, matrix: arguments.matrix, full, paced }
    }

    /// A number for a real run, or for one that only shows that it works.
    fn pick<T>(self, real: T, smoke: T) -> T {
        if self.smoke { smoke } else { real }
    }

    fn effort(self) -> Effort {
        if self.smoke { Effort { bytes: 64 << 20, syncs: 5 } } else { Effort { bytes: 4 << 30, syncs: 200 } }
    }
}

/// What a workload gets.
struct Context<'a> {
    report: &'a mut Report,
    target: &'a Target,
    /// On the disk of the clusters' data.
    directory: &'a Path,
    floors: Floors,
    scale: Scale,
}

impl Context<'_> {
    /// A fresh cluster on a machine that has nothing left to write from before.
    fn start(&mut self, brokers: i32, keys: Keys<'_>) -> Result<System> {
        make_ready(self.directory, self.scale)?;
        self.target.start(brokers, keys)
    }

    /// What the machine receives and appends at best when it is as much as a load was: after some GB whoever writes has
    /// to wait for the disk, which the floor at the start, of less, does not know.
    fn receive_and_append_as_much(&self, bytes: u64, bar: Bar) -> Result<Floor<'static>> {
        make_ready(self.directory, self.scale)?;
        let megabytes_per_second = machine::receive_and_append_rate(self.directory, bytes)?;
        Ok(Floor { name: "receive and append of as much", megabytes_per_second, bar: Some(bar) })
    }
}

struct Workload {
    name: &'static str,
    what: &'static str,
    /// It handles processes, so that only a cluster of our own will do.
    needs_own: bool,
    run: fn(&mut Context<'_>) -> Result<()>,
}

/// In the order in which they run: what measures latencies comes before what fills the page cache.
const WORKLOADS: [Workload; 14] = [
    Workload {
        name: "W2",
        what: "fixed rates: acknowledgement and end-to-end latency",
        needs_own: false,
        run: load::fixed_rates,
    },
    Workload { name: "W14", what: "idle connections", needs_own: false, run: connections::idle },
    Workload { name: "W13", what: "a group of many members", needs_own: false, run: members::group },
    Workload { name: "W15", what: "commits of offsets", needs_own: false, run: offsets::commits },
    Workload { name: "W16", what: "a coordinator loads", needs_own: true, run: offsets::load },
    Workload { name: "W9", what: "creation of many topics", needs_own: false, run: creation::topics },
    Workload {
        name: "W12",
        what: "idempotent and transactional",
        needs_own: false,
        run: throughput::guarantees,
    },
    Workload {
        name: "W11",
        what: "an fsync before each acknowledgement",
        needs_own: false,
        run: throughput::synced,
    },
    Workload { name: "W3", what: "small batches", needs_own: false, run: throughput::small_batches },
    Workload {
        name: "W1",
        what: "full rate, and W4: CPU per GB",
        needs_own: false,
        run: throughput::full_rate,
    },
    Workload { name: "W5", what: "consumers, hot and cold", needs_own: false, run: consume::consumers },
    Workload { name: "W6", what: "idle partitions", needs_own: true, run: footprint::idle },
    Workload {
        name: "W7",
        what: "from start to the first acknowledgement",
        needs_own: true,
        run: footprint::starts,
    },
    Workload {
        name: "W8",
        what: "lost and stopped brokers and controllers",
        needs_own: true,
        run: faults::all,
    },
];

fn chosen(only: &[String]) -> Result<Vec<&'static Workload>> {
    let known = |name: &&String| !WORKLOADS.iter().any(|workload| workload.name.eq_ignore_ascii_case(name));
    if let Some(unknown) = only.iter().find(known) {
        let names = WORKLOADS.map(|workload| workload.name).join(", ");
        bail!("no workload is called {unknown}; there are {names}");
    }
    let wanted = |workload: &&Workload| {
        only.is_empty() || only.iter().any(|name| workload.name.eq_ignore_ascii_case(name))
    };
    Ok(WORKLOADS.iter().filter(wanted).collect())
}

/// Whether ours (`false`) or the other's (`true`) turn it is: A/B/A/B.
fn turns(rounds: usize, compares: bool) -> Vec<bool> {
    let pair: &[bool] = if compares { &[false, true] } else { &[false] };
    pair.repeat(rounds)
}

pub(crate) fn run(arguments: &SuiteArguments) -> Result<()> {
    let workloads = chosen(&arguments.only)?;
    let compares = arguments.against.is_some();
    let rounds = arguments.rounds.unwrap_or(if compares { 2 } else { 1 });
    ensure!(rounds > 0, "--rounds must be at least 1");
    let zookeeper = arguments.zookeeper.kind()?;
    if let Some(bootstrap) = &arguments.against {
        check_versions(bootstrap)?;
    }
    let directory = match &arguments.data {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("a directory for the clusters' data")?;
    let ours = Target::Own { parent: directory.path().to_owned(), zookeeper };
    let theirs = arguments.against.as_ref().map(|bootstrap| Target::Other {
        bootstrap: bootstrap.clone(),
        pids: arguments.against_pids.clone(),
    });
    let scale = Scale::new(arguments);

    let mut reports: (Vec<Report>, Vec<Report>) = (Vec::new(), Vec::new());
    let mut machine = Report::default();
    machine.begin("machine:");
    machine.add("busy before the run", busy(Duration::from_secs(1))?, "% of all cores", None);
    let measured = floors(&mut machine, directory.path(), scale)?;
    reports.0.push(machine);
    let mut failures = Vec::new();
    for workload in workloads {
        for is_other in turns(rounds, compares) {
            let target = if is_other { theirs.as_ref().unwrap_or(&ours) } else { &ours };
            if workload.needs_own && !target.is_own() {
                continue;
            }
            let whose = if is_other { ", the other cluster" } else { "" };
            println!("\n{}: {}{whose}", workload.name, workload.what);
            let mut report = Report::default();
            report.begin(workload.name);
            let directory = directory.path();
            let mut context = Context { report: &mut report, target, directory, floors: measured, scale };
            // What was measured before a failure, and the other workloads, are told all the same.
            if let Err(error) = (workload.run)(&mut context) {
                let failure = format!("{}{whose}: {error:#}", workload.name);
                eprintln!("FAILED {failure}");
                failures.push(failure);
            }
            if is_other { reports.1.push(report) } else { reports.0.push(report) }
        }
    }
    let mut machine = Report::default();
    machine.begin("machine at the end:");
    // Whether the machine is still what it was.
    floors(&mut machine, directory.path(), scale)?;
    reports.0.push(machine);

    // BBR paces a loopback flow to a fifth of what it carries otherwise.
    let congestion_control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let settings = json!({
        "tcp_congestion_control": congestion_control.ok().map(|name| name.trim().to_owned()),
        "zookeeper": format!("{zookeeper:?}"), "rounds": rounds, "against": arguments.against,
        "warm_up_and_seconds_full": [scale.full.0.as_secs_f64(), scale.full.1.as_secs_f64()],
        "warm_up_and_seconds_paced": [scale.paced.0.as_secs_f64(), scale.paced.1.as_secs_f64()],
        "failures": failures, "smoke": arguments.smoke, "version": env!("CARGO_PKG_VERSION"),
        "between_workloads": "fresh directories; data removed, sync, then dirty pages below 64 MiB",
    });
    let (ours, theirs) = &reports;
    let summary = Summary::new(&ours.iter().collect::<Vec<_>>(), &theirs.iter().collect::<Vec<_>>());
    summary.write(&arguments.output, &settings)?;
    println!("\nwritten to {}", arguments.output.display());
    ensure!(failures.is_empty(), "failed:\n{}", failures.join("\n"));
    let missed = summary.missed();
    if !missed.is_empty() && !arguments.smoke {
        bail!("missed:\n{}", missed.join("\n"));
    }
    Ok(())
}

fn floors(report: &mut Report, directory: &Path, scale: Scale) -> Result<Floors> {
    make_ready(directory, scale)?;
    Floors::measure(report, directory, scale.effort())
}

/// Brings the machine into the state in which each measurement begins: nothing left to write, the page cache full.
fn make_ready(directory: &Path, scale: Scale) -> Result<()> {
    if !scale.smoke {
        settle()?;
        machine::fill_page_cache(directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_chosen_by_name_in_the_order_of_the_suite() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            chosen(&only).map(|found| found.iter().map(|workload| workload.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["w1", "W2"]).unwrap(), ["W2", "W1"]);
        assert_eq!(names(&[]).unwrap().len(), WORKLOADS.len());
        let error = names(&["W99"]).unwrap_err().to_string();
        assert!(error.contains("W99") && error.contains("W1"), "{error}");
    }

    #[test]
    fn two_systems_take_turns() {
        assert_eq!(turns(2, true), [false, true, false, true]);
        assert_eq!(turns(2, false), [false, false]);
    }
}
