//! A group's configuration: the times of the consumer protocol (KIP-848), which a group may set within the bounds that
//! its broker has for all groups. Keys and rules are those of Kafka's GroupConfig.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::keys::Kind::{self, Int};
use super::keys::nearest;
use super::settings::{ConfigError, Origin, Problems, Settings};

/// One key that a group may set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupKey {
    pub name: &'static str,
    pub kind: Kind,
    /// The broker's key that holds for groups that set nothing.
    pub synonym: &'static str,
    /// The broker's keys of the smallest and the largest value that a group may have.
    pub bounds: (&'static str, &'static str),
    pub doc: &'static str,
}

const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const SESSION: &str = "consumer.session.timeout.ms";

/// All keys in the order of their names.
pub const GROUP_KEYS: &[GroupKey] = &[
    GroupKey {
        name: HEARTBEAT,
        kind: Int(1, i32::MAX),
        synonym: "group.consumer.heartbeat.interval.ms",
        bounds: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
        doc: "Time between heartbeats of the group's members (KIP-848).",
    },
    GroupKey {
        name: SESSION,
        kind: Int(1, i32::MAX),
        synonym: "group.consumer.session.timeout.ms",
        bounds: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        doc: "Session timeout of the group's members (KIP-848).",
    },
];

/// Every key of a group with its effect, in milliseconds. Each lies between the broker's bounds, and
/// `consumer_heartbeat_interval_ms < consumer_session_timeout_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupConfig {
    pub consumer_heartbeat_interval_ms: i32,
    pub consumer_session_timeout_ms: i32,
}

impl GroupConfig {
    /// The configuration of a group that sets `overrides` on a broker with these defaults.
    ///
    /// # Errors
    /// Every override with an unknown name, a value that is no number or outside of the broker's bounds; a session that
    /// is not longer than the time between heartbeats (`INVALID_CONFIG` on the wire).
    pub fn resolve(
        defaults: &BrokerConfig,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let settings = &defaults.settings;
        let mut problems = Problems::default();
        for (name, value) in overrides {
            check_override(settings, name, value, &mut problems);
        }
        problems.into_result(())?;
        let milliseconds = |name| {
            let (value, origin) = value_of(settings, overrides, key(name));
            (
                value.parse().unwrap_or_else(|_| panic!("{name}={value} passed its check and is no number")),
                origin,
            )
        };
        let (heartbeat, heartbeat_origin) = milliseconds(HEARTBEAT);
        let (session, session_origin): (i32, Origin) = milliseconds(SESSION);
        let mut problems = Problems::default();
        if session <= heartbeat {
            let (name, value, origin, allowed) = if session_origin == Origin::Group {
                (SESSION, session, session_origin, format!("a time above {HEARTBEAT} ({heartbeat})"))
            } else {
                (HEARTBEAT, heartbeat, heartbeat_origin, format!("a time below {SESSION} ({session})"))
            };
            problems.add(name, &value.to_string(), origin, allowed);
        }
        problems.into_result(Self {
            consumer_heartbeat_interval_ms: heartbeat,
            consumer_session_timeout_ms: session,
        })
    }
}

/// Checks one override as AlterConfigs does.
///
/// # Errors
/// An unknown name, or a value that does not fit it on this broker.
pub fn validate_group_config(defaults: &BrokerConfig, name: &str, value: &str) -> Result<(), ConfigError> {
    let mut problems = Problems::default();
    check_override(&defaults.settings, name, value, &mut problems);
    problems.into_result(())
}

fn check_override(settings: &Settings, name: &str, value: &str, problems: &mut Problems) {
    let Some(key) = GROUP_KEYS.iter().find(|key| key.name == name) else {
        let hint = nearest(name, GROUP_KEYS.iter().map(|key| key.name))
            .map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let allowed = format!("a configuration key of groups{hint}");
        return problems.add(name, value, Origin::Group, allowed);
    };
    let (min, max) = key.bounds;
    match key.kind.check(value) {
        Err(allowed) => problems.add(name, value, Origin::Group, allowed),
        Ok(value) if !in_bounds(settings, key, &value) => {
            let (least, most) = (settings.text(min), settings.text(max));
            let allowed = format!("a time from {min} ({least}) to {max} ({most})");
            problems.add(name, &value, Origin::Group, allowed);
        }
        Ok(_) => {}
    }
}

