//! Rows for the leader's rules, and the rules against a twin that states them as plainly as possible.

use proptest::prelude::*;
use zurau_common::id::{ControllerEpoch, PartitionEpoch, TopicId, TopicPartition};

use super::*;

const RULES: LeaderRules =
    LeaderRules { min_insync_replicas: 2, unclean_election: false, lag_max_ms: 100, fetch_wait_max_ms: 10 };

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

fn stored(isr: &[i32], elr: &[i32], version: i32) -> StoredIsr {
    StoredIsr { isr: ids(isr), elr: ids(elr), partition_epoch: PartitionEpoch(version) }
}

fn order(hosts: &[i32], removing: &[i32]) -> LeaderAndIsr {
    LeaderAndIsr {
        partition: TopicPartition::new("t", 0),
        topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
        controller_epoch: ControllerEpoch(1),
        leader: BrokerId(1),
        leader_epoch: LeaderEpoch(5),
        isr: ids(hosts),
        partition_epoch: PartitionEpoch(0),
        replicas: ids(hosts),
        adding_replicas: Vec::new(),
        removing_replicas: ids(removing),
        is_new: false,
        recovery: false,
        state_version: 3,
        elr: Some(Vec::new()),
    }
}

fn leader_of(hosts: &[i32], removing: &[i32], stored: StoredIsr, rules: LeaderRules) -> Leader {
    let office = Office { own: BrokerId(1), broker_epoch: BrokerEpoch(7), epoch_start: 50, rules };
    Leader::new(office, &order(hosts, removing), stored, 0)
}

fn leader(isr: &[i32], elr: &[i32]) -> Leader {
    leader_of(&[1, 2, 3], &[], stored(isr, elr, 4), RULES)
}

fn fetch(leader: &mut Leader, follower: i32, offset: i64, now_ms: u64) {
    let fetch = FollowerFetch { offset, broker_epoch: Some(BrokerEpoch(1)), now_ms };
    assert!(leader.record_fetch(BrokerId(follower), fetch, 100));
    leader.record_answer(BrokerId(follower), now_ms, now_ms);
}

const ENDS: LogEnds = LogEnds { high_watermark: 40, log_end: 100 };

#[test]
fn isr_02_the_high_watermark_is_the_least_end_of_the_maximal_isr() {
    let mut leader = leader(&[1, 2], &[]);
    assert_eq!(leader.risen_high_watermark(ENDS), None, "2 has not fetched in this epoch");
    fetch(&mut leader, 3, 20, 1);
    fetch(&mut leader, 2, 60, 1);
    assert_eq!(leader.risen_high_watermark(ENDS), Some(60), "3 is no member");
    fetch(&mut leader, 3, 70, 2);
    let proposal = leader.propose(ENDS, 2).unwrap().clone();
    assert_eq!((proposal.isr, proposal.elr), (ids(&[1, 2, 3]), vec![]));
    assert_eq!(proposal.broker_epochs.len(), 3);
    fetch(&mut leader, 2, 90, 3);
    assert_eq!(leader.risen_high_watermark(ENDS), Some(70), "3 may be a member already");
    leader.hear_stored(stored(&[1, 2, 3], &[], 5), 0);
    fetch(&mut leader, 3, 95, 4);
    assert_eq!(leader.risen_high_watermark(ENDS), Some(90));
}

