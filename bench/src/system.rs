//! What a workload runs on: a fresh cluster of our own processes, or any other cluster that speaks Kafka's protocol.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, CreateTopicsRequest, DeleteTopicsRequest};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::kafka::{
    Connection, FETCH_VERSION, KafkaClient, LIST_OFFSETS_VERSION, METADATA_VERSION, PRODUCE_VERSION,
    topic_name,
};
use zurau_tests::machine::memory_in;
use zurau_tests::process::{cpu_time, resident_bytes};
use zurau_tests::{Cluster, ZooKeeperKind, eventually};

/// How long anything may take that is not measured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than any stall of an overloaded machine, so that no broker loses its session.
const SESSION_TIMEOUT_MS: u32 = 18_000;
/// So much that is not yet written to disk disturbs nobody.
const UNWRITTEN_BYTES_MAX: u64 = 64 << 20;
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(20);

/// Which cluster is measured.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Started fresh for each workload, below a directory.
    Own { parent: PathBuf, zookeeper: ZooKeeperKind },
    /// It runs already; its brokers' process ids, if they are known, tell what they use.
    Other { bootstrap: String, pids: Vec<u32> },
}

/// Keys of a configuration, and their values.
pub(crate) type Keys<'a> = &'a [(&'a str, &'a str)];

/// A running cluster.
pub(crate) struct System {
    pub(crate) bootstrap: String,
    pids: Vec<u32>,
    /// Our own one.
    cluster: Option<Cluster>,
    directory: Option<PathBuf>,
    topics: Vec<String>,
}

/// What the brokers have used until now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// The largest resident set of a broker, in bytes.
    pub(crate) resident: u64,
    /// The largest numbers of a broker.
    pub(crate) maps: usize,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Target {
    /// Starts a cluster of so many brokers, or takes the other one as it is.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(&self, brokers: i32, keys: Keys<'_>) -> Result<System> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        match self {
            Self::Own { parent, zookeeper } => {
                let number = STARTED.fetch_add(1, Ordering::Relaxed);
                let directory = parent.join(format!("cluster-{number}"));
                fs::create_dir_all(&directory).context("a directory for a cluster")?;
                // The second controller stands by.
                let mut builder = Cluster::builder()
                    .brokers(brokers)
                    .controllers(2)
                    .zookeeper(*zookeeper)
                    .set("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS);
                for (key, value) in keys {
                    builder = builder.set(key, value);
                }
                let mut cluster = builder.start_in(&directory)?;
                let pids = cluster.brokers.iter_mut().map(|broker| Ok(broker.process()?.pid()));
                let pids = pids.collect::<Result<_>>()?;
                let bootstrap = cluster.bootstrap();
                Ok(System {
                    bootstrap,
                    pids,
                    cluster: Some(cluster),
                    directory: Some(directory),
                    topics: Vec::new(),
                })
            }
            Self::Other { bootstrap, pids } => Ok(System {
                bootstrap: bootstrap.clone(),
                pids: pids.clone(),
                cluster: None,
                directory: None,
                topics: Vec::new(),
            }),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }
}

/// What every workload speaks: key, name and version.
const SPOKEN: [(ApiKey, i16); 5] = [
    (ApiKey::Produce, PRODUCE_VERSION),
    (ApiKey::Fetch, FETCH_VERSION),
    (ApiKey::ListOffsets, LIST_OFFSETS_VERSION),
    (ApiKey::Metadata, METADATA_VERSION),
    (ApiKey::CreateTopics, CREATE_TOPICS_VERSION),
];
pub(crate) const CREATE_TOPICS_VERSION: i16 = 7;

/// Whether a broker speaks what the workloads need.
///
/// # Errors
/// It cannot be reached, or a version that is needed is not among its own.
pub(crate) fn check_versions(bootstrap: &str) -> Result<()> {
    let address = bootstrap.split(',').next().unwrap_or_default();
    let answer = Connection::open(address)?.call(0, &ApiVersionsRequest::default())?;
    let missing = missing_versions(&answer.api_keys);
    ensure!(missing.is_empty(), "{address} does not speak {}", missing.join(", "));
    Ok(())
}

fn missing_versions(spoken: &[ApiVersion]) -> Vec<String> {
    let is_spoken = |(key, version): &(ApiKey, i16)| {
        let found = spoken.iter().find(|api| api.api_key == *key as i16);
        found.is_some_and(|api| (api.min_version..=api.max_version).contains(version))
    };
    let missing = SPOKEN.iter().filter(|wanted| !is_spoken(wanted));
    missing.map(|(key, version)| format!("{key:?} version {version}")).collect()
}

