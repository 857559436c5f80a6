//! What a copy of a replica's log in another log directory needs next to become like the log (KIP-113). The log goes on
//! meanwhile: it grows, loses its tail to a new leader's history, its start to deletions. The copy follows it as a
//! follower does its leader, by the epoch histories (R16, HW-01), so that nothing need be told to it, not even over a
//! restart.

use super::follower::truncation_end;
use super::steps::{ReplicaLog, last_epoch};

/// The next step of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyStep {
    /// Nothing of it is in the log: drop all and begin empty at this offset.
    StartAt(i64),
    /// The log has another history from here on: cut it there.
    Truncate(i64),
    /// The log begins here now.
    AdvanceStart(i64),
    /// Append what follows its end.
    Append,
    /// It holds what the log holds.
    TakePlace,
}

/// The next step of `copy` towards `log`.
pub(crate) fn next_step(copy: &impl ReplicaLog, log: &impl ReplicaLog) -> CopyStep {
    let (start, end) = (copy.log_start_offset(), copy.log_end_offset());
    let (log_start, log_end) = (log.log_start_offset(), log.log_end_offset());
    if log_start < start || end < log_start {
        return CopyStep::StartAt(log_start);
    }
    let last = last_epoch(copy);
    let known = log.end_offset_for_epoch(last);
    if 0 <= last && (known.leader_epoch < last || known.end_offset < end) {
        return match truncation_end(start..end, known, |epoch| copy.end_offset_for_epoch(epoch)) {
            Some(cut) if start < cut => CopyStep::Truncate(cut),
            _ => CopyStep::StartAt(log_start),
        };
    }
    // Only where no epoch tells more.
    if log_end < end {
        return CopyStep::StartAt(log_start);
    }
    if start < log_start {
        return CopyStep::AdvanceStart(log_start);
    }
    if end < log_end { CopyStep::Append } else { CopyStep::TakePlace }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replica::follower::EpochEndOffset;

    /// The epoch of each record from `start` on.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    struct Log {
        start: i64,
        epochs: Vec<i32>,
    }

    impl ReplicaLog for Log {
        fn log_start_offset(&self) -> i64 {
            self.start
        }

        fn log_end_offset(&self) -> i64 {
            self.start + self.epochs.len() as i64
        }

        fn high_watermark(&self) -> i64 {
            self.start
        }

        fn update_high_watermark(&mut self, _high_watermark: i64) {}

        fn latest_epoch(&self) -> Option<i32> {
            self.epochs.last().copied()
        }

        fn epoch_at(&self, offset: i64) -> Option<i32> {
            self.epochs.get(usize::try_from(offset - self.start).ok()?).copied()
        }

        fn end_offset_for_epoch(&self, asked: i32) -> EpochEndOffset {
            let below = self.epochs.partition_point(|epoch| *epoch <= asked);
            let end_offset = self.start + below as i64;
            match below.checked_sub(1).map(|last| self.epochs[last]) {
                Some(epoch) if epoch < asked && below == self.epochs.len() => {
                    EpochEndOffset { leader_epoch: -1, end_offset: -1 }
                }
                Some(leader_epoch) => EpochEndOffset { leader_epoch, end_offset },
                None if self.epochs.is_empty() || asked < 0 => {
                    EpochEndOffset { leader_epoch: -1, end_offset: -1 }
                }
                None => EpochEndOffset { leader_epoch: asked, end_offset },
            }
        }
    }

    fn log(start: i64, epochs: &[i32]) -> Log {
        Log { start, epochs: epochs.to_vec() }
    }

    /// Carries a step out; false when there is nothing left to do.
    fn carry_out(copy: &mut Log, log: &Log) -> bool {
        match next_step(copy, log) {
            CopyStep::StartAt(start) => *copy = Log { start, epochs: Vec::new() },
            CopyStep::Truncate(end) => copy.epochs.truncate((end - copy.start) as usize),
            CopyStep::AdvanceStart(start) => {
                copy.epochs.drain(..(start - copy.start) as usize);
                copy.start = start;
            }
            CopyStep::Append => copy.epochs.push(log.epoch_at(copy.log_end_offset()).unwrap()),
            CopyStep::TakePlace => return false,
        }
        true
    }

    #[test]
    fn r16_each_difference_has_its_step() {
        let rows = [
            ("equal", log(0, &[1, 1]), log(0, &[1, 1]), CopyStep::TakePlace),
            ("both empty", log(7, &[]), log(7, &[]), CopyStep::TakePlace),
            ("behind", log(0, &[1]), log(0, &[1, 1]), CopyStep::Append),
            ("behind, in a newer epoch", log(0, &[1]), log(0, &[1, 2]), CopyStep::Append),
            ("the log lost its tail", log(0, &[1, 1, 1]), log(0, &[1, 1]), CopyStep::Truncate(2)),
            ("and got another", log(0, &[1, 1, 1]), log(0, &[1, 1, 2, 2]), CopyStep::Truncate(2)),
            (
                "an epoch that the log never had",
                log(0, &[1, 2, 2]),
                log(0, &[1, 1, 3]),
                CopyStep::Truncate(1),
            ),
            ("nothing in common", log(0, &[2, 2]), log(0, &[3]), CopyStep::StartAt(0)),
            ("the log is empty", log(0, &[2, 2]), log(0, &[]), CopyStep::StartAt(0)),
            ("records deleted", log(0, &[1, 1, 1]), log(2, &[1]), CopyStep::AdvanceStart(2)),
            ("all of the copy deleted", log(0, &[1]), log(2, &[1]), CopyStep::StartAt(2)),
            ("the log begins lower", log(5, &[1]), log(3, &[1, 1, 1]), CopyStep::StartAt(3)),
        ];
        for (name, copy, log, expected) in rows {
            assert_eq!(next_step(&copy, &log), expected, "{name}");
        }
    }

    /// What happens to the log between two steps of its copy.
    #[derive(Debug, Clone)]
    enum Event {
        Append {
            newer: bool,
        },
        /// As by a new leader: records of a newer epoch take the place of the tail.
        Replace {
            lost: usize,
        },
        DeleteRecords {
            count: usize,
        },
        Reset {
            to: i64,
        },
        /// Steps of the copy.
        Copy(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => any::<bool>().prop_map(|newer| Event::Append { newer }),
            1 => (1..4_usize).prop_map(|lost| Event::Replace { lost }),
            1 => (1..4_usize).prop_map(|count| Event::DeleteRecords { count }),
            1 => (0..30_i64).prop_map(|to| Event::Reset { to }),
            3 => (1..4_usize).prop_map(Event::Copy),
        ];
        prop::collection::vec(event, 1..60)
    }

    proptest! {
        #[test]
        fn r7_a_copy_becomes_like_its_log_whatever_happened_meanwhile(events in events()) {
            // Two records are the same one if they are of one epoch and one place (R7): so each epoch is used once.
            let (mut log, mut copy, mut epoch) = (Log::default(), Log::default(), 0);
            for event in events {
                match event {
                    Event::Append { newer } => {
                        epoch += i32::from(newer);
                        log.epochs.push(epoch);
                    }
                    Event::Replace { lost } => {
                        log.epochs.truncate(log.epochs.len().saturating_sub(lost));
                        epoch += 1;
                        log.epochs.push(epoch);
                    }
                    Event::DeleteRecords { count } => {
                        let count = count.min(log.epochs.len());
                        log.epochs.drain(..count);
                        log.start += count as i64;
                    }
                    Event::Reset { to } => {
                        log = Log { start: to, epochs: Vec::new() };
                        epoch += 1;
                    }
                    Event::Copy(steps) => {
                        for _ in 0..steps {
                            carry_out(&mut copy, &log);
                        }
                    }
                }
            }
            let mut steps = 0;
            while carry_out(&mut copy, &log) {
                steps += 1;
                prop_assert!(steps < 200, "no end: {copy:?} towards {log:?}");
            }
            prop_assert_eq!(copy, log);
        }
    }
}
