//! Timers as a table: what is due when. Setting one again moves it; the shell sleeps until the earliest.
//!
//! Pure. Times are milliseconds of a clock that never goes back.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Deadlines by key.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    by_time: BTreeSet<(i64, K)>,
    by_key: HashMap<K, i64>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_key: HashMap::new() }
    }
}

impl<K: Clone + Eq + Ord + Hash> Timers<K> {
    /// Sets or moves the timer.
    pub(crate) fn set(&mut self, key: K, due_ms: i64) {
        if let Some(before) = self.by_key.insert(key.clone(), due_ms) {
            self.by_time.remove(&(before, key.clone()));
        }
        self.by_time.insert((due_ms, key));
    }

    pub(crate) fn cancel(&mut self, key: &K) {
        if let Some(due_ms) = self.by_key.remove(key) {
            self.by_time.remove(&(due_ms, key.clone()));
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<i64> {
        self.by_time.first().map(|(due_ms, _)| *due_ms)
    }

    /// Takes out the earliest timer that is due.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Option<K> {
        if now_ms < self.next_deadline()? {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    pub(crate) fn is_set(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_at_its_last_deadline() {
        let mut timers = Timers::default();
        timers.set("a", 5);
        timers.set("b", 3);
        timers.set("a", 9);
        timers.set("c", 4);
        timers.cancel(&"c");
        assert_eq!(
            (timers.next_deadline(), timers.is_set(&"a"), timers.is_set(&"c")),
            (Some(3), true, false)
        );
        assert_eq!([timers.take_due(8), timers.take_due(8)], [Some("b"), None]);
        assert_eq!([timers.take_due(9), timers.take_due(99)], [Some("a"), None]);
        assert_eq!(timers.next_deadline(), None);
    }
}
