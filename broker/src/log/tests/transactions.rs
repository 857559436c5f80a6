//! Random histories of idempotent and transactional producers against a list of batches (T1, T2, T3).

use proptest::prelude::*;

use super::directory_in_memory;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{AppendError, AppendOrigin, LogConfig, OpenMode, PartitionLog, Verification};

const NOW: i64 = 1_000_000;
/// Producers 1 and 2 are idempotent, 3 and 4 transactional.
const PRODUCERS: i64 = 4;
/// Its transactions are of version 2 (KIP-890): each end gives it another epoch.
const VERSION_2: i64 = 4;
/// Batches of a producer that can be told apart from new ones.
const REMEMBERED: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    Append {
        producer: i64,
        records: i32,
    },
    /// A batch again: the last one, or an earlier one.
    Retry {
        producer: i64,
        back: usize,
    },
    /// A batch with a sequence that is too high.
    Gap {
        producer: i64,
    },
    End {
        producer: i64,
        commit: bool,
    },
    /// The last marker of a producer of version 2 again.
    EndAgain,
    RaiseHighWatermark {
        percent: i64,
    },
    Roll,
    Truncate {
        percent: i64,
    },
    Restart {
        clean: bool,
        snapshots: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let producer = || 1..=PRODUCERS;
    let step = prop_oneof![
        8 => (producer(), 1..4_i32).prop_map(|(producer, records)| Step::Append { producer, records }),
        2 => (producer(), 0..7_usize).prop_map(|(producer, back)| Step::Retry { producer, back }),
        1 => producer().prop_map(|producer| Step::Gap { producer }),
        4 => (3..=PRODUCERS, any::<bool>()).prop_map(|(producer, commit)| Step::End { producer, commit }),
        2 => Just(Step::EndAgain),
        4 => (0..=100_i64).prop_map(|percent| Step::RaiseHighWatermark { percent }),
        2 => Just(Step::Roll),
        1 => (0..100_i64).prop_map(|percent| Step::Truncate { percent }),
        2 => any::<(bool, bool)>().prop_map(|(clean, snapshots)| Step::Restart { clean, snapshots }),
    ];
    prop::collection::vec(step, 1..50)
}

/// A stored batch; markers have no sequence.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    first_offset: i64,
    end_offset: i64,
    producer: i64,
    epoch: i16,
    sequence: i32,
    ends: Option<bool>,
}

/// A transaction as the list tells it.
struct Transaction {
    first_offset: i64,
    end: Option<(i64, bool)>,
}

struct World {
    path: std::path::PathBuf,
    log: Option<PartitionLog>,
    stored: Vec<Stored>,
    high_watermark: i64,
    /// Since a truncation, how many of a producer's batches are remembered depends on snapshots: at least the last.
    truncated: bool,
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 700, ..LogConfig::default() }
}

fn data(stored: &Stored) -> bytes::Bytes {
    batch(&BatchSpec {
        records: (stored.end_offset - stored.first_offset) as i32,
        producer: Some((stored.producer, stored.epoch, stored.sequence)),
        transactional: stored.producer >= 3,
        timestamp: NOW,
        ..BatchSpec::default()
    })
}

