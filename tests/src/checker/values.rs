//! Checks on single values: where they are, whether they are there, whether they may be there.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{History, Outcome, Step};
use super::{Statistics, Verdict, Violation};

/// Everything known of one value.
#[derive(Debug, Default)]
pub(super) struct Fact {
    /// The operation that wrote it, if it is recorded.
    pub(super) writer: Option<usize>,
    /// Whether it was announced before it was sent.
    announced: bool,
    /// Whether the operation that wrote it is a transaction.
    in_transaction: bool,
    outcome: Option<Outcome>,
    /// When the write ended, in nanoseconds.
    written: u64,
    /// Operations that read it, in the order they began.
    pub(super) readers: Vec<usize>,
    /// When the first read of it ended, in nanoseconds.
    first_read: Option<u64>,
    /// Key and offset: those acknowledged and those read.
    places: BTreeSet<(String, i64)>,
}

/// All values, and what is seen at the offsets of each key.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) values: BTreeMap<String, Fact>,
    /// Key → offset → values.
    pub(super) offsets: BTreeMap<String, BTreeMap<i64, BTreeSet<String>>>,
    /// Key → the highest offset that was read.
    highest_read: BTreeMap<String, i64>,
    /// Transactions that were committed for all the client knows, or may have been: operation → values.
    transactions: BTreeMap<usize, Vec<String>>,
    /// Values that their own transaction read.
    precommitted: Vec<String>,
}

impl Table {
    pub(super) fn of(history: &History) -> Self {
        let mut table = Self::default();
        for value in history.intents.keys() {
            table.values.entry(value.clone()).or_default().announced = true;
        }
        for (index, operation) in history.operations.iter().enumerate() {
            for step in &operation.steps {
                match step {
                    Step::Send { key, value, offset } => {
                        let fact = table.values.entry(value.clone()).or_default();
                        fact.writer = Some(index);
                        fact.outcome = Some(operation.outcome);
                        fact.written = operation.end;
                        fact.in_transaction = operation.transaction;
                        if let Some(offset) = offset.filter(|_| operation.outcome != Outcome::Fail) {
                            table.place(key, offset, value);
                        }
                        if operation.transaction && operation.outcome != Outcome::Fail {
                            table.transactions.entry(index).or_default().push(value.clone());
                        }
                    }
                    Step::Poll(read) => table.poll(index, operation.end, read),
                    Step::Seek(_) => {}
                }
            }
        }
        table.find_precommitted();
        table
    }

    fn place(&mut self, key: &str, offset: i64, value: &str) {
        let at = self.offsets.entry(key.to_owned()).or_default().entry(offset).or_default();
        at.insert(value.to_owned());
        self.values.entry(value.to_owned()).or_default().places.insert((key.to_owned(), offset));
    }

    fn poll(&mut self, index: usize, end: u64, read: &BTreeMap<String, Vec<(i64, String)>>) {
        for (key, records) in read {
            for (offset, value) in records {
                self.place(key, *offset, value);
                let highest = self.highest_read.entry(key.clone()).or_insert(*offset);
                *highest = (*highest).max(*offset);
                let fact = self.values.entry(value.clone()).or_default();
                fact.readers.push(index);
                fact.first_read = Some(fact.first_read.map_or(end, |first| first.min(end)));
            }
        }
    }

    fn find_precommitted(&mut self) {
        let own = self.values.iter().filter(|(_, fact)| {
            fact.in_transaction && fact.writer.is_some_and(|writer| fact.readers.contains(&writer))
        });
        self.precommitted = own.map(|(value, _)| value.clone()).collect();
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        for fact in self.values.values() {
            match fact.outcome {
                Some(Outcome::Ok) => statistics.acknowledged += 1,
                Some(Outcome::Fail) => statistics.failed += 1,
                Some(Outcome::Info) => statistics.unknown += 1,
                None if fact.announced => statistics.unknown += 1,
                None => {}
            }
            statistics.read += usize::from(!fact.readers.is_empty());
            if let (Some(Outcome::Ok), Some(read)) = (fact.outcome, fact.first_read) {
                let lag = read.saturating_sub(fact.written) / 1_000_000;
                statistics.lag_ms_max = statistics.lag_ms_max.max(lag);
            }
        }
        statistics
    }
}

pub(super) fn check(table: &Table, verdict: &mut Verdict) {
    for (key, offsets) in &table.offsets {
        for (offset, values) in offsets.iter().filter(|(_, values)| values.len() > 1) {
            let what = format!("{key} offset {offset} is {values:?}");
            verdict.add(Violation::InconsistentOffset, what);
        }
    }
    for (value, fact) in &table.values {
        check_value(table, value, fact, verdict);
    }
    for value in &table.precommitted {
        verdict
            .add(Violation::PrecommittedRead, format!("{value} was read by the transaction that wrote it"));
    }
    for values in table.transactions.values() {
        let (seen, unseen): (Vec<_>, Vec<_>) =
            values.iter().partition(|value| !table.values[*value].readers.is_empty());
        if !seen.is_empty() && !unseen.is_empty() {
            let what = format!("{seen:?} can be read, {unseen:?} of the same transaction cannot");
            verdict.add(Violation::TornTransaction, what);
        }
    }
}

fn check_value(table: &Table, value: &str, fact: &Fact, verdict: &mut Verdict) {
    if fact.places.len() > 1 {
        verdict.add(Violation::Duplicate, format!("{value} is at {:?}", fact.places));
    }
    let read = !fact.readers.is_empty();
    match fact.outcome {
        Some(Outcome::Fail) if read => {
            verdict.add(
                Violation::AbortedRead,
                format!("{value} was refused or aborted, and is at {:?}", fact.places),
            );
        }
        Some(Outcome::Ok) if !read => {
            let passed = fact.places.iter().find(|(key, offset)| table.highest_read.get(key) > Some(offset));
            let (violation, what) = match passed {
                Some((key, offset)) => {
                    (Violation::LostWrite, format!("{value} was acknowledged at {key} offset {offset}"))
                }
                None => (Violation::Unseen, format!("{value} was acknowledged ({:?})", fact.places)),
            };
            verdict.add(violation, what);
        }
        None if read && !fact.announced => {
            verdict.add(Violation::Phantom, format!("{value} at {:?} was never sent", fact.places));
        }
        _ => {}
    }
}
