//! Kafka's text checkpoints: a version line, a count line, then one entry a line.
//!
//! Pure. A damaged file is an error value: the caller warns and falls back to "assume nothing" (LOG-06).

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;
use zurau_common::id::TopicPartition;

const VERSION: &str = "0";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum CheckpointError {
    #[error("the file is not text")]
    NotText,
    #[error("version {0:?} is not known (only 0)")]
    Version(String),
    #[error("the count line is missing or not a number: {0:?}")]
    Count(String),
    #[error("{announced} entries announced, {found} found")]
    Length { announced: usize, found: usize },
    #[error("entry {0:?} is malformed or out of order")]
    Entry(String),
}

pub(crate) fn encode(lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.collect();
    let mut text = format!("{VERSION}\n{}\n", lines.len());
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The entry lines of a checkpoint, as many as its count line says.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<&str>, CheckpointError> {
    let text = std::str::from_utf8(text).map_err(|_| CheckpointError::NotText)?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default().trim();
    if version != VERSION {
        return Err(CheckpointError::Version(version.to_owned()));
    }
    let count = lines.next().unwrap_or_default().trim();
    let announced: usize = count.parse().map_err(|_| CheckpointError::Count(count.to_owned()))?;
    let entries: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    if entries.len() != announced {
        return Err(CheckpointError::Length { announced, found: entries.len() });
    }
    Ok(entries)
}

/// Reads entries that begin with a topic and a partition; negative or repeated ones make the checkpoint damaged. `value`
/// takes the words behind them.
pub(super) fn decode_by_partition<V>(
    text: &[u8],
    value: impl Fn(&mut dyn Iterator<Item = &str>) -> Option<V>,
) -> Result<BTreeMap<TopicPartition, V>, CheckpointError> {
    let mut entries = BTreeMap::new();
    for line in decode(text)? {
        let mut words = line.split_whitespace();
        let entry = (|| {
            let topic = words.next()?;
            let partition = number(&mut words)?;
            let value = value(&mut words)?;
            words.next().is_none().then(|| (TopicPartition::new(topic, partition), value))
        })();
        let Some((key, value)) = entry else { return Err(CheckpointError::Entry(line.to_owned())) };
        if entries.insert(key, value).is_some() {
            return Err(CheckpointError::Entry(line.to_owned()));
        }
    }
    Ok(entries)
}

/// The next word as a number that is not negative.
pub(super) fn number<T: FromStr + PartialOrd + Default>(words: &mut dyn Iterator<Item = &str>) -> Option<T> {
    words.next()?.parse().ok().filter(|number| T::default() <= *number)
}

/// Text of a "topic partition offset" checkpoint.
pub fn encode_offsets(offsets: &BTreeMap<TopicPartition, i64>) -> String {
    encode(offsets.iter().map(|(key, offset)| format!("{} {} {offset}", key.topic, key.partition)))
}

/// Reads a "topic partition offset" checkpoint; negative or repeated entries make it damaged.
pub fn decode_offsets(text: &[u8]) -> Result<BTreeMap<TopicPartition, i64>, CheckpointError> {
    decode_by_partition(text, |words| number(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kafkas() {
        let offsets = BTreeMap::from([
            (TopicPartition::new("a-b", 0), 5),
            (TopicPartition::new("a-b", 10), 0),
            (TopicPartition::new("z", 1), i64::MAX),
        ]);
        let text = encode_offsets(&offsets);
        assert_eq!(text, "0\n3\na-b 0 5\na-b 10 0\nz 1 9223372036854775807\n");
        assert_eq!(decode_offsets(text.as_bytes()).unwrap(), offsets);
    }

    #[test]
    fn damaged_text_is_refused() {
        for text in [
            "",
            "1\n0\n",
            "0\n",
            "0\nx\n",
            "0\n1\n",
            "0\n1\nt 0 1\nt 1 1\n",
            "0\n1\nt 0 -1\n",
            "0\n1\nt -1 0\n",
            "0\n1\nt 0\n",
            "0\n1\nt 0 1 2\n",
            "0\n2\nt 0 1\nt 0 2\n",
            "0\n-1\n",
            "garbage",
        ] {
            assert!(decode_offsets(text.as_bytes()).is_err(), "{text:?}");
        }
        assert_eq!(decode_offsets(&[0xff, 0xfe]), Err(CheckpointError::NotText));
    }
}
