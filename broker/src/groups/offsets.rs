//! A group's committed offsets: commit, fetch, delete, expiry (KIP-211).
//!
//! What a client commits is pending until its record is committed; only then it is fetched (G1). Nothing expires that
//! a member may still need, or that a record on its way is about to replace (G3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::group::{CONSUMER_PROTOCOL_TYPE, Group, GroupState};
use super::outbox::{Now, Outbox, Then};
use super::records::{CommittedOffset, GroupRecord};
use super::request::{
    Answer, CommitRequest, CommittedTopic, DeleteOffsetsRequest, FetchRequest, FetchedOffset, FetchedTopic,
    OffsetToCommit, ReplyId,
};

type ByPartition<T> = HashMap<TopicName, BTreeMap<i32, T>>;

/// An offset and where its record stands in the log. Of two the later record counts, in whatever order they take effect
/// (TXN-14).
#[derive(Debug, Clone)]
struct Placed {
    value: CommittedOffset,
    at: i64,
}

/// Offsets by partition, and what is on its way into the log.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    committed: ByPartition<Placed>,
    /// Records that were handed over and are not reported yet.
    pending: ByPartition<usize>,
    /// The same of transactions.
    pending_in_transactions: ByPartition<usize>,
    /// Offsets of open transactions by producer id: they count when the transaction commits.
    in_transactions: BTreeMap<i64, ByPartition<Placed>>,
}

impl Offsets {
    /// Nothing is committed and nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.committed.is_empty() && self.is_settled()
    }

    /// Nothing is on its way, and no transaction is open.
    fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.pending_in_transactions.is_empty() && self.in_transactions.is_empty()
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.committed.get(topic)?.get(&partition).map(|placed| &placed.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TopicName, i32, &CommittedOffset)> {
        self.committed.iter().flat_map(|(topic, offsets)| {
            offsets.iter().map(move |(partition, placed)| (topic, *partition, &placed.value))
        })
    }

    /// The topics of all offsets, also of those that open transactions hold.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.committed.keys().chain(self.in_transactions.values().flat_map(HashMap::keys))
    }

    pub(crate) fn len(&self) -> usize {
        self.committed.values().map(BTreeMap::len).sum()
    }

    /// A committed record takes effect. `at`: its offset in the log; records come in that order.
    pub(crate) fn apply(
        &mut self,
        topic: &TopicName,
        partition: i32,
        value: Option<&CommittedOffset>,
        at: i64,
    ) {
        match value {
            Some(value) => self.place(topic, partition, Placed { value: value.clone(), at }),
            None => {
                remove(&mut self.committed, topic, partition);
                // What stands before the removal is removed, whatever becomes of its transaction.
                self.in_transactions.retain(|_, offsets| {
                    remove(offsets, topic, partition);
                    !offsets.is_empty()
                });
            }
        }
    }

    fn place(&mut self, topic: &TopicName, partition: i32, placed: Placed) {
        if let Some(offsets) = self.committed.get_mut(topic) {
            offsets.insert(partition, placed);
        } else {
            self.committed.insert(Arc::clone(topic), BTreeMap::from([(partition, placed)]));
        }
    }

    /// A record of a transaction is in the log; it takes effect with the transaction's end.
    pub(crate) fn apply_in_transaction(
        &mut self,
        producer_id: i64,
        (topic, partition): (&TopicName, i32),
        value: CommittedOffset,
        at: i64,
    ) {
        let topics = self.in_transactions.entry(producer_id).or_default();
        topics.entry(Arc::clone(topic)).or_default().insert(partition, Placed { value, at });
    }

    pub(crate) fn end_transaction(&mut self, producer_id: i64, commits: bool) {
        let Some(topics) = self.in_transactions.remove(&producer_id) else { return };
        if !commits && holds(Rule::AbortedOffsetsAreDropped) {
            return;
        }
        for (topic, offsets) in topics {
            for (partition, placed) in offsets {
                let current = self.committed.get(&topic).and_then(|offsets| offsets.get(&partition));
                if current.is_none_or(|current| current.at < placed.at) {
                    self.place(&topic, partition, placed);
                }
            }
        }
    }

    fn is_in_transaction(&self, topic: &str, partition: i32) -> bool {
        if !holds(Rule::UnstableIsNotTold) {
            return false;
        }
        has(&self.pending_in_transactions, topic, partition)
            || self.in_transactions.values().any(|offsets| has(offsets, topic, partition))
    }

    fn is_pending(&self, topic: &str, partition: i32) -> bool {
        has(&self.pending, topic, partition) || self.is_in_transaction(topic, partition)
    }

    fn on_their_way(&mut self, in_transaction: bool) -> &mut ByPartition<usize> {
        if in_transaction { &mut self.pending_in_transactions } else { &mut self.pending }
    }

    fn begin(&mut self, topic: &TopicName, partition: i32, in_transaction: bool) {
        let pending = self.on_their_way(in_transaction).entry(Arc::clone(topic)).or_default();
        *pending.entry(partition).or_default() += 1;
    }

    /// The record was reported, whatever became of it.
    pub(crate) fn finish(&mut self, topic: &TopicName, partition: i32, in_transaction: bool) {
        let pending = self.on_their_way(in_transaction);
        let Some(count) = pending.get_mut(topic).and_then(|offsets| offsets.get_mut(&partition)) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            remove(pending, topic, partition);
        }
    }

    /// Every partition that the log may hold an offset of, committed or on its way, that `wanted` names.
    fn known(&self, wanted: impl Fn(&TopicName) -> bool) -> Vec<(TopicName, i32)> {
        let mut known: BTreeSet<(TopicName, i32)> = BTreeSet::new();
        collect(&self.committed, &wanted, &mut known);
        collect(&self.pending, &wanted, &mut known);
        collect(&self.pending_in_transactions, &wanted, &mut known);
        for offsets in self.in_transactions.values() {
            collect(offsets, &wanted, &mut known);
        }
        known.into_iter().collect()
    }
}

