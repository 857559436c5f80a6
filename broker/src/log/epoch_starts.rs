//! `leader-epoch-start-checkpoint` of a log directory: the epochs that leaders of its partitions have begun, so that those
//! of many are durable with one sync (HW-06). Kafka ignores the file.
//!
//! A file system may take long to replace thousands of small files one after another (ext4 passes over each inode that was
//! freed within the last seconds, for every file that is made), and syncs each. An entry counts until records follow it, see
//! `PartitionLog::restore_epoch`; older ones stay here and do no harm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tracing::warn;
use zurau_common::id::{TopicId, TopicPartition};

use super::checkpoint::{self, CheckpointError};
use super::epochs::EpochEntry;
use super::error::StorageError;
use super::files::{read_if_present, write_atomically};

const FILE: &str = "leader-epoch-start-checkpoint";

type Starts = BTreeMap<TopicPartition, (TopicId, EpochEntry)>;

/// The last epoch that a leader has begun in each partition.
#[derive(Debug)]
pub struct EpochStarts {
    path: PathBuf,
    starts: Starts,
    changed: bool,
}

impl EpochStarts {
    /// Reads the file of a log directory. A damaged one counts as empty (LOG-06).
    pub(super) fn read(directory: &Path) -> Result<Self, StorageError> {
        let path = directory.join(FILE);
        let starts = match read_if_present(&path)?.map(|text| decode(&text)) {
            None => BTreeMap::new(),
            Some(Ok(starts)) => starts,
            Some(Err(reason)) => {
                warn!(path = %path.display(), %reason, "checkpoint is damaged; nothing of it is assumed");
                BTreeMap::new()
            }
        };
        Ok(Self { path, starts, changed: false })
    }

    /// What was recorded for a partition of this topic id.
    pub fn get(&self, partition: &TopicPartition, topic_id: TopicId) -> Option<EpochEntry> {
        self.starts.get(partition).filter(|(found, _)| *found == topic_id).map(|(_, entry)| *entry)
    }

    /// The last epoch of each partition, of whatever topic id.
    pub(super) fn epochs(&self) -> BTreeMap<TopicPartition, i32> {
        self.starts.iter().map(|(partition, (_, entry))| (partition.clone(), entry.leader_epoch)).collect()
    }

    pub fn set(&mut self, partition: &TopicPartition, topic_id: TopicId, entry: EpochEntry) {
        let former = self.starts.insert(partition.clone(), (topic_id, entry));
        self.changed |= former != Some((topic_id, entry));
    }

    pub(super) fn remove(&mut self, partition: &TopicPartition) {
        self.changed |= self.starts.remove(partition).is_some();
    }

    /// Replaces the file, durably, if anything changed since the last write.
    pub fn write(&mut self) -> Result<(), StorageError> {
        if self.changed {
            write_atomically(&self.path, encode(&self.starts).as_bytes())?;
            self.changed = false;
        }
        Ok(())
    }
}

fn encode(starts: &Starts) -> String {
    checkpoint::encode(starts.iter().map(|(partition, (topic_id, entry))| {
        let EpochEntry { leader_epoch, start_offset } = entry;
        format!("{} {} {topic_id} {leader_epoch} {start_offset}", partition.topic, partition.partition)
    }))
}

fn decode(text: &[u8]) -> Result<Starts, CheckpointError> {
    checkpoint::decode_by_partition(text, |words| {
        let topic_id = TopicId::parse(words.next()?)?;
        let entry =
            EpochEntry { leader_epoch: checkpoint::number(words)?, start_offset: checkpoint::number(words)? };
        Some((topic_id, entry))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "AQIDBAUGBwgJCgsMDQ4PEA";

    #[test]
    fn what_was_written_is_read_and_belongs_to_one_incarnation() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (TopicPartition::new("a", 0), TopicPartition::new("b", 7));
        let (id, other) = (TopicId::parse(ID).unwrap(), TopicId(uuid::Uuid::from_u128(9)));
        let entry = EpochEntry { leader_epoch: 3, start_offset: 40 };
        let mut starts = EpochStarts::read(directory.path()).unwrap();
        starts.set(&a, id, entry);
        starts.set(&b, id, EpochEntry { leader_epoch: 0, start_offset: 0 });
        starts.write().unwrap();
        let text = std::fs::read_to_string(directory.path().join(FILE)).unwrap();
        assert_eq!(text, format!("0\n2\na 0 {ID} 3 40\nb 7 {ID} 0 0\n"));
        let mut starts = EpochStarts::read(directory.path()).unwrap();
        assert_eq!((starts.get(&a, id), starts.get(&a, other)), (Some(entry), None));
        starts.remove(&b);
        starts.write().unwrap();
        assert_eq!(EpochStarts::read(directory.path()).unwrap().get(&b, id), None);
    }

    #[test]
    fn log_06_damaged_text_counts_as_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let good = format!("a 0 {ID} 3 40");
        let rows = [
            String::new(),
            "1\n0\n".to_owned(),
            format!("0\n2\n{good}\n"),
            format!("0\n2\n{good}\n{good}\n"),
            format!("0\n1\n{good} 5\n"),
            "0\n1\na 0 x 3 40\n".to_owned(),
            format!("0\n1\na 0 {ID} -1 40\n"),
            format!("0\n1\na 0 {ID} 3 -4\n"),
            format!("0\n1\na 0 {ID} 3\n"),
        ];
        for text in rows {
            assert!(decode(text.as_bytes()).is_err(), "{text:?}");
            std::fs::write(directory.path().join(FILE), &text).unwrap();
            assert!(EpochStarts::read(directory.path()).unwrap().starts.is_empty());
        }
    }
}
