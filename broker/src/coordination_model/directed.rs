//! Histories that are led to where one rule matters.

use std::collections::BTreeMap;

use zurau_common::rejection::Rejection;
use zurau_common::rule::Rule;

use super::client::{Versions, client_batch};
use super::log::Place;
use super::messages::{Answered, Asked, Caller, Message};
use super::world::World;
use crate::coordinator::Producer;

pub(super) const FIRST: Place = Place::Output(0);
pub(super) const SECOND: Place = Place::Output(1);

/// A world without chance. Whoever leads it plays the applications.
pub(super) struct Led {
    pub(super) world: World,
    pub(super) answers: BTreeMap<Caller, Answered>,
    last_number: u64,
    /// All that were delivered.
    pub(super) markers: Vec<Message>,
    /// No markers are sent for now.
    pub(super) holds_markers: bool,
}

/// What is wrong with what was committed, if anything.
pub(super) type Outcome = Option<String>;

impl Led {
    pub(super) fn new() -> Self {
        let mut led = Self {
            world: World::new(1, 0, Versions::One),
            answers: BTreeMap::new(),
            last_number: 0,
            markers: Vec::new(),
            holds_markers: false,
        };
        led.settle();
        led
    }

    /// Everything arrives and is committed, in order, until nothing happens without time.
    pub(super) fn settle(&mut self) {
        loop {
            let world = &mut self.world;
            let committable = Place::all().find(|place| world.partitions[place].can_commit());
            let loadable = (0..world.brokers.len())
                .flat_map(|node| [(node, Place::Transactions), (node, Place::Offsets)])
                .find(|(node, place)| world.can_load(*node, *place));
            let now_ms = world.now_ms;
            let sender = world
                .brokers
                .iter()
                .find(|broker| broker.next_marker_due_ms().is_some_and(|due_ms| due_ms <= now_ms));
            if !world.flying.is_empty() {
                match world.flying.remove(0) {
                    Message::Answer { to, what } => {
                        self.answers.insert(to, what);
                    }
                    message => {
                        if matches!(message, Message::Markers { .. }) {
                            self.markers.push(message.clone());
                        }
                        world.deliver(message);
                    }
                }
            } else if let Some(place) = committable {
                world.commit(place, 100);
            } else if let Some((node, place)) = loadable {
                world.load(node, place);
            } else if let Some(node) = sender.map(|broker| broker.number).filter(|_| !self.holds_markers) {
                world.send_markers(node);
            } else {
                return;
            }
        }
    }

    pub(super) fn pass(&mut self, milliseconds: i64) {
        self.world.now_ms += milliseconds;
        self.world.tick();
        self.settle();
    }

    pub(super) fn message(&mut self, run: u32, what: Asked) -> (Caller, Message) {
        self.last_number += 1;
        let from = Caller { slot: 0, incarnation: run, number: self.last_number };
        let to = self.world.partitions[&what.place()].leader;
        (from, Message::Ask { to, from, what })
    }

    /// Asks until the answer is not to ask again.
    pub(super) fn ask(&mut self, run: u32, what: &Asked) -> Answered {
        for _ in 0..20 {
            let (from, message) = self.message(run, what.clone());
            self.world.flying.push(message);
            self.settle();
            match self.answers.remove(&from) {
                Some(
                    Answered::Done(Err(Rejection::ConcurrentTransactions))
                    | Answered::Init(Err(Rejection::ConcurrentTransactions))
                    | Answered::Ended(Err(Rejection::ConcurrentTransactions)),
                ) => self.pass(100),
                Some(answer) => return answer,
                None => panic!("{what:?} is not answered"),
            }
        }
        panic!("{what:?} is not decided")
    }

    pub(super) fn init(&mut self, run: u32) -> Producer {
        match self.ask(run, &Asked::Init { expected: None }) {
            Answered::Init(Ok(producer)) => {
                self.world.referee.initialized((0, run), producer);
                producer
            }
            other => panic!("{other:?}"),
        }
    }

