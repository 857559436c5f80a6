//! Which copy is taken for the best, which are in sync, and what is said of the others.

use super::plan::{Directory, Partition, Plan, plan};
use super::plan_tests::{home, ids, log};
use zurau_broker::log::{LeaderEpochs, SurveyedLog};
use zurau_common::id::TopicPartition;

fn history(entries: &[(i32, i64)]) -> LeaderEpochs {
    let mut history = LeaderEpochs::default();
    entries.iter().for_each(|(epoch, start)| {
        history.assign(*epoch, *start);
    });
    history
}

fn partition(plan: &Plan) -> &Partition {
    &plan.topics["t"].partitions[&0]
}

fn in_directory(path: &str, log: SurveyedLog) -> Directory {
    Directory { path: path.into(), ..home(1, 7, vec![log]) }
}

#[test]
fn the_best_copy_is_named_with_the_reason_and_what_the_others_lack() {
    let logs = [
        SurveyedLog { history: history(&[(2, 0), (4, 6)]), ..log("t", 0, 0, (4, 10)) },
        SurveyedLog { history: history(&[(2, 0), (4, 6)]), ..log("t", 0, 0, (4, 8)) },
        SurveyedLog { history: history(&[(2, 0), (3, 5)]), ..log("t", 0, 0, (3, 90)) },
        SurveyedLog { history: history(&[(2, 0), (4, 6)]), ..log("t", 0, 0, (4, 10)) },
    ];
    let homes: Vec<Directory> = (1..).zip(logs).map(|(broker, log)| home(broker, 7, vec![log])).collect();
    let found = plan(&homes).unwrap();
    assert_eq!(partition(&found).isr, ids(&[1, 4]));
    assert_eq!(partition(&found).hosts, ids(&[1, 2, 3, 4]), "the others stay assigned");
    assert_eq!(
        partition(&found).reasons,
        [
            "best: broker 1's in /1 and broker 4's in /4, which ends at 10 with epoch 4; none of those that end in this epoch is \
             longer",
            "not in sync: broker 2's in /2, which ends at 8 with epoch 4; 2 offsets are missing and will be fetched",
            "not in sync: broker 3's in /3, which ends at 90 with epoch 3 and is another history from 5 on; those 85 offsets are \
             cut off",
        ]
    );
    let equal = plan(&[home(1, 7, vec![log("t", 0, 0, (4, 10))])]).unwrap();
    assert_eq!(partition(&equal).reasons, ["all copies end at 10 with epoch 4"]);
}

#[test]
fn of_two_copies_of_one_broker_the_one_counts_that_its_start_takes() {
    let with = |precedence, end| SurveyedLog { precedence, ..log("t", 0, 0, end) };
    //   precedence and end of the copies in /a and /b; who is in sync with 2, which ends at (4, 10)
    type Row = ([((u64, Option<i64>), (i32, i64)); 2], &'static [i32], &'static str);
    let rows: [Row; 4] = [
        ([((1, Some(2)), (4, 10)), ((0, Some(9)), (4, 9))], &[1, 2], "move 1"),
        ([((0, Some(9)), (4, 10)), ((2, Some(2)), (4, 9))], &[2], "has more in it"),
        ([((0, Some(5)), (3, 7)), ((0, Some(9)), (4, 10))], &[1, 2], "known to reach 9, the other one 5"),
        ([((0, Some(9)), (4, 10)), ((0, Some(9)), (4, 10))], &[1, 2], "equal"),
    ];
    for ([a, b], isr, told) in rows {
        for turned in [false, true] {
            let mut homes = vec![in_directory("/a", with(a.0, a.1)), in_directory("/b", with(b.0, b.1))];
            if turned {
                homes.reverse();
            }
            homes.push(home(2, 7, vec![log("t", 0, 0, (4, 10))]));
            let found = plan(&homes).unwrap();
            assert_eq!(partition(&found).isr, ids(isr), "{a:?} {b:?}");
            assert!(found.warnings.iter().any(|warning| warning.contains(told)), "{:?}", found.warnings);
        }
    }
    let unclear = [
        in_directory("/a", with((1, Some(9)), (4, 10))),
        in_directory("/b", with((1, Some(9)), (4, 9))),
        home(2, 7, vec![log("t", 0, 0, (4, 10))]),
    ];
    let error = plan(&unclear).unwrap_err();
    assert!(error.contains("/a and /b, and nothing tells which one is the later"), "{error}");
}

#[test]
fn a_copy_that_its_broker_will_not_take_counts_for_no_topic() {
    // The directory that the start takes is of another incarnation.
    let homes = [
        in_directory("/a", SurveyedLog { precedence: (0, Some(1)), ..log("t", 0, 0, (4, 10)) }),
        in_directory("/b", SurveyedLog { precedence: (0, Some(9)), ..log("t", 0, 1, (1, 20)) }),
        home(2, 7, vec![log("t", 0, 0, (4, 10))]),
        home(3, 7, vec![log("t", 0, 0, (4, 10))]),
    ];
    assert_eq!(partition(&plan(&homes).unwrap()).hosts, ids(&[2, 3]));
}

#[test]
fn committed_records_that_no_copy_has_are_a_loss() {
    let of = |entries: &[(i32, i64)], end: i64, committed: i64| {
        let (last_epoch, _) = *entries.last().unwrap();
        SurveyedLog { history: history(entries), committed, ..log("t", 0, 0, (last_epoch, end)) }
    };
    let compacted = |log: SurveyedLog| SurveyedLog { compacted: true, ..log };
    let plain = || of(&[(2, 0), (4, 6)], 10, 8);
    //   the copy of broker 2, beside a `plain` one; up to where its committed records are there
    let rows: [(SurveyedLog, Option<i64>); 6] = [
        (plain(), None),
        (of(&[(2, 0), (4, 6)], 5, 10), None),
        // Recovery cut both, and here is more gone than the other has.
        (of(&[(2, 0), (4, 6)], 5, 11), Some(10)),
        // It was overruled by an unclean election, or the copy that had its records is not here.
        (of(&[(2, 0), (3, 5)], 9, 7), Some(5)),
        (of(&[(2, 0), (3, 5)], 9, 5), None),
        (compacted(of(&[(2, 0), (3, 5)], 9, 7)), None),
    ];
    for (other, shared) in rows {
        let found = plan(&[home(1, 7, vec![plain()]), home(2, 7, vec![other.clone()])]).unwrap();
        let loss = shared.map(|shared| format!("only what is below {shared} of that"));
        match loss {
            None => assert_eq!(found.losses, [""; 0], "{other:?}"),
            Some(loss) => {
                assert_eq!(found.losses.len(), 1, "{:?}", found.losses);
                assert!(found.losses[0].contains("broker 2's in /2") && found.losses[0].contains(&loss));
            }
        }
        assert!(found.topics["t"].partitions[&0].isr.contains(&ids(&[1])[0]), "the best there is");
    }
}

#[test]
fn partitions_are_judged_one_by_one() {
    let logs =
        |ends: [(i32, i64); 2]| (0..).zip(ends).map(|(number, end)| log("t", number, 0, end)).collect();
    let homes = [home(1, 7, logs([(1, 5), (1, 6)])), home(2, 7, logs([(1, 6), (1, 5)]))];
    let found = plan(&homes).unwrap();
    let isr: Vec<_> = found.topics["t"].partitions.values().map(|partition| partition.isr.clone()).collect();
    assert_eq!(isr, [ids(&[2]), ids(&[1])]);
    assert!(homes[0].highest_epochs.contains_key(&TopicPartition::new("t", 1)));
}
