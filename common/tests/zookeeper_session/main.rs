//! The session wrapper against the in-process server and a real ZooKeeper.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod ensemble;
mod proxy;
mod server;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use proxy::Proxy;
use server::TestServer;
use zurau_common::http::exposition::Exposition;
use zurau_common::id::BrokerId;
use zurau_common::zk::op::{Lifetime, MultiError, Op, OpFailure, OpResult};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::{SessionState, ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::session_metrics::SessionMetrics;
use zurau_common::zk::watch::TreeEvent;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs each scenario against both servers.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        mod in_process {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(super::TestServer::in_process().await).await;
                }
            )+
        }

        mod apache {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(server) = super::TestServer::apache().await {
                        super::$name(server).await;
                    }
                }
            )+
        }
    };
}

scenarios!(
    a_silent_server_costs_the_lease_and_then_the_session,
    dropping_the_last_clone_ends_the_session,
    closing_without_a_connection_does_not_hang,
    watches_set_anew_go_on_and_do_not_disturb_one_another,
    no_change_is_missed_through_cut_connections,
    who_has_caught_up_has_heard_of_everything_that_was_answered,
    requests_and_changes_of_the_session_are_counted,
    a_multi_answers_each_operation_of_the_caller,
    the_chroot_and_the_parents_are_created,
    a_lost_answer_is_unknown_and_the_znode_tells,
    what_was_never_sent_is_refused_and_only_the_server_ends_a_session,
    a_session_that_the_client_gave_up_is_attached_again,
    many_reads_and_writes_keep_their_order,
);

/// Waits until the condition holds.
async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "still waiting: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_state(zookeeper: &ZooKeeper, wanted: SessionState) {
    let mut states = zookeeper.state();
    let reached = states.wait_for(|state| *state == wanted || *state == SessionState::Ended);
    let reached =
        tokio::time::timeout(PATIENCE, reached).await.expect("the state is reached in time").unwrap();
    assert_eq!(*reached, wanted);
}

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

async fn requests_and_changes_of_the_session_are_counted(server: TestServer) {
    let metrics = Arc::new(SessionMetrics::default());
    let config = ZooKeeperConfig {
        connect: format!("127.0.0.1:{}", server.port),
        session_timeout: Duration::from_secs(10),
        connection_timeout: PATIENCE,
    };
    let zookeeper = ZooKeeper::connect_counted(config, Arc::clone(&metrics)).await.unwrap();
    let value = |sample: &str| {
        let mut page = Exposition::default();
        metrics.write(Some(*zookeeper.state().borrow()), &mut page);
        let text = page.into_text();
        let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {sample} in {text}"))
    };
    let requests = || -> u64 { value("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count") };
    assert_eq!(requests(), 0);
    zookeeper.create_if_absent("/a", b"").await.unwrap();
    zookeeper.create_if_absent("/a", b"").await.unwrap();
    assert_eq!(zookeeper.get("/b").await.unwrap(), None);
    // Not sent, since it cannot be.
    zookeeper.multi(&[set("/a", "x", Some(-1))]).await.unwrap_err();
    assert_eq!(requests(), 3);
    let counted = |name: &str| -> u64 { value(&format!("kafka_server_sessionexpirelistener_{name}_total")) };
    until("the connection is counted", async || counted("zookeepersyncconnects") == 1).await;
    assert_eq!(value("kafka_server_sessionexpirelistener_sessionstate{state=\"CONNECTED\"}"), 1);
    zookeeper.close().await;
    until("the end is counted", async || counted("zookeeperexpires") == 1).await;
    assert_eq!(value("kafka_server_sessionexpirelistener_sessionstate{state=\"CLOSED\"}"), 1);
}

