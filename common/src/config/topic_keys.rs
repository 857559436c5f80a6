//! The keys of a topic's configuration, and the broker's keys that stand in for those a topic does not set.

use super::keys::Kind::{self, Boolean, Double, Int, List, ListOf, Long, OneOf, Text};
use super::keys::{find_key, nearest};

/// A broker's key that gives a topic's key its default, and how many of the topic's units one of its units has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synonym {
    pub name: &'static str,
    pub factor: i64,
}

/// One key that a topic may set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopicKey {
    pub name: &'static str,
    pub kind: Kind,
    /// The strongest first. Without any, `default` is the default.
    pub synonyms: &'static [Synonym],
    pub default: &'static str,
    doc: &'static str,
}

impl TopicKey {
    /// The text for DescribeConfigs: a key with synonyms is described by the first of them.
    pub fn doc(&self) -> &'static str {
        match self.synonyms.first().and_then(|synonym| find_key(synonym.name)) {
            Some(key) if self.doc.is_empty() => key.doc,
            _ => self.doc,
        }
    }
}

const HOUR: i64 = 3_600_000;
const MINUTE: i64 = 60_000;

const fn as_is(name: &'static str) -> Synonym {
    Synonym { name, factor: 1 }
}

const fn times(factor: i64, name: &'static str) -> Synonym {
    Synonym { name, factor }
}

const fn key(name: &'static str, kind: Kind, synonyms: &'static [Synonym]) -> TopicKey {
    TopicKey { name, kind, synonyms, default: "", doc: "" }
}

const fn alone(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> TopicKey {
    TopicKey { name, kind, synonyms: &[], default, doc }
}

const LONG: i64 = i64::MAX;
const INT: i32 = i32::MAX;

/// All keys in the order of their names.
#[rustfmt::skip]
pub const TOPIC_KEYS: &[TopicKey] = &[
    key("cleanup.policy", ListOf(&["delete", "compact"]), &[as_is("log.cleanup.policy")]),
    key("compression.gzip.level", Int(-1, 9), &[as_is("compression.gzip.level")]),
    key("compression.lz4.level", Int(1, 17), &[as_is("compression.lz4.level")]),
    key("compression.type", OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), &[as_is("compression.type")]),
    key("compression.zstd.level", Int(-131_072, 22), &[as_is("compression.zstd.level")]),
    key("delete.retention.ms", Long(0, LONG), &[as_is("log.cleaner.delete.retention.ms")]),
    key("file.delete.delay.ms", Long(0, LONG), &[as_is("log.segment.delete.delay.ms")]),
    key("flush.messages", Long(1, LONG), &[as_is("log.flush.interval.messages")]),
    key("flush.ms", Long(0, LONG), &[as_is("log.flush.interval.ms"), as_is("log.flush.scheduler.interval.ms")]),
    alone("follower.replication.throttled.replicas", List, "", "Followers to throttle, as partition:broker,… or *."),
    key("index.interval.bytes", Int(0, INT), &[as_is("log.index.interval.bytes")]),
    alone("leader.replication.throttled.replicas", List, "", "Leaders to throttle, as partition:broker,… or *."),
    key("local.retention.bytes", Long(-2, LONG), &[as_is("log.local.retention.bytes")]),
    key("local.retention.ms", Long(-2, LONG), &[as_is("log.local.retention.ms")]),
    key("max.compaction.lag.ms", Long(1, LONG), &[as_is("log.cleaner.max.compaction.lag.ms")]),
    key("max.message.bytes", Int(0, INT), &[as_is("message.max.bytes")]),
    key("message.downconversion.enable", Boolean, &[as_is("log.message.downconversion.enable")]),
    key("message.format.version", Text, &[as_is("log.message.format.version")]),
    key("message.timestamp.after.max.ms", Long(0, LONG), &[as_is("log.message.timestamp.after.max.ms")]),
    key("message.timestamp.before.max.ms", Long(0, LONG), &[as_is("log.message.timestamp.before.max.ms")]),
    key("message.timestamp.difference.max.ms", Long(0, LONG), &[as_is("log.message.timestamp.difference.max.ms")]),
    key("message.timestamp.type", OneOf(&["CreateTime", "LogAppendTime"]), &[as_is("log.message.timestamp.type")]),
    key("min.cleanable.dirty.ratio", Double(0.0, 1.0), &[as_is("log.cleaner.min.cleanable.ratio")]),
    key("min.compaction.lag.ms", Long(0, LONG), &[as_is("log.cleaner.min.compaction.lag.ms")]),
    key("min.insync.replicas", Int(1, INT), &[as_is("min.insync.replicas")]),
    key("preallocate", Boolean, &[as_is("log.preallocate")]),
    alone("remote.log.copy.disable", Boolean, "false", "Tiered storage; accepted and ignored."),
    alone("remote.log.delete.on.disable", Boolean, "false", "Tiered storage; accepted and ignored."),
    alone("remote.storage.enable", OneOf(&["false"]), "false", "Tiered storage, which is not available."),
    key("retention.bytes", Long(-1, LONG), &[as_is("log.retention.bytes")]),
    key("retention.ms", Long(-1, LONG), &[as_is("log.retention.ms"), times(MINUTE, "log.retention.minutes"), times(HOUR, "log.retention.hours")]),
    key("segment.bytes", Int(14, INT), &[as_is("log.segment.bytes")]),
    key("segment.index.bytes", Int(4, INT), &[as_is("log.index.size.max.bytes")]),
    key("segment.jitter.ms", Long(0, LONG), &[as_is("log.roll.jitter.ms"), times(HOUR, "log.roll.jitter.hours")]),
    key("segment.ms", Long(1, LONG), &[as_is("log.roll.ms"), times(HOUR, "log.roll.hours")]),
    key("unclean.leader.election.enable", Boolean, &[as_is("unclean.leader.election.enable")]),
];

/// The topic key of this name.
pub fn find_topic_key(name: &str) -> Option<&'static TopicKey> {
    TOPIC_KEYS.iter().find(|key| key.name == name)
}

/// The topic key that a mistyped name resembles most, if any is near.
pub fn nearest_topic_key(name: &str) -> Option<&'static str> {
    nearest(name, TOPIC_KEYS.iter().map(|key| key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_key_has_a_default_of_its_kind_and_a_text() {
        assert!(TOPIC_KEYS.is_sorted_by_key(|key| key.name));
        for key in TOPIC_KEYS {
            assert!(!key.doc().is_empty(), "{}", key.name);
            for synonym in key.synonyms {
                let server = find_key(synonym.name).unwrap_or_else(|| panic!("{} is no key", synonym.name));
                assert!(synonym.factor != 1 || server.kind == key.kind, "{}", key.name);
            }
            let default = match key.synonyms.last() {
                Some(last) => {
                    find_key(last.name).unwrap().default.expect("the weakest synonym has a default")
                }
                None => key.default,
            };
            assert!(key.kind.check(default).is_ok(), "{}", key.name);
        }
    }
}
