//! A broker's configuration, typed and checked as a whole.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::split_list;
use super::listener::{
    HttpListener, Listener, SecurityProtocol, ZookeeperConnect, read_http_listener, read_listeners,
    read_zookeeper_connect,
};
use super::settings::{ConfigError, Problems, Settings, duration_of_millis};
use super::topic::TopicConfig;
use crate::id::BrokerId;

/// Which replica a consumer is sent to (KIP-392).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaSelector {
    Leader,
    /// One that is in sync and in the consumer's rack, if there is one.
    RackAware,
}

/// Who stores an ISR change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsrUpdatePath {
    /// The controller, on the leader's AlterPartition.
    Controller,
    /// The leader itself.
    Zookeeper,
}

/// How a follower finds where its log parts from its leader's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TruncationPath {
    /// By the diverging epoch in Fetch answers (KIP-595).
    #[default]
    Fetch,
    /// By OffsetsForLeaderEpoch, before it fetches (KIP-101, KIP-279).
    OffsetsForLeaderEpoch,
}

impl IsrUpdatePath {
    fn of(settings: &Settings) -> Self {
        match settings.text("isr.update.path") {
            "zookeeper" => Self::Zookeeper,
            _ => Self::Controller,
        }
    }
}

impl TruncationPath {
    fn of(settings: &Settings) -> Self {
        match settings.text("replica.truncation.path") {
            "offsets-for-leader-epoch" => Self::OffsetsForLeaderEpoch,
            _ => Self::Fetch,
        }
    }
}

/// What `zurau-broker` runs with. Sizes are bytes. Every value is within the bounds that its key has in the table.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    pub broker_id: BrokerId,
    pub broker_rack: Option<String>,

    pub zookeeper_connect: ZookeeperConnect,
    pub zookeeper_session_timeout: Duration,
    pub zookeeper_connection_timeout: Duration,

    /// At least one.
    pub listeners: Vec<Listener>,
    /// The same names as `listeners`, or some of them. An empty host stands for this machine's name.
    pub advertised_listeners: Vec<Listener>,
    /// One of `advertised_listeners`.
    pub inter_broker_listener_name: String,
    /// `None`: nothing is answered over HTTP.
    pub http_listener: Option<HttpListener>,
    /// Whether `/metrics` has series for each partition.
    pub http_metrics_partitions: bool,
    pub socket_request_max_bytes: usize,
    pub socket_listen_backlog_size: u32,
    pub queued_max_requests: usize,
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    /// `None`: never.
    pub connections_max_idle: Option<Duration>,
    pub request_timeout: Duration,
    pub fetch_max_bytes: usize,
    pub max_request_partition_size_limit: usize,
    pub max_incremental_fetch_session_cache_slots: usize,

    /// At least one.
    pub log_dirs: Vec<PathBuf>,
    pub log_retention_check_interval: Duration,
    pub log_flush_offset_checkpoint_interval: Duration,
    pub log_flush_start_offset_checkpoint_interval: Duration,
    pub log_initial_task_delay: Duration,
    pub num_recovery_threads_per_data_dir: usize,
    pub stray_retention: Duration,

    pub num_partitions: i32,
    pub default_replication_factor: i16,
    pub auto_create_topics_enable: bool,
    pub delete_topic_enable: bool,
    pub unclean_leader_election_enable: bool,
    /// Of topics that do not set their own.
    pub min_insync_replicas: u32,

    pub replica_lag_time_max: Duration,
    pub num_replica_fetchers: usize,
    pub replica_fetch_max_bytes: i32,
    pub replica_fetch_response_max_bytes: i32,
    pub replica_fetch_wait_max: Duration,
    pub replica_fetch_min_bytes: i32,
    pub replica_fetch_backoff: Duration,
    pub replica_socket_timeout: Duration,
    pub replica_high_watermark_checkpoint_interval: Duration,
    pub isr_update_path: IsrUpdatePath,
    pub replica_truncation_path: TruncationPath,
    pub replica_selector: ReplicaSelector,

    pub controlled_shutdown_enable: bool,
    pub controlled_shutdown_max_retries: u32,
    pub controlled_shutdown_retry_backoff: Duration,

    pub transaction_max_timeout: Duration,
    pub producer_id_expiration: Duration,
    pub producer_id_expiration_check_interval: Duration,

    /// What a topic without configs of its own has.
    pub topic_defaults: TopicConfig,
    /// Every key with its layers, for DescribeConfigs and for the parts that read more than stands above.
    pub settings: Settings,
}

