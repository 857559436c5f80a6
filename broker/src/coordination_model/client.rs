//! An application that reads inputs as a member of a group, writes what it read to the outputs, and commits both in one
//! transaction. It behaves as Kafka's clients do: it asks again while it is told to, gives up a transaction when it must,
//! takes a higher epoch after one that it cannot be sure of, and ends when it is fenced. One of version 2 (KIP-890) leaves
//! it to the partitions' leaders to add them, and takes another epoch with each end.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::dice::Dice;
use super::log::{OUTPUTS, Place};
use super::messages::{Answered, Asked};
use super::referee::Referee;
use crate::coordinator::{BatchStyle, Producer, encode_batch};

/// Partitions of the input, and records in each.
pub(super) const INPUTS: i32 = 2;
pub(super) const RECORDS: i64 = 6;

/// The part of a transaction that comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Add(Vec<Place>),
    Produce(Place, Vec<i64>),
    CommitOffsets,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Init,
    /// A higher epoch is wanted.
    Bump,
    Join,
    Sync(Vec<(String, Vec<i32>)>),
    Fetch,
    Idle,
    Working,
    Ending(bool),
    Dead,
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) slot: usize,
    pub(super) incarnation: u32,
    stage: Stage,
    pub(super) last_number: u64,
    pub(super) waiting: Option<(u64, Asked)>,
    pub(super) producer: Option<Producer>,
    /// Of the next record, by partition.
    sequences: BTreeMap<Place, i32>,
    member: String,
    generation: i32,
    pub(super) inputs: Vec<i32>,
    positions: BTreeMap<i32, i64>,
    attempt: Option<usize>,
    steps: VecDeque<Step>,
    gives_up: bool,
    is_uncertain: bool,
    must_join: bool,
    pub(super) versions: Versions,
    /// Of the transaction that is open.
    is_version_2: bool,
}

/// In which version an application does its transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Versions {
    One,
    Two,
    /// Each as it happens.
    Both,
}

