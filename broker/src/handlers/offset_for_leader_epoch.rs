//! OffsetForLeaderEpoch (23), versions 0-4: where an epoch ends in the leader's log. Followers and consumers ask it
//! before they truncate.
//!
//! - v1 answers with the epoch that was found too; v2 carries the client's current epoch; v3 the replica id.
//! - A follower of ours says in a tagged field which incarnation of the topic it means, because the request has only its
//!   name (M11).
//! - Replica id −3 is the controller before an unclean election: it gets the last epoch and the log end of this
//!   replica, whether it leads or not.

use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use zurau_common::id::{LeaderEpoch, TopicId};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_TOPIC_ID, get_topic_id};

use super::leader_hint::{TopicRef, not_hosted};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::log::EpochEnd;

/// Replica id of the controller.
const LOG_END_QUERY: i32 = -3;

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: OffsetForLeaderEpochRequest| {
        let topics = request.topics.iter().map(|topic| {
            let meant = get_topic_id(&topic.unknown_tagged_fields, TAG_TOPIC_ID);
            let partitions = topic.partitions.iter().map(|asked| {
                let found = match &meant {
                    Err(_) => Err(Rejection::InvalidRequest),
                    Ok(_) if request.replica_id.0 == LOG_END_QUERY => {
                        log_end(&call.context, &topic.topic, asked.partition)
                    }
                    Ok(meant) => find(&call.context, &topic.topic, *meant, asked),
                };
                respond(asked.partition, found, call.version())
            });
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic.clone())
                .with_partitions(partitions.collect())
        });
        OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
    })
}

fn log_end(context: &BrokerContext, topic: &str, partition: i32) -> Result<EpochEnd, Rejection> {
    let partition = context.partitions.get(topic, partition).ok_or(Rejection::UnknownTopicOrPartition)?;
    let end = partition.with_log(|log| EpochEnd {
        leader_epoch: log.latest_epoch().unwrap_or(EpochEnd::UNDEFINED.leader_epoch),
        end_offset: log.log_end_offset(),
    });
    end.ok_or(Rejection::KafkaStorageError)
}

fn find(
    context: &BrokerContext,
    topic: &str,
    meant: Option<TopicId>,
    asked: &OffsetForLeaderPartition,
) -> Result<EpochEnd, Rejection> {
    let Some(partition) = context.partitions.get(topic, asked.partition) else {
        let image = context.metadata.image();
        return Err(not_hosted(&image, &TopicRef::Name(topic.into()), asked.partition));
    };
    if meant.is_some_and(|meant| meant != partition.topic_id()) {
        return Err(Rejection::InconsistentTopicId);
    }
    partition.end_offset_for_epoch(LeaderEpoch(asked.current_leader_epoch), LeaderEpoch(asked.leader_epoch))
}

fn respond(partition: i32, found: Result<EpochEnd, Rejection>, version: i16) -> EpochEndOffset {
    let response = EpochEndOffset::default().with_partition(partition);
    match found {
        Err(rejection) => response.with_error_code(rejection.code()),
        Ok(end) if version == 0 => response.with_end_offset(end.end_offset),
        Ok(end) => response.with_leader_epoch(end.leader_epoch).with_end_offset(end.end_offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let end = EpochEnd { leader_epoch: 3, end_offset: 9 };
        assert_every_version_encodes::<OffsetForLeaderEpochRequest>(|version| {
            let partitions =
                vec![respond(0, Ok(end), version), respond(1, Err(Rejection::FencedLeaderEpoch), version)];
            let topic = OffsetForLeaderTopicResult::default().with_partitions(partitions);
            OffsetForLeaderEpochResponse::default().with_topics(vec![topic])
        });
    }
}
