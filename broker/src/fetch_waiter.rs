//! Long polls. A fetch that found too little registers one waiter with each of its partitions; the first that moves
//! wakes it, and it looks at those again that have moved. No timers here: the fetch itself bounds its wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A fetch that waits for data. It knows its partitions by their places among those that it fetches.
#[derive(Debug, Default)]
pub(crate) struct FetchWaiter {
    notify: Notify,
    woken: AtomicBool,
    news: Mutex<News>,
}

/// Places of partitions that a fetch has to look at again; one may stand here more than once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// They moved from what was seen, and wake the fetch no more unless it registers with them again.
    pub(crate) moved: Vec<usize>,
    /// They have something to tell that nobody waits for, and wake the fetch as before.
    pub(crate) noted: Vec<usize>,
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

    /// The partition at `place` had moved before it was registered with.
    pub(crate) fn wake_at_once(&self, place: usize) {
        self.news.lock().moved.push(place);
        self.wake();
    }

    /// What has happened since the last call. May be nothing after a wake: the call before has told it.
    pub(crate) fn take_news(&self) -> News {
        std::mem::take(&mut *self.news.lock())
    }
}

/// Fewest entries at which a list is searched for waiters that are gone.
const PRUNE_FROM: usize = 16;

/// The waiters of one partition, of one kind. A waiter is in it until the partition moves, or until it is gone and
/// the list is pruned, so the list stays within twice the number of those that wait.
#[derive(Debug, Default)]
pub(crate) struct WaiterList {
    /// Each with the place that it knows the partition by.
    waiters: Vec<(Weak<FetchWaiter>, usize)>,
    prune_at: usize,
}

impl WaiterList {
    pub(crate) fn add(&mut self, waiter: &Arc<FetchWaiter>, place: usize) {
        if self.prune_at.max(PRUNE_FROM) <= self.waiters.len() {
            self.waiters.retain(|(waiter, _)| waiter.strong_count() != 0);
            self.prune_at = 2 * self.waiters.len();
        }
        self.waiters.push((Arc::downgrade(waiter), place));
    }

    /// The partition has moved: takes out all that still wait. They are to be woken once its lock is free.
    pub(crate) fn take(&mut self, woken: &mut Vec<Arc<FetchWaiter>>) {
        for (waiter, place) in self.waiters.drain(..) {
            let Some(waiter) = waiter.upgrade() else { continue };
            waiter.news.lock().moved.push(place);
            woken.push(waiter);
        }
    }

    /// The partition has something to tell that is worth no answer of its own.
    pub(crate) fn note(&self) {
        for (waiter, place) in &self.waiters {
            if let Some(waiter) = waiter.upgrade() {
                waiter.news.lock().noted.push(*place);
            }
        }
    }

    /// Number of those that still wait.
    pub(crate) fn len(&self) -> usize {
        self.waiters.iter().filter(|(waiter, _)| waiter.strong_count() != 0).count()
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
        list.add(&living, 0);
        for _ in 0..1_000 {
            list.add(&FetchWaiter::new(), 0);
        }
        assert!(list.waiters.len() <= PRUNE_FROM, "{}", list.waiters.len());
        let mut woken = Vec::new();
        list.take(&mut woken);
        assert_eq!(woken.len(), 1);
        assert!(list.waiters.is_empty());
    }

    #[test]
    fn a_fetch_learns_which_of_its_partitions_moved() {
        let waiter = FetchWaiter::new();
        let mut lists: [WaiterList; 3] = Default::default();
        for (place, list) in lists.iter_mut().enumerate() {
            list.add(&waiter, place);
        }
        let mut woken = Vec::new();
        lists[1].note();
        lists[2].take(&mut woken);
        lists[2].take(&mut woken);
        waiter.wake_at_once(0);
        assert_eq!(woken.len(), 1);
        assert_eq!(waiter.take_news(), News { moved: vec![2, 0], noted: vec![1] });
        assert_eq!(waiter.take_news(), News::default());
        assert_eq!(lists.map(|list| list.len()), [1, 1, 0], "what was noted still wakes it");
    }
}
