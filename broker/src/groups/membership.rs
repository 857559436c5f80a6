//! SyncGroup, Heartbeat, LeaveGroup and silent members: life within a generation.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::group::{Group, GroupState};
use super::outbox::{Now, Outbox, Then, Timer, WriteId};
use super::records::MemberId;
use super::request::{Answer, HeartbeatRequest, LeaveRequest, LeavingMember, ReplyId, SyncRequest};

impl Group {
    pub(crate) fn sync(&mut self, now: Now, out: &mut Outbox, request: SyncRequest, reply: ReplyId) {
        if let Some(rejection) = self.sync_problem(&request) {
            return out.answer_sync(reply, Err(rejection));
        }
        let member_id = request.member_id;
        match self.state {
            GroupState::Empty | GroupState::Dead => {
                out.answer_sync(reply, Err(Rejection::UnknownMemberId));
            }
            GroupState::PreparingRebalance => {
                out.answer_sync(reply, Err(Rejection::RebalanceInProgress));
            }
            GroupState::CompletingRebalance => {
                let member = self.members.get_mut(&member_id).expect("checked above");
                if let Some(earlier) = member.awaiting_sync.replace(reply) {
                    out.answer_sync(earlier, Err(Rejection::RebalanceInProgress));
                }
                self.forget_pending_sync(&member_id, out);
                if self.is_leader(&member_id) && self.assignment_write.is_none() {
                    self.store_assignments(out, request.assignments);
                }
            }
            GroupState::Stable => {
                self.forget_pending_sync(&member_id, out);
                let assignment = self.members[&member_id].assignment.clone();
                out.answer_sync(reply, Ok(self.synced(assignment)));
                self.touch(&member_id, now, out);
            }
        }
    }

    fn sync_problem(&self, request: &SyncRequest) -> Option<Rejection> {
        let differs = |asked: &Option<Arc<str>>, own: &Option<Arc<str>>| asked.is_some() && asked != own;
        self.generation_problem(request.generation, &request.member_id, request.instance_id.as_ref()).or_else(
            || {
                (differs(&request.protocol_type, &self.protocol_type)
                    || differs(&request.protocol, &self.protocol))
                .then_some(Rejection::InconsistentGroupProtocol)
            },
        )
    }

    /// Members that the leader left out get nothing.
    fn store_assignments(&mut self, out: &mut Outbox, assignments: Vec<(MemberId, Bytes)>) {
        let assignments: HashMap<MemberId, Bytes> =
            assignments.into_iter().filter(|(id, _)| self.members.contains_key(id)).collect();
        let record = self.record(|id, _| assignments.get(id).cloned().unwrap_or_default());
        let then = Then::Assign { group: Arc::clone(&self.id), assignments };
        self.assignment_write = Some(out.write(vec![record], then));
    }

    /// The assignment is stored, or it is not. Of interest only while this generation waits for it.
    pub(crate) fn finish_assignment(
        &mut self,
        now: Now,
        out: &mut Outbox,
        (write, mut assignments): (WriteId, HashMap<MemberId, Bytes>),
        outcome: Result<(), Rejection>,
    ) {
        if self.assignment_write != Some(write) {
            return;
        }
        self.assignment_write = None;
        if let Err(rejection) = outcome {
            self.refuse_assignments(now, out, rejection);
            return self.prepare_rebalance_if_possible(now, out, "the assignment could not be stored");
        }
        self.move_to(GroupState::Stable, now, out, "the assignment is stored");
        out.tally.rebalances_completed += 1;
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for member_id in ids {
            let member = self.members.get_mut(&member_id).expect("the ids were taken from this map");
            member.assignment = assignments.remove(&member_id).unwrap_or_default();
            let assignment = member.assignment.clone();
            if let Some(reply) = member.awaiting_sync.take() {
                out.answer_sync(reply, Ok(self.synced(assignment)));
                self.touch(&member_id, now, out);
            }
        }
    }

