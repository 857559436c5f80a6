//! A session on an ensemble: it moves from server to server, and outlives the loss of the quorum (L12).

use std::time::Duration;

use zurau_common::id::BrokerId;
use zurau_common::zk::op::Lifetime;
use zurau_common::zk::session::{SessionState, ZooKeeper};
use zurau_common::zk::watch::{TreeEvent, TreeWatch};

use super::server::TestServer;
use super::{connect, create, until, until_state};

/// Follows the watch, reading as it is told to, until the znode is known.
async fn until_seen(watch: &mut TreeWatch, zookeeper: &ZooKeeper, path: &str) {
    let seen = async {
        loop {
            match watch.next().await.expect("the session lives") {
                TreeEvent::Reset if zookeeper.exists(path).await.unwrap() => return,
                TreeEvent::Dirty(paths) if paths.iter().any(|dirty| dirty == path) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(super::PATIENCE, seen).await.expect("the change is seen in time");
}

/// Creates the znode, however often the servers go away meanwhile.
async fn create_at_last(zookeeper: &ZooKeeper, path: &str) {
    until("the znode is created", || async { zookeeper.create_if_absent(path, b"").await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_moves_and_outlives_the_quorum() {
    let Some(mut servers) = TestServer::ensemble().await else { return };
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let address = format!("{}/e", hosts.join(","));
    let writer = connect(address.clone(), Duration::from_secs(20)).await;
    let zookeeper = connect(address, Duration::from_secs(20)).await;
    zookeeper.ensure_parents().await.unwrap();
    zookeeper.multi(&[create("/leases/1", "", Lifetime::Ephemeral)]).await.unwrap();
    zookeeper.keep_lease(BrokerId(1));
    let mut watch = zookeeper.watch_trees(&["/brokers"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));

    for (index, server) in servers.iter_mut().enumerate() {
        server.stop().await;
        let path = format!("/brokers/topics/t{index}");
        create_at_last(&writer, &path).await;
        until_seen(&mut watch, &zookeeper, &path).await;
        server.run().await;
    }
    let mine = |owner: i64| owner == zookeeper.session_id();
    assert!(mine(zookeeper.get("/leases/1").await.unwrap().expect("the session moved").ephemeral_owner));

    servers[0].stop().await;
    servers[1].stop().await;
    until_state(&zookeeper, SessionState::Disconnected).await;
    until("the lease lapses", || async { !zookeeper.lease().is_held() }).await;
    servers[0].run().await;
    servers[1].run().await;
    until("the lease is held again", || async { zookeeper.lease().is_held() }).await;
    assert!(mine(zookeeper.get("/leases/1").await.unwrap().expect("the session lives").ephemeral_owner));
    create_at_last(&writer, "/brokers/topics/last").await;
    until_seen(&mut watch, &zookeeper, "/brokers/topics/last").await;
}
