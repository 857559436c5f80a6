//! Joining, reconciling, fencing, topics, writes that fail.

use zurau_common::config::GroupConfig;

use super::*;

#[test]
fn the_first_member_gets_everything_and_later_only_changes_are_told() {
    let mut world = world(3);
    assert_eq!(ask(&mut world, join("a")), "a e1 [1-0 1-1 1-2]");
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1");
    assert_eq!(ask(&mut world, full("a", 1, &[(1, 0)])), "a e1 [1-0 1-1 1-2]", "it asked with everything");
    assert_eq!(seen(&world), "Stable e1 a:e1[1-0 1-1 1-2]");
}

#[test]
fn a_partition_is_given_up_before_another_gets_it() {
    let mut world = world(3);
    ask(&mut world, join("a"));
    assert_eq!(ask(&mut world, join("b")), "b e2 []");
    assert_eq!(seen(&world), "Reconciling e2 a:e1[1-0 1-1 1-2] b:e2[]");
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1 [1-0 1-1]");
    assert_eq!(seen(&world), "Reconciling e2 a:e1[1-0 1-1 -1-2] b:e2[]");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2");
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0), (1, 1), (1, 2)])), "a e1", "it has not done it yet");
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0), (1, 1)])), "a e2");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2 [1-2]");
    assert_eq!(seen(&world), "Stable e2 a:e2[1-0 1-1] b:e2[1-2]");
    assert_eq!(world.shard.take_tally().rebalances_begun, 2);
}

#[test]
fn what_the_leaver_had_goes_to_the_others() {
    let mut world = world(4);
    stable(&mut world, 2);
    assert_eq!(ask(&mut world, beat("m0", -1)), "m0 e-1");
    let epoch = state(&world).members["m1"].current.epoch;
    assert_eq!(ask(&mut world, beat("m1", epoch)), format!("m1 e{} [1-0 1-1 1-2 1-3]", epoch + 1));
    assert_eq!(ask(&mut world, beat("m0", epoch)), "UnknownMemberId");
    assert_eq!(ask(&mut world, beat("m0", -1)), "UnknownMemberId");
    assert_eq!(ask(&mut world, beat("m1", -1)), "m1 e-1");
    assert_eq!(world.list(), "list g:consumer:Empty:new");
}

#[test]
fn a_group_of_its_own_times_is_told_them_and_held_to_them_from_the_next_heartbeat_on() {
    let mut world = world(1);
    ask(&mut world, join("a"));
    let own = GroupConfig { consumer_heartbeat_interval_ms: 7, consumer_session_timeout_ms: 46 };
    world.shard.note_configs(Arc::new([("g".into(), own)].into()));
    world.pass(1_000);
    let reply = start(&mut world, beat("a", 1));
    let Answer::ConsumerHeartbeat(Ok(answer)) = &world.answers[&reply] else { panic!("it is a member") };
    assert_eq!(answer.interval_ms, 7, "the session of 45 s that it was promised held until now");
    world.pass(45);
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1");
    world.pass(46);
    assert_eq!(ask(&mut world, beat("a", 1)), "UnknownMemberId");
    // Others have the broker's times, and so has this one again.
    world.shard.note_configs(Arc::default());
    ask(&mut world, join("b"));
    let epoch = state(&world).members["b"].current.epoch;
    world.pass(44_999);
    assert_eq!(ask(&mut world, beat("b", epoch)), format!("b e{epoch}"));
}

#[test]
fn silent_members_and_those_that_give_up_nothing_are_removed() {
    let mut world = world(2);
    ask(&mut world, join("a"));
    world.pass(44_999);
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1");
    world.pass(44_999);
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1");
    // It was told to give up one, but goes on with both.
    ask(&mut world, join("b"));
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1 [1-0]");
    world.pass(30_000);
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2");
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0), (1, 1)])), "a e1");
    world.pass(30_000);
    assert_eq!(ask(&mut world, beat("a", 1)), "UnknownMemberId");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e3 [1-0 1-1]");
    world.pass(45_000);
    assert_eq!(ask(&mut world, beat("b", 3)), "UnknownMemberId");
    assert_eq!(seen(&world), "Empty e4");
}

