//! The partition side of transactions over sockets: verification, markers, offsets. The test plays the transaction
//! coordinator.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::update_metadata_request::{
    UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, DescribeProducersRequest, FetchRequest,
    ListOffsetsRequest, OffsetFetchRequest, ProduceRequest, TransactionalId, TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use zurau_common::id::{TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_COORDINATOR_EPOCH, TYPE_FULL, TaggedFields, put_i32, to_wire_topic};
use zurau_common::wire::frame::{RequestFrame, decode_request_body, encode_response};
use zurau_common::wire::peer::Peer;
use zurau_common::wire::server::{
    Answer, Connection, ListenerAddress, ListenerName, RequestHandler, Server, ServerLimits,
};
use zurau_common::zk::config::encode_config;
use zurau_common::zk::znode::{DEFAULT_ENTITY, Znode};

use super::wire::{connect, produce, produce_code};
use super::world::{World, eventually};
use crate::log::test_batches::{BatchSpec, batch};
use crate::metadata::tests::{id, topic, update};

pub(super) const OFFSETS: &str = "__consumer_offsets";
const VERIFICATION: &str = "transaction.partition.verification.enable";

/// Answers AddPartitionsToTxn with one code after the other, then with 0; each answer takes a permit.
pub(super) struct Coordinator {
    pub(super) codes: Mutex<VecDeque<i16>>,
    /// In which it says that it answers.
    pub(super) epoch: AtomicI32,
    pub(super) asked: Semaphore,
    pub(super) permits: Semaphore,
    /// How many of the questions were to add.
    pub(super) added: AtomicUsize,
}

impl Coordinator {
    pub(super) async fn start(codes: &[Rejection], permits: usize) -> (Arc<Self>, Server) {
        let codes = codes.iter().map(|rejection| rejection.code()).collect();
        let coordinator = Arc::new(Self {
            codes: Mutex::new(codes),
            epoch: AtomicI32::new(0),
            asked: Semaphore::new(0),
            permits: Semaphore::new(permits),
            added: AtomicUsize::new(0),
        });
        let name = ListenerName("PLAINTEXT".into());
        let listener = ListenerAddress { name, host: "127.0.0.1".to_owned(), port: 0 };
        let handler: Arc<dyn RequestHandler> = Arc::clone(&coordinator) as _;
        let server = Server::bind(&[listener], ServerLimits::default(), handler).await.unwrap();
        (coordinator, server)
    }
}

impl RequestHandler for Coordinator {
    fn start<'a>(&'a self, _: &'a Connection, frame: RequestFrame) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let request: AddPartitionsToTxnRequest = decode_request_body(&frame).unwrap();
            self.asked.add_permits(1);
            self.permits.acquire().await.unwrap().forget();
            let code = self.codes.lock().pop_front().unwrap_or(0);
            let results = request.transactions.iter().map(|transaction| {
                if !transaction.verify_only {
                    self.added.fetch_add(1, Ordering::AcqRel);
                }
                let topics = transaction.topics.iter().map(|topic| {
                    let partitions = topic.partitions.iter().map(|number| {
                        AddPartitionsToTxnPartitionResult::default()
                            .with_partition_index(*number)
                            .with_partition_error_code(code)
                    });
                    AddPartitionsToTxnTopicResult::default()
                        .with_name(topic.name.clone())
                        .with_results_by_partition(partitions.collect())
                });
                let mut result = AddPartitionsToTxnResult::default()
                    .with_transactional_id(transaction.transactional_id.clone())
                    .with_topic_results(topics.collect());
                let epoch = self.epoch.load(Ordering::Acquire);
                put_i32(&mut result.unknown_tagged_fields, TAG_COORDINATOR_EPOCH, epoch);
                result
            });
            let response =
                AddPartitionsToTxnResponse::default().with_results_by_transaction(results.collect());
            let frame = encode_response(frame.api_key, frame.api_version, frame.correlation_id, &response);
            Answer::Now(frame.unwrap().into())
        })
    }
}

