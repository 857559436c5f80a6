//! ElectLeaders (43), versions 0-2: preferred leaders through `/admin/preferred_replica_election`, as an admin would.
//!
//! - Answers when the metadata shows the new leaders, or with error 7 after the timeout.
//! - v0 knows preferred elections only. Null partitions mean all; then those that need no election are left out.
//! - An unclean election (type 1) is the controller's to decide: it elects by itself, and only where
//!   `unclean.leader.election.enable` of the topic says so. Such a topic is waited for; for others it is error 83.

use std::collections::BTreeMap;

use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};
use kafka_protocol::protocol::StrBytes;
use tokio::time::{Instant, timeout_at};
use tracing::info;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::zk::election::{decode_election, encode_election};
use zurau_common::zk::op::{Lifetime, MultiError, Op};
use zurau_common::zk::znode::Znode;

use super::{Call, Starting, deadline_after};
use crate::context::BrokerContext;
use crate::metadata::{MetadataImage, PartitionImage};
use crate::topic_creation::{unreadable, unwritten, zookeeper};
use crate::topic_plan::Refusal;

/// How often the write is decided anew after the controller or another writer came between.
const ATTEMPTS_MAX: usize = 5;

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// What is answered for each partition.
type Results = BTreeMap<TopicPartition, Result<(), Refusal>>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ElectLeadersRequest| async move {
        let version = call.version();
        let kind = if version == 0 { PREFERRED } else { request.election_type };
        if kind != PREFERRED && kind != UNCLEAN {
            // v0 has no place for an error of the whole, but cannot get here.
            return ElectLeadersResponse::default().with_error_code(Rejection::InvalidRequest.code());
        }
        let image = call.context.metadata.image();
        let asked = asked(&request, &image);
        let deadline = deadline_after(request.timeout_ms);
        let mut results = elect(&call.context, kind, asked, &image, deadline).await;
        if request.topic_partitions.is_none() {
            results.retain(|_, result| {
                !matches!(result, Err(refusal) if refusal.rejection == Rejection::ElectionNotNeeded)
            });
        }
        ElectLeadersResponse::default().with_replica_election_results(answer(&results))
    })
}

/// The partitions that the request is about, each once.
fn asked(request: &ElectLeadersRequest, image: &MetadataImage) -> Vec<TopicPartition> {
    let mut partitions: Vec<TopicPartition> = match &request.topic_partitions {
        None => image
            .topics()
            .flat_map(|topic| {
                topic.partitions.keys().map(|number| TopicPartition::new(topic.name.clone(), *number))
            })
            .collect(),
        Some(topics) => topics
            .iter()
            .flat_map(|topic| {
                topic.partitions.iter().map(|number| TopicPartition::new(topic.topic.as_str(), *number))
            })
            .collect(),
    };
    partitions.sort_unstable();
    partitions.dedup();
    partitions
}

async fn elect(
    context: &BrokerContext,
    kind: i8,
    asked: Vec<TopicPartition>,
    image: &MetadataImage,
    deadline: Option<Instant>,
) -> Results {
    let mut results = Results::new();
    let mut wanted = Vec::new();
    for tp in asked {
        let partition = image.partition(&tp.topic, tp.partition);
        let need = if kind == PREFERRED {
            preferred_need(partition, |id| image.brokers.contains_key(&id))
        } else {
            let allowed = context.topic_configs.get(&tp.topic).unclean_leader_election_enable;
            unclean_need(partition, allowed)
        };
        match need {
            Ok(()) => wanted.push(tp),
            Err(refusal) => {
                results.insert(tp, Err(refusal));
            }
        }
    }
    let written = if kind == PREFERRED && !wanted.is_empty() { ask(context, &wanted).await } else { Ok(()) };
    if let Err(refusal) = written {
        results.extend(wanted.into_iter().map(|tp| (tp, Err(refusal.clone()))));
        return results;
    }
    let is_done = |image: &MetadataImage, tp: &TopicPartition| {
        image.partition(&tp.topic, tp.partition).is_some_and(|partition| is_led(partition, kind))
    };
    if let Some(deadline) = deadline {
        let all =
            context.metadata.wait_until(|image| wanted.iter().all(|tp| is_done(image, tp)).then_some(()));
        // What is not done by then is answered one by one.
        let _in_time = timeout_at(deadline, all).await.is_ok();
    }
    let image = context.metadata.image();
    for tp in wanted {
        let result = if is_done(&image, &tp) { Ok(()) } else { Err(too_late(&image, &tp, kind)) };
        results.insert(tp, result);
    }
    results
}

