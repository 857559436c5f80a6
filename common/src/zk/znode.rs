//! Every znode of the layout as a value: `path` writes it, `parse` recognises it in a watch event.

use std::fmt;
use std::sync::Arc;

use crate::id::{BrokerId, TopicId, TopicName, TopicPartition, topic_name_problem};

/// Name of the entity whose configuration is the default of its kind (`/config/brokers/<default>`).
pub const DEFAULT_ENTITY: &str = "<default>";

/// One znode of coordination.md, sections 1 and 2.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Znode {
    /// `/brokers/ids/[id]`: live broker, `host:port`.
    Broker(BrokerId),
    /// `/brokers/endpoints/[id]`: listeners, rack, version.
    Endpoints(BrokerId),
    /// `/brokers/epochs/[id]`: registration id; its data version is the broker epoch.
    BrokerEpoch(BrokerId),
    /// `/leases/[id]`: set again and again by a leader (section 5).
    Lease(BrokerId),
    /// `/brokers/topics/[topic]`: `{"version":1,"topic_id":…}`, empty until filled.
    Topic(TopicName),
    /// `/brokers/topics/[topic]/[partition]`: the parent of the partition's znodes; carries nothing.
    Partition(TopicPartition),
    /// `…/replicas`: assigned replicas, the first is preferred.
    Replicas(TopicPartition),
    /// `…/leader`: ephemeral, owned by the leader.
    Leader(TopicPartition),
    /// `…/ISR`: the only place where the ISR is stored; its data version is the partition epoch.
    Isr(TopicPartition),
    /// `…/ELR`: eligible leader replicas, absent when empty (D2).
    Elr(TopicPartition),
    /// `…/state`: the election record.
    State(TopicPartition),
    /// `…/leaving`: ids that must still delete their copy.
    Leaving(TopicPartition),
    /// `…/error`: why the partition's input was rejected.
    PartitionError(TopicPartition),
    /// `/brokers/topic_ids/[topic id]`: the incarnations that exist.
    TopicIdEntry(TopicId),
    /// `/brokers/partitions_reassigned/[topic]/[partition]`: wanted replicas.
    Reassignment(TopicPartition),
    /// `/admin/reassignment_errors/[topic]/[partition]`: why a wish was rejected.
    ReassignmentError(TopicPartition),
    /// `/controller`: ephemeral, the active controller.
    Controller,
    /// `/controller_epoch`: integer.
    ControllerEpoch,
    /// `/cluster/id`.
    ClusterId,
    /// `/latest_producer_id_block`.
    ProducerIdBlock,
    /// `/admin/delete_topics/[topic]`.
    DeleteTopic(TopicName),
    /// `/admin/preferred_replica_election`.
    PreferredReplicaElection,
    /// `/config/topics/[topic]`.
    TopicConfig(TopicName),
    /// `/config/brokers/[id or <default>]`.
    BrokerConfig(String),
    /// `/config/groups/[group]`, with the group's id as [`group_in_path`] writes it.
    GroupConfig(Arc<str>),
    /// `/feature`: levels of features of the whole cluster, in Kafka's layout; an operator's, absent by default.
    Feature,
    /// `/feature/error`: why it was rejected.
    FeatureError,
}

/// Every persistent parent, parents before children: the controller creates them at start, so that an admin can
/// write below them at once.
pub const PERSISTENT_PARENTS: &[&str] = &[
    "/brokers",
    "/brokers/ids",
    "/brokers/endpoints",
    "/brokers/epochs",
    "/brokers/topics",
    "/brokers/topic_ids",
    "/brokers/partitions_reassigned",
    "/leases",
    "/cluster",
    "/config",
    "/config/topics",
    "/config/brokers",
    "/config/groups",
    "/config/users",
    "/config/clients",
    "/admin",
    "/admin/delete_topics",
    "/admin/reassignment_errors",
];

pub const BROKER_IDS: &str = "/brokers/ids";
pub const BROKER_ENDPOINTS: &str = "/brokers/endpoints";
pub const BROKER_EPOCHS: &str = "/brokers/epochs";
pub const TOPICS: &str = "/brokers/topics";
pub const TOPIC_IDS: &str = "/brokers/topic_ids";
pub const REASSIGNMENTS: &str = "/brokers/partitions_reassigned";
pub const REASSIGNMENT_ERRORS: &str = "/admin/reassignment_errors";
pub const DELETE_TOPICS: &str = "/admin/delete_topics";
pub const TOPIC_CONFIGS: &str = "/config/topics";
pub const BROKER_CONFIGS: &str = "/config/brokers";
pub const GROUP_CONFIGS: &str = "/config/groups";

/// Trees that a controller watches recursively (section 4, "Watches").
pub const CONTROLLER_WATCHES: &[&str] = &["/controller", "/brokers", "/config", "/admin"];