impl World {
    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().unwrap()
    }

    fn end_offset(&self) -> i64 {
        self.stored.last().map_or(0, |last| last.end_offset)
    }

    fn batches_of(&self, producer: i64) -> Vec<Stored> {
        self.stored
            .iter()
            .filter(|stored| stored.producer == producer && stored.ends.is_none())
            .cloned()
            .collect()
    }

    fn last_of(&self, producer: i64) -> Option<&Stored> {
        self.stored.iter().rev().find(|stored| stored.producer == producer)
    }

    fn epoch_of(&self, producer: i64) -> i16 {
        self.last_of(producer).map_or(0, |last| last.epoch)
    }

    fn next(&self, producer: i64, records: i32, beyond: i32) -> Stored {
        let epoch = self.epoch_of(producer);
        let batches = self.batches_of(producer);
        let of_epoch = batches.iter().rfind(|batch| batch.epoch == epoch);
        let sequence =
            of_epoch.map_or(0, |last| last.sequence + (last.end_offset - last.first_offset) as i32);
        let first_offset = self.end_offset();
        let end_offset = first_offset + i64::from(records);
        Stored { first_offset, end_offset, producer, epoch, sequence: sequence + beyond, ends: None }
    }

    fn transactions(&self) -> Vec<Transaction> {
        let mut all = Vec::new();
        for producer in 3..=PRODUCERS {
            let mut open: Option<i64> = None;
            for stored in self.stored.iter().filter(|stored| stored.producer == producer) {
                match (stored.ends, open) {
                    (None, None) => open = Some(stored.first_offset),
                    (Some(commit), Some(first_offset)) => {
                        all.push(Transaction { first_offset, end: Some((stored.first_offset, commit)) });
                        open = None;
                    }
                    _ => {}
                }
            }
            all.extend(open.map(|first_offset| Transaction { first_offset, end: None }));
        }
        all
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append { producer, records } => {
                let stored = self.next(producer, records, 0);
                let info = self.log().append_as_leader(&data(&stored), 0, NOW).unwrap();
                prop_assert!(!info.duplicate && info.first_offset == stored.first_offset);
                self.stored.push(stored);
            }
            Step::Retry { producer, back } => self.retry(producer, back)?,
            Step::Gap { producer } => {
                let stored = self.next(producer, 1, 1);
                let result = self.log().append_as_leader(&data(&stored), 0, NOW);
                match result {
                    Err(AppendError::OutOfOrderSequence { .. }) => {}
                    // Nothing is known of the producer: it may begin anywhere (D9).
                    Ok(_) if self.last_of(producer).is_none() => self.stored.push(stored),
                    other => prop_assert!(false, "T1: a gap was answered by {:?}", other),
                }
            }
            Step::End { producer, commit } => {
                let epoch = self.epoch_of(producer) + i16::from(producer == VERSION_2);
                self.end((producer, epoch), commit).unwrap();
            }
            Step::EndAgain => {
                let markers = self.stored.iter().filter(|stored| stored.producer == VERSION_2);
                let last = markers.rev().find(|stored| stored.ends.is_some()).cloned();
                let Some(Stored { epoch, ends: Some(commit), .. }) = last else { return Ok(()) };
                let is_open = self.last_of(VERSION_2).is_some_and(|last| last.ends.is_none());
                let ended = self.end((VERSION_2, epoch), commit);
                let is_refused = matches!(ended, Err(AppendError::InvalidProducerEpoch { .. }));
                prop_assert_eq!(is_refused, is_open, "TXN-02: {:?}", ended);
            }
            Step::RaiseHighWatermark { percent } => {
                let target = self.high_watermark + (self.end_offset() - self.high_watermark) * percent / 100;
                let ends = self.stored.iter().map(|stored| stored.end_offset);
                self.high_watermark = ends.filter(|end| *end <= target).max().unwrap_or(0);
                let high_watermark = self.high_watermark;
                self.log().update_high_watermark(high_watermark);
            }
            Step::Roll => {
                let end = self.end_offset();
                let log = self.log();
                if log.segments.last_key_value().is_some_and(|(base, _)| *base < end) {
                    log.roll(end, NOW).unwrap();
                }
            }
            Step::Truncate { percent } => {
                let target = self.high_watermark + (self.end_offset() - self.high_watermark) * percent / 100;
                self.stored.retain(|stored| stored.end_offset <= target);
                let end = self.end_offset();
                self.truncated = true;
                prop_assert_eq!(self.log().truncate_to(end).unwrap(), end);
            }
            Step::Restart { clean, snapshots } => self.restart(clean, snapshots),
        }
        Ok(())
    }

    /// Writes a marker.
    fn end(&mut self, (producer, epoch): (i64, i16), commit: bool) -> Result<(), AppendError> {
        let first_offset = self.end_offset();
        let bytes = marker(commit, (producer, epoch), 0, NOW);
        let verification = match producer {
            VERSION_2 => Verification::EndsLowerEpochs,
            _ => Verification::NotAsked,
        };
        self.log().append_verified(&bytes, 0, (AppendOrigin::Coordinator, verification), NOW)?;
        let end_offset = first_offset + 1;
        let ends = Some(commit);
        self.stored.push(Stored { first_offset, end_offset, producer, epoch, sequence: -1, ends });
        Ok(())
    }

    fn retry(&mut self, producer: i64, back: usize) -> Result<(), TestCaseError> {
        let batches = self.batches_of(producer);
        let Some(again) = batches.iter().rev().nth(back).cloned() else { return Ok(()) };
        let end = self.end_offset();
        let result = self.log().append_as_leader(&data(&again), 0, NOW);
        prop_assert_eq!(self.log().log_end_offset(), end, "T1: stored twice");
        match result {
            Err(error) if again.epoch < self.epoch_of(producer) => {
                prop_assert!(matches!(error, AppendError::InvalidProducerEpoch { .. }), "TXN-01: {}", error);
            }
            Ok(info) => prop_assert_eq!((info.duplicate, info.first_offset), (true, again.first_offset)),
            Err(error) => {
                prop_assert!(back > 0 && (self.truncated || back >= REMEMBERED), "{}: {}", back, error)
            }
        }
        Ok(())
    }

    fn restart(&mut self, clean: bool, snapshots: bool) {
        let log = self.log.take().unwrap();
        let recovery_point = log.recovery_point();
        if clean {
            log.close().unwrap();
        } else {
            drop(log);
        }
        if !snapshots {
            for entry in std::fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.extension().is_some_and(|extension| extension == "snapshot") {
                    std::fs::remove_file(entry).unwrap();
                }
            }
        }
        // A snapshot holds the last batch of each producer only.
        self.truncated |= snapshots;
        let mode = OpenMode { clean, recovery_point, log_start_offset: 0 };
        let mut log = PartitionLog::open(&self.path, config(), mode, NOW).unwrap();
        log.restore_high_watermark(self.high_watermark).unwrap();
        self.log = Some(log);
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let log = self.log.as_ref().unwrap();
        let transactions = self.transactions();
        let undecided = transactions.iter().filter(|t| t.end.is_none_or(|(at, _)| at >= self.high_watermark));
        let first_undecided = undecided.map(|t| t.first_offset).min().unwrap_or(i64::MAX);
        let stable = self.high_watermark.min(first_undecided);
        prop_assert_eq!(log.last_stable_offset(), stable, "T3");
        for from in 0..stable {
            let listed = log.aborted_transactions(from, stable).unwrap();
            for transaction in &transactions {
                let Some((at, commit)) = transaction.end else { continue };
                let is_listed =
                    listed.iter().any(|t| (t.first_offset, t.last_offset) == (transaction.first_offset, at));
                let is_met = transaction.first_offset < stable && at >= from;
                prop_assert!(!(commit && is_listed), "T3: a committed transaction is listed as aborted");
                prop_assert!(
                    commit || !is_met || is_listed,
                    "T3: aborted at {} and unlisted from {}",
                    at,
                    from
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn t1_t2_t3_producers_and_transactions_are_what_the_list_says(steps in steps()) {
        let directory = directory_in_memory();
        let path = directory.path().join("t-0");
        let log = PartitionLog::create(&path, None, config(), NOW).unwrap();
        let mut world = World { path, log: Some(log), stored: Vec::new(), high_watermark: 0, truncated: false };
        for step in &steps {
            world.apply(step)?;
            world.check()?;
        }
        // T2: what was kept over appends, truncations and restarts is what the batches alone say.
        let state = world.log().producers.encode();
        world.restart(false, false);
        prop_assert_eq!(world.log().producers.encode(), state);
        world.check()?;
    }
}
