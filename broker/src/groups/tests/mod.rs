//! Stories about the coordinator: clients ask, time passes, writes are committed or refused; answers are read as text.

mod fixtures;
mod groups;
mod offsets;
mod replay;
mod statics;
mod transactions;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use zurau_common::id::TopicId;
use zurau_common::rejection::Rejection;

use super::consumer::Assignor;
use super::outbox::{Effect, GroupSettings, Now, WriteId, WriteOutcome};
use super::records::GroupRecord;
use super::request::{
    Answer, CommitRequest, DeleteOffsetsRequest, DeleteRequest, DescribeRequest, FetchRequest,
    HeartbeatRequest, JoinRequest, LeaveRequest, LeavingMember, OffsetToCommit, Protocol, ReplyId, Request,
    SyncRequest, Transaction,
};
use super::shard::{Event, Shard};
use crate::coordinator::{Producer, Replay};
use crate::log::{Marker, Verification};
use crate::metadata::MetadataImage;

pub(super) const DAY_MS: i64 = 24 * 3_600_000;
const START_MS: i64 = 1_700_000_000_000;

pub(super) fn settings() -> GroupSettings {
    GroupSettings {
        session_timeout_min_ms: 6_000,
        session_timeout_max_ms: 1_800_000,
        initial_rebalance_delay_ms: 3_000,
        group_size_max: 100,
        consumer_session_timeout_ms: 45_000,
        consumer_heartbeat_interval_ms: 5_000,
        consumer_size_max: 5,
        consumer_assignors: vec![Assignor::Uniform, Assignor::Range],
        offset_metadata_bytes_max: 16,
        offsets_retention_ms: 7 * DAY_MS,
        retention_check_interval_ms: 600_000,
    }
}

/// One entry of the log.
#[derive(Clone)]
pub(super) enum Logged {
    /// With the producer whose transaction it belongs to.
    Record(GroupRecord, Option<i64>),
    Marker {
        producer_id: i64,
        commits: bool,
    },
}

/// What was appended and is not reported yet, in the order of the log.
pub(super) enum Appended {
    Write(WriteId, Arc<Vec<GroupRecord>>, Option<i64>),
    Marker(WriteId, i64, bool),
}

/// Feeds the log to a coordinator, as a load does.
pub(super) fn replay_into(shard: &mut Shard, log: &[Logged]) {
    for (at, entry) in (0..).zip(log) {
        match entry {
            Logged::Record(record, producer_id) => {
                let (key, value) = record.encode();
                let read = GroupRecord::decode(Some(&key), value.as_deref()).unwrap().unwrap();
                shard.replay_record(read, *producer_id, at);
            }
            Logged::Marker { producer_id, commits } => shard.replay_transaction_end(*producer_id, *commits),
        }
    }
}

/// A coordinator, its log, and the clients that wait.
pub(super) struct World {
    pub(super) settings: Arc<GroupSettings>,
    pub(super) shard: Shard,
    pub(super) now_ms: i64,
    /// Committed, by offset.
    pub(super) log: Vec<Logged>,
    pub(super) pending: VecDeque<Appended>,
    /// Writes are committed at once.
    pub(super) commits_at_once: bool,
    /// What the coordinators know of the cluster's topics.
    pub(super) topics: Arc<MetadataImage>,
    pub(super) answers: BTreeMap<ReplyId, Answer>,
    last_reply: u64,
    ids: usize,
}