/// All brokers know the topics, each with one partition led by 1, and that broker 9 coordinates transactions.
pub(super) fn publish(world: &World, coordinator_port: u16) {
    let broker = |number: i32, port: u16| {
        let endpoint = UpdateMetadataEndpoint::default()
            .with_host("127.0.0.1".into())
            .with_port(i32::from(port))
            .with_listener("PLAINTEXT".into());
        UpdateMetadataBroker::default().with_id(number.into()).with_endpoints(vec![endpoint])
    };
    let mut live: Vec<_> = (1..=3).map(|number| broker(number, world.port(number))).collect();
    live.push(broker(9, coordinator_port));
    let other = |name| if world.hosted.topic.as_ref() == name { world.topic_id } else { id(7) };
    let topics = vec![
        topic("t", other("t"), &[1]),
        topic(OFFSETS, other(OFFSETS), &[1]),
        topic("__transaction_state", id(8), &[9]),
    ];
    let request: UpdateMetadataRequest = update(1, topics).with_live_brokers(live).with_type(TYPE_FULL);
    for number in 1..=3 {
        world.broker(number).parts.context.metadata.apply(&request).unwrap();
    }
}

pub(super) fn set_verification(world: &World, is_on: bool) {
    let entries = BTreeMap::from([(VERIFICATION.to_owned(), is_on.to_string())]);
    let znode = Znode::BrokerConfig(DEFAULT_ENTITY.to_owned());
    for number in 1..=3 {
        let configs = &world.broker(number).parts.context.topic_configs;
        configs.apply(&znode, Some(&encode_config(&entries)));
    }
}

pub(super) async fn world_of(hosted: &str, coordinator: &Server) -> World {
    let mut world = World::start().await;
    world.hosted = TopicPartition::new(hosted, 0);
    publish(&world, coordinator.local_addresses()[0].1.port());
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world
}

fn transactional(producer: (i64, i16, i32)) -> ProduceRequest {
    let records: Bytes =
        batch(&BatchSpec { producer: Some(producer), transactional: true, ..BatchSpec::default() });
    produce("t", -1, records).with_transactional_id(Some(TransactionalId(StrBytes::from_static_str("x"))))
}

pub(super) async fn produced(peer: &Peer, version: i16, producer: (i64, i16, i32)) -> i16 {
    produce_code(&peer.call(version, &transactional(producer)).await.unwrap())
}

async fn end(peer: &Peer, topic: &str, commits: bool, producer: (i64, i16), coordinator_epoch: i32) -> i16 {
    end_with(peer, topic, commits, producer, (coordinator_epoch, TaggedFields::new())).await
}

