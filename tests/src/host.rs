//! A broker without records, in the process of the test or measurement: it registers, takes office with the take-over
//! write of coordination.md, many partitions in few multis as the real one does, and tells a witness what it hears.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kafka_protocol::messages::leader_and_isr_response::{LeaderAndIsrPartitionError, LeaderAndIsrTopicError};
use kafka_protocol::messages::stop_replica_response::StopReplicaPartitionError;
use kafka_protocol::messages::{
    ApiKey, LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest, StopReplicaResponse,
    UpdateMetadataRequest, UpdateMetadataResponse,
};
use kafka_protocol::protocol::{Decodable, Encodable};
use parking_lot::Mutex;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
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

/// Hears what a host is told and does; each method after the host has done its part. Does nothing by default.
pub trait Witness: Send + Sync + 'static {
    /// LeaderAndIsr has come, and nothing was done about it yet.
    fn ordered(&self, _full: bool) {}

    /// So many offices were taken, in one go.
    fn took_office(&self, _partitions: usize) {}

    /// LeaderAndIsr was obeyed.
    fn obeyed(&self, _full: bool, _records: &[LeaderAndIsr]) {}

    fn stopped(&self, _request: &StopReplicaRequest) {}

    /// Whether [`Self::heard`] shall be told: decoding the metadata of a large cluster takes time.
    fn listens(&self) -> bool {
        false
    }

    fn heard(&self, _request: &UpdateMetadataRequest) {}
}

/// A live host.
pub struct Host {
    /// Of its registration.
    pub epoch: BrokerEpoch,
    pub zookeeper: ZooKeeper,
    _server: Server,
}

impl Host {
    /// Registers broker `id` in a session of its own.
    ///
    /// # Errors
    /// ZooKeeper cannot be reached within a minute, or refuses; no port is free.
    pub async fn start(
        id: i32,
        connect: &str,
        session_timeout: Duration,
        witness: Arc<dyn Witness>,
    ) -> Result<Self> {
        const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
        /// A full LeaderAndIsr names everything.
        const REQUEST_BYTES_MAX: usize = 100 << 20;
        let id = BrokerId(id);
        let config = ZooKeeperConfig {
            connect: connect.to_owned(),
            session_timeout,
            connection_timeout: CONNECTION_TIMEOUT,
        };
        let zookeeper = ZooKeeper::connect(config).await?;
        let handler = Arc::new(Handler {
            id,
            zookeeper: zookeeper.clone(),
            epoch: Mutex::new(BrokerEpoch(-1)),
            offices: Mutex::default(),
            witness,
        });
        let listener =
            ListenerAddress { name: ListenerName::from("PLAINTEXT"), host: "127.0.0.1".into(), port: 0 };
        let limits = ServerLimits { request_bytes_max: REQUEST_BYTES_MAX, ..ServerLimits::default() };
        let server = Server::bind(&[listener], limits, Arc::<Handler>::clone(&handler)).await?;
        let port = server.local_addresses().first().context("no listener")?.1.port();
        let epoch = handler.register(port).await?;
        Ok(Self { epoch, zookeeper, _server: server })
    }

    /// As kill -9 and the session's end; what it led is without a leader.
    pub async fn die(self) {
        self.zookeeper.close().await;
    }
}

struct Handler {
    id: BrokerId,
    zookeeper: ZooKeeper,
    epoch: Mutex<BrokerEpoch>,
    /// The incarnation and the epoch in which each partition is led: office is taken once in it.
    offices: Mutex<HashMap<TopicPartition, (TopicId, LeaderEpoch)>>,
    witness: Arc<dyn Witness>,
}

impl Handler {
    /// The steps of a registration, without records to look at.
    async fn register(&self, port: u16) -> Result<BrokerEpoch> {
        let path = Znode::BrokerEpoch(self.id).path();
        let data = b"x".to_vec();
        let (op, epoch) = match self.zookeeper.get(&path).await? {
            Some(node) => (Op::SetData { path, data, version: Some(node.version) }, node.version + 1),
            None => (Op::Create { path, data, lifetime: Lifetime::Persistent }, 0),
        };
        self.zookeeper.multi(&[op]).await?;
        let epoch = BrokerEpoch(i64::from(epoch));
        // Known before anybody can see the broker.
        *self.epoch.lock() = epoch;
        let path = Znode::Broker(self.id).path();
        let data = Address { host: "127.0.0.1".into(), port }.encode();
        self.zookeeper.multi(&[Op::Create { path, data, lifetime: Lifetime::Ephemeral }]).await?;
        Ok(epoch)
    }

