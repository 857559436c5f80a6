//! Taking frames of clients apart: `cargo bench -p zurau-common --bench frames`.

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{FetchRequest, ProduceRequest};
use kafka_protocol::protocol::{Decodable, Request, StrBytes};
use zurau_common::wire::frame::{LENGTH_PREFIX, decode_request_body, encode_request, parse_request};

const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;
const FETCHED_PARTITIONS: i32 = 100;

/// A request as it comes off the socket, without the length in front.
fn frame<R: Request>(version: i16, request: &R) -> Bytes {
    let client_id = StrBytes::from_static_str("a-client");
    encode_request(version, 7, &client_id, request).expect("encodes").slice(LENGTH_PREFIX..)
}

fn produce(record_bytes: usize) -> Bytes {
    let data = PartitionProduceData::default().with_records(Some(Bytes::from(vec![7; record_bytes])));
    let topic = TopicProduceData::default()
        .with_name(StrBytes::from_static_str("a-topic").into())
        .with_partition_data(vec![data]);
    frame(PRODUCE_VERSION, &ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic]))
}

fn fetch() -> Bytes {
    let partitions = (0..FETCHED_PARTITIONS).map(|index| FetchPartition::default().with_partition(index));
    let topic = FetchTopic::default()
        .with_topic(StrBytes::from_static_str("a-topic").into())
        .with_partitions(partitions.collect());
    frame(FETCH_VERSION, &FetchRequest::default().with_topics(vec![topic]))
}

fn decode<R: Decodable>(frame: &Bytes) -> R {
    let parsed = parse_request(frame.clone()).expect("a header");
    decode_request_body(&parsed).expect("a body")
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for (name, bytes) in [("produce of 1 KiB", 1 << 10), ("produce of 1 MiB", 1 << 20)] {
        let frame = produce(bytes);
        group.bench_function(name, |bencher| bencher.iter(|| decode::<ProduceRequest>(&frame)));
    }
    let frame = fetch();
    let name = format!("fetch of {FETCHED_PARTITIONS} partitions");
    group.bench_function(name, |bencher| bencher.iter(|| decode::<FetchRequest>(&frame)));
    group.finish();
}

criterion_group!(benches, frames);
criterion_main!(benches);