#[test]
fn isr_16_the_high_watermark_stands_while_too_few_are_in_sync_or_an_elr_exists() {
    let mut alone = leader(&[1], &[]);
    assert_eq!(alone.risen_high_watermark(ENDS), None, "one of two");
    alone.set_rules(LeaderRules { min_insync_replicas: 1, ..RULES });
    assert_eq!(alone.risen_high_watermark(ENDS), Some(100));

    let mut with_elr = leader(&[1], &[2]);
    with_elr.set_rules(LeaderRules { min_insync_replicas: 1, ..RULES });
    assert_eq!(with_elr.risen_high_watermark(ENDS), None, "the empty ELR must be stored first");
    let proposal = with_elr.propose(ENDS, 1).unwrap();
    assert_eq!((&proposal.isr, &proposal.elr), (&ids(&[1]), &vec![]));
    with_elr.hear_stored(stored(&[1], &[], 5), 0);
    assert_eq!(with_elr.risen_high_watermark(ENDS), Some(100));

    let single = leader_of(&[1], &[], stored(&[1], &[], 0), RULES);
    assert_eq!(single.risen_high_watermark(ENDS), Some(100), "min is at most the number of target replicas");
}

#[test]
fn members_that_lag_leave_and_stay_eligible_when_few_remain() {
    let mut leader = leader(&[1, 2, 3], &[]);
    fetch(&mut leader, 2, 100, 90);
    fetch(&mut leader, 3, 10, 90);
    assert_eq!(leader.propose(ENDS, 100), None);
    let proposal = leader.propose(ENDS, 101).unwrap();
    assert_eq!((&proposal.isr, &proposal.elr), (&ids(&[1, 2]), &vec![]));
    assert_eq!(leader.propose(ENDS, 102), None, "one at a time");
    leader.hear_stored(stored(&[1, 2], &[], 5), 0);

    let proposal = leader.propose(LogEnds { log_end: 101, ..ENDS }, 400).unwrap().clone();
    assert_eq!((&proposal.isr, &proposal.elr), (&ids(&[1]), &ids(&[2])));
    leader.refuse_proposal(400);
    assert_eq!(leader.propose(LogEnds { log_end: 101, ..ENDS }, 500), None, "not again at once");
    assert!(leader.propose(LogEnds { log_end: 101, ..ENDS }, 1_400).is_some());
}

#[test]
fn jep_01_who_was_thrown_out_for_its_lag_is_not_taken_in_before_it_fetches() {
    let mut leader = leader(&[1, 2, 3], &[]);
    for follower in [2, 3] {
        fetch(&mut leader, follower, 99, 1);
    }
    let ends = LogEnds { high_watermark: 99, log_end: 100 };
    let proposal = leader.propose(ends, 200).unwrap();
    assert_eq!((&proposal.isr, &proposal.elr), (&ids(&[1]), &ids(&[2, 3])));
    leader.hear_stored(stored(&[1], &[2, 3], 5), 200);
    assert_eq!(leader.propose(ends, 201), None, "they hold what is committed, and do not fetch");
    fetch(&mut leader, 2, 100, 300);
    assert_eq!(leader.propose(ends, 300).unwrap().isr, ids(&[1, 2]));
}

#[test]
fn isr_05_a_dead_follower_leaves_at_once() {
    let mut leader = leader(&[1, 2, 3], &[]);
    fetch(&mut leader, 2, 100, 5);
    fetch(&mut leader, 3, 100, 50);
    leader.record_live_brokers(|id| id == BrokerId(1), 55);
    let proposal = leader.propose(ENDS, 55).unwrap();
    assert_eq!(proposal.isr, ids(&[1, 3]), "3 has just fetched; it may be cut off from ZooKeeper only");
    leader.hear_stored(stored(&[1, 3], &[], 5), 0);
    assert_eq!(leader.propose(ENDS, 60).unwrap().isr, ids(&[1]));
}

