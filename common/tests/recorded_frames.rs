//! What seven real clients and a Kafka 3.9 broker sent each other: our codec must read every frame to its last byte
//! and write the same bytes again. The recordings live beside the project; without them this says so and passes.

use std::path::PathBuf;

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Request;
use zurau_common::wire::frame::{
    ApiVersion, decode_request_body, decode_response_body, encode_request, encode_response, parse_request,
    split_correlation_id,
};

#[derive(serde::Deserialize)]
struct Exchange {
    client: String,
    api_key: i16,
    api_version: i16,
    request: String,
    response: String,
}

fn exchanges() -> Option<Vec<Exchange>> {
    let shared = std::env::var_os("ZURAU_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let path = shared.join("fixtures/frames/kafka-3.9-frames.jsonl");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!(
                "\n*** NOT TESTED: no recorded frames at {} ({error}); set ZURAU_SHARED ***\n",
                path.display()
            );
            return None;
        }
    };
    Some(text.lines().map(|line| serde_json::from_str(line).expect("one exchange a line")).collect())
}

fn from_hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).expect("hexadecimal digits") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>().into()
}

/// Decodes both frames and encodes them again.
fn round_trip<R: Request>(exchange: &Exchange) -> Result<(), String> {
    let request = from_hex(&exchange.request);
    let frame = parse_request(request.clone()).map_err(|error| error.to_string())?;
    assert_eq!((frame.api_key, frame.api_version), (exchange.api_key, exchange.api_version));
    let body: R = decode_request_body(&frame).map_err(|error| error.to_string())?;
    let client_id = frame.client_id.clone().unwrap_or_default();
    let again = encode_request(frame.api_version, frame.correlation_id, &client_id, &body)
        .map_err(|error| error.to_string())?;
    if again[4..] != request[..] {
        return Err("the request is encoded differently".to_owned());
    }

    if exchange.response.is_empty() {
        return Ok(());
    }
    let response = from_hex(&exchange.response);
    let (correlation_id, rest) = split_correlation_id(response.clone()).map_err(|error| error.to_string())?;
    assert_eq!(correlation_id, frame.correlation_id);
    let api = ApiVersion { api_key: frame.api_key, api_version: frame.api_version };
    let body: R::Response = decode_response_body(rest, api).map_err(|error| error.to_string())?;
    let again = encode_response(api.api_key, api.api_version, correlation_id, &body)
        .map_err(|error| error.to_string())?;
    if again[4..] != response[..] {
        return Err("the response is encoded differently".to_owned());
    }
    Ok(())
}

macro_rules! by_key {
    ($exchange:expr, $($request:ty),* $(,)?) => {
        match $exchange.api_key {
            $(<$request as Request>::KEY => round_trip::<$request>($exchange),)*
            key => Err(format!("this test does not know API key {key}")),
        }
    };
}

#[rustfmt::skip]
fn check(exchange: &Exchange) -> Result<(), String> {
    by_key!(
        exchange, ProduceRequest, FetchRequest, ListOffsetsRequest, MetadataRequest, LeaderAndIsrRequest,
        StopReplicaRequest, UpdateMetadataRequest, ControlledShutdownRequest, OffsetCommitRequest, OffsetFetchRequest,
        FindCoordinatorRequest, JoinGroupRequest, HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest,
        DescribeGroupsRequest, ListGroupsRequest, ApiVersionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
        DeleteRecordsRequest, InitProducerIdRequest, OffsetForLeaderEpochRequest, AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest, EndTxnRequest, WriteTxnMarkersRequest, TxnOffsetCommitRequest, DescribeAclsRequest,
        DescribeConfigsRequest, DescribeLogDirsRequest, CreatePartitionsRequest, DeleteGroupsRequest,
        ElectLeadersRequest, IncrementalAlterConfigsRequest, AlterPartitionReassignmentsRequest,
        ListPartitionReassignmentsRequest, OffsetDeleteRequest, DescribeClientQuotasRequest,
        DescribeUserScramCredentialsRequest, AlterPartitionRequest, DescribeClusterRequest, DescribeProducersRequest,
        DescribeTransactionsRequest, ListTransactionsRequest, AllocateProducerIdsRequest,
        ConsumerGroupHeartbeatRequest, ConsumerGroupDescribeRequest,
    )
}

#[test]
fn every_recorded_frame_is_read_to_its_last_byte_and_written_alike() {
    let Some(exchanges) = exchanges() else { return };
    assert!(200 <= exchanges.len(), "only {} exchanges", exchanges.len());
    let failures: Vec<String> = exchanges
        .iter()
        .enumerate()
        .filter_map(|(index, exchange)| {
            let api = ApiVersion { api_key: exchange.api_key, api_version: exchange.api_version };
            check(exchange)
                .err()
                .map(|error| format!("line {} ({}, {api}): {error}", index + 1, exchange.client))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), exchanges.len(), failures.join("\n"));
}
