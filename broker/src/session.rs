//! The ZooKeeper session of this broker at this moment. A session that ends is replaced; who needs one asks here each
//! time and never keeps it.

use parking_lot::RwLock;
use zurau_common::zk::session::ZooKeeper;

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
