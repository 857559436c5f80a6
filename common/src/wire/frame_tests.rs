use kafka_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, ControlledShutdownRequest, FetchRequest, LeaderAndIsrRequest,
    MetadataRequest, MetadataResponse, ProduceRequest, TopicName, UpdateMetadataRequest, produce_request,
};
use proptest::prelude::*;

use super::*;

fn client() -> StrBytes {
    StrBytes::from_static_str("test")
}

fn frame_of<R: Request>(version: i16, request: &R) -> RequestFrame {
    let bytes = encode_request(version, 42, &client(), request).unwrap();
    assert_eq!(i32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize, bytes.len() - LENGTH_PREFIX);
    parse_request(bytes.slice(LENGTH_PREFIX..)).unwrap()
}

fn produce(records: Bytes) -> ProduceRequest {
    let partition =
        produce_request::PartitionProduceData::default().with_index(3).with_records(Some(records));
    let topic = produce_request::TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str("t")))
        .with_partition_data(vec![partition]);
    ProduceRequest::default().with_acks(-1).with_timeout_ms(i32::MAX).with_topic_data(vec![topic])
}

#[test]
fn request_headers_follow_api_and_version() {
    for version in [0, 1, 2, 3] {
        let frame = frame_of(version, &ControlledShutdownRequest::default());
        let expected = if version == 0 { StrBytes::default() } else { client() };
        assert_eq!(frame.client_id, Some(expected), "ControlledShutdown v{version}");
        decode_request_body::<ControlledShutdownRequest>(&frame).unwrap();
    }
    for version in 0..=12 {
        let frame = frame_of(version, &MetadataRequest::default().with_topics(Some(vec![])));
        assert_eq!((frame.api_key, frame.api_version, frame.correlation_id), (3, version, 42));
        assert_eq!(frame.client_id, Some(client()));
        decode_request_body::<MetadataRequest>(&frame).unwrap();
    }
}

#[test]
fn unknown_apis_and_versions_still_yield_what_an_answer_needs() {
    for (key, version) in [(999, 0), (-1, -1), (18, 99), (3, -5), (7, 0x7fff)] {
        let mut bytes = BytesMut::new();
        bytes.put_i16(key);
        bytes.put_i16(version);
        bytes.put_i32(7);
        bytes.put_slice(b"\xff\xfewhatever");
        let frame = parse_request(bytes.freeze()).unwrap();
        assert_eq!((frame.api_key, frame.api_version, frame.correlation_id), (key, version, 7));
    }
    let short = parse_request(Bytes::from_static(&[0, 3, 0, 1, 0])).unwrap_err();
    assert_eq!(short, FrameError::HeaderTooShort { size: 5 });
    let malformed = parse_request(Bytes::from_static(&[0, 3, 0, 1, 0, 0, 0, 7, 0, 9, b'x'])).unwrap_err();
    assert!(matches!(malformed, FrameError::MalformedHeader { .. }), "{malformed}");
}

#[test]
fn response_headers_follow_api_and_version() {
    let api_versions = ApiVersionsResponse::default();
    let metadata = MetadataResponse::default();
    for (bytes, api_key, version, header) in [
        (encode_response(18, 0, 5, &api_versions).unwrap(), 18, 0, 0),
        (encode_response(18, 3, 5, &api_versions).unwrap(), 18, 3, 0),
        (encode_response(3, 8, 5, &metadata).unwrap(), 3, 8, 0),
        (encode_response(3, 9, 5, &metadata).unwrap(), 3, 9, 1),
    ] {
        assert_eq!(response_header_version(api_key, version), header);
        assert_eq!(i32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize, bytes.len() - LENGTH_PREFIX);
        let (correlation_id, rest) = split_correlation_id(bytes.slice(LENGTH_PREFIX..)).unwrap();
        assert_eq!(correlation_id, 5);
        let api = ApiVersion { api_key, api_version: version };
        if api_key == 3 {
            assert_eq!(decode_response_body::<MetadataResponse>(rest, api).unwrap(), metadata);
        } else {
            assert_eq!(decode_response_body::<ApiVersionsResponse>(rest, api).unwrap(), api_versions);
        }
    }
}

#[test]
fn tagged_fields_of_a_response_header_are_skipped() {
    let api = ApiVersion { api_key: 3, api_version: 9 };
    let plain = encode_response(3, 9, 5, &MetadataResponse::default()).unwrap();
    let mut tagged = BytesMut::from(&[2_u8, 9, 1, 0xaa, 0x90, 0x4e, 2, 0xbb, 0xcc][..]);
    tagged.put_slice(&plain[9..]);
    decode_response_body::<MetadataResponse>(tagged.freeze(), api).unwrap();
    let early =
        decode_response_body::<MetadataResponse>(Bytes::from_static(&[1, 9, 50, 0]), api).unwrap_err();
    assert!(matches!(early, FrameError::MalformedHeader { .. }), "{early}");
}

