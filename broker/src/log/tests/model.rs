//! Random operations against a deliberately simple second model: a list of batches.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use kafka_protocol::records::Compression;
use proptest::prelude::*;
use zurau_common::config::CleanupPolicy;

use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{Batches, EpochEnd, LogConfig, OpenMode, PartitionLog};

const NOW: i64 = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    AppendAsLeader { records: i32, timestamp: i64, value_bytes: usize, compressed: bool },
    AppendAsFollower { gap: i64, batches: Vec<(i32, i64)> },
    BecomeLeader,
    Truncate { share: u8 },
    StartAnew { offset: i64 },
    AdvanceStart { share: u8 },
    Retention,
    Flush,
    Reopen { clean: bool },
    LoseIndexes,
}

fn step() -> impl Strategy<Value = Step> {
    let timestamp = || 0..60i64;
    prop_oneof![
        8 => (1..6i32, timestamp(), 0..200usize, any::<bool>()).prop_map(
            |(records, timestamp, value_bytes, compressed)| Step::AppendAsLeader {
                records, timestamp, value_bytes, compressed,
            }
        ),
        4 => (0..4i64, prop::collection::vec((1..4i32, timestamp()), 1..6))
            .prop_map(|(gap, batches)| Step::AppendAsFollower { gap, batches }),
        2 => Just(Step::BecomeLeader),
        2 => any::<u8>().prop_map(|share| Step::Truncate { share }),
        1 => (0..200i64).prop_map(|offset| Step::StartAnew { offset }),
        1 => any::<u8>().prop_map(|share| Step::AdvanceStart { share }),
        1 => Just(Step::Retention),
        1 => Just(Step::Flush),
        3 => any::<bool>().prop_map(|clean| Step::Reopen { clean }),
        1 => Just(Step::LoseIndexes),
    ]
}

#[derive(Clone, Debug)]
struct ModelBatch {
    base: i64,
    epoch: i32,
    timestamps: Vec<i64>,
}

impl ModelBatch {
    fn last(&self) -> i64 {
        self.base + self.timestamps.len() as i64 - 1
    }
}

/// The second model.
#[derive(Default)]
struct Model {
    batches: Vec<ModelBatch>,
    start: i64,
    end: i64,
    epoch: i32,
    /// (epoch, start offset), as leaders recorded them.
    epochs: Vec<(i32, i64)>,
}

impl Model {
    fn push(&mut self, base: i64, timestamps: Vec<i64>) {
        self.note_epoch(base);
        let batch = ModelBatch { base, epoch: self.epoch, timestamps };
        self.end = batch.last() + 1;
        self.batches.push(batch);
    }

    fn note_epoch(&mut self, start: i64) {
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < self.epoch) {
            self.epochs.retain(|(_, other)| *other < start);
            self.epochs.push((self.epoch, start));
        }
    }

    fn truncate(&mut self, offset: i64) {
        if offset < self.end {
            let cut = self.batches.iter().find(|batch| batch.last() >= offset);
            self.end = cut.map_or(offset, |batch| batch.base.min(offset));
            self.batches.retain(|batch| batch.last() < offset);
            self.start = self.start.min(self.end);
        }
        let end = self.end;
        self.epochs.retain(|(_, start)| *start < end.max(offset.min(end)));
    }

    fn end_offset_for(&self, asked: i32) -> (i32, i64) {
        let known = self.epochs.iter().rev().find(|(epoch, _)| *epoch <= asked);
        let next = self.epochs.iter().find(|(epoch, _)| *epoch > asked);
        match (known, next) {
            (Some((epoch, _)), Some((_, start))) => (*epoch, *start),
            (None, Some((_, start))) => (asked, *start),
            (Some((epoch, _)), None) if *epoch == asked => (asked, self.end),
            _ => (-1, -1),
        }
    }
}

struct Run {
    path: PathBuf,
    log: Option<PartitionLog>,
    model: Model,
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1500,
        index_interval_bytes: 200,
        segment_index_bytes: 60,
        retention_bytes: 6000,
        retention_ms: -1,
        file_delete_delay_ms: 0,
        cleanup_policy: CleanupPolicy { compact: true, delete: true },
        ..LogConfig::default()
    }
}

