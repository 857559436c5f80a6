//! Records that are read while the answer is written, as long as this broker serves them.

use std::sync::Arc;

use bytes::Bytes;
use zurau_common::id::LeaderEpoch;
use zurau_common::page_cache::FilePart;
use zurau_common::wire::server::Stream;

use crate::log::{RecordStream, StorageError, Wait};
use crate::partition::Partition;

pub(super) struct ServedRecords {
    partition: Arc<Partition>,
    leader_epoch: LeaderEpoch,
    records: RecordStream,
}

impl ServedRecords {
    /// `leader_epoch`: of the leadership in which the read was planned.
    pub(super) fn new(partition: Arc<Partition>, leader_epoch: LeaderEpoch, records: RecordStream) -> Self {
        Self { partition, leader_epoch, records }
    }

    fn next(&mut self, wait: Wait) -> Result<Option<Bytes>, String> {
        let read = self.records.next(wait);
        self.check(read)
    }

    /// What was read or lent before a truncation is not answered, and what stands there afterwards may look like damage.
    fn check<T>(&self, read: Result<T, StorageError>) -> Result<T, String> {
        if !self.partition.serves_in(self.leader_epoch) {
            return Err(format!(
                "{} is not served in leader epoch {} any more",
                self.partition.id(),
                self.leader_epoch
            ));
        }
        read.map_err(|error| {
            let reason = format!("records of {} cannot be read: {error}", self.partition.id());
            self.partition.refuse_read(error);
            reason
        })
    }
}

impl Stream for ServedRecords {
    fn remaining(&self) -> usize {
        self.records.remaining()
    }

    fn next_at_once(&mut self) -> Result<Option<Bytes>, String> {
        self.next(Wait::No)
    }

    fn next_of_file(&mut self) -> Result<Option<FilePart>, String> {
        match self.records.lend() {
            // It will be read, and the leadership checked then.
            Ok(None) => Ok(None),
            lent => self.check(lent),
        }
    }

    fn next_blocking(&mut self) -> Result<Bytes, String> {
        Ok(self.next(Wait::Yes)?.unwrap_or_default())
    }
}
