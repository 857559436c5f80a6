//! Disks that are full and disks that fail.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use zurau_common::id::{TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::znode::Znode;

use super::wire::{connect, produce, produce_code, world_with_metadata};
use super::world::{World, eventually, id};
use crate::Broker;
use crate::log::Disk;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::Acks;
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
        }
    }
    // Everything but producing goes on.
    partitions.set_free_space(0);
    partitions.check_space(marks);
    world.agree(6).await;
    let deleted = world.partition(1).delete_records(-1).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, deleted).await.unwrap(), Ok(6));
}

/// Broker 1 again, on two directories; the first one is the one that it had.
async fn start_on_two(world: &mut World) {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_directory_goes_offline_alone() {
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
    let order = world.order(1, 2).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::KafkaStorageError), "it leads no more");

    let partitions = &world.broker(1).parts.context.partitions;
    assert_eq!(other.status().role, "new", "the other directory is not concerned");
    assert_eq!((partitions.has_failed(0), partitions.has_failed(1)), (true, false));
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
async fn a_broker_starts_without_a_directory_that_cannot_be_opened() {
    let mut world = World::start().await;
    start_on_two(&mut world).await;
    let id = TopicPartition::new("u", 0);
    let topic_id = TopicId(uuid::Uuid::from_u128(5));
    // The first is the first choice while both are empty.
    let partitions = &world.broker(1).parts.context.partitions;
    partitions.get_or_create(&TopicPartition::new("first", 0), topic_id).unwrap();
    assert_eq!(partitions.get_or_create(&id, topic_id).unwrap().directory(), 1);
    drop(world.brokers[0].take());
    let path = world.directories.path().join("1");
    std::fs::rename(&path, world.directories.path().join("gone")).unwrap();
    std::fs::write(&path, b"a file where the directory was").unwrap();
    start_on_two(&mut world).await;
    let partitions = &world.broker(1).parts.context.partitions;
    assert!(partitions.get("first", 0).is_none());
    assert!(partitions.get("u", 0).is_some());
}
