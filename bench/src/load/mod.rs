//! The load generator: producers as librdkafka runs them (one connection per leader, one partition's batch a request),
//! all on one thread that never waits for a single one of them, so that it takes little from the brokers beside it.
//!
//! At a fixed rate it is an open loop: records fall due whatever the cluster does, and each one's latency counts from
//! the moment when it fell due. A stall is felt by every record that it delays (no coordinated omission).

mod lane;
mod schedule;
mod transactions;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::epoll;
use rustix::time::Timespec;
use zurau_tests::kafka::KafkaClient;

use crate::batch::Writer;
use crate::fetch::leaders;
use crate::histogram::Histogram;
use lane::Lane;
use transactions::Transactions;

/// Without an answer for so long a run has failed.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Nothing sleeps longer than this, so that ends are noticed.
const SLEEP_MAX: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// As fast as the cluster takes it: every partition always has a full batch to send.
    Full,
    /// As fast as the cluster takes it, but each producer has only so many records that wait or are in flight, each in
    /// a partition by chance: batches are as large as the cluster is slow.
    Queue { records: usize },
    /// User bytes per second of all producers.
    Rate { bytes_per_second: f64 },
}

/// What to send and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) topic: String,
    pub(crate) partitions: i32,
    pub(crate) producers: u16,
    /// Of each record's value.
    pub(crate) record_bytes: usize,
    /// Of a full batch.
    pub(crate) batch_bytes: usize,
    /// Requests in flight on each connection.
    pub(crate) in_flight: usize,
    pub(crate) acks: i16,
    /// How long records at a fixed rate are collected before a batch is sent.
    pub(crate) linger: Duration,
    /// Records at a fixed rate go to partitions by their keys, not by librdkafka's sticky choice.
    pub(crate) keyed: bool,
    pub(crate) pace: Pace,
    pub(crate) idempotent: bool,
    /// Transactions of this length; implies an idempotent producer, and there may be only one.
    pub(crate) transaction: Option<Duration>,
    pub(crate) transactional_id: Option<String>,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

impl Plan {
    /// librdkafka's defaults but for the lingering: one producer, batches of 1 MB, acks=all.
    pub(crate) fn new(topic: &str, partitions: i32, pace: Pace) -> Self {
        Self {
            topic: topic.to_owned(),
            partitions,
            producers: 1,
            record_bytes: 1024,
            batch_bytes: 1_000_000,
            in_flight: if matches!(pace, Pace::Rate { .. }) { 1_000_000 } else { 5 },
            acks: -1,
            linger: Duration::ZERO,
            keyed: false,
            pace,
            idempotent: false,
            transaction: None,
            transactional_id: None,
            warm_up: Duration::from_secs(2),
            time: Duration::from_secs(10),
        }
    }
}

/// A batch that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) base_offset: i64,
    pub(crate) records: usize,
    pub(crate) producer: u16,
    /// The number of the first record.
    pub(crate) first: u64,
}

/// All acknowledged batches by partition: what has to be there afterwards.
pub(crate) type Ledger = BTreeMap<i32, Vec<Acked>>;

/// What was acknowledged, and when.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    warm_up: Duration,
    time: Duration,
    is_scheduled: bool,
    start: Option<Instant>,
    /// When the records of a batch fell due, of scheduled ones: partition, first offset, times after the start.
    dues: Vec<(i32, i64, VecDeque<Duration>)>,
    pub(crate) ledger: Ledger,
    /// Of each record from when it fell due, or of each request where there is no schedule; without the warm-up.
    pub(crate) latencies: Histogram,
    /// Records acknowledged in each second of the measured time.
    pub(crate) per_second: Vec<u64>,
    /// Records and requests acknowledged within the measured time.
    pub(crate) records: u64,
    pub(crate) requests: u64,
    /// Records acknowledged at all.
    pub(crate) all_records: u64,
}

impl Tally {
    fn new(plan: &Plan) -> Self {
        Self {
            warm_up: plan.warm_up,
            time: plan.time,
            is_scheduled: matches!(plan.pace, Pace::Rate { .. }),
            per_second: vec![0; plan.time.as_secs_f64().ceil() as usize],
            ..Self::default()
        }
    }

    fn add(
        &mut self,
        partition: i32,
        acked: Acked,
        at: Duration,
        request_took: Duration,
        dues: VecDeque<Duration>,
    ) {
        self.all_records += acked.records as u64;
        self.ledger.entry(partition).or_default().push(acked);
        for due in dues.iter().filter(|due| **due >= self.warm_up) {
            self.latencies.record(at.saturating_sub(*due));
        }
        if !dues.is_empty() {
            self.dues.push((partition, acked.base_offset, dues));
        }
        let Some(measured) = at.checked_sub(self.warm_up).filter(|measured| *measured < self.time) else {
            return;
        };
        self.records += acked.records as u64;
        self.requests += 1;
        if let Some(count) = self.per_second.get_mut(measured.as_secs() as usize) {
            *count += acked.records as u64;
        }
        if !self.is_scheduled {
            self.latencies.record(request_took);
        }
    }

