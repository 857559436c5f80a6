//! DescribeTopicPartitions (75), version 0: topics page by page, with who else is eligible to lead (KIP-966).
//!
//! - No topic named: all of them. Topics come in the order of their names; a page holds at most
//!   `max.request.partition.size.limit` partitions, or fewer if the client says so, and ends with where to go on.
//! - The eligible leader replicas are read from ZooKeeper; null if it cannot be read now. Nothing is kept of earlier
//!   ones, so `last_known_elr` is empty.
//! - What is wrong with a topic stands in its error; a partition without a reachable leader has leader −1 and no error,
//!   as in Kafka.

use std::collections::BTreeSet;

use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use zurau_common::id::{TopicPartition, topic_name_problem};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{to_wire_ids, to_wire_topic};
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::znode::Znode;

use super::metadata::{TOPIC_OPERATIONS, offline};
use super::{Call, Starting};
use crate::metadata::{MetadataImage, PartitionImage, is_internal};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DescribeTopicPartitionsRequest| async move {
        let image = call.context.metadata.image();
        let limit = call.context.config.max_request_partition_size_limit;
        let mut page = page(&image, &request, &call.connection.listener.0, limit);
        add_eligible(&call, &mut page).await;
        page
    })
}

/// What the metadata say; the eligible leader replicas are unknown yet.
fn page(
    image: &MetadataImage,
    request: &DescribeTopicPartitionsRequest,
    listener: &str,
    partitions_max: usize,
) -> DescribeTopicPartitionsResponse {
    let asked = usize::try_from(request.response_partition_limit).unwrap_or(0).max(1);
    let mut left = asked.min(partitions_max);
    let cursor = request.cursor.as_ref();
    let all = request.topics.is_empty();
    let names: BTreeSet<&str> = if all {
        image.topics().map(|topic| &*topic.name).collect()
    } else {
        request.topics.iter().map(|topic| topic.name.as_str()).collect()
    };
    let mut response = DescribeTopicPartitionsResponse::default();
    let from = cursor.map_or("", |cursor| cursor.topic_name.as_str());
    for name in names.into_iter().filter(|name| from <= *name) {
        if cursor.is_some_and(|cursor| cursor.partition_index < 0) {
            response.topics.push(refuse(name, Rejection::InvalidRequest));
            continue;
        }
        let Some(topic) = image.topic(name) else {
            let invalid = topic_name_problem(name).is_some();
            let rejection =
                if invalid { Rejection::InvalidTopicException } else { Rejection::UnknownTopicOrPartition };
            response.topics.push(refuse(name, rejection));
            continue;
        };
        let next = |number| {
            Some(Cursor::default().with_topic_name(to_wire_topic(name)).with_partition_index(number))
        };
        if left == 0 {
            return response.with_next_cursor(next(0));
        }
        let first = cursor.filter(|cursor| cursor.topic_name.as_str() == name);
        let first = first.map_or(0, |cursor| cursor.partition_index);
        let mut rest = topic.partitions.range(first..);
        let partitions: Vec<_> = rest
            .by_ref()
            .take(left)
            .map(|(number, partition)| describe(image, *number, partition, listener))
            .collect();
        left -= partitions.len();
        response.topics.push(
            DescribeTopicPartitionsResponseTopic::default()
                .with_name(Some(to_wire_topic(name)))
                .with_topic_id(topic.topic_id.0)
                .with_is_internal(is_internal(name))
                .with_topic_authorized_operations(TOPIC_OPERATIONS)
                .with_partitions(partitions),
        );
        if let Some((number, _)) = rest.next() {
            return response.with_next_cursor(next(*number));
        }
    }
    response
}

fn refuse(name: &str, rejection: Rejection) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(rejection.code())
        .with_name(Some(to_wire_topic(name)))
        .with_is_internal(is_internal(name))
}

fn describe(
    image: &MetadataImage,
    number: i32,
    partition: &PartitionImage,
    listener: &str,
) -> DescribeTopicPartitionsResponsePartition {
    let leader = partition.leader.filter(|id| image.reaches(*id, listener));
    DescribeTopicPartitionsResponsePartition::default()
        .with_partition_index(number)
        .with_leader_id(leader.map_or(-1, |id| id.0).into())
        .with_leader_epoch(partition.leader_epoch.0)
        .with_replica_nodes(to_wire_ids(&partition.replicas))
        .with_isr_nodes(to_wire_ids(&partition.isr))
        .with_eligible_leader_replicas(None)
        .with_last_known_elr(Some(Vec::new()))
        .with_offline_replicas(to_wire_ids(&offline(image, partition)))
}

