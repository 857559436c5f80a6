//! `zurau records`: deleting what stands before an offset.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use serde::{Deserialize, Serialize};
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use crate::admin::{self, Common, exit_code, usage};
use crate::client::{Client, Refused};
use crate::table::Table;

/// Arguments of `zurau records`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Delete every record before an offset, for good.
    Delete(DeleteArguments),
}

#[derive(Args, Debug)]
struct DeleteArguments {
    #[arg(long, requires = "partition", required_unless_present = "offset_json_file")]
    topic: Option<String>,
    #[arg(long, requires = "before_offset")]
    partition: Option<i32>,
    /// The first offset to keep; -1 or `latest` deletes all that is committed.
    #[arg(long, value_parser = parse_offset, allow_hyphen_values = true, requires = "topic")]
    before_offset: Option<i64>,
    /// Many at once, in a file of kafka-delete-records.
    #[arg(long, value_name = "FILE", conflicts_with = "topic")]
    offset_json_file: Option<PathBuf>,
}

fn parse_offset(text: &str) -> Result<i64, String> {
    match text {
        "latest" | "end" => Ok(-1),
        number => {
            number.parse().ok().filter(|offset| -1 <= *offset).ok_or_else(|| {
                format!("'{number}' is not an offset; wanted is a number from 0 on, or `latest`")
            })
        }
    }
}

#[derive(Deserialize)]
struct OffsetFile {
    partitions: Vec<OffsetBound>,
}

#[derive(Deserialize)]
struct OffsetBound {
    topic: String,
    partition: i32,
    offset: i64,
}

/// # Errors
/// The file cannot be read, or a partition stands twice.
fn read_bounds(path: &Path) -> Result<BTreeMap<TopicPartition, i64>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let file: OffsetFile = serde_json::from_str(&text).map_err(|error| {
        let shape = r#"{"partitions":[{"topic":"t","partition":0,"offset":5}],"version":1}"#;
        usage(format!("{}: {error}; wanted is {shape}", path.display()))
    })?;
    let mut bounds = BTreeMap::new();
    for bound in file.partitions {
        let id = TopicPartition::new(bound.topic.as_str(), bound.partition);
        if bounds.insert(id.clone(), bound.offset).is_some() {
            return Err(usage(format!("{}: {id} stands twice", path.display())));
        }
    }
    Ok(bounds)
}

#[derive(Serialize)]
struct Deleted {
    topic: String,
    partition: i32,
    /// The first offset that is still there.
    low_watermark: Option<i64>,
    error: Option<String>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("records", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command: Command::Delete(delete) } = arguments;
    let bounds = match (&delete.offset_json_file, &delete.topic, delete.partition, delete.before_offset) {
        (Some(path), ..) => read_bounds(path)?,
        (None, Some(topic), Some(partition), Some(offset)) => {
            BTreeMap::from([(TopicPartition::new(topic.as_str(), partition), offset)])
        }
        _ => return Err(usage("--topic, --partition and --before-offset are needed")),
    };
    let mut client = Client::new(&common);
    let deleted = delete_records(&mut client, &common, &bounds).await?;
    common.output.print(&deleted, |deleted| {
        let mut table = Table::new(&["TOPIC", "PARTITION", "STARTS AT", "WHY"]);
        for one in deleted {
            let start = one.low_watermark.map_or_else(|| "failed".to_owned(), |offset| offset.to_string());
            let why = one.error.clone().unwrap_or_default();
            table.row([one.topic.clone(), one.partition.to_string(), start, why]);
        }
        table
    })?;
    Ok(exit_code(deleted.iter().all(|one| one.error.is_none())))
}

async fn delete_records(
    client: &mut Client,
    common: &Common,
    bounds: &BTreeMap<TopicPartition, i64>,
) -> Result<Vec<Deleted>> {
    let names: BTreeSet<String> = bounds.keys().map(|id| id.topic.to_string()).collect();
    let names: Vec<String> = names.into_iter().collect();
    let by_leader = client
        .retry(async |client| {
            let cluster = client.cluster(Some(&names)).await?;
            let mut leaders: BTreeMap<i32, BTreeMap<TopicPartition, i64>> = BTreeMap::new();
            for (id, offset) in bounds {
                leaders.entry(cluster.leader(id)?).or_default().insert(id.clone(), *offset);
            }
            Ok(leaders)
        })
        .await?;
    let mut deleted = Vec::new();
    for (leader, bounds) in by_leader {
        let answer = client.broker(leader).await?.call(2, &request(common, &bounds)).await?;
        for topic in &answer.topics {
            for found in &topic.partitions {
                let subject =
                    || format!("{}-{} at broker {leader}", topic.name.as_str(), found.partition_index);
                let refused = Refused::check(found.error_code, None, subject).err();
                deleted.push(Deleted {
                    topic: topic.name.to_string(),
                    partition: found.partition_index,
                    low_watermark: refused.is_none().then_some(found.low_watermark),
                    error: refused.map(|refused| refused.to_string()),
                });
            }
        }
    }
    deleted.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
    Ok(deleted)
}

fn request(common: &Common, bounds: &BTreeMap<TopicPartition, i64>) -> DeleteRecordsRequest {
    let mut topics: BTreeMap<&str, Vec<DeleteRecordsPartition>> = BTreeMap::new();
    for (id, offset) in bounds {
        let partition =
            DeleteRecordsPartition::default().with_partition_index(id.partition).with_offset(*offset);
        topics.entry(&id.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        DeleteRecordsTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
    });
    DeleteRecordsRequest::default().with_topics(topics.collect()).with_timeout_ms(common.timeout_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_a_number_or_the_end() {
        assert_eq!((parse_offset("7"), parse_offset("latest"), parse_offset("-1")), (Ok(7), Ok(-1), Ok(-1)));
        for bad in ["-2", "x", ""] {
            assert!(parse_offset(bad).is_err(), "{bad}");
        }
    }
}
