//! Analyses of whole systems by others (JEP-*), as sequences of the lab's faults.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::{TestDirectory, cluster::START_LIMIT};

use super::faults::{self, Fault};
use super::{FAULT_TIME, LAG_MS, QUEUE, Round, lab, recover, run, seed_or, with_lab};

/// How long the run without any fault lasts.
const PEACE: Duration = Duration::from_secs(20);
const LONG_PEACE: Duration = Duration::from_secs(1800);
const LONG_ROUNDS: u64 = 30;

/// The leader is cut off from its followers until it is alone in the ISR, and then dies; others take over and it comes
/// back. What it could not replicate was not acknowledged (`min.insync.replicas` is 2), so nothing may be missing.
#[test]
fn jep_01_a_leader_that_is_left_alone_acknowledges_nothing() {
    lab("jep-01", |directory| {
        with_lab(directory, seed_or(1), |lab, clients| {
            let text = lab.cluster.znodes.text(&format!("/brokers/topics/{QUEUE}/0/leader"))?;
            let leader: i32 = text.context("no leader")?.parse()?;
            let number = lab.cluster.brokers.iter().position(|node| node.id == leader);
            let number = number.context("no such broker")?;
            faults::cut_from_brokers(lab, number)?;
            let isr = format!("/brokers/topics/{QUEUE}/0/ISR");
            let alone = format!("[{leader}]");
            lab.cluster.znodes.wait_for(&isr, START_LIMIT, |isr| isr == Some(alone.as_str()))?;
            clients.keep_running(FAULT_TIME)?;
            faults::kill(&mut lab.cluster.brokers[number])?;
            let elected = format!("/brokers/topics/{QUEUE}/0/leader");
            let other = |found: Option<&str>| found.is_some_and(|found| found != leader.to_string());
            lab.cluster.znodes.wait_for(&elected, START_LIMIT, other)?;
            clients.keep_running(FAULT_TIME)?;
            recover(lab, clients)
        })
    });
}

/// Nothing fails, many work at once: the same verdict.
#[test]
fn jep_05_nothing_is_lost_where_nothing_fails() {
    lab("jep-05", |directory| in_peace(directory, PEACE));
}

#[test]
#[ignore = "takes half an hour; run by tests/run --long"]
fn jep_05_nothing_is_lost_in_half_an_hour_of_peace() {
    lab("jep-05-long", |directory| in_peace(directory, LONG_PEACE));
}

fn in_peace(directory: &TestDirectory, time: Duration) -> Result<()> {
    with_lab(directory, seed_or(1), |lab, clients| {
        clients.keep_running(time)?;
        ensure!(Duration::from_millis(LAG_MS) < time, "shorter than a follower may lag");
        recover(lab, clients)
    })
}

#[test]
#[ignore = "takes a quarter of an hour; run by tests/run --long"]
fn jep_02_no_duplicates_and_true_offsets_under_kill_and_pause() {
    rounds("jep-02", &[&[Fault::KillBroker], &[Fault::PauseBroker]]);
}

#[test]
#[ignore = "takes a quarter of an hour; run by tests/run --long"]
fn jep_03_everything_is_seen_after_moves_and_kills() {
    rounds("jep-03", &[&[Fault::Move, Fault::KillBroker], &[Fault::Move, Fault::StopBroker]]);
}

#[test]
#[ignore = "takes a quarter of an hour; run by tests/run --long"]
fn jep_04_no_aborted_record_is_read() {
    rounds(
        "jep-04",
        &[&[Fault::KillBroker], &[Fault::PauseBroker], &[Fault::IsolateBroker], &[Fault::ClockJump]],
    );
}

fn rounds(name: &str, cycle: &[&[Fault]]) {
    let faults = cycle.iter().cycle().map(|faults| faults.to_vec());
    let seeds = seed_or(1)..seed_or(1) + LONG_ROUNDS;
    let rounds: Vec<Round> = seeds.zip(faults).map(|(seed, faults)| Round { seed, faults }).collect();
    lab(name, |directory| run(directory, &rounds));
}
