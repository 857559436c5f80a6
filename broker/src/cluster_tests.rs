//! Three brokers in one process against the in-process ZooKeeper; the test plays the controller.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::update_metadata_request::{
    UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use zurau_common::config::{BrokerConfig, Settings};
use zurau_common::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{LeaderAndIsrHeader, TYPE_FULL, leader_and_isr_request};
use zurau_common::wire::server::{Connection, ListenerName};
use zurau_common::zk::isr::{decode_ids, encode_ids};
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::{TopicIdEntry, encode_topic};
use zurau_common::zk::znode::Znode;
use zurau_zookeeper::{Server, ServerConfig};

use crate::Broker;
use crate::control::{Answered, leader_and_isr, update_metadata};
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::{Acks, Isolation, Partition, ReadRequest, Reader};

const DEADLINE: Duration = Duration::from_secs(20);

struct World {
    server: Server,
    zookeeper: ZooKeeper,
    directories: TempDir,
    brokers: Vec<Option<Broker>>,
    topic_id: TopicId,
    /// Version of `state` and of `ISR` as last written or read by the test.
    state_version: i32,
    controller_connections: u64,
}

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

fn id() -> TopicPartition {
    TopicPartition::new("t", 0)
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl World {
    async fn start() -> Self {
        let config =
            ServerConfig { min_session_timeout: Duration::from_millis(100), ..ServerConfig::default() };
        let server = Server::start(config).await.unwrap();
        let zookeeper = ZooKeeper::connect(ZooKeeperConfig {
            connect: server.connect_string(),
            session_timeout: Duration::from_secs(10),
            connection_timeout: Duration::from_secs(10),
        })
        .await
        .unwrap();
        let mut world = Self {
            server,
            zookeeper,
            directories: tempfile::tempdir().unwrap(),
            brokers: vec![None, None, None],
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            state_version: 0,
            controller_connections: 0,
        };
        for number in 1..=3 {
            world.start_broker(number).await;
        }
        world
    }

    fn config(&self, number: i32) -> BrokerConfig {
        let pairs = [
            ("broker.id", number.to_string()),
            ("zookeeper.connect", self.server.connect_string()),
            ("zookeeper.session.timeout.ms", "2000".to_owned()),
            ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
            ("log.dirs", self.directories.path().join(number.to_string()).display().to_string()),
            ("min.insync.replicas", "2".to_owned()),
            ("isr.update.path", "zookeeper".to_owned()),
            ("controlled.shutdown.enable", "false".to_owned()),
        ];
        BrokerConfig::from_settings(Settings::from_pairs(pairs).unwrap()).unwrap()
    }

    async fn start_broker(&mut self, number: i32) {
        let broker = Broker::start(self.config(number)).await.unwrap();
        self.brokers[number as usize - 1] = Some(broker);
    }

    fn broker(&self, number: i32) -> &Broker {
        self.brokers[number as usize - 1].as_ref().unwrap()
    }

    fn partition(&self, number: i32) -> Arc<Partition> {
        self.broker(number).parts.context.partitions.get("t", 0).unwrap()
    }

    fn running(&self) -> Vec<i32> {
        (1..=3).filter(|number| self.brokers[*number as usize - 1].is_some()).collect()
    }

    /// What an admin and the controller write for a new topic.
    async fn create_topic(&mut self) {
        let create = |path: String, data: Vec<u8>| Op::Create { path, data, lifetime: Lifetime::Persistent };
        let ops = [
            create(Znode::Topic("t".into()).path(), encode_topic(self.topic_id)),
            create(Znode::Partition(id()).path(), Vec::new()),
            create(Znode::Replicas(id()).path(), encode_ids(&ids(&[1, 2, 3]))),
            create(Znode::TopicIdEntry(self.topic_id).path(), TopicIdEntry::new("t".into()).encode()),
            create(Znode::State(id()).path(), state(1, 0).encode()),
        ];
        self.zookeeper.multi(&ops).await.unwrap();
    }

    /// What the controller writes when it elects.
    async fn elect(&mut self, leader: i32, epoch: i32) {
        let set = Op::SetData {
            path: Znode::State(id()).path(),
            data: state(leader, epoch).encode(),
            version: Some(self.state_version),
        };
        let mut ops = vec![set];
        let path = Znode::Leader(id()).path();
        if self.zookeeper.exists(&path).await.unwrap() {
            ops.push(Op::Delete { path, version: None });
        }
        self.zookeeper.multi(&ops).await.unwrap();
        self.state_version += 1;
    }

    async fn isr(&self) -> Option<(Vec<BrokerId>, PartitionEpoch)> {
        let node = self.zookeeper.get(&Znode::Isr(id()).path()).await.unwrap()?;
        Some((decode_ids(&node.data).unwrap(), PartitionEpoch(node.version)))
    }

    async fn order(&self, leader: i32, epoch: i32) -> LeaderAndIsr {
        let stored = self.isr().await;
        let live: Vec<BrokerId> = ids(&self.running());
        let isr = stored.as_ref().map_or_else(|| live.clone(), |(isr, _)| isr.clone());
        LeaderAndIsr {
            partition: id(),
            topic_id: self.topic_id,
            controller_epoch: ControllerEpoch(1),
            leader: BrokerId(leader),
            leader_epoch: LeaderEpoch(epoch),
            isr: isr.into_iter().filter(|member| live.contains(member)).collect(),
            partition_epoch: stored.map_or(PartitionEpoch::CREATE, |(_, epoch)| epoch),
            replicas: ids(&[1, 2, 3]),
            adding_replicas: Vec::new(),
            removing_replicas: Vec::new(),
            is_new: epoch == 0,
            recovery: false,
            state_version: self.state_version,
            elr: None,
        }
    }

    fn connection(&mut self) -> Connection {
        self.controller_connections += 1;
        Connection {
            id: self.controller_connections,
            peer_address: SocketAddr::from(([127, 0, 0, 1], 1)),
            listener: ListenerName::from("PLAINTEXT"),
            closer: CancellationToken::new(),
        }
    }

    async fn send(&mut self, number: i32, order: &LeaderAndIsr) -> Result<(), Rejection> {
        let connection = self.connection();
        let context = &self.broker(number).parts.context;
        let header = LeaderAndIsrHeader {
            controller_id: 100,
            controller_epoch: order.controller_epoch,
            broker_epoch: context.broker_epoch(),
            full: true,
        };
        let leaders: Vec<_> = self
            .running()
            .into_iter()
            .map(|number| (BrokerId(number), "127.0.0.1".to_owned(), self.port(number)))
            .collect();
        let request = leader_and_isr_request(header, std::slice::from_ref(order), &leaders);
        let Answered::Answer(answer) = leader_and_isr(context, &connection, request).await else {
            panic!("the connection was closed")
        };
        assert_eq!(answer.error_code, 0);
        Rejection::from_code(answer.topics[0].partition_errors[0].error_code).map_or(Ok(()), Err)
    }

    fn port(&self, number: i32) -> u16 {
        self.broker(number).addresses()[0].1.port()
    }

    async fn send_to_all(&mut self, leader: i32, epoch: i32) {
        let order = self.order(leader, epoch).await;
        for number in self.running() {
            self.send(number, &order).await.unwrap();
        }
    }

    async fn publish_live_brokers(&mut self) {
        let live: Vec<UpdateMetadataBroker> = self
            .running()
            .into_iter()
            .map(|number| {
                let endpoint = UpdateMetadataEndpoint::default()
                    .with_host("127.0.0.1".into())
                    .with_port(i32::from(self.port(number)))
                    .with_listener("PLAINTEXT".into());
                UpdateMetadataBroker::default().with_id(number.into()).with_endpoints(vec![endpoint])
            })
            .collect();
        for number in self.running() {
            let connection = self.connection();
            let context = &self.broker(number).parts.context;
            let request = UpdateMetadataRequest::default()
                .with_controller_epoch(1)
                .with_broker_epoch(context.broker_epoch().0)
                .with_type(TYPE_FULL)
                .with_live_brokers(live.clone());
            let Answered::Answer(answer) = update_metadata(context, &connection, request).await else {
                panic!("the connection was closed")
            };
            assert_eq!(answer.error_code, 0);
        }
    }

    async fn produce(&self, leader: i32, tag: u8, acks: Acks) -> i64 {
        let records = batch(&BatchSpec { tag, ..BatchSpec::default() });
        let appended = self.partition(leader).append(records, acks, 1_000).unwrap();
        if let Some(committed) = appended.committed {
            tokio::time::timeout(DEADLINE, committed).await.expect("committed in time").unwrap();
        }
        appended.first_offset
    }

    fn bytes(&self, number: i32) -> Bytes {
        let partition = self.partition(number);
        partition.with_log(|log| log.read_plan(0, 1 << 20, i64::MAX, true).unwrap().read().unwrap()).unwrap()
    }

    fn log_end(&self, number: i32) -> i64 {
        self.partition(number).status().log_end_offset
    }

    /// The whole log is everywhere, and committed where it matters.
    async fn agree(&self, log_end: i64) {
        for number in self.running() {
            eventually(&format!("the log of {number} ends at {log_end}"), async || {
                let status = self.partition(number).status();
                (status.log_end_offset, status.high_watermark) == (log_end, log_end)
            })
            .await;
        }
        let expected = self.bytes(self.running()[0]);
        assert!(self.running().into_iter().all(|number| self.bytes(number) == expected));
    }
}

fn state(leader: i32, epoch: i32) -> PartitionState {
    PartitionState::new(
        BrokerId(leader),
        LeaderEpoch(epoch),
        ControllerEpoch(1),
        ids(&[1, 2, 3]),
        ids(&[1, 2, 3]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_topic_is_replicated_and_fails_over() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    assert_eq!(world.isr().await, Some((ids(&[1, 2, 3]), PartitionEpoch(0))));
    let leader = world.zookeeper.get(&Znode::Leader(id()).path()).await.unwrap().unwrap();
    assert_eq!(leader.data, b"1");
    for (offset, tag) in (0..).zip(*b"abc") {
        assert_eq!(world.produce(1, tag, Acks::All).await, offset);
    }
    world.agree(3).await;

    // 2 and 3 leave 1 alone; what it still appends is lost, and must vanish from its log.
    world.elect(2, 1).await;
    let order = world.order(2, 1).await;
    world.send(2, &order).await.unwrap();
    world.send(3, &order).await.unwrap();
    assert_eq!(world.produce(1, b'x', Acks::Leader).await, 3);
    assert_eq!(world.produce(1, b'y', Acks::Leader).await, 4);
    assert_eq!(world.produce(2, b'z', Acks::None).await, 3);
    world.send(1, &order).await.unwrap();
    assert!(world.partition(1).append(batch(&BatchSpec::default()), Acks::All, 0).is_err(), "1 follows now");
    assert_eq!(world.produce(2, b'w', Acks::All).await, 4);
    world.agree(5).await;
    let twice = world.order(2, 1).await;
    world.send(2, &twice).await.unwrap();
    assert!(world.partition(2).is_leader(), "the same order again changes nothing");
    let older = LeaderAndIsr { leader_epoch: LeaderEpoch(0), ..twice };
    assert_eq!(world.send(2, &older).await, Err(Rejection::FencedLeaderEpoch));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_follower_leaves_the_isr_and_returns() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.publish_live_brokers().await;
    world.produce(1, b'a', Acks::All).await;

    drop(world.brokers[2].take());
    world.publish_live_brokers().await;
    eventually("3 is out of the ISR", async || world.isr().await.unwrap().0 == ids(&[1, 2])).await;
    world.produce(1, b'b', Acks::All).await;

    world.start_broker(3).await;
    let order = world.order(1, 0).await;
    world.send(3, &order).await.unwrap();
    world.publish_live_brokers().await;
    eventually("3 is in the ISR again", async || world.isr().await.unwrap().0.len() == 3).await;
    world.produce(1, b'c', Acks::All).await;
    world.agree(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_its_log_leaves_the_isr_before_it_is_alive() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    drop(world.brokers[1].take());
    std::fs::remove_dir_all(world.directories.path().join("2")).unwrap();
    world.start_broker(2).await;
    assert_eq!(world.isr().await.unwrap().0, ids(&[1, 3]), "M8");
    // It must not lead either (D4).
    world.elect(2, 1).await;
    let order = LeaderAndIsr { isr: ids(&[2]), ..world.order(2, 1).await };
    assert_eq!(world.send(2, &order).await, Err(Rejection::KafkaStorageError));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_keeps_everything_and_resigns() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let stopping = world.brokers[0].take().unwrap();
    let started = Instant::now();
    stopping.shutdown().await;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(world.zookeeper.get(&Znode::Leader(id()).path()).await.unwrap(), None);
    assert_eq!(world.zookeeper.get(&Znode::Broker(BrokerId(1)).path()).await.unwrap(), None);
    world.start_broker(1).await;
    assert_eq!(world.isr().await.unwrap().0, ids(&[1, 2, 3]), "nothing was lost");
    assert_eq!(world.log_end(1), 1);
    // F5: it does not lead in the same epoch again.
    let order = world.order(1, 0).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::FencedLeaderEpoch));
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    world.agree(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_stops_everything_until_told_again() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let context = Arc::clone(&world.broker(1).parts.context);
    let before = context.broker_epoch();
    let session = context.zookeeper.current().unwrap().session_id();
    world.server.expire_session(session);
    eventually("1 is registered again", async || {
        before < context.broker_epoch() && context.shared.holds_lease()
    })
    .await;
    assert!(!world.partition(1).is_leader());
    let order = world.order(1, 0).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::FencedLeaderEpoch), "F5");
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    world.agree(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_see_what_is_committed() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let request = ReadRequest {
        offset: 0,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch(0),
        last_fetched_epoch: LeaderEpoch::UNKNOWN,
        reader: Reader::Consumer { isolation: Isolation::ReadUncommitted },
    };
    let answer = world.partition(1).read(&request).unwrap();
    assert_eq!((answer.high_watermark, answer.plan.read().unwrap().is_empty()), (1, false));
    let ahead = ReadRequest { current_leader_epoch: LeaderEpoch(1), ..request };
    assert_eq!(world.partition(1).read(&ahead).err(), Some(Rejection::UnknownLeaderEpoch));
    let beyond = ReadRequest { offset: 2, ..request };
    assert_eq!(world.partition(1).read(&beyond).err(), Some(Rejection::OffsetOutOfRange));
    assert_eq!(world.partition(2).read(&request).err(), Some(Rejection::NotLeaderOrFollower));
}
