//! Members with an instance id: they keep their place while they are away.

use super::*;

fn instance(request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { instance_id: Some("i".into()), ..request }
}

#[test]
fn a_static_member_that_is_back_in_time_takes_its_place_without_a_rebalance() {
    let mut world = world(2);
    assert_eq!(ask(&mut world, instance(join("a"))), "a e1 [1-0 1-1]");
    ask(&mut world, join("b"));
    ask(&mut world, beat("a", 1));
    ask(&mut world, owns("a", 1, &[(1, 0)]));
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2 [1-1]");
    assert_eq!(ask(&mut world, instance(beat("a", -2))), "a e-2");
    assert_eq!(seen(&world), "Reconciling e2 a:e-2[1-0] b:e2[1-1]");
    assert_eq!(ask(&mut world, instance(beat("a", 2))), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, instance(join("a2"))), "a2 e2 [1-0]");
    assert_eq!(seen(&world), "Stable e2 a2:e2[1-0] b:e2[1-1]", "the group's epoch is the same");
    assert_eq!(ask(&mut world, instance(beat("a", 2))), "FencedInstanceId");
    assert_eq!(ask(&mut world, beat("a", 2)), "UnknownMemberId");
    assert_eq!(ask(&mut world, beat("b", 2)), "b e2");
    let before = state(&world).clone();
    world.fail_over();
    assert_eq!(state(&world), &before);
}

#[test]
fn the_same_id_may_come_back_too() {
    let mut world = world(1);
    ask(&mut world, instance(join("a")));
    ask(&mut world, instance(beat("a", -2)));
    assert_eq!(ask(&mut world, instance(join("a"))), "a e1 [1-0]");
    assert_eq!(seen(&world), "Stable e1 a:e1[1-0]");
}

#[test]
fn an_instance_id_is_free_only_after_a_leave_or_a_silence() {
    let mut world = world(1);
    ask(&mut world, instance(join("a")));
    assert_eq!(ask(&mut world, instance(join("b"))), "UnreleasedInstanceId");
    assert_eq!(ask(&mut world, instance(beat("b", 1))), "FencedInstanceId");
    assert_eq!(ask(&mut world, instance(beat("b", -1))), "FencedInstanceId");
    let other = |request| ConsumerHeartbeatRequest { instance_id: Some("other".into()), ..request };
    assert_eq!(ask(&mut world, other(beat("b", 1))), "UnknownMemberId");
    assert_eq!(ask(&mut world, other(beat("b", -2))), "UnknownMemberId");
    ask(&mut world, instance(beat("a", -2)));
    world.pass(45_000);
    assert_eq!(seen(&world), "Empty e2");
    assert_eq!(ask(&mut world, instance(join("b"))), "b e3 [1-0]");
    assert_eq!(ask(&mut world, instance(beat("b", -1))), "b e-1");
    assert_eq!(ask(&mut world, instance(join("c"))), "c e5 [1-0]");
}

#[test]
fn a_lost_answer_to_the_join_of_a_static_member_is_no_conflict() {
    let mut world = world(1);
    assert_eq!(ask(&mut world, instance(join("a"))), "a e1 [1-0]");
    assert_eq!(ask(&mut world, instance(join("a"))), "a e1 [1-0]");
}
