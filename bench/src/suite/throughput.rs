//! Workloads at full rate: W1 with the CPU of W4, small batches, an fsync before each acknowledgement, idempotent and
//! transactional producers.

use std::time::Duration;

use anyhow::Result;

use super::Context;
use super::load::{Loaded, PARTITIONS, load};
use crate::load::{Pace, Plan};
use crate::report::Bar;

const MEGABYTE: usize = 1_000_000;

/// Megabytes per second at RF 3 with 16 partitions, acks=all, 1 KiB.
const BAR_MEGABYTES: f64 = 200.0;
/// CPU seconds of all brokers for each GB of user data at RF 3.
const BAR_CPU: f64 = 6.0;
/// Of what a broker must do at least, receive and append, at RF 1 with acks=1.
const BAR_SHARE: f64 = 60.0;
const BAR_SMALL_RECORDS: f64 = 150_000.0;
/// A second: so few that no cluster makes batches of them.
const SINGLE_RECORDS: f64 = 10_000.0;
/// Percent of the idempotent throughput that transactions of 100 ms may cost.
const BAR_TRANSACTIONS: f64 = 10.0;
/// Of the unsynced throughput.
const BAR_SYNCED: f64 = 30.0;

/// One shape of W1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    replicas: i16,
    partitions: i32,
    record_bytes: usize,
    batch_bytes: usize,
}

impl Shape {
    const fn new(replicas: i16, partitions: i32, record_bytes: usize, batch_bytes: usize) -> Self {
        Self { replicas, partitions, record_bytes, batch_bytes }
    }

    fn name(self) -> String {
        let acks = if self.replicas > 1 { "all" } else { "1" };
        let Self { replicas, partitions, record_bytes, batch_bytes } = self;
        format!(
            "RF {replicas} acks={acks}, {partitions} part., {record_bytes} B, batch {} kB",
            batch_bytes / 1000
        )
    }

    fn is(self, replicas: i16) -> bool {
        self == Self::new(replicas, PARTITIONS, 1024, MEGABYTE)
    }
}

fn shapes(is_matrix: bool) -> Vec<Shape> {
    if !is_matrix {
        return vec![
            Shape::new(3, 1, 1024, MEGABYTE),
            Shape::new(3, PARTITIONS, 1024, MEGABYTE),
            Shape::new(3, 100, 1024, MEGABYTE),
            Shape::new(3, PARTITIONS, 1024, 128 << 10),
            Shape::new(3, PARTITIONS, 100, MEGABYTE),
            Shape::new(1, PARTITIONS, 1024, MEGABYTE),
            Shape::new(1, PARTITIONS, 100, MEGABYTE),
        ];
    }
    let mut all = Vec::new();
    for replicas in [3, 1] {
        for partitions in [1, PARTITIONS, 100] {
            for record_bytes in [1024, 100] {
                for batch_bytes in [MEGABYTE, 128 << 10] {
                    all.push(Shape::new(replicas, partitions, record_bytes, batch_bytes));
                }
            }
        }
    }
    all
}

/// W1 and W4.
pub(super) fn full_rate(context: &mut Context<'_>) -> Result<()> {
    let shapes = if context.scale.smoke {
        vec![Shape::new(3, 2, 1024, 100_000)]
    } else {
        shapes(context.scale.matrix)
    };
    let mut cpu: [Option<f64>; 2] = [None; 2];
    for shape in shapes {
        let loaded = one_shape(context, shape)?;
        for (place, replicas) in cpu.iter_mut().zip([1, 3]) {
            if shape.is(replicas) {
                *place = loaded.cpu_per_gigabyte;
            }
        }
    }
    if let [Some(alone), Some(replicated)] = cpu {
        context.report.begin("W4");
        context.report.add("CPU of all brokers per GB in at RF 1", alone, "s/GB", None);
        // Three replicas cost two copies more, with everything that acks=all needs.
        context.report.add("CPU of all brokers per GB replicated", (replicated - alone) / 2.0, "s/GB", None);
    }
    Ok(())
}

fn one_shape(context: &mut Context<'_>, shape: Shape) -> Result<Loaded> {
    let mut system = context.start(if shape.replicas > 1 { 3 } else { 1 }, &[])?;
    let topic = system.create_topic(shape.partitions, shape.replicas, &[])?;
    let mut plan = Plan::new(&topic, shape.partitions, Pace::Full);
    plan.record_bytes = shape.record_bytes;
    plan.batch_bytes = shape.batch_bytes;
    plan.acks = if shape.replicas > 1 { -1 } else { 1 };
    (plan.warm_up, plan.time) = context.scale.full;
    let loaded = load(&system, &plan)?;
    let name = shape.name();
    let report = &mut *context.report;
    let rate = loaded.megabytes_per_second;
    let floor = context.floors.receive_and_append();
    report.add_rate(&name, rate, shape.is(3).then_some(Bar::Above(BAR_MEGABYTES)), floor);
    if shape.record_bytes < 1024 {
        report.add(format!("{name}: records"), loaded.tally.rate(), "/s", None);
    }
    report.add_latencies(&format!("{name}: request"), &loaded.tally.latencies, None);
    if let Some(cpu) = loaded.cpu_per_gigabyte {
        let bar = shape.is(3).then_some(Bar::Below(BAR_CPU));
        report.add(format!("{name}: CPU of all brokers"), cpu, "s/GB", bar);
        let resident = system.usage()?.resident as f64 / f64::from(1 << 20);
        report.add(format!("{name}: memory of a broker after it"), resident, "MiB", None);
    }
    report.add_series(&name, loaded.series(&plan));
    report.add(format!("{name}: records verified"), loaded.verified as f64, "", None);
    system.finish()?;
    if shape.is(1) {
        let bytes = loaded.tally.all_records * shape.record_bytes as u64;
        let floor = context.receive_and_append_as_much(bytes, Bar::Above(BAR_SHARE))?;
        context.report.add_share(&name, rate, floor);
    }
    Ok(loaded)
}

