//! OffsetFetch (9), versions 0-9: what groups have committed.
//!
//! - v0-7 one group; v2 null topics mean all, and a refusal of the whole group has a field of its own, before it stands
//!   at each partition; v7 `require_stable`; v8 many groups; v9 member and epoch, which are
//!   checked in groups of the consumer protocol (KIP-848). Kafka answers v0 from ZooKeeper; here it is like the others.

use std::sync::Arc;

use futures::StreamExt as _;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::group_words::{optional_text, text, wire};
use super::{Call, Starting};
use crate::groups::{FetchRequest, FetchedOffset, FetchedTopic};

/// Groups of one request that are asked at the same time.
const GROUPS_IN_FLIGHT: usize = 16;

type Fetched = Result<Vec<FetchedTopic>, Rejection>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: OffsetFetchRequest| async move {
        let context = &call.context;
        let require_stable = request.require_stable;
        if call.version() < 8 {
            let asked = FetchRequest { topics: single_topics(&request), require_stable, member: None };
            let topics = asked.topics.clone().unwrap_or_default();
            let group = text(&request.group_id);
            let fetched = context.groups.ask(context, &group, asked).await.flatten();
            return respond_single(fetched, &topics, call.version());
        }
        let fetches: Vec<_> = request
            .groups
            .iter()
            .map(|group| async move {
                let asked = FetchRequest { topics: topics(group), require_stable, member: member(group) };
                let fetched = context.groups.ask(context, &text(&group.group_id), asked).await.flatten();
                respond_group(group, fetched)
            })
            .collect();
        let groups = futures::stream::iter(fetches).buffered(GROUPS_IN_FLIGHT).collect().await;
        OffsetFetchResponse::default().with_groups(groups)
    })
}

fn single_topics(request: &OffsetFetchRequest) -> Option<Vec<(TopicName, Vec<i32>)>> {
    let topics = request.topics.as_ref()?;
    Some(topics.iter().map(|topic| (text(&topic.name), topic.partition_indexes.clone())).collect())
}

fn topics(group: &OffsetFetchRequestGroup) -> Option<Vec<(TopicName, Vec<i32>)>> {
    let topics = group.topics.as_ref()?;
    Some(topics.iter().map(|topic| (text(&topic.name), topic.partition_indexes.clone())).collect())
}

/// An administrator claims no membership.
fn member(group: &OffsetFetchRequestGroup) -> Option<(Arc<str>, i32)> {
    let is_claimed = group.member_id.is_some() || 0 <= group.member_epoch;
    is_claimed.then(|| (optional_text(group.member_id.as_ref()).unwrap_or_default(), group.member_epoch))
}

fn respond_single(fetched: Fetched, asked: &[(TopicName, Vec<i32>)], version: i16) -> OffsetFetchResponse {
    let topics = match fetched {
        Ok(topics) => topics,
        Err(rejection) if 2 <= version => {
            return OffsetFetchResponse::default().with_error_code(rejection.code());
        }
        Err(rejection) => refused_topics(asked, rejection),
    };
    let topics = topics.iter().map(|(topic, offsets)| {
        let partitions = offsets.iter().map(|offset| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(offset.partition)
                .with_committed_offset(offset.offset)
                .with_committed_leader_epoch(if 5 <= version { offset.leader_epoch } else { -1 })
                .with_metadata(Some(wire(&offset.metadata)))
                .with_error_code(offset.rejection.map_or(0, Rejection::code))
        });
        OffsetFetchResponseTopic::default()
            .with_name(to_wire_topic(topic))
            .with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default().with_topics(topics.collect())
}

fn refused_topics(asked: &[(TopicName, Vec<i32>)], rejection: Rejection) -> Vec<FetchedTopic> {
    let refused = |partition: &i32| FetchedOffset {
        partition: *partition,
        offset: -1,
        leader_epoch: -1,
        metadata: "".into(),
        rejection: Some(rejection),
    };
    asked
        .iter()
        .map(|(topic, partitions)| (topic.clone(), partitions.iter().map(refused).collect()))
        .collect()
}

fn respond_group(group: &OffsetFetchRequestGroup, fetched: Fetched) -> OffsetFetchResponseGroup {
    let response = OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone());
    let topics = match fetched {
        Ok(topics) => topics,
        Err(rejection) => return response.with_error_code(rejection.code()),
    };
    let topics = topics.iter().map(|(topic, offsets)| {
        let partitions = offsets.iter().map(|offset| {
            OffsetFetchResponsePartitions::default()
                .with_partition_index(offset.partition)
                .with_committed_offset(offset.offset)
                .with_committed_leader_epoch(offset.leader_epoch)
                .with_metadata(Some(wire(&offset.metadata)))
                .with_error_code(offset.rejection.map_or(0, Rejection::code))
        });
        OffsetFetchResponseTopics::default()
            .with_name(to_wire_topic(topic))
            .with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn fetched() -> Fetched {
        let offset =
            FetchedOffset { partition: 1, offset: 5, leader_epoch: 4, metadata: "m".into(), rejection: None };
        Ok(vec![("t".into(), vec![offset])])
    }

    #[test]
    fn every_version_encodes() {
        let asked = [("t".into(), vec![1])];
        let group = OffsetFetchRequestGroup::default().with_group_id(wire("g").into());
        for answer in [fetched(), Err(Rejection::NotCoordinator)] {
            assert_every_version_encodes::<OffsetFetchRequest>(|version| {
                if version < 8 {
                    return respond_single(answer.clone(), &asked, version);
                }
                OffsetFetchResponse::default().with_groups(vec![respond_group(&group, answer.clone())])
            });
        }
    }

    #[test]
    fn a_refusal_stands_where_the_version_has_it() {
        let asked = [("t".into(), vec![1])];
        let old = respond_single(Err(Rejection::CoordinatorLoadInProgress), &asked, 1);
        assert_eq!((old.error_code, old.topics[0].partitions[0].error_code), (0, 14));
        let new = respond_single(Err(Rejection::CoordinatorLoadInProgress), &asked, 2);
        assert_eq!((new.error_code, new.topics.len()), (14, 0));
    }
}
