//! What a step of the coordinator leaves behind: answers, writes, timers. The shell carries it out.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::consumer::Assignor;
use super::group::GroupState;
use super::records::{GroupId, GroupRecord, MemberId};
use super::request::{Answer, CommittedTopic, JoinAnswer, Protocol, ReplyId, Synced, Transaction};
pub(crate) use crate::coordinator::{Now, WriteId, WriteOutcome};
use crate::coordinator::{Producer, Timers};
use crate::group_configs::ConfigsOfGroups;
use crate::log::{Marker, Verification};
use crate::metadata::MetadataImage;

/// What an operator sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSettings {
    /// `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.
    pub(crate) session_timeout_min_ms: i32,
    pub(crate) session_timeout_max_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members.
    pub(crate) initial_rebalance_delay_ms: i64,
    /// `group.max.size`.
    pub(crate) group_size_max: usize,
    /// `group.consumer.session.timeout.ms`.
    pub(crate) consumer_session_timeout_ms: i64,
    /// `group.consumer.heartbeat.interval.ms`.
    pub(crate) consumer_heartbeat_interval_ms: i32,
    /// `group.consumer.max.size`.
    pub(crate) consumer_size_max: usize,
    /// `group.consumer.assignors`: the first is for groups whose members wish none.
    pub(crate) consumer_assignors: Vec<Assignor>,
    /// `offset.metadata.max.bytes`.
    pub(crate) offset_metadata_bytes_max: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub(crate) offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub(crate) retention_check_interval_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Members that have not joined by then are left out.
    Rebalance(GroupId),
    /// Members that have not asked for their assignment by then are removed (GRP-02).
    Sync(GroupId),
    /// A member that is silent until then is removed.
    Session(GroupId, MemberId),
    /// A member of the consumer protocol that has not given up partitions by then is removed.
    Revocation(GroupId, MemberId),
    /// An id was given out and nobody joined with it.
    Pending(GroupId, MemberId),
    /// The record of an empty group could not be written; try again.
    Persist(GroupId),
    /// Look for expired offsets.
    Retention,
}

impl WriteOutcome {
    /// What clients are told of a write of offsets (GRP-06).
    pub(crate) fn for_offsets(self) -> Result<(), Rejection> {
        self.for_client(Rejection::InvalidCommitOffsetSize)
    }

    /// What a transaction coordinator is told of a marker; it tries again where that may help.
    pub(crate) fn for_marker(self) -> Result<(), Rejection> {
        match self {
            Self::Committed => Ok(()),
            Self::CommittedBelowMinimum => Err(Rejection::NotEnoughReplicasAfterAppend),
            Self::Refused(rejection) => Err(rejection),
        }
    }

    /// What clients are told of a write of a group.
    pub(crate) fn for_group(self) -> Result<(), Rejection> {
        self.for_client(Rejection::UnknownServerError)
    }
}

/// What happened to groups and offsets, for those who count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) offsets_committed: usize,
    pub(crate) offsets_deleted: usize,
    pub(crate) offsets_expired: usize,
    /// Of the classic protocol: generations whose assignment was stored.
    pub(crate) rebalances_completed: usize,
    /// Of the consumer protocol: new epochs.
    pub(crate) rebalances_begun: usize,
}

/// What happens when a write is done.
#[derive(Debug, Clone)]
pub(crate) enum Then {
    Nothing,
    /// So many offsets were removed, because their time was over.
    Expire {
        offsets: usize,
    },
    /// The leader's assignment, for everyone who waits for it.
    Assign {
        group: GroupId,
        assignments: HashMap<MemberId, Bytes>,
    },
    /// An empty group; repeated until it is in the log.
    Empty {
        group: GroupId,
        generation: i32,
    },
    /// What heartbeats of the consumer protocol came to.
    Consumer {
        group: GroupId,
    },
    /// A static member came back with a new id, without a rebalance.
    Replace(Box<Replacement>),
    Commit {
        group: GroupId,
        reply: ReplyId,
        answer: Vec<CommittedTopic>,
    },
    DeleteOffsets {
        reply: ReplyId,
        answer: Vec<CommittedTopic>,
        /// How many there were.
        offsets: usize,
    },
    /// The marker of a transaction: its offsets count, or not.
    EndTransaction {
        reply: ReplyId,
        producer_id: i64,
        commits: bool,
    },
    /// The group goes: by a client's wish if somebody waits, else because so many offsets have expired, the last of it.
    Delete {
        group: GroupId,
        reply: Option<ReplyId>,
        expired: usize,
    },
}

/// How to undo, or to answer, the return of a static member.
#[derive(Debug, Clone)]
pub(crate) struct Replacement {
    pub(crate) group: GroupId,
    pub(crate) generation: i32,
    pub(crate) instance_id: Arc<str>,
    pub(crate) old_id: MemberId,
    pub(crate) new_id: MemberId,
    pub(crate) old_leader: MemberId,
    pub(crate) old_protocols: Vec<Protocol>,
    /// Rebalance timeout and session timeout.
    pub(crate) old_timeouts_ms: (i32, i32),
    pub(crate) supports_skipping_assignment: bool,
}

