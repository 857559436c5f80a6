//! The fault lab: a whole cluster on hosts of its own (three ZooKeeper servers, two controllers, four brokers), real
//! clients at work, faults one after another, and in the end the checker's verdict on all that the clients saw.
//!
//! A step is one or more faults at once and a seed that decides the rest: against whom, how far, for instance. The
//! default run injects some faults once; `--long` gives every fault many seeds, and mixes them. What failed is repeated
//! with `ZURAU_LAB_SEED=n ZURAU_LAB_FAULTS=KillBroker,Halves`: these faults, from that seed on, in any of the three.

mod clients;
mod faults;
mod jepsen;
mod random;
mod tail;

use std::collections::BTreeSet;
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

/// Topics of the workload: written directly and by transactions.
const QUEUE: &str = "queue";
const OUTPUT: &str = "output";
const PARTITIONS: i32 = 3;
/// Milliseconds after which a follower that lags leaves the ISR.
const LAG_MS: u64 = 6_000;
/// How long a fault lasts.
const FAULT_TIME: Duration = Duration::from_secs(5);
/// How long the cluster may take after a fault until every partition takes writes and every replica is in sync.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);
/// Seeds of each fault in a long run.
const LONG_SEEDS: u64 = 20;

/// Faults that begin together, and what decides the rest.
#[derive(Debug, Clone)]
struct Round {
    seed: u64,
    faults: Vec<Fault>,
}

/// What the default run can afford: one fault of each sort. JEP-02, JEP-03 and JEP-04 in short.
#[test]
fn one_fault_of_each_sort() {
    let rounds: Vec<Round> = chosen_or(&Fault::SHORT)
        .into_iter()
        .zip(seed_or(1)..)
        .map(|(fault, seed)| Round { seed, faults: vec![fault] })
        .collect();
    lab("lab", |directory| run(directory, &rounds));
}

#[test]
#[ignore = "takes more than an hour; run by tests/run --long"]
fn each_fault_with_many_seeds() {
    for fault in chosen_or(&Fault::ALL) {
        let seeds = seed_or(1)..seed_or(1) + LONG_SEEDS;
        let rounds: Vec<Round> = seeds.map(|seed| Round { seed, faults: vec![fault] }).collect();
        lab(&format!("lab-{fault:?}"), |directory| run(directory, &rounds));
    }
}

#[test]
#[ignore = "takes more than an hour; run by tests/run --long"]
fn mixed_faults_with_many_seeds() {
    for fault in chosen_or(&Fault::ALL) {
        let seeds = seed_or(1)..seed_or(1) + LONG_SEEDS;
        let mixed = |seed: u64| {
            let others: Vec<Fault> = Fault::ALL.into_iter().filter(|other| other.may_meet(fault)).collect();
            Round { seed, faults: vec![fault, *Random::new(seed).of(&others)] }
        };
        let rounds: Vec<Round> = seeds.map(mixed).collect();
        lab(&format!("lab-mixed-{fault:?}"), |directory| run(directory, &rounds));
    }
}

