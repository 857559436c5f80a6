//! As fast as the cluster takes it: one connection per broker, requests of one full batch each, several in flight.

use std::collections::HashMap;
use std::io::{IoSlice, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::{ProduceRequest, RequestHeader};
use kafka_protocol::protocol::{Encodable as _, HeaderVersion as _, Request as _, StrBytes};
use zurau_tests::kafka::{KafkaClient, PRODUCE_VERSION, decode_answer, produce_request};
use zurau_tests::records::now_ms;

use crate::batch::BatchTemplate;

/// What to send and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) topic: String,
    pub(crate) partitions: i32,
    pub(crate) record_bytes: usize,
    pub(crate) batch_bytes: usize,
    /// Requests in flight on each connection.
    pub(crate) in_flight: usize,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

/// One acknowledged batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
    pub(crate) records: usize,
}

pub(crate) struct FullRate {
    /// User bytes per second after the warm-up, in MB/s.
    pub(crate) megabytes_per_second: f64,
    /// From sending a request to its acknowledgement.
    pub(crate) request_times: Vec<Duration>,
    /// Records in each partition, warm-up included: what has to be there afterwards.
    pub(crate) written: HashMap<i32, i64>,
    pub(crate) bytes: u64,
}

/// What one connection achieved.
struct Outcome {
    delivered: Vec<Delivered>,
    written: HashMap<i32, i64>,
}

struct Sent {
    correlation_id: i32,
    first: i64,
    records: usize,
    at: Instant,
}

/// # Errors
/// Any refusal, any wrong offset, any lost connection.
pub(crate) fn run(client: &mut KafkaClient, plan: &Plan) -> Result<FullRate> {
    let mut by_leader: HashMap<String, Vec<i32>> = HashMap::new();
    for partition in 0..plan.partitions {
        by_leader.entry(client.leader(&plan.topic, partition)?.1).or_default().push(partition);
    }
    let start = Instant::now();
    let outcomes: Mutex<Vec<Outcome>> = Mutex::default();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = by_leader
            .iter()
            .map(|(address, partitions)| {
                scope.spawn(|| -> Result<()> {
                    let outcome = drive(address, partitions, plan, start)?;
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a sender panicked"))??;
        }
        Ok(())
    })?;
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(summarize(plan, start, outcomes))
}

fn summarize(plan: &Plan, start: Instant, outcomes: Vec<Outcome>) -> FullRate {
    let from = start + plan.warm_up;
    let to = from + plan.time;
    let mut written = HashMap::new();
    let mut request_times = Vec::new();
    let mut records = 0;
    let mut all_records = 0;
    for outcome in outcomes {
        written.extend(outcome.written);
        for one in outcome.delivered {
            all_records += one.records;
            if one.at >= from && one.at < to {
                records += one.records;
                request_times.push(one.took);
            }
        }
    }
    request_times.sort_unstable();
    let user_bytes = |records: usize| (records * plan.record_bytes) as u64;
    FullRate {
        megabytes_per_second: user_bytes(records) as f64 / 1e6 / plan.time.as_secs_f64(),
        request_times,
        written,
        bytes: user_bytes(all_records),
    }
}

fn drive(address: &str, partitions: &[i32], plan: &Plan, start: Instant) -> Result<Outcome> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    let reading = stream.try_clone()?;
    let (sent, pending) = channel();
    // A permit is taken for each request and comes back with its answer.
    let (permits, permit) = channel();
    for _ in 0..plan.in_flight.max(1) {
        permits.send(()).context("the other end is still here")?;
    }
    let reader = thread::spawn(move || read_answers(reading, &pending, &permits));
    let per_batch = (plan.batch_bytes / (plan.record_bytes + 12)).max(1);
    let mut template = BatchTemplate::new(per_batch, plan.record_bytes);
    let mut next: HashMap<i32, i64> = partitions.iter().map(|partition| (*partition, 0)).collect();
    let end = start + plan.warm_up + plan.time;
    for (partition, correlation_id) in partitions.iter().cycle().zip(0..) {
        // Without a permit the reader has failed, and says why below.
        if permit.recv().is_err() || Instant::now() >= end {
            break;
        }
        let first = next[partition];
        let batch = template.fill(first, now_ms());
        let head = request_head(&plan.topic, *partition, correlation_id, batch.len())?;
        let one = Sent { correlation_id, first, records: per_batch, at: Instant::now() };
        if sent.send(one).is_err() || write_request(&mut stream, &head, batch).is_err() {
            break;
        }
        next.insert(*partition, first + per_batch as i64);
    }
    drop(sent);
    let delivered = reader.join().map_err(|_| anyhow!("a reader panicked"))?;
    let delivered = delivered.with_context(|| format!("broker {address}"))?;
    Ok(Outcome { delivered, written: next })
}