#[test]
fn hw_05_isr_05_isr_06_who_may_join() {
    //   offset, registration known, alive, expected
    let rows = [
        (100, true, true, true),
        (50, true, true, true),
        (49, true, true, false), // below the start of the epoch
        (100, false, true, false),
        (100, true, false, false),
    ];
    for (offset, known, alive, expected) in rows {
        let mut leader = leader(&[1, 2], &[]);
        let broker_epoch = known.then_some(BrokerEpoch(3));
        leader.record_fetch(BrokerId(3), FollowerFetch { offset, broker_epoch, now_ms: 1 }, 100);
        leader.record_live_brokers(|id| alive || id != BrokerId(3), 1);
        assert_eq!(leader.propose(ENDS, 1).is_some(), expected, "{offset} {known} {alive}");
    }
    let mut leader = leader(&[1, 2], &[]);
    fetch(&mut leader, 3, 60, 1);
    let ahead = LogEnds { high_watermark: 61, log_end: 100 };
    assert_eq!(leader.propose(ahead, 1), None, "below the high watermark");
    assert!(!leader.record_fetch(BrokerId(9), FollowerFetch { offset: 0, broker_epoch: None, now_ms: 1 }, 1));
}

#[test]
fn rsn_07_isr_12_a_move_ends_by_dropping_the_old_replicas_for_good() {
    let mut leader = leader_of(&[1, 2, 3, 4], &[4], stored(&[1, 2, 4], &[], 4), RULES);
    assert_eq!(leader.propose(ENDS, 1), None, "3 is not in sync yet");
    fetch(&mut leader, 3, 100, 1);
    assert_eq!(leader.propose(ENDS, 1).unwrap().isr, ids(&[1, 2, 4, 3]));
    leader.hear_stored(stored(&[1, 2, 4, 3], &[], 5), 0);
    assert_eq!(leader.propose(ENDS, 2).unwrap().isr, ids(&[1, 2, 3]));
    leader.hear_stored(stored(&[1, 2, 3], &[], 6), 0);
    fetch(&mut leader, 4, 100, 3);
    assert_eq!(leader.propose(ENDS, 3), None, "N11");
}

#[test]
fn hw_14_the_committed_end_is_unknown_until_the_start_of_the_epoch_is_committed() {
    let leader = leader(&[1, 2], &[]);
    for (high_watermark, known) in [(0, false), (49, false), (50, true), (99, true)] {
        assert_eq!(leader.knows_the_committed_end(high_watermark), known, "{high_watermark}");
    }
}

/// The answer alone moves the high watermark: no fetch comes after it.
#[test]
fn isr_04_a_stored_shrink_lets_the_high_watermark_rise() {
    let mut leader = leader(&[1, 2, 3], &[]);
    fetch(&mut leader, 2, 100, 50);
    leader.record_live_brokers(|id| id != BrokerId(3), 50);
    assert_eq!(leader.propose(ENDS, 50).unwrap().isr, ids(&[1, 2]));
    assert_eq!(leader.risen_high_watermark(ENDS), None, "3 may be a member still");
    leader.hear_stored(stored(&[1, 2], &[], 5), 0);
    assert_eq!(leader.risen_high_watermark(ENDS), Some(100));
}

#[test]
fn serving_without_a_lease() {
    let mut leader = leader(&[1, 2], &[]);
    assert!(!leader.may_serve_without_lease(5), "2 has not fetched in this epoch");
    fetch(&mut leader, 2, 100, 5);
    assert!(leader.may_serve_without_lease(5 + 1_020));
    assert!(!leader.may_serve_without_lease(5 + 1_021));
    leader.set_rules(LeaderRules { unclean_election: true, ..RULES });
    assert!(!leader.may_serve_without_lease(5) && !leader.acknowledges_without_lease());
    leader.set_rules(RULES);
    fetch(&mut leader, 3, 100, 6);
    leader.propose(ENDS, 6).unwrap();
    assert!(leader.may_serve_without_lease(7), "3 counts as well, and has fetched");
}

/// The same rules, said once more without regard for anything but plainness.
#[derive(Default)]
struct Twin {
    isr: Vec<i32>,
    elr: Vec<i32>,
    proposed: Option<(Vec<i32>, Vec<i32>)>,
    ends: std::collections::HashMap<i32, i64>,
    high_watermark: i64,
}

