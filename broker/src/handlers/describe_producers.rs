//! DescribeProducers (61), version 0: what the leader of a partition knows of its idempotent and transactional
//! producers (KIP-664).

use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};
use zurau_common::id::topic_name_problem;
use zurau_common::rejection::Rejection;

use super::leader_hint::{TopicRef, not_hosted};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::log::inspect::InspectedProducer;

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: DescribeProducersRequest| {
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic
                .partition_indexes
                .iter()
                .map(|number| respond(*number, producers(&call.context, &topic.name, *number)));
            TopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions.collect())
        });
        DescribeProducersResponse::default().with_topics(topics.collect())
    })
}

fn producers(context: &BrokerContext, topic: &str, number: i32) -> Result<Vec<InspectedProducer>, Rejection> {
    if topic_name_problem(topic).is_some() {
        return Err(Rejection::InvalidTopicException);
    }
    match context.partitions.get(topic, number) {
        Some(partition) => partition.producers(),
        None => Err(not_hosted(&context.metadata.image(), &TopicRef::Name(topic.into()), number)),
    }
}

fn respond(number: i32, producers: Result<Vec<InspectedProducer>, Rejection>) -> PartitionResponse {
    let response = PartitionResponse::default().with_partition_index(number);
    let producers = match producers {
        Ok(producers) => producers,
        Err(rejection) => return response.with_error_code(rejection.code()),
    };
    let producers = producers.iter().map(|producer| {
        ProducerState::default()
            .with_producer_id(producer.producer_id.into())
            .with_producer_epoch(i32::from(producer.producer_epoch))
            .with_last_sequence(producer.last_batch.map_or(-1, |(sequence, _)| sequence))
            .with_last_timestamp(producer.last_timestamp)
            .with_coordinator_epoch(producer.coordinator_epoch)
            .with_current_txn_start_offset(producer.transaction_first_offset.unwrap_or(-1))
    });
    response.with_active_producers(producers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn producers_are_told_with_what_is_unknown_as_minus_one() {
        let known = InspectedProducer {
            producer_id: 7,
            producer_epoch: 3,
            coordinator_epoch: 5,
            last_timestamp: 1_000,
            transaction_first_offset: Some(40),
            last_batch: Some((9, 41)),
        };
        let fresh = InspectedProducer { transaction_first_offset: None, last_batch: None, ..known };
        let answer = respond(2, Ok(vec![known, fresh]));
        let told = |producer: &ProducerState| (producer.last_sequence, producer.current_txn_start_offset);
        assert_eq!(answer.active_producers.iter().map(told).collect::<Vec<_>>(), [(9, 40), (-1, -1)]);
        assert_eq!(respond(2, Err(Rejection::NotLeaderOrFollower)).error_code, 6);
        assert_every_version_encodes::<DescribeProducersRequest>(|_| {
            let topic = TopicResponse::default().with_partitions(vec![answer.clone()]);
            DescribeProducersResponse::default().with_topics(vec![topic])
        });
    }
}
