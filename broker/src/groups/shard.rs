//! The coordinator of one partition of `__consumer_offsets`: all groups whose ids fall into it.
//!
//! Pure: events in, effects out. It is made empty, fed every record of its partition, and then serves. What it says is
//! never ahead of the log: offsets, assignments and removals take effect when their write is reported as committed,
//! in the order of the log, by the same code that replays it (G1).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::consumer::ConsumerRefusal;
use super::group::{CONSUMER_PROTOCOL_TYPE, Group, GroupState, Member};
use super::offsets::fetch_nothing;
use super::outbox::{
    Effect, GroupSettings, Now, Outbox, PendingWrite, Tally, Then, Timer, WriteId, WriteOutcome,
};
use super::records::{GroupId, GroupRecord, MemberId, RecordProblem};
use super::request::{
    Answer, CommitRequest, CommittedTopic, DescribedMember, Description, JoinAnswer, JoinRequest,
    LeaveRequest, Listing, ReplyId, Request, Summary,
};
use crate::coordinator::{Producer, Replay};
use crate::group_configs::ConfigsOfGroups;
use crate::log::{Marker, Verification};
use crate::metadata::MetadataImage;

/// Everything that can happen to a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Ask {
        reply: ReplyId,
        group: GroupId,
        request: Request,
    },
    List {
        reply: ReplyId,
    },
    /// `first_offset`: of the write's first record; of no meaning if it is not in the log.
    Written {
        write: WriteId,
        outcome: WriteOutcome,
        first_offset: i64,
    },
    TopicsDeleted(Vec<TopicName>),
    /// A transaction that has offsets in this partition ends.
    EndTransaction {
        reply: ReplyId,
        producer: Producer,
        marker: Marker,
        /// What the log asks of the marker.
        verification: Verification,
    },
    /// A deadline has passed.
    Tick,
}

/// Time between two attempts to store that a group is empty.
const PERSIST_RETRY_MS: i64 = 5_000;

impl Replay for Shard {
    fn replay(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        producer_id: Option<i64>,
        at: i64,
    ) -> Result<bool, RecordProblem> {
        let record = GroupRecord::decode(key, value)?;
        let is_known = record.is_some();
        if let Some(record) = record {
            self.replay_record(record, producer_id, at);
        }
        Ok(is_known)
    }

    fn replay_transaction_end(&mut self, producer_id: i64, commits: bool) {
        self.end_transaction(producer_id, commits);
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    groups: HashMap<GroupId, Group>,
    /// The groups that hold offsets of an open transaction, by producer id.
    in_transactions: HashMap<i64, BTreeSet<GroupId>>,
    out: Outbox,
}

impl Shard {
    pub(crate) fn new(settings: Arc<GroupSettings>) -> Self {
        Self { groups: HashMap::new(), in_transactions: HashMap::new(), out: Outbox::new(settings) }
    }

    /// A record of the log, while the coordinator loads; `producer_id` if it belongs to a transaction, `at` its offset.
    pub(crate) fn replay_record(&mut self, record: GroupRecord, producer_id: Option<i64>, at: i64) {
        let group = Arc::clone(record.group());
        match record {
            GroupRecord::Offset { .. } => self.apply(&record, producer_id, at),
            GroupRecord::Group { value, .. } => self.group(&group).restore(value.as_ref()),
            GroupRecord::Consumer { record, .. } => self.group(&group).replay_consumer(&record),
        }
        self.forget_if_blank(&group);
    }

    /// A transaction's end in the log.
    fn end_transaction(&mut self, producer_id: i64, commits: bool) {
        for id in self.in_transactions.remove(&producer_id).unwrap_or_default() {
            if let Some(group) = self.groups.get_mut(&id) {
                group.offsets.end_transaction(producer_id, commits);
                self.forget_if_blank(&id);
            }
        }
    }

    /// The whole log was replayed: members have a session from now on.
    pub(crate) fn finish_loading(&mut self, now: Now) -> Vec<Effect> {
        for group in self.groups.values_mut() {
            group.begin_consumer_sessions(now, &mut self.out);
            let ids: Vec<MemberId> = group.members.keys().cloned().collect();
            for member_id in &ids {
                group.touch(member_id, now, &mut self.out);
            }
            if self.out.settings.group_size_max < group.members.len() {
                let reason = "it was loaded with more members than group.max.size";
                group.prepare_rebalance_if_possible(now, &mut self.out, reason);
            }
        }
        let due_ms = now.elapsed_ms + self.out.settings.retention_check_interval_ms;
        self.out.timers.set(Timer::Retention, due_ms);
        std::mem::take(&mut self.out.effects)
    }

