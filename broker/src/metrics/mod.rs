//! What the broker counts while it works. The hot paths touch relaxed atomics only: a partition holds its topic's
//! counters, an API's place in the table is its key. Everything else that `/metrics` shows is derived from the state
//! at the moment when somebody asks (`page`).

mod errors;
mod groups;
mod page;
mod partitions;
mod remote_ends;
mod requests;
mod topics;

use zurau_common::http::instruments::{Counter, Timer};

#[cfg(test)]
pub(crate) use errors::each_code;
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
    pub(crate) isr_shrinks: Counter,
    pub(crate) isr_expands: Counter,
    pub(crate) failed_isr_updates: Counter,
    pub(crate) log_flushes: Timer,
    pub(crate) zookeeper_disconnects: Counter,
    pub(crate) zookeeper_sync_connects: Counter,
    pub(crate) zookeeper_expires: Counter,
    /// Partitions whose last in-sync replica this is, although it may have lost records (D2, N20).
    pub(crate) possible_losses: Counter,
}
