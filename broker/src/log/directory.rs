//! One log directory: whose it is, whether it was left in order, which partitions it holds, and its checkpoints.
//!
//! Opening takes the lock, reads the clean mark and removes it at once, so that a crash while loading is not taken
//! for a clean stop (LOG-05). Marks and files are Kafka's; see also [`super::Incarnation`] (D1).

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};
use thiserror::Error;
use tracing::warn;
use uuid::Uuid;
use zurau_common::id::{TopicPartition, topic_name_problem};

use super::checkpoint::{decode_offsets, encode_offsets};
use super::epoch_starts::EpochStarts;
use super::error::{StorageContext, StorageError};
use super::files::{read_if_present, remove_if_present, sync_directory, write_atomically};
use super::load::OpenMode;
use super::meta_properties::MetaProperties;

const LOCK: &str = ".lock";
const CLEAN_MARK: &str = ".kafka_cleanshutdown";
const META_PROPERTIES: &str = "meta.properties";

#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("log directory {} is in use by another broker process", path.display())]
    Locked { path: PathBuf },
    #[error("{} belongs to broker {found}, but this is broker {expected}; correct broker.id or log.dirs", path.display())]
    ForeignBroker { path: PathBuf, found: i32, expected: i32 },
    #[error("{} belongs to cluster {found}, but ZooKeeper holds cluster {expected}. If ZooKeeper has lost its data, stop the brokers and controllers and let `zurau recover-metadata` rebuild it from the log directories; else correct zookeeper.connect or log.dirs", path.display())]
    ForeignCluster { path: PathBuf, found: String, expected: String },
    #[error("{} cannot be used: {reason}", path.display())]
    BadMeta { path: PathBuf, reason: String },
}

/// A directory found inside a log directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundDirectory {
    Partition {
        partition: TopicPartition,
        path: PathBuf,
    },
    /// Deletion had begun (`-delete`): remove it.
    ToDelete {
        path: PathBuf,
    },
    /// Set aside because no topic wanted it (`-stray`): left for the operator.
    Stray {
        path: PathBuf,
    },
    /// A copy that is to take the place of the partition's log in another directory (`-future`); not served.
    Future {
        partition: TopicPartition,
        path: PathBuf,
    },
}

/// A "topic partition offset" file. Entries stay until they are removed by name: a write never drops a partition
/// that was not mentioned lately (HW-10).
#[derive(Debug)]
pub struct OffsetCheckpoint {
    path: PathBuf,
    offsets: BTreeMap<TopicPartition, i64>,
    changed: bool,
    /// The file was there and sound: a partition that it does not name has no offset yet.
    sound: bool,
}

impl OffsetCheckpoint {
    /// Reads the file; a damaged one is a warning and counts as empty (LOG-06).
    fn read(path: PathBuf) -> Result<Self, StorageError> {
        let text = read_if_present(&path)?;
        let decoded = text.as_deref().map(decode_offsets);
        let sound = matches!(decoded, Some(Ok(_)));
        let offsets = match decoded {
            None => BTreeMap::new(),
            Some(Ok(offsets)) => offsets,
            Some(Err(reason)) => {
                warn!(path = %path.display(), %reason, "checkpoint is damaged; nothing of it is assumed");
                BTreeMap::new()
            }
        };
        Ok(Self { path, offsets, changed: false, sound })
    }

    pub fn get(&self, partition: &TopicPartition) -> Option<i64> {
        self.offsets.get(partition).copied()
    }

    pub fn set(&mut self, partition: &TopicPartition, offset: i64) {
        if self.get(partition) != Some(offset) {
            self.offsets.insert(partition.clone(), offset);
            self.changed = true;
        }
    }

    pub fn remove(&mut self, partition: &TopicPartition) {
        self.changed |= self.offsets.remove(partition).is_some();
    }

    /// Replaces the file, durably, if anything changed since the last write.
    pub fn write(&mut self) -> Result<(), StorageError> {
        if self.changed || !self.path.exists() {
            write_atomically(&self.path, encode_offsets(&self.offsets).as_bytes())?;
            self.changed = false;
        }
        Ok(())
    }
}

