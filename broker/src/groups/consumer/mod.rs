//! Groups of the consumer protocol (KIP-848): the coordinator assigns, and members learn of it by their heartbeats.
//!
//! A group is what its records say (`state`); requests are decided from it (`decide`, with `assignor` and `member`).
//! At most one write of a group is on its way. What is asked meanwhile waits, and then becomes the next write, all
//! together: so nothing is ever decided from a state that the log may refuse, and a write that is refused takes back
//! everything that followed from it.

mod assignor;

mod decide;

mod member;

mod partitions;

mod records;

mod request;

mod state;

use std::collections::VecDeque;
use std::sync::Arc;

use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;

pub(crate) use self::assignor::Assignor;
use self::decide::{Decision, TopicsView, assignor};
use self::member::MemberState;
pub(crate) use self::partitions::Partitions;
pub(crate) use self::records::ConsumerRecord;
#[cfg(test)]
pub(crate) use self::request::ConsumerHeartbeatAnswer;
pub(crate) use self::request::{
    ConsumerDescribeRequest, ConsumerDescription, ConsumerHeartbeatRequest, ConsumerRefusal,
    DescribedConsumer, HeartbeatOutcome, NamedPartitions,
};
pub(crate) use self::state::{ConsumerState, Phase};
use super::group::{Group, GroupState};
use super::outbox::{Now, Outbox, RECORDS_PER_WRITE, Then, Timer, WriteId, WriteOutcome};
use super::records::{GroupId, GroupRecord, MemberId};
use super::request::{Answer, CommitRequest, FetchRequest, ReplyId};
use crate::metadata::MetadataImage;

/// Requests of a group that wait for its write; more are refused.
const WAITING_MAX: usize = 10_000;

#[derive(Debug)]
enum Work {
    Heartbeat(Box<ConsumerHeartbeatRequest>, ReplyId),
    /// The member was silent for its session timeout.
    Silent(MemberId),
    /// The member had its time to give up partitions.
    Unrevoked(MemberId),
}

/// A write on its way, and what hangs on it.
#[derive(Debug)]
struct InFlight {
    write: WriteId,
    /// What holds if the log refuses it.
    before: Arc<ConsumerState>,
    replies: Vec<(ReplyId, HeartbeatOutcome)>,
}

/// What makes a group one of the consumer protocol.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    state: Arc<ConsumerState>,
    view: TopicsView,
    waiting: VecDeque<Work>,
    in_flight: Option<InFlight>,
    /// The log has a record of it.
    is_stored: bool,
    /// Since when it is known to have no members, milliseconds since the epoch. Its offsets get their full time from then
    /// on; Kafka 4.0 counts from the commits alone, and so loses those of a topic where nothing came for long.
    pub(crate) empty_since_ms: Option<i64>,
}

impl Consumer {
    /// What the log holds for certain.
    pub(crate) fn committed(&self) -> &Arc<ConsumerState> {
        self.in_flight.as_ref().map_or(&self.state, |in_flight| &in_flight.before)
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.waiting.is_empty()
    }

    /// Whether the group may go.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_idle() && self.state.members.is_empty()
    }

    pub(crate) fn note_emptiness(&mut self, now: Now) {
        if self.is_empty() {
            self.empty_since_ms.get_or_insert(now.wall_ms);
        } else {
            self.empty_since_ms = None;
        }
    }

    pub(crate) fn has_subscribed(&self, topic: &TopicName) -> bool {
        self.state.has_subscribed(topic)
    }

    /// What members of the classic protocol would be called the state of this group.
    pub(crate) fn classic_state(&self) -> GroupState {
        match self.committed().phase() {
            Phase::Empty => GroupState::Empty,
            Phase::Assigning | Phase::Reconciling => GroupState::PreparingRebalance,
            Phase::Stable => GroupState::Stable,
        }
    }

    pub(crate) fn tombstones(&self, group: &GroupId) -> Vec<GroupRecord> {
        let record = |record| GroupRecord::Consumer { group: Arc::clone(group), record };
        self.state.tombstones().into_iter().map(record).collect()
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &ConsumerState {
        &self.state
    }

    pub(crate) fn describe(&self, out: &Outbox) -> ConsumerDescription {
        let state = self.committed();
        let named = |partitions: &Partitions| named(state, &out.topics, partitions);
        let members = state.members.iter().map(|(id, member)| DescribedConsumer {
            member_id: Arc::clone(id),
            instance_id: member.subscription.instance_id.clone(),
            rack_id: member.subscription.rack_id.clone(),
            epoch: member.current.epoch,
            client_id: Arc::clone(&member.subscription.client_id),
            client_host: Arc::clone(&member.subscription.client_host),
            topics: member.subscription.topics.iter().cloned().collect(),
            regex: member.subscription.regex.clone(),
            assigned: named(&member.current.assigned),
            target: state.targets.get(id).map(|target| named(target)).unwrap_or_default(),
        });
        ConsumerDescription {
            state: state.phase().name(),
            epoch: state.epoch,
            target_epoch: state.target_epoch,
            assignor: assignor(state, &out.settings).name(),
            members: members.collect(),
        }
    }
}

