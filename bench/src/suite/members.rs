//! W13: a classic group of many members: a cold join, one that leaves, and some that restart one after another. A member
//! stands still from when it hears of a rebalance until it has its assignment again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use zurau_tests::eventually;
use zurau_tests::kafka::Connection;

use super::Context;
use crate::system::{PATIENCE, System};

/// Shorter than the usual three seconds, so that it is not the members that are measured.
const HEARTBEAT: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);
const TIMEOUT_MS: i32 = 45_000;
/// Error codes of groups.
const LOADING: [i16; 3] = [14, 15, 16];
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const REBALANCING: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

/// What a member knows, for those who watch.
#[derive(Debug, Clone, Copy, Default)]
struct View {
    /// While it has an assignment.
    generation: Option<i32>,
    /// The longest time without one since the last look.
    stood_still: Duration,
}

struct Member {
    view: Mutex<View>,
    shall_leave: AtomicBool,
}

struct Link {
    connection: Connection,
    group: GroupId,
    id: StrBytes,
}

pub(super) fn group(context: &mut Context<'_>) -> Result<()> {
    let count = context.scale.pick(200, 5);
    let restarts = context.scale.pick(5, 1);
    let system = context.start(3, &[])?;
    let coordinator = coordinator(&system)?;
    let members: Vec<Member> =
        (0..count).map(|_| Member { view: Mutex::default(), shall_leave: AtomicBool::new(false) }).collect();
    let name = format!("{count} members");
    thread::scope(|scope| -> Result<()> {
        let start = Instant::now();
        let run = |member| {
            let coordinator = &coordinator;
            scope.spawn(move || take_part(coordinator, member))
        };
        let mut running: Vec<_> = members.iter().map(run).collect();
        let outcome = (|| -> Result<()> {
            until_stable(&members, -1)?;
            context.report.add(format!("{name}: cold join"), start.elapsed().as_secs_f64(), "s", None);
            let start = Instant::now();
            let generation = leave(&members[0], running.remove(0))?;
            until_stable(&members[1..], generation)?;
            let report = &mut *context.report;
            report.add(format!("{name}: one leaves"), start.elapsed().as_secs_f64(), "s", None);
            report.add(format!("{name}: one leaves, longest halt"), halt(&members), "s", None);
            let start = Instant::now();
            for member in &members[1..=restarts] {
                let generation = leave(member, running.remove(0))?;
                member.shall_leave.store(false, Ordering::Relaxed);
                running.push(run(member));
                until_stable(&members[1..], generation)?;
            }
            let each = start.elapsed().as_secs_f64() / restarts as f64;
            report.add(format!("{name}: restart, one after another, each"), each, "s", None);
            report.add(format!("{name}: restarts, longest halt"), halt(&members), "s", None);
            Ok(())
        })();
        members.iter().for_each(|member| member.shall_leave.store(true, Ordering::Relaxed));
        for member in running {
            member.join().map_err(|_| anyhow!("a member panicked"))??;
        }
        outcome
    })?;
    system.finish()
}

fn coordinator(system: &System) -> Result<(String, GroupId)> {
    let group = format!("bench-{}-{}", std::process::id(), system.bootstrap);
    let group = GroupId(StrBytes::from_string(group));
    let mut client = system.client();
    let address = client.any_address()?;
    let request = FindCoordinatorRequest::default().with_key(group.0.clone());
    let found = eventually("the group has a coordinator", PATIENCE, || {
        let answer = client.call(&address, 3, &request)?;
        ensure!(answer.error_code == 0, "FindCoordinator: error {}", answer.error_code);
        Ok(Some(format!("{}:{}", answer.host.as_str(), answer.port)))
    })?;
    Ok((found, group))
}

/// Until every one of these has an assignment of one generation behind this one.
fn until_stable(members: &[Member], behind: i32) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut generations = members.iter().map(|member| member.view.lock().generation);
        let first = generations.next().flatten().filter(|generation| *generation > behind);
        if first.is_some() && generations.all(|generation| generation == first) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the group is not stable within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the generation that the member was of.
