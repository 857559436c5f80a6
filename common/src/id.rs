//! Identifiers and epochs as distinct types, so that a leader epoch can never be passed where a partition epoch
//! is meant. The numbers are public: there is no invariant to protect beyond the name.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// A broker's id, `broker.id`; never negative in a valid configuration.
    BrokerId(i32)
}
number! {
    /// Raised by one each time a controller is elected; the value of `/controller_epoch`. The first one is 1.
    ControllerEpoch(i32)
}
number! {
    /// Raised with every write of a partition's `state`. The first one is 0.
    LeaderEpoch(i32)
}
number! {
    /// Data version of a partition's `ISR` znode. −1 on the wire means "create `ISR`" and is never handed to
    /// ZooKeeper as an expected version, where it would mean "any" (F12).
    PartitionEpoch(i32)
}
number! {
    /// Data version of `/brokers/epochs/[id]`; raised by every registration (F3).
    BrokerEpoch(i64)
}

impl PartitionEpoch {
    /// The request to create the `ISR` znode of a partition that never had one.
    pub const CREATE: Self = Self(-1);
}

impl LeaderEpoch {
    /// What clients and followers send when they do not know the epoch: no check is made.
    pub const UNKNOWN: Self = Self(-1);

    /// The epoch of the next election.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A topic's name. Shared, because every partition, request and metadata entry names it.
pub type TopicName = Arc<str>;

/// One incarnation of a topic (KIP-516). A topic deleted and created again has another id (D11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub Uuid);

impl TopicId {
    /// Kafka's textual form: 16 bytes as 22 characters of URL-safe base64 without padding.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Uuid::from_slice(&bytes).ok().filter(|id| !id.is_nil()).map(Self)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition of a topic. Printed as `topic-partition`, as in directory names and log lines.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    pub topic: TopicName,
    pub partition: i32,
}

impl TopicPartition {
    pub fn new(topic: impl Into<TopicName>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The longest topic name that Kafka accepts, in bytes.
pub const TOPIC_NAME_LENGTH_MAX: usize = 249;

/// Why a topic name is refused, or `None` when it is legal: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` and not `..`.
pub fn topic_name_problem(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a topic name must not be empty".to_owned());
    }
    if name == "." || name == ".." {
        return Some(format!("'{name}' is not allowed as a topic name"));
    }
    if name.len() > TOPIC_NAME_LENGTH_MAX {
        return Some(format!(
            "a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {}",
            name.len()
        ));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.chars().all(legal) {
        return Some(format!(
            "topic name '{name}' has a character other than ASCII letters, digits, '.', '_' and '-'"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_have_kafkas_text_form() {
        let id = TopicId(Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
        assert_eq!(id.to_string(), "AQIDBAUGBwgJCgsMDQ4PEA");
        assert_eq!(TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA"), Some(id));
        for bad in ["", "AQ", "AAAAAAAAAAAAAAAAAAAAAA", "AQIDBAUGBwgJCgsMDQ4PEA==", "not base64 at all!!!!!"]
        {
            assert_eq!(TopicId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn topic_names_follow_kafkas_rule() {
        for good in ["a", "A.b_c-9", &"x".repeat(249)] {
            assert_eq!(topic_name_problem(good), None, "{good}");
        }
        for bad in ["", ".", "..", "a b", "ü", "a/b", &"x".repeat(250)] {
            assert!(topic_name_problem(bad).is_some(), "{bad}");
        }
    }
}