/// W3: 20 producers with keys over 200 partitions, no lingering, 100-byte records; what their queues hold goes. At the
/// lower of the rates offered each record is a batch; at the higher one batches are as large as the cluster is slow, so that
/// the CPU of each batch, not of each record, compares clusters.
pub(super) fn small_batches(context: &mut Context<'_>) -> Result<()> {
    let partitions = context.scale.pick(200, 12);
    let offered = [context.scale.pick(SINGLE_RECORDS, 1000.0), context.scale.pick(BAR_SMALL_RECORDS, 2000.0)];
    // Half the queue of a librdkafka producer, so that batches stay small.
    let full = ("full rate".to_owned(), Pace::Queue { records: context.scale.pick(5_000, 200) });
    let steady = offered.map(|records| {
        (format!("{records} records/s offered"), Pace::Rate { bytes_per_second: records * 100.0 })
    });
    for (name, pace) in steady.into_iter().chain([full]) {
        let mut system = context.start(3, &[])?;
        let topic = system.create_topic(partitions, 3, &[])?;
        let mut plan = Plan::new(&topic, partitions, pace);
        plan.producers = context.scale.pick(20, 3);
        plan.record_bytes = 100;
        plan.keyed = true;
        plan.in_flight = 5;
        (plan.warm_up, plan.time) = context.scale.full;
        let loaded = load(&system, &plan)?;
        let report = &mut *context.report;
        let bar = matches!(pace, Pace::Queue { .. }).then_some(Bar::Above(BAR_SMALL_RECORDS));
        report.add(format!("{name}: records"), loaded.tally.rate(), "/s", bar);
        let per_request = loaded.tally.records as f64 / loaded.tally.requests.max(1) as f64;
        report.add(format!("{name}: records of a batch"), per_request, "", None);
        report.add_latencies(&format!("{name}: latency"), &loaded.tally.latencies, None);
        if let Some(cpu) = loaded.cpu_per_gigabyte {
            let per_million = cpu / 10.0;
            report.add(format!("{name}: CPU of all brokers"), per_million, "s per million records", None);
            let name = format!("{name}: CPU of all brokers for a batch");
            report.add(name, per_million * per_request, "µs", None);
        }
        report.add(format!("{name}: records verified"), loaded.verified as f64, "", None);
        system.finish()?;
    }
    Ok(())
}

/// W11: 50 producers, with and without an fsync before each acknowledgement.
pub(super) fn synced(context: &mut Context<'_>) -> Result<()> {
    let mut rates = Vec::new();
    for (name, keys) in [("unsynced", &[][..]), ("flush.messages=1", &[("flush.messages", "1")])] {
        let mut system = context.start(3, &[])?;
        let topic = system.create_topic(PARTITIONS, 3, keys)?;
        let mut plan = Plan::new(&topic, PARTITIONS, Pace::Queue { records: 100 });
        plan.producers = context.scale.pick(50, 5);
        (plan.warm_up, plan.time) = context.scale.full;
        let loaded = load(&system, &plan)?;
        let report = &mut *context.report;
        report.add_rate(name, loaded.megabytes_per_second, None, context.floors.receive_and_append());
        report.add_latencies(&format!("{name}: request"), &loaded.tally.latencies, None);
        report.add(format!("{name}: records verified"), loaded.verified as f64, "", None);
        rates.push(loaded.megabytes_per_second);
        system.finish()?;
    }
    if let [unsynced, synced] = rates[..] {
        let bar = Some(Bar::Above(BAR_SYNCED));
        context.report.add("flush.messages=1, share of unsynced", synced / unsynced * 100.0, "%", bar);
    }
    Ok(())
}

/// W12: what idempotence takes from the plain throughput, and transactions of 100 ms from the idempotent one.
pub(super) fn guarantees(context: &mut Context<'_>) -> Result<()> {
    let mut before: Option<(&str, f64)> = None;
    for name in ["plain", "idempotent", "transactional"] {
        let mut system = context.start(3, &[])?;
        let topic = system.create_topic(PARTITIONS, 3, &[])?;
        let mut plan = Plan::new(&topic, PARTITIONS, Pace::Full);
        plan.idempotent = name != "plain";
        if name == "transactional" {
            plan.transaction = Some(Duration::from_millis(100));
            plan.transactional_id = Some(topic.clone());
        }
        (plan.warm_up, plan.time) = context.scale.full;
        let loaded = load(&system, &plan)?;
        let rate = loaded.megabytes_per_second;
        let report = &mut *context.report;
        report.add_rate(name, rate, None, context.floors.receive_and_append());
        if let Some((other, rate_before)) = before.replace((name, rate)) {
            let bar = (name == "transactional").then_some(Bar::Below(BAR_TRANSACTIONS));
            let overhead = (1.0 - rate / rate_before) * 100.0;
            report.add(format!("{name}: less than {other}"), overhead, "%", bar);
        }
        report.add(format!("{name}: records verified"), loaded.verified as f64, "", None);
        system.finish()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_combination_once_and_the_short_list_is_part_of_it() {
        let mut names: Vec<String> = shapes(true).into_iter().map(Shape::name).collect();
        assert_eq!(names.len(), 24);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 24);
        assert!(shapes(false).iter().all(|shape| shapes(true).contains(shape)));
        for replicas in [1, 3] {
            assert_eq!(shapes(false).iter().filter(|shape| shape.is(replicas)).count(), 1);
        }
    }
}