    /// What this broker knows of the topics of the cluster, from now on.
    pub(crate) fn note_topics(&mut self, topics: Arc<MetadataImage>) {
        self.out.topics = topics;
    }

    /// What single groups are configured with, from now on. A session that runs ends when it would have; the member's next
    /// heartbeat begins one of the new length, and is told the new time between heartbeats.
    pub(crate) fn note_configs(&mut self, configs: Arc<ConfigsOfGroups>) {
        self.out.configs = configs;
    }

    /// When [`Event::Tick`] is due, by the clock of [`Now::elapsed_ms`].
    pub(crate) fn next_deadline(&self) -> Option<i64> {
        self.out.timers.next_deadline()
    }

    pub(crate) fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        match event {
            Event::Ask { reply, group, request } => self.ask(now, reply, &group, request),
            Event::List { reply } => self.list(reply),
            Event::Written { write, outcome, first_offset } => {
                self.written(now, write, outcome, first_offset)
            }
            Event::TopicsDeleted(topics) => {
                for group in self.groups.values_mut().filter(|group| !group.is(GroupState::Dead)) {
                    group.forget_topics(&mut self.out, &topics);
                }
            }
            Event::EndTransaction { reply, producer, marker, verification } => {
                let then = Then::EndTransaction { reply, producer_id: producer.id, commits: marker.commit };
                self.out.write_marker(producer, (marker, verification), then);
            }
            Event::Tick => {}
        }
        while let Some(timer) = self.out.timers.take_due(now.elapsed_ms) {
            self.fire(now, timer);
        }
        std::mem::take(&mut self.out.effects)
    }

