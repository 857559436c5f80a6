//! For each key the offset of its newest record, in memory of a fixed size.
//!
//! Keys are held as 16 bytes of two keyed hashes: two keys of one log meet with a probability of about 2^-128 each,
//! and nobody outside can choose keys that do. A full map ends the part of the log that a pass covers (CMP-05).

use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes of memory that one key takes.
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>();
/// Places tried all over the table before the search goes on from slot to slot.
const SCATTERED_PROBES: u64 = 32;
const EMPTY: i64 = -1;

#[derive(Clone, Copy)]
struct Slot {
    key: [u64; 2],
    /// [`EMPTY`], or an offset.
    offset: i64,
}

/// Newest offset by key.
pub(crate) struct OffsetMap {
    slots: Vec<Slot>,
    entries: usize,
    entries_max: usize,
    hashers: [RandomState; 2],
}

impl OffsetMap {
    /// A map of `memory_bytes`, of which the share `load_factor` (above 0, at most 1) is used; smaller when no more
    /// than `records_max` records will be offered. Holds at least one key.
    pub(crate) fn new(
        memory_bytes: usize,
        load_factor: f64,
        records_max: u64,
        hashers: [RandomState; 2],
    ) -> Self {
        let load_factor = load_factor.clamp(0.01, 1.0);
        let wanted = (records_max as f64 / load_factor).ceil() + 2.0;
        // One slot stays empty, so that every search ends.
        let slots = (memory_bytes / SLOT_BYTES).min(wanted as usize).max(2);
        let entries_max = ((slots as f64 * load_factor) as usize).clamp(1, slots - 1);
        let slots = vec![Slot { key: [0; 2], offset: EMPTY }; slots];
        Self { slots, entries: 0, entries_max, hashers }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Notes a record. `false`: the key is new and the map is full; nothing was noted.
    pub(crate) fn put(&mut self, key: &[u8], offset: i64) -> bool {
        let key = self.hash(key);
        let index = self.find(key);
        let full = self.entries >= self.entries_max;
        let slot = &mut self.slots[index];
        if slot.offset == EMPTY {
            if full {
                return false;
            }
            self.entries += 1;
        }
        *slot = Slot { key, offset: slot.offset.max(offset) };
        true
    }

    /// The newest offset that was noted for a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<i64> {
        Some(self.slots[self.find(self.hash(key))].offset).filter(|offset| *offset != EMPTY)
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        let hash = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            hasher.write(key);
            hasher.finish()
        };
        [hash(&self.hashers[0]), hash(&self.hashers[1])]
    }

    /// The slot of a key, or the empty one where it belongs.
    fn find(&self, key: [u64; 2]) -> usize {
        let is_it = |slot: &Slot| slot.offset == EMPTY || slot.key == key;
        let mut index = 0;
        for probe in 0..SCATTERED_PROBES {
            let place = key[0].wrapping_add(probe.wrapping_mul(key[1] | 1));
            index = ((u128::from(place) * self.slots.len() as u128) >> 64) as usize;
            if is_it(&self.slots[index]) {
                return index;
            }
        }
        while !is_it(&self.slots[index]) {
            index = (index + 1) % self.slots.len();
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn map(slots: usize, load_factor: f64) -> OffsetMap {
        let hashers = [RandomState::new(), RandomState::new()];
        OffsetMap::new(slots * SLOT_BYTES, load_factor, u64::MAX, hashers)
    }

    #[test]
    fn memory_and_load_factor_bound_the_keys() {
        //   slots, load factor, keys that fit
        for (slots, load_factor, expected) in
            [(10, 0.9, 9), (10, 1.0, 9), (10, 0.5, 5), (0, 0.9, 1), (3, 0.1, 1)]
        {
            let mut map = map(slots, load_factor);
            let fitting = (0..100_i64).filter(|n| map.put(&n.to_be_bytes(), *n)).count();
            assert_eq!(fitting, expected, "{slots} slots, {load_factor}");
            assert!(map.put(&0_i64.to_be_bytes(), 500), "a known key always finds room");
            assert_eq!(map.get(&0_i64.to_be_bytes()), Some(500));
        }
        let hashers = [RandomState::new(), RandomState::new()];
        let small = OffsetMap::new(1 << 40, 0.9, 90, hashers);
        assert!(small.entries_max >= 90 && small.slots.len() < 110, "no more than the records need");
    }

    proptest! {
        #[test]
        fn equals_a_hash_map(puts in prop::collection::vec((0..60_u8, 0..1000_i64), 0..300)) {
            let mut map = map(61, 1.0);
            let mut model = HashMap::new();
            for (key, offset) in puts {
                prop_assert!(map.put(&[key], offset));
                let newest = model.entry(key).or_insert(offset);
                *newest = offset.max(*newest);
            }
            prop_assert_eq!(map.len(), model.len());
            for key in 0..=255_u8 {
                prop_assert_eq!(map.get(&[key]), model.get(&key).copied());
            }
        }
    }
}
