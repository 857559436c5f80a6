//! What clients ask of a group coordinator and what they get, in the coordinator's own words; handlers translate
//! from and to the wire.

use std::sync::Arc;

use bytes::Bytes;
use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::rejection::Rejection;

use super::consumer::{
    ConsumerDescribeRequest, ConsumerDescription, ConsumerHeartbeatRequest, HeartbeatOutcome,
};
use super::group::GroupState;
use super::records::{GroupId, MemberId};
use crate::coordinator::Producer;
pub(crate) use crate::coordinator::ReplyId;
use crate::log::Verification;

/// Everything about one group that a client can ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Join(JoinRequest),
    Sync(SyncRequest),
    Heartbeat(HeartbeatRequest),
    Leave(LeaveRequest),
    Commit(CommitRequest),
    Fetch(FetchRequest),
    DeleteOffsets(DeleteOffsetsRequest),
    Describe(DescribeRequest),
    Delete(DeleteRequest),
    ConsumerHeartbeat(ConsumerHeartbeatRequest),
    ConsumerDescribe(ConsumerDescribeRequest),
}

/// The answers, in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Join(JoinAnswer),
    Sync(Result<Synced, Rejection>),
    Heartbeat(Result<(), Rejection>),
    Leave(Result<Vec<Result<(), Rejection>>, Rejection>),
    Commit(Vec<CommittedTopic>),
    Fetch(Result<Vec<FetchedTopic>, Rejection>),
    DeleteOffsets(Result<Vec<CommittedTopic>, Rejection>),
    Describe(Result<Description, Rejection>),
    Delete(Result<(), Rejection>),
    ConsumerHeartbeat(HeartbeatOutcome),
    ConsumerDescribe(Result<ConsumerDescription, Rejection>),
    List(Vec<Listing>),
    /// Of a marker.
    EndTransaction(Result<(), Rejection>),
}

/// What an operator sees of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) group: GroupId,
    /// A group of the consumer protocol that assigns or reconciles counts as one that prepares a rebalance.
    pub(crate) state: GroupState,
    pub(crate) members: usize,
    /// Committed offsets by topic and partition, in no particular order.
    pub(crate) offsets: Vec<(TopicPartition, i64)>,
}

/// A request that knows the type of its answer.
pub(crate) trait Ask {
    type Answer;
    fn into_request(self) -> Request;
    fn answer_from(answer: Answer) -> Option<Self::Answer>;
}

macro_rules! ask {
    ($request:ident, $variant:ident, $answer:ty) => {
        impl Ask for $request {
            type Answer = $answer;

            fn into_request(self) -> Request {
                Request::$variant(self)
            }

            fn answer_from(answer: Answer) -> Option<Self::Answer> {
                match answer {
                    Answer::$variant(answer) => Some(answer),
                    _ => None,
                }
            }
        }
    };
}

ask!(JoinRequest, Join, JoinAnswer);
ask!(SyncRequest, Sync, Result<Synced, Rejection>);
ask!(HeartbeatRequest, Heartbeat, Result<(), Rejection>);
ask!(LeaveRequest, Leave, Result<Vec<Result<(), Rejection>>, Rejection>);
ask!(CommitRequest, Commit, Vec<CommittedTopic>);
ask!(FetchRequest, Fetch, Result<Vec<FetchedTopic>, Rejection>);
ask!(DeleteOffsetsRequest, DeleteOffsets, Result<Vec<CommittedTopic>, Rejection>);
ask!(DescribeRequest, Describe, Result<Description, Rejection>);
ask!(DeleteRequest, Delete, Result<(), Rejection>);
ask!(ConsumerHeartbeatRequest, ConsumerHeartbeat, HeartbeatOutcome);
ask!(ConsumerDescribeRequest, ConsumerDescribe, Result<ConsumerDescription, Rejection>);

