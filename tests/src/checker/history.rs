//! What client processes record, one JSON object a line.
//!
//! A line has `process`, `start` and `end` (nanoseconds, one clock for all processes), `outcome` (`ok`, `fail`, `info`)
//! and `steps`, a list of `{"send": {"key", "value", "offset"}}`, `{"poll": {"key": [[offset, value], …]}}` and
//! `{"seek": true}` (the positions of the process are given up: an assignment, a rebalance). `transaction` says that the
//! steps stand or fall together. A value that is about to be sent is announced by a line
//! `{"process", "intent": value, "key"}`, so that a process that dies leaves its unanswered values known.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// How an operation ended, as its client can know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// Definitely not done.
    Fail,
    /// Done or not.
    Info,
}

/// One request of a process and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    pub process: String,
    /// Nanoseconds.
    pub start: u64,
    /// Nanoseconds, not before `start`.
    pub end: u64,
    pub outcome: Outcome,
    /// The steps become visible together or not at all.
    #[serde(default)]
    pub transaction: bool,
    pub steps: Vec<Step>,
}

/// A part of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Step {
    Send {
        /// Topic and partition.
        key: String,
        value: String,
        /// Where the broker says it put it, if it said so.
        offset: Option<i64>,
    },
    /// What was read of each key, in the order it came.
    Poll(BTreeMap<String, Vec<(i64, String)>>),
    /// From here on the process reads from elsewhere.
    Seek(bool),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Intent {
    process: String,
    intent: String,
    key: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Intent(Intent),
    Operation(Operation),
}

/// All that was recorded: operations in the order in which they began, and values about to be sent.
#[derive(Debug, Default)]
pub struct History {
    pub(crate) operations: Vec<Operation>,
    /// Value → (key, process).
    pub(crate) intents: BTreeMap<String, (String, String)>,
}

impl History {
    /// A history of these operations.
    pub fn new(operations: Vec<Operation>) -> Self {
        let mut history = Self { operations, intents: BTreeMap::new() };
        history.sort();
        history
    }

    /// Adds the complete lines of a file; a last line without an end belongs to a process that was killed.
    ///
    /// # Errors
    /// The file cannot be read, or a line has another shape.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.lines() {
            let parsed = serde_json::from_str(line);
            match parsed.with_context(|| format!("{}: the line {line}", path.display()))? {
                Line::Intent(Intent { process, intent, key }) => {
                    self.intents.insert(intent, (key, process));
                }
                Line::Operation(operation) => self.operations.push(operation),
            }
        }
        self.sort();
        Ok(())
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Every value that was polled, in the order it came.
    pub fn polled(&self) -> Vec<String> {
        let steps = self.operations.iter().flat_map(|operation| &operation.steps);
        let polls = steps.filter_map(|step| if let Step::Poll(read) = step { Some(read) } else { None });
        polls.flat_map(|read| read.values().flatten().map(|(_, value)| value.clone())).collect()
    }

    fn sort(&mut self) {
        // Stable: what one process records at one instant stays in its order.
        self.operations.sort_by_key(|operation| operation.start);
    }
}
