//! `zurau groups describe`: state, members, offsets and lag.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use zurau_common::id::TopicPartition;

use super::members::{Assigned, Found, Member, find};
use super::offsets::{Committed, committed};
use crate::admin::{Common, exit_code};
use crate::client::{Client, LATEST};
use crate::table::{Table, known};

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
    group_type: &'static str,
    protocol_type: String,
    /// The assignor: that the members agreed on, or that of the coordinator.
    protocol: String,
    /// `null` in a classic group.
    group_epoch: Option<i32>,
    /// The epoch that the targets of the members were made for.
    assignment_epoch: Option<i32>,
    members: Vec<Member>,
    offsets: Vec<Offset>,
    total_lag: i64,
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
    let found = find(client, name).await?;
    let committed = committed(client, name).await?;
    if found.state == "Dead" && committed.is_empty() {
        anyhow::bail!("group {name} does not exist; `zurau groups list` shows what exists");
    }
    let offsets = offsets(client, &found.members, &committed).await?;
    let Found { state, group_type, protocol_type, protocol, epochs, members } = found;
    Ok(Group {
        group: name.to_owned(),
        state,
        group_type,
        protocol_type,
        protocol,
        group_epoch: epochs.map(|(group, _)| group),
        assignment_epoch: epochs.map(|(_, assignment)| assignment),
        members,
        total_lag: offsets.iter().filter_map(|offset| offset.lag).sum(),
        offsets,
    })
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
    let mut table =
        Table::new(&["GROUP", "MEMBER", "INSTANCE", "HOST", "CLIENT", "EPOCH", "PARTITIONS", "TARGET"]);
    let topic =
        |assigned: &Assigned| format!("{}:{}", assigned.topic, crate::table::ids(&assigned.partitions));
    let topics = |assigned: &[Assigned]| assigned.iter().map(topic).collect::<Vec<_>>().join(" ");
    for group in groups {
        for member in &group.members {
            table.row([
                group.group.clone(),
                member.member_id.clone(),
                known(member.instance_id.as_ref()),
                member.host.clone(),
                member.client_id.clone(),
                known(member.member_epoch),
                topics(&member.assignment),
                known(member.target.as_deref().map(topics)),
            ]);
        }
    }
    table
}

fn state_table(groups: &[Group]) -> Table {
    let mut table = Table::new(&["GROUP", "TYPE", "STATE", "ASSIGNOR", "EPOCH", "MEMBERS", "LAG"]);
    for group in groups {
        table.row([
            group.group.clone(),
            group.group_type.to_owned(),
            group.state.clone(),
            group.protocol.clone(),
            known(group.group_epoch),
            group.members.len().to_string(),
            group.total_lag.to_string(),
        ]);
    }
    table
}
