//! Producers whose first batch was turned away before it reached the log, because the broker did not lead, or too few
//! replicas were in sync.
//!
//! Pure, and of this leader's memory only. A producer without state may start at any sequence (D9), so the second
//! batch of a pipeline would be stored when the first was refused a moment too early; the repeated first one then came
//! too late for ever. The second is answered OUT_OF_ORDER_SEQUENCE_NUMBER instead, which a client with earlier batches
//! in flight takes as "again". Apache Kafka does this for the first batch of a transaction only (KIP-890).

use std::collections::BTreeMap;

use super::batch::BatchHeader;
use super::partition_log::PartitionLog;

/// Producers remembered of one log; beyond, the oldest one is forgotten.
const PRODUCERS_MAX: usize = 1000;

/// How long a producer is remembered: longer than `delivery.timeout.ms` of clients, after which they start a new epoch.
const MEMORY_MS: i64 = 300_000;

#[derive(Clone, Copy, Debug)]
struct First {
    producer_epoch: i16,
    sequence: i32,
    at_ms: i64,
}

/// The lowest sequence of each producer that was turned away.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    by_producer: BTreeMap<i64, First>,
}

impl TurnedAway {
    pub(crate) fn note(&mut self, (producer_id, producer_epoch): (i64, i16), sequence: i32, now_ms: i64) {
        if producer_id < 0 || sequence < 0 {
            return;
        }
        if PRODUCERS_MAX <= self.by_producer.len() && !self.by_producer.contains_key(&producer_id) {
            let oldest = self.by_producer.iter().min_by_key(|(_, first)| first.at_ms).map(|(id, _)| *id);
            oldest.map(|id| self.by_producer.remove(&id));
        }
        let now = First { producer_epoch, sequence, at_ms: now_ms };
        let first = self.by_producer.entry(producer_id).or_insert(now);
        if first.producer_epoch < producer_epoch || MEMORY_MS < now_ms.saturating_sub(first.at_ms) {
            *first = now;
        } else if first.producer_epoch == producer_epoch {
            first.sequence = first.sequence.min(sequence);
        }
    }

    /// The sequence that is still to come before the batch of `header`, if there is one.
    pub(crate) fn before(&self, header: &BatchHeader, now_ms: i64) -> Option<i32> {
        let first = self.by_producer.get(&header.producer_id)?;
        let counts = first.producer_epoch == header.producer_epoch
            && first.sequence < header.base_sequence
            && now_ms.saturating_sub(first.at_ms) <= MEMORY_MS;
        counts.then_some(first.sequence)
    }

    /// The log knows the producer from now on.
    pub(crate) fn forget(&mut self, producer_id: i64) {
        self.by_producer.remove(&producer_id);
    }
}

impl PartitionLog {
    /// A batch of a producer (id and epoch) was refused before it came here; see the `turned_away` module. `sequence`: of
    /// its first record.
    pub fn turn_away(&mut self, producer: (i64, i16), sequence: i32, now_ms: i64) {
        self.turned_away.note(producer, sequence, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_batches::{BatchSpec, batch};

    fn header(producer: (i64, i16, i32)) -> BatchHeader {
        let bytes = batch(&BatchSpec { producer: Some(producer), ..BatchSpec::default() });
        BatchHeader::parse(&bytes).unwrap()
    }

    #[test]
    fn the_lowest_sequence_of_the_newest_epoch_counts_and_not_for_ever() {
        let mut turned_away = TurnedAway::default();
        turned_away.note((1, 0), 5, 0);
        turned_away.note((1, 0), 3, 0);
        turned_away.note((1, 0), 9, 0);
        assert_eq!(turned_away.before(&header((1, 0, 4)), 10), Some(3));
        assert_eq!(turned_away.before(&header((1, 0, 3)), 10), None);
        assert_eq!(turned_away.before(&header((1, 1, 4)), 10), None, "another epoch");
        assert_eq!(turned_away.before(&header((2, 0, 4)), 10), None, "another producer");
        assert_eq!(turned_away.before(&header((1, 0, 4)), MEMORY_MS + 1), None, "long ago");
        turned_away.note((1, 1), 7, 10);
        turned_away.note((1, 0), 0, 10);
        assert_eq!(turned_away.before(&header((1, 1, 8)), 10), Some(7));
        turned_away.forget(1);
        assert_eq!(turned_away.before(&header((1, 1, 8)), 10), None);
    }

    #[test]
    fn it_stays_small() {
        let mut turned_away = TurnedAway::default();
        for producer in 0..PRODUCERS_MAX as i64 + 1 {
            turned_away.note((producer, 0), 0, producer);
        }
        assert_eq!(turned_away.by_producer.len(), PRODUCERS_MAX);
        assert_eq!(turned_away.before(&header((0, 0, 1)), PRODUCERS_MAX as i64), None, "the oldest one");
        turned_away.note((-1, -1), -1, 0);
        assert!(!turned_away.by_producer.contains_key(&-1));
    }
}