    fn add(&mut self, run: u32, producer: Producer, places: &[Place]) {
        self.done(run, &Asked::Add { producer, places: places.to_vec() });
    }

    pub(super) fn done(&mut self, run: u32, what: &Asked) {
        let answer = self.ask(run, what);
        assert!(matches!(answer, Answered::Done(Ok(()))), "{what:?}: {answer:?}");
    }

    /// One record of a transaction.
    fn produce(place: Place, producer: Producer, sequence: i32, attempt: usize) -> Asked {
        let number = match place {
            FIRST => 0,
            _ => 1,
        };
        Asked::Produce {
            place,
            batch: client_batch(producer, sequence, (attempt, 0, &[number])),
            is_version_2: false,
        }
    }

    pub(super) fn begin(&mut self, run: u32, producer: Producer) -> usize {
        self.world.referee.begin((0, run), producer, (0, 0, 2))
    }

    fn end(&mut self, run: u32, producer: Producer, commits: bool, attempt: usize) {
        let answer = self.ask(run, &Asked::End { producer, commits, is_version_2: false });
        assert!(matches!(answer, Answered::Ended(Ok(_))), "{answer:?}");
        self.world.referee.told(attempt, commits);
    }

    /// A message that was on its way for long arrives.
    pub(super) fn arrives(&mut self, message: Message) {
        self.world.flying.push(message);
        self.settle();
    }

    pub(super) fn judge(mut self) -> Outcome {
        for _ in 0..30 {
            self.pass(1_000);
        }
        let World { referee, partitions, .. } = &mut self.world;
        referee.judge(partitions, false);
        referee.look_for_hanging(partitions);
        self.world.referee.violation
    }
}

/// A record arrives when its transaction is aborted on its partition (TXN-01).
fn a_late_record_opens_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let attempt = led.begin(0, producer);
    led.add(0, producer, &[FIRST]);
    let (_, late) = led.message(0, Led::produce(FIRST, producer, 0, attempt));
    led.end(0, producer, false, attempt);
    led.pass(1_000);
    led.arrives(late);
    led.judge()
}

/// As above, while another partition still waits for its marker.
fn a_late_record_opens_nothing_while_markers_are_written() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let attempt = led.begin(0, producer);
    led.add(0, producer, &[FIRST, SECOND]);
    led.done(0, &Led::produce(SECOND, producer, 0, attempt));
    let (_, late) = led.message(0, Led::produce(FIRST, producer, 0, attempt));
    led.shrink(SECOND, true);
    led.end(0, producer, false, attempt);
    led.arrives(late);
    led.shrink(SECOND, false);
    led.judge()
}

/// A partition asked whether a record may open a transaction, and the answer comes when that transaction is aborted.
fn a_verification_that_a_marker_overtook_opens_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let attempt = led.begin(0, producer);
    led.add(0, producer, &[FIRST]);
    let (_, ask) = led.message(0, Led::produce(FIRST, producer, 0, attempt));
    led.world.deliver(ask);
    let question = led.world.flying.pop().expect("the partition asks");
    led.world.deliver(question);
    let late = led.world.flying.pop().expect("the coordinator answers");
    assert!(matches!(late, Message::Verified { verdict: Ok(()), .. }), "{late:?}");
    led.end(0, producer, false, attempt);
    led.pass(1_000);
    led.arrives(late);
    led.judge()
}

/// A partition asks a coordinator that was replaced and does not know, about a transaction that the next one has aborted.
fn a_replaced_coordinator_verifies_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let attempt = led.begin(0, producer);
    led.add(0, producer, &[FIRST]);
    let (_, late) = led.message(0, Led::produce(FIRST, producer, 0, attempt));
    led.world.elect(Place::Transactions, 1, 0);
    led.settle();
    led.end(0, producer, false, attempt);
    led.pass(1_000);
    led.arrives(late);
    for node in 0..3 {
        led.world.inform(node, Place::Transactions);
    }
    led.judge()
}

