//! Sparse indexes of a segment: `.index` (offset to position) and `.timeindex` (timestamp to offset).
//!
//! An index is a cache of the log: whatever is wrong with it, it is rebuilt (LOG-15). New entries wait in memory
//! and are written in blocks, so that an append costs one system call; a lookup searches the waiting entries first
//! and then one block of the file, which is read unless [`super::block_cache`] has it. Nothing is mapped into memory.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::block_cache::{BLOCKS, Contents};
use super::error::StorageError;
use super::files::{LogFile, remove_if_present};

/// Waiting entries are written when they reach this size.
const PENDING_BYTES_MAX: usize = 4096;
/// A search looks into one block of this many entries; the first entry of each block is remembered.
const BLOCK_ENTRIES: u32 = 128;
/// An index up to this size is checked as a whole whenever it is opened: that costs no more than reading its end.
const CHECKED_BYTES: u64 = 64 << 10;
/// Blocks read at once when their first entries are gathered.
const BLOCKS_READ: u32 = 256;

/// Where in an index a condition ends that holds for its first entries.
struct Boundary<const N: usize> {
    /// Entries for which it holds.
    below: u32,
    last_below: Option<[u8; N]>,
    first_above: Option<[u8; N]>,
}

/// Entries of `N` bytes, in order, on disk and waiting.
#[derive(Debug)]
struct IndexFile<const N: usize> {
    file: Arc<LogFile>,
    stored: u32,
    pending: Vec<u8>,
    last: Option<[u8; N]>,
    /// What is stored, as long as it only grows.
    contents: Contents,
    /// First entries of the blocks on disk, as far as searches needed them.
    block_starts: Mutex<Vec<[u8; N]>>,
}

impl<const N: usize> IndexFile<N> {
    fn create(path: PathBuf) -> Result<Self, StorageError> {
        let file = LogFile::new(path);
        file.create()?;
        Ok(Self::empty(file))
    }

    fn empty(file: Arc<LogFile>) -> Self {
        let (contents, block_starts) = (Contents::new(), Mutex::default());
        Self { file, stored: 0, pending: Vec::new(), last: None, contents, block_starts }
    }

    /// Opens an existing file of `size_bytes`; an incomplete last entry is ignored.
    fn open(path: PathBuf, size_bytes: u64) -> Result<Self, StorageError> {
        let mut index = Self::empty(LogFile::new(path));
        index.stored = (size_bytes / N as u64) as u32;
        index.last = match index.stored {
            0 => None,
            stored => Some(index.read(stored - 1, 1)?[0]),
        };
        Ok(index)
    }

    fn len(&self) -> u32 {
        self.stored + (self.pending.len() / N) as u32
    }