fn has<T>(offsets: &ByPartition<T>, topic: &str, partition: i32) -> bool {
    offsets.get(topic).is_some_and(|offsets| offsets.contains_key(&partition))
}

fn collect<T>(
    offsets: &ByPartition<T>,
    wanted: impl Fn(&TopicName) -> bool,
    known: &mut BTreeSet<(TopicName, i32)>,
) {
    for (topic, partitions) in offsets.iter().filter(|(topic, _)| wanted(topic)) {
        known.extend(partitions.keys().map(|partition| (Arc::clone(topic), *partition)));
    }
}

fn remove<T>(offsets: &mut ByPartition<T>, topic: &TopicName, partition: i32) {
    if let Some(partitions) = offsets.get_mut(topic) {
        partitions.remove(&partition);
        if partitions.is_empty() {
            offsets.remove(topic);
        }
    }
}

impl Group {
    pub(crate) fn commit(&mut self, now: Now, out: &mut Outbox, request: &CommitRequest, reply: ReplyId) {
        let in_transaction = request.transaction.is_some();
        let refused = self.commit_problem(request);
        if refused.is_none() && !request.member_id.is_empty() {
            self.touch(&request.member_id, now, out);
        }
        // It knows the generation, so it was told; its rebalance ends with an assignment. Kafka lets transactions pass.
        let unfinished = (self.is(GroupState::CompletingRebalance) && !in_transaction)
            .then_some(Rejection::RebalanceInProgress);
        if let Some(rejection) = refused.or(unfinished) {
            return out.answer(reply, Answer::Commit(request.refused_with(rejection)));
        }
        let mut records = Vec::new();
        let mut answer = Vec::with_capacity(request.topics.len());
        for (topic, offsets) in &request.topics {
            let mut partitions = Vec::with_capacity(offsets.len());
            for offset in offsets {
                if out.settings.offset_metadata_bytes_max < offset.metadata.len() {
                    partitions.push((offset.partition, Some(Rejection::OffsetMetadataTooLarge)));
                    continue;
                }
                partitions.push((offset.partition, None));
                self.offsets.begin(topic, offset.partition, in_transaction);
                records.push(self.offset_record(topic, offset.partition, Some(value(request, offset, now))));
            }
            answer.push((Arc::clone(topic), partitions));
        }
        if records.is_empty() {
            return out.answer(reply, Answer::Commit(answer));
        }
        let then = Then::Commit { group: Arc::clone(&self.id), reply, answer };
        match request.transaction {
            Some(transaction) => out.write_in_transaction(records, transaction, then),
            None => out.write(records, then),
        };
    }

