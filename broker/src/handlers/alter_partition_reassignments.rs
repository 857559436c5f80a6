//! AlterPartitionReassignments (45), version 0: writes or removes the wishes in `/brokers/partitions_reassigned`.
//!
//! - Answers when the wish is stored; the move itself goes on, see ListPartitionReassignments.
//! - Null replicas remove the wish, and by that cancel the move.
//! - A broker that shall get a copy must be alive; one that has a copy already need not.

use futures::StreamExt as _;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::{AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse};
use kafka_protocol::protocol::StrBytes;
use tracing::info;
use zurau_common::assignment::{difference, format_ids};
use zurau_common::id::{BrokerId, TopicPartition, topic_name_problem};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::from_wire_ids;
use zurau_common::zk::isr::{decode_ids, encode_ids};
use zurau_common::zk::op::{Lifetime, MultiError, Op};
use zurau_common::zk::znode::{REASSIGNMENTS, Znode};

use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::topic_creation::{unreadable, unwritten, zookeeper};
use crate::topic_plan::Refusal;

/// Partitions of one request that are written at the same time.
const PARTITIONS_IN_FLIGHT: usize = 8;

/// How often a write is decided anew after another writer came between.
const ATTEMPTS_MAX: usize = 5;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: AlterPartitionReassignmentsRequest| async move {
        let context = &call.context;
        let mut responses = Vec::new();
        for topic in &request.topics {
            let changes: Vec<_> = topic
                .partitions
                .iter()
                .map(|partition| async move {
                    let number = partition.partition_index;
                    let twice = 1 < topic.partitions.iter().filter(|p| p.partition_index == number).count();
                    let wanted = partition.replicas.as_deref().map(from_wire_ids);
                    let outcome = if twice {
                        let message = "the partition stands twice in the request";
                        Err(Refusal::new(Rejection::InvalidRequest, message))
                    } else {
                        alter(context, &topic.name, number, wanted.as_deref()).await
                    };
                    result(number, outcome)
                })
                .collect();
            let results = futures::stream::iter(changes).buffered(PARTITIONS_IN_FLIGHT).collect().await;
            let response = ReassignableTopicResponse::default().with_name(topic.name.clone());
            responses.push(response.with_partitions(results));
        }
        AlterPartitionReassignmentsResponse::default().with_responses(responses)
    })
}

fn result(number: i32, outcome: Result<(), Refusal>) -> ReassignablePartitionResponse {
    let result = ReassignablePartitionResponse::default().with_partition_index(number);
    match outcome {
        Ok(()) => result,
        Err(refusal) => result
            .with_error_code(refusal.rejection.code())
            .with_error_message(Some(StrBytes::from_string(refusal.message))),
    }
}

fn unknown(topic: &str, number: i32) -> Refusal {
    let message = format!("the partition {topic}-{number} does not exist");
    Refusal::new(Rejection::UnknownTopicOrPartition, message)
}

async fn alter(
    context: &BrokerContext,
    topic: &str,
    number: i32,
    wanted: Option<&[BrokerId]>,
) -> Result<(), Refusal> {
    if topic_name_problem(topic).is_some() || number < 0 {
        return Err(unknown(topic, number));
    }
    let partition = TopicPartition::new(topic, number);
    let zookeeper = zookeeper(context)?;
    let paths = [
        Znode::Replicas(partition.clone()).path(),
        Znode::Reassignment(partition.clone()).path(),
        format!("{REASSIGNMENTS}/{topic}"),
        Znode::DeleteTopic(topic.into()).path(),
    ];
    let mut may_be_stored = false;
    for _ in 0..ATTEMPTS_MAX {
        let found = zookeeper.get_many(&paths).await.map_err(unreadable)?;
        let [Some(replicas), wish, parent, None] = &found[..] else { return Err(unknown(topic, number)) };
        let Some(wanted) = wanted else {
            let Some(wish) = wish else {
                return if may_be_stored { Ok(()) } else { Err(nothing_to_cancel(&partition)) };
            };
            let removal = Op::Delete { path: paths[1].clone(), version: Some(wish.version) };
            match zookeeper.multi(&[removal]).await {
                Ok(_) => {
                    info!(%partition, "reassignment cancelled for a client");
                    return Ok(());
                }
                Err(MultiError::Failed { .. }) => continue,
                Err(MultiError::Unknown) => may_be_stored = true,
                Err(error) => return Err(unwritten(&error)),
            }
            continue;
        };
        let holders = decode_ids(&replicas.data).unwrap_or_default();
        check(wanted, &holders, |id| context.metadata.image().brokers.contains_key(&id))?;
        match zookeeper.multi(&wish_writes(&paths, wish.is_some(), parent.is_some(), wanted)).await {
            Ok(_) => {
                info!(%partition, replicas = format_ids(wanted), "reassignment asked for by a client");
                return Ok(());
            }
            Err(MultiError::Failed { .. } | MultiError::Unknown) => {}
            Err(error) => return Err(unwritten(&error)),
        }
    }
    let message = "the partition's reassignment changes too fast; try again";
    Err(Refusal::new(Rejection::RequestTimedOut, message))
}

