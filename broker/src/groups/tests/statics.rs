//! Static members (KIP-345): they come back to their place, and only one has it.

use zurau_common::rejection::Rejection;

use super::*;

fn named(member: &str, instance: &'static str, version: i16) -> Joiner {
    Joiner { instance: Some(instance), version, ..joiner(member) }
}

/// A stable group of the static members i1 (leader, i1-1) and i2 (i2-2).
fn stable() -> World {
    let mut world = World::new();
    world.join(&named("", "i1", 9));
    world.join(&named("", "i2", 9));
    world.pass(6_000);
    let leader = world.sync("i1-1", 1, &[("i1-1", "one"), ("i2-2", "two")]);
    assert_eq!(world.answer(leader), "sync one");
    world.sync("i2-2", 1, &[]);
    world
}

#[test]
fn a_restarted_static_member_gets_its_assignment_back_without_a_rebalance() {
    let mut world = stable();
    let back = world.join(&named("", "i2", 9));
    assert_eq!(world.answer(back), "join i2-3 g1 range leader=i1-1 []");
    let synced = world.sync("i2-3", 1, &[]);
    assert_eq!(world.answer(synced), "sync two");
    assert_eq!(world.beat("i1-1", 1), "beat ok");
    world.fail_over();
    assert_eq!(world.describe(), "Stable consumer/range i1-1=one i2-3=two");
}

#[test]
fn a_restarted_static_leader_is_told_not_to_assign() {
    let mut world = stable();
    let back = world.join(&named("", "i1", 9));
    assert_eq!(world.answer(back), r#"join i1-3 g1 range leader=i1-3 skip ["i1-3", "i2-2"]"#);
    let mut world = stable();
    let back = world.join(&named("", "i1", 5));
    assert_eq!(world.answer(back), "join i1-3 g1 range leader=i1-1 []", "before v9: somebody else leads");
}

#[test]
fn grp_08_the_first_of_two_with_one_instance_id_is_fenced() {
    let mut world = stable();
    world.join(&named("", "i2", 9));
    let fenced = |world: &mut World, generation| {
        let request =
            HeartbeatRequest { generation, member_id: "i2-2".into(), instance_id: Some("i2".into()) };
        world.asked(Request::Heartbeat(request))
    };
    assert_eq!(fenced(&mut world, 1), "beat FencedInstanceId");
    assert_eq!(world.beat("i2-2", 1), "beat UnknownMemberId");
    let mut stale = commit("i2-2", 1, 9);
    stale.instance_id = Some("i2".into());
    assert_eq!(world.asked(Request::Commit(stale)), "commit t-0:FencedInstanceId");
    let joined = world.join(&named("i2-2", "i2", 9));
    assert_eq!(world.answer(joined), "join FencedInstanceId i2-2");
    let leaving = LeavingMember { member_id: "i2-2".into(), instance_id: Some("i2".into()) };
    let answer = world.asked(Request::Leave(LeaveRequest { members: vec![leaving] }));
    assert_eq!(answer, "leave FencedInstanceId");
    assert_eq!(world.describe(), "Stable consumer/range i1-1=one i2-3=two", "exactly one has it");

    // Both wait in a rebalance.
    world.join_at_once();
    let first = world.join(&named("i2-3", "i2", 9));
    assert_eq!(world.answer(first), "-");
    let second = world.join(&named("", "i2", 9));
    assert_eq!(world.answer(first), "join FencedInstanceId i2-3");
    assert_eq!(world.answer(second), "-");
}

#[test]
fn a_static_member_that_changes_the_protocol_causes_a_rebalance() {
    let mut world = World::new();
    let both = |instance, first, second| Joiner {
        protocols: vec![(first, Bytes::new()), (second, Bytes::new())],
        ..named("", instance, 9)
    };
    world.join(&both("i1", "a", "b"));
    world.pass(3_000);
    world.sync("i1-1", 1, &[]);
    let back = world.join(&both("i1", "b", "a"));
    assert_eq!(world.answer(back), r#"join i1-2 g2 b leader=i1-2 ["i1-2"]"#);
}

#[test]
fn a_return_that_cannot_be_stored_is_undone() {
    let mut world = stable();
    world.commits_at_once = false;
    let back = world.join(&named("", "i2", 9));
    assert_eq!(world.answer(back), "-");
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    assert_eq!(world.answer(back), "join CoordinatorNotAvailable");
    assert_eq!(world.beat("i2-2", 1), "beat ok");
    assert_eq!(world.describe(), "Stable consumer/range i1-1=one i2-2=two");
}

/// G1: the log has the new id, whatever the client is told; the next coordinator would refuse the old one.
#[test]
fn a_return_that_is_stored_stays_though_its_client_must_ask_again() {
    let mut world = stable();
    world.commits_at_once = false;
    let back = world.join(&named("", "i2", 9));
    world.report(WriteOutcome::CommittedBelowMinimum);
    assert_eq!(world.answer(back), "join CoordinatorNotAvailable");
    assert_eq!(world.describe(), "Stable consumer/range i1-1=one i2-3=two");
    world.commits_at_once = true;
    let again = world.join(&named("", "i2", 9));
    assert_eq!(world.answer(again), "join i2-4 g1 range leader=i1-1 []");
}

#[test]
fn a_rebalance_that_begins_meanwhile_answers_a_returning_member() {
    let mut world = stable();
    world.commits_at_once = false;
    let back = world.join(&named("", "i2", 9));
    world.join_at_once();
    world.report(WriteOutcome::Committed);
    assert_eq!(world.answer(back), "-");
    world.join(&named("i1-1", "i1", 9));
    assert_eq!(world.answer(back), "join i2-3 g2 range leader=i1-1 []");
}

#[test]
fn static_members_that_are_away_stay_until_their_session_ends() {
    let mut world = World::new();
    world.join(&Joiner { session_ms: 300_000, ..named("", "i1", 9) });
    world.join(&Joiner { session_ms: 300_000, ..named("", "i2", 9) });
    world.pass(60_000);
    world.sync("i1-1", 1, &[("i1-1", "one"), ("i2-2", "two")]);
    world.sync("i2-2", 1, &[]);
    // The leader is back in the rebalance of a third, i2 is away and keeps its place.
    let third = world.join(&Joiner { version: 3, session_ms: 300_000, ..joiner("") });
    world.join(&Joiner { session_ms: 300_000, ..named("i1-1", "i1", 9) });
    world.pass(60_000);
    assert_eq!(world.answer(third), "join c-3 g2 range leader=i1-1 []");
    world.sync("i1-1", 2, &[("i1-1", "a"), ("i2-2", "b"), ("c-3", "c")]);
    world.sync("c-3", 2, &[]);
    assert_eq!(world.describe(), "Stable consumer/range c-3=c i1-1=a i2-2=b");
}

#[test]
fn an_admin_removes_a_static_member_by_its_name() {
    let mut world = stable();
    let by_name = |instance: &str| LeavingMember { member_id: "".into(), instance_id: Some(instance.into()) };
    let members = vec![by_name("i2"), by_name("nobody")];
    let answer = world.asked(Request::Leave(LeaveRequest { members }));
    assert_eq!(answer, "leave ok,UnknownMemberId");
    assert_eq!(world.beat("i1-1", 1), "beat RebalanceInProgress");
}
