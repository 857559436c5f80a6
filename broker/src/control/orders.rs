//! Carrying out LeaderAndIsr: judge each partition, take the offices in few multis, tell the fetchers, answer for each
//! partition with the highest leader epoch that this broker knows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kafka_protocol::messages::leader_and_isr_response::{LeaderAndIsrPartitionError, LeaderAndIsrTopicError};
use kafka_protocol::messages::{LeaderAndIsrRequest, LeaderAndIsrResponse};
use tracing::{debug, error, info, warn};
use zurau_common::id::{BrokerId, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{
    TAG_HIGHEST_KNOWN_EPOCH, TaggedFields, leader_and_isr_header, leader_and_isr_partitions, put_i32,
};
use zurau_common::zk::znode::Znode;

use crate::context::BrokerContext;
use crate::partition::{Accepted, Partition};
use crate::resignations::Resignation;
use crate::shared::PartitionRequest;
use crate::take_over::{Candidate, take_over};

use super::recording::{Recording, Written};
use super::rules::{Absent, judge_absent, stray};

/// Partitions that one thread judges, one after another; judging writes files.
const PARTITIONS_PER_THREAD: usize = 128;

/// Bytes of ephemeral paths that one session may own.
const EPHEMERAL_BYTES_MAX: usize = 1_000_000;
/// The longest path of a `leader` znode: the longest topic name, the largest partition number, and what stands around.
const LEADER_PATH_BYTES_MAX: usize = 300;

/// What came of one order.
struct Reply {
    topic_id: TopicId,
    partition: i32,
    outcome: Result<(), Rejection>,
    highest_epoch: LeaderEpoch,
}

/// An order that was judged.
enum Judged {
    Done(Reply),
    TakeOffice(Candidate),
    Follow(Arc<Partition>, LeaderAndIsr),
    /// A directory of another incarnation is in the way.
    InTheWay(Arc<Partition>, LeaderAndIsr),
}

fn reply(order: &LeaderAndIsr, outcome: Result<(), Rejection>, highest_epoch: LeaderEpoch) -> Reply {
    Reply { topic_id: order.topic_id, partition: order.partition.partition, outcome, highest_epoch }
}

pub(super) async fn carry_out(
    context: &Arc<BrokerContext>,
    request: LeaderAndIsrRequest,
) -> LeaderAndIsrResponse {
    for leader in &request.live_leaders {
        let address = format!("{}:{}", leader.host_name.as_str(), leader.port);
        context.control.addresses.set(BrokerId(leader.broker_id.0), address);
    }
    let header = leader_and_isr_header(&request);
    let orders = match leader_and_isr_partitions(&request) {
        Ok(orders) => orders,
        Err(reason) => {
            error!(%reason, "a LeaderAndIsr request cannot be read; nothing of it is carried out");
            return LeaderAndIsrResponse::default().with_error_code(Rejection::InvalidRequest.code());
        }
    };
    debug!(partitions = orders.len(), full = header.full, controller_epoch = %header.controller_epoch, "orders");
    let named: Option<HashSet<TopicPartition>> =
        header.full.then(|| orders.iter().map(|order| order.partition.clone()).collect());
    let replies = obey(context, orders).await;
    if let Some(named) = named {
        // Not awaited: the controller need not wait for it, and the lane stays free.
        tokio::spawn(set_strays_aside(Arc::clone(context), named));
    }
    response(replies)
}

async fn obey(context: &Arc<BrokerContext>, orders: Vec<LeaderAndIsr>) -> Vec<Reply> {
    let Some(recording) = begin_recording(context, orders.len()).await else { return Vec::new() };
    let (mut judged, mut written) = judge_all(context, orders).await;
    let in_the_way: Vec<_> = judged.extract_if(.., |judged| matches!(judged, Judged::InTheWay(..))).collect();
    if !in_the_way.is_empty() {
        let (cleared, replies) = clear_the_way(context, in_the_way).await;
        let (cleared, written_for_them) = judge_all(context, cleared).await;
        judged.extend(cleared);
        written.extend(written_for_them);
        judged.extend(replies.into_iter().map(Judged::Done));
    }
    let unrecorded = recording.finish(context, written).await;
    let (mut replies, mut offices, mut follow, mut lead) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let refuse = |order: &LeaderAndIsr, partition: &Partition| {
        reply(order, Err(Rejection::KafkaStorageError), partition.highest_epoch())
    };
    for judged in judged {
        match judged {
            Judged::Done(reply) => replies.push(reply),
            Judged::TakeOffice(Candidate { partition, order, .. }) if unrecorded.contains(partition.id()) => {
                replies.push(refuse(&order, &partition));
            }
            Judged::Follow(partition, order) if unrecorded.contains(partition.id()) => {
                replies.push(refuse(&order, &partition));
            }
            Judged::TakeOffice(candidate) => {
                lead.push(candidate.order.partition.clone());
                offices.push(candidate);
            }
            Judged::Follow(partition, order) => {
                replies.push(reply(&order, Ok(()), partition.highest_epoch()));
                follow.push((partition, order.leader));
            }
            Judged::InTheWay(_, order) => {
                replies.push(reply(&order, Err(Rejection::InconsistentTopicId), LeaderEpoch::UNKNOWN));
            }
        }
    }
    context.control.fetchers.remove(&lead);
    context.control.fetchers.assign(follow);
    replies.extend(take_offices(context, offices).await);
    replies
}

async fn take_offices(context: &Arc<BrokerContext>, offices: Vec<Candidate>) -> Vec<Reply> {
    if offices.is_empty() {
        return Vec::new();
    }
    let own = (context.shared.own, context.broker_epoch());
    let (offices, beyond) = within_session_limit(context, offices);
    let outcomes = match context.zookeeper.current() {
        Some(zookeeper) => take_over(&zookeeper, own, offices).await,
        None => {
            offices.into_iter().map(|candidate| (candidate, Err(Rejection::NotLeaderOrFollower))).collect()
        }
    };
    let beyond = beyond.into_iter().map(|candidate| (candidate, Err(Rejection::PolicyViolation)));
    let mut replies = Vec::new();
    for (Candidate { partition, order, take_over }, outcome) in outcomes.into_iter().chain(beyond) {
        let outcome = match outcome {
            Ok(stored) => {
                let is_live = |id| context.control.is_live(id);
                let serving = partition.take_office(&order, take_over, &stored, &is_live);
                if serving { Ok(()) } else { Err(Rejection::NotLeaderOrFollower) }
            }
            Err(rejection) => {
                partition.refuse_office(&order, rejection);
                // It may have been stored without an answer. Then the controller takes the office for held (L2).
                let resignation = Resignation::from_office(&partition, &order);
                context.shared.request(PartitionRequest::Resign(resignation));
                Err(rejection)
            }
        };
        replies.push(reply(&order, outcome, partition.highest_epoch()));
    }
    replies
}

/// Splits the offices into those whose `leader` znodes the session can still own, and the others. ZooKeeper cannot
/// restart after it closed a session with too many ephemeral znodes (coordination.md, section 6).
fn within_session_limit(
    context: &BrokerContext,
    offices: Vec<Candidate>,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let partitions = context.partitions.all();
    let path_bytes = |id: &TopicPartition| Znode::Leader(id.clone()).path().len();
    if partitions.len() < EPHEMERAL_BYTES_MAX / LEADER_PATH_BYTES_MAX {
        return (offices, Vec::new());
    }
    let owned =
        partitions.iter().filter(|partition| partition.is_leader()).map(|leader| path_bytes(leader.id()));
    let mut bytes: usize = owned.sum();
    let (mut within, mut beyond) = (Vec::new(), Vec::new());
    for candidate in offices {
        bytes += path_bytes(&candidate.order.partition);
        if bytes <= EPHEMERAL_BYTES_MAX { within.push(candidate) } else { beyond.push(candidate) }
    }
    if !beyond.is_empty() {
        error!(
            refused = beyond.len(),
            limit = EPHEMERAL_BYTES_MAX,
            "this broker leads as many partitions as one ZooKeeper session can hold; other brokers must lead the rest"
        );
    }
    (within, beyond)
}

/// `None` only if the process is stopping.
async fn begin_recording(context: &Arc<BrokerContext>, orders: usize) -> Option<Recording> {
    let context = Arc::clone(context);
    tokio::task::spawn_blocking(move || Recording::begin(&context, orders)).await.ok()
}

/// Judges on threads that may wait for the disk. What was written is not synced yet.
async fn judge_all(context: &Arc<BrokerContext>, orders: Vec<LeaderAndIsr>) -> (Vec<Judged>, Vec<Written>) {
    let mut tasks = Vec::new();
    let mut orders = orders.into_iter().peekable();
    while orders.peek().is_some() {
        let chunk: Vec<LeaderAndIsr> = orders.by_ref().take(PARTITIONS_PER_THREAD).collect();
        let context = Arc::clone(context);
        tasks.push(tokio::task::spawn_blocking(move || {
            let mut written = Vec::new();
            let judged: Vec<_> =
                chunk.into_iter().map(|order| judge(&context, order, &mut written)).collect();
            (judged, written)
        }));
    }
    let (mut judged, mut written) = (Vec::new(), Vec::new());
    for task in tasks {
        // It only fails if the process is stopping; then nobody waits for an answer.
        let (some, of_some) = task.await.unwrap_or_default();
        judged.extend(some);
        written.extend(of_some);
    }
    (judged, written)
}

fn judge(context: &BrokerContext, order: LeaderAndIsr, written: &mut Vec<Written>) -> Judged {
    let id = &order.partition;
    let found = context.partitions.get(&id.topic, id.partition);
    if let Some(partition) = &found
        && partition.topic_id() != order.topic_id
    {
        return Judged::InTheWay(Arc::clone(partition), order);
    }
    if found.is_none() {
        match judge_absent(&order, context.shared.own) {
            Absent::Create => {}
            Absent::Nothing => return Judged::Done(reply(&order, Ok(()), LeaderEpoch::UNKNOWN)),
            Absent::Refuse(rejection) => {
                error!(
                    partition = %id, leader_epoch = %order.leader_epoch,
                    "leadership is refused: this broker has no log of the partition, although the ISR exists (D4)"
                );
                return Judged::Done(reply(&order, Err(rejection), LeaderEpoch::UNKNOWN));
            }
        }
    }
    let may_be_out_of_reach = !order.is_new && !order.adding_replicas.contains(&context.shared.own);
    if found.is_none() && may_be_out_of_reach && context.partitions.has_offline_directory() {
        error!(
            partition = %id, leader_epoch = %order.leader_epoch,
            "the order is refused: the replica may be in a log directory that is offline (LOG-10)"
        );
        return Judged::Done(reply(&order, Err(Rejection::KafkaStorageError), LeaderEpoch::UNKNOWN));
    }
    let found = found.map(|partition| (partition, false));
    let found_or_created =
        found.map_or_else(|| context.partitions.get_or_create_unsynced(id, order.topic_id), Ok);
    let (partition, is_created) = match found_or_created {
        Ok(found) => found,
        Err(reason) => {
            error!(partition = %id, leader_epoch = %order.leader_epoch, "the replica cannot be created: {reason:#}");
            return Judged::Done(reply(&order, Err(Rejection::KafkaStorageError), LeaderEpoch::UNKNOWN));
        }
    };
    let (judged, begun) = match partition.accept(&order) {
        Accepted::TakeOffice(take_over, begun) => {
            let candidate = Candidate { partition: Arc::clone(&partition), order, take_over };
            (Judged::TakeOffice(candidate), Some(begun))
        }
        Accepted::Follow => (Judged::Follow(Arc::clone(&partition), order), None),
        Accepted::Known(outcome) => (Judged::Done(reply(&order, outcome, partition.highest_epoch())), None),
        Accepted::Refused { rejection, highest_epoch } => {
            (Judged::Done(reply(&order, Err(rejection), highest_epoch)), None)
        }
    };
    if is_created || begun.is_some() {
        written.push(Written { partition, is_created, begun });
    }
    judged
}

/// Sets directories of incarnations aside that ZooKeeper does not know any more (D6, D11). Returns the orders whose way
/// is free now, and the refusals of the others.
async fn clear_the_way(
    context: &Arc<BrokerContext>,
    in_the_way: Vec<Judged>,
) -> (Vec<LeaderAndIsr>, Vec<Reply>) {
    let (mut cleared, mut replies) = (Vec::new(), Vec::new());
    for judged in in_the_way {
        let Judged::InTheWay(partition, order) = judged else { continue };
        let gone = match context.zookeeper.current() {
            Some(zookeeper) => {
                matches!(zookeeper.exists(&Znode::TopicIdEntry(partition.topic_id()).path()).await, Ok(false))
            }
            None => false,
        };
        if gone && set_aside(context, Arc::clone(&partition), "its topic was deleted and created again").await
        {
            cleared.push(order);
        } else {
            warn!(
                partition = %order.partition, held = %partition.topic_id(), ordered = %order.topic_id,
                "the order is refused: this broker holds another incarnation of the topic, which exists"
            );
            replies.push(reply(&order, Err(Rejection::InconsistentTopicId), LeaderEpoch::UNKNOWN));
        }
    }
    (cleared, replies)
}

async fn set_aside(context: &Arc<BrokerContext>, partition: Arc<Partition>, why: &'static str) -> bool {
    let context = Arc::clone(context);
    let done = tokio::task::spawn_blocking(move || {
        context.control.fetchers.remove([partition.id()]);
        context.partitions.set_aside(&partition, why).inspect_err(|reason| {
            error!(partition = %partition.id(), "the replica cannot be set aside: {reason:#}");
        })
    });
    matches!(done.await, Ok(Ok(())))
}

/// After a full LeaderAndIsr: what it does not name is a stray only if ZooKeeper says so too (F8, N7).
async fn set_strays_aside(context: Arc<BrokerContext>, named: HashSet<TopicPartition>) {
    for partition in context.partitions.all() {
        if named.contains(partition.id()) || partition.leader_epoch().is_some() {
            continue;
        }
        let Some(zookeeper) = context.zookeeper.current() else { return };
        let paths =
            [Znode::TopicIdEntry(partition.topic_id()).path(), Znode::State(partition.id().clone()).path()];
        let Ok(nodes) = zookeeper.get_many(&paths).await else { return };
        let [entry, state] = &nodes[..] else { return };
        let Some(why) = stray(entry.as_ref(), state.as_ref(), context.shared.own) else { continue };
        if partition.leader_epoch().is_some() {
            // An order for it came meanwhile.
            continue;
        }
        info!(partition = %partition.id(), topic_id = %partition.topic_id(), why, "a stray replica");
        set_aside(&context, partition, why).await;
    }
}

fn response(replies: Vec<Reply>) -> LeaderAndIsrResponse {
    let mut topics: BTreeMap<TopicId, Vec<LeaderAndIsrPartitionError>> = BTreeMap::new();
    for reply in replies {
        let mut fields = TaggedFields::new();
        put_i32(&mut fields, TAG_HIGHEST_KNOWN_EPOCH, reply.highest_epoch.0);
        let code = reply.outcome.map_or_else(Rejection::code, |()| 0);
        topics.entry(reply.topic_id).or_default().push(
            LeaderAndIsrPartitionError::default()
                .with_partition_index(reply.partition)
                .with_error_code(code)
                .with_unknown_tagged_fields(fields),
        );
    }
    let topics = topics.into_iter().map(|(topic_id, errors)| {
        LeaderAndIsrTopicError::default().with_topic_id(topic_id.0).with_partition_errors(errors)
    });
    LeaderAndIsrResponse::default().with_topics(topics.collect())
}
