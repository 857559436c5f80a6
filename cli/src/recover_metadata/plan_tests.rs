//! What follows from what is found in the directories.

use super::plan::*;
use super::*;
use zurau_broker::log::{Incarnation, LeaderEpochs, SurveyedLog};
use zurau_common::id::{TopicId, TopicPartition};

fn topic_id(number: u8) -> TopicId {
    let digit = char::from(b'A' + number);
    TopicId::parse(&format!("AQIDBAUGBwgJCgsMDQ4P{digit}A")).unwrap()
}

/// A log of broker's directory: partition, last epoch, log end.
pub(super) fn log(
    topic: &str,
    partition: i32,
    id: u8,
    (last_epoch, log_end_offset): (i32, i64),
) -> SurveyedLog {
    let mut history = LeaderEpochs::default();
    if 0 <= last_epoch {
        history.assign(last_epoch, 0);
    }
    SurveyedLog {
        partition: TopicPartition::new(topic, partition),
        topic_id: Some(topic_id(id)),
        last_epoch,
        history,
        log_end_offset,
        committed: 0,
        precedence: (0, None),
        highest_producer_id: log_end_offset,
        compacted: false,
    }
}

pub(super) fn home(broker: i32, registration: i64, logs: Vec<SurveyedLog>) -> Directory {
    let boot_id = "boot".to_owned();
    Directory {
        path: format!("/{broker}").into(),
        broker: BrokerId(broker),
        cluster_id: "c".to_owned(),
        incarnation: Some(Incarnation { id: registration, next_id: -1, boot_id, clean: true }),
        highest_epochs: logs.iter().map(|log| (log.partition.clone(), log.last_epoch)).collect(),
        logs,
    }
}

pub(super) fn ids(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

#[test]
fn the_in_sync_replicas_are_those_that_must_have_every_committed_record() {
    //   (last epoch, log end) of brokers 1, 2, 3; who is in sync; log end
    type Row = ([(i32, i64); 3], &'static [i32], i64);
    let rows: [Row; 5] = [
        ([(4, 10), (4, 10), (4, 10)], &[1, 2, 3], 10),
        ([(4, 10), (4, 9), (4, 10)], &[1, 3], 10),
        // A longer log of an older epoch ends with records that were never committed.
        ([(4, 90), (5, 12), (5, 11)], &[2], 12),
        ([(-1, 0), (-1, 0), (0, 1)], &[3], 1),
        ([(-1, 0), (-1, 0), (-1, 0)], &[1, 2, 3], 0),
    ];
    for (ends, isr, log_end) in rows {
        let homes: Vec<Directory> =
            (1..).zip(ends).map(|(broker, end)| home(broker, 7, vec![log("t", 0, 0, end)])).collect();
        let plan = plan(&homes).unwrap();
        let partition = &plan.topics["t"].partitions[&0];
        assert_eq!((&partition.isr, partition.log_end_offset), (&ids(isr), log_end), "{ends:?}");
        let highest = ends.iter().map(|(epoch, _)| *epoch).max().unwrap();
        assert!(
            highest < partition.leader_epoch,
            "{ends:?}: an epoch that a log knows would be led twice (F5)"
        );
        assert_eq!(plan.warnings, [""; 0]);
    }
}

#[test]
fn leader_epochs_go_above_all_that_any_disk_knows() {
    let homes = |other: i32| {
        let mut homes = [home(1, 7, vec![log("t", 0, 0, (1, 5))]), home(2, 7, vec![log("t", 0, 0, (1, 5))])];
        // Of a copy that was set aside, or of another incarnation.
        homes[1].highest_epochs.insert(TopicPartition::new("t", 0), other);
        homes
    };
    let found = plan(&homes(70_000)).unwrap();
    assert!(70_000 < found.topics["t"].partitions[&0].leader_epoch, "F5, CLI-11");
    let error = plan(&homes(i32::MAX)).unwrap_err();
    assert!(error.contains("t-0") && error.contains("2147483647"), "{error}");
}

#[test]
fn leaders_are_spread_and_ids_of_producers_are_not_given_twice() {
    let logs = || (0..3).map(|partition| log("t", partition, 0, (1, 5))).collect::<Vec<_>>();
    let plan = plan(&[home(1, 7, logs()), home(2, 8, logs()), home(3, 9, logs())]).unwrap();
    let leaders: Vec<_> =
        plan.topics["t"].partitions.values().map(|partition| partition.hosts[0].0).collect();
    assert_eq!(leaders, [1, 2, 3]);
    assert_eq!(plan.brokers.values().copied().collect::<Vec<_>>(), [7, 8, 9]);
    assert!(5 < plan.last_producer_id);
    let writes = plan.topics["t"].writes(&"t".into());
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0][0].path(), format!("/brokers/topic_ids/{}", topic_id(0)));
    assert_eq!(writes[0].len(), 2 + 3 * 4);
}

