//! Offsets that are committed in transactions.

use zurau_common::rejection::Rejection;

use super::*;

#[test]
fn offsets_of_an_open_transaction_count_when_it_commits() {
    let mut world = World::new();
    world.commit("", -1, 5);
    assert_eq!(world.asked(commit_in(1, "", -1, 7)), "commit t-0:ok");
    assert_eq!(world.asked(commit_in(2, "", -1, 9)), "commit t-0:ok");
    assert_eq!(world.fetch(), "fetch t-0:UnstableOffsetCommit");
    let topics = Some(vec![("t".into(), vec![0])]);
    let unstable = Request::Fetch(FetchRequest { topics, require_stable: false, member: None });
    assert_eq!(world.asked(unstable), "fetch t-0:5");
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:UnstableOffsetCommit", "also after a load");
    world.end_transaction(2, false);
    assert_eq!(world.fetch(), "fetch t-0:UnstableOffsetCommit");
    world.end_transaction(1, true);
    assert_eq!(world.fetch(), "fetch t-0:7");
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:7");
}

#[test]
fn an_offset_is_unstable_from_the_check_of_its_member_on() {
    // Else a member of the next generation could read the old offset, and the new one would count later (KIP-447).
    let mut world = World::stable(1);
    world.commit("c-1", 1, 5);
    world.commits_at_once = false;
    let reply = world.ask(commit_in(1, "c-1", 1, 7));
    assert_eq!([world.answer(reply), world.fetch()], ["-", "fetch t-0:UnstableOffsetCommit"]);
    world.report(WriteOutcome::Refused(Rejection::InvalidProducerEpoch));
    assert_eq!([world.answer(reply), world.fetch()], ["commit t-0:InvalidProducerEpoch", "fetch t-0:5"]);
}

#[test]
fn grp_05_members_of_the_past_do_not_commit_in_transactions() {
    // Member, generation, answer of a stable group c-1 of generation 1; who names no member is fenced by the epoch.
    let rows = [
        ("c-1", 1, "ok"),
        ("", -1, "ok"),
        ("c-1", 0, "IllegalGeneration"),
        ("c-1", -1, "IllegalGeneration"),
        ("c-9", 1, "UnknownMemberId"),
        ("", 1, "UnknownMemberId"),
    ];
    for (member, generation, expected) in rows {
        let answer = World::stable(1).asked(commit_in(1, member, generation, 5));
        assert_eq!(answer, format!("commit t-0:{expected}"), "{member} {generation}");
    }
    let mut world = World::stable(1);
    world.join(&joiner("c-1"));
    assert_eq!(world.asked(commit_in(1, "c-1", 2, 5)), "commit t-0:ok", "as Kafka, also while it rebalances");
    let mut world = World::new();
    assert_eq!(world.asked(commit_in(1, "c-1", 3, 5)), "commit t-0:UnknownMemberId");
    assert_eq!(world.list(), "list", "nothing is left of a group that never was");
}

#[test]
fn txn_14_the_later_record_counts_in_whatever_order_they_take_effect() {
    let mut world = World::new();
    world.asked(commit_in(1, "", -1, 8));
    world.commit("", -1, 10);
    world.end_transaction(1, true);
    assert_eq!(world.asked(Request::Fetch(all())), "fetch t-0:10");
    world.fail_over();
    assert_eq!(world.asked(Request::Fetch(all())), "fetch t-0:10");
    // The same with compaction, which keeps the last record of a key.
    world.log.remove(0);
    world.fail_over();
    assert_eq!(world.asked(Request::Fetch(all())), "fetch t-0:10");
    // A removal is a record too.
    let mut world = World::new();
    world.commit("", -1, 5);
    world.asked(commit_in(1, "", -1, 8));
    world.delete_offset("t");
    world.end_transaction(1, true);
    assert_eq!(world.fetch(), "fetch t-0:-1");
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:-1");
}

fn all() -> FetchRequest {
    FetchRequest { topics: Some(vec![("t".into(), vec![0])]), require_stable: true, member: None }
}

#[test]
fn txn_15_only_what_was_accepted_is_pending_and_every_end_clears_it() {
    let mut world = World::new();
    let Request::Commit(mut request) = commit_in(1, "", -1, 5) else { panic!() };
    let mut long = request.topics[0].1[0].clone();
    long.partition = 1;
    long.metadata = "x".repeat(17).into();
    request.topics[0].1.push(long);
    assert_eq!(world.asked(Request::Commit(request)), "commit t-0:ok t-1:OffsetMetadataTooLarge");
    let both =
        FetchRequest { topics: Some(vec![("t".into(), vec![0, 1])]), require_stable: true, member: None };
    let look = |world: &mut World| world.asked(Request::Fetch(both.clone()));
    assert_eq!(look(&mut world), "fetch t-0:UnstableOffsetCommit t-1:-1");
    world.end_transaction(1, false);
    assert_eq!([look(&mut world), world.list()], ["fetch t-0:-1 t-1:-1", "list"]);

    // The topic is deleted while the transaction is open.
    world.asked(commit_in(1, "", -1, 5));
    assert_eq!(world.shard.topics(), ["t".into()]);
    world.run(Event::TopicsDeleted(vec!["t".into()]));
    assert_eq!(look(&mut world), "fetch t-0:-1 t-1:-1");
    world.end_transaction(1, true);
    assert_eq!([look(&mut world), world.list()], ["fetch t-0:-1 t-1:-1", "list"]);
}

#[test]
fn g3_nothing_expires_under_an_open_transaction() {
    let mut world = World::new();
    world.commit("", -1, 5);
    world.asked(commit_in(1, "", -1, 7));
    world.pass(8 * DAY_MS);
    let topics = Some(vec![("t".into(), vec![0])]);
    assert_eq!(
        world.asked(Request::Fetch(FetchRequest { topics, require_stable: false, member: None })),
        "fetch t-0:5"
    );
    world.end_transaction(1, false);
    world.pass(DAY_MS);
    assert_eq!([world.fetch(), world.list()], ["fetch t-0:-1", "list"]);
}

#[test]
fn a_marker_that_is_not_stored_ends_nothing() {
    let mut world = World::new();
    world.asked(commit_in(1, "", -1, 7));
    world.commits_at_once = false;
    for (outcome, told, offset) in [
        (
            WriteOutcome::Refused(Rejection::TransactionCoordinatorFenced),
            "TransactionCoordinatorFenced",
            None,
        ),
        (WriteOutcome::Refused(Rejection::NotEnoughReplicas), "NotEnoughReplicas", None),
        (WriteOutcome::CommittedBelowMinimum, "NotEnoughReplicasAfterAppend", Some(7)),
        (WriteOutcome::Committed, "ok", Some(7)),
    ] {
        let reply = world.end_transaction(1, true);
        assert_eq!(world.answer(reply), "-");
        world.report(outcome);
        assert_eq!(world.answer(reply), format!("end {told}"));
        let expected = offset.map_or("UnstableOffsetCommit".to_owned(), |offset: i64| offset.to_string());
        assert_eq!(world.fetch(), format!("fetch t-0:{expected}"));
    }
}
