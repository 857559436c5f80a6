//! Transactions of version 2 (KIP-890) with a client written here, byte for byte as Kafka 4's: no partition is added by
//! it, and each end gives it another epoch. Nothing that is late belongs to the next transaction (TXN-02), also when the
//! coordinator is killed; the level that an operator sets in `/feature` is told to clients.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest,
    OffsetFetchRequest, ProduceRequest, RequestHeader, ResponseHeader, TransactionalId,
    TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, Record, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use zurau_tests::kafka::{
    Connection, EARLIEST, FETCH_VERSION, KafkaClient, LATEST, api_versions_request, fetch_request,
    produce_request, topic_name,
};
use zurau_tests::records::{next_batch, now_ms};
use zurau_tests::znodes::Znodes;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers};

on_both_zookeepers!(version_2_is_exact_while_coordinators_are_killed);
on_both_zookeepers!(the_level_of_transactions_is_the_operators);

const TOPIC: &str = "sums";
const GROUP: &str = "readers";
const LIMIT: Duration = Duration::from_secs(60);
const PRODUCER_FENCED: i16 = 90;
const INVALID_PRODUCER_EPOCH: i16 = 47;

/// A version, and the older one that is written in the same way.
type Version = (i16, i16);

/// A transactional producer, in version 2 unless it is told otherwise.
struct Producer {
    id: &'static str,
    cluster: KafkaClient,
    connections: HashMap<String, Connection>,
    producer: (i64, i16),
    sequences: BTreeMap<i32, i32>,
}

/// What is asked again, and whom to ask anew.
fn is_for_now(code: i16) -> bool {
    matches!(code, 3 | 5 | 6 | 7 | 13 | 14 | 15 | 16 | 19 | 20 | 51 | 56)
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn frame_of<R: Request>((version, coded): Version, request: &R) -> Result<Bytes> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(7)
        .with_client_id(Some(text("version-2")));
    let mut frame = BytesMut::new();
    header.encode(&mut frame, R::header_version(coded))?;
    request.encode(&mut frame, coded)?;
    Ok(frame.freeze())
}

fn body_of<R: Request>(coded: i16, connection: &mut Connection) -> Result<Bytes> {
    let mut frame = connection.read_frame()?.context("the broker closed the connection")?;
    ResponseHeader::decode(&mut frame, R::Response::header_version(coded))?;
    Ok(frame)
}

/// Error, producer id and epoch of an answer to EndTxn v5.
fn ended(mut body: Bytes) -> Result<(i16, (i64, i16))> {
    ensure!(body.len() == 17, "an answer of {} bytes", body.len());
    body.advance(4);
    Ok((body.get_i16(), (body.get_i64(), body.get_i16())))
}

fn batch((id, epoch): (i64, i16), sequence: i32, value: i64) -> Result<Bytes> {
    let record = Record {
        transactional: true,
        control: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: id,
        producer_epoch: epoch,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence,
        timestamp: now_ms(),
        key: None,
        value: Some(value.to_string().into()),
        headers: Default::default(),
    };
    let mut buffer = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut buffer, &[record], &options)?;
    Ok(buffer.freeze())
}

impl Producer {
    fn start(cluster: &Cluster, id: &'static str) -> Result<Self> {
        let mut producer = Self {
            id,
            cluster: cluster.client(),
            connections: HashMap::new(),
            producer: (-1, -1),
            sequences: BTreeMap::new(),
        };
        producer.initialize()?;
        Ok(producer)
    }

    fn transactional_id(&self) -> TransactionalId {
        TransactionalId(text(self.id))
    }

    fn coordinator(&mut self, key: &str, key_type: i8) -> Result<String> {
        let request = FindCoordinatorRequest::default().with_key(text(key)).with_key_type(key_type);
        let brokers: Vec<String> = self
            .cluster
            .metadata(None)?
            .brokers
            .iter()
            .map(|one| format!("{}:{}", one.host, one.port))
            .collect();
        for address in brokers {
            if let Ok(answer) = self.call::<FindCoordinatorRequest>(&address, (2, 2), &request)
                && answer.error_code == 0
            {
                return Ok(format!("{}:{}", answer.host, answer.port));
            }
        }
        bail!("no broker knows the coordinator of {key}")
    }

    fn call<R: Request>(&mut self, address: &str, version: Version, request: &R) -> Result<R::Response> {
        let mut body = self.body(address, version, request)?;
        R::Response::decode(&mut body, version.1)
    }