impl BrokerConfig {
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_settings(settings: Settings) -> Result<Self, ConfigError> {
        let checked = Checked::read(&settings)?;
        let s = &settings;
        Ok(Self {
            broker_id: checked.broker_id,
            broker_rack: s
                .get("broker.rack")
                .map(|(rack, _)| rack.to_owned())
                .filter(|rack| !rack.is_empty()),
            zookeeper_connect: checked.zookeeper_connect,
            zookeeper_session_timeout: s.millis("zookeeper.session.timeout.ms"),
            zookeeper_connection_timeout: zookeeper_connection_timeout(s),
            listeners: checked.listeners,
            advertised_listeners: checked.advertised_listeners,
            inter_broker_listener_name: checked.inter_broker_listener_name,
            http_listener: checked.http_listener,
            http_metrics_partitions: s.boolean("http.metrics.partitions"),
            socket_request_max_bytes: s.number("socket.request.max.bytes"),
            socket_listen_backlog_size: s.number("socket.listen.backlog.size"),
            queued_max_requests: s.number("queued.max.requests"),
            max_connections: s.number("max.connections"),
            max_connections_per_ip: s.number("max.connections.per.ip"),
            connections_max_idle: unless_negative(s.number("connections.max.idle.ms")),
            request_timeout: s.millis("request.timeout.ms"),
            fetch_max_bytes: s.number("fetch.max.bytes"),
            max_request_partition_size_limit: s.number("max.request.partition.size.limit"),
            max_incremental_fetch_session_cache_slots: s.number("max.incremental.fetch.session.cache.slots"),
            log_dirs: checked.log_dirs,
            log_retention_check_interval: s.millis("log.retention.check.interval.ms"),
            log_flush_offset_checkpoint_interval: s.millis("log.flush.offset.checkpoint.interval.ms"),
            log_flush_start_offset_checkpoint_interval: s
                .millis("log.flush.start.offset.checkpoint.interval.ms"),
            log_initial_task_delay: s.millis("log.initial.task.delay.ms"),
            num_recovery_threads_per_data_dir: s.number("num.recovery.threads.per.data.dir"),
            stray_retention: s.millis("stray.retention.ms"),
            num_partitions: s.number("num.partitions"),
            default_replication_factor: s.number("default.replication.factor"),
            auto_create_topics_enable: s.boolean("auto.create.topics.enable"),
            delete_topic_enable: s.boolean("delete.topic.enable"),
            unclean_leader_election_enable: s.boolean("unclean.leader.election.enable"),
            min_insync_replicas: s.number("min.insync.replicas"),
            replica_lag_time_max: s.millis("replica.lag.time.max.ms"),
            num_replica_fetchers: s.number("num.replica.fetchers"),
            replica_fetch_max_bytes: s.number("replica.fetch.max.bytes"),
            replica_fetch_response_max_bytes: s.number("replica.fetch.response.max.bytes"),
            replica_fetch_wait_max: s.millis("replica.fetch.wait.max.ms"),
            replica_fetch_min_bytes: s.number("replica.fetch.min.bytes"),
            replica_fetch_backoff: s.millis("replica.fetch.backoff.ms"),
            replica_socket_timeout: s.millis("replica.socket.timeout.ms"),
            replica_high_watermark_checkpoint_interval: s
                .millis("replica.high.watermark.checkpoint.interval.ms"),
            isr_update_path: IsrUpdatePath::of(s),
            replica_truncation_path: TruncationPath::of(s),
            replica_selector: match s.get("replica.selector.class") {
                Some(("rack-aware" | "org.apache.kafka.common.replica.RackAwareReplicaSelector", _)) => {
                    ReplicaSelector::RackAware
                }
                _ => ReplicaSelector::Leader,
            },
            controlled_shutdown_enable: s.boolean("controlled.shutdown.enable"),
            controlled_shutdown_max_retries: s.number("controlled.shutdown.max.retries"),
            controlled_shutdown_retry_backoff: s.millis("controlled.shutdown.retry.backoff.ms"),
            transaction_max_timeout: s.millis("transaction.max.timeout.ms"),
            producer_id_expiration: s.millis("producer.id.expiration.ms"),
            producer_id_expiration_check_interval: s.millis("producer.id.expiration.check.interval.ms"),
            topic_defaults: checked.topic_defaults,
            settings,
        })
    }

