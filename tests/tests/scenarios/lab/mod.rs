//! The fault lab: a whole cluster on hosts of its own (three ZooKeeper servers, two controllers, four brokers), real
//! clients at work, faults one after another, and in the end the checker's verdict on all that the clients saw.
//!
//! A run is decided by its seed, as far as processes can be: which faults, in which order, against whom. The default
//! run injects some faults once; `--long` gives every kind many seeds, and mixes them. A run prints its seed:
//! `ZURAU_LAB_SEED=n` repeats it, `ZURAU_LAB_FAULTS=KillBroker,Halves` chooses the faults of the default run.

mod clients;
mod faults;
mod random;
mod tail;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::python_missing;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::history::check_replicas_equal;
use zurau_tests::network::{Network, fake_time_library};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, scenario, skip};

use self::clients::Clients;
use self::faults::{Disks, Fault, Lab};
use self::random::Random;

/// The topic of the workload.
const QUEUE: &str = "queue";
const PARTITIONS: i32 = 3;
/// How long a fault lasts.
const FAULT_TIME: Duration = Duration::from_secs(5);
/// How long the cluster may take after a fault until every partition takes writes and every replica is in sync.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);
/// Seeds of each fault in a long run, and of the mixed ones.
const LONG_SEEDS: u64 = 20;

/// What the default run can afford: one fault of each sort, in the order of its seed.
#[test]
fn one_fault_of_each_sort() {
    let seed = seed_or(1);
    lab("lab", |directory| {
        let chosen = std::env::var("ZURAU_LAB_FAULTS").unwrap_or_default();
        let mut plan: Vec<Vec<Fault>> = if chosen.is_empty() {
            Fault::SHORT.map(|fault| vec![fault]).to_vec()
        } else {
            let wanted = |fault: &Fault| chosen.split(',').any(|name| name == format!("{fault:?}"));
            Fault::ALL.into_iter().filter(wanted).map(|fault| vec![fault]).collect()
        };
        Random::new(seed).shuffle(&mut plan);
        run(directory, seed, &plan)
    });
}

#[test]
#[ignore = "takes hours; run by tests/run --long"]
fn each_fault_with_many_seeds() {
    let first = seed_or(1);
    for fault in Fault::ALL {
        for seed in first..first + LONG_SEEDS {
            lab(&format!("lab-{fault:?}-{seed}"), |directory| run(directory, seed, &vec![vec![fault]; 3]));
        }
    }
}

#[test]
#[ignore = "takes hours; run by tests/run --long"]
fn mixed_faults_with_many_seeds() {
    let first = seed_or(1);
    for seed in first..first + LONG_SEEDS {
        lab(&format!("lab-mixed-{seed}"), |directory| {
            let mut random = Random::new(seed);
            let pair = |random: &mut Random| vec![*random.of(&Fault::ALL), *random.of(&Fault::ALL)];
            let plan: Vec<Vec<Fault>> = (0..10).map(|_| pair(&mut random)).collect();
            run(directory, seed, &plan)
        });
    }
}

fn seed_or(default: u64) -> u64 {
    std::env::var("ZURAU_LAB_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn lab(name: &str, body: impl FnOnce(&TestDirectory) -> Result<()>) {
    let missing = ZooKeeperKind::Real
        .missing()
        .or_else(python_missing)
        .or_else(Network::missing)
        .or_else(Disks::missing);
    if let Some(why) = missing {
        return skip(name, &why);
    }
    if fake_time_library().is_none() {
        skip(name, "the clock faults: libfaketime is absent (Debian's package libfaketime)");
    }
    scenario(name, body);
}

/// Runs a plan: the faults of one entry at once, the entries one after another.
fn run(directory: &TestDirectory, seed: u64, plan: &[Vec<Fault>]) -> Result<()> {
    eprintln!("seed {seed} (ZURAU_LAB_SEED={seed} repeats it); the plan: {plan:?}");
    inject(directory, seed, plan).with_context(|| format!("seed {seed}"))
}

fn inject(directory: &TestDirectory, seed: u64, plan: &[Vec<Fault>]) -> Result<()> {
    // Dropped last: processes end first, then disks, then the network.
    let mut network = Network::start(directory.path())?;
    let disks = Disks::mount(directory.path(), 4)?;
    let cluster = Cluster::builder()
        .brokers(4)
        .controllers(2)
        .set("min.insync.replicas", 2)
        .set("group.initial.rebalance.delay.ms", 0)
        .set("offsets.topic.num.partitions", 3)
        .set("log.dirs.space.soft.min.bytes", 8 << 20)
        .set("log.dirs.space.hard.min.bytes", 4 << 20)
        .set("replica.lag.time.max.ms", 6000)
        .start_on(&mut network, directory.path())?;
    cluster.create_topic(QUEUE, &["[1,2,3]", "[2,3,4]", "[3,4,1]"])?;
    let mut lab = Lab { network, disks, cluster, random: Random::new(seed) };
    let mut clients = Clients::start(&lab.cluster, directory, seed)?;
    clients.wait_for_progress(RECOVERY_LIMIT).context("before any fault")?;

    for (number, faults) in plan.iter().enumerate() {
        let begun = Instant::now();
        for fault in faults {
            fault.begin(&mut lab).with_context(|| format!("beginning {fault:?}"))?;
        }
        clients.keep_running(FAULT_TIME)?;
        let mut recover = || -> Result<()> {
            faults::heal(&mut lab)?;
            wait_for_recovery(&lab.cluster)?;
            clients.wait_for_progress(RECOVERY_LIMIT)
        };
        recover().with_context(|| format!("after {faults:?}, step {number}"))?;
        eprintln!("{faults:?}: over after {:?}", begun.elapsed());
    }
    conclude(&mut lab, clients, directory, seed)
}

fn wait_for_recovery(cluster: &Cluster) -> Result<()> {
    cluster.wait_for_full_isr(QUEUE, PARTITIONS as usize, RECOVERY_LIMIT)
}

fn conclude(lab: &mut Lab, clients: Clients, directory: &TestDirectory, seed: u64) -> Result<()> {
    let outcome = clients.finish(&lab.cluster, directory, seed)?;
    eprintln!("{:?} in {} operations", outcome.statistics, outcome.operations);
    let statistics = outcome.statistics;
    ensure!(statistics.acknowledged > 500 && statistics.read > 500, "too little happened: {statistics:?}");
    for partition in 0..PARTITIONS {
        check_replicas_equal(&lab.cluster, QUEUE, partition, START_LIMIT)?;
    }
    lab.cluster.check_running()
}
