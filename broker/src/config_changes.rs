//! What AlterConfigs and IncrementalAlterConfigs make of a stored configuration. Pure.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::config::{
    BrokerConfig, Dynamic, GroupConfig, Kind, Settings, TopicConfig, find_key, find_topic_key,
};
use zurau_common::id::{BrokerId, TopicName, topic_name_problem};
use zurau_common::rejection::Rejection;
use zurau_common::zk::znode::{DEFAULT_ENTITY, Znode};

use crate::groups::GroupId;
use crate::topic_plan::Refusal;

/// Resource types of the wire.
pub(crate) const RESOURCE_TOPIC: i8 = 2;
pub(crate) const RESOURCE_BROKER: i8 = 4;
pub(crate) const RESOURCE_GROUP: i8 = 32;

/// Whose configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Topic(TopicName),
    /// `None`: the default of all brokers.
    Broker(Option<BrokerId>),
    /// Whether there is such a group yet, or not (as in Kafka).
    Group(GroupId),
}

impl Resource {
    /// # Errors
    /// Another type, a topic name that cannot be, another broker than `own`, a group without an id.
    pub(crate) fn parse(resource_type: i8, name: &str, own: BrokerId) -> Result<Self, Refusal> {
        match (resource_type, name) {
            (RESOURCE_TOPIC, name) => match topic_name_problem(name) {
                None => Ok(Self::Topic(name.into())),
                Some(problem) => Err(Refusal::new(Rejection::InvalidTopicException, problem)),
            },
            (RESOURCE_BROKER, "") => Ok(Self::Broker(None)),
            (RESOURCE_BROKER, name) if name == own.to_string() => Ok(Self::Broker(Some(own))),
            (RESOURCE_BROKER, name) => {
                let message =
                    format!("this is broker {own}; ask broker '{name}' itself, or name none for all");
                Err(Refusal::new(Rejection::InvalidRequest, message))
            }
            (RESOURCE_GROUP, "") => {
                Err(Refusal::new(Rejection::InvalidRequest, "the group's id must not be empty"))
            }
            (RESOURCE_GROUP, name) => Ok(Self::Group(name.into())),
            (other, _) => {
                let message =
                    format!("resource type {other} has no configuration here; 2 topic, 4 broker, 32 group");
                Err(Refusal::new(Rejection::InvalidRequest, message))
            }
        }
    }

    /// Where it is stored.
    pub(crate) fn znode(&self) -> Znode {
        match self {
            Self::Topic(topic) => Znode::TopicConfig(topic.clone()),
            Self::Group(group) => Znode::GroupConfig(group.clone()),
            Self::Broker(id) => {
                Znode::BrokerConfig(id.map_or_else(|| DEFAULT_ENTITY.to_owned(), |id| id.to_string()))
            }
        }
    }
}

/// One step of IncrementalAlterConfigs (KIP-339).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Set(String, Option<String>),
    Delete(String),
    Append(String, Option<String>),
    Subtract(String, Option<String>),
}

/// The stored entries after the steps.
///
/// # Errors
/// A key twice, a null value, append or subtract on a key that is no list.
pub(crate) fn apply_steps(
    stored: &BTreeMap<String, String>,
    steps: &[Step],
    in_force: impl Fn(&str) -> String,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut entries = stored.clone();
    let mut seen = BTreeSet::new();
    for step in steps {
        let (Step::Set(key, _) | Step::Delete(key) | Step::Append(key, _) | Step::Subtract(key, _)) = step;
        if !seen.insert(key) {
            let message = format!("{key} stands twice in the request");
            return Err(Refusal::new(Rejection::InvalidRequest, message));
        }
        match step {
            Step::Delete(key) => {
                entries.remove(key);
            }
            Step::Set(key, value) => {
                entries.insert(key.clone(), given(key, value)?.to_owned());
            }
            Step::Append(key, value) => {
                let mut items = list(key, &entries, &in_force)?;
                items.extend(
                    split(given(key, value)?).filter(|item| !items.contains(item)).collect::<Vec<_>>(),
                );
                entries.insert(key.clone(), items.join(","));
            }
            Step::Subtract(key, value) => {
                let removed: Vec<String> = split(given(key, value)?).collect();
                let items = list(key, &entries, &in_force)?;
                let kept: Vec<String> = items.into_iter().filter(|item| !removed.contains(item)).collect();
                entries.insert(key.clone(), kept.join(","));
            }
        }
    }
    Ok(entries)
}

