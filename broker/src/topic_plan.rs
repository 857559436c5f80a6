//! What CreateTopics and CreatePartitions ask for, judged and turned into replica assignments and znode writes. Pure;
//! the errors and their order are those of Kafka 3.9 in ZooKeeper mode.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::assignment::format_ids;
use zurau_common::config::{BrokerConfig, TopicConfig};
use zurau_common::id::{BrokerId, TopicName, TopicPartition, topic_name_problem};
use zurau_common::rejection::Rejection;
use zurau_common::zk::config::encode_config;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::znode::Znode;

use crate::metadata::MetadataImage;
use crate::placement::{Candidate, Seed, place};

/// Most partitions that one request may give to a topic: more would hold the memory of every process for a typing
/// error. A ZooKeeper shell is not bound by it.
pub(crate) const PARTITIONS_PER_REQUEST_MAX: usize = 20_000;

/// Partitions whose znodes are written by one multi (coordination.md, section 6).
const PARTITIONS_PER_MULTI: usize = 200;

/// Why a request is refused, with a text for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) rejection: Rejection,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(rejection: Rejection, message: impl Into<String>) -> Self {
        Self { rejection, message: message.into() }
    }
}

/// A topic that a client wants. Counts of −1 mean the broker's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedTopic {
    pub(crate) name: String,
    pub(crate) partitions: i32,
    pub(crate) replication_factor: i16,
    /// Partition and its replicas, if the client assigns them itself.
    pub(crate) assignments: Vec<(i32, Vec<BrokerId>)>,
    /// A null value is refused.
    pub(crate) configs: Vec<(String, Option<String>)>,
}

impl WantedTopic {
    /// A topic with the broker's defaults.
    pub(crate) fn with_defaults(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            partitions: -1,
            replication_factor: -1,
            assignments: Vec::new(),
            configs: Vec::new(),
        }
    }
}

/// What will be written for a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicPlan {
    pub(crate) name: TopicName,
    /// Replicas of partition 0, 1, …; never empty.
    pub(crate) assignments: Vec<Vec<BrokerId>>,
    pub(crate) configs: BTreeMap<String, String>,
}

/// Judges a wanted topic and places its replicas.
///
/// # Errors
/// What is wrong with it, in Kafka's order: name, existence, contradiction, configs, counts, assignment.
pub(crate) fn plan_topic(
    wanted: &WantedTopic,
    config: &BrokerConfig,
    image: &MetadataImage,
    seed: Seed,
) -> Result<TopicPlan, Refusal> {
    check_name(&wanted.name, image)?;
    let counts_given = wanted.partitions != -1 || wanted.replication_factor != -1;
    if counts_given && !wanted.assignments.is_empty() {
        return Err(Refusal::new(
            Rejection::InvalidRequest,
            "give either an assignment or the number of partitions and replicas, not both",
        ));
    }
    let configs = check_configs(wanted, config)?;
    let assignments = if wanted.assignments.is_empty() {
        let partitions = if wanted.partitions == -1 { config.num_partitions } else { wanted.partitions };
        let replicas = if wanted.replication_factor == -1 {
            config.default_replication_factor
        } else {
            wanted.replication_factor
        };
        place_all(partitions, replicas, image, seed)?
    } else {
        check_assignment(&wanted.assignments)?
    };
    Ok(TopicPlan { name: wanted.name.as_str().into(), assignments, configs })
}

fn check_name(name: &str, image: &MetadataImage) -> Result<(), Refusal> {
    if let Some(problem) = topic_name_problem(name) {
        return Err(Refusal::new(Rejection::InvalidTopicException, problem));
    }
    if image.topic(name).is_some() {
        return Err(Refusal::new(Rejection::TopicAlreadyExists, format!("topic '{name}' already exists")));
    }
    // Metric names turn dots into underscores: two such topics could not be told apart.
    let folded = name.replace('.', "_");
    if folded.contains('_') {
        let clash = image.topics().find(|topic| topic.name.replace('.', "_") == folded);
        if let Some(clash) = clash {
            let message =
                format!("topic '{name}' collides with '{}': '.' and '_' count as equal", clash.name);
            return Err(Refusal::new(Rejection::InvalidTopicException, message));
        }
    }
    Ok(())
}

