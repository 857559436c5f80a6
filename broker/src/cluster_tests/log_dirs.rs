//! Replicas that move between the log directories of their broker while they serve.

use std::path::PathBuf;
use std::sync::Arc;

use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, DescribeLogDirsRequest};
use zurau_common::config::BrokerConfig;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;

use super::disks::{leading_on_two, start_on_two};
use super::wire::connect;
use super::world::{World, eventually};
use crate::partition::Acks;

fn home(world: &World, index: usize) -> PathBuf {
    world.directories.path().join(["1", "1b"][index])
}

async fn alter(peer: &Peer, topic: &str, path: PathBuf) -> i16 {
    let topic = AlterReplicaLogDirTopic::default().with_name(to_wire_topic(topic)).with_partitions(vec![0]);
    let directory =
        AlterReplicaLogDir::default().with_path(path.display().to_string().into()).with_topics(vec![topic]);
    let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![directory]);
    peer.call(2, &request).await.unwrap().results[0].partitions[0].error_code
}

/// Directory, whether it is a future copy, and lag of each copy of the one partition that there is.
async fn copies(peer: &Peer) -> Vec<(usize, bool, i64)> {
    let described = peer.call(4, &DescribeLogDirsRequest::default().with_topics(None)).await.unwrap();
    let results = described.results.iter().enumerate();
    let copies = results.flat_map(|(index, result)| {
        let partitions = result.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(move |one| (index, one.is_future_key, one.offset_lag))
    });
    copies.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_moves_under_load_as_leader_and_as_follower() {
    let mut world = leading_on_two().await;
    let peer = connect(&world, 1).await;
    let mut produced = 0;
    for (leader, target) in [(1, 1), (2, 0), (1, 1)] {
        if !world.partition(leader).is_leader() {
            let epoch = world.partition(1).leader_epoch().unwrap().0 + 1;
            world.elect(leader, epoch).await;
            world.send_to_all(leader, epoch).await;
        }
        let moving = async {
            assert_eq!(alter(&peer, "t", home(&world, target)).await, 0);
            eventually("the replica has moved", async || world.partition(1).directory() == target).await;
        };
        let producing = async {
            for number in 0..150_u8 {
                world.produce(leader, number, Acks::All).await;
            }
        };
        tokio::join!(moving, producing);
        produced += 150;
        world.agree(produced).await;
        assert!(home(&world, target).join("t-0").exists());
        eventually("the former log is gone", async || !home(&world, 1 - target).join("t-0").exists()).await;
        assert_eq!(copies(&peer).await, [(target, false, 0)]);
    }
    // It is found where it is.
    let before = world.bytes(1);
    start_on_two(&mut world).await;
    assert_eq!((world.partition(1).directory(), world.bytes(1)), (1, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_are_shown_throttled_and_go_on_over_a_new_leader() {
    let mut world = leading_on_two().await;
    for tag in *b"abcd" {
        world.produce(1, tag, Acks::All).await;
    }
    let peer = connect(&world, 1).await;
    let shared = Arc::clone(&world.broker(1).parts.context.shared);
    let set_rate = |bytes: &str| {
        let pairs = [("broker.id", "1"), ("replica.alter.log.dirs.io.max.bytes.per.second", bytes)];
        shared.throttles.set_rates(&BrokerConfig::from_pairs(pairs).unwrap().settings);
    };
    set_rate("1");
    shared.throttles.log_dir_moves.record(1 << 30, shared.now_ms());
    assert_eq!(alter(&peer, "t", home(&world, 1)).await, 0);
    assert_eq!(copies(&peer).await, [(0, false, 0), (1, true, 4)]);
    assert_eq!(alter(&peer, "t", "/nowhere".into()).await, Rejection::LogDirNotFound.code());
    assert_eq!(alter(&peer, "none", home(&world, 1)).await, Rejection::ReplicaNotAvailable.code());
    // 1 leads alone for a while; what it appends then is lost, in both of its copies.
    world.elect(2, 2).await;
    let order = world.order(2, 2).await;
    world.send(2, &order).await.unwrap();
    world.send(3, &order).await.unwrap();
    world.produce(1, b'x', Acks::Leader).await;
    set_rate("9223372036854775807");
    eventually("the copy is made", async || world.partition(1).directory() == 1).await;
    world.produce(2, b'y', Acks::None).await;
    world.send(1, &order).await.unwrap();
    world.produce(2, b'z', Acks::All).await;
    world.agree(6).await;
}
