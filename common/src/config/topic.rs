//! A topic's configuration as the log and the replicas use it: what the topic sets, over the broker's defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::broker::BrokerConfig;
use super::settings::{ConfigError, Origin, Problems, Settings, duration_of_millis};
use super::topic_keys::{TopicKey, find_topic_key, nearest_topic_key};

/// What happens to old segments. At least one is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupPolicy {
    pub delete: bool,
    pub compact: bool,
}

/// Compression of stored batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionType {
    /// As the producer sent them.
    Producer,
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// Whose clock a record's timestamp is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// Every key of a topic with an effect. Sizes are bytes; `None` means no limit.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicConfig {
    pub cleanup_policy: CleanupPolicy,
    pub compression_type: CompressionType,
    pub compression_gzip_level: i32,
    pub compression_lz4_level: i32,
    pub compression_zstd_level: i32,
    pub delete_retention: Duration,
    pub file_delete_delay: Duration,
    /// Records after which the log is synced.
    pub flush_messages: Option<u64>,
    /// Age of unsynced records at which the log is synced.
    pub flush_interval: Option<Duration>,
    pub index_interval_bytes: u32,
    pub max_compaction_lag: Option<Duration>,
    /// The largest record batch, as compressed by the producer.
    pub max_message_bytes: u32,
    pub message_timestamp_type: TimestampType,
    /// How far a CreateTime may lie before the broker's clock.
    pub message_timestamp_before_max: Option<Duration>,
    /// How far a CreateTime may lie after the broker's clock (D8).
    pub message_timestamp_after_max: Option<Duration>,
    /// From 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag: Duration,
    /// At least 1; use it as min with the number of target replicas (D3).
    pub min_insync_replicas: u32,
    pub preallocate: bool,
    pub retention_bytes: Option<u64>,
    pub retention: Option<Duration>,
    pub segment_bytes: u32,
    pub segment_index_bytes: u32,
    pub segment_jitter: Duration,
    /// Age at which a segment is closed; capped so that it can be added to any timestamp.
    pub segment_age_max: Duration,
    pub unclean_leader_election_enable: bool,
}

impl TopicConfig {
    /// The configuration of a topic that sets `overrides` on a broker with these defaults.
    ///
    /// # Errors
    /// Every override with an unknown name or a value that does not fit (`INVALID_CONFIG` on the wire).
    pub fn resolve(
        defaults: &BrokerConfig,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        Self::from_settings(&defaults.settings, overrides)
    }

    pub(super) fn from_settings(
        settings: &Settings,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        for (name, value) in overrides {
            check_override(name, value, &mut problems);
        }
        let values = problems.into_result(Values { settings, overrides })?;
        let config = values.config();
        let mut problems = Problems::default();
        if config.max_compaction_lag.is_some_and(|max| max < config.min_compaction_lag) {
            let (value, origin) = values.get("min.compaction.lag.ms");
            problems.add("min.compaction.lag.ms", &value, origin, "a time not above max.compaction.lag.ms");
        }
        problems.into_result(config)
    }

    /// Whether records are looked for by key, so that each needs one.
    pub fn is_compacted(&self) -> bool {
        self.cleanup_policy.compact
    }
}

/// Checks one override as AlterConfigs and CreateTopics do.
///
/// # Errors
/// An unknown name, or a value that does not fit it.
pub fn validate_topic_config(name: &str, value: &str) -> Result<(), ConfigError> {
    let mut problems = Problems::default();
    check_override(name, value, &mut problems);
    problems.into_result(())
}

fn check_override(name: &str, value: &str, problems: &mut Problems) {
    match find_topic_key(name).map(|key| key.kind.check(value)) {
        Some(Ok(_)) => {}
        Some(Err(allowed)) => problems.add(name, value, Origin::Topic, allowed),
        None => {
            let hint =
                nearest_topic_key(name).map_or_else(String::new, |near| format!("; did you mean {near}?"));
            problems.add(name, value, Origin::Topic, format!("a configuration key of topics{hint}"));
        }
    }
}