/// Topics that are gone have no name any more and are left out.
fn named(state: &ConsumerState, image: &MetadataImage, partitions: &Partitions) -> Vec<NamedPartitions> {
    let name_of = |id| {
        let known =
            || state.topics.iter().find(|(_, facts)| facts.id == id).map(|(name, _)| Arc::clone(name));
        image.topic_by_id(id).map(|topic| Arc::clone(&topic.name)).or_else(known)
    };
    let named = partitions.topics().filter_map(|(topic_id, numbers)| {
        let partitions = numbers.iter().copied().collect();
        name_of(topic_id).map(|topic| NamedPartitions { topic_id, topic, partitions })
    });
    named.collect()
}

impl Group {
    /// A record of the log, while the coordinator loads. The record that removes the epoch removes the group.
    pub(crate) fn replay_consumer(&mut self, record: &ConsumerRecord) {
        let removes = match record {
            ConsumerRecord::Epoch(value) => value.is_none(),
            ConsumerRecord::Topics(value) => value.is_none(),
            ConsumerRecord::TargetEpoch(value) => value.is_none(),
            ConsumerRecord::Member(_, value) => value.is_none(),
            ConsumerRecord::Target(_, value) => value.is_none(),
            ConsumerRecord::Current(_, value) => value.is_none(),
            ConsumerRecord::Regex(_, value) => value.is_none(),
        };
        if removes && self.consumer.is_none() {
            return;
        }
        let consumer = self.consumer.get_or_insert_with(Box::default);
        consumer.is_stored = true;
        Arc::make_mut(&mut consumer.state).apply(record);
        if *record == ConsumerRecord::Epoch(None) {
            self.consumer = None;
        }
    }

    /// Members have a session from now on, and the time to give up partitions once more.
    pub(crate) fn begin_consumer_sessions(&self, now: Now, out: &mut Outbox) {
        let Some(consumer) = &self.consumer else { return };
        for (id, member) in &consumer.state.members {
            let session_ms = out.consumer_session_timeout_ms(&self.id);
            out.timers.set(self.session_timer(id), now.elapsed_ms + session_ms);
            if member.current.state == MemberState::UnrevokedPartitions {
                let timeout_ms = i64::from(member.subscription.rebalance_timeout_ms.max(0));
                let timer = Timer::Revocation(Arc::clone(&self.id), Arc::clone(id));
                out.timers.set(timer, now.elapsed_ms + timeout_ms);
            }
        }
    }

    pub(crate) fn consumer_heartbeat(
        &mut self,
        now: Now,
        out: &mut Outbox,
        request: ConsumerHeartbeatRequest,
        reply: ReplyId,
    ) {
        if let Err(refusal) = self.consumer_problem(&request, out) {
            return out.answer(reply, Answer::ConsumerHeartbeat(Err(refusal)));
        }
        let consumer = self.consumer.get_or_insert_with(Box::default);
        if WAITING_MAX <= consumer.waiting.len() {
            let refusal = ConsumerRefusal::new(
                Rejection::CoordinatorNotAvailable,
                "too many requests of the group wait for the log",
            );
            return out.answer(reply, Answer::ConsumerHeartbeat(Err(refusal)));
        }
        consumer.waiting.push_back(Work::Heartbeat(Box::new(request), reply));
        self.work(now, out);
    }

