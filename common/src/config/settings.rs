//! All layers of a process's configuration: for each key what the file, the environment, `--override` and the dynamic
//! configuration say, and from where, so that an error can name the line and DescribeConfigs the source.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::create_topics::{TopicToCreate, parse_create_topics};
use super::environment::{Variable, classify_variable};
use super::keys::{ConfigKey, find_key, is_known, nearest_key};
use super::properties::parse_properties;

/// Where a value comes from; later ones win.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Default,
    File {
        name: String,
        line: usize,
    },
    Environment {
        variable: String,
    },
    Override,
    /// `/config/brokers/<default>`.
    DynamicDefault,
    /// `/config/brokers/[id]`.
    DynamicBroker,
    /// `/config/topics/[topic]`, or the configs of a CreateTopics request.
    Topic,
    /// `/config/groups/[group]`.
    Group,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}, line {line}"),
            Self::Environment { variable } => write!(f, "environment variable {variable}"),
            Self::Override => f.write_str("--override"),
            Self::DynamicDefault => f.write_str("dynamic default of all brokers"),
            Self::DynamicBroker => f.write_str("dynamic configuration of the broker"),
            Self::Topic => f.write_str("topic configuration"),
            Self::Group => f.write_str("group configuration"),
        }
    }
}

/// One wrong value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    pub key: String,
    /// `[hidden]` for passwords.
    pub value: String,
    pub origin: Origin,
    pub allowed: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, origin, allowed } = self;
        write!(f, "{key}={value} ({origin}): allowed is {allowed}")
    }
}

/// Everything that is wrong with a configuration, at once. A process that meets it exits with code 2.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ConfigError {
    pub problems: Vec<ConfigProblem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if 0 < index {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// Longest part of a bad value that an error repeats, in characters.
const SHOWN_VALUE_MAX: usize = 200;

const HIDDEN: &str = "[hidden]";

fn is_secret(key: &str) -> bool {
    find_key(key).map_or_else(|| is_listener_secret(key), ConfigKey::is_sensitive)
}

/// Keys of one listener stand in no table; these endings hold passwords and keys.
fn is_listener_secret(key: &str) -> bool {
    key.ends_with("password") || key.ends_with("jaas.config") || key.ends_with("keystore.key")
}

/// Collects problems while a typed view is built, so that all are told at once.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<ConfigProblem>);

impl Problems {
    pub(super) fn add(&mut self, key: &str, value: &str, origin: Origin, allowed: impl Into<String>) {
        let hidden = find_key(key).is_some_and(ConfigKey::is_sensitive) || key.ends_with("jaas.config");
        let value =
            if hidden { "[hidden]".to_owned() } else { value.chars().take(SHOWN_VALUE_MAX).collect() };
        self.0.push(ConfigProblem { key: key.to_owned(), value, origin, allowed: allowed.into() });
    }

    /// Takes over the problems of a part.
    pub(super) fn collect<T>(&mut self, part: Result<T, ConfigError>) -> Option<T> {
        part.map_err(|error| self.0.extend(error.problems)).ok()
    }

    /// # Errors
    /// When there is any problem.
    pub(super) fn into_result<T>(self, value: T) -> Result<T, ConfigError> {
        if self.0.is_empty() { Ok(value) } else { Err(ConfigError { problems: self.0 }) }
    }
}

/// A thousand years: more than any use, and a sum with a clock does not overflow.
const DURATION_MAX_MS: u64 = 1000 * 365 * 24 * 3_600_000;

/// A configured time, capped so that it can be added to any clock.
pub(super) fn duration_of_millis(millis: u64) -> Duration {
    Duration::from_millis(millis.min(DURATION_MAX_MS))
}

/// A value as written, checked and normalized, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub origin: Origin,
    pub value: String,
}

/// The known keys that were set, with all their layers, and what was odd. Every value fits its key's kind.
#[derive(Clone, Default, PartialEq)]
pub struct Settings {
    /// Weakest layer first; the default is not among them.
    layers: BTreeMap<String, Vec<Layer>>,
    /// Of `KAFKA_CREATE_TOPICS`.
    pub create_topics: Vec<TopicToCreate>,
    /// To be logged once logging works.
    pub warnings: Vec<String>,
}

impl fmt::Debug for Settings {
    /// The values in force, without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(key, layers): (&String, &Vec<Layer>)| {
            let value = layers.last().map(|layer| layer.value.clone()).unwrap_or_default();
            (key.clone(), if is_secret(key) { HIDDEN.to_owned() } else { value })
        };
        f.debug_map().entries(self.layers.iter().map(shown)).finish()
    }
}

/// What a process is configured from.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// Name for messages, and text of the file.
    pub file: Option<(&'a str, &'a str)>,
    pub environment: Vec<(String, String)>,
    /// `key=value` each.
    pub overrides: Vec<String>,
}