    fn push(&mut self, entry: [u8; N]) -> Result<(), StorageError> {
        self.pending.extend_from_slice(&entry);
        self.last = Some(entry);
        if self.pending.len() >= PENDING_BYTES_MAX {
            self.write_pending()?;
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), StorageError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.pending, u64::from(self.stored) * N as u64)?;
        self.stored += (self.pending.len() / N) as u32;
        self.pending = Vec::new();
        Ok(())
    }

    fn read(&self, from: u32, count: u32) -> Result<Vec<[u8; N]>, StorageError> {
        let mut entries = vec![[0; N]; count as usize];
        self.file.read_exact_at(entries.as_flattened_mut(), u64::from(from) * N as u64)?;
        Ok(entries)
    }

    fn pending_entry(&self, index: usize) -> [u8; N] {
        self.pending[index * N..(index + 1) * N].try_into().expect("N bytes")
    }

    /// Where the entries end for which `below` holds; they come first.
    fn boundary(&self, below: impl Fn(&[u8; N]) -> bool) -> Result<Boundary<N>, StorageError> {
        let (waiting, _) = self.pending.as_chunks::<N>();
        if waiting.first().is_some_and(&below) {
            let within = waiting.partition_point(below);
            return Ok(Boundary {
                below: self.stored + within as u32,
                last_below: Some(waiting[within - 1]),
                first_above: waiting.get(within).copied(),
            });
        }
        if waiting.is_empty()
            && let Some(last) = self.last.filter(|last| below(last))
        {
            return Ok(Boundary { below: self.stored, last_below: Some(last), first_above: None });
        }
        let found = self.boundary_in_file(below)?;
        Ok(Boundary { first_above: found.first_above.or(waiting.first().copied()), ..found })
    }

    fn boundary_in_file(&self, below: impl Fn(&[u8; N]) -> bool) -> Result<Boundary<N>, StorageError> {
        let mut starts = self.block_starts.lock();
        while (starts.len() as u32) * BLOCK_ENTRIES < self.stored {
            let from = starts.len() as u32 * BLOCK_ENTRIES;
            let entries = self.read(from, (BLOCKS_READ * BLOCK_ENTRIES).min(self.stored - from))?;
            starts.extend(entries.iter().step_by(BLOCK_ENTRIES as usize));
        }
        let blocks = starts.partition_point(&below);
        let next_start = starts.get(blocks).copied();
        drop(starts);
        let Some(block) = blocks.checked_sub(1) else {
            return Ok(Boundary { below: 0, last_below: None, first_above: next_start });
        };
        let from = block as u32 * BLOCK_ENTRIES;
        let length = BLOCK_ENTRIES.min(self.stored - from) as usize * N;
        let read = |bytes: &mut [u8]| self.file.read_exact_at(bytes, u64::from(from) * N as u64);
        BLOCKS.look((self.contents, block as u32), length, read, |bytes| {
            let (entries, _) = bytes.as_chunks::<N>();
            let within = entries.partition_point(&below);
            Boundary {
                below: from + within as u32,
                last_below: within.checked_sub(1).map(|last| entries[last]),
                first_above: entries.get(within).copied().or(next_start),
            }
        })
    }

    fn truncate(&mut self, entries: u32) -> Result<(), StorageError> {
        if entries >= self.len() {
            return Ok(());
        }
        if entries >= self.stored {
            self.pending.truncate((entries - self.stored) as usize * N);
        } else {
            self.pending.clear();
            self.stored = entries;
            self.contents = Contents::new();
            self.block_starts.lock().truncate(entries.div_ceil(BLOCK_ENTRIES) as usize);
            self.file.set_len(u64::from(entries) * N as u64)?;
        }
        self.last = match (self.pending.len() / N, self.stored) {
            (0, 0) => None,
            (0, stored) => Some(self.read(stored - 1, 1)?[0]),
            (waiting, _) => Some(self.pending_entry(waiting - 1)),
        };
        Ok(())
    }
}

fn relative(base_offset: i64, offset: i64) -> [u8; 4] {
    let relative =
        i32::try_from(offset - base_offset).expect("a segment rolls before an offset leaves 31 bits");
    relative.to_be_bytes()
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

/// Entries of an offset index: offset and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) floor: Option<(i64, u32)>,
    pub(crate) next: Option<(i64, u32)>,
}

/// `.index`: the batch at `position` ends at `offset` or later batches do.
#[derive(Debug)]
pub(crate) struct OffsetIndex {
    base_offset: i64,
    entries_max: u32,
    index: IndexFile<8>,
}

impl OffsetIndex {
    pub(crate) fn create(path: PathBuf, base_offset: i64, bytes_max: u32) -> Result<Self, StorageError> {
        Ok(Self { base_offset, entries_max: (bytes_max / 8).max(1), index: IndexFile::create(path)? })
    }

