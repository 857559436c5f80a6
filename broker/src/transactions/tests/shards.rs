//! What is answered in each state, by case.

use super::super::request::{ListFilter, Listing};
use super::*;

const CONCURRENT: Result<(), Rejection> = Err(Rejection::ConcurrentTransactions);
const FENCED: Result<(), Rejection> = Err(Rejection::ProducerFenced);

/// A producer, with an open transaction on partitions 1 and 2.
fn ongoing() -> (World, Producer) {
    let mut world = World::new();
    let producer = world.init(None).unwrap();
    assert_eq!(world.done(add(producer, &[1])), Ok(()));
    assert_eq!(world.done(add(producer, &[1, 2])), Ok(()));
    assert_eq!(world.state(), Some(TransactionState::Ongoing));
    (world, producer)
}

#[test]
fn ids_are_counted_by_state_once_they_are_stored() {
    let (mut world, producer) = ongoing();
    world.send("other", init(None));
    assert_eq!(world.shard.count(), BTreeMap::from([(TransactionState::Ongoing, 1)]));
    world.commit_writes();
    assert_eq!(world.done(end(producer, true)), Ok(()));
    let expected = [(TransactionState::Empty, 1), (TransactionState::PrepareCommit, 1)];
    assert_eq!(world.shard.count(), BTreeMap::from(expected));
}

#[test]
fn a_transaction_is_decided_marked_and_complete() {
    for commits in [true, false] {
        let (mut world, producer) = ongoing();
        assert_eq!(world.done(add(producer, &[2])), Ok(()));
        assert_eq!(world.log.len(), 3, "what is there already is not written again");
        assert_eq!(world.done(end(producer, commits)), Ok(()));
        let order = world.markings.values().next().unwrap().clone();
        assert_eq!((order.producer, order.commits, order.partitions.len()), (producer, commits, 2));
        // Until every partition has its marker, clients ask again; the other decision comes too late.
        assert_eq!(world.done(end(producer, commits)), CONCURRENT);
        assert_eq!(world.done(end(producer, !commits)), Err(Rejection::InvalidTxnState));
        assert_eq!(world.done(add(producer, &[3])), CONCURRENT);
        assert_eq!(world.init(None), Err(Rejection::ConcurrentTransactions));
        let marking = *world.markings.keys().next().unwrap();
        world.step(Event::Marked { marking, partition: partition(1) });
        assert!(world.writes.is_empty());
        world.step(Event::Marked { marking, partition: partition(2) });
        world.commit_writes();
        world.step(Event::Marked { marking, partition: partition(2) });
        assert!(world.writes.is_empty(), "of a marking that is over");
        let complete = if commits { "CompleteCommit" } else { "CompleteAbort" };
        assert_eq!(world.state().map(TransactionState::name), Some(complete));
        assert_eq!(world.done(end(producer, commits)), Ok(()), "a retry");
        assert_eq!(world.done(end(producer, !commits)), Err(Rejection::InvalidTxnState));
        assert_eq!(world.done(add(producer, &[3])), Ok(()), "the next transaction");
    }
}

#[test]
fn t6_only_the_current_producer_is_served() {
    let (mut world, producer) = ongoing();
    let stranger = Producer { id: producer.id + 1, ..producer };
    let older = Producer { epoch: producer.epoch - 1, ..producer };
    let newer = Producer { epoch: producer.epoch + 1, ..producer };
    for request in [add, |producer, _: &[i32]| end(producer, true)] {
        assert_eq!(world.done(request(stranger, &[1])), Err(Rejection::InvalidProducerIdMapping));
        assert_eq!(world.done(request(older, &[1])), FENCED);
        assert_eq!(world.done(request(newer, &[1])), FENCED);
    }
    let unknown = world.ask("nobody", end(producer, true));
    assert_eq!(outcome(Some(unknown)), Err(Rejection::InvalidProducerIdMapping));
    let mut empty = World::new();
    let first = empty.init(None).unwrap();
    assert_eq!(empty.done(end(first, true)), Err(Rejection::InvalidTxnState));
}

