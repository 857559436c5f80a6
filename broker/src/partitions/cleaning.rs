//! What the log cleaner needs of a broker: its logs, and the checkpoints that remember how far they were compacted.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use zurau_common::config::{BrokerConfig, Settings};
use zurau_common::id::TopicPartition;

use super::Partitions;
use crate::context::BrokerContext;
use crate::log::cleaner::{Cleaner, CleanerLogs, LogAccess, WorkerSettings};
use crate::log::{PartitionLog, StorageError};
use crate::partition::Partition;
use crate::shared::wall_clock_ms;

/// Cleaner threads at most, whatever `log.cleaner.threads` says.
const THREADS_MAX: usize = 256;

/// Compacts until `stopping`: runs the cleaner threads that `log.cleaner.enable` and `log.cleaner.threads` want, and starts
/// them anew when their settings change (KIP-226).
pub(crate) async fn run_cleaner(context: Arc<BrokerContext>, stopping: CancellationToken) {
    let current = || worker_settings(&context.topic_configs.broker_config());
    while !stopping.is_cancelled() {
        let settings = current();
        let cleaner = start_cleaner(&context, settings);
        tokio::select! {
            () = context.topic_configs.wait_until(|| current() != settings) => {
                info!("the settings of the log cleaner have changed; its threads start anew");
            }
            () = stopping.cancelled() => {}
        }
        // Its threads are waited for; that only fails if the process is stopping.
        let _ = tokio::task::spawn_blocking(move || drop(cleaner)).await;
    }
}

fn start_cleaner(context: &Arc<BrokerContext>, settings: Option<WorkerSettings>) -> Option<Cleaner> {
    let Some(settings) = settings else {
        info!("compacted topics are not compacted: log.cleaner.enable or log.cleaner.threads says so");
        return None;
    };
    match Cleaner::start(Arc::clone(context), settings, Arc::clone(&context.cleaner_status)) {
        Ok(cleaner) => Some(cleaner),
        Err(reason) => {
            error!(%reason, "the log cleaner cannot be started; compacted topics grow until the broker is restarted");
            None
        }
    }
}

/// `None`: nothing is to be compacted.
fn worker_settings(config: &BrokerConfig) -> Option<WorkerSettings> {
    let settings = &config.settings;
    let threads: usize = number(settings, "log.cleaner.threads");
    if settings.get("log.cleaner.enable").is_some_and(|(value, _)| value == "false") || threads == 0 {
        return None;
    }
    Some(WorkerSettings {
        threads: threads.min(THREADS_MAX),
        dedupe_buffer_bytes: number(settings, "log.cleaner.dedupe.buffer.size"),
        load_factor: number(settings, "log.cleaner.io.buffer.load.factor"),
        bytes_per_second: number(settings, "log.cleaner.io.max.bytes.per.second"),
        backoff: Duration::from_millis(number(settings, "log.cleaner.backoff.ms")),
    })
}

fn number<T: std::str::FromStr>(settings: &Settings, key: &str) -> T {
    let value = settings.get(key).and_then(|(value, _)| value.trim().parse().ok());
    value.unwrap_or_else(|| unreachable!("{key} has a default and was checked when it was read"))
}

impl LogAccess for Arc<Partition> {
    fn with_log<T>(&self, work: impl FnOnce(&mut PartitionLog) -> T) -> Option<T> {
        Partition::with_log(self, work)
    }
}

impl CleanerLogs for BrokerContext {
    type Log = Arc<Partition>;

    fn logs(&self) -> Vec<(TopicPartition, Arc<Partition>)> {
        let all = self.partitions.all().into_iter();
        all.map(|partition| (partition.id().clone(), partition)).collect()
    }

    fn note_disk_error(&self, log: &Arc<Partition>, error: &StorageError) {
        self.partitions.note_error(log.directory(), error);
    }

    fn checkpoint_cleaned_offsets(&self) {
        self.partitions.checkpoint_cleaned_offsets();
    }

    fn now_ms(&self) -> i64 {
        wall_clock_ms()
    }
}