    /// Opens the file if it can belong to a log file of `log_bytes`; `None` when it must be rebuilt. With `thorough`, and
    /// in a small file, every entry is checked, else the last one.
    pub(crate) fn open(
        path: PathBuf,
        base_offset: i64,
        bytes_max: u32,
        log_bytes: u64,
        thorough: bool,
    ) -> Result<Option<Self>, StorageError> {
        let Some(size) = size_if_sound(&path, 8)? else { return Ok(None) };
        let index = IndexFile::open(path, size)?;
        let opened = Self { base_offset, entries_max: (bytes_max / 8).max(1), index };
        let sound = |(offset, position): (i64, u32)| offset >= base_offset && u64::from(position) < log_bytes;
        if opened.last_entry().is_some_and(|last| !sound(last)) {
            return Ok(None);
        }
        if thorough || size <= CHECKED_BYTES {
            let entries = opened.index.read(0, opened.index.stored)?;
            let entries = entries.iter().map(|entry| opened.decode(entry));
            if !entries.clone().all(sound) || !entries.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1) {
                return Ok(None);
            }
        }
        Ok(Some(opened))
    }

    fn decode(&self, entry: &[u8; 8]) -> (i64, u32) {
        (self.base_offset + i64::from(int(&entry[..4])), int(&entry[4..]) as u32)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.index.len() >= self.entries_max
    }

    pub(crate) fn last_entry(&self) -> Option<(i64, u32)> {
        self.index.last.as_ref().map(|entry| self.decode(entry))
    }

    pub(crate) fn push(&mut self, offset: i64, position: u32) -> Result<(), StorageError> {
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&relative(self.base_offset, offset));
        entry[4..].copy_from_slice(&position.to_be_bytes());
        self.index.push(entry)
    }

    /// The entries around `offset`: the last one up to it, from whose position on a scan finds the batch that holds the
    /// offset if the segment has it, and the one after that.
    pub(crate) fn around(&self, offset: i64) -> Result<Around, StorageError> {
        let found = self.index.boundary(|entry| self.decode(entry).0 <= offset)?;
        Ok(Around {
            floor: found.last_below.map(|entry| self.decode(&entry)),
            next: found.first_above.map(|entry| self.decode(&entry)),
        })
    }

    /// The last entry (offset, position) that points at `position` or before.
    pub(crate) fn last_pointing_up_to(&self, position: u64) -> Result<Option<(i64, u32)>, StorageError> {
        let found = self.index.boundary(|entry| u64::from(self.decode(entry).1) <= position)?;
        Ok(found.last_below.map(|entry| self.decode(&entry)))
    }

    /// Drops entries at or after `offset`.
    pub(crate) fn truncate_to(&mut self, offset: i64) -> Result<(), StorageError> {
        let keep = self.index.boundary(|entry| self.decode(entry).0 < offset)?.below;
        self.index.truncate(keep)
    }

    pub(crate) fn reset(&mut self) -> Result<(), StorageError> {
        self.index.truncate(0)
    }

    pub(crate) fn write_pending(&mut self) -> Result<(), StorageError> {
        self.index.write_pending()
    }

    pub(crate) fn file(&self) -> &Arc<LogFile> {
        &self.index.file
    }
}

/// `.timeindex`: no record up to `offset` has a timestamp above `timestamp`.
#[derive(Debug)]
pub(crate) struct TimeIndex {
    base_offset: i64,
    entries_max: u32,
    index: IndexFile<12>,
}

impl TimeIndex {
    pub(crate) fn create(path: PathBuf, base_offset: i64, bytes_max: u32) -> Result<Self, StorageError> {
        Ok(Self { base_offset, entries_max: (bytes_max / 12).max(2), index: IndexFile::create(path)? })
    }

