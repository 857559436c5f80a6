//! What a broker leaves behind that refuses an office, and what it answers before it was told of the cluster.

use std::time::Duration;

use kafka_protocol::messages::MetadataRequest;
use tokio::time::timeout;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::Op;
use zurau_common::zk::znode::Znode;

use super::wire::connect;
use super::world::{World, eventually, id, ids, state};

/// While the `leader` znode of a broker stands nobody else is elected, so none may stay of one that does not lead (L2).
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_office_is_given_back() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let leader = Znode::Leader(id()).path();
    assert!(world.zookeeper.exists(&leader).await.unwrap());
    // 1 is elected anew, its old znode stands, and the ISR does not let it lead.
    let set = |znode: Znode, data| Op::SetData { path: znode.path(), data, version: None };
    let ops =
        [set(Znode::State(id()), state(1, 1).encode()), set(Znode::Isr(id()), encode_ids(&ids(&[2, 3])))];
    world.zookeeper.multi(&ops).await.unwrap();
    world.state_version += 1;
    let order = world.order(1, 1).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::NotLeaderOrFollower));
    eventually("its znode is gone", async || !world.zookeeper.exists(&leader).await.unwrap()).await;
}

/// A broker that knows of nobody would say of every topic that it does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_waits_until_a_controller_has_told_of_the_cluster() {
    let mut world = World::start().await;
    let client = connect(&world, 1).await;
    let request = MetadataRequest::default().with_topics(Some(Vec::new()));
    let mut asking = tokio::spawn(async move { client.call(1, &request).await });
    let early = timeout(Duration::from_millis(300), &mut asking).await;
    assert!(early.is_err(), "answered before anybody had told of the cluster: {early:?}");
    world.publish_live_brokers().await;
    let answer = timeout(Duration::from_secs(20), asking).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.brokers.len(), 3);
}
