//! Membership in a consumer group by the classic protocol: join, sync, heartbeat, commit, leave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, ConsumerProtocolAssignment, ConsumerProtocolSubscription, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::time::Instant;
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::frame::{ApiVersion, decode_body};

use super::assign::{Assignments, assign_ranges};
use crate::client::{Client, CoordinatorOf, Refused};
use crate::groups::{Committer, read_assignment};

/// How long the coordinator waits for a heartbeat before it gives the partitions to others.
const SESSION_TIMEOUT_MS: i32 = 45_000;
const HEARTBEAT_EVERY: Duration = Duration::from_secs(3);
const CONSUMER: &str = "consumer";
const ASSIGNOR: &str = "range";
/// The oldest form of subscriptions and assignments, which every client reads.
const PROTOCOL_VERSION: i16 = 0;
/// The newest form of a subscription that is known; newer ones only add to it.
const SUBSCRIPTION_VERSION_MAX: i16 = 3;

/// This program as a member of a group.
pub(super) struct Member {
    group: String,
    topic: String,
    timeout: Duration,
    committer: Committer,
    heartbeat_due: Instant,
}

impl Member {
    pub(super) fn new(group: &str, topic: &str, timeout: Duration) -> Self {
        Self {
            group: group.to_owned(),
            topic: topic.to_owned(),
            timeout,
            committer: Committer::nobody(),
            heartbeat_due: Instant::now(),
        }
    }

    pub(super) fn committer(&self) -> &Committer {
        &self.committer
    }

    /// Joins, or joins again, and waits for the partitions.
    ///
    /// # Errors
    /// The coordinator cannot be found in time or refuses.
    pub(super) async fn join(&mut self, client: &mut Client) -> Result<BTreeSet<TopicPartition>> {
        let timeout = self.timeout;
        let deadline = Instant::now() + timeout;
        loop {
            match self.join_once(client).await {
                Err(error) if is_rebalance(&error) && Instant::now() < deadline => {}
                Err(error) if is_forgotten(&error) && Instant::now() < deadline => {
                    self.committer = Committer::nobody();
                }
                outcome => return outcome,
            }
        }
    }

