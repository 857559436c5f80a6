//! JoinGroup and the rebalance it leads to: who is in the next generation, who leads it, by which protocol.

use std::sync::Arc;

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::group::{Gathering, Group, GroupState, Member};
use super::outbox::{Now, Outbox, Replacement, Then, Timer, WriteOutcome};
use super::records::MemberId;
use super::request::{JoinAnswer, JoinRequest, ReplyId};

/// How long a join of a new member waits: it cannot send heartbeats, so this is what removes the ones that gave up.
pub(crate) const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 5 * 60 * 1000;
/// Shortest time between two looks at a group of which only absent static members are left.
const ABSENT_MEMBERS_CHECK_MS: i64 = 1_000;

impl Group {
    pub(crate) fn join(&mut self, now: Now, out: &mut Outbox, request: JoinRequest, reply: ReplyId) {
        if !self.has_room_for(&request.member_id, out.settings.group_size_max) {
            self.remove_member(&request.member_id, out);
            out.refuse_join(reply, Rejection::GroupMaxSizeReached, &request.member_id);
            return self.complete_join_if_all_are_here(now, out);
        }
        if self.is(GroupState::Dead) {
            return out.refuse_join(reply, Rejection::CoordinatorNotAvailable, &request.member_id);
        }
        if !self.supports(&request.protocol_type, &request.protocols) {
            return out.refuse_join(reply, Rejection::InconsistentGroupProtocol, &request.member_id);
        }
        if request.member_id.is_empty() {
            self.join_new(now, out, request, reply);
        } else if self.pending_members.contains(&request.member_id) {
            let member_id = Arc::clone(&request.member_id);
            self.add_member(now, out, (request, member_id), reply);
        } else {
            self.join_known(now, out, request, reply);
        }
        self.complete_join_if_all_are_here(now, out);
    }

