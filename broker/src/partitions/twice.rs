//! What a start makes of directories that are no log in use: the second one of a partition that is in two log directories,
//! and copies of moves that the last stop interrupted (rows A7 to A9 of the table in `log/load.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tracing::{error, info, warn};
use zurau_common::id::TopicPartition;

use super::Partitions;
use crate::log::{Aside, PartitionLog, StorageError, precedence, read_generation, read_topic_id};
use crate::partition::Partition;
use crate::shared::wall_clock_ms;

/// A directory with its partition and the index of its log directory.
pub(super) type Found = (TopicPartition, usize, PathBuf);

/// What loading found besides logs to open.
#[derive(Default)]
pub(super) struct Remains {
    /// Logs of partitions that have a better one.
    pub(super) second: Vec<Found>,
    /// Copies (`-future`).
    pub(super) copies: Vec<Found>,
}

impl Partitions {
    /// Of partitions that are in several log directories all but the right one.
    ///
    /// # Errors
    /// It cannot be read which one is right.
    pub(super) fn second_ones(&self, found: &[Found]) -> Result<Vec<Found>, StorageError> {
        let mut homes: BTreeMap<&TopicPartition, Vec<(usize, PathBuf)>> = BTreeMap::new();
        for (id, index, path) in found {
            homes.entry(id).or_default().push((*index, path.clone()));
        }
        let mut second = Vec::new();
        for (id, mut homes) in homes.into_iter().filter(|(_, homes)| 1 < homes.len()) {
            self.right_one_first(id, &mut homes)?;
            second.extend(homes.into_iter().skip(1).map(|(index, path)| (id.clone(), index, path)));
        }
        Ok(second)
    }

    /// Puts the directory first that a partition is to be served from.
    ///
    /// # Errors
    /// A generation cannot be read.
    pub(super) fn right_one_first(
        &self,
        id: &TopicPartition,
        homes: &mut [(usize, PathBuf)],
    ) -> Result<(), StorageError> {
        if homes.len() < 2 {
            return Ok(());
        }
        let generations: BTreeMap<usize, u64> = homes
            .iter()
            .map(|(index, path)| Ok((*index, read_generation(path)?)))
            .collect::<Result<_, StorageError>>()?;
        let precedence = |index: usize| {
            let checkpoints = &self.directories[index].opened.lock().checkpoints;
            let (high_watermarks, recovery_points) =
                (&checkpoints.high_watermarks, &checkpoints.recovery_points);
            precedence(generations[&index], high_watermarks.get(id), recovery_points.get(id))
        };
        homes.sort_by_key(|(index, _)| std::cmp::Reverse(precedence(*index)));
        info!(partition = %id, ?homes, ?generations, "the partition is in several log directories; the first one is used");
        Ok(())
    }

    /// After the logs are open. Waits for the disk.
    pub(super) fn settle_remains(&self, remains: Remains) {
        for (id, index, path) in remains.second {
            match self.get(&id.topic, id.partition) {
                Some(partition) => self.give_up(&partition, index, &path),
                None => error!(
                    partition = %id, path = %path.display(),
                    "the partition's log in another log directory cannot be opened; this former one stays as it is"
                ),
            }
        }
        for (id, index, path) in remains.copies {
            match self.get(&id.topic, id.partition) {
                Some(partition) => self.settle_copy(&partition, index, &path),
                None => warn!(path = %path.display(), "a copy without the log that it is of is left alone"),
            }
        }
    }

    /// Takes away what is in another log directory than the partition's: deleted if it is certain to be a former log of the
    /// same partition, else set aside.
    fn give_up(&self, partition: &Partition, index: usize, path: &Path) {
        let id = partition.id();
        let is_former = || {
            let older = read_generation(path)? < partition.with_log(|log| log.generation()).unwrap_or(0);
            Ok::<_, StorageError>(older && read_topic_id(path)? == Some(partition.topic_id().0))
        };
        let outcome = match is_former() {
            Ok(true) => {
                info!(partition = %id, path = %path.display(), "removing a log that the partition has moved away from");
                self.remove_copy(path, id)
            }
            Ok(false) => self.set_directory_aside(path, id),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => self.directories[index].opened.lock().checkpoints.remove(id),
            Err(error) => {
                warn!(partition = %id, path = %path.display(), %error, "a second log of the partition stays as it is");
            }
        }
    }

    fn set_directory_aside(&self, path: &Path, id: &TopicPartition) -> Result<(), StorageError> {
        let aside = path.with_file_name(Aside::Stray.name(&id.to_string()));
        warn!(partition = %id, path = %path.display(), aside = %aside.display(), "a second copy of the partition is set aside");
        crate::log::rename_durably(path, &aside)
    }

    fn settle_copy(&self, partition: &Arc<Partition>, index: usize, path: &Path) {
        let id = partition.id();
        let is_wanted = partition.directory() != index && partition.future().is_none();
        let outcome = match read_topic_id(path) {
            Ok(Some(found)) if found != partition.topic_id().0 => self.set_directory_aside(path, id),
            Ok(_) if !is_wanted => self.remove_copy(path, id),
            Ok(found) => self.resume_or_begin_anew(partition, index, (path, found.is_some())),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            warn!(partition = %id, path = %path.display(), %error, "a copy stays as it is; trying again at the next start");
        }
    }

    /// `has_begun`: it was given its topic id, the first thing when a copy is made.
    fn resume_or_begin_anew(
        &self,
        partition: &Arc<Partition>,
        index: usize,
        (path, has_begun): (&Path, bool),
    ) -> Result<(), StorageError> {
        // While this log directory was away a compaction may have removed what this copy has, and the tombstone that this
        // copy lacks (C1).
        let is_compacted = partition.with_log(|log| log.config().cleanup_policy.compact) != Some(false);
        let may_go_on = has_begun && !is_compacted;
        if let Some(copy) = may_go_on.then(|| self.open_copy(partition, index, path)).flatten() {
            self.resume_move(partition, index, copy);
            return Ok(());
        }
        self.remove_copy(path, partition.id())?;
        if self.begin_move(partition, index).is_err() {
            error!(partition = %partition.id(), "the move of the replica cannot begin anew");
        }
        Ok(())
    }

    fn open_copy(&self, partition: &Partition, index: usize, path: &Path) -> Option<PartitionLog> {
        let mode = self.directories[index].opened.lock().open_mode(partition.id());
        let config = self.config_of(&partition.id().topic).log;
        match PartitionLog::open_counting(path, config, mode, wall_clock_ms(), &AtomicU64::new(0)) {
            Ok(copy) => Some(copy),
            Err(reason) => {
                warn!(path = %path.display(), %reason, "a copy cannot be opened; it is made anew");
                None
            }
        }
    }
}
