//! `zurau elect`: leaders of the preferred replicas, or unclean ones where the topic allows them.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use kafka_protocol::messages::ElectLeadersRequest;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use serde::Serialize;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use crate::admin::{self, Common, exit_code};
use crate::client::{Client, Refused};
use crate::table::Table;

/// Arguments of `zurau elect`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// preferred: the first of the replicas; unclean: any live replica, with the loss of records that only others have.
    #[arg(value_enum)]
    kind: Kind,
    #[arg(long, required_unless_present = "all", conflicts_with = "all")]
    topic: Option<String>,
    /// Partitions of the topic; without it all of them.
    #[arg(long, requires = "topic", value_delimiter = ',')]
    partition: Vec<i32>,
    /// Every partition of the cluster that needs it.
    #[arg(long, alias = "all-topic-partitions")]
    all: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Kind {
    Preferred = 0,
    Unclean = 1,
}

#[derive(Serialize)]
struct Elected {
    topic: String,
    partition: i32,
    /// `elected`, `not needed` or `failed`.
    result: &'static str,
    leader: Option<i32>,
    error: Option<String>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("elect", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, kind, topic, partition, .. } = arguments;
    let mut client = Client::new(&common);
    let asked = match &topic {
        None => None,
        Some(name) => {
            let cluster = client.cluster(Some(std::slice::from_ref(name))).await?;
            let all = || {
                cluster.topic(name).map(|topic| topic.partitions.iter().map(|one| one.partition).collect())
            };
            let partitions = if partition.is_empty() { all()? } else { partition };
            let topic =
                TopicPartitions::default().with_topic(to_wire_topic(name)).with_partitions(partitions);
            Some(vec![topic])
        }
    };
    let request = ElectLeadersRequest::default()
        .with_election_type(kind as i8)
        .with_topic_partitions(asked)
        .with_timeout_ms(common.timeout_ms());
    let answer = client.any().await?.call(2, &request).await?;
    Refused::check(answer.error_code, None, || "the election".to_owned())?;
    let mut elected = Vec::new();
    for topic in &answer.replica_election_results {
        for found in &topic.partition_result {
            let outcome = Refused::check(found.error_code, found.error_message.as_deref(), || {
                format!("{}-{}", topic.topic.as_str(), found.partition_id)
            });
            elected.push((topic.topic.to_string(), found.partition_id, outcome));
        }
    }
    let leaders = leaders(&mut client, &elected).await?;
    let elected: Vec<Elected> = elected
        .into_iter()
        .map(|(topic, partition, outcome)| {
            let leader = leaders.get(&(topic.clone(), partition)).copied().flatten();
            let (result, error) = match outcome {
                Ok(()) => ("elected", None),
                Err(refused) if refused.rejection == Rejection::ElectionNotNeeded => ("not needed", None),
                Err(refused) => ("failed", Some(refused.to_string())),
            };
            Elected { topic, partition, result, leader, error }
        })
        .collect();
    common.output.print(&elected, |elected| table(elected))?;
    Ok(exit_code(elected.iter().all(|one| one.error.is_none())))
}

type Outcomes = [(String, i32, Result<(), Refused>)];

/// Who leads afterwards.
async fn leaders(client: &mut Client, elected: &Outcomes) -> Result<BTreeMap<(String, i32), Option<i32>>> {
    let mut names: Vec<String> = elected.iter().map(|(topic, ..)| topic.clone()).collect();
    names.dedup();
    let cluster = client.cluster(Some(&names)).await?;
    let mut leaders = BTreeMap::new();
    for topic in &cluster.topics {
        let of_topic = topic.partitions.iter();
        leaders.extend(of_topic.map(|found| ((topic.topic.clone(), found.partition), found.leader)));
    }
    Ok(leaders)
}

fn table(elected: &[Elected]) -> Table {
    let mut table = Table::new(&["TOPIC", "PARTITION", "RESULT", "LEADER", "WHY"]);
    for one in elected {
        table.row([
            one.topic.clone(),
            one.partition.to_string(),
            one.result.to_owned(),
            one.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string()),
            one.error.clone().unwrap_or_default(),
        ]);
    }
    if elected.is_empty() {
        table = Table::default();
        table.note("no partition needs an election");
    }
    table
}