fn is_led(partition: &PartitionImage, kind: i8) -> bool {
    match kind {
        PREFERRED => partition.leader.is_some() && partition.leader == partition.replicas.first().copied(),
        _ => partition.leader.is_some(),
    }
}

fn unknown() -> Refusal {
    Refusal::new(Rejection::UnknownTopicOrPartition, "the partition does not exist")
}

/// `Ok` if a preferred election is called for and can succeed.
fn preferred_need(
    partition: Option<&PartitionImage>,
    is_live: impl Fn(BrokerId) -> bool,
) -> Result<(), Refusal> {
    let partition = partition.ok_or_else(unknown)?;
    let Some(preferred) = partition.replicas.first().copied() else { return Err(unknown()) };
    if partition.leader == Some(preferred) {
        let message = "the preferred replica leads already";
        return Err(Refusal::new(Rejection::ElectionNotNeeded, message));
    }
    if !is_live(preferred) || !partition.isr.contains(&preferred) {
        let message = format!("broker {preferred}, the preferred replica, is not alive or not in sync");
        return Err(Refusal::new(Rejection::PreferredLeaderNotAvailable, message));
    }
    Ok(())
}

/// `Ok` if the controller will elect uncleanly by itself.
fn unclean_need(partition: Option<&PartitionImage>, allowed: bool) -> Result<(), Refusal> {
    let partition = partition.ok_or_else(unknown)?;
    if partition.leader.is_some() {
        return Err(Refusal::new(Rejection::ElectionNotNeeded, "the partition has a leader"));
    }
    if !allowed {
        let message = "no replica in sync is alive, and unclean.leader.election.enable is off for the topic";
        return Err(Refusal::new(Rejection::EligibleLeadersNotAvailable, message));
    }
    Ok(())
}

fn too_late(image: &MetadataImage, tp: &TopicPartition, kind: i8) -> Refusal {
    let partition = image.partition(&tp.topic, tp.partition);
    let need = match kind {
        PREFERRED => preferred_need(partition, |id| image.brokers.contains_key(&id)),
        _ => unclean_need(partition, true),
    };
    need.err().unwrap_or_else(|| {
        Refusal::new(Rejection::RequestTimedOut, "the election was asked for, but is not done yet")
    })
}

/// Adds the partitions to the request that stands in ZooKeeper, or makes one.
async fn ask(context: &BrokerContext, wanted: &[TopicPartition]) -> Result<(), Refusal> {
    let zookeeper = zookeeper(context)?;
    let path = Znode::PreferredReplicaElection.path();
    for _ in 0..ATTEMPTS_MAX {
        let node = zookeeper.get(&path).await.map_err(unreadable)?;
        let standing = node.as_ref().map(|node| (node.data.as_slice(), node.version));
        match zookeeper.multi(&[request_write(&path, standing, wanted)]).await {
            Ok(_) => {
                info!(partitions = wanted.len(), "preferred leaders asked for by a client");
                return Ok(());
            }
            Err(MultiError::Failed { .. } | MultiError::Unknown) => {}
            Err(error) => return Err(unwritten(&error)),
        }
    }
    let message = "the request for preferred leaders changes too fast; try again";
    Err(Refusal::new(Rejection::RequestTimedOut, message))
}

/// The write that asks for `wanted` as well. `standing`: value and version of a request that the controller has not
/// removed yet; it may have acted on it, so a request for all partitions is written anew too. One that cannot be read
/// is replaced.
fn request_write(path: &str, standing: Option<(&[u8], i32)>, wanted: &[TopicPartition]) -> Op {
    let path = path.to_owned();
    let Some((value, version)) = standing else {
        return Op::Create { path, data: encode_election(wanted), lifetime: Lifetime::Persistent };
    };
    let data = match decode_election(value) {
        Ok(None) => Vec::new(),
        Ok(Some(mut partitions)) => {
            partitions.extend(wanted.iter().cloned());
            partitions.sort_unstable();
            partitions.dedup();
            encode_election(&partitions)
        }
        Err(_) => encode_election(wanted),
    };
    Op::SetData { path, data, version: Some(version) }
}

