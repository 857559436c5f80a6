//! An open loop: records fall due at a fixed rate whatever the cluster does, and each one's latency counts from the
//! moment when it fell due. A stall is felt by every record that it delays (no coordinated omission).

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use zurau_tests::kafka::KafkaClient;
use zurau_tests::records::now_ms;

use crate::batch::BatchTemplate;
use crate::full_rate::{read_answer, request_head, write_request};

/// librdkafka stays on one partition for this long when records have no key.
const STICKY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub(crate) struct PacedPlan {
    pub(crate) topic: String,
    pub(crate) partitions: i32,
    pub(crate) record_bytes: usize,
    /// User bytes per second.
    pub(crate) bytes_per_second: f64,
    /// How long records are collected before a batch is sent.
    pub(crate) linger: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

pub(crate) struct Paced {
    /// One for each record after the warm-up, ascending.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) written: HashMap<i32, i64>,
}

/// A batch on its way: the records numbered `records.0` up to `records.1` of the whole run.
struct Sent {
    correlation_id: i32,
    first: i64,
    records: (u64, u64),
}

struct Link {
    stream: TcpStream,
    sent: Sender<Sent>,
    reader: JoinHandle<Result<Vec<Duration>>>,
    next_correlation_id: i32,
}

/// # Errors
/// Any refusal, any wrong offset, any lost connection.
pub(crate) fn run(client: &mut KafkaClient, plan: &PacedPlan) -> Result<Paced> {
    let interval = plan.record_bytes as f64 / plan.bytes_per_second;
    let warm_up = (plan.warm_up.as_secs_f64() / interval) as u64;
    let total = warm_up + (plan.time.as_secs_f64() / interval) as u64;
    let start = Instant::now() + Duration::from_millis(50);
    let due = move |record: u64| start + Duration::from_secs_f64(record as f64 * interval);

    let mut links: HashMap<String, Link> = HashMap::new();
    let mut leaders = Vec::new();
    for partition in 0..plan.partitions {
        let address = client.leader(&plan.topic, partition)?.1;
        if !links.contains_key(&address) {
            links.insert(address.clone(), open(&address, due, warm_up)?);
        }
        leaders.push(address);
    }
    let mut templates: HashMap<usize, BatchTemplate> = HashMap::new();
    let mut next: HashMap<i32, i64> = (0..plan.partitions).map(|partition| (partition, 0)).collect();
    let mut sent = 0;
    while sent < total {
        thread::sleep(due(sent).saturating_duration_since(Instant::now()) + plan.linger);
        let elapsed = Instant::now().saturating_duration_since(start).as_secs_f64();
        let ready = ((elapsed / interval) as u64 + 1).min(total);
        if ready == sent {
            continue;
        }
        let turn = (elapsed / STICKY.as_secs_f64()) as u64 % u64::try_from(plan.partitions)?;
        let partition = i32::try_from(turn)?;
        let link =
            links.get_mut(&leaders[usize::try_from(turn)?]).context("a leader without a connection")?;
        let count = usize::try_from(ready - sent)?;
        let template = templates.entry(count).or_insert_with(|| BatchTemplate::new(count, plan.record_bytes));
        let first = next[&partition];
        link.send(plan, partition, template.fill(first, now_ms()), first, (sent, ready))?;
        next.insert(partition, first + count as i64);
        sent = ready;
    }
    let mut latencies = Vec::new();
    for (address, link) in links {
        drop(link.sent);
        let found = link.reader.join().map_err(|_| anyhow!("a reader panicked"))?;
        latencies.extend(found.with_context(|| format!("broker {address}"))?);
    }
    latencies.sort_unstable();
    Ok(Paced { latencies, written: next })
}

impl Link {
    fn send(
        &mut self,
        plan: &PacedPlan,
        partition: i32,
        batch: &[u8],
        first: i64,
        records: (u64, u64),
    ) -> Result<()> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = request_head(&plan.topic, partition, correlation_id, batch.len())?;
        // When the reader has failed, its error is reported at the end.
        let _ = self.sent.send(Sent { correlation_id, first, records });
        write_request(&mut self.stream, &frame, batch)
    }
}

fn open(address: &str, due: impl Fn(u64) -> Instant + Send + 'static, warm_up: u64) -> Result<Link> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    let reading = stream.try_clone()?;
    let (sent, pending) = channel();
    let reader = thread::spawn(move || read_latencies(reading, &pending, due, warm_up));
    Ok(Link { stream, sent, reader, next_correlation_id: 0 })
}

fn read_latencies(
    stream: TcpStream,
    pending: &Receiver<Sent>,
    due: impl Fn(u64) -> Instant,
    warm_up: u64,
) -> Result<Vec<Duration>> {
    let mut reader = std::io::BufReader::with_capacity(64 * 1024, stream);
    let mut latencies = Vec::new();
    while let Ok(sent) = pending.recv() {
        let (error, offset) = read_answer(&mut reader, sent.correlation_id)?;
        let now = Instant::now();
        ensure!(error == 0, "a batch was refused with error {error}");
        ensure!(offset == sent.first, "a batch got offset {offset}, {} was due", sent.first);
        let counted = sent.records.0.max(warm_up)..sent.records.1;
        latencies.extend(counted.map(|record| now.saturating_duration_since(due(record))));
    }
    Ok(latencies)
}
