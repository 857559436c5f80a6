//! Waiters ordered by the offset they wait for: a produce waits until the high watermark passes its batch. Releasing
//! touches only those that are due, whatever the number that waits.

use std::collections::BTreeMap;

/// Things that wait for an offset. Two that wait for the same one leave in the order they came.
#[derive(Debug, Clone)]
pub struct OffsetWaiters<T> {
    waiting: BTreeMap<(i64, u64), T>,
    arrivals: u64,
}

impl<T> Default for OffsetWaiters<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), arrivals: 0 }
    }
}

impl<T> OffsetWaiters<T> {
    /// Waits until the reached offset is at least `offset` (exclusive end of what is waited for).
    pub fn wait(&mut self, offset: i64, waiter: T) {
        self.arrivals += 1;
        self.waiting.insert((offset, self.arrivals), waiter);
    }

    /// Takes out everything that waited for `reached` or less, in order.
    pub fn release(&mut self, reached: i64) -> Vec<T> {
        let Some(((first, _), _)) = self.waiting.first_key_value() else { return Vec::new() };
        if reached < *first {
            return Vec::new();
        }
        let later = match reached.checked_add(1) {
            Some(next) => self.waiting.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        std::mem::replace(&mut self.waiting, later).into_values().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out everything, in order.
    pub fn drain(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }

    /// Drops waiters that nobody listens to any more.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.waiting.retain(|_, waiter| wanted(waiter));
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waiters_leave_in_order_when_their_offset_is_reached() {
        let mut waiters = OffsetWaiters::default();
        for (offset, name) in [(5, "b"), (3, "a"), (5, "c"), (9, "d"), (i64::MAX, "e")] {
            waiters.wait(offset, name);
        }
        assert!(waiters.release(2).is_empty());
        assert_eq!(waiters.release(5), ["a", "b", "c"]);
        waiters.retain(|name| *name != "d");
        assert_eq!(waiters.len(), 1);
        assert_eq!(waiters.release(i64::MAX), ["e"]);
        waiters.wait(1, "f");
        assert_eq!(waiters.drain(), ["f"]);
        assert_eq!(waiters.len(), 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0..20i64), 0..60)) {
            let mut waiters = OffsetWaiters::default();
            let mut list: Vec<(i64, usize)> = Vec::new();
            for (number, (wait, offset)) in steps.into_iter().enumerate() {
                if wait {
                    waiters.wait(offset, number);
                    list.push((offset, number));
                } else {
                    let mut due: Vec<_> = list.iter().copied().filter(|(due, _)| *due <= offset).collect();
                    due.sort();
                    list.retain(|(due, _)| offset < *due);
                    let due: Vec<usize> = due.into_iter().map(|(_, number)| number).collect();
                    prop_assert_eq!(waiters.release(offset), due);
                }
            }
        }
    }
}
