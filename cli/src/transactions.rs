//! `zurau transactions`: what is open, who writes, and how a transaction that nobody will end is aborted.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;
use serde::Serialize;
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use crate::admin::{self, Common, exit_code, usage};
use crate::client::{Client, CoordinatorOf, Refused};
use crate::table::{Table, ids, known};

/// Arguments of `zurau transactions`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Transactional ids, with state and coordinator.
    List {
        /// Only these states, for instance Ongoing.
        #[arg(long, value_delimiter = ',')]
        state: Vec<String>,
        #[arg(long, value_delimiter = ',')]
        producer_id: Vec<i64>,
        /// Only transactions that have been open for so long.
        #[arg(long, value_name = "MILLISECONDS")]
        longer_than: Option<u32>,
    },
    /// State, producer and partitions of transactional ids.
    Describe {
        #[arg(value_name = "TRANSACTIONAL_ID", required = true)]
        transactional_ids: Vec<String>,
    },
    /// Who writes to a partition, and where open transactions begin.
    #[command(alias = "describe-producers")]
    Producers {
        #[arg(long)]
        topic: String,
        #[arg(long)]
        partition: i32,
    },
    /// End an open transaction in one partition with an abort marker. Only for one that nobody will end: its coordinator
    /// is not asked.
    Abort(AbortArguments),
}

#[derive(Args, Debug)]
struct AbortArguments {
    #[arg(long)]
    topic: String,
    #[arg(long)]
    partition: i32,
    /// Where the transaction begins, as `producers` shows it.
    #[arg(long, required_unless_present = "producer_id")]
    start_offset: Option<i64>,
    /// The producer instead of the offset.
    #[arg(long, conflicts_with = "start_offset", requires = "producer_epoch")]
    producer_id: Option<i64>,
    #[arg(long)]
    producer_epoch: Option<i16>,
    /// Not below that of the last marker in the partition.
    #[arg(long, default_value_t = 0)]
    coordinator_epoch: i32,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("transactions", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let mut client = Client::new(&common);
    match command {
        Command::List { state, producer_id, longer_than } => {
            let request = ListTransactionsRequest::default()
                .with_state_filters(state.into_iter().map(StrBytes::from_string).collect())
                .with_producer_id_filters(producer_id.into_iter().map(Into::into).collect())
                .with_duration_filter(longer_than.map_or(-1, i64::from));
            let listed = list(&mut client, &request).await?;
            common.output.print(&listed, |listed| list_table(listed))?;
        }
        Command::Describe { transactional_ids } => {
            let mut described = Vec::new();
            for id in &transactional_ids {
                described.push(describe(&mut client, id).await?);
            }
            common.output.print(&described, |described| describe_table(described))?;
        }
        Command::Producers { topic, partition } => {
            let id = TopicPartition::new(topic.as_str(), partition);
            let producers = producers(&mut client, &id).await?;
            common.output.print(&producers, |producers| producers_table(producers))?;
        }
        Command::Abort(arguments) => {
            let aborted = abort(&mut client, &arguments).await?;
            common.output.print(&aborted, |aborted| {
                let mut table = Table::default();
                table.note(format!(
                    "{}-{}: the transaction of producer {} (epoch {}) is aborted",
                    aborted.topic, aborted.partition, aborted.producer_id, aborted.producer_epoch
                ));
                table
            })?;
        }
    }
    Ok(exit_code(true))
}

#[derive(Serialize)]
struct Listed {
    transactional_id: String,
    producer_id: i64,
    state: String,
    coordinator: i32,
}

/// Asks every broker for the transactional ids that it coordinates.
async fn list(client: &mut Client, request: &ListTransactionsRequest) -> Result<Vec<Listed>> {
    let brokers = client.cluster(Some(&[])).await?.brokers;
    let mut listed = Vec::new();
    for broker in brokers.iter().map(|broker| broker.broker) {
        let answer = client
            .retry(async |client| {
                let answer = client.broker(broker).await?.call(1, request).await?;
                Refused::check(answer.error_code, None, || format!("the transactions of broker {broker}"))?;
                Ok(answer)
            })
            .await?;
        if let Some(unknown) = answer.unknown_state_filters.first() {
            return Err(usage(format!("there is no state {unknown}")));
        }
        listed.extend(answer.transaction_states.iter().map(|found| Listed {
            transactional_id: found.transactional_id.to_string(),
            producer_id: found.producer_id.0,
            state: found.transaction_state.to_string(),
            coordinator: broker,
        }));
    }
    listed.sort_by(|one, other| one.transactional_id.cmp(&other.transactional_id));
    Ok(listed)
}

fn list_table(listed: &[Listed]) -> Table {
    let mut table = Table::new(&["TRANSACTIONAL ID", "STATE", "PRODUCER", "COORDINATOR"]);
    for one in listed {
        let (producer, coordinator) = (one.producer_id.to_string(), one.coordinator.to_string());
        table.row([one.transactional_id.clone(), one.state.clone(), producer, coordinator]);
    }
    table
}

#[derive(Serialize)]
struct Described {
    transactional_id: String,
    state: String,
    producer_id: i64,
    producer_epoch: i16,
    timeout_ms: i32,
    /// Milliseconds since 1970; `null` when nothing is open.
    start_ms: Option<i64>,
    topics: Vec<TopicPartitions>,
}

#[derive(Serialize)]
struct TopicPartitions {
    topic: String,
    partitions: Vec<i32>,
}

async fn describe(client: &mut Client, id: &str) -> Result<Described> {
    let wire = StrBytes::from_string(id.to_owned());
    let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![wire.into()]);
    let found = client
        .retry(async |client| {
            let connection = client.coordinator(CoordinatorOf::Transaction, id).await?;
            let answer = connection.call(0, &request).await?;
            let found = answer.transaction_states.into_iter().next();
            let found = found.context("the answer names no transactional id")?;
            Refused::check(found.error_code, None, || format!("transactional id {id}"))?;
            Ok(found)
        })
        .await?;
    let topics = found.topics.iter().map(|topic| TopicPartitions {
        topic: topic.topic.to_string(),
        partitions: topic.partitions.clone(),
    });
    Ok(Described {
        transactional_id: id.to_owned(),
        state: found.transaction_state.to_string(),
        producer_id: found.producer_id.0,
        producer_epoch: found.producer_epoch,
        timeout_ms: found.transaction_timeout_ms,
        start_ms: Some(found.transaction_start_time_ms).filter(|start| 0 <= *start),
        topics: topics.collect(),
    })
}

