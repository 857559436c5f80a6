use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _};
use zurau_tests::kafka::PRODUCE_VERSION;

use super::*;
use crate::batch::read_batch;

/// What a broker saw: for each request the number of records, by their batch's header.
type Seen = Vec<usize>;

/// Answers produce requests one after another until its client leaves; before the answer number `stall.0` it sleeps.
fn broker(stall: (usize, Duration), error_code: i16) -> (String, JoinHandle<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Seen::new();
        let mut ends: HashMap<i32, i64> = HashMap::new();
        while let Some((correlation_id, request)) = request(&mut stream) {
            let data = &request.topic_data[0].partition_data[0];
            let batch = data.records.clone().unwrap();
            let mut count = 0;
            read_batch(&mut &batch[..], |_| {
                count += 1;
                Ok(())
            })
            .unwrap();
            if seen.len() == stall.0 {
                thread::sleep(stall.1);
            }
            seen.push(count);
            let end = ends.entry(data.index).or_default();
            let partition = PartitionProduceResponse::default()
                .with_index(data.index)
                .with_error_code(error_code)
                .with_base_offset(*end);
            *end += count as i64;
            if answer(&mut stream, correlation_id, partition).is_err() {
                break;
            }
        }
        seen
    });
    (address, serving)
}

fn request(stream: &mut TcpStream) -> Option<(i32, ProduceRequest)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    let mut frame = Bytes::from(frame);
    let header = RequestHeader::decode(&mut frame, ProduceRequest::header_version(PRODUCE_VERSION)).unwrap();
    Some((header.correlation_id, ProduceRequest::decode(&mut frame, PRODUCE_VERSION).unwrap()))
}

fn answer(
    stream: &mut TcpStream,
    correlation_id: i32,
    partition: PartitionProduceResponse,
) -> std::io::Result<()> {
    let topic = TopicProduceResponse::default().with_partition_responses(vec![partition]);
    let mut body = BytesMut::new();
    body.put_u32(0);
    let version = ProduceResponse::header_version(PRODUCE_VERSION);
    ResponseHeader::default().with_correlation_id(correlation_id).encode(&mut body, version).unwrap();
    ProduceResponse::default().with_responses(vec![topic]).encode(&mut body, PRODUCE_VERSION).unwrap();
    let length = u32::try_from(body.len() - 4).unwrap();
    body[..4].copy_from_slice(&length.to_be_bytes());
    stream.write_all(&body)
}

fn load(plan: &Plan, stall: (usize, Duration), error_code: i16) -> (Result<Tally>, Seen) {
    let (address, serving) = broker(stall, error_code);
    let partitions: Vec<i32> = (0..plan.partitions).collect();
    let mut lanes = vec![Lane::open(&address, Writer::default(), &partitions, plan, 1.0).unwrap()];
    let mut tally = Tally::new(plan);
    let driven = drive(&mut lanes, plan, &mut None, &mut tally);
    drop(lanes);
    (driven.map(|()| tally), serving.join().unwrap())
}

fn paced() -> Plan {
    Plan {
        record_bytes: 100,
        warm_up: Duration::ZERO,
        time: Duration::from_millis(600),
        ..Plan::new("t", 2, Pace::Rate { bytes_per_second: 100_000.0 })
    }
}

#[test]
fn a_stall_is_felt_by_every_record_that_falls_due_during_it() {
    let (tally, seen) = load(&paced(), (100, Duration::from_millis(300)), 0);
    let tally = tally.unwrap();
    // 1,000 records a second for 0.6 s; a client that waits for its answers would have sent one into the stall.
    assert_eq!(tally.all_records, 600);
    assert_eq!(tally.latencies.count(), 600);
    assert_eq!(seen.iter().sum::<usize>(), 600);
    assert!(tally.latencies.max() >= Duration::from_millis(290), "{:?}", tally.latencies.max());
    let felt = tally.latencies.percentile(1.0 - 250.0 / 600.0);
    assert!(felt >= Duration::from_millis(30), "250 records waited for at least {felt:?}");
    assert!(tally.ledger.values().flatten().all(|batch| batch.records >= 1));
}

#[test]
fn lingering_gathers_records_into_batches() {
    let plan = Plan { linger: Duration::from_millis(20), ..paced() };
    let (tally, seen) = load(&plan, (usize::MAX, Duration::ZERO), 0);
    let tally = tally.unwrap();
    assert_eq!(tally.all_records, 600);
    // A partition is left after ten milliseconds, so a batch has about ten records.
    assert!(seen.len() < 120, "{} requests for 600 records", seen.len());
    assert!(tally.latencies.percentile(0.9) >= Duration::from_millis(15));
}

#[test]
fn few_requests_in_flight_make_larger_batches() {
    let plan = Plan { in_flight: 1, ..paced() };
    let (tally, seen) = load(&plan, (50, Duration::from_millis(200)), 0);
    assert_eq!(tally.unwrap().all_records, 600);
    assert!(seen.iter().any(|count| *count > 5), "{seen:?}");
}

#[test]
fn full_rate_sends_full_batches_to_all_partitions_and_a_ledger_keeps_them() {
    let plan = Plan {
        record_bytes: 100,
        batch_bytes: 10_000,
        warm_up: Duration::from_millis(20),
        time: Duration::from_millis(100),
        ..Plan::new("t", 3, Pace::Full)
    };
    let (tally, seen) = load(&plan, (usize::MAX, Duration::ZERO), 0);
    let tally = tally.unwrap();
    let full = 10_000 / (100 + crate::batch::RECORD_OVERHEAD);
    assert!(seen.len() > 20 && seen.iter().all(|count| *count == full), "{seen:?}");
    assert_eq!(tally.all_records as usize, seen.len() * full);
    assert!(tally.records < tally.all_records, "the warm-up does not count");
    assert_eq!(tally.per_second.iter().sum::<u64>(), tally.records);
    assert_eq!(tally.ledger.len(), 3);
    for batches in tally.ledger.values() {
        for (batch, position) in batches.iter().zip(0_u64..) {
            assert_eq!(
                (batch.base_offset as u64, batch.first),
                (position * full as u64, position * full as u64)
            );
        }
    }
}

#[test]
fn a_bounded_queue_is_never_exceeded() {
    let plan = Plan {
        record_bytes: 100,
        in_flight: 2,
        warm_up: Duration::ZERO,
        time: Duration::from_millis(100),
        ..Plan::new("t", 4, Pace::Queue { records: 40 })
    };
    let (tally, seen) = load(&plan, (usize::MAX, Duration::ZERO), 0);
    assert!(tally.unwrap().records > 100);
    assert!(seen.iter().all(|count| *count <= 40), "{seen:?}");
}

#[test]
fn a_refusal_and_a_lost_connection_end_the_run() {
    let (tally, _) = load(&paced(), (usize::MAX, Duration::ZERO), 6);
    let error = tally.unwrap_err().to_string();
    assert!(error.contains("error 6"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let plan = paced();
    let mut lanes = vec![Lane::open(&address, Writer::default(), &[0, 1], &plan, 1.0).unwrap()];
    drop(listener.accept().unwrap());
    drop(listener);
    assert!(drive(&mut lanes, &plan, &mut None, &mut Tally::new(&plan)).is_err());
}
