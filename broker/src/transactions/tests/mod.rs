//! The core alone: what it answers, what it writes, and that it goes back when a write is refused.

mod histories;

mod shards;

mod version_2;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::records::{TransactionRecord, TransactionState};
use super::request::{Answer, EndRequest, InitRequest, Initialized, Request};
use super::shard::{Effect, Event, Marking, MarkingId, Shard, TransactionSettings};
use crate::coordinator::{Now, Producer, Replay, ReplyId, WriteId, WriteOutcome};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
const TIMEOUT_MS: i32 = 60_000;

/// A core, its log, and everything it has asked of the shell.
struct World {
    shard: Shard,
    now_ms: i64,
    /// Committed.
    log: Vec<Arc<TransactionRecord>>,
    writes: VecDeque<(WriteId, Arc<TransactionRecord>)>,
    markings: BTreeMap<MarkingId, Marking>,
    answers: BTreeMap<ReplyId, Answer>,
    last_reply: u64,
    last_producer_id: i64,
}

fn settings() -> Arc<TransactionSettings> {
    Arc::new(TransactionSettings {
        timeout_max_ms: 900_000,
        id_expiration_ms: 7 * DAY_MS,
        timeout_check_interval_ms: 10_000,
        expiration_check_interval_ms: 3_600_000,
    })
}

fn partition(number: i32) -> TopicPartition {
    TopicPartition::new("p", number)
}

fn add(producer: Producer, numbers: &[i32]) -> Request {
    let partitions = numbers.iter().copied().map(partition).collect();
    Request::Add { producer, partitions, is_version_2: false }
}

fn end(producer: Producer, commits: bool) -> Request {
    Request::End(EndRequest { producer, commits, is_version_2: false, fresh_producer_id: None })
}

/// What an answer to adding or ending says.
fn outcome(answer: Option<Answer>) -> Result<(), Rejection> {
    match answer {
        Some(Answer::Done(outcome)) => outcome,
        Some(Answer::End(outcome)) => outcome.map(|_| ()),
        other => panic!("{other:?}"),
    }
}

fn init(expected: Option<Producer>) -> Request {
    Request::Init(InitRequest { timeout_ms: TIMEOUT_MS, expected, fresh_producer_id: None })
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            shard: Shard::new(settings()),
            now_ms: 1_000_000,
            log: Vec::new(),
            writes: VecDeque::new(),
            markings: BTreeMap::new(),
            answers: BTreeMap::new(),
            last_reply: 0,
            last_producer_id: 99,
        };
        let effects = world.shard.finish_loading(world.now());
        world.carry_out(effects);
        world
    }

    /// Another broker takes over with what is committed.
    fn fail_over(&mut self) {
        let effects = self.shard.abandon();
        self.carry_out(effects);
        self.writes.clear();
        self.markings.clear();
        self.shard = Shard::new(settings());
        for record in &self.log {
            let (key, value) = record.encode();
            assert_eq!(self.shard.replay(Some(&key), value.as_deref(), None, 0), Ok(true));
        }
        let effects = self.shard.finish_loading(self.now());
        self.carry_out(effects);
    }

    fn now(&self) -> Now {
        Now { elapsed_ms: self.now_ms, wall_ms: self.now_ms }
    }

    fn step(&mut self, event: Event) {
        let effects = self.shard.step(self.now(), event);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(reply, answer) => {
                    assert!(self.answers.insert(reply, answer).is_none(), "one answer to each request");
                }
                Effect::Write(write, record) => self.writes.push_back((write, record)),
                Effect::Mark(marking, order) => {
                    assert!(!order.partitions.is_empty());
                    self.markings.insert(marking, order);
                }
                Effect::Aborting { .. } => {}
            }
        }
    }

    fn pass(&mut self, milliseconds: i64) {
        self.now_ms += milliseconds;
        self.step(Event::Tick);
    }

    /// Asks, with a fresh producer id if one is needed.
    fn send(&mut self, id: &str, request: Request) -> ReplyId {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        self.step(Event::Ask { reply, id: id.into(), request: request.clone() });
        let needs_id = Ok(Initialized::NeedsProducerId);
        let answer = self.answers.get(&reply);
        if answer != Some(&Answer::Init(needs_id)) && answer != Some(&Answer::End(needs_id)) {
            return reply;
        }
        self.answers.remove(&reply);
        self.last_producer_id += 1;
        let fresh_producer_id = Some(self.last_producer_id);
        match request {
            Request::Init(init) => self.send(id, Request::Init(InitRequest { fresh_producer_id, ..init })),
            Request::End(end) => self.send(id, Request::End(EndRequest { fresh_producer_id, ..end })),
            other => panic!("{other:?} needs no producer id"),
        }
    }

    /// The oldest write is decided.
    fn report(&mut self, outcome: WriteOutcome) {
        let Some((write, record)) = self.writes.pop_front() else { return };
        if outcome.is_in_log() {
            self.log.push(record);
        }
        self.step(Event::Written { write, outcome });
    }

    fn commit_writes(&mut self) {
        while !self.writes.is_empty() {
            self.report(WriteOutcome::Committed);
        }
    }

    /// All markers that are wanted are written.
    fn write_markers(&mut self) {
        for (marking, order) in std::mem::take(&mut self.markings) {
            for partition in order.partitions {
                self.step(Event::Marked { marking, partition });
            }
        }
    }

    /// Asks, and lets everything that is written be committed.
    fn ask(&mut self, id: &str, request: Request) -> Answer {
        let reply = self.send(id, request);
        self.commit_writes();
        self.answers.remove(&reply).expect("everything that it waits for is done")
    }

    fn done(&mut self, request: Request) -> Result<(), Rejection> {
        outcome(Some(self.ask("t", request)))
    }

    fn init(&mut self, expected: Option<Producer>) -> Result<Producer, Rejection> {
        match self.ask("t", init(expected)) {
            Answer::Init(Ok(Initialized::Producer(producer))) => Ok(producer),
            Answer::Init(Err(rejection)) => Err(rejection),
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self) -> Option<TransactionState> {
        match self.ask("t", Request::Describe) {
            Answer::Describe(found) => found.ok().map(|transaction| transaction.state),
            other => panic!("{other:?}"),
        }
    }
}