/// Reads topic keys through all their layers. The overrides were checked.
pub(super) struct Values<'a> {
    pub(super) settings: &'a Settings,
    pub(super) overrides: &'a BTreeMap<String, String>,
}

impl Values<'_> {
    /// The value in force and where it comes from.
    pub(super) fn get(&self, name: &str) -> (String, Origin) {
        let key = find_topic_key(name).unwrap_or_else(|| panic!("{name} is no topic key"));
        if let Some(Ok(value)) = self.overrides.get(name).map(|value| key.kind.check(value)) {
            return (value, Origin::Topic);
        }
        self.broker_default(key)
    }

    /// What a topic without overrides has.
    pub(super) fn broker_default(&self, key: &TopicKey) -> (String, Origin) {
        let weakest = key.synonyms.len().saturating_sub(1);
        let chosen =
            key.synonyms.iter().enumerate().find(|(i, s)| *i == weakest || self.settings.is_set(s.name));
        let Some((_, synonym)) = chosen else { return (key.default.to_owned(), Origin::Default) };
        let value = in_topic_units(self.settings.text(synonym.name), synonym.factor);
        (value, self.settings.origin(synonym.name))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> T {
        let (value, _) = self.get(name);
        value.parse().unwrap_or_else(|_| panic!("{name}={value} passed its check and is no number"))
    }

    fn boolean(&self, name: &str) -> bool {
        self.get(name).0 == "true"
    }

    fn duration(&self, name: &str) -> Duration {
        duration_of_millis(self.number(name))
    }

    /// `None` for -1 and for Kafka's "never", the largest number there is.
    fn limit(&self, name: &str) -> Option<u64> {
        u64::try_from(self.number::<i64>(name)).ok().filter(|limit| *limit < i64::MAX as u64)
    }

    fn duration_limit(&self, name: &str) -> Option<Duration> {
        self.limit(name).map(duration_of_millis)
    }

    fn config(&self) -> TopicConfig {
        let policy = self.get("cleanup.policy").0;
        TopicConfig {
            cleanup_policy: CleanupPolicy {
                delete: policy.contains("delete"),
                compact: policy.contains("compact"),
            },
            compression_type: match self.get("compression.type").0.as_str() {
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => CompressionType::Producer,
            },
            compression_gzip_level: self.number("compression.gzip.level"),
            compression_lz4_level: self.number("compression.lz4.level"),
            compression_zstd_level: self.number("compression.zstd.level"),
            delete_retention: self.duration("delete.retention.ms"),
            file_delete_delay: self.duration("file.delete.delay.ms"),
            flush_messages: self.limit("flush.messages"),
            flush_interval: self.duration_limit("flush.ms"),
            index_interval_bytes: self.number("index.interval.bytes"),
            max_compaction_lag: self.duration_limit("max.compaction.lag.ms"),
            max_message_bytes: self.number("max.message.bytes"),
            message_timestamp_type: match self.get("message.timestamp.type").0.as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            message_timestamp_before_max: self.duration_limit("message.timestamp.before.max.ms"),
            message_timestamp_after_max: self.duration_limit("message.timestamp.after.max.ms"),
            min_cleanable_dirty_ratio: self.number("min.cleanable.dirty.ratio"),
            min_compaction_lag: self.duration("min.compaction.lag.ms"),
            min_insync_replicas: self.number("min.insync.replicas"),
            preallocate: self.boolean("preallocate"),
            retention_bytes: self.limit("retention.bytes"),
            retention: self.duration_limit("retention.ms"),
            segment_bytes: self.number("segment.bytes"),
            segment_index_bytes: self.number("segment.index.bytes"),
            segment_jitter: self.duration("segment.jitter.ms"),
            segment_age_max: self.duration("segment.ms"),
            unclean_leader_election_enable: self.boolean("unclean.leader.election.enable"),
        }
    }
}

