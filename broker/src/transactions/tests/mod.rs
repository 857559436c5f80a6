//! The core alone: what it answers, what it writes, and that it goes back when a write is refused.

mod histories;

mod shards;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::records::{TransactionRecord, TransactionState};
use super::request::{Answer, InitRequest, Initialized, Request};
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
    Request::Add { producer, partitions: numbers.iter().copied().map(partition).collect() }
}

fn end(producer: Producer, commits: bool) -> Request {
    Request::End { producer, commits }
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
        if self.answers.get(&reply) == Some(&Answer::Init(Ok(Initialized::NeedsProducerId)))
            && let Request::Init(init) = request
        {
            self.last_producer_id += 1;
            let fresh_producer_id = Some(self.last_producer_id);
            return self.send(id, Request::Init(InitRequest { fresh_producer_id, ..init }));
        }
        reply
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
        match self.ask("t", request) {
            Answer::Done(outcome) => outcome,
            other => panic!("{other:?}"),
        }
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
