//! Disks that are full and disks that fail.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kafka_protocol::messages::DescribeLogDirsRequest;
use zurau_common::id::{LeaderEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::znode::Znode;

use super::wire::{connect, produce, produce_code, world_with_metadata};
use super::world::{World, eventually, id};
use crate::Broker;
use crate::coordinator::{LoadError, RecordProblem, Replay, load};
use crate::log::Disk;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::{Acks, Isolation, ReadRequest, Reader};
use crate::partitions::space_marks;

const DEADLINE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_slows_producers_down_and_then_refuses_them() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let producer = connect(&world, 1).await;
    let partitions = &world.broker(1).parts.context.partitions;
    let marks = space_marks(&world.broker(1).parts.context.config.settings);
    let records = || batch(&BatchSpec::default());
    let rows = [
        ("enough", marks.soft_bytes, 0, false),
        ("low", (marks.soft_bytes + marks.hard_bytes) / 2, 0, true),
        ("exhausted", marks.hard_bytes - 1, Rejection::KafkaStorageError.code(), false),
        ("enough again", u64::MAX, 0, false),
    ];
    let mut told_ms = 0.0;
    for acks in [1, -1] {
        for (name, free_bytes, code, throttled) in rows {
            partitions.set_free_space(free_bytes);
            partitions.check_space(marks);
            let started = Instant::now();
            let response = producer.call(9, &produce("t", acks, records())).await.unwrap();
            assert_eq!(produce_code(&response), code, "{name}");
            assert_eq!(response.throttle_time_ms > 0, throttled, "{name}");
            let throttle = Duration::from_millis(u64::try_from(response.throttle_time_ms).unwrap());
            assert!(throttle <= started.elapsed(), "{name}: the answer was held back");
            told_ms += f64::from(response.throttle_time_ms);
        }
    }
    let counted_ms =
        world.metric(1, "kafka_network_requestmetrics_throttletimems_sum{request=\"Produce\"}").await;
    // What is told to clients is rounded down.
    assert!(
        (told_ms..told_ms + 8.0).contains(&counted_ms),
        "{counted_ms} ms are counted, {told_ms} ms were told"
    );
    // Without an answer the connection is not read for so long; here the error of another partition closes it then.
    let half = Duration::from_millis(400);
    partitions.set_free_space((marks.soft_bytes + marks.hard_bytes) / 2);
    partitions.check_space(marks);
    let started = Instant::now();
    let mut silent = produce("t", 0, records());
    silent.topic_data.extend(produce("nothing", 0, records()).topic_data);
    assert!(producer.call(9, &silent).await.is_err());
    assert!(half < started.elapsed(), "closed after {:?}", started.elapsed());
    // Everything but producing goes on.
    partitions.set_free_space(0);
    partitions.check_space(marks);
    world.agree(7).await;
    let deleted = world.partition(1).delete_records(-1).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, deleted).await.unwrap(), Ok(7));
}

/// Broker 1 again, on two directories; the first one is the one that it had.
pub(super) async fn start_on_two(world: &mut World) {
    drop(world.brokers[0].take());
    let base = world.directories.path();
    let directories = [base.join("1"), base.join("1b")].map(|path| path.display().to_string()).join(",");
    let mut pairs = world.pairs(1);
    pairs.retain(|(key, _)| *key != "log.dirs");
    pairs.push(("log.dirs", directories));
    let deadline = Instant::now() + DEADLINE;
    world.brokers[0] = loop {
        match Broker::start(World::config_of(pairs.clone())).await {
            Ok(broker) => break Some(broker),
            // A broker that was dropped gives its directories back a moment later.
            Err(reason) if format!("{reason:#}").contains("in use") && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(reason) => panic!("{reason:#}"),
        }
    };
}

