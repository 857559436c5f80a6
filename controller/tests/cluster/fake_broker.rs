//! A broker that keeps no records: it registers, obeys LeaderAndIsr with the take-over multi of coordination.md, and
//! remembers what it was told.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_protocol::messages::leader_and_isr_response::{LeaderAndIsrPartitionError, LeaderAndIsrTopicError};
use kafka_protocol::messages::stop_replica_response::StopReplicaPartitionError;
use kafka_protocol::messages::{
    ApiKey, LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest, StopReplicaResponse,
    UpdateMetadataRequest, UpdateMetadataResponse,
};
use kafka_protocol::protocol::Encodable;
use parking_lot::Mutex;
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::wire::control::{leader_and_isr_header, leader_and_isr_partitions};
use zurau_common::wire::frame::{RequestFrame, decode_request_body, encode_response};
use zurau_common::wire::server::{
    Answer, Connection, ListenerAddress, ListenerName, RequestHandler, Server, ServerLimits,
};
use zurau_common::zk::broker::Address;
use zurau_common::zk::fence::{Expected, Fence, IsrWrite, PartitionWrite, build};
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::znode::Znode;

use crate::TIMEOUT;

/// What the broker was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Leader and epoch by partition, as last told.
    pub(crate) roles: BTreeMap<String, (i32, i32)>,
    /// Leader by partition in the metadata; −1: none.
    pub(crate) leaders: BTreeMap<String, i32>,
    pub(crate) live: Vec<i32>,
    pub(crate) stopped: Vec<String>,
    pub(crate) full_requests: usize,
}

pub(crate) struct FakeBroker {
    pub(crate) epoch: BrokerEpoch,
    pub(crate) zookeeper: ZooKeeper,
    pub(crate) told: Arc<Mutex<Told>>,
    _server: Server,
}

struct Handler {
    id: BrokerId,
    zookeeper: ZooKeeper,
    epoch: Arc<Mutex<BrokerEpoch>>,
    told: Arc<Mutex<Told>>,
}

impl FakeBroker {
    pub(crate) async fn start(id: i32, connect: &str) -> Self {
        let id = BrokerId(id);
        let config = ZooKeeperConfig {
            connect: connect.to_owned(),
            session_timeout: std::time::Duration::from_secs(6),
            connection_timeout: TIMEOUT,
        };
        let zookeeper = ZooKeeper::connect(config).await.unwrap();
        let told: Arc<Mutex<Told>> = Arc::default();
        let epoch = Arc::new(Mutex::new(BrokerEpoch(-1)));
        let handler =
            Handler { id, zookeeper: zookeeper.clone(), epoch: Arc::clone(&epoch), told: Arc::clone(&told) };
        let listener =
            ListenerAddress { name: ListenerName::from("PLAINTEXT"), host: "127.0.0.1".into(), port: 0 };
        let server = Server::bind(&[listener], ServerLimits::default(), Arc::new(handler)).await.unwrap();
        let port = server.local_addresses()[0].1.port();
        let registered = register(&zookeeper, id, port, &epoch).await;
        Self { epoch: registered, zookeeper, told, _server: server }
    }

    /// As kill -9 and the session's end.
    pub(crate) async fn die(self) {
        self.zookeeper.close().await;
    }
}

/// The three steps of a registration, without records to look at.
async fn register(zookeeper: &ZooKeeper, id: BrokerId, port: u16, own: &Mutex<BrokerEpoch>) -> BrokerEpoch {
    let path = Znode::BrokerEpoch(id).path();
    let (op, epoch) = match zookeeper.get(&path).await.unwrap() {
        Some(node) => {
            (Op::SetData { path, data: b"x".to_vec(), version: Some(node.version) }, node.version + 1)
        }
        None => (Op::Create { path, data: b"x".to_vec(), lifetime: Lifetime::Persistent }, 0),
    };
    zookeeper.multi(&[op]).await.unwrap();
    // Known before anybody can see the broker.
    *own.lock() = BrokerEpoch(i64::from(epoch));
    let address = Address { host: "127.0.0.1".into(), port };
    let create =
        Op::Create { path: Znode::Broker(id).path(), data: address.encode(), lifetime: Lifetime::Ephemeral };
    zookeeper.multi(&[create]).await.unwrap();
    BrokerEpoch(i64::from(epoch))
}