/// The checkpoints of a log directory.
#[derive(Debug)]
pub struct Checkpoints {
    /// `recovery-point-offset-checkpoint`
    pub recovery_points: OffsetCheckpoint,
    /// `replication-offset-checkpoint`
    pub high_watermarks: OffsetCheckpoint,
    /// `log-start-offset-checkpoint`
    pub log_starts: OffsetCheckpoint,
    /// `cleaner-offset-checkpoint`
    pub cleaner_offsets: OffsetCheckpoint,
    /// `leader-epoch-start-checkpoint`
    pub epoch_starts: EpochStarts,
}

impl Checkpoints {
    pub(super) fn read(directory: &Path) -> Result<Self, StorageError> {
        let read = |name: &str| OffsetCheckpoint::read(directory.join(name));
        Ok(Self {
            recovery_points: read("recovery-point-offset-checkpoint")?,
            high_watermarks: read("replication-offset-checkpoint")?,
            log_starts: read("log-start-offset-checkpoint")?,
            cleaner_offsets: read("cleaner-offset-checkpoint")?,
            epoch_starts: EpochStarts::read(directory)?,
        })
    }

    /// Forgets a partition, durably: also one that was removed before without that.
    pub fn forget(&mut self, partition: &TopicPartition) -> Result<(), StorageError> {
        self.remove(partition);
        for checkpoint in self.all_mut().into_iter().filter(|checkpoint| checkpoint.changed) {
            checkpoint.write()?;
        }
        self.epoch_starts.write()
    }

    /// Forgets a partition that was deleted; on the disk at the next write.
    pub fn remove(&mut self, partition: &TopicPartition) {
        for checkpoint in self.all_mut() {
            checkpoint.remove(partition);
        }
        self.epoch_starts.remove(partition);
    }

    pub fn write(&mut self) -> Result<(), StorageError> {
        self.all_mut().into_iter().try_for_each(OffsetCheckpoint::write)?;
        self.epoch_starts.write()
    }

    fn all_mut(&mut self) -> [&mut OffsetCheckpoint; 4] {
        [
            &mut self.recovery_points,
            &mut self.high_watermarks,
            &mut self.log_starts,
            &mut self.cleaner_offsets,
        ]
    }
}

/// An open, locked log directory.
#[derive(Debug)]
pub struct LogDirectory {
    path: PathBuf,
    was_clean: bool,
    meta: Option<MetaProperties>,
    pub checkpoints: Checkpoints,
    /// Held for the life of the value.
    _lock: DirectoryLock,
}

/// No other process uses the log directory while this lives.
#[derive(Debug)]
pub(super) struct DirectoryLock(File);

impl Drop for DirectoryLock {
    /// Closing alone would leave the lock to a child process that is just being started and has not let go of the
    /// descriptor yet.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            warn!(%error, "a log directory could not be unlocked");
        }
    }
}

impl LogDirectory {
    /// Creates the directory if needed, locks it, takes the clean mark away, reads `meta.properties` and checkpoints.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        fs::create_dir_all(path).storage("create directory", path)?;
        let lock = lock(path)?;
        let mark = path.join(CLEAN_MARK);
        let was_clean = mark.exists();
        if was_clean {
            remove_if_present(&mark)?;
            sync_directory(path)?;
        }
        let meta = read_meta(path)?;
        let checkpoints = Checkpoints::read(path)?;
        let mut directory = Self { path: path.to_owned(), was_clean, meta, checkpoints, _lock: lock };
        if directory.list()?.is_empty() {
            // From the first partition on, absence from the checkpoint means "nothing synced yet".
            directory.checkpoints.recovery_points.write()?;
            directory.checkpoints.recovery_points.sound = true;
        }
        Ok(directory)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last stop closed every log in here.
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// The broker id this directory belongs to, if it says so.
    pub fn broker_id(&self) -> Option<i32> {
        self.meta.as_ref().and_then(|meta| meta.broker_id)
    }