    fn body<R: Request>(&mut self, address: &str, version: Version, request: &R) -> Result<Bytes> {
        let mut connection = match self.connections.remove(address) {
            Some(connection) => connection,
            None => Connection::open(address)?,
        };
        connection.send_frame(&frame_of(version, request)?)?;
        let body = body_of::<R>(version.1, &mut connection)?;
        self.connections.insert(address.to_owned(), connection);
        Ok(body)
    }

    /// Asks until the answer is not to ask again.
    fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&mut Self) -> Result<(i16, T)>,
    ) -> Result<(i16, T)> {
        let mut last = String::new();
        let answered = eventually(what, LIMIT, || match ask(self) {
            Ok((code, _)) if is_for_now(code) => {
                last = format!("error {code}");
                Ok(None)
            }
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                last = format!("{error:#}");
                Ok(None)
            }
        });
        answered.with_context(|| last)
    }

    fn initialize(&mut self) -> Result<()> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(self.transactional_id()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let (code, producer) = self.until("a producer", |this| {
            let address = this.coordinator(this.id, 1)?;
            let answer = this.call(&address, (4, 4), &request)?;
            Ok((answer.error_code, (answer.producer_id.0, answer.producer_epoch)))
        })?;
        ensure!(code == 0, "InitProducerId: error {code}");
        self.producer = producer;
        self.sequences.clear();
        Ok(())
    }

    fn produce(&mut self, version: Version, number: i32, value: i64) -> Result<i16> {
        let sequence = self.sequences.get(&number).copied().unwrap_or(0);
        let records = batch(self.producer, sequence, value)?;
        let request =
            produce_request(TOPIC, number, records, -1).with_transactional_id(Some(self.transactional_id()));
        let (code, ()) = self.until("a record is stored", |this| {
            let (_, address) = this.cluster.leader(TOPIC, number)?;
            let answer = this.call::<ProduceRequest>(&address, version, &request)?;
            let code = answer.responses.first().and_then(|topic| topic.partition_responses.first());
            Ok((code.context("an answer of a partition")?.error_code, ()))
        })?;
        if code == 0 {
            self.sequences.insert(number, sequence + 1);
        }
        Ok(code)
    }

    fn commit_offset(&mut self, offset: i64) -> Result<i16> {
        let partition = TxnOffsetCommitRequestPartition::default().with_committed_offset(offset);
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(TOPIC))
            .with_partitions(vec![partition]);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(self.transactional_id())
            .with_group_id(text(GROUP).into())
            .with_producer_id(self.producer.0.into())
            .with_producer_epoch(self.producer.1)
            .with_generation_id(-1)
            .with_topics(vec![topic]);
        let (code, ()) = self.until("offsets are committed", |this| {
            let address = this.coordinator(GROUP, 0)?;
            let answer = this.call::<TxnOffsetCommitRequest>(&address, (5, 4), &request)?;
            Ok((answer.topics[0].partitions[0].error_code, ()))
        })?;
        Ok(code)
    }

    fn end_request(&self, commits: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(self.transactional_id())
            .with_producer_id(self.producer.0.into())
            .with_producer_epoch(self.producer.1)
            .with_committed(commits)
    }

    fn end(&mut self, commits: bool) -> Result<()> {
        let request = self.end_request(commits);
        let (code, producer) = self.until("the end of a transaction", |this| {
            let address = this.coordinator(this.id, 1)?;
            ended(this.body(&address, (5, 4), &request)?)
        })?;
        ensure!(code == 0, "EndTxn: error {code}");
        let (id, epoch) = self.producer;
        ensure!(producer == (id, epoch + 1), "{producer:?} after {:?}", self.producer);
        self.producer = producer;
        self.sequences.clear();
        Ok(())
    }

    /// A transaction as clients of version 1 do it.
    fn transact_as_of_old(&mut self, value: i64) -> Result<()> {
        let topic =
            AddPartitionsToTxnTopic::default().with_name(topic_name(TOPIC)).with_partitions(vec![0, 1]);
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(self.transactional_id())
            .with_v3_and_below_producer_id(self.producer.0.into())
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(vec![topic]);
        let (code, ()) = self.until("partitions are added", |this| {
            let address = this.coordinator(this.id, 1)?;
            let answer = this.call::<AddPartitionsToTxnRequest>(&address, (3, 3), &request)?;
            let topic = &answer.results_by_topic_v3_and_below[0];
            Ok((topic.results_by_partition[0].partition_error_code, ()))
        })?;
        ensure!(code == 0, "AddPartitionsToTxn: error {code}");
        for number in [0, 1] {
            let code = self.produce((11, 11), number, value)?;
            ensure!(code == 0, "Produce v11: error {code}");
        }
        let request = self.end_request(true);
        let (code, ()) = self.until("the end of a transaction", |this| {
            let address = this.coordinator(this.id, 1)?;
            Ok((this.call::<EndTxnRequest>(&address, (4, 4), &request)?.error_code, ()))
        })?;
        ensure!(code == 0, "EndTxn v4: error {code}");
        Ok(())
    }

    fn write_everywhere(&mut self, value: i64) -> Result<()> {
        for number in [0, 1] {
            let code = self.produce((12, 11), number, value)?;
            ensure!(code == 0, "Produce v12: error {code}");
        }
        Ok(())
    }

    fn transact(&mut self, value: i64, commits: bool) -> Result<()> {
        self.write_everywhere(value)?;
        let code = self.commit_offset(value)?;
        ensure!(code == 0, "TxnOffsetCommit v5: error {code}");
        self.end(commits)
    }

    /// The group's offset, when no transaction is open.
    fn committed_offset(&mut self) -> Result<i64> {
        let topic =
            OffsetFetchRequestTopic::default().with_name(topic_name(TOPIC)).with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(text(GROUP).into())
            .with_topics(Some(vec![topic]))
            .with_require_stable(true);
        let (code, offset) = self.until("a stable offset", |this| {
            let address = this.coordinator(GROUP, 0)?;
            let answer = this.call::<OffsetFetchRequest>(&address, (7, 7), &request)?;
            let partition = &answer.topics[0].partitions[0];
            // UNSTABLE_OFFSET_COMMIT
            let code = if partition.error_code == 88 { 51 } else { partition.error_code };
            Ok((code, partition.committed_offset))
        })?;
        ensure!(code == 0, "OffsetFetch: error {code}");
        Ok(offset)
    }
}

