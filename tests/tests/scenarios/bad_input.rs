//! Whatever arrives on the port or stands in a znode, the process lives, others do not notice, and the sender gets
//! the protocol's own answer or an `error` child.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, CreateTopicsRequest, ListOffsetsRequest, MetadataRequest,
    metadata_request::MetadataRequestTopic,
};
use kafka_protocol::records::Compression;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::kafka::{
    Connection, KafkaClient, PRODUCE_VERSION, api_versions_request, encode_request, produce_request,
    put_string, topic_name,
};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, on_both_zookeepers, scenario};

use crate::tree;

on_both_zookeepers!(malformed_znodes_get_an_error_child);

const METADATA_KEY: i16 = 3;
const CORRUPT_MESSAGE: i16 = 2;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC: i16 = 17;
const INVALID_REQUIRED_ACKS: i16 = 21;
const UNSUPPORTED_VERSION: i16 = 35;
const UNSUPPORTED_FOR_MESSAGE_FORMAT: i16 = 43;
const INVALID_RECORD: i16 = 87;

/// How long the broker may take to close a connection that sent nonsense.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// CLI-01, CLI-02, CLI-03, CLI-05, CLI-12.
#[test]
fn nonsense_on_the_port_hurts_nobody() {
    scenario("bad-input", nonsense_on_the_port);
}

fn nonsense_on_the_port(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder().brokers(1).start(directory)?;
    cluster.create_topic("t", &["[1]"])?;
    let address = cluster.bootstrap();
    // Opened first, used after every row: another client of the same broker.
    let mut bystander = Connection::open(&address)?;
    let before = cluster.broker(1)?.process()?.resident_bytes()?;

    for (name, bytes) in closing_frames()? {
        expect_closed(&address, &bytes).with_context(|| format!("'{name}'"))?;
        still_served(&mut bystander).with_context(|| format!("after '{name}'"))?;
        cluster.check_running()?;
    }
    half_a_frame(&address)?;
    still_served(&mut bystander).context("after half a frame")?;

    let mut client = cluster.client();
    for (name, partition_topic, batch, acks, allowed) in bad_produces()? {
        let code = produce_code(&mut client, &address, partition_topic, batch, acks)?;
        ensure!(allowed.contains(&code), "'{name}' got error {code}, not one of {allowed:?}");
        still_served(&mut bystander).with_context(|| format!("after '{name}'"))?;
    }
    let stored = client.read_partition("t", 0)?;
    ensure!(stored.is_empty(), "a bad batch was stored: {stored:?}");

    unknown_versions(&address)?;
    invalid_topic_names(&mut client, &address)?;
    still_served(&mut bystander)?;
    let after = cluster.broker(1)?.process()?.resident_bytes()?;
    let grown = after.saturating_sub(before) >> 20;
    ensure!(grown < 64, "the broker grew by {grown} MiB");
    cluster.check_running()
}

fn still_served(connection: &mut Connection) -> Result<()> {
    let answer = connection.call(12, &MetadataRequest::default().with_topics(Some(Vec::new())))?;
    ensure!(answer.brokers.len() == 1, "the metadata names {} brokers", answer.brokers.len());
    Ok(())
}

/// The start of a request as old clients write it: key, version, correlation id, client id.
fn header(key: i16, version: i16) -> BytesMut {
    let mut frame = BytesMut::new();
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(7);
    put_string(&mut frame, "odd");
    frame
}

fn framed(frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(u32::try_from(frame.len()).unwrap_or_default().to_be_bytes());
    bytes.extend_from_slice(frame);
    bytes
}

