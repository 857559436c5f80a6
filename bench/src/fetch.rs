//! A consumer that costs as little as one can: answers are read through one small buffer and of each batch only the
//! header is looked at, so that what is measured is the broker.

use std::collections::HashMap;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::{Buf as _, BufMut as _, BytesMut};
use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use zurau_tests::kafka::{FETCH_VERSION, KafkaClient, encode_request, topic_name};

use crate::batch::HEADER;

const BUFFER_BYTES: usize = 256 << 10;
/// Longer than any wait of the broker.
const READ_LIMIT: Duration = Duration::from_secs(20);

/// Limits of each fetch; librdkafka's defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchLimits {
    pub(crate) bytes_max: i32,
    pub(crate) partition_bytes_max: i32,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self { bytes_max: 50 << 20, partition_bytes_max: 1 << 20 }
    }
}

/// Reads some partitions of one leader, from their beginning.
pub(crate) struct Consumer {
    input: Input,
    topic: String,
    limits: FetchLimits,
    /// Partition, next offset, and the end at which reading starts over.
    partitions: Vec<(i32, i64, i64)>,
    correlation_id: i32,
}

/// What one fetch brought: bytes of batches, and how many records those batches say that they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
}

/// A stream that is read through one buffer, with the number of bytes that the frame still has.
struct Input {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    left: usize,
}

impl Input {
    fn fill(&mut self) -> Result<()> {
        if self.at == self.end {
            self.at = 0;
            self.end = self.stream.read(&mut self.buffer).context("reading an answer")?;
            ensure!(self.end > 0, "the broker closed the connection");
        }
        Ok(())
    }

    fn begin_frame(&mut self) -> Result<()> {
        self.left = 4;
        let length = u32::from_be_bytes(self.take()?) as usize;
        self.left = length;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_exact(&mut self, mut to: &mut [u8]) -> Result<()> {
        self.left = self.left.checked_sub(to.len()).context("an answer is shorter than its content")?;
        while !to.is_empty() {
            self.fill()?;
            let count = to.len().min(self.end - self.at);
            to[..count].copy_from_slice(&self.buffer[self.at..self.at + count]);
            self.at += count;
            to = &mut to[count..];
        }
        Ok(())
    }

    fn skip(&mut self, mut count: usize) -> Result<()> {
        self.left = self.left.checked_sub(count).context("an answer is shorter than its content")?;
        while count > 0 {
            self.fill()?;
            let step = count.min(self.end - self.at);
            self.at += step;
            count -= step;
        }
        Ok(())
    }

    fn unsigned(&mut self) -> Result<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.take()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        anyhow::bail!("a length of more than five bytes")
    }

    /// Length of something compact, 0 also for null.
    fn compact(&mut self) -> Result<usize> {
        Ok(self.unsigned()?.saturating_sub(1))
    }

    fn skip_tags(&mut self) -> Result<()> {
        for _ in 0..self.unsigned()? {
            self.unsigned()?;
            let length = self.unsigned()?;
            self.skip(length)?;
        }
        Ok(())
    }
}

impl Consumer {
    /// `partitions` with the end of each: a partition that was read up to there is read again from offset 0.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub(crate) fn open(
        address: &str,
        topic: &str,
        partitions: &[(i32, i64)],
        limits: FetchLimits,
    ) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_LIMIT))?;
        let input = Input { stream, buffer: vec![0; BUFFER_BYTES], at: 0, end: 0, left: 0 };
        let partitions = partitions.iter().map(|(partition, end)| (*partition, 0, *end)).collect();
        Ok(Self { input, topic: topic.to_owned(), limits, partitions, correlation_id: 0 })
    }

    /// One request and its answer; partitions that are at their end begin again if `again`, else they are left out.
    ///
    /// # Errors
    /// The broker refuses, or the answer has gaps.
    pub(crate) fn fetch(&mut self, again: bool) -> Result<Fetched> {
        for (_, next, end) in &mut self.partitions {
            if again && *next >= *end {
                *next = 0;
            }
        }
        // The first in the request is served first: whoever waited longest.
        self.partitions.rotate_left(1);
        let request = self.request();
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let body = encode_request(FETCH_VERSION, self.correlation_id, &request)?;
        let mut frame = BytesMut::with_capacity(body.len() + 4);
        frame.put_u32(u32::try_from(body.len())?);
        frame.extend_from_slice(&body);
        self.input.stream.write_all(&frame).context("sending a fetch")?;
        self.read_answer()
    }

    /// Whether anything is left below the ends.
    pub(crate) fn has_more(&self) -> bool {
        self.partitions.iter().any(|(_, next, end)| next < end)
    }

    fn request(&self) -> FetchRequest {
        let wanted =
            self.partitions.iter().filter(|(_, next, end)| next < end).map(|(partition, next, _)| {
                FetchPartition::default()
                    .with_partition(*partition)
                    .with_fetch_offset(*next)
                    .with_partition_max_bytes(self.limits.partition_bytes_max)
            });
        let topic =
            FetchTopic::default().with_topic(topic_name(&self.topic)).with_partitions(wanted.collect());
        FetchRequest::default()
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(self.limits.bytes_max)
            .with_session_epoch(-1)
            .with_topics(vec![topic])
    }

    /// The layout is that of version 12; see the test, which holds it against the codec.
    fn read_answer(&mut self) -> Result<Fetched> {
        let input = &mut self.input;
        input.begin_frame()?;
        let correlation_id = i32::from_be_bytes(input.take()?);
        ensure!(correlation_id == self.correlation_id, "an answer to another request");
        input.skip_tags()?;
        input.skip(4)?; // throttle time
        let error = i16::from_be_bytes(input.take()?);
        ensure!(error == 0, "Fetch: error {error}");
        input.skip(4)?; // session
        let mut sum = Fetched::default();
        for _ in 0..input.compact()? {
            let name = input.compact()?;
            input.skip(name)?;
            for _ in 0..input.compact()? {
                let read = read_partition(input, &mut self.partitions)?;
                sum.bytes += read.bytes;
                sum.records += read.records;
            }
            input.skip_tags()?;
        }
        input.skip_tags()?;
        ensure!(input.left == 0, "{} bytes follow an answer", input.left);
        Ok(sum)
    }
}