    /// What happened since this was last asked.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.out.tally)
    }

    /// This broker coordinates no more: everyone who waits is sent to look for who does.
    pub(crate) fn abandon(&mut self) -> Vec<Effect> {
        let not_coordinator = Rejection::NotCoordinator;
        let out = &mut self.out;
        for (_, write) in std::mem::take(&mut out.writes) {
            match write.then {
                Then::Commit { reply, answer, .. } => {
                    out.answer(reply, Answer::Commit(with_outcome(answer, Err(not_coordinator))));
                }
                Then::DeleteOffsets { reply, .. } => {
                    out.answer(reply, Answer::DeleteOffsets(Err(not_coordinator)));
                }
                Then::Delete { reply: Some(reply), .. } => {
                    out.answer(reply, Answer::Delete(Err(not_coordinator)));
                }
                Then::EndTransaction { reply, .. } => {
                    out.answer(reply, Answer::EndTransaction(Err(not_coordinator)));
                }
                _ => {}
            }
        }
        for group in self.groups.values_mut() {
            group.abandon_consumer(out);
            for (member_id, member) in &mut group.members {
                if let Some(reply) = member.awaiting_join.take() {
                    out.refuse_join(reply, not_coordinator, member_id);
                }
                if let Some(reply) = member.awaiting_sync.take() {
                    out.answer_sync(reply, Err(not_coordinator));
                }
            }
        }
        std::mem::take(&mut self.out.effects)
    }

    /// The topics that offsets are held of.
    pub(crate) fn topics(&self) -> Vec<TopicName> {
        let mut topics: Vec<TopicName> =
            self.groups.values().flat_map(|group| group.offsets.topics().cloned()).collect();
        topics.sort();
        topics.dedup();
        topics
    }

    /// What an operator sees of each group, in no particular order.
    pub(crate) fn summaries(&self) -> Vec<Summary> {
        let summary = |group: &Group| Summary {
            group: Arc::clone(&group.id),
            state: group.consumer.as_ref().map_or(group.state, |consumer| consumer.classic_state()),
            members: group
                .consumer
                .as_ref()
                .map_or(group.members.len(), |consumer| consumer.committed().members.len()),
            offsets: group
                .offsets
                .iter()
                .map(|(topic, partition, committed)| {
                    (TopicPartition::new(Arc::clone(topic), partition), committed.offset)
                })
                .collect(),
        };
        self.groups.values().map(summary).collect()
    }

    fn group(&mut self, id: &GroupId) -> &mut Group {
        if !self.groups.contains_key(id) {
            self.groups.insert(Arc::clone(id), Group::new(Arc::clone(id)));
        }
        self.groups.get_mut(id).expect("inserted above")
    }

    fn forget_if_blank(&mut self, id: &GroupId) {
        if self.groups.get(id).is_some_and(Group::is_blank) {
            self.groups.remove(id);
        }
    }

    fn ask(&mut self, now: Now, reply: ReplyId, id: &GroupId, request: Request) {
        if may_create(&request) {
            self.group(id);
        }
        let out = &mut self.out;
        let Some(group) = self.groups.get_mut(id) else {
            return out.answer(reply, answer_of_no_group(&request));
        };
        match request {
            Request::Join(request) => {
                let allowed = out.settings.session_timeout_min_ms..=out.settings.session_timeout_max_ms;
                if !allowed.contains(&request.session_timeout_ms) {
                    out.refuse_join(reply, Rejection::InvalidSessionTimeout, &request.member_id);
                } else if let Err(rejection) = group.give_way_to_classic(out) {
                    out.refuse_join(reply, rejection, &request.member_id);
                } else {
                    group.join(now, out, request, reply);
                }
            }
            Request::Sync(request) => group.sync(now, out, request, reply),
            Request::Heartbeat(request) => group.heartbeat(now, out, &request, reply),
            Request::Leave(request) => group.leave(now, out, &request, reply),
            Request::Commit(request) => group.commit(now, out, &request, reply),
            Request::Fetch(request) => {
                let fetched = group.check_fetch(&request).map(|()| {
                    if group.is(GroupState::Dead) { fetch_nothing(&request) } else { group.fetch(&request) }
                });
                out.answer(reply, Answer::Fetch(fetched));
            }
            Request::DeleteOffsets(request) => group.delete_offsets(out, &request, reply),
            Request::Describe(_) => out.answer(reply, Answer::Describe(Ok(describe(group)))),
            Request::Delete(_) => match group.state {
                GroupState::Dead => out.answer(reply, Answer::Delete(Err(Rejection::GroupIdNotFound))),
                GroupState::Empty if group.has_no_members() => {
                    group.remove(now, out, Some(reply));
                }
                _ => out.answer(reply, Answer::Delete(Err(Rejection::NonEmptyGroup))),
            },
            Request::ConsumerHeartbeat(request) => group.consumer_heartbeat(now, out, request, reply),
            Request::ConsumerDescribe(_) => {
                let described = group.consumer.as_ref().map(|consumer| consumer.describe(out));
                let answer = described.ok_or(Rejection::GroupIdNotFound);
                out.answer(reply, Answer::ConsumerDescribe(answer));
            }
        }
        self.forget_if_blank(id);
    }

    fn list(&mut self, reply: ReplyId) {
        let listing = |group: &Group| match &group.consumer {
            Some(consumer) => Listing {
                group: Arc::clone(&group.id),
                protocol_type: CONSUMER_PROTOCOL_TYPE.into(),
                state: consumer.committed().phase().name(),
                group_type: "consumer",
            },
            None => Listing {
                group: Arc::clone(&group.id),
                protocol_type: group.protocol_type.clone().unwrap_or_default(),
                state: group.state.name(),
                group_type: "classic",
            },
        };
        let mut listings: Vec<Listing> = self.groups.values().map(listing).collect();
        listings.sort_by(|one, other| one.group.cmp(&other.group));
        self.out.answer(reply, Answer::List(listings));
    }

    fn written(&mut self, now: Now, write: WriteId, outcome: WriteOutcome, first_offset: i64) {
        let Some(PendingWrite { records, producer_id, then }) = self.out.writes.remove(&write) else {
            return;
        };
        if outcome.is_in_log() {
            for (at, record) in (first_offset..).zip(&*records) {
                self.apply(record, producer_id, at);
            }
        }
        match then {
            Then::Nothing => {}
            Then::Expire { offsets } => self.count_expired(offsets, outcome),
            Then::Assign { group, assignments } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    let assigned = (write, assignments);
                    group.finish_assignment(now, &mut self.out, assigned, outcome.for_group());
                }
            }
            Then::Empty { group, generation } => {
                let is_current = self
                    .groups
                    .get(&group)
                    .is_some_and(|group| group.is(GroupState::Empty) && group.generation == generation);
                if !outcome.is_in_log() && is_current {
                    self.out.timers.set(Timer::Persist(group), now.elapsed_ms + PERSIST_RETRY_MS);
                }
            }
            Then::Consumer { group } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.finish_consumer_write(now, &mut self.out, write, outcome);
                }
            }
            Then::Replace(replacement) => {
                if let Some(group) = self.groups.get_mut(&replacement.group) {
                    group.finish_replacement(now, &mut self.out, &replacement, outcome);
                }
            }
            Then::Commit { group, reply, answer } => {
                self.finish_commit(&group, &records, producer_id.is_some());
                if outcome.for_offsets().is_ok() {
                    self.out.tally.offsets_committed += records.len();
                }
                let answer = with_outcome(answer, outcome.for_offsets());
                self.out.answer(reply, Answer::Commit(answer));
            }
            Then::DeleteOffsets { reply, answer, offsets } => {
                let answer = outcome.for_offsets().map(|()| answer);
                if answer.is_ok() {
                    self.out.tally.offsets_deleted += offsets;
                }
                self.out.answer(reply, Answer::DeleteOffsets(answer));
            }
            Then::EndTransaction { reply, producer_id, commits } => {
                if outcome.is_in_log() {
                    self.end_transaction(producer_id, commits);
                }
                self.out.answer(reply, Answer::EndTransaction(outcome.for_marker()));
            }
            Then::Delete { group, reply, expired } => {
                self.count_expired(expired, outcome);
                self.finish_removal(now, &group, reply, outcome);
            }
        }
        if let Some(group) = records.first().map(GroupRecord::group) {
            self.forget_if_blank(group);
        }
    }

    /// A committed record takes effect, or waits for the end of its transaction. A group's own record does not: the
    /// group has moved on since it was written, or the continuation of the write brings it there.
    fn apply(&mut self, record: &GroupRecord, producer_id: Option<i64>, at: i64) {
        let GroupRecord::Offset { group, topic, partition, value } = record else { return };
        let offsets = &mut self.group(group).offsets;
        match (producer_id, value) {
            (Some(producer_id), Some(value)) if holds(Rule::OffsetsWaitForTheEnd) => {
                offsets.apply_in_transaction(producer_id, (topic, *partition), value.clone(), at);
                self.in_transactions.entry(producer_id).or_default().insert(Arc::clone(group));
            }
            (_, value) => offsets.apply(topic, *partition, value.as_ref(), at),
        }
    }

    fn finish_commit(&mut self, id: &GroupId, records: &[GroupRecord], in_transaction: bool) {
        let Some(group) = self.groups.get_mut(id) else { return };
        for record in records {
            if let GroupRecord::Offset { topic, partition, .. } = record {
                group.offsets.finish(topic, *partition, in_transaction);
            }
        }
    }

    fn count_expired(&mut self, offsets: usize, outcome: WriteOutcome) {
        if outcome.is_in_log() {
            self.out.tally.offsets_expired += offsets;
        }
    }

    fn finish_removal(&mut self, now: Now, id: &GroupId, reply: Option<ReplyId>, outcome: WriteOutcome) {
        if let Some(group) = self.groups.get_mut(id) {
            if outcome.is_in_log() {
                group.restore(None);
            } else {
                group.move_to(GroupState::Empty, now, &mut self.out, "its removal could not be stored");
                if 0 < group.generation {
                    // An earlier record that says so may have been refused too.
                    group.persist_empty(&mut self.out);
                }
            }
        }
        if let Some(reply) = reply {
            self.out.answer(reply, Answer::Delete(outcome.for_group()));
        }
    }

    fn fire(&mut self, now: Now, timer: Timer) {
        let out = &mut self.out;
        match timer {
            Timer::Rebalance(id) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.rebalance_timer_fired(now, out);
                }
            }
            Timer::Sync(id) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.sync_timer_fired(now, out);
                }
            }
            Timer::Session(id, member_id) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.session_timer_fired(now, out, &member_id);
                    group.consumer_member_is_silent(now, out, &member_id);
                }
            }
            Timer::Revocation(id, member_id) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.revocation_timer_fired(now, out, &member_id);
                }
            }
            Timer::Pending(id, member_id) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.pending_timer_fired(now, out, &member_id);
                }
                self.forget_if_blank(&id);
            }
            Timer::Persist(id) => {
                if let Some(group) = self.groups.get(&id).filter(|group| group.is(GroupState::Empty)) {
                    group.persist_empty(out);
                }
            }
            Timer::Retention => {
                for group in self.groups.values_mut() {
                    group.expire(now, out);
                }
                let due_ms = now.elapsed_ms + out.settings.retention_check_interval_ms;
                out.timers.set(Timer::Retention, due_ms);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn groups(&self) -> &HashMap<GroupId, Group> {
        &self.groups
    }

    /// Whether a group is empty, and that could not be stored yet.
    #[cfg(test)]
    pub(crate) fn has_unstored_groups(&self) -> bool {
        self.groups.keys().any(|id| self.out.timers.is_set(&Timer::Persist(Arc::clone(id))))
    }
}