#[test]
fn what_is_missing_or_contradicts_itself_is_told() {
    let error = plan(&[home(1, 7, vec![log("t", 1, 0, (1, 5))])]).unwrap_err();
    assert!(error.contains("holds partitions [0]"), "{error}");
    let other = Directory { cluster_id: "d".to_owned(), ..home(2, 7, Vec::new()) };
    let error = plan(&[home(1, 7, Vec::new()), other]).unwrap_err();
    assert!(error.contains("different clusters"), "{error}");
    let twice = [home(1, 7, vec![log("t", 0, 0, (1, 5))]), home(2, 7, vec![log("t", 0, 1, (1, 5))])];
    assert!(plan(&twice).unwrap_err().contains("more than once"));

    let logs =
        |partitions: &[i32], id| partitions.iter().map(|number| log("t", *number, id, (1, 5))).collect();
    let found =
        plan(&[home(1, 7, logs(&[0, 1], 0)), home(2, 7, logs(&[0], 0)), home(3, 7, logs(&[0], 1))]).unwrap();
    assert_eq!(found.topics["t"].id, topic_id(0));
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    assert!(found.warnings[0].contains("another incarnation"), "{:?}", found.warnings);
    assert!(found.warnings[1].contains("t-1 is only on [1]"), "{:?}", found.warnings);
}

#[test]
fn a_broker_whose_directories_disagree_counts_as_incomplete() {
    let of = |id, next_id| {
        let incarnation = Incarnation { id, next_id, boot_id: String::new(), clean: true };
        Directory { incarnation: Some(incarnation), ..home(1, 7, Vec::new()) }
    };
    let rows: [(Vec<Directory>, i64); 5] = [
        (vec![of(5, -1), of(5, 9)], 5),
        // The next registration was taken, and one directory could not be written any more.
        (vec![of(9, -1), of(5, 9)], 9),
        (vec![of(5, -1), of(3, -1), of(5, -1)], 5),
        (vec![of(5, -1), of(3, -1)], -1),
        (vec![Directory { incarnation: None, ..home(1, 7, Vec::new()) }], -1),
    ];
    for (mut homes, expected) in rows {
        for (index, home) in homes.iter_mut().enumerate() {
            home.path = format!("/{index}").into();
        }
        assert_eq!(plan(&homes).unwrap().brokers[&BrokerId(1)], expected, "{homes:?}");
    }
}

#[test]
fn nothing_is_deleted_before_its_admin_has_spoken() {
    let compacted = SurveyedLog { compacted: true, ..log("c", 0, 1, (1, 5)) };
    let logs = vec![log("t", 0, 0, (1, 5)), compacted, log("__consumer_offsets", 0, 2, (1, 5))];
    let plan = plan(&[home(1, 7, logs)]).unwrap();
    let config = |topic: &str| String::from_utf8(plan.topics[topic].config()).unwrap();
    assert!(config("t").contains(r#""retention.ms":"-1""#), "{}", config("t"));
    for topic in ["c", "__consumer_offsets"] {
        assert!(config(topic).contains(r#""cleanup.policy":"compact""#), "{}", config(topic));
    }
}
