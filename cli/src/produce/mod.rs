//! `zurau produce`: each line of standard input becomes a record.

mod partitioner;

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use serde_json::json;
use tokio::sync::mpsc;
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use self::partitioner::Partitioner;
use crate::admin::{self, Common, Output, exit_code, parse_pair, usage};
use crate::client::{Client, Refused};

/// Lines of one round; what waits at that moment is sent together.
const ROUND_LINES_MAX: usize = 1000;
/// Bytes of keys and values of one batch, well below the default of `max.message.bytes`; one larger line goes alone.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// Arguments of `zurau produce`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[arg(value_name = "TOPIC", required_unless_present = "flag")]
    word: Option<String>,
    #[arg(long = "topic", value_name = "TOPIC", conflicts_with = "word")]
    flag: Option<String>,
    /// Everything goes to this partition; without it keys decide.
    #[arg(long)]
    partition: Option<i32>,
    /// What stands between key and value in a line; without it lines have no key.
    #[arg(long, short = 'K', value_name = "TEXT")]
    key_separator: Option<String>,
    /// A header of every record; may be repeated.
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = parse_pair)]
    header: Vec<(String, String)>,
    /// A value that is exactly this text becomes null: in a compacted topic that deletes the key.
    #[arg(long, value_name = "TEXT")]
    null_marker: Option<String>,
    /// Who must have a record before it counts as written: all in-sync replicas, the leader, or nobody.
    #[arg(long, value_enum, default_value_t = Acks::All)]
    acks: Acks,
    #[arg(long, short = 'z', value_enum, default_value_t = Codec::None)]
    compression: Codec,
    /// A batch that is sent again after a lost answer may be written twice.
    #[arg(long)]
    no_idempotence: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Acks {
    #[value(alias = "-1")]
    All = -1,
    #[value(name = "0")]
    Nobody = 0,
    #[value(name = "1")]
    Leader = 1,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    fn compression(self) -> Compression {
        match self {
            Self::None => Compression::None,
            Self::Gzip => Compression::Gzip,
            Self::Snappy => Compression::Snappy,
            Self::Lz4 => Compression::Lz4,
            Self::Zstd => Compression::Zstd,
        }
    }
}

/// A line, cut into key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    key: Option<Bytes>,
    value: Option<Bytes>,
}

impl Line {
    /// # Errors
    /// A separator is wanted and not there.
    fn parse(
        line: &[u8],
        separator: Option<&[u8]>,
        null_marker: Option<&[u8]>,
    ) -> Result<Self, &'static str> {
        let value = |value: &[u8]| (null_marker != Some(value)).then(|| Bytes::copy_from_slice(value));
        let Some(separator) = separator else { return Ok(Self { key: None, value: value(line) }) };
        let at = line.windows(separator.len()).position(|window| window == separator);
        let at = at.ok_or("it has no key separator")?;
        let (key, rest) = line.split_at(at);
        Ok(Self { key: Some(Bytes::copy_from_slice(key)), value: value(&rest[separator.len()..]) })
    }

    fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len)
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("produce", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Some(topic) = arguments.word.clone().or_else(|| arguments.flag.clone()) else {
        return Err(usage("name the topic"));
    };
    if arguments.key_separator.as_deref() == Some("") {
        return Err(usage("--key-separator must not be empty"));
    }
    let mut client = Client::new(&arguments.common);
    let cluster = client.cluster(Some(std::slice::from_ref(&topic))).await?;
    let partitions = i32::try_from(cluster.topic(&topic)?.partitions.len()).unwrap_or(i32::MAX);
    if let Some(partition) = arguments.partition {
        cluster.partition(&topic, partition)?;
    }
    let mut producer = Producer::new(&mut client, &arguments, topic).await?;
    let mut partitioner = Partitioner::new(partitions);
    let mut lines = read_lines(&arguments);
    let mut round = Vec::new();
    while lines.recv_many(&mut round, ROUND_LINES_MAX).await != 0 {
        for (partition, batch) in batches(round.drain(..).collect::<Result<Vec<Line>>>()?, |line| {
            arguments.partition.unwrap_or_else(|| partitioner.partition(line.key.as_deref()))
        }) {
            producer.send(&mut client, partition, &batch).await?;
        }
        partitioner.turn();
    }
    if arguments.acks == Acks::Nobody {
        client.drain().await?;
    }
    if arguments.common.output == Output::Table {
        eprintln!("{} records written to {}", producer.written, producer.topic);
    }
    Ok(exit_code(true))
}

