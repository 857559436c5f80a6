//! What DescribeConfigs answers: for every key its value, where it comes from, and everything it shadows (KIP-226,
//! KIP-569).

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::group::{GROUP_KEYS, GroupKey, value_of};
use super::keys::{ConfigKey, Dynamic, all_keys, find_key};
use super::settings::{Origin, Settings};
use super::topic::{Values, in_topic_units};
use super::topic_keys::{TOPIC_KEYS, TopicKey};

/// Where a value comes from, as the wire says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    Topic = 1,
    DynamicBroker = 2,
    DynamicDefaultBroker = 3,
    StaticBroker = 4,
    Default = 5,
    Group = 8,
}

impl ConfigSource {
    pub fn wire_code(self) -> i8 {
        self as i8
    }

    fn of(origin: &Origin) -> Self {
        match origin {
            Origin::Topic => Self::Topic,
            Origin::Group => Self::Group,
            Origin::DynamicBroker => Self::DynamicBroker,
            Origin::DynamicDefault => Self::DynamicDefaultBroker,
            Origin::File { .. } | Origin::Environment { .. } | Origin::Override => Self::StaticBroker,
            Origin::Default => Self::Default,
        }
    }
}

/// A value that stands, or would stand, for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSynonym {
    pub name: &'static str,
    /// `None` for null and for passwords.
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// One key as DescribeConfigs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// `None` for null and for passwords.
    pub value: Option<String>,
    pub source: ConfigSource,
    /// Strongest first; the value in force is among them unless it is null.
    pub synonyms: Vec<ConfigSynonym>,
    /// See [`super::Kind::wire_code`].
    pub type_code: i8,
    pub doc: &'static str,
    pub sensitive: bool,
    pub read_only: bool,
}

/// All keys of a broker, in the order of their names.
pub fn describe_broker(config: &BrokerConfig) -> Vec<ConfigEntry> {
    all_keys().map(|key| broker_entry(key, &config.settings)).collect()
}

fn broker_entry(key: &'static ConfigKey, settings: &Settings) -> ConfigEntry {
    let synonyms = layers_of(key.name, 1, settings);
    let strongest = synonyms.first();
    ConfigEntry {
        name: key.name,
        value: strongest.and_then(|synonym| synonym.value.clone()),
        source: strongest.map_or(ConfigSource::Default, |synonym| synonym.source),
        type_code: key.kind.wire_code(),
        doc: key.doc,
        sensitive: key.is_sensitive(),
        read_only: key.dynamic == Dynamic::ReadOnly,
        synonyms,
    }
}

/// All keys of a topic that sets `overrides`, in the order of their names.
pub fn describe_topic(config: &BrokerConfig, overrides: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
    let values = Values { settings: &config.settings, overrides };
    TOPIC_KEYS.iter().map(|key| topic_entry(key, &values)).collect()
}

fn topic_entry(key: &'static TopicKey, values: &Values<'_>) -> ConfigEntry {
    let (value, origin) = values.get(key.name);
    let mut synonyms = Vec::new();
    if origin == Origin::Topic {
        synonyms.push(ConfigSynonym {
            name: key.name,
            value: Some(value.clone()),
            source: ConfigSource::Topic,
        });
    }
    for synonym in key.synonyms {
        synonyms.extend(layers_of(synonym.name, synonym.factor, values.settings));
    }
    if key.synonyms.is_empty() {
        let value = Some(key.default.to_owned());
        synonyms.push(ConfigSynonym { name: key.name, value, source: ConfigSource::Default });
    }
    ConfigEntry {
        name: key.name,
        value: Some(value),
        source: ConfigSource::of(&origin),
        synonyms,
        type_code: key.kind.wire_code(),
        doc: key.doc(),
        sensitive: false,
        read_only: false,
    }
}

/// All keys of a group that sets `overrides`, in the order of their names. Entries that cannot be used are left out.
pub fn describe_group(config: &BrokerConfig, overrides: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
    GROUP_KEYS.iter().map(|key| group_entry(key, &config.settings, overrides)).collect()
}

fn group_entry(
    key: &'static GroupKey,
    settings: &Settings,
    overrides: &BTreeMap<String, String>,
) -> ConfigEntry {
    let (value, origin) = value_of(settings, overrides, key);
    let own = (origin == Origin::Group).then(|| ConfigSynonym {
        name: key.name,
        value: Some(value.clone()),
        source: ConfigSource::Group,
    });
    ConfigEntry {
        name: key.name,
        value: Some(value),
        source: ConfigSource::of(&origin),
        synonyms: own.into_iter().chain(layers_of(key.synonym, 1, settings)).collect(),
        type_code: key.kind.wire_code(),
        doc: key.doc,
        sensitive: false,
        read_only: false,
    }
}

