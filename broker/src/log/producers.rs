//! What the log knows of each idempotent producer: its last batches, its epoch, its open transaction.
//!
//! Pure. State at offset N is a function of the records below N (T2), on leaders and followers alike; only a leader
//! refuses (TXN-04). Changes come after the bytes are in the log (TXN-06). Rules: KIP-98, TXN-03, TXN-05, TXN-07, D9.

use std::collections::{BTreeMap, HashMap};

use zurau_common::rule::{Rule, holds};

use super::batch::{BatchHeader, NO_TIMESTAMP, add_sequence};
use super::error::AppendError;
use super::inspect::InspectedProducer;
use super::marker::Marker;
use super::turned_away::TurnedAway;
use super::validate::AppendOrigin;
use super::verification::{Verification, Verifications};

/// Batches remembered per producer: as many as an idempotent producer may have in flight.
const BATCHES_MAX: usize = 5;

/// A stored batch, as much as a retry needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    pub(crate) last_sequence: i32,
    pub(crate) last_offset: i64,
    pub(crate) offset_delta: i32,
    pub(crate) timestamp: i64,
}

impl StoredBatch {
    pub(crate) fn first_offset(&self) -> i64 {
        self.last_offset - i64::from(self.offset_delta)
    }

    fn first_sequence(&self) -> i32 {
        add_sequence(self.last_sequence, -self.offset_delta)
    }
}

/// A transaction that a marker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedTransaction {
    pub(crate) producer_id: i64,
    pub(crate) first_offset: i64,
    /// Offset of the marker.
    pub(crate) last_offset: i64,
    pub(crate) aborted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerEntry {
    /// -1 before the first batch.
    pub(crate) producer_epoch: i16,
    pub(crate) coordinator_epoch: i32,
    pub(crate) last_timestamp: i64,
    pub(crate) transaction_first_offset: Option<i64>,
    /// Oldest first; only of the current epoch.
    batches: [StoredBatch; BATCHES_MAX],
    count: u8,
}

impl ProducerEntry {
    const EMPTY: Self = Self {
        producer_epoch: -1,
        coordinator_epoch: -1,
        last_timestamp: NO_TIMESTAMP,
        transaction_first_offset: None,
        batches: [StoredBatch { last_sequence: 0, last_offset: 0, offset_delta: 0, timestamp: 0 };
            BATCHES_MAX],
        count: 0,
    };

    pub(crate) fn batches(&self) -> &[StoredBatch] {
        &self.batches[..usize::from(self.count)]
    }

    fn last_batch(&self) -> Option<&StoredBatch> {
        self.batches().last()
    }

    fn push(&mut self, batch: StoredBatch) {
        if usize::from(self.count) == BATCHES_MAX {
            self.batches.rotate_left(1);
            self.batches[BATCHES_MAX - 1] = batch;
        } else {
            self.batches[usize::from(self.count)] = batch;
            self.count += 1;
        }
    }

    fn set_epoch(&mut self, producer_epoch: i16) {
        if self.producer_epoch != producer_epoch {
            self.producer_epoch = producer_epoch;
            self.count = 0;
        }
    }

    /// Takes a data batch in, whatever its sequence.
    fn adopt(&mut self, header: &BatchHeader) {
        self.set_epoch(header.producer_epoch);
        self.push(StoredBatch {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        });
        self.last_timestamp = header.max_timestamp;
        if header.is_transactional() && self.transaction_first_offset.is_none() {
            self.transaction_first_offset = Some(header.base_offset);
        }
    }

    /// The stored batch that `header` repeats.
    fn duplicate_of(&self, header: &BatchHeader) -> Option<StoredBatch> {
        if header.producer_epoch != self.producer_epoch || !holds(Rule::BatchesAreStoredOnce) {
            return None;
        }
        let (first, last) = (header.base_sequence, header.last_sequence());
        let same = |stored: &&StoredBatch| stored.first_sequence() == first && stored.last_sequence == last;
        self.batches().iter().find(same).copied()
    }

    fn check_data(&self, header: &BatchHeader, admission: &Admission<'_>) -> Result<(), AppendError> {
        if header.is_transactional() && !self.is_open_in(header.producer_epoch) {
            admission.verifications.check(header, admission.verification)?;
        }
        self.check_epoch(header)?;
        if admission.origin == AppendOrigin::Client && holds(Rule::BatchesAreStoredOnce) {
            let verifying = admission.verifications.lowest_sequence(header.producer_id);
            let turned_away = admission.turned_away.before(header, admission.now_ms);
            self.check_sequence(header, verifying, turned_away)?;
        }
        if self.transaction_first_offset.is_some() && !header.is_transactional() {
            return Err(AppendError::InvalidTransactionState { producer_id: header.producer_id });
        }
        Ok(())
    }

