//! W14: what connections cost that do nothing, and whether they disturb those that do something.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use zurau_tests::kafka::{Connection, api_versions_request};

use super::Context;
use super::load::{PARTITIONS, load, paced_plan};
use crate::report::Bar;
use crate::system::System;

/// KiB of resident memory of the broker for each idle connection.
const BAR_KIB: f64 = 20.0;

pub(super) fn idle(context: &mut Context<'_>) -> Result<()> {
    cost(context)?;
    disturbance(context)
}

/// Connections that have asked what the broker can do, as every client does first, and then stay silent.
fn open(system: &System, count: usize) -> Result<Vec<Connection>> {
    let brokers = system.client().metadata(Some(&[]))?.brokers;
    let addresses = brokers.iter().map(|broker| format!("{}:{}", broker.host.as_str(), broker.port));
    let addresses: Vec<String> = addresses.collect();
    (0..count)
        .map(|index| {
            let mut connection = Connection::open(&addresses[index % addresses.len()])?;
            connection.call(3, &api_versions_request())?;
            Ok(connection)
        })
        .collect()
}

fn cost(context: &mut Context<'_>) -> Result<()> {
    let count = context.scale.pick(5_000, 50);
    let system = context.start(1, &[])?;
    // What the first connections bring into memory is not theirs.
    drop(open(&system, 20)?);
    let before = system.usage()?;
    let connections = open(&system, count)?;
    thread::sleep(context.scale.pick(Duration::from_secs(1), Duration::ZERO));
    let after = system.usage()?;
    drop(connections);
    if system.has_processes() {
        let kib = (after.resident.saturating_sub(before.resident)) as f64 / 1024.0 / count as f64;
        context.report.add(format!("{count} idle connections"), kib, "KiB each", Some(Bar::Below(BAR_KIB)));
    }
    system.finish()
}

fn disturbance(context: &mut Context<'_>) -> Result<()> {
    let count = context.scale.pick(2_000, 20);
    for idle in [0, count] {
        let mut system = context.start(3, &[])?;
        let topic = system.create_topic(PARTITIONS, 3, &[])?;
        let connections = open(&system, idle)?;
        let loaded = load(&system, &paced_plan(context, &topic, 10.0, 5))?;
        drop(connections);
        let name = format!("10 MB/s, linger 5, beside {idle} idle connections");
        context.report.add_latencies(&name, &loaded.tally.latencies, None);
        system.finish()?;
    }
    Ok(())
}