pub(super) async fn end_with(
    peer: &Peer,
    topic: &str,
    commits: bool,
    producer: (i64, i16),
    (coordinator_epoch, tags): (i32, TaggedFields),
) -> i16 {
    let topic =
        WritableTxnMarkerTopic::default().with_name(to_wire_topic(topic)).with_partition_indexes(vec![0]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(producer.0.into())
        .with_producer_epoch(producer.1)
        .with_transaction_result(commits)
        .with_coordinator_epoch(coordinator_epoch)
        .with_unknown_tagged_fields(tags)
        .with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let response = peer.call(1, &request).await.unwrap();
    response.markers[0].topics[0].partitions[0].error_code
}

/// The latest offset of t-0 for readers of committed records.
pub(super) async fn stable_end(peer: &Peer) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(-1).with_current_leader_epoch(-1);
    let topic = ListOffsetsTopic::default().with_name(to_wire_topic("t")).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(1)
        .with_topics(vec![topic]);
    let response = peer.call(7, &request).await.unwrap();
    let partition = &response.topics[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    partition.offset
}

/// What a reader of committed records gets from offset 0 on: bytes, and the aborted transactions (id, first offset).
async fn read_committed(peer: &Peer, topic_id: TopicId) -> (usize, Vec<(i64, i64)>) {
    let partition = FetchPartition::default().with_partition_max_bytes(1 << 20).with_current_leader_epoch(-1);
    let topic = FetchTopic::default().with_topic_id(topic_id.0).with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(1)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let response = peer.call(13, &request).await.unwrap();
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    let aborted = partition.aborted_transactions.iter().flatten();
    let aborted = aborted.map(|aborted| (aborted.producer_id.0, aborted.first_offset)).collect();
    (partition.records.as_ref().map_or(0, Bytes::len), aborted)
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_end_transactions_for_readers_of_committed_records() {
    let (coordinator, server) = Coordinator::start(&[], 0).await;
    let mut world = world_of("t", &server).await;
    set_verification(&world, false);
    let (leader, follower) = (connect(&world, 1).await, connect(&world, 2).await);
    assert_eq!(produced(&leader, 9, (7, 0, 0)).await, 0);
    assert_eq!(stable_end(&leader).await, 0, "T3");
    assert_eq!(read_committed(&leader, world.topic_id).await, (0, vec![]));

    let topic = TopicRequest::default().with_name(to_wire_topic("t")).with_partition_indexes(vec![0]);
    let describe = DescribeProducersRequest::default().with_topics(vec![topic]);
    let described = leader.call(0, &describe).await.unwrap().topics[0].partitions[0].clone();
    let open = &described.active_producers[0];
    assert_eq!((open.producer_id.0, open.current_txn_start_offset, open.coordinator_epoch), (7, 0, -1));
    let described = follower.call(0, &describe).await.unwrap().topics[0].partitions[0].clone();
    assert_eq!(described.error_code, Rejection::NotLeaderOrFollower.code());

    let rows = [
        (&follower, "t", (7, 0), 5, Rejection::NotLeaderOrFollower.code()),
        (&leader, "nothing", (7, 0), 5, Rejection::UnknownTopicOrPartition.code()),
        (&leader, "t", (7, 0), 5, 0),
        (&leader, "t", (7, 0), 4, Rejection::TransactionCoordinatorFenced.code()),
        (&leader, "t", (7, -1), 5, Rejection::InvalidProducerEpoch.code()),
    ];
    for (peer, name, producer, coordinator_epoch, code) in rows {
        let answered = end(peer, name, true, producer, coordinator_epoch).await;
        assert_eq!(answered, code, "{name} {producer:?} {coordinator_epoch}");
    }
    assert_eq!(stable_end(&leader).await, 2, "the record and the marker");
    let (committed_bytes, aborted) = read_committed(&leader, world.topic_id).await;
    assert_eq!((committed_bytes, aborted), (world.bytes(1).len(), vec![]));

    assert_eq!(produced(&leader, 9, (7, 0, 1)).await, 0);
    assert_eq!(read_committed(&leader, world.topic_id).await.0, committed_bytes);
    assert_eq!(end(&leader, "t", false, (7, 1), 5).await, 0);
    assert_eq!(read_committed(&leader, world.topic_id).await, (world.bytes(1).len(), vec![(7, 2)]));
    assert_eq!(produced(&leader, 9, (7, 0, 2)).await, Rejection::InvalidProducerEpoch.code(), "TXN-13");

    // A follower says the same to its readers (KIP-392), and so does the next leader (T2).
    world.agree(4).await;
    assert_eq!(read_committed(&follower, world.topic_id).await, (world.bytes(2).len(), vec![(7, 2)]));
    world.elect(2, 1).await;
    world.send_to_all(2, 1).await;
    eventually("the high watermark is known", async || world.partition(2).status().high_watermark == 4).await;
    assert_eq!(read_committed(&follower, world.topic_id).await, (world.bytes(2).len(), vec![(7, 2)]));
    assert_eq!(coordinator.asked.available_permits(), 0, "verification is off");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_batch_of_a_transaction_waits_for_its_coordinator() {
    let abortable = Rejection::TransactionAbortable;
    let answers = [abortable, abortable, Rejection::NotCoordinator, Rejection::ProducerFenced];
    let (coordinator, server) = Coordinator::start(&answers, 100).await;
    let world = world_of("t", &server).await;
    let leader = connect(&world, 1).await;
    let rows = [
        (9, Rejection::InvalidTxnState.code()),
        (11, abortable.code()),
        (11, Rejection::NotEnoughReplicas.code()),
        (11, Rejection::InvalidProducerEpoch.code()),
        (11, 0),
    ];
    for (version, code) in rows {
        assert_eq!(produced(&leader, version, (7, 0, 0)).await, code, "v{version}");
    }
    assert_eq!(world.log_end(1), 1, "nothing was appended before it was verified");
    assert_eq!(produced(&leader, 11, (7, 0, 1)).await, 0);
    assert_eq!(coordinator.asked.available_permits(), 5, "the transaction is open");

    // The first of a pipeline cannot be verified, the second can: it must not overtake.
    coordinator.codes.lock().push_back(Rejection::ConcurrentTransactions.code());
    let (first, second) = tokio::join!(produced(&leader, 11, (8, 0, 0)), produced(&leader, 11, (8, 0, 1)));
    let out_of_order = Rejection::OutOfOrderSequenceNumber.code();
    assert_eq!((first, second), (Rejection::NotEnoughReplicas.code(), out_of_order));
    let (first, second) = tokio::join!(produced(&leader, 11, (8, 0, 0)), produced(&leader, 11, (8, 0, 1)));
    assert_eq!((first, second), (0, 0));

    let without_id = transactional((9, 0, 0)).with_transactional_id(None);
    let refused = produce_code(&leader.call(11, &without_id).await.unwrap());
    assert_eq!(refused, Rejection::TransactionalIdAuthorizationFailed.code());
    set_verification(&world, false);
    assert_eq!(produced(&leader, 11, (9, 0, 0)).await, 0, "the switch is dynamic");
    assert_eq!(coordinator.asked.available_permits(), 8);
    server.shutdown().await;
    set_verification(&world, true);
    let gone = produced(&leader, 11, (10, 0, 0)).await;
    assert_eq!(gone, Rejection::NotEnoughReplicas.code(), "nobody can say");
}

#[tokio::test(flavor = "multi_thread")]
async fn txn_01_a_batch_that_comes_after_its_transactions_marker_opens_none() {
    let (coordinator, server) = Coordinator::start(&[], 0).await;
    let world = world_of("t", &server).await;
    let (producer, markers) = (connect(&world, 1).await, connect(&world, 1).await);
    let late = tokio::spawn(async move { produced(&producer, 9, (7, 0, 0)).await });
    coordinator.asked.acquire().await.unwrap().forget();
    // The coordinator has said yes, but its answer comes after the transaction was aborted.
    assert_eq!(end(&markers, "t", false, (7, 0), 0).await, 0);
    coordinator.permits.add_permits(1);
    assert_eq!(late.await.unwrap(), Rejection::InvalidTxnState.code());
    assert_eq!((stable_end(&markers).await, world.log_end(1)), (1, 1), "T5: nothing is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_was_replaced_verifies_nothing() {
    let (coordinator, server) = Coordinator::start(&[], 100).await;
    let world = world_of("t", &server).await;
    let leader = connect(&world, 1).await;
    // The next coordinator has aborted the transaction; the partition asks the one before it.
    assert_eq!(end(&leader, "t", false, (7, 0), 3).await, 0);
    coordinator.epoch.store(2, Ordering::Release);
    assert_eq!(produced(&leader, 11, (7, 0, 0)).await, Rejection::NotEnoughReplicas.code());
    assert_eq!((stable_end(&leader).await, world.log_end(1)), (1, 1), "T5: nothing is open");
    coordinator.epoch.store(3, Ordering::Release);
    assert_eq!(produced(&leader, 11, (7, 0, 0)).await, 0);
    assert_eq!(produced(&leader, 11, (8, 0, 0)).await, 0, "nobody has ended anything of this one");
}

pub(super) fn txn_offset_commit(producer: (i64, i16), offset: i64) -> TxnOffsetCommitRequest {
    let partition = TxnOffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some("m".into()));
    let topic =
        TxnOffsetCommitRequestTopic::default().with_name(to_wire_topic("t")).with_partitions(vec![partition]);
    TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(StrBytes::from_static_str("x")))
        .with_group_id(StrBytes::from_static_str("g").into())
        .with_producer_id(producer.0.into())
        .with_producer_epoch(producer.1)
        .with_topics(vec![topic])
}

/// Asks until the coordinator is there and loaded.
pub(super) async fn settled(what: &str, mut ask: impl AsyncFnMut() -> i16) -> i16 {
    let mut code = 0;
    eventually(what, async || {
        code = ask().await;
        ![6, 14, 15, 16].contains(&code)
    })
    .await;
    code
}

async fn committed_in(peer: &Peer, producer: (i64, i16), offset: i64) -> i16 {
    let request = txn_offset_commit(producer, offset);
    settled("TxnOffsetCommit", async || {
        peer.call(3, &request).await.unwrap().topics[0].partitions[0].error_code
    })
    .await
}

/// The stable committed offset of t-0, or the error.
async fn fetched(peer: &Peer) -> Result<i64, i16> {
    let topic =
        OffsetFetchRequestTopic::default().with_name(to_wire_topic("t")).with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(StrBytes::from_static_str("g").into())
        .with_require_stable(true)
        .with_topics(Some(vec![topic]));
    let mut offset = -1;
    let code = settled("OffsetFetch", async || {
        let response = peer.call(7, &request).await.unwrap();
        let found = response.topics.first().map(|topic| topic.partitions[0].clone());
        offset = found.as_ref().map_or(-1, |found| found.committed_offset);
        if response.error_code != 0 { response.error_code } else { found.map_or(0, |found| found.error_code) }
    })
    .await;
    if code == 0 { Ok(offset) } else { Err(code) }
}

async fn offsets_end(peer: &Peer, commits: bool, producer: (i64, i16)) -> i16 {
    settled("WriteTxnMarkers", async || end(peer, OFFSETS, commits, producer, 0).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn transactional_offsets_count_from_the_marker_on_under_any_leader() {
    let (coordinator, server) = Coordinator::start(&[Rejection::TransactionAbortable], 100).await;
    let mut world = world_of(OFFSETS, &server).await;
    let (first, second) = (connect(&world, 1).await, connect(&world, 2).await);
    let unstable = Err(Rejection::UnstableOffsetCommit.code());
    assert_eq!(fetched(&first).await, Ok(-1));
    assert_eq!(committed_in(&first, (7, 0), 5).await, Rejection::InvalidTxnState.code(), "v3 knows no 120");
    assert_eq!(fetched(&first).await, Ok(-1));
    assert_eq!(committed_in(&first, (7, 0), 5).await, 0);
    assert_eq!(fetched(&first).await, unstable);
    assert_eq!(offsets_end(&first, true, (7, 0)).await, 0);
    assert_eq!(fetched(&first).await, Ok(5));
    assert_eq!(committed_in(&first, (7, 0), 6).await, 0);
    assert_eq!(coordinator.asked.available_permits(), 3);

    // The next leader finds the open transaction in the log, and its end decides.
    world.elect(2, 1).await;
    world.send_to_all(2, 1).await;
    assert_eq!(fetched(&second).await, unstable);
    assert_eq!(end(&first, OFFSETS, true, (7, 0), 0).await, Rejection::NotLeaderOrFollower.code());
    assert_eq!(offsets_end(&second, false, (7, 1)).await, 0);
    assert_eq!(fetched(&second).await, Ok(5));
    let zombie = committed_in(&second, (7, 0), 7).await;
    assert_eq!(zombie, Rejection::InvalidProducerEpoch.code(), "TXN-13");
    assert_eq!(offsets_end(&second, true, (7, 0)).await, Rejection::InvalidProducerEpoch.code());
    assert_eq!(fetched(&second).await, Ok(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn grp_04_a_load_ends_where_compaction_has_taken_the_last_records() {
    let (_coordinator, server) = Coordinator::start(&[], 100).await;
    let mut world = world_of(OFFSETS, &server).await;
    let peer = connect(&world, 1).await;
    assert_eq!(committed_in(&peer, (7, 0), 5).await, 0);
    assert_eq!(offsets_end(&peer, true, (7, 0)).await, 0);
    assert_eq!(committed_in(&peer, (8, 0), 6).await, 0);
    assert_eq!(offsets_end(&peer, false, (8, 0)).await, 0);
    world.agree(4).await;
    // As where compaction has taken the records at the end and left an empty active segment.
    for number in 1..=3 {
        world.partition(number).with_log(|log| {
            log.roll(6, 0).unwrap();
            log.log_end_offset = 6;
        });
    }
    eventually("the gap is committed", async || world.partition(1).status().high_watermark == 6).await;
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    assert_eq!(fetched(&peer).await, Ok(5), "each batch is larger than the buffer, too");
}