impl Partitions {
    /// Writes `cleaner-offset-checkpoint` of each directory, then lets the logs forget truncations it now knows of.
    pub(crate) fn checkpoint_cleaned_offsets(&self) {
        let cleaned = self.all().into_iter().filter_map(|partition| {
            let compacted =
                |log: &mut PartitionLog| log.config().cleanup_policy.compact.then(|| log.cleaned_offset());
            let offset = partition.with_log(compacted)??;
            Some((partition, offset))
        });
        let cleaned: Vec<_> = cleaned.collect();
        for (index, directory) in self.directories.iter().enumerate() {
            let mut opened = directory.opened.lock();
            let here = || cleaned.iter().filter(|(partition, _)| partition.directory() == index);
            for (partition, offset) in here() {
                opened.checkpoints.cleaner_offsets.set(partition.id(), *offset);
            }
            let written = opened.checkpoints.cleaner_offsets.write();
            drop(opened);
            if let Err(error) = written {
                error!(directory = %directory.path.display(), %error, "a checkpoint was not written; trying again");
                continue;
            }
            for (partition, offset) in here() {
                let known = partition.with_log(|log| log.cleaned_offset_is_checkpointed(*offset));
                if let Some(Err(error)) = known {
                    error!(partition = %partition.id(), %error, "trying again at the next checkpoint");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::zk::config::encode_config;
    use zurau_common::zk::znode::{DEFAULT_ENTITY, Znode};

    use super::*;
    use crate::topic_configs::TopicConfigs;

    fn settings(pairs: &[(&str, &str)]) -> Option<WorkerSettings> {
        let mut all = vec![("broker.id", "1"), ("zookeeper.connect", "localhost:2181"), ("log.dirs", "/d")];
        all.extend_from_slice(pairs);
        worker_settings(&BrokerConfig::from_pairs(all).unwrap())
    }

    #[test]
    fn settings_of_the_cleaner() {
        let defaults = settings(&[]).unwrap();
        assert_eq!((defaults.threads, defaults.dedupe_buffer_bytes), (1, 128 << 20));
        assert_eq!((defaults.load_factor, defaults.bytes_per_second), (0.9, f64::MAX));
        assert_eq!(defaults.backoff, Duration::from_secs(15));
        let changed =
            settings(&[("log.cleaner.threads", "3"), ("log.cleaner.io.max.bytes.per.second", "1e6")]);
        assert_eq!(changed.map(|changed| (changed.threads, changed.bytes_per_second)), Some((3, 1e6)));
        assert_eq!(settings(&[("log.cleaner.enable", "false")]), None);
        assert_eq!(settings(&[("log.cleaner.threads", "0")]), None);
    }

    #[test]
    fn settings_change_for_all_brokers_and_for_one() {
        let started_with =
            BrokerConfig::from_pairs([("broker.id", "3"), ("log.cleaner.backoff.ms", "7")]).unwrap();
        let configs = TopicConfigs::new(started_with);
        let set = |name: &str, entries: &[(&str, &str)]| {
            let entries =
                entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            configs.apply(&Znode::BrokerConfig(name.to_owned()), Some(&encode_config(&entries)));
            worker_settings(&configs.broker_config()).unwrap()
        };
        let all = set(
            DEFAULT_ENTITY,
            &[
                ("log.cleaner.threads", "2"),
                ("log.cleaner.io.max.bytes.per.second", "1000"),
                ("log.cleaner.dedupe.buffer.size", "5000"),
                ("log.cleaner.io.buffer.load.factor", "0.5"),
            ],
        );
        let expected = WorkerSettings {
            threads: 2,
            dedupe_buffer_bytes: 5_000,
            load_factor: 0.5,
            bytes_per_second: 1_000.0,
            backoff: Duration::from_millis(7),
        };
        assert_eq!(all, expected);
        let one = set("3", &[("log.cleaner.threads", "4"), ("log.cleaner.backoff.ms", "9")]);
        assert_eq!(one, WorkerSettings { threads: 4, backoff: Duration::from_millis(9), ..expected });
        assert_eq!(set("3", &[("log.cleaner.threads", "many")]), one, "what cannot be used changes nothing");
        assert_eq!(set("3", &[]), expected);
    }
}