#[test]
fn records_are_slices_of_the_frame() {
    for version in [3, 8, 9, 11] {
        let bytes = encode_request(version, 1, &client(), &produce(Bytes::from(vec![9; 500]))).unwrap();
        let frame = parse_request(bytes.slice(LENGTH_PREFIX..)).unwrap();
        let request: ProduceRequest = decode_request_body(&frame).unwrap();
        assert_eq!(request.timeout_ms, i32::MAX, "a replaced field must be decoded again");
        let records = request.topic_data[0].partition_data[0].records.clone().unwrap();
        assert_eq!(records, vec![9; 500]);
        assert!(bytes.as_ptr_range().contains(&records.as_ptr()), "v{version} copies the records");
    }
}

#[test]
fn records_larger_than_the_structure_limit_are_fine() {
    for version in [8, 9] {
        let frame = frame_of(version, &produce(Bytes::from(vec![1; STRUCTURE_BYTES_MAX + 77])));
        let request: ProduceRequest = decode_request_body(&frame).unwrap();
        assert_eq!(
            request.topic_data[0].partition_data[0].records.as_ref().unwrap().len(),
            STRUCTURE_BYTES_MAX + 77
        );
    }
}

#[test]
fn a_body_ends_where_the_frame_ends() {
    let mut frame = frame_of(9, &produce(Bytes::from_static(b"records")));
    frame.body = Bytes::from([&frame.body[..], b"xyz"].concat());
    let error = decode_request_body::<ProduceRequest>(&frame).unwrap_err();
    assert_eq!(error, FrameError::TrailingBytes { api: frame.api(), unread: 3 });
    assert_eq!(error.to_string(), "the body of a Produce v9 frame has 3 bytes after its last field");
}

#[test]
fn a_metadata_request_of_librdkafka_for_all_topics_is_understood() {
    let mut frame = frame_of(12, &MetadataRequest::default().with_topics(None));
    // Four bytes for the null list, then two booleans and no tags.
    frame.body = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0]);
    let request = decode_request_body::<MetadataRequest>(&frame).unwrap();
    assert_eq!((request.topics, request.allow_auto_topic_creation), (None, false));
}

#[test]
fn claimed_lengths_claim_no_memory() {
    // Each of these asks the wire crate for tens or hundreds of gigabytes.
    let cases: [(i16, i16, &[u8]); 4] = [
        (3, 1, &[0x7f, 0xff, 0xff, 0xff]),
        (3, 9, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        (0, 3, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]),
        (4, 4, &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    ];
    for (api_key, api_version, body) in cases {
        let api = ApiVersion { api_key, api_version };
        let body = Bytes::from_static(body);
        let error = match api_key {
            0 => decode_body::<ProduceRequest>(body, api).unwrap_err(),
            3 => decode_body::<MetadataRequest>(body, api).unwrap_err(),
            _ => decode_body::<LeaderAndIsrRequest>(body, api).unwrap_err(),
        };
        assert!(matches!(error, FrameError::MalformedBody { .. }), "{error}");
    }
}

#[test]
fn structure_beyond_the_limit_is_refused() {
    // Nine million topics with empty names.
    let mut body = BytesMut::new();
    body.put_i32(9 << 20);
    body.put_bytes(0, (9 << 20) * 2);
    let api = ApiVersion { api_key: 3, api_version: 0 };
    let error = decode_body::<MetadataRequest>(body.freeze(), api).unwrap_err();
    assert_eq!(error, FrameError::TooMuchStructure { api });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn garbage_never_panics(key in 0_i16..90, version in -1_i16..20, rest in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = BytesMut::new();
        bytes.put_i16(key);
        bytes.put_i16(version);
        bytes.put_slice(&rest);
        let bytes = bytes.freeze();
        if let Ok(frame) = parse_request(bytes.clone()) {
            let _ = decode_request_body::<ProduceRequest>(&frame);
            let _ = decode_request_body::<FetchRequest>(&frame);
            let _ = decode_request_body::<MetadataRequest>(&frame);
            let _ = decode_request_body::<LeaderAndIsrRequest>(&frame);
            let _ = decode_request_body::<UpdateMetadataRequest>(&frame);
            let _ = decode_request_body::<ApiVersionsRequest>(&frame);
            let _ = decode_response_body::<MetadataResponse>(frame.body.clone(), frame.api());
        }
        let _ = parse_request(Bytes::from(rest));
    }

    /// What passes the guard is what the wire crate alone reads; a sound frame always passes. (The wire crate alone
    /// cannot be asked about damaged frames: it aborts on some of them.)
    #[test]
    fn the_guard_changes_no_result(
        version in 3_i16..=11,
        size in 0_usize..300,
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let frame = frame_of(version, &produce(Bytes::from(vec![5; size])));
        let mut body = frame.body.to_vec();
        if let Some((index, byte)) = damage {
            let at = index.index(body.len());
            body[at] = byte;
        }
        let body = Bytes::from(body);
        match decode_body::<ProduceRequest>(body.clone(), frame.api()) {
            Ok(request) => {
                let mut plain = body;
                prop_assert_eq!(request, ProduceRequest::decode(&mut plain, version).unwrap());
                prop_assert!(plain.is_empty());
            }
            Err(error) => prop_assert!(damage.is_some(), "{}", error),
        }
    }
}
