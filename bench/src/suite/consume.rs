//! W5: one topic and many consumers, hot from the page cache; and a consumer that catches up on cold data while a
//! producer goes on.

use std::fs::File;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::{Advice, fadvise};

use super::Context;
use super::load::{PARTITIONS, load, paced_plan};
use crate::fetch::{Consumer, FetchLimits, Fetched, leaders, read_until};
use crate::load::{Ledger, Pace, Plan};
use crate::report::{Bar, Report};
use crate::system::{System, files_below, settle};

/// One hot consumer, in percent of the loopback floor.
const BAR_SHARE: f64 = 80.0;
/// CPU seconds of the broker for each GB sent.
const BAR_CPU: f64 = 0.35;

pub(super) fn consumers(context: &mut Context<'_>) -> Result<()> {
    hot(context)?;
    if context.target.is_own() {
        cold(context)?;
    }
    Ok(())
}

/// Partitions with their ends.
fn ends(ledger: &Ledger) -> Vec<(i32, i64)> {
    let end = |(partition, batches): (&i32, &Vec<crate::load::Acked>)| {
        let end = batches.iter().map(|batch| batch.base_offset + batch.records as i64).max();
        (*partition, end.unwrap_or_default())
    };
    ledger.iter().map(end).collect()
}

fn write(system: &System, topic: &str, acks: i16, time: Duration) -> Result<Ledger> {
    let plan = Plan { acks, warm_up: Duration::ZERO, time, ..Plan::new(topic, PARTITIONS, Pace::Full) };
    Ok(load(system, &plan)?.tally.ledger)
}

fn hot(context: &mut Context<'_>) -> Result<()> {
    let mut system = context.start(1, &[])?;
    let topic = system.create_topic(PARTITIONS, 1, &[])?;
    let time = context.scale.pick(Duration::from_secs(2), Duration::from_millis(300));
    let ledger = write(&system, &topic, 1, time)?;
    for count in [1, 4, 8] {
        let (rate, cpu) = read_hot(&system, &topic, &ends(&ledger), count, context.scale.full)?;
        let name = format!("{count} hot consumer{}", if count == 1 { "" } else { "s" });
        let report = &mut *context.report;
        let floor = context.floors.loopback((count == 1).then_some(Bar::Above(BAR_SHARE)));
        report.add_rate(&name, rate, None, floor);
        if let Some(cpu) = cpu {
            let bar = (count == 1).then_some(Bar::Below(BAR_CPU));
            report.add(format!("{name}: CPU of the broker per GB out"), cpu, "s/GB", bar);
        }
    }
    system.finish()
}

/// MB/s of all consumers, and the broker's CPU seconds for each GB.
fn read_hot(
    system: &System,
    topic: &str,
    ends: &[(i32, i64)],
    consumers: usize,
    (warm_up, time): (Duration, Duration),
) -> Result<(f64, Option<f64>)> {
    let by_leader = leaders(&mut system.client(), topic)?;
    let from = Instant::now() + warm_up;
    let until = from + time;
    let (fetched, cpu) = thread::scope(|scope| {
        let mut running = Vec::new();
        for (address, partitions) in &by_leader {
            let own: Vec<(i32, i64)> =
                ends.iter().filter(|(partition, _)| partitions.contains(partition)).copied().collect();
            for _ in 0..consumers {
                let own = own.clone();
                running.push(scope.spawn(move || -> Result<Fetched> {
                    let mut consumer = Consumer::open(address, topic, &own, FetchLimits::default())?;
                    read_until(&mut consumer, from, until)
                }));
            }
        }
        thread::sleep(from.saturating_duration_since(Instant::now()));
        let before = system.usage()?;
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let cpu = system.usage()?.cpu - before.cpu;
        let mut bytes = 0;
        for consumer in running {
            bytes += consumer.join().map_err(|_| anyhow!("a consumer panicked"))??.bytes;
        }
        anyhow::Ok((bytes, cpu))
    })?;
    let gigabytes = fetched as f64 / 1e9;
    let cpu = system.has_processes().then_some(cpu.as_secs_f64() / gigabytes);
    Ok((gigabytes * 1000.0 / time.as_secs_f64(), cpu))
}

/// Has the page cache forget the brokers' logs, so that they are read from the disk.
fn forget(system: &mut System) -> Result<()> {
    settle()?;
    let directories: Vec<PathBuf> =
        system.own()?.brokers.iter().map(|broker| broker.data().to_owned()).collect();
    for directory in directories {
        for path in files_below(&directory, "log")? {
            let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn cold(context: &mut Context<'_>) -> Result<()> {
    let mut system = context.start(3, &[])?;
    let old = system.create_topic(PARTITIONS, 3, &[])?;
    let topic = system.create_topic(PARTITIONS, 3, &[])?;
    let time = context.scale.pick(Duration::from_secs(6), Duration::from_millis(300));
    let ledger = write(&system, &old, -1, time)?;
    forget(&mut system)?;
    // The first run on this topic is undisturbed; offsets of the second one go on behind it.
    let alone = load(&system, &paced_plan(context, &topic, 10.0, 5))?;
    let second = system.create_topic(PARTITIONS, 3, &[])?;
    forget(&mut system)?;
    let plan = paced_plan(context, &second, 10.0, 5);
    let by_leader = leaders(&mut system.client(), &old)?;
    let ends = ends(&ledger);
    let (disturbed, bytes, took) = thread::scope(|scope| {
        let catching_up = scope.spawn(|| -> Result<(u64, Duration)> {
            thread::sleep(plan.warm_up);
            let start = Instant::now();
            let mut bytes = 0;
            for (address, partitions) in &by_leader {
                let own: Vec<(i32, i64)> =
                    ends.iter().filter(|(partition, _)| partitions.contains(partition)).copied().collect();
                let mut consumer = Consumer::open(address, &old, &own, FetchLimits::default())?;
                while consumer.has_more() {
                    bytes += consumer.fetch(false)?.bytes;
                }
            }
            Ok((bytes, start.elapsed()))
        });
        let disturbed = load(&system, &plan);
        let (bytes, took) = catching_up.join().map_err(|_| anyhow!("a consumer panicked"))??;
        anyhow::Ok((disturbed?, bytes, took))
    })?;
    let report: &mut Report = context.report;
    report.add("cold catch-up", bytes as f64 / 1e6 / took.as_secs_f64(), "MB/s", None);
    report.add("cold catch-up: read", bytes as f64 / 1e9, "GB", None);
    report.add_latencies("10 MB/s, linger 5, alone", &alone.tally.latencies, None);
    report.add_latencies("10 MB/s, linger 5, beside a cold catch-up", &disturbed.tally.latencies, None);
    system.finish()
}
