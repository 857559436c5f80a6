//! ConsumerGroupDescribe (69), version 0: epochs, members, assignments and targets of groups of the consumer protocol.

use futures::StreamExt as _;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, GroupId};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::describe_groups::{GROUP_OPERATIONS, NOT_ASKED};
use super::group_words::{named_group, optional_wire, wire};
use super::{Call, Starting};
use crate::groups::{ConsumerDescribeRequest, ConsumerDescription, NamedPartitions};

/// Groups of one request that are asked at the same time.
const GROUPS_IN_FLIGHT: usize = 16;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ConsumerGroupDescribeRequest| async move {
        let context = &call.context;
        let operations = if request.include_authorized_operations { GROUP_OPERATIONS } else { NOT_ASKED };
        let descriptions: Vec<_> = request
            .group_ids
            .iter()
            .map(|group| async move {
                let described = match named_group(group) {
                    Ok(id) => context.groups.ask(context, &id, ConsumerDescribeRequest).await.flatten(),
                    Err(rejection) => Err(rejection),
                };
                respond(group, described).with_authorized_operations(operations)
            })
            .collect();
        let groups = futures::stream::iter(descriptions).buffered(GROUPS_IN_FLIGHT).collect().await;
        ConsumerGroupDescribeResponse::default().with_groups(groups)
    })
}

fn respond(group: &GroupId, described: Result<ConsumerDescription, Rejection>) -> DescribedGroup {
    let response = DescribedGroup::default().with_group_id(group.clone());
    let description = match described {
        Ok(description) => description,
        Err(rejection) => {
            let message = Some(wire(&rejection.to_string()));
            return response.with_error_code(rejection.code()).with_error_message(message);
        }
    };
    let members = description.members.iter().map(|member| {
        Member::default()
            .with_member_id(wire(&member.member_id))
            .with_instance_id(optional_wire(member.instance_id.as_ref()))
            .with_rack_id(optional_wire(member.rack_id.as_ref()))
            .with_member_epoch(member.epoch)
            .with_client_id(wire(&member.client_id))
            .with_client_host(wire(&member.client_host))
            .with_subscribed_topic_names(member.topics.iter().map(|topic| to_wire_topic(topic)).collect())
            .with_subscribed_topic_regex(optional_wire(member.regex.as_ref()))
            .with_assignment(assignment(&member.assigned))
            .with_target_assignment(assignment(&member.target))
    });
    response
        .with_group_state(wire(description.state))
        .with_group_epoch(description.epoch)
        .with_assignment_epoch(description.target_epoch)
        .with_assignor_name(wire(description.assignor))
        .with_members(members.collect())
}

fn assignment(topics: &[NamedPartitions]) -> Assignment {
    let topics = topics.iter().map(|named| {
        TopicPartitions::default()
            .with_topic_id(named.topic_id.0)
            .with_topic_name(to_wire_topic(&named.topic))
            .with_partitions(named.partitions.clone())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use zurau_common::id::TopicId;

    use super::*;
    use crate::groups::DescribedConsumer;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let part = NamedPartitions {
            topic_id: TopicId(Uuid::from_u128(7)),
            topic: "t".into(),
            partitions: vec![0, 2],
        };
        let member = DescribedConsumer {
            member_id: "m".into(),
            instance_id: Some("i".into()),
            rack_id: None,
            epoch: 4,
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            topics: vec!["t".into()],
            regex: Some("^t".into()),
            assigned: vec![part.clone()],
            target: vec![part],
        };
        let description = ConsumerDescription {
            state: "Stable",
            epoch: 4,
            target_epoch: 4,
            assignor: "uniform",
            members: vec![member],
        };
        let group = GroupId::from(wire("g"));
        let described = respond(&group, Ok(description));
        assert_eq!(described.members[0].target_assignment.topic_partitions[0].partitions, [0, 2]);
        let refused = respond(&group, Err(Rejection::GroupIdNotFound));
        assert_eq!((refused.error_code, refused.authorized_operations), (69, NOT_ASKED));
        assert_every_version_encodes::<ConsumerGroupDescribeRequest>(|_| {
            ConsumerGroupDescribeResponse::default().with_groups(vec![described.clone(), refused.clone()])
        });
    }
}
