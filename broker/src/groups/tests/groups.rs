//! Joining, assigning, leaving, falling silent.

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::*;

#[test]
fn a_first_member_waits_for_others_and_leads() {
    let mut world = World::new();
    let first = world.join(&joiner(""));
    assert_eq!(world.answer(first), "join MemberIdRequired c-1");
    let joined = world.join(&joiner("c-1"));
    assert_eq!(world.answer(joined), "-");
    world.pass(2_999);
    assert_eq!(world.answer(joined), "-");
    world.pass(1);
    assert_eq!(world.answer(joined), r#"join c-1 g1 range leader=c-1 ["c-1"]"#);
    assert_eq!(world.describe(), "CompletingRebalance consumer/ c-1=");
    let synced = world.sync("c-1", 1, &[("c-1", "t:0"), ("stranger", "t:1")]);
    assert_eq!(world.answer(synced), "sync t:0");
    assert_eq!(world.describe(), "Stable consumer/range c-1=t:0");
    assert_eq!(world.beat("c-1", 1), "beat ok");
}

#[test]
fn newcomers_extend_the_initial_delay_up_to_the_rebalance_timeout() {
    let mut world = World::new();
    let first = world.join(&Joiner { rebalance_ms: 7_000, version: 3, ..joiner("") });
    world.pass(2_000);
    let second = world.join(&Joiner { rebalance_ms: 7_000, version: 3, ..joiner("") });
    world.pass(2_999);
    let third = world.join(&Joiner { rebalance_ms: 7_000, version: 3, ..joiner("") });
    world.pass(1);
    assert_eq!(world.answer(first), "-", "5 s: the third has just come");
    world.pass(1_999);
    assert_eq!(world.answer(second), "-");
    world.pass(1);
    // 7 s are the limit, though the third came 2 s ago.
    assert_eq!(world.answer(third), "join c-3 g1 range leader=c-1 []");
    assert_eq!(world.answer(first), r#"join c-1 g1 range leader=c-1 ["c-1", "c-2", "c-3"]"#);
}

#[test]
fn a_third_member_makes_the_others_join_again() {
    let mut world = World::stable(2);
    let third = world.join_at_once();
    assert_eq!(world.beat("c-1", 1), "beat RebalanceInProgress");
    assert_eq!(world.commit("c-2", 1, 7), "commit t-0:ok", "the old generation may still commit");
    let first = world.join(&joiner("c-1"));
    let second = world.join(&joiner("c-2"));
    assert_eq!(world.answer(first), r#"join c-1 g2 range leader=c-1 ["c-1", "c-2", "c-3"]"#);
    assert_eq!(world.answer(second), "join c-2 g2 range leader=c-1 []");
    assert_eq!(world.answer(third), "join c-3 g2 range leader=c-1 []");
    let waiting = world.sync("c-2", 2, &[]);
    assert_eq!(world.answer(waiting), "-");
    world.sync("c-1", 2, &[("c-2", "two"), ("c-3", "three")]);
    assert_eq!(world.answer(waiting), "sync two");
    let late = world.sync("c-3", 2, &[]);
    assert_eq!(world.answer(late), "sync three");
}

#[test]
fn the_leader_joining_again_starts_a_rebalance_and_a_follower_does_not() {
    let mut world = World::stable(2);
    let follower = world.join(&joiner("c-2"));
    assert_eq!(world.answer(follower), "join c-2 g1 range leader=c-1 []");
    let changed = Joiner { protocols: vec![("range", Bytes::from_static(b"other"))], ..joiner("c-2") };
    let changed = world.join(&changed);
    assert_eq!(world.answer(changed), "-");
    let leader = world.join(&joiner("c-1"));
    assert_eq!(world.answer(leader), r#"join c-1 g2 range leader=c-1 ["c-1", "c-2"]"#);
    let again = world.join(&joiner("c-1"));
    assert_eq!(world.answer(again), r#"join c-1 g2 range leader=c-1 ["c-1", "c-2"]"#, "its answer was lost");
}

#[test]
fn the_protocol_is_the_one_that_most_prefer_among_those_that_all_support() {
    let rows: [(&[&[&'static str]], &str); 5] = [
        (&[&["a", "b"], &["b", "a"], &["b", "a"]], "b"),
        (&[&["a", "b"], &["b"], &["a", "b"]], "b"),
        (&[&["b", "a"], &["a", "b"]], "b"),
        (&[&["a"]], "a"),
        (&[&["c", "a"], &["d", "a"]], "a"),
    ];
    for (members, expected) in rows {
        let mut world = World::new();
        let with = |protocols: &[&'static str]| Joiner {
            version: 3,
            protocols: protocols.iter().map(|name| (*name, Bytes::new())).collect(),
            ..joiner("")
        };
        let joins: Vec<_> = members.iter().map(|protocols| world.join(&with(protocols))).collect();
        world.pass(60_000);
        for join in joins {
            assert!(world.answer(join).contains(&format!(" g1 {expected} ")), "{members:?}");
        }
    }
}

#[test]
fn joins_that_cannot_be_are_refused() {
    let rows: [(&str, Joiner, &str); 6] = [
        ("timeout", Joiner { session_ms: 5_999, ..joiner("") }, "join InvalidSessionTimeout"),
        ("timeout", Joiner { session_ms: 1_800_001, ..joiner("") }, "join InvalidSessionTimeout"),
        ("no protocol", Joiner { protocols: vec![], ..joiner("") }, "join InconsistentGroupProtocol"),
        ("type", Joiner { protocol_type: "connect", ..joiner("") }, "join InconsistentGroupProtocol"),
        ("other", { Joiner { protocols: vec![("x", Bytes::new())], ..joiner("") } }, {
            "join InconsistentGroupProtocol"
        }),
        ("stranger", joiner("who"), "join UnknownMemberId who"),
    ];
    for (name, joiner, expected) in rows {
        let mut world = World::stable(1);
        let reply = world.join(&joiner);
        assert_eq!(world.answer(reply), expected, "{name}");
    }
    let mut world = World::new();
    let reply = world.join(&joiner("who"));
    assert_eq!(world.answer(reply), "join UnknownMemberId who");
    assert_eq!(world.list(), "list", "a refused join leaves no group");
    world.join(&Joiner { protocols: vec![], ..joiner("") });
    assert_eq!(world.list(), "list");
}

#[test]
fn a_full_group_turns_newcomers_away() {
    let mut world = World::with(GroupSettings { group_size_max: 2, ..settings() });
    let joins = [world.join_at_once(), world.join_at_once(), world.join_at_once()];
    assert_eq!(world.answer(joins[2]), "join GroupMaxSizeReached");
    world.pass(6_000);
    world.sync("c-1", 1, &[]);
    world.sync("c-2", 1, &[]);
    let late = world.join(&joiner(""));
    assert_eq!(world.answer(late), "join GroupMaxSizeReached");
    world.settings = Arc::new(GroupSettings { group_size_max: 1, ..settings() });
    world.fail_over();
    assert!(world.describe().starts_with("PreparingRebalance"), "the limit was lowered");
    let stays = world.join(&joiner("c-2"));
    let goes = world.join(&joiner("c-1"));
    assert_eq!(world.answer(goes), "join GroupMaxSizeReached c-1");
    assert_eq!(world.answer(stays), r#"join c-2 g2 range leader=c-2 ["c-2"]"#);
}

#[test]
fn members_that_fall_silent_are_removed() {
    let mut world = World::stable(2);
    for _ in 0..4 {
        world.pass(5_000);
        world.beat("c-1", 1);
    }
    assert_eq!(world.beat("c-2", 1), "beat UnknownMemberId");
    assert_eq!(world.beat("c-1", 1), "beat RebalanceInProgress");
    let joined = world.join(&joiner("c-1"));
    assert_eq!(world.answer(joined), r#"join c-1 g2 range leader=c-1 ["c-1"]"#);
}

#[test]
fn members_that_do_not_join_again_in_time_are_left_out() {
    let mut world = World::stable(3);
    let first = world.join(&joiner("c-1"));
    for _ in 0..59 {
        assert_eq!(world.beat("c-2", 1), "beat RebalanceInProgress");
        world.beat("c-3", 1);
        world.pass(1_000);
    }
    assert_eq!(world.answer(first), "-");
    world.pass(1_000);
    assert_eq!(world.answer(first), r#"join c-1 g2 range leader=c-1 ["c-1"]"#);
}

#[test]
fn an_id_that_nobody_joins_with_holds_a_rebalance_up_for_its_session_only() {
    let mut world = World::stable(1);
    world.join(&joiner(""));
    let leader = world.join(&joiner("c-1"));
    assert_eq!(world.answer(leader), "-", "c-2 is expected");
    world.pass(10_000);
    assert_eq!(world.answer(leader), r#"join c-1 g2 range leader=c-1 ["c-1"]"#);
    let late = world.join(&joiner("c-2"));
    assert_eq!(world.answer(late), "join UnknownMemberId c-2");
}

#[test]
fn leaving_is_answered_for_each_member() {
    let mut world = World::stable(3);
    let leaving = |member: &str| LeavingMember { member_id: member.into(), instance_id: None };
    let members = vec![leaving("c-1"), leaving("who"), leaving("c-2"), leaving("")];
    let answer = world.asked(Request::Leave(LeaveRequest { members }));
    assert_eq!(answer, "leave ok,UnknownMemberId,ok,UnknownMemberId");
    let rest = world.join(&joiner("c-3"));
    assert_eq!(world.answer(rest), r#"join c-3 g2 range leader=c-3 ["c-3"]"#);
    assert_eq!(world.leave("c-3"), "leave ok");
    assert_eq!(world.describe(), "Empty consumer/ ");
    assert_eq!(World::new().leave("x"), "leave UnknownMemberId");
    let mut pending = World::new();
    pending.join(&joiner(""));
    assert_eq!(pending.leave("c-1"), "leave ok");
    assert_eq!(pending.list(), "list");
}

#[test]
fn grp_02_members_that_never_ask_for_their_assignment_do_not_hold_the_others_up() {
    // The leader dies before SyncGroup; the other one waits and sends no heartbeats meanwhile.
    let mut world = World::stable(2);
    let (first, second) = (world.join(&joiner("c-1")), world.join(&joiner("c-2")));
    assert!(world.answer(first).contains("g2") && world.answer(second).contains("g2"));
    let waiting = world.sync("c-2", 2, &[]);
    world.pass(9_999);
    assert_eq!(world.answer(waiting), "-");
    world.pass(1);
    assert_eq!(world.answer(waiting), "sync RebalanceInProgress");
    let again = world.join(&joiner("c-2"));
    assert_eq!(world.answer(again), r#"join c-2 g3 range leader=c-2 ["c-2"]"#);

    // One member only sends heartbeats.
    let mut world = World::stable(2);
    world.join(&joiner("c-1"));
    world.join(&joiner("c-2"));
    let leader = world.sync("c-1", 2, &[("c-1", "a")]);
    assert_eq!(world.answer(leader), "sync a");
    for _ in 0..59 {
        world.pass(1_000);
        assert_eq!(world.beat("c-2", 2), "beat ok");
        world.beat("c-1", 2);
    }
    world.pass(1_000);
    assert_eq!(world.beat("c-2", 2), "beat UnknownMemberId");
    assert_eq!(world.beat("c-1", 2), "beat RebalanceInProgress");
}

#[test]
fn requests_of_other_generations_and_protocols_are_refused() {
    let mut world = World::stable(1);
    let sync = |world: &mut World, generation, protocol_type: Option<&str>, protocol: Option<&str>| {
        world.asked(Request::Sync(SyncRequest {
            generation,
            member_id: "c-1".into(),
            instance_id: None,
            protocol_type: protocol_type.map(Into::into),
            protocol: protocol.map(Into::into),
            assignments: vec![],
        }))
    };
    let rows = [
        (0, None, None, "sync IllegalGeneration"),
        (2, None, None, "sync IllegalGeneration"),
        (1, Some("connect"), None, "sync InconsistentGroupProtocol"),
        (1, Some("consumer"), Some("sticky"), "sync InconsistentGroupProtocol"),
        (1, Some("consumer"), Some("range"), "sync c-1"),
    ];
    for (generation, protocol_type, protocol, expected) in rows {
        assert_eq!(sync(&mut world, generation, protocol_type, protocol), expected);
    }
    assert_eq!(world.beat("c-1", 0), "beat IllegalGeneration");
    assert_eq!(world.beat("c-9", 1), "beat UnknownMemberId");
    assert_eq!(World::new().beat("c-1", 1), "beat UnknownMemberId");
    world.join(&joiner("c-1"));
    assert_eq!(world.leave("c-1"), "leave ok");
    assert_eq!(sync(&mut world, 2, None, None), "sync UnknownMemberId");
}

#[test]
fn a_request_that_is_sent_twice_is_answered_twice() {
    let mut world = World::new();
    let first = world.join_at_once();
    let again = world.join(&joiner("c-1"));
    assert_eq!(world.answer(first), "join RebalanceInProgress c-1");
    world.pass(3_000);
    assert_eq!(world.answer(again), r#"join c-1 g1 range leader=c-1 ["c-1"]"#);
    world.commits_at_once = false;
    let (one, two) = (world.sync("c-1", 1, &[("c-1", "x")]), world.sync("c-1", 1, &[("c-1", "y")]));
    assert_eq!(world.answer(one), "sync RebalanceInProgress");
    world.report(WriteOutcome::Committed);
    assert_eq!(world.answer(two), "sync x", "the first assignment is the one that is stored");
}

#[test]
fn grp_06_an_assignment_that_cannot_be_stored_is_not_given_out() {
    for (refused, told) in [
        (Rejection::NotEnoughReplicas, "CoordinatorNotAvailable"),
        (Rejection::RequestTimedOut, "CoordinatorNotAvailable"),
        (Rejection::NotLeaderOrFollower, "NotCoordinator"),
        (Rejection::MessageTooLarge, "UnknownServerError"),
    ] {
        let mut world = World::stable(2);
        world.join(&joiner("c-1"));
        world.join(&joiner("c-2"));
        world.commits_at_once = false;
        let waiting = world.sync("c-2", 2, &[]);
        world.sync("c-1", 2, &[("c-2", "x")]);
        assert_eq!(world.answer(waiting), "-");
        world.report(WriteOutcome::Refused(refused));
        assert_eq!(world.answer(waiting), format!("sync {told}"));
        assert_eq!(world.beat("c-2", 2), "beat RebalanceInProgress");
    }
}

#[test]
fn an_assignment_of_a_generation_that_is_over_is_not_given_out() {
    let mut world = World::stable(2);
    world.join(&joiner("c-1"));
    world.join(&joiner("c-2"));
    world.commits_at_once = false;
    let waiting = world.sync("c-1", 2, &[("c-1", "x")]);
    world.leave("c-2");
    assert_eq!(world.answer(waiting), "sync RebalanceInProgress");
    world.report(WriteOutcome::Committed);
    let joined = world.join(&joiner("c-1"));
    assert_eq!(world.answer(joined), r#"join c-1 g3 range leader=c-1 ["c-1"]"#);
}

#[test]
fn only_empty_groups_are_deleted() {
    let mut world = World::stable(1);
    assert_eq!(world.delete(), "delete NonEmptyGroup");
    world.commit("c-1", 1, 5);
    world.leave("c-1");
    world.commits_at_once = false;
    let reply = world.ask(Request::Delete(DeleteRequest));
    assert_eq!(world.describe(), "Dead consumer/ ");
    assert_eq!(world.fetch(), "fetch t-0:-1");
    let joined = world.join(&joiner(""));
    assert_eq!(world.answer(joined), "join CoordinatorNotAvailable", "it can try again");
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    assert_eq!(world.answer(reply), "delete CoordinatorNotAvailable");
    assert_eq!(world.fetch(), "fetch t-0:5", "nothing was removed");
    world.commits_at_once = true;
    assert_eq!(world.delete(), "delete ok");
    assert_eq!([world.list(), world.delete()], ["list", "delete GroupIdNotFound"]);
    world.fail_over();
    assert_eq!([world.list(), world.describe()], ["list", "Dead / "]);
}

#[test]
fn members_survive_a_change_of_the_coordinator() {
    let mut world = World::stable(2);
    world.fail_over();
    assert_eq!([world.beat("c-1", 1), world.beat("c-2", 1)], ["beat ok", "beat ok"]);
    assert_eq!(world.describe(), "Stable consumer/range c-1=c-1 c-2=c-2");
    let synced = world.sync("c-2", 1, &[]);
    assert_eq!(world.answer(synced), "sync c-2");
    world.pass(10_000);
    assert_eq!(world.describe(), "Empty consumer/ ", "nobody was heard of since");
}

#[test]
fn that_a_group_is_empty_is_written_until_it_is_stored() {
    let mut world = World::stable(1);
    world.commits_at_once = false;
    world.leave("c-1");
    world.report(WriteOutcome::Refused(Rejection::NotEnoughReplicas));
    world.pass(5_000);
    world.report(WriteOutcome::Committed);
    world.fail_over();
    assert_eq!(world.describe(), "Empty consumer/ ");
}
