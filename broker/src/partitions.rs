//! Every partition of this broker, by name and by topic id, in shards so that requests do not meet at one lock.

mod cleaning;

mod disks;

mod load;

mod moving;

mod progress;

mod twice;

mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tracing::info;
use zurau_common::id::{BrokerId, TopicId, TopicName, TopicPartition};

use crate::disk_space::Space;
use crate::log::{Aside, LogDirectory, LogError, PartitionLog};
use crate::partition::{Partition, PartitionConfig};
use crate::shared::{Shared, wall_clock_ms};

const SHARDS: usize = 16;

pub(crate) use cleaning::run_cleaner;
pub(crate) use disks::space_marks;
use disks::{FreeSpace, free_space};
#[cfg(test)]
pub(crate) use load::Loaded;
use moving::Moves;
pub(crate) use moving::{ObservedMoves, run_moves};
pub(crate) use progress::{DirectoryProgress, LoadingProgress};

type ByName = HashMap<TopicName, BTreeMap<i32, Arc<Partition>>>;
type ById = HashMap<TopicId, BTreeMap<i32, Arc<Partition>>>;

/// One of `log.dirs`.
struct Directory {
    path: PathBuf,
    opened: Mutex<LogDirectory>,
    /// Why it is offline.
    failed: OnceLock<String>,
    space: RwLock<Space>,
}

struct Configs {
    default: PartitionConfig,
    by_topic: HashMap<TopicName, PartitionConfig>,
}

/// The partitions of a broker and the directories that hold them.
pub(crate) struct Partitions {
    shared: Arc<Shared>,
    by_name: [RwLock<ByName>; SHARDS],
    by_id: [RwLock<ById>; SHARDS],
    hasher: RandomState,
    directories: Vec<Directory>,
    /// Of `log.dirs` as well, but useless until the next start.
    unopened: Vec<PathBuf>,
    configs: RwLock<Configs>,
    free_space: RwLock<FreeSpace>,
    moves: Moves,
    all_failed: Notify,
}

impl Partitions {
    /// `directories`: opened and locked, at least one; and those that could not be opened.
    pub(crate) fn new(
        shared: Arc<Shared>,
        (directories, unopened): (Vec<LogDirectory>, Vec<PathBuf>),
        default: PartitionConfig,
    ) -> Self {
        let directories = directories.into_iter().map(|opened| Directory {
            path: opened.path().to_owned(),
            opened: Mutex::new(opened),
            failed: OnceLock::new(),
            space: RwLock::new(Space::Enough),
        });
        Self {
            shared,
            by_name: Default::default(),
            by_id: Default::default(),
            hasher: RandomState::new(),
            directories: directories.collect(),
            unopened,
            configs: RwLock::new(Configs { default, by_topic: HashMap::new() }),
            free_space: RwLock::new(free_space()),
            moves: Moves::default(),
            all_failed: Notify::new(),
        }
    }

    /// Checks that the directories belong to this broker and cluster, and writes that down where it is missing.
    ///
    /// # Errors
    /// A directory of another broker or cluster; a disk error.
    pub(crate) fn claim_directories(&self, broker: BrokerId, cluster_id: &str) -> anyhow::Result<()> {
        for directory in self.directories.iter().filter(|directory| directory.failed.get().is_none()) {
            directory.opened.lock().claim(broker.0, cluster_id)?;
        }
        Ok(())
    }

    fn name_shard(&self, topic: &str) -> &RwLock<ByName> {
        &self.by_name[self.hasher.hash_one(topic) as usize % SHARDS]
    }

    fn id_shard(&self, topic_id: TopicId) -> &RwLock<ById> {
        &self.by_id[self.hasher.hash_one(topic_id) as usize % SHARDS]
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        self.name_shard(topic).read().get(topic)?.get(&partition).cloned()
    }

    pub(crate) fn get_by_id(&self, topic_id: TopicId, partition: i32) -> Option<Arc<Partition>> {
        self.id_shard(topic_id).read().get(&topic_id)?.get(&partition).cloned()
    }