/// What a member says of itself when it joins.
#[derive(Clone)]
pub(super) struct Joiner {
    pub(super) member: String,
    pub(super) instance: Option<&'static str>,
    pub(super) session_ms: i32,
    pub(super) rebalance_ms: i32,
    pub(super) protocols: Vec<(&'static str, Bytes)>,
    pub(super) protocol_type: &'static str,
    pub(super) version: i16,
}

pub(super) fn joiner(member: &str) -> Joiner {
    Joiner {
        member: member.to_owned(),
        instance: None,
        session_ms: 10_000,
        rebalance_ms: 60_000,
        protocols: vec![("range", subscription(&["t"]))],
        protocol_type: "consumer",
        version: 9,
    }
}

/// A consumer's subscription, version 0.
pub(super) fn subscription(topics: &[&str]) -> Bytes {
    let mut bytes = vec![0, 0];
    bytes.extend_from_slice(&i32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        bytes.extend_from_slice(&i16::try_from(topic.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(topic.as_bytes());
    }
    bytes.extend_from_slice(&(-1i32).to_be_bytes());
    bytes.into()
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(settings())
    }

    pub(super) fn with(settings: GroupSettings) -> Self {
        let settings = Arc::new(settings);
        let mut world = Self {
            shard: Shard::new(Arc::clone(&settings)),
            settings,
            now_ms: 0,
            log: Vec::new(),
            pending: VecDeque::new(),
            commits_at_once: true,
            topics: Arc::default(),
            answers: BTreeMap::new(),
            last_reply: 0,
            ids: 0,
        };
        world.fail_over();
        world
    }

    /// The same, with topics that the coordinators know of.
    pub(super) fn knowing(mut self, topics: Arc<MetadataImage>) -> Self {
        self.topics = topics;
        self
    }

    pub(super) fn now(&self) -> Now {
        Now { elapsed_ms: self.now_ms, wall_ms: START_MS + self.now_ms }
    }

    pub(super) fn run(&mut self, event: Event) {
        self.shard.note_topics(Arc::clone(&self.topics));
        let effects = self.shard.step(self.now(), event);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(reply, answer) => {
                    assert!(self.answers.insert(reply, answer).is_none(), "{reply:?} was answered twice");
                }
                Effect::Write(write, records, transaction) => {
                    let producer_id = transaction.map(|transaction| transaction.producer.id);
                    self.pending.push_back(Appended::Write(write, records, producer_id));
                }
                Effect::WriteMarker(write, producer, (marker, _)) => {
                    self.pending.push_back(Appended::Marker(write, producer.id, marker.commit));
                }
                Effect::Moved { .. } | Effect::Rebalances { .. } => {}
            }
        }
        while self.commits_at_once && !self.pending.is_empty() {
            self.report(WriteOutcome::Committed);
        }
    }

    /// Reports the oldest append.
    pub(super) fn report(&mut self, outcome: WriteOutcome) {
        let first_offset = i64::try_from(self.log.len()).unwrap();
        match self.pending.pop_front().expect("something is on its way") {
            Appended::Write(write, records, producer_id) => {
                if outcome.is_in_log() {
                    let records = records.iter().cloned();
                    self.log.extend(records.map(|record| Logged::Record(record, producer_id)));
                }
                self.run(Event::Written { write, outcome, first_offset });
            }
            Appended::Marker(write, producer_id, commits) => {
                if outcome.is_in_log() {
                    self.log.push(Logged::Marker { producer_id, commits });
                }
                self.run(Event::Written { write, outcome, first_offset });
            }
        }
    }

    /// A transaction coordinator ends a transaction.
    pub(super) fn end_transaction(&mut self, producer_id: i64, commit: bool) -> ReplyId {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        let producer = Producer { id: producer_id, epoch: 0 };
        let marker = Marker { commit, coordinator_epoch: 0 };
        self.run(Event::EndTransaction { reply, producer, marker, verification: Verification::NotAsked });
        reply
    }

    /// Lets time pass, deadline by deadline.
    pub(super) fn pass(&mut self, milliseconds: i64) {
        let end = self.now_ms + milliseconds;
        while let Some(due) = self.shard.next_deadline().filter(|due| *due <= end) {
            self.now_ms = due.max(self.now_ms);
            self.run(Event::Tick);
        }
        self.now_ms = end;
    }

    /// Another coordinator takes over and replays the log.
    pub(super) fn fail_over(&mut self) {
        self.shard = Shard::new(Arc::clone(&self.settings));
        self.shard.note_topics(Arc::clone(&self.topics));
        replay_into(&mut self.shard, &self.log);
        self.pending.clear();
        let effects = self.shard.finish_loading(self.now());
        self.take(effects);
    }

    pub(super) fn ask(&mut self, request: Request) -> ReplyId {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        self.run(Event::Ask { reply, group: "g".into(), request });
        reply
    }

    /// The answer as text; `-` while there is none.
    pub(super) fn answer(&self, reply: ReplyId) -> String {
        self.answers.get(&reply).map_or_else(|| "-".to_owned(), show)
    }

    pub(super) fn asked(&mut self, request: Request) -> String {
        let reply = self.ask(request);
        self.answer(reply)
    }