    /// See [`OffsetIndex::open`].
    pub(crate) fn open(
        path: PathBuf,
        base_offset: i64,
        bytes_max: u32,
        thorough: bool,
    ) -> Result<Option<Self>, StorageError> {
        let Some(size) = size_if_sound(&path, 12)? else { return Ok(None) };
        let index = IndexFile::open(path, size)?;
        let opened = Self { base_offset, entries_max: (bytes_max / 12).max(2), index };
        let sound = |(timestamp, offset): (i64, i64)| timestamp >= -1 && offset >= base_offset;
        if opened.last_entry().is_some_and(|last| !sound(last)) {
            return Ok(None);
        }
        if thorough || size <= CHECKED_BYTES {
            let entries = opened.index.read(0, opened.index.stored)?;
            let entries = entries.iter().map(|entry| opened.decode(entry));
            if !entries.clone().all(sound) || !entries.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
                return Ok(None);
            }
        }
        Ok(Some(opened))
    }

    fn decode(&self, entry: &[u8; 12]) -> (i64, i64) {
        let timestamp = i64::from_be_bytes(entry[..8].try_into().expect("eight bytes"));
        (timestamp, self.base_offset + i64::from(int(&entry[8..])))
    }

    /// One slot stays free for the entry that is written when the segment is closed.
    pub(crate) fn is_full(&self) -> bool {
        self.index.len() >= self.entries_max - 1
    }

    pub(crate) fn last_entry(&self) -> Option<(i64, i64)> {
        self.index.last.as_ref().map(|entry| self.decode(entry))
    }

    /// Adds an entry if it says more than the last one.
    pub(crate) fn push(&mut self, timestamp: i64, offset: i64) -> Result<(), StorageError> {
        if timestamp < 0 || self.last_entry().is_some_and(|(last, _)| timestamp <= last) {
            return Ok(());
        }
        let mut entry = [0; 12];
        entry[..8].copy_from_slice(&timestamp.to_be_bytes());
        entry[8..].copy_from_slice(&relative(self.base_offset, offset));
        self.index.push(entry)
    }

    /// The last entry up to `timestamp`: the first record with that timestamp or a larger one is in the batch that holds
    /// the entry's offset, or later.
    pub(crate) fn floor(&self, timestamp: i64) -> Result<Option<(i64, i64)>, StorageError> {
        let found = self.index.boundary(|entry| self.decode(entry).0 <= timestamp)?;
        Ok(found.last_below.map(|entry| self.decode(&entry)))
    }

    pub(crate) fn truncate_to(&mut self, offset: i64) -> Result<(), StorageError> {
        let keep = self.index.boundary(|entry| self.decode(entry).1 < offset)?.below;
        self.index.truncate(keep)
    }

    pub(crate) fn reset(&mut self) -> Result<(), StorageError> {
        self.index.truncate(0)
    }

    pub(crate) fn write_pending(&mut self) -> Result<(), StorageError> {
        self.index.write_pending()
    }

    pub(crate) fn file(&self) -> &Arc<LogFile> {
        &self.index.file
    }
}