fn in_bounds(settings: &Settings, key: &GroupKey, value: &str) -> bool {
    let number = |text: &str| text.parse::<i32>().ok();
    let (min, max) = key.bounds;
    number(settings.text(min)) <= number(value) && number(value) <= number(settings.text(max))
}

fn key(name: &str) -> &'static GroupKey {
    GROUP_KEYS.iter().find(|key| key.name == name).unwrap_or_else(|| panic!("{name} is no key of groups"))
}

/// The value in force of a key and where it comes from. An override that is no number does not count.
pub(super) fn value_of(
    settings: &Settings,
    overrides: &BTreeMap<String, String>,
    key: &GroupKey,
) -> (String, Origin) {
    if let Some(value) = overrides.get(key.name)
        && let Ok(value) = key.kind.check(value)
        && in_bounds(settings, key, &value)
    {
        return (value, Origin::Group);
    }
    (settings.text(key.synonym).to_owned(), settings.origin(key.synonym))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(broker: &[(&str, &str)], group: &[(&str, &str)]) -> Result<(i32, i32), String> {
        let pairs = [("broker.id", "1")].iter().chain(broker).copied();
        let broker = BrokerConfig::from_pairs(pairs).unwrap();
        let overrides = group.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let config = GroupConfig::resolve(&broker, &overrides).map_err(|error| error.to_string())?;
        Ok((config.consumer_heartbeat_interval_ms, config.consumer_session_timeout_ms))
    }

    #[test]
    fn a_group_has_its_own_times_within_the_brokers_bounds() {
        let short = ("group.consumer.min.session.timeout.ms", "7000");
        //    the broker's, the group's, in force or what is told
        type Row<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], Result<(i32, i32), &'a str>);
        let rows: [Row<'_>; 9] = [
            (&[], &[], Ok((5_000, 45_000))),
            (&[], &[(SESSION, "50000")], Ok((5_000, 50_000))),
            (&[], &[(SESSION, " 60000 "), (HEARTBEAT, "15000")], Ok((15_000, 60_000))),
            (&[], &[(SESSION, "44999")], Err("from group.consumer.min.session.timeout.ms (45000) to group")),
            (&[], &[(SESSION, "60001")], Err("to group.consumer.max.session.timeout.ms (60000)")),
            (&[], &[(HEARTBEAT, "4999")], Err("from group.consumer.min.heartbeat.interval.ms (5000)")),
            (&[], &[(HEARTBEAT, "soon")], Err("a whole number from 1 to 2147483647")),
            (
                &[short],
                &[(SESSION, "7000"), (HEARTBEAT, "7000")],
                Err("above consumer.heartbeat.interval.ms (7000)"),
            ),
            (&[], &[("consumer.session.timeout", "1")], Err("did you mean consumer.session.timeout.ms?")),
        ];
        for (broker, group, expected) in rows {
            match (resolve(broker, group), expected) {
                (Ok(times), expected) => assert_eq!(Ok(times), expected, "{group:?}"),
                (Err(told), Err(part)) => {
                    assert!(told.contains(part) && told.contains("group configuration"), "{told}")
                }
                (Err(told), Ok(_)) => panic!("{group:?}: {told}"),
            }
        }
    }

    #[test]
    fn the_keys_stand_in_for_the_brokers() {
        assert!(GROUP_KEYS.is_sorted_by_key(|key| key.name));
        for key in GROUP_KEYS {
            for name in [key.synonym, key.bounds.0, key.bounds.1] {
                let server = super::super::keys::find_key(name).unwrap_or_else(|| panic!("{name} is no key"));
                assert_eq!(server.kind, key.kind, "{name}");
            }
        }
    }
}