fn answer(results: &Results) -> Vec<ReplicaElectionResult> {
    let entries: Vec<_> = results.iter().collect();
    let topics = entries.chunk_by(|(one, _), (other, _)| one.topic == other.topic).map(|entries| {
        let partitions = entries.iter().map(|(tp, result)| {
            let found = PartitionResult::default().with_partition_id(tp.partition);
            match result {
                Ok(()) => found,
                Err(refusal) => found
                    .with_error_code(refusal.rejection.code())
                    .with_error_message(Some(StrBytes::from_string(refusal.message.clone()))),
            }
        });
        ReplicaElectionResult::default()
            .with_topic(to_wire_topic(&entries[0].0.topic))
            .with_partition_result(partitions.collect())
    });
    topics.collect()
}

#[cfg(test)]
mod tests {
    use zurau_common::id::LeaderEpoch;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn partition(leader: Option<i32>, replicas: &[i32], isr: &[i32]) -> PartitionImage {
        let ids = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        PartitionImage {
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(0),
            isr: ids(isr),
            replicas: ids(replicas),
            offline_replicas: Vec::new(),
        }
    }

    fn code(result: &Result<(), Refusal>) -> i16 {
        result.as_ref().err().map_or(0, |refusal| refusal.rejection.code())
    }

    #[test]
    fn every_version_encodes() {
        let results = Results::from([
            (TopicPartition::new("t", 0), Ok(())),
            (TopicPartition::new("t", 1), Err(unknown())),
            (TopicPartition::new("u", 0), Ok(())),
        ]);
        let topics = answer(&results);
        assert_eq!(topics.iter().map(|topic| topic.partition_result.len()).collect::<Vec<_>>(), [2, 1]);
        assert_every_version_encodes::<ElectLeadersRequest>(|_| {
            ElectLeadersResponse::default().with_replica_election_results(topics.clone())
        });
    }

    #[test]
    fn a_preferred_election_needs_another_leader_and_a_preferred_replica_in_sync() {
        //   leader, replicas, ISR, live, error
        type Ids = &'static [i32];
        let rows: [(Option<i32>, Ids, Ids, Ids, i16); 5] = [
            (Some(2), &[1, 2], &[1, 2], &[1, 2], 0),
            (Some(1), &[1, 2], &[1, 2], &[1, 2], 84),
            (Some(2), &[1, 2], &[2], &[1, 2], 80),
            (Some(2), &[1, 2], &[1, 2], &[2], 80),
            (None, &[1, 2], &[1], &[1], 0),
        ];
        for (leader, replicas, isr, live, expected) in rows {
            let image = partition(leader, replicas, isr);
            let need = preferred_need(Some(&image), |id| live.contains(&id.0));
            assert_eq!(code(&need), expected, "{image:?} {live:?}");
        }
        assert_eq!(code(&preferred_need(None, |_| true)), 3);
    }

    #[test]
    fn an_unclean_election_is_waited_for_only_where_it_is_allowed() {
        for (leader, allowed, expected) in [(Some(2), true, 84), (None, false, 83), (None, true, 0)] {
            let image = partition(leader, &[1, 2], &[1]);
            assert_eq!(code(&unclean_need(Some(&image), allowed)), expected);
        }
        assert_eq!(code(&unclean_need(None, true)), 3);
    }

    #[test]
    fn a_standing_request_is_added_to() {
        let wanted = [TopicPartition::new("t", 0)];
        let both = encode_election(&[TopicPartition::new("a", 1), TopicPartition::new("t", 0)]);
        let alone = encode_election(&wanted);
        let standing = encode_election(&[TopicPartition::new("a", 1)]);
        let rows: [(Option<&[u8]>, &[u8]); 4] =
            [(None, &alone), (Some(&standing), &both), (Some(b""), b""), (Some(b"garbage"), &alone)];
        for (standing, expected) in rows {
            match request_write("p", standing.map(|value| (value, 4)), &wanted) {
                Op::Create { data, .. } => assert!(standing.is_none() && data == expected),
                Op::SetData { data, version, .. } => {
                    assert_eq!((data.as_slice(), version), (expected, Some(4)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