impl System {
    pub(crate) fn client(&self) -> KafkaClient {
        KafkaClient::new(&self.bootstrap)
    }

    /// Our own cluster.
    ///
    /// # Errors
    /// It is another one.
    pub(crate) fn own(&mut self) -> Result<&mut Cluster> {
        self.cluster.as_mut().context("only a cluster of our own can be handled so")
    }

    /// The brokers' processes again, after some were started anew.
    ///
    /// # Errors
    /// One does not run.
    pub(crate) fn find_processes(&mut self) -> Result<()> {
        let brokers = self.own()?.brokers.iter_mut();
        self.pids = brokers.map(|broker| Ok(broker.process()?.pid())).collect::<Result<_>>()?;
        Ok(())
    }

    /// Creates a topic under a name of this run and waits until every replica is in sync. With three replicas two must
    /// have a record before it is acknowledged.
    ///
    /// # Errors
    /// The cluster refuses, or is not ready in time.
    pub(crate) fn create_topic(&mut self, partitions: i32, replicas: i16, keys: Keys<'_>) -> Result<String> {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        let in_sync = if replicas > 2 { "2" } else { "1" };
        let config = |(key, value): &(&str, &str)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string((*key).to_owned()))
                .with_value(Some(StrBytes::from_string((*value).to_owned())))
        };
        let configs = [("min.insync.replicas", in_sync)].iter().chain(keys).map(config).collect();
        let topic = CreatableTopic::default()
            .with_name(topic_name(&name))
            .with_num_partitions(partitions)
            .with_replication_factor(replicas)
            .with_configs(configs);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(60_000);
        let mut client = self.client();
        let address = client.any_address()?;
        let answer = client.call(&address, CREATE_TOPICS_VERSION, &request)?;
        let found = answer.topics.first().context("the answer names no topic")?;
        ensure!(
            found.error_code == 0,
            "creating {name}: error {} {:?}",
            found.error_code,
            found.error_message
        );
        self.topics.push(name.clone());
        self.wait_for_topic(&name, partitions)?;
        Ok(name)
    }

    /// Waits until every broker says that every replica of every partition is in sync.
    ///
    /// # Errors
    /// It is not so in time.
    pub(crate) fn wait_for_topic(&self, topic: &str, partitions: i32) -> Result<()> {
        let mut client = self.client();
        let wanted = usize::try_from(partitions)?;
        eventually(&format!("every replica of {topic} in sync"), PATIENCE, || {
            for broker in client.metadata(Some(&[]))?.brokers {
                let address = format!("{}:{}", broker.host.as_str(), broker.port);
                let answer = client.metadata_from(&address, Some(&[topic]))?;
                let found = answer.topics.first().context("no topic in the metadata")?;
                let in_sync = found.partitions.iter().filter(|partition| {
                    partition.error_code == 0
                        && partition.leader_id.0 >= 0
                        && partition.isr_nodes.len() == partition.replica_nodes.len()
                });
                let in_sync = in_sync.count();
                ensure!(in_sync == wanted, "{address}: {in_sync} of {wanted} partitions are complete");
            }
            Ok(Some(()))
        })
    }

    /// Whether the brokers' processes are known.
    pub(crate) fn has_processes(&self) -> bool {
        !self.pids.is_empty()
    }

    /// # Errors
    /// A broker is gone.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let mut sum = Usage::default();
        for pid in &self.pids {
            sum.cpu += cpu_time(*pid)?;
            sum.resident = sum.resident.max(resident_bytes(*pid)?);
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().count();
            sum.maps = sum.maps.max(maps);
            sum.descriptors = sum.descriptors.max(fs::read_dir(format!("/proc/{pid}/fd"))?.count());
            sum.threads = sum.threads.max(fs::read_dir(format!("/proc/{pid}/task"))?.count());
        }
        Ok(sum)
    }

    /// Ends our cluster and removes its data, or the topics from the other cluster.
    ///
    /// # Errors
    /// A process has ended by itself, or something cannot be removed.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Some(mut cluster) = self.cluster.take() {
            cluster.check_running()?;
            drop(cluster);
            if let Some(directory) = self.directory.take() {
                fs::remove_dir_all(directory).context("removing the data of one run")?;
            }
            return Ok(());
        }
        let mut client = self.client();
        let names = self.topics.iter().map(|name| topic_name(name)).collect();
        let request = DeleteTopicsRequest::default().with_topic_names(names).with_timeout_ms(60_000);
        let address = client.any_address()?;
        let answer = client.call(&address, 4, &request)?;
        let refused = answer.responses.iter().find(|topic| topic.error_code != 0);
        ensure!(refused.is_none(), "deleting topics: {refused:?}");
        Ok(())
    }
}