fn read_partition(input: &mut Input, partitions: &mut [(i32, i64, i64)]) -> Result<Fetched> {
    let partition = i32::from_be_bytes(input.take()?);
    let error = i16::from_be_bytes(input.take()?);
    ensure!(error == 0, "Fetch of partition {partition}: error {error}");
    input.skip(8 + 8 + 8)?; // high watermark, last stable offset, start of the log
    for _ in 0..input.compact()? {
        input.skip(8 + 8)?; // an aborted transaction
        input.skip_tags()?;
    }
    input.skip(4)?; // preferred replica
    let state = partitions.iter_mut().find(|(index, _, _)| *index == partition);
    let (_, next, _) = state.with_context(|| format!("nobody asked for partition {partition}"))?;
    let mut read = Fetched::default();
    let mut left = input.compact()?;
    while left >= HEADER {
        let header: [u8; HEADER] = input.take()?;
        left -= HEADER;
        let mut fields = &header[..];
        let base = fields.get_i64();
        let length = fields.get_u32() as usize + 12;
        fields.advance(11);
        let end = base + i64::from(fields.get_i32()) + 1;
        let rest = length.checked_sub(HEADER).context("a batch is shorter than its header")?;
        if rest > left {
            break; // cut off by a limit
        }
        ensure!(base <= *next && *next < end, "partition {partition}: {base} to {end} follows {next}");
        *next = end;
        input.skip(rest)?;
        left -= rest;
        read.bytes += length as u64;
        read.records += u64::try_from(end - base)?;
    }
    input.skip(left)?;
    input.skip_tags()?;
    Ok(read)
}

/// When a consumer had how much of a partition.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
    pub(crate) partition: i32,
    /// Ascending: the offset behind what had come, and when.
    ends: Vec<(i64, Instant)>,
}

impl Arrivals {
    /// When the record at an offset had come, if it has.
    pub(crate) fn of(&self, offset: i64) -> Option<Instant> {
        let place = self.ends.partition_point(|(end, _)| *end <= offset);
        self.ends.get(place).map(|(_, at)| *at)
    }
}

/// Consumes every partition of a topic as it grows, with a connection for each leader, until told that it is over.
///
/// # Errors
/// See [`Consumer::fetch`].
pub(crate) fn follow(client: &mut KafkaClient, topic: &str, is_over: &AtomicBool) -> Result<Vec<Arrivals>> {
    let by_leader = leaders(client, topic)?;
    thread::scope(|scope| {
        let consumers: Vec<_> = by_leader
            .iter()
            .map(|(address, partitions)| scope.spawn(|| follow_leader(address, topic, partitions, is_over)))
            .collect();
        let mut all = Vec::new();
        for consumer in consumers {
            all.extend(consumer.join().map_err(|_| anyhow!("a consumer panicked"))??);
        }
        Ok(all)
    })
}

/// The partitions of a topic by their leaders' addresses.
///
/// # Errors
/// No broker answers, or a partition has no leader.
pub(crate) fn leaders(client: &mut KafkaClient, topic: &str) -> Result<HashMap<String, Vec<i32>>> {
    let answer = client.metadata(Some(&[topic]))?;
    let mut by_leader: HashMap<String, Vec<i32>> = HashMap::new();
    for found in answer.topics.iter().flat_map(|topic| &topic.partitions) {
        let broker = answer.brokers.iter().find(|broker| broker.node_id == found.leader_id);
        let broker = broker.with_context(|| format!("{topic}-{} has no leader", found.partition_index))?;
        let address = format!("{}:{}", broker.host.as_str(), broker.port);
        by_leader.entry(address).or_default().push(found.partition_index);
    }
    Ok(by_leader)
}