#[test]
fn t6_a_new_incarnation_aborts_the_transaction_of_the_old_one() {
    let (mut world, producer) = ongoing();
    assert_eq!(world.init(None), Err(Rejection::ConcurrentTransactions));
    let order = world.markings.values().next().unwrap().clone();
    let fencing = Producer { epoch: producer.epoch + 1, ..producer };
    assert_eq!((order.producer, order.commits), (fencing, false));
    assert_eq!(world.done(end(producer, true)), FENCED);
    assert_eq!(world.init(None), Err(Rejection::ConcurrentTransactions));
    world.write_markers();
    world.commit_writes();
    let next = world.init(None).unwrap();
    assert_eq!(next, Producer { epoch: producer.epoch + 2, ..producer });
    assert_eq!(world.done(add(producer, &[1])), FENCED);
    assert_eq!(world.done(add(next, &[1])), Ok(()));
}

#[test]
fn a_producer_that_names_itself_gets_a_higher_epoch_and_may_ask_twice() {
    let mut world = World::new();
    let first = world.init(None).unwrap();
    assert_eq!(first.epoch, 0);
    let second = world.init(Some(first)).unwrap();
    assert_eq!(second.epoch, 1);
    assert_eq!(world.init(Some(first)), Ok(second), "the answer was lost");
    assert_eq!(world.init(Some(first)), Ok(second));
    let stranger = Producer { id: 5, epoch: 1 };
    assert_eq!(world.init(Some(stranger)), Err(Rejection::ProducerFenced));
    let third = world.init(None).unwrap();
    assert_eq!(third.epoch, 2);
    for fenced in [first, second] {
        assert_eq!(world.init(Some(fenced)), Err(Rejection::ProducerFenced));
    }
    // A late duplicate does no harm to the transaction of whoever came after it.
    assert_eq!(world.done(add(third, &[1])), Ok(()));
    assert_eq!(world.init(Some(second)), Err(Rejection::ProducerFenced));
    assert_eq!(world.done(end(third, true)), Ok(()));
    let mut forgotten = World::new();
    let named = forgotten.init(Some(stranger)).unwrap();
    assert_eq!((named.id, named.epoch), (100, 0), "the id was forgotten: a new producer");
}

#[test]
fn txn_05_after_the_last_epoch_comes_a_new_producer_id() {
    let mut world = World::new();
    let mut producer = world.init(None).unwrap();
    let id = producer.id;
    for epoch in 1..i16::MAX {
        producer = world.init(Some(producer)).unwrap();
        assert_eq!(producer, Producer { id, epoch });
    }
    let mut other = World { log: world.log.split_off(world.log.len() - 1), ..World::new() };
    other.fail_over();
    other.last_producer_id = 900;

    // With the last epoch a transaction can still be fenced, and the next producer has another id.
    assert_eq!(other.done(add(producer, &[1])), Ok(()));
    assert_eq!(other.init(None), Err(Rejection::ConcurrentTransactions));
    assert_eq!(other.markings.values().next().unwrap().producer.epoch, i16::MAX);
    other.write_markers();
    other.commit_writes();
    let next = other.init(None).unwrap();
    assert_eq!(next, Producer { id: 901, epoch: 0 });

    // A producer that names itself may ask twice here too.
    world.last_producer_id = 500;
    let next = world.init(Some(producer)).unwrap();
    assert_eq!(next, Producer { id: 501, epoch: 0 });
    assert_eq!(world.init(Some(producer)), Ok(next));
    assert_eq!(world.done(end(producer, true)), Err(Rejection::InvalidProducerIdMapping));
}

#[test]
fn txn_11_markers_go_on_after_a_failover_in_every_state() {
    for commits in [true, false] {
        let (mut world, producer) = ongoing();
        world.fail_over();
        assert_eq!(world.state(), Some(TransactionState::Ongoing));
        assert_eq!(world.done(end(producer, commits)), Ok(()));
        let marking = *world.markings.keys().next().unwrap();
        world.step(Event::Marked { marking, partition: partition(1) });
        world.fail_over();
        let order = world.markings.values().next().unwrap();
        assert_eq!((order.commits, order.partitions.len()), (commits, 2), "from the beginning");
        world.write_markers();
        // The record that says complete is lost with the broker.
        world.fail_over();
        assert_eq!(world.done(end(producer, commits)), CONCURRENT);
        world.write_markers();
        world.commit_writes();
        world.fail_over();
        assert!(world.markings.is_empty());
        assert_eq!(world.done(end(producer, commits)), Ok(()));
    }
}

