//! What a broker leaves behind that refuses an office, and what it answers before it was told of the cluster.

use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::Op;
use zurau_common::zk::znode::Znode;

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
    let mut client = TcpStream::connect(("127.0.0.1", world.port(1))).await.unwrap();
    // Metadata v1 of no topic, by a client without a name.
    let mut request = BytesMut::new();
    request.put_i32(14);
    request.put_i16(3);
    request.put_i16(1);
    request.put_i32(7);
    request.put_i16(-1);
    request.put_i32(0);
    client.write_all(&request).await.unwrap();
    let early = timeout(Duration::from_millis(300), client.read_u32()).await;
    assert!(early.is_err(), "answered before anybody had told of the cluster: {early:?}");
    world.publish_live_brokers().await;
    let length = timeout(Duration::from_secs(20), client.read_u32()).await.unwrap().unwrap();
    let mut answer = vec![0; length as usize];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..8], [0, 0, 0, 7, 0, 0, 0, 3], "the answer to 7, and three brokers");
}
