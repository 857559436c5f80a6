//! The recorded frames of seven real clients against Apache Kafka 3.9: each decodes to its last byte and is written
//! again as the same bytes. `replay.rs` sends them to our broker.

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request};
use serde_json::Value;
use zurau_tests::shared::shared_file;

pub(crate) struct Frame {
    pub(crate) line: usize,
    pub(crate) client: String,
    pub(crate) api_key: i16,
    pub(crate) api_version: i16,
    pub(crate) request: Bytes,
    pub(crate) response: Bytes,
}

pub(crate) fn read_frames(test: &str) -> Result<Option<Vec<Frame>>> {
    let Some(path) = shared_file(test, "fixtures/frames/kafka-3.9-frames.jsonl") else { return Ok(None) };
    let text = std::fs::read_to_string(&path).context("reading the frames")?;
    let frames = text.lines().enumerate().map(|(line, text)| parse_frame(line + 1, text));
    Ok(Some(frames.collect::<Result<_>>()?))
}

fn parse_frame(line: usize, text: &str) -> Result<Frame> {
    let value: Value = serde_json::from_str(text).context("a line is not JSON")?;
    let hex = |name: &str| -> Result<Bytes> {
        let text = value[name].as_str().with_context(|| format!("no {name}"))?;
        let byte = |index: usize| u8::from_str_radix(&text[index..index + 2], 16);
        Ok((0..text.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>()?.into())
    };
    let number = |name: &str| value[name].as_i64().and_then(|number| i16::try_from(number).ok());
    Ok(Frame {
        line,
        client: value["client"].as_str().unwrap_or_default().to_owned(),
        api_key: number("api_key").context("no api_key")?,
        api_version: number("api_version").context("no api_version")?,
        request: hex("request")?,
        response: hex("response")?,
    })
}

/// Calls a function generic over the request type with the type that belongs to the key.
macro_rules! by_key {
    ($key:expr, $function:ident($($argument:expr),*)) => {
        match $key {
            0 => $function::<ProduceRequest>($($argument),*),
            1 => $function::<FetchRequest>($($argument),*),
            2 => $function::<ListOffsetsRequest>($($argument),*),
            3 => $function::<MetadataRequest>($($argument),*),
            4 => $function::<LeaderAndIsrRequest>($($argument),*),
            5 => $function::<StopReplicaRequest>($($argument),*),
            6 => $function::<UpdateMetadataRequest>($($argument),*),
            8 => $function::<OffsetCommitRequest>($($argument),*),
            9 => $function::<OffsetFetchRequest>($($argument),*),
            10 => $function::<FindCoordinatorRequest>($($argument),*),
            11 => $function::<JoinGroupRequest>($($argument),*),
            12 => $function::<HeartbeatRequest>($($argument),*),
            13 => $function::<LeaveGroupRequest>($($argument),*),
            14 => $function::<SyncGroupRequest>($($argument),*),
            15 => $function::<DescribeGroupsRequest>($($argument),*),
            16 => $function::<ListGroupsRequest>($($argument),*),
            18 => $function::<ApiVersionsRequest>($($argument),*),
            19 => $function::<CreateTopicsRequest>($($argument),*),
            20 => $function::<DeleteTopicsRequest>($($argument),*),
            21 => $function::<DeleteRecordsRequest>($($argument),*),
            22 => $function::<InitProducerIdRequest>($($argument),*),
            24 => $function::<AddPartitionsToTxnRequest>($($argument),*),
            25 => $function::<AddOffsetsToTxnRequest>($($argument),*),
            26 => $function::<EndTxnRequest>($($argument),*),
            27 => $function::<WriteTxnMarkersRequest>($($argument),*),
            28 => $function::<TxnOffsetCommitRequest>($($argument),*),
            29 => $function::<DescribeAclsRequest>($($argument),*),
            32 => $function::<DescribeConfigsRequest>($($argument),*),
            35 => $function::<DescribeLogDirsRequest>($($argument),*),
            37 => $function::<CreatePartitionsRequest>($($argument),*),
            42 => $function::<DeleteGroupsRequest>($($argument),*),
            43 => $function::<ElectLeadersRequest>($($argument),*),
            44 => $function::<IncrementalAlterConfigsRequest>($($argument),*),
            45 => $function::<AlterPartitionReassignmentsRequest>($($argument),*),
            46 => $function::<ListPartitionReassignmentsRequest>($($argument),*),
            47 => $function::<OffsetDeleteRequest>($($argument),*),
            48 => $function::<DescribeClientQuotasRequest>($($argument),*),
            50 => $function::<DescribeUserScramCredentialsRequest>($($argument),*),
            60 => $function::<DescribeClusterRequest>($($argument),*),
            61 => $function::<DescribeProducersRequest>($($argument),*),
            65 => $function::<DescribeTransactionsRequest>($($argument),*),
            66 => $function::<ListTransactionsRequest>($($argument),*),
            67 => $function::<AllocateProducerIdsRequest>($($argument),*),
            68 => $function::<ConsumerGroupHeartbeatRequest>($($argument),*),
            69 => $function::<ConsumerGroupDescribeRequest>($($argument),*),
            other => anyhow::bail!("the table of this test lacks request key {other}"),
        }
    };
}
pub(crate) use by_key;

/// A request decoded to its last byte: header and body.
pub(crate) fn decode_request<R: Request>(frame: &Frame) -> Result<(RequestHeader, R)> {
    let mut bytes = frame.request.clone();
    let header = RequestHeader::decode(&mut bytes, R::header_version(frame.api_version))?;
    let body = R::decode(&mut bytes, frame.api_version)?;
    ensure!(bytes.is_empty(), "{} bytes are left over", bytes.len());
    Ok((header, body))
}

pub(crate) fn decode_response<R: Request>(
    bytes: &Bytes,
    version: i16,
) -> Result<(ResponseHeader, R::Response)> {
    let mut bytes = bytes.clone();
    let header = ResponseHeader::decode(&mut bytes, R::Response::header_version(version))?;
    let body = R::Response::decode(&mut bytes, version)?;
    ensure!(bytes.is_empty(), "{} bytes are left over", bytes.len());
    Ok((header, body))
}

/// Both directions decode exactly and are written again as the same bytes.
fn round_trip<R: Request>(frame: &Frame) -> Result<()> {
    let (header, body) = decode_request::<R>(frame).context("the request")?;
    let mut again = BytesMut::new();
    header.encode(&mut again, R::header_version(frame.api_version))?;
    body.encode(&mut again, frame.api_version)?;
    ensure!(again == frame.request, "the request is written differently");

    let (header, body) = decode_response::<R>(&frame.response, frame.api_version).context("the response")?;
    let mut again = BytesMut::new();
    header.encode(&mut again, R::Response::header_version(frame.api_version))?;
    body.encode(&mut again, frame.api_version)?;
    ensure!(again == frame.response, "the response is written differently");
    Ok(())
}

#[test]
fn every_recorded_frame_decodes_to_its_last_byte() -> Result<()> {
    let Some(frames) = read_frames("every_recorded_frame_decodes_to_its_last_byte")? else { return Ok(()) };
    ensure!(frames.len() == 260, "{} frames, not 260", frames.len());
    for frame in &frames {
        by_key!(frame.api_key, round_trip(frame)).with_context(|| {
            format!(
                "line {} ({}): key {} version {}",
                frame.line, frame.client, frame.api_key, frame.api_version
            )
        })?;
    }
    Ok(())
}