/// A way of assigning that a member can do, with its own data for whoever assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protocol {
    pub(crate) name: Arc<str>,
    pub(crate) metadata: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    /// Empty at the first attempt.
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) protocol_type: Arc<str>,
    /// In the member's order of preference.
    pub(crate) protocols: Vec<Protocol>,
    /// v4 and later: a dynamic member learns its id first and joins with it (KIP-394).
    pub(crate) requires_known_member_id: bool,
    /// v9 and later: a leader can be told not to assign (KIP-814).
    pub(crate) supports_skipping_assignment: bool,
    /// Random part of the id that a new member gets; drawn by the shell.
    pub(crate) fresh_id: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinAnswer {
    pub(crate) rejection: Option<Rejection>,
    /// −1 in a refusal.
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<Arc<str>>,
    pub(crate) protocol: Option<Arc<str>>,
    pub(crate) leader: MemberId,
    pub(crate) skip_assignment: bool,
    pub(crate) member_id: MemberId,
    /// For the leader only.
    pub(crate) members: Vec<JoinedMember>,
}

impl JoinAnswer {
    pub(crate) fn refused(rejection: Rejection, member_id: MemberId) -> Self {
        Self {
            rejection: Some(rejection),
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: "".into(),
            skip_assignment: false,
            member_id,
            members: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinedMember {
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) metadata: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncRequest {
    pub(crate) generation: i32,
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    /// v5 and later: must be the group's.
    pub(crate) protocol_type: Option<Arc<str>>,
    pub(crate) protocol: Option<Arc<str>>,
    /// From the leader: each member's part.
    pub(crate) assignments: Vec<(MemberId, Bytes)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) protocol_type: Option<Arc<str>>,
    pub(crate) protocol: Option<Arc<str>>,
    pub(crate) assignment: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeartbeatRequest {
    pub(crate) generation: i32,
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
}

/// A member by its id, by its instance id, or by both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeavingMember {
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaveRequest {
    pub(crate) members: Vec<LeavingMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitRequest {
    /// −1: not a member's commit. Of a member of the consumer protocol its epoch.
    pub(crate) generation: i32,
    /// v9 and later: the generation may be a member's epoch.
    pub(crate) knows_member_epochs: bool,
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    /// v2 to v4: kept this long, whatever the group does.
    pub(crate) retention_ms: Option<i64>,
    /// The offsets count when this transaction commits (TxnOffsetCommit).
    pub(crate) transaction: Option<Transaction>,
    pub(crate) topics: Vec<(TopicName, Vec<OffsetToCommit>)>,
}

/// Whose transaction records belong to, and what shows that the partition of the group is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) producer: Producer,
    pub(crate) verification: Verification,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OffsetToCommit {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: Arc<str>,
    /// v1: the client's own time of the commit.
    pub(crate) commit_time_ms: Option<i64>,
}

/// What became of each partition, in the order of the request.
pub(crate) type CommittedTopic = (TopicName, Vec<(i32, Option<Rejection>)>);

impl CommitRequest {
    pub(crate) fn refused_with(&self, rejection: Rejection) -> Vec<CommittedTopic> {
        let each = |(topic, offsets): &(TopicName, Vec<OffsetToCommit>)| {
            let partitions = offsets.iter().map(|offset| (offset.partition, Some(rejection)));
            (Arc::clone(topic), partitions.collect())
        };
        self.topics.iter().map(each).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchRequest {
    /// `None`: everything that the group has committed.
    pub(crate) topics: Option<Vec<(TopicName, Vec<i32>)>>,
    /// Offsets that an open transaction is about to replace are refused (KIP-447).
    pub(crate) require_stable: bool,
    /// v9 and later: who asks in a group of the consumer protocol, and its epoch.
    pub(crate) member: Option<(MemberId, i32)>,
}

pub(crate) type FetchedTopic = (TopicName, Vec<FetchedOffset>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchedOffset {
    pub(crate) partition: i32,
    /// −1 when there is none.
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: Arc<str>,
    pub(crate) rejection: Option<Rejection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeleteOffsetsRequest {
    pub(crate) topics: Vec<(TopicName, Vec<i32>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescribeRequest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeleteRequest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) state: &'static str,
    pub(crate) protocol_type: Arc<str>,
    /// Empty unless the group is stable, as are the members' data.
    pub(crate) protocol: Arc<str>,
    pub(crate) members: Vec<DescribedMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DescribedMember {
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) metadata: Bytes,
    pub(crate) assignment: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) group: Arc<str>,
    pub(crate) protocol_type: Arc<str>,
    pub(crate) state: &'static str,
    /// `classic` or `consumer`.
    pub(crate) group_type: &'static str,
}
