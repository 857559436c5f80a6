//! The log directories as disks: how much space is left (D17), and one that fails goes offline alone. Its partitions
//! resign; the broker ends only with its last directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{error, info, warn};
use zurau_common::config::Settings;

use super::Partitions;
use crate::disk_space::{Marks, Space};
use crate::log::{EpochEntry, FileSystem, StorageError, sync_directory};
use crate::partition::Partition;

/// Tells the free bytes of the file system that holds a directory.
pub(super) type FreeSpace = Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>;

pub(super) fn free_space() -> FreeSpace {
    Arc::new(|path| {
        let space = rustix::fs::statvfs(path)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    })
}

/// A log directory at one moment.
pub(crate) struct DirectoryState<'a> {
    pub(crate) path: &'a Path,
    /// Why it is offline.
    pub(crate) failed: Option<&'a str>,
    pub(crate) space: Space,
}

/// The marks of `log.dirs.space.*`.
pub(crate) fn space_marks(settings: &Settings) -> Marks {
    let bytes = |key: &str| {
        let value = settings.get(key).and_then(|(value, _)| value.trim().parse().ok());
        value.unwrap_or_else(|| unreachable!("{key} has a default and was checked when it was read"))
    };
    Marks {
        soft_bytes: bytes("log.dirs.space.soft.min.bytes"),
        hard_bytes: bytes("log.dirs.space.hard.min.bytes"),
    }
}

impl Partitions {
    /// Looks how much space each directory has left. What changed is logged, with what follows from it.
    pub(crate) fn check_space(&self, marks: Marks) {
        let free_space = Arc::clone(&self.free_space.read());
        for (index, directory) in self.directories.iter().enumerate() {
            if directory.failed.get().is_some() {
                continue;
            }
            let free_bytes = match free_space(&directory.path) {
                Ok(free_bytes) => free_bytes,
                Err(reason) => {
                    warn!(directory = %directory.path.display(), %reason, "the free space cannot be read");
                    continue;
                }
            };
            let space = Space::judge(free_bytes, marks);
            let before = std::mem::replace(&mut *directory.space.write(), space);
            self.shared.set_exhausted(index, space == Space::Exhausted);
            if space.is_like(before) {
                continue;
            }
            let path = directory.path.display();
            match space {
                Space::Enough => info!(directory = %path, free_bytes, "there is enough space again"),
                Space::Low(_) => warn!(
                    directory = %path, free_bytes, soft_mark = marks.soft_bytes,
                    "little space is left: producers are slowed down (log.dirs.space.soft.min.bytes)"
                ),
                Space::Exhausted => error!(
                    directory = %path, free_bytes, hard_mark = marks.hard_bytes,
                    "no space is left: produce requests are refused, and nothing is fetched from leaders, until records are \
                     deleted or the disk grows \
                     (log.dirs.space.hard.min.bytes)"
                ),
            }
        }
    }

    /// Every directory that could be opened, in the order of their index.
    pub(crate) fn directories(&self) -> Vec<DirectoryState<'_>> {
        let all = self.directories.iter().map(|directory| DirectoryState {
            path: &directory.path,
            failed: directory.failed.get().map(String::as_str),
            space: *directory.space.read(),
        });
        all.collect()
    }

    /// The space that the directory of a partition has left.
    pub(crate) fn space_of(&self, partition: &Partition) -> Space {
        *self.directories[partition.directory()].space.read()
    }

    #[cfg(test)]
    pub(crate) fn set_free_space(&self, bytes: u64) {
        *self.free_space.write() = Arc::new(move |_| Ok(bytes));
    }

    /// Whether a directory, by its index in `log.dirs`, has gone offline.
    pub(crate) fn has_failed(&self, directory: usize) -> bool {
        self.directories.get(directory).is_some_and(|directory| directory.failed.get().is_some())
    }

    /// Whether this broker may have replicas that it cannot reach: in a directory that went offline, or that could not be
    /// opened at the start.
    pub(crate) fn has_offline_directory(&self) -> bool {
        !self.unopened.is_empty() || (0..self.directories.len()).any(|index| self.has_failed(index))
    }

    /// Directories that could not be opened at the start.
    pub(crate) fn unopened(&self) -> &[PathBuf] {
        &self.unopened
    }

    /// The file systems of the directories that are not offline, by their index in `log.dirs`, to be synced later. One that
    /// cannot be opened is left out, and judged as any other disk error.
    pub(crate) fn file_systems(&self) -> BTreeMap<usize, FileSystem> {
        let mut opened = BTreeMap::new();
        for (index, directory) in self.directories.iter().enumerate() {
            if self.has_failed(index) {
                continue;
            }
            match FileSystem::of(&directory.path) {
                Ok(file_system) => drop(opened.insert(index, file_system)),
                Err(error) => self.note_error(index, &error),
            }
        }
        opened
    }

    /// Makes the names of created logs durable. Waits for the disk.
    ///
    /// # Errors
    /// A disk error.
    pub(crate) fn sync_names(&self, index: usize) -> Result<(), StorageError> {
        sync_directory(&self.directories[index].path)
    }

    /// Makes epochs that leaders begin durable, all of one directory at once (HW-06). Waits for the disk.
    ///
    /// # Errors
    /// A disk error: none of them is recorded.
    pub(crate) fn record_epochs<'a>(
        &self,
        index: usize,
        begun: impl Iterator<Item = (&'a Partition, EpochEntry)>,
    ) -> Result<(), StorageError> {
        let starts = &mut self.directories[index].opened.lock().checkpoints.epoch_starts;
        for (partition, entry) in begun {
            starts.set(partition.id(), partition.topic_id(), entry);
        }
        starts.write()
    }

    /// Takes a directory offline if this error says that its disk is of no more use. Waits for the locks of partitions.
    pub(crate) fn note_error(&self, index: usize, error: &StorageError) {
        if !error.is_disk_failure() {
            return;
        }
        // What was read or written there before a replica moved may fail after.
        let index = self.directory_of(&error.path).unwrap_or(index);
        let directory = &self.directories[index];
        if directory.failed.set(error.to_string()).is_err() {
            return;
        }
        let partitions: Vec<_> =
            self.all().into_iter().filter(|partition| partition.directory() == index).collect();
        error!(
            directory = %directory.path.display(), %error, partitions = partitions.len(),
            "the log directory goes offline with its partitions; repair the disk and restart the broker"
        );
        for partition in partitions {
            partition.lose_log(&error);
        }
        self.drop_moves_to(index);
        if self.directories.iter().all(|directory| directory.failed.get().is_some()) {
            self.all_failed.notify_one();
        }
    }

    /// The log directory that holds a file.
    fn directory_of(&self, path: &Path) -> Option<usize> {
        let holds = |index: &usize| path.starts_with(&self.directories[*index].path);
        let holding = (0..self.directories.len()).filter(holds);
        holding.max_by_key(|index| self.directories[*index].path.components().count())
    }

    /// Ends when no directory is left.
    pub(crate) async fn all_directories_failed(&self) {
        self.all_failed.notified().await;
    }
}