fn leave(member: &Member, running: thread::ScopedJoinHandle<'_, Result<()>>) -> Result<i32> {
    let generation = member.view.lock().generation.unwrap_or_default();
    member.shall_leave.store(true, Ordering::Relaxed);
    running.join().map_err(|_| anyhow!("a member panicked"))??;
    Ok(generation)
}

/// The longest halt of a member since the last question, in seconds.
fn halt(members: &[Member]) -> f64 {
    let longest = members.iter().map(|member| std::mem::take(&mut member.view.lock().stood_still)).max();
    longest.unwrap_or_default().as_secs_f64()
}

fn take_part((address, group): &(String, GroupId), member: &Member) -> Result<()> {
    let connection = Connection::open(address)?;
    connection.set_read_limit(PATIENCE)?;
    let mut link = Link { connection, group: group.clone(), id: StrBytes::default() };
    let mut halted: Option<Instant> = None;
    loop {
        let Some(generation) = link.join()? else { continue };
        {
            let mut view = member.view.lock();
            view.generation = Some(generation);
            let stood = halted.take().map_or(Duration::ZERO, |since| since.elapsed());
            view.stood_still = view.stood_still.max(stood);
        }
        let goes_on = link.beat(generation, &member.shall_leave)?;
        member.view.lock().generation = None;
        if !goes_on {
            return link.leave();
        }
        halted = Some(Instant::now());
    }
}

impl Link {
    /// Joins and gets its assignment; `None` if it has to begin again.
    fn join(&mut self) -> Result<Option<i32>> {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str("range"))
            .with_metadata(Bytes::from_static(b"bench"));
        let request = JoinGroupRequest::default()
            .with_group_id(self.group.clone())
            .with_session_timeout_ms(TIMEOUT_MS)
            .with_rebalance_timeout_ms(TIMEOUT_MS)
            .with_member_id(self.id.clone())
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_protocols(vec![protocol]);
        let joined: JoinGroupResponse = self.connection.call(5, &request)?;
        match joined.error_code {
            0 => self.id = joined.member_id.clone(),
            MEMBER_ID_REQUIRED => {
                self.id = joined.member_id;
                return Ok(None);
            }
            error => return self.again("JoinGroup", error),
        }
        let assignment = |member: &StrBytes| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member.clone())
                .with_assignment(Bytes::copy_from_slice(member.as_bytes()))
        };
        let request = SyncGroupRequest::default()
            .with_group_id(self.group.clone())
            .with_generation_id(joined.generation_id)
            .with_member_id(self.id.clone())
            .with_assignments(joined.members.iter().map(|member| assignment(&member.member_id)).collect());
        let synced = self.connection.call(3, &request)?;
        if synced.error_code != 0 {
            return self.again("SyncGroup", synced.error_code);
        }
        let is_own = synced.assignment == self.id.as_bytes();
        ensure!(is_own, "{} got the assignment of another member", self.id.as_str());
        Ok(Some(joined.generation_id))
    }

    fn again(&mut self, what: &str, error: i16) -> Result<Option<i32>> {
        match error {
            REBALANCING | ILLEGAL_GENERATION => {}
            UNKNOWN_MEMBER => self.id = StrBytes::default(),
            error if LOADING.contains(&error) => thread::sleep(LOOK),
            error => bail!("{what}: error {error}"),
        }
        Ok(None)
    }

    /// Heartbeats until the group rebalances, or until told to leave: then `false`.
    fn beat(&mut self, generation: i32, shall_leave: &AtomicBool) -> Result<bool> {
        loop {
            let next = Instant::now() + HEARTBEAT;
            while Instant::now() < next {
                if shall_leave.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                thread::sleep(LOOK);
            }
            let request = HeartbeatRequest::default()
                .with_group_id(self.group.clone())
                .with_generation_id(generation)
                .with_member_id(self.id.clone());
            let error = self.connection.call(3, &request)?.error_code;
            if error != 0 {
                self.again("Heartbeat", error)?;
                return Ok(true);
            }
        }
    }

    fn leave(&mut self) -> Result<()> {
        let request =
            LeaveGroupRequest::default().with_group_id(self.group.clone()).with_member_id(self.id.clone());
        let error = self.connection.call(2, &request)?.error_code;
        ensure!(error == 0, "LeaveGroup: error {error}");
        Ok(())
    }
}