    /// Whether a transaction is open that a batch of this epoch needs not open. Of a lower epoch than the batch's, it is
    /// the one before, whose marker has not come (KIP-890).
    fn is_open_in(&self, producer_epoch: i16) -> bool {
        let is_of_epoch = producer_epoch <= self.producer_epoch || !holds(Rule::OpenIsJoinedWhenAdded);
        self.transaction_first_offset.is_some() && is_of_epoch
    }

    fn check_epoch(&self, header: &BatchHeader) -> Result<(), AppendError> {
        if header.producer_epoch < self.producer_epoch && holds(Rule::ProducerEpochOnPartition) {
            return Err(AppendError::InvalidProducerEpoch {
                producer_id: header.producer_id,
                producer_epoch: header.producer_epoch,
                current: self.producer_epoch,
            });
        }
        Ok(())
    }

    /// The next batch must follow the last one; a new epoch starts at 0; an unknown producer anywhere (D9), but not
    /// after a sequence that is still being verified, or that was turned away.
    fn check_sequence(
        &self,
        header: &BatchHeader,
        verifying: Option<i32>,
        turned_away: Option<i32>,
    ) -> Result<(), AppendError> {
        if let Some(expected) = verifying.filter(|lowest| *lowest < header.base_sequence) {
            return Err(out_of_order(header, expected));
        }
        if self.producer_epoch < 0 {
            return turned_away.map_or(Ok(()), |expected| Err(out_of_order(header, expected)));
        }
        let expected = match self.last_batch() {
            Some(last) if header.producer_epoch == self.producer_epoch => add_sequence(last.last_sequence, 1),
            _ => 0,
        };
        if header.base_sequence == expected {
            return Ok(());
        }
        if header.producer_epoch == self.producer_epoch && self.holds_sequences(header) {
            return Err(AppendError::DuplicateSequence {
                producer_id: header.producer_id,
                first: header.base_sequence,
                last: header.last_sequence(),
            });
        }
        Err(out_of_order(header, expected))
    }

    /// Every sequence of `header` is in the remembered batches, though not as one of them.
    fn holds_sequences(&self, header: &BatchHeader) -> bool {
        let (Some(oldest), Some(newest)) = (self.batches().first(), self.last_batch()) else { return false };
        let distance = |sequence: i32| add_sequence(sequence, -oldest.first_sequence());
        let (first, last) = (distance(header.base_sequence), distance(header.last_sequence()));
        first <= last && last <= distance(newest.last_sequence)
    }
}

fn out_of_order(header: &BatchHeader, expected: i32) -> AppendError {
    AppendError::OutOfOrderSequence {
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        sequence: header.base_sequence,
        expected,
    }
}

/// Who appends, and what is known of the transaction that the batch may open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    pub(crate) origin: AppendOrigin,
    pub(crate) verification: Verification,
    pub(crate) verifications: &'a Verifications,
    pub(crate) turned_away: &'a TurnedAway,
    pub(crate) now_ms: i64,
}

/// The producers of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProducerStates {
    producers: HashMap<i64, ProducerEntry>,
    /// First offset to producer of every open transaction.
    open: BTreeMap<i64, i64>,
    /// First offset to marker offset of transactions whose marker is not below the high watermark yet.
    unreplicated: BTreeMap<i64, i64>,
    /// The state covers all records below.
    pub(crate) end_offset: i64,
}