#[test]
fn txn_12_a_refused_write_leaves_everything_as_it_was() {
    let refused = WriteOutcome::Refused(Rejection::NotEnoughReplicas);
    let not_now = Rejection::CoordinatorNotAvailable;
    let (mut world, producer) = ongoing();
    for request in [add(producer, &[3]), end(producer, true), end(producer, false)] {
        let reply = world.send("t", request);
        assert_eq!(world.done_without_writes(end(producer, true)), CONCURRENT);
        world.report(refused);
        assert_eq!(outcome(world.answers.remove(&reply)), Err(not_now));
        assert_eq!((world.state(), world.markings.len()), (Some(TransactionState::Ongoing), 0));
    }
    let reply = world.send("t", init(None));
    world.report(refused);
    assert_eq!(world.answers.remove(&reply), Some(Answer::Init(Err(not_now))));
    assert_eq!(world.done(add(producer, &[1])), Ok(()), "nobody was fenced");
    // By its timeout, and again when it could not be stored.
    world.pass(i64::from(TIMEOUT_MS) + 10_001);
    world.report(refused);
    assert_eq!(world.state(), Some(TransactionState::Ongoing));
    world.pass(10_000);
    world.commit_writes();
    assert_eq!(world.state(), Some(TransactionState::PrepareAbort));
    // That it is complete is stored again and again.
    world.write_markers();
    for _ in 0..3 {
        world.report(refused);
        assert!(world.writes.is_empty());
        world.pass(1_000);
    }
    world.commit_writes();
    assert_eq!(world.state(), Some(TransactionState::CompleteAbort));
    assert!(world.init(None).is_ok());
}

#[test]
fn a_write_that_is_committed_below_the_minimum_counts_though_the_client_asks_again() {
    let (mut world, producer) = ongoing();
    let reply = world.send("t", end(producer, true));
    world.report(WriteOutcome::CommittedBelowMinimum);
    let not_now = Rejection::CoordinatorNotAvailable;
    assert_eq!(outcome(world.answers.remove(&reply)), Err(not_now));
    assert_eq!(world.markings.len(), 1);
    assert_eq!(world.done(end(producer, false)), Err(Rejection::InvalidTxnState));
    world.write_markers();
    world.commit_writes();
    assert_eq!(world.done(end(producer, true)), Ok(()));
}

#[test]
fn txn_13_a_timeout_aborts_and_fences() {
    let (mut world, producer) = ongoing();
    world.pass(i64::from(TIMEOUT_MS));
    assert!(world.writes.is_empty(), "not yet over");
    world.pass(10_000);
    assert_eq!(world.done_without_writes(end(producer, true)), CONCURRENT, "while it is decided");
    world.commit_writes();
    let order = world.markings.values().next().unwrap().clone();
    assert_eq!((order.commits, order.producer.epoch), (false, producer.epoch + 1));
    assert_eq!(world.done(end(producer, true)), FENCED);
    assert_eq!(world.done(add(producer, &[3])), FENCED);
    world.write_markers();
    world.commit_writes();
    world.pass(DAY_MS);
    assert!(world.writes.is_empty(), "no transaction is open");
    // After a failover too: the start is in the log.
    let (mut world, _) = ongoing();
    world.now_ms += i64::from(TIMEOUT_MS) + 1;
    world.fail_over();
    world.pass(10_000);
    world.commit_writes();
    assert_eq!(world.state(), Some(TransactionState::PrepareAbort));
}

#[test]
fn txn_16_unused_ids_expire_one_by_one() {
    let mut world = World::new();
    let reply = world.send("t", init(None));
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    assert!(matches!(world.answers.remove(&reply), Some(Answer::Init(Err(_)))));
    assert_eq!(world.state(), None, "it never was");
    for id in ["a", "b"] {
        world.ask(id, init(None));
    }
    world.pass(7 * DAY_MS - 1);
    assert!(world.writes.is_empty(), "not yet");
    world.init(None).unwrap();
    world.pass(3_600_000);
    assert_eq!(world.writes.len(), 2, "one write each; the id that was used stays");
    world.report(WriteOutcome::Refused(Rejection::MessageTooLarge));
    world.commit_writes();
    let listed = world.ask_list(ListFilter { duration_ms: -1, ..ListFilter::default() });
    assert_eq!(listed, ["a", "t"]);
    world.pass(3_600_000);
    world.commit_writes();
    world.fail_over();
    let listed = world.ask_list(ListFilter { duration_ms: -1, ..ListFilter::default() });
    assert_eq!(listed, ["t"]);
}