fn chosen_or(default: &[Fault]) -> Vec<Fault> {
    let chosen = std::env::var("ZURAU_LAB_FAULTS").unwrap_or_default();
    if chosen.is_empty() {
        return default.to_vec();
    }
    let is_chosen = |fault: &Fault| chosen.split(',').any(|name| name == format!("{fault:?}"));
    Fault::ALL.into_iter().filter(is_chosen).collect()
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

/// Runs the rounds one after another on one cluster, and judges all of it.
fn run(directory: &TestDirectory, rounds: &[Round]) -> Result<()> {
    let seed = rounds.first().map_or(1, |round| round.seed);
    with_lab(directory, seed, |lab, clients| {
        for round in rounds {
            let begun = Instant::now();
            lab.random = Random::new(round.seed);
            play(lab, clients, round).with_context(|| format!("{round:?}"))?;
            eprintln!("{round:?}: over after {:?}", begun.elapsed());
        }
        Ok(())
    })
}

/// A cluster with clients at work; what they saw is judged in the end.
fn with_lab(
    directory: &TestDirectory,
    seed: u64,
    body: impl FnOnce(&mut Lab, &mut Clients) -> Result<()>,
) -> Result<()> {
    // Dropped last: processes end first, then disks, then the network.
    let mut network = Network::start(directory.path())?;
    let disks = Disks::mount(directory.path(), 4)?;
    let cluster = Cluster::builder()
        .brokers(4)
        .controllers(2)
        .set("min.insync.replicas", 2)
        .set("group.initial.rebalance.delay.ms", 0)
        .set("offsets.topic.num.partitions", 3)
        .set("transaction.state.log.num.partitions", 3)
        .set("log.dirs.space.soft.min.bytes", 8 << 20)
        .set("log.dirs.space.hard.min.bytes", 4 << 20)
        .set("replica.lag.time.max.ms", LAG_MS)
        .start_on(&mut network, directory.path())?;
    for topic in [QUEUE, OUTPUT] {
        cluster.create_topic(topic, &["[1,2,3]", "[2,3,4]", "[3,4,1]"])?;
    }
    let mut lab = Lab { network, disks, cluster, random: Random::new(seed) };
    let mut clients = Clients::start(&lab.cluster, directory, seed)?;
    clients.wait_for_progress(RECOVERY_LIMIT).context("before any fault")?;
    body(&mut lab, &mut clients)?;
    conclude(&mut lab, clients, directory, seed)
}

fn play(lab: &mut Lab, clients: &mut Clients, round: &Round) -> Result<()> {
    let mut faults = round.faults.clone();
    // What writes to ZooKeeper, or asks it whom to harm, begins while it is there.
    faults.sort_by_key(|fault| matches!(fault, Fault::LoseEnsemble));
    for fault in faults {
        fault.begin(lab).with_context(|| format!("beginning {fault:?}"))?;
    }
    clients.keep_running(FAULT_TIME)?;
    recover(lab, clients)
}

/// Ends every fault, and waits until all is well again.
fn recover(lab: &mut Lab, clients: &mut Clients) -> Result<()> {
    faults::heal(lab)?;
    wait_for_recovery(&lab.cluster)?;
    clients.wait_for_progress(RECOVERY_LIMIT)
}

fn wait_for_recovery(cluster: &Cluster) -> Result<()> {
    for topic in [QUEUE, OUTPUT] {
        cluster.wait_for_full_isr(topic, PARTITIONS as usize, RECOVERY_LIMIT)?;
    }
    Ok(())
}

fn conclude(lab: &mut Lab, clients: Clients, directory: &TestDirectory, seed: u64) -> Result<()> {
    let outcome = clients.finish(&lab.cluster, directory, seed)?;
    eprintln!("{:?} in {} operations", outcome.statistics, outcome.operations);
    let statistics = outcome.statistics;
    ensure!(statistics.acknowledged > 500 && statistics.read > 500, "too little happened: {statistics:?}");
    exactly_once(&outcome.inputs, &outcome.outputs)?;
    for topic in [QUEUE, OUTPUT] {
        for partition in 0..PARTITIONS {
            check_replicas_equal(&lab.cluster, topic, partition, START_LIMIT)?;
        }
    }
    lab.cluster.check_running()
}

/// Every input was transformed once: none is missing among the committed outputs, none is there twice.
fn exactly_once(inputs: &BTreeSet<String>, outputs: &[String]) -> Result<()> {
    let mut transformed = BTreeSet::new();
    for output in outputs {
        let (input, _) = output.split_once('>').with_context(|| format!("{output:?} was not made here"))?;
        ensure!(inputs.contains(input), "{output:?} was made from what is not there");
        ensure!(transformed.insert(input), "{input:?} was transformed twice, the second time to {output:?}");
    }
    let missing: Vec<&String> =
        inputs.iter().filter(|input| !transformed.contains(input.as_str())).take(5).collect();
    ensure!(missing.is_empty(), "some inputs were never transformed: {missing:?} and perhaps more");
    Ok(())
}

#[test]
fn exactly_once_finds_what_is_missing_or_doubled() {
    let inputs = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    let verdict = |outputs: &[&str]| {
        let outputs: Vec<String> = outputs.iter().map(ToString::to_string).collect();
        exactly_once(&inputs, &outputs).is_ok()
    };
    assert!(verdict(&["a>1", "b>2"]));
    assert!(!verdict(&["a>1"]));
    assert!(!verdict(&["a>1", "b>2", "a>3"]));
    assert!(!verdict(&["a>1", "b>2", "c>3"]));
}