    /// All partitions, in no particular order.
    pub(crate) fn all(&self) -> Vec<Arc<Partition>> {
        let mut all = Vec::new();
        for shard in &self.by_name {
            all.extend(shard.read().values().flat_map(|partitions| partitions.values().cloned()));
        }
        all
    }

    /// Partitions of one topic.
    pub(crate) fn of_topic(&self, topic: &str) -> Vec<Arc<Partition>> {
        let shard = self.name_shard(topic).read();
        shard.get(topic).map(|partitions| partitions.values().cloned().collect()).unwrap_or_default()
    }

    fn insert(&self, partition: Arc<Partition>) {
        let TopicPartition { topic, partition: number } = partition.id().clone();
        let topic_id = partition.topic_id();
        self.id_shard(topic_id).write().entry(topic_id).or_default().insert(number, Arc::clone(&partition));
        self.name_shard(&topic).write().entry(topic).or_default().insert(number, partition);
    }

    fn remove(&self, partition: &Partition) {
        let TopicPartition { topic, partition: number } = partition.id();
        let topic_id = partition.topic_id();
        let mut by_id = self.id_shard(topic_id).write();
        if let Some(partitions) = by_id.get_mut(&topic_id) {
            partitions.remove(number);
            if partitions.is_empty() {
                by_id.remove(&topic_id);
            }
        }
        drop(by_id);
        let mut by_name = self.name_shard(topic).write();
        if let Some(partitions) = by_name.get_mut(topic)
            && partitions.get(number).is_some_and(|found| found.topic_id() == topic_id)
        {
            partitions.remove(number);
            if partitions.is_empty() {
                by_name.remove(topic);
            }
        }
    }

    fn config_of(&self, topic: &str) -> PartitionConfig {
        let configs = self.configs.read();
        configs.by_topic.get(topic).unwrap_or(&configs.default).clone()
    }

    /// Takes changed defaults of the broker, for topics that come later.
    pub(crate) fn set_default_config(&self, config: PartitionConfig) {
        self.configs.write().default = config;
    }

    /// Takes a topic's configuration; `None` puts the broker's defaults back.
    pub(crate) fn update_topic_config(&self, topic: &str, config: Option<PartitionConfig>) {
        {
            let mut configs = self.configs.write();
            match config {
                Some(config) => configs.by_topic.insert(topic.into(), config),
                None => configs.by_topic.remove(topic),
            };
        }
        let config = self.config_of(topic);
        for partition in self.of_topic(topic) {
            partition.set_config(config.clone());
        }
    }

    /// The partition, created empty if this broker has none. A copy that could not be opened at the start is tried again.
    /// Writes to the disk; what was created is durable when it returns.
    ///
    /// # Errors
    /// The directory cannot be made, holds another incarnation, or a log that cannot be opened.
    #[cfg(test)]
    pub(crate) fn get_or_create(
        &self,
        id: &TopicPartition,
        topic_id: TopicId,
    ) -> anyhow::Result<Arc<Partition>> {
        let (partition, _) = self.get_or_create_unsynced(id, topic_id)?;
        let index = partition.directory();
        let synced = partition.sync_created().and_then(|()| self.sync_names(index));
        synced.inspect_err(|error| self.note_error(index, error))?;
        Ok(partition)
    }

