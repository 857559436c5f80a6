//! TxnOffsetCommit (28), versions 0-5: offsets that count when a transaction commits.
//!
//! - v2 leader epochs; v3 generation, member and instance: with them the group refuses who is no member any more
//!   (KIP-447). v4 supports TRANSACTION_ABORTABLE.
//! - The partition of the group must be part of the transaction (AddOffsetsToTxn); its coordinator is asked (KIP-890).
//!   From v5 on it is added.
//! - Clients of v0 and v1 cannot take COORDINATOR_LOAD_IN_PROGRESS and are told COORDINATOR_NOT_AVAILABLE.

use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use tokio::time::Instant;
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;

use super::group_words::{any_group, committed, optional_text, text};
use super::transactional::{Opening, TransactionClient, WAIT_MAX, verify};
use super::{Call, Starting};
use crate::coordinator::Producer;
use crate::groups::{CommitRequest, CommittedTopic, OffsetToCommit, Transaction};
use crate::log::Verification;
use crate::metadata::MetadataImage;

/// First version whose clients take COORDINATOR_LOAD_IN_PROGRESS.
const LOADING_FROM: i16 = 2;
/// First version that knows TRANSACTION_ABORTABLE.
const ABORTABLE_FROM: i16 = 4;
/// First version that leaves adding the group's partition to its coordinator.
const ADDING_LEFT_FROM: i16 = 5;

pub(super) fn start(call: Call) -> Starting {
    Box::pin(async move {
        let request = match call.decode::<TxnOffsetCommitRequest>() {
            Ok(request) => request,
            Err(refused) => return refused,
        };
        let (image, version) = (call.context.metadata.image(), call.version());
        let topics = wanted(&request, &image);
        if topics.iter().all(|(_, offsets)| offsets.is_empty()) {
            return call.reply().now(&respond(&request, &image, Ok(Vec::new()), version));
        }
        let group = match any_group(&request.group_id) {
            Ok(group) => group,
            Err(rejection) => {
                return call.reply().now(&respond(&request, &image, Err(rejection), version));
            }
        };
        let verification = match verification(&call, &request).await {
            Ok(verification) => verification,
            Err(rejection) => {
                return call.reply().now(&respond(&request, &image, Err(rejection), version));
            }
        };
        let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
        let asked = CommitRequest {
            generation: request.generation_id,
            member_id: text(&request.member_id),
            instance_id: optional_text(request.group_instance_id.as_ref()),
            knows_member_epochs: false,
            retention_ms: None,
            transaction: Some(Transaction { producer, verification }),
            topics,
        };
        let handed_over = call.context.groups.hand_over(&call.context, &group, asked).await;
        call.pend(|_| async move { respond(&request, &image, handed_over.answer_to_write().await, version) })
    })
}

/// Whether the partition of the group is part of the transaction.
async fn verification(call: &Call, request: &TxnOffsetCommitRequest) -> Result<Verification, Rejection> {
    let context = &call.context;
    let number = context.groups.offices.topic.partition_of(context, &request.group_id);
    let offsets: TopicName = context.groups.offices.topic.name.into();
    let opening = Opening {
        transactional_id: text(&request.transactional_id),
        producer: (request.producer_id.0, request.producer_epoch),
        sequences: [((offsets, number), -1)].into(),
        client: TransactionClient {
            may_abort: ABORTABLE_FROM <= call.version(),
            leaves_adding: ADDING_LEFT_FROM <= call.version(),
        },
    };
    let verified = verify(context, &opening, Instant::now() + WAIT_MAX).await;
    // The partition is not hosted here if nothing is said of it.
    let verified = verified.into_values().next().unwrap_or(Err(Rejection::NotLeaderOrFollower));
    verified.map_err(|rejection| match rejection {
        Rejection::NetworkException => Rejection::CoordinatorLoadInProgress,
        Rejection::NotLeaderOrFollower | Rejection::KafkaStorageError => Rejection::NotCoordinator,
        other => other,
    })
}

/// Every topic of the request, with those of its partitions that exist.
fn wanted(request: &TxnOffsetCommitRequest, image: &MetadataImage) -> Vec<(TopicName, Vec<OffsetToCommit>)> {
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
                commit_time_ms: None,
            });
        (text(&topic.name), offsets.collect())
    });
    topics.collect()
}

fn respond(
    request: &TxnOffsetCommitRequest,
    image: &MetadataImage,
    answer: Result<Vec<CommittedTopic>, Rejection>,
    version: i16,
) -> TxnOffsetCommitResponse {
    let told = |rejection| match rejection {
        Rejection::CoordinatorLoadInProgress if version < LOADING_FROM => Rejection::CoordinatorNotAvailable,
        // A marker came between the coordinator's answer and the append: it has to be asked again.
        Rejection::InvalidTxnState if ADDING_LEFT_FROM <= version => Rejection::ConcurrentTransactions,
        other => other,
    };
    let topics = request.topics.iter().enumerate().map(|(index, topic)| {
        let numbers = topic.partitions.iter().map(|partition| partition.partition_index);
        let partitions = committed(&answer, image, (index, &topic.name), numbers).map(|(number, refused)| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(number)
                .with_error_code(refused.map(told).map_or(0, Rejection::code))
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::txn_offset_commit_request::{
        TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
    };
    use zurau_common::wire::control::to_wire_topic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    #[test]
    fn every_partition_gets_its_own_outcome() {
        let image = image(vec![topic("a", id(1), &[1, 1])]);
        let partitions = [1, 7, 0].map(|number| {
            TxnOffsetCommitRequestPartition::default().with_partition_index(number).with_committed_offset(5)
        });
        let asked = TxnOffsetCommitRequestTopic::default()
            .with_name(to_wire_topic("a"))
            .with_partitions(partitions.into());
        let request = TxnOffsetCommitRequest::default().with_topics(vec![asked]);
        let numbers: Vec<i32> = wanted(&request, &image)[0].1.iter().map(|offset| offset.partition).collect();
        assert_eq!(numbers, [1, 0]);
        let codes = |answer, version| -> Vec<i16> {
            let response = respond(&request, &image, answer, version);
            response.topics[0].partitions.iter().map(|partition| partition.error_code).collect()
        };
        let committed = vec![("a".into(), vec![(1, None), (0, Some(Rejection::OffsetMetadataTooLarge))])];
        assert_eq!(codes(Ok(committed), 3), [0, 3, 12]);
        let loading = Err(Rejection::CoordinatorLoadInProgress);
        assert_eq!(codes(loading.clone(), 2), [14, 3, 14]);
        assert_eq!(codes(loading.clone(), 1), [15, 3, 15]);
        assert_every_version_encodes::<TxnOffsetCommitRequest>(|version| {
            respond(&request, &image, loading.clone(), version)
        });
    }
}
