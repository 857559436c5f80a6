//! W6: what idle brokers and partitions cost; W7: how long brokers take from their start to the first acknowledgement.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::Context;
use crate::cold_start;
use crate::load::{Pace, Plan};
use crate::probe::{Probe, all_of};
use crate::report::{Bar, milliseconds};
use crate::system::{PATIENCE, System, Usage};

const BAR_IDLE_MIB: f64 = 30.0;
/// Of resident memory for each idle partition.
const BAR_PARTITION_KIB: f64 = 8.0;
const BAR_COLD_START_S: f64 = 2.0;
/// Brokers that were killed cannot return before their sessions have ended.
const SESSION_TIMEOUT_MS: &str = "6000";
/// Partitions of one topic.
const TOPIC_MAX: i32 = 1_000;

/// Creates partitions with three replicas until there are so many.
fn grow(system: &mut System, topics: &mut Vec<(String, i32)>, partitions: i32) -> Result<()> {
    let mut there: i32 = topics.iter().map(|(_, partitions)| partitions).sum();
    while there < partitions {
        let more = (partitions - there).min(TOPIC_MAX);
        topics.push((system.create_topic(more, 3, &[])?, more));
        there += more;
    }
    Ok(())
}

fn idle_cpu(system: &System, time: Duration) -> Result<f64> {
    let before = system.usage()?.cpu;
    thread::sleep(time);
    Ok((system.usage()?.cpu - before).as_secs_f64() / time.as_secs_f64() * 100.0)
}

/// W6.
pub(super) fn idle(context: &mut Context<'_>) -> Result<()> {
    let numbers = context.scale.pick([1_000, 5_000], [6, 12]);
    let time = context.scale.pick(Duration::from_secs(3), Duration::from_millis(300));
    let mut system = context.start(3, &[])?;
    thread::sleep(time);
    let alone = system.usage()?;
    let mebibytes = |usage: &Usage| usage.resident as f64 / f64::from(1 << 20);
    context.report.add("idle broker", mebibytes(&alone), "MiB", Some(Bar::Below(BAR_IDLE_MIB)));
    context.report.add("idle: CPU of all brokers", idle_cpu(&system, time)?, "% of a core", None);
    let mut topics = Vec::new();
    for partitions in numbers {
        let start = Instant::now();
        grow(&mut system, &mut topics, partitions)?;
        let report = &mut *context.report;
        let name = format!("{partitions} partitions of three replicas");
        report.add(format!("{name}: created and in sync"), start.elapsed().as_secs_f64(), "s", None);
        thread::sleep(time);
        let usage = system.usage()?;
        report.add(format!("{name}: memory of a broker"), mebibytes(&usage), "MiB", None);
        let each = usage.resident.saturating_sub(alone.resident) as f64 / 1024.0 / f64::from(partitions);
        let bar = (partitions == numbers[1]).then_some(Bar::Below(BAR_PARTITION_KIB));
        report.add(format!("{name}: memory for each"), each, "KiB", bar);
        report.add(format!("{name}: maps of a broker"), usage.maps as f64, "", None);
        report.add(format!("{name}: open files of a broker"), usage.descriptors as f64, "", None);
        report.add(format!("{name}: threads of a broker"), usage.threads as f64, "", None);
        report.add(format!("{name}: CPU of all brokers"), idle_cpu(&system, time)?, "% of a core", None);
    }
    system.finish()
}

/// W7.
pub(super) fn starts(context: &mut Context<'_>) -> Result<()> {
    let directory = tempfile::tempdir().context("a directory for zurau dev")?;
    dev(context, directory.path())?;
    let partitions = context.scale.pick(5_000, 12);
    let keys = [("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS)];
    let mut system = context.start(3, &keys)?;
    let mut topics = vec![(system.create_topic(1, 3, &[])?, 1)];
    restart(context, &mut system, &topics, "1 partition, clean", Signal::TERM)?;
    grow(&mut system, &mut topics, partitions)?;
    restart(context, &mut system, &topics, &format!("{partitions} partitions, clean"), Signal::TERM)?;
    let (topic, of_topic) = topics.last().cloned().context("no topic")?;
    let time = context.scale.pick(Duration::from_secs(4), Duration::from_millis(300));
    let plan = Plan {
        warm_up: Duration::ZERO,
        time,
        batch_bytes: 128 << 10,
        ..Plan::new(&topic, of_topic, Pace::Full)
    };
    write_unverified(&system, &plan)?;
    restart(
        context,
        &mut system,
        &topics,
        &format!("{partitions} partitions, killed under load"),
        Signal::KILL,
    )?;
    system.finish()
}

/// The probes have written into the topic before, so that its offsets are not those of a ledger.
fn write_unverified(system: &System, plan: &Plan) -> Result<()> {
    let tally = crate::load::run(&mut system.client(), plan)?;
    println!("wrote {:.2} GB", (tally.all_records * plan.record_bytes as u64) as f64 / 1e9);
    Ok(())
}

fn dev(context: &mut Context<'_>, directory: &Path) -> Result<()> {
    let times = cold_start::measure(directory)?;
    let report = &mut *context.report;
    report.add("zurau dev: ready", times.ready.as_secs_f64(), "s", None);
    let bar = Some(Bar::Below(BAR_COLD_START_S));
    report.add("zurau dev: first acknowledged record", times.first_acknowledged.as_secs_f64(), "s", bar);
    Ok(())
}

/// Ends all brokers at once, starts them again, and waits until every partition has acknowledged a record.
fn restart(
    context: &mut Context<'_>,
    system: &mut System,
    topics: &[(String, i32)],
    name: &str,
    signal: Signal,
) -> Result<()> {
    let brokers = &mut system.own()?.brokers;
    for broker in brokers.iter_mut() {
        broker.process()?.signal(signal)?;
    }
    for broker in brokers.iter_mut() {
        broker.wait_for_end(PATIENCE)?;
    }
    let start = Instant::now();
    for broker in brokers.iter_mut() {
        broker.start()?;
    }
    system.find_processes()?;
    let pending = topics.iter().flat_map(|(topic, partitions)| all_of(topic, *partitions)).collect();
    let mut probe = Probe::new(pending, None)?;
    probe.finish(&mut system.client(), PATIENCE)?;
    let times = probe.since(start);
    let report = &mut *context.report;
    report.add(
        format!("{name}: first acknowledgement"),
        milliseconds(times.percentile(0.0)) / 1000.0,
        "s",
        None,
    );
    report.add(format!("{name}: all partitions"), milliseconds(times.max()) / 1000.0, "s", None);
    for (topic, partitions) in topics {
        system.wait_for_topic(topic, *partitions)?;
    }
    Ok(())
}