fn given<'a>(key: &str, value: &'a Option<String>) -> Result<&'a str, Refusal> {
    value.as_deref().ok_or_else(|| {
        Refusal::new(Rejection::InvalidRequest, format!("a null value is not supported for {key}"))
    })
}

fn split(value: &str) -> impl Iterator<Item = String> + '_ {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(ToOwned::to_owned)
}

fn list(
    key: &str,
    entries: &BTreeMap<String, String>,
    in_force: impl Fn(&str) -> String,
) -> Result<Vec<String>, Refusal> {
    let kind = find_topic_key(key).map(|key| key.kind).or_else(|| find_key(key).map(|key| key.kind));
    if !matches!(kind, Some(Kind::List | Kind::ListOf(_))) {
        let message = format!("{key} is no list; append and subtract are for lists");
        return Err(Refusal::new(Rejection::InvalidConfig, message));
    }
    let value = entries.get(key).cloned().unwrap_or_else(|| in_force(key));
    Ok(split(&value).collect())
}

/// Whether the entries may be stored for the resource.
///
/// # Errors
/// [`Rejection::InvalidConfig`]: unknown keys, values that do not fit, keys that cannot change while brokers run.
pub(crate) fn check(
    resource: &Resource,
    entries: &BTreeMap<String, String>,
    config: &BrokerConfig,
) -> Result<(), Refusal> {
    let invalid = |message: String| Refusal::new(Rejection::InvalidConfig, message);
    match resource {
        Resource::Topic(_) => {
            TopicConfig::resolve(config, entries).map_err(|error| invalid(error.to_string()))?;
        }
        Resource::Group(_) => {
            GroupConfig::resolve(config, entries).map_err(|error| invalid(error.to_string()))?;
        }
        Resource::Broker(id) => {
            for key in entries.keys() {
                match find_key(key).map(|key| key.dynamic) {
                    None => return Err(invalid(format!("{key} is no configuration key of brokers"))),
                    Some(Dynamic::ReadOnly) => {
                        return Err(invalid(format!("{key} cannot change while a broker runs")));
                    }
                    Some(Dynamic::PerBroker) if id.is_none() => {
                        return Err(invalid(format!("{key} is set for each broker, not for all")));
                    }
                    Some(_) => {}
                }
            }
            let nothing = BTreeMap::new();
            let (all, own) = if id.is_some() { (&nothing, entries) } else { (entries, &nothing) };
            config.with_dynamic(all, own).map_err(|error| invalid(error.to_string()))?;
        }
    }
    Ok(())
}

/// Numbers of threads: a running broker of Kafka changes them in steps only.
const THREAD_COUNTS: [&str; 6] = [
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
];

