//! Histories of clients of version 2 (KIP-890) that are led to where one rule matters: what is late of a transaction must
//! not touch the next one (TXN-02).

use zurau_common::rejection::Rejection;
use zurau_common::rule::Rule;

use super::client::client_batch;
use super::directed::{Directed, FIRST, Led, Outcome, SECOND};
use super::log::Place;
use super::messages::{Answered, Asked, Message};
use crate::coordinator::Producer;

impl Led {
    fn produce_2(place: Place, producer: Producer, sequence: i32, attempt: usize) -> Asked {
        let number = i64::from(place == SECOND);
        let batch = client_batch(producer, sequence, (attempt, 0, &[number]));
        Asked::Produce { place, batch, is_version_2: true }
    }

    fn commit_offset(producer: Producer, offset: i64) -> Asked {
        let (generation, member) = (-1, String::new());
        Asked::CommitOffsets { producer, is_version_2: true, generation, member, input: 0, offset }
    }

    fn end_2(&mut self, producer: Producer, commits: bool, attempt: usize) -> Producer {
        match self.ask(0, &Asked::End { producer, commits, is_version_2: true }) {
            Answered::Ended(Ok(next)) => {
                self.world.referee.told(attempt, commits);
                self.world.referee.initialized((0, 0), next);
                next
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The first sequence in the next transaction, with an epoch of its own or without.
fn sequence_after(before: Producer, now: Producer) -> i32 {
    i32::from(before == now)
}

/// An EndTxn(commit) was asked twice; the second one arrives within the next transaction.
fn a_late_end_ends_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.done(0, &Led::produce_2(FIRST, producer, 0, first));
    led.done(0, &Led::produce_2(SECOND, producer, 0, first));
    let (_, late) = led.message(0, Asked::End { producer, commits: true, is_version_2: true });
    let next = led.end_2(producer, true, first);
    led.pass(1_000);
    let second = led.begin(0, next);
    let sequence = sequence_after(producer, next);
    led.done(0, &Led::produce_2(FIRST, next, sequence, second));
    led.arrives(late);
    led.done(0, &Led::produce_2(SECOND, next, sequence, second));
    led.end_2(next, false, second);
    led.judge()
}

/// Offsets of one transaction arrive within the next one, which has committed newer ones.
fn late_offsets_join_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.done(0, &Led::commit_offset(producer, 1));
    let (_, late) = led.message(0, Led::commit_offset(producer, 1));
    let next = led.end_2(producer, true, first);
    led.pass(1_000);
    let second = led.begin(0, next);
    led.done(0, &Led::commit_offset(next, 2));
    led.arrives(late);
    led.end_2(next, true, second);
    led.judge()
}

/// A marker is sent again, and the second one arrives within the next transaction.
fn a_late_marker_ends_nothing() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.done(0, &Led::produce_2(FIRST, producer, 0, first));
    led.markers.clear();
    let next = led.end_2(producer, true, first);
    led.pass(1_000);
    let late = std::mem::take(&mut led.markers);
    assert!(!late.is_empty(), "markers were sent");
    let second = led.begin(0, next);
    led.done(0, &Led::produce_2(FIRST, next, 0, second));
    late.into_iter().for_each(|message| led.arrives(message));
    led.done(0, &Led::produce_2(SECOND, next, 0, second));
    led.end_2(next, false, second);
    led.judge()
}

/// The next transaction begins while the markers of the one before are on their way.
fn a_record_waits_for_the_marker_before_it() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.done(0, &Led::produce_2(FIRST, producer, 0, first));
    led.holds_markers = true;
    let next = led.end_2(producer, true, first);
    let second = led.begin(0, next);
    let early = Led::produce_2(FIRST, next, 0, second);
    let (from, message) = led.message(0, early.clone());
    led.arrives(message);
    let waits =
        matches!(led.answers.remove(&from), Some(Answered::Done(Err(Rejection::ConcurrentTransactions))));
    led.holds_markers = false;
    led.pass(1_000);
    if waits {
        led.done(0, &early);
    }
    led.end_2(next, false, second);
    led.judge()
}

/// The coordinator is replaced when the end is decided; the producer asks again, and goes on with what it hears.
fn the_next_coordinator_answers_the_end_that_was_not_heard() -> Outcome {
    let mut led = Led::new();
    let producer = led.init(0);
    let first = led.begin(0, producer);
    led.done(0, &Led::produce_2(FIRST, producer, 0, first));
    led.done(0, &Led::produce_2(SECOND, producer, 0, first));
    led.holds_markers = true;
    let (_, unheard) = led.message(0, Asked::End { producer, commits: true, is_version_2: true });
    led.arrives(unheard.clone());
    led.world.elect(Place::Transactions, 1, 0);
    for node in 0..3 {
        led.world.inform(node, Place::Transactions);
    }
    led.holds_markers = false;
    led.settle();
    let next = led.end_2(producer, true, first);
    let second = led.begin(0, next);
    let sequence = sequence_after(producer, next);
    led.done(0, &Led::produce_2(FIRST, next, sequence, second));
    let Message::Ask { from, what, .. } = unheard else { panic!("a request") };
    led.arrives(Message::Ask { to: 1, from, what });
    led.done(0, &Led::produce_2(SECOND, next, sequence, second));
    led.end_2(next, false, second);
    led.judge()
}

pub(super) const DIRECTED_2: &[Directed] = &[
    (Rule::EpochOfEachTransaction, a_late_end_ends_nothing),
    (Rule::EpochOfEachTransaction, late_offsets_join_nothing),
    (Rule::EpochOfEachTransaction, the_next_coordinator_answers_the_end_that_was_not_heard),
    (Rule::MarkerEndsLowerEpochs, a_late_marker_ends_nothing),
    (Rule::OpenIsJoinedWhenAdded, a_record_waits_for_the_marker_before_it),
];
