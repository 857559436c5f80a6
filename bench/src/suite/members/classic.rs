//! A member as the classic protocol has it. It stands still from when it hears of a rebalance until it has its
//! assignment again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::kafka::Connection;

use super::{HEARTBEAT, LOADING, LOOK, Member, Place, TIMEOUT_MS, UNKNOWN_MEMBER};
use crate::system::PATIENCE;

const ILLEGAL_GENERATION: i16 = 22;
const REBALANCING: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

struct Link {
    connection: Connection,
    group: GroupId,
    id: StrBytes,
    /// Of a static member: it comes and goes without a word.
    instance: Option<StrBytes>,
}

pub(super) fn take_part(place: &Place, member: &Member) -> Result<()> {
    let connection = Connection::open(&place.address)?;
    connection.set_read_limit(PATIENCE)?;
    let instance = member.instance.clone().map(StrBytes::from_string);
    let mut link = Link { connection, group: place.group.clone(), id: StrBytes::default(), instance };
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
            .with_group_instance_id(self.instance.clone())
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
        let assignment = |member: &JoinGroupResponseMember| {
            // A static member keeps its assignment and gets another id.
            let own = member.group_instance_id.as_ref().unwrap_or(&member.member_id);
            SyncGroupRequestAssignment::default()
                .with_member_id(member.member_id.clone())
                .with_assignment(Bytes::copy_from_slice(own.as_bytes()))
        };
        let request = SyncGroupRequest::default()
            .with_group_id(self.group.clone())
            .with_generation_id(joined.generation_id)
            .with_member_id(self.id.clone())
            .with_group_instance_id(self.instance.clone())
            .with_assignments(joined.members.iter().map(assignment).collect());
        let synced = self.connection.call(3, &request)?;
        if synced.error_code != 0 {
            return self.again("SyncGroup", synced.error_code);
        }
        let is_own = synced.assignment == self.instance.as_ref().unwrap_or(&self.id).as_bytes();
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
                .with_member_id(self.id.clone())
                .with_group_instance_id(self.instance.clone());
            let error = self.connection.call(3, &request)?.error_code;
            if error != 0 {
                self.again("Heartbeat", error)?;
                return Ok(true);
            }
        }
    }

    fn leave(&mut self) -> Result<()> {
        if self.instance.is_some() {
            return Ok(());
        }
        let request =
            LeaveGroupRequest::default().with_group_id(self.group.clone()).with_member_id(self.id.clone());
        let error = self.connection.call(2, &request)?.error_code;
        ensure!(error == 0, "LeaveGroup: error {error}");
        Ok(())
    }
}
