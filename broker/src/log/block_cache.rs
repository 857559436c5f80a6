//! Blocks of index files that lookups read, kept for the next lookup: a read of the page cache costs more than all the rest of
//! a search.
//!
//! One for the process, of a fixed number of places. A block has one place, where the newest one stays. Blocks are named by
//! what was given out for a file's contents, never by its path: contents that are cut off or removed are not found again,
//! and the blocks of a closed file go when others need their places.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::StorageError;

/// Blocks that are kept at most. One has up to 1.5 KiB, so this bounds the memory to 12 MiB; it covers the offset
/// indexes of 4 GiB of small batches.
const BLOCKS_MAX: usize = 8192;

static NEXT_CONTENTS: AtomicU64 = AtomicU64::new(0);

/// The cache that all indexes of the process share.
pub(super) static BLOCKS: LazyLock<BlockCache> = LazyLock::new(|| BlockCache::new(BLOCKS_MAX));

/// Contents of a file that only grow. Whoever cuts the file takes new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contents(u64);

impl Contents {
    /// Never given out before.
    pub(super) fn new() -> Self {
        Self(NEXT_CONTENTS.fetch_add(1, Ordering::Relaxed))
    }
}

struct Block {
    contents: Contents,
    number: u32,
    bytes: Box<[u8]>,
}

/// A cache with one place for each block, by its name.
pub(super) struct BlockCache {
    places: Box<[Mutex<Option<Block>>]>,
}

impl BlockCache {
    /// With room for `blocks` blocks, at least 1.
    fn new(blocks: usize) -> Self {
        Self { places: (0..blocks).map(|_| Mutex::new(None)).collect() }
    }

    /// Looks into block `number` of `contents`, of `length` bytes by now; `read` fills them if they are not here. `look`
    /// may run with the place locked, `read` does not.
    ///
    /// # Errors
    /// Those of `read`; nothing is kept then.
    pub(super) fn look<T>(
        &self,
        (contents, number): (Contents, u32),
        length: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), StorageError>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, StorageError> {
        // Neighbours of one file never share a place; files are spread by a multiplication (Knuth's, for 64 bits).
        let spread = (contents.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let place = &self.places[spread.wrapping_add(number as usize) % self.places.len()];
        if let Some(block) = &*place.lock()
            && (block.contents, block.number) == (contents, number)
            && let Some(bytes) = block.bytes.get(..length)
        {
            return Ok(look(bytes));
        }
        let mut bytes = vec![0; length].into_boxed_slice();
        read(&mut bytes)?;
        let seen = look(&bytes);
        let replaced = place.lock().replace(Block { contents, number, bytes });
        drop(replaced);
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever shares a place: a look sees the file's bytes, and they are read no more often than asked for.
        #[test]
        fn a_look_sees_what_the_file_holds(
            places in 1..4usize,
            steps in prop::collection::vec((0..3usize, 0..4u32, 0..3u8), 0..60),
        ) {
            let cache = BlockCache::new(places);
            let mut files: HashMap<usize, (Contents, usize, u8)> =
                (0..3).map(|file| (file, (Contents::new(), 1, file as u8))).collect();
            for (file, number, change) in steps {
                let entry = files.get_mut(&file).unwrap();
                match change {
                    1 => entry.1 += 1,
                    2 => *entry = (Contents::new(), 1, entry.2.wrapping_add(3)),
                    _ => {}
                }
                let (contents, length, seed) = *entry;
                let stored: Vec<u8> = (0..length).map(|at| seed ^ (at as u8) ^ (number as u8) << 4).collect();
                for _ in 0..2 {
                    let read = |bytes: &mut [u8]| {
                        bytes.copy_from_slice(&stored);
                        Ok(())
                    };
                    let seen = cache.look((contents, number), length, read, <[u8]>::to_vec).unwrap();
                    prop_assert_eq!(&seen, &stored);
                }
            }
        }
    }

    #[test]
    fn a_block_is_read_once_until_it_grows_or_its_place_is_taken() {
        let cache = BlockCache::new(2);
        let (one, other) = (Contents::new(), Contents::new());
        let reads = std::cell::Cell::new(0);
        let look = |name: (Contents, u32), length: usize| {
            let read = |_: &mut [u8]| {
                reads.set(reads.get() + 1);
                Ok(())
            };
            cache.look(name, length, read, |bytes| assert_eq!(bytes.len(), length)).unwrap();
            reads.replace(0)
        };
        assert_eq!(look((one, 0), 8), 1, "the first look");
        assert_eq!(look((one, 0), 8), 0);
        assert_eq!(look((one, 1), 8), 1, "its neighbour");
        assert_eq!(look((one, 0), 8), 0, "neighbours have places of their own");
        assert_eq!(look((one, 0), 16), 1, "it has grown");
        assert_eq!(look((one, 0), 8), 0, "what was there before it grew is there still");
        assert_eq!(look((other, 0), 8) + look((other, 1), 8), 2, "they take both places");
        assert_eq!(look((one, 0), 16), 1);
    }

    #[test]
    fn what_could_not_be_read_is_not_kept() {
        let cache = BlockCache::new(1);
        let contents = Contents::new();
        let failing = |_: &mut [u8]| {
            let source = std::io::Error::other("the disk is gone");
            Err(StorageError { action: "read", path: "x".into(), source })
        };
        cache.look((contents, 0), 8, failing, |_| ()).unwrap_err();
        let filling = |bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        };
        assert_eq!(cache.look((contents, 0), 8, filling, <[u8]>::to_vec).unwrap(), [7; 8]);
    }
}