    async fn leader_and_isr(&self, frame: &RequestFrame) -> Result<Answer> {
        let request: LeaderAndIsrRequest = decode(frame)?;
        let header = leader_and_isr_header(&request);
        if header.broker_epoch != *self.epoch.lock() {
            let code = Rejection::StaleBrokerEpoch.code();
            return answer(frame, &LeaderAndIsrResponse::default().with_error_code(code));
        }
        self.witness.ordered(header.full);
        let records = leader_and_isr_partitions(&request).map_err(|error| anyhow!("{error:?}"))?;
        drop(request);
        let codes = self.take_over(&records).await?;
        self.witness.obeyed(header.full, &records);
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

    /// One code for each record. The write is tried from what the order says; only where it does not hold the znodes
    /// are read.
    async fn take_over(&self, records: &[LeaderAndIsr]) -> Result<Vec<i16>> {
        let mut codes = vec![0; records.len()];
        let due: Vec<usize> = {
            let offices = self.offices.lock();
            let due = |record: &LeaderAndIsr| {
                let office = (record.topic_id, record.leader_epoch);
                record.leader == self.id && offices.get(&record.partition) != Some(&office)
            };
            (0..records.len()).filter(|index| due(&records[*index])).collect()
        };
        let attempts = due.into_iter().map(|index| (index, self.office(&records[index], false)));
        let mut failed = self.write(records, attempts.collect()).await;
        if !failed.is_empty() {
            let paths: Vec<String> = failed
                .iter()
                .flat_map(|index| {
                    let tp = || records[*index].partition.clone();
                    [Znode::Leader(tp()).path(), Znode::State(tp()).path()]
                })
                .collect();
            let nodes = self.zookeeper.get_many(&paths).await?;
            let mut again = Vec::new();
            for (index, pair) in failed.into_iter().zip(nodes.chunks(2)) {
                let [leader, state] = pair else { continue };
                let held = leader.as_ref().zip(state.as_ref()).is_some_and(|(leader, state)| {
                    state.mzxid < leader.czxid && leader.ephemeral_owner == self.zookeeper.session_id()
                });
                if !held {
                    again.push((index, self.office(&records[index], leader.is_some())));
                }
            }
            failed = self.write(records, again).await;
        }
        for index in failed {
            codes[index] = Rejection::NotLeaderOrFollower.code();
        }
        Ok(codes)
    }

    /// Which of the attempts failed.
    async fn write(&self, records: &[LeaderAndIsr], attempts: Vec<(usize, Vec<Op>)>) -> Vec<usize> {
        let mut failed = Vec::new();
        let mut taken = 0;
        for (index, outcome) in self.zookeeper.multi_batched(attempts).await {
            if outcome.is_ok() {
                taken += 1;
                let record = &records[index];
                let office = (record.topic_id, record.leader_epoch);
                self.offices.lock().insert(record.partition.clone(), office);
            } else {
                failed.push(index);
            }
        }
        self.witness.took_office(taken);
        failed
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

    fn stop_replica(&self, frame: &RequestFrame) -> Result<Answer> {
        let request: StopReplicaRequest = decode(frame)?;
        self.witness.stopped(&request);
        let stopped = request.topic_states.iter().flat_map(|topic| {
            topic.partition_states.iter().map(|partition| {
                StopReplicaPartitionError::default()
                    .with_topic_name(topic.topic_name.clone())
                    .with_partition_index(partition.partition_index)
            })
        });
        answer(frame, &StopReplicaResponse::default().with_partition_errors(stopped.collect()))
    }

    async fn handle(&self, frame: &RequestFrame) -> Result<Answer> {
        match ApiKey::try_from(frame.api_key) {
            Ok(ApiKey::LeaderAndIsr) => self.leader_and_isr(frame).await,
            Ok(ApiKey::StopReplica) => self.stop_replica(frame),
            Ok(ApiKey::UpdateMetadata) => {
                if self.witness.listens() {
                    self.witness.heard(&decode(frame)?);
                }
                answer(frame, &UpdateMetadataResponse::default())
            }
            other => Err(anyhow!("a request that no controller sends: {other:?}")),
        }
    }
}

fn decode<R: Decodable>(frame: &RequestFrame) -> Result<R> {
    decode_request_body(frame).map_err(|error| anyhow!("{error:?}"))
}

fn answer<R: Encodable>(frame: &RequestFrame, response: &R) -> Result<Answer> {
    let bytes = encode_response(frame.api_key, frame.api_version, frame.correlation_id, response)?;
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