impl App {
    pub(super) fn new(slot: usize, incarnation: u32, versions: Versions) -> Self {
        Self {
            slot,
            incarnation,
            versions,
            is_version_2: false,
            stage: Stage::Init,
            last_number: 0,
            waiting: None,
            producer: None,
            sequences: BTreeMap::new(),
            member: String::new(),
            generation: -1,
            inputs: Vec::new(),
            positions: BTreeMap::new(),
            attempt: None,
            steps: VecDeque::new(),
            gives_up: false,
            is_uncertain: false,
            must_join: false,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// Whether it has nothing to do but to live.
    pub(super) fn rests(&self) -> bool {
        let is_read = |input: &i32| RECORDS <= self.positions.get(input).copied().unwrap_or(0);
        self.stage == Stage::Idle && !self.must_join && self.inputs.iter().all(is_read)
    }

    fn current(&self) -> Producer {
        self.producer.expect("it was initialized")
    }

    /// The next request; `None` while it waits for an answer, or has ended.
    pub(super) fn next(&mut self, referee: &mut Referee, dice: &mut Dice) -> Option<Asked> {
        if self.waiting.is_some() {
            return None;
        }
        if self.stage == Stage::Idle {
            self.begin(referee, dice);
        }
        if self.stage == Stage::Working && self.steps.is_empty() {
            self.stage = Stage::Ending(!self.gives_up);
        }
        let (member, generation) = (self.member.clone(), self.generation);
        let asked = match &self.stage {
            Stage::Dead => return None,
            Stage::Init => Asked::Init { expected: None },
            Stage::Bump => Asked::Init { expected: self.producer },
            Stage::Join => Asked::Join { member },
            Stage::Sync(assignments) => Asked::Sync { generation, member, assignments: assignments.clone() },
            Stage::Fetch => Asked::Offsets,
            Stage::Idle => Asked::Heartbeat { generation, member },
            Stage::Working => self.step(referee),
            Stage::Ending(commits) => {
                let (producer, is_version_2) = (self.current(), self.is_version_2);
                Asked::End { producer, commits: *commits, is_version_2 }
            }
        };
        self.last_number += 1;
        self.waiting = Some((self.last_number, asked.clone()));
        Some(asked)
    }

    /// Begins a transaction, if there is something to read.
    fn begin(&mut self, referee: &mut Referee, dice: &mut Dice) {
        if self.must_join {
            (self.stage, self.must_join) = (Stage::Join, false);
            return;
        }
        if dice.one_in(4) {
            return;
        }
        let position = |input: &i32| self.positions.get(input).copied().unwrap_or(0);
        let unread: Vec<i32> =
            self.inputs.iter().copied().filter(|input| position(input) < RECORDS).collect();
        if unread.is_empty() {
            return;
        }
        let input = unread[dice.roll(unread.len())];
        let from = position(&input);
        let to = RECORDS.min(from + 1 + i64::try_from(dice.roll(3)).expect("a small number"));
        self.attempt = Some(referee.begin((self.slot, self.incarnation), self.current(), (input, from, to)));
        self.gives_up = dice.one_in(6);
        self.is_version_2 = match self.versions {
            Versions::One => false,
            Versions::Two => true,
            Versions::Both => dice.one_in(2),
        };
        let output = |number: i64| Place::Output(i32::try_from(number).expect("a small number") % OUTPUTS);
        let mut by_place: BTreeMap<Place, Vec<i64>> = BTreeMap::new();
        for number in from..to {
            by_place.entry(output(number)).or_default().push(number);
        }
        let add = Step::Add(by_place.keys().copied().collect());
        let produce = by_place.into_iter().map(|(place, numbers)| Step::Produce(place, numbers));
        self.steps = std::iter::once(add)
            .chain(produce)
            .chain([Step::Add(vec![Place::Offsets]), Step::CommitOffsets])
            .filter(|step| !self.is_version_2 || !matches!(step, Step::Add(_)))
            .collect();
        self.stage = Stage::Working;
    }

    fn step(&self, referee: &Referee) -> Asked {
        let producer = self.current();
        let attempt = self.attempt.expect("a transaction is open");
        let (input, _, to) = referee.attempts[attempt].read;
        match self.steps.front().expect("checked before") {
            Step::Add(places) => Asked::Add { producer, places: places.clone() },
            Step::Produce(place, numbers) => {
                let sequence = self.sequences.get(place).copied().unwrap_or(0);
                let batch = client_batch(producer, sequence, (attempt, input, numbers));
                Asked::Produce { place: *place, batch, is_version_2: self.is_version_2 }
            }
            Step::CommitOffsets => {
                let (generation, member) = (self.generation, self.member.clone());
                let is_version_2 = self.is_version_2;
                Asked::CommitOffsets { producer, is_version_2, generation, member, input, offset: to }
            }
        }
    }

    /// No answer came in time: it asks again, or gives its transaction up.
    pub(super) fn give_up(&mut self, dice: &mut Dice) {
        self.waiting = None;
        if self.stage == Stage::Working && dice.one_in(3) {
            self.abort(true);
        }
    }

    fn abort(&mut self, is_uncertain: bool) {
        self.is_uncertain |= is_uncertain;
        self.steps.clear();
        self.stage = Stage::Ending(false);
    }

    pub(super) fn hear(&mut self, what: Answered, referee: &mut Referee) {
        let (_, asked) = self.waiting.take().expect("an answer to what was asked");
        let rejection = match &what {
            Answered::Init(answer) | Answered::Ended(answer) => answer.as_ref().err().copied(),
            Answered::Done(answer) => answer.err(),
            Answered::Join(answer) => answer.rejection,
            Answered::Sync(answer) => answer.as_ref().err().copied(),
            Answered::Offsets(answer) => answer.as_ref().err().copied(),
        };
        match rejection {
            Some(rejection) if is_for_now(rejection) => {}
            Some(rejection) => self.refused(&asked, rejection, &what),
            None => self.succeeded(&asked, what, referee),
        }
    }

    fn succeeded(&mut self, asked: &Asked, what: Answered, referee: &mut Referee) {
        match (asked, what) {
            (Asked::Init { .. }, Answered::Init(Ok(producer))) => {
                self.take(producer, referee);
                self.stage = match self.stage {
                    Stage::Bump if !self.must_join => Stage::Fetch,
                    _ => Stage::Join,
                };
                self.must_join = false;
            }
            (Asked::Join { .. }, Answered::Join(answer)) => {
                self.member = answer.member_id.to_string();
                self.generation = answer.generation;
                let members: Vec<String> =
                    answer.members.iter().map(|member| member.member_id.to_string()).collect();
                self.stage = Stage::Sync(assign(&members));
            }
            (Asked::Sync { .. }, Answered::Sync(Ok(inputs))) => {
                self.inputs = inputs;
                self.stage = Stage::Fetch;
            }
            (Asked::Offsets, Answered::Offsets(Ok(positions))) => {
                self.positions = positions;
                self.stage = Stage::Idle;
            }
            (Asked::Add { .. } | Asked::CommitOffsets { .. }, _) => {
                self.steps.pop_front();
            }
            (Asked::Produce { place, .. }, _) => {
                if let Some(Step::Produce(_, numbers)) = self.steps.pop_front() {
                    let records = i32::try_from(numbers.len()).expect("a small number");
                    *self.sequences.entry(*place).or_default() += records;
                }
            }
            (Asked::End { commits, .. }, Answered::Ended(Ok(producer))) => {
                self.take(producer, referee);
                self.ended(*commits, referee);
            }
            _ => {}
        }
    }

    /// It is that producer from now on.
    fn take(&mut self, producer: Producer, referee: &mut Referee) {
        referee.initialized((self.slot, self.incarnation), producer);
        if self.producer != Some(producer) {
            self.sequences.clear();
        }
        self.producer = Some(producer);
    }

    fn ended(&mut self, commits: bool, referee: &mut Referee) {
        let attempt = self.attempt.take().expect("a transaction was open");
        referee.told(attempt, commits);
        if commits {
            let (input, _, to) = referee.attempts[attempt].read;
            self.positions.insert(input, to);
            self.stage = Stage::Idle;
        } else if std::mem::take(&mut self.is_uncertain) && !self.is_version_2 {
            self.stage = Stage::Bump;
        } else if std::mem::take(&mut self.must_join) {
            self.stage = Stage::Join;
        } else {
            self.stage = Stage::Fetch;
        }
    }

    fn refused(&mut self, asked: &Asked, rejection: Rejection, what: &Answered) {
        let is_lost = matches!(
            rejection,
            Rejection::UnknownMemberId | Rejection::IllegalGeneration | Rejection::RebalanceInProgress
        );
        if rejection == Rejection::UnknownMemberId {
            self.member.clear();
        }
        match asked {
            Asked::Join { .. } => {
                if let (Rejection::MemberIdRequired, Answered::Join(answer)) = (rejection, what) {
                    self.member = answer.member_id.to_string();
                }
            }
            Asked::Sync { .. } => self.stage = Stage::Join,
            Asked::Heartbeat { .. } => self.must_join = true,
            Asked::Offsets => {}
            Asked::CommitOffsets { .. } if is_lost => {
                self.must_join = true;
                self.abort(false);
            }
            Asked::Init { .. } | Asked::End { .. } => self.stage = Stage::Dead,
            Asked::Add { .. } | Asked::Produce { .. } | Asked::CommitOffsets { .. } => match rejection {
                Rejection::ProducerFenced
                | Rejection::InvalidProducerEpoch
                | Rejection::InvalidProducerIdMapping => self.stage = Stage::Dead,
                _ => self.abort(true),
            },
        }
    }
}

/// What a client asks again after.
fn is_for_now(rejection: Rejection) -> bool {
    matches!(
        rejection,
        Rejection::NotCoordinator
            | Rejection::CoordinatorLoadInProgress
            | Rejection::CoordinatorNotAvailable
            | Rejection::ConcurrentTransactions
            | Rejection::NotEnoughReplicas
            | Rejection::NotEnoughReplicasAfterAppend
            | Rejection::NotLeaderOrFollower
            | Rejection::UnstableOffsetCommit
            | Rejection::UnknownTopicOrPartition
    )
}

fn assign(members: &[String]) -> Vec<(String, Vec<i32>)> {
    let share = |(at, member): (usize, &String)| {
        let mine =
            (0..INPUTS).filter(|input| usize::try_from(*input).expect("positive") % members.len() == at);
        (member.clone(), mine.collect())
    };
    members.iter().enumerate().map(share).collect()
}

/// A batch as a producer sends it: each record names its transaction and what it was made of.
pub(super) fn client_batch(
    producer: Producer,
    sequence: i32,
    (attempt, input, numbers): (usize, i32, &[i64]),
) -> Bytes {
    let key = Bytes::from(u32::try_from(attempt).expect("a small number").to_be_bytes().to_vec());
    let records: Vec<_> = numbers
        .iter()
        .map(|number| (key.clone(), Some(Bytes::from(format!("{input}:{number}").into_bytes()))))
        .collect();
    let style = BatchStyle { time_ms: 1_000, producer: Some(producer), compression: 0 };
    let mut bytes = encode_batch(&records, style).to_vec();
    bytes[53..57].copy_from_slice(&sequence.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&checksum.to_be_bytes());
    bytes.into()
}
