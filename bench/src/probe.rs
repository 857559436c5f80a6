//! Asks partitions, again and again, to take a record until each has acknowledged one: when a partition is back is
//! what a client sees, not what anybody says about it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::records::Compression;
use zurau_tests::kafka::{Connection, KafkaClient, PRODUCE_VERSION, decode_answer, produce_request};
use zurau_tests::records::{encode_batch, now_ms};

use crate::histogram::Histogram;

/// Requests in flight on a connection.
const IN_FLIGHT: usize = 200;
/// A broker that does not answer within this is not there.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at the metadata.
const PAUSE: Duration = Duration::from_millis(2);

/// Some partitions that shall each acknowledge a record.
pub(crate) struct Probe {
    pending: Vec<(String, i32)>,
    /// When each one did.
    pub(crate) acknowledged: Vec<Instant>,
    /// A broker that is frozen: nobody waits for it.
    avoided: Option<i32>,
    connections: HashMap<String, Connection>,
    batch: Bytes,
}

impl Probe {
    pub(crate) fn new(pending: Vec<(String, i32)>, avoided: Option<i32>) -> Result<Self> {
        let batch = encode_batch(&[b"probe"], now_ms(), Compression::None)?;
        Ok(Self { pending, acknowledged: Vec::new(), avoided, connections: HashMap::new(), batch })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// Until all have acknowledged.
    ///
    /// # Errors
    /// Some have not within `limit`.
    pub(crate) fn finish(&mut self, client: &mut KafkaClient, limit: Duration) -> Result<()> {
        let start = Instant::now();
        while !self.is_done() {
            ensure!(
                start.elapsed() < limit,
                "{} partitions acknowledge nothing within {limit:?}, {:?} for one",
                self.pending.len(),
                self.pending.first()
            );
            if self.round(client).is_err() || !self.is_done() {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// One look at the metadata, and one request to each partition that has a leader.
    ///
    /// # Errors
    /// No broker answers for metadata.
    pub(crate) fn round(&mut self, client: &mut KafkaClient) -> Result<()> {
        let mut topics: Vec<&str> = self.pending.iter().map(|(topic, _)| topic.as_str()).collect();
        topics.dedup();
        let answer = client.metadata(Some(&topics))?;
        let addresses: HashMap<i32, String> = answer
            .brokers
            .iter()
            .map(|broker| (broker.node_id.0, format!("{}:{}", broker.host.as_str(), broker.port)))
            .collect();
        let mut by_leader: HashMap<&str, Vec<(String, i32)>> = HashMap::new();
        let mut waiting = Vec::new();
        let mut leaders = HashMap::new();
        for topic in &answer.topics {
            let name = topic.name.as_ref().map(|name| name.0.as_str()).unwrap_or_default();
            for partition in &topic.partitions {
                leaders.insert((name, partition.partition_index), partition.leader_id.0);
            }
        }
        for (topic, partition) in self.pending.drain(..) {
            let leader =
                leaders.get(&(topic.as_str(), partition)).filter(|leader| Some(**leader) != self.avoided);
            match leader.and_then(|leader| addresses.get(leader)) {
                Some(address) => by_leader.entry(address).or_default().push((topic, partition)),
                None => waiting.push((topic, partition)),
            }
        }
        for (address, wanted) in by_leader {
            for some in wanted.chunks(IN_FLIGHT) {
                let mut left = some.to_vec();
                if self.ask(address, &mut left).is_err() {
                    self.connections.remove(address);
                }
                waiting.extend(left);
            }
        }
        waiting.sort_unstable();
        self.pending = waiting;
        Ok(())
    }

    /// Takes those that acknowledge out of `wanted`.
    fn ask(&mut self, address: &str, wanted: &mut Vec<(String, i32)>) -> Result<()> {
        let connection = match self.connections.get_mut(address) {
            Some(connection) => connection,
            None => {
                let connection = Connection::open(address)?;
                connection.set_read_limit(READ_LIMIT)?;
                self.connections.entry(address.to_owned()).or_insert(connection)
            }
        };
        let mut sent = Vec::new();
        for (topic, partition) in wanted.iter() {
            let request = produce_request(topic, *partition, self.batch.clone(), -1);
            sent.push(connection.send(PRODUCE_VERSION, &request)?);
        }
        let mut refused = Vec::new();
        for (correlation_id, asked) in sent.into_iter().zip(wanted.clone()) {
            let frame = connection.read_frame()?.context("closed")?;
            let answer = decode_answer::<ProduceRequest>(PRODUCE_VERSION, correlation_id, frame)?;
            let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
            wanted.remove(0);
            if partition.context("the answer names no partition")?.error_code == 0 {
                self.acknowledged.push(Instant::now());
            } else {
                refused.push(asked);
            }
        }
        wanted.extend(refused);
        Ok(())
    }

    /// From a moment until each partition acknowledged.
    pub(crate) fn since(&self, moment: Instant) -> Histogram {
        self.acknowledged.iter().map(|at| at.saturating_duration_since(moment)).collect()
    }
}

/// All partitions of a topic.
pub(crate) fn all_of(topic: &str, partitions: i32) -> Vec<(String, i32)> {
    (0..partitions).map(|partition| (topic.to_owned(), partition)).collect()
}