async fn a_multi_answers_each_operation_of_the_caller(server: TestServer) {
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

async fn the_chroot_and_the_parents_are_created(server: TestServer) {
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

async fn a_lost_answer_is_unknown_and_the_znode_tells(server: TestServer) {
    let proxy = Proxy::to(server.port).await;
    let direct = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let zookeeper = connect(format!("127.0.0.1:{}", proxy.port), Duration::from_secs(10)).await;
    assert!(!zookeeper.lease().is_held());

    proxy.lose_answers();
    let sender = zookeeper.clone();
    let lost = tokio::spawn(async move { sender.multi(&[create("/l2", "1", Lifetime::Ephemeral)]).await });
    until("the multi is stored", || async { direct.exists("/l2").await.unwrap() }).await;
    proxy.cut();
    assert_eq!(lost.await.unwrap(), Err(MultiError::Unknown));
    assert_eq!(zookeeper.lease().held_until(), None, "a write without an answer renews nothing");
    let node = zookeeper.get("/l2").await.unwrap().unwrap();
    assert_eq!(node.ephemeral_owner, zookeeper.session_id());
}

async fn what_was_never_sent_is_refused_and_only_the_server_ends_a_session(server: TestServer) {
    let proxy = Proxy::to(server.port).await;
    let direct = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let zookeeper = connect(format!("127.0.0.1:{}", proxy.port), Duration::from_secs(1)).await;
    zookeeper.multi(&[create("/mine", "", Lifetime::Ephemeral)]).await.unwrap();
    let mut watch = zookeeper.watch_trees(&["/mine"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));

    proxy.take_down();
    until_state(&zookeeper, SessionState::Disconnected).await;
    let refused = zookeeper.multi(&[set("/mine", "x", None)]).await;
    assert!(matches!(refused, Err(MultiError::Refused(_))), "{refused:?}");
    until("the server ends the session", || async { !direct.exists("/mine").await.unwrap() }).await;
    assert_eq!(*zookeeper.state().borrow(), SessionState::Disconnected, "nobody has told the client");
    proxy.cut();
    until_state(&zookeeper, SessionState::Ended).await;
    assert_eq!(watch.next().await, None);
    assert_eq!(zookeeper.multi(&[set("/mine", "x", None)]).await, Err(MultiError::SessionEnded));
    assert_eq!(zookeeper.get("/mine").await, Err(ReadError::SessionEnded));
    assert!(!zookeeper.lease().is_held());
}

async fn a_session_that_the_client_gave_up_is_attached_again(mut server: TestServer) {
    let zookeeper = connect(format!("127.0.0.1:{}/c", server.port), Duration::from_secs(4)).await;
    zookeeper.ensure_parents().await.unwrap();
    zookeeper.multi(&[create("/leases/1", "", Lifetime::Ephemeral)]).await.unwrap();
    zookeeper.keep_lease(BrokerId(1));
    until("the lease is kept", || async { zookeeper.get("/leases/1").await.unwrap().unwrap().version > 2 })
        .await;
    let mut watch = zookeeper.watch_trees(&["/brokers"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));
    assert!(watch.is_current());

    server.stop().await;
    // Each waits for one session timeout; the client gives up after 1.4 of them.
    for _ in 0..2 {
        let refused = zookeeper.multi(&[set("/brokers", "x", None)]).await;
        assert!(matches!(refused, Err(MultiError::Refused(_) | MultiError::Unknown)), "{refused:?}");
    }
    assert_eq!(zookeeper.get("/brokers").await, Err(ReadError::ConnectionLoss));
    assert_eq!(*zookeeper.state().borrow(), SessionState::Disconnected);
    assert!(!zookeeper.lease().is_held(), "the lease lapses while the session lives on");
    assert!(!watch.is_current());

    server.run().await;
    until_state(&zookeeper, SessionState::Connected).await;
    assert!(zookeeper.attached_again() >= 1, "the client had given up");
    let node = zookeeper.get("/leases/1").await.unwrap().expect("the ephemeral znode is still there");
    assert_eq!(node.ephemeral_owner, zookeeper.session_id());
    until("the lease is held again", || async { zookeeper.lease().is_held() }).await;
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));
    zookeeper.create_if_absent("/brokers/topics/t", b"").await.unwrap();
    assert_eq!(watch.next().await, Some(TreeEvent::Dirty(vec!["/brokers/topics/t".to_owned()])));
    zookeeper.close().await;
}

/// What a standby controller stands on when it takes office: every change before its claim is marked.
async fn who_has_caught_up_has_heard_of_everything_that_was_answered(server: TestServer) {
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(4)).await;
    let other = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(4)).await;
    let mut watch = zookeeper.watch_trees(&["/a", "/b", "/c"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));
    for round in 0..30 {
        let mut expected = Vec::new();
        for root in ["/a", "/b", "/c"] {
            other.create_if_absent(root, b"").await.unwrap();
            let ops: Vec<Op> =
                (0..50).map(|n| create(&format!("{root}/{round}-{n}"), "", Lifetime::Persistent)).collect();
            other.multi(&ops).await.unwrap();
            expected.extend(ops.iter().map(|op| op.path().to_owned()));
        }
        zookeeper.create_if_absent(&format!("/claim-{round}"), b"").await.unwrap();
        watch.caught_up().await;
        assert!(watch.is_current());
        let Some(TreeEvent::Dirty(dirty)) = watch.next().await else { panic!("the watches were lost") };
        let missing: Vec<&String> = expected.iter().filter(|path| !dirty.contains(path)).collect();
        assert_eq!(missing, Vec::<&String>::new(), "round {round}");
    }
    other.close().await;
    zookeeper.close().await;
    // Nobody waits for a session that has ended.
    watch.caught_up().await;
}

