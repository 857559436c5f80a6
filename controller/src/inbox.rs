//! What waits for the controller's loop, each with the moment since when it does.

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Something in a queue.
#[derive(Debug)]
pub(crate) struct Queued<T> {
    what: T,
    since: Instant,
}

impl<T> Queued<T> {
    pub(crate) fn now(what: T) -> Self {
        Self { what, since: Instant::now() }
    }

    /// It waits no longer.
    pub(crate) fn take(self, metrics: &Metrics) -> T {
        metrics.queued.record(self.since.elapsed());
        self.what
    }

    /// As [`Queued::take`] for what is no event of the controller.
    pub(crate) fn take_uncounted(self) -> T {
        self.what
    }

    pub(crate) fn what(&self) -> &T {
        &self.what
    }
}

/// Where tasks put what they found.
#[derive(Debug)]
pub(crate) struct Inbox<T>(mpsc::UnboundedSender<Queued<T>>);

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Queued<T>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    pub(crate) fn put(&self, what: T) {
        // The controller has left office: nobody wants to know.
        let _ = self.0.send(Queued::now(what));
    }
}
