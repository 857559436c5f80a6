//! A broker without records, so that the controller and ZooKeeper alone are measured: it registers, takes office in
//! batched multis as the real one does, and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kafka_protocol::messages::leader_and_isr_response::{LeaderAndIsrPartitionError, LeaderAndIsrTopicError};
use kafka_protocol::messages::stop_replica_response::StopReplicaPartitionError;
use kafka_protocol::messages::{
    ApiKey, LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest, StopReplicaResponse,
    UpdateMetadataResponse,
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

use super::LIMIT;

const STALE_BROKER_EPOCH: i16 = 77;
const NOT_LEADER: i16 = 6;

/// What all hosts of a cluster have done.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Partitions whose leader has taken office.
    pub(super) taken: AtomicUsize,
    /// Full LeaderAndIsr requests that have come: their controller has judged everything.
    pub(super) full: AtomicUsize,
}

pub(super) struct Host {
    pub(super) epoch: BrokerEpoch,
    zookeeper: ZooKeeper,
    _server: Server,
}

struct Handler {
    id: BrokerId,
    zookeeper: ZooKeeper,
    epoch: Mutex<BrokerEpoch>,
    counts: Arc<Counts>,
}

pub(super) async fn session(connect: &str) -> Result<ZooKeeper> {
    let config = ZooKeeperConfig {
        connect: connect.to_owned(),
        session_timeout: Duration::from_secs(30),
        connection_timeout: LIMIT,
    };
    ZooKeeper::connect(config).await
}

impl Host {
    pub(super) async fn start(id: i32, connect: &str, counts: &Arc<Counts>) -> Result<Self> {
        let id = BrokerId(id);
        let zookeeper = session(connect).await?;
        let handler = Arc::new(Handler {
            id,
            zookeeper: zookeeper.clone(),
            epoch: Mutex::new(BrokerEpoch(-1)),
            counts: Arc::clone(counts),
        });
        let listener =
            ListenerAddress { name: ListenerName::from("PLAINTEXT"), host: "127.0.0.1".into(), port: 0 };
        let limits = ServerLimits { request_bytes_max: 100 << 20, ..ServerLimits::default() };
        let server = Server::bind(&[listener], limits, Arc::<Handler>::clone(&handler)).await?;
        let port = server.local_addresses().first().context("no listener")?.1.port();
        let epoch = register(&zookeeper, id, port, &handler.epoch).await?;
        Ok(Self { epoch, zookeeper, _server: server })
    }

    /// Its session ends; what it led is without a leader.
    pub(super) async fn die(self) {
        self.zookeeper.close().await;
    }
}

async fn register(
    zookeeper: &ZooKeeper,
    id: BrokerId,
    port: u16,
    own: &Mutex<BrokerEpoch>,
) -> Result<BrokerEpoch> {
    let path = Znode::BrokerEpoch(id).path();
    let (op, epoch) = match zookeeper.get(&path).await? {
        Some(node) => {
            (Op::SetData { path, data: b"x".to_vec(), version: Some(node.version) }, node.version + 1)
        }
        None => (Op::Create { path, data: b"x".to_vec(), lifetime: Lifetime::Persistent }, 0),
    };
    zookeeper.multi(&[op]).await?;
    let epoch = BrokerEpoch(i64::from(epoch));
    *own.lock() = epoch;
    let address = Address { host: "127.0.0.1".into(), port };
    let create =
        Op::Create { path: Znode::Broker(id).path(), data: address.encode(), lifetime: Lifetime::Ephemeral };
    zookeeper.multi(&[create]).await?;
    Ok(epoch)
}