/// A join without an id founds a group, and so does a commit that claims no membership, or that of a transaction.
fn may_create(request: &Request) -> bool {
    match request {
        Request::Join(request) => request.member_id.is_empty(),
        Request::Commit(request) => request.generation < 0 || request.transaction.is_some(),
        Request::ConsumerHeartbeat(request) => request.epoch == 0,
        _ => false,
    }
}

fn answer_of_no_group(request: &Request) -> Answer {
    let unknown = Rejection::UnknownMemberId;
    match request {
        Request::Join(JoinRequest { member_id, .. }) => {
            Answer::Join(JoinAnswer::refused(unknown, Arc::clone(member_id)))
        }
        Request::Sync(_) => Answer::Sync(Err(unknown)),
        Request::Heartbeat(_) => Answer::Heartbeat(Err(unknown)),
        Request::Leave(LeaveRequest { members }) => {
            Answer::Leave(Ok(members.iter().map(|_| Err(unknown)).collect()))
        }
        Request::Commit(request) => Answer::Commit(CommitRequest::refused_with(request, {
            // Of an older generation, or of no group that ever was.
            Rejection::IllegalGeneration
        })),
        Request::Fetch(request) => Answer::Fetch(Ok(fetch_nothing(request))),
        Request::DeleteOffsets(_) => Answer::DeleteOffsets(Err(Rejection::GroupIdNotFound)),
        Request::Describe(_) => Answer::Describe(Ok(no_description())),
        Request::Delete(_) => Answer::Delete(Err(Rejection::GroupIdNotFound)),
        Request::ConsumerHeartbeat(_) => {
            let message = "the group does not exist";
            Answer::ConsumerHeartbeat(Err(ConsumerRefusal::new(Rejection::GroupIdNotFound, message)))
        }
        Request::ConsumerDescribe(_) => Answer::ConsumerDescribe(Err(Rejection::GroupIdNotFound)),
    }
}

