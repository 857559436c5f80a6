//! Who fetches what: each followed partition belongs to exactly one fetcher (R19), by its leader and a hash of its name
//! among `num.replica.fetchers`. A change of the set takes effect at once.

mod fetcher;

mod session;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use zurau_common::config::BrokerConfig;
use zurau_common::id::{BrokerId, TopicPartition};

use crate::partition::Partition;
use crate::shared::Shared;

use fetcher::{Fetcher, Work};

/// Addresses at which brokers answer, as the controller gives them.
#[derive(Debug, Default)]
pub(crate) struct AddressBook(RwLock<HashMap<BrokerId, String>>);

impl AddressBook {
    pub(crate) fn set(&self, broker: BrokerId, address: String) {
        self.0.write().insert(broker, address);
    }

    pub(crate) fn get(&self, broker: BrokerId) -> Option<String> {
        self.0.read().get(&broker).cloned()
    }
}

/// How fetchers ask. Sizes in bytes, times in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FetchSettings {
    pub(crate) fetchers_per_leader: usize,
    pub(crate) partition_bytes_max: i32,
    pub(crate) answer_bytes_max: i32,
    pub(crate) wait_max_ms: i32,
    pub(crate) bytes_min: i32,
    pub(crate) back_off_max_ms: u64,
    pub(crate) call_timeout_ms: u64,
}

impl FetchSettings {
    pub(crate) fn of(config: &BrokerConfig) -> Self {
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            fetchers_per_leader: config.num_replica_fetchers,
            partition_bytes_max: config.replica_fetch_max_bytes,
            answer_bytes_max: config.replica_fetch_response_max_bytes,
            wait_max_ms: i32::try_from(millis(config.replica_fetch_wait_max)).unwrap_or(i32::MAX),
            bytes_min: config.replica_fetch_min_bytes,
            back_off_max_ms: millis(config.replica_fetch_backoff),
            call_timeout_ms: millis(config.replica_socket_timeout),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FetcherKey {
    leader: BrokerId,
    index: usize,
}

struct Running {
    work: Arc<Work>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A followed partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FollowerLag {
    pub(crate) partition: TopicPartition,
    pub(crate) leader: BrokerId,
    /// Number of the fetcher among those of its leader.
    pub(crate) fetcher: usize,
    /// Records below the leader's high watermark that were missing when it last answered.
    pub(crate) lag: i64,
}

#[derive(Default)]
struct Assignment {
    fetchers: HashMap<FetcherKey, Running>,
    of_partition: HashMap<TopicPartition, FetcherKey>,
}

/// Followed partitions at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FetchersObserved {
    /// Records that the most distant one lacked when its leader last answered.
    pub(crate) lag_max: i64,
    /// Partitions whose leader refused the last fetch.
    pub(crate) backing_off: usize,
    /// Fetchers that have ended although nobody stopped them: only a panic can do that.
    pub(crate) dead: usize,
}

/// All fetchers of a broker.
pub(crate) struct Fetchers {
    shared: Arc<Shared>,
    settings: FetchSettings,
    addresses: Arc<AddressBook>,
    data: Handle,
    assignment: Mutex<Assignment>,
}

impl Fetchers {
    /// `data`: the runtime that fetchers run on.
    pub(crate) fn new(
        shared: Arc<Shared>,
        settings: FetchSettings,
        addresses: Arc<AddressBook>,
        data: Handle,
    ) -> Self {
        Self { shared, settings, addresses, data, assignment: Mutex::default() }
    }

    /// Fetches these partitions from these leaders from now on, and from nobody else.
    pub(crate) fn assign(&self, partitions: Vec<(Arc<Partition>, BrokerId)>) {
        let mut assignment = self.assignment.lock();
        let mut touched = Vec::new();
        for (partition, leader) in partitions {
            let id = partition.id();
            let key = FetcherKey { leader, index: hash(id) % self.settings.fetchers_per_leader.max(1) };
            if let Some(former) = assignment.of_partition.insert(id.clone(), key)
                && former != key
                && let Some(running) = assignment.fetchers.get(&former)
            {
                running.work.remove(id);
            }
            let running = assignment.fetchers.entry(key).or_insert_with(|| self.start(key));
            running.work.add(partition);
            touched.push(Arc::clone(&running.work));
        }
        self.stop_idle(&mut assignment);
        for work in touched {
            work.changed();
        }
    }

    /// Fetches these partitions from nobody.
    pub(crate) fn remove<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) {
        let mut assignment = self.assignment.lock();
        for id in partitions {
            if let Some(key) = assignment.of_partition.remove(id)
                && let Some(running) = assignment.fetchers.get(&key)
            {
                running.work.remove(id);
            }
        }
        self.stop_idle(&mut assignment);
    }

    pub(crate) fn clear(&self) {
        let mut assignment = self.assignment.lock();
        for (_, running) in assignment.fetchers.drain() {
            running.stop.cancel();
        }
        assignment.of_partition.clear();
    }

    /// How far the followers are behind.
    pub(crate) fn observe(&self) -> FetchersObserved {
        let assignment = self.assignment.lock();
        let all = assignment.fetchers.values().map(|running| FetchersObserved {
            dead: usize::from(running.task.is_finished()),
            ..running.work.observe()
        });
        all.fold(FetchersObserved::default(), |sum, one| FetchersObserved {
            lag_max: sum.lag_max.max(one.lag_max),
            backing_off: sum.backing_off + one.backing_off,
            dead: sum.dead + one.dead,
        })
    }

    /// Every followed partition, in their order.
    pub(crate) fn lags(&self) -> Vec<FollowerLag> {
        let assignment = self.assignment.lock();
        let mut lags = Vec::with_capacity(assignment.of_partition.len());
        for (key, running) in &assignment.fetchers {
            lags.extend(running.work.lags().into_iter().map(|(partition, lag)| FollowerLag {
                partition,
                leader: key.leader,
                fetcher: key.index,
                lag,
            }));
        }
        drop(assignment);
        lags.sort_unstable_by(|one, other| one.partition.cmp(&other.partition));
        lags
    }

    fn stop_idle(&self, assignment: &mut Assignment) {
        assignment.fetchers.retain(|_, running| {
            let needed = !running.work.is_empty();
            if !needed {
                running.stop.cancel();
            }
            needed
        });
    }

    fn start(&self, key: FetcherKey) -> Running {
        let work = Arc::new(Work::default());
        let stop = CancellationToken::new();
        let fetcher = Fetcher::new(
            Arc::clone(&self.shared),
            self.settings,
            Arc::clone(&self.addresses),
            (key.leader, Arc::clone(&work)),
        );
        let stopped = stop.clone();
        let task = self.data.spawn(async move {
            tokio::select! {
                () = fetcher.run() => {}
                () = stopped.cancelled() => {}
            }
        });
        Running { work, stop, task }
    }
}

impl Drop for Fetchers {
    fn drop(&mut self) {
        self.clear();
    }
}

fn hash(id: &TopicPartition) -> usize {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish() as usize
}

impl std::fmt::Debug for Fetchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let assignment = self.assignment.lock();
        write!(f, "{} fetchers of {} partitions", assignment.fetchers.len(), assignment.of_partition.len())
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::config::TruncationPath;

