//! Which partition a record goes to: by the hash of its key as Kafka's own clients do it, so that keys stay together
//! whoever writes them; without a key, to one partition after the other. Pure.

/// Chooses partitions of one topic.
#[derive(Debug)]
pub(super) struct Partitioner {
    partitions: i32,
    next: i32,
}

impl Partitioner {
    /// `partitions`: how many the topic has, at least one.
    pub(super) fn new(partitions: i32) -> Self {
        Self { partitions: partitions.max(1), next: 0 }
    }

    pub(super) fn partition(&mut self, key: Option<&[u8]>) -> i32 {
        match key {
            Some(key) => (murmur2(key) & i32::MAX) % self.partitions,
            None => self.next,
        }
    }

    /// From now on records without a key go to the next partition.
    pub(super) fn turn(&mut self) {
        self.next = (self.next + 1) % self.partitions;
    }
}

/// MurmurHash2 with the seed of Kafka's default partitioner.
fn murmur2(bytes: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        mixed ^= mixed >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ mixed.wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(FACTOR);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(FACTOR);
    (hash ^ (hash >> 15)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_kafkas() {
        for (key, expected) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn keys_stay_and_the_others_take_turns() {
        let mut partitioner = Partitioner::new(3);
        let of_key = partitioner.partition(Some(b"k"));
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(partitioner.partition(None));
            partitioner.turn();
            assert_eq!(partitioner.partition(Some(b"k")), of_key);
        }
        assert_eq!(seen, [0, 1, 2, 0]);
    }
}