/// Scenario L1: memory that follows the tree through cut connections ends up equal to the tree.
async fn no_change_is_missed_through_cut_connections(server: TestServer) {
    const KEYS: u32 = 12;
    let proxy = Proxy::to(server.port).await;
    let direct = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let zookeeper = connect(format!("127.0.0.1:{}", proxy.port), Duration::from_secs(10)).await;
    let mut watch = zookeeper.watch_trees(&["/tree"]);
    assert_eq!(watch.next().await, Some(TreeEvent::Reset));
    direct.create_if_absent("/tree", b"").await.unwrap();
    assert_eq!(watch.next().await, Some(TreeEvent::Dirty(vec!["/tree".to_owned()])));

    proxy.take_down();
    until_state(&zookeeper, SessionState::Disconnected).await;
    direct.create_if_absent("/tree/unseen", b"").await.unwrap();
    proxy.cut();
    assert_eq!(
        watch.next().await,
        Some(TreeEvent::Reset),
        "a change during the cut comes as a reset, not as an event"
    );

    let writer = async {
        for step in 0..400_u32 {
            let path = format!("/tree/{}", step * 7 % KEYS);
            match step % 3 {
                0 => drop(direct.create_if_absent(&path, step.to_string().as_bytes()).await.unwrap()),
                1 => drop(direct.multi(&[set(&path, &step.to_string(), None)]).await),
                _ => drop(direct.multi(&[Op::Delete { path, version: None }]).await),
            }
            if step % 40 == 17 {
                proxy.cut();
            }
        }
        direct.create_if_absent("/tree/end", b"").await.unwrap();
    };
    let follower = async {
        let mut memory: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        while !memory.contains_key("/tree/end") {
            let paths = match watch.next().await.unwrap() {
                TreeEvent::Dirty(paths) => paths,
                TreeEvent::Reset => {
                    memory.clear();
                    let children = zookeeper.children("/tree").await.unwrap().unwrap();
                    children.into_iter().map(|child| format!("/tree/{child}")).collect()
                }
            };
            let nodes = zookeeper.get_many(&paths).await.unwrap();
            for (path, node) in paths.into_iter().zip(nodes) {
                match node {
                    Some(node) => drop(memory.insert(path, node.data)),
                    None => drop(memory.remove(&path)),
                }
            }
        }
        memory.remove("/tree");
        memory
    };
    let ((), memory) =
        tokio::time::timeout(PATIENCE, async { tokio::join!(writer, follower) }).await.unwrap();
    let mut tree = BTreeMap::new();
    for child in direct.children("/tree").await.unwrap().unwrap() {
        let path = format!("/tree/{child}");
        tree.insert(path.clone(), direct.get(&path).await.unwrap().unwrap().data);
    }
    assert_eq!(memory, tree);
}

async fn many_reads_and_writes_keep_their_order(server: TestServer) {
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    zookeeper.create_if_absent("/m", b"").await.unwrap();
    for taken in [3, 300, 599] {
        zookeeper.create_if_absent(&format!("/m/{taken}"), b"taken").await.unwrap();
    }
    let group = |key: u32| {
        let path = format!("/m/{key}");
        (key, vec![absent(&format!("{path}-x")), create(&path, &key.to_string(), Lifetime::Persistent)])
    };
    let results = zookeeper.multi_batched((0..600).map(group).collect()).await;
    assert_eq!(results.len(), 600);
    for (expected, (key, result)) in (0..).zip(results) {
        assert_eq!(expected, key);
        if [3, 300, 599].contains(&key) {
            let path = format!("/m/{key}");
            assert_eq!(result, Err(MultiError::Failed { index: 1, path, reason: OpFailure::NodeExists }));
        } else {
            assert_eq!(result, Ok(vec![OpResult::Checked, OpResult::Created]), "{key}");
        }
    }
    let again = zookeeper.multi_batched((0..600).map(group).collect()).await;
    assert!(again.iter().all(|(_, result)| matches!(result, Err(MultiError::Failed { index: 1, .. }))));

    let paths: Vec<String> = (0..1900).map(|key| format!("/m/{key}")).collect();
    let nodes = zookeeper.get_many(&paths).await.unwrap();
    for (key, node) in nodes.into_iter().enumerate() {
        let expected = match key {
            3 | 300 | 599 => Some(b"taken".to_vec()),
            0..600 => Some(key.to_string().into_bytes()),
            _ => None,
        };
        assert_eq!(node.map(|node| node.data), expected, "{key}");
    }
    let children = zookeeper.children_many(&["/none".to_owned(), "/m".to_owned()]).await.unwrap();
    assert_eq!((&children[0], children[1].as_ref().map(Vec::len)), (&None, Some(600)));
    let too_large = zookeeper.multi(&[set("/m", &"x".repeat(2_000_000), None)]).await;
    assert!(matches!(too_large, Err(MultiError::Refused(_))));
    let any_version = zookeeper.multi(&[set("/m", "x", Some(-1))]).await;
    assert!(matches!(any_version, Err(MultiError::Refused(_))), "F12");
}