#[test]
fn members_are_fenced_by_their_epoch_but_a_lost_answer_does_not_count() {
    let mut world = world(2);
    stable(&mut world, 2);
    // The answer with epoch 3 is lost; what m1 has is still in its assignment.
    assert_eq!(ask(&mut world, beat("m0", -1)), "m0 e-1");
    assert_eq!(seen(&world), "Assigning e3 m1:e2[1-1]");
    assert_eq!(ask(&mut world, owns("m1", 2, &[(1, 1)])), "m1 e3 [1-0 1-1]");
    assert_eq!(ask(&mut world, full("m1", 2, &[(1, 1)])), "m1 e3 [1-0 1-1]");
    assert_eq!(ask(&mut world, beat("m1", 2)), "FencedMemberEpoch", "it does not say what it has");
    assert_eq!(ask(&mut world, owns("m1", 2, &[(1, 5)])), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, beat("m1", 1)), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, beat("m1", 4)), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, beat("m1", 3)), "m1 e3");
    assert_eq!(ask(&mut world, beat("x", 3)), "UnknownMemberId");
    // A member that was never told of its join may join again, and only that one.
    assert_eq!(ask(&mut world, join("m1")), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, join("m2")), "m2 e4 []");
    assert_eq!(ask(&mut world, join("m2")), "m2 e4 []");
}

#[test]
fn the_coordinator_chooses_an_id_for_members_of_version_0() {
    let mut world = world(1);
    let request = ConsumerHeartbeatRequest { fresh_id: Some("fresh".into()), ..join("") };
    assert_eq!(ask(&mut world, request), "fresh e1 [1-0]");
    assert_eq!(ask(&mut world, beat("fresh", 1)), "fresh e1");
}

#[test]
fn a_subscription_may_change_and_topics_come_and_go() {
    let mut world = world(1);
    ask(&mut world, join("a"));
    world.topics = cluster(&[("t", 1, 2)]);
    assert_eq!(ask(&mut world, beat("a", 1)), "a e2 [1-0 1-1]", "the topic has a partition more");
    let both = ConsumerHeartbeatRequest { topics: Some(["t".into(), "u".into()].into()), ..beat("a", 2) };
    assert_eq!(ask(&mut world, both), "a e3", "nothing of u exists");
    world.topics = cluster(&[("t", 1, 2), ("u", 2, 1), ("v", 9, 1)]);
    assert_eq!(ask(&mut world, beat("a", 3)), "a e4 [1-0 1-1 2-0]");
    // A topic that was made anew is another one.
    world.topics = cluster(&[("t", 1, 2), ("u", 5, 1)]);
    assert_eq!(ask(&mut world, owns("a", 4, &[(1, 0), (1, 1), (2, 0)])), "a e4 [1-0 1-1]");
    assert_eq!(ask(&mut world, owns("a", 4, &[(1, 0), (1, 1)])), "a e5 [1-0 1-1 5-0]");
    let only_u = ConsumerHeartbeatRequest { topics: Some(["u".into()].into()), ..owns("a", 5, &[(5, 0)]) };
    assert_eq!(ask(&mut world, only_u), "a e6 [5-0]");
}

#[test]
fn a_topic_that_the_metadata_lacks_is_believed_to_be_gone_after_a_while() {
    let mut world = world(1);
    ask(&mut world, join("a"));
    world.topics = cluster(&[]);
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e1");
    world.pass(9_999);
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e1");
    world.topics = cluster(&[("t", 1, 1)]);
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e1");
    world.topics = cluster(&[]);
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e1");
    world.pass(10_000);
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e1 []", "it has to give it up");
    assert_eq!(ask(&mut world, owns("a", 1, &[])), "a e2");
}

#[test]
fn regular_expressions_stand_for_the_topics_of_the_moment() {
    let mut world = World::new().knowing(cluster(&[("t", 1, 1), ("a-1", 3, 1), ("xa-1", 4, 1)]));
    let by_regex = |member: &str, epoch, regex: &str| ConsumerHeartbeatRequest {
        topics: Some([].into()),
        regex: Some(regex.into()),
        ..full(member, epoch, &[])
    };
    for bad in ["a(", "a{5000}{5000}", "(?<=a)b"] {
        assert_eq!(ask(&mut world, by_regex("r", 0, bad)), "InvalidRegularExpression", "{bad}");
    }
    assert!(world.shard.groups().is_empty(), "a refused join leaves nothing behind");
    assert_eq!(ask(&mut world, by_regex("r", 0, "a-.|b")), "r e1 [3-0]", "the whole name must match");
    world.topics = cluster(&[("t", 1, 1), ("a-1", 3, 1), ("a-2", 5, 2)]);
    assert_eq!(ask(&mut world, beat("r", 1)), "r e2 [3-0 5-0 5-1]");
    assert_eq!(state(&world).regexes.len(), 1);
    // A member that reads one of these by name changes nothing for the topic, but the expression may grow into it.
    let by_name = ConsumerHeartbeatRequest { topics: Some(["t".into()].into()), ..full("n", 0, &[]) };
    assert_eq!(ask(&mut world, by_name), "n e3 [1-0]");
    assert_eq!(ask(&mut world, beat("r", 2)), "r e3");
    let all = by_regex("r", 3, ".*");
    let all = ConsumerHeartbeatRequest { owned: Some(parts(&[(3, 0), (5, 0), (5, 1)])), ..all };
    assert_eq!(ask(&mut world, all), "r e4 [3-0 5-0 5-1]");
    assert_eq!(state(&world).regexes.keys().map(|regex| &**regex).collect::<Vec<_>>(), [".*"]);
    let none = ConsumerHeartbeatRequest {
        topics: Some(["t".into()].into()),
        regex: Some("".into()),
        ..owns("r", 4, &[])
    };
    assert_eq!(ask(&mut world, none), "r e5 []");
    assert!(state(&world).regexes.is_empty());
}

