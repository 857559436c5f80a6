//! A broker that keeps no records, and remembers what it was told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::{StopReplicaRequest, UpdateMetadataRequest};
use parking_lot::Mutex;
use zurau_common::id::BrokerEpoch;
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::zk::session::ZooKeeper;
use zurau_tests::host::{Host, Witness};

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
    host: Host,
}

#[derive(Default)]
struct Memory {
    told: Arc<Mutex<Told>>,
}

impl FakeBroker {
    pub(crate) async fn start(id: i32, connect: &str) -> Self {
        let memory = Memory::default();
        let told = Arc::clone(&memory.told);
        let host = Host::start(id, connect, Duration::from_secs(6), Arc::new(memory)).await.unwrap();
        Self { epoch: host.epoch, zookeeper: host.zookeeper.clone(), told, host }
    }

    /// As kill -9 and the session's end.
    pub(crate) async fn die(self) {
        self.host.die().await;
    }
}

impl Witness for Memory {
    fn ordered(&self, full: bool) {
        self.told.lock().full_requests += usize::from(full);
    }

    fn obeyed(&self, _full: bool, records: &[LeaderAndIsr]) {
        let mut told = self.told.lock();
        for record in records {
            told.roles.insert(record.partition.to_string(), (record.leader.0, record.leader_epoch.0));
        }
    }

    fn stopped(&self, request: &StopReplicaRequest) {
        for topic in &request.topic_states {
            let names = topic.partition_states.iter();
            let names = names.map(|p| format!("{}-{}", topic.topic_name.as_str(), p.partition_index));
            self.told.lock().stopped.extend(names);
        }
    }

    fn listens(&self) -> bool {
        true
    }

    fn heard(&self, request: &UpdateMetadataRequest) {
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
    }
}