async fn a_silent_server_costs_the_lease_and_then_the_session(server: TestServer) {
    let proxy = Proxy::to(server.port).await;
    let direct = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    let zookeeper = connect(format!("127.0.0.1:{}", proxy.port), Duration::from_secs(2)).await;
    zookeeper.multi(&[create("/mine", "", Lifetime::Ephemeral)]).await.unwrap();
    let until_then = zookeeper.lease().held_until().unwrap();

    proxy.hang();
    let lost = zookeeper.multi(&[set("/mine", "x", None)]).await;
    assert_eq!(lost, Err(MultiError::Unknown), "it was sent, and nobody knows how far it came");
    assert_eq!(zookeeper.lease().held_until(), Some(until_then));
    until("the lease lapses", || async { !zookeeper.lease().is_held() }).await;
    until("the server ends the session", || async { !direct.exists("/mine").await.unwrap() }).await;
    assert_eq!(zookeeper.get("/mine").await, Err(ReadError::ConnectionLoss));
    proxy.cut();
    until_state(&zookeeper, SessionState::Ended).await;
}

async fn dropping_the_last_clone_ends_the_session(server: TestServer) {
    let direct = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    // Longer than the patience of `until`: the timeout cannot be what ends it.
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), PATIENCE * 2).await;
    zookeeper.multi(&[create("/mine", "", Lifetime::Ephemeral)]).await.unwrap();
    zookeeper.keep_lease(BrokerId(1));
    let watch = zookeeper.watch_trees(&["/mine"]);
    drop(zookeeper);
    drop(watch);
    until("the session ends", || async { !direct.exists("/mine").await.unwrap() }).await;
}

async fn closing_without_a_connection_does_not_hang(mut server: TestServer) {
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    server.stop().await;
    until_state(&zookeeper, SessionState::Disconnected).await;
    let waiting = zookeeper.clone();
    let waiting = tokio::spawn(async move { waiting.get("/x").await });
    tokio::time::timeout(PATIENCE, zookeeper.close()).await.unwrap();
    assert_eq!(*zookeeper.state().borrow(), SessionState::Ended);
    assert_eq!(waiting.await.unwrap(), Err(ReadError::SessionEnded));
    zookeeper.close().await;
}

async fn watches_set_anew_go_on_and_do_not_disturb_one_another(server: TestServer) {
    let zookeeper = connect(format!("127.0.0.1:{}", server.port), Duration::from_secs(10)).await;
    zookeeper.create_parents(&["/x", "/x/y"]).await.unwrap();
    let mut steady = zookeeper.watch_trees(&["/x"]);
    assert_eq!(steady.next().await, Some(TreeEvent::Reset));
    let mut anew = zookeeper.watch_trees_every(&["/x", "/x/y"], Duration::from_millis(200));
    for _ in 0..4 {
        assert_eq!(anew.next().await, Some(TreeEvent::Reset));
    }
    let mut number = 0;
    loop {
        let path = format!("/x/y/{number}");
        number += 1;
        zookeeper.create_if_absent(&path, b"").await.unwrap();
        assert_eq!(steady.next().await, Some(TreeEvent::Dirty(vec![path.clone()])));
        // A reset may come first and cover the event.
        if anew.next().await == Some(TreeEvent::Dirty(vec![path])) {
            break;
        }
        assert!(number < 100, "the watches that were set anew tell nothing");
    }
    let nested = zookeeper.watch_trees(&["/x/y"]);
    drop(anew);
    drop(nested);
    // The withdrawal of the dropped watches is on its way before this.
    for number in 1_000..1_020 {
        let path = format!("/x/y/{number}");
        zookeeper.create_if_absent(&path, b"").await.unwrap();
        assert_eq!(steady.next().await, Some(TreeEvent::Dirty(vec![path])));
    }
}

#[tokio::test]
async fn an_ensemble_that_is_not_there_is_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = ZooKeeperConfig {
        connect: format!("127.0.0.1:{port}/zurau"),
        session_timeout: Duration::from_secs(1),
        connection_timeout: Duration::from_millis(300),
    };
    let error = ZooKeeper::connect(config.clone()).await.unwrap_err().to_string();
    assert!(error.contains(&config.connect), "{error}");
    let error =
        ZooKeeper::connect(ZooKeeperConfig { connect: "a:b".to_owned(), ..config }).await.unwrap_err();
    assert!(format!("{error:#}").contains("no valid port"), "{error:#}");
}