    /// Why the request cannot concern this group, whatever its members are.
    fn consumer_problem(
        &self,
        request: &ConsumerHeartbeatRequest,
        out: &Outbox,
    ) -> Result<(), ConsumerRefusal> {
        if self.is(GroupState::Dead) {
            return Err(Rejection::CoordinatorNotAvailable.into());
        }
        if let Some(name) = &request.assignor
            && !out.settings.consumer_assignors.iter().any(|offered| offered.name() == &**name)
        {
            let offered: Vec<&str> =
                out.settings.consumer_assignors.iter().map(|offered| offered.name()).collect();
            let message = format!("the assignor {name} is not offered; offered are {}", offered.join(", "));
            return Err(ConsumerRefusal::new(Rejection::UnsupportedAssignor, message));
        }
        let is_classic =
            !self.members.is_empty() || !self.pending_members.is_empty() || !self.is(GroupState::Empty);
        if self.consumer.is_none() && (is_classic || request.epoch != 0) {
            // Online migration is not offered: group.consumer.migration.policy is always disabled.
            return Err(ConsumerRefusal::new(Rejection::GroupIdNotFound, no_consumer_group(&self.id)));
        }
        Ok(())
    }

    pub(crate) fn consumer_member_is_silent(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId) {
        if let Some(consumer) = &mut self.consumer {
            consumer.waiting.push_back(Work::Silent(Arc::clone(member_id)));
            self.work(now, out);
        }
    }

    pub(crate) fn revocation_timer_fired(&mut self, now: Now, out: &mut Outbox, member_id: &MemberId) {
        if let Some(consumer) = &mut self.consumer {
            consumer.waiting.push_back(Work::Unrevoked(Arc::clone(member_id)));
            self.work(now, out);
        }
    }

    /// Does what waits, unless a write is on its way.
    fn work(&mut self, now: Now, out: &mut Outbox) {
        let Some(consumer) = &mut self.consumer else { return };
        if consumer.in_flight.is_some() {
            return;
        }
        let before = Arc::clone(&consumer.state);
        let (mut records, mut replies) = (Vec::new(), Vec::new());
        while records.len() < RECORDS_PER_WRITE
            && let Some(work) = consumer.waiting.pop_front()
        {
            let mut decision = Decision {
                group: &self.id,
                state: &mut consumer.state,
                view: &mut consumer.view,
                now,
                out: &mut *out,
                records: &mut records,
            };
            if let Some(reply) = decide(&mut decision, &work) {
                replies.push(reply);
            }
        }
        if records.is_empty() {
            for (reply, outcome) in replies {
                out.answer(reply, Answer::ConsumerHeartbeat(outcome));
            }
            return self.forget_consumer_that_never_was();
        }
        let mut written = Vec::with_capacity(records.len() + 1);
        if !consumer.is_stored && 0 < self.generation {
            // It was a classic group without members.
            written.push(GroupRecord::Group { group: Arc::clone(&self.id), value: None });
        }
        let record = |record| GroupRecord::Consumer { group: Arc::clone(&self.id), record };
        written.extend(records.into_iter().map(record));
        let write = out.write(written, Then::Consumer { group: Arc::clone(&self.id) });
        consumer.in_flight = Some(InFlight { write, before, replies });
    }

    fn forget_consumer_that_never_was(&mut self) {
        if self.consumer.as_ref().is_some_and(|consumer| !consumer.is_stored && consumer.is_empty()) {
            self.consumer = None;
        }
    }

    /// The write is in the log, or everything is as it was before it.
    pub(crate) fn finish_consumer_write(
        &mut self,
        now: Now,
        out: &mut Outbox,
        write: WriteId,
        outcome: WriteOutcome,
    ) {
        let Some(consumer) = &mut self.consumer else { return };
        let Some(in_flight) = consumer.in_flight.take_if(|in_flight| in_flight.write == write) else {
            return;
        };
        for (reply, decided) in in_flight.replies {
            let answer = match outcome.for_group() {
                Ok(()) => decided,
                Err(rejection) => Err(rejection.into()),
            };
            out.answer(reply, Answer::ConsumerHeartbeat(answer));
        }
        if outcome.is_in_log() {
            if !consumer.is_stored {
                consumer.is_stored = true;
                self.forget_classic();
            }
        } else {
            consumer.state = in_flight.before;
            consumer.view = TopicsView::default();
            self.begin_consumer_sessions(now, out);
        }
        self.work(now, out);
        self.forget_consumer_that_never_was();
    }

    /// The group was a classic one, without members; its offsets stay.
    fn forget_classic(&mut self) {
        let (offsets, consumer) = (std::mem::take(&mut self.offsets), self.consumer.take());
        *self = Self { offsets, consumer, ..Self::new(Arc::clone(&self.id)) };
    }

