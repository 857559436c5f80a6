//! What is done to all logs now and then: checkpoints, flushes, retention. All of it waits for the disk.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use tracing::{error, info, warn};

use super::Partitions;
use crate::log::{FoundDirectory, LogError};
use crate::shared::wall_clock_ms;

impl Partitions {
    /// Writes `replication-offset-checkpoint` of each directory.
    pub(crate) fn checkpoint_high_watermarks(&self) {
        for partition in self.all() {
            if let Some(high_watermark) = partition.with_log(|log| log.high_watermark()) {
                let checkpoints = &mut self.directories[partition.directory()].opened.lock().checkpoints;
                checkpoints.high_watermarks.set(partition.id(), high_watermark);
            }
        }
        self.write_checkpoints(|checkpoints| checkpoints.high_watermarks.write());
    }

    /// Writes `recovery-point-offset-checkpoint` and `log-start-offset-checkpoint` of each directory.
    pub(crate) fn checkpoint_logs(&self) {
        for partition in self.all() {
            let ends = partition.with_log(|log| (log.recovery_point(), log.log_start_offset()));
            if let Some((recovery_point, log_start)) = ends {
                let name = partition.id();
                let checkpoints = &mut self.directories[partition.directory()].opened.lock().checkpoints;
                checkpoints.recovery_points.set(name, recovery_point);
                checkpoints.log_starts.set(name, log_start);
            }
        }
        for partition in self.all() {
            if let Some(future) = partition.future() {
                let checkpoints = &mut self.directories[future.directory].opened.lock().checkpoints;
                checkpoints.recovery_points.set(partition.id(), future.recovery_point);
                checkpoints.log_starts.set(partition.id(), future.log_start_offset);
            }
        }
        self.write_checkpoints(|checkpoints| {
            checkpoints.recovery_points.write().and_then(|()| checkpoints.log_starts.write())
        });
    }

    fn write_checkpoints(
        &self,
        write: impl Fn(&mut crate::log::Checkpoints) -> Result<(), crate::log::StorageError>,
    ) {
        for (index, directory) in self.directories.iter().enumerate() {
            if directory.failed.get().is_some() {
                continue;
            }
            let written = write(&mut directory.opened.lock().checkpoints);
            if let Err(error) = written {
                self.note_error(index, &error);
                error!(directory = %directory.path.display(), %error, "a checkpoint was not written; trying again");
            }
        }
    }

    /// Syncs every log that is due by `flush.ms` or `flush.messages`, and segments that take no more appends, outside of
    /// the log's lock.
    pub(crate) fn flush_due(&self) {
        for partition in self.all() {
            partition.flush_what_is_due(wall_clock_ms());
        }
    }

    /// Removes replicas that were set aside more than `kept` ago (`stray.retention.ms`). The change of the directory's
    /// name is what its inode's change time tells.
    pub(crate) fn remove_old_strays(&self, kept: Duration) {
        for directory in self.directories.iter().filter(|directory| directory.failed.get().is_none()) {
            let found = directory.opened.lock().list();
            let found = found.unwrap_or_else(|error| {
                warn!(directory = %directory.path.display(), %error, "the log directory cannot be listed");
                Vec::new()
            });
            for stray in found {
                let FoundDirectory::Stray { path } = stray else { continue };
                let changed_s = std::fs::metadata(&path).map_or(i64::MAX, |metadata| metadata.ctime());
                let age_s = (wall_clock_ms() / 1_000).saturating_sub(changed_s);
                if u64::try_from(age_s).is_ok_and(|age_s| kept.as_secs() < age_s) {
                    info!(path = %path.display(), "removing a replica that was set aside long ago");
                    if let Err(error) = std::fs::remove_dir_all(&path) {
                        warn!(path = %path.display(), %error, "it cannot be removed; trying again at the next pass");
                    }
                }
            }
        }
    }

    /// Deletes what retention allows, and forgets producers that have been silent for long.
    pub(crate) fn apply_retention(&self) {
        for partition in self.all() {
            let now_ms = wall_clock_ms();
            let applied = partition.with_log(|log| {
                log.expire_producers(now_ms);
                log.apply_retention(now_ms)
            });
            if let Some(Err(error)) = applied {
                if let LogError::Storage(error) = &error {
                    self.note_error(partition.directory(), error);
                }
                warn!(partition = %partition.id(), %error, "retention failed; trying again at the next pass");
            }
        }
    }
}
