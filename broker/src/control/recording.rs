//! Makes durable what a LeaderAndIsr asks for, before anything of it is served or answered: the logs that were created, and
//! the epochs of new leaders (HW-06). The epochs of all partitions of a log directory are one write of one file. Created
//! logs are synced one by one if they are few; many share a sync of the whole file system, which also writes back what
//! others have changed there.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tracing::debug;
use zurau_common::id::TopicPartition;

use crate::context::BrokerContext;
use crate::log::{EpochEntry, FileSystem, StorageError};
use crate::partition::Partition;

/// So many created logs of a directory are synced one by one; more of them share a sync of the file system.
///
/// With a gigabyte that others have written a sync of the file system took half a second, and that of a few logs a few
/// milliseconds; of 5,000 logs 0.2 to 0.4 seconds, one by one several seconds.
const ONE_BY_ONE_MAX: usize = 256;
/// Of those, so many are synced by one thread: the disk syncs several at once.
const PARTITIONS_PER_THREAD: usize = 16;

/// What an order left to be made durable.
pub(super) struct Written {
    pub(super) partition: Arc<Partition>,
    pub(super) is_created: bool,
    /// Of a new leader.
    pub(super) begun: Option<EpochEntry>,
}

/// The file systems of the log directories, opened before anything is written: see [`FileSystem`].
pub(super) struct Recording(BTreeMap<usize, FileSystem>);

impl Recording {
    /// Before `orders` orders are carried out. Waits for the disk.
    pub(super) fn begin(context: &BrokerContext, orders: usize) -> Self {
        let may_share = ONE_BY_ONE_MAX < orders && FileSystem::tells_failures();
        Self(if may_share { context.partitions.file_systems() } else { BTreeMap::new() })
    }

    /// Makes all of it durable. Returns the partitions of which that is not so: they are offline now, and their directory
    /// is, if its disk failed.
    pub(super) async fn finish(
        mut self,
        context: &Arc<BrokerContext>,
        written: Vec<Written>,
    ) -> HashSet<TopicPartition> {
        let mut failed = HashSet::new();
        let mut by_directory: BTreeMap<usize, Vec<Written>> = BTreeMap::new();
        for written in written {
            failed.insert(written.partition.id().clone());
            by_directory.entry(written.partition.directory()).or_default().push(written);
        }
        let tasks: Vec<_> = by_directory
            .into_iter()
            .map(|(index, written)| {
                let (context, file_system) = (Arc::clone(context), self.0.remove(&index));
                tokio::task::spawn_blocking(move || {
                    let recorded = record(&context, (index, file_system), &written);
                    recorded.map(|()| written).unwrap_or_default()
                })
            })
            .collect();
        for task in tasks {
            // It only fails if the process is stopping; then nothing of it is served.
            for durable in task.await.unwrap_or_default() {
                failed.remove(durable.partition.id());
            }
        }
        failed
    }
}

/// All that was written in one directory.
fn record(
    context: &BrokerContext,
    (index, file_system): (usize, Option<FileSystem>),
    written: &[Written],
) -> Result<(), ()> {
    let created: Vec<&Partition> =
        written.iter().filter(|written| written.is_created).map(|written| &*written.partition).collect();
    let begun = written.iter().filter_map(|written| Some((&*written.partition, written.begun?)));
    debug!(created = created.len(), leaders = begun.clone().count(), "recording what was ordered");
    let recorded = sync_created(context, (index, file_system.as_ref()), &created)
        .and_then(|()| context.partitions.record_epochs(index, begun));
    recorded.map_err(|error| {
        context.partitions.note_error(index, &error);
        // A disk that failed has taken its directory offline; another error (it is full) takes only these.
        if !context.partitions.has_failed(index) {
            let reason = error.to_string();
            written.iter().for_each(|written| written.partition.fail_to_record(&reason));
        }
    })
}

/// Waits for the disk.
fn sync_created(
    context: &BrokerContext,
    (index, file_system): (usize, Option<&FileSystem>),
    created: &[&Partition],
) -> Result<(), StorageError> {
    if created.is_empty() {
        return Ok(());
    }
    if let Some(file_system) = file_system.filter(|_| ONE_BY_ONE_MAX < created.len()) {
        return file_system.sync();
    }
    let sync_some = |some: &[&Partition]| some.iter().try_for_each(|partition| partition.sync_created());
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            created.chunks(PARTITIONS_PER_THREAD).map(|some| scope.spawn(move || sync_some(some))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(synced) => synced,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().try_for_each(join)
    })?;
    context.partitions.sync_names(index)
}
