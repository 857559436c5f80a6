//! Rows of the acceptance table, and what a change of role keeps and forgets.

use zurau_common::id::{BrokerEpoch, TopicPartition};

use super::leader::LeaderRules;
use super::*;

pub(super) fn topic_id() -> TopicId {
    TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap()
}

pub(super) fn order(leader: i32, leader_epoch: i32) -> LeaderAndIsr {
    let ids = vec![BrokerId(1), BrokerId(2)];
    LeaderAndIsr {
        partition: TopicPartition::new("t", 0),
        topic_id: topic_id(),
        controller_epoch: ControllerEpoch(3),
        leader: BrokerId(leader),
        leader_epoch: LeaderEpoch(leader_epoch),
        isr: ids.clone(),
        partition_epoch: PartitionEpoch(4),
        replicas: ids,
        adding_replicas: Vec::new(),
        removing_replicas: Vec::new(),
        is_new: false,
        recovery: false,
        state_version: 8,
        elr: None,
    }
}

const EMPTY: LogFacts = LogFacts { latest_epoch: None, is_empty: true };

fn log(latest_epoch: i32) -> LogFacts {
    LogFacts { latest_epoch: Some(LeaderEpoch(latest_epoch)), is_empty: false }
}

fn fresh() -> Replica {
    Replica::new(BrokerId(1), topic_id(), TruncationPath::Fetch)
}

fn following(leader_epoch: i32) -> Replica {
    let mut replica = fresh();
    replica.follow(&order(2, leader_epoch));
    replica
}

pub(super) fn office() -> Office {
    let rules =
        LeaderRules { min_insync_replicas: 1, unclean_election: false, lag_max_ms: 9, fetch_wait_max_ms: 9 };
    Office { own: BrokerId(1), broker_epoch: BrokerEpoch(2), epoch_start: 0, rules }
}

pub(super) fn stored() -> StoredIsr {
    StoredIsr { isr: vec![BrokerId(1), BrokerId(2)], elr: Vec::new(), partition_epoch: PartitionEpoch(5) }
}

#[test]
fn ctl_02_ctl_20_the_acceptance_table() {
    let fresh = fresh();
    let create = LeaderAndIsr { partition_epoch: PartitionEpoch::CREATE, is_new: true, ..order(1, 0) };
    let is_new = LeaderAndIsr { is_new: true, ..order(2, 0) };
    let foreign = LeaderAndIsr { topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEQ").unwrap(), ..order(2, 9) };
    let old_controller = LeaderAndIsr { controller_epoch: ControllerEpoch(2), ..order(1, 9) };
    let refuse = Verdict::Refuse;
    let rows = [
        ("new topic, leader", &fresh, &create, EMPTY, Verdict::TakeOffice),
        ("new topic, follower", &fresh, &is_new, EMPTY, Verdict::Follow),
        ("N4: create over records", &fresh, &create, log(-1), refuse(Rejection::IneligibleReplica)),
        ("N4: new over records", &fresh, &is_new, log(-1), refuse(Rejection::IneligibleReplica)),
        ("new again, own epoch", &fresh, &is_new, log(0), Verdict::Follow),
        ("D11", &fresh, &foreign, EMPTY, refuse(Rejection::InconsistentTopicId)),
        ("F5: led before", &fresh, &order(1, 5), log(5), refuse(Rejection::FencedLeaderEpoch)),
        ("F5: history ahead", &fresh, &order(1, 5), log(6), refuse(Rejection::FencedLeaderEpoch)),
        ("history ahead, follower", &fresh, &order(2, 5), log(6), refuse(Rejection::FencedLeaderEpoch)),
        ("follow in the own epoch", &fresh, &order(2, 5), log(5), Verdict::Follow),
        ("M4: lower leader epoch", &following(5), &order(2, 4), log(3), refuse(Rejection::FencedLeaderEpoch)),
        (
            "M4: old controller",
            &following(5),
            &old_controller,
            log(3),
            refuse(Rejection::StaleControllerEpoch),
        ),
        ("same again", &following(5), &order(2, 5), log(3), Verdict::Known(Ok(()))),
        ("next epoch", &following(5), &order(1, 6), log(5), Verdict::TakeOffice),
    ];
    for (name, replica, order, log, expected) in rows {
        assert_eq!(replica.judge(order, log), expected, "{name}");
    }
}

#[test]
fn ctl_21_a_refusal_is_repeated_and_a_stop_is_not() {
    let mut replica = following(5);
    replica.begin_take_over(&order(1, 6));
    replica.refuse_office(&order(1, 6), Rejection::KafkaStorageError);
    let known = Verdict::Known(Err(Rejection::KafkaStorageError));
    assert_eq!(replica.judge(&order(1, 6), log(6)), known);
    let mut stopped = following(5);
    stopped.stop(None);
    assert_eq!(stopped.judge(&order(2, 5), log(5)), Verdict::Follow);
    let mut forgotten = following(5);
    forgotten.forget();
    assert_eq!(forgotten.judge(&order(2, 5), log(5)), Verdict::Follow, "L11");
}

#[test]
fn only_a_leader_keeps_its_waiting_acknowledgements() {
    let mut replica = following(5);
    assert!(!replica.begin_take_over(&order(1, 6)));
    assert!(replica.leader().is_none(), "nothing is served before the take-over is stored");
    assert!(replica.take_office(&order(1, 6), office(), stored(), 0));
    assert_eq!(replica.leader_in(LeaderEpoch(6)).unwrap().isr().stored(), &stored());
    assert!(replica.begin_take_over(&order(1, 7)), "N19");
    assert!(!replica.take_office(&order(1, 6), office(), stored(), 0), "a take-over of the past");
    assert!(replica.begin_take_over(&order(1, 8)), "N19: the next epoch comes before the office of the last");
    assert!(replica.take_office(&order(1, 8), office(), stored(), 0));
}

#[test]
fn hw_04_one_rule_for_epochs() {
    let current = LeaderEpoch(5);
    assert_eq!(check_epoch(LeaderEpoch::UNKNOWN, current), Ok(()));
    assert_eq!(check_epoch(LeaderEpoch(5), current), Ok(()));
    assert_eq!(check_epoch(LeaderEpoch(4), current), Err(Rejection::FencedLeaderEpoch));
    assert_eq!(check_epoch(LeaderEpoch(6), current), Err(Rejection::UnknownLeaderEpoch));
    let follower = following(5);
    assert_eq!(follower.leader_in(LeaderEpoch(4)).err(), Some(Rejection::FencedLeaderEpoch));
    assert_eq!(follower.leader_in(LeaderEpoch(5)).err(), Some(Rejection::NotLeaderOrFollower));
}

#[test]
fn ctl_04_who_may_be_deleted() {
    let host = following(5);
    let mut former = following(5);
    former.follow(&LeaderAndIsr { replicas: vec![BrokerId(2)], ..order(2, 6) });
    let fresh = fresh();
    let rows = [
        (&host, 4, false),
        (&host, 5, false),
        (&host, 6, true),
        (&former, 5, false),
        (&former, 6, true),
        (&fresh, 0, true),
    ];
    for (replica, epoch, expected) in rows {
        assert_eq!(replica.may_delete(LeaderEpoch(epoch)), expected, "{:?} {epoch}", replica.view());
    }
}
