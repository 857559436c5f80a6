//! Brokers, topics and partitions as Metadata tells of them, in the form in which the verbs print them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kafka_protocol::messages::MetadataResponse;
use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use serde::Serialize;
use zurau_common::id::{TopicId, TopicPartition};
use zurau_common::rejection::Rejection;

use super::refusal::Refused;

/// A live broker, with the address for this client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Broker {
    pub(crate) broker: i32,
    pub(crate) host: String,
    pub(crate) port: i32,
    pub(crate) rack: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Topic {
    pub(crate) topic: String,
    pub(crate) topic_id: String,
    pub(crate) internal: bool,
    /// By ascending number.
    pub(crate) partitions: Vec<Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Partition {
    pub(crate) partition: i32,
    pub(crate) leader: Option<i32>,
    pub(crate) leader_epoch: Option<i32>,
    /// The first one is preferred.
    pub(crate) replicas: Vec<i32>,
    pub(crate) isr: Vec<i32>,
    /// Replicas on brokers that are not alive, or on failed directories.
    pub(crate) offline_replicas: Vec<i32>,
}

/// The cluster as one broker sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// By ascending id.
    pub(crate) brokers: Vec<Broker>,
    /// Whom clients take for the controller.
    pub(crate) controller: Option<i32>,
    /// By name.
    pub(crate) topics: Vec<Topic>,
}

impl Cluster {
    /// # Errors
    /// A topic is refused.
    pub(super) fn from_wire(answer: MetadataResponse) -> Result<Self> {
        let controller = Some(answer.controller_id.0).filter(|id| 0 <= *id);
        let mut brokers: Vec<Broker> = answer
            .brokers
            .into_iter()
            .map(|broker| Broker {
                broker: broker.node_id.0,
                host: broker.host.to_string(),
                port: broker.port,
                rack: broker.rack.map(|rack| rack.to_string()),
            })
            .collect();
        brokers.sort_by_key(|broker| broker.broker);
        let topics: Result<Vec<Topic>> = answer.topics.into_iter().map(topic).collect();
        let mut topics = topics?;
        topics.sort_by(|one, other| one.topic.cmp(&other.topic));
        Ok(Self { brokers, controller, topics })
    }

    pub(crate) fn topic(&self, name: &str) -> Result<&Topic> {
        self.topics
            .iter()
            .find(|topic| topic.topic == name)
            .with_context(|| format!("topic {name} does not exist; `zurau topics list` shows what exists"))
    }

    pub(crate) fn partition(&self, topic: &str, number: i32) -> Result<&Partition> {
        let topic = self.topic(topic)?;
        let found = topic.partitions.iter().find(|partition| partition.partition == number);
        found.with_context(|| {
            format!("topic {} has no partition {number}; it has {}", topic.topic, topic.partitions.len())
        })
    }

    /// # Errors
    /// There is no such partition, or it has no leader, which may pass.
    pub(crate) fn leader(&self, tp: &TopicPartition) -> Result<i32> {
        let partition = self.partition(&tp.topic, tp.partition)?;
        match partition.leader {
            Some(leader) => Ok(leader),
            None => Err(Refused::new(Rejection::LeaderNotAvailable, tp.to_string()).into()),
        }
    }

    /// Brokers alive, by id.
    pub(crate) fn racks(&self) -> BTreeMap<i32, Option<String>> {
        self.brokers.iter().map(|broker| (broker.broker, broker.rack.clone())).collect()
    }
}

fn topic(found: MetadataResponseTopic) -> Result<Topic> {
    let name = found.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
    // A partition without a leader makes no error of the whole topic.
    Refused::check(found.error_code, None, || format!("topic {name}"))?;
    let mut partitions: Vec<Partition> = found.partitions.iter().map(partition).collect();
    partitions.sort_by_key(|partition| partition.partition);
    Ok(Topic {
        topic: name,
        topic_id: TopicId(found.topic_id).to_string(),
        internal: found.is_internal,
        partitions,
    })
}

fn partition(found: &MetadataResponsePartition) -> Partition {
    let known = |number: i32| (0 <= number).then_some(number);
    let ids = |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| id.0).collect();
    Partition {
        partition: found.partition_index,
        leader: known(found.leader_id.0),
        leader_epoch: known(found.leader_epoch),
        replicas: ids(&found.replica_nodes),
        isr: ids(&found.isr_nodes),
        offline_replicas: ids(&found.offline_replicas),
    }
}
