//! `zurau reassign`: plans moves of replicas, starts them, follows them, and cancels them. Files are those of
//! kafka-reassign-partitions.

mod plan;
mod proposal;
mod throttle;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::{AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest};
use serde::Serialize;
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use self::plan::{Racks, Replicas, moved_replicas, propose};
use self::proposal::{Proposal, Wanted, read_topics_to_move};
use crate::admin::{self, Common, exit_code, print_text, usage};
use crate::client::{Client, Cluster, Refused};
use crate::table::{Table, ids};

/// Arguments of `zurau reassign`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print a balanced, rack-aware proposal that moves little, as JSON for `start`. Nothing is changed.
    #[command(alias = "generate")]
    Plan(PlanArguments),
    /// Start the moves of a file. The answer holds the replicas as they were: kept, it is the way back.
    #[command(alias = "execute")]
    Start {
        #[command(flatten)]
        file: File,
        /// What each broker may send, and receive, for these moves and those under way. Started again with another
        /// rate, the file changes it.
        #[arg(long, value_name = "BYTES_PER_SECOND", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
        throttle: Option<u64>,
    },
    /// Show the moves under way; with a file those of the file, and then the exit code is 1 until all are complete.
    /// With a file the throttle is taken away once nothing moves any more.
    #[command(aliases = ["verify", "list"])]
    Status {
        #[command(flatten)]
        file: File,
        /// Leave the throttle.
        #[arg(long)]
        preserve_throttles: bool,
    },
    /// Cancel moves: partitions go back to the replicas they had. The throttle goes with the last move.
    Cancel {
        #[command(flatten)]
        file: File,
        /// Leave the throttle.
        #[arg(long)]
        preserve_throttles: bool,
        #[arg(long)]
        topic: Option<String>,
        /// Partitions of the topic; without it all of them.
        #[arg(long, requires = "topic", value_delimiter = ',')]
        partition: Vec<i32>,
        /// Every move under way.
        #[arg(long, conflicts_with_all = ["topic", "file", "path"])]
        all: bool,
    },
}

#[derive(Args, Debug)]
struct PlanArguments {
    /// Topics to plan for; without any, all of them.
    #[arg(long, value_delimiter = ',')]
    topic: Vec<String>,
    /// The same as a file of kafka-reassign-partitions.
    #[arg(long, value_name = "FILE")]
    topics_to_move_json_file: Option<PathBuf>,
    /// Brokers that shall host the replicas; without it all live ones. A broker left out is emptied.
    #[arg(long, value_delimiter = ',')]
    broker_list: Vec<i32>,
}

/// A file of reassignments, as a plain word or under Kafka's flag.
#[derive(Args, Debug)]
struct File {
    /// The file; `-` is standard input.
    #[arg(value_name = "FILE")]
    path: Option<PathBuf>,
    #[arg(long = "reassignment-json-file", value_name = "FILE", conflicts_with = "path")]
    file: Option<PathBuf>,
}