impl Handler {
    async fn leader_and_isr(&self, frame: &RequestFrame) -> Answer {
        let request: LeaderAndIsrRequest = decode_request_body(frame).unwrap();
        let header = leader_and_isr_header(&request);
        let current = header.broker_epoch == *self.epoch.lock();
        let records = leader_and_isr_partitions(&request).unwrap();
        if !current {
            return answer(frame, &LeaderAndIsrResponse::default().with_error_code(77));
        }
        self.told.lock().full_requests += usize::from(header.full);
        let mut topics: BTreeMap<uuid::Uuid, Vec<LeaderAndIsrPartitionError>> = BTreeMap::new();
        for record in &records {
            let code = if record.leader == self.id { self.take_over(record).await } else { 0 };
            let role = (record.leader.0, record.leader_epoch.0);
            self.told.lock().roles.insert(record.partition.to_string(), role);
            let error = LeaderAndIsrPartitionError::default()
                .with_partition_index(record.partition.partition)
                .with_error_code(code);
            topics.entry(record.topic_id.0).or_default().push(error);
        }
        let topics = topics.into_iter().map(|(id, partitions)| {
            LeaderAndIsrTopicError::default().with_topic_id(id).with_partition_errors(partitions)
        });
        answer(frame, &LeaderAndIsrResponse::default().with_topics(topics.collect()))
    }

    async fn take_over(&self, record: &LeaderAndIsr) -> i16 {
        let tp = &record.partition;
        let leader = self.zookeeper.get(&Znode::Leader(tp.clone()).path()).await.unwrap();
        let state = self.zookeeper.get(&Znode::State(tp.clone()).path()).await.unwrap();
        if leader.as_ref().is_some_and(|leader| state.is_some_and(|state| leader.czxid > state.mzxid)) {
            return 0;
        }
        let fence = Fence {
            partition: tp.clone(),
            topic_id: record.topic_id,
            state: Expected::Version(record.state_version),
            isr: match record.partition_epoch.0 {
                -1 => Expected::Absent,
                version => Expected::Version(version),
            },
            controller_epoch_version: None,
            broker_epochs: vec![(self.id, *self.epoch.lock())],
        };
        let write = PartitionWrite {
            isr: Some(IsrWrite { isr: record.isr.clone(), elr: vec![], elr_exists: false }),
            delete_leader: leader.is_some(),
            create_leader: Some(self.id),
            ..PartitionWrite::default()
        };
        match self.zookeeper.multi(&build(&fence, &write)).await {
            Ok(_) => 0,
            Err(_) => 6,
        }
    }

    fn stop_replica(&self, frame: &RequestFrame) -> Answer {
        let request: StopReplicaRequest = decode_request_body(frame).unwrap();
        let mut errors = Vec::new();
        for topic in &request.topic_states {
            for partition in &topic.partition_states {
                let name = format!("{}-{}", topic.topic_name.as_str(), partition.partition_index);
                self.told.lock().stopped.push(name);
                let error = StopReplicaPartitionError::default()
                    .with_topic_name(topic.topic_name.clone())
                    .with_partition_index(partition.partition_index);
                errors.push(error);
            }
        }
        answer(frame, &StopReplicaResponse::default().with_partition_errors(errors))
    }

    fn update_metadata(&self, frame: &RequestFrame) -> Answer {
        let request: UpdateMetadataRequest = decode_request_body(frame).unwrap();
        let mut told = self.told.lock();
        told.live = request.live_brokers.iter().map(|broker| broker.id.0).collect();
        for topic in &request.topic_states {
            for partition in &topic.partition_states {
                let name = format!("{}-{}", topic.topic_name.as_str(), partition.partition_index);
                match partition.leader.0 {
                    -2 => told.leaders.remove(&name),
                    leader => told.leaders.insert(name, leader),
                };
            }
        }
        answer(frame, &UpdateMetadataResponse::default())
    }
}

fn answer<R: Encodable>(frame: &RequestFrame, response: &R) -> Answer {
    let bytes = encode_response(frame.api_key, frame.api_version, frame.correlation_id, response).unwrap();
    Answer::Now(bytes.into())
}

impl RequestHandler for Handler {
    fn start<'a>(&'a self, _connection: &'a Connection, request: RequestFrame) -> BoxFuture<'a, Answer> {
        async move {
            match ApiKey::try_from(request.api_key) {
                Ok(ApiKey::LeaderAndIsr) => self.leader_and_isr(&request).await,
                Ok(ApiKey::StopReplica) => self.stop_replica(&request),
                Ok(ApiKey::UpdateMetadata) => self.update_metadata(&request),
                other => Answer::Close(format!("{other:?}")),
            }
        }
        .boxed()
    }
}
