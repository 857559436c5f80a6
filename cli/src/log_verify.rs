//! The checks of `zurau log dump --verify`: batches against themselves, indexes against the log. Pure but for reading
//! the log's headers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use zurau_broker::log::AbortedTransaction;
use zurau_broker::log::inspect::{BatchReader, InspectedBatch};

/// What the checks need of the batches of a log.
#[derive(Debug, Default)]
pub(crate) struct LogFacts {
    /// Position to base offset.
    base_offsets: BTreeMap<u64, i64>,
    /// Last offset to the largest timestamp up to there.
    largest_timestamps: BTreeMap<i64, i64>,
    /// Offset and producer of abort markers.
    aborts: BTreeSet<(i64, i64)>,
}

impl LogFacts {
    /// Reads a log up to the first bytes that are no batch.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let mut facts = Self::default();
        for batch in BatchReader::open(path).map_err(|error| error.to_string())? {
            match batch.map_err(|error| error.to_string())? {
                Ok(batch) => facts.add(&batch),
                Err(_) => break,
            }
        }
        Ok(facts)
    }

    pub(crate) fn add(&mut self, batch: &InspectedBatch) {
        let header = &batch.header;
        let largest = self.largest_timestamps.last_key_value().map_or(-1, |(_, largest)| *largest);
        self.base_offsets.insert(batch.position, header.base_offset);
        self.largest_timestamps.insert(header.last_offset(), largest.max(header.max_timestamp));
        if batch.marker().is_some_and(|marker| !marker.commit) {
            self.aborts.insert((header.base_offset, header.producer_id));
        }
    }

    fn end(&self) -> Option<i64> {
        self.largest_timestamps.last_key_value().map(|(last, _)| *last)
    }
}

/// What is wrong with a batch whose CRC is right; `facts`: of the batches before it.
pub(crate) fn verify_batch(path: &Path, facts: &LogFacts, batch: &InspectedBatch) -> Vec<String> {
    let header = &batch.header;
    let mut problems = Vec::new();
    let mut problem = |reason: String| problems.push(format!("batch at byte {}: {reason}", batch.position));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let segment_base = name.split('.').next().and_then(|digits| digits.parse::<i64>().ok());
    let expected = facts.end().map_or(segment_base, |end| Some(end + 1));
    if expected.is_some_and(|expected| header.base_offset < expected) {
        problem(format!("offset {} where {} or more must follow", header.base_offset, expected.unwrap_or(0)));
    }
    if segment_base.is_some_and(|base| header.last_offset() - base > i64::from(i32::MAX)) {
        problem(format!("offset {} is too far from the segment's base for an index", header.last_offset()));
    }
    match batch.records() {
        Err(reason) => problem(reason),
        Ok(records) => {
            let mut next = header.base_offset;
            for record in records {
                if record.offset < next || record.offset > header.last_offset() {
                    problem(format!("record offset {} is out of order or range", record.offset));
                }
                next = record.offset.saturating_add(1);
            }
        }
    }
    problems
}

/// Every entry points at the start of a batch, and names the last offset of it or of a later batch.
pub(crate) fn verify_offset_index(facts: &LogFacts, entries: &[(i64, u32)]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, (offset, position)) in entries.iter().enumerate() {
        match facts.base_offsets.get(&u64::from(*position)) {
            None => problems.push(format!("entry {index}: no batch begins at byte {position}")),
            Some(base) if base > offset => {
                problems.push(format!(
                    "entry {index}: offset {offset} is below {base}, which begins at byte {position}"
                ));
            }
            Some(_) if !facts.largest_timestamps.contains_key(offset) => {
                problems.push(format!("entry {index}: no batch ends at offset {offset}"));
            }
            Some(_) => {}
        }
    }
    if !entries.is_sorted_by(|before, after| before.0 < after.0 && before.1 < after.1) {
        problems.push("entries are not in ascending order".to_owned());
    }
    problems
}

/// No record up to the offset of an entry is younger than the entry says, and some record is that young.
pub(crate) fn verify_time_index(facts: &LogFacts, entries: &[(i64, i64)]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, (timestamp, offset)) in entries.iter().enumerate() {
        let up_to =
            facts.largest_timestamps.range(..=*offset).next_back().map_or(-1, |(_, largest)| *largest);
        let with = facts.largest_timestamps.range(*offset..).next().map(|(_, largest)| *largest);
        if up_to > *timestamp {
            problems.push(format!("entry {index}: a record up to {offset} has {up_to}, above {timestamp}"));
        }
        if with.is_none_or(|with| with < *timestamp) {
            problems
                .push(format!("entry {index}: no record up to offset {offset} has timestamp {timestamp}"));
        }
    }
    if !entries.is_sorted_by(|before, after| before.0 < after.0 && before.1 <= after.1) {
        problems.push("entries are not in ascending order".to_owned());
    }
    problems
}

/// Every entry ends at an abort marker of its producer.
pub(crate) fn verify_transactions(facts: &LogFacts, entries: &[AbortedTransaction]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if !facts.aborts.contains(&(entry.last_offset, entry.producer_id)) {
            problems.push(format!(
                "entry {index}: no abort marker of producer {} at offset {}",
                entry.producer_id, entry.last_offset
            ));
        }
        if entry.first_offset > entry.last_offset {
            problems.push(format!("entry {index}: it ends before it begins"));
        }
    }
    if !entries.is_sorted_by(|before, after| before.last_offset < after.last_offset) {
        problems.push("entries are not in ascending order".to_owned());
    }
    problems
}
