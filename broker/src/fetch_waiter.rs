//! Long polls. A fetch that found too little registers one waiter with each of its partitions; the first that moves
//! wakes it, and it reads again. No timers here: the fetch itself bounds its wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

/// A fetch that waits for data.
#[derive(Debug, Default)]
pub(crate) struct FetchWaiter {
    notify: Notify,
    woken: AtomicBool,
}

impl FetchWaiter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Waits until a partition moves; returns at once if one has moved since the last call. Cancel safe.
    pub(crate) async fn woken(&self) {
        loop {
            let notified = self.notify.notified();
            if self.woken.swap(false, Ordering::AcqRel) {
                return;
            }
            notified.await;
        }
    }

    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

/// Fewest entries at which a list is searched for waiters that are gone.
const PRUNE_FROM: usize = 16;

/// The waiters of one partition, of one kind. A waiter is in it until the partition moves, or until it is gone and
/// the list is pruned, so the list stays within twice the number of those that wait.
#[derive(Debug, Default)]
pub(crate) struct WaiterList {
    waiters: Vec<Weak<FetchWaiter>>,
    prune_at: usize,
}

impl WaiterList {
    pub(crate) fn add(&mut self, waiter: &Arc<FetchWaiter>) {
        if self.prune_at.max(PRUNE_FROM) <= self.waiters.len() {
            self.waiters.retain(|waiter| waiter.strong_count() != 0);
            self.prune_at = 2 * self.waiters.len();
        }
        self.waiters.push(Arc::downgrade(waiter));
    }

    /// Takes out all that still wait.
    pub(crate) fn take(&mut self, woken: &mut Vec<Arc<FetchWaiter>>) {
        woken.extend(self.waiters.drain(..).filter_map(|waiter| waiter.upgrade()));
    }

    /// Number of those that still wait.
    pub(crate) fn len(&self) -> usize {
        self.waiters.iter().filter(|waiter| waiter.strong_count() != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wake_before_the_wait_is_not_lost() {
        let waiter = FetchWaiter::new();
        waiter.wake();
        waiter.wake();
        waiter.woken().await;
        let (one, other) = (Arc::clone(&waiter), Arc::clone(&waiter));
        let waiting = tokio::spawn(async move { one.woken().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "two wakes before one wait are one");
        other.wake();
        waiting.await.unwrap();
    }

    #[test]
    fn waiters_that_are_gone_do_not_pile_up() {
        let mut list = WaiterList::default();
        let living = FetchWaiter::new();
        list.add(&living);
        for _ in 0..1_000 {
            list.add(&FetchWaiter::new());
        }
        assert!(list.waiters.len() <= PRUNE_FROM, "{}", list.waiters.len());
        let mut woken = Vec::new();
        list.take(&mut woken);
        assert_eq!(woken.len(), 1);
        assert!(list.waiters.is_empty());
    }
}
