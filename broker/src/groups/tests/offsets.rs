//! Committing, fetching, deleting, expiring.

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::super::group::GroupState;
use super::super::outbox::Tally;
use super::*;

#[test]
fn an_offset_is_fetched_when_its_commit_is_stored_and_not_before() {
    let mut world = World::stable(1);
    world.commits_at_once = false;
    let reply = world.ask(Request::Commit(commit("c-1", 1, 5)));
    assert_eq!([world.answer(reply), world.fetch()], ["-", "fetch t-0:-1"]);
    world.report(WriteOutcome::Committed);
    assert_eq!([world.answer(reply), world.fetch()], ["commit t-0:ok", "fetch t-0:5"]);
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:5");
    let all = world.asked(Request::Fetch(FetchRequest { topics: None, require_stable: false, member: None }));
    assert_eq!(all, "fetch t-0:5");
    let other = Some(vec![("t".into(), vec![1]), ("u".into(), vec![0])]);
    let other =
        world.asked(Request::Fetch(FetchRequest { topics: other, require_stable: false, member: None }));
    assert_eq!(other, "fetch t-1:-1 u-0:-1");
}

#[test]
fn operators_see_what_is_stored() {
    let mut world = World::stable(1);
    let seen = |world: &World| {
        let mut summaries = world.shard.summaries();
        let one = summaries.pop().unwrap();
        assert!(summaries.is_empty());
        (one.state, one.members, one.offsets)
    };
    world.commits_at_once = false;
    world.ask(Request::Commit(commit("c-1", 1, 5)));
    assert_eq!(seen(&world), (GroupState::Stable, 1, vec![]));
    world.report(WriteOutcome::Committed);
    assert_eq!(seen(&world), (GroupState::Stable, 1, vec![(TopicPartition::new("t", 0), 5)]));
}

#[test]
fn grp_05_stale_members_do_not_commit() {
    // Member, generation, answer of a stable group c-1 of generation 1.
    let rows = [
        ("c-1", 1, "ok"),
        ("c-1", 0, "IllegalGeneration"),
        ("c-1", 2, "IllegalGeneration"),
        ("c-1", -1, "IllegalGeneration"),
        ("c-9", 1, "UnknownMemberId"),
        ("", 1, "UnknownMemberId"),
        ("", -1, "UnknownMemberId"),
    ];
    for (member, generation, expected) in rows {
        let answer = World::stable(1).commit(member, generation, 5);
        assert_eq!(answer, format!("commit t-0:{expected}"), "{member} {generation}");
    }
    // The same of a group whose last member left, and of one that never was.
    let rows = [
        ("c-1", 1, "UnknownMemberId"),
        ("", 1, "UnknownMemberId"),
        ("", -1, "ok"),
        // A consumer of KIP-848 that only assigns.
        ("c-1", -1, "ok"),
    ];
    for (member, generation, expected) in rows {
        let mut world = World::stable(1);
        world.leave("c-1");
        assert_eq!(world.commit(member, generation, 5), format!("commit t-0:{expected}"));
    }
    for (member, generation, expected) in
        [("c-1", 5, "IllegalGeneration"), ("", 0, "IllegalGeneration"), ("", -1, "ok"), ("c-1", -1, "ok")]
    {
        assert_eq!(World::new().commit(member, generation, 5), format!("commit t-0:{expected}"));
    }
    // Between the join and the assignment.
    let mut world = World::stable(1);
    world.join(&joiner("c-1"));
    assert_eq!(world.commit("c-1", 2, 5), "commit t-0:RebalanceInProgress");
    assert_eq!(world.commit("c-1", 1, 5), "commit t-0:IllegalGeneration");
}

