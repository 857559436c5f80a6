//! W13: a group of many members, in the classic protocol and in that of KIP-848: a cold join, one that leaves, and some
//! that restart one after another; static members restart without a rebalance.

mod classic;
mod consumer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, FindCoordinatorRequest, GroupId};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use zurau_tests::eventually;

use super::Context;
use crate::report::Bar;
use crate::system::{PATIENCE, System};

/// Shorter than the usual three seconds, so that it is not the members that are measured.
const HEARTBEAT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);
const TIMEOUT_MS: i32 = 45_000;
/// Until all have their assignment, with the delay before the first rebalance.
const BAR_JOIN_S: f64 = 5.0;
/// Error codes of groups.
const LOADING: [i16; 3] = [14, 15, 16];
const UNKNOWN_MEMBER: i16 = 25;

/// What a member knows, for those who watch.
#[derive(Debug, Clone, Copy, Default)]
struct View {
    /// Or member epoch; while it has an assignment.
    generation: Option<i32>,
    /// Partitions that the server has assigned to it.
    assigned: usize,
    /// The longest time without an assignment since the last look.
    stood_still: Duration,
}

struct Member {
    /// `group.instance.id` of a static one.
    instance: Option<String>,
    view: Mutex<View>,
    shall_leave: AtomicBool,
}

/// Where a group is.
struct Place {
    address: String,
    group: GroupId,
    topic: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Classic,
    /// The classic one, with members that have names.
    Static,
    Consumer,
}

pub(super) fn group(context: &mut Context<'_>) -> Result<()> {
    let count: usize = context.scale.pick(200, 5);
    for protocol in [Protocol::Classic, Protocol::Static, Protocol::Consumer] {
        let mut system = context.start(3, &[])?;
        if protocol != Protocol::Consumer || speaks_consumer(&system)? {
            let topic = system.create_topic(i32::try_from(count)?, 1, &[])?;
            let place = place(&system, topic, protocol)?;
            run(context, &place, protocol, count)?;
        }
        system.finish()?;
    }
    Ok(())
}

fn speaks_consumer(system: &System) -> Result<bool> {
    let mut client = system.client();
    let address = client.any_address()?;
    let spoken = client.call(&address, 0, &ApiVersionsRequest::default())?.api_keys;
    Ok(spoken.iter().any(|api| api.api_key == ApiKey::ConsumerGroupHeartbeat as i16))
}

fn run(context: &mut Context<'_>, place: &Place, protocol: Protocol, count: usize) -> Result<()> {
    let restarts = context.scale.pick(5, 1);
    let report = &mut *context.report;
    let (name, take_part): (_, fn(&Place, &Member) -> Result<()>) = match protocol {
        Protocol::Classic => (format!("{count} members, classic"), classic::take_part),
        Protocol::Static => (format!("{count} static members"), classic::take_part),
        Protocol::Consumer => (format!("{count} members, KIP-848"), consumer::take_part),
    };
    // The classic members are assigned no partitions but words of their own.
    let partitions = if protocol == Protocol::Consumer { count } else { 0 };
    let member = |number: usize| Member {
        instance: (protocol == Protocol::Static).then(|| format!("member-{number}")),
        view: Mutex::default(),
        shall_leave: AtomicBool::new(false),
    };
    let members: Vec<Member> = (0..count).map(member).collect();
    thread::scope(|scope| -> Result<()> {
        let start = Instant::now();
        let run = |member| scope.spawn(move || take_part(place, member));
        let mut running: Vec<_> = members.iter().map(run).collect();
        let outcome = (|| -> Result<()> {
            until_stable(&members, -1, partitions)?;
            let bar = Some(Bar::Below(BAR_JOIN_S));
            report.add(format!("{name}: cold join"), start.elapsed().as_secs_f64(), "s", bar);
            if protocol == Protocol::Static {
                let (start, first) = (Instant::now(), generation(&members[0]));
                for member in &members[..restarts] {
                    leave(member, running.remove(0))?;
                    member.shall_leave.store(false, Ordering::Relaxed);
                    running.push(run(member));
                    until_stable(&members, first - 1, partitions)?;
                }
                let each = start.elapsed().as_secs_f64() / restarts as f64;
                report.add(format!("{name}: restart, one after another, each"), each, "s", None);
                let rebalances = f64::from(generation(&members[0]) - first);
                report.add(format!("{name}: rebalances by restarts"), rebalances, "", Some(Bar::Below(0.0)));
                return Ok(());
            }
            let start = Instant::now();
            let generation = leave(&members[0], running.remove(0))?;
            until_stable(&members[1..], generation, partitions)?;
            report.add(format!("{name}: one leaves"), start.elapsed().as_secs_f64(), "s", None);
            if protocol == Protocol::Classic {
                report.add(format!("{name}: one leaves, longest halt"), halt(&members), "s", None);
            }
            let start = Instant::now();
            for member in &members[1..=restarts] {
                let generation = leave(member, running.remove(0))?;
                member.shall_leave.store(false, Ordering::Relaxed);
                running.push(run(member));
                until_stable(&members[1..], generation, partitions)?;
            }
            let each = start.elapsed().as_secs_f64() / restarts as f64;
            report.add(format!("{name}: restart, one after another, each"), each, "s", None);
            if protocol == Protocol::Classic {
                report.add(format!("{name}: restarts, longest halt"), halt(&members), "s", None);
            }
            Ok(())
        })();
        members.iter().for_each(|member| member.shall_leave.store(true, Ordering::Relaxed));
        for member in running {
            member.join().map_err(|_| anyhow!("a member panicked"))??;
        }
        outcome
    })
}

fn place(system: &System, topic: String, protocol: Protocol) -> Result<Place> {
    let group = GroupId(StrBytes::from_string(format!("{topic}-{protocol:?}")));
    let mut client = system.client();
    let address = client.any_address()?;
    let request = FindCoordinatorRequest::default().with_key(group.0.clone());
    let address = eventually("the group has a coordinator", PATIENCE, || {
        let answer = client.call(&address, 3, &request)?;
        ensure!(answer.error_code == 0, "FindCoordinator: error {}", answer.error_code);
        Ok(Some(format!("{}:{}", answer.host.as_str(), answer.port)))
    })?;
    Ok(Place { address, group, topic })
}

/// Until every one of these is of one generation behind this one, and so many partitions are assigned.
fn until_stable(members: &[Member], behind: i32, partitions: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let views: Vec<View> = members.iter().map(|member| *member.view.lock()).collect();
        let first = views.first().and_then(|view| view.generation).filter(|generation| *generation > behind);
        let assigned: usize = views.iter().map(|view| view.assigned).sum();
        if first.is_some() && views.iter().all(|view| view.generation == first) && assigned == partitions {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the group is not stable within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Of a member, as it knows it.
fn generation(member: &Member) -> i32 {
    member.view.lock().generation.unwrap_or_default()
}

/// Returns the generation that the member was of.
fn leave(member: &Member, running: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<i32> {
    let generation = generation(member);
    member.shall_leave.store(true, Ordering::Relaxed);
    running.join().map_err(|_| anyhow!("a member panicked"))??;
    *member.view.lock() = View::default();
    Ok(generation)
}

/// The longest halt of a member since the last question, in seconds.
fn halt(members: &[Member]) -> f64 {
    let longest = members.iter().map(|member| std::mem::take(&mut member.view.lock().stood_still)).max();
    longest.unwrap_or_default().as_secs_f64()
}
