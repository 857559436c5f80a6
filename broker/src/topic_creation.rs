//! Creates, extends and deletes topics by writing the znodes that an admin would write by hand; the controller does
//! the rest. A request is answered when the metadata shows the result or its time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::info;
use uuid::Uuid;
use zurau_common::id::{BrokerId, TopicId, TopicName, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::{Lifetime, MultiError, Op, OpFailure};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::topic::{TopicIdEntry, decode_topic};
use zurau_common::zk::znode::Znode;

use crate::context::BrokerContext;
use crate::placement::Seed;
use crate::topic_plan::{
    Refusal, TopicPlan, WantedPartitions, WantedTopic, partition_writes, plan_partitions, plan_topic,
    topic_writes,
};

/// Topics of one request that are written at the same time. All that are written are waited for at once.
pub(crate) const TOPICS_IN_FLIGHT: usize = 16;

/// How often a write is decided anew after another writer came between.
const ATTEMPTS_MAX: usize = 5;

/// Pause between two looks at a znode that the controller will remove.
const REMOVAL_POLL: Duration = Duration::from_millis(10);

/// Where a new topic's first replica goes.
pub(crate) fn random_seed() -> Seed {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    Seed { first_broker: (high & 0xffff) as usize, follower_shift: (low & 0xffff) as usize }
}

/// Creates topics with the broker's defaults. Says for each that could not be created why; one that exists meanwhile
/// is no failure.
pub(crate) async fn create_with_defaults(
    context: &BrokerContext,
    names: &BTreeSet<String>,
) -> BTreeMap<String, Rejection> {
    let creations = names.iter().map(|name| async move {
        let image = context.metadata.image();
        let outcome = match plan_topic(
            &WantedTopic::with_defaults(name),
            &context.topic_configs.broker_config(),
            &image,
            random_seed(),
        ) {
            Ok(plan) => write_topic(context, &plan).await,
            Err(refusal) => Err(refusal),
        };
        match outcome {
            Ok(()) => {
                info!(topic = name, "created on demand of a client (auto.create.topics.enable)");
                None
            }
            Err(refusal) if refusal.rejection == Rejection::TopicAlreadyExists => None,
            Err(refusal) => {
                info!(topic = name, reason = refusal.message, "not created on demand of a client");
                Some((name.clone(), refusal.rejection))
            }
        }
    });
    let creations: Vec<_> = creations.collect();
    futures::stream::iter(creations)
        .buffer_unordered(TOPICS_IN_FLIGHT)
        .filter_map(std::future::ready)
        .collect()
        .await
}

pub(crate) fn zookeeper(context: &BrokerContext) -> Result<ZooKeeper, Refusal> {
    context.zookeeper.current().ok_or_else(no_zookeeper)
}

fn no_zookeeper() -> Refusal {
    Refusal::new(Rejection::RequestTimedOut, "this broker has no ZooKeeper session right now; try again")
}

pub(crate) fn unreadable(error: ReadError) -> Refusal {
    Refusal::new(Rejection::RequestTimedOut, error.to_string())
}

pub(crate) fn unwritten(error: &MultiError) -> Refusal {
    match error {
        MultiError::Refused(_) | MultiError::SessionEnded | MultiError::Unknown => {
            Refusal::new(Rejection::RequestTimedOut, format!("ZooKeeper did not store the change: {error}"))
        }
        MultiError::Failed { path, reason: OpFailure::NodeExists, .. }
            if matches!(Znode::parse(path), Some(Znode::DeleteTopic(_))) =>
        {
            Refusal::new(Rejection::InvalidTopicException, "the topic is being deleted")
        }
        MultiError::Failed { .. } => Refusal::new(
            Rejection::UnknownServerError,
            format!("another writer changed the topic at the same time: {error}"),
        ),
    }
}

/// Writes a planned topic.
///
/// # Errors
/// [`Rejection::TopicAlreadyExists`] also while it is being deleted; no ZooKeeper.
pub(crate) async fn write_topic(context: &BrokerContext, plan: &TopicPlan) -> Result<(), Refusal> {
    let zookeeper = zookeeper(context)?;
    for _ in 0..ATTEMPTS_MAX {
        let config = Znode::TopicConfig(plan.name.clone()).path();
        let config_exists =
            !plan.configs.is_empty() && zookeeper.exists(&config).await.map_err(unreadable)?;
        let mut writes = topic_writes(plan, config_exists).into_iter();
        let Some(first) = writes.next() else { return Ok(()) };
        match zookeeper.multi(&first).await {
            Ok(_) => return write_rest(&zookeeper, writes).await,
            // The config came or went between the look and the write.
            Err(MultiError::Failed { ref path, .. }) if *path == config => {}
            Err(MultiError::Failed { path, reason, .. }) => return Err(not_created(plan, &path, reason)),
            Err(MultiError::Unknown) => {
                if !exists_as_planned(&zookeeper, plan).await? {
                    continue;
                }
                return write_rest(&zookeeper, writes).await;
            }
            Err(error) => return Err(unwritten(&error)),
        }
    }
    Err(Refusal::new(Rejection::RequestTimedOut, "the topic's configuration changes too fast; try again"))
}

fn not_created(plan: &TopicPlan, path: &str, reason: OpFailure) -> Refusal {
    let name = &plan.name;
    if reason != OpFailure::NodeExists {
        let message = format!("topic '{name}' could not be written at {path}: {reason:?}");
        return Refusal::new(Rejection::UnknownServerError, message);
    }
    let message = if path == Znode::DeleteTopic(name.clone()).path() {
        format!("topic '{name}' is being deleted")
    } else {
        format!("topic '{name}' already exists")
    };
    Refusal::new(Rejection::TopicAlreadyExists, message)
}

/// After a lost answer: whether the first multi was stored. Its last write shows it.
async fn exists_as_planned(zookeeper: &ZooKeeper, plan: &TopicPlan) -> Result<bool, Refusal> {
    let topic = Znode::Topic(plan.name.clone()).path();
    if zookeeper.get(&topic).await.map_err(unreadable)?.is_none() {
        return Ok(false);
    }
    let first = TopicPartition { topic: plan.name.clone(), partition: 0 };
    let replicas = zookeeper.get(&Znode::Replicas(first).path()).await.map_err(unreadable)?;
    let planned = plan.assignments.first();
    let ours = replicas.is_some_and(|node| decode_ids(&node.data).ok().as_ref() == planned);
    if ours { Ok(true) } else { Err(not_created(plan, &topic, OpFailure::NodeExists)) }
}

/// Each multi ends with a znode that it creates: after a lost answer it shows whether the multi was stored.
async fn write_rest(zookeeper: &ZooKeeper, writes: impl Iterator<Item = Vec<Op>>) -> Result<(), Refusal> {
    for ops in writes {
        let last = ops.last().map(|op| op.path().to_owned()).unwrap_or_default();
        match zookeeper.multi(&ops).await {
            Ok(_) => {}
            Err(MultiError::Unknown) if zookeeper.exists(&last).await.map_err(unreadable)? => {}
            Err(MultiError::Unknown) => {
                zookeeper.multi(&ops).await.map_err(|error| unwritten(&error))?;
            }
            Err(error) => return Err(unwritten(&error)),
        }
    }
    Ok(())
}

/// Waits until the metadata shows leaders for partitions `0..partitions` of a topic.
///
/// # Errors
/// [`Rejection::RequestTimedOut`].
pub(crate) async fn wait_for_leaders(
    context: &BrokerContext,
    topic: &str,
    partitions: usize,
    deadline: Instant,
) -> Result<TopicId, Refusal> {
    let led = context.metadata.wait_until(|image| {
        let topic = image.topic(topic)?;
        let led = topic.partitions.values().filter(|partition| partition.leader.is_some()).count();
        (partitions <= led).then_some(topic.topic_id)
    });
    timeout_at(deadline, led).await.map_err(|_| {
        let message = "the topic is written, but not all of its partitions have a leader yet";
        Refusal::new(Rejection::RequestTimedOut, message)
    })
}

/// A topic as ZooKeeper has it.
struct Existing {
    /// `None` until the controller has filled it in.
    topic_id: Option<TopicId>,
    partitions: usize,
    /// Replicas of partition 0.
    replicas: Vec<BrokerId>,
}

async fn existing(zookeeper: &ZooKeeper, topic: &TopicName) -> Result<Existing, Refusal> {
    let path = Znode::Topic(topic.clone()).path();
    let unknown =
        || Refusal::new(Rejection::UnknownTopicOrPartition, format!("the topic '{topic}' does not exist"));
    let node = zookeeper.get(&path).await.map_err(unreadable)?.ok_or_else(unknown)?;
    let children = zookeeper.children(&path).await.map_err(unreadable)?.ok_or_else(unknown)?;
    let numbers: BTreeSet<i32> = children.iter().filter_map(|child| child.parse().ok()).collect();
    let first = TopicPartition { topic: topic.clone(), partition: 0 };
    let replicas = zookeeper.get(&Znode::Replicas(first).path()).await.map_err(unreadable)?;
    let replicas = replicas.and_then(|node| decode_ids(&node.data).ok()).unwrap_or_default();
    // Only a gapless prefix counts: the controller starts no partition above a gap.
    let partitions = numbers.iter().zip(0..).take_while(|(number, index)| **number == *index).count();
    Ok(Existing { topic_id: decode_topic(&node.data).ok().flatten(), partitions, replicas })
}

/// Adds partitions to a topic, or only judges it. Returns how many the topic has then.
///
/// # Errors
/// Unknown topic, a count or assignment that does not fit, a reassignment under way, no ZooKeeper.
pub(crate) async fn add_partitions(
    context: &BrokerContext,
    wanted: &WantedPartitions,
    validate_only: bool,
) -> Result<usize, Refusal> {
    let zookeeper = zookeeper(context)?;
    let topic = &wanted.name;
    let Existing { topic_id, partitions: existing, replicas } = existing(&zookeeper, topic).await?;
    let reassigned = format!("{}/{topic}", zurau_common::zk::znode::REASSIGNMENTS);
    let moving = zookeeper.children(&reassigned).await.map_err(unreadable)?;
    if moving.is_some_and(|partitions| !partitions.is_empty()) {
        let message = "a partition of the topic is being reassigned; try again when that is done";
        return Err(Refusal::new(Rejection::ReassignmentInProgress, message));
    }
    let image = context.metadata.image();
    let added = plan_partitions(wanted, existing, replicas.len(), &image, random_seed())?;
    let total = existing + added.len();
    if validate_only {
        return Ok(total);
    }
    let mut writes = partition_writes(topic, existing, &added);
    if let Some(first) = writes.first_mut() {
        first.insert(0, Op::CheckAbsent { path: Znode::DeleteTopic(topic.clone()).path() });
        // A topic that was deleted and created again meanwhile is not the one that was judged.
        if let Some(id) = topic_id {
            first.insert(0, Op::CheckExists { path: Znode::TopicIdEntry(id).path() });
        }
    }
    write_rest(&zookeeper, writes.into_iter()).await?;
    Ok(total)
}

/// A topic to delete, by name or by id.
#[derive(Debug, Clone)]
pub(crate) enum TopicKey {
    Name(TopicName),
    Id(TopicId),
}

/// The topic's name and, if the controller has given it one, its id; both as ZooKeeper has them.
///
/// # Errors
/// Unknown topic or id, no ZooKeeper.
pub(crate) async fn find_topic(
    context: &BrokerContext,
    key: &TopicKey,
) -> Result<(TopicName, Option<TopicId>), Refusal> {
    let zookeeper = zookeeper(context)?;
    match key {
        TopicKey::Name(name) => {
            let node = zookeeper.get(&Znode::Topic(name.clone()).path()).await.map_err(unreadable)?;
            let node = node.ok_or_else(|| {
                Refusal::new(Rejection::UnknownTopicOrPartition, format!("there is no topic '{name}'"))
            })?;
            Ok((name.clone(), decode_topic(&node.data).ok().flatten()))
        }
        TopicKey::Id(id) => {
            let node = zookeeper.get(&Znode::TopicIdEntry(*id).path()).await.map_err(unreadable)?;
            let entry = node.and_then(|node| TopicIdEntry::decode(&node.data).ok());
            let entry = entry.ok_or_else(|| {
                Refusal::new(Rejection::UnknownTopicId, format!("there is no topic with the id {id}"))
            })?;
            Ok((entry.topic, Some(*id)))
        }
    }
}

/// Asks the controller to delete a topic.
///
/// # Errors
/// The topic is gone or recreated meanwhile, no ZooKeeper.
pub(crate) async fn request_deletion(
    context: &BrokerContext,
    topic: &TopicName,
    id: Option<TopicId>,
) -> Result<(), Refusal> {
    let path = Znode::DeleteTopic(topic.clone()).path();
    let mut ops = vec![Op::CheckExists { path: Znode::Topic(topic.clone()).path() }];
    // By this entry a recreated topic is told from the one that was meant.
    ops.extend(id.map(|id| Op::CheckExists { path: Znode::TopicIdEntry(id).path() }));
    ops.push(Op::Create { path: path.clone(), data: Vec::new(), lifetime: Lifetime::Persistent });
    match zookeeper(context)?.multi(&ops).await {
        Ok(_) | Err(MultiError::Failed { reason: OpFailure::NodeExists, .. }) => Ok(()),
        Err(MultiError::Failed { .. }) => Err(Refusal::new(
            Rejection::UnknownTopicOrPartition,
            format!("topic '{topic}' was deleted meanwhile"),
        )),
        Err(MultiError::Unknown) if zookeeper(context)?.exists(&path).await.map_err(unreadable)? => Ok(()),
        Err(error) => Err(unwritten(&error)),
    }
}

/// Waits until the metadata and ZooKeeper no longer know the topic, so that it can be created again at once.
///
/// # Errors
/// [`Rejection::RequestTimedOut`].
pub(crate) async fn wait_for_deletion(
    context: &BrokerContext,
    topic: &TopicName,
    id: Option<TopicId>,
    deadline: Instant,
) -> Result<(), Refusal> {
    let gone = async {
        context
            .metadata
            .wait_until(|image| {
                let known = image.topic(topic).map(|topic| topic.topic_id);
                (known.is_none() || (id.is_some() && known != id)).then_some(())
            })
            .await;
        let path = Znode::DeleteTopic(topic.clone()).path();
        while let Some(zookeeper) = context.zookeeper.current() {
            if !zookeeper.exists(&path).await.unwrap_or(true) {
                break;
            }
            sleep(REMOVAL_POLL).await;
        }
    };
    timeout_at(deadline, gone).await.map_err(|_| {
        Refusal::new(Rejection::RequestTimedOut, "the topic is marked for deletion, but not yet gone")
    })
}