    /// Members commit for their generation; anybody commits for a group that has no members (GRP-05), or in a
    /// transaction, whose producer is fenced by its epoch. A client that names no generation may name itself all the
    /// same: one of the consumer protocol has its member id before it joins, and perhaps it only assigns.
    fn commit_problem(&self, request: &CommitRequest) -> Option<Rejection> {
        let is_member =
            0 <= request.generation || !request.member_id.is_empty() || request.instance_id.is_some();
        if self.is(GroupState::Dead) {
            Some(Rejection::CoordinatorNotAvailable)
        } else if let Some(checked) = self.consumer_commit_problem(request) {
            checked.err()
        } else if request.generation < 0 && self.is(GroupState::Empty) {
            None
        } else if is_member && holds(Rule::CommitOfGeneration) {
            self.generation_problem(request.generation, &request.member_id, request.instance_id.as_ref())
        } else if request.transaction.is_some() {
            None
        } else {
            Some(Rejection::UnknownMemberId)
        }
    }

    fn offset_record(
        &self,
        topic: &TopicName,
        partition: i32,
        value: Option<CommittedOffset>,
    ) -> GroupRecord {
        GroupRecord::Offset { group: Arc::clone(&self.id), topic: Arc::clone(topic), partition, value }
    }

    fn offset_tombstones(&self, partitions: &[(TopicName, i32)]) -> Vec<GroupRecord> {
        partitions.iter().map(|(topic, partition)| self.offset_record(topic, *partition, None)).collect()
    }

    pub(crate) fn fetch(&self, request: &FetchRequest) -> Vec<FetchedTopic> {
        let fetched = |topic: &TopicName, partition: i32| {
            let found = self.offsets.get(topic, partition);
            fetched_offset(
                partition,
                found,
                request.require_stable && { self.offsets.is_in_transaction(topic, partition) },
            )
        };
        match &request.topics {
            Some(topics) => topics
                .iter()
                .map(|(topic, partitions)| {
                    (
                        Arc::clone(topic),
                        partitions.iter().map(|partition| fetched(topic, *partition)).collect(),
                    )
                })
                .collect(),
            None => {
                let mut topics: Vec<FetchedTopic> = self
                    .offsets
                    .committed
                    .iter()
                    .map(|(topic, offsets)| {
                        (
                            Arc::clone(topic),
                            offsets.keys().map(|partition| fetched(topic, *partition)).collect(),
                        )
                    })
                    .collect();
                topics.sort_by(|one, other| one.0.cmp(&other.0));
                topics
            }
        }
    }