impl File {
    fn read(&self) -> Result<Option<Proposal>> {
        self.path.as_ref().or(self.file.as_ref()).map(|path| Proposal::read(path)).transpose()
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("reassign", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let mut client = Client::new(&common);
    match command {
        Command::Plan(arguments) => plan(&mut client, &arguments).await,
        Command::Start { file, throttle } => {
            let proposal =
                file.read()?.ok_or_else(|| usage("name the file that `zurau reassign plan` wrote"))?;
            start(&mut client, &common, &proposal, throttle).await
        }
        Command::Status { file, preserve_throttles } => {
            status(&mut client, &common, file.read()?, preserve_throttles).await
        }
        Command::Cancel { file, preserve_throttles, topic, partition, all } => {
            let partitions = match (file.read()?, topic, all) {
                (Some(proposal), None, false) => proposal.partitions.iter().map(Wanted::id).collect(),
                (None, Some(topic), false) if !partition.is_empty() => {
                    partition.iter().map(|number| TopicPartition::new(topic.as_str(), *number)).collect()
                }
                (None, topic @ Some(_), false) | (None, topic @ None, true) => {
                    let moves = moves(&mut client, &common).await?;
                    let wanted =
                        |id: &TopicPartition| topic.as_deref().is_none_or(|topic| &*id.topic == topic);
                    moves.into_keys().filter(wanted).collect()
                }
                _ => return Err(usage("say what to cancel: a file, --topic, or --all")),
            };
            cancel(&mut client, &common, &partitions, preserve_throttles).await
        }
    }
}

/// The replicas of the named topics, or of all.
fn current(cluster: &Cluster) -> Replicas {
    let mut replicas = Replicas::new();
    for topic in &cluster.topics {
        let partitions = topic.partitions.iter();
        replicas.extend(partitions.map(|partition| {
            (TopicPartition::new(topic.topic.as_str(), partition.partition), partition.replicas.clone())
        }));
    }
    replicas
}

async fn plan(client: &mut Client, arguments: &PlanArguments) -> Result<ExitCode> {
    let mut names = arguments.topic.clone();
    if let Some(path) = &arguments.topics_to_move_json_file {
        names.extend(read_topics_to_move(path)?);
    }
    let cluster = client.cluster(if names.is_empty() { None } else { Some(&names) }).await?;
    let live = cluster.racks();
    let racks: Racks = match arguments.broker_list.as_slice() {
        [] => live,
        listed => {
            let known = |id: &i32| match live.get(id) {
                Some(rack) => Ok((*id, rack.clone())),
                None => Err(usage(format!("broker {id} is not alive; `zurau brokers` shows which are"))),
            };
            listed.iter().map(known).collect::<Result<_>>()?
        }
    };
    let current = current(&cluster);
    let proposed = propose(&current, &racks).map_err(usage)?;
    let moved = moved_replicas(&current, &proposed);
    let changed = proposed.iter().filter(|(id, replicas)| current.get(id) != Some(replicas));
    let partitions: Vec<Wanted> =
        changed.map(|(id, replicas)| Wanted::new(&id.topic, id.partition, replicas.clone())).collect();
    eprintln!(
        "{} of {} partitions change, {moved} replicas are copied to another broker",
        partitions.len(),
        current.len()
    );
    let text = serde_json::to_string(&Proposal::new(partitions))?;
    print_text(&(text + "\n"))?;
    Ok(exit_code(true))
}

/// What became of a request about one partition.
#[derive(Serialize)]
struct Outcome {
    topic: String,
    partition: i32,
    /// `started`, `cancelled` or `failed`.
    result: &'static str,
    error: Option<String>,
}

#[derive(Serialize)]
struct Started {
    /// The replicas as they were, in the form of a file for `start`.
    previous: Proposal,
    partitions: Vec<Outcome>,
}

async fn start(
    client: &mut Client,
    common: &Common,
    proposal: &Proposal,
    throttle: Option<u64>,
) -> Result<ExitCode> {
    let cluster = client.cluster(Some(&proposal.topics())).await?;
    let mut previous = Vec::new();
    let mut wishes = BTreeMap::new();
    for wanted in &proposal.partitions {
        let replicas = cluster.partition(&wanted.topic, wanted.partition)?.replicas.clone();
        previous.push(Wanted::new(&wanted.topic, wanted.partition, replicas));
        wishes.insert(wanted.id(), Some(wanted.replicas.clone()));
    }
    if let Some(rate) = throttle {
        let under_way = moves(client, common).await?;
        throttle::set(client, &under_way, proposal, &cluster, rate).await?;
    }
    let partitions = alter(client, common, &wishes, "started").await?;
    let started = Started { previous: Proposal::new(previous), partitions };
    let previous = serde_json::to_string(&started.previous)?;
    common.output.print(&started, |started| {
        let mut table = outcome_table(&started.partitions);
        table.note(format!("to go back, start this: {previous}"));
        table
    })?;
    Ok(exit_code(started.partitions.iter().all(|outcome| outcome.error.is_none())))
}

async fn cancel(
    client: &mut Client,
    common: &Common,
    partitions: &BTreeSet<TopicPartition>,
    preserve_throttles: bool,
) -> Result<ExitCode> {
    let wishes = partitions.iter().map(|id| (id.clone(), None)).collect();
    let outcomes = alter(client, common, &wishes, "cancelled").await?;
    common.output.print(&outcomes, |outcomes| outcome_table(outcomes))?;
    let others = moves(client, common).await?.into_keys().any(|id| !partitions.contains(&id));
    if !others && !preserve_throttles {
        let topics: BTreeSet<String> = partitions.iter().map(|id| id.topic.to_string()).collect();
        let cluster = client.cluster(Some(&[])).await?;
        throttle::clear(client, &cluster, topics).await?;
    }
    Ok(exit_code(outcomes.iter().all(|outcome| outcome.error.is_none())))
}

fn outcome_table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(&["TOPIC", "PARTITION", "RESULT", "WHY"]);
    for outcome in outcomes {
        let why = outcome.error.clone().unwrap_or_default();
        table.row([outcome.topic.clone(), outcome.partition.to_string(), outcome.result.to_owned(), why]);
    }
    if outcomes.is_empty() {
        table = Table::default();
        table.note("no move is under way");
    }
    table
}

/// Writes or, for `None`, removes wishes.
async fn alter(
    client: &mut Client,
    common: &Common,
    wishes: &BTreeMap<TopicPartition, Option<Vec<i32>>>,
    done: &'static str,
) -> Result<Vec<Outcome>> {
    if wishes.is_empty() {
        return Ok(Vec::new());
    }
    let mut topics: BTreeMap<&str, Vec<ReassignablePartition>> = BTreeMap::new();
    for (id, replicas) in wishes {
        let replicas = replicas.as_ref().map(|ids| ids.iter().map(|id| (*id).into()).collect());
        let partition =
            ReassignablePartition::default().with_partition_index(id.partition).with_replicas(replicas);
        topics.entry(&id.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        ReassignableTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
    });
    let request = AlterPartitionReassignmentsRequest::default()
        .with_timeout_ms(common.timeout_ms())
        .with_topics(topics.collect());
    let answer = client.any().await?.call(0, &request).await?;
    Refused::check(answer.error_code, answer.error_message.as_deref(), || "the request".to_owned())?;
    let mut outcomes = Vec::new();
    for topic in &answer.responses {
        for found in &topic.partitions {
            let subject = || format!("{}-{}", topic.name.as_str(), found.partition_index);
            let error = Refused::check(found.error_code, found.error_message.as_deref(), subject).err();
            outcomes.push(Outcome {
                topic: topic.name.to_string(),
                partition: found.partition_index,
                result: if error.is_none() { done } else { "failed" },
                error: error.map(|refused| refused.to_string()),
            });
        }
    }
    Ok(outcomes)
}

/// A move under way.
struct Move {
    replicas: Vec<i32>,
    adding: Vec<i32>,
    removing: Vec<i32>,
}

async fn moves(client: &mut Client, common: &Common) -> Result<BTreeMap<TopicPartition, Move>> {
    let request =
        ListPartitionReassignmentsRequest::default().with_timeout_ms(common.timeout_ms()).with_topics(None);
    let answer = client.any().await?.call(0, &request).await?;
    Refused::check(answer.error_code, answer.error_message.as_deref(), || "the request".to_owned())?;
    let plain = |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| id.0).collect();
    let mut moves = BTreeMap::new();
    for topic in &answer.topics {
        for found in &topic.partitions {
            let id = TopicPartition::new(topic.name.as_str(), found.partition_index);
            let one = Move {
                replicas: plain(&found.replicas),
                adding: plain(&found.adding_replicas),
                removing: plain(&found.removing_replicas),
            };
            moves.insert(id, one);
        }
    }
    Ok(moves)
}