impl Handler {
    async fn leader_and_isr(&self, frame: &RequestFrame) -> Result<Answer> {
        let request: LeaderAndIsrRequest =
            decode_request_body(frame).map_err(|error| anyhow!("{error:?}"))?;
        let header = leader_and_isr_header(&request);
        if header.broker_epoch != *self.epoch.lock() {
            let refused = LeaderAndIsrResponse::default().with_error_code(STALE_BROKER_EPOCH);
            return answer(frame, &refused);
        }
        if header.full {
            self.counts.full.fetch_add(1, Ordering::AcqRel);
        }
        let records = leader_and_isr_partitions(&request).map_err(|error| anyhow!("{error:?}"))?;
        let codes = self.take_over(&records).await?;
        let mut topics: Vec<LeaderAndIsrTopicError> = Vec::new();
        for (record, code) in records.iter().zip(codes) {
            let error = LeaderAndIsrPartitionError::default()
                .with_partition_index(record.partition.partition)
                .with_error_code(code);
            match topics.last_mut().filter(|topic| topic.topic_id == record.topic_id.0) {
                Some(topic) => topic.partition_errors.push(error),
                None => topics.push(
                    LeaderAndIsrTopicError::default()
                        .with_topic_id(record.topic_id.0)
                        .with_partition_errors(vec![error]),
                ),
            }
        }
        answer(frame, &LeaderAndIsrResponse::default().with_topics(topics))
    }

    /// One code for each record.
    async fn take_over(&self, records: &[LeaderAndIsr]) -> Result<Vec<i16>> {
        let mut codes = vec![0; records.len()];
        let led: Vec<usize> = (0..records.len()).filter(|index| records[*index].leader == self.id).collect();
        let paths: Vec<String> = led
            .iter()
            .flat_map(|index| {
                let tp = || records[*index].partition.clone();
                [Znode::Leader(tp()).path(), Znode::State(tp()).path()]
            })
            .collect();
        let nodes = self.zookeeper.get_many(&paths).await?;
        let mut groups = Vec::new();
        for (index, pair) in led.into_iter().zip(nodes.chunks(2)) {
            let [leader, state] = pair else { continue };
            let held = leader.as_ref().zip(state.as_ref()).is_some_and(|(leader, state)| {
                state.mzxid < leader.czxid && leader.ephemeral_owner == self.zookeeper.session_id()
            });
            if !held {
                groups.push((index, self.office(&records[index], leader.is_some())));
            }
        }
        for (index, outcome) in self.zookeeper.multi_batched(groups).await {
            match outcome {
                Ok(_) => {
                    self.counts.taken.fetch_add(1, Ordering::AcqRel);
                }
                Err(_) => codes[index] = NOT_LEADER,
            }
        }
        Ok(codes)
    }

    fn office(&self, record: &LeaderAndIsr, delete_leader: bool) -> Vec<Op> {
        let fence = Fence {
            partition: record.partition.clone(),
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
            delete_leader,
            create_leader: Some(self.id),
            ..PartitionWrite::default()
        };
        build(&fence, &write)
    }

    async fn handle(&self, frame: &RequestFrame) -> Result<Answer> {
        match ApiKey::try_from(frame.api_key) {
            Ok(ApiKey::LeaderAndIsr) => self.leader_and_isr(frame).await,
            Ok(ApiKey::StopReplica) => {
                let request: StopReplicaRequest =
                    decode_request_body(frame).map_err(|error| anyhow!("{error:?}"))?;
                let stopped = request.topic_states.iter().flat_map(|topic| {
                    topic.partition_states.iter().map(|partition| {
                        StopReplicaPartitionError::default()
                            .with_topic_name(topic.topic_name.clone())
                            .with_partition_index(partition.partition_index)
                    })
                });
                answer(frame, &StopReplicaResponse::default().with_partition_errors(stopped.collect()))
            }
            Ok(ApiKey::UpdateMetadata) => answer(frame, &UpdateMetadataResponse::default()),
            other => Err(anyhow!("a request that no controller sends: {other:?}")),
        }
    }
}

fn answer<R: Encodable>(frame: &RequestFrame, response: &R) -> Result<Answer> {
    let bytes = encode_response(frame.api_key, frame.api_version, frame.correlation_id, response)?;
    ensure!(!bytes.is_empty(), "an answer without bytes");
    Ok(Answer::Now(bytes.into()))
}

impl RequestHandler for Handler {
    fn start<'a>(&'a self, _connection: &'a Connection, request: RequestFrame) -> BoxFuture<'a, Answer> {
        async move {
            match self.handle(&request).await {
                Ok(answer) => answer,
                Err(error) => Answer::Close(format!("{error:#}")),
            }
        }
        .boxed()
    }
}