/// A number of hours or minutes as milliseconds; negative means never and stays −1.
pub(super) fn in_topic_units(value: &str, factor: i64) -> String {
    if factor == 1 {
        return value.to_owned();
    }
    let number: i64 = value.parse().unwrap_or_else(|_| panic!("{value} passed its check and is no number"));
    if number < 0 { "-1".to_owned() } else { number.saturating_mul(factor).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TOPIC_KEYS;

    fn resolve(server: &[(&str, &str)], topic: &[(&str, &str)]) -> Result<TopicConfig, ConfigError> {
        let settings = Settings::from_pairs(server.iter().copied())?;
        let overrides = topic.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        TopicConfig::from_settings(&settings, &overrides)
    }

    #[test]
    fn defaults_are_kafkas_but_for_the_timestamp_limit() {
        let config = resolve(&[], &[]).unwrap();
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert_eq!(config.retention, Some(hours(168)));
        assert_eq!(config.segment_age_max, hours(168));
        assert_eq!(config.segment_bytes, 1 << 30);
        assert_eq!(config.retention_bytes, None);
        assert_eq!((config.flush_messages, config.flush_interval), (None, None));
        assert_eq!((config.min_insync_replicas, config.max_message_bytes), (1, 1_048_588));
        assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: false });
        assert_eq!(config.message_timestamp_before_max, None);
        assert_eq!(config.message_timestamp_after_max, Some(hours(1)), "D8");
        assert!(!config.unclean_leader_election_enable && !config.is_compacted());
    }

    #[test]
    fn finer_units_win_and_the_topic_wins_over_all() {
        let millis = |millis| Some(Duration::from_millis(millis));
        let hours = [("log.retention.hours", "2")];
        let minutes = [("log.retention.minutes", "5"), ("log.retention.hours", "2")];
        let exact = [("log.retention.ms", "7"), ("log.retention.minutes", "5")];
        assert_eq!(resolve(&hours, &[]).unwrap().retention, millis(7_200_000));
        assert_eq!(resolve(&minutes, &[]).unwrap().retention, millis(300_000));
        assert_eq!(resolve(&exact, &[]).unwrap().retention, millis(7));
        assert_eq!(resolve(&exact, &[("retention.ms", "8")]).unwrap().retention, millis(8));
        assert_eq!(resolve(&exact, &[("retention.ms", "-1")]).unwrap().retention, None);
        assert_eq!(resolve(&[("log.retention.hours", "-1")], &[]).unwrap().retention, None);
        let policy = resolve(&[], &[("cleanup.policy", "compact, delete")]).unwrap().cleanup_policy;
        assert_eq!(policy, CleanupPolicy { delete: true, compact: true });
        let largest =
            resolve(&[("log.roll.hours", "2147483647")], &[("segment.ms", "9223372036854775807")]).unwrap();
        assert!(std::time::SystemTime::now().checked_add(largest.segment_age_max).is_some());
    }

    #[test]
    fn bad_overrides_are_named_with_what_is_allowed() {
        let error = resolve(&[], &[("retention.msec", "1"), ("min.insync.replicas", "0")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "min.insync.replicas=0 (topic configuration): allowed is a whole number from 1 to 2147483647\n\
             retention.msec=1 (topic configuration): allowed is a configuration key of topics; did you mean retention.ms?"
        );
        assert!(validate_topic_config("compression.type", "zstd").is_ok());
        assert!(validate_topic_config("compression.type", "brotli").is_err());
        assert!(validate_topic_config("log.retention.ms", "1").is_err());
        assert!(validate_topic_config("remote.storage.enable", "true").is_err());
        let lag = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")];
        assert!(resolve(&[], &lag).unwrap_err().to_string().contains("not above max.compaction.lag.ms"));
    }

    #[test]
    fn every_topic_key_can_be_read() {
        let settings = Settings::default();
        let overrides = BTreeMap::new();
        let values = Values { settings: &settings, overrides: &overrides };
        for key in TOPIC_KEYS {
            assert!(key.kind.check(&values.get(key.name).0).is_ok(), "{}", key.name);
        }
    }
}
