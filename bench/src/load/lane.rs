//! One producer's connection to one leader: what waits in its partitions, the request that is being written, those
//! that wait for their answers. Its socket never blocks; the loop in the module above waits for all lanes at once.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;

use super::schedule::{Schedule, scatter};
use super::{Acked, Pace, Plan, Tally};
use crate::batch::{BatchTemplate, Writer};
use crate::wire::{Envelope, RequestFrame, read_answer};

/// An answer to a produce request is small; more than this is not one.
const ANSWER_BYTES_MAX: usize = 1 << 20;

pub(super) struct Lane {
    pub(super) stream: TcpStream,
    address: String,
    writer: Writer,
    queues: Vec<Queue>,
    /// From a partition's number to its queue here, if this lane's broker leads it.
    own: Vec<Option<usize>>,
    /// Queues that have something to send, the longest waiting first.
    ready: VecDeque<usize>,
    source: Source,
    template: BatchTemplate,
    outgoing: Option<Outgoing>,
    sent: VecDeque<Sent>,
    input: Vec<u8>,
    next_correlation_id: i32,
}

enum Source {
    /// Every partition always has a full batch.
    Endless,
    /// So many records may wait or be in flight; each goes to a partition by chance.
    Bounded { places: usize, held: usize, drawn: u64 },
    /// The record of the schedule that comes next, which is one of this lane, or its end.
    Scheduled { schedule: Schedule, next: u64 },
}

struct Queue {
    partition: i32,
    waiting: usize,
    /// When the waiting records fell due, of scheduled ones.
    dues: VecDeque<Duration>,
    next_sequence: u64,
    is_ready: bool,
}

struct Outgoing {
    frame: RequestFrame,
    batch_bytes: usize,
    written: usize,
}

struct Sent {
    correlation_id: i32,
    queue: usize,
    first: u64,
    records: usize,
    at: Instant,
    dues: VecDeque<Duration>,
}

