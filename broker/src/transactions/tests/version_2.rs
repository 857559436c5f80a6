//! Transactions of version 2 (KIP-890): each end gives the producer another epoch, so nothing that is late belongs to the
//! next transaction (TXN-02).

use super::*;

const CONCURRENT: Result<Producer, Rejection> = Err(Rejection::ConcurrentTransactions);
const FENCED: Result<Producer, Rejection> = Err(Rejection::ProducerFenced);
const INVALID_STATE: Result<Producer, Rejection> = Err(Rejection::InvalidTxnState);

fn add_2(producer: Producer, numbers: &[i32]) -> Request {
    let partitions = numbers.iter().copied().map(partition).collect();
    Request::Add { producer, partitions, is_version_2: true }
}

fn end_2(producer: Producer, commits: bool) -> Request {
    Request::End(EndRequest { producer, commits, is_version_2: true, fresh_producer_id: None })
}

fn next(producer: Producer) -> Producer {
    Producer { epoch: producer.epoch + 1, ..producer }
}

impl World {
    fn end(&mut self, producer: Producer, commits: bool) -> Result<Producer, Rejection> {
        match self.ask("t", end_2(producer, commits)) {
            Answer::End(Ok(Initialized::Producer(producer))) => Ok(producer),
            Answer::End(Err(rejection)) => Err(rejection),
            other => panic!("{other:?}"),
        }
    }

    fn complete(&mut self) {
        self.write_markers();
        self.commit_writes();
    }

    fn order(&self) -> &Marking {
        self.markings.values().next().expect("markers are wanted")
    }
}

/// An open transaction on partitions 1 and 2.
fn ongoing() -> (World, Producer) {
    let mut world = World::new();
    let producer = world.init(None).unwrap();
    assert_eq!(world.done(add_2(producer, &[1, 2])), Ok(()));
    (world, producer)
}

/// As [`ongoing`], with a producer of that epoch.
fn ongoing_in(epoch: i16) -> (World, Producer) {
    let (mut world, first) = ongoing();
    let Some(mut value) = world.log.pop().and_then(|record| record.value.clone()) else {
        panic!("a record of the transaction");
    };
    value.producer.epoch = epoch;
    world.log.push(Arc::new(TransactionRecord { id: "t".into(), value: Some(value) }));
    world.fail_over();
    world.last_producer_id = 900;
    (world, Producer { epoch, ..first })
}

#[test]
fn txn_02_each_end_gives_another_epoch_and_an_end_of_a_former_one_is_fenced() {
    for commits in [true, false] {
        let (mut world, first) = ongoing();
        let second = world.end(first, commits).unwrap();
        assert_eq!(second, next(first));
        let order = world.order();
        assert_eq!((order.producer, order.commits, order.ends_lower_epochs), (second, commits, true));
        // Asked again while the markers are written, and the next transaction cannot begin.
        assert_eq!(world.end(first, commits), CONCURRENT);
        assert_eq!(world.end(first, !commits), INVALID_STATE);
        assert_eq!(world.end(second, false), CONCURRENT);
        assert_eq!(world.done(add_2(second, &[1])), Err(Rejection::ConcurrentTransactions));
        assert_eq!(world.done(add_2(first, &[1])), Err(Rejection::ProducerFenced));
        for _ in 0..2 {
            world.complete();
            // Complete: a retry hears who it is now, also from the next coordinator.
            assert_eq!(world.end(first, commits), Ok(second));
            assert_eq!(world.end(first, !commits), INVALID_STATE);
            world.fail_over();
        }
        assert_eq!(world.done(add_2(second, &[1])), Ok(()));
        for late in [true, false] {
            assert_eq!(world.end(first, late), FENCED);
        }
        assert_eq!(world.done(end(first, commits)), Err(Rejection::ProducerFenced), "of an old client too");
        assert_eq!(world.state(), Some(TransactionState::Ongoing));
        let third = world.end(second, !commits).unwrap();
        world.complete();
        for late in [true, false] {
            assert_eq!(world.end(first, late), FENCED, "the end before the last");
        }
        assert_eq!(world.end(second, !commits), Ok(third));
    }
}

#[test]
fn a_transaction_to_which_nothing_was_added_can_be_aborted_and_not_committed() {
    let mut world = World::new();
    let mut producer = world.init(None).unwrap();
    // In an empty state, then in one that is complete by this.
    for _ in 0..2 {
        assert_eq!(world.end(producer, true), INVALID_STATE);
        let ended = world.end(producer, false).unwrap();
        assert_eq!(ended, next(producer));
        assert!(world.markings.is_empty(), "no partition needs a marker");
        assert_eq!(world.state(), Some(TransactionState::CompleteAbort));
        assert_eq!(world.end(producer, false), Ok(ended), "a retry");
        producer = ended;
    }
    assert_eq!(world.done(add_2(producer, &[1])), Ok(()));
    let committed = world.end(producer, true).unwrap();
    world.complete();
    assert_eq!(world.end(committed, true), INVALID_STATE);
    assert_eq!(world.end(committed, false), Ok(next(committed)));
}