    /// A classic member joins: a group of the consumer protocol that has no members gives way.
    ///
    /// # Errors
    /// `InconsistentGroupProtocol` when it has members; `CoordinatorNotAvailable` when that is being decided.
    pub(crate) fn give_way_to_classic(&mut self, out: &mut Outbox) -> Result<(), Rejection> {
        let Some(consumer) = &self.consumer else { return Ok(()) };
        if !consumer.state.members.is_empty() {
            return Err(Rejection::InconsistentGroupProtocol);
        }
        if !consumer.is_idle() {
            return Err(Rejection::CoordinatorNotAvailable);
        }
        // Should the log refuse it, the next record of the classic group says the same.
        let tombstones = consumer.tombstones(&self.id);
        self.consumer = None;
        out.write_in_pieces(tombstones, Then::Nothing);
        Ok(())
    }

    /// Why a commit is not that of a current member; nobody else commits while there are members. `None` if this is not
    /// a group of the consumer protocol.
    pub(crate) fn consumer_commit_problem(&self, request: &CommitRequest) -> Option<Result<(), Rejection>> {
        let consumer = self.consumer.as_ref()?;
        if request.generation < 0 && consumer.state.members.is_empty() {
            return Some(Ok(()));
        }
        let in_transaction = request.transaction.is_some();
        let epoch_in =
            |state: &ConsumerState| state.members.get(&request.member_id).map(|member| member.current.epoch);
        // A member whose next epoch is on its way into the log has not been told of it.
        let told = || epoch_in(consumer.committed());
        Some(match epoch_in(&consumer.state) {
            None => Err(Rejection::UnknownMemberId),
            Some(_) if !in_transaction && !request.knows_member_epochs => Err(Rejection::UnsupportedVersion),
            Some(epoch) if epoch == request.generation || told() == Some(request.generation) => Ok(()),
            Some(_) if in_transaction => Err(Rejection::IllegalGeneration),
            Some(_) => Err(Rejection::StaleMemberEpoch),
        })
    }

    /// Whether offsets may be told to who asks.
    ///
    /// # Errors
    /// `UnknownMemberId`, `StaleMemberEpoch`: it claims to be a member of a group of the consumer protocol and is not,
    /// or not in that epoch.
    pub(crate) fn check_fetch(&self, request: &FetchRequest) -> Result<(), Rejection> {
        let (Some(consumer), Some((member_id, epoch))) = (&self.consumer, &request.member) else {
            return Ok(());
        };
        let member = consumer.committed().members.get(member_id).ok_or(Rejection::UnknownMemberId)?;
        if member.current.epoch == *epoch { Ok(()) } else { Err(Rejection::StaleMemberEpoch) }
    }

    /// This broker coordinates no more.
    pub(crate) fn abandon_consumer(&mut self, out: &mut Outbox) {
        let Some(consumer) = &mut self.consumer else { return };
        let written = consumer.in_flight.take().map(|in_flight| in_flight.replies).unwrap_or_default();
        let waiting = consumer.waiting.drain(..).filter_map(|work| match work {
            Work::Heartbeat(_, reply) => Some(reply),
            Work::Silent(_) | Work::Unrevoked(_) => None,
        });
        for reply in written.into_iter().map(|(reply, _)| reply).chain(waiting) {
            out.answer(reply, Answer::ConsumerHeartbeat(Err(Rejection::NotCoordinator.into())));
        }
    }
}

pub(crate) fn no_consumer_group(group: &GroupId) -> String {
    format!("{group} is not a group of the consumer protocol")
}

fn decide(decision: &mut Decision<'_>, work: &Work) -> Option<(ReplyId, HeartbeatOutcome)> {
    match work {
        Work::Heartbeat(request, reply) => return Some((*reply, decision.heartbeat(request))),
        Work::Silent(id) => {
            // A heartbeat that came before this was decided has set the timer again.
            let timer = Timer::Session(Arc::clone(decision.group), Arc::clone(id));
            if decision.state.members.contains_key(id) && !decision.out.timers.is_set(&timer) {
                let timeout_ms = decision.out.consumer_session_timeout_ms(decision.group);
                decision.fence(id, format!("member {id} was silent for {timeout_ms} ms"));
            }
        }
        Work::Unrevoked(id) => {
            let timer = Timer::Revocation(Arc::clone(decision.group), Arc::clone(id));
            let member = decision.state.members.get(id).map(|member| member.current.state);
            if member == Some(MemberState::UnrevokedPartitions) && !decision.out.timers.is_set(&timer) {
                decision.fence(id, format!("member {id} did not give up its partitions in time"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