impl Twin {
    fn high_watermark(&self, log_end: i64, min: usize) -> i64 {
        let proposed_elr = self.proposed.as_ref().is_some_and(|(_, elr)| !elr.is_empty());
        if self.isr.len() < min || !self.elr.is_empty() || proposed_elr {
            return self.high_watermark;
        }
        let mut least = log_end;
        for id in [2, 3, 4] {
            let counts =
                self.isr.contains(&id) || self.proposed.as_ref().is_some_and(|(isr, _)| isr.contains(&id));
            if counts {
                least = least.min(self.ends.get(&id).copied().unwrap_or(-1));
            }
        }
        least.max(self.high_watermark)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append(i64),
    Fetch(i32, i64),
    Tick(u64),
    Stored,
    Refused,
    Gone(i32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..20i64).prop_map(Step::Append),
        (2..5i32, 0..120i64).prop_map(|(id, offset)| Step::Fetch(id, offset)),
        (1..80u64).prop_map(Step::Tick),
        Just(Step::Stored),
        Just(Step::Refused),
        (2..5i32).prop_map(Step::Gone),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn agrees_with_the_twin(steps in steps(), min in 1..4usize) {
        let rules = LeaderRules { min_insync_replicas: min, ..RULES };
        let mut leader = leader_of(&[1, 2, 3, 4], &[], stored(&[1, 2, 3], &[], 0), rules);
        let mut twin = Twin { isr: vec![1, 2, 3], ..Twin::default() };
        let (mut log_end, mut now_ms, mut version) = (50, 0, 0);
        for step in steps {
            match step {
                Step::Append(count) => log_end += count,
                Step::Fetch(id, offset) => {
                    let offset = offset.min(log_end);
                    let fetch = FollowerFetch { offset, broker_epoch: Some(BrokerEpoch(1)), now_ms };
                    leader.record_fetch(BrokerId(id), fetch, log_end);
                    leader.record_answer(BrokerId(id), now_ms, now_ms);
                    twin.ends.insert(id, offset);
                }
                Step::Tick(ms) => now_ms += ms,
                Step::Stored => if let Some((isr, elr)) = twin.proposed.take() {
                    version += 1;
                    leader.hear_stored(stored(&isr, &elr, version), 0);
                    (twin.isr, twin.elr) = (isr, elr);
                },
                Step::Refused => {
                    leader.refuse_proposal(now_ms);
                    twin.proposed = None;
                }
                Step::Gone(gone) => leader.record_live_brokers(|id| id.0 != gone, now_ms),
            }
            let ends = LogEnds { high_watermark: twin.high_watermark, log_end };
            let risen = leader.risen_high_watermark(ends).unwrap_or(ends.high_watermark);
            prop_assert_eq!(risen, twin.high_watermark(log_end, min));
            twin.high_watermark = risen;
            let ends = LogEnds { high_watermark: risen, log_end };
            if leader.is_complete() {
                // A fetch may be answered without looking for a change; only time and deaths bring one.
                let mut later = leader.clone();
                let change = later.propose(ends, now_ms).map(|proposal| proposal.isr.len());
                prop_assert!(change.is_none_or(|members| members < 4));
            }
            if let Some(proposal) = leader.propose(ends, now_ms) {
                let (isr, elr) = (&proposal.isr, &proposal.elr);
                prop_assert!(isr.contains(&BrokerId(1)), "a leader never leaves itself out");
                prop_assert_eq!(proposal.partition_epoch, PartitionEpoch(version));
                prop_assert!(elr.iter().all(|id| !isr.contains(id)));
                prop_assert_eq!(min <= isr.len(), elr.is_empty() || min <= isr.len() && elr.is_empty());
                for id in isr.iter().filter(|id| id.0 != 1 && !twin.isr.contains(&id.0)) {
                    let end = twin.ends.get(&id.0).copied().unwrap_or(-1);
                    prop_assert!(risen.max(50) <= end, "R13: {id} at {end}");
                }
                let plain = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
                twin.proposed = Some((plain(isr), plain(elr)));
            }
        }
    }
}