async fn add_eligible(call: &Call, page: &mut DescribeTopicPartitionsResponse) {
    let Some(zookeeper) = call.context.zookeeper.current() else { return };
    let partitions: Vec<_> = page
        .topics
        .iter_mut()
        .flat_map(|topic| {
            let name = topic.name.clone().unwrap_or_default();
            topic.partitions.iter_mut().map(move |partition| {
                let tp = TopicPartition::new(name.as_str(), partition.partition_index);
                (Znode::Elr(tp).path(), partition)
            })
        })
        .collect();
    let paths: Vec<String> = partitions.iter().map(|(path, _)| path.clone()).collect();
    let Ok(nodes) = zookeeper.get_many(&paths).await else { return };
    for ((_, partition), node) in partitions.into_iter().zip(nodes) {
        let eligible = node.map_or(Ok(Vec::new()), |node| decode_ids(&node.data));
        partition.eligible_leader_replicas = eligible.ok().map(|ids| to_wire_ids(&ids));
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_topic_partitions_request::{Cursor as From, TopicRequest};
    use zurau_common::id::BrokerId;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    fn named(names: &[&str], limit: i32) -> DescribeTopicPartitionsRequest {
        let topics = names.iter().map(|name| TopicRequest::default().with_name(to_wire_topic(name)));
        DescribeTopicPartitionsRequest::default()
            .with_topics(topics.collect())
            .with_response_partition_limit(limit)
    }

    fn three() -> MetadataImage {
        image(vec![topic("c", id(3), &[1]), topic("a", id(1), &[1, -1, 2]), topic("b", id(2), &[2])])
    }

    type Shown = (String, Vec<i32>);

    /// Topics with the numbers of their partitions, and where to go on.
    fn shown(page: &DescribeTopicPartitionsResponse) -> (Vec<Shown>, Option<(String, i32)>) {
        let topics = page.topics.iter().map(|topic| {
            let numbers = topic.partitions.iter().map(|partition| partition.partition_index);
            (topic.name.as_ref().unwrap().to_string(), numbers.collect())
        });
        let next = page.next_cursor.as_ref();
        (topics.collect(), next.map(|next| (next.topic_name.to_string(), next.partition_index)))
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<DescribeTopicPartitionsRequest>(|_| {
            page(&three(), &named(&["a", "missing", "bad name"], 2), "PLAINTEXT", 10)
        });
    }

    #[test]
    fn pages_follow_one_another_without_gap_or_repetition() {
        let image = three();
        for limit in [1, 2, 3, 4, 5, 0, -7] {
            let mut request = named(&[], limit);
            let (mut seen, mut pages) = (Vec::new(), 0);
            loop {
                let (topics, next) = shown(&page(&image, &request, "PLAINTEXT", 4));
                let partitions: usize = topics.iter().map(|(_, numbers)| numbers.len()).sum();
                assert!(partitions <= usize::try_from(limit).unwrap_or(0).clamp(1, 4), "{limit}: {topics:?}");
                seen.extend(topics.into_iter().flat_map(|(name, numbers)| {
                    numbers.into_iter().map(move |number| (name.clone(), number))
                }));
                let Some((name, number)) = next else { break };
                request.cursor =
                    Some(From::default().with_topic_name(to_wire_topic(&name)).with_partition_index(number));
                pages += 1;
                assert!(pages < 10, "{limit}: no end");
            }
            let all = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)];
            assert_eq!(seen, all.map(|(name, number)| (name.to_owned(), number)), "limit {limit}");
        }
    }

    #[test]
    fn topics_that_are_not_there_say_why_and_leaders_that_are_gone_are_none() {
        let mut image = three();
        image.brokers.remove(&BrokerId(2));
        let answer = page(&image, &named(&["b", "missing", "bad name"], 10), "PLAINTEXT", 10);
        let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
        assert_eq!(codes, [0, 17, 3], "b, 'bad name' and missing, by name");
        let partition = &answer.topics[0].partitions[0];
        assert_eq!((partition.error_code, partition.leader_id.0), (0, -1));
        assert!(partition.offline_replicas.iter().any(|id| id.0 == 2));

        let cursor = From::default().with_topic_name(to_wire_topic("a")).with_partition_index(-1);
        let refused = page(&image, &named(&["a"], 10).with_cursor(Some(cursor)), "PLAINTEXT", 10);
        assert_eq!(refused.topics[0].error_code, Rejection::InvalidRequest.code());
    }
}
