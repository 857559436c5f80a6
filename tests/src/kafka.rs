//! A plain Kafka client on one blocking connection per broker. It is written apart from the project's own wire code,
//! so that a mistake there cannot hide here.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, FetchRequest, ListOffsetsRequest, MetadataRequest, MetadataResponse,
    ProduceRequest, RequestHeader, ResponseHeader, TopicName,
    fetch_request::{FetchPartition, FetchTopic},
    list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
    metadata_request::MetadataRequestTopic,
    metadata_response::{MetadataResponsePartition, MetadataResponseTopic},
    produce_request::{PartitionProduceData, TopicProduceData},
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};

use crate::records::{ReadRecord, decode_batches};

const READ_LIMIT: Duration = Duration::from_secs(20);
const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Versions that this client speaks: the newest that name topics by name.
pub const METADATA_VERSION: i16 = 12;
pub const PRODUCE_VERSION: i16 = 9;
pub const FETCH_VERSION: i16 = 12;
pub const LIST_OFFSETS_VERSION: i16 = 7;

pub const LATEST: i64 = -1;
pub const EARLIEST: i64 = -2;

/// One connection to one broker.
pub struct Connection {
    stream: TcpStream,
    next_correlation_id: i32,
}

impl Connection {
    /// # Errors
    /// The broker cannot be reached.
    pub fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(READ_LIMIT))?;
        stream.set_write_timeout(Some(READ_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, next_correlation_id: 1 })
    }

    /// # Errors
    /// The system refuses the time-out.
    pub fn set_read_limit(&self, limit: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(limit))?)
    }

    /// Sends one request and reads its answer to the last byte.
    ///
    /// # Errors
    /// The connection fails, the answer has another correlation id or does not decode exactly.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> Result<R::Response> {
        let correlation_id = self.send(version, request)?;
        let frame = self.read_frame()?.context("the broker closed the connection instead of answering")?;
        decode_answer::<R>(version, correlation_id, frame)
    }

    /// Sends one request without waiting; returns its correlation id.
    ///
    /// # Errors
    /// The connection fails.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<i32> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = encode_request(version, correlation_id, request)?;
        self.send_frame(&frame)?;
        Ok(correlation_id)
    }

    /// Sends bytes behind the length that a frame begins with.
    ///
    /// # Errors
    /// The connection fails.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<()> {
        let mut bytes = Vec::with_capacity(frame.len() + 4);
        bytes.extend_from_slice(&u32::try_from(frame.len())?.to_be_bytes());
        bytes.extend_from_slice(frame);
        self.send_raw(&bytes)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection fails.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("sending")
    }

    /// The next frame without its length, or `None` if the broker has closed the connection.
    ///
    /// # Errors
    /// Nothing comes within the read limit.
    pub fn read_frame(&mut self) -> Result<Option<Bytes>> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if is_closed(error.kind()) => return Ok(None),
            Err(error) => return Err(error).context("waiting for an answer"),
        }
        let length = u32::from_be_bytes(length) as usize;
        ensure!(length <= FRAME_BYTES_MAX, "an answer of {length} bytes was announced");
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame).context("reading an answer")?;
        Ok(Some(frame.into()))
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// A request with its header, without the length.
///
/// # Errors
/// The request cannot be written in this version.
pub fn encode_request<R: Request>(version: i16, correlation_id: i32, request: &R) -> Result<BytesMut> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("zurau-tests")));
    let mut frame = BytesMut::new();
    header.encode(&mut frame, R::header_version(version))?;
    request.encode(&mut frame, version)?;
    Ok(frame)
}

/// # Errors
/// Another correlation id, or bytes that do not decode exactly.
pub fn decode_answer<R: Request>(version: i16, correlation_id: i32, mut frame: Bytes) -> Result<R::Response> {
    let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version))?;
    ensure!(
        header.correlation_id == correlation_id,
        "the answer to request {correlation_id} says that it answers {}",
        header.correlation_id
    );
    let answer = R::Response::decode(&mut frame, version)?;
    ensure!(frame.is_empty(), "{} bytes follow the answer to request key {}", frame.len(), R::KEY);
    Ok(answer)
}