impl ProducerStates {
    pub(crate) fn new(end_offset: i64) -> Self {
        Self { end_offset, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether a transaction is open that a batch of the producer (id and epoch) would join.
    pub(crate) fn has_open_transaction(&self, (producer_id, producer_epoch): (i64, i16)) -> bool {
        self.producers.get(&producer_id).is_some_and(|entry| entry.is_open_in(producer_epoch))
    }

    /// Whether what a transaction coordinator of that epoch says of the producer may be believed: not when a newer one has
    /// ended a transaction of it here. One that has been replaced without knowing may tell of a transaction that is over.
    pub(crate) fn believes_coordinator(&self, producer_id: i64, coordinator_epoch: i32) -> bool {
        let newest = self.producers.get(&producer_id).map_or(-1, |entry| entry.coordinator_epoch);
        newest <= coordinator_epoch || !holds(Rule::VerifiedByNewestCoordinator)
    }

    /// Whether a leader may append these batches. `Some` when one of them is stored already: then none is
    /// appended and the answer is the stored one.
    pub(crate) fn check(
        &self,
        headers: &[BatchHeader],
        markers: &[Option<Marker>],
        admission: &Admission<'_>,
    ) -> Result<Option<StoredBatch>, AppendError> {
        let mut changed: Vec<(i64, ProducerEntry)> = Vec::new();
        for (header, marker) in headers.iter().zip(markers).filter(|(header, _)| header.has_producer()) {
            let known = changed.iter().position(|(producer_id, _)| *producer_id == header.producer_id);
            let index = known.unwrap_or_else(|| {
                let entry = self.producers.get(&header.producer_id).copied();
                changed.push((header.producer_id, entry.unwrap_or(ProducerEntry::EMPTY)));
                changed.len() - 1
            });
            let entry = &mut changed[index].1;
            if header.is_control() {
                check_marker(entry, header, *marker, admission.verification)?;
                continue;
            }
            if admission.origin == AppendOrigin::Client
                && let Some(stored) = entry.duplicate_of(header)
            {
                return Ok(Some(stored));
            }
            entry.check_data(header, admission)?;
            entry.adopt(header);
        }
        Ok(None)
    }

    /// Takes a batch in that is in the log now. A marker that ends a transaction returns it; the caller records an
    /// abort in the transaction index, then calls [`ProducerStates::complete`].
    pub(crate) fn adopt(
        &mut self,
        header: &BatchHeader,
        marker: Option<Marker>,
    ) -> Option<CompletedTransaction> {
        self.end_offset = header.next_offset();
        if !header.has_producer() {
            return None;
        }
        let known = self.producers.get(&header.producer_id).copied();
        let mut entry = known.unwrap_or(ProducerEntry::EMPTY);
        let mut completed = None;
        if let Some(marker) = marker {
            completed = entry.transaction_first_offset.take().map(|first_offset| CompletedTransaction {
                producer_id: header.producer_id,
                first_offset,
                last_offset: header.last_offset(),
                aborted: !marker.commit,
            });
            entry.set_epoch(header.producer_epoch);
            entry.coordinator_epoch = entry.coordinator_epoch.max(marker.coordinator_epoch);
            entry.last_timestamp = header.max_timestamp;
        } else if !header.is_control() {
            let open_before = entry.transaction_first_offset;
            entry.adopt(header);
            if let (None, Some(first_offset)) = (open_before, entry.transaction_first_offset) {
                self.open.insert(first_offset, header.producer_id);
            }
        } else {
            return None;
        }
        self.producers.insert(header.producer_id, entry);
        completed
    }

    /// The last stable offset once `completed` is decided: the first of another open transaction, or after the marker.
    pub(crate) fn stable_after(&self, completed: &CompletedTransaction) -> i64 {
        let other = self.open.iter().find(|(_, producer_id)| **producer_id != completed.producer_id);
        other.map_or(completed.last_offset + 1, |(first_offset, _)| *first_offset)
    }

    pub(crate) fn complete(&mut self, completed: &CompletedTransaction) {
        self.open.remove(&completed.first_offset);
        self.unreplicated.insert(completed.first_offset, completed.last_offset);
    }

    /// Forgets decided transactions whose marker is below the high watermark.
    pub(crate) fn note_high_watermark(&mut self, high_watermark: i64) {
        if !self.unreplicated.is_empty() {
            self.unreplicated.retain(|_, marker_offset| *marker_offset >= high_watermark);
        }
    }

    /// Whether a producer is known that ended a transaction here.
    pub(crate) fn knows_markers(&self) -> bool {
        self.producers.values().any(|entry| entry.coordinator_epoch >= 0)
    }

    /// Takes from another state of the same log the decided transactions whose marker is not below the high watermark.
    pub(crate) fn adopt_unreplicated(&mut self, other: &Self, high_watermark: i64) {
        self.unreplicated.extend(&other.unreplicated);
        self.note_high_watermark(high_watermark);
    }

    /// First offset of a transaction that is open, or whose marker is not below the high watermark.
    pub(crate) fn first_unstable_offset(&self) -> Option<i64> {
        let open = self.open.first_key_value().map(|(offset, _)| *offset);
        let open = open.filter(|_| holds(Rule::OpenIsUnstable));
        let unreplicated = self.unreplicated.first_key_value().map(|(offset, _)| *offset);
        let unreplicated = unreplicated.filter(|_| holds(Rule::MarkerIsReplicated));
        open.into_iter().chain(unreplicated).min()
    }

    /// Drops producers that were silent for `expiration_ms`; never one with an open transaction.
    pub(crate) fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        self.producers.retain(|_, entry| {
            entry.transaction_first_offset.is_some()
                || now_ms.saturating_sub(entry.last_timestamp) < expiration_ms
        });
    }

    /// Epoch and last offset of the last data batch of every producer; without an offset when only a marker of that
    /// epoch is known. Compaction keeps these batches (C4).
    pub(crate) fn last_batches(&self) -> HashMap<i64, (i16, Option<i64>)> {
        let last =
            |entry: &ProducerEntry| (entry.producer_epoch, entry.last_batch().map(|batch| batch.last_offset));
        self.producers.iter().map(|(producer_id, entry)| (*producer_id, last(entry))).collect()
    }

    /// Everything, by producer id; for tools.
    pub(crate) fn inspect(&self) -> Vec<InspectedProducer> {
        let sorted: BTreeMap<_, _> = self.producers.iter().collect();
        let inspect = |(producer_id, entry): (&i64, &ProducerEntry)| InspectedProducer {
            producer_id: *producer_id,
            producer_epoch: entry.producer_epoch,
            coordinator_epoch: entry.coordinator_epoch,
            last_timestamp: entry.last_timestamp,
            transaction_first_offset: entry.transaction_first_offset,
            last_batch: entry.last_batch().map(|batch| (batch.last_sequence, batch.last_offset)),
        };
        sorted.into_iter().map(inspect).collect()
    }

    /// Bytes of a `.snapshot` file, version 1.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = (self.producers.len() as i32).to_be_bytes().to_vec();
        let sorted: BTreeMap<_, _> = self.producers.iter().collect();
        for (producer_id, entry) in sorted {
            let last = entry.last_batch().copied();
            body.extend_from_slice(&producer_id.to_be_bytes());
            body.extend_from_slice(&entry.producer_epoch.to_be_bytes());
            body.extend_from_slice(&last.map_or(-1, |batch| batch.last_sequence).to_be_bytes());
            body.extend_from_slice(&last.map_or(-1, |batch| batch.last_offset).to_be_bytes());
            body.extend_from_slice(&last.map_or(0, |batch| batch.offset_delta).to_be_bytes());
            body.extend_from_slice(&entry.last_timestamp.to_be_bytes());
            body.extend_from_slice(&entry.coordinator_epoch.to_be_bytes());
            body.extend_from_slice(&entry.transaction_first_offset.unwrap_or(-1).to_be_bytes());
        }
        let mut bytes = 1i16.to_be_bytes().to_vec();
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads a `.snapshot` taken at `end_offset`; `None` for a damaged one.
    pub(crate) fn decode(bytes: &[u8], end_offset: i64) -> Option<Self> {
        const ENTRY_BYTES: usize = 46;
        let (version, rest) = bytes.split_first_chunk::<2>()?;
        let (crc, body) = rest.split_first_chunk::<4>()?;
        if i16::from_be_bytes(*version) != 1 || u32::from_be_bytes(*crc) != crc32c::crc32c(body) {
            return None;
        }
        let (count, entries) = body.split_first_chunk::<4>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || i32::from_be_bytes(*count) as usize != entries.len() {
            return None;
        }
        let mut states = Self::new(end_offset);
        for entry in entries {
            let (producer_id, entry) = decode_entry(entry)?;
            if let Some(first_offset) = entry.transaction_first_offset {
                states.open.insert(first_offset, producer_id);
            }
            states.producers.insert(producer_id, entry);
        }
        Some(states)
    }
}

fn check_marker(
    entry: &mut ProducerEntry,
    header: &BatchHeader,
    marker: Option<Marker>,
    verification: Verification,
) -> Result<(), AppendError> {
    let Some(marker) = marker else { return Ok(()) };
    entry.check_epoch(header)?;
    let is_late = verification == Verification::EndsLowerEpochs
        && entry.transaction_first_offset.is_some()
        && header.producer_epoch <= entry.producer_epoch;
    if is_late && holds(Rule::MarkerEndsLowerEpochs) {
        return Err(AppendError::InvalidProducerEpoch {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            current: entry.producer_epoch,
        });
    }
    if marker.coordinator_epoch < entry.coordinator_epoch && holds(Rule::MarkerOfNewestCoordinator) {
        return Err(AppendError::TransactionCoordinatorFenced {
            producer_id: header.producer_id,
            epoch: marker.coordinator_epoch,
            current: entry.coordinator_epoch,
        });
    }
    entry.set_epoch(header.producer_epoch);
    entry.coordinator_epoch = marker.coordinator_epoch;
    entry.transaction_first_offset = None;
    Ok(())
}

fn decode_entry(bytes: &[u8; 46]) -> Option<(i64, ProducerEntry)> {
    let long = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let int = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut entry = ProducerEntry {
        producer_epoch: i16::from_be_bytes([bytes[8], bytes[9]]),
        coordinator_epoch: int(34),
        last_timestamp: long(26),
        transaction_first_offset: Some(long(38)).filter(|offset| *offset >= 0),
        ..ProducerEntry::EMPTY
    };
    let last_offset = long(14);
    let offset_delta = int(22);
    if offset_delta < 0 {
        return None;
    }
    if last_offset >= 0 {
        let timestamp = entry.last_timestamp;
        entry.push(StoredBatch { last_sequence: int(10), last_offset, offset_delta, timestamp });
    }
    Some((long(0), entry))
}
