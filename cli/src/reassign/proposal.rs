//! The file of kafka-reassign-partitions: which partition shall have which replicas.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use zurau_common::id::TopicPartition;

use crate::admin::usage;

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proposal {
    version: i32,
    pub(super) partitions: Vec<Wanted>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) topic: String,
    pub(super) partition: i32,
    /// The first one is preferred to lead.
    pub(super) replicas: Vec<i32>,
    /// Moves between directories of a broker are not served: any other word than `any` is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    log_dirs: Vec<String>,
}

impl Wanted {
    pub(super) fn new(topic: &str, partition: i32, replicas: Vec<i32>) -> Self {
        Self { topic: topic.to_owned(), partition, replicas, log_dirs: Vec::new() }
    }

    pub(super) fn id(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), self.partition)
    }
}

impl Proposal {
    pub(super) fn new(partitions: Vec<Wanted>) -> Self {
        Self { version: 1, partitions }
    }

    /// Reads a file, or standard input for `-`.
    ///
    /// # Errors
    /// It cannot be read, or says something else than replicas of distinct partitions.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut text = String::new();
        if path == Path::new("-") {
            std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        } else {
            text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        }
        Self::parse(&text).map_err(|why| usage(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let proposal: Self = serde_json::from_str(text).map_err(|error| {
            format!(
                "{error}; wanted is {{\"version\":1,\"partitions\":[{{\"topic\":\"t\",\"partition\":0,\"replicas\":[1,2]}}]}}"
            )
        })?;
        if proposal.version != 1 {
            return Err(format!("version {} is unknown, 1 is known", proposal.version));
        }
        if proposal.partitions.is_empty() {
            return Err("it names no partition".to_owned());
        }
        let mut seen = BTreeSet::new();
        for wanted in &proposal.partitions {
            let distinct: BTreeSet<&i32> = wanted.replicas.iter().collect();
            if wanted.replicas.is_empty() || distinct.len() != wanted.replicas.len() {
                return Err(format!("{}: the replicas must be distinct brokers, at least one", wanted.id()));
            }
            if !seen.insert(wanted.id()) {
                return Err(format!("{} stands twice", wanted.id()));
            }
            if let Some(directory) = wanted.log_dirs.iter().find(|directory| *directory != "any") {
                return Err(format!("{}: log_dirs can only be \"any\", not {directory:?}", wanted.id()));
            }
        }
        Ok(proposal)
    }

    /// Names of the topics, each once.
    pub(super) fn topics(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.partitions.iter().map(|wanted| &wanted.topic).collect();
        names.into_iter().cloned().collect()
    }
}

#[derive(Deserialize)]
struct TopicsToMove {
    topics: Vec<TopicToMove>,
}

#[derive(Deserialize)]
struct TopicToMove {
    topic: String,
}

/// Reads a file of `--topics-to-move-json-file`.
///
/// # Errors
/// It cannot be read or is of another shape.
pub(super) fn read_topics_to_move(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let parsed: TopicsToMove = serde_json::from_str(&text).map_err(|error| {
        usage(format!(
            "{}: {error}; wanted is {{\"topics\":[{{\"topic\":\"t\"}}],\"version\":1}}",
            path.display()
        ))
    })?;
    Ok(parsed.topics.into_iter().map(|topic| topic.topic).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_files_are_read_and_written() {
        let text = r#"{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1],"log_dirs":["any","any"]}]}"#;
        let proposal = Proposal::parse(text).unwrap();
        assert_eq!(proposal.partitions[0].replicas, [2, 1]);
        let own = Proposal::new(vec![Wanted::new("t", 3, vec![1])]);
        let written = serde_json::to_string(&own).unwrap();
        assert_eq!(written, r#"{"version":1,"partitions":[{"topic":"t","partition":3,"replicas":[1]}]}"#);
        assert_eq!(Proposal::parse(&written), Ok(own));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused() {
        let partition = |text: &str| format!(r#"{{"version":1,"partitions":[{text}]}}"#);
        for (text, why) in [
            ("x".to_owned(), "wanted is"),
            (partition(""), "no partition"),
            (partition(r#"{"topic":"t","partition":0,"replicas":[]}"#), "at least one"),
            (partition(r#"{"topic":"t","partition":0,"replicas":[1,1]}"#), "distinct"),
            (partition(r#"{"topic":"t","partition":0,"replicas":[1],"log_dirs":["/d"]}"#), "/d"),
            (
                partition(
                    r#"{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}"#,
                ),
                "twice",
            ),
            (r#"{"version":2,"partitions":[]}"#.to_owned(), "version 2"),
        ] {
            let error = Proposal::parse(&text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