#[test]
fn grp_06_a_commit_that_is_not_stored_leaves_nothing() {
    for (refused, told) in [
        (Rejection::NotEnoughReplicas, "CoordinatorNotAvailable"),
        (Rejection::UnknownTopicOrPartition, "CoordinatorNotAvailable"),
        (Rejection::NotLeaderOrFollower, "NotCoordinator"),
        (Rejection::KafkaStorageError, "NotCoordinator"),
        (Rejection::MessageTooLarge, "InvalidCommitOffsetSize"),
    ] {
        let mut world = World::new();
        world.commits_at_once = false;
        let reply = world.ask(Request::Commit(commit("", -1, 5)));
        world.report(WriteOutcome::Refused(refused));
        assert_eq!(world.answer(reply), format!("commit t-0:{told}"));
        assert_eq!([world.fetch(), world.list()], ["fetch t-0:-1", "list"]);
    }
    // Stored, though the ISR shrank meanwhile: the client tries again, the offset counts.
    let mut world = World::new();
    world.commits_at_once = false;
    let reply = world.ask(Request::Commit(commit("", -1, 5)));
    world.report(WriteOutcome::CommittedBelowMinimum);
    assert_eq!(world.answer(reply), "commit t-0:CoordinatorNotAvailable");
    assert_eq!(world.fetch(), "fetch t-0:5");
}

#[test]
fn metadata_that_is_too_long_is_refused_alone() {
    let mut world = World::new();
    let mut request = commit("", -1, 5);
    let mut long = request.topics[0].1[0].clone();
    long.partition = 1;
    long.metadata = "x".repeat(17).into();
    request.topics[0].1.push(long.clone());
    let answer = world.asked(Request::Commit(request.clone()));
    assert_eq!(answer, "commit t-0:ok t-1:OffsetMetadataTooLarge");
    request.topics[0].1 = vec![long];
    assert_eq!(world.asked(Request::Commit(request)), "commit t-1:OffsetMetadataTooLarge");
    world.commits_at_once = false;
    let mut request = commit("", -1, 6);
    request.topics[0].1[0].metadata = "x".repeat(16).into();
    world.asked(Request::Commit(request));
    assert_eq!(world.pending.len(), 1);
}

#[test]
fn grp_01_offsets_of_a_living_group_do_not_expire() {
    let mut world = World::stable(1);
    world.commit("c-1", 1, 5);
    for _ in 0..(8 * DAY_MS / 9_000) {
        world.pass(9_000);
        world.beat("c-1", 1);
    }
    assert_eq!(world.fetch(), "fetch t-0:5", "8 days without a commit");
    world.leave("c-1");
    world.pass(6 * DAY_MS);
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:5", "6 days after the last member left");
    world.pass(DAY_MS + 600_000);
    assert_eq!([world.fetch(), world.list()], ["fetch t-0:-1", "list"]);
    world.fail_over();
    assert_eq!(world.list(), "list");
}

#[test]
fn grp_01_offsets_of_simple_consumers_expire_by_their_last_commit() {
    let mut world = World::new();
    world.commit("", -1, 5);
    world.pass(6 * DAY_MS);
    world.commit("", -1, 6);
    world.pass(6 * DAY_MS);
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:6");
    world.pass(DAY_MS + 600_000);
    assert_eq!([world.fetch(), world.list()], ["fetch t-0:-1", "list"]);
}

#[test]
fn topics_that_a_living_group_reads_no_more_expire() {
    let mut world = World::stable(1);
    let mut request = commit("c-1", 1, 5);
    request.topics.push(("other".into(), request.topics[0].1.clone()));
    world.asked(Request::Commit(request));
    for _ in 0..(7 * DAY_MS / 9_000 + 100) {
        world.pass(9_000);
        world.beat("c-1", 1);
    }
    let all = world.asked(Request::Fetch(FetchRequest { topics: None, require_stable: false, member: None }));
    assert_eq!(all, "fetch t-0:5");
    assert_eq!(world.shard.take_tally().offsets_expired, 1);
}

