//! What members of the consumer protocol ask, and what an administrator asks of their groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use zurau_common::id::{TopicId, TopicName};
use zurau_common::rejection::Rejection;

use super::partitions::Partitions;
use crate::groups::records::MemberId;

/// A heartbeat: joins, lives, reports what it owns, or leaves. `None` where nothing has changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerHeartbeatRequest {
    /// Chosen by the client from version 1 on.
    pub(crate) member_id: MemberId,
    /// 0 joins, −1 leaves, −2 leaves for a while.
    pub(crate) epoch: i32,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) rack_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) rebalance_timeout_ms: Option<i32>,
    pub(crate) topics: Option<BTreeSet<TopicName>>,
    /// Empty: none any more.
    pub(crate) regex: Option<Arc<str>>,
    pub(crate) assignor: Option<Arc<str>>,
    pub(crate) owned: Option<Partitions>,
    /// The id of a member that has chosen none, which only version 0 allows; drawn by the shell.
    pub(crate) fresh_id: Option<Arc<str>>,
}

impl ConsumerHeartbeatRequest {
    /// Whether the member said everything, which it does when it joins and when it is not sure what the coordinator
    /// knows.
    pub(crate) fn is_full(&self) -> bool {
        let says_topics = self.topics.is_some() || self.regex.is_some();
        self.epoch == 0 || (self.rebalance_timeout_ms.is_some() && says_topics && self.owned.is_some())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerHeartbeatAnswer {
    pub(crate) member_id: MemberId,
    pub(crate) epoch: i32,
    /// Time until the next heartbeat.
    pub(crate) interval_ms: i32,
    /// What the member may read from now on; `None` if that has not changed.
    pub(crate) assignment: Option<Partitions>,
}

/// Why a heartbeat is refused, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerRefusal {
    pub(crate) rejection: Rejection,
    pub(crate) message: String,
}

impl ConsumerRefusal {
    pub(crate) fn new(rejection: Rejection, message: impl Into<String>) -> Self {
        Self { rejection, message: message.into() }
    }
}

impl From<Rejection> for ConsumerRefusal {
    fn from(rejection: Rejection) -> Self {
        Self::new(rejection, rejection.to_string())
    }
}

pub(crate) type HeartbeatOutcome = Result<ConsumerHeartbeatAnswer, ConsumerRefusal>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConsumerDescribeRequest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerDescription {
    pub(crate) state: &'static str,
    pub(crate) epoch: i32,
    pub(crate) target_epoch: i32,
    pub(crate) assignor: &'static str,
    pub(crate) members: Vec<DescribedConsumer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DescribedConsumer {
    pub(crate) member_id: MemberId,
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) rack_id: Option<Arc<str>>,
    pub(crate) epoch: i32,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) topics: Vec<TopicName>,
    pub(crate) regex: Option<Arc<str>>,
    pub(crate) assigned: Vec<NamedPartitions>,
    pub(crate) target: Vec<NamedPartitions>,
}

/// Partitions of a topic that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPartitions {
    pub(crate) topic_id: TopicId,
    pub(crate) topic: TopicName,
    pub(crate) partitions: Vec<i32>,
}