    /// Members beyond `group.max.size` are turned away. While the group rebalances, those count that have come back,
    /// so that a smaller limit takes effect then.
    fn has_room_for(&self, member_id: &MemberId, size_max: usize) -> bool {
        if self.members.len() < size_max {
            return true;
        }
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            GroupState::PreparingRebalance => {
                let is_waiting = |member: &Member| member.awaiting_join.is_some();
                self.members.get(member_id).is_some_and(is_waiting)
                    || self.members.values().filter(|member| is_waiting(member)).count() < size_max
            }
            GroupState::CompletingRebalance | GroupState::Stable => self.members.contains_key(member_id),
        }
    }

    fn join_new(&mut self, now: Now, out: &mut Outbox, request: JoinRequest, reply: ReplyId) {
        let prefix = request.instance_id.as_ref().unwrap_or(&request.client_id);
        let member_id: MemberId = format!("{prefix}-{}", request.fresh_id).into();
        if let Some(instance_id) = &request.instance_id {
            return match self.static_members.get(instance_id).cloned() {
                Some(old_id) => self.return_of_static_member(now, out, (request, old_id, member_id), reply),
                None => self.add_member(now, out, (request, member_id), reply),
            };
        }
        if !request.requires_known_member_id {
            return self.add_member(now, out, (request, member_id), reply);
        }
        let timer = Timer::Pending(Arc::clone(&self.id), Arc::clone(&member_id));
        out.timers.set(timer, now.elapsed_ms + i64::from(request.session_timeout_ms));
        self.pending_members.insert(Arc::clone(&member_id));
        out.refuse_join(reply, Rejection::MemberIdRequired, &member_id);
    }

    fn join_known(&mut self, now: Now, out: &mut Outbox, request: JoinRequest, reply: ReplyId) {
        let member_id = Arc::clone(&request.member_id);
        if let Some(rejection) = self.member_problem(&member_id, request.instance_id.as_ref()) {
            return out.refuse_join(reply, rejection, &member_id);
        }
        let is_unchanged = self.members[&member_id].protocols == request.protocols;
        let is_leader = self.is_leader(&member_id);
        match self.state {
            // A leader joins again because something changed that it has to assign anew.
            GroupState::Stable if is_unchanged && !is_leader => {
                out.answer_join(reply, self.current_join_answer(&member_id, false));
            }
            // Its first answer was lost.
            GroupState::CompletingRebalance if is_unchanged => {
                out.answer_join(reply, self.current_join_answer(&member_id, is_leader));
            }
            GroupState::Empty | GroupState::Dead => {
                out.refuse_join(reply, Rejection::UnknownMemberId, &member_id);
            }
            _ => {
                self.update_member(&member_id, request, reply, out);
                let reason = format!("member {member_id} joins again");
                self.prepare_rebalance_if_possible(now, out, &reason);
            }
        }
    }

    fn current_join_answer(&self, member_id: &MemberId, with_members: bool) -> JoinAnswer {
        JoinAnswer {
            rejection: None,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: Arc::clone(member_id),
            members: if with_members { self.joined_members() } else { Vec::new() },
        }
    }

    fn add_member(
        &mut self,
        now: Now,
        out: &mut Outbox,
        (request, member_id): (JoinRequest, MemberId),
        reply: ReplyId,
    ) {
        if self.pending_members.remove(&member_id) {
            out.timers.cancel(&Timer::Pending(Arc::clone(&self.id), Arc::clone(&member_id)));
        }
        if let Some(gathering) = self.gathering.as_mut().filter(|_| self.generation == 0) {
            gathering.last_arrival_ms = now.elapsed_ms;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type);
        }
        if let Some(instance_id) = &request.instance_id {
            self.static_members.insert(Arc::clone(instance_id), Arc::clone(&member_id));
        }
        self.leader.get_or_insert_with(|| Arc::clone(&member_id));
        let member = Member {
            instance_id: request.instance_id,
            client_id: request.client_id,
            client_host: request.client_host,
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols,
            assignment: Bytes::new(),
            awaiting_join: Some(reply),
            awaiting_sync: None,
            is_new: true,
        };
        self.members.insert(Arc::clone(&member_id), member);
        out.timers.set(self.session_timer(&member_id), now.elapsed_ms + NEW_MEMBER_JOIN_TIMEOUT_MS);
        self.prepare_rebalance_if_possible(now, out, &format!("member {member_id} joins"));
    }

    fn update_member(
        &mut self,
        member_id: &MemberId,
        request: JoinRequest,
        reply: ReplyId,
        out: &mut Outbox,
    ) {
        let member = self.members.get_mut(member_id).expect("the caller looked it up");
        member.protocols = request.protocols;
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        member.session_timeout_ms = request.session_timeout_ms;
        if let Some(earlier) = member.awaiting_join.replace(reply) {
            // The client gave up on that one; its connection must not be blocked by it.
            out.refuse_join(earlier, Rejection::RebalanceInProgress, member_id);
        }
    }

    /// A static member was restarted: it comes without an id and takes its old place (KIP-345). A stable group goes on
    /// without a rebalance if the choice of the protocol is not affected.
    fn return_of_static_member(
        &mut self,
        now: Now,
        out: &mut Outbox,
        (request, old_id, new_id): (JoinRequest, MemberId, MemberId),
        reply: ReplyId,
    ) {
        let old_leader = self.leader.clone().unwrap_or_default();
        let supports_skipping_assignment = request.supports_skipping_assignment;
        let instance_id = request.instance_id.clone().expect("the caller looked it up by this id");
        let old = &self.members[&old_id];
        let old_protocols = old.protocols.clone();
        let old_timeouts_ms = (old.rebalance_timeout_ms, old.session_timeout_ms);
        self.rename_member(&old_id, &new_id, out);
        self.update_member(&new_id, request, reply, out);
        self.touch(&new_id, now, out);
        match self.state {
            GroupState::Stable if self.protocol.is_some() && self.select_protocol() == self.protocol => {
                let record = self.record(|_, member| member.assignment.clone());
                let replacement = Replacement {
                    group: Arc::clone(&self.id),
                    generation: self.generation,
                    instance_id,
                    old_id,
                    new_id,
                    old_leader,
                    old_protocols,
                    old_timeouts_ms,
                    supports_skipping_assignment,
                };
                out.write(vec![record], Then::Replace(Box::new(replacement)));
            }
            GroupState::PreparingRebalance => {}
            _ => {
                let reason = format!("static member {instance_id} is back as {new_id}");
                self.prepare_rebalance_if_possible(now, out, &reason);
            }
        }
    }

    /// Gives a static member another id. Whoever waits with the old one is fenced (GRP-08).
    fn rename_member(&mut self, old_id: &MemberId, new_id: &MemberId, out: &mut Outbox) {
        let mut member = self.members.remove(old_id).expect("static members are members");
        out.timers.cancel(&self.session_timer(old_id));
        if let Some(reply) = member.awaiting_join.take() {
            out.refuse_join(reply, Rejection::FencedInstanceId, old_id);
        }
        if let Some(reply) = member.awaiting_sync.take() {
            out.answer_sync(reply, Err(Rejection::FencedInstanceId));
        }
        if self.pending_sync.remove(old_id) {
            self.pending_sync.insert(Arc::clone(new_id));
        }
        if self.is_leader(old_id) {
            self.leader = Some(Arc::clone(new_id));
        }
        let instance_id = member.instance_id.clone().expect("static members have an instance id");
        self.static_members.insert(instance_id, Arc::clone(new_id));
        self.members.insert(Arc::clone(new_id), member);
    }

    /// The record with the new id is stored, or it is not: who reads the log next must find the member that is served here
    /// (G1). If a rebalance came in between, that one answers.
    pub(crate) fn finish_replacement(
        &mut self,
        now: Now,
        out: &mut Outbox,
        replacement: &Replacement,
        outcome: WriteOutcome,
    ) {
        let new_id = &replacement.new_id;
        let is_current = self.is(GroupState::Stable)
            && self.generation == replacement.generation
            && self.static_members.get(&replacement.instance_id) == Some(new_id);
        if !is_current {
            return;
        }
        let Some(member) = self.members.get_mut(new_id) else { return };
        let reply = member.awaiting_join.take();
        if let Err(rejection) = outcome.for_group() {
            if outcome.is_in_log() {
                self.touch(new_id, now, out);
            } else {
                member.protocols = replacement.old_protocols.clone();
                (member.rebalance_timeout_ms, member.session_timeout_ms) = replacement.old_timeouts_ms;
                self.rename_member(new_id, &replacement.old_id, out);
                self.touch(&replacement.old_id, now, out);
            }
            if let Some(reply) = reply {
                out.refuse_join(reply, rejection, &MemberId::default());
            }
            return;
        }
        self.touch(new_id, now, out);
        let Some(reply) = reply else { return };
        let mut answer = self.current_join_answer(new_id, false);
        if !replacement.supports_skipping_assignment {
            // A leader that is told so would assign, and nobody would hear of it in a stable group.
            answer.leader = Arc::clone(&replacement.old_leader);
        } else if self.is_leader(new_id) {
            answer.skip_assignment = true;
            answer.members = self.joined_members();
        }
        out.answer_join(reply, answer);
    }

    pub(crate) fn prepare_rebalance_if_possible(&mut self, now: Now, out: &mut Outbox, reason: &str) {
        if matches!(self.state, GroupState::Stable | GroupState::CompletingRebalance | GroupState::Empty) {
            self.prepare_rebalance(now, out, reason);
        }
    }

    fn prepare_rebalance(&mut self, now: Now, out: &mut Outbox, reason: &str) {
        if self.is(GroupState::CompletingRebalance) {
            self.refuse_assignments(now, out, Rejection::RebalanceInProgress);
        }
        out.timers.cancel(&Timer::Sync(Arc::clone(&self.id)));
        out.timers.cancel(&Timer::Persist(Arc::clone(&self.id)));
        let gathers = self.is(GroupState::Empty);
        self.move_to(GroupState::PreparingRebalance, now, out, reason);
        let timeout_ms = self.rebalance_timeout_ms();
        let timer = Timer::Rebalance(Arc::clone(&self.id));
        if gathers {
            let delay_ms = out.settings.initial_rebalance_delay_ms;
            let until_ms = now.elapsed_ms + timeout_ms.max(delay_ms);
            self.gathering = Some(Gathering { last_arrival_ms: now.elapsed_ms, until_ms });
            out.timers.set(timer, now.elapsed_ms + delay_ms);
        } else {
            out.timers.set(timer, now.elapsed_ms + timeout_ms);
            self.complete_join_if_all_are_here(now, out);
        }
    }

    /// The time to join is over; but a group that gathers its first members waits until nobody has come for
    /// `group.initial.rebalance.delay.ms`. Kafka adds the whole delay again if anybody came, which makes every group of
    /// two wait twice as long.
    pub(crate) fn rebalance_timer_fired(&mut self, now: Now, out: &mut Outbox) {
        if !self.is(GroupState::PreparingRebalance) {
            return;
        }
        if let Some(gathering) = self.gathering {
            let quiet_ms = gathering.last_arrival_ms + out.settings.initial_rebalance_delay_ms;
            let due_ms = quiet_ms.min(gathering.until_ms);
            if now.elapsed_ms < due_ms {
                return out.timers.set(Timer::Rebalance(Arc::clone(&self.id)), due_ms);
            }
        }
        self.complete_join(now, out);
    }

    pub(crate) fn complete_join_if_all_are_here(&mut self, now: Now, out: &mut Outbox) {
        let all_are_here = self.is(GroupState::PreparingRebalance)
            && self.gathering.is_none()
            && self.pending_members.is_empty()
            && self.members.values().all(|member| member.awaiting_join.is_some());
        if all_are_here {
            self.complete_join(now, out);
        }
    }

    fn complete_join(&mut self, now: Now, out: &mut Outbox) {
        let has_left = |member: &Member| member.awaiting_join.is_none() && member.instance_id.is_none();
        let left: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| has_left(member))
            .map(|(id, _)| Arc::clone(id))
            .collect();
        for member_id in &left {
            self.remove_member(member_id, out);
        }
        let timer = Timer::Rebalance(Arc::clone(&self.id));
        if !self.members.is_empty() && !self.elect_joined_leader() {
            // Only static members that are away: their sessions decide.
            let wait_ms = self.rebalance_timeout_ms().max(ABSENT_MEMBERS_CHECK_MS);
            out.timers.set(timer, now.elapsed_ms + wait_ms);
            return;
        }
        out.timers.cancel(&timer);
        self.gathering = None;
        self.begin_generation(now, out);
    }

    /// Keeps the leader if it came back, else takes another that did.
    fn elect_joined_leader(&mut self) -> bool {
        let is_here =
            |id: &MemberId| self.members.get(id).is_some_and(|member| member.awaiting_join.is_some());
        if self.leader.as_ref().is_some_and(is_here) {
            return true;
        }
        let next = self.members.keys().find(|id| is_here(id)).cloned();
        if next.is_some() {
            self.leader = next;
            return true;
        }
        false
    }

    fn begin_generation(&mut self, now: Now, out: &mut Outbox) {
        // After 2^31 rebalances the number starts again; −1 means "none" to clients.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.pending_sync.clear();
        self.assignment_write = None;
        if self.members.is_empty() {
            self.protocol = None;
            self.leader = None;
            self.note_subscriptions();
            self.move_to(GroupState::Empty, now, out, "the last member is gone");
            return self.persist_empty(out);
        }
        self.protocol = self.select_protocol();
        self.note_subscriptions();
        self.move_to(GroupState::CompletingRebalance, now, out, "all members that came are in");
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for member_id in ids {
            let answer = self.current_join_answer(&member_id, self.is_leader(&member_id));
            let member = self.members.get_mut(&member_id).expect("the ids were taken from this map");
            member.is_new = false;
            if let Some(reply) = member.awaiting_join.take() {
                out.answer_join(reply, answer);
            }
            self.touch(&member_id, now, out);
            self.pending_sync.insert(member_id);
        }
        let due_ms = now.elapsed_ms + self.rebalance_timeout_ms();
        out.timers.set(Timer::Sync(Arc::clone(&self.id)), due_ms);
    }

    /// Stores the group without members, so that its offsets' retention starts now for every later coordinator.
    pub(crate) fn persist_empty(&self, out: &mut Outbox) {
        let record = self.record(|_, _| Bytes::new());
        let then = Then::Empty { group: Arc::clone(&self.id), generation: self.generation };
        out.write(vec![record], then);
    }

    /// Members that never asked for their assignment hold everyone up no longer (GRP-02).
    pub(crate) fn sync_timer_fired(&mut self, now: Now, out: &mut Outbox) {
        if !matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable) {
            return;
        }
        let silent: Vec<MemberId> = std::mem::take(&mut self.pending_sync).into_iter().collect();
        if silent.is_empty() {
            return;
        }
        for member_id in &silent {
            self.remove_member(member_id, out);
        }
        let reason = format!("{} member(s) did not ask for their assignment in time", silent.len());
        self.prepare_rebalance(now, out, &reason);
    }
}
