//! What a configuration key is, and finding one by name. The keys themselves are rows in `table`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::table;

/// What values a key takes. Bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Boolean,
    Int(i32, i32),
    Long(i64, i64),
    Double(f64, f64),
    Text,
    /// Never shown: not in errors, logs or DescribeConfigs.
    Password,
    /// Separated by commas.
    List,
    /// Separated by commas, each one of these.
    ListOf(&'static [&'static str]),
    OneOf(&'static [&'static str]),
}

impl Kind {
    /// The value without surrounding blanks and in one spelling; `Err` says what is allowed.
    ///
    /// # Errors
    /// The value is not of this kind.
    pub fn check(self, value: &str) -> Result<String, String> {
        let value = value.trim();
        let fits = match self {
            Self::Boolean => {
                let lower = value.to_ascii_lowercase();
                return if lower == "true" || lower == "false" { Ok(lower) } else { Err(self.allowed()) };
            }
            Self::Int(min, max) => value.parse().is_ok_and(|number| (min..=max).contains(&number)),
            Self::Long(min, max) => value.parse().is_ok_and(|number| (min..=max).contains(&number)),
            Self::Double(min, max) => value.parse().is_ok_and(|number| (min..=max).contains(&number)),
            Self::Text | Self::Password | Self::List => true,
            Self::ListOf(choices) => {
                !value.is_empty() && split_list(value).iter().all(|item| choices.contains(item))
            }
            Self::OneOf(choices) => choices.contains(&value),
        };
        if fits { Ok(value.to_owned()) } else { Err(self.allowed()) }
    }

    /// What is allowed, for an error.
    pub fn allowed(self) -> String {
        match self {
            Self::Boolean => "true or false".to_owned(),
            Self::Int(min, max) => format!("a whole number from {min} to {max}"),
            Self::Long(min, max) => format!("a whole number from {min} to {max}"),
            Self::Double(min, max) if max == f64::MAX => format!("a number from {min} on"),
            Self::Double(min, max) => format!("a number from {min} to {max}"),
            Self::Text | Self::Password => "any text".to_owned(),
            Self::List => "a list separated by commas".to_owned(),
            Self::ListOf(choices) => format!("one or more of {}, separated by commas", choices.join(", ")),
            Self::OneOf(choices) => format!("one of {}", choices.join(", ")),
        }
    }

    /// The type code of DescribeConfigs (KIP-569).
    pub fn wire_code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::Text | Self::OneOf(_) => 2,
            Self::Int(..) => 3,
            Self::Long(..) => 5,
            Self::Double(..) => 6,
            Self::List | Self::ListOf(_) => 7,
            Self::Password => 9,
        }
    }
}

/// Splits a list at its commas; an empty text is an empty list.
pub(super) fn split_list(value: &str) -> Vec<&str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Which process reads a key. A file may serve both: a key of the other process is no mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppliesTo {
    Broker,
    Controller,
    Both,
}

/// Whether AlterConfigs may change a key while brokers run (KIP-226).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dynamic {
    ReadOnly,
    PerBroker,
    ClusterWide,
}

/// One key of `server.properties`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfigKey {
    pub name: &'static str,
    pub kind: Kind,
    /// In the spelling of a file; `None` where Kafka has null.
    pub default: Option<&'static str>,
    pub applies_to: AppliesTo,
    pub dynamic: Dynamic,
    pub doc: &'static str,
}

impl ConfigKey {
    pub fn is_sensitive(&self) -> bool {
        self.kind == Kind::Password
    }
}

static BY_NAME: LazyLock<BTreeMap<&'static str, &'static ConfigKey>> =
    LazyLock::new(|| table::all().map(|key| (key.name, key)).collect());

/// All keys in the order of their names.
pub fn all_keys() -> impl Iterator<Item = &'static ConfigKey> {
    BY_NAME.values().copied()
}

/// The key of this name.
pub fn find_key(name: &str) -> Option<&'static ConfigKey> {
    BY_NAME.get(name).copied()
}

/// Whether the name means something: a key of the table, or a key of one listener (`listener.name.{listener}.…`).
pub fn is_known(name: &str) -> bool {
    find_key(name).is_some() || name.strip_prefix("listener.name.").is_some_and(|rest| rest.contains('.'))
}

/// The known key that a mistyped name resembles most, if any is near.
pub fn nearest_key(name: &str) -> Option<&'static str> {
    nearest(name, BY_NAME.keys().copied())
}

/// The candidate with the fewest edits to `name`, unless more than a third of it would have to change.
pub(super) fn nearest(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let name: Vec<char> = name.chars().take(NAME_LENGTH_MAX).collect();
    let distance_max = (name.len() / 3).max(1);
    candidates
        .map(|candidate| (edit_distance(&name, candidate), candidate))
        .min()
        .filter(|(distance, _)| *distance <= distance_max)
        .map(|(_, candidate)| candidate)
}

/// Longer names are no typing errors; it bounds the time that a hostile name takes.
const NAME_LENGTH_MAX: usize = 100;

/// Insertions, deletions and replacements that lead from one to the other.
fn edit_distance(from: &[char], to: &str) -> usize {
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (to_index, to_char) in to.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = to_index + 1;
        for (index, from_char) in from.iter().enumerate() {
            let replaced = diagonal + usize::from(*from_char != to_char);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row[from.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_stands_once_and_its_default_is_valid() {
        assert_eq!(table::all().count(), all_keys().count(), "a key stands in the table twice");
        for key in all_keys() {
            assert!(key.doc.ends_with('.'), "{}", key.name);
            if let Some(default) = key.default {
                assert_eq!(key.kind.check(default).as_deref(), Ok(default), "{}", key.name);
            }
        }
    }

    #[test]
    fn kinds_say_what_they_allow() {
        for (kind, good, bad, allowed) in [
            (Kind::Boolean, "True", "yes", "true or false"),
            (Kind::Int(1, 9), " 9 ", "10", "a whole number from 1 to 9"),
            (Kind::Long(-1, i64::MAX), "-1", "1.5", "a whole number from -1 to 9223372036854775807"),
            (Kind::Double(0.0, 1.0), "0.5", "NaN", "a number from 0 to 1"),
            (
                Kind::ListOf(&["delete", "compact"]),
                "compact, delete",
                "",
                "one or more of delete, compact, separated by commas",
            ),
            (Kind::OneOf(&["a", "b"]), "b", "c", "one of a, b"),
        ] {
            assert!(kind.check(good).is_ok(), "{good}");
            assert_eq!(kind.check(bad), Err(allowed.to_owned()));
        }
    }

    #[test]
    fn typing_errors_find_their_key() {
        for (typed, meant) in [
            ("log.dir", Some("log.dir")),
            ("broker.ids", Some("broker.id")),
            ("zookeper.connect", Some("zookeeper.connect")),
            ("min.insync.replica", Some("min.insync.replicas")),
            ("advertized.listeners", Some("advertised.listeners")),
            ("completely.different.thing.altogether", None),
            ("", None),
        ] {
            assert_eq!(nearest_key(typed), meant, "{typed}");
        }
        assert_eq!(nearest_key(&"x".repeat(1_000_000)), None);
    }
}
