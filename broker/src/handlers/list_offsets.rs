//! ListOffsets (2), versions 0-9: the offset at a time, or at an end of the log.
//!
//! - v0 answers with a list of at most `max_num_offsets` offsets, newest first, written before the time. Kafka takes
//!   the bases of segments; here it is the end and the start of the log, which is what clients of v0 ask for.
//! - Times below zero: −1 latest, −2 earliest; v7 −3 largest timestamp; v8 −4 earliest local, the same as earliest; v9
//!   −5 latest tiered, which does not exist here. Any other one is error 35.
//! - v2 isolation level; v4 leader epochs; before v5 error 78 is told as 5.
//! - From v1 on a partition that stands twice is error 42.
//! - Replica id −2, from v1 on, asks any replica for the ends of its own copy, as Kafka's tools do; from v6 on its high
//!   watermark stands beside them in a tagged field.

use std::collections::BTreeMap;

use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_HIGH_WATERMARK, put_i64};

use super::leader_hint::{TopicRef, not_hosted};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::partition::{FoundOffset, Isolation, OffsetQuery, Partition};

/// Replica id of a client.
const CONSUMER: i32 = -1;
/// Replica id of a tool that looks into one replica, also a follower.
const DEBUGGING_CLIENT: i32 = -2;
/// The first version with tagged fields.
const TAGGED_FROM: i16 = 6;

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: ListOffsetsRequest| {
        let version = call.version();
        let isolation = isolation(&request);
        let mut count_of: BTreeMap<(&str, i32), usize> = BTreeMap::new();
        for topic in &request.topics {
            for partition in &topic.partitions {
                *count_of.entry((topic.name.as_str(), partition.partition_index)).or_default() += 1;
            }
        }
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| {
                let twice = 1 < count_of[&(topic.name.as_str(), asked.partition_index)];
                let found = if twice && 1 <= version {
                    Err(Rejection::InvalidRequest)
                } else if request.replica_id.0 == DEBUGGING_CLIENT && 1 <= version {
                    return look_into(&call.context, &topic.name, asked, version);
                } else {
                    find(&call.context, &topic.name, asked, isolation, version)
                };
                respond(asked, found, version)
            });
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    })
}

/// `None` for anything but a client: it sees the whole log.
fn isolation(request: &ListOffsetsRequest) -> Option<Isolation> {
    match (request.replica_id.0, request.isolation_level) {
        (CONSUMER, 1) => Some(Isolation::ReadCommitted),
        (CONSUMER, _) => Some(Isolation::ReadUncommitted),
        _ => None,
    }
}

fn find(
    context: &BrokerContext,
    topic: &str,
    asked: &ListOffsetsPartition,
    isolation: Option<Isolation>,
    version: i16,
) -> Result<Vec<FoundOffset>, Rejection> {
    let Some(partition) = context.partitions.get(topic, asked.partition_index) else {
        let image = context.metadata.image();
        return Err(not_hosted(&image, &TopicRef::Name(topic.into()), asked.partition_index));
    };
    if version == 0 {
        return before(&partition, asked, isolation);
    }
    let Some(query) = query(asked.timestamp, version)? else { return Ok(Vec::new()) };
    let epoch = LeaderEpoch(asked.current_leader_epoch);
    Ok(partition.list_offset(query, isolation, epoch)?.into_iter().collect())
}

/// The end of this broker's own copy, with the high watermark beside it.
fn look_into(
    context: &BrokerContext,
    topic: &str,
    asked: &ListOffsetsPartition,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let ends = context
        .partitions
        .get(topic, asked.partition_index)
        .ok_or(Rejection::UnknownTopicOrPartition)
        .and_then(|partition| partition.own_ends());
    let offset = ends.and_then(|ends| match query(asked.timestamp, version)? {
        Some(OffsetQuery::Latest) => Ok(ends.log_end_offset),
        Some(OffsetQuery::Earliest) => Ok(ends.log_start_offset),
        _ => Err(Rejection::InvalidRequest),
    });
    let found = offset.map(|offset| vec![FoundOffset { timestamp: -1, offset, leader_epoch: None }]);
    let mut response = respond(asked, found, version);
    if let (Ok(ends), true) = (ends, TAGGED_FROM <= version) {
        put_i64(&mut response.unknown_tagged_fields, TAG_HIGH_WATERMARK, ends.high_watermark);
    }
    response
}

