//! Who is in a group, of either protocol: the coordinator is asked for a classic group, and where it knows none of that
//! name, for one of the consumer protocol (KIP-848).

use anyhow::{Context as _, Result};
use bytes::{Buf as _, Bytes};
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup as ConsumerGroup, Member as ConsumerMember,
};
use kafka_protocol::messages::describe_groups_response::DescribedGroupMember;
use kafka_protocol::messages::{
    ApiKey, ConsumerGroupDescribeRequest, ConsumerProtocolAssignment, DescribeGroupsRequest,
};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use zurau_common::rejection::Rejection;
use zurau_common::wire::frame::{ApiVersion, decode_body};

use crate::client::{Client, CoordinatorOf, Refused};

/// Protocol type of groups of consumers; only its assignments can be read.
const CONSUMER: &str = "consumer";
/// The newest version of an assignment that is known; newer ones only add to it.
const ASSIGNMENT_VERSION_MAX: i16 = 3;

/// A group without its offsets.
pub(super) struct Found {
    pub(super) state: String,
    /// `classic` or `consumer`.
    pub(super) group_type: &'static str,
    pub(super) protocol_type: String,
    pub(super) protocol: String,
    /// Of groups of the consumer protocol: the group's epoch, and the one that the targets were made for.
    pub(super) epochs: Option<(i32, i32)>,
    pub(super) members: Vec<Member>,
}

#[derive(Serialize)]
pub(super) struct Member {
    pub(super) member_id: String,
    pub(super) instance_id: Option<String>,
    pub(super) client_id: String,
    pub(super) host: String,
    /// `null` in a classic group, as is the target.
    pub(super) member_epoch: Option<i32>,
    pub(super) assignment: Vec<Assigned>,
    /// What it shall have once the group has come to rest.
    pub(super) target: Option<Vec<Assigned>>,
}

/// Partitions of one topic, ascending.
#[derive(Serialize)]
pub(crate) struct Assigned {
    pub(crate) topic: String,
    pub(crate) partitions: Vec<i32>,
}

/// A group that does not exist is "Dead".
///
/// # Errors
/// The coordinator cannot be found in time, or refuses.
pub(super) async fn find(client: &mut Client, name: &str) -> Result<Found> {
    let classic = find_classic(client, name).await?;
    if classic.state == "Dead"
        && let Some(found) = find_consumer(client, name).await?
    {
        return Ok(found);
    }
    Ok(classic)
}

async fn find_classic(client: &mut Client, name: &str) -> Result<Found> {
    let request =
        DescribeGroupsRequest::default().with_groups(vec![StrBytes::from_string(name.to_owned()).into()]);
    let found = client
        .retry(async |client| {
            let answer = client.coordinator(CoordinatorOf::Group, name).await?.call(5, &request).await?;
            let found = answer.groups.into_iter().next().context("the answer names no group")?;
            Refused::check(found.error_code, None, || format!("group {name}"))?;
            Ok(found)
        })
        .await?;
    let consumers = found.protocol_type.as_str() == CONSUMER;
    let members: Result<Vec<Member>> = found.members.into_iter().map(|one| member(one, consumers)).collect();
    Ok(Found {
        state: found.group_state.to_string(),
        group_type: "classic",
        protocol_type: found.protocol_type.to_string(),
        protocol: found.protocol_data.to_string(),
        epochs: None,
        members: members?,
    })
}

/// `None`: there is no such group, or the coordinator does not offer the protocol.
async fn find_consumer(client: &mut Client, name: &str) -> Result<Option<Found>> {
    let request = ConsumerGroupDescribeRequest::default()
        .with_group_ids(vec![StrBytes::from_string(name.to_owned()).into()]);
    let found = client
        .retry(async |client| {
            let coordinator = client.coordinator(CoordinatorOf::Group, name).await?;
            if !coordinator.serves(ApiKey::ConsumerGroupDescribe) {
                return Ok(None);
            }
            let answer = coordinator.call(0, &request).await?;
            let found = answer.groups.into_iter().next().context("the answer names no group")?;
            if Rejection::from_code(found.error_code) == Some(Rejection::GroupIdNotFound) {
                return Ok(None);
            }
            let message = found.error_message.as_deref();
            Refused::check(found.error_code, message, || format!("group {name}"))?;
            Ok(Some(found))
        })
        .await?;
    Ok(found.map(|found: ConsumerGroup| Found {
        state: found.group_state.to_string(),
        group_type: "consumer",
        protocol_type: CONSUMER.to_owned(),
        protocol: found.assignor_name.to_string(),
        epochs: Some((found.group_epoch, found.assignment_epoch)),
        members: found.members.into_iter().map(consumer_member).collect(),
    }))
}

fn member(found: DescribedGroupMember, consumers: bool) -> Result<Member> {
    let assignment = if consumers {
        read_assignment(found.member_assignment)
            .with_context(|| format!("the assignment of member {}", found.member_id))?
    } else {
        Vec::new()
    };
    Ok(Member {
        member_id: found.member_id.to_string(),
        instance_id: found.group_instance_id.map(|id| id.to_string()),
        client_id: found.client_id.to_string(),
        host: found.client_host.to_string(),
        member_epoch: None,
        assignment,
        target: None,
    })
}

fn consumer_member(found: ConsumerMember) -> Member {
    Member {
        member_id: found.member_id.to_string(),
        instance_id: found.instance_id.map(|id| id.to_string()),
        client_id: found.client_id.to_string(),
        host: found.client_host.to_string(),
        member_epoch: Some(found.member_epoch),
        assignment: assigned(found.assignment),
        target: Some(assigned(found.target_assignment)),
    }
}

fn assigned(assignment: Assignment) -> Vec<Assigned> {
    let topics = assignment.topic_partitions.into_iter().map(|topic| {
        let mut partitions = topic.partitions;
        partitions.sort_unstable();
        Assigned { topic: topic.topic_name.to_string(), partitions }
    });
    let mut topics: Vec<Assigned> = topics.collect();
    topics.sort_by(|one, other| one.topic.cmp(&other.topic));
    topics
}

/// An assignment as the group's leader wrote it: a version, then topics and partitions. Empty while there is none.
pub(crate) fn read_assignment(mut bytes: Bytes) -> Result<Vec<Assigned>> {
    let Ok(version) = bytes.try_get_i16() else { return Ok(Vec::new()) };
    let api = ApiVersion {
        api_key: ApiKey::SyncGroup as i16,
        api_version: version.clamp(0, ASSIGNMENT_VERSION_MAX),
    };
    let assignment: ConsumerProtocolAssignment = decode_body(bytes, api)?;
    let assigned = assignment.assigned_partitions.into_iter().map(|topic| {
        let mut partitions = topic.partitions;
        partitions.sort_unstable();
        Assigned { topic: topic.topic.to_string(), partitions }
    });
    Ok(assigned.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_whatever_its_version() {
        for version in [0_u8, 1, 3, 9] {
            let mut bytes = vec![0, version, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1];
            bytes.extend([0xff; 4]);
            let assigned = read_assignment(bytes.into()).unwrap();
            assert_eq!((assigned[0].topic.as_str(), assigned[0].partitions.as_slice()), ("t", &[1, 4][..]));
        }
        assert!(read_assignment(Bytes::new()).unwrap().is_empty());
        assert!(read_assignment(Bytes::from_static(&[0, 1, 0x7f, 0xff, 0xff, 0xff])).is_err());
    }
}