/// Everything of a produce request before and after its one batch; see [`write_request`].
pub(crate) struct RequestFrame {
    before: Bytes,
    after: Bytes,
}

/// # Errors
/// The codec refuses the request.
pub(crate) fn request_head(
    topic: &str,
    partition: i32,
    correlation_id: i32,
    batch_bytes: usize,
) -> Result<RequestFrame> {
    let header = RequestHeader::default()
        .with_request_api_key(ProduceRequest::KEY)
        .with_request_api_version(PRODUCE_VERSION)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("zurau-bench")));
    let mut frame = BytesMut::new();
    frame.put_u32(0);
    header.encode(&mut frame, ProduceRequest::header_version(PRODUCE_VERSION))?;
    // The batch's place is found by an empty one: its compact length, 1, becomes the real length.
    produce_request(topic, partition, Bytes::new(), -1).encode(&mut frame, PRODUCE_VERSION)?;
    // Behind the records stand three empty tag sections: of the partition, the topic and the request.
    let after = frame.split_off(frame.len() - 3).freeze();
    let length_at = frame.len() - 1;
    ensure!(frame[length_at] == 1, "an empty batch is written in another way than expected");
    frame.truncate(length_at);
    put_unsigned(&mut frame, batch_bytes as u64 + 1);
    let total = frame.len() - 4 + batch_bytes + after.len();
    frame[..4].copy_from_slice(&u32::try_from(total)?.to_be_bytes());
    Ok(RequestFrame { before: frame.freeze(), after })
}

fn put_unsigned(buffer: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        buffer.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

/// # Errors
/// The connection is lost.
pub(crate) fn write_request(stream: &mut TcpStream, frame: &RequestFrame, batch: &[u8]) -> Result<()> {
    let mut slices = [IoSlice::new(&frame.before), IoSlice::new(batch), IoSlice::new(&frame.after)];
    let mut slices = slices.as_mut_slice();
    while !slices.is_empty() {
        let written = stream.write_vectored(slices).context("sending a batch")?;
        ensure!(written > 0, "the broker takes no more");
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

fn read_answers(stream: TcpStream, pending: &Receiver<Sent>, permits: &Sender<()>) -> Result<Vec<Delivered>> {
    let mut reader = std::io::BufReader::with_capacity(64 * 1024, stream);
    let mut delivered = Vec::new();
    while let Ok(sent) = pending.recv() {
        let (error, offset) = read_answer(&mut reader, sent.correlation_id)?;
        ensure!(error == 0, "a batch was refused with error {error}");
        ensure!(offset == sent.first, "a batch got offset {offset}, {} was due", sent.first);
        delivered.push(Delivered { at: Instant::now(), took: sent.at.elapsed(), records: sent.records });
        // Once the sender is done nobody wants permits any more.
        let _ = permits.send(());
    }
    Ok(delivered)
}

/// Error code and first offset.
///
/// # Errors
/// The connection is lost or the answer is not one to this request.
pub(crate) fn read_answer(reader: &mut impl std::io::Read, correlation_id: i32) -> Result<(i16, i64)> {
    let mut length = [0; 4];
    reader.read_exact(&mut length).context("waiting for an answer")?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    reader.read_exact(&mut frame)?;
    let answer = decode_answer::<ProduceRequest>(PRODUCE_VERSION, correlation_id, frame.into())?;
    let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
    let partition = partition.context("the answer names no partition")?;
    Ok((partition.error_code, partition.base_offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Decodable as _;

    #[test]
    fn a_split_request_is_the_one_that_the_codec_writes() {
        let batch = Bytes::from(vec![9; 300]);
        let frame = request_head("topic", 3, 77, batch.len()).unwrap();
        let whole = [&frame.before[..], &batch, &frame.after].concat();
        let mut bytes = Bytes::from(whole).split_off(4);
        let version = ProduceRequest::header_version(PRODUCE_VERSION);
        assert_eq!(RequestHeader::decode(&mut bytes, version).unwrap().correlation_id, 77);
        let request = ProduceRequest::decode(&mut bytes, PRODUCE_VERSION).unwrap();
        assert!(bytes.is_empty());
        assert_eq!(request, produce_request("topic", 3, batch, -1));
    }
}