    pub(super) fn join(&mut self, joiner: &Joiner) -> ReplyId {
        self.ids += 1;
        let protocols = joiner.protocols.iter();
        self.ask(Request::Join(JoinRequest {
            member_id: joiner.member.as_str().into(),
            instance_id: joiner.instance.map(Into::into),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            session_timeout_ms: joiner.session_ms,
            rebalance_timeout_ms: joiner.rebalance_ms,
            protocol_type: joiner.protocol_type.into(),
            protocols: protocols
                .map(|(name, metadata)| Protocol { name: (*name).into(), metadata: metadata.clone() })
                .collect(),
            requires_known_member_id: 4 <= joiner.version && joiner.instance.is_none(),
            supports_skipping_assignment: 9 <= joiner.version,
            fresh_id: self.ids.to_string().into(),
        }))
    }

    /// Joins with an old version, which needs no second attempt.
    pub(super) fn join_at_once(&mut self) -> ReplyId {
        self.join(&Joiner { version: 3, ..joiner("") })
    }

    pub(super) fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &str)]) -> ReplyId {
        let assignments = assignments.iter();
        self.ask(Request::Sync(SyncRequest {
            generation,
            member_id: member.into(),
            instance_id: None,
            protocol_type: None,
            protocol: None,
            assignments: assignments
                .map(|(member, bytes)| ((*member).into(), Bytes::copy_from_slice(bytes.as_bytes())))
                .collect(),
        }))
    }

    pub(super) fn beat(&mut self, member: &str, generation: i32) -> String {
        let request = HeartbeatRequest { generation, member_id: member.into(), instance_id: None };
        self.asked(Request::Heartbeat(request))
    }

    pub(super) fn leave(&mut self, member: &str) -> String {
        let leaving = LeavingMember { member_id: member.into(), instance_id: None };
        self.asked(Request::Leave(LeaveRequest { members: vec![leaving] }))
    }

    pub(super) fn commit(&mut self, member: &str, generation: i32, offset: i64) -> String {
        let reply = self.ask(Request::Commit(commit(member, generation, offset)));
        self.answer(reply)
    }

    /// The committed offset of t-0.
    pub(super) fn fetch(&mut self) -> String {
        let topics = Some(vec![("t".into(), vec![0])]);
        self.asked(Request::Fetch(FetchRequest { topics, require_stable: true, member: None }))
    }

    pub(super) fn delete_offset(&mut self, topic: &str) -> String {
        let topics = vec![(topic.into(), vec![0])];
        self.asked(Request::DeleteOffsets(DeleteOffsetsRequest { topics }))
    }

    pub(super) fn delete(&mut self) -> String {
        self.asked(Request::Delete(DeleteRequest))
    }

    pub(super) fn describe(&mut self) -> String {
        self.asked(Request::Describe(DescribeRequest))
    }

    pub(super) fn list(&mut self) -> String {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        self.run(Event::List { reply });
        self.answer(reply)
    }

    /// A stable group of so many members, c-1, c-2, …, of which c-1 leads; generation 1.
    pub(super) fn stable(members: usize) -> Self {
        let mut world = Self::new();
        let joins: Vec<_> = (0..members).map(|_| world.join_at_once()).collect();
        world.pass(6_000);
        for join in joins {
            assert!(world.answer(join).contains("g1"), "{}", world.answer(join));
        }
        let ids: Vec<String> = (1..=members).map(|number| format!("c-{number}")).collect();
        let all: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), id.as_str())).collect();
        for id in ids.iter().rev() {
            world.sync(id, 1, if id == "c-1" { &all } else { &[] });
        }
        assert_eq!(world.list(), "list g:consumer:Stable");
        world
    }
}

pub(super) fn commit(member: &str, generation: i32, offset: i64) -> CommitRequest {
    let offset =
        OffsetToCommit { partition: 0, offset, leader_epoch: 4, metadata: "m".into(), commit_time_ms: None };
    CommitRequest {
        generation,
        knows_member_epochs: true,
        member_id: member.into(),
        instance_id: None,
        retention_ms: None,
        transaction: None,
        topics: vec![("t".into(), vec![offset])],
    }
}

