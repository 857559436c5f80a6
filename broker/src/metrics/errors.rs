//! The error codes in an answer, wherever its API puts them.

use std::any::Any;

use kafka_protocol::messages::*;
use zurau_common::rejection::Rejection;
use zurau_common::wire::consumer_group::ConsumerGroupHeartbeatResponse as OurHeartbeatResponse;
use zurau_common::wire::transactions::EndTxnResponse as OurEndTxnResponse;

/// The codes of one type of answer: `ANSWER [.LIST…] [and ANSWER.LIST…]`, each path ending where an `error_code` is.
macro_rules! codes {
    ($answer:ident, $count:ident: $($response:ty { $($($list:ident).*;)* })*) => {
        $(if let Some(response) = $answer.downcast_ref::<$response>() {
            $(codes!(@path response, $count, $($list).*);)*
            return true;
        })*
    };
    (@path $at:ident, $count:ident, error_code) => { $count($at.error_code) };
    (@path $at:ident, $count:ident, partition_error_code) => { $count($at.partition_error_code) };
    (@path $at:ident, $count:ident, $list:ident . $($rest:ident).*) => {
        for inner in &$at.$list {
            codes!(@path inner, $count, $($rest).*);
        }
    };
}

/// Calls `count` with every code of the answer, 0 for success among them. `false` if the answer is of no known type.
pub(crate) fn each_code(answer: &dyn Any, mut count: impl FnMut(i16)) -> bool {
    codes! { answer, count:
        ProduceResponse { responses.partition_responses.error_code; }
        OffsetCommitResponse { topics.partitions.error_code; }
        HeartbeatResponse { error_code; }
        MetadataResponse { topics.error_code; topics.partitions.error_code; }
        ListOffsetsResponse { topics.partitions.error_code; }
        FindCoordinatorResponse { error_code; coordinators.error_code; }
        ApiVersionsResponse { error_code; }
        OffsetFetchResponse { error_code; topics.partitions.error_code; groups.error_code; groups.topics.partitions.error_code; }
        JoinGroupResponse { error_code; }
        SyncGroupResponse { error_code; }
        LeaveGroupResponse { error_code; members.error_code; }
        InitProducerIdResponse { error_code; }
        AddPartitionsToTxnResponse {
            error_code;
            results_by_topic_v3_and_below.results_by_partition.partition_error_code;
            results_by_transaction.topic_results.results_by_partition.partition_error_code;
        }
        AddOffsetsToTxnResponse { error_code; }
        TxnOffsetCommitResponse { topics.partitions.error_code; }
        WriteTxnMarkersResponse { markers.topics.partitions.error_code; }
        FetchResponse { error_code; responses.partitions.error_code; }
        OffsetForLeaderEpochResponse { topics.partitions.error_code; }
        LeaderAndIsrResponse { error_code; topics.partition_errors.error_code; }
        StopReplicaResponse { error_code; partition_errors.error_code; }
        UpdateMetadataResponse { error_code; }
        CreateTopicsResponse { topics.error_code; }
        DeleteTopicsResponse { responses.error_code; }
        DeleteRecordsResponse { topics.partitions.error_code; }
        CreatePartitionsResponse { results.error_code; }
        DescribeConfigsResponse { results.error_code; }
        AlterConfigsResponse { responses.error_code; }
        IncrementalAlterConfigsResponse { responses.error_code; }
        AlterReplicaLogDirsResponse { results.partitions.error_code; }
        DescribeLogDirsResponse { error_code; results.error_code; }
        ElectLeadersResponse { error_code; replica_election_results.partition_result.error_code; }
        AlterPartitionReassignmentsResponse { error_code; responses.partitions.error_code; }
        ListPartitionReassignmentsResponse { error_code; }
        DescribeGroupsResponse { groups.error_code; }
        ListGroupsResponse { error_code; }
        DeleteGroupsResponse { results.error_code; }
        OffsetDeleteResponse { error_code; topics.partitions.error_code; }
        DescribeClusterResponse { error_code; }
        DescribeProducersResponse { topics.partitions.error_code; }
        DescribeTransactionsResponse { transaction_states.error_code; }
        ListTransactionsResponse { error_code; }
        ConsumerGroupDescribeResponse { groups.error_code; }
        DescribeTopicPartitionsResponse { topics.error_code; topics.partitions.error_code; }
    }
    if let Some(OurHeartbeatResponse(response)) = answer.downcast_ref() {
        count(response.error_code);
        return true;
    }
    if let Some(response) = answer.downcast_ref::<OurEndTxnResponse>() {
        count(response.fields.error_code);
        return true;
    }
    false
}

/// Kafka's name of a code: `NOT_LEADER_OR_FOLLOWER`; the number of one that we do not know.
pub(crate) fn name(code: i16) -> String {
    let Some(rejection) = Rejection::ALL.iter().find(|rejection| rejection.code() == code) else {
        return code.to_string();
    };
    let mut name = String::new();
    for letter in format!("{rejection:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseTopics;
    use kafka_protocol::messages::offset_fetch_response::{
        OffsetFetchResponseGroup, OffsetFetchResponsePartitions,
    };

    use super::*;

    fn codes(answer: &dyn Any) -> Vec<i16> {
        let mut codes = Vec::new();
        assert!(each_code(answer, |code| codes.push(code)));
        codes
    }

    #[test]
    fn codes_are_found_at_every_depth() {
        assert_eq!(codes(&HeartbeatResponse::default().with_error_code(27)), [27]);
        let partition = |code| OffsetFetchResponsePartitions::default().with_error_code(code);
        let topic = OffsetFetchResponseTopics::default().with_partitions(vec![partition(0), partition(3)]);
        let group = OffsetFetchResponseGroup::default().with_error_code(16).with_topics(vec![topic]);
        assert_eq!(codes(&OffsetFetchResponse::default().with_groups(vec![group])), [0, 16, 0, 3]);
        assert_eq!(codes(&OurHeartbeatResponse(ConsumerGroupHeartbeatResponse::default())), [0]);
        assert!(!each_code(&"no answer", |_| unreachable!()));
    }

    #[test]
    fn codes_have_kafkas_names() {
        let names = [(6, "NOT_LEADER_OR_FOLLOWER"), (35, "UNSUPPORTED_VERSION"), (999, "999")];
        for (code, expected) in names {
            assert_eq!(name(code), expected);
        }
    }
}