    /// The partition, created empty if this broker has none, and whether it was created: then it must be synced before
    /// anybody is told of it. A copy that could not be opened at the start is tried again. Writes to the disk.
    ///
    /// # Errors
    /// The directory cannot be made, holds another incarnation, or a log that cannot be opened.
    pub(crate) fn get_or_create_unsynced(
        &self,
        id: &TopicPartition,
        topic_id: TopicId,
    ) -> anyhow::Result<(Arc<Partition>, bool)> {
        if let Some(found) = self.get(&id.topic, id.partition) {
            return Ok((found, false));
        }
        if let Some(partition) = self.open_left_out(id, topic_id)? {
            return Ok((partition, false));
        }
        let wished = self.wished_directory(id);
        let index = wished.or_else(|| self.emptiest_directory()).context("every log directory is offline")?;
        let path = self.directories[index].path.join(id.to_string());
        let config = self.config_of(&id.topic);
        // A former log of this name has nothing in common with the new one: its high watermark would expose records that
        // are not committed, its log start and recovery point would cost some (M11, CMP-08).
        let forgotten = self.directories[index].opened.lock().checkpoints.forget(id);
        forgotten.inspect_err(|error| self.note_error(index, error))?;
        let created =
            PartitionLog::create_unsynced(&path, Some(topic_id.0), config.log.clone(), wall_clock_ms());
        let log = created
            .inspect_err(|error| {
                if let LogError::Storage(error) = error {
                    self.note_error(index, error);
                }
            })
            .with_context(|| format!("the log of {id} cannot be created in {}", path.display()))?;
        info!(partition = %id, %topic_id, directory = %path.display(), "log created");
        let partition = Partition::new(Arc::clone(&self.shared), id.clone(), topic_id, (index, log), config);
        self.insert(Arc::clone(&partition));
        self.forget_wish(id);
        Ok((partition, true))
    }

    /// Of those that are not offline.
    fn emptiest_directory(&self) -> Option<usize> {
        let mut online = (0..self.directories.len()).filter(|index| !self.has_failed(*index));
        if self.directories.len() == 1 {
            return online.next();
        }
        let mut counts = vec![0_usize; self.directories.len()];
        for partition in self.all() {
            counts[partition.directory()] += 1;
        }
        online.min_by_key(|index| counts[*index])
    }

    /// Deletes a partition and its files. Waits for the disk.
    ///
    /// # Errors
    /// The directory cannot be renamed or removed; the partition is gone from memory all the same.
    pub(crate) fn delete(&self, partition: &Partition) -> anyhow::Result<()> {
        self.remove(partition);
        let log = partition.take_log();
        self.abandon_move(partition, "it is deleted");
        let Some(mut log) = log else { return Ok(()) };
        self.forget_checkpoints(partition);
        log.rename_for_deletion()?;
        log.delete()?;
        info!(partition = %partition.id(), topic_id = %partition.topic_id(), "replica deleted");
        Ok(())
    }

    /// Sets a partition aside that nobody wants any more: its directory gets the ending `-stray`, and stays for
    /// `stray.retention.ms` (D6).
    ///
    /// # Errors
    /// The directory cannot be renamed.
    pub(crate) fn set_aside(&self, partition: &Partition, why: &str) -> anyhow::Result<()> {
        self.remove(partition);
        let log = partition.take_log();
        self.abandon_move(partition, "nobody wants it any more");
        let Some(mut log) = log else { return Ok(()) };
        self.forget_checkpoints(partition);
        let name = Aside::Stray.name(&partition.id().to_string());
        tracing::warn!(partition = %partition.id(), topic_id = %partition.topic_id(), name, why, "replica set aside");
        log.rename_directory(&name)?;
        Ok(())
    }

    /// Opens the log of a partition that is on the disk but not in use: it could not be opened at the start.
    fn open_left_out(
        &self,
        id: &TopicPartition,
        topic_id: TopicId,
    ) -> anyhow::Result<Option<Arc<Partition>>> {
        let homes = self.directories.iter().enumerate().filter(|(index, _)| !self.has_failed(*index));
        let mut homes: Vec<_> = homes.map(|(index, home)| (index, home.path.join(id.to_string()))).collect();
        homes.retain(|(_, path)| path.exists());
        self.right_one_first(id, &mut homes)?;
        for (index, path) in homes.into_iter().take(1) {
            let Some(partition) = self.open_again(index, id, path.clone())? else { continue };
            if partition.topic_id() != topic_id {
                let found = partition.topic_id();
                anyhow::bail!("{} holds topic id {found}, {topic_id} was asked for", path.display());
            }
            self.insert(Arc::clone(&partition));
            return Ok(Some(partition));
        }
        Ok(None)
    }

    fn forget_checkpoints(&self, partition: &Partition) {
        self.directories[partition.directory()].opened.lock().checkpoints.remove(partition.id());
    }
}

impl std::fmt::Debug for Partitions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Partitions")
    }
}

#[cfg(test)]
mod tests;
