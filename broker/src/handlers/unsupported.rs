//! Requests that are not served: an unknown API, or a version outside the range that ApiVersions lists.
//!
//! A client that asked for the ranges never sends one. ApiVersions itself is answered so that the client can step
//! down. Produce v0-2 and Fetch v0-3 can only carry old record formats (D7); they are decodable and get error 35 for
//! each partition; older orders of a controller get it as a whole. For everything else the shape of the answer is unknown, so the connection is closed, as Kafka does.

use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, FetchRequest, FetchResponse, LeaderAndIsrRequest, ProduceRequest, ProduceResponse,
    StopReplicaRequest, UpdateMetadataRequest,
};
use zurau_common::rejection::Rejection;
use zurau_common::wire::frame::{encode_response, is_known_version};
use zurau_common::wire::server::Answer;

use super::control::refuse_version;
use super::{Call, Starting, api_versions, find, ready};

pub(super) fn start(call: Call) -> Starting {
    let known = ApiKey::try_from(call.frame.api_key);
    match known {
        Ok(ApiKey::ApiVersions) => {
            let response = api_versions::step_down(call.context.groups.offers_consumer_protocol);
            let frame = encode_response(call.frame.api_key, 0, call.frame.correlation_id, &response);
            let answer = match frame {
                Ok(frame) => Answer::Now(frame.into()),
                Err(error) => Answer::Close(error.to_string()),
            };
            ready(answer)
        }
        Ok(ApiKey::Produce) if is_known_version(ApiKey::Produce, call.version()) => old_produce(call),
        Ok(ApiKey::Fetch) if is_known_version(ApiKey::Fetch, call.version()) => {
            call.now(|_, request: FetchRequest| refuse_fetch(&request))
        }
        Ok(ApiKey::LeaderAndIsr) if is_known_version(ApiKey::LeaderAndIsr, call.version()) => {
            refuse_version::<LeaderAndIsrRequest>(call)
        }
        Ok(ApiKey::StopReplica) if is_known_version(ApiKey::StopReplica, call.version()) => {
            refuse_version::<StopReplicaRequest>(call)
        }
        Ok(ApiKey::UpdateMetadata) if is_known_version(ApiKey::UpdateMetadata, call.version()) => {
            refuse_version::<UpdateMetadataRequest>(call)
        }
        _ => ready(Answer::Close(reason(&call))),
    }
}

fn reason(call: &Call) -> String {
    let client = call.frame.client_id.as_ref().map_or("no client id", |id| id.as_str());
    let served = match find(call.frame.api_key) {
        Some(api) => format!("versions {} to {} are served", api.version_min, api.version_max),
        None => "this API is not served".to_owned(),
    };
    format!("{} was asked for ({client}), {served}", call.frame.api())
}

fn old_produce(call: Call) -> Starting {
    let acks = call.decode::<ProduceRequest>().map(|request| request.acks);
    match acks {
        Ok(0) => ready(Answer::Close(reason(&call))),
        _ => call.now(|_, request: ProduceRequest| refuse_produce(&request)),
    }
}

fn refuse_produce(request: &ProduceRequest) -> ProduceResponse {
    let topics = request.topic_data.iter().map(|topic| {
        let partitions = topic.partition_data.iter().map(|partition| {
            PartitionProduceResponse::default()
                .with_index(partition.index)
                .with_error_code(Rejection::UnsupportedVersion.code())
                .with_base_offset(-1)
        });
        TopicProduceResponse::default()
            .with_name(topic.name.clone())
            .with_partition_responses(partitions.collect())
    });
    ProduceResponse::default().with_responses(topics.collect())
}

fn refuse_fetch(request: &FetchRequest) -> FetchResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            PartitionData::default()
                .with_partition_index(partition.partition)
                .with_error_code(Rejection::UnsupportedVersion.code())
                .with_high_watermark(-1)
        });
        FetchableTopicResponse::default()
            .with_topic(topic.topic.clone())
            .with_partitions(partitions.collect())
    });
    FetchResponse::default().with_responses(topics.collect())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    use kafka_protocol::protocol::Encodable as _;
    use zurau_common::wire::control::to_wire_topic;

    use super::*;

    #[test]
    fn old_versions_are_refused_in_their_own_shape() {
        let partition = PartitionProduceData::default().with_index(7);
        let topic =
            TopicProduceData::default().with_name(to_wire_topic("t")).with_partition_data(vec![partition]);
        let answer = refuse_produce(&ProduceRequest::default().with_topic_data(vec![topic]));
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 35);
        for version in 0..3 {
            answer.encode(&mut BytesMut::new(), version).unwrap();
        }
        let partition = FetchPartition::default().with_partition(7);
        let topic = FetchTopic::default().with_topic(to_wire_topic("t")).with_partitions(vec![partition]);
        let answer = refuse_fetch(&FetchRequest::default().with_topics(vec![topic]));
        assert_eq!(answer.responses[0].partitions[0].error_code, 35);
        for version in 0..4 {
            answer.encode(&mut BytesMut::new(), version).unwrap();
        }
    }
}