#[test]
fn txn_05_after_the_last_epoch_the_next_transaction_has_another_producer_id() {
    for commits in [true, false] {
        let last = i16::MAX - 1;
        let (mut world, before) = ongoing_in(last - 1);
        let producer = world.end(before, commits).unwrap();
        assert_eq!(producer, Producer { epoch: last, ..before }, "one epoch is left");
        world.complete();
        assert_eq!(world.done(add_2(producer, &[1, 2])), Ok(()));
        let fresh = world.end(producer, commits).unwrap();
        assert_eq!(fresh, Producer { id: 901, epoch: 0 });
        for _ in 0..2 {
            let marked = Producer { epoch: i16::MAX, ..producer };
            assert_eq!((world.order().producer, world.order().ends_lower_epochs), (marked, true));
            assert_eq!(world.end(producer, commits), CONCURRENT);
            assert_eq!(world.done(add_2(fresh, &[1])), Err(Rejection::ConcurrentTransactions));
            world.fail_over();
        }
        for _ in 0..2 {
            world.complete();
            assert_eq!(world.end(producer, commits), Ok(fresh), "the retry over the change of ids");
            assert_eq!(world.end(producer, !commits), INVALID_STATE);
            world.fail_over();
        }
        assert_eq!(world.init(Some(producer)), Ok(fresh), "and KIP-360's");
        assert_eq!(world.done(add_2(fresh, &[1])), Ok(()));
        assert_eq!(world.end(producer, commits), Err(Rejection::InvalidProducerIdMapping));
        assert_eq!(world.end(fresh, true), Ok(next(fresh)));
    }
    // The epoch that fences is nobody's to use.
    let (mut world, producer) = ongoing_in(i16::MAX - 1);
    world.pass(i64::from(TIMEOUT_MS) + 10_001);
    world.commit_writes();
    world.complete();
    let fencing = Producer { epoch: i16::MAX, ..producer };
    assert_eq!(world.end(fencing, false), FENCED);
    assert_eq!(world.done(add_2(fencing, &[1])), Err(Rejection::ProducerFenced));
}

#[test]
fn txn_13_a_timeout_fences_and_is_no_end_of_the_producers() {
    let (mut world, producer) = ongoing();
    world.pass(i64::from(TIMEOUT_MS) + 10_001);
    world.commit_writes();
    for _ in 0..2 {
        let order = world.order();
        assert_eq!((order.producer, order.commits, order.ends_lower_epochs), (next(producer), false, true));
        assert_eq!(world.end(producer, false), FENCED, "it aborted nothing itself");
        world.fail_over();
    }
    world.complete();
    world.fail_over();
    for commits in [true, false] {
        assert_eq!(world.end(producer, commits), FENCED);
    }
    // A new incarnation aborts and fences in the same way.
    let (mut world, producer) = ongoing();
    assert_eq!(world.init(None), CONCURRENT);
    world.complete();
    assert_eq!(world.end(producer, false), FENCED);
    assert_eq!(world.init(None), Ok(next(next(producer))));
}

#[test]
fn clients_of_both_versions_take_turns() {
    let (mut world, first) = ongoing();
    let second = world.end(first, true).unwrap();
    world.complete();
    // The next one is an old client, and its end gives no epoch.
    assert_eq!(world.done(add(second, &[1])), Ok(()));
    assert_eq!(world.done(end(second, true)), Ok(()));
    let order = world.order();
    assert_eq!((order.producer, order.ends_lower_epochs), (second, false));
    assert_eq!(world.end(first, true), FENCED, "no retry of the end before");
    world.complete();
    assert_eq!(world.done(end(second, true)), Ok(()), "a retry as of old");
    assert_eq!(world.end(first, true), FENCED);
    // And a new one again.
    assert_eq!(world.done(add_2(second, &[1])), Ok(()));
    assert_eq!(world.end(second, false), Ok(next(second)));
    world.complete();
    assert_eq!(world.end(second, false), Ok(next(second)));
}

#[test]
fn who_takes_a_higher_epoch_may_ask_another_coordinator_again() {
    let mut world = World::new();
    let first = world.init(None).unwrap();
    let second = world.init(Some(first)).unwrap();
    world.fail_over();
    assert_eq!(world.init(Some(first)), Ok(second), "KIP-360");
    assert_eq!(world.done(add_2(second, &[1])), Ok(()));
    let third = world.end(second, true).unwrap();
    world.complete();
    world.fail_over();
    // It did not hear of the end, and asks for an epoch instead of asking again.
    assert_eq!(world.init(Some(second)), Ok(third));
    assert_eq!(world.init(Some(first)), FENCED);
}

#[test]
fn txn_12_a_refused_end_leaves_the_epoch_as_it_was() {
    let (mut world, producer) = ongoing();
    let reply = world.send("t", end_2(producer, true));
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    assert_eq!(outcome(world.answers.remove(&reply)), Err(Rejection::CoordinatorNotAvailable));
    assert_eq!(world.end(producer, false), Ok(next(producer)));
    assert!(!world.order().commits, "the client may decide otherwise");
}