#[test]
fn txn_01_only_partitions_of_the_open_transaction_are_verified() {
    let (mut world, producer) = ongoing();
    let verify = |producer| Request::Verify { producer, partitions: vec![partition(1), partition(9)] };
    let verified = |answer: Result<[Option<Rejection>; 2], Rejection>| Answer::Verify(answer.map(Vec::from));
    let abortable = Some(Rejection::TransactionAbortable);
    assert_eq!(world.ask("t", verify(producer)), verified(Ok([None, abortable])));
    let older = Producer { epoch: producer.epoch - 1, ..producer };
    assert_eq!(world.ask("t", verify(older)), verified(Err(Rejection::ProducerFenced)));
    assert_eq!(world.ask("x", verify(producer)), verified(Err(Rejection::InvalidProducerIdMapping)));
    assert_eq!(world.done(end(producer, true)), Ok(()));
    assert_eq!(world.ask("t", verify(producer)), verified(Err(Rejection::ConcurrentTransactions)));
    world.write_markers();
    world.commit_writes();
    assert_eq!(world.ask("t", verify(producer)), verified(Ok([abortable, abortable])));
}

#[test]
fn timeouts_have_a_limit() {
    let mut world = World::new();
    for (timeout_ms, is_allowed) in [(0, false), (-1, false), (1, true), (900_000, true), (900_001, false)] {
        let request = InitRequest { timeout_ms, expected: None, fresh_producer_id: None };
        let answer = world.ask("t", Request::Init(request));
        let refused = Answer::Init(Err(Rejection::InvalidTransactionTimeout));
        assert_eq!(answer != refused, is_allowed, "{timeout_ms}");
    }
}

#[test]
fn whoever_waits_when_the_leadership_ends_is_told_so() {
    let (mut world, producer) = ongoing();
    let ending = world.send("t", end(producer, true));
    let initializing = world.send("u", init(None));
    world.fail_over();
    let gone = Rejection::NotCoordinator;
    assert_eq!(outcome(world.answers.remove(&ending)), Err(gone));
    assert_eq!(world.answers.remove(&initializing), Some(Answer::Init(Err(gone))));
    assert_eq!(world.state(), Some(TransactionState::Ongoing));
}

#[test]
fn lists_are_filtered_by_state_producer_and_duration() {
    let (mut world, producer) = ongoing();
    world.ask("u", init(None));
    let all = ListFilter { duration_ms: -1, ..ListFilter::default() };
    assert_eq!(world.ask_list(all.clone()), ["t", "u"]);
    let states = vec!["Ongoing".to_owned(), "Dead".to_owned()];
    assert_eq!(world.ask_list(ListFilter { states, ..all.clone() }), ["t"]);
    let producer_ids = vec![producer.id + 1, 7];
    assert_eq!(world.ask_list(ListFilter { producer_ids, ..all.clone() }), ["u"]);
    // An id without a transaction counts as open since 1970, as in Kafka.
    assert_eq!(world.ask_list(ListFilter { duration_ms: 5_000, ..all.clone() }), ["u"]);
    world.pass(5_001);
    assert_eq!(world.ask_list(ListFilter { duration_ms: 5_000, ..all }), ["t", "u"]);
}

impl World {
    /// Asks while a write is under way, and leaves that alone.
    fn done_without_writes(&mut self, request: Request) -> Result<(), Rejection> {
        let reply = self.send("t", request);
        outcome(self.answers.remove(&reply))
    }

    fn ask_list(&mut self, filter: ListFilter) -> Vec<String> {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        self.step(Event::List { reply, filter });
        match self.answers.remove(&reply) {
            Some(Answer::List(listings)) => {
                listings.iter().map(|listing: &Listing| listing.id.to_string()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}
