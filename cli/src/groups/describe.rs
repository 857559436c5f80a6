//! `zurau groups describe`: state, members, offsets and lag.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bytes::{Buf as _, Bytes};
use kafka_protocol::messages::describe_groups_response::DescribedGroupMember;
use kafka_protocol::messages::{ApiKey, ConsumerProtocolAssignment, DescribeGroupsRequest};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use zurau_common::id::TopicPartition;
use zurau_common::wire::frame::{ApiVersion, decode_body};

use super::offsets::{Committed, committed};
use crate::admin::{Common, exit_code};
use crate::client::{Client, CoordinatorOf, LATEST, Refused};
use crate::table::{Table, known};

/// Protocol type of groups of consumers; only its assignments can be read.
const CONSUMER: &str = "consumer";
/// The newest version of an assignment that is known; newer ones only add to it.
const ASSIGNMENT_VERSION_MAX: i16 = 3;

/// What the table shows; JSON holds everything.
#[derive(Debug, Clone, Copy)]
pub(super) enum View {
    Offsets,
    Members,
    State,
}

/// A group with everything that is known of it.
#[derive(Serialize)]
pub(super) struct Group {
    group: String,
    pub(super) state: String,
    protocol_type: String,
    /// The assignor that the members agreed on.
    protocol: String,
    members: Vec<Member>,
    offsets: Vec<Offset>,
    total_lag: i64,
}

#[derive(Serialize)]
struct Member {
    member_id: String,
    instance_id: Option<String>,
    client_id: String,
    host: String,
    assignment: Vec<Assigned>,
}

/// Partitions of one topic, ascending.
#[derive(Serialize)]
pub(crate) struct Assigned {
    pub(crate) topic: String,
    pub(crate) partitions: Vec<i32>,
}

#[derive(Serialize)]
struct Offset {
    topic: String,
    partition: i32,
    /// `null`: a member has the partition, but nothing is committed yet.
    committed_offset: Option<i64>,
    /// The end of what consumers can read; `null` when the partition is gone or has no leader.
    log_end_offset: Option<i64>,
    lag: Option<i64>,
    member_id: Option<String>,
    client_id: Option<String>,
    host: Option<String>,
    metadata: String,
}

pub(super) async fn describe(
    client: &mut Client,
    common: &Common,
    names: &[String],
    view: View,
) -> Result<ExitCode> {
    let mut groups = Vec::new();
    for name in names {
        groups.push(one(client, name).await?);
    }
    common.output.print(&groups, |groups| match view {
        View::Offsets => offsets_table(groups),
        View::Members => members_table(groups),
        View::State => state_table(groups),
    })?;
    Ok(exit_code(true))
}

/// Everything about one group.
///
/// # Errors
/// The coordinator cannot be found in time; there is no such group.
pub(super) async fn one(client: &mut Client, name: &str) -> Result<Group> {
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
    let committed = committed(client, name).await?;
    let state = found.group_state.to_string();
    if state == "Dead" && committed.is_empty() {
        anyhow::bail!("group {name} does not exist; `zurau groups list` shows what exists");
    }
    let consumers = found.protocol_type.as_str() == CONSUMER;
    let members: Result<Vec<Member>> = found.members.into_iter().map(|one| member(one, consumers)).collect();
    let members = members?;
    let offsets = offsets(client, &members, &committed).await?;
    Ok(Group {
        group: name.to_owned(),
        state,
        protocol_type: found.protocol_type.to_string(),
        protocol: found.protocol_data.to_string(),
        members,
        total_lag: offsets.iter().filter_map(|offset| offset.lag).sum(),
        offsets,
    })
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
        assignment,
    })
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

/// What is committed, and what a member has without having committed anything.
async fn offsets(
    client: &mut Client,
    members: &[Member],
    committed: &BTreeMap<TopicPartition, Committed>,
) -> Result<Vec<Offset>> {
    let mut owners: BTreeMap<TopicPartition, Option<&Member>> =
        committed.keys().map(|id| (id.clone(), None)).collect();
    for member in members {
        for topic in &member.assignment {
            let ids = topic.partitions.iter().map(|one| TopicPartition::new(topic.topic.as_str(), *one));
            owners.extend(ids.map(|id| (id, Some(member))));
        }
    }
    let ends = ends(client, owners.keys()).await?;
    let offsets = owners.into_iter().map(|(id, owner)| {
        let found = committed.get(&id);
        let end = ends.get(&id).copied().flatten();
        let lag = found.zip(end).map(|(found, end)| (end - found.offset).max(0));
        Offset {
            topic: id.topic.to_string(),
            partition: id.partition,
            committed_offset: found.map(|found| found.offset),
            log_end_offset: end,
            lag,
            member_id: owner.map(|member| member.member_id.clone()),
            client_id: owner.map(|member| member.client_id.clone()),
            host: owner.map(|member| member.host.clone()),
            metadata: found.map(|found| found.metadata.clone()).unwrap_or_default(),
        }
    });
    Ok(offsets.collect())
}

/// Ends of the partitions that exist and have a leader; a group may remember topics that are gone.
async fn ends(
    client: &mut Client,
    partitions: impl Iterator<Item = &TopicPartition>,
) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
    let cluster = client.cluster(None).await?;
    let served = partitions.filter(|id| cluster.leader(id).is_ok());
    let wanted: BTreeMap<TopicPartition, i64> = served.map(|id| (id.clone(), LATEST)).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    client.offsets(&wanted, false).await
}

fn offsets_table(groups: &[Group]) -> Table {
    let mut table =
        Table::new(&["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST", "CLIENT"]);
    for group in groups {
        for offset in &group.offsets {
            table.row([
                group.group.clone(),
                offset.topic.clone(),
                offset.partition.to_string(),
                known(offset.committed_offset),
                known(offset.log_end_offset),
                known(offset.lag),
                known(offset.member_id.as_ref()),
                known(offset.host.as_ref()),
                known(offset.client_id.as_ref()),
            ]);
        }
    }
    for group in groups {
        let Group { group, state, members, total_lag, .. } = group;
        table.note(format!("group {group}: {state}, {} members, {total_lag} records behind", members.len()));
    }
    table
}

fn members_table(groups: &[Group]) -> Table {
    let mut table = Table::new(&["GROUP", "MEMBER", "INSTANCE", "HOST", "CLIENT", "PARTITIONS"]);
    for group in groups {
        for member in &group.members {
            let topic = |assigned: &Assigned| {
                format!("{}:{}", assigned.topic, crate::table::ids(&assigned.partitions))
            };
            table.row([
                group.group.clone(),
                member.member_id.clone(),
                known(member.instance_id.as_ref()),
                member.host.clone(),
                member.client_id.clone(),
                member.assignment.iter().map(topic).collect::<Vec<_>>().join(" "),
            ]);
        }
    }
    table
}

fn state_table(groups: &[Group]) -> Table {
    let mut table = Table::new(&["GROUP", "STATE", "ASSIGNOR", "MEMBERS", "LAG"]);
    for group in groups {
        table.row([
            group.group.clone(),
            group.state.clone(),
            group.protocol.clone(),
            group.members.len().to_string(),
            group.total_lag.to_string(),
        ]);
    }
    table
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
