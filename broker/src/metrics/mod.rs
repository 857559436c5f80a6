//! What the broker counts while it works. The hot paths touch relaxed atomics only: a partition holds its topic's
//! counters, an API's place in the table is its key. Everything else that `/metrics` shows is derived from the state
//! at the moment when somebody asks (`page`).

mod errors;
mod groups;
mod idle;
mod page;
mod partitions;
mod remote_ends;
mod requests;
mod topics;

use zurau_common::http::instruments::{Counter, SeldomTimer, Timer};

use crate::groups::Tally;

#[cfg(test)]
pub(crate) use errors::each_code;
pub(crate) use idle::IdleShare;
pub(crate) use page::write as write_page;
use remote_ends::RemoteEnds;
pub(crate) use remote_ends::run as watch_remote_ends;
pub(crate) use requests::RequestMetrics;
pub(crate) use topics::{TopicCounters, TopicMetrics};

/// Of a whole broker; shared by everything in it.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) topics: TopicMetrics,
    pub(crate) requests: RequestMetrics,
    remote_ends: RemoteEnds,
    pub(crate) replication_bytes_in: Counter,
    pub(crate) replication_bytes_out: Counter,
    /// Of those: for replicas that are being added.
    pub(crate) reassignment_bytes_in: Counter,
    pub(crate) reassignment_bytes_out: Counter,
    pub(crate) isr_shrinks: Counter,
    pub(crate) isr_expands: Counter,
    pub(crate) failed_isr_updates: Counter,
    pub(crate) log_flushes: Timer,
    pub(crate) groups: GroupCounters,
    /// How long coordinators took to load their partitions.
    pub(crate) group_loads: SeldomTimer,
    pub(crate) transaction_loads: SeldomTimer,
    /// Partitions whose last in-sync replica this is, although it may have lost records (D2, N20).
    pub(crate) possible_losses: Counter,
}

/// What happened to the groups that are coordinated here.
#[derive(Debug, Default)]
pub(crate) struct GroupCounters {
    offset_commits: Counter,
    offset_deletions: Counter,
    offset_expirations: Counter,
    completed_rebalances: Counter,
    consumer_rebalances: Counter,
}

impl GroupCounters {
    pub(crate) fn count(&self, tally: Tally) {
        for (counter, count) in [
            (&self.offset_commits, tally.offsets_committed),
            (&self.offset_deletions, tally.offsets_deleted),
            (&self.offset_expirations, tally.offsets_expired),
            (&self.completed_rebalances, tally.rebalances_completed),
            (&self.consumer_rebalances, tally.rebalances_begun),
        ] {
            counter.add(count as u64);
        }
    }
}