/// Bytes that a broker can only answer by closing the connection, as Kafka does.
fn closing_frames() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut cut_body = encode_request(12, 1, &MetadataRequest::default().with_topics(Some(Vec::new())))?;
    cut_body.truncate(cut_body.len() - 2);
    let mut huge_array = header(METADATA_KEY, 1);
    huge_array.put_i32(i32::MAX);
    let mut huge_string = header(METADATA_KEY, 1);
    huge_string.put_i32(1);
    huge_string.put_i16(i16::MAX);
    let mut huge_compact_array = header(METADATA_KEY, 12);
    huge_compact_array.put_u8(0);
    huge_compact_array.put_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    let mut endless_varint = header(METADATA_KEY, 12);
    endless_varint.put_slice(&[0xff; 64]);
    // Not Metadata: librdkafka sends bytes behind that one, and is answered.
    let mut left_over = encode_request(1, 1, &ListOffsetsRequest::default().with_replica_id(BrokerId(-1)))?;
    left_over.put_slice(&[0; 1000]);
    let mut fetch = header(1, 12);
    fetch.put_slice(&[0xff; 40]);
    Ok(vec![
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("a TLS hello", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9, 9, 9, 9]),
        ("the largest frame length", i32::MAX.to_be_bytes().to_vec()),
        ("a negative frame length", (-5_i32).to_be_bytes().to_vec()),
        ("an empty frame", framed(&[])),
        ("a frame shorter than a header", framed(&[0, 3, 0])),
        ("a frame of noise", framed(&noise(5000))),
        ("a request without its last bytes", framed(&cut_body)),
        ("an array of two thousand million", framed(&huge_array)),
        ("a string longer than its frame", framed(&huge_string)),
        ("a compact array of four thousand million", framed(&huge_compact_array)),
        ("an endless number", framed(&endless_varint)),
        ("bytes behind a request", framed(&left_over)),
        ("a fetch of noise", framed(&fetch)),
        ("an unknown request key", framed(&header(999, 0))),
        ("a negative request key", framed(&header(-1, 0))),
        ("an unknown version", framed(&header(METADATA_KEY, 99))),
        ("a negative version", framed(&header(METADATA_KEY, -1))),
        ("a version below the lowest", framed(&header(0, 0))),
    ])
}

/// Bytes that look random and are the same in every run.
fn noise(count: usize) -> Vec<u8> {
    let mut state: u32 = 12_345;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    // An unknown request key, so that no part of it can happen to be a request.
    let mut bytes = vec![0x70, 0x70];
    bytes.extend((0..count).map(|_| next()));
    bytes
}

fn expect_closed(address: &str, bytes: &[u8]) -> Result<()> {
    let mut connection = Connection::open(address)?;
    connection.set_read_limit(CLOSE_LIMIT)?;
    connection.send_raw(bytes)?;
    match connection.read_frame()? {
        None => Ok(()),
        Some(answer) => anyhow::bail!("the broker answered: {answer:?}"),
    }
}

/// A frame that announces more than ever comes, and then the client is gone.
fn half_a_frame(address: &str) -> Result<()> {
    let mut connection = Connection::open(address)?;
    connection.send_raw(&1000_u32.to_be_bytes())?;
    connection.send_raw(&[0; 10])
}