/// `Ok(None)`: there never is such an offset here.
fn query(timestamp: i64, version: i16) -> Result<Option<OffsetQuery>, Rejection> {
    match timestamp {
        -1 => Ok(Some(OffsetQuery::Latest)),
        -2 => Ok(Some(OffsetQuery::Earliest)),
        -3 if 7 <= version => Ok(Some(OffsetQuery::MaxTimestamp)),
        -4 if 8 <= version => Ok(Some(OffsetQuery::Earliest)),
        -5 if 9 <= version => Ok(None),
        negative if negative < 0 => Err(Rejection::UnsupportedVersion),
        timestamp => Ok(Some(OffsetQuery::AtOrAfter(timestamp))),
    }
}

/// Version 0: offsets written before a time, newest first.
fn before(
    partition: &Partition,
    asked: &ListOffsetsPartition,
    isolation: Option<Isolation>,
) -> Result<Vec<FoundOffset>, Rejection> {
    let list = |query| partition.list_offset(query, isolation, LeaderEpoch::UNKNOWN);
    let earliest = list(OffsetQuery::Earliest)?;
    let latest = list(OffsetQuery::Latest)?;
    let found = match query(asked.timestamp, 0)? {
        Some(OffsetQuery::Latest) => vec![latest, earliest],
        Some(OffsetQuery::AtOrAfter(timestamp)) => match list(OffsetQuery::AtOrAfter(timestamp))? {
            None => vec![latest, earliest],
            Some(first) if earliest.is_some_and(|earliest| earliest.offset < first.offset) => vec![earliest],
            Some(_) => Vec::new(),
        },
        _ => vec![earliest],
    };
    let mut found: Vec<FoundOffset> = found.into_iter().flatten().collect();
    found.dedup_by_key(|found| found.offset);
    found.truncate(usize::try_from(asked.max_num_offsets).unwrap_or(0));
    Ok(found)
}

fn respond(
    asked: &ListOffsetsPartition,
    found: Result<Vec<FoundOffset>, Rejection>,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let response = ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
    let found = match found {
        Ok(found) => found,
        Err(Rejection::OffsetNotAvailable) if version < 5 => {
            return response.with_error_code(Rejection::LeaderNotAvailable.code());
        }
        Err(rejection) => return response.with_error_code(rejection.code()),
    };
    if version == 0 {
        return response.with_old_style_offsets(found.iter().map(|found| found.offset).collect());
    }
    let Some(found) = found.first() else { return response };
    let epoch = found.leader_epoch.filter(|_| 4 <= version).map_or(-1, |epoch| epoch.0);
    response.with_timestamp(found.timestamp).with_offset(found.offset).with_leader_epoch(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn found() -> Vec<FoundOffset> {
        vec![FoundOffset { timestamp: 9, offset: 4, leader_epoch: Some(LeaderEpoch(2)) }]
    }

    #[test]
    fn every_version_encodes() {
        for outcome in [Ok(found()), Ok(Vec::new()), Err(Rejection::NotLeaderOrFollower)] {
            assert_every_version_encodes::<ListOffsetsRequest>(|version| {
                let partition = respond(&ListOffsetsPartition::default(), outcome.clone(), version);
                let topic = ListOffsetsTopicResponse::default().with_partitions(vec![partition]);
                ListOffsetsResponse::default().with_topics(vec![topic])
            });
        }
        let oldest = respond(&ListOffsetsPartition::default(), Ok(found()), 0);
        assert_eq!((oldest.old_style_offsets, oldest.offset), (vec![4], -1));
        let newest = respond(&ListOffsetsPartition::default(), Ok(found()), 4);
        assert_eq!((newest.timestamp, newest.offset, newest.leader_epoch), (9, 4, 2));
        let early = respond(&ListOffsetsPartition::default(), Err(Rejection::OffsetNotAvailable), 4);
        assert_eq!(early.error_code, 5);
    }

    #[test]
    fn times_below_zero_mean_what_their_version_knows() {
        let rows = [
            (-1, 1, Ok(Some(OffsetQuery::Latest))),
            (-2, 1, Ok(Some(OffsetQuery::Earliest))),
            (-3, 7, Ok(Some(OffsetQuery::MaxTimestamp))),
            (-3, 6, Err(Rejection::UnsupportedVersion)),
            (-4, 8, Ok(Some(OffsetQuery::Earliest))),
            (-5, 9, Ok(None)),
            (-5, 8, Err(Rejection::UnsupportedVersion)),
            (-6, 9, Err(Rejection::UnsupportedVersion)),
            (i64::MIN, 9, Err(Rejection::UnsupportedVersion)),
            (0, 1, Ok(Some(OffsetQuery::AtOrAfter(0)))),
        ];
        for (timestamp, version, expected) in rows {
            assert_eq!(query(timestamp, version), expected, "{timestamp} v{version}");
        }
    }
}