fn follow_leader(
    address: &str,
    topic: &str,
    partitions: &[i32],
    is_over: &AtomicBool,
) -> Result<Vec<Arrivals>> {
    let endless: Vec<(i32, i64)> = partitions.iter().map(|partition| (*partition, i64::MAX)).collect();
    let mut consumer = Consumer::open(address, topic, &endless, FetchLimits::default())?;
    let mut arrivals: HashMap<i32, Arrivals> = HashMap::new();
    while !is_over.load(Ordering::Relaxed) {
        consumer.fetch(false)?;
        let now = Instant::now();
        for (partition, next, _) in &consumer.partitions {
            let known = arrivals.entry(*partition);
            let known = known.or_insert_with(|| Arrivals { partition: *partition, ends: Vec::new() });
            if known.ends.last().map_or(0, |(end, _)| *end) < *next {
                known.ends.push((*next, now));
            }
        }
    }
    Ok(arrivals.into_values().collect())
}

/// Reads over and over until `until`. Returns what was read after `from`.
///
/// # Errors
/// See [`Consumer::fetch`].
pub(crate) fn read_until(consumer: &mut Consumer, from: Instant, until: Instant) -> Result<Fetched> {
    let mut sum = Fetched::default();
    loop {
        let read = consumer.fetch(true)?;
        let now = Instant::now();
        if now >= until {
            return Ok(sum);
        }
        if now >= from {
            sum.bytes += read.bytes;
            sum.records += read.records;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchTemplate, Writer};
    use kafka_protocol::messages::fetch_response::{
        AbortedTransaction, FetchableTopicResponse, PartitionData,
    };
    use kafka_protocol::messages::{FetchResponse, ResponseHeader};
    use kafka_protocol::protocol::{Encodable as _, HeaderVersion as _};
    use std::net::TcpListener;

    fn batches(counts: &[usize]) -> Vec<u8> {
        let mut template = BatchTemplate::new(2000, 100);
        let mut all = Vec::new();
        let mut base = 0_i64;
        for count in counts {
            let length = template.fill(*count, Writer::default(), 0).unwrap();
            let mut batch = template.bytes()[..length].to_vec();
            batch[..8].copy_from_slice(&base.to_be_bytes());
            base += *count as i64;
            all.extend(batch);
        }
        all
    }

    fn answer(partitions: Vec<PartitionData>) -> Vec<u8> {
        let topic = FetchableTopicResponse::default().with_topic(topic_name("t")).with_partitions(partitions);
        let mut body = BytesMut::new();
        let version = FetchResponse::header_version(FETCH_VERSION);
        ResponseHeader::default().with_correlation_id(1).encode(&mut body, version).unwrap();
        FetchResponse::default().with_responses(vec![topic]).encode(&mut body, FETCH_VERSION).unwrap();
        let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        frame.extend(body);
        frame
    }

    /// Answers one request with these bytes.
    fn fetched(frame: Vec<u8>) -> (Result<Fetched>, Vec<(i32, i64, i64)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut consumer = Consumer::open(&address, "t", &[(0, 5), (1, 5)], FetchLimits::default()).unwrap();
        let broker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
            stream.write_all(&frame).unwrap();
        });
        let read = consumer.fetch(true);
        broker.join().unwrap();
        consumer.partitions.sort_unstable();
        (read, consumer.partitions)
    }

    fn data(partition: i32, records: Vec<u8>) -> PartitionData {
        PartitionData::default()
            .with_partition_index(partition)
            .with_aborted_transactions(Some(vec![AbortedTransaction::default()]))
            .with_records(Some(records.into()))
    }

    #[test]
    fn an_answer_as_the_codec_writes_it_is_read_to_its_last_byte() {
        let (first, second) = (batches(&[2, 3]), batches(&[1]));
        let bytes = (first.len() + second.len()) as u64;
        let (read, partitions) = fetched(answer(vec![data(0, first), data(1, second)]));
        assert_eq!(read.unwrap(), Fetched { bytes, records: 6 });
        assert_eq!(partitions, [(0, 5, 5), (1, 1, 5)]);
    }

    #[test]
    fn a_batch_that_is_cut_off_counts_for_nothing() {
        let mut cut = batches(&[2, 3]);
        let whole = batches(&[2]).len();
        for missing in [1, 300] {
            cut.truncate(cut.len() - missing);
            let (read, partitions) = fetched(answer(vec![data(0, cut.clone())]));
            assert_eq!(read.unwrap(), Fetched { bytes: whole as u64, records: 2 });
            assert_eq!(partitions[0], (0, 2, 5));
        }
    }

    #[test]
    fn the_arrival_of_a_record_is_that_of_the_first_answer_behind_it() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let arrivals = Arrivals { partition: 0, ends: vec![(2, at(1)), (5, at(3))] };
        let found = [0, 1, 2, 4, 5].map(|offset| arrivals.of(offset));
        assert_eq!(found, [Some(at(1)), Some(at(1)), Some(at(3)), Some(at(3)), None]);
    }

    #[test]
    fn gaps_and_refusals_are_errors() {
        let gap = batches(&[2, 3]).split_off(batches(&[2]).len());
        assert!(fetched(answer(vec![data(0, gap)])).0.is_err());
        assert!(fetched(answer(vec![data(0, vec![]).with_error_code(3)])).0.is_err());
        assert!(fetched(answer(vec![data(7, vec![])])).0.is_err());
    }
}