/// The values that a reader of committed records sees, once no transaction is open.
fn committed(client: &mut KafkaClient, number: i32) -> Result<Vec<i64>> {
    let end = client.offset(TOPIC, number, LATEST)?;
    let mut next = client.offset(TOPIC, number, EARLIEST)?;
    let (mut open, mut values) = (BTreeMap::<i64, Vec<i64>>::new(), Vec::new());
    while next < end {
        let (_, address) = client.leader(TOPIC, number)?;
        let answer = client.call(&address, FETCH_VERSION, &fetch_request(TOPIC, number, next))?;
        let found = answer.responses.first().and_then(|topic| topic.partitions.first());
        let mut bytes = found.and_then(|found| found.records.clone()).context("records")?;
        while let Some(mut batch) = next_batch(&mut bytes)? {
            for record in RecordBatchDecoder::decode(&mut batch)?.records {
                next = record.offset + 1;
                if record.control {
                    let is_commit = record.key.as_deref().and_then(|key| key.get(3)) == Some(&1);
                    let ended = open.remove(&record.producer_id).unwrap_or_default();
                    values.extend(ended.into_iter().filter(|_| is_commit));
                } else {
                    let value = std::str::from_utf8(record.value.as_deref().context("a value")?)?.parse()?;
                    open.entry(record.producer_id).or_default().push(value);
                }
            }
        }
    }
    ensure!(open.is_empty(), "{TOPIC}-{number}: open transactions {open:?} (T5)");
    Ok(values)
}