impl Run {
    fn new(path: &Path) -> Self {
        let log = PartitionLog::create(path, None, config(), NOW).unwrap();
        Self { path: path.to_owned(), log: Some(log), model: Model::default() }
    }

    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().unwrap()
    }

    fn at(&self, share: u8) -> i64 {
        let (start, end) = (self.model.start, self.model.end);
        start + (end - start) * i64::from(share) / 255
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::AppendAsLeader { records, timestamp, value_bytes, compressed } => {
                let compression = if *compressed { Compression::Lz4 } else { Compression::None };
                let (records, timestamp, value_bytes) = (*records, NOW + timestamp, *value_bytes);
                let spec = BatchSpec { records, timestamp, value_bytes, compression, ..BatchSpec::default() };
                let epoch = self.model.epoch;
                let info = self.log().append_as_leader(&batch(&spec), epoch, NOW).unwrap();
                assert_eq!(info.first_offset, self.model.end);
                self.model.push(info.first_offset, (0..i64::from(records)).map(|n| timestamp + n).collect());
            }
            Step::AppendAsFollower { gap, batches } => self.append_as_follower(*gap, batches),
            Step::BecomeLeader => {
                self.model.epoch += 1;
                let (epoch, end) = (self.model.epoch, self.model.end);
                self.log().assign_epoch_start(epoch).unwrap();
                self.model.note_epoch(end);
            }
            Step::Truncate { share } => {
                let offset = self.at(*share);
                let end = self.log().truncate_to(offset).unwrap();
                self.model.truncate(offset);
                assert_eq!(end, self.model.end);
                self.model.epoch += 1;
            }
            Step::StartAnew { offset } => {
                self.log().truncate_fully_and_start_at(*offset).unwrap();
                let epoch = self.model.epoch + 1;
                self.model = Model { start: *offset, end: *offset, epoch, ..Model::default() };
            }
            Step::AdvanceStart { share } => {
                let offset = self.at(*share);
                self.log().advance_log_start_offset(offset).unwrap();
                self.adopt_start(offset);
            }
            Step::Retention => {
                self.log().apply_retention(NOW + 1).unwrap();
                let start = self.log().log_start_offset();
                assert!(start >= self.model.start);
                self.adopt_start(start);
            }
            Step::Flush => self.log().flush().unwrap(),
            Step::Reopen { clean } => self.reopen(*clean),
            Step::LoseIndexes => self.lose_indexes(),
        }
    }

    fn append_as_follower(&mut self, gap: i64, batches: &[(i32, i64)]) {
        let mut bytes = Vec::new();
        let mut base_offset = self.model.end + gap;
        for &(records, timestamp) in batches {
            let (leader_epoch, timestamp) = (self.model.epoch, NOW + timestamp);
            let spec = BatchSpec { base_offset, records, leader_epoch, timestamp, ..BatchSpec::default() };
            bytes.extend_from_slice(&batch(&spec));
            self.model.push(base_offset, (0..i64::from(records)).map(|n| timestamp + n).collect());
            base_offset += i64::from(records);
        }
        self.log().append_as_follower(&Bytes::from(bytes), NOW).unwrap();
    }

    fn adopt_start(&mut self, start: i64) {
        self.model.start = start.max(self.model.start);
        let start = self.model.start;
        let covering = self.model.epochs.iter().rposition(|(_, other)| *other <= start);
        if let Some(covering) = covering {
            self.model.epochs[covering].1 = start;
            self.model.epochs.drain(..covering);
        }
    }

    fn reopen(&mut self, clean: bool) {
        let log = self.log.take().unwrap();
        let recovery_point = log.recovery_point();
        let mode = OpenMode { clean, recovery_point, log_start_offset: self.model.start };
        if clean {
            log.close().unwrap()
        } else {
            drop(log)
        }
        self.log = Some(PartitionLog::open(&self.path, config(), mode, NOW).unwrap());
    }

    fn lose_indexes(&mut self) {
        let log = self.log.take().unwrap();
        log.close().unwrap();
        for entry in std::fs::read_dir(&self.path).unwrap().map(Result::unwrap) {
            if entry.file_name().to_string_lossy().ends_with("index") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let mode = OpenMode { clean: true, recovery_point: 0, log_start_offset: self.model.start };
        self.log = Some(PartitionLog::open(&self.path, config(), mode, NOW).unwrap());
    }

    fn check(&mut self) {
        let end = self.model.end;
        let log = self.log.as_mut().unwrap();
        let (start, high_watermark) = (log.log_start_offset(), log.high_watermark());
        assert!(start <= high_watermark && high_watermark <= log.log_end_offset(), "R14");
        log.update_high_watermark(end);
        let model = &self.model;
        assert_eq!((log.log_start_offset(), log.log_end_offset()), (model.start, model.end));
        assert!(log.recovery_point() <= end, "L2");
        for asked in 0..model.epoch + 2 {
            let EpochEnd { leader_epoch, end_offset } = log.end_offset_for_epoch(asked);
            assert_eq!((leader_epoch, end_offset), model.end_offset_for(asked), "epoch {asked}");
        }
        for offset in model.start..model.end {
            check_read(log, model, offset);
        }
        for timestamp in NOW - 2..NOW + 70 {
            check_timestamp(log, model, timestamp);
        }
    }
}

/// A read returns consecutive stored batches, the first of which is the first that ends at or after the offset.
fn check_read(log: &PartitionLog, model: &Model, offset: i64) {
    let upper = model.end - (model.end - offset) / 3;
    let bytes = log.read_plan(offset, 700, upper, true).unwrap().read().unwrap();
    let headers: Vec<_> = Batches::new(&bytes).map(|batch| batch.unwrap().0).collect();
    let found: Vec<_> =
        headers.iter().map(|h| (h.base_offset, h.last_offset(), h.partition_leader_epoch)).collect();
    let expected = model.batches.iter().filter(|batch| batch.last() >= offset && batch.last() < upper);
    let expected: Vec<_> = expected.map(|batch| (batch.base, batch.last(), batch.epoch)).collect();
    assert!(expected.starts_with(&found), "read at {offset} to {upper}: {found:?} of {expected:?}");
    assert_eq!(found.is_empty(), expected.is_empty(), "read at {offset} to {upper}: nothing of {expected:?}");
}

fn check_timestamp(log: &PartitionLog, model: &Model, timestamp: i64) {
    let linear = model
        .batches
        .iter()
        .flat_map(|batch| {
            batch.timestamps.iter().enumerate().map(|(n, t)| (*t, batch.base + n as i64, batch.epoch))
        })
        .find(|(found, offset, _)| *found >= timestamp && *offset >= model.start);
    let found = log.offset_for_timestamp(timestamp).unwrap();
    assert_eq!(found.map(|(t, o, _)| (t, o)), linear.map(|(t, o, _)| (t, o)), "timestamp {timestamp} (L3)");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn r14_r17_r18_l3_l4_log_equals_the_list(steps in prop::collection::vec(step(), 1..40)) {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::new(&directory.path().join("t-0"));
        for step in &steps {
            run.apply(step);
            run.check();
        }
    }
}
