//! `zurau topics`: what exists, in what state, and how it is changed.

mod change;
mod filter;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;

use self::filter::Filters;
pub(crate) use self::filter::MinIsr;
use crate::admin::{self, Common, exit_code};
use crate::client::{Client, Partition, Topic};
use crate::table::{Table, ids, known};

/// Arguments of `zurau topics`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Names of the topics, with their size in partitions and replicas.
    List {
        /// Leave out topics of the brokers' own, such as __consumer_offsets.
        #[arg(long)]
        exclude_internal: bool,
    },
    /// Leaders, replicas and in-sync replicas of each partition; all topics unless some are named.
    Describe {
        #[command(flatten)]
        names: Names,
        #[command(flatten)]
        filters: Filters,
        #[arg(long)]
        exclude_internal: bool,
    },
    /// Create topics.
    Create(change::CreateArguments),
    /// Delete topics with all their records.
    Delete {
        #[command(flatten)]
        names: Names,
        /// A topic that does not exist is no error.
        #[arg(long)]
        if_exists: bool,
    },
    /// Add partitions, or change configurations.
    Alter(change::AlterArguments),
}

/// Topics, as plain words or as `--topic`.
#[derive(Args, Debug)]
struct Names {
    #[arg(value_name = "TOPIC")]
    words: Vec<String>,
    #[arg(long = "topic", value_name = "TOPIC")]
    flags: Vec<String>,
}

impl Names {
    fn all(&self) -> Vec<String> {
        let mut names: Vec<String> = self.words.iter().chain(&self.flags).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    /// # Errors
    /// None is given.
    fn some(&self) -> Result<Vec<String>> {
        let names = self.all();
        if names.is_empty() {
            return Err(admin::usage("name at least one topic"));
        }
        Ok(names)
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("topics", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let mut client = Client::new(&common);
    match command {
        Command::List { exclude_internal } => list(&mut client, &common, exclude_internal).await,
        Command::Describe { names, filters, exclude_internal } => {
            let described = describe(&mut client, &names.all(), &filters, exclude_internal).await?;
            common.output.print(&described, |topics| describe_table(topics))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Create(create) => change::create(&mut client, &common, &create).await,
        Command::Delete { names, if_exists } => {
            change::delete(&mut client, &common, &names.some()?, if_exists).await
        }
        Command::Alter(alter) => change::alter(&mut client, &common, &alter).await,
    }
}

#[derive(Serialize)]
struct Listed {
    topic: String,
    topic_id: String,
    partitions: usize,
    /// Of the first partition.
    replication_factor: usize,
    internal: bool,
}

async fn list(client: &mut Client, common: &Common, exclude_internal: bool) -> Result<ExitCode> {
    let topics = client.cluster(None).await?.topics;
    let shown = topics.into_iter().filter(|topic| !(exclude_internal && topic.internal));
    let listed: Vec<Listed> = shown
        .map(|topic| Listed {
            partitions: topic.partitions.len(),
            replication_factor: topic.partitions.first().map_or(0, |partition| partition.replicas.len()),
            topic: topic.topic,
            topic_id: topic.topic_id,
            internal: topic.internal,
        })
        .collect();
    common.output.print(&listed, |listed| {
        let mut table = Table::new(&["TOPIC", "PARTITIONS", "REPLICATION", "TOPIC ID"]);
        for topic in listed {
            let (partitions, factor) = (topic.partitions.to_string(), topic.replication_factor.to_string());
            table.row([topic.topic.clone(), partitions, factor, topic.topic_id.clone()]);
        }
        table
    })?;
    Ok(exit_code(true))
}

/// A topic with those of its partitions that pass the filters.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    topic: Topic,
    /// `min.insync.replicas`, as far as the number of replicas allows it.
    min_insync_replicas: i32,
    /// What is set for this topic alone.
    configs: std::collections::BTreeMap<String, Option<String>>,
}

async fn describe(
    client: &mut Client,
    names: &[String],
    filters: &Filters,
    exclude_internal: bool,
) -> Result<Vec<Described>> {
    let asked = if names.is_empty() { None } else { Some(names) };
    let mut topics = client.cluster(asked).await?.topics;
    topics.retain(|topic| !(exclude_internal && topic.internal));
    let names: Vec<String> = topics.iter().map(|topic| topic.topic.clone()).collect();
    let mut configs = crate::configs::topic_configs(client, &names).await?;
    let mut described = Vec::new();
    for mut topic in topics {
        let entries = configs.remove(&topic.topic).unwrap_or_default();
        let min_isr = MinIsr::of(&entries);
        topic.partitions.retain(|partition| filters.pass(partition, min_isr));
        if topic.partitions.is_empty() && filters.any() {
            continue;
        }
        let own = entries
            .iter()
            .filter(|entry| entry.is_own())
            .map(|entry| (entry.name.clone(), entry.value.clone()));
        described.push(Described { topic, min_insync_replicas: min_isr.0, configs: own.collect() });
    }
    Ok(described)
}

fn describe_table(topics: &[Described]) -> Table {
    let mut table =
        Table::new(&["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE", "NOTE"]);
    for described in topics {
        for partition in &described.topic.partitions {
            table.row([
                described.topic.topic.clone(),
                partition.partition.to_string(),
                partition.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string()),
                known(partition.leader_epoch),
                ids(&partition.replicas),
                ids(&partition.isr),
                ids(&partition.offline_replicas),
                note(partition, MinIsr(described.min_insync_replicas)),
            ]);
        }
    }
    for described in topics.iter().filter(|described| !described.configs.is_empty()) {
        let entries = described.configs.iter();
        let entries = entries.map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or("(hidden)")));
        table.note(format!("{}: {}", described.topic.topic, entries.collect::<Vec<_>>().join(", ")));
    }
    table
}

/// The worst that is to be said of a partition.
fn note(partition: &Partition, min_isr: MinIsr) -> String {
    let note = if partition.leader.is_none() {
        "unavailable"
    } else if filter::is_under_min_isr(partition, min_isr) {
        "under min ISR"
    } else if filter::is_under_replicated(partition) {
        "under-replicated"
    } else if partition.leader != partition.replicas.first().copied() {
        "not led by the preferred replica"
    } else {
        ""
    };
    note.to_owned()
}
