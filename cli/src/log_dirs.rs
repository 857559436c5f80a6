//! `zurau log-dirs`: what is in the brokers' log directories, and moves of replicas between those of one broker (KIP-113).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use kafka_protocol::messages::AlterReplicaLogDirsRequest;
use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use crate::admin::{self, Common, exit_code};
use crate::client::{Client, LogDir, Refused, Topic};
use crate::table::{Table, bytes, known};

/// How often a broker is asked how far its moves are.
const POLL: Duration = Duration::from_millis(200);
/// How often that is told.
const TOLD: Duration = Duration::from_secs(2);

/// Arguments of `zurau log-dirs`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Sizes and lags of the replicas in each log directory, and copies that are on their way into it.
    Describe {
        /// Only these brokers.
        #[arg(long, alias = "broker-list", value_delimiter = ',')]
        broker: Vec<i32>,
        /// Only replicas of these topics.
        #[arg(long, alias = "topic-list", value_delimiter = ',')]
        topic: Vec<String>,
    },
    /// Move replicas into another log directory of their broker. Waits until they are there, --timeout at most; what is not
    /// there by then goes on, and the exit code is 1. A move back to where the replica is ends one that is under way.
    Move(MoveArguments),
}

#[derive(Args, Debug)]
struct MoveArguments {
    #[arg(value_name = "TOPIC:PARTITION", required = true, value_parser = parse_partition)]
    partitions: Vec<TopicPartition>,
    #[arg(long)]
    broker: i32,
    /// The log directory, as `describe` shows it.
    #[arg(long, value_name = "DIR")]
    to: String,
    /// End as soon as the moves have begun.
    #[arg(long)]
    no_wait: bool,
}

fn parse_partition(text: &str) -> Result<TopicPartition, String> {
    let parsed = text.rsplit_once(':').and_then(|(topic, number)| {
        let number = number.parse().ok().filter(|number| 0 <= *number)?;
        (!topic.is_empty()).then(|| TopicPartition::new(topic, number))
    });
    parsed.ok_or_else(|| format!("'{text}' is not TOPIC:PARTITION"))
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("log-dirs", work(arguments))
}

async fn work(Arguments { common, command }: Arguments) -> Result<ExitCode> {
    let mut client = Client::new(&common);
    match command {
        Command::Describe { broker, topic } => describe(&mut client, &common, broker, &topic).await,
        Command::Move(arguments) => move_replicas(&mut client, &common, &arguments).await,
    }
}

#[derive(Serialize)]
struct Described {
    broker: i32,
    log_dirs: Vec<LogDir>,
    /// Why `log_dirs` is empty.
    error: Option<String>,
}

async fn describe(
    client: &mut Client,
    common: &Common,
    mut brokers: Vec<i32>,
    topics: &[String],
) -> Result<ExitCode> {
    let cluster = client.cluster(Some(topics)).await?;
    let of_topics: Vec<&Topic> = cluster.topics.iter().collect();
    let asked = (!topics.is_empty()).then_some(of_topics.as_slice());
    if brokers.is_empty() {
        brokers = cluster.brokers.iter().map(|broker| broker.broker).collect();
    }
    let mut described = Vec::new();
    for broker in brokers {
        let (log_dirs, error) = client.log_dirs_or_why(broker, asked).await;
        described.push(Described { broker, log_dirs, error });
    }
    common.output.print(&described, |described| described_table(described))?;
    Ok(exit_code(described.iter().all(|one| one.error.is_none())))
}

fn described_table(described: &[Described]) -> Table {
    let mut table = Table::new(&["BROKER", "LOG DIR", "TOPIC", "PARTITION", "SIZE", "LAG", "NOTE"]);
    let dash = || "-".to_owned();
    for Described { broker, log_dirs, error } in described {
        let broker = broker.to_string();
        if let Some(error) = error {
            table.row([broker.clone(), dash(), dash(), dash(), dash(), dash(), error.clone()]);
        }
        for directory in log_dirs {
            let start = || [broker.clone(), directory.log_dir.clone()];
            for replica in &directory.replicas {
                let note = if replica.is_future { "on its way here" } else { "" };
                table.row(start().into_iter().chain([
                    replica.topic.clone(),
                    replica.partition.to_string(),
                    bytes(replica.size_bytes),
                    known(replica.offset_lag),
                    note.to_owned(),
                ]));
            }
            if directory.replicas.is_empty() {
                let note = directory.error.clone().unwrap_or_else(|| "no replica".to_owned());
                table.row(start().into_iter().chain([dash(), dash(), dash(), dash(), note]));
            }
        }
    }
    table
}

/// What became of the wish for one replica.
#[derive(Debug, Serialize)]
struct Moved {
    topic: String,
    partition: i32,
    broker: i32,
    log_dir: String,
    /// `complete`: the replica is there; `in_progress`; `not_as_wanted`: neither there nor on its way; `remembered`: the broker
    /// has no such replica, and will create it there; `failed`.
    status: &'static str,
    /// Records that the copy lacks of the replica, while it moves.
    offset_lag: Option<i64>,
    error: Option<String>,
}

impl Moved {
    fn is_settled(&self) -> bool {
        matches!(self.status, "complete" | "remembered" | "failed")
    }
}