/// The size of an index file, if it exists and is a whole number of entries; a wrong one is removed.
fn size_if_sound(path: &std::path::Path, entry_bytes: u64) -> Result<Option<u64>, StorageError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(None) };
    if metadata.is_file() && metadata.len() % entry_bytes == 0 && metadata.len() <= u64::from(u32::MAX) {
        return Ok(Some(metadata.len()));
    }
    remove_if_present(path)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(directory: &tempfile::TempDir, entries: &[(i64, u32)], base_offset: i64) -> OffsetIndex {
        let mut index = OffsetIndex::create(directory.path().join("x.index"), base_offset, 10 << 20).unwrap();
        for &(offset, position) in entries {
            index.push(offset, position).unwrap();
        }
        index
    }

    #[test]
    fn damaged_files_are_rebuilt_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("y.index");
        let entry = |offset: i32, position: i32| [offset.to_be_bytes(), position.to_be_bytes()].concat();
        //   bytes, log size, thorough, usable
        let rows: [(&str, Vec<u8>, u64, bool, bool); 7] = [
            ("empty", vec![], 0, true, true),
            ("odd size", vec![0; 9], 100, false, false),
            ("position beyond the log", entry(5, 100), 100, false, false),
            ("negative offset", entry(-5, 10), 100, false, false),
            ("sound", [entry(1, 10), entry(2, 20)].concat(), 100, true, true),
            ("going back", [entry(3, 10), entry(2, 20)].concat(), 100, false, false),
            ("zeros", vec![0; 64], 100, true, false),
        ];
        for (name, bytes, log_bytes, thorough, usable) in rows {
            std::fs::write(&path, bytes).unwrap();
            let opened = OffsetIndex::open(path.clone(), 0, 1024, log_bytes, thorough).unwrap();
            assert_eq!(opened.is_some(), usable, "{name}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(OffsetIndex::open(path, 0, 1024, 1, true).unwrap().is_none(), "absent");
    }

    /// What is done to an index, and what is asked of it in between.
    #[derive(Clone, Debug)]
    enum Change {
        Push(Vec<(i64, u32)>),
        WritePending,
        TruncateTo(i64),
        Reset,
        Reopen,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => prop::collection::vec((1..5i64, 1..9u32), 1..400).prop_map(Change::Push),
            2 => Just(Change::WritePending),
            2 => (0..4_000i64).prop_map(Change::TruncateTo),
            1 => Just(Change::Reset),
            1 => Just(Change::Reopen),
        ]
    }

    fn around(entries: &[(i64, u32)], asked: i64) -> Around {
        Around {
            floor: entries.iter().rev().find(|(offset, _)| *offset <= asked).copied(),
            next: entries.iter().find(|(offset, _)| *offset > asked).copied(),
        }
    }

    proptest! {
        /// L3: the lookup equals a linear search for every argument, whatever part of the entries is on disk.
        #[test]
        fn l3_lookup_equals_linear_search(
            steps in prop::collection::vec((1..5i64, 1..9u32), 0..2500),
            written in any::<bool>(),
            cut in prop::option::of(0..12_000i64),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let (mut offset, mut position) = (100, 0);
            let mut entries: Vec<(i64, u32)> = steps.iter().map(|(o, p)| {
                offset += o;
                position += p;
                (offset, position)
            }).collect();
            let mut index = index(&directory, &entries, 100);
            if written {
                index.write_pending().unwrap();
            }
            if let Some(cut) = cut {
                index.truncate_to(cut).unwrap();
                entries.retain(|(offset, _)| *offset < cut);
            }
            prop_assert_eq!(index.last_entry(), entries.last().copied());
            for asked in (90..offset + 10).step_by(13) {
                prop_assert_eq!(index.around(asked).unwrap(), around(&entries, asked), "asked {}", asked);
            }
        }

        /// L3 after every change: no block that was kept from an earlier lookup is believed after what it held was cut
        /// off or written anew.
        #[test]
        fn l3_kept_blocks_follow_every_change(changes in prop::collection::vec(change(), 1..12)) {
            let directory = tempfile::tempdir().unwrap();
            let mut index = index(&directory, &[], 0);
            let mut entries: Vec<(i64, u32)> = Vec::new();
            for change in changes {
                match &change {
                    Change::Push(steps) => for (o, p) in steps {
                        let (offset, position) = entries.last().copied().unwrap_or((0, 0));
                        entries.push((offset + o, position + p));
                        index.push(offset + o, position + p).unwrap();
                    },
                    Change::WritePending => index.write_pending().unwrap(),
                    Change::TruncateTo(cut) => {
                        index.truncate_to(*cut).unwrap();
                        entries.retain(|(offset, _)| offset < cut);
                    }
                    Change::Reset => {
                        index.reset().unwrap();
                        entries.clear();
                    }
                    Change::Reopen => {
                        index.write_pending().unwrap();
                        let path = index.file().path();
                        index = OffsetIndex::open(path, 0, 10 << 20, u64::MAX, false).unwrap().unwrap();
                    }
                }
                let end = entries.last().map_or(0, |entry| entry.0);
                for asked in (0..end + 10).step_by(29) {
                    prop_assert_eq!(
                        index.around(asked).unwrap(), around(&entries, asked), "asked {} after {:?}", asked, change
                    );
                }
            }
        }
    }
}