    /// The cluster id this directory belongs to, if it says so.
    pub fn cluster_id(&self) -> Option<&str> {
        self.meta.as_ref().and_then(|meta| meta.cluster_id.as_deref())
    }

    /// Checks that the directory belongs to this broker and cluster, and writes down what it did not say yet.
    pub fn claim(&mut self, broker_id: i32, cluster_id: &str) -> Result<(), DirectoryError> {
        let path = self.path.join(META_PROPERTIES);
        if let Some(found) = self.broker_id().filter(|found| *found != broker_id) {
            return Err(DirectoryError::ForeignBroker { path, found, expected: broker_id });
        }
        if let Some(found) = self.cluster_id().filter(|found| *found != cluster_id).map(ToOwned::to_owned) {
            return Err(DirectoryError::ForeignCluster { path, found, expected: cluster_id.to_owned() });
        }
        let wanted = MetaProperties { broker_id: Some(broker_id), cluster_id: Some(cluster_id.to_owned()) };
        if self.meta.as_ref() != Some(&wanted) {
            write_atomically(&path, wanted.encode().as_bytes())?;
            self.meta = Some(wanted);
        }
        Ok(())
    }

    /// Where the log of a partition is or will be.
    pub fn partition_path(&self, partition: &TopicPartition) -> PathBuf {
        self.path.join(partition.to_string())
    }

    /// What is in the directory; names that mean nothing are left out with a warning.
    pub fn list(&self) -> Result<Vec<FoundDirectory>, StorageError> {
        list(&self.path)
    }

    /// How to open the log of a partition, by clean mark and checkpoints.
    pub fn open_mode(&self, partition: &TopicPartition) -> OpenMode {
        OpenMode {
            clean: self.was_clean,
            recovery_point: self.recovery_point(partition),
            log_start_offset: self.checkpoints.log_starts.get(partition).unwrap_or(0),
        }
    }

    fn recovery_point(&self, partition: &TopicPartition) -> i64 {
        let checkpoint = &self.checkpoints.recovery_points;
        checkpoint.get(partition).unwrap_or(if checkpoint.sound { 0 } else { -1 })
    }

    /// Marks a clean stop. Only after every log was closed and the checkpoints were written; `broker_epoch` is the
    /// registration that ends.
    pub fn mark_clean(&mut self, broker_epoch: i64) -> Result<(), StorageError> {
        self.checkpoints.write()?;
        let mark = format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}");
        write_atomically(&self.path.join(CLEAN_MARK), mark.as_bytes())
    }
}

pub(super) fn read_meta(directory: &Path) -> Result<Option<MetaProperties>, DirectoryError> {
    let path = directory.join(META_PROPERTIES);
    let Some(text) = read_if_present(&path)? else { return Ok(None) };
    let decoded = MetaProperties::decode(&text);
    decoded.map(Some).map_err(|reason| DirectoryError::BadMeta { path, reason })
}

pub(super) fn has_clean_mark(directory: &Path) -> bool {
    directory.join(CLEAN_MARK).exists()
}

/// What is in a log directory; names that mean nothing are left out with a warning.
pub(super) fn list(directory: &Path) -> Result<Vec<FoundDirectory>, StorageError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).storage("list", directory)? {
        let entry = entry.storage("list", directory)?;
        if !entry.file_type().storage("look at", &entry.path())?.is_dir() {
            continue;
        }
        let name = entry.file_name();
        match name.to_str().and_then(|name| classify(name, entry.path())) {
            Some(directory) => found.push(directory),
            None => {
                warn!(path = %entry.path().display(), "not a partition directory; leaving it alone");
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Locks against other processes (Kafka uses POSIX record locks) and other openings in this process (BSD locks).
pub(super) fn lock(directory: &Path) -> Result<DirectoryLock, DirectoryError> {
    let path = directory.join(LOCK);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .storage("open", &path)?;
    let locked = || DirectoryError::Locked { path: directory.to_owned() };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(locked()),
        Err(TryLockError::Error(source)) => {
            return Err(StorageError { action: "lock", path, source }.into());
        }
    }
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(DirectoryLock(file)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Err(locked()),
        Err(error) => {
            let source = io::Error::from(error);
            Err(StorageError { action: "lock", path, source }.into())
        }
    }
}

/// Why a partition's directory has a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    ToDelete,
    Stray,
    Future,
}

impl Aside {
    fn suffix(self) -> &'static str {
        match self {
            Self::ToDelete => "-delete",
            Self::Stray => "-stray",
            Self::Future => "-future",
        }
    }

    /// The name of a directory that has this one now, or would have: `topic-partition.uniqueid-suffix`, the id of 32
    /// hexadecimal digits. Topic names have up to 249 bytes, file names up to 255, so the end of long ones is left out.
    pub(crate) fn name(self, name: &str) -> String {
        let kept: String = name.chars().take(215).collect();
        self.whole_name(&kept, Uuid::new_v4().as_u128())
    }

    /// As [`Aside::name`], with nothing left out.
    pub(crate) fn whole_name(self, name: &str, unique: u128) -> String {
        format!("{name}.{unique:032x}{}", self.suffix())
    }
}

