//! AddPartitionsToTxn (24), versions 0-5: partitions that a producer is about to write to in its transaction.
//!
//! - v0-3 come from clients, for one transaction. All partitions are added, or none: if one does not exist, the others
//!   are OPERATION_NOT_ATTEMPTED.
//! - v2 knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH.
//! - v4 and v5 come from brokers, for several transactions, and either ask only whether the partitions are there, or add
//!   them for a client of version 2 (KIP-890). A tagged field tells in which epoch this coordinator answers.

use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_COORDINATOR_EPOCH, put_i32};

use super::group_words::text;
use super::transaction_words::{in_version, producer};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::metadata::MetadataImage;

/// For each partition, in the order of the request.
type Outcomes = Vec<Option<Rejection>>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: AddPartitionsToTxnRequest| async move {
        let (context, version) = (&call.context, call.version());
        if version < 4 {
            let only = AddPartitionsToTxnTransaction::default()
                .with_transactional_id(request.v3_and_below_transactional_id)
                .with_producer_id(request.v3_and_below_producer_id)
                .with_producer_epoch(request.v3_and_below_producer_epoch)
                .with_topics(request.v3_and_below_topics);
            let mut outcomes = add(context, &only, false).await;
            for outcome in &mut outcomes {
                *outcome = outcome.map(|rejection| in_version(rejection, 2 <= version));
            }
            let results = topic_results(&only.topics, &outcomes);
            return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(results);
        }
        let each = request.transactions.iter().map(|transaction| async move {
            // Before it is asked: whoever answers is in that epoch, or in a newer one.
            let epoch = context.transactions.epoch(context, &text(&transaction.transactional_id));
            let outcomes = add(context, transaction, true).await;
            let mut result = AddPartitionsToTxnResult::default()
                .with_transactional_id(transaction.transactional_id.clone())
                .with_topic_results(topic_results(&transaction.topics, &outcomes));
            if let Some(epoch) = epoch {
                put_i32(&mut result.unknown_tagged_fields, TAG_COORDINATOR_EPOCH, epoch.0);
            }
            result
        });
        let results = futures::future::join_all(each).await;
        AddPartitionsToTxnResponse::default().with_results_by_transaction(results)
    })
}

async fn add(
    context: &BrokerContext,
    transaction: &AddPartitionsToTxnTransaction,
    is_version_2: bool,
) -> Outcomes {
    let partitions: Vec<TopicPartition> = partitions(&transaction.topics).collect();
    if let Some(outcomes) = missing(&partitions, &context.metadata.image()) {
        return outcomes;
    }
    let count = partitions.len();
    let id = text(&transaction.transactional_id);
    let producer = producer(transaction.producer_id, transaction.producer_epoch);
    let outcomes = if transaction.verify_only {
        context.transactions.verify(context, &id, (producer, partitions)).await
    } else {
        let added = context.transactions.add(context, &id, (producer, partitions, is_version_2)).await;
        added.map(|()| vec![None; count])
    };
    outcomes.unwrap_or_else(|rejection| vec![Some(rejection); count])
}

fn partitions(topics: &[AddPartitionsToTxnTopic]) -> impl Iterator<Item = TopicPartition> {
    topics.iter().flat_map(|topic| {
        let name = text(&topic.name);
        topic.partitions.iter().map(move |number| TopicPartition { topic: name.clone(), partition: *number })
    })
}

/// The outcomes if any partition does not exist: then nothing is added.
fn missing(partitions: &[TopicPartition], image: &MetadataImage) -> Option<Outcomes> {
    let exists = |id: &TopicPartition| image.partition(&id.topic, id.partition).is_some();
    if partitions.iter().all(exists) {
        return None;
    }
    let outcome = |id| {
        Some(if exists(id) { Rejection::OperationNotAttempted } else { Rejection::UnknownTopicOrPartition })
    };
    Some(partitions.iter().map(outcome).collect())
}

fn topic_results(
    topics: &[AddPartitionsToTxnTopic],
    outcomes: &[Option<Rejection>],
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut outcomes = outcomes.iter();
    let result = |topic: &AddPartitionsToTxnTopic| {
        let results = topic.partitions.iter().map(|number| {
            let rejection = outcomes.next().copied().flatten();
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*number)
                .with_partition_error_code(rejection.map_or(0, Rejection::code))
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name.clone())
            .with_results_by_partition(results.collect())
    };
    topics.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    fn topics() -> Vec<AddPartitionsToTxnTopic> {
        let topic = |name, partitions| {
            AddPartitionsToTxnTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
        };
        vec![topic("a", vec![1, 0]), topic("b", vec![7])]
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<AddPartitionsToTxnRequest>(|version| {
            let results = topic_results(&topics(), &[None, Some(Rejection::ProducerFenced), None]);
            if version < 4 {
                return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(results);
            }
            let result = AddPartitionsToTxnResult::default().with_topic_results(results);
            AddPartitionsToTxnResponse::default().with_results_by_transaction(vec![result])
        });
    }

    #[test]
    fn a_partition_that_does_not_exist_keeps_the_others_out() {
        let asked: Vec<TopicPartition> = partitions(&topics()).collect();
        let image =
            |partitions: &[i32]| image(vec![topic("a", id(1), &[1, 1]), topic("b", id(2), partitions)]);
        let outcomes = missing(&asked, &image(&[1])).unwrap();
        let results = topic_results(&topics(), &outcomes);
        let codes = |index: usize| -> Vec<i16> {
            results[index].results_by_partition.iter().map(|result| result.partition_error_code).collect()
        };
        assert_eq!((codes(0), codes(1)), (vec![55, 55], vec![3]));
        assert_eq!(missing(&asked, &image(&[1; 8])), None);
    }
}
