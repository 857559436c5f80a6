//! Creating, deleting and altering topics.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::{CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::Names;
use crate::admin::{self, Common, exit_code, parse_pair};
use crate::client::{Client, Refused};
use crate::configs::{Change, Resource, change_configs};
use crate::table::Table;

#[derive(Args, Debug)]
pub(super) struct CreateArguments {
    #[command(flatten)]
    names: Names,
    /// Number of partitions; without it num.partitions of the broker.
    #[arg(long, conflicts_with = "replica_assignment")]
    partitions: Option<i32>,
    /// Replicas of each partition; without it default.replication.factor of the broker.
    #[arg(long, conflicts_with = "replica_assignment")]
    replication_factor: Option<i16>,
    /// Brokers of each partition, for instance 1:2,2:3 for two partitions; the first one is preferred to lead.
    #[arg(long, value_parser = parse_assignment)]
    replica_assignment: Option<Assignment>,
    /// A configuration of the topic; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    config: Vec<(String, String)>,
    /// A topic that exists already is no error.
    #[arg(long)]
    if_not_exists: bool,
    /// Only say whether it would work.
    #[arg(long)]
    validate_only: bool,
}

#[derive(Args, Debug)]
pub(super) struct AlterArguments {
    #[command(flatten)]
    names: Names,
    /// The new number of partitions; it can only grow.
    #[arg(long)]
    partitions: Option<i32>,
    /// Set a configuration; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    config: Vec<(String, String)>,
    /// Take a configuration back to its default; may be repeated.
    #[arg(long, value_name = "KEY")]
    delete_config: Vec<String>,
}

/// Replicas by partition.
type Assignment = Vec<Vec<i32>>;

/// Parses `1:2,2:3`.
fn parse_assignment(text: &str) -> Result<Assignment, String> {
    let partition = |partition: &str| {
        let replicas = partition.split(':').map(|id| id.trim().parse::<i32>());
        let replicas: Result<Vec<i32>, _> = replicas.collect();
        replicas.map_err(|_| format!("'{partition}' is not a list of broker ids such as 1:2:3"))
    };
    text.split(',').map(partition).collect()
}

/// What became of one topic.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    topic: String,
    /// What was done, for instance `created`, or `failed`.
    result: String,
    error: Option<String>,
}

impl Outcome {
    fn of(topic: &str, done: &str, outcome: Result<(), Refused>) -> Self {
        let error = outcome.err().map(|refused| refused.to_string());
        let result = if error.is_none() { done } else { "failed" };
        Self { topic: topic.to_owned(), result: result.to_owned(), error }
    }
}

/// Prints what became of each topic; failures go to standard error too, so that a script's log shows them.
fn report(common: &Common, outcomes: &[Outcome]) -> Result<ExitCode> {
    common.output.print(outcomes, |outcomes| {
        let mut table = Table::default();
        for outcome in outcomes.iter().filter(|outcome| outcome.error.is_none()) {
            table.note(format!("topic {}: {}", outcome.topic, outcome.result));
        }
        table
    })?;
    for error in outcomes.iter().filter_map(|outcome| outcome.error.as_ref()) {
        eprintln!("zurau topics: {error}");
    }
    Ok(exit_code(outcomes.iter().all(|outcome| outcome.error.is_none())))
}