fn nothing_to_cancel(partition: &TopicPartition) -> Refusal {
    let message = format!("the partition {partition} is not being reassigned");
    Refusal::new(Rejection::NoReassignmentInProgress, message)
}

/// Stores a wish for a partition that exists and whose topic stays: the parent of the wishes of a deleted topic would
/// never be removed. `paths`: of `replicas`, the wish, its parent, the wish to delete the topic.
fn wish_writes(paths: &[String; 4], exists: bool, parent_exists: bool, wanted: &[BrokerId]) -> Vec<Op> {
    let [replicas, wish, parent, deletion] = paths.clone();
    let create = |path, data| Op::Create { path, data, lifetime: Lifetime::Persistent };
    let mut ops = vec![Op::CheckExists { path: replicas }, Op::CheckAbsent { path: deletion }];
    if !parent_exists {
        ops.push(create(parent, Vec::new()));
    }
    let data = encode_ids(wanted);
    ops.push(if exists { Op::SetData { path: wish, data, version: None } } else { create(wish, data) });
    ops
}

/// Judges wanted replicas. `holders`: who has a copy already.
fn check(
    wanted: &[BrokerId],
    holders: &[BrokerId],
    is_live: impl Fn(BrokerId) -> bool,
) -> Result<(), Refusal> {
    let invalid = |message: String| Err(Refusal::new(Rejection::InvalidReplicaAssignment, message));
    if wanted.is_empty() {
        return invalid("a partition needs at least one replica".to_owned());
    }
    if let Some(negative) = wanted.iter().find(|id| id.0 < 0) {
        return invalid(format!("{negative} is no broker id"));
    }
    let mut distinct = wanted.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != wanted.len() {
        return invalid(format!("a broker stands twice in {}", format_ids(wanted)));
    }
    match difference(wanted, holders).into_iter().find(|id| !is_live(*id)) {
        Some(dead) => invalid(format!("broker {dead} is not alive and has no copy yet")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<AlterPartitionReassignmentsRequest>(|_| {
            let partitions = vec![result(0, Ok(())), result(1, Err(unknown("t", 1)))];
            let topic = ReassignableTopicResponse::default().with_name(to_wire_topic("t"));
            AlterPartitionReassignmentsResponse::default()
                .with_responses(vec![topic.with_partitions(partitions)])
        });
    }

    #[test]
    fn wanted_replicas_are_distinct_and_new_ones_alive() {
        //   wanted, has a copy, live, accepted
        type Ids = &'static [i32];
        let rows: [(Ids, Ids, Ids, bool); 7] = [
            (&[2, 3], &[1, 2], &[1, 2, 3], true),
            (&[], &[1], &[1], false),
            (&[1, 1], &[1], &[1], false),
            (&[1, -1], &[1], &[1], false),
            (&[1, 9], &[1], &[1, 2], false),
            // A holder may be down: it can be kept, also in another order.
            (&[2, 1], &[1, 2], &[1], true),
            (&[3], &[1], &[1, 3], true),
        ];
        for (wanted, holders, live, accepted) in rows {
            let outcome = check(&ids(wanted), &ids(holders), |id| live.contains(&id.0));
            assert_eq!(outcome.is_ok(), accepted, "{wanted:?} {holders:?} {live:?}");
            if let Err(refusal) = outcome {
                assert_eq!(refusal.rejection, Rejection::InvalidReplicaAssignment);
            }
        }
    }

    #[test]
    fn a_wish_is_written_with_its_parent_or_over_another() {
        let paths = ["replicas", "wish", "parent", "deletion"].map(str::to_owned);
        let written = |exists, parent_exists| -> Vec<String> {
            let ops = wish_writes(&paths, exists, parent_exists, &ids(&[2, 3]));
            ops.iter()
                .map(|op| match op {
                    Op::CheckExists { path } => format!("is {path}"),
                    Op::CheckAbsent { path } => format!("no {path}"),
                    Op::Create { path, .. } => format!("create {path}"),
                    Op::SetData { path, .. } => format!("set {path}"),
                    other => format!("{other:?}"),
                })
                .collect()
        };
        let checks = ["is replicas", "no deletion"];
        assert_eq!(written(false, false), [&checks[..], &["create parent", "create wish"]].concat());
        assert_eq!(written(false, true), [&checks[..], &["create wish"]].concat());
        assert_eq!(written(true, true), [&checks[..], &["set wish"]].concat());
    }
}
