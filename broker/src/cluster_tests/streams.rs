//! Long answers, which are read from the log while they are written.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{ApiKey, FetchRequest, RequestHeader};
use kafka_protocol::protocol::Encodable as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::wire::{connect, world_with_metadata};
use super::world::World;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::Acks;

const BATCHES: i64 = 14;
/// More than fits between a broker and a client that does not read.
const BATCH_BYTES: usize = 900_000;
const ANSWER_BYTES: i32 = 16 << 20;
const VERSION: i16 = 17;
const DEADLINE: Duration = Duration::from_secs(20);

async fn world_with_a_long_log() -> World {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    for number in 0..BATCHES {
        let records = batch(&BatchSpec {
            value_bytes: BATCH_BYTES,
            tag: number as u8,
            timestamp: 1_000,
            ..BatchSpec::default()
        });
        world.partition(1).append(records, Acks::Leader, 1_000).unwrap();
    }
    world.agree(BATCHES).await;
    world
}

fn fetch(world: &World, max_bytes: i32) -> FetchRequest {
    let partition = FetchPartition::default().with_partition_max_bytes(max_bytes);
    let topic = FetchTopic::default().with_topic_id(world.topic_id.0).with_partitions(vec![partition]);
    FetchRequest::default().with_max_bytes(ANSWER_BYTES).with_session_epoch(-1).with_topics(vec![topic])
}

fn log_of(world: &World, max_bytes: i32) -> Bytes {
    let read = |log: &crate::log::PartitionLog| log.read_plan(0, max_bytes as usize, i64::MAX, true);
    world.partition(1).with_log(|log| read(log).unwrap().read().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_hold_what_the_log_holds() {
    let world = world_with_a_long_log().await;
    let consumer = connect(&world, 1).await;
    for max_bytes in [1000, 1 << 20, 5_000_000, ANSWER_BYTES] {
        let answer = consumer.call(VERSION, &fetch(&world, max_bytes)).await.unwrap();
        let records = answer.responses[0].partitions[0].records.clone().unwrap();
        assert_eq!(records, log_of(&world, max_bytes), "whole batches of at most {max_bytes} bytes");
    }
}

/// A client that asks for everything and takes little of it at a time.
async fn ask(world: &World) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut stream = socket.connect(world.broker(1).addresses()[0].1).await.unwrap();
    let mut frame = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(ApiKey::Fetch as i16)
        .with_request_api_version(VERSION)
        .with_correlation_id(1);
    header.encode(&mut frame, 2).unwrap();
    fetch(world, ANSWER_BYTES).encode(&mut frame, VERSION).unwrap();
    let mut framed = BytesMut::new();
    framed.put_i32(frame.len() as i32);
    framed.extend_from_slice(&frame);
    stream.write_all(&framed).await.unwrap();
    stream
}

/// What was read before a truncation is not answered: neither are records that may be read after one.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_ends_with_the_leadership_in_which_it_began() {
    let mut world = world_with_a_long_log().await;
    let mut stream = ask(&world).await;
    let announced = timeout(DEADLINE, stream.read_i32()).await.unwrap().unwrap();
    assert!(BATCHES * (BATCH_BYTES as i64) < i64::from(announced));
    world.elect(2, 1).await;
    world.send_to_all(2, 1).await;
    let mut got = Vec::new();
    // A reset is an end too: the broker may have left bytes unread.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut got)).await.expect("the connection ends");
    assert!(got.len() < announced as usize, "{} of {announced} bytes", got.len());
    let again = connect(&world, 2).await.call(VERSION, &fetch(&world, ANSWER_BYTES)).await.unwrap();
    assert_eq!(again.responses[0].partitions[0].records.as_ref().unwrap(), &log_of(&world, ANSWER_BYTES));
}