impl Znode {
    /// The path below the chroot.
    pub fn path(&self) -> String {
        match self {
            Self::Broker(id) => format!("/brokers/ids/{id}"),
            Self::Endpoints(id) => format!("/brokers/endpoints/{id}"),
            Self::BrokerEpoch(id) => format!("/brokers/epochs/{id}"),
            Self::Lease(id) => format!("/leases/{id}"),
            Self::Topic(topic) => format!("/brokers/topics/{topic}"),
            Self::Partition(tp) => partition_path(tp),
            Self::Replicas(tp) => partition_path(tp) + "/replicas",
            Self::Leader(tp) => partition_path(tp) + "/leader",
            Self::Isr(tp) => partition_path(tp) + "/ISR",
            Self::Elr(tp) => partition_path(tp) + "/ELR",
            Self::State(tp) => partition_path(tp) + "/state",
            Self::Leaving(tp) => partition_path(tp) + "/leaving",
            Self::PartitionError(tp) => partition_path(tp) + "/error",
            Self::TopicIdEntry(id) => format!("/brokers/topic_ids/{id}"),
            Self::Reassignment(tp) => format!("{REASSIGNMENTS}/{}/{}", tp.topic, tp.partition),
            Self::ReassignmentError(tp) => format!("{REASSIGNMENT_ERRORS}/{}/{}", tp.topic, tp.partition),
            Self::Controller => "/controller".to_owned(),
            Self::ControllerEpoch => "/controller_epoch".to_owned(),
            Self::ClusterId => "/cluster/id".to_owned(),
            Self::ProducerIdBlock => "/latest_producer_id_block".to_owned(),
            Self::DeleteTopic(topic) => format!("/admin/delete_topics/{topic}"),
            Self::PreferredReplicaElection => "/admin/preferred_replica_election".to_owned(),
            Self::TopicConfig(topic) => format!("/config/topics/{topic}"),
            Self::BrokerConfig(name) => format!("/config/brokers/{name}"),
            Self::GroupConfig(group) => format!("{GROUP_CONFIGS}/{}", group_in_path(group)),
            Self::Feature => "/feature".to_owned(),
            Self::FeatureError => "/feature/error".to_owned(),
        }
    }

    /// Recognises a path of the layout. `None` for parents, foreign znodes, ids that are not numbers and names that
    /// cannot be topics: such znodes are none of our business.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match parts.as_slice() {
            ["brokers", "ids", id] => Self::Broker(broker_id(id)?),
            ["brokers", "endpoints", id] => Self::Endpoints(broker_id(id)?),
            ["brokers", "epochs", id] => Self::BrokerEpoch(broker_id(id)?),
            ["leases", id] => Self::Lease(broker_id(id)?),
            ["brokers", "topics", topic] => Self::Topic(topic_name(topic)?),
            ["brokers", "topics", topic, partition] => Self::Partition(topic_partition(topic, partition)?),
            ["brokers", "topics", topic, partition, leaf] => {
                let tp = topic_partition(topic, partition)?;
                match *leaf {
                    "replicas" => Self::Replicas(tp),
                    "leader" => Self::Leader(tp),
                    "ISR" => Self::Isr(tp),
                    "ELR" => Self::Elr(tp),
                    "state" => Self::State(tp),
                    "leaving" => Self::Leaving(tp),
                    "error" => Self::PartitionError(tp),
                    _ => return None,
                }
            }
            ["brokers", "topic_ids", id] => Self::TopicIdEntry(TopicId::parse(id)?),
            ["brokers", "partitions_reassigned", topic, partition] => {
                Self::Reassignment(topic_partition(topic, partition)?)
            }
            ["admin", "reassignment_errors", topic, partition] => {
                Self::ReassignmentError(topic_partition(topic, partition)?)
            }
            ["controller"] => Self::Controller,
            ["controller_epoch"] => Self::ControllerEpoch,
            ["cluster", "id"] => Self::ClusterId,
            ["latest_producer_id_block"] => Self::ProducerIdBlock,
            ["admin", "delete_topics", topic] => Self::DeleteTopic(topic_name(topic)?),
            ["admin", "preferred_replica_election"] => Self::PreferredReplicaElection,
            ["config", "topics", topic] => Self::TopicConfig(topic_name(topic)?),
            ["config", "brokers", name] => Self::BrokerConfig((*name).to_owned()),
            ["config", "groups", name] => Self::GroupConfig(group_from_path(name)?),
            ["feature"] => Self::Feature,
            ["feature", "error"] => Self::FeatureError,
            _ => return None,
        })
    }
}

impl fmt::Display for Znode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

fn partition_path(tp: &TopicPartition) -> String {
    format!("{TOPICS}/{}/{}", tp.topic, tp.partition)
}