    /// From pairs of key and value, for tests and for a cluster that is made in one process.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        Self::from_settings(Settings::from_pairs(pairs)?)
    }

    /// This configuration under dynamic settings: those of all brokers, then those of this one.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn with_dynamic(
        &self,
        all_brokers: &BTreeMap<String, String>,
        broker: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        Self::from_settings(self.settings.with_dynamic(all_brokers, broker)?)
    }

    /// The address that other brokers and the controller use.
    pub fn inter_broker_listener(&self) -> &Listener {
        let named = |listener: &&Listener| listener.name == self.inter_broker_listener_name;
        self.advertised_listeners.iter().find(named).expect("the name was checked against this list")
    }
}

/// The parts that more than one key decides.
struct Checked {
    broker_id: BrokerId,
    zookeeper_connect: ZookeeperConnect,
    listeners: Vec<Listener>,
    advertised_listeners: Vec<Listener>,
    inter_broker_listener_name: String,
    http_listener: Option<HttpListener>,
    log_dirs: Vec<PathBuf>,
    topic_defaults: TopicConfig,
}

impl Checked {
    fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let broker_id = settings.number("broker.id");
        if broker_id < 0 {
            let allowed = "a number from 0 on, unique in the cluster (ids are not generated)";
            problems.add("broker.id", settings.text("broker.id"), settings.origin("broker.id"), allowed);
        }
        check_replica_times(settings, &mut problems);
        check_group_times(settings, &mut problems);
        let log_dirs = read_log_dirs(settings, &mut problems);
        let (listeners, advertised_listeners) = read_listeners(settings, None, &mut problems);
        let inter_broker_listener_name =
            read_inter_broker_listener(settings, &advertised_listeners, &mut problems);
        let http_listener = read_http_listener(settings, &mut problems);
        let zookeeper_connect = read_zookeeper_connect(settings, &mut problems);
        let topic_defaults = problems.collect(TopicConfig::from_settings(settings, &BTreeMap::new()));
        problems.into_result(())?;
        Ok(Self {
            broker_id: BrokerId(broker_id),
            zookeeper_connect,
            listeners,
            advertised_listeners,
            inter_broker_listener_name,
            http_listener,
            log_dirs,
            topic_defaults: topic_defaults.expect("without problems there is a configuration"),
        })
    }
}

/// Unset: for ever. A process that came up before its ensemble has nothing better to do than to wait for it.
pub(super) fn zookeeper_connection_timeout(settings: &Settings) -> Duration {
    if settings.is_set("zookeeper.connection.timeout.ms") {
        settings.millis("zookeeper.connection.timeout.ms")
    } else {
        duration_of_millis(u64::MAX)
    }
}

fn check_replica_times(settings: &Settings, problems: &mut Problems) {
    const WAIT: &str = "replica.fetch.wait.max.ms";
    let wait = settings.millis(WAIT);
    for (limit, strict) in [("replica.lag.time.max.ms", false), ("replica.socket.timeout.ms", true)] {
        let limit_value = settings.millis(limit);
        if limit_value < wait || (strict && limit_value == wait) {
            let allowed = format!("a time {} {limit}", if strict { "below" } else { "not above" });
            problems.add(WAIT, settings.text(WAIT), settings.origin(WAIT), allowed);
        }
    }
}

/// Times of the consumer protocol (KIP-848): each between its own bounds, and several heartbeats fit into a session.
fn check_group_times(settings: &Settings, problems: &mut Problems) {
    const HEARTBEAT: &str = "group.consumer.heartbeat.interval.ms";
    const SESSION: &str = "group.consumer.session.timeout.ms";
    for (key, min, max) in [
        (SESSION, "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        (HEARTBEAT, "group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ] {
        if !(settings.millis(min)..=settings.millis(max)).contains(&settings.millis(key)) {
            let allowed = format!("a time from {min} to {max}");
            problems.add(key, settings.text(key), settings.origin(key), allowed);
        }
    }
    if settings.millis(SESSION) <= settings.millis(HEARTBEAT) {
        let allowed = format!("a time below {SESSION}");
        problems.add(HEARTBEAT, settings.text(HEARTBEAT), settings.origin(HEARTBEAT), allowed);
    }
}

fn read_log_dirs(settings: &Settings, problems: &mut Problems) -> Vec<PathBuf> {
    let key = if settings.is_set("log.dirs") { "log.dirs" } else { "log.dir" };
    let text = settings.text(key);
    let dirs: Vec<PathBuf> = split_list(text).into_iter().map(PathBuf::from).collect();
    let mut sorted = dirs.clone();
    sorted.sort();
    if dirs.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        problems.add(
            key,
            text,
            settings.origin(key),
            "one or more directories, separated by commas, each once",
        );
    }
    dirs
}

