//! Many leaders in one LeaderAndIsr: their epochs share a sync, and none serves before it is done (HW-06).

use std::sync::Arc;

use kafka_protocol::messages::LeaderAndIsrResponse;
use tokio::task::JoinHandle;
use zurau_common::id::{BrokerId, LeaderEpoch, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{LeaderAndIsrHeader, leader_and_isr_request};
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::znode::Znode;

use super::world::{World, eventually, ids, state};
use crate::control::{Answered, leader_and_isr};
use crate::log::Disk;
use crate::partition::Partition;

/// Few enough for their logs to be synced one by one, and so many that they are not.
const COUNTS: [usize; 2] = [3, 260];

fn partition(number: usize) -> TopicPartition {
    TopicPartition::new("t", i32::try_from(number).unwrap())
}

/// A topic of so many partitions, of which none is started yet.
async fn world(count: usize) -> World {
    let mut world = World::start().await;
    world.create_topic().await;
    let create = |path: String, data: Vec<u8>| Op::Create { path, data, lifetime: Lifetime::Persistent };
    for id in (1..count).map(partition) {
        let ops = [
            create(Znode::Partition(id.clone()).path(), Vec::new()),
            create(Znode::Replicas(id.clone()).path(), encode_ids(&ids(&[1, 2, 3]))),
            create(Znode::State(id).path(), state(1, 0).encode()),
        ];
        world.zookeeper.multi(&ops).await.unwrap();
    }
    world
}

/// Tells broker 1 that it leads all of them in their first epoch.
async fn start_ordering(world: &mut World, count: usize) -> JoinHandle<LeaderAndIsrResponse> {
    let first = world.order(1, 0).await;
    let orders: Vec<LeaderAndIsr> =
        (0..count).map(|number| LeaderAndIsr { partition: partition(number), ..first.clone() }).collect();
    let connection = world.connection();
    let context = Arc::clone(&world.broker(1).parts.context);
    let header = LeaderAndIsrHeader {
        controller_id: 100,
        controller_epoch: first.controller_epoch,
        broker_epoch: context.broker_epoch(),
        full: false,
    };
    let leaders = [(BrokerId(1), "127.0.0.1".to_owned(), world.port(1))];
    let request = leader_and_isr_request(header, &orders, &leaders);
    tokio::spawn(async move {
        let Answered::Answer(answer) = leader_and_isr(&context, &connection, request).await else {
            panic!("the connection was closed")
        };
        answer
    })
}

fn codes(answer: &LeaderAndIsrResponse) -> Vec<i16> {
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partition_errors);
    partitions.map(|partition| partition.error_code).collect()
}

fn replicas(world: &World, count: usize) -> Vec<Arc<Partition>> {
    let partitions = &world.broker(1).parts.context.partitions;
    (0..count).filter_map(|number| partitions.get("t", i32::try_from(number).unwrap())).collect()
}

/// Nobody may be told of any of them.
async fn assert_nothing_is_served(world: &World, count: usize, role: &str) {
    eventually(&format!("all are {role}"), async || {
        let replicas = replicas(world, count);
        replicas.len() == count && replicas.iter().all(|replica| replica.status().role == role)
    })
    .await;
    for id in (0..count).map(partition) {
        assert!(!world.zookeeper.exists(&Znode::Leader(id).path()).await.unwrap(), "a leader in ZooKeeper");
    }
}

fn recorded(world: &World) -> String {
    let path = world.directories.path().join("1").join("leader-epoch-start-checkpoint");
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_06_no_leader_serves_before_the_epochs_of_all_are_durable() {
    for count in COUNTS {
        let mut world = world(count).await;
        let disk = Disk::watch(&world.directories.path().join("1"));
        disk.hold(true);
        let ordering = start_ordering(&mut world, count).await;
        eventually("what was written is being synced", async || 1 <= disk.waiting()).await;
        assert_nothing_is_served(&world, count, "taking office").await;
        assert_eq!(recorded(&world), "");
        disk.hold(false);
        let answer = ordering.await.unwrap();
        assert_eq!(codes(&answer), vec![0; count]);
        assert!(replicas(&world, count).iter().all(|replica| replica.leads_in(LeaderEpoch(0))));
        assert_eq!(recorded(&world).lines().count(), 2 + count);
        let shared = if count == COUNTS[0] { 0 } else { 1 };
        assert_eq!(disk.synced_file_systems(), shared, "for {count} created logs");
        drop(disk);
        // None of them has a record, or a history of its own on the disk.
        drop(world.brokers[0].take());
        world.start_broker(1).await;
        for replica in replicas(&world, count) {
            assert_eq!(replica.highest_epoch(), LeaderEpoch(0), "{}", replica.id());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_06_log_10_a_sync_that_fails_lets_no_partition_of_the_batch_serve() {
    // The syncs of the logs that are created go on or fail; what is left is the one of the epochs.
    for (count, syncs_before) in [(COUNTS[0], 0), (COUNTS[0], COUNTS[0]), (COUNTS[1], 0), (COUNTS[1], 1)] {
        let mut world = world(count).await;
        let disk = Disk::watch(&world.directories.path().join("1"));
        disk.hold(true);
        let ordering = start_ordering(&mut world, count).await;
        for synced in 0..syncs_before {
            eventually("a sync is held", async || 1 <= disk.waiting()).await;
            disk.let_one_through();
            eventually("it is done", async || synced < disk.synced_file_systems() + disk.synced_files())
                .await;
        }
        eventually("a sync is held", async || 1 <= disk.waiting()).await;
        assert_nothing_is_served(&world, count, "taking office").await;
        disk.break_down();
        disk.hold(false);
        let answer = ordering.await.unwrap();
        assert_eq!(codes(&answer), vec![Rejection::KafkaStorageError.code(); count]);
        assert_nothing_is_served(&world, count, "offline").await;
        assert!(world.broker(1).parts.context.partitions.has_failed(0));
        // Told again, it answers the same.
        let answer = start_ordering(&mut world, count).await.await.unwrap();
        assert_eq!(codes(&answer), vec![Rejection::KafkaStorageError.code(); count]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_06_a_full_disk_lets_no_new_leader_serve_and_keeps_its_directory() {
    let mut world = world(COUNTS[0]).await;
    let answer = start_ordering(&mut world, COUNTS[0]).await.await.unwrap();
    assert_eq!(codes(&answer), vec![0; COUNTS[0]]);
    let disk = Disk::watch(&world.directories.path().join("1"));
    disk.fill(true);
    world.elect(1, 1).await;
    let order = world.order(1, 1).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::KafkaStorageError));
    assert_eq!(world.partition(1).status().role, "offline");
    assert!(!world.broker(1).parts.context.partitions.has_failed(0));
    assert!(replicas(&world, COUNTS[0])[1].leads_in(LeaderEpoch(0)), "the others are not concerned");
}