/// A group's id as the name of a znode: visible ASCII but `/` and `%` stands for itself, any other byte of the UTF-8 text
/// is a percent sign and two digits; so is the first dot of the ids `.` and `..`, which ZooKeeper refuses.
pub fn group_in_path(group: &str) -> String {
    let mut name = String::with_capacity(group.len());
    for (at, byte) in group.bytes().enumerate() {
        let is_plain = byte.is_ascii_graphic() && !b"/%".contains(&byte);
        let is_dots = at == 0 && matches!(group, "." | "..");
        if is_plain && !is_dots {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

/// The group whose id is written so; `None` for names that are no group's, and for a second spelling of one.
fn group_from_path(name: &str) -> Option<Arc<str>> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        };
        bytes.push(byte);
    }
    let group = String::from_utf8(bytes).ok()?;
    (!group.is_empty() && group_in_path(&group) == name).then(|| group.into())
}

/// A number in its one written form: no sign, no leading zeros. `01` is not another spelling of partition 1.
fn number(text: &str) -> Option<i32> {
    let value: i32 = text.parse().ok().filter(|value| *value >= 0)?;
    (value.to_string() == text).then_some(value)
}

fn broker_id(text: &str) -> Option<BrokerId> {
    number(text).map(BrokerId)
}

fn topic_name(text: &str) -> Option<TopicName> {
    topic_name_problem(text).is_none().then(|| text.into())
}

fn topic_partition(topic: &str, partition: &str) -> Option<TopicPartition> {
    Some(TopicPartition { topic: topic_name(topic)?, partition: number(partition)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_the_documented_ones_and_read_back() {
        let tp = || TopicPartition::new("t", 3);
        let id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        let rows = [
            (Znode::Broker(BrokerId(1)), "/brokers/ids/1"),
            (Znode::Endpoints(BrokerId(1)), "/brokers/endpoints/1"),
            (Znode::BrokerEpoch(BrokerId(1)), "/brokers/epochs/1"),
            (Znode::Lease(BrokerId(1)), "/leases/1"),
            (Znode::Topic("t".into()), "/brokers/topics/t"),
            (Znode::Partition(tp()), "/brokers/topics/t/3"),
            (Znode::Replicas(tp()), "/brokers/topics/t/3/replicas"),
            (Znode::Leader(tp()), "/brokers/topics/t/3/leader"),
            (Znode::Isr(tp()), "/brokers/topics/t/3/ISR"),
            (Znode::Elr(tp()), "/brokers/topics/t/3/ELR"),
            (Znode::State(tp()), "/brokers/topics/t/3/state"),
            (Znode::Leaving(tp()), "/brokers/topics/t/3/leaving"),
            (Znode::PartitionError(tp()), "/brokers/topics/t/3/error"),
            (Znode::TopicIdEntry(id), "/brokers/topic_ids/AQIDBAUGBwgJCgsMDQ4PEA"),
            (Znode::Reassignment(tp()), "/brokers/partitions_reassigned/t/3"),
            (Znode::ReassignmentError(tp()), "/admin/reassignment_errors/t/3"),
            (Znode::Controller, "/controller"),
            (Znode::ControllerEpoch, "/controller_epoch"),
            (Znode::ClusterId, "/cluster/id"),
            (Znode::ProducerIdBlock, "/latest_producer_id_block"),
            (Znode::DeleteTopic("t".into()), "/admin/delete_topics/t"),
            (Znode::PreferredReplicaElection, "/admin/preferred_replica_election"),
            (Znode::TopicConfig("t".into()), "/config/topics/t"),
            (Znode::BrokerConfig(DEFAULT_ENTITY.to_owned()), "/config/brokers/<default>"),
            (Znode::GroupConfig("g".into()), "/config/groups/g"),
            (Znode::GroupConfig("a:b@c.d".into()), "/config/groups/a:b@c.d"),
            (Znode::GroupConfig("a/b 100%é".into()), "/config/groups/a%2Fb%20100%25%C3%A9"),
            (Znode::GroupConfig("..".into()), "/config/groups/%2E."),
            (Znode::Feature, "/feature"),
            (Znode::FeatureError, "/feature/error"),
        ];
        for (znode, path) in rows {
            assert_eq!(znode.path(), path);
            assert_eq!(Znode::parse(path), Some(znode), "{path}");
        }
    }

    #[test]
    fn foreign_paths_are_left_alone() {
        for path in [
            "",
            "/",
            "/brokers",
            "/brokers/ids",
            "/brokers/ids/x",
            "/brokers/ids/-1",
            "/brokers/ids/01",
            "/brokers/topics/a b",
            "/brokers/topics/t/x/replicas",
            "/brokers/topics/t/0/isr",
            "/zookeeper/quota",
            "/config/groups/a%3Ab",
            "/config/groups/a%2fb",
            "/config/groups/a%",
            "/config/groups/a b",
            "/config/groups/%FF",
        ] {
            assert_eq!(Znode::parse(path), None, "{path}");
        }
    }
}