/// Broker 1 leads, on two directories.
pub(super) async fn leading_on_two() -> World {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    start_on_two(&mut world).await;
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn log_10_a_failed_directory_goes_offline_alone() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    start_on_two(&mut world).await;
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    let partitions = &world.broker(1).parts.context.partitions;
    let create = |name: &str, number: u128| {
        let topic_id = TopicId(uuid::Uuid::from_u128(number));
        partitions.get_or_create(&TopicPartition::new(name, 0), topic_id).unwrap()
    };
    let other = create("u", 5);
    assert_eq!((world.partition(1).directory(), other.directory()), (0, 1), "the emptier one");

    let first = Disk::watch(&world.directories.path().join("1"));
    first.break_down();
    partitions.checkpoint_high_watermarks();
    assert_eq!(world.partition(1).status().role, "offline");
    let leader = Znode::Leader(id()).path();
    eventually("1 resigns", async || world.zookeeper.get(&leader).await.unwrap().is_none()).await;
    let refused = world.partition(1).append(batch(&BatchSpec::default()), Acks::Leader, 0).unwrap_err();
    assert_eq!(refused.rejection, Rejection::KafkaStorageError);
    assert_eq!(other.status().role, "new", "the other directory is not concerned");
    assert_eq!((partitions.has_failed(0), partitions.has_failed(1)), (true, false));
    // It names everything that there is, so what the test made on the other directory is a stray from now on.
    let order = world.order(1, 2).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::KafkaStorageError), "it leads no more");

    let partitions = &world.broker(1).parts.context.partitions;
    let create = |name: &str, number: u128| {
        let topic_id = TopicId(uuid::Uuid::from_u128(number));
        partitions.get_or_create(&TopicPartition::new(name, 0), topic_id).unwrap()
    };
    assert_eq!(create("v", 6).directory(), 1, "nothing new is put on the failed one");
    assert!(world.broker(1).wait().now_or_never().is_none(), "the broker lives");

    let second = Disk::watch(&world.directories.path().join("1b"));
    second.break_down();
    let topic_id = TopicId(uuid::Uuid::from_u128(7));
    assert!(partitions.get_or_create(&TopicPartition::new("w", 0), topic_id).is_err());
    assert!(partitions.has_failed(1));
    let ended = tokio::time::timeout(DEADLINE, world.broker(1).wait()).await.expect("the broker ends");
    assert!(ended.to_string().contains("log directory"), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_10_a_broker_starts_without_a_directory_that_cannot_be_opened() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    start_on_two(&mut world).await;
    let id = TopicPartition::new("u", 0);
    let topic_id = TopicId(uuid::Uuid::from_u128(5));
    let partitions = &world.broker(1).parts.context.partitions;
    assert_eq!(partitions.get_or_create(&id, topic_id).unwrap().directory(), 1);
    drop(world.brokers[0].take());
    let path = world.directories.path().join("1");
    std::fs::rename(&path, world.directories.path().join("gone")).unwrap();
    std::fs::write(&path, b"a file where the directory was").unwrap();
    start_on_two(&mut world).await;
    let partitions = &world.broker(1).parts.context.partitions;
    assert!(partitions.get("t", 0).is_none());
    assert!(partitions.get("u", 0).is_some());
    // Its replica is out of reach, not new: no second copy is made on the other disk.
    let order = world.order(2, 1).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::KafkaStorageError));
    let client = connect(&world, 1).await;
    let described = client.call(1, &DescribeLogDirsRequest::default().with_topics(None)).await.unwrap();
    let codes: Vec<_> =
        described.results.iter().map(|result| (result.log_dir.ends_with("/1b"), result.error_code)).collect();
    assert_eq!(codes, [(true, 0), (false, Rejection::KafkaStorageError.code())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_fail_take_the_directory_offline_and_damaged_records_do_not() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    start_on_two(&mut world).await;
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    let directory = world.directories.path().join("1");
    let log = directory.join("t-0/00000000000000000000.log");
    let good = std::fs::read(&log).unwrap();
    let mut damaged = good.clone();
    damaged[16] = 9;
    std::fs::write(&log, damaged).unwrap();
    let read = |world: &World| {
        let partition = world.partition(1);
        let request = ReadRequest {
            offset: 0,
            max_bytes: 1 << 20,
            minimum_one_batch: true,
            current_leader_epoch: LeaderEpoch::UNKNOWN,
            last_fetched_epoch: LeaderEpoch::UNKNOWN,
            log_start: -1,
            reader: Reader::Consumer { isolation: Isolation::ReadUncommitted, may_follow: false },
        };
        let answer = partition.read(&request)?;
        answer.plan.read().map_err(|error| partition.refuse_read(error))
    };
    assert_eq!(read(&world), Err(Rejection::KafkaStorageError));
    std::fs::write(&log, good).unwrap();
    assert!(read(&world).is_ok(), "the damage was the partition's own matter");
    assert!(!world.broker(1).parts.context.partitions.has_failed(0));

    let disk = Disk::watch(&directory);
    disk.break_reads();
    assert_eq!(read(&world), Err(Rejection::KafkaStorageError));
    eventually("the directory goes offline", async || world.broker(1).parts.context.partitions.has_failed(0))
        .await;
    // Its replicas one after the other.
    eventually("the replica is offline", async || world.partition(1).status().role == "offline").await;
}

/// What a load needs of a coordinator.
struct Ignoring;

impl Replay for Ignoring {
    fn replay(
        &mut self,
        _key: Option<&[u8]>,
        _value: Option<&[u8]>,
        _producer_id: Option<i64>,
        _at: i64,
    ) -> Result<bool, RecordProblem> {
        Ok(true)
    }

    fn replay_transaction_end(&mut self, _producer_id: i64, _commits: bool) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_while_a_coordinator_loads_takes_the_directory_offline() {
    let world = leading_on_two().await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let partition = world.partition(1);
    let leader_epoch = partition.leader_epoch().unwrap();
    let load = || load(&partition, leader_epoch, 1 << 20, Ignoring);
    assert_eq!(load().await.map(|(_, loaded)| loaded.records).ok(), Some(1));

    let disk = Disk::watch(&world.directories.path().join("1"));
    // Where the batch is was remembered when it was appended: nothing but reading it fails.
    disk.break_reads();
    assert!(matches!(load().await, Err(LoadError::Failed(_))));
    eventually("the directory goes offline", async || world.broker(1).parts.context.partitions.has_failed(0))
        .await;
    eventually("the replica is offline", async || partition.status().role == "offline").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_below_the_hard_mark_takes_no_records_but_deletes_some() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let follower = &world.broker(2).parts.context.partitions;
    let marks = space_marks(&world.broker(2).parts.context.config.settings);
    follower.set_free_space(marks.hard_bytes - 1);
    follower.check_space(marks);
    // The fetch under way may still bring one.
    world.produce(1, b'b', Acks::Leader).await;
    let ends = || [1, 2, 3].map(|number| world.partition(number).status().log_end_offset);
    eventually("3 follows", async || ends()[2] == 2).await;
    world.produce(1, b'c', Acks::Leader).await;
    eventually("3 follows", async || ends()[2] == 3).await;
    let held_back = ends()[1];
    assert!(held_back < 3, "{:?}", ends());
    let _deletion = world.partition(1).delete_records(1).unwrap();
    eventually("2 deletes", async || world.partition(2).status().log_start_offset == 1).await;
    assert_eq!(ends()[1], held_back);
    follower.set_free_space(u64::MAX);
    follower.check_space(marks);
    eventually("2 goes on", async || ends() == [3, 3, 3]).await;
}