fn classify(name: &str, path: PathBuf) -> Option<FoundDirectory> {
    let set_aside = |aside: Aside| {
        let (partition, unique) = name.strip_suffix(aside.suffix())?.rsplit_once('.')?;
        let unique_is_hexadecimal = unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
        (unique_is_hexadecimal && !partition.is_empty()).then_some(partition)
    };
    if set_aside(Aside::ToDelete).is_some() {
        return Some(FoundDirectory::ToDelete { path });
    }
    if set_aside(Aside::Stray).is_some() {
        return Some(FoundDirectory::Stray { path });
    }
    if let Some(partition) = set_aside(Aside::Future) {
        return Some(FoundDirectory::Future { partition: parse_partition(partition)?, path });
    }
    Some(FoundDirectory::Partition { partition: parse_partition(name)?, path })
}

/// Whose copy a directory is that is set aside (`-stray`, `-delete`, `-future`), if its name says so.
pub(super) fn partition_set_aside(path: &Path) -> Option<TopicPartition> {
    let (partition, _) = path.file_name()?.to_str()?.rsplit_once('.')?;
    parse_partition(partition)
}

/// `topic-partition`, with a legal topic name.
pub fn parse_partition(name: &str) -> Option<TopicPartition> {
    let (topic, partition) = name.rsplit_once('-')?;
    let digits = !partition.is_empty() && partition.bytes().all(|byte| byte.is_ascii_digit());
    if topic_name_problem(topic).is_some() || !digits {
        return None;
    }
    Some(TopicPartition::new(topic, partition.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> LogDirectory {
        LogDirectory::open(path).unwrap()
    }

    #[test]
    fn names() {
        let unique = "0123456789abcdef0123456789abcdef";
        let path = PathBuf::new();
        let partition = |topic: &str, number| FoundDirectory::Partition {
            partition: TopicPartition::new(topic, number),
            path: path.clone(),
        };
        let rows = [
            ("t-0".to_owned(), Some(partition("t", 0))),
            ("a-b.c_d-12".to_owned(), Some(partition("a-b.c_d", 12))),
            (format!("t-0.{unique}-delete"), Some(FoundDirectory::ToDelete { path: path.clone() })),
            (format!("t-0.{unique}-stray"), Some(FoundDirectory::Stray { path: path.clone() })),
            (
                format!("t-0.{unique}-future"),
                Some(FoundDirectory::Future { partition: TopicPartition::new("t", 0), path: path.clone() }),
            ),
            (format!("t.{unique}-future"), None),
            ("t-0.123-delete".to_owned(), None),
            ("t".to_owned(), None),
            ("-1".to_owned(), None),
            ("t-".to_owned(), None),
            ("t-x1".to_owned(), None),
            ("t-99999999999".to_owned(), None),
            ("lost+found".to_owned(), None),
        ];
        for (name, expected) in rows {
            assert_eq!(classify(&name, path.clone()), expected, "{name}");
        }
    }

    #[test]
    fn one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let held = open(directory.path());
        assert!(matches!(LogDirectory::open(directory.path()), Err(DirectoryError::Locked { .. })));
        drop(held);
        open(directory.path());
    }

    #[test]
    fn log_05_clean_mark_is_gone_as_soon_as_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = open(directory.path());
        assert!(!first.was_clean());
        first.mark_clean(7).unwrap();
        drop(first);
        assert!(open(directory.path()).was_clean());
        assert!(!open(directory.path()).was_clean(), "the start in between did not stop cleanly (LOG-05)");
    }

    #[test]
    fn belongs_to_one_broker_of_one_cluster() {
        let directory = tempfile::tempdir().unwrap();
        open(directory.path()).claim(3, "cluster").unwrap();
        let mut again = open(directory.path());
        assert_eq!((again.broker_id(), again.cluster_id()), (Some(3), Some("cluster")));
        again.claim(3, "cluster").unwrap();
        for (broker_id, cluster_id) in [(4, "cluster"), (3, "other")] {
            let error = again.claim(broker_id, cluster_id).unwrap_err();
            assert!(
                matches!(error, DirectoryError::ForeignBroker { .. } | DirectoryError::ForeignCluster { .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn hw_10_checkpoints_keep_partitions_nobody_mentions() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (TopicPartition::new("a", 0), TopicPartition::new("b", 1));
        let mut log_directory = open(directory.path());
        log_directory.checkpoints.high_watermarks.set(&a, 10);
        log_directory.checkpoints.recovery_points.set(&a, 5);
        log_directory.checkpoints.write().unwrap();
        drop(log_directory);
        let mut log_directory = open(directory.path());
        log_directory.checkpoints.high_watermarks.set(&b, 20);
        log_directory.checkpoints.write().unwrap();
        drop(log_directory);
        let mut log_directory = open(directory.path());
        assert_eq!(log_directory.checkpoints.high_watermarks.get(&a), Some(10), "HW-10");
        assert_eq!(log_directory.checkpoints.high_watermarks.get(&b), Some(20));
        assert_eq!(log_directory.open_mode(&a).recovery_point, 5);
        log_directory.checkpoints.remove(&a);
        log_directory.checkpoints.write().unwrap();
        let text = fs::read_to_string(directory.path().join("replication-offset-checkpoint")).unwrap();
        assert_eq!(text, "0\n1\nb 1 20\n");
    }

    #[test]
    fn log_06_damaged_checkpoint_counts_as_empty() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("t-0")).unwrap();
        let good = "0\n2\nt 0 5\nu 0 7\n";
        let t = TopicPartition::new("t", 0);
        //   what the file holds, the offset of t-0 in it
        let rows: [(&[u8], Option<i64>); 9] = [
            (good.as_bytes(), Some(5)),
            (b"", None),
            (good.as_bytes().split_at(9).0, None),
            (b"0\n5\nhalf", None),
            (&[0xff, 0xfe, 0], None),
            (b"0\n1\nt 0 -5\n", None),
            (b"0\n1\nt 0 5\nu 0 7\n", None),
            (b"0\n2\nt 0 5\nt 0 6\n", None),
            (b"0\n1\n3 4\n", None),
        ];
        let names = [
            "replication-offset-checkpoint",
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "cleaner-offset-checkpoint",
        ];
        for (bytes, expected) in rows {
            for name in names {
                fs::write(directory.path().join(name), bytes).unwrap();
            }
            let opened = open(directory.path());
            let Checkpoints { recovery_points, high_watermarks, log_starts, cleaner_offsets, .. } =
                &opened.checkpoints;
            for checkpoint in [recovery_points, high_watermarks, log_starts, cleaner_offsets] {
                assert_eq!(checkpoint.get(&t), expected, "{:?}", String::from_utf8_lossy(bytes));
            }
            let mode = opened.open_mode(&t);
            let unknown = OpenMode::UNKNOWN;
            assert_eq!(mode.recovery_point, expected.unwrap_or(unknown.recovery_point));
            assert_eq!(mode.log_start_offset, expected.unwrap_or(unknown.log_start_offset));
        }
    }
}