#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) records: Arc<Vec<GroupRecord>>,
    /// Whose transaction the records belong to.
    pub(crate) producer_id: Option<i64>,
    pub(crate) then: Then,
}

/// What the shell has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Answer(ReplyId, Answer),
    /// Append, and report. Records of a transaction are a batch of their own.
    Write(WriteId, Arc<Vec<GroupRecord>>, Option<Transaction>),
    /// Append a marker with acks=all, and report.
    WriteMarker(WriteId, Producer, (Marker, Verification)),
    /// For the log: a group changed its state.
    Moved {
        group: GroupId,
        state: GroupState,
        generation: i32,
        members: usize,
        reason: String,
    },
    /// For the log: a group of the consumer protocol entered a new epoch.
    Rebalances {
        group: GroupId,
        epoch: i32,
        members: usize,
        reason: String,
    },
}

/// Records in one write at most, where they can be divided.
pub(crate) const RECORDS_PER_WRITE: usize = 1_000;

/// Collects what a step leaves behind.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) settings: Arc<GroupSettings>,
    /// The topics of the cluster, as this broker knows them.
    pub(crate) topics: Arc<MetadataImage>,
    /// The groups with a configuration of their own.
    pub(crate) configs: Arc<ConfigsOfGroups>,
    pub(crate) timers: Timers<Timer>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) writes: HashMap<WriteId, PendingWrite>,
    pub(crate) tally: Tally,
    last_write: u64,
}

impl Outbox {
    pub(crate) fn new(settings: Arc<GroupSettings>) -> Self {
        Self {
            settings,
            topics: Arc::default(),
            configs: Arc::default(),
            timers: Timers::default(),
            effects: Vec::new(),
            writes: HashMap::new(),
            tally: Tally::default(),
            last_write: 0,
        }
    }

    /// How long a member of the consumer protocol may be silent, milliseconds.
    pub(crate) fn consumer_session_timeout_ms(&self, group: &GroupId) -> i64 {
        self.configs.get(group).map_or(self.settings.consumer_session_timeout_ms, |config| {
            i64::from(config.consumer_session_timeout_ms)
        })
    }

    /// The time between heartbeats that its members are told, milliseconds.
    pub(crate) fn consumer_heartbeat_interval_ms(&self, group: &GroupId) -> i32 {
        let own = self.configs.get(group).map(|config| config.consumer_heartbeat_interval_ms);
        own.unwrap_or(self.settings.consumer_heartbeat_interval_ms)
    }

    pub(crate) fn answer(&mut self, reply: ReplyId, answer: Answer) {
        self.effects.push(Effect::Answer(reply, answer));
    }

    pub(crate) fn answer_join(&mut self, reply: ReplyId, answer: JoinAnswer) {
        self.answer(reply, Answer::Join(answer));
    }

    pub(crate) fn refuse_join(&mut self, reply: ReplyId, rejection: Rejection, member_id: &MemberId) {
        self.answer_join(reply, JoinAnswer::refused(rejection, Arc::clone(member_id)));
    }

    pub(crate) fn answer_sync(&mut self, reply: ReplyId, answer: Result<Synced, Rejection>) {
        self.answer(reply, Answer::Sync(answer));
    }

    pub(crate) fn write(&mut self, records: Vec<GroupRecord>, then: Then) -> WriteId {
        self.begin_write(records, None, then)
    }

    pub(crate) fn write_in_transaction(
        &mut self,
        records: Vec<GroupRecord>,
        transaction: Transaction,
        then: Then,
    ) -> WriteId {
        self.begin_write(records, Some(transaction), then)
    }

    pub(crate) fn write_marker(&mut self, producer: Producer, marker: (Marker, Verification), then: Then) {
        let id = self.expect_write(Arc::default(), None, then);
        self.effects.push(Effect::WriteMarker(id, producer, marker));
    }

    fn begin_write(
        &mut self,
        records: Vec<GroupRecord>,
        transaction: Option<Transaction>,
        then: Then,
    ) -> WriteId {
        let records = Arc::new(records);
        let producer_id = transaction.map(|transaction| transaction.producer.id);
        let id = self.expect_write(Arc::clone(&records), producer_id, then);
        self.effects.push(Effect::Write(id, records, transaction));
        id
    }

    fn expect_write(
        &mut self,
        records: Arc<Vec<GroupRecord>>,
        producer_id: Option<i64>,
        then: Then,
    ) -> WriteId {
        self.last_write += 1;
        let id = WriteId(self.last_write);
        self.writes.insert(id, PendingWrite { records, producer_id, then });
        id
    }

    /// Writes removals in several pieces; `then` follows the last, and with it everything is done.
    pub(crate) fn write_in_pieces(&mut self, mut records: Vec<GroupRecord>, then: Then) {
        while RECORDS_PER_WRITE < records.len() {
            let rest = records.split_off(RECORDS_PER_WRITE);
            self.write(std::mem::replace(&mut records, rest), Then::Nothing);
        }
        self.write(records, then);
    }
}