    /// Whoever waits for the assignment of this generation will not get one. Its session begins anew: while it waited,
    /// it could not give a sign of life.
    pub(crate) fn refuse_assignments(&mut self, now: Now, out: &mut Outbox, rejection: Rejection) {
        self.assignment_write = None;
        let mut told = Vec::new();
        for (member_id, member) in &mut self.members {
            member.assignment = Bytes::new();
            if let Some(reply) = member.awaiting_sync.take() {
                out.answer_sync(reply, Err(rejection));
                told.push(Arc::clone(member_id));
            }
        }
        for member_id in told {
            self.touch(&member_id, now, out);
        }
    }

    pub(crate) fn heartbeat(
        &mut self,
        now: Now,
        out: &mut Outbox,
        request: &HeartbeatRequest,
        reply: ReplyId,
    ) {
        let instance_id = request.instance_id.as_ref();
        let problem = self.generation_problem(request.generation, &request.member_id, instance_id);
        let outcome = match (problem, self.state) {
            (Some(rejection), _) => Err(rejection),
            (None, GroupState::Empty | GroupState::Dead) => Err(Rejection::UnknownMemberId),
            (None, GroupState::PreparingRebalance) => Err(Rejection::RebalanceInProgress),
            (None, GroupState::CompletingRebalance | GroupState::Stable) => Ok(()),
        };
        if problem.is_none() {
            self.touch(&request.member_id, now, out);
        }
        out.answer(reply, Answer::Heartbeat(outcome));
    }

    pub(crate) fn leave(&mut self, now: Now, out: &mut Outbox, request: &LeaveRequest, reply: ReplyId) {
        if self.is(GroupState::Dead) {
            return out.answer(reply, Answer::Leave(Err(Rejection::CoordinatorNotAvailable)));
        }
        let outcomes = request.members.iter().map(|member| self.leave_one(now, out, member)).collect();
        out.answer(reply, Answer::Leave(Ok(outcomes)));
    }

    fn leave_one(&mut self, now: Now, out: &mut Outbox, leaving: &LeavingMember) -> Result<(), Rejection> {
        let mut member_id = Arc::clone(&leaving.member_id);
        if member_id.is_empty() {
            // An admin removes a static member of which it knows only the name.
            let current = leaving.instance_id.as_ref().and_then(|id| self.static_members.get(id));
            member_id = Arc::clone(current.ok_or(Rejection::UnknownMemberId)?);
        } else if self.pending_members.contains(&member_id) {
            self.remove_pending_member(now, out, &member_id);
            return Ok(());
        } else if let Some(rejection) = self.member_problem(&member_id, leaving.instance_id.as_ref()) {
            return Err(rejection);
        }
        self.expel(now, out, &member_id, &format!("member {member_id} leaves"));
        Ok(())
    }

    fn remove_pending_member(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId) {
        self.pending_members.remove(member_id);
        out.timers.cancel(&Timer::Pending(Arc::clone(&self.id), Arc::clone(member_id)));
        self.complete_join_if_all_are_here(now, out);
    }

    fn expel(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId, reason: &str) {
        self.remove_member(member_id, out);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.prepare_rebalance_if_possible(now, out, reason);
            }
            GroupState::PreparingRebalance => self.complete_join_if_all_are_here(now, out),
            GroupState::Empty | GroupState::Dead => {}
        }
    }

    /// Nothing was heard of the member for its session timeout. One that waits for an answer of ours is not silent.
    pub(crate) fn session_timer_fired(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId) {
        let Some(member) = self.members.get(member_id) else { return };
        let waits = member.awaiting_join.is_some() || member.awaiting_sync.is_some();
        if waits && !member.is_new {
            return;
        }
        let timeout_ms = member.session_timeout_ms;
        let reason = format!("member {member_id} was silent for its session timeout of {timeout_ms} ms");
        self.expel(now, out, member_id, &reason);
    }

    pub(crate) fn pending_timer_fired(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId) {
        self.remove_pending_member(now, out, member_id);
    }
}