fn read_inter_broker_listener(
    settings: &Settings,
    advertised: &[Listener],
    problems: &mut Problems,
) -> String {
    const NAME: &str = "inter.broker.listener.name";
    const PROTOCOL: &str = "security.inter.broker.protocol";
    if settings.is_set(NAME) {
        let name = settings.text(NAME).to_ascii_uppercase();
        if settings.is_set(PROTOCOL) {
            problems.add(NAME, &name, settings.origin(NAME), format!("only one of it and {PROTOCOL}"));
        }
        if !advertised.iter().any(|listener| listener.name == name) {
            problems.add(NAME, &name, settings.origin(NAME), "a name that advertised.listeners has");
        }
        return name;
    }
    let protocol = match settings.text(PROTOCOL) {
        "SSL" => SecurityProtocol::Ssl,
        "SASL_PLAINTEXT" => SecurityProtocol::SaslPlaintext,
        "SASL_SSL" => SecurityProtocol::SaslSsl,
        _ => SecurityProtocol::Plaintext,
    };
    match advertised.iter().find(|listener| listener.protocol == protocol) {
        Some(listener) => listener.name.clone(),
        None => {
            let allowed = format!("a protocol that an advertised listener has, or set {NAME}");
            problems.add(PROTOCOL, settings.text(PROTOCOL), settings.origin(PROTOCOL), allowed);
            String::new()
        }
    }
}