#[test]
fn refusals() {
    let mut world = world(1);
    let wish =
        |name: &str, member: &str| ConsumerHeartbeatRequest { assignor: Some(name.into()), ..join(member) };
    assert_eq!(ask(&mut world, beat("a", 1)), "GroupIdNotFound");
    assert_eq!(ask(&mut world, beat("a", -1)), "GroupIdNotFound");
    assert_eq!(ask(&mut world, wish("nonsense", "a")), "UnsupportedAssignor");
    assert!(world.shard.groups().is_empty());
    for number in 0..5 {
        assert!(ask(&mut world, wish("range", &format!("m{number}"))).starts_with('m'));
    }
    assert_eq!(ask(&mut world, join("one too many")), "GroupMaxSizeReached");
    let described = world.shard.groups()["g"]
        .consumer
        .as_ref()
        .unwrap()
        .describe(&crate::groups::outbox::Outbox::new(Arc::new(settings())));
    assert_eq!((described.assignor, described.members.len()), ("range", 5), "what most wish");
}

#[test]
fn nothing_is_said_before_the_log_has_it_and_a_refused_write_undoes_everything() {
    let mut world = world(2);
    ask(&mut world, join("a"));
    world.commits_at_once = false;
    let joins = [start(&mut world, join("b")), start(&mut world, join("c")), start(&mut world, beat("a", 1))];
    assert_eq!(world.pending.len(), 1, "one write at a time");
    assert_eq!(joins.map(|reply| world.answer(reply)), ["-", "-", "-"]);
    world.report(WriteOutcome::Committed);
    assert_eq!(joins.map(|reply| world.answer(reply)), ["b e2 []", "-", "-"]);
    assert_eq!(world.pending.len(), 1, "what waited goes together");
    world.report(refused());
    assert_eq!(joins.map(|reply| world.answer(reply))[1..], ["CoordinatorNotAvailable"; 2]);
    assert_eq!(seen(&world), "Reconciling e2 a:e1[1-0 1-1] b:e2[]");
    world.commits_at_once = true;
    assert_eq!(ask(&mut world, beat("c", 3)), "UnknownMemberId");
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1 [1-0]");
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0)])), "a e2");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2 [1-1]");
}

#[test]
fn a_first_join_that_the_log_refuses_leaves_no_group() {
    let mut world = world(1);
    world.commits_at_once = false;
    let join = start(&mut world, join("a"));
    assert_eq!(world.delete(), "delete NonEmptyGroup");
    assert_eq!(world.list(), "list g:consumer:Empty:new");
    world.report(refused());
    assert_eq!(world.answer(join), "CoordinatorNotAvailable");
    assert!(world.shard.groups().is_empty());
}

#[test]
fn another_coordinator_goes_on_with_what_the_log_has() {
    let mut world = world(3);
    ask(&mut world, join("a"));
    ask(&mut world, join("b"));
    assert_eq!(ask(&mut world, beat("a", 1)), "a e1 [1-0 1-1]");
    let before = state(&world).clone();
    world.fail_over();
    assert_eq!(state(&world), &before);
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2");
    assert_eq!(ask(&mut world, owns("a", 1, &[(1, 0), (1, 1)])), "a e2");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2 [1-2]");
    world.fail_over();
    // Sessions begin with the office; so does the time to give up.
    world.pass(44_000);
    assert_eq!(ask(&mut world, beat("a", 2)), "a e2");
    world.pass(2_000);
    assert_eq!(ask(&mut world, beat("b", 2)), "UnknownMemberId");
}

#[test]
fn whoever_waits_when_the_office_ends_is_sent_away() {
    let mut world = world(1);
    world.commits_at_once = false;
    let replies = [start(&mut world, join("a")), start(&mut world, join("b"))];
    let effects = world.shard.abandon();
    let told: Vec<ReplyId> = effects
        .iter()
        .map(|effect| match effect {
            crate::groups::outbox::Effect::Answer(reply, Answer::ConsumerHeartbeat(Err(refusal))) => {
                assert_eq!(refusal.rejection, zurau_common::rejection::Rejection::NotCoordinator);
                *reply
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, replies);
}
