//! Offsets of consumer groups, and groups that change their kind.

use super::*;
use crate::groups::request::{CommitRequest, DescribeRequest, FetchRequest};
use crate::groups::tests::{DAY_MS, commit, commit_in};

fn fetch(world: &mut World, member: Option<(&str, i32)>) -> String {
    let topics = Some(vec![("t".into(), vec![0])]);
    let member = member.map(|(id, epoch)| (id.into(), epoch));
    world.asked(Request::Fetch(FetchRequest { topics, require_stable: true, member }))
}

#[test]
fn offsets_are_for_members_in_their_epoch() {
    let mut world = world(1);
    assert_eq!(world.commit("", -1, 4), "commit t-0:ok", "before there is a group");
    assert_eq!(ask(&mut world, join("a")), "a e1 [1-0]");
    assert_eq!(fetch(&mut world, Some(("a", 1))), "fetch t-0:4");
    assert_eq!(world.commit("a", 1, 5), "commit t-0:ok");
    assert_eq!(world.commit("a", 0, 6), "commit t-0:StaleMemberEpoch");
    assert_eq!(world.commit("a", 2, 6), "commit t-0:StaleMemberEpoch");
    assert_eq!(world.commit("b", 1, 6), "commit t-0:UnknownMemberId");
    assert_eq!(world.commit("", -1, 6), "commit t-0:UnknownMemberId");
    let old = CommitRequest { knows_member_epochs: false, ..commit("a", 1, 6) };
    assert_eq!(world.asked(Request::Commit(old)), "commit t-0:UnsupportedVersion");
    assert_eq!(world.asked(commit_in(7, "a", 0, 6)), "commit t-0:IllegalGeneration");
    assert_eq!(world.asked(commit_in(7, "", -1, 6)), "commit t-0:UnknownMemberId");
    assert_eq!(fetch(&mut world, None), "fetch t-0:5");
    assert_eq!(fetch(&mut world, Some(("a", 1))), "fetch t-0:5");
    assert_eq!(fetch(&mut world, Some(("a", 0))), "fetch StaleMemberEpoch");
    assert_eq!(fetch(&mut world, Some(("b", 1))), "fetch UnknownMemberId");
    assert_eq!(world.delete_offset("t"), "delete t-0:GroupSubscribedToTopic");
    assert_eq!(world.delete_offset("u"), "delete u-0:ok");
    ask(&mut world, beat("a", -1));
    assert_eq!(world.commit("", -1, 7), "commit t-0:ok");
    assert_eq!(world.delete_offset("t"), "delete t-0:ok");
}

#[test]
fn a_member_commits_in_the_epoch_that_it_was_told() {
    let mut world = world(2);
    ask(&mut world, join("a"));
    ask(&mut world, join("b"));
    ask(&mut world, beat("a", 1));
    world.commits_at_once = false;
    let revoked = start(&mut world, owns("a", 1, &[(1, 0)]));
    let [before, after] = [1, 2].map(|epoch| world.ask(Request::Commit(commit("a", epoch, 5))));
    let left = start(&mut world, beat("b", -1));
    while !world.pending.is_empty() {
        world.report(WriteOutcome::Committed);
    }
    assert_eq!(world.answer(revoked), "a e2");
    assert_eq!([world.answer(before), world.answer(after)], ["commit t-0:ok"; 2]);
    assert_eq!(world.answer(left), "b e-1");
    world.commits_at_once = true;
    assert_eq!(world.commit("a", 1, 6), "commit t-0:StaleMemberEpoch", "it knows better now");
}

#[test]
fn groups_with_members_stay_and_others_can_be_deleted() {
    let mut world = world(1);
    ask(&mut world, join("a"));
    let mut old = commit("a", 1, 5);
    old.topics[0].1[0].commit_time_ms = Some(world.now().wall_ms - 6 * DAY_MS);
    assert_eq!(world.asked(Request::Commit(old)), "commit t-0:ok");
    assert_eq!(world.delete(), "delete NonEmptyGroup");
    world.pass(6 * DAY_MS);
    assert_eq!(world.list(), "list g:consumer:Empty:new", "the member was silent");
    assert_eq!(world.fetch(), "fetch t-0:5", "an empty group's offsets have their full time");
    assert_eq!(world.delete(), "delete ok");
    assert!(world.shard.groups().is_empty());
    world.fail_over();
    assert!(world.shard.groups().is_empty());
}

#[test]
fn an_empty_group_goes_with_its_last_offset() {
    let mut world = world(1);
    ask(&mut world, join("a"));
    world.commit("a", 1, 5);
    ask(&mut world, beat("a", -1));
    world.pass(7 * DAY_MS - 1);
    assert_eq!(world.fetch(), "fetch t-0:5");
    world.pass(DAY_MS);
    assert!(world.shard.groups().is_empty());
    world.fail_over();
    assert!(world.shard.groups().is_empty());
}

#[test]
fn the_kinds_do_not_mix() {
    let mut world = World::stable(1).knowing(cluster(&[("t", 1, 1)]));
    assert_eq!(ask(&mut world, join("a")), "GroupIdNotFound", "a classic group with members stays one");
    assert_eq!(world.leave("c-1"), "leave ok");
    assert_eq!(world.commit("", -1, 5), "commit t-0:ok");
    assert_eq!(ask(&mut world, beat("a", 1)), "GroupIdNotFound");
    assert_eq!(
        ask(&mut world, join("a")),
        "a e1 [1-0]",
        "one without members changes, and keeps its offsets"
    );
    assert_eq!(world.fetch(), "fetch t-0:5");
    assert_eq!(world.list(), "list g:consumer:Stable:new");
    assert_eq!(world.asked(Request::Describe(DescribeRequest)), "Dead / ");
    let classic = world.join_at_once();
    assert_eq!(world.answer(classic), "join InconsistentGroupProtocol");
    assert_eq!(world.beat("c-1", 1), "beat UnknownMemberId");
    world.fail_over();
    assert_eq!(seen(&world), "Stable e1 a:e1[1-0]");
    assert_eq!(world.fetch(), "fetch t-0:5");
    // And back.
    ask(&mut world, beat("a", -1));
    let classic = world.join_at_once();
    world.pass(6_000);
    assert!(world.answer(classic).contains("g1"), "{}", world.answer(classic));
    assert!(world.shard.groups()["g"].consumer.is_none());
    let member = world.shard.groups()["g"].members.keys().next().unwrap().to_string();
    world.sync(&member, 1, &[]);
    world.fail_over();
    assert_eq!(world.list(), "list g:consumer:Stable");
    assert_eq!(world.fetch(), "fetch t-0:5");
}

#[test]
fn a_change_of_kind_that_the_log_refuses_has_not_been() {
    let mut world = World::stable(1).knowing(cluster(&[("t", 1, 1)]));
    world.leave("c-1");
    world.commits_at_once = false;
    let join = start(&mut world, join("a"));
    let classic = world.join_at_once();
    assert_eq!(world.answer(classic), "join InconsistentGroupProtocol", "it is being decided otherwise");
    world.report(refused());
    assert_eq!(world.answer(join), "CoordinatorNotAvailable");
    world.commits_at_once = true;
    assert_eq!(world.list(), "list g:consumer:Empty");
    assert_eq!(world.shard.groups()["g"].generation, 2);
}