#[test]
fn a_retention_that_the_client_set_holds() {
    let mut world = World::new();
    let request = CommitRequest { retention_ms: Some(DAY_MS), ..commit("", -1, 5) };
    world.asked(Request::Commit(request));
    world.fail_over();
    world.pass(DAY_MS - 600_001);
    assert_eq!(world.fetch(), "fetch t-0:5");
    world.pass(1_200_001);
    assert_eq!(world.fetch(), "fetch t-0:-1");
}

#[test]
fn an_offset_that_is_being_replaced_does_not_expire() {
    let mut world = World::new();
    world.commit("", -1, 5);
    world.pass(7 * DAY_MS - 1_000);
    world.commits_at_once = false;
    world.ask(Request::Commit(commit("", -1, 6)));
    world.pass(1_200_000);
    assert_eq!(world.pending.len(), 1, "no removal follows the commit into the log");
    world.report(WriteOutcome::Committed);
    assert_eq!(world.fetch(), "fetch t-0:6");
}

#[test]
fn grp_07_offsets_of_a_deleted_topic_are_removed() {
    let mut world = World::new();
    world.commit("", -1, 10_000);
    world.commits_at_once = false;
    let late = world.ask(Request::Commit(commit("", -1, 10_001)));
    world.commits_at_once = true;
    world.run(Event::TopicsDeleted(vec!["t".into(), "u".into()]));
    assert_eq!(world.answer(late), "commit t-0:ok");
    assert_eq!(world.fetch(), "fetch t-0:-1", "and the commit that was on its way with them");
    world.fail_over();
    assert_eq!(world.fetch(), "fetch t-0:-1");
}

#[test]
fn offsets_are_deleted_unless_a_member_reads_the_topic() {
    let mut world = World::stable(1);
    assert_eq!(world.delete_offset("t"), "delete t-0:GroupSubscribedToTopic");
    assert_eq!(world.delete_offset("u"), "delete u-0:ok");
    world.commit("c-1", 1, 5);
    world.leave("c-1");
    assert_eq!(world.delete_offset("t"), "delete t-0:ok");
    assert_eq!(world.fetch(), "fetch t-0:-1");
    assert_eq!(World::new().delete_offset("t"), "delete GroupIdNotFound");
    let mut world = World::new();
    world.join(&Joiner { protocol_type: "connect", version: 3, ..joiner("") });
    assert_eq!(world.delete_offset("t"), "delete NonEmptyGroup");
}

#[test]
fn what_happens_to_groups_and_offsets_is_counted() {
    let mut world = World::stable(1);
    let rebalanced = Tally { rebalances_completed: 1, ..Tally::default() };
    assert_eq!(world.shard.take_tally(), rebalanced);
    assert_eq!(world.shard.take_tally(), Tally::default(), "each is told once");
    world.commits_at_once = false;
    world.ask(Request::Commit(commit("c-1", 1, 5)));
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    world.ask(Request::Commit(commit("c-1", 1, 6)));
    assert_eq!(world.shard.take_tally(), Tally::default(), "nothing is stored yet");
    world.report(WriteOutcome::Committed);
    world.commits_at_once = true;
    assert_eq!(world.shard.take_tally(), Tally { offsets_committed: 1, ..Tally::default() });
    world.leave("c-1");
    world.delete_offset("u");
    assert_eq!(world.shard.take_tally(), Tally::default());
    world.delete_offset("t");
    assert_eq!(world.shard.take_tally(), Tally { offsets_deleted: 1, ..Tally::default() });
    let committed = Tally { offsets_committed: 1, ..Tally::default() };
    let expired = Tally { offsets_expired: 1, ..Tally::default() };
    // With the group.
    let mut world = World::new();
    world.commit("", -1, 5);
    assert_eq!(world.shard.take_tally(), committed);
    world.pass(7 * DAY_MS + 600_000);
    assert_eq!([world.list(), world.fetch()], ["list", "fetch t-0:-1"]);
    assert_eq!(world.shard.take_tally(), expired);
    // Of a client that deletes the group.
    world.commit("", -1, 5);
    world.delete();
    assert_eq!(world.shard.take_tally(), committed);
}