fn no_description() -> Description {
    Description {
        state: GroupState::Dead.name(),
        protocol_type: "".into(),
        protocol: "".into(),
        members: Vec::new(),
    }
}

/// Partitions that were written share the fate of the write; the others keep their own refusal.
fn with_outcome(mut answer: Vec<CommittedTopic>, outcome: Result<(), Rejection>) -> Vec<CommittedTopic> {
    if let Err(rejection) = outcome {
        for (_, partitions) in &mut answer {
            for (_, refused) in partitions {
                refused.get_or_insert(rejection);
            }
        }
    }
    answer
}

/// A group of the consumer protocol is "Dead" to who asks for one of the classic protocol, as in Kafka 4.0.
fn describe(group: &Group) -> Description {
    if group.consumer.is_some() {
        return no_description();
    }
    let protocol = group.protocol.clone().filter(|_| group.is(GroupState::Stable));
    let described = |(id, member): (&MemberId, &Member)| DescribedMember {
        member_id: Arc::clone(id),
        instance_id: member.instance_id.clone(),
        client_id: Arc::clone(&member.client_id),
        client_host: Arc::clone(&member.client_host),
        metadata: protocol.as_ref().map(|protocol| member.metadata(protocol)).unwrap_or_default(),
        assignment: protocol.as_ref().map(|_| member.assignment.clone()).unwrap_or_default(),
    };
    Description {
        state: group.state.name(),
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        members: group.members.iter().map(described).collect(),
        protocol: protocol.clone().unwrap_or_default(),
    }
}