fn describe_table(described: &[Described]) -> Table {
    let mut table =
        Table::new(&["TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "TIMEOUT MS", "SINCE", "PARTITIONS"]);
    for one in described {
        let topics = one.topics.iter().map(|topic| format!("{}:{}", topic.topic, ids(&topic.partitions)));
        table.row([
            one.transactional_id.clone(),
            one.state.clone(),
            one.producer_id.to_string(),
            one.producer_epoch.to_string(),
            one.timeout_ms.to_string(),
            known(one.start_ms),
            topics.collect::<Vec<_>>().join(" "),
        ]);
    }
    table
}

#[derive(Debug, Serialize)]
struct Producer {
    producer_id: i64,
    producer_epoch: i32,
    last_sequence: i32,
    /// Milliseconds since 1970.
    last_timestamp: i64,
    /// Of the last marker; `null` before the first one.
    coordinator_epoch: Option<i32>,
    /// Where its open transaction begins.
    transaction_start_offset: Option<i64>,
}

async fn producers(client: &mut Client, id: &TopicPartition) -> Result<Vec<Producer>> {
    let topic = TopicRequest::default()
        .with_name(to_wire_topic(&id.topic))
        .with_partition_indexes(vec![id.partition]);
    let request = DescribeProducersRequest::default().with_topics(vec![topic]);
    let names = [id.topic.to_string()];
    let found = client
        .retry(async |client| {
            let leader = client.cluster(Some(&names)).await?.leader(id)?;
            let answer = client.broker(leader).await?.call(0, &request).await?;
            let topic = answer.topics.into_iter().next().context("the answer names no topic")?;
            let found = topic.partitions.into_iter().next().context("the answer names no partition")?;
            Refused::check(found.error_code, found.error_message.as_deref(), || id.to_string())?;
            Ok(found)
        })
        .await?;
    let mut producers: Vec<Producer> = found
        .active_producers
        .iter()
        .map(|producer| Producer {
            producer_id: producer.producer_id.0,
            producer_epoch: producer.producer_epoch,
            last_sequence: producer.last_sequence,
            last_timestamp: producer.last_timestamp,
            coordinator_epoch: Some(producer.coordinator_epoch).filter(|epoch| 0 <= *epoch),
            transaction_start_offset: Some(producer.current_txn_start_offset).filter(|start| 0 <= *start),
        })
        .collect();
    producers.sort_by_key(|producer| producer.producer_id);
    Ok(producers)
}

fn producers_table(producers: &[Producer]) -> Table {
    let mut table = Table::new(&[
        "PRODUCER",
        "EPOCH",
        "LAST SEQUENCE",
        "LAST TIME",
        "COORDINATOR EPOCH",
        "TRANSACTION FROM",
    ]);
    for producer in producers {
        table.row([
            producer.producer_id.to_string(),
            producer.producer_epoch.to_string(),
            producer.last_sequence.to_string(),
            producer.last_timestamp.to_string(),
            known(producer.coordinator_epoch),
            known(producer.transaction_start_offset),
        ]);
    }
    table
}

#[derive(Serialize)]
struct Aborted {
    topic: String,
    partition: i32,
    producer_id: i64,
    producer_epoch: i16,
    coordinator_epoch: i32,
}

async fn abort(client: &mut Client, arguments: &AbortArguments) -> Result<Aborted> {
    let id = TopicPartition::new(arguments.topic.as_str(), arguments.partition);
    let (producer_id, producer_epoch, coordinator_epoch) = match arguments.start_offset {
        Some(start) => at_offset(&producers(client, &id).await?, &id, start)?,
        None => {
            let named = arguments.producer_id.zip(arguments.producer_epoch);
            let (producer, epoch) = named.ok_or_else(|| usage("name --producer-id and --producer-epoch"))?;
            (producer, epoch, arguments.coordinator_epoch)
        }
    };
    let topic = WritableTxnMarkerTopic::default()
        .with_name(to_wire_topic(&id.topic))
        .with_partition_indexes(vec![id.partition]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(producer_id.into())
        .with_producer_epoch(producer_epoch)
        .with_transaction_result(false)
        .with_coordinator_epoch(coordinator_epoch)
        .with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let names = [arguments.topic.clone()];
    client
        .retry(async |client| {
            let leader = client.cluster(Some(&names)).await?.leader(&id)?;
            let answer = client.broker(leader).await?.call(1, &request).await?;
            let topic = answer.markers.first().and_then(|marker| marker.topics.first());
            let found = topic.and_then(|topic| topic.partitions.first());
            let found = found.context("the answer names no partition")?;
            Ok(Refused::check(found.error_code, None, || format!("{id} at broker {leader}"))?)
        })
        .await?;
    Ok(Aborted {
        topic: arguments.topic.clone(),
        partition: id.partition,
        producer_id,
        producer_epoch,
        coordinator_epoch,
    })
}

/// Id, epoch and coordinator epoch of the producer whose transaction begins at an offset.
fn at_offset(producers: &[Producer], id: &TopicPartition, start: i64) -> Result<(i64, i16, i32)> {
    let found = producers.iter().find(|producer| producer.transaction_start_offset == Some(start));
    let Some(found) = found else {
        let open = producers.iter().filter_map(|producer| producer.transaction_start_offset);
        let open: Vec<String> = open.map(|offset| offset.to_string()).collect();
        let open =
            if open.is_empty() { "none is open".to_owned() } else { format!("open are {}", open.join(", ")) };
        bail!("{id}: no open transaction begins at offset {start}; {open}");
    };
    let epoch = i16::try_from(found.producer_epoch).context("the producer epoch is no 16-bit number")?;
    Ok((found.producer_id, epoch, found.coordinator_epoch.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_found_by_where_it_begins() {
        let producer = |producer_id, start, coordinator_epoch| Producer {
            producer_id,
            producer_epoch: 3,
            last_sequence: 0,
            last_timestamp: 0,
            coordinator_epoch,
            transaction_start_offset: start,
        };
        let producers = [producer(7, None, None), producer(8, Some(5), Some(2)), producer(9, Some(6), None)];
        let id = TopicPartition::new("t", 0);
        assert_eq!(at_offset(&producers, &id, 5).unwrap(), (8, 3, 2));
        assert_eq!(at_offset(&producers, &id, 6).unwrap(), (9, 3, 0));
        let error = at_offset(&producers, &id, 4).unwrap_err().to_string();
        assert!(error.contains("open are 5, 6"), "{error}");
    }
}
