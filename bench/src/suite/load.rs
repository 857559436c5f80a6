//! One load on one topic with everything around it: what the brokers used, whether all of it is there afterwards; and
//! the workload of fixed rates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use super::Context;
use crate::fetch::{Arrivals, follow};
use crate::histogram::Histogram;
use crate::load::{Pace, Plan, Tally, run};
use crate::report::Bar;
use crate::system::System;
use crate::verify::read_back;

/// What a load achieved and cost.
pub(super) struct Loaded {
    pub(super) tally: Tally,
    /// CPU seconds of all brokers for each GB of user data, if their processes are known.
    pub(super) cpu_per_gigabyte: Option<f64>,
    /// Of a core.
    pub(super) cpu_percent: Option<f64>,
    /// User bytes per second.
    pub(super) megabytes_per_second: f64,
    pub(super) verified: u64,
}

/// Loads a topic and reads everything back.
///
/// # Errors
/// Something was refused, or is not there afterwards.
pub(super) fn load(system: &System, plan: &Plan) -> Result<Loaded> {
    let mut client = system.client();
    let before = system.usage()?;
    let start = Instant::now();
    let tally = run(&mut client, plan)?;
    let took = start.elapsed();
    let cpu = (system.usage()?.cpu - before.cpu).as_secs_f64();
    let verified = read_back(&mut client, &plan.topic, &tally.ledger)?;
    let gigabytes = (tally.all_records * plan.record_bytes as u64) as f64 / 1e9;
    let known = system.has_processes();
    Ok(Loaded {
        cpu_per_gigabyte: known.then_some(cpu / gigabytes),
        cpu_percent: known.then_some(cpu / took.as_secs_f64() * 100.0),
        megabytes_per_second: tally.rate() * plan.record_bytes as f64 / 1e6,
        verified,
        tally,
    })
}

impl Loaded {
    /// Megabytes of user data in each second.
    pub(super) fn series(&self, plan: &Plan) -> Vec<f64> {
        let megabytes = |records: &u64| (*records * plan.record_bytes as u64) as f64 / 1e6;
        self.tally.per_second.iter().map(megabytes).collect()
    }
}

/// A fixed rate on 16 partitions with three replicas.
pub(super) fn paced_plan(context: &Context<'_>, topic: &str, megabytes: f64, linger_ms: u64) -> Plan {
    let mut plan = Plan::new(topic, PARTITIONS, Pace::Rate { bytes_per_second: megabytes * 1e6 });
    plan.linger = Duration::from_millis(linger_ms);
    (plan.warm_up, plan.time) = context.scale.paced;
    plan
}

pub(super) const PARTITIONS: i32 = 16;

/// W2.
pub(super) fn fixed_rates(context: &mut Context<'_>) -> Result<()> {
    let bar = |milliseconds| Some(Bar::Below(milliseconds));
    // Megabytes per second, milliseconds of lingering, the bar of the 99th percentile, whether consumers follow.
    let runs = [
        (1.0, 0, None, true),
        (10.0, 0, bar(8.0), false),
        (10.0, 5, bar(12.0), false),
        (10.0, 5, None, true),
        (50.0, 5, bar(20.0), false),
    ];
    for (megabytes, linger, bar, is_followed) in runs {
        let mut system = context.start(3, &[])?;
        let topic = system.create_topic(PARTITIONS, 3, &[])?;
        let plan = paced_plan(context, &topic, megabytes, linger);
        let name =
            format!("{megabytes} MB/s, linger {linger}{}", if is_followed { ", consumed" } else { "" });
        let report = &mut *context.report;
        let loaded = if is_followed {
            let (loaded, arrivals) = load_and_follow(&system, &plan)?;
            report.add_latencies(&format!("{name}: end to end"), &end_to_end(&loaded.tally, &arrivals), None);
            loaded
        } else {
            load(&system, &plan)?
        };
        report.add_latencies(&format!("{name}: acknowledged"), &loaded.tally.latencies, bar);
        if let Some(percent) = loaded.cpu_percent {
            report.add(format!("{name}: CPU of all brokers"), percent, "% of a core", None);
        }
        report.add(format!("{name}: records verified"), loaded.verified as f64, "", None);
        system.finish()?;
    }
    Ok(())
}

fn load_and_follow(system: &System, plan: &Plan) -> Result<(Loaded, Vec<Arrivals>)> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let following = scope.spawn(|| follow(&mut system.client(), &plan.topic, &is_over));
        let loaded = load(system, plan);
        is_over.store(true, Ordering::Relaxed);
        let arrivals = following.join().map_err(|_| anyhow!("a consumer panicked"))?.context("a consumer")?;
        Ok((loaded?, arrivals))
    })
}

/// From when each record fell due until a consumer had it.
fn end_to_end(tally: &Tally, arrivals: &[Arrivals]) -> Histogram {
    let mut times = Histogram::default();
    for (partition, offset, due) in tally.dues() {
        let found = arrivals.iter().find(|arrivals| arrivals.partition == partition);
        let at = found.and_then(|found| found.of(offset)).and_then(|at| tally.since_start(at));
        if let Some(at) = at {
            times.record(at.saturating_sub(due));
        }
    }
    times
}