/// ApiVersions as a client of version 3 and above must send it: nameless software is refused.
pub fn api_versions_request() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("zurau-tests"))
        .with_client_software_version(StrBytes::from_static_str("1"))
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// A client of a whole cluster: finds leaders, forgets connections that failed.
pub struct KafkaClient {
    bootstrap: Vec<String>,
    connections: HashMap<String, Connection>,
}

impl KafkaClient {
    pub fn new(bootstrap: &str) -> Self {
        Self { bootstrap: bootstrap.split(',').map(str::to_owned).collect(), connections: HashMap::new() }
    }

    /// The first bootstrap server, for what any broker answers.
    ///
    /// # Errors
    /// There is none.
    pub fn any_address(&self) -> Result<String> {
        self.bootstrap.first().cloned().context("there is no bootstrap server")
    }

    /// Calls one broker over a kept connection, which is dropped when anything fails.
    ///
    /// # Errors
    /// See [`Connection::call`].
    pub fn call<R: Request>(&mut self, address: &str, version: i16, request: &R) -> Result<R::Response> {
        let mut connection = match self.connections.remove(address) {
            Some(connection) => connection,
            None => Connection::open(address)?,
        };
        let answer = connection.call(version, request).with_context(|| format!("calling {address}"))?;
        self.connections.insert(address.to_owned(), connection);
        Ok(answer)
    }

    /// Metadata of the named topics, or of all, from the first broker that answers. Creates no topic.
    ///
    /// # Errors
    /// No broker answers.
    pub fn metadata(&mut self, topics: Option<&[&str]>) -> Result<MetadataResponse> {
        let mut last = None;
        for address in self.bootstrap.clone() {
            match self.metadata_from(&address, topics) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("there is no bootstrap server")?)
    }

    /// Metadata as one broker sees it.
    ///
    /// # Errors
    /// The broker does not answer.
    pub fn metadata_from(&mut self, address: &str, topics: Option<&[&str]>) -> Result<MetadataResponse> {
        let topics = topics.map(|names| {
            let topic = |name: &&str| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
            names.iter().map(topic).collect()
        });
        let request = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
        self.call(address, METADATA_VERSION, &request)
    }

    /// # Errors
    /// No broker answers, or the topic has an error.
    pub fn topic(&mut self, topic: &str) -> Result<MetadataResponseTopic> {
        let answer = self.metadata(Some(&[topic]))?;
        let found = answer.topics.into_iter().next().context("the metadata names no topic")?;
        ensure!(found.error_code == 0, "topic {topic} has error {}", found.error_code);
        Ok(found)
    }

    /// # Errors
    /// No broker answers, the topic or the partition has an error.
    pub fn partition(&mut self, topic: &str, partition: i32) -> Result<MetadataResponsePartition> {
        let found = self.topic(topic)?;
        let found = found.partitions.into_iter().find(|found| found.partition_index == partition);
        let found = found.with_context(|| format!("{topic} has no partition {partition}"))?;
        ensure!(found.error_code == 0, "{topic}-{partition} has error {}", found.error_code);
        Ok(found)
    }

    /// Address of the partition's leader.
    ///
    /// # Errors
    /// There is none, or it is not among the brokers.
    pub fn leader(&mut self, topic: &str, partition: i32) -> Result<(BrokerId, String)> {
        let answer = self.metadata(Some(&[topic]))?;
        let found = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let found = found.into_iter().find(|found| found.partition_index == partition);
        let found = found.with_context(|| format!("{topic} has no partition {partition}"))?;
        ensure!(found.error_code == 0, "{topic}-{partition} has error {}", found.error_code);
        let broker = answer.brokers.iter().find(|broker| broker.node_id == found.leader_id);
        let broker = broker.with_context(|| format!("leader {:?} is not a broker", found.leader_id))?;
        Ok((found.leader_id, format!("{}:{}", broker.host, broker.port)))
    }