fn check_configs(wanted: &WantedTopic, config: &BrokerConfig) -> Result<BTreeMap<String, String>, Refusal> {
    let mut configs = BTreeMap::new();
    for (key, value) in &wanted.configs {
        let Some(value) = value else {
            let message = format!("a null value is not supported for the topic config {key}");
            return Err(Refusal::new(Rejection::InvalidRequest, message));
        };
        configs.insert(key.clone(), value.clone());
    }
    TopicConfig::resolve(config, &configs)
        .map_err(|error| Refusal::new(Rejection::InvalidConfig, error.to_string()))?;
    Ok(configs)
}

fn place_all(
    partitions: i32,
    replication_factor: i16,
    image: &MetadataImage,
    seed: Seed,
) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    let count = usize::try_from(partitions).unwrap_or(0);
    if count == 0 {
        return Err(Refusal::new(
            Rejection::InvalidPartitions,
            format!("the number of partitions must be larger than 0, not {partitions}"),
        ));
    }
    check_count(count)?;
    let candidates = candidates(image);
    let factor = usize::try_from(replication_factor).unwrap_or(0);
    place(&candidates, 0, count, factor, seed).map_err(|rejection| {
        let live = candidates.len();
        let message = if factor == 0 {
            format!("the replication factor must be larger than 0, not {replication_factor}")
        } else {
            format!("replication factor {factor} is larger than the number of live brokers, {live}")
        };
        Refusal::new(rejection, message)
    })
}

fn check_count(count: usize) -> Result<(), Refusal> {
    if count <= PARTITIONS_PER_REQUEST_MAX {
        return Ok(());
    }
    let message = format!("{count} partitions are more than the {PARTITIONS_PER_REQUEST_MAX} of one request");
    Err(Refusal::new(Rejection::InvalidPartitions, message))
}

fn candidates(image: &MetadataImage) -> Vec<Candidate> {
    let live = image.brokers.iter();
    live.map(|(id, broker)| Candidate { broker: *id, rack: broker.rack.clone() }).collect()
}

/// Kafka does not ask whether the brokers of a new topic are alive: they may come later.
fn check_assignment(assignments: &[(i32, Vec<BrokerId>)]) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    let invalid = |message: String| Refusal::new(Rejection::InvalidReplicaAssignment, message);
    let by_partition: BTreeMap<i32, &Vec<BrokerId>> =
        assignments.iter().map(|(partition, replicas)| (*partition, replicas)).collect();
    if by_partition.len() != assignments.len() {
        return Err(invalid("a partition stands in the assignment twice".to_owned()));
    }
    if by_partition.keys().enumerate().any(|(index, partition)| i32::try_from(index) != Ok(*partition)) {
        return Err(invalid("partitions must be numbered 0, 1, 2, … without a gap".to_owned()));
    }
    check_count(by_partition.len())?;
    let replicas: Vec<Vec<BrokerId>> = by_partition.into_values().cloned().collect();
    check_replicas(&replicas, replicas.first().map_or(0, Vec::len))?;
    Ok(replicas)
}

fn check_replicas(assignments: &[Vec<BrokerId>], factor: usize) -> Result<(), Refusal> {
    let invalid = |message: String| Err(Refusal::new(Rejection::InvalidReplicaAssignment, message));
    for replicas in assignments {
        let distinct: BTreeSet<&BrokerId> = replicas.iter().collect();
        if distinct.len() != replicas.len() {
            return invalid(format!("a broker stands twice in {}", format_ids(replicas)));
        }
        if replicas.is_empty() || replicas.len() != factor {
            return invalid("all partitions must have the same number of replicas, at least 1".to_owned());
        }
        if let Some(negative) = replicas.iter().find(|id| id.0 < 0) {
            return invalid(format!("{negative} is no broker id"));
        }
    }
    Ok(())
}