    /// Partition, offset and due time of each scheduled record after the warm-up.
    pub(crate) fn dues(&self) -> impl Iterator<Item = (i32, i64, Duration)> {
        let of_batch = |(partition, base, dues): &(i32, i64, VecDeque<Duration>)| {
            let (partition, base) = (*partition, *base);
            dues.clone().into_iter().zip(base..).map(move |(due, offset)| (partition, offset, due))
        };
        self.dues.iter().flat_map(of_batch).filter(|(_, _, due)| *due >= self.warm_up)
    }

    pub(crate) fn since_start(&self, at: Instant) -> Option<Duration> {
        at.checked_duration_since(self.start?)
    }

    /// Records per second within the measured time.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.time.as_secs_f64()
    }
}

/// # Errors
/// Any refusal, any lost connection, no answer for 30 s.
pub(crate) fn run(client: &mut KafkaClient, plan: &Plan) -> Result<Tally> {
    let may_be_transactional = plan.producers == 1 && plan.pace == Pace::Full;
    ensure!(
        plan.transaction.is_none() || may_be_transactional,
        "transactions are of one producer at full rate"
    );
    let by_leader = leaders(client, &plan.topic)?;
    let found: usize = by_leader.values().map(Vec::len).sum();
    ensure!(found == usize::try_from(plan.partitions)?, "{} has {found} partitions", plan.topic);
    let mut transactions = Transactions::begin(client, plan)?;
    let mut lanes = Vec::new();
    for producer in 0..plan.producers {
        let writer = match &transactions {
            Some(transactions) => transactions.writer(),
            None if plan.idempotent => {
                let idempotent = Some(transactions::producer_id(client, None)?);
                Writer { number: producer, idempotent, transactional: false }
            }
            None => Writer { number: producer, ..Writer::default() },
        };
        for (address, partitions) in &by_leader {
            let share = partitions.len() as f64 / f64::from(plan.partitions);
            lanes.push(Lane::open(address, writer, partitions, plan, share)?);
        }
    }
    let mut tally = Tally::new(plan);
    drive(&mut lanes, plan, &mut transactions, &mut tally)?;
    Ok(tally)
}

fn drive(
    lanes: &mut [Lane],
    plan: &Plan,
    transactions: &mut Option<Transactions>,
    tally: &mut Tally,
) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, lane) in lanes.iter().enumerate() {
        epoll::add(&poll, &lane.stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
    }
    let mut writing = vec![false; lanes.len()];
    let mut events = Vec::with_capacity(lanes.len().max(1));
    let start = Instant::now();
    tally.start = Some(start);
    let end = plan.warm_up + plan.time;
    let mut last_answer = Instant::now();
    loop {
        let elapsed = start.elapsed();
        let is_over = elapsed >= end;
        // What has fallen due is sent even after the end; what has no schedule just stops.
        let mut is_open = !is_over || matches!(plan.pace, Pace::Rate { .. });
        if let Some(transactions) = transactions {
            let in_flight = lanes.iter().any(|lane| lane.in_flight() > 0 || lane.wants_to_write());
            is_open &= transactions.step(elapsed, in_flight, is_over)?;
        }
        let mut wake = SLEEP_MAX;
        for (index, lane) in lanes.iter_mut().enumerate() {
            if is_open {
                lane.absorb(elapsed);
            }
            lane.pump(plan, elapsed, is_open)?;
            if lane.wants_to_write() != writing[index] {
                writing[index] = lane.wants_to_write();
                let more = if writing[index] { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let data = epoll::EventData::new_u64(index as u64);
                epoll::modify(&poll, &lane.stream, data, epoll::EventFlags::IN | more)?;
            }
            if let Some(at) = lane.wake_at(plan, is_open) {
                wake = wake.min(at.saturating_sub(elapsed));
            }
        }
        let in_flight: usize = lanes.iter().map(Lane::in_flight).sum();
        let is_spent = match plan.pace {
            Pace::Rate { .. } => lanes.iter().all(Lane::is_spent),
            _ => is_over && !lanes.iter().any(Lane::wants_to_write),
        };
        if is_spent && in_flight == 0 && transactions.as_ref().is_none_or(Transactions::is_over) {
            return Ok(());
        }
        ensure!(in_flight == 0 || last_answer.elapsed() < SILENCE_MAX, "no answer for {SILENCE_MAX:?}");
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wake.subsec_nanos()) };
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (flags, index) = (event.flags, event.data.u64() as usize);
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                lanes[index].read(start, tally)?;
                last_answer = Instant::now();
            }
        }
        if in_flight == 0 {
            last_answer = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