#[derive(Serialize)]
struct Progress {
    topic: String,
    partition: i32,
    /// `in_progress`, `complete` or `not_as_wanted`: neither there nor on the way.
    status: &'static str,
    replicas: Vec<i32>,
    adding: Vec<i32>,
    removing: Vec<i32>,
    isr: Vec<i32>,
    /// What is still waited for: replicas that are added and not in sync yet.
    waiting_for: Vec<i32>,
}

async fn status(
    client: &mut Client,
    common: &Common,
    proposal: Option<Proposal>,
    preserve_throttles: bool,
) -> Result<ExitCode> {
    let moves = moves(client, common).await?;
    let wanted: BTreeMap<TopicPartition, Vec<i32>> = match &proposal {
        Some(proposal) => {
            proposal.partitions.iter().map(|wanted| (wanted.id(), wanted.replicas.clone())).collect()
        }
        None => moves.keys().map(|id| (id.clone(), Vec::new())).collect(),
    };
    let names: BTreeSet<String> = wanted.keys().map(|id| id.topic.to_string()).collect();
    let names: Vec<String> = names.into_iter().collect();
    let cluster = client.cluster(Some(&names)).await?;
    let mut progress = Vec::new();
    for (id, wanted) in &wanted {
        let partition = cluster.partition(&id.topic, id.partition)?;
        let isr = partition.isr.clone();
        let found = moves.get(id);
        let adding = found.map(|one| one.adding.clone()).unwrap_or_default();
        progress.push(Progress {
            topic: id.topic.to_string(),
            partition: id.partition,
            status: match found {
                Some(_) => "in_progress",
                None if partition.replicas == *wanted => "complete",
                None => "not_as_wanted",
            },
            replicas: found.map_or_else(|| partition.replicas.clone(), |one| one.replicas.clone()),
            removing: found.map(|one| one.removing.clone()).unwrap_or_default(),
            waiting_for: adding.iter().copied().filter(|id| !isr.contains(id)).collect(),
            adding,
            isr,
        });
    }
    common.output.print(&progress, |progress| status_table(progress))?;
    // What moves elsewhere may be throttled by the same rates.
    if proposal.is_some() && moves.is_empty() && !preserve_throttles {
        throttle::clear(client, &cluster, names).await?;
    }
    Ok(exit_code(proposal.is_none() || progress.iter().all(|one| one.status == "complete")))
}

fn status_table(progress: &[Progress]) -> Table {
    let mut table =
        Table::new(&["TOPIC", "PARTITION", "STATUS", "REPLICAS", "ADDING", "REMOVING", "ISR", "WAITING FOR"]);
    for one in progress {
        table.row([
            one.topic.clone(),
            one.partition.to_string(),
            one.status.replace('_', " "),
            ids(&one.replicas),
            ids(&one.adding),
            ids(&one.removing),
            ids(&one.isr),
            ids(&one.waiting_for),
        ]);
    }
    if progress.is_empty() {
        table = Table::default();
        table.note("no move is under way");
    }
    table
}