    use super::*;
    use crate::shared::ReplicationSettings;
    use crate::throttle::Throttles;

    fn running(task: JoinHandle<()>) -> Running {
        Running { work: Arc::default(), stop: CancellationToken::new(), task }
    }

    #[tokio::test]
    async fn a_fetcher_that_ended_by_itself_is_dead() {
        let config = BrokerConfig::from_pairs([("broker.id", "1")]).unwrap();
        let settings = ReplicationSettings {
            lag_max_ms: 1,
            fetch_wait_max_ms: 1,
            truncation_path: TruncationPath::Fetch,
        };
        let (shared, _requests) = Shared::new(BrokerId(1), settings, Throttles::new(&config.settings));
        let addresses = Arc::<AddressBook>::default();
        let fetchers = Fetchers::new(shared, FetchSettings::of(&config), addresses, Handle::current());
        let key = |leader| FetcherKey { leader: BrokerId(leader), index: 0 };
        let alive = running(tokio::spawn(std::future::pending()));
        fetchers.assignment.lock().fetchers.insert(key(2), alive);
        assert_eq!(fetchers.observe().dead, 0);
        let dead = running(tokio::spawn(async { panic!("as told") }));
        fetchers.assignment.lock().fetchers.insert(key(3), dead);
        while fetchers.observe().dead == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(fetchers.observe().dead, 1);
    }
}
