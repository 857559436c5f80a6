//! What every partition of a broker shares: who the broker is, its clock, its lease, and the queue of work that a
//! partition hands to the control plane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use tokio::sync::mpsc;
use zurau_common::config::TruncationPath;
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::zk::lease::Lease;

use crate::log::StorageError;
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::resignations::Resignation;
use crate::throttle::Throttles;

/// What a partition cannot do itself, because it needs the network or ZooKeeper.
#[derive(Debug)]
pub(crate) enum PartitionRequest {
    /// A proposal for the ISR is open.
    StoreIsr(Arc<Partition>),
    /// The disk failed, or an office was refused that may be stored: leadership must be given back.
    Resign(Resignation),
    /// A disk operation failed in a log directory, named by its index in `log.dirs`: it may have to go offline.
    DiskError { directory: usize, error: StorageError },
}

/// Settings of replication that hold for all partitions. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplicationSettings {
    /// `replica.lag.time.max.ms`.
    pub(crate) lag_max_ms: u64,
    /// `replica.fetch.wait.max.ms`.
    pub(crate) fetch_wait_max_ms: u64,
    /// `replica.truncation.path`.
    pub(crate) truncation_path: TruncationPath,
}

/// Shared by all partitions of a broker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) own: BrokerId,
    pub(crate) replication: ReplicationSettings,
    pub(crate) throttles: Throttles,
    pub(crate) metrics: Metrics,
    started: Instant,
    broker_epoch: AtomicI64,
    lease: RwLock<Option<Lease>>,
    /// Log directories with less space than the hard mark (D17), by their index in `log.dirs`.
    exhausted: RwLock<BTreeSet<usize>>,
    /// Unbounded, but holds a partition at most once for each open proposal, and errors only until their disk is offline.
    requests: mpsc::UnboundedSender<PartitionRequest>,
}

impl Shared {
    pub(crate) fn new(
        own: BrokerId,
        replication: ReplicationSettings,
        throttles: Throttles,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<PartitionRequest>) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let shared = Self {
            own,
            replication,
            throttles,
            metrics: Metrics::default(),
            started: Instant::now(),
            broker_epoch: AtomicI64::new(-1),
            lease: RwLock::new(None),
            exhausted: RwLock::default(),
            requests,
        };
        (Arc::new(shared), receiver)
    }

    /// Milliseconds since the broker started; never goes back.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The epoch of this broker's registration; −1 before the first.
    pub(crate) fn broker_epoch(&self) -> BrokerEpoch {
        BrokerEpoch(self.broker_epoch.load(Ordering::Acquire))
    }

    pub(crate) fn set_broker_epoch(&self, epoch: BrokerEpoch) {
        self.broker_epoch.store(epoch.0, Ordering::Release);
    }

    pub(crate) fn set_lease(&self, lease: Lease) {
        *self.lease.write() = Some(lease);
    }

    pub(crate) fn end_lease(&self) {
        *self.lease.write() = None;
    }

    /// The lease of the session that the broker is registered under.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.lease.read().clone()
    }

    pub(crate) fn holds_lease(&self) -> bool {
        self.lease.read().as_ref().is_some_and(Lease::is_held)
    }

    pub(crate) fn set_exhausted(&self, directory: usize, is_exhausted: bool) {
        let mut exhausted = self.exhausted.write();
        if is_exhausted {
            exhausted.insert(directory);
        } else {
            exhausted.remove(&directory);
        }
    }

    pub(crate) fn is_exhausted(&self, directory: usize) -> bool {
        self.exhausted.read().contains(&directory)
    }

    pub(crate) fn request(&self, request: PartitionRequest) {
        // The receiver ends with the broker; then nothing is stored any more.
        let _ = self.requests.send(request);
    }
}

/// Milliseconds since 1970, as records carry them.
pub(crate) fn wall_clock_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
