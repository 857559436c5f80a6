//! The topic's node, which gives its name an id, and the id's entry, which remembers what the incarnation has begun.

use serde::{Deserialize, Serialize};

use super::InvalidZnode;
use crate::id::{TopicId, TopicName};
use crate::rule::{Rule, holds};

#[derive(Serialize, Deserialize)]
struct TopicJson {
    version: i32,
    topic_id: String,
}

/// Value of `/brokers/topics/[topic]`: `None` while the node is empty, as an admin creates it.
///
/// # Errors
/// Not empty and not `{"version":1,"topic_id":…}` with a readable id.
pub fn decode_topic(value: &[u8]) -> Result<Option<TopicId>, InvalidZnode> {
    const WHAT: &str = "the topic's node";
    if value.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let json: TopicJson = serde_json::from_slice(value).map_err(|error| {
        InvalidZnode::new(WHAT, format!("{error}; leave it empty, the controller fills in the topic id"))
    })?;
    let id = TopicId::parse(&json.topic_id)
        .ok_or_else(|| InvalidZnode::new(WHAT, format!("'{}' is not a topic id", json.topic_id)))?;
    Ok(Some(id))
}

pub fn encode_topic(id: TopicId) -> Vec<u8> {
    serde_json::to_vec(&TopicJson { version: 1, topic_id: id.to_string() }).expect("two plain fields")
}

/// The incarnation of a topic whose node gives no id any more: the one whose entry names the topic, if there is only
/// one (N3). `entries`: the children of `/brokers/topic_ids` with their data.
pub fn only_incarnation<'a>(
    topic: &TopicName,
    entries: impl IntoIterator<Item = (TopicId, &'a [u8])>,
) -> Option<TopicId> {
    if !holds(Rule::EmptiedTopicIsLeft) {
        return None;
    }
    let named = |data| TopicIdEntry::decode(data).is_ok_and(|entry| entry.topic == *topic);
    let mut of_topic = entries.into_iter().filter(|(_, data)| named(data)).map(|(id, _)| id);
    of_topic.next().filter(|_| of_topic.next().is_none())
}

/// Value of `/brokers/topic_ids/[topic_id]`: whose incarnation it is, and which partitions have had an ISR.
///
/// `started` holds ranges of partitions, both ends inclusive, ascending, not touching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicIdEntry {
    pub topic: TopicName,
    started: Vec<(i32, i32)>,
}

#[derive(Serialize, Deserialize)]
struct TopicIdJson {
    version: i32,
    topic: String,
    started: Vec<(i32, i32)>,
}

impl TopicIdEntry {
    pub fn new(topic: TopicName) -> Self {
        Self { topic, started: Vec::new() }
    }

    /// # Errors
    /// Not JSON of the documented shape, or a range that ends before it starts.
    pub fn decode(value: &[u8]) -> Result<Self, InvalidZnode> {
        const WHAT: &str = "the entry of the topic id";
        let json: TopicIdJson =
            serde_json::from_slice(value).map_err(|error| InvalidZnode::new(WHAT, error))?;
        let mut entry = Self::new(json.topic.into());
        for (first, last) in json.started {
            if first < 0 || last < first {
                return Err(InvalidZnode::new(
                    WHAT,
                    format!("[{first},{last}] is not a range of partitions"),
                ));
            }
            entry.started.push((first, last));
        }
        entry.merge();
        Ok(entry)
    }

    pub fn encode(&self) -> Vec<u8> {
        let json = TopicIdJson { version: 1, topic: self.topic.to_string(), started: self.started.clone() };
        serde_json::to_vec(&json).expect("three plain fields")
    }

    pub fn is_started(&self, partition: i32) -> bool {
        self.started.iter().any(|(first, last)| (*first..=*last).contains(&partition))
    }

    /// Marks a partition as one that has had an ISR. Never undone while the incarnation lives.
    pub fn start(&mut self, partition: i32) {
        if !self.is_started(partition) {
            self.started.push((partition, partition));
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.started.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(self.started.len());
        for (first, last) in self.started.drain(..) {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        self.started = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_node_is_empty_or_has_an_id() {
        let id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        let golden = br#"{"version":1,"topic_id":"AQIDBAUGBwgJCgsMDQ4PEA"}"#;
        assert_eq!(encode_topic(id), golden);
        assert_eq!(decode_topic(golden), Ok(Some(id)));
        assert_eq!(decode_topic(b""), Ok(None));
        assert_eq!(decode_topic(b" \n"), Ok(None));
        for bad in ["x", "{}", r#"{"version":1,"topic_id":"x"}"#] {
            assert!(decode_topic(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn started_partitions_are_kept_as_ranges() {
        let mut entry = TopicIdEntry::new("t".into());
        for partition in [4, 0, 2, 1, 9] {
            entry.start(partition);
        }
        let golden = br#"{"version":1,"topic":"t","started":[[0,2],[4,4],[9,9]]}"#;
        assert_eq!(String::from_utf8(entry.encode()).unwrap(), String::from_utf8_lossy(golden));
        assert_eq!(TopicIdEntry::decode(golden), Ok(entry.clone()));
        let started: Vec<i32> = (0..11).filter(|partition| entry.is_started(*partition)).collect();
        assert_eq!(started, [0, 1, 2, 4, 9]);
        assert!(TopicIdEntry::decode(br#"{"version":1,"topic":"t","started":[[3,1]]}"#).is_err());
    }
}
