//! What clients meet while replicas lag, leaders change and topics come and go; named by case.

use std::time::Duration;

use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};
use kafka_protocol::records::Compression;
use tokio::time::timeout;
use zurau_common::config::CompressionType;
use zurau_common::id::TopicId;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::znode::Znode;

use super::wire::{connect, produce, produce_code, world_with_metadata};
use super::world::eventually;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::Acks;

const ENOUGH: Duration = Duration::from_secs(30);

/// A fetch of one partition by name, without a session.
fn fetch(topic: &str, partition: i32, offset: i64, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(-1)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1);
    let topic = FetchTopic::default().with_topic(to_wire_topic(topic)).with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(1)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

/// Error and bytes of the only partition.
fn outcome(response: &FetchResponse) -> (i16, usize) {
    let partition = &response.responses[0].partitions[0];
    (partition.error_code, partition.records.as_ref().map_or(0, bytes::Bytes::len))
}

async fn fetched(peer: &Peer, offset: i64) -> (i16, usize) {
    outcome(&peer.call(12, &fetch("t", 0, offset, 0)).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn cli_09_fetches_around_the_high_watermark() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let size = batch(&BatchSpec::default()).len();
    for tag in *b"ab" {
        world.produce(1, tag, Acks::All).await;
    }
    world.agree(2).await;
    // Nobody fetches any more: what comes now stays above the high watermark.
    for number in [2, 3] {
        world.brokers[number - 1] = None;
    }
    for tag in *b"cd" {
        world.produce(1, tag, Acks::Leader).await;
    }
    world.partition(1).delete_records(1).unwrap();
    let leader = connect(&world, 1).await;
    let out_of_range = Rejection::OffsetOutOfRange.code();
    let rows = [
        (0, (out_of_range, 0)),
        (1, (0, size)),
        (2, (0, 0)),
        (3, (0, 0)),
        (4, (0, 0)),
        (5, (out_of_range, 0)),
    ];
    for (offset, expected) in rows {
        assert_eq!(fetched(&leader, offset).await, expected, "offset {offset}, start 1, HW 2, end 4");
    }
}

/// A leader that does not know the committed end yet asks its readers to wait; none is told to reset (HW-08).
#[tokio::test(flavor = "multi_thread")]
async fn cli_09_a_new_leader_does_not_send_readers_away() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    for tag in *b"abc" {
        world.produce(1, tag, Acks::All).await;
    }
    world.agree(3).await;
    for broker in &mut world.brokers {
        *broker = None;
    }
    world.start_broker(2).await;
    world.elect(2, 1).await;
    let order = world.order(2, 1).await;
    world.send(2, &order).await.unwrap();
    let metadata = &world.broker(2).parts.context.metadata;
    let known = crate::metadata::tests::topic("t", world.topic_id, &[2]);
    metadata.apply(&crate::metadata::tests::update(1, vec![known])).unwrap();
    let leader = connect(&world, 2).await;
    for offset in 0..=3 {
        let (code, _) = fetched(&leader, offset).await;
        assert_ne!(code, Rejection::OffsetOutOfRange.code(), "offset {offset} of 3");
    }
}

/// Which error for what is led elsewhere, not there, or not in this partition number.
#[tokio::test(flavor = "multi_thread")]
async fn cli_10_known_and_unknown_partitions_are_told_apart_by_every_api() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let not_leader = Rejection::NotLeaderOrFollower.code();
    let unknown = Rejection::UnknownTopicOrPartition.code();
    let follower = connect(&world, 2).await;
    for (topic, number, expected) in [("t", 0, not_leader), ("t", 7, unknown), ("nothing", 0, unknown)] {
        let mut request = produce(topic, 1, batch(&BatchSpec::default()));
        request.topic_data[0].partition_data[0].index = number;
        let code = produce_code(&follower.call(9, &request).await.unwrap());
        assert_eq!(code, expected, "Produce {topic}-{number}");

        let response = follower.call(11, &fetch(topic, number, 0, 0)).await.unwrap();
        let code = outcome(&response).0;
        // A follower serves consumers that know of it (KIP-392); older ones are sent to the leader.
        let response = follower.call(10, &fetch(topic, number, 0, 0)).await.unwrap();
        assert_eq!(outcome(&response).0, expected, "Fetch v10 {topic}-{number}");
        assert!(
            code == expected || (expected == not_leader && code == 0),
            "Fetch v11 {topic}-{number}: {code}"
        );

        let partition = ListOffsetsPartition::default()
            .with_partition_index(number)
            .with_current_leader_epoch(-1)
            .with_timestamp(-1);
        let named =
            ListOffsetsTopic::default().with_name(to_wire_topic(topic)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![named]);
        let response = follower.call(5, &request).await.unwrap();
        assert_eq!(response.topics[0].partitions[0].error_code, expected, "ListOffsets {topic}-{number}");

        let partition =
            OffsetForLeaderPartition::default().with_partition(number).with_current_leader_epoch(-1);
        let named =
            OffsetForLeaderTopic::default().with_topic(to_wire_topic(topic)).with_partitions(vec![partition]);
        let request =
            OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(vec![named]);
        let response = follower.call(3, &request).await.unwrap();
        let code = response.topics[0].partitions[0].error_code;
        assert_eq!(code, expected, "OffsetForLeaderEpoch {topic}-{number}");
    }
}