/// Lets [`peak_resident_bytes`] begin anew.
///
/// # Errors
/// The process is gone.
pub(crate) fn reset_peak_of(pid: u32) -> Result<()> {
    const RESET: &str = "5";
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), RESET)?)
}

/// The most memory that a process ever had resident.
///
/// # Errors
/// The process is gone.
pub(crate) fn peak_resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM in /proc/PID/status")?;
    Ok(kib.parse::<u64>()? << 10)
}

/// Has the page cache written, so that no workload pays for the one before it. Returns what is left unwritten.
///
/// # Errors
/// The system does not tell.
pub(crate) fn settle() -> Result<u64> {
    rustix::fs::sync();
    let start = Instant::now();
    loop {
        let unwritten = unwritten(&fs::read_to_string("/proc/meminfo")?)?;
        if unwritten <= UNWRITTEN_BYTES_MAX || start.elapsed() > WRITE_BACK_LIMIT {
            return Ok(unwritten);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Bytes that /proc/meminfo tells to be dirty or on their way to the disk.
fn unwritten(text: &str) -> Result<u64> {
    Ok(memory_in(text, "Dirty:")? + memory_in(text, "Writeback:")?)
}

/// How busy the machine is with whatever runs, in percent of all its cores.
///
/// # Errors
/// The system does not tell.
pub(crate) fn busy(for_how_long: Duration) -> Result<f64> {
    let before = processor_times(&fs::read_to_string("/proc/stat")?)?;
    thread::sleep(for_how_long);
    let after = processor_times(&fs::read_to_string("/proc/stat")?)?;
    let all = (after.0 - before.0).max(1) as f64;
    Ok((1.0 - (after.1 - before.1) as f64 / all) * 100.0)
}

/// All ticks and the idle ones of /proc/stat.
fn processor_times(text: &str) -> Result<(i64, i64)> {
    let line =
        text.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("no cpu in /proc/stat")?;
    let ticks: Vec<i64> =
        line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().context("/proc/stat")?;
    let idle = ticks.get(3).zip(ticks.get(4)).context("a short line in /proc/stat")?;
    Ok((ticks.iter().sum(), idle.0 + idle.1))
}

/// Files below a directory whose names end so.
///
/// # Errors
/// A directory cannot be read.
pub(crate) fn files_below(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_tables_are_read() {
        let meminfo =
            "MemTotal: 100 kB\nDirty:             12 kB\nWriteback:          4 kB\nWritebackTmp: 9 kB\n";
        assert_eq!(unwritten(meminfo).unwrap(), 16 << 10);
        assert!(unwritten("Dirty: 1 kB\n").is_err());
        let stat = "cpu  10 1 5 100 4 0 2 3 7 0\ncpu0 1 1 1 1 1 1 1 1\n";
        assert_eq!(processor_times(stat).unwrap(), (125, 104));
        assert!(processor_times("intr 5\n").is_err());
    }

    #[test]
    fn versions_that_a_broker_does_not_speak_are_named() {
        let api = |(key, version): (ApiKey, i16)| {
            ApiVersion::default().with_api_key(key as i16).with_min_version(0).with_max_version(version)
        };
        let mut spoken: Vec<ApiVersion> = SPOKEN.map(api).into();
        assert!(missing_versions(&spoken).is_empty());
        spoken[0].max_version -= 1;
        spoken[1].min_version = FETCH_VERSION + 1;
        spoken.pop();
        let missing = missing_versions(&spoken);
        assert_eq!(missing, ["Produce version 9", "Fetch version 12", "CreateTopics version 7"]);
    }

    #[test]
    fn files_are_found_at_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        for name in ["a/b/0.log", "a/1.log", "a/1.index"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        let mut found = files_below(directory.path(), "log").unwrap();
        found.sort();
        assert_eq!(found, [directory.path().join("a/1.log"), directory.path().join("a/b/0.log")]);
    }
}
