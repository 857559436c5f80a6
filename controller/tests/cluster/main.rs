//! A real controller process loop against the in-process ZooKeeper server and brokers that keep no records.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod byte_counter;
mod fake_broker;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kafka_protocol::messages::alter_partition_request::{BrokerState, PartitionData, TopicData};
use kafka_protocol::messages::{AlterPartitionRequest, BrokerId as WireBrokerId, ControlledShutdownRequest};
use zurau_common::wire::peer::Peer;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::topic::decode_topic;
use zurau_controller::{Controller, ControllerConfig};
use zurau_zookeeper::{Server, ServerConfig};

use byte_counter::ByteCounter;
use fake_broker::FakeBroker;

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Tests may share a real server: each has a tree of its own.
static NEXT_TREE: AtomicUsize = AtomicUsize::new(0);

struct Cluster {
    /// `None`: a real one, named by the variable ZOOKEEPER.
    zookeeper_server: Option<Server>,
    connect: String,
    admin: ZooKeeper,
    controller: Controller,
}

impl Cluster {
    async fn start() -> Self {
        let (zookeeper_server, connect) = match std::env::var("ZOOKEEPER") {
            Ok(address) => {
                let tree = NEXT_TREE.fetch_add(1, Ordering::Relaxed);
                (None, format!("{address}/zurau-controller-test-{}-{tree}", std::process::id()))
            }
            Err(_) => {
                let server = Server::start(ServerConfig::default()).await.unwrap();
                let connect = server.connect_string();
                (Some(server), connect)
            }
        };
        let controller = controller(1, &connect).await;
        let config = ZooKeeperConfig {
            connect: connect.clone(),
            session_timeout: Duration::from_secs(10),
            connection_timeout: TIMEOUT,
        };
        let admin = ZooKeeper::connect(config).await.unwrap();
        let cluster = Self { zookeeper_server, connect, admin, controller };
        cluster.until("parents exist", async |cluster| cluster.text("/cluster/id").await.is_some()).await;
        cluster
    }

    async fn broker(&self, id: i32) -> FakeBroker {
        FakeBroker::start(id, &self.connect).await
    }

    /// Only the in-process server can be told to misbehave.
    fn in_process(&self) -> Option<&Server> {
        if self.zookeeper_server.is_none() {
            eprintln!(
                "\n*** NOT TESTED with the server of the variable ZOOKEEPER: it needs the in-process one ***\n"
            );
        }
        self.zookeeper_server.as_ref()
    }

    async fn create(&self, path: &str, data: &str) {
        let (path, data) = (path.to_owned(), data.as_bytes().to_vec());
        self.admin.multi(&[Op::Create { path, data, lifetime: Lifetime::Persistent }]).await.unwrap();
    }

    async fn set(&self, path: &str, data: &str) {
        let (path, data) = (path.to_owned(), data.as_bytes().to_vec());
        self.admin.multi(&[Op::SetData { path, data, version: None }]).await.unwrap();
    }

    /// As an admin types it: node by node.
    async fn create_partition(&self, topic: &str, partition: i32, replicas: &str) {
        self.create(&format!("/brokers/topics/{topic}/{partition}"), "").await;
        self.create(&format!("/brokers/topics/{topic}/{partition}/replicas"), replicas).await;
    }

    async fn text(&self, path: &str) -> Option<String> {
        let node = self.admin.get(path).await.unwrap()?;
        Some(String::from_utf8(node.data).unwrap())
    }