/// What each source says about a server key, strongest first. One layer per source: within a source the last counts.
fn layers_of(name: &'static str, factor: i64, settings: &Settings) -> Vec<ConfigSynonym> {
    let key = find_key(name).unwrap_or_else(|| panic!("{name} is no key"));
    let shown = |value: &str| (!key.is_sensitive()).then(|| in_topic_units(value, factor));
    let mut synonyms: Vec<ConfigSynonym> = Vec::new();
    for layer in settings.layers(name).iter().rev() {
        let source = ConfigSource::of(&layer.origin);
        if synonyms.last().is_none_or(|last| last.source != source) {
            synonyms.push(ConfigSynonym { name, value: shown(&layer.value), source });
        }
    }
    if let Some(default) = key.default {
        synonyms.push(ConfigSynonym { name, value: shown(default), source: ConfigSource::Default });
    }
    synonyms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
        entries.iter().find(|entry| entry.name == name).unwrap()
    }

    fn lines(entry: &ConfigEntry) -> Vec<String> {
        let line =
            |s: &ConfigSynonym| format!("{}={} {:?}", s.name, s.value.as_deref().unwrap_or("null"), s.source);
        entry.synonyms.iter().map(line).collect()
    }

    #[test]
    fn a_topic_shows_what_it_sets_and_what_that_shadows() {
        let broker = BrokerConfig::from_pairs([("broker.id", "1"), ("log.retention.hours", "2")]).unwrap();
        let dynamic = BTreeMap::from([("log.retention.ms".to_owned(), "9".to_owned())]);
        let broker = broker.with_dynamic(&dynamic, &BTreeMap::new()).unwrap();
        let overrides = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
        let entries = describe_topic(&broker, &overrides);
        assert_eq!(entries.len(), TOPIC_KEYS.len());
        let retention = find(&entries, "retention.ms");
        assert_eq!((retention.value.as_deref(), retention.source), (Some("5"), ConfigSource::Topic));
        assert_eq!(
            lines(retention),
            [
                "retention.ms=5 Topic",
                "log.retention.ms=9 DynamicDefaultBroker",
                "log.retention.hours=7200000 StaticBroker",
                "log.retention.hours=604800000 Default",
            ]
        );
        let plain = describe_topic(&broker, &BTreeMap::new());
        assert_eq!(find(&plain, "retention.ms").source, ConfigSource::DynamicDefaultBroker);
        let segment = find(&plain, "segment.bytes");
        assert_eq!((segment.source, segment.type_code, segment.read_only), (ConfigSource::Default, 3, false));
        assert_eq!(lines(find(&plain, "remote.storage.enable")), ["remote.storage.enable=false Default"]);
    }

    #[test]
    fn a_group_shows_what_it_sets_over_the_brokers() {
        let broker = [("broker.id", "1"), ("group.consumer.session.timeout.ms", "50000")];
        let broker = BrokerConfig::from_pairs(broker).unwrap();
        let overrides = BTreeMap::from([
            ("consumer.session.timeout.ms".to_owned(), "46000".to_owned()),
            ("consumer.heartbeat.interval.ms".to_owned(), "1".to_owned()),
        ]);
        let entries = describe_group(&broker, &overrides);
        let session = find(&entries, "consumer.session.timeout.ms");
        assert_eq!((session.value.as_deref(), session.source.wire_code()), (Some("46000"), 8));
        assert_eq!(
            lines(session),
            [
                "consumer.session.timeout.ms=46000 Group",
                "group.consumer.session.timeout.ms=50000 StaticBroker",
                "group.consumer.session.timeout.ms=45000 Default",
            ]
        );
        let heartbeat = find(&entries, "consumer.heartbeat.interval.ms");
        assert_eq!((heartbeat.value.as_deref(), heartbeat.source), (Some("5000"), ConfigSource::Default));
    }

    #[test]
    fn a_broker_shows_every_key_and_no_password() {
        let config =
            BrokerConfig::from_pairs([("broker.id", "1"), ("ssl.key.password", "hunter-2")]).unwrap();
        let entries = describe_broker(&config);
        assert_eq!(entries.len(), all_keys().count());
        let id = find(&entries, "broker.id");
        assert_eq!(
            (id.value.as_deref(), id.source, id.read_only),
            (Some("1"), ConfigSource::StaticBroker, true)
        );
        assert_eq!(lines(id), ["broker.id=1 StaticBroker", "broker.id=-1 Default"]);
        let password = find(&entries, "ssl.key.password");
        assert!(password.sensitive && password.value.is_none() && password.synonyms[0].value.is_none());
        assert_eq!(find(&entries, "broker.rack").value, None);
        assert!(!find(&entries, "min.insync.replicas").read_only);
        assert!(!format!("{entries:?} {config:?}").contains("hunter-2"));
    }
}