impl Lane {
    pub(super) fn open(
        address: &str,
        writer: Writer,
        partitions: &[i32],
        plan: &Plan,
        share: f64,
    ) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut own = vec![None; usize::try_from(plan.partitions)?];
        for (index, partition) in partitions.iter().enumerate() {
            own[usize::try_from(*partition)?] = Some(index);
        }
        let queue = |partition: &i32| Queue {
            partition: *partition,
            waiting: 0,
            dues: VecDeque::new(),
            next_sequence: 0,
            is_ready: false,
        };
        let source = match plan.pace {
            Pace::Full => Source::Endless,
            Pace::Queue { records } => {
                Source::Bounded { places: (records as f64 * share).ceil() as usize, held: 0, drawn: 0 }
            }
            Pace::Rate { bytes_per_second } => {
                let rate = bytes_per_second / plan.record_bytes as f64;
                let schedule = Schedule::new(
                    rate,
                    plan.warm_up + plan.time,
                    plan.producers,
                    writer.number,
                    own.len(),
                    plan.keyed,
                );
                Source::Scheduled { schedule, next: 0 }
            }
        };
        let mut lane = Self {
            stream,
            address: address.to_owned(),
            writer,
            queues: partitions.iter().map(queue).collect(),
            own,
            ready: VecDeque::new(),
            source,
            template: BatchTemplate::new(plan.batch_bytes, plan.record_bytes),
            outgoing: None,
            sent: VecDeque::new(),
            input: Vec::new(),
            next_correlation_id: 0,
        };
        if matches!(lane.source, Source::Endless) {
            lane.ready = (0..lane.queues.len()).collect();
        }
        lane.skip_to_own();
        Ok(lane)
    }

    /// Moves the schedule's next record to one that goes through this lane.
    fn skip_to_own(&mut self) {
        if let Source::Scheduled { schedule, next } = &mut self.source {
            while *next < schedule.total && self.own[schedule.partition(*next)].is_none() {
                *next += 1;
            }
        }
    }

    /// Takes in what the application has produced until now, `elapsed` after the start.
    pub(super) fn absorb(&mut self, elapsed: Duration) {
        loop {
            let (index, due) = match &mut self.source {
                Source::Endless => return,
                Source::Bounded { places, held, drawn } => {
                    if *held >= *places {
                        return;
                    }
                    *held += 1;
                    *drawn += 1;
                    (scatter(u64::from(self.writer.number) << 48 | *drawn) as usize % self.queues.len(), None)
                }
                Source::Scheduled { schedule, next } => {
                    let due = schedule.due(*next);
                    if *next >= schedule.total || due > elapsed {
                        return;
                    }
                    let Some(index) = self.own[schedule.partition(*next)] else { return };
                    *next += 1;
                    (index, Some(due))
                }
            };
            let queue = &mut self.queues[index];
            queue.waiting += 1;
            queue.dues.extend(due);
            if !queue.is_ready {
                queue.is_ready = true;
                self.ready.push_back(index);
            }
            self.skip_to_own();
        }
    }

    /// Sends as long as the socket takes it, there are batches that may go and requests may be in flight.
    pub(super) fn pump(&mut self, plan: &Plan, elapsed: Duration, is_open: bool) -> Result<()> {
        loop {
            if let Some(outgoing) = &mut self.outgoing {
                let batch = &self.template.bytes()[..outgoing.batch_bytes];
                let whole = outgoing.frame.bytes(outgoing.batch_bytes);
                while outgoing.written < whole {
                    match outgoing.frame.write(&mut self.stream, batch, outgoing.written)? {
                        0 => return Ok(()),
                        written => outgoing.written += written,
                    }
                }
                self.outgoing = None;
            }
            let may_send = is_open && self.sent.len() < plan.in_flight;
            if !may_send || self.front_ready_at(plan).is_none_or(|at| at > elapsed) {
                return Ok(());
            }
            self.begin_request(plan)?;
        }
    }

    /// When the batch at the front may go, after the start.
    fn front_ready_at(&self, plan: &Plan) -> Option<Duration> {
        let queue = &self.queues[*self.ready.front()?];
        match queue.dues.front() {
            Some(due) if queue.waiting < self.template.capacity() => Some(*due + plan.linger),
            _ => Some(Duration::ZERO),
        }
    }

    fn begin_request(&mut self, plan: &Plan) -> Result<()> {
        let Some(index) = self.ready.pop_front() else { return Ok(()) };
        let queue = &mut self.queues[index];
        let endless = matches!(self.source, Source::Endless);
        let capacity = self.template.capacity();
        let records = if endless { capacity } else { queue.waiting.min(capacity) };
        let dues = queue.dues.drain(..records.min(queue.dues.len())).collect();
        queue.waiting -= if endless { 0 } else { records };
        queue.is_ready = endless || queue.waiting > 0;
        if queue.is_ready {
            self.ready.push_back(index);
        }
        let first = queue.next_sequence;
        queue.next_sequence += records as u64;
        let batch_bytes = self.template.fill(records, self.writer, first)?;
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let envelope = Envelope {
            topic: &plan.topic,
            partition: queue.partition,
            acks: plan.acks,
            transactional_id: plan.transactional_id.as_deref(),
        };
        let frame = RequestFrame::new(&envelope, correlation_id, batch_bytes)?;
        self.outgoing = Some(Outgoing { frame, batch_bytes, written: 0 });
        self.sent.push_back(Sent { correlation_id, queue: index, first, records, at: Instant::now(), dues });
        Ok(())
    }

    /// When this lane wants to be looked at again although nothing came from its broker, after the start.
    pub(super) fn wake_at(&self, plan: &Plan, is_open: bool) -> Option<Duration> {
        if !is_open || self.outgoing.is_some() || self.sent.len() >= plan.in_flight {
            return None;
        }
        let next = match &self.source {
            Source::Scheduled { schedule, next } if *next < schedule.total => Some(schedule.due(*next)),
            _ => None,
        };
        self.front_ready_at(plan).into_iter().chain(next).min()
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.outgoing.is_some()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// Whether all that this lane will ever send has been sent.
    pub(super) fn is_spent(&self) -> bool {
        let drawn = match &self.source {
            Source::Scheduled { schedule, next } => *next >= schedule.total,
            _ => false,
        };
        drawn && self.ready.is_empty() && self.outgoing.is_none()
    }

    /// Reads the answers that have come.
    pub(super) fn read(&mut self, start: Instant, tally: &mut Tally) -> Result<()> {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => anyhow::bail!("broker {} closed the connection", self.address),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).with_context(|| format!("reading from {}", self.address)),
            }
        }
        let now = Instant::now();
        let mut rest = &self.input[..];
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes(*length) as usize;
            ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes from {}", self.address);
            let Some((frame, behind)) = behind.split_at_checked(length) else { break };
            rest = behind;
            let sent = self.sent.pop_front().context("an answer that nobody waits for")?;
            let (error, base_offset) = read_answer(Bytes::copy_from_slice(frame), sent.correlation_id)?;
            let partition = self.queues[sent.queue].partition;
            ensure!(
                error == 0,
                "{}: a batch of partition {partition} was refused: error {error}",
                self.address
            );
            if let Source::Bounded { held, .. } = &mut self.source {
                *held -= sent.records;
            }
            let acked =
                Acked { base_offset, records: sent.records, producer: self.writer.number, first: sent.first };
            tally.add(partition, acked, now - start, now - sent.at, sent.dues);
        }
        let read = self.input.len() - rest.len();
        self.input.drain(..read);
        Ok(())
    }
}
