//! Judges what readers can see, from the committed bytes alone. It knows nothing of coordinators.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::client::{INPUTS, RECORDS};
use super::log::{Place, Replicated};
use crate::coordinator::Producer;
use crate::log::{BatchHeader, HEADER_BYTES, Marker, Records};

/// A transaction of an application.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Application and run.
    owner: (usize, u32),
    producer: Producer,
    /// The application had a newer producer before this was begun.
    is_late: bool,
    /// Input, from and to which record.
    pub(super) read: (i32, i64, i64),
    /// What its application was told of its end.
    told: Option<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Referee {
    pub(super) attempts: Vec<Attempt>,
    holders: BTreeMap<(i64, i16), (usize, u32)>,
    /// The newest producer that each application was given.
    newest: BTreeMap<usize, (i64, i16)>,
    /// How far the group was at the last look, by input.
    committed: BTreeMap<i32, i64>,
    pub(super) violation: Option<String>,
}

/// What the log of a partition says of one transaction.
#[derive(Debug, Default)]
struct Found {
    records: Vec<String>,
    commits: Option<bool>,
}

/// Every transaction in a log by producer and number of its marker, with how it ended.
struct Scan {
    /// By attempt.
    found: BTreeMap<u32, Found>,
    /// Offsets that count, by input, in the order of the log.
    offsets: BTreeMap<i32, Vec<i64>>,
}

/// A transaction without a marker.
#[derive(Default)]
struct Open {
    attempts: BTreeSet<u32>,
    offsets: Vec<(i32, i64)>,
}

fn scan(place: Place, batches: &[Bytes]) -> Scan {
    let mut scan = Scan { found: BTreeMap::new(), offsets: BTreeMap::new() };
    // By producer: what its open transaction has written so far.
    let mut open: BTreeMap<i64, Open> = BTreeMap::new();
    for batch in batches {
        let header = BatchHeader::parse(batch).expect("committed batches are whole");
        let body = &batch[HEADER_BYTES..];
        if let Some(marker) = Marker::parse(&header, body) {
            let Some(Open { attempts, offsets }) = open.remove(&header.producer_id) else { continue };
            for attempt in attempts {
                let found = scan.found.entry(attempt).or_default();
                // A transaction that two markers end is torn: the second counts as the contrary of the first.
                found.commits = Some(found.commits.map_or(marker.commit, |before| before && marker.commit));
            }
            for (input, offset) in offsets.into_iter().filter(|_| marker.commit) {
                scan.offsets.entry(input).or_default().push(offset);
            }
            continue;
        }
        if !header.is_transactional() {
            continue;
        }
        let Open { attempts, offsets } = open.entry(header.producer_id).or_default();
        for record in Records::new(body, header.record_count) {
            let record = record.expect("committed batches are whole");
            if place == Place::Offsets {
                offsets.extend(committed_offset(record.key, record.value));
                continue;
            }
            let attempt = u32::from_be_bytes(record.key.expect("a key").try_into().expect("four bytes"));
            let value = String::from_utf8(record.value.expect("a value").to_vec()).expect("text");
            attempts.insert(attempt);
            scan.found.entry(attempt).or_default().records.push(value);
        }
    }
    scan
}

/// Input and offset of a record of `__consumer_offsets`, read by hand: version, group, topic, partition; then version, offset.
fn committed_offset(key: Option<&[u8]>, value: Option<&[u8]>) -> Option<(i32, i64)> {
    let (key, value) = (key?, value?);
    (i16::from_be_bytes(key[0..2].try_into().ok()?) == 1).then_some(())?;
    let partition = i32::from_be_bytes(key[key.len() - 4..].try_into().ok()?);
    Some((partition, i64::from_be_bytes(value[2..10].try_into().ok()?)))
}

impl Referee {
    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(super) fn begin(&mut self, owner: (usize, u32), producer: Producer, read: (i32, i64, i64)) -> usize {
        let is_late = self.newest.get(&owner.0).is_some_and(|newest| (producer.id, producer.epoch) < *newest);
        self.attempts.push(Attempt { owner, producer, is_late, read, told: None });
        self.attempts.len() - 1
    }

    /// T6: nobody else is that producer, and no older run of the application is one any more.
    pub(super) fn initialized(&mut self, owner: (usize, u32), producer: Producer) {
        let holder = *self.holders.entry((producer.id, producer.epoch)).or_insert(owner);
        if holder != owner {
            self.violate(format!("T6: {producer:?} is held by {holder:?} and by {owner:?}"));
        }
        let newest = self.newest.entry(owner.0).or_default();
        *newest = (*newest).max((producer.id, producer.epoch));
    }

    pub(super) fn told(&mut self, attempt: usize, commits: bool) {
        self.attempts[attempt].told = Some(commits);
    }

    /// Looks at everything that is committed. `is_over`: nothing may be open any more, and everything is read.
    pub(super) fn judge(&mut self, logs: &BTreeMap<Place, Replicated>, is_over: bool) {
        let mut outcomes: BTreeMap<u32, (bool, Place)> = BTreeMap::new();
        let mut visible: BTreeMap<String, u32> = BTreeMap::new();
        for (place, log) in logs.iter().filter(|(place, _)| **place != Place::Transactions) {
            let scan = scan(*place, &log.committed);
            for (attempt, found) in &scan.found {
                self.look_at_attempt(*attempt, found, *place, &mut outcomes, &mut visible);
            }
            if *place == Place::Offsets {
                self.look_at_offsets(&scan.offsets);
            }
        }
        self.look_at_told(&outcomes, &visible, is_over);
        if is_over {
            self.look_for_hanging(logs);
            self.look_at_everything(&visible);
        }
    }