type BadProduce = (&'static str, &'static str, Bytes, i16, &'static [i16]);

fn bad_produces() -> Result<Vec<BadProduce>> {
    let good = encode_batch(&[b"one", b"two"], now_ms(), Compression::None)?;
    let flipped = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    let last = good.len() - 1;
    let zipped = encode_batch(&[&[b'x'; 500]], now_ms(), Compression::Gzip)?;
    let mut broken_zip = zipped.to_vec();
    let middle = 61 + (broken_zip.len() - 61) / 2;
    broken_zip[middle] ^= 0x55;
    Ok(vec![
        ("a wrong CRC", "t", flipped(17), -1, &[CORRUPT_MESSAGE]),
        ("a changed value", "t", flipped(last), -1, &[CORRUPT_MESSAGE]),
        ("a batch cut short", "t", good.slice(..last), -1, &[CORRUPT_MESSAGE, INVALID_RECORD]),
        ("a broken compressed batch", "t", broken_zip.into(), -1, &[CORRUPT_MESSAGE]),
        ("an old message format", "t", old_message(), -1, &[UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD]),
        ("an unknown topic", "nothing", good.clone(), -1, &[UNKNOWN_TOPIC_OR_PARTITION]),
        (
            "a name that no topic can have",
            "no topic",
            good.clone(),
            -1,
            &[UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC],
        ),
        ("acks=2", "t", good.clone(), 2, &[INVALID_REQUIRED_ACKS]),
        ("acks=-7", "t", good, -7, &[INVALID_REQUIRED_ACKS]),
    ])
}

/// A message of format 1 with a plausible length; the format is refused before its CRC is looked at.
fn old_message() -> Bytes {
    let mut message = BytesMut::new();
    message.put_i64(0);
    message.put_i32(22 + 3);
    message.put_u32(0);
    message.put_i8(1);
    message.put_i8(0);
    message.put_i64(now_ms());
    message.put_i32(-1);
    message.put_i32(3);
    message.put_slice(b"old");
    message.freeze()
}

fn produce_code(
    client: &mut KafkaClient,
    address: &str,
    topic: &str,
    batch: Bytes,
    acks: i16,
) -> Result<i16> {
    let answer = client.call(address, PRODUCE_VERSION, &produce_request(topic, 0, batch, acks))?;
    let found = answer.responses.first().and_then(|topic| topic.partition_responses.first());
    Ok(found.context("the answer names no partition")?.error_code)
}

/// ApiVersions alone is answered in version 0 when its version is unknown, so that the client can start over.
fn unknown_versions(address: &str) -> Result<()> {
    let mut connection = Connection::open(address)?;
    let mut request = header(18, 99);
    request.put_slice(&[0; 4]);
    connection.send_frame(&request)?;
    let answer = connection.read_frame()?.context("ApiVersions v99 was not answered")?;
    let answer = zurau_tests::kafka::decode_answer::<ApiVersionsRequest>(0, 7, answer)?;
    ensure!(answer.error_code == UNSUPPORTED_VERSION, "ApiVersions v99: error {}", answer.error_code);
    let found = answer.api_keys.iter().any(|range| range.api_key == 18 && range.max_version >= 3);
    ensure!(found, "ApiVersions v99 does not say which versions there are: {answer:?}");
    // The same connection goes on.
    let answer = connection.call(3, &api_versions_request())?;
    ensure!(answer.error_code == 0, "ApiVersions v3 afterwards: error {}", answer.error_code);
    Ok(())
}

fn invalid_topic_names(client: &mut KafkaClient, address: &str) -> Result<()> {
    let long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "ü", &long] {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        let answer = client.call(address, 12, &request.with_allow_auto_topic_creation(true))?;
        let code = answer.topics.first().context("no topic in the answer")?.error_code;
        ensure!(code == INVALID_TOPIC, "Metadata of '{name}': error {code}");

        let topic = kafka_protocol::messages::create_topics_request::CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(1)
            .with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(5000);
        let answer = client.call(address, 7, &request)?;
        let code = answer.topics.first().context("no topic in the answer")?.error_code;
        ensure!(code == INVALID_TOPIC, "CreateTopics of '{name}': error {code}");
    }
    Ok(())
}

fn malformed_znodes_get_an_error_child(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder().zookeeper(kind).start(directory)?;
    cluster.create_topic("healthy", &["[1,2,3]"])?;
    let rows = [
        ("unclosed", "{1,2"),
        ("twice", "[1,1]"),
        ("none", "[]"),
        ("nobody", "[99]"),
        ("text", "one and two"),
        ("negative", "[-1]"),
        ("empty", ""),
        ("large", "[99999999999]"),
    ];
    for (topic, value) in rows {
        cluster.znodes.create(&format!("/brokers/topics/{topic}"), "")?;
        cluster.znodes.create(&format!("/brokers/topics/{topic}/0"), "")?;
        cluster.znodes.create(&format!("/brokers/topics/{topic}/0/replicas"), value)?;
    }
    for (topic, value) in rows {
        let path = format!("/brokers/topics/{topic}/0");
        let says = |text: Option<&str>| text.is_some_and(|text| !text.is_empty() && !text.contains('\n'));
        let text = cluster.znodes.wait_for(&format!("{path}/error"), Duration::from_secs(15), says);
        let text = text.with_context(|| format!("replicas '{value}'"))?;
        eprintln!("replicas '{value}': {}", text.unwrap_or_default());
        ensure!(cluster.znodes.get(&format!("{path}/state"))?.is_none(), "'{value}' was started");
    }
    // Another topic does not notice; and each wrong value can be put right.
    cluster.create_topic("meanwhile", &["[3,2,1]"])?;
    for (topic, _) in rows {
        cluster.znodes.put(&format!("/brokers/topics/{topic}/0/replicas"), "[2,1]")?;
    }
    for (topic, _) in rows {
        cluster.wait_for_full_isr(topic, 1, START_LIMIT)?;
        tree::check_fresh_topic(&cluster, topic, &[&[2, 1]])?;
    }
    cluster.check_running()
}