/// A time in milliseconds; a negative one stands for never.
fn unless_negative(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(duration_of_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;

    #[test]
    fn a_broker_needs_only_its_id() {
        let config = BrokerConfig::from_pairs([("broker.id", "7")]).unwrap();
        assert_eq!(config.broker_id, BrokerId(7));
        assert_eq!(config.zookeeper_connect.to_string(), "localhost:2181");
        assert_eq!(config.zookeeper_session_timeout, Duration::from_secs(18));
        assert!(Duration::from_secs(1 << 32) < config.zookeeper_connection_timeout, "it waits for ever");
        assert_eq!(config.log_dirs, [PathBuf::from("/tmp/kafka-logs")]);
        assert_eq!(config.inter_broker_listener().to_string(), "PLAINTEXT://:9092");
        assert_eq!(config.socket_request_max_bytes, 100 << 20);
        assert_eq!((config.num_partitions, config.default_replication_factor), (1, 1));
        assert_eq!(config.replica_lag_time_max, Duration::from_secs(30));
        assert_eq!(config.isr_update_path, IsrUpdatePath::Controller);
        assert_eq!(config.replica_truncation_path, TruncationPath::Fetch);
        assert_eq!(config.replica_selector, ReplicaSelector::Leader);
        assert_eq!(config.stray_retention, Duration::from_secs(7 * 24 * 3600));
        assert_eq!(config.connections_max_idle, Some(Duration::from_secs(600)));
    }

    #[test]
    fn what_is_set_arrives() {
        let config = BrokerConfig::from_pairs([
            ("broker.id", "1"),
            ("broker.rack", "a"),
            ("log.dirs", "/x, /y"),
            ("listener.security.protocol.map", "IN:PLAINTEXT,OUT:PLAINTEXT"),
            ("listeners", "OUT://:9092,IN://10.0.0.1:9093"),
            ("inter.broker.listener.name", "in"),
            ("connections.max.idle.ms", "-1"),
            ("isr.update.path", "zookeeper"),
            ("replica.truncation.path", "offsets-for-leader-epoch"),
            ("replica.selector.class", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
            ("log.retention.ms", "5"),
            ("zookeeper.connection.timeout.ms", "9"),
        ])
        .unwrap();
        assert_eq!(config.broker_rack.as_deref(), Some("a"));
        assert_eq!(config.log_dirs, [PathBuf::from("/x"), PathBuf::from("/y")]);
        assert_eq!(config.inter_broker_listener().address(), "10.0.0.1:9093");
        assert_eq!(config.connections_max_idle, None);
        assert_eq!(config.isr_update_path, IsrUpdatePath::Zookeeper);
        assert_eq!(config.replica_truncation_path, TruncationPath::OffsetsForLeaderEpoch);
        assert_eq!(config.replica_selector, ReplicaSelector::RackAware);
        assert_eq!(config.topic_defaults.retention, Some(Duration::from_millis(5)));
        assert_eq!(config.zookeeper_connection_timeout, Duration::from_millis(9));
        let dynamic = BTreeMap::from([("log.retention.ms".to_owned(), "6".to_owned())]);
        let changed = config.with_dynamic(&dynamic, &BTreeMap::new()).unwrap();
        assert_eq!(changed.topic_defaults.retention, Some(Duration::from_millis(6)));
    }

    #[test]
    fn every_key_may_stand_at_its_bounds() {
        for key in crate::config::all_keys() {
            let bounds = match key.kind {
                Kind::Int(min, max) => [min.to_string(), max.to_string()],
                Kind::Long(min, max) => [min.to_string(), max.to_string()],
                Kind::Double(min, max) => [min.to_string(), max.to_string()],
                _ => continue,
            };
            for value in bounds {
                let pairs = [("broker.id", "1"), ("controller.id", "1"), (key.name, &value)];
                // A key at its bound may contradict another one; it must not panic, nor overflow a clock.
                if let Ok(config) = BrokerConfig::from_pairs(pairs) {
                    let now = std::time::Instant::now();
                    assert!(now.checked_add(config.stray_retention).is_some());
                    crate::config::describe_broker(&config);
                    crate::config::describe_topic(&config, &BTreeMap::new());
                }
                let _ = crate::config::ControllerConfig::from_pairs(pairs);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(index in 0_usize..400, text in "[a-zA-Z0-9:/,.=\\[\\] -]{0,40}|\\PC{0,20}") {
            let keys: Vec<_> = crate::config::all_keys().collect();
            let pairs = [("broker.id", "1"), ("controller.id", "1"), (keys[index % keys.len()].name, &text)];
            let _ = BrokerConfig::from_pairs(pairs);
            let _ = crate::config::ControllerConfig::from_pairs(pairs);
            let _ = crate::config::classify_variable(&format!("KAFKA_{text}"));
            let topic_keys = crate::config::TOPIC_KEYS;
            let topic_key = topic_keys[index % topic_keys.len()].name;
            let _ = crate::config::validate_topic_config(topic_key, &text);
        }
    }

    #[test]
    fn contradictions_are_all_told() {
        let error = BrokerConfig::from_pairs([
            ("listeners", "PLAINTEXT://:9092"),
            ("inter.broker.listener.name", "IN"),
            ("security.inter.broker.protocol", "PLAINTEXT"),
            ("log.dirs", "/x,/x"),
            ("replica.fetch.wait.max.ms", "30000"),
            ("zookeeper.connect", "a:b"),
            ("log.cleaner.min.compaction.lag.ms", "0"),
            ("group.consumer.session.timeout.ms", "5000"),
        ])
        .unwrap_err()
        .to_string();
        for expected in [
            "broker.id=-1 (default): allowed is a number from 0 on",
            "replica.fetch.wait.max.ms=30000 (--override): allowed is a time below replica.socket.timeout.ms",
            "log.dirs=/x,/x (--override): allowed is one or more directories",
            "inter.broker.listener.name=IN (--override): allowed is only one of it",
            "inter.broker.listener.name=IN (--override): allowed is a name that advertised.listeners has",
            "zookeeper.connect=a:b (--override): allowed is host:port",
            "group.consumer.session.timeout.ms=5000 (--override): allowed is a time from group.consumer.min.session",
            "group.consumer.heartbeat.interval.ms=5000 (default): allowed is a time below group.consumer.session",
        ] {
            assert!(error.contains(expected), "{expected} in\n{error}");
        }
        assert_eq!(error.lines().count(), 8, "{error}");
    }
}
