//! An independent judge of what clients saw: it knows nothing of brokers, only what processes asked, when, and what
//! they were answered. Reads recorded histories and names every broken promise, as in section 8 of the invariants
//! ("Black-box history checks"); answers are classified as its section 9 says.
//!
//! Reading order: `history` (what is recorded), then the checks: `values` (offsets, loss, duplicates, aborted reads),
//! `order` (polls and sends of one process), `cycles` (who could have seen whom).

mod cycles;
mod history;
mod order;
mod values;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use history::{History, Operation, Outcome, Step};

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// Two values were seen at one offset of a partition.
    InconsistentOffset,
    /// One value was seen at more than one offset.
    Duplicate,
    /// An acknowledged value lies below what somebody read, and nobody read it.
    LostWrite,
    /// An acknowledged value was not read by anybody, though everything was read at the end.
    Unseen,
    /// A value was read that nobody sent.
    Phantom,
    /// A value of a send or a transaction that definitely did not happen was read.
    AbortedRead,
    /// A transaction read what it had itself written.
    PrecommittedRead,
    /// Of one transaction some values can be read, others cannot.
    TornTransaction,
    /// Successive polls of one process jumped over a record that is there.
    PollSkip,
    /// A poll of a process went back.
    NonMonotonicPoll,
    /// A later send of one process got a lower offset.
    NonMonotonicSend,
    /// Somebody saw what was written only because of what they did, or after they were done.
    Cycle,
}

/// One instance of a broken promise, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub violation: Violation,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.violation, self.what)
    }
}

/// What a history comes to.
#[derive(Debug, Default)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    pub statistics: Statistics,
}

/// What was judged: a history in which nothing happened proves nothing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Values acknowledged, alone or in a committed transaction.
    pub acknowledged: usize,
    /// Values whose fate the client does not know.
    pub unknown: usize,
    /// Values that definitely were not written.
    pub failed: usize,
    /// Different values read.
    pub read: usize,
    /// Longest time between an acknowledgement and the end of the first poll that saw the value, in milliseconds.
    pub lag_ms_max: u64,
}

impl Verdict {
    fn add(&mut self, violation: Violation, what: String) {
        self.findings.push(Finding { violation, what });
    }

    /// How often each promise was broken.
    pub fn counts(&self) -> BTreeMap<Violation, usize> {
        let mut counts = BTreeMap::new();
        for finding in &self.findings {
            *counts.entry(finding.violation).or_insert(0) += 1;
        }
        counts
    }

    /// # Errors
    /// There are findings; the error names the number of each kind and the first ones in words.
    pub fn into_result(self) -> anyhow::Result<Statistics> {
        const SHOWN: usize = 10;
        if self.findings.is_empty() {
            return Ok(self.statistics);
        }
        let counts = self.counts();
        let shown: Vec<String> = self.findings.iter().take(SHOWN).map(ToString::to_string).collect();
        anyhow::bail!("{counts:?}; the first:\n{}", shown.join("\n"))
    }
}

/// Judges a history that ended with a read of everything from the start.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let table = values::Table::of(history);
    values::check(&table, &mut verdict);
    order::check(history, &table, &mut verdict);
    cycles::check(history, &table, &mut verdict);
    verdict.statistics = table.statistics();
    verdict
}
