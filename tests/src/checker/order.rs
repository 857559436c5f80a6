//! Checks on the order in which one process sees and writes the records of a partition.

use std::collections::BTreeMap;

use super::history::{History, Operation, Outcome, Step};
use super::values::Table;
use super::{Verdict, Violation};

/// Where a process is in each key it reads: the last offset it saw.
type Positions<'a> = BTreeMap<&'a str, i64>;

pub(super) fn check(history: &History, table: &Table, verdict: &mut Verdict) {
    let mut reading: BTreeMap<&str, Positions<'_>> = BTreeMap::new();
    let mut writing: BTreeMap<&str, Positions<'_>> = BTreeMap::new();
    for operation in &history.operations {
        let positions = reading.entry(&operation.process).or_default();
        for step in &operation.steps {
            match step {
                Step::Seek(_) => positions.clear(),
                Step::Poll(read) => {
                    for (key, records) in read {
                        for (offset, _) in records {
                            let before = positions.insert(key, *offset);
                            check_step(table, operation, key, before, *offset, verdict);
                        }
                    }
                }
                Step::Send { key, offset: Some(offset), .. } if operation.outcome != Outcome::Fail => {
                    let sent = writing.entry(&operation.process).or_default();
                    check_send(operation, sent, key, *offset, verdict);
                }
                Step::Send { .. } => {}
            }
        }
        if operation.transaction && operation.outcome != Outcome::Ok {
            // Its reads are given up with it: the process starts again from what is committed.
            positions.clear();
        }
    }
}

fn check_step(
    table: &Table,
    operation: &Operation,
    key: &str,
    before: Option<i64>,
    offset: i64,
    verdict: &mut Verdict,
) {
    let Some(before) = before else { return };
    let process = &operation.process;
    if offset <= before {
        let what = format!("{process} read offset {offset} of {key} after {before}");
        verdict.add(Violation::NonMonotonicPoll, what);
        return;
    }
    // Only what somebody read counts as being there: markers and aborted records take offsets too.
    let skipped = table.offsets.get(key).and_then(|offsets| {
        let between = offsets.range(before + 1..offset);
        between.flat_map(|(_, values)| values).find(|value| !table.values[*value].readers.is_empty())
    });
    if let Some(value) = skipped {
        let what = format!("{process} read offset {offset} of {key} after {before}, without {value}");
        verdict.add(Violation::PollSkip, what);
    }
}

fn check_send<'a>(
    operation: &'a Operation,
    sent: &mut Positions<'a>,
    key: &'a str,
    offset: i64,
    verdict: &mut Verdict,
) {
    let before = sent.insert(key, offset);
    if let Some(before) = before.filter(|before| offset < *before) {
        let what = format!("{} wrote at offset {offset} of {key} after {before}", operation.process);
        verdict.add(Violation::NonMonotonicSend, what);
    }
}
