//! What a partition looks like at one moment, for `/metrics`: one short look under its lock.

use zurau_common::rejection::Rejection;

use super::{Inner, Partition};
use crate::log::PartitionLog;
use crate::replica::Role;

/// A partition at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    /// Present while this broker leads.
    pub(crate) leads: Option<Leading>,
    /// The log cannot be used.
    pub(crate) is_offline: bool,
    pub(crate) log_start_offset: i64,
    pub(crate) high_watermark: i64,
    pub(crate) log_end_offset: i64,
    pub(crate) size_bytes: i64,
    pub(crate) segments: i64,
    pub(crate) producers: usize,
    pub(crate) waiting_produces: usize,
    pub(crate) waiting_fetches: usize,
    pub(crate) waiting_deletions: usize,
}

/// A led partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leading {
    /// Hosts in this epoch.
    pub(crate) hosts: usize,
    /// Replicas that the partition shall have in the end.
    pub(crate) replicas: usize,
    /// Members of the stored ISR.
    pub(crate) isr: usize,
    /// min(`min.insync.replicas`, `replicas`)
    pub(crate) min_in_sync: usize,
}

impl Observation {
    pub(crate) fn is_under_replicated(&self) -> bool {
        self.leads.as_ref().is_some_and(|leading| leading.isr < leading.replicas)
    }

    pub(crate) fn is_under_min_isr(&self) -> bool {
        self.leads.as_ref().is_some_and(|leading| leading.isr < leading.min_in_sync)
    }

    pub(crate) fn is_at_min_isr(&self) -> bool {
        self.leads.as_ref().is_some_and(|leading| leading.isr == leading.min_in_sync)
    }

    pub(crate) fn is_reassigning(&self) -> bool {
        self.leads.as_ref().is_some_and(|leading| leading.hosts != leading.replicas)
    }
}

impl Partition {
    pub(crate) fn observe(&self) -> Observation {
        let inner = self.inner.lock();
        let Inner { replica, log, commits, deletions, committed_waiters, appended_waiters, .. } = &*inner;
        let leads = replica.leader().map(|leader| Leading {
            hosts: leader.hosts(),
            replicas: leader.replicas(),
            isr: leader.isr().stored().isr.len(),
            min_in_sync: leader.min_in_sync(),
        });
        let int = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Observation {
            leads,
            is_offline: log.is_none()
                || matches!(replica.role(), Role::Idle(Some(Rejection::KafkaStorageError))),
            log_start_offset: log.as_ref().map_or(-1, PartitionLog::log_start_offset),
            high_watermark: log.as_ref().map_or(-1, PartitionLog::high_watermark),
            log_end_offset: log.as_ref().map_or(-1, PartitionLog::log_end_offset),
            size_bytes: log.as_ref().map_or(-1, |log| int(log.size_bytes())),
            segments: log.as_ref().map_or(-1, |log| int(log.segment_count() as u64)),
            producers: log.as_ref().map_or(0, PartitionLog::producer_count),
            waiting_produces: commits.len(),
            waiting_fetches: committed_waiters.len() + appended_waiters.len(),
            waiting_deletions: deletions.len(),
        }
    }
}