/// An application goes on with a transaction whose time was over (TXN-13).
fn a_transaction_whose_time_was_over_does_not_go_on() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let attempt = led.begin(0, producer);
    led.add(0, producer, &[FIRST]);
    led.done(0, &Led::produce(FIRST, producer, 0, attempt));
    led.pass(30_000);
    led.pass(1_000);
    let rest = [
        Asked::Add { producer, places: vec![SECOND] },
        Led::produce(SECOND, producer, 0, attempt),
        Asked::End { producer, commits: true, is_version_2: false },
    ];
    let is_done =
        rest.iter().all(|what| matches!(led.ask(0, what), Answered::Done(Ok(())) | Answered::Ended(Ok(_))));
    if is_done {
        led.world.referee.told(attempt, true);
    }
    led.judge()
}

/// A record of a run that was replaced arrives within a transaction of the next run (T6).
fn a_replaced_producer_writes_into_no_transaction() -> Outcome {
    let mut led = Led::new();
    let old = led.init(0);
    let torn = led.begin(0, old);
    led.add(0, old, &[FIRST, SECOND]);
    led.done(0, &Led::produce(SECOND, old, 0, torn));
    let (_, late) = led.message(0, Led::produce(FIRST, old, 0, torn));
    let new = led.init(1);
    let attempt = led.begin(1, new);
    led.add(1, new, &[FIRST, SECOND]);
    led.done(1, &Led::produce(FIRST, new, 0, attempt));
    led.arrives(late);
    led.done(1, &Led::produce(SECOND, new, 0, attempt));
    led.end(1, new, true, attempt);
    led.judge()
}

/// Markers of a coordinator that was replaced arrive within the next transaction (TXN-07).
fn markers_of_a_replaced_coordinator_end_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.add(0, producer, &[FIRST, SECOND]);
    led.done(0, &Led::produce(FIRST, producer, 0, first));
    led.done(0, &Led::produce(SECOND, producer, 0, first));
    led.shrink(FIRST, true);
    led.shrink(SECOND, true);
    led.end(0, producer, true, first);
    led.shrink(FIRST, false);
    led.shrink(SECOND, false);
    // The next attempt at the markers takes its time, and the coordinator is replaced meanwhile.
    led.world.now_ms += 1_000;
    led.world.send_markers(0);
    let late = std::mem::take(&mut led.world.flying);
    assert!(matches!(late[..], [Message::Markers { .. }]), "{late:?}");
    led.world.elect(Place::Transactions, 1, 0);
    for node in 0..3 {
        led.world.inform(node, Place::Transactions);
    }
    led.pass(1_000);
    let second = led.begin(0, producer);
    led.add(0, producer, &[FIRST, SECOND]);
    led.done(0, &Led::produce(FIRST, producer, 1, second));
    led.done(0, &Led::produce(SECOND, producer, 1, second));
    late.into_iter().for_each(|message| led.arrives(message));
    led.end(0, producer, false, second);
    led.judge()
}

impl Led {
    fn shrink(&mut self, place: Place, is_small: bool) {
        self.world.partitions.get_mut(&place).expect("it exists").is_small = is_small;
    }
}

/// A rule that seeded histories seldom miss, and a history that does.
pub(super) type Directed = (Rule, fn() -> Outcome);

pub(super) const DIRECTED: &[Directed] = &[
    (Rule::OpeningIsVerified, a_late_record_opens_nothing),
    (Rule::DecidedIsNotVerified, a_late_record_opens_nothing_while_markers_are_written),
    (Rule::GuardIsOvertaken, a_verification_that_a_marker_overtook_opens_nothing),
    (Rule::VerifiedByNewestCoordinator, a_replaced_coordinator_verifies_nothing),
    (Rule::TimeoutFences, a_transaction_whose_time_was_over_does_not_go_on),
    (Rule::ProducerEpochOnPartition, a_replaced_producer_writes_into_no_transaction),
    (Rule::MarkerOfNewestCoordinator, markers_of_a_replaced_coordinator_end_nothing),
];
