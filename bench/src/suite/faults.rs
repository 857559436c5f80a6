//! W8: how long partitions take no records when their leader, or the controller, is lost or leaves: as a client sees it,
//! and apart from the time until ZooKeeper notices, which is the session's timeout.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use zurau_common::zk::controller::ActiveController;
use zurau_tests::eventually;

use super::Context;
use crate::histogram::Histogram;
use crate::probe::{Probe, all_of};
use crate::system::{PATIENCE, System};

/// Of a real run, and of one that only shows that it works.
const SESSION_TIMEOUTS_MS: (&str, &str) = ("6000", "4000");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Asked to end: it hands its partitions over.
    Stopped,
    Killed,
    Frozen,
}

pub(super) fn all(context: &mut Context<'_>) -> Result<()> {
    let partitions = context.scale.pick(1_000, 12);
    let session_timeout = context.scale.pick(SESSION_TIMEOUTS_MS.0, SESSION_TIMEOUTS_MS.1);
    let mut system = context.start(3, &[("zookeeper.session.timeout.ms", session_timeout)])?;
    let topic = system.create_topic(partitions, 3, &[])?;
    for fault in [Fault::Stopped, Fault::Killed, Fault::Frozen] {
        leader(context, &mut system, &topic, partitions, fault)?;
        system.wait_for_topic(&topic, partitions)?;
    }
    controller(context, &mut system)?;
    system.finish()
}

/// The broker that leads most partitions, and which.
fn busiest(system: &System, topic: &str) -> Result<(i32, Vec<(String, i32)>)> {
    // A broker that has just returned may not have been told yet.
    let mut client = system.client();
    let found = eventually("the topic is known", PATIENCE, || Ok(Some(client.topic(topic)?)))?.partitions;
    let count = |id: i32| found.iter().filter(|partition| partition.leader_id.0 == id).count();
    let id = found.iter().map(|partition| partition.leader_id.0).max_by_key(|id| count(*id));
    let id = id.context("no partition has a leader")?;
    let led = found.iter().filter(|partition| partition.leader_id.0 == id);
    Ok((id, led.map(|partition| (topic.to_owned(), partition.partition_index)).collect()))
}

fn leader(
    context: &mut Context<'_>,
    system: &mut System,
    topic: &str,
    partitions: i32,
    fault: Fault,
) -> Result<()> {
    let (id, led) = busiest(system, topic)?;
    let count = led.len();
    // The others answer for metadata.
    let mut client = zurau_tests::kafka::KafkaClient::new(&others(system, id)?);
    let registration = format!("/brokers/ids/{id}");
    let cluster = system.own()?;
    let mut probe = Probe::new(led, Some(id))?;
    let start = Instant::now();
    match fault {
        Fault::Stopped => cluster.broker(id)?.process()?.signal(Signal::TERM)?,
        Fault::Killed => cluster.broker(id)?.kill()?,
        Fault::Frozen => cluster.broker(id)?.process()?.pause()?,
    }
    let mut noticed = None;
    while !probe.is_done() {
        ensure!(start.elapsed() < PATIENCE, "some of {partitions} partitions have no new leader");
        if noticed.is_none() && cluster.znodes.get(&registration)?.is_none() {
            noticed = Some(Instant::now());
        }
        probe.round(&mut client)?;
    }
    match fault {
        Fault::Stopped => {
            let status = cluster.broker(id)?.wait_for_end(PATIENCE)?;
            ensure!(status.success(), "broker {id} ended with {status}");
            cluster.broker(id)?.start()?;
        }
        Fault::Killed => cluster.broker(id)?.start()?,
        Fault::Frozen => cluster.broker(id)?.process()?.resume()?,
    }
    system.find_processes()?;
    let name = match fault {
        Fault::Stopped => "leader asked to end (SIGTERM)",
        Fault::Killed => "leader killed",
        Fault::Frozen => "leader frozen (SIGSTOP)",
    };
    let name = format!("{name}, {count} partitions");
    let from = match (fault, noticed) {
        (Fault::Stopped, _) | (_, None) => start,
        (_, Some(noticed)) => noticed,
    };
    let report = &mut *context.report;
    if fault != Fault::Stopped {
        report.add(format!("{name}: until ZooKeeper noticed"), (from - start).as_secs_f64(), "s", None);
    }
    let times: Histogram = probe.since(from);
    let seconds = |time: Duration| time.as_secs_f64();
    report.add(format!("{name}: without records after that, p50"), seconds(times.percentile(0.5)), "s", None);
    report.add(format!("{name}: without records after that, max"), seconds(times.max()), "s", None);
    Ok(())
}

/// Addresses of all brokers but one.
fn others(system: &mut System, id: i32) -> Result<String> {
    let others = system.own()?.brokers.iter().filter(|broker| broker.id != id);
    Ok(others.map(|broker| broker.address()).collect::<Vec<_>>().join(","))
}

/// The active controller is killed; until a topic made afterwards takes records.
fn controller(context: &mut Context<'_>, system: &mut System) -> Result<()> {
    let cluster = system.own()?;
    let claim = |cluster: &zurau_tests::Cluster| cluster.znodes.get("/controller");
    let before = claim(cluster)?.context("there is no controller")?;
    let id = ActiveController::decode(before.text.as_bytes()).context("/controller")?.controller_id;
    let start = Instant::now();
    cluster.controller(id)?.kill()?;
    let noticed = eventually("the claim is gone or another's", PATIENCE, || {
        let now = claim(cluster)?;
        Ok(now.is_none_or(|now| now.czxid != before.czxid).then(Instant::now))
    })?;
    let topic = system.create_topic(1, 3, &[])?;
    let mut probe = Probe::new(all_of(&topic, 1), None)?;
    probe.finish(&mut system.client(), PATIENCE)?;
    let took = probe.since(noticed).max();
    let report = &mut *context.report;
    report.add("controller killed: until ZooKeeper noticed", (noticed - start).as_secs_f64(), "s", None);
    report.add(
        "controller killed: until a new topic takes records after that",
        took.as_secs_f64(),
        "s",
        None,
    );
    system.own()?.controller(id)?.start()
}