fn wire(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) async fn create(
    client: &mut Client,
    common: &Common,
    create: &CreateArguments,
) -> Result<ExitCode> {
    let names = create.names.some()?;
    let configs = || {
        let config = |(key, value): &(String, String)| {
            CreatableTopicConfig::default().with_name(wire(key)).with_value(Some(wire(value)))
        };
        create.config.iter().map(config).collect()
    };
    let assignments = || {
        let partitions = create.replica_assignment.iter().flatten().zip(0..);
        let assignment = partitions.map(|(replicas, number)| {
            let brokers = replicas.iter().map(|id| (*id).into()).collect();
            CreatableReplicaAssignment::default().with_partition_index(number).with_broker_ids(brokers)
        });
        assignment.collect()
    };
    let topics = names.iter().map(|name| {
        CreatableTopic::default()
            .with_name(to_wire_topic(name))
            .with_num_partitions(create.partitions.unwrap_or(-1))
            .with_replication_factor(create.replication_factor.unwrap_or(-1))
            .with_assignments(assignments())
            .with_configs(configs())
    });
    let request = CreateTopicsRequest::default()
        .with_topics(topics.collect())
        .with_timeout_ms(common.timeout_ms())
        .with_validate_only(create.validate_only);
    let answer = client.any().await?.call(7, &request).await?;
    let outcomes = answer.topics.iter().map(|topic| {
        let name = topic.name.as_str();
        let outcome =
            Refused::check(topic.error_code, topic.error_message.as_deref(), || format!("topic {name}"));
        match outcome {
            Err(refused) if refused.rejection == Rejection::TopicAlreadyExists && create.if_not_exists => {
                Outcome::of(name, "exists already", Ok(()))
            }
            Ok(()) if !create.validate_only => {
                let done = format!(
                    "created with {} partitions of {} replicas",
                    topic.num_partitions, topic.replication_factor
                );
                Outcome::of(name, &done, Ok(()))
            }
            outcome => Outcome::of(name, "could be created", outcome),
        }
    });
    report(common, &outcomes.collect::<Vec<_>>())
}

pub(super) async fn delete(
    client: &mut Client,
    common: &Common,
    names: &[String],
    if_exists: bool,
) -> Result<ExitCode> {
    let request = DeleteTopicsRequest::default()
        .with_topic_names(names.iter().map(|name| to_wire_topic(name)).collect())
        .with_timeout_ms(common.timeout_ms());
    let answer = client.any().await?.call(5, &request).await?;
    let outcomes = answer.responses.iter().map(|topic| {
        let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
        let outcome =
            Refused::check(topic.error_code, topic.error_message.as_deref(), || format!("topic {name}"));
        match outcome {
            Err(refused) if refused.rejection == Rejection::UnknownTopicOrPartition && if_exists => {
                Outcome::of(&name, "does not exist", Ok(()))
            }
            outcome => Outcome::of(&name, "deleted with all its records", outcome),
        }
    });
    report(common, &outcomes.collect::<Vec<_>>())
}

pub(super) async fn alter(client: &mut Client, common: &Common, alter: &AlterArguments) -> Result<ExitCode> {
    let names = alter.names.some()?;
    if alter.partitions.is_none() && alter.config.is_empty() && alter.delete_config.is_empty() {
        return Err(admin::usage("say what to alter: --partitions, --config or --delete-config"));
    }
    let mut outcomes = Vec::new();
    if let Some(count) = alter.partitions {
        outcomes.extend(add_partitions(client, common, &names, count).await?);
    }
    let set = alter.config.iter().map(|(key, value)| Change::set(key, value));
    let changes: Vec<Change> = set.chain(alter.delete_config.iter().map(|key| Change::delete(key))).collect();
    if !changes.is_empty() {
        let done = changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for name in &names {
            let outcome = change_configs(client, &Resource::Topic(name.clone()), &changes, false).await?;
            outcomes.push(Outcome::of(name, &done, outcome));
        }
    }
    report(common, &outcomes)
}

async fn add_partitions(
    client: &mut Client,
    common: &Common,
    names: &[String],
    count: i32,
) -> Result<Vec<Outcome>> {
    let topics = names.iter().map(|name| {
        CreatePartitionsTopic::default()
            .with_name(to_wire_topic(name))
            .with_count(count)
            .with_assignments(None)
    });
    let request =
        CreatePartitionsRequest::default().with_topics(topics.collect()).with_timeout_ms(common.timeout_ms());
    let answer = client.any().await?.call(3, &request).await.context("adding partitions")?;
    let outcomes = answer.results.iter().map(|topic| {
        let name = topic.name.as_str();
        let outcome =
            Refused::check(topic.error_code, topic.error_message.as_deref(), || format!("topic {name}"));
        Outcome::of(name, &format!("has {count} partitions now"), outcome)
    });
    Ok(outcomes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_names_the_brokers_of_each_partition() {
        assert_eq!(parse_assignment("1:2,2:3, 3"), Ok(vec![vec![1, 2], vec![2, 3], vec![3]]));
        for bad in ["", "1;2", "a", "1:,2"] {
            assert!(parse_assignment(bad).is_err(), "{bad}");
        }
    }
}
