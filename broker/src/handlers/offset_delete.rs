//! OffsetDelete (47), version 0: committed offsets are removed, except of topics that a member reads.

use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use zurau_common::rejection::Rejection;

use super::group_words::{named_group, text};
use super::{Call, Starting};
use crate::groups::{CommittedTopic, DeleteOffsetsRequest};
use crate::metadata::MetadataImage;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: OffsetDeleteRequest| async move {
        let image = call.context.metadata.image();
        let asked = wanted(&request, &image);
        let answer = match named_group(&request.group_id) {
            Ok(group) => call.context.groups.ask_to_write(&call.context, &group, asked).await.flatten(),
            Err(rejection) => Err(rejection),
        };
        respond(&request, &image, answer)
    })
}

/// Every topic of the request, with those of its partitions that exist.
fn wanted(request: &OffsetDeleteRequest, image: &MetadataImage) -> DeleteOffsetsRequest {
    let topics = request.topics.iter().map(|topic| {
        let numbers = topic.partitions.iter().map(|partition| partition.partition_index);
        let existing = numbers.filter(|number| image.partition(&topic.name, *number).is_some());
        (text(&topic.name), existing.collect())
    });
    DeleteOffsetsRequest { topics: topics.collect() }
}

fn respond(
    request: &OffsetDeleteRequest,
    image: &MetadataImage,
    answer: Result<Vec<CommittedTopic>, Rejection>,
) -> OffsetDeleteResponse {
    let deleted = match answer {
        Ok(deleted) => deleted,
        Err(rejection) => return OffsetDeleteResponse::default().with_error_code(rejection.code()),
    };
    let topics = request.topics.iter().enumerate().map(|(index, topic)| {
        let mut outcomes = deleted.get(index).into_iter().flat_map(|(_, partitions)| partitions);
        let partitions = topic.partitions.iter().map(|partition| {
            let number = partition.partition_index;
            let rejection = if image.partition(&topic.name, number).is_none() {
                Some(Rejection::UnknownTopicOrPartition)
            } else {
                outcomes.next().and_then(|(_, refused)| *refused)
            };
            OffsetDeleteResponsePartition::default()
                .with_partition_index(number)
                .with_error_code(rejection.map_or(0, Rejection::code))
        });
        OffsetDeleteResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_delete_request::{
        OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
    };
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    #[test]
    fn every_partition_gets_its_own_outcome() {
        let image = image(vec![topic("a", id(1), &[1, 1])]);
        let partition = |number| OffsetDeleteRequestPartition::default().with_partition_index(number);
        let asked = OffsetDeleteRequestTopic::default()
            .with_name(to_wire_topic("a"))
            .with_partitions(vec![partition(7), partition(1)]);
        let request = OffsetDeleteRequest::default().with_topics(vec![asked]);
        assert_eq!(wanted(&request, &image).topics, [("a".into(), vec![1])]);
        let deleted = vec![("a".into(), vec![(1, Some(Rejection::GroupSubscribedToTopic))])];
        let response = respond(&request, &image, Ok(deleted));
        let codes: Vec<i16> = response.topics[0].partitions.iter().map(|each| each.error_code).collect();
        assert_eq!(codes, [3, 86]);
        assert_every_version_encodes::<OffsetDeleteRequest>(|_| response.clone());
        assert_eq!(respond(&request, &image, Err(Rejection::NonEmptyGroup)).error_code, 68);
    }
}
