//! The session wrapper against a real ZooKeeper.

mod server;

use std::time::Duration;

use server::RealZooKeeper;
use zurau_common::zk::op::{Lifetime, MultiError, Op, OpFailure, OpResult};
use zurau_common::zk::session::{SessionState, ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::watch::TreeEvent;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(address: String, session_timeout: Duration) -> ZooKeeper {
    let config = ZooKeeperConfig { connect: address, session_timeout, connection_timeout: PATIENCE };
    ZooKeeper::connect(config).await.unwrap()
}

fn create(path: &str, data: &str, lifetime: Lifetime) -> Op {
    Op::Create { path: path.to_owned(), data: data.into(), lifetime }
}

fn set(path: &str, data: &str, version: Option<i32>) -> Op {
    Op::SetData { path: path.to_owned(), data: data.into(), version }
}

fn absent(path: &str) -> Op {
    Op::CheckAbsent { path: path.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_answers_each_operation_of_the_caller() {
    let Some(server) = RealZooKeeper::start().await else { return };
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let ops = [
        create("/a", "1", Lifetime::Persistent),
        absent("/a/b"),
        absent("/a/c"),
        set("/a", "2", Some(0)),
        Op::CheckVersion { path: "/a".to_owned(), version: 1 },
        Op::CheckExists { path: "/a".to_owned() },
        create("/a/e", "mine", Lifetime::Ephemeral),
        Op::Delete { path: "/a/e".to_owned(), version: Some(0) },
    ];
    let results = zookeeper.multi(&ops).await.unwrap();
    let node = zookeeper.get("/a").await.unwrap().unwrap();
    assert_eq!((node.data.as_slice(), node.version, node.ephemeral_owner), (&b"2"[..], 1, 0));
    use OpResult::{Checked, Created, Deleted};
    let set_result = OpResult::Set { version: 1, mzxid: node.mzxid };
    assert_eq!(results, [Created, Checked, Checked, set_result, Checked, Checked, Created, Deleted]);
    assert_eq!(
        zookeeper.children("/a").await.unwrap(),
        Some(vec![]),
        "an absence check leaves nothing behind"
    );

    let failed = zookeeper.multi(&[absent("/x"), absent("/y"), absent("/a"), set("/a", "3", None)]).await;
    let expected = MultiError::Failed { index: 2, path: "/a".to_owned(), reason: OpFailure::NodeExists };
    assert_eq!(failed, Err(expected));
    assert_eq!(zookeeper.get("/a").await.unwrap().unwrap().data, b"2", "nothing of a failed multi is stored");
    let failed = zookeeper.multi(&[absent("/x"), set("/a", "3", Some(7))]).await;
    assert_eq!(
        failed,
        Err(MultiError::Failed { index: 1, path: "/a".to_owned(), reason: OpFailure::BadVersion })
    );
    let failed = zookeeper.multi(&[absent("/x"), Op::CheckExists { path: "/none".to_owned() }]).await;
    assert_eq!(
        failed,
        Err(MultiError::Failed { index: 1, path: "/none".to_owned(), reason: OpFailure::NoNode })
    );
    zookeeper.close().await;
    assert_eq!(*zookeeper.state().borrow(), SessionState::Ended);
    assert_eq!(zookeeper.multi(&[absent("/x")]).await, Err(MultiError::SessionEnded));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chroot_and_the_parents_are_created() {
    let Some(server) = RealZooKeeper::start().await else { return };
    let outer = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let inner = connect(format!("127.0.0.1:{}/zurau/one", server.port), Duration::from_secs(10)).await;
    inner.ensure_parents().await.unwrap();
    inner.ensure_parents().await.unwrap();
    assert!(inner.exists("/brokers/topics").await.unwrap());
    assert!(outer.exists("/zurau/one/brokers/topics").await.unwrap());
    assert!(!outer.exists("/brokers").await.unwrap());

    let mut watch = inner.watch_trees(&["/controller", "/brokers"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));
    assert!(inner.create_if_absent("/brokers/topics/t", b"").await.unwrap());
    assert!(!inner.create_if_absent("/brokers/topics/t", b"").await.unwrap());
    assert_eq!(watch.next().await, Some(TreeEvent::Dirty(vec!["/brokers/topics/t".to_owned()])));
    inner.multi(&[create("/controller", "", Lifetime::Ephemeral)]).await.unwrap();
    assert_eq!(watch.next().await, Some(TreeEvent::Dirty(vec!["/controller".to_owned()])));
    assert!(inner.lease().is_held());

    inner.close().await;
    assert_eq!(watch.next().await, None);
    assert!(!inner.lease().is_held());
    assert!(!outer.exists("/zurau/one/controller").await.unwrap(), "close ends the session at once");
}
