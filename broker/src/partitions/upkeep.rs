//! What is done to all logs now and then: checkpoints, flushes, retention. All of it waits for the disk.

use tracing::{error, warn};

use super::Partitions;
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
        self.write_checkpoints(|checkpoints| {
            checkpoints.recovery_points.write().and_then(|()| checkpoints.log_starts.write())
        });
    }

    fn write_checkpoints(
        &self,
        write: impl Fn(&mut crate::log::Checkpoints) -> Result<(), crate::log::StorageError>,
    ) {
        for directory in &self.directories {
            if let Err(error) = write(&mut directory.opened.lock().checkpoints) {
                error!(directory = %directory.path.display(), %error, "a checkpoint was not written; trying again");
            }
        }
    }

    /// Syncs every log that is due by `flush.ms` or `flush.messages`, outside of its lock.
    pub(crate) fn flush_due(&self) {
        for partition in self.all() {
            let now_ms = wall_clock_ms();
            let plan = partition
                .with_log(|log| if log.flush_due(now_ms) { log.flush_plan().ok().flatten() } else { None })
                .flatten();
            if let Some(plan) = plan {
                let result = plan.run();
                let finished = partition.with_log(|log| log.finish_flush(&plan, result, now_ms));
                if let Some(Err(error)) = finished {
                    error!(partition = %partition.id(), %error, "a sync failed");
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
                warn!(partition = %partition.id(), %error, "retention failed; trying again at the next pass");
            }
        }
    }
}