    async fn until(&self, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        let wait = async {
            while !condition(self).await {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(TIMEOUT, wait).await.is_ok(), "not within {TIMEOUT:?}: {what}");
    }

    async fn until_text(&self, path: &str, expected: &str) {
        self.until(&format!("{path} = {expected}"), async |cluster| {
            cluster.text(path).await.as_deref() == Some(expected)
        })
        .await;
    }

    async fn peer(&self) -> Peer {
        let node = self.text("/controller").await.unwrap();
        let active = zurau_common::zk::controller::ActiveController::decode(node.as_bytes()).unwrap();
        Peer::connect(&format!("{}:{}", active.host, active.port), "test", TIMEOUT).await.unwrap()
    }
}

async fn controller(id: i32, connect: &str) -> Controller {
    let config = ControllerConfig::from_pairs([
        ("controller.id", id.to_string()),
        ("zookeeper.connect", connect.to_owned()),
        ("zookeeper.session.timeout.ms", "6000".to_owned()),
        ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
    ])
    .unwrap();
    Controller::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_of_znodes_gets_leaders_survives_a_broker_and_is_deleted() {
    let cluster = Cluster::start().await;
    let brokers = [cluster.broker(1).await, cluster.broker(2).await, cluster.broker(3).await];
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 1, "{2,3,1}").await;
    cluster.create_partition("t", 0, "1 2 3").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    cluster.until_text("/brokers/topics/t/1/leader", "2").await;
    assert_eq!(cluster.text("/brokers/topics/t/0/ISR").await.as_deref(), Some("[1,2,3]"));
    let node = cluster.text("/brokers/topics/t").await.unwrap();
    let id = decode_topic(node.as_bytes()).unwrap().unwrap();
    cluster
        .until_text(&format!("/brokers/topic_ids/{id}"), r#"{"version":1,"topic":"t","started":[[0,1]]}"#)
        .await;
    cluster
        .until("everybody knows", async |_| {
            brokers.iter().all(|broker| {
                let told = broker.told.lock();
                told.roles.get("t-0") == Some(&(1, 0)) && told.leaders.get("t-1") == Some(&2)
            })
        })
        .await;

    let [one, two, three] = brokers;
    one.die().await;
    cluster.until_text("/brokers/topics/t/0/leader", "2").await;
    assert_eq!(cluster.text("/brokers/topics/t/0/ISR").await.as_deref(), Some("[2,3]"));
    cluster.until("the survivors know", async |_| two.told.lock().live == [2, 3]).await;

    let one = cluster.broker(1).await;
    cluster
        .until("the returned broker follows", async |_| {
            let told = one.told.lock();
            told.full_requests == 1 && told.roles.get("t-0") == Some(&(2, 1))
        })
        .await;

    cluster.create("/admin/delete_topics/t", "").await;
    cluster.until("the topic is gone", async |c| c.text("/admin/delete_topics/t").await.is_none()).await;
    assert_eq!(cluster.text("/brokers/topics/t").await, None);
    assert_eq!(cluster.text(&format!("/brokers/topic_ids/{id}")).await, None);
    cluster
        .until("copies are deleted", async |_| {
            [&one, &two, &three].iter().all(|broker| {
                let told = broker.told.lock();
                told.stopped.len() == 2 && told.leaders.is_empty()
            })
        })
        .await;
    cluster.controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_an_error_child_until_it_is_right() {
    let cluster = Cluster::start().await;
    let _one = cluster.broker(1).await;
    cluster.create("/brokers/topics/t", "").await;
    for (partition, replicas) in ["{1,2", "[1,1]", "[]", "[99]", "hello"].into_iter().enumerate() {
        cluster.create_partition("t", i32::try_from(partition).unwrap(), replicas).await;
    }
    let expected = [
        "'{1,2' is not a set",
        "broker id 1 stands in the set twice",
        "the set of broker ids is empty",
        "no broker of [99] is registered",
        "'hello' is not a set",
    ];
    for (partition, text) in expected.into_iter().enumerate() {
        let path = format!("/brokers/topics/t/{partition}/error");
        cluster
            .until(text, async |cluster| cluster.text(&path).await.is_some_and(|error| error.contains(text)))
            .await;
    }
    cluster.set("/brokers/topics/t/0/replicas", "[1]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    cluster.until("the error goes", async |c| c.text("/brokers/topics/t/0/error").await.is_none()).await;
    let _ninety_nine = cluster.broker(99).await;
    cluster.until_text("/brokers/topics/t/3/leader", "99").await;
    cluster.until("the error goes", async |c| c.text("/brokers/topics/t/3/error").await.is_none()).await;
    cluster.controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_changes_its_isr_through_the_controller_and_shuts_down() {
    let cluster = Cluster::start().await;
    let (one, two) = (cluster.broker(1).await, cluster.broker(2).await);
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1,2]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    let node = cluster.text("/brokers/topics/t").await.unwrap();
    let id = decode_topic(node.as_bytes()).unwrap().unwrap();
    let peer = cluster.peer().await;
    let ask = |isr: Vec<(i32, i64)>, partition_epoch| {
        let members = isr.into_iter().map(|(id, epoch)| {
            BrokerState::default().with_broker_id(WireBrokerId(id)).with_broker_epoch(epoch)
        });
        let partition = PartitionData::default()
            .with_leader_epoch(0)
            .with_partition_epoch(partition_epoch)
            .with_new_isr_with_epochs(members.collect());
        let topic = TopicData::default().with_topic_id(id.0).with_partitions(vec![partition]);
        AlterPartitionRequest::default()
            .with_broker_id(WireBrokerId(1))
            .with_broker_epoch(one.epoch.0)
            .with_topics(vec![topic])
    };
    let shrunk = peer.call(3, &ask(vec![(1, one.epoch.0)], 0)).await.unwrap();
    let answer = &shrunk.topics[0].partitions[0];
    assert_eq!((shrunk.error_code, answer.error_code, answer.partition_epoch), (0, 0, 1));
    assert_eq!(cluster.text("/brokers/topics/t/0/ISR").await.as_deref(), Some("[1]"));
    let stale = peer.call(3, &ask(vec![(1, one.epoch.0), (2, 77)], 1)).await.unwrap();
    assert_eq!(stale.topics[0].partitions[0].error_code, 107, "a member of another registration");
    let grown = peer.call(3, &ask(vec![(1, one.epoch.0), (2, two.epoch.0)], 1)).await.unwrap();
    assert_eq!(grown.topics[0].partitions[0].partition_epoch, 2);

    let leave =
        ControlledShutdownRequest::default().with_broker_id(WireBrokerId(1)).with_broker_epoch(one.epoch.0);
    let left = peer.call(3, &leave).await.unwrap();
    assert_eq!((left.error_code, left.remaining_partitions.len()), (0, 0));
    cluster.until_text("/brokers/topics/t/0/leader", "2").await;
    cluster.controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over() {
    let cluster = Cluster::start().await;
    let standby = controller(2, &cluster.connect).await;
    let _brokers = [cluster.broker(1).await, cluster.broker(2).await];
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1,2]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    cluster.controller.shutdown().await;
    let admin = &cluster.admin;
    let wait = async {
        while admin.get("/controller_epoch").await.unwrap().unwrap().data != b"2" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
    let [one, _two] = _brokers;
    one.die().await;
    let wait = async {
        while admin.get("/brokers/topics/t/0/leader").await.unwrap().is_none_or(|node| node.data != b"2") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
    let state = admin.get("/brokers/topics/t/0/state").await.unwrap().unwrap();
    let state = String::from_utf8(state.data).unwrap();
    assert!(state.contains(r#""leader_epoch":1,"controller_epoch":2"#), "{state}");
    standby.shutdown().await;
}

/// The whole tree is read once, by the standby; to take office it reads what has changed. CTL-12: what happened
/// together with the end of the last controller is seen.
#[tokio::test(flavor = "multi_thread")]
async fn ctl_12_a_standby_has_read_the_tree_before_it_takes_over() {
    const PARTITIONS: i32 = 200;
    let cluster = Cluster::start().await;
    let [one, two] = [cluster.broker(1).await, cluster.broker(2).await];
    cluster.create("/brokers/topics/t", "").await;
    for partition in 0..PARTITIONS {
        cluster.create_partition("t", partition, "[2,1]").await;
    }
    cluster.create("/brokers/topics/u", "").await;
    cluster.create_partition("u", 0, "[1,2]").await;
    for path in [format!("t/{}", PARTITIONS - 1), "u/0".to_owned()] {
        let path = format!("/brokers/topics/{path}/leader");
        cluster.until(&path, async |cluster| cluster.text(&path).await.is_some()).await;
    }
    let (counter, connect) = ByteCounter::start(&cluster.connect).await;
    let whole = read_everything(&connect, &counter).await;
    let before = counter.received();
    let standby = controller(2, &connect).await;
    // Long before it is done, or long after: in any case it reads the tree once.
    while counter.received() < before + whole / 4 {
        tokio::task::yield_now().await;
    }
    let Cluster { admin, controller: first, zookeeper_server: _server, .. } = cluster;
    tokio::join!(one.die(), first.shutdown());
    let wait = async {
        while two.told.lock().full_requests < 2 {
            tokio::task::yield_now().await;
        }
        // Epoch 2 if the first controller had still elected, and the office was not taken when the second one looked.
        while !matches!(two.told.lock().roles.get("u-0"), Some((2, 1..=2))) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
    let read = counter.received() - before;
    assert!(read < whole * 3 / 2, "the standby read {read} bytes; the tree takes {whole}");
    let leader = admin.get("/brokers/topics/t/0/state").await.unwrap().unwrap();
    assert_eq!(leader.version, 0, "a serving leader is left alone");
    standby.shutdown().await;
}

/// Reads the partitions of `t` level by level, as a controller does, and says how many bytes that took.
async fn read_everything(connect: &str, counter: &ByteCounter) -> u64 {
    let config = ZooKeeperConfig {
        connect: connect.to_owned(),
        session_timeout: TIMEOUT,
        connection_timeout: TIMEOUT,
    };
    let reader = ZooKeeper::connect(config).await.unwrap();
    let before = counter.received();
    let below = async |parents: Vec<String>| {
        let children = reader.children_many(&parents).await.unwrap();
        let pairs = parents.iter().zip(children);
        pairs
            .flat_map(|(parent, names)| {
                names.unwrap_or_default().into_iter().map(move |name| format!("{parent}/{name}"))
            })
            .collect::<Vec<String>>()
    };
    let partitions = below(vec!["/brokers/topics/t".to_owned()]).await;
    let mut paths = below(partitions.clone()).await;
    paths.extend(partitions);
    reader.get_many(&paths).await.unwrap();
    let read = counter.received() - before;
    reader.close().await;
    read
}

/// L1: what happens while the watches are lost is noticed after the reconnect.
#[tokio::test(flavor = "multi_thread")]
async fn l1_connections_are_cut_while_a_broker_dies_and_a_topic_is_written() {
    let cluster = Cluster::start().await;
    let (one, _two) = (cluster.broker(1).await, cluster.broker(2).await);
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1,2]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    let session = one.zookeeper.session_id();
    let Some(server) = cluster.in_process() else { return };
    server.drop_connections();
    server.expire_session(session);
    for (path, data) in
        [("/brokers/topics/u", ""), ("/brokers/topics/u/0", ""), ("/brokers/topics/u/0/replicas", "[2]")]
    {
        // An answer may be lost with the connection.
        while cluster.text(path).await.is_none() {
            let _ = cluster.admin.create_if_absent(path, data.as_bytes()).await;
        }
    }
    cluster.until_text("/brokers/topics/t/0/leader", "2").await;
    cluster.until_text("/brokers/topics/u/0/leader", "2").await;
    cluster.controller.shutdown().await;
}

/// A controller whose session ends drops everything and competes again, in a new epoch.
#[tokio::test(flavor = "multi_thread")]
async fn ctl_08_ctl_10_the_session_of_the_active_controller_expires() {
    let cluster = Cluster::start().await;
    let (one, _two) = (cluster.broker(1).await, cluster.broker(2).await);
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1,2]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    let owner = cluster.admin.get("/controller").await.unwrap().unwrap().ephemeral_owner;
    let Some(server) = cluster.in_process() else { return };
    server.expire_session(owner);
    cluster.until_text("/controller_epoch", "2").await;
    cluster.until("all is told again", async |_| one.told.lock().full_requests == 2).await;
    assert_eq!(one.told.lock().roles["t-0"], (1, 0), "a serving leader is left alone");
    one.die().await;
    cluster.until_text("/brokers/topics/t/0/leader", "2").await;

    // Somebody deletes the node: the office is lost with the session alive.
    let path = "/controller".to_owned();
    cluster.admin.multi(&[Op::Delete { path, version: None }]).await.unwrap();
    cluster.until_text("/controller_epoch", "3").await;
    cluster.controller.shutdown().await;
}

/// CTL-11: a registration that comes and goes is seen as it is in the end.
#[tokio::test(flavor = "multi_thread")]
async fn ctl_11_a_registration_that_flaps_is_seen_as_it_is() {
    let cluster = Cluster::start().await;
    let two = cluster.broker(2).await;
    let mut one = cluster.broker(1).await;
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1,2]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    for _ in 0..15 {
        one.die().await;
        one = cluster.broker(1).await;
    }
    cluster
        .until("everybody knows both", async |_| {
            let (first, second) = (one.told.lock(), two.told.lock());
            first.live == [1, 2] && second.live == [1, 2] && first.roles.get("t-0") == second.roles.get("t-0")
        })
        .await;
    one.die().await;
    cluster.until("one is left", async |_| two.told.lock().live == [2]).await;
    cluster.until_text("/brokers/topics/t/0/leader", "2").await;
    cluster.controller.shutdown().await;
}

/// CTL-18: whoever asks while the office is lost gets an answer.
#[tokio::test(flavor = "multi_thread")]
async fn ctl_18_requests_are_answered_when_the_office_is_lost() {
    let cluster = Cluster::start().await;
    let one = cluster.broker(1).await;
    cluster.create("/brokers/topics/t", "").await;
    cluster.create_partition("t", 0, "[1]").await;
    cluster.until_text("/brokers/topics/t/0/leader", "1").await;
    let peer = cluster.peer().await;
    let leave =
        ControlledShutdownRequest::default().with_broker_id(WireBrokerId(1)).with_broker_epoch(one.epoch.0);
    let asking = (0..100).map(|_| peer.call_within(TIMEOUT, 3, &leave));
    let path = "/controller".to_owned();
    let losing = async { cluster.admin.multi(&[Op::Delete { path, version: None }]).await.unwrap() };
    let (answers, _) = tokio::join!(futures::future::join_all(asking), losing);
    for answer in answers {
        let code = answer.unwrap().error_code;
        assert!([0, 41].contains(&code), "error {code}");
    }
    cluster.until_text("/controller_epoch", "2").await;
    cluster.controller.shutdown().await;
}

/// CTL-23: a burst of changes ends in what stands there in the end.
#[tokio::test(flavor = "multi_thread")]
async fn ctl_23_a_burst_of_topics_that_come_and_go() {
    const TOPICS: usize = 40;
    let cluster = Cluster::start().await;
    let one = cluster.broker(1).await;
    for index in 0..TOPICS {
        let topic = format!("t{index}");
        cluster.create(&format!("/brokers/topics/{topic}"), "").await;
        cluster.create_partition(&topic, 0, "[1]").await;
        if index % 4 == 0 {
            cluster.create(&format!("/admin/delete_topics/{topic}"), "").await;
        }
    }
    cluster
        .until("what is left leads, the rest is gone", async |cluster| {
            let left = cluster.admin.children("/brokers/topics").await.unwrap().unwrap();
            let wishes = cluster.admin.children("/admin/delete_topics").await.unwrap().unwrap();
            let led = one.told.lock().leaders.values().filter(|leader| **leader == 1).count();
            left.len() == TOPICS * 3 / 4 && wishes.is_empty() && led == TOPICS * 3 / 4
        })
        .await;
    cluster.controller.shutdown().await;
}
