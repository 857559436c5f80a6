//! `/admin/preferred_replica_election`: the partitions that shall be led by their preferred replica, as Kafka writes
//! them.

use serde::{Deserialize, Serialize};

use super::InvalidZnode;
use crate::id::TopicPartition;

#[derive(Deserialize)]
struct ElectionJson {
    partitions: Vec<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct ElectionEntry {
    topic: String,
    partition: i32,
}

#[derive(Serialize)]
struct WrittenElection {
    version: i32,
    partitions: Vec<ElectionEntry>,
}

/// `{"version":1,"partitions":[{"topic":"t","partition":0}]}`; `None`: an empty node asks for all partitions. Entries
/// that make no sense do not spoil the others.
///
/// # Errors
/// Not empty and not JSON with a list of partitions.
pub fn decode_election(value: &[u8]) -> Result<Option<Vec<TopicPartition>>, InvalidZnode> {
    if value.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let json: ElectionJson = serde_json::from_slice(value).map_err(|error| {
        let example = r#"{"version":1,"partitions":[{"topic":"t","partition":0}]}"#;
        InvalidZnode::new("the preferred replica election", format!("{error}; write {example}"))
    })?;
    let entries = json.partitions.into_iter().filter_map(|entry| serde_json::from_value(entry).ok());
    Ok(Some(entries.map(|entry: ElectionEntry| TopicPartition::new(entry.topic, entry.partition)).collect()))
}

pub fn encode_election(partitions: &[TopicPartition]) -> Vec<u8> {
    let entries = partitions
        .iter()
        .map(|tp| ElectionEntry { topic: tp.topic.to_string(), partition: tp.partition })
        .collect();
    serde_json::to_vec(&WrittenElection { version: 1, partitions: entries }).expect("two plain fields")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctl_17_elections_are_read_forgivingly() {
        let json =
            r#"{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":"x"},5]}"#;
        assert_eq!(decode_election(json.as_bytes()), Ok(Some(vec![TopicPartition::new("t", 0)])));
        assert_eq!(decode_election(b""), Ok(None));
        for bad in ["x", "{}", "[]", "{\"partitions\":5}"] {
            assert!(decode_election(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn elections_have_a_golden_form() {
        let partitions = vec![TopicPartition::new("t", 0), TopicPartition::new("u", 7)];
        let golden =
            br#"{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":7}]}"#;
        assert_eq!(encode_election(&partitions), golden);
        assert_eq!(decode_election(golden), Ok(Some(partitions)));
    }
}