impl Settings {
    /// Reads all sources.
    ///
    /// # Errors
    /// Every value that does not fit its key, a malformed file, an override without `=`.
    pub fn read(sources: &Sources<'_>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let mut problems = Problems::default();
        if let Some((name, text)) = sources.file {
            settings.read_file(name, text, &mut problems);
        }
        settings.read_environment(&sources.environment, &mut problems);
        for text in &sources.overrides {
            match text.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    settings.set(key.trim(), value, Origin::Override, &mut problems);
                }
                _ => problems.add(text, "", Origin::Override, "key=value"),
            }
        }
        problems.into_result(settings)
    }

    /// From pairs, for tests and for a cluster that is made in one process.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        let overrides =
            pairs.into_iter().map(|(key, value)| format!("{}={}", key.as_ref(), value.as_ref())).collect();
        Self::read(&Sources { overrides, ..Sources::default() })
    }

    /// These settings under dynamic ones: the default of all brokers, then those of one broker.
    ///
    /// # Errors
    /// Every value that does not fit its key.
    pub fn with_dynamic(
        &self,
        all_brokers: &BTreeMap<String, String>,
        broker: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut settings = Self { warnings: Vec::new(), ..self.clone() };
        let mut problems = Problems::default();
        for (values, origin) in [(all_brokers, Origin::DynamicDefault), (broker, Origin::DynamicBroker)] {
            for (key, value) in values {
                settings.set(key, value, origin.clone(), &mut problems);
            }
        }
        problems.into_result(settings)
    }

    fn read_file(&mut self, name: &str, text: &str, problems: &mut Problems) {
        match parse_properties(text) {
            Ok(properties) => {
                for property in properties {
                    let origin = Origin::File { name: name.to_owned(), line: property.line };
                    self.set(&property.key, &property.value, origin, problems);
                }
            }
            Err(error) => {
                let origin = Origin::File { name: name.to_owned(), line: error.line };
                problems.add("(this line)", "", origin, format!("Java properties, but {}", error.problem));
            }
        }
    }

    fn read_environment(&mut self, environment: &[(String, String)], problems: &mut Problems) {
        let mut for_java = Vec::new();
        for (variable, value) in environment {
            match classify_variable(variable) {
                Variable::Key(key) => {
                    let origin = Origin::Environment { variable: variable.clone() };
                    self.set(&key, value, origin, problems);
                }
                Variable::ForJava => for_java.push(variable.as_str()),
                Variable::CreateTopics => match parse_create_topics(value) {
                    Ok(topics) => self.create_topics = topics,
                    Err(allowed) => {
                        let origin = Origin::Environment { variable: variable.clone() };
                        problems.add("KAFKA_CREATE_TOPICS", value, origin, allowed);
                    }
                },
                Variable::Other => {}
            }
        }
        if !for_java.is_empty() {
            self.warnings.push(format!("ignored, because there is no JVM: {}", for_java.join(", ")));
        }
    }

    fn set(&mut self, name: &str, value: &str, origin: Origin, problems: &mut Problems) {
        let checked = match find_key(name) {
            Some(key) => key.kind.check(value),
            None if is_known(name) => Ok(value.trim().to_owned()),
            None => {
                let hint =
                    nearest_key(name).map_or_else(String::new, |near| format!("; did you mean {near}?"));
                self.warnings.push(format!("unknown key {name} is ignored ({origin}){hint}"));
                return;
            }
        };
        match checked {
            Ok(value) => self.layers.entry(name.to_owned()).or_default().push(Layer { origin, value }),
            Err(allowed) => problems.add(name, value.trim(), origin, allowed),
        }
    }

    /// The value in force, and where it comes from; `None` when it is unset and has no default.
    pub fn get(&self, name: &str) -> Option<(&str, Origin)> {
        if let Some(layer) = self.layers(name).last() {
            return Some((&layer.value, layer.origin.clone()));
        }
        find_key(name).and_then(|key| key.default).map(|default| (default, Origin::Default))
    }

    /// Whether anything but the default speaks for this key.
    pub fn is_set(&self, name: &str) -> bool {
        self.layers.contains_key(name)
    }

    /// All that was said about a key, weakest first, without the default.
    pub fn layers(&self, name: &str) -> &[Layer] {
        self.layers.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of a key that has a default or was checked to be set; empty otherwise.
    pub(super) fn text(&self, name: &str) -> &str {
        debug_assert!(is_known(name), "{name} is no key");
        self.get(name).map_or("", |(value, _)| value)
    }

    /// The number of a key of a numeric kind with a default. It was checked when it was set.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> T {
        let value = self.text(name);
        value.parse().unwrap_or_else(|_| panic!("{name}={value} passed its check and is no number"))
    }

    pub(super) fn boolean(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// As [`Settings::number`], of a key whose unit is the millisecond and whose bounds exclude negative values.
    pub(super) fn millis(&self, name: &str) -> Duration {
        duration_of_millis(self.number(name))
    }

    pub(super) fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Default, |(_, origin)| origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str, environment: &[(&str, &str)], overrides: &[&str]) -> Result<Settings, ConfigError> {
        Settings::read(&Sources {
            file: Some(("server.properties", file)),
            environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            overrides: overrides.iter().map(|text| (*text).to_owned()).collect(),
        })
    }

    #[test]
    fn later_sources_win() {
        let settings = read(
            "num.partitions=2\nbroker.id=1\nnum.partitions=3\nlog.dirs=/a\nqueued.max.requests=7",
            &[("KAFKA_BROKER_ID", "5"), ("KAFKA_CFG_LOG_DIRS", "/b"), ("HOME", "/root")],
            &["log.dirs=/c=d"],
        )
        .unwrap();
        for (key, value, origin) in [
            ("min.insync.replicas", "1", "default"),
            ("num.partitions", "3", "server.properties, line 3"),
            ("broker.id", "5", "environment variable KAFKA_BROKER_ID"),
            ("log.dirs", "/c=d", "--override"),
        ] {
            let (found, from) = settings.get(key).unwrap();
            assert_eq!((found, from.to_string().as_str()), (value, origin), "{key}");
        }
        assert_eq!(settings.get("broker.rack"), None);
        assert_eq!(settings.layers("log.dirs").len(), 3);
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn all_errors_are_told_at_once_and_secrets_are_not() {
        let topics = read("", &[("KAFKA_CREATE_TOPICS", "t:1:3:compact")], &[]).unwrap().create_topics;
        assert_eq!((topics[0].name.as_str(), topics[0].replication_factor), ("t", 3));
        let error = read("", &[("KAFKA_CREATE_TOPICS", "t")], &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("KAFKA_CREATE_TOPICS=t (environment variable KAFKA_CREATE_TOPICS)"),
            "{error}"
        );
        let error = read(
            "num.partitions=none\nssl.key.password=secret",
            &[("KAFKA_DELETE_TOPIC_ENABLE", "yes"), ("KAFKA_MIN_INSYNC_REPLICAS", "0")],
            &["isr.update.path=elsewhere", "nonsense"],
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "num.partitions=none (server.properties, line 1): allowed is a whole number from 1 to 2147483647\n\
             delete.topic.enable=yes (environment variable KAFKA_DELETE_TOPIC_ENABLE): allowed is true or false\n\
             min.insync.replicas=0 (environment variable KAFKA_MIN_INSYNC_REPLICAS): allowed is a whole number from 1 to 2147483647\n\
             isr.update.path=elsewhere (--override): allowed is one of controller, zookeeper\n\
             nonsense= (--override): allowed is key=value"
        );
        let broken = read("a=1\nb=\\u12", &[], &[]).unwrap_err().to_string();
        assert!(
            broken.starts_with("(this line)= (server.properties, line 2): allowed is Java properties, but"),
            "{broken}"
        );
        let mut problems = Problems::default();
        problems.add("ssl.key.password", "secret", Origin::Override, "another");
        assert!(!problems.into_result(()).unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn unknown_keys_and_java_variables_are_warnings() {
        let settings = read(
            "zookeper.connect=z:2181\nlistener.name.a.ssl.keystore.location=/x",
            &[("KAFKA_HEAP_OPTS", "-Xmx1G"), ("KAFKA_OPTS", ""), ("KAFKA_PORT", "tcp://1.2.3.4:9092")],
            &[],
        )
        .unwrap();
        assert_eq!(
            settings.warnings,
            [
                "unknown key zookeper.connect is ignored (server.properties, line 1); did you mean zookeeper.connect?",
                "unknown key port is ignored (environment variable KAFKA_PORT)",
                "ignored, because there is no JVM: KAFKA_HEAP_OPTS, KAFKA_OPTS",
            ]
        );
        assert_eq!(settings.get("listener.name.a.ssl.keystore.location").unwrap().0, "/x");
    }

    #[test]
    fn dynamic_settings_lie_above_static_ones() {
        let pair = |value: &str| BTreeMap::from([("min.insync.replicas".to_owned(), value.to_owned())]);
        let settings = read("min.insync.replicas=2", &[], &[]).unwrap();
        let all = settings.with_dynamic(&pair("3"), &BTreeMap::new()).unwrap();
        assert_eq!(all.get("min.insync.replicas"), Some(("3", Origin::DynamicDefault)));
        let one = settings.with_dynamic(&pair("3"), &pair("4")).unwrap();
        assert_eq!(one.get("min.insync.replicas"), Some(("4", Origin::DynamicBroker)));
        assert!(settings.with_dynamic(&pair("x"), &BTreeMap::new()).is_err());
    }
}