/// Lines of standard input, read by a thread of its own: nothing else can be interrupted there. It ends with the input
/// or with the process.
fn read_lines(arguments: &Arguments) -> mpsc::Receiver<Result<Line>> {
    let (sender, receiver) = mpsc::channel(ROUND_LINES_MAX);
    let separator = arguments.key_separator.clone();
    let null_marker = arguments.null_marker.clone();
    std::thread::spawn(move || {
        for (number, line) in (1_u64..).zip(std::io::stdin().lock().split(b'\n')) {
            let line = line.context("reading standard input").and_then(|line| {
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                let parsed = Line::parse(
                    line,
                    separator.as_deref().map(str::as_bytes),
                    null_marker.as_deref().map(str::as_bytes),
                );
                parsed.map_err(|why| usage(format!("line {number}: {why}")))
            });
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// Lines by partition, in their order, in pieces that make a batch each.
fn batches(lines: Vec<Line>, mut partition: impl FnMut(&Line) -> i32) -> Vec<(i32, Vec<Line>)> {
    let mut batches: Vec<(i32, Vec<Line>)> = Vec::new();
    let mut open: BTreeMap<i32, (Vec<Line>, usize)> = BTreeMap::new();
    for line in lines {
        let number = partition(&line);
        let (batch, bytes) = open.entry(number).or_default();
        if !batch.is_empty() && BATCH_BYTES_MAX < *bytes + line.bytes() {
            batches.push((number, std::mem::take(batch)));
            *bytes = 0;
        }
        *bytes += line.bytes();
        batch.push(line);
    }
    batches.extend(open.into_iter().map(|(number, (batch, _))| (number, batch)));
    batches
}

struct Producer {
    topic: String,
    acks: Acks,
    timeout_ms: i32,
    compression: Compression,
    headers: Vec<(String, String)>,
    output: Output,
    /// Id and epoch, if writing twice is to be noticed.
    identity: Option<(i64, i16)>,
    next_sequence: BTreeMap<i32, i32>,
    written: usize,
}

impl Producer {
    async fn new(client: &mut Client, arguments: &Arguments, topic: String) -> Result<Self> {
        // Without all acknowledgements nothing is retried for certain, so nothing needs to be recognised.
        let idempotent = !arguments.no_idempotence && arguments.acks == Acks::All;
        let identity = if idempotent { Some(identity(client).await?) } else { None };
        Ok(Self {
            topic,
            acks: arguments.acks,
            timeout_ms: arguments.common.timeout_ms(),
            compression: arguments.compression.compression(),
            headers: arguments.header.clone(),
            output: arguments.common.output,
            identity,
            next_sequence: BTreeMap::new(),
            written: 0,
        })
    }

    /// Sends one batch, again if need be, and tells where it was written.
    async fn send(&mut self, client: &mut Client, partition: i32, lines: &[Line]) -> Result<()> {
        let batch = self.encode(partition, lines)?;
        let id = TopicPartition::new(self.topic.as_str(), partition);
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
        let data =
            TopicProduceData::default().with_name(to_wire_topic(&self.topic)).with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_acks(self.acks as i16)
            .with_timeout_ms(self.timeout_ms)
            .with_topic_data(vec![data]);
        let names = [self.topic.clone()];
        let answered = self.acks != Acks::Nobody;
        let first_offset = client
            .retry(async |client| {
                let leader = client.cluster(Some(&names)).await?.leader(&id)?;
                let connection = client.broker(leader).await?;
                if !answered {
                    connection.tell(9, &request)?;
                    return Ok(None);
                }
                let answer = connection.call(9, &request).await?;
                let found = answer.responses.first().and_then(|topic| topic.partition_responses.first());
                let found = found.context("the answer names no partition")?;
                Refused::check(found.error_code, found.error_message.as_deref(), || {
                    format!("{id} at broker {leader}")
                })?;
                Ok(Some(found.base_offset).filter(|offset| 0 <= *offset))
            })
            .await
            .with_context(|| format!("{} records written before", self.written))?;
        self.written += lines.len();
        let next = self.next_sequence.entry(partition).or_default();
        *next = i32::try_from((i64::from(*next) + lines.len() as i64) & i64::from(i32::MAX))?;
        if self.output == Output::Json {
            let told = json!({
                "topic": self.topic, "partition": partition, "first_offset": first_offset, "records": lines.len(),
            });
            writeln!(std::io::stdout(), "{told}")?;
        }
        Ok(())
    }

    fn encode(&self, partition: i32, lines: &[Line]) -> Result<Bytes> {
        let (producer_id, producer_epoch) = self.identity.unwrap_or((NO_PRODUCER_ID, NO_PRODUCER_EPOCH));
        let first = match self.identity {
            Some(_) => self.next_sequence.get(&partition).copied().unwrap_or(0),
            None => NO_SEQUENCE,
        };
        let timestamp = Timestamp::now().as_millisecond();
        let headers = self.headers.iter().map(|(name, value)| {
            (StrBytes::from_string(name.clone()), Some(Bytes::copy_from_slice(value.as_bytes())))
        });
        let records = lines.iter().zip(0..).map(|(line, number): (&Line, i32)| Record {
            transactional: false,
            control: false,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            producer_id,
            producer_epoch,
            timestamp_type: TimestampType::Creation,
            offset: i64::from(number),
            // The codec starts a new batch where sequences do not follow each other, also when there are none.
            sequence: first.wrapping_add(number),
            timestamp,
            key: line.key.clone(),
            value: line.value.clone(),
            headers: headers.clone().collect(),
        });
        let records: Vec<Record> = records.collect();
        let options = RecordEncodeOptions { version: 2, compression: self.compression };
        let mut buffer = BytesMut::new();
        RecordBatchEncoder::encode(&mut buffer, &records, &options).context("encoding a batch")?;
        Ok(buffer.freeze())
    }
}

async fn identity(client: &mut Client) -> Result<(i64, i16)> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    client
        .retry(async |client| {
            let answer = client.any().await?.call(4, &request).await?;
            Refused::check(answer.error_code, None, || "a producer id".to_owned())?;
            if answer.producer_id.0 < 0 {
                bail!("the broker gave out producer id {}", answer.producer_id.0);
            }
            Ok((answer.producer_id.0, answer.producer_epoch))
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_key_where_a_separator_is_wanted() {
        let line = |key: Option<&'static str>, value: Option<&'static str>| Line {
            key: key.map(Into::into),
            value: value.map(Into::into),
        };
        let parse = |text: &str, separator: Option<&str>| {
            Line::parse(text.as_bytes(), separator.map(str::as_bytes), Some(b"NULL"))
        };
        assert_eq!(parse("a:b", None), Ok(line(None, Some("a:b"))));
        assert_eq!(parse("a:b:c", Some(":")), Ok(line(Some("a"), Some("b:c"))));
        assert_eq!(parse("a=>", Some("=>")), Ok(line(Some("a"), Some(""))));
        assert_eq!(parse("a:NULL", Some(":")), Ok(line(Some("a"), None)));
        assert!(parse("ab", Some(":")).is_err());
    }

    #[test]
    fn batches_keep_the_order_and_stay_small() {
        let line = |text: &str| Line { key: None, value: Some(Bytes::copy_from_slice(text.as_bytes())) };
        let big = "x".repeat(BATCH_BYTES_MAX);
        let made =
            batches(vec![line("a"), line("bb"), line(&big), line("c")], |line| i32::from(line.bytes() == 2));
        let sizes: Vec<(i32, usize)> = made.iter().map(|(number, batch)| (*number, batch.len())).collect();
        assert_eq!(sizes, [(0, 1), (0, 1), (0, 1), (1, 1)]);
        assert!(batches(vec![], |_| 0).is_empty());
    }
}
