//! The cluster of the tests, and what its controller says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::update_metadata_request::{
    UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest,
};
use kafka_protocol::messages::{LeaderAndIsrRequest, LeaderAndIsrResponse};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use zurau_common::config::{BrokerConfig, Settings};
use zurau_common::http::exposition::Exposition;
use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};
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
use crate::metrics::write_page;
use crate::partition::{Acks, Partition};

const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct World {
    pub(super) server: Server,
    pub(super) zookeeper: ZooKeeper,
    pub(super) directories: TempDir,
    pub(super) brokers: Vec<Option<Broker>>,
    /// The one partition that there is.
    pub(super) hosted: TopicPartition,
    pub(super) topic_id: TopicId,
    /// Version of `state` and of `ISR` as last written or read by the test.
    pub(super) state_version: i32,
    /// What brokers are started with besides.
    overrides: Vec<(&'static str, String)>,
    controller_connections: u64,
}

pub(super) fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

pub(super) fn id() -> TopicPartition {
    TopicPartition::new("t", 0)
}

pub(super) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl World {
    pub(super) async fn start() -> Self {
        Self::start_with(Vec::new()).await
    }

    /// Brokers with these settings, too.
    pub(super) async fn start_with(overrides: Vec<(&'static str, String)>) -> Self {
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
            hosted: id(),
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            state_version: 0,
            overrides,
            controller_connections: 0,
        };
        for number in 1..=3 {
            world.start_broker(number).await;
        }
        world
    }

    pub(super) fn pairs(&self, number: i32) -> Vec<(&'static str, String)> {
        let pairs = vec![
            ("broker.id", number.to_string()),
            ("zookeeper.connect", self.server.connect_string()),
            ("zookeeper.session.timeout.ms", "2000".to_owned()),
            ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
            ("log.dirs", self.directories.path().join(number.to_string()).display().to_string()),
            ("min.insync.replicas", "2".to_owned()),
            ("isr.update.path", "zookeeper".to_owned()),
            ("controlled.shutdown.enable", "false".to_owned()),
            // Every batch is larger (GRP-04).
            ("offsets.load.buffer.size", "1".to_owned()),
        ];
        [pairs, self.overrides.clone()].concat()
    }

    pub(super) fn config_of(pairs: Vec<(&'static str, String)>) -> BrokerConfig {
        BrokerConfig::from_settings(Settings::from_pairs(pairs).unwrap()).unwrap()
    }

    pub(super) async fn start_broker(&mut self, number: i32) {
        let deadline = Instant::now() + DEADLINE;
        let broker = loop {
            match Broker::start(Self::config_of(self.pairs(number))).await {
                Ok(broker) => break broker,
                // A broker that was dropped gives its directories back a moment later.
                Err(reason) if format!("{reason:#}").contains("in use") && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(reason) => panic!("{reason:#}"),
            }
        };
        self.brokers[number as usize - 1] = Some(broker);
    }

    pub(super) fn broker(&self, number: i32) -> &Broker {
        self.brokers[number as usize - 1].as_ref().unwrap()
    }

    pub(super) fn partition(&self, number: i32) -> Arc<Partition> {
        self.broker(number).parts.context.partitions.get(&self.hosted.topic, 0).unwrap()
    }

    pub(super) fn running(&self) -> Vec<i32> {
        (1..=3).filter(|number| self.brokers[*number as usize - 1].is_some()).collect()
    }

    /// What an admin and the controller write for a new topic.
    pub(super) async fn create_topic(&mut self) {
        let hosted = self.hosted.clone();
        let create = |path: String, data: Vec<u8>| Op::Create { path, data, lifetime: Lifetime::Persistent };
        let ops = [
            create(Znode::Topic(Arc::clone(&hosted.topic)).path(), encode_topic(self.topic_id)),
            create(Znode::Partition(hosted.clone()).path(), Vec::new()),
            create(Znode::Replicas(hosted.clone()).path(), encode_ids(&ids(&[1, 2, 3]))),
            create(
                Znode::TopicIdEntry(self.topic_id).path(),
                TopicIdEntry::new(Arc::clone(&hosted.topic)).encode(),
            ),
            create(Znode::State(hosted.clone()).path(), state(1, 0).encode()),
        ];
        self.zookeeper.multi(&ops).await.unwrap();
    }

    /// What the controller writes when it elects.
    pub(super) async fn elect(&mut self, leader: i32, epoch: i32) {
        let hosted = self.hosted.clone();
        let set = Op::SetData {
            path: Znode::State(hosted.clone()).path(),
            data: state(leader, epoch).encode(),
            version: Some(self.state_version),
        };
        let mut ops = vec![set];
        let path = Znode::Leader(hosted.clone()).path();
        if self.zookeeper.exists(&path).await.unwrap() {
            ops.push(Op::Delete { path, version: None });
        }
        self.zookeeper.multi(&ops).await.unwrap();
        self.state_version += 1;
    }

    pub(super) async fn isr(&self) -> Option<(Vec<BrokerId>, PartitionEpoch)> {
        let node = self.zookeeper.get(&Znode::Isr(self.hosted.clone()).path()).await.unwrap()?;
        Some((decode_ids(&node.data).unwrap(), PartitionEpoch(node.version)))
    }

    pub(super) async fn order(&self, leader: i32, epoch: i32) -> LeaderAndIsr {
        let stored = self.isr().await;
        let live: Vec<BrokerId> = ids(&self.running());
        let isr = stored.as_ref().map_or_else(|| live.clone(), |(isr, _)| isr.clone());
        LeaderAndIsr {
            partition: self.hosted.clone(),
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

    pub(super) fn connection(&mut self) -> Connection {
        self.controller_connections += 1;
        Connection {
            id: self.controller_connections,
            peer_address: SocketAddr::from(([127, 0, 0, 1], 1)),
            listener: ListenerName::from("PLAINTEXT"),
            closer: CancellationToken::new(),
        }
    }

    pub(super) fn request(&self, number: i32, orders: &[LeaderAndIsr]) -> LeaderAndIsrRequest {
        let context = &self.broker(number).parts.context;
        let header = LeaderAndIsrHeader {
            controller_id: 100,
            controller_epoch: orders[0].controller_epoch,
            broker_epoch: context.broker_epoch(),
            full: true,
        };
        let leaders: Vec<_> = self
            .running()
            .into_iter()
            .map(|number| (BrokerId(number), "127.0.0.1".to_owned(), self.port(number)))
            .collect();
        leader_and_isr_request(header, orders, &leaders)
    }

    pub(super) async fn send(&mut self, number: i32, order: &LeaderAndIsr) -> Result<(), Rejection> {
        let answer = self.send_many(number, std::slice::from_ref(order)).await;
        Rejection::from_code(answer.topics[0].partition_errors[0].error_code).map_or(Ok(()), Err)
    }

    /// All that the broker shall host.
    pub(super) async fn send_many(&mut self, number: i32, orders: &[LeaderAndIsr]) -> LeaderAndIsrResponse {
        let connection = self.connection();
        let request = self.request(number, orders);
        let context = &self.broker(number).parts.context;
        let Answered::Answer(answer) = leader_and_isr(context, &connection, request).await else {
            panic!("the connection was closed")
        };
        assert_eq!(answer.error_code, 0);
        answer
    }

    pub(super) fn port(&self, number: i32) -> u16 {
        self.broker(number).addresses()[0].1.port()
    }

    pub(super) async fn send_to_all(&mut self, leader: i32, epoch: i32) {
        let order = self.order(leader, epoch).await;
        for number in self.running() {
            self.send(number, &order).await.unwrap();
        }
    }

    pub(super) async fn publish_live_brokers(&mut self) {
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

    pub(super) async fn produce(&self, leader: i32, tag: u8, acks: Acks) -> i64 {
        let records = batch(&BatchSpec { tag, ..BatchSpec::default() });
        let appended = self.partition(leader).append(records, acks, 1_000).unwrap();
        if let Some(committed) = appended.committed {
            tokio::time::timeout(DEADLINE, committed).await.expect("committed in time").unwrap();
        }
        appended.first_offset
    }

    /// What `/metrics` of a broker tells.
    pub(super) async fn metric(&self, number: i32, sample: &str) -> f64 {
        let context = Arc::clone(&self.broker(number).parts.context);
        let writing = tokio::task::spawn_blocking(move || {
            let mut page = Exposition::default();
            write_page(&context, &mut page);
            page.into_text()
        });
        let page = writing.await.unwrap();
        let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {sample} in {page}"))
    }

    pub(super) fn bytes(&self, number: i32) -> Bytes {
        let partition = self.partition(number);
        partition.with_log(|log| log.read_plan(0, 1 << 20, i64::MAX, true).unwrap().read().unwrap()).unwrap()
    }

    pub(super) fn log_end(&self, number: i32) -> i64 {
        self.partition(number).status().log_end_offset
    }

    /// The whole log is everywhere, and committed where it matters.
    pub(super) async fn agree(&self, log_end: i64) {
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

pub(super) fn state(leader: i32, epoch: i32) -> PartitionState {
    PartitionState::new(
        BrokerId(leader),
        LeaderEpoch(epoch),
        ControllerEpoch(1),
        ids(&[1, 2, 3]),
        ids(&[1, 2, 3]),
    )
}