    /// Sends one record batch to the leader; returns error code and first offset.
    ///
    /// # Errors
    /// The leader cannot be found or does not answer.
    pub fn produce(&mut self, topic: &str, partition: i32, batch: Bytes, acks: i16) -> Result<(i16, i64)> {
        let (_, address) = self.leader(topic, partition)?;
        let answer = self.call(&address, PRODUCE_VERSION, &produce_request(topic, partition, batch, acks))?;
        let topic = answer.responses.first().context("the answer names no topic")?;
        let partition = topic.partition_responses.first().context("the answer names no partition")?;
        Ok((partition.error_code, partition.base_offset))
    }

    /// # Errors
    /// The leader cannot be found, does not answer or refuses.
    pub fn offset(&mut self, topic: &str, partition: i32, timestamp: i64) -> Result<i64> {
        let (_, address) = self.leader(topic, partition)?;
        let wanted =
            ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(timestamp);
        let wanted = ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(vec![wanted]);
        let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![wanted]);
        let answer = self.call(&address, LIST_OFFSETS_VERSION, &request)?;
        let found = answer.topics.first().and_then(|topic| topic.partitions.first());
        let found = found.context("the answer names no partition")?;
        ensure!(found.error_code == 0, "ListOffsets of {topic}-{partition}: error {}", found.error_code);
        Ok(found.offset)
    }

    /// Every committed record of a partition, from its start to its high watermark.
    ///
    /// # Errors
    /// The leader cannot be found, does not answer or refuses; a batch does not decode.
    pub fn read_partition(&mut self, topic: &str, partition: i32) -> Result<Vec<ReadRecord>> {
        let end = self.offset(topic, partition, LATEST)?;
        let mut next = self.offset(topic, partition, EARLIEST)?;
        let mut records: Vec<ReadRecord> = Vec::new();
        while next < end {
            let (_, address) = self.leader(topic, partition)?;
            let answer = self.call(&address, FETCH_VERSION, &fetch_request(topic, partition, next))?;
            ensure!(answer.error_code == 0, "Fetch of {topic}-{partition}: error {}", answer.error_code);
            let found = answer.responses.first().and_then(|topic| topic.partitions.first());
            let found = found.context("the answer names no partition")?;
            ensure!(found.error_code == 0, "Fetch of {topic}-{partition}: error {}", found.error_code);
            let batches = decode_batches(found.records.clone().unwrap_or_default())?;
            let fresh = batches.into_iter().filter(|record| record.offset >= next);
            let before = records.len();
            records.extend(fresh);
            match records.last() {
                Some(last) if records.len() > before => next = last.offset + 1,
                _ => bail!("Fetch of {topic}-{partition} at {next} returned nothing below {end}"),
            }
        }
        Ok(records)
    }
}

/// A produce request of one batch, in the form that [`KafkaClient`] sends.
pub fn produce_request(topic: &str, partition: i32, batch: Bytes, acks: i16) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
    let data = TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(15_000).with_topic_data(vec![data])
}

/// A fetch of up to 4 MiB that waits 500 ms for the first byte.
pub fn fetch_request(topic: &str, partition: i32, offset: i64) -> FetchRequest {
    let wanted = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(4 << 20);
    let wanted = FetchTopic::default().with_topic(topic_name(topic)).with_partitions(vec![wanted]);
    FetchRequest::default()
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(4 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![wanted])
}

/// Bytes of a string as Kafka writes it in old headers: a 16-bit length, then the text.
pub fn put_string(buffer: &mut BytesMut, text: &str) {
    buffer.put_i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
    buffer.put_slice(text.as_bytes());
}
