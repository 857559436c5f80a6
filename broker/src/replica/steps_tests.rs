//! What a follower asks in which order, for each way of truncation, and what the leader of one that asks answers.

use super::super::tests::{office, order, stored, topic_id};
use super::*;
use crate::log::LeaderEpochs;
use crate::replica::follower::Asked::{EpochEnd, Records};

/// A log without records' contents: the epoch of each.
struct Log {
    records: Vec<i32>,
    epochs: LeaderEpochs,
    high_watermark: i64,
}

impl Log {
    fn new(records: &[i32]) -> Self {
        let mut epochs = LeaderEpochs::default();
        for (offset, epoch) in (0..).zip(records) {
            epochs.assign(*epoch, offset);
        }
        Self { records: records.to_vec(), epochs, high_watermark: 0 }
    }
}

impl ReplicaLog for Log {
    fn log_start_offset(&self) -> i64 {
        0
    }

    fn log_end_offset(&self) -> i64 {
        self.records.len() as i64
    }

    fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    fn update_high_watermark(&mut self, high_watermark: i64) {
        self.high_watermark = high_watermark;
    }

    fn latest_epoch(&self) -> Option<i32> {
        self.epochs.latest().map(|entry| entry.leader_epoch)
    }

    fn epoch_at(&self, offset: i64) -> Option<i32> {
        self.epochs.epoch_at(offset)
    }

    fn end_offset_for_epoch(&self, epoch: i32) -> EpochEndOffset {
        let end = self.epochs.end_offset_for(epoch, self.log_end_offset());
        EpochEndOffset { leader_epoch: end.leader_epoch, end_offset: end.end_offset }
    }
}

fn following(path: TruncationPath) -> Replica {
    let mut replica = Replica::new(BrokerId(1), topic_id(), path);
    replica.follow(&order(2, 9));
    replica
}

/// What is asked, from which offset and epoch.
fn question(replica: &Replica, log: &Log) -> (Asked, i64, i32) {
    let position = fetch_position(replica, log).unwrap();
    (position.asked, position.offset, position.last_fetched_epoch)
}

#[test]
fn hw_01_nothing_is_fetched_before_the_histories_agree() {
    let mut replica = following(TruncationPath::OffsetsForLeaderEpoch);
    let mut log = Log::new(&[0, 0, 1, 3]);
    assert_eq!(question(&replica, &log), (EpochEnd, 4, 3));
    let asked = fetch_position(&replica, &log).unwrap();
    let answer =
        |leader_epoch, end_offset| FetchedOutcome::EpochEnd(EpochEndOffset { leader_epoch, end_offset });
    // HW-03: 2 is not known here.
    let action = decide_on_answer(&mut replica, &log, asked, answer(2, 4));
    assert_eq!(action, Some(FollowerAction::Truncate { end: 3, agrees: false }));
    log = Log::new(&[0, 0, 1]);
    assert_eq!(question(&replica, &log), (EpochEnd, 3, 1), "asked again");
    let asked = fetch_position(&replica, &log).unwrap();
    let action = decide_on_answer(&mut replica, &log, asked, answer(0, 2));
    assert_eq!(action, Some(FollowerAction::Truncate { end: 2, agrees: true }));
    assert_eq!(question(&replica, &log), (EpochEnd, 3, 1), "the log is not cut yet");
    log = Log::new(&[0, 0]);
    replica.agree();
    assert_eq!(question(&replica, &log), (Records, 2, -1));
    // The next epoch has another leader, or the same one with another log.
    replica.follow(&order(2, 10));
    assert_eq!(question(&replica, &log), (EpochEnd, 2, 0));
}

#[test]
fn who_has_no_records_fetches_at_once_and_agrees_from_then_on() {
    let mut replica = following(TruncationPath::OffsetsForLeaderEpoch);
    let log = Log::new(&[]);
    assert_eq!(question(&replica, &log), (Records, 0, -1));
    let asked = fetch_position(&replica, &log).unwrap();
    let records = FetchedOutcome::Records { high_watermark: 0, log_start: 0 };
    decide_on_answer(&mut replica, &log, asked, records).unwrap();
    assert_eq!(question(&replica, &Log::new(&[4])), (Records, 1, -1));
}

#[test]
fn who_lies_in_the_leaders_log_asks_again_where_epochs_end() {
    let mut replica = following(TruncationPath::OffsetsForLeaderEpoch);
    let log = Log::new(&[0]);
    replica.agree();
    let asked = fetch_position(&replica, &log).unwrap();
    let out_of_range = FetchedOutcome::Rejected(Rejection::OffsetOutOfRange);
    let action = decide_on_answer(&mut replica, &log, asked, out_of_range);
    assert_eq!(action, Some(FollowerAction::AskLeaderStart));
    let older = FetchPosition { offset: 0, ..asked };
    assert_eq!(decide_on_start(&mut replica, &log, older, 7), None);
    assert_eq!(decide_on_start(&mut replica, &log, asked, 7), Some(StartDecision::ResetTo(7)));
    assert_eq!(question(&replica, &log), (Records, 1, -1));
    assert_eq!(decide_on_start(&mut replica, &log, asked, 0), Some(StartDecision::Keep));
    assert_eq!(question(&replica, &log), (EpochEnd, 1, 0));
}

#[test]
fn by_fetch_every_question_carries_the_last_epoch() {
    let mut replica = following(TruncationPath::Fetch);
    let log = Log::new(&[0, 3]);
    assert_eq!(question(&replica, &log), (Records, 2, 3));
    replica.agree();
    assert_eq!(question(&replica, &log), (Records, 2, 3));
}

#[test]
fn the_leader_answers_with_its_log_end_whatever_is_committed() {
    let mut replica = Replica::new(BrokerId(1), topic_id(), TruncationPath::Fetch);
    let mut log = Log::new(&[0, 0, 3, 3]);
    log.high_watermark = 1;
    let end = |replica: &Replica, current, asked| {
        let end = epoch_end(replica, &log, LeaderEpoch(current), LeaderEpoch(asked));
        end.map(|end| (end.leader_epoch, end.end_offset))
    };
    assert_eq!(end(&replica, 3, 3), Err(Rejection::NotLeaderOrFollower));
    let order = order(1, 3);
    replica.begin_take_over(&order);
    assert_eq!(end(&replica, 3, 3), Err(Rejection::NotLeaderOrFollower), "not in office yet");
    assert!(replica.take_office(&order, office(), stored(), 0));
    assert_eq!(end(&replica, 3, 3), Ok((3, 4)));
    assert_eq!(end(&replica, 3, 2), Ok((0, 2)), "HW-03");
    assert_eq!(end(&replica, 3, 4), Ok((-1, -1)));
    assert_eq!(end(&replica, -1, 0), Ok((0, 2)));
    assert_eq!(end(&replica, 2, 0), Err(Rejection::FencedLeaderEpoch));
    assert_eq!(end(&replica, 4, 0), Err(Rejection::UnknownLeaderEpoch));
}
