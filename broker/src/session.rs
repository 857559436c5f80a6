//! The ZooKeeper session of this broker at this moment. A session that ends is replaced; who needs one asks here each
//! time and never keeps it.

use tokio::sync::watch;
use zurau_common::zk::session::ZooKeeper;

/// Holds the session under which the broker is registered.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    current: watch::Sender<Option<ZooKeeper>>,
}

impl SessionSlot {
    pub(crate) fn new() -> Self {
        Self { current: watch::Sender::new(None) }
    }

    /// The session, if the broker is registered under one.
    pub(crate) fn current(&self) -> Option<ZooKeeper> {
        self.current.borrow().clone()
    }

    /// Follows the session: a value for each new one, `None` in between.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<ZooKeeper>> {
        self.current.subscribe()
    }

    pub(crate) fn set(&self, session: Option<ZooKeeper>) {
        self.current.send_replace(session);
    }
}