    async fn join_once(&mut self, client: &mut Client) -> Result<BTreeSet<TopicPartition>> {
        let joined = self.ask_to_join(client).await?;
        self.committer = Committer { member: joined.member_id.clone(), generation: joined.generation_id };
        let assignments = if joined.leader == joined.member_id {
            lead(client, &joined.members).await?
        } else {
            Assignments::new()
        };
        let assignments: Result<Vec<SyncGroupRequestAssignment>> =
            assignments.into_iter().map(encode_assignment).collect();
        let request = SyncGroupRequest::default()
            .with_group_id(wire(&self.group).into())
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id)
            .with_assignments(assignments?);
        let connection = client.coordinator(CoordinatorOf::Group, &self.group).await?;
        let answer = connection.call_within(self.timeout * 2, 4, &request).await?;
        self.check(answer.error_code)?;
        self.heartbeat_due = Instant::now() + HEARTBEAT_EVERY;
        let mut partitions = BTreeSet::new();
        for topic in read_assignment(answer.assignment)? {
            let of_topic = topic.partitions.iter();
            partitions.extend(of_topic.map(|number| TopicPartition::new(topic.topic.as_str(), *number)));
        }
        Ok(partitions)
    }

    /// A newcomer is told its name first, and joins with it.
    async fn ask_to_join(&mut self, client: &mut Client) -> Result<JoinGroupResponse> {
        let mut metadata = BytesMut::new();
        metadata.put_i16(PROTOCOL_VERSION);
        ConsumerProtocolSubscription::default()
            .with_topics(vec![wire(&self.topic)])
            .encode(&mut metadata, PROTOCOL_VERSION)?;
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str(ASSIGNOR))
            .with_metadata(metadata.freeze());
        let mut member = self.committer.member.clone();
        let (group, timeout) = (self.group.clone(), self.timeout);
        client
            .retry(async |client| {
                loop {
                    let request = JoinGroupRequest::default()
                        .with_group_id(wire(&group).into())
                        .with_session_timeout_ms(SESSION_TIMEOUT_MS)
                        .with_rebalance_timeout_ms(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
                        .with_member_id(member.clone())
                        .with_protocol_type(StrBytes::from_static_str(CONSUMER))
                        .with_protocols(vec![protocol.clone()]);
                    let connection = client.coordinator(CoordinatorOf::Group, &group).await?;
                    let answer = connection.call_within(timeout * 2, 7, &request).await?;
                    match Refused::check(answer.error_code, None, || format!("group {group}")) {
                        Err(refused) if refused.rejection == Rejection::MemberIdRequired => {
                            member = answer.member_id;
                        }
                        outcome => return Ok(outcome.map(|()| answer)?),
                    }
                }
            })
            .await
    }

    fn check(&self, code: i16) -> Result<(), Refused> {
        Refused::check(code, None, || format!("group {}", self.group))
    }

    /// Sends a heartbeat if it is time; false when the group rebalances and this member must join again.
    ///
    /// # Errors
    /// The coordinator cannot be found in time or refuses.
    pub(super) async fn stays(&mut self, client: &mut Client) -> Result<bool> {
        if Instant::now() < self.heartbeat_due {
            return Ok(true);
        }
        let request = HeartbeatRequest::default()
            .with_group_id(wire(&self.group).into())
            .with_generation_id(self.committer.generation)
            .with_member_id(self.committer.member.clone());
        let outcome = client
            .retry(async |client| {
                let connection = client.coordinator(CoordinatorOf::Group, &self.group).await?;
                Ok(self.check(connection.call(4, &request).await?.error_code)?)
            })
            .await;
        match outcome {
            Ok(()) => {
                self.heartbeat_due = Instant::now() + HEARTBEAT_EVERY;
                Ok(true)
            }
            Err(error) if is_rebalance(&error) || is_forgotten(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Leaves, so that the others need not wait for the session to end.
    ///
    /// # Errors
    /// The coordinator cannot be reached; it will notice the silence.
    pub(super) async fn leave(self, client: &mut Client) -> Result<()> {
        let member = MemberIdentity::default().with_member_id(self.committer.member.clone());
        let request =
            LeaveGroupRequest::default().with_group_id(wire(&self.group).into()).with_members(vec![member]);
        let connection = client.coordinator(CoordinatorOf::Group, &self.group).await?;
        Ok(self.check(connection.call(4, &request).await?.error_code)?)
    }
}

fn wire(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn rejection(error: &anyhow::Error) -> Option<Rejection> {
    error.downcast_ref::<Refused>().map(|refused| refused.rejection)
}

/// Another member comes or goes.
pub(super) fn is_rebalance(error: &anyhow::Error) -> bool {
    rejection(error) == Some(Rejection::RebalanceInProgress)
}

/// The group went on without this member.
pub(super) fn is_forgotten(error: &anyhow::Error) -> bool {
    matches!(rejection(error), Some(Rejection::UnknownMemberId | Rejection::IllegalGeneration))
}

/// What every member gets, decided by this one.
async fn lead(client: &mut Client, members: &[JoinGroupResponseMember]) -> Result<Assignments> {
    let mut wanted = BTreeMap::new();
    let mut topics = BTreeSet::new();
    for member in members {
        let subscribed = read_subscription(member.metadata.clone())
            .with_context(|| format!("the subscription of member {}", member.member_id))?;
        topics.extend(subscribed.iter().cloned());
        wanted.insert(member.member_id.clone(), subscribed);
    }
    let cluster = client.cluster(None).await?;
    let known = cluster.topics.iter().filter(|topic| topics.contains(&topic.topic));
    let partitions =
        known.map(|topic| (topic.topic.clone(), i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX)));
    Ok(assign_ranges(&wanted, &partitions.collect()))
}

fn read_subscription(mut bytes: Bytes) -> Result<Vec<String>> {
    let version = bytes.try_get_i16()?;
    let api = ApiVersion {
        api_key: ApiKey::JoinGroup as i16,
        api_version: version.clamp(0, SUBSCRIPTION_VERSION_MAX),
    };
    let subscription: ConsumerProtocolSubscription = decode_body(bytes, api)?;
    Ok(subscription.topics.iter().map(ToString::to_string).collect())
}

fn encode_assignment(
    (member, topics): (StrBytes, BTreeMap<String, Vec<i32>>),
) -> Result<SyncGroupRequestAssignment> {
    let topics = topics.into_iter().map(|(topic, partitions)| {
        consumer_protocol_assignment::TopicPartition::default()
            .with_topic(to_wire_topic(&topic))
            .with_partitions(partitions)
    });
    let mut bytes = BytesMut::new();
    bytes.put_i16(PROTOCOL_VERSION);
    ConsumerProtocolAssignment::default()
        .with_assigned_partitions(topics.collect())
        .encode(&mut bytes, PROTOCOL_VERSION)?;
    Ok(SyncGroupRequestAssignment::default().with_member_id(member).with_assignment(bytes.freeze()))
}
