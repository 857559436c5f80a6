//! ListPartitionReassignments (46), version 0: which partitions move, read from ZooKeeper.
//!
//! - Null topics: all partitions that somebody wished to move. Named partitions are also shown while a move goes on
//!   for which no wish stands: a cancelled one, or one asked for by an edit of `replicas`.
//! - What does not move or does not exist is left out. `replicas` are all hosts, the wanted ones first.

use kafka_protocol::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use kafka_protocol::messages::{ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerId, TopicPartition, topic_name_problem};
use zurau_common::wire::control::{to_wire_ids, to_wire_topic};
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::Node;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::{REASSIGNMENTS, Znode};

use super::{Call, Starting};
use crate::topic_creation::{unreadable, zookeeper};
use crate::topic_plan::Refusal;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ListPartitionReassignmentsRequest| async move {
        let found = async {
            let zookeeper = zookeeper(&call.context)?;
            let partitions = match named(&request) {
                Some(partitions) => partitions,
                None => wished(&zookeeper).await?,
            };
            ongoing(&zookeeper, &partitions).await
        };
        match found.await {
            Ok(found) => ListPartitionReassignmentsResponse::default().with_topics(topics(found)),
            Err(refusal) => ListPartitionReassignmentsResponse::default()
                .with_error_code(refusal.rejection.code())
                .with_error_message(Some(StrBytes::from_string(refusal.message))),
        }
    })
}

/// The partitions that the request names, each once; those that cannot exist are left out.
fn named(request: &ListPartitionReassignmentsRequest) -> Option<Vec<TopicPartition>> {
    let topics = request.topics.as_ref()?;
    let possible = topics.iter().filter(|topic| topic_name_problem(&topic.name).is_none());
    let mut partitions: Vec<TopicPartition> = possible
        .flat_map(|topic| {
            let numbers = topic.partition_indexes.iter().filter(|number| 0 <= **number);
            numbers.map(|number| TopicPartition::new(topic.name.as_str(), *number))
        })
        .collect();
    partitions.sort_unstable();
    partitions.dedup();
    Some(partitions)
}

async fn wished(zookeeper: &ZooKeeper) -> Result<Vec<TopicPartition>, Refusal> {
    let topics = zookeeper.children(REASSIGNMENTS).await.map_err(unreadable)?.unwrap_or_default();
    let paths: Vec<String> = topics.iter().map(|topic| format!("{REASSIGNMENTS}/{topic}")).collect();
    let children = zookeeper.children_many(&paths).await.map_err(unreadable)?;
    let mut partitions: Vec<TopicPartition> = topics
        .iter()
        .zip(children)
        .flat_map(|(topic, children)| {
            let numbers = children.unwrap_or_default().into_iter().filter_map(|child| child.parse().ok());
            numbers.map(|number| TopicPartition::new(topic.as_str(), number)).collect::<Vec<_>>()
        })
        .collect();
    partitions.sort_unstable();
    Ok(partitions)
}

type Ongoing = Vec<(TopicPartition, Move)>;

async fn ongoing(zookeeper: &ZooKeeper, partitions: &[TopicPartition]) -> Result<Ongoing, Refusal> {
    let paths: Vec<String> = partitions
        .iter()
        .flat_map(|tp| {
            let znodes =
                [Znode::Reassignment(tp.clone()), Znode::Replicas(tp.clone()), Znode::State(tp.clone())];
            znodes.map(|znode| znode.path())
        })
        .collect();
    let nodes = zookeeper.get_many(&paths).await.map_err(unreadable)?;
    let moves = partitions.iter().zip(nodes.chunks(3)).filter_map(|(tp, nodes)| {
        let ids = |node: &Option<Node>| node.as_ref().and_then(|node| decode_ids(&node.data).ok());
        let state = nodes[2].as_ref().and_then(|node| PartitionState::decode(&node.data).ok());
        let hosts = state.map_or_else(Vec::new, |state| state.replicas);
        let found = Move::of(ids(&nodes[0]).as_deref(), &ids(&nodes[1])?, &hosts)?;
        Some((tp.clone(), found))
    });
    Ok(moves.collect())
}

/// A move as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Move {
    replicas: Vec<BrokerId>,
    adding: Vec<BrokerId>,
    removing: Vec<BrokerId>,
}