    /// T5, when everything should be over.
    pub(super) fn look_for_hanging(&mut self, logs: &BTreeMap<Place, Replicated>) {
        for (place, log) in logs {
            if let Some(first) = scan_open(log.committed.iter()) {
                self.violate(format!("T5: a transaction hangs in {place:?} from {first} on"));
            }
        }
    }

    fn look_at_attempt(
        &mut self,
        attempt: u32,
        found: &Found,
        place: Place,
        outcomes: &mut BTreeMap<u32, (bool, Place)>,
        visible: &mut BTreeMap<String, u32>,
    ) {
        let Some(commits) = found.commits else { return };
        let (before, elsewhere) = *outcomes.entry(attempt).or_insert((commits, place));
        if before != commits {
            let told = &self.attempts[attempt as usize];
            let what =
                format!("T4: {told:?} ended with commit={commits} in {place:?}, but not in {elsewhere:?}");
            self.violate(what);
        }
        for value in found.records.iter().filter(|_| commits) {
            if let Some(other) = visible.insert(value.clone(), attempt) {
                let attempts = [other, attempt].map(|attempt| &self.attempts[attempt as usize]);
                let what = format!("a reader of committed records sees {value} twice: {attempts:?}");
                self.violate(what);
            }
        }
    }

    /// G1, G2: how far the group is never goes back.
    fn look_at_offsets(&mut self, offsets: &BTreeMap<i32, Vec<i64>>) {
        for (input, offsets) in offsets {
            if let Some(pair) = offsets.windows(2).find(|pair| pair[1] < pair[0]) {
                self.violate(format!(
                    "the offset of input {input} goes back from {} to {}",
                    pair[0], pair[1]
                ));
            }
            self.committed.insert(*input, offsets.last().copied().unwrap_or(0));
        }
    }

    fn look_at_told(
        &mut self,
        outcomes: &BTreeMap<u32, (bool, Place)>,
        visible: &BTreeMap<String, u32>,
        is_over: bool,
    ) {
        let mut wrong = Vec::new();
        for (number, attempt) in (0..).zip(&self.attempts) {
            let outcome = outcomes.get(&number).map(|(commits, _)| *commits);
            if let (Some(told), Some(outcome)) = (attempt.told, outcome)
                && told != outcome
            {
                wrong.push(format!("T4: {attempt:?} was told commit={told}, but it is {outcome}"));
            }
            if attempt.is_late && outcome == Some(true) {
                let Attempt { owner, producer, .. } = attempt;
                wrong.push(format!("T6: {owner:?} as {producer:?} commits a transaction that it began when it had been replaced"));
            }
            let (input, from, to) = attempt.read;
            let is_whole = || (from..to).all(|at| visible.get(&format!("{input}:{at}")) == Some(&number));
            let is_committed = attempt.told == Some(true) || outcome == Some(true);
            if is_over && is_committed && !is_whole() {
                wrong.push(format!("T4: of {attempt:?}, which is committed, records are missing"));
            }
        }
        wrong.into_iter().for_each(|what| self.violate(what));
    }

    /// In the end every record of the input was dealt with once, and the group is at the end.
    fn look_at_everything(&mut self, visible: &BTreeMap<String, u32>) {
        for input in 0..INPUTS {
            let committed = self.committed.get(&input).copied().unwrap_or(0);
            if committed != RECORDS {
                self.violate(format!("G1: the group is at {committed} of input {input}, and rests"));
            }
            let missing = (0..RECORDS).find(|at| !visible.contains_key(&format!("{input}:{at}")));
            if let Some(at) = missing {
                self.violate(format!("{input}:{at} is behind the group, but no reader sees it"));
            }
        }
    }

    /// T3 at one leader, whatever it believes.
    pub(super) fn look_at_stable_offset(&mut self, place: Place, log: &Replicated) {
        let lead = log.current();
        let stable = lead.last_stable_offset();
        let open = scan_open(lead.committed());
        if lead.high_watermark < stable || open.is_some_and(|first| first < stable) {
            let high_watermark = lead.high_watermark;
            self.violate(format!(
                "T3: the stable offset of {place:?} is {stable}, the high watermark {high_watermark}, and a transaction is \
                 open from {open:?} on"
            ));
        }
    }

    pub(super) fn summary(&self) -> String {
        let committed = self.attempts.iter().filter(|attempt| attempt.told == Some(true)).count();
        format!(
            "{} transactions, {committed} told as committed, offsets {:?}",
            self.attempts.len(),
            self.committed
        )
    }

    /// Transactions that their application knows to be committed.
    pub(super) fn commits(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.told == Some(true)).count()
    }
}

/// The first record of the oldest transaction without a marker.
fn scan_open<'a>(batches: impl Iterator<Item = &'a Bytes>) -> Option<i64> {
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    for batch in batches {
        let header = BatchHeader::parse(batch).expect("batches are whole");
        if header.is_control() {
            open.remove(&header.producer_id);
        } else if header.is_transactional() {
            open.entry(header.producer_id).or_insert(header.base_offset);
        }
    }
    open.values().copied().min()
}