    pub(crate) fn delete_offsets(
        &mut self,
        out: &mut Outbox,
        request: &DeleteOffsetsRequest,
        reply: ReplyId,
    ) {
        let is_consumer_group = self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE);
        let refused = match self.state {
            GroupState::Dead => Some(Rejection::GroupIdNotFound),
            GroupState::Empty => None,
            _ => (!is_consumer_group).then_some(Rejection::NonEmptyGroup),
        };
        if let Some(rejection) = refused {
            return out.answer(reply, Answer::DeleteOffsets(Err(rejection)));
        }
        let mut records = Vec::new();
        let mut answer: Vec<CommittedTopic> = Vec::with_capacity(request.topics.len());
        for (topic, partitions) in &request.topics {
            let subscribed = self.has_subscribed(topic).then_some(Rejection::GroupSubscribedToTopic);
            for partition in partitions {
                let is_known = self.offsets.get(topic, *partition).is_some()
                    || self.offsets.is_pending(topic, *partition);
                if subscribed.is_none() && is_known {
                    records.push(self.offset_record(topic, *partition, None));
                }
            }
            let outcomes = partitions.iter().map(|partition| (*partition, subscribed)).collect();
            answer.push((Arc::clone(topic), outcomes));
        }
        if records.is_empty() {
            return out.answer(reply, Answer::DeleteOffsets(Ok(answer)));
        }
        let offsets = records.len();
        out.write_in_pieces(records, Then::DeleteOffsets { reply, answer, offsets });
    }

    /// Whether a member reads the topic; if their subscriptions cannot be read, any topic may be read.
    fn has_subscribed(&self, topic: &TopicName) -> bool {
        if let Some(consumer) = &self.consumer {
            return consumer.has_subscribed(topic);
        }
        !self.members.is_empty()
            && self.subscribed_topics.as_ref().is_none_or(|topics| topics.contains(topic))
    }

    /// A topic is gone: offsets of it mean nothing for one that comes later under its name (GRP-07).
    pub(crate) fn forget_topics(&self, out: &mut Outbox, topics: &[TopicName]) {
        let partitions = self.offsets.known(|topic| topics.contains(topic));
        if !partitions.is_empty() {
            out.write_in_pieces(self.offset_tombstones(&partitions), Then::Nothing);
        }
    }

    /// An empty group is removed, with all its offsets: for a client, who is answered, or because they have expired. It is
    /// dead until that is stored.
    pub(crate) fn remove(&mut self, now: Now, out: &mut Outbox, reply: Option<ReplyId>) {
        let (reason, expired) = match reply {
            Some(_) => ("a client deleted it", 0),
            None => ("all its offsets have expired", self.offsets.len()),
        };
        self.move_to(GroupState::Dead, now, out, reason);
        let mut records = self.offset_tombstones(&self.offsets.known(|_| true));
        if 0 < self.generation {
            records.push(self.tombstone());
        }
        records.extend(self.consumer.iter().flat_map(|consumer| consumer.tombstones(&self.id)));
        let then = Then::Delete { group: Arc::clone(&self.id), reply, expired };
        out.write_in_pieces(records, then);
    }

    /// Removes offsets whose time is over, and the group when nothing of it is left.
    pub(crate) fn expire(&mut self, now: Now, out: &mut Outbox) {
        if self.is(GroupState::Dead) {
            return;
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.note_emptiness(now);
        }
        let expired = self.expired_offsets(now.wall_ms, out.settings.offsets_retention_ms);
        let is_over = self.has_no_members()
            && self.pending_members.is_empty()
            && self.offsets.is_settled()
            && expired.len() == self.offsets.len();
        let is_stored = 0 < self.generation || self.consumer.is_some();
        if is_over && (is_stored || !expired.is_empty()) {
            self.remove(now, out, None);
        } else if !expired.is_empty() {
            let then = Then::Expire { offsets: expired.len() };
            out.write_in_pieces(self.offset_tombstones(&expired), then);
        }
    }

    fn expired_offsets(&self, now_ms: i64, retention_ms: i64) -> Vec<(TopicName, i32)> {
        let since: &dyn Fn(&CommittedOffset) -> i64 = match (&self.protocol_type, self.state) {
            // Offsets that an admin sets after the last member left get their full time too.
            (Some(_), GroupState::Empty) => {
                &|offset| offset.commit_time_ms.max(self.state_since_ms.unwrap_or(i64::MIN))
            }
            (Some(name), GroupState::Stable) if &**name == CONSUMER_PROTOCOL_TYPE => {
                &|offset| offset.commit_time_ms
            }
            (None, _) => {
                let emptied = self.consumer.as_ref().and_then(|consumer| consumer.empty_since_ms);
                &move |offset| offset.commit_time_ms.max(emptied.unwrap_or(i64::MIN))
            }
            _ => return Vec::new(),
        };
        let is_expired = |offset: &CommittedOffset| match offset.expire_time_ms {
            Some(expire_time_ms) => expire_time_ms <= now_ms,
            None => retention_ms <= now_ms.saturating_sub(since(offset)),
        };
        self.offsets
            .iter()
            .filter(|(topic, partition, offset)| {
                is_expired(offset)
                    && !self.has_subscribed(topic)
                    && !self.offsets.is_pending(topic, *partition)
            })
            .map(|(topic, partition, _)| (Arc::clone(topic), partition))
            .collect()
    }
}

fn value(request: &CommitRequest, offset: &OffsetToCommit, now: Now) -> CommittedOffset {
    CommittedOffset {
        offset: offset.offset,
        leader_epoch: offset.leader_epoch,
        metadata: Arc::clone(&offset.metadata),
        commit_time_ms: offset.commit_time_ms.unwrap_or(now.wall_ms),
        expire_time_ms: request.retention_ms.map(|retention_ms| now.wall_ms.saturating_add(retention_ms)),
    }
}

fn fetched_offset(partition: i32, found: Option<&CommittedOffset>, is_unstable: bool) -> FetchedOffset {
    let found = found.filter(|_| !is_unstable);
    FetchedOffset {
        partition,
        offset: found.map_or(-1, |offset| offset.offset),
        leader_epoch: found.map_or(-1, |offset| offset.leader_epoch),
        metadata: found.map(|offset| Arc::clone(&offset.metadata)).unwrap_or_default(),
        rejection: is_unstable.then_some(Rejection::UnstableOffsetCommit),
    }
}

/// The answer of a group that has committed nothing.
pub(crate) fn fetch_nothing(request: &FetchRequest) -> Vec<FetchedTopic> {
    let nothing = |(topic, partitions): &(TopicName, Vec<i32>)| {
        let offsets = partitions.iter().map(|partition| fetched_offset(*partition, None, false));
        (Arc::clone(topic), offsets.collect())
    };
    request.topics.iter().flatten().map(nothing).collect()
}
