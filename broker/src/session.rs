//! The ZooKeeper session of this broker at this moment. A session that ends is replaced; who needs one asks here each
//! time and never keeps it.

use parking_lot::RwLock;
use tokio::sync::watch;
use zurau_common::zk::session::{SessionState, ZooKeeper};

use crate::metrics::Metrics;

/// Holds the session under which the broker is registered.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    current: RwLock<Option<ZooKeeper>>,
}

impl SessionSlot {
    pub(crate) fn new() -> Self {
        Self { current: RwLock::new(None) }
    }

    /// The session, if the broker is registered under one.
    pub(crate) fn current(&self) -> Option<ZooKeeper> {
        self.current.read().clone()
    }

    pub(crate) fn set(&self, session: Option<ZooKeeper>) {
        *self.current.write() = session;
    }
}

/// Counts what happens to a session until it is over. Keeps its state only, not the session.
pub(crate) async fn count_changes(mut state: watch::Receiver<SessionState>, metrics: &Metrics) {
    let mut before = SessionState::Disconnected;
    loop {
        let now = *state.borrow_and_update();
        match (before, now) {
            (SessionState::Disconnected, SessionState::Connected) => metrics.zookeeper_sync_connects.add(1),
            (SessionState::Connected, SessionState::Disconnected) => metrics.zookeeper_disconnects.add(1),
            (SessionState::Connected, SessionState::Connected) => {
                // A loss and return that went unseen.
                metrics.zookeeper_disconnects.add(1);
                metrics.zookeeper_sync_connects.add(1);
            }
            (_, SessionState::Ended) => {
                metrics.zookeeper_expires.add(1);
                return;
            }
            _ => {}
        }
        before = now;
        if state.changed().await.is_err() {
            return;
        }
    }
}