async fn move_replicas(client: &mut Client, common: &Common, arguments: &MoveArguments) -> Result<ExitCode> {
    let mut names: Vec<String> = arguments.partitions.iter().map(|id| id.topic.to_string()).collect();
    names.sort_unstable();
    names.dedup();
    let cluster = client.cluster(Some(&names)).await?;
    for id in &arguments.partitions {
        cluster.partition(&id.topic, id.partition)?;
    }
    let topics: Vec<&Topic> = cluster.topics.iter().collect();
    let mut moved = begin(client, arguments).await?;
    let deadline = Instant::now() + common.timeout();
    let mut told = Instant::now();
    loop {
        let directories = client.log_dirs(arguments.broker, Some(&topics)).await?;
        moved.iter_mut().filter(|one| !one.is_settled()).for_each(|one| look(one, &directories));
        let settled = moved.iter().all(Moved::is_settled);
        if settled || arguments.no_wait || deadline <= Instant::now() + POLL {
            break;
        }
        if TOLD <= told.elapsed() {
            told = Instant::now();
            tell_progress(&moved);
        }
        sleep(POLL).await;
    }
    common.output.print(&moved, |moved| moved_table(moved))?;
    let wanted = |one: &Moved| match one.status {
        "complete" | "remembered" => true,
        "in_progress" => arguments.no_wait,
        _ => false,
    };
    Ok(exit_code(moved.iter().all(wanted)))
}

/// Tells the broker where the replicas shall be.
async fn begin(client: &mut Client, arguments: &MoveArguments) -> Result<Vec<Moved>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for id in &arguments.partitions {
        let partitions = topics.entry(&id.topic).or_default();
        if !partitions.contains(&id.partition) {
            partitions.push(id.partition);
        }
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        AlterReplicaLogDirTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
    });
    let directory = AlterReplicaLogDir::default()
        .with_path(StrBytes::from_string(without_slash(&arguments.to)))
        .with_topics(topics.collect());
    let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![directory]);
    let answer = client.broker(arguments.broker).await?.call(2, &request).await?;
    let mut moved = Vec::new();
    for topic in &answer.results {
        for found in &topic.partitions {
            let subject = || format!("{}-{}", topic.topic_name.as_str(), found.partition_index);
            let (status, error) = match Refused::check(found.error_code, None, subject) {
                Ok(()) => ("not_as_wanted", None),
                Err(refused) if refused.rejection == Rejection::ReplicaNotAvailable => ("remembered", None),
                Err(refused) => ("failed", Some(refused.to_string())),
            };
            moved.push(Moved {
                topic: topic.topic_name.to_string(),
                partition: found.partition_index,
                broker: arguments.broker,
                log_dir: arguments.to.clone(),
                status,
                offset_lag: None,
                error,
            });
        }
    }
    Ok(moved)
}

/// Brokers compare paths as text.
fn without_slash(path: &str) -> String {
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() { path.to_owned() } else { trimmed.to_owned() }
}

fn look(moved: &mut Moved, directories: &[LogDir]) {
    let directory = directories.iter().find(|found| Path::new(&found.log_dir) == Path::new(&moved.log_dir));
    let replica = directory.and_then(|directory| {
        directory.replicas.iter().find(|one| (&one.topic, one.partition) == (&moved.topic, moved.partition))
    });
    moved.offset_lag = replica.filter(|replica| replica.is_future).and_then(|replica| replica.offset_lag);
    moved.status = match replica {
        Some(replica) if replica.is_future => "in_progress",
        Some(_) => "complete",
        None => "not_as_wanted",
    };
    moved.error = directory.and_then(|directory| directory.error.clone());
}

fn tell_progress(moved: &[Moved]) {
    for one in moved.iter().filter(|one| !one.is_settled()) {
        let Moved { topic, partition, status, offset_lag, .. } = one;
        let lag = known(*offset_lag);
        eprintln!("{topic}-{partition}: {}, {lag} records are missing", status.replace('_', " "));
    }
}

fn moved_table(moved: &[Moved]) -> Table {
    let mut table = Table::new(&["TOPIC", "PARTITION", "BROKER", "LOG DIR", "STATUS", "LAG", "WHY"]);
    for one in moved {
        table.row([
            one.topic.clone(),
            one.partition.to_string(),
            one.broker.to_string(),
            one.log_dir.clone(),
            one.status.replace('_', " "),
            known(one.offset_lag),
            one.error.clone().unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Replica;

    #[test]
    fn a_replica_is_named_by_topic_and_number() {
        assert_eq!(parse_partition("a:b:3"), Ok(TopicPartition::new("a:b", 3)));
        for text in ["", "t", "t:", ":1", "t:-1", "t:x"] {
            assert!(parse_partition(text).is_err(), "{text}");
        }
        assert_eq!((without_slash("/a//"), without_slash("/")), ("/a".to_owned(), "/".to_owned()));
    }

    #[test]
    fn a_move_is_complete_once_the_copy_is_the_replica() {
        let directory = |path: &str, is_future: Option<bool>, error: Option<&str>| {
            let replica = |is_future| Replica {
                topic: "t".to_owned(),
                partition: 0,
                size_bytes: 7,
                offset_lag: Some(3),
                is_future,
            };
            LogDir {
                log_dir: path.to_owned(),
                error: error.map(str::to_owned),
                total_bytes: None,
                usable_bytes: None,
                replicas: is_future.map(replica).into_iter().collect(),
            }
        };
        //   what is in /a and /b; status and lag of a move to /b
        let rows = [
            (Some(false), Some(true), None, "in_progress", Some(3)),
            (None, Some(false), None, "complete", None),
            (Some(false), None, None, "not_as_wanted", None),
            (Some(false), None, Some("offline"), "not_as_wanted", None),
        ];
        for (a, b, error, status, lag) in rows {
            let mut moved = Moved {
                topic: "t".to_owned(),
                partition: 0,
                broker: 1,
                log_dir: "/b/".to_owned(),
                status: "not_as_wanted",
                offset_lag: None,
                error: None,
            };
            look(&mut moved, &[directory("/a", a, None), directory("/b", b, error)]);
            assert_eq!((moved.status, moved.offset_lag, moved.error.as_deref()), (status, lag, error));
        }
    }
}
