//! A broker's disk: one log as a list of records, of which a part is synced, under the same epoch history as in
//! production, and the witness of its registrations.

use zurau_broker::cores::LeaderEpochs;
use zurau_broker::cores::follower::EpochEndOffset;
use zurau_broker::cores::steps::ReplicaLog;
use zurau_common::id::{LeaderEpoch, TopicId};
use zurau_common::rule::{Rule, holds};

/// One record is one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) value: u64,
    pub(crate) epoch: i32,
}

/// Offsets begin at 0: retention is no subject of this model.
#[derive(Debug, Clone)]
pub(crate) struct MemoryLog {
    pub(crate) topic_id: TopicId,
    pub(crate) records: Vec<Record>,
    epochs: LeaderEpochs,
    high_watermark: i64,
    /// Records below are safe from a power loss (exclusive).
    synced: usize,
    /// As in `replication-offset-checkpoint`.
    checkpoint: i64,
}

fn length(records: &[Record]) -> i64 {
    i64::try_from(records.len()).expect("a short log")
}

impl MemoryLog {
    pub(crate) fn new(topic_id: TopicId) -> Self {
        Self {
            topic_id,
            records: Vec::new(),
            epochs: LeaderEpochs::default(),
            high_watermark: 0,
            synced: 0,
            checkpoint: 0,
        }
    }

    /// Recorded durably, before the office is taken (F5).
    pub(crate) fn assign_epoch_start(&mut self, epoch: LeaderEpoch) {
        let start = self.log_end_offset();
        self.epochs.assign(epoch.0, start);
    }

    pub(crate) fn append(&mut self, value: u64, epoch: LeaderEpoch) -> i64 {
        let start = self.log_end_offset();
        self.epochs.assign(epoch.0, start);
        self.records.push(Record { value, epoch: epoch.0 });
        start
    }

    /// Records that were asked for at `base`; a log takes only what follows its end (R18).
    pub(crate) fn append_fetched(&mut self, base: i64, records: &[Record]) -> bool {
        if base != self.log_end_offset() && holds(Rule::AnswerAtItsOffset) {
            return records.is_empty();
        }
        for record in records {
            self.append(record.value, LeaderEpoch(record.epoch));
        }
        true
    }

    pub(crate) fn read(&self, offset: i64, count: usize) -> Vec<Record> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.records.len());
        self.records[from..].iter().copied().take(count).collect()
    }

    pub(crate) fn truncate_to(&mut self, end: i64) {
        let before = self.high_watermark;
        self.records.truncate(usize::try_from(end).unwrap_or(0));
        self.epochs.truncate_from_end(end);
        self.synced = self.synced.min(self.records.len());
        self.update_high_watermark(before.min(end));
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.records.len();
    }

    pub(crate) fn unsynced(&self) -> usize {
        self.records.len() - self.synced
    }

    /// Everything that was not synced is gone; whether anything was.
    pub(crate) fn lose_power(&mut self) -> bool {
        let lost = self.unsynced() > 0;
        self.records.truncate(self.synced);
        // An epoch that began exactly at the end is kept: its leader recorded it durably.
        self.epochs.truncate_from_end(self.log_end_offset() + 1);
        self.update_high_watermark(self.high_watermark);
        lost
    }

    pub(crate) fn write_checkpoint(&mut self) {
        self.checkpoint = self.high_watermark;
    }

    /// A process opens the log.
    pub(crate) fn open(&mut self) {
        self.high_watermark = 0;
        self.update_high_watermark(self.checkpoint);
    }

    pub(crate) fn epochs(&self) -> &LeaderEpochs {
        &self.epochs
    }
}

impl ReplicaLog for MemoryLog {
    fn log_start_offset(&self) -> i64 {
        0
    }

    fn log_end_offset(&self) -> i64 {
        length(&self.records)
    }

    fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    fn update_high_watermark(&mut self, high_watermark: i64) {
        self.high_watermark = high_watermark.clamp(0, self.log_end_offset());
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
