//! `.txnindex`: the aborted transactions of a segment, in the order of their abort markers.
//!
//! The file exists only when there is one. Entries are few; a lookup reads the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StorageError;
use super::files::{LogFile, read_if_present};

const ENTRY_BYTES: usize = 34;

/// A transaction that was aborted: readers of committed data skip its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AbortedTransaction {
    pub producer_id: i64,
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of the abort marker (inclusive).
    pub last_offset: i64,
    /// Last stable offset once the marker was written.
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let fields = [self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset];
        for (index, field) in fields.into_iter().enumerate() {
            bytes[2 + index * 8..10 + index * 8].copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let field = |index: usize| {
            i64::from_be_bytes(bytes[2 + index * 8..10 + index * 8].try_into().expect("eight bytes"))
        };
        let version = i16::from_be_bytes([bytes[0], bytes[1]]);
        (version == 0).then(|| Self {
            producer_id: field(0),
            first_offset: field(1),
            last_offset: field(2),
            last_stable_offset: field(3),
        })
    }
}

/// The transaction index of one segment.
#[derive(Debug, Clone)]
pub(crate) struct TransactionIndex {
    file: Arc<LogFile>,
    entries: u64,
}

impl TransactionIndex {
    pub(crate) fn empty(path: PathBuf) -> Self {
        Self { file: LogFile::new(path), entries: 0 }
    }

    /// Opens the index if it is sound, `None` when it must be rebuilt.
    pub(crate) fn open(path: PathBuf, base_offset: i64) -> Result<Option<Self>, StorageError> {
        let Some(entries) = decode_file(&path)? else { return Ok(None) };
        let ordered = entries.is_sorted_by(|a, b| a.last_offset < b.last_offset);
        if !ordered || entries.iter().any(|entry| entry.last_offset < base_offset) {
            return Ok(None);
        }
        Ok(Some(Self { file: LogFile::new(path), entries: entries.len() as u64 }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(crate) fn push(&mut self, transaction: &AbortedTransaction) -> Result<(), StorageError> {
        if self.entries == 0 {
            self.file.create()?;
        }
        self.file.write_all_at(&transaction.encode(), self.entries * ENTRY_BYTES as u64)?;
        self.entries += 1;
        Ok(())
    }

    pub(crate) fn all(&self) -> Result<Vec<AbortedTransaction>, StorageError> {
        if self.entries == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; self.entries as usize * ENTRY_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Ok(entries.iter().filter_map(AbortedTransaction::decode).collect())
    }

    /// Drops entries whose marker is at or after `offset`.
    pub(crate) fn truncate_to(&mut self, offset: i64) -> Result<(), StorageError> {
        let keep = self.all()?.partition_point(|entry| entry.last_offset < offset) as u64;
        if keep < self.entries {
            self.file.set_len(keep * ENTRY_BYTES as u64)?;
            self.entries = keep;
        }
        Ok(())
    }

    pub(crate) fn reset(&mut self) -> Result<(), StorageError> {
        self.entries = 0;
        self.file.remove()
    }

    pub(crate) fn file(&self) -> &Arc<LogFile> {
        &self.file
    }
}

/// Entries of a file (none when absent), `None` for a damaged one.
fn decode_file(path: &Path) -> Result<Option<Vec<AbortedTransaction>>, StorageError> {
    Ok(decode_entries(&read_if_present(path)?.unwrap_or_default()))
}

/// The entries of a whole file, `None` for a damaged one.
pub(crate) fn decode_entries(bytes: &[u8]) -> Option<Vec<AbortedTransaction>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return None;
    }
    entries.iter().map(AbortedTransaction::decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_truncate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("00.txnindex");
        let entry = |last_offset| AbortedTransaction {
            producer_id: 9,
            first_offset: 1,
            last_offset,
            last_stable_offset: 4,
        };
        let mut index = TransactionIndex::empty(path.clone());
        for last_offset in [5, 8, 12] {
            index.push(&entry(last_offset)).unwrap();
        }
        index.truncate_to(8).unwrap();
        index.push(&entry(9)).unwrap();
        let reopened = TransactionIndex::open(path.clone(), 0).unwrap().unwrap();
        assert_eq!(reopened.all().unwrap(), [entry(5), entry(9)]);
        std::fs::write(&path, [0; 35]).unwrap();
        assert!(TransactionIndex::open(path, 0).unwrap().is_none());
    }
}
