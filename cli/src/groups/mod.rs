//! `zurau groups`: consumer groups, how far they are behind, and where they go on reading.

mod describe;
mod goal;
mod members;
mod offsets;
mod reset;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use kafka_protocol::messages::{DeleteGroupsRequest, ListGroupsRequest};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;

pub(crate) use self::members::read_assignment;
pub(crate) use self::offsets::{Committer, commit, committed};
use crate::admin::{self, Common, exit_code, usage};
use crate::client::{Client, CoordinatorOf, Refused};
use crate::table::Table;

/// Arguments of `zurau groups`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Names of the groups, with their state and coordinator.
    List {
        /// Only groups in these states, for instance Stable or Empty.
        #[arg(long, value_delimiter = ',')]
        state: Vec<String>,
    },
    /// Offsets and lag of each partition; with --members or --state something else instead.
    Describe {
        #[command(flatten)]
        groups: GroupNames,
        /// Who is in the group, and which partitions each member has.
        #[arg(long, conflicts_with = "state")]
        members: bool,
        /// One line for each group.
        #[arg(long)]
        state: bool,
        /// Every group.
        #[arg(long)]
        all_groups: bool,
    },
    /// Move where a group goes on reading. Only shows what would happen, until --execute is given.
    ResetOffsets(reset::ResetArguments),
    /// Delete groups with their offsets; they must have no members.
    Delete {
        #[command(flatten)]
        groups: GroupNames,
    },
}

/// Groups, as plain words or as `--group`.
#[derive(Args, Debug)]
struct GroupNames {
    #[arg(value_name = "GROUP")]
    words: Vec<String>,
    #[arg(long = "group", value_name = "GROUP")]
    flags: Vec<String>,
}

impl GroupNames {
    /// # Errors
    /// None is given.
    fn some(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.words.iter().chain(&self.flags).cloned().collect();
        names.sort();
        names.dedup();
        if names.is_empty() {
            return Err(usage("name at least one group"));
        }
        Ok(names)
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("groups", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let mut client = Client::new(&common);
    match command {
        Command::List { state } => {
            let groups = list(&mut client, &state).await?;
            common.output.print(&groups, |groups| list_table(groups))?;
            Ok(exit_code(true))
        }
        Command::Describe { groups, members, state, all_groups } => {
            let names = match all_groups {
                true => list(&mut client, &[]).await?.into_iter().map(|group| group.group).collect(),
                false => groups.some()?,
            };
            let view = match (members, state) {
                (true, _) => describe::View::Members,
                (false, true) => describe::View::State,
                (false, false) => describe::View::Offsets,
            };
            describe::describe(&mut client, &common, &names, view).await
        }
        Command::ResetOffsets(arguments) => reset::reset(&mut client, &common, &arguments).await,
        Command::Delete { groups } => delete(&mut client, &common, &groups.some()?).await,
    }
}

#[derive(Serialize)]
struct Listed {
    group: String,
    state: String,
    protocol_type: String,
    group_type: String,
    coordinator: i32,
}

/// Asks every broker for the groups that it coordinates.
async fn list(client: &mut Client, states: &[String]) -> Result<Vec<Listed>> {
    let request = ListGroupsRequest::default()
        .with_states_filter(states.iter().map(|state| StrBytes::from_string(state.clone())).collect());
    let brokers = client.cluster(Some(&[])).await?.brokers;
    let mut groups = Vec::new();
    for broker in brokers.iter().map(|broker| broker.broker) {
        let answer = client
            .retry(async |client| {
                let answer = client.broker(broker).await?.call(5, &request).await?;
                Refused::check(answer.error_code, None, || format!("the groups of broker {broker}"))?;
                Ok(answer)
            })
            .await?;
        groups.extend(answer.groups.iter().map(|group| Listed {
            group: group.group_id.to_string(),
            state: group.group_state.to_string(),
            protocol_type: group.protocol_type.to_string(),
            group_type: group.group_type.to_string(),
            coordinator: broker,
        }));
    }
    groups.sort_by(|one, other| one.group.cmp(&other.group));
    Ok(groups)
}

fn list_table(groups: &[Listed]) -> Table {
    let mut table = Table::new(&["GROUP", "STATE", "PROTOCOL", "TYPE", "COORDINATOR"]);
    for group in groups {
        table.row([
            group.group.clone(),
            group.state.clone(),
            group.protocol_type.clone(),
            group.group_type.clone(),
            group.coordinator.to_string(),
        ]);
    }
    table
}

#[derive(Serialize)]
struct Deleted {
    group: String,
    deleted: bool,
    error: Option<String>,
}

async fn delete(client: &mut Client, common: &Common, names: &[String]) -> Result<ExitCode> {
    let mut deleted = Vec::new();
    for name in names {
        let error = delete_one(client, name).await.err().map(|error| format!("{error:#}"));
        deleted.push(Deleted { group: name.clone(), deleted: error.is_none(), error });
    }
    common.output.print(&deleted, |deleted| {
        let mut table = Table::default();
        for one in deleted {
            match &one.error {
                None => table.note(format!("group {}: deleted with its offsets", one.group)),
                Some(error) => table.note(error),
            }
        }
        table
    })?;
    Ok(exit_code(deleted.iter().all(|one| one.deleted)))
}

async fn delete_one(client: &mut Client, name: &str) -> Result<()> {
    let id = StrBytes::from_string(name.to_owned());
    let request = DeleteGroupsRequest::default().with_groups_names(vec![id.into()]);
    client
        .retry(async |client| {
            let answer = client.coordinator(CoordinatorOf::Group, name).await?.call(2, &request).await?;
            let result = answer.results.first().context("the answer names no group")?;
            Ok(Refused::check(result.error_code, None, || format!("group {name}"))?)
        })
        .await
}