impl Move {
    /// `None` when nobody comes or goes. `hosts`: those of the current leader epoch.
    fn of(wish: Option<&[BrokerId]>, assigned: &[BrokerId], hosts: &[BrokerId]) -> Option<Self> {
        let target = wish.unwrap_or(assigned);
        // Without a wish nothing but the hosts tells who is new, until the controller has made them hosts.
        let before = if wish.is_some() || hosts.is_empty() { assigned } else { hosts };
        let replicas = union(target, &union(assigned, hosts));
        let found =
            Self { adding: difference(target, before), removing: difference(&replicas, target), replicas };
        (!found.adding.is_empty() || !found.removing.is_empty()).then_some(found)
    }
}

fn topics(moves: Ongoing) -> Vec<OngoingTopicReassignment> {
    let by_topic = moves.chunk_by(|(one, _), (other, _)| one.topic == other.topic);
    let topics = by_topic.map(|moves| {
        let partitions = moves.iter().map(|(tp, found)| {
            OngoingPartitionReassignment::default()
                .with_partition_index(tp.partition)
                .with_replicas(to_wire_ids(&found.replicas))
                .with_adding_replicas(to_wire_ids(&found.adding))
                .with_removing_replicas(to_wire_ids(&found.removing))
        });
        OngoingTopicReassignment::default()
            .with_name(to_wire_topic(&moves[0].0.topic))
            .with_partitions(partitions.collect())
    });
    topics.collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<ListPartitionReassignmentsRequest>(|_| {
            let found = Move { replicas: ids(&[2, 1]), adding: ids(&[2]), removing: ids(&[1]) };
            let moves = vec![
                (TopicPartition::new("a", 0), found.clone()),
                (TopicPartition::new("a", 1), found.clone()),
                (TopicPartition::new("b", 0), found),
            ];
            let topics = topics(moves);
            assert_eq!(topics.iter().map(|topic| topic.partitions.len()).collect::<Vec<_>>(), [2, 1]);
            ListPartitionReassignmentsResponse::default().with_topics(topics)
        });
    }

    #[test]
    fn a_move_shows_who_comes_and_who_goes() {
        type Ids = &'static [i32];
        type Shown = Option<(Ids, Ids, Ids)>;
        #[rustfmt::skip]
        let rows: [(Option<Ids>, Ids, Ids, Shown); 8] = [
            // wish           assigned  hosts         replicas      adding  removing
            (None,            &[1, 2],  &[1, 2],      None),
            (None,            &[2, 1],  &[1, 2],      None),
            (Some(&[2, 1]),   &[1, 2],  &[1, 2],      None),
            (Some(&[2, 3]),   &[1, 2],  &[1, 2],      Some((&[2, 3, 1], &[3], &[1]))),
            (Some(&[2, 3]),   &[1, 2],  &[2, 3, 1],   Some((&[2, 3, 1], &[3], &[1]))),
            // cancelled; an edit of `replicas` before and after the controller has seen it
            (None,            &[1, 2],  &[1, 2, 3],   Some((&[1, 2, 3], &[], &[3]))),
            (None,            &[3],     &[1],         Some((&[3, 1], &[3], &[1]))),
            (None,            &[3],     &[3, 1],      Some((&[3, 1], &[], &[1]))),
        ];
        for (wish, assigned, hosts, shown) in rows {
            let found = Move::of(wish.map(ids).as_deref(), &ids(assigned), &ids(hosts));
            let expected = shown.map(|(replicas, adding, removing)| Move {
                replicas: ids(replicas),
                adding: ids(adding),
                removing: ids(removing),
            });
            assert_eq!(found, expected, "{wish:?} {assigned:?} {hosts:?}");
        }
    }

    #[test]
    fn named_partitions_are_asked_for_once() {
        let topic = |name: &str, numbers: &[i32]| {
            ListPartitionReassignmentsTopics::default()
                .with_name(to_wire_topic(name))
                .with_partition_indexes(numbers.to_vec())
        };
        let request = ListPartitionReassignmentsRequest::default()
            .with_topics(Some(vec![topic("t", &[1, 0, 1, -1]), topic("a/b", &[0])]));
        let expected = vec![TopicPartition::new("t", 0), TopicPartition::new("t", 1)];
        assert_eq!(named(&request), Some(expected));
        assert_eq!(named(&ListPartitionReassignmentsRequest::default().with_topics(None)), None);
    }
}
