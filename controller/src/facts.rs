//! What a znode means: from a path and what stands there to a fact. The only way from the layout into the machine.

use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::config::decode_config;
use zurau_common::zk::election::decode_election;
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::Node;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::{TopicIdEntry, decode_topic};
use zurau_common::zk::znode::{DEFAULT_ENTITY, Znode};

use crate::event::{Fact, LeaderNode, Read, Registration, Versioned};

const UNCLEAN_ELECTION: &str = "unclean.leader.election.enable";

/// The fact that a znode, or its absence, stands for. `None` when it is none of the machine's business.
pub(crate) fn fact_of(znode: Znode, node: Option<&Node>) -> Option<Fact> {
    Some(match znode {
        Znode::Broker(broker) => Fact::Broker { broker, registration: node.map(registration) },
        Znode::Endpoints(broker) => {
            // Unreadable endpoints are like none: the broker has its address.
            Fact::Endpoints { broker, endpoints: node.and_then(|node| Endpoints::decode(&node.data).ok()) }
        }
        Znode::BrokerEpoch(broker) => {
            let epoch = node.map(|node| BrokerEpoch(i64::from(node.version)));
            Fact::BrokerEpoch { broker, epoch }
        }
        Znode::Topic(topic) => Fact::Topic { topic, node: read(node, decode_topic) },
        Znode::TopicIdEntry(topic_id) => {
            Fact::TopicIdEntry { topic_id, entry: read(node, TopicIdEntry::decode) }
        }
        Znode::Partition(partition) => Fact::Partition { partition, exists: node.is_some() },
        Znode::Replicas(partition) => Fact::Replicas { partition, ids: read(node, decode_ids) },
        Znode::State(partition) => Fact::State { partition, state: read(node, PartitionState::decode) },
        Znode::Isr(partition) => Fact::Isr { partition, ids: read(node, decode_ids) },
        Znode::Elr(partition) => Fact::Elr { partition, ids: read(node, decode_ids) },
        Znode::Leader(partition) => Fact::Leader { partition, node: node.map(leader) },
        Znode::Leaving(partition) => Fact::Leaving { partition, ids: read(node, decode_ids) },
        Znode::Reassignment(partition) => Fact::Wanted { partition, ids: read(node, decode_ids) },
        Znode::PartitionError(partition) => Fact::PartitionError { partition, text: node.map(text) },
        Znode::ReassignmentError(partition) => Fact::ReassignmentError { partition, text: node.map(text) },
        Znode::DeleteTopic(topic) => Fact::DeleteTopic { topic, requested: node.is_some() },
        Znode::PreferredReplicaElection => Fact::PreferredElection { request: read(node, decode_election) },
        Znode::TopicConfig(topic) => {
            Fact::UncleanElection { topic, enabled: node.and_then(unclean_election) }
        }
        Znode::BrokerConfig(name) if name == DEFAULT_ENTITY => {
            Fact::UncleanElectionDefault { enabled: node.and_then(unclean_election) }
        }
        Znode::BrokerConfig(_)
        | Znode::GroupConfig(_)
        | Znode::Lease(_)
        | Znode::Controller
        | Znode::ControllerEpoch
        | Znode::Feature
        | Znode::FeatureError
        | Znode::ClusterId
        | Znode::ProducerIdBlock => return None,
    })
}

fn read<T, E: std::fmt::Display>(node: Option<&Node>, decode: impl Fn(&[u8]) -> Result<T, E>) -> Read<T> {
    let Some(node) = node else { return Read::Absent };
    match decode(&node.data) {
        Ok(value) => Read::Value(Versioned { value, version: node.version, mzxid: Some(node.mzxid) }),
        Err(why) => Read::Bad { why: why.to_string(), version: node.version },
    }
}

fn registration(node: &Node) -> Registration {
    let address = Address::decode(&node.data).map_err(|error| error.to_string());
    Registration { session: node.ephemeral_owner, czxid: node.czxid, address }
}

fn leader(node: &Node) -> LeaderNode {
    let broker = text(node).trim().parse().ok().map(BrokerId);
    LeaderNode { broker, session: node.ephemeral_owner, czxid: node.czxid }
}

fn text(node: &Node) -> String {
    String::from_utf8_lossy(&node.data).into_owned()
}

fn unclean_election(node: &Node) -> Option<bool> {
    let config = decode_config(&node.data).ok()?;
    config.get(UNCLEAN_ELECTION)?.trim().to_ascii_lowercase().parse().ok()
}

#[cfg(test)]
mod tests {
    use zurau_common::id::TopicPartition;

    use super::*;

    fn node(data: &str) -> Node {
        Node { data: data.as_bytes().to_vec(), version: 3, czxid: 10, mzxid: 12, ephemeral_owner: 7 }
    }

    #[test]
    fn znodes_become_facts() {
        let tp = TopicPartition::new("t", 0);
        let leader = fact_of(Znode::Leader(tp.clone()), Some(&node("1")));
        let expected = LeaderNode { broker: Some(BrokerId(1)), session: 7, czxid: 10 };
        assert_eq!(leader, Some(Fact::Leader { partition: tp.clone(), node: Some(expected) }));
        let bad = fact_of(Znode::Replicas(tp.clone()), Some(&node("{1,2")));
        assert!(matches!(bad, Some(Fact::Replicas { ids: Read::Bad { version: 3, .. }, .. })));
        let gone = fact_of(Znode::Isr(tp.clone()), None);
        assert_eq!(gone, Some(Fact::Isr { partition: tp, ids: Read::Absent }));
        let epoch = fact_of(Znode::BrokerEpoch(BrokerId(1)), Some(&node("x")));
        assert_eq!(epoch, Some(Fact::BrokerEpoch { broker: BrokerId(1), epoch: Some(BrokerEpoch(3)) }));
    }
}