/// Partitions that shall be added to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedPartitions {
    pub(crate) name: TopicName,
    /// How many the topic shall have in all.
    pub(crate) count: i32,
    /// One list of replicas per new partition, if the client assigns them itself.
    pub(crate) assignments: Option<Vec<Vec<BrokerId>>>,
}

/// Judges wanted partitions. `existing`: how many there are; `factor`: replicas of partition 0.
///
/// # Errors
/// A count that does not grow, an assignment that does not fit.
pub(crate) fn plan_partitions(
    wanted: &WantedPartitions,
    existing: usize,
    factor: usize,
    image: &MetadataImage,
    seed: Seed,
) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    let count = usize::try_from(wanted.count).unwrap_or(0);
    if count <= existing {
        let relation = if count == existing { "already has" } else { "has more than that:" };
        let message = format!("the topic {relation} {existing} partitions, {} were asked for", wanted.count);
        return Err(Refusal::new(Rejection::InvalidPartitions, message));
    }
    check_count(count)?;
    let Some(assignments) = &wanted.assignments else {
        return place(&candidates(image), existing, count - existing, factor, seed).map_err(|rejection| {
            let message = format!("the topic has {factor} replicas and fewer brokers are alive");
            Refusal::new(rejection, message)
        });
    };
    let invalid = |message: String| Refusal::new(Rejection::InvalidReplicaAssignment, message);
    if assignments.len() != count - existing {
        let (new, given) = (count - existing, assignments.len());
        return Err(invalid(format!("{new} partitions are added, but {given} are assigned")));
    }
    check_replicas(assignments, factor)?;
    if let Some(unknown) = assignments.iter().flatten().find(|id| !image.brokers.contains_key(id)) {
        return Err(invalid(format!("broker {unknown} is not alive")));
    }
    Ok(assignments.clone())
}

/// The multis that create a topic, in order. The first decides who creates it: it fails if the topic exists or is
/// being deleted. A prefix of them is a valid topic.
pub(crate) fn topic_writes(plan: &TopicPlan, config_exists: bool) -> Vec<Vec<Op>> {
    let mut first = vec![Op::CheckAbsent { path: Znode::DeleteTopic(plan.name.clone()).path() }];
    if !plan.configs.is_empty() {
        let (path, data) = (Znode::TopicConfig(plan.name.clone()).path(), encode_config(&plan.configs));
        first.push(if config_exists {
            Op::SetData { path, data, version: None }
        } else {
            Op::Create { path, data, lifetime: Lifetime::Persistent }
        });
    }
    first.push(create(Znode::Topic(plan.name.clone()), Vec::new()));
    let mut writes = partition_writes(&plan.name, 0, &plan.assignments);
    if let Some(head) = writes.first_mut() {
        first.append(head);
        *head = first;
    }
    writes
}

/// The multis that create partitions from `first` on, in ascending order.
pub(crate) fn partition_writes(
    topic: &TopicName,
    first: usize,
    assignments: &[Vec<BrokerId>],
) -> Vec<Vec<Op>> {
    let numbered: Vec<(usize, &Vec<BrokerId>)> =
        assignments.iter().enumerate().map(|(index, replicas)| (first + index, replicas)).collect();
    let multis = numbered.chunks(PARTITIONS_PER_MULTI).map(|chunk| {
        let ops = chunk.iter().flat_map(|(number, replicas)| {
            let number = i32::try_from(*number).expect("a partition number is below the limit of a request");
            let partition = TopicPartition { topic: topic.clone(), partition: number };
            let replicas = format_ids(replicas).into_bytes();
            [
                create(Znode::Partition(partition.clone()), Vec::new()),
                create(Znode::Replicas(partition), replicas),
            ]
        });
        ops.collect()
    });
    multis.collect()
}

fn create(znode: Znode, data: Vec<u8>) -> Op {
    Op::Create { path: znode.path(), data, lifetime: Lifetime::Persistent }
}

#[cfg(test)]
#[path = "topic_plan_tests.rs"]
mod tests;