/// The same in a transaction.
pub(super) fn commit_in(producer_id: i64, member: &str, generation: i32, offset: i64) -> Request {
    let producer = Producer { id: producer_id, epoch: 0 };
    let transaction = Some(Transaction { producer, verification: Verification::NotAsked });
    Request::Commit(CommitRequest { transaction, ..commit(member, generation, offset) })
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn outcome<T>(outcome: &Result<T, Rejection>) -> String {
    outcome.as_ref().map_or_else(|rejection| format!("{rejection:?}"), |_| "ok".to_owned())
}

fn topics(topics: &[super::request::CommittedTopic]) -> String {
    let partition = |topic: &str, (partition, refused): &(i32, Option<Rejection>)| {
        let outcome = refused.map_or_else(|| "ok".to_owned(), |rejection| format!("{rejection:?}"));
        format!(" {topic}-{partition}:{outcome}")
    };
    topics
        .iter()
        .flat_map(|(topic, partitions)| partitions.iter().map(move |each| partition(topic, each)))
        .collect()
}

fn show(answer: &Answer) -> String {
    match answer {
        Answer::Join(join) => {
            if let Some(rejection) = join.rejection {
                return format!("join {rejection:?} {}", join.member_id).trim_end().to_owned();
            }
            let members: Vec<String> = join.members.iter().map(|m| m.member_id.to_string()).collect();
            let skip = if join.skip_assignment { " skip" } else { "" };
            let protocol = join.protocol.as_deref().unwrap_or_default();
            format!(
                "join {} g{} {protocol} leader={}{skip} {members:?}",
                join.member_id, join.generation, join.leader
            )
        }
        Answer::Sync(Ok(synced)) => format!("sync {}", text(&synced.assignment)),
        Answer::Sync(Err(rejection)) => format!("sync {rejection:?}"),
        Answer::Heartbeat(result) => format!("beat {}", outcome(result)),
        Answer::Leave(Ok(members)) => {
            format!("leave {}", members.iter().map(outcome).collect::<Vec<_>>().join(","))
        }
        Answer::Leave(Err(rejection)) => format!("leave {rejection:?}"),
        Answer::Commit(committed) => format!("commit{}", topics(committed)),
        Answer::Fetch(Ok(fetched)) => {
            let each = fetched.iter().flat_map(|(topic, offsets)| {
                offsets.iter().map(move |found| match found.rejection {
                    None => format!(" {topic}-{}:{}", found.partition, found.offset),
                    Some(rejection) => format!(" {topic}-{}:{rejection:?}", found.partition),
                })
            });
            format!("fetch{}", each.collect::<String>())
        }
        Answer::Fetch(Err(rejection)) => format!("fetch {rejection:?}"),
        Answer::DeleteOffsets(Ok(deleted)) => format!("delete{}", topics(deleted)),
        Answer::DeleteOffsets(Err(rejection)) => format!("delete {rejection:?}"),
        Answer::Describe(Ok(group)) => {
            let members: Vec<String> = group
                .members
                .iter()
                .map(|member| format!("{}={}", member.member_id, text(&member.assignment)))
                .collect();
            format!("{} {}/{} {}", group.state, group.protocol_type, group.protocol, members.join(" "))
        }
        Answer::Describe(Err(rejection)) => format!("describe {rejection:?}"),
        Answer::Delete(result) => format!("delete {}", outcome(result)),
        Answer::ConsumerHeartbeat(Ok(answer)) => {
            let part = |(topic, partition): (TopicId, i32)| format!("{}-{partition}", topic.0.as_u128());
            let parts = answer.assignment.as_ref();
            let parts = parts.map(|parts| parts.iter().map(part).collect::<Vec<_>>().join(" "));
            let parts = parts.map(|parts| format!(" [{parts}]")).unwrap_or_default();
            format!("{} e{}{parts}", answer.member_id, answer.epoch)
        }
        Answer::ConsumerHeartbeat(Err(refusal)) => format!("{:?}", refusal.rejection),
        Answer::ConsumerDescribe(result) => format!("describe {}", outcome(result)),
        Answer::EndTransaction(result) => format!("end {}", outcome(result)),
        Answer::List(groups) => {
            let each = groups.iter().map(|g| {
                let kind = if g.group_type == "classic" { "" } else { ":new" };
                format!(" {}:{}:{}{kind}", g.group, g.protocol_type, g.state)
            });
            format!("list{}", each.collect::<String>())
        }
    }
}