fn version_2_is_exact_while_coordinators_are_killed(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let mut cluster = Cluster::builder()
        .zookeeper(kind)
        .set_for_brokers("min.insync.replicas", 2)
        .set_for_brokers("offsets.topic.num.partitions", 1)
        .set_for_brokers("transaction.state.log.num.partitions", 1)
        .start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2,3]", "[2,3,1]"])?;
    let mut producer = Producer::start(&cluster, "exact")?;
    let (mut expected, mut next) = (Vec::new(), 1);
    let mut transact = |producer: &mut Producer, expected: &mut Vec<i64>, count: i64| -> Result<i64> {
        for value in next..next + count {
            let commits = value % 4 != 0;
            producer.transact(value, commits)?;
            expected.extend(Some(value).filter(|_| commits));
        }
        next += count;
        Ok(next)
    };
    transact(&mut producer, &mut expected, 12)?;

    // The coordinator is killed within a transaction, and another one goes on with it.
    producer.write_everywhere(1_000)?;
    expected.push(1_000);
    let coordinator = cluster.client().leader("__transaction_state", 0)?.0.0;
    cluster.broker(coordinator)?.kill()?;
    producer.end(true)?;
    transact(&mut producer, &mut expected, 8)?;
    cluster.broker(coordinator)?.start()?;
    cluster.wait_until_complete(LIMIT)?;
    cluster.wait_for_full_isr("__transaction_state", 1, LIMIT)?;
    transact(&mut producer, &mut expected, 4)?;

    // An EndTxn is held up in the network, the client asks again, and it arrives within the next transaction.
    producer.write_everywhere(2_000)?;
    expected.push(2_000);
    let frame = frame_of((5, 4), &producer.end_request(true))?;
    let address = producer.coordinator("exact", 1)?;
    let mut held = Connection::open(&address)?;
    held.send_raw(&u32::try_from(frame.len())?.to_be_bytes())?;
    held.send_raw(&frame[..frame.len() / 2])?;
    let former = producer.producer;
    producer.end(true)?;
    producer.write_everywhere(2_001)?;
    held.send_raw(&frame[frame.len() / 2..])?;
    let (code, told) = ended(body_of::<EndTxnRequest>(4, &mut held)?)?;
    ensure!((code, told) == (PRODUCER_FENCED, (-1, -1)), "TXN-02: error {code}, {told:?}");
    // So is a record of it.
    let current = std::mem::replace(&mut producer.producer, former);
    let sequences = std::mem::take(&mut producer.sequences);
    ensure!(producer.produce((12, 11), 0, 2_002)? == INVALID_PRODUCER_EPOCH, "TXN-01");
    (producer.producer, producer.sequences) = (current, sequences);
    producer.end(false)?;

    // The same transactional id in both versions by turns.
    for value in [3_000, 3_002] {
        producer.transact_as_of_old(value)?;
        producer.transact(value + 1, true)?;
        expected.extend([value, value + 1]);
    }
    let last = transact(&mut producer, &mut expected, 1)?;
    ensure!(producer.committed_offset()? == last - 1, "the group is at the last commit");
    for number in [0, 1] {
        let values = committed(&mut cluster.client(), number)?;
        ensure!(values == expected, "T4: {TOPIC}-{number} has {values:?}, not {expected:?}");
    }
    cluster.check_running()
}

/// Epoch and level of `transaction.version`, as a broker tells clients.
fn level(client: &mut KafkaClient, address: &str) -> Result<(i64, i16)> {
    let answer = client.call(address, 4, &api_versions_request())?;
    let supported = answer.supported_features.iter().map(|one| (one.min_version, one.max_version));
    ensure!(supported.eq([(0, 2)]), "{:?}", answer.supported_features);
    let level = answer.finalized_features.first().map_or(0, |one| one.max_version_level);
    Ok((answer.finalized_features_epoch, level))
}

fn the_level_of_transactions_is_the_operators(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder().brokers(1).zookeeper(kind).start(directory)?;
    let mut client = cluster.client();
    let address = client.any_address()?;
    ensure!(level(&mut client, &address)? == (0, 2), "by default");
    let znodes = Znodes::connect(&cluster.zookeeper_connect())?;
    let feature = |level: &str| {
        format!(
            r#"{{"version":2,"status":1,"features":{{"transaction.version":{{"max_version_level":{level}}}}}}}"#
        )
    };
    let mut becomes = |expected: (i64, i16)| {
        eventually("the level is told", LIMIT, || {
            Ok((level(&mut client, &address)? == expected).then_some(()))
        })
    };
    znodes.create("/feature", &feature("1"))?;
    becomes((1, 1))?;
    znodes.put("/feature", &feature("5"))?;
    eventually("what is wrong is told", LIMIT, || {
        let told = znodes.text("/feature/error")?;
        Ok(told.filter(|told| told.contains("level 5")))
    })?;
    becomes((1, 1)).context("what was in force stays so")?;
    znodes.put("/feature", &feature("0"))?;
    becomes((3, 0))?;
    eventually("nothing is wrong any more", LIMIT, || {
        Ok(znodes.text("/feature/error")?.is_none().then_some(()))
    })?;
    // Also for a broker that starts now.
    cluster.broker(1)?.kill()?;
    cluster.broker(1)?.start()?;
    cluster.wait_until_complete(LIMIT)?;
    let mut client = cluster.client();
    eventually("the level is told after a start", LIMIT, || {
        Ok((level(&mut client, &address)? == (3, 0)).then_some(()))
    })?;
    cluster.check_running()
}
