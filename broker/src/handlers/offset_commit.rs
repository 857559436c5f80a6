//! OffsetCommit (8), versions 0-9: a member, or anybody for a group without members, stores how far it is.
//!
//! - v0 knows no members; v1 the client's own timestamps; v2-4 a retention of the client's choice; v6 leader epochs; v7
//!   static members; v9 epochs of members of the consumer protocol (KIP-848). Kafka stores v0 in ZooKeeper; here it is like the others.
//! - Partitions that do not exist are refused one by one, so that nothing is kept for them.

use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};
use zurau_common::rejection::Rejection;

use super::group_words::{any_group, committed, optional_text, text};
use super::{Call, Starting};
use crate::groups::{CommitRequest, CommittedTopic, OffsetToCommit};
use crate::metadata::MetadataImage;

pub(super) fn start(call: Call) -> Starting {
    Box::pin(async move {
        let request = match call.decode::<OffsetCommitRequest>() {
            Ok(request) => request,
            Err(refused) => return refused,
        };
        let image = call.context.metadata.image();
        let asked = CommitRequest { knows_member_epochs: 9 <= call.version(), ..wanted(&request, &image) };
        if asked.topics.iter().all(|(_, offsets)| offsets.is_empty()) {
            return call.reply().now(&respond(&request, &image, Ok(Vec::new())));
        }
        // The coordinator has it before the next request of the connection is read: commits keep their order, and do
        // not wait for one another.
        let group = match any_group(&request.group_id) {
            Ok(group) => group,
            Err(rejection) => return call.reply().now(&respond(&request, &image, Err(rejection))),
        };
        let handed_over = call.context.groups.hand_over(&call.context, &group, asked).await;
        call.pend(|_| async move { respond(&request, &image, handed_over.answer_to_write().await) })
    })
}

/// Every topic of the request, with those of its partitions that exist.
fn wanted(request: &OffsetCommitRequest, image: &MetadataImage) -> CommitRequest {
    let topics = request.topics.iter().map(|topic| {
        let offsets = topic
            .partitions
            .iter()
            .filter(|partition| image.partition(&topic.name, partition.partition_index).is_some())
            .map(|partition| OffsetToCommit {
                partition: partition.partition_index,
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: optional_text(partition.committed_metadata.as_ref()).unwrap_or_default(),
                commit_time_ms: Some(partition.commit_timestamp).filter(|time| *time != -1),
            });
        (text(&topic.name), offsets.collect())
    });
    CommitRequest {
        generation: request.generation_id_or_member_epoch,
        knows_member_epochs: true,
        member_id: text(&request.member_id),
        instance_id: optional_text(request.group_instance_id.as_ref()),
        retention_ms: Some(request.retention_time_ms).filter(|time| *time != -1),
        transaction: None,
        topics: topics.collect(),
    }
}

fn respond(
    request: &OffsetCommitRequest,
    image: &MetadataImage,
    answer: Result<Vec<CommittedTopic>, Rejection>,
) -> OffsetCommitResponse {
    let topics = request.topics.iter().enumerate().map(|(index, topic)| {
        let numbers = topic.partitions.iter().map(|partition| partition.partition_index);
        let partitions = committed(&answer, image, (index, &topic.name), numbers).map(|(number, refused)| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(number)
                .with_error_code(refused.map_or(0, Rejection::code))
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_request::{
        OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    fn request() -> OffsetCommitRequest {
        let topic = |name: &str, partitions: &[i32]| {
            let partitions = partitions.iter().map(|number| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(*number)
                    .with_committed_offset(5)
                    .with_committed_metadata(None)
            });
            OffsetCommitRequestTopic::default()
                .with_name(to_wire_topic(name))
                .with_partitions(partitions.collect())
        };
        OffsetCommitRequest::default().with_topics(vec![topic("gone", &[0]), topic("a", &[1, 7, 0])])
    }

    fn codes(response: &OffsetCommitResponse) -> Vec<i16> {
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|partition| partition.error_code).collect()
    }

    #[test]
    fn every_partition_gets_its_own_outcome() {
        let image = image(vec![topic("a", id(1), &[1, 1])]);
        let asked = wanted(&request(), &image);
        let numbers: Vec<i32> = asked.topics[1].1.iter().map(|offset| offset.partition).collect();
        assert_eq!((asked.topics[0].1.len(), numbers), (0, vec![1, 0]));
        assert_eq!((asked.retention_ms, asked.generation), (None, -1));
        let committed = vec![
            ("gone".into(), vec![]),
            ("a".into(), vec![(1, None), (0, Some(Rejection::OffsetMetadataTooLarge))]),
        ];
        let response = respond(&request(), &image, Ok(committed));
        assert_eq!(codes(&response), [3, 0, 3, 12]);
        let refused = respond(&request(), &image, Err(Rejection::NotCoordinator));
        assert_eq!(codes(&refused), [3, 16, 3, 16]);
        assert_every_version_encodes::<OffsetCommitRequest>(|_| response.clone());
    }
}