/// Whether a running broker may go from the settings in force to others: numbers of threads at least 1, at least half
/// of what they are (rounded down) and at most double (KIP-226).
///
/// # Errors
/// [`Rejection::InvalidRequest`], as of Kafka, unlike for other values that do not fit.
pub(crate) fn check_thread_counts(in_force: &Settings, wanted: &Settings) -> Result<(), Refusal> {
    let count =
        |settings: &Settings, key| settings.get(key).and_then(|(value, _)| value.trim().parse::<i64>().ok());
    for key in THREAD_COUNTS {
        let (Some(now), Some(then)) = (count(in_force, key), count(wanted, key)) else { continue };
        let problem = match then {
            _ if then == now => continue,
            ..1 => "a running broker needs at least 1",
            _ if then < now / 2 => "one change may at most halve the number",
            _ if then > now * 2 => "one change may at most double the number",
            _ => continue,
        };
        let message = format!("{key} cannot become {then}: it is {now}, and {problem}");
        return Err(Refusal::new(Rejection::InvalidRequest, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn steps_change_what_they_name() {
        let stored = entries(&[("retention.ms", "5"), ("cleanup.policy", "compact")]);
        let steps = [
            Step::Set("segment.ms".to_owned(), text("9")),
            Step::Delete("retention.ms".to_owned()),
            Step::Append("cleanup.policy".to_owned(), text("delete,compact")),
        ];
        let changed = apply_steps(&stored, &steps, |_| unreachable!()).unwrap();
        assert_eq!(changed, entries(&[("segment.ms", "9"), ("cleanup.policy", "compact,delete")]));
        let subtract = [Step::Subtract("cleanup.policy".to_owned(), text("delete"))];
        let changed = apply_steps(&entries(&[]), &subtract, |_| "delete,compact".to_owned()).unwrap();
        assert_eq!(changed, entries(&[("cleanup.policy", "compact")]), "from the value in force");
    }

    #[test]
    fn bad_steps_are_refused() {
        let set = |value| Step::Set("retention.ms".to_owned(), value);
        let rows = [
            (vec![set(None)], 42),
            (vec![set(text("1")), set(text("2"))], 42),
            (vec![Step::Append("retention.ms".to_owned(), text("1"))], 40),
            (vec![Step::Subtract("no.such.key".to_owned(), text("1"))], 40),
        ];
        for (steps, code) in rows {
            let refusal = apply_steps(&entries(&[]), &steps, |_| String::new()).unwrap_err();
            assert_eq!(refusal.rejection.code(), code, "{steps:?}");
        }
    }

    #[test]
    fn only_what_may_change_is_stored() {
        let config = BrokerConfig::from_pairs([("broker.id", "1")]).unwrap();
        let topic = Resource::Topic("t".into());
        let (one, all) = (Resource::Broker(Some(BrokerId(1))), Resource::Broker(None));
        let group = Resource::Group("g".into());
        let rows: [(&Resource, &str, &str, i16); 11] = [
            (&group, "consumer.session.timeout.ms", "50000", 0),
            (&group, "consumer.session.timeout.ms", "5", 40),
            (&group, "retention.ms", "5", 40),
            (&topic, "retention.ms", "5", 0),
            (&topic, "retention.ms", "soon", 40),
            (&topic, "log.retention.ms", "5", 40),
            (&one, "log.retention.ms", "5", 0),
            (&all, "log.retention.ms", "5", 0),
            (&all, "log.retention.ms", "soon", 40),
            (&one, "broker.id", "5", 40),
            (&one, "no.such.key", "5", 40),
        ];
        for (resource, key, value, code) in rows {
            let checked = check(resource, &entries(&[(key, value)]), &config);
            assert_eq!(checked.err().map_or(0, |refusal| refusal.rejection.code()), code, "{key}={value}");
        }
    }

    #[test]
    fn thread_counts_change_in_steps() {
        let settings = |key, value: i64| {
            BrokerConfig::from_pairs([("broker.id", "1".to_owned()), (key, value.to_string())])
                .unwrap()
                .settings
        };
        //          key, in force, wanted, told
        let rows: [(&str, i64, i64, Option<&str>); 10] = [
            ("log.cleaner.threads", 2, 4, None),
            ("log.cleaner.threads", 2, 5, Some("it is 2, and one change may at most double the number")),
            ("log.cleaner.threads", 4, 2, None),
            ("log.cleaner.threads", 4, 1, Some("it is 4, and one change may at most halve the number")),
            ("log.cleaner.threads", 5, 2, None),
            ("log.cleaner.threads", 1, 0, Some("a running broker needs at least 1")),
            ("log.cleaner.threads", 0, 0, None),
            ("num.recovery.threads.per.data.dir", 1, 3, Some("cannot become 3")),
            ("num.replica.fetchers", 1, 3, Some("num.replica.fetchers cannot become 3")),
            ("log.cleaner.backoff.ms", 1, 3, None),
        ];
        for (key, now, then, told) in rows {
            let checked = check_thread_counts(&settings(key, now), &settings(key, then));
            let refusal = checked.err();
            assert_eq!(
                refusal.as_ref().map(|refusal| refusal.rejection.code()),
                told.map(|_| 42),
                "{key} {now} {then}"
            );
            let message = refusal.map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.contains(told.unwrap_or_default()), "{message}");
        }
    }

    #[test]
    fn resources_are_topics_this_broker_and_groups() {
        let own = BrokerId(3);
        let rows = [
            (2, "t", 0),
            (2, "a b", 17),
            (4, "3", 0),
            (4, "", 0),
            (4, "4", 42),
            (8, "3", 42),
            (9, "x", 42),
            (32, "a/b", 0),
            (32, "", 42),
        ];
        for (resource_type, name, code) in rows {
            let parsed = Resource::parse(resource_type, name, own);
            assert_eq!(
                parsed.err().map_or(0, |refusal| refusal.rejection.code()),
                code,
                "{resource_type} {name}"
            );
        }
        assert_eq!(Resource::Broker(None).znode().path(), "/config/brokers/<default>");
        assert_eq!(Resource::Group("a/b".into()).znode().path(), "/config/groups/a%2Fb");
    }
}