/// A topic of zstd is refused to clients of before zstd. What a producer compressed so comes as it is, as from Kafka:
/// rskafka reads it, and fetches with version 4.
#[tokio::test(flavor = "multi_thread")]
async fn cli_06_topics_of_zstd_are_refused_to_old_fetches() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let leader = connect(&world, 1).await;
    let zstd = batch(&BatchSpec { compression: Compression::Zstd, ..BatchSpec::default() });
    let produced = leader.call(7, &produce("t", -1, zstd.clone())).await.unwrap();
    assert_eq!(produce_code(&produced), 0);
    let fetched_with = async |version| outcome(&leader.call(version, &fetch("t", 0, 0, 0)).await.unwrap());
    assert_eq!(fetched_with(4).await, (0, zstd.len()));

    let config = br#"{"version":1,"config":{"compression.type":"zstd"}}"#.to_vec();
    let path = Znode::TopicConfig("t".into()).path();
    let op = Op::Create { path, data: config, lifetime: Lifetime::Persistent };
    world.zookeeper.multi(&[op]).await.unwrap();
    let known = async || {
        let config = world.broker(1).parts.context.topic_configs.get("t");
        config.compression_type == CompressionType::Zstd
    };
    eventually("the compression is known", known).await;
    assert_eq!(fetched_with(9).await, (Rejection::UnsupportedCompressionType.code(), 0));
    assert_eq!(fetched_with(10).await, (0, zstd.len()));
}

/// The limit is for what clients append; what is stored is replicated and read.
#[tokio::test(flavor = "multi_thread")]
async fn cli_13_a_lowered_size_limit_stops_neither_followers_nor_readers() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.brokers[2] = None;
    let large = batch(&BatchSpec { value_bytes: 90_000, ..BatchSpec::default() });
    world.partition(1).append(large.clone(), Acks::Leader, 1_000).unwrap();
    let config = br#"{"version":1,"config":{"max.message.bytes":"1000"}}"#.to_vec();
    let path = Znode::TopicConfig("t".into()).path();
    let op = Op::Create { path, data: config, lifetime: Lifetime::Persistent };
    world.zookeeper.multi(&[op]).await.unwrap();
    world.start_broker(3).await;
    for number in 1..=3 {
        let limited =
            async || world.broker(number).parts.context.topic_configs.get("t").max_message_bytes == 1000;
        eventually("the limit is known", limited).await;
    }
    let order = world.order(1, 0).await;
    world.send(3, &order).await.unwrap();
    world.agree(1).await;

    let leader = connect(&world, 1).await;
    let refused = leader.call(9, &produce("t", 1, large.clone())).await.unwrap();
    assert_eq!(produce_code(&refused), Rejection::MessageTooLarge.code());
    assert_eq!(
        fetched(&leader, 0).await,
        (0, large.len()),
        "the first batch comes whole, whatever the limits"
    );
}

/// NOT_LEADER_OR_FOLLOWER after the append: the record is there in the end, and its repetition is told its offset.
#[tokio::test(flavor = "multi_thread")]
async fn cli_15_a_write_whose_leader_goes_may_have_succeeded() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    // Still in sync, so that nothing is committed without it.
    world.brokers[2] = None;
    let idempotent = batch(&BatchSpec { producer: Some((7, 0, 0)), ..BatchSpec::default() });
    let old_leader = connect(&world, 1).await;
    let request = produce("t", -1, idempotent.clone());
    let waiting = tokio::spawn(async move { old_leader.call(9, &request).await });
    eventually("the other follower has it", async || world.log_end(2) == 2).await;
    assert!(!waiting.is_finished());
    world.elect(2, 1).await;
    let order = world.order(2, 1).await;
    for number in [2, 1] {
        world.send(number, &order).await.unwrap();
    }
    let answered =
        timeout(ENOUGH, waiting).await.expect("answered when the office is lost").unwrap().unwrap();
    assert_eq!(produce_code(&answered), Rejection::NotLeaderOrFollower.code());
    let again = connect(&world, 2).await.call(9, &produce("t", -1, idempotent)).await.unwrap();
    let partition = &again.responses[0].partition_responses[0];
    assert_eq!((partition.error_code, partition.base_offset), (0, 1), "stored once");
    world.agree(2).await;
}

/// Waiting fetches of two partitions, appends to both in turn: every fetch ends, with data or at its time.
#[tokio::test(flavor = "multi_thread")]
async fn cli_17_waiting_fetches_and_appends_do_not_lock_each_other() {
    const ROUNDS: usize = 200;
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let first = world.partition(1);
    world.hosted.topic = "u".into();
    world.topic_id = TopicId::parse("AgIDBAUGBwgJCgsMDQ4PEA").unwrap();
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let second = world.partition(1);

    let both = |offset| {
        let mut request = fetch("t", 0, offset, 50);
        request.topics.extend(fetch("u", 0, offset, 50).topics);
        request
    };
    let readers = (0..4).map(async |reader| {
        let peer = connect(&world, 1).await;
        for round in 0..ROUNDS {
            // Half of them wait at the end, half are answered at once.
            let offset = if reader % 2 == 0 { first.status().high_watermark } else { 0 };
            let answer = timeout(ENOUGH, peer.call(12, &both(offset))).await;
            answer.unwrap_or_else(|_| panic!("reader {reader} waits for ever in round {round}")).unwrap();
        }
    });
    let writers = [(&first, &second), (&second, &first)].map(async |(one, other)| {
        for _ in 0..ROUNDS {
            for partition in [one, other] {
                let records = batch(&BatchSpec::default());
                let appended = partition.append(records, Acks::All, 1_000).unwrap();
                timeout(ENOUGH, appended.committed.unwrap()).await.expect("committed").unwrap();
            }
        }
    });
    futures::join!(futures::future::join_all(readers), futures::future::join_all(writers));
    let end = 2 * ROUNDS as i64;
    assert_eq!([&first, &second].map(|partition| partition.status().log_end_offset), [end, end]);
}
