//! Which transaction a batch belongs to while segments are walked in order, and which markers may go.
//!
//! Pure. A marker is needed while any batch of its transaction is there (C3, CMP-02); records of aborted
//! transactions are needed by nobody.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::log::batch::BatchHeader;
use crate::log::marker::Marker;
use crate::log::transaction_index::AbortedTransaction;

/// What is to happen with a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkerFate {
    /// No batch of its transaction was met: it may go once its delete horizon is over.
    pub(crate) unneeded: bool,
    /// It ends an aborted transaction of which batches were met: the new segment's transaction index lists it.
    pub(crate) indexed: Option<AbortedTransaction>,
}

struct OngoingAbort {
    transaction: AbortedTransaction,
    met_batches: bool,
}

/// The transactions that are open at the point the walk has come to.
pub(crate) struct Transactions {
    /// By first offset; those that the walk has not come to yet.
    aborted: VecDeque<AbortedTransaction>,
    ongoing_aborted: HashMap<i64, OngoingAbort>,
    ongoing_committed: HashSet<i64>,
}

impl Transactions {
    /// `aborted`: every aborted transaction whose marker is at or after the walk's start.
    pub(crate) fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_by_key(|transaction| transaction.first_offset);
        Self { aborted: aborted.into(), ongoing_aborted: HashMap::new(), ongoing_committed: HashSet::new() }
    }

    fn walk_to(&mut self, offset: i64) {
        while let Some(transaction) = self.aborted.pop_front_if(|next| next.first_offset <= offset) {
            let ongoing = OngoingAbort { transaction, met_batches: false };
            self.ongoing_aborted.insert(transaction.producer_id, ongoing);
        }
    }

    /// Walks over a data batch; whether its transaction was aborted.
    pub(crate) fn on_data(&mut self, header: &BatchHeader) -> bool {
        self.walk_to(header.last_offset());
        if !header.is_transactional() {
            return false;
        }
        if let Some(ongoing) = self.ongoing_aborted.get_mut(&header.producer_id) {
            ongoing.met_batches = true;
            return true;
        }
        self.ongoing_committed.insert(header.producer_id);
        false
    }

    /// Walks over a control batch. `marker` is what its record says; `None` for other control records.
    pub(crate) fn on_control(&mut self, header: &BatchHeader, marker: Option<Marker>) -> MarkerFate {
        self.walk_to(header.last_offset());
        let kept = MarkerFate { unneeded: false, indexed: None };
        let unneeded = MarkerFate { unneeded: true, indexed: None };
        if header.record_count == 0 {
            return unneeded;
        }
        let Some(marker) = marker else { return kept };
        if marker.commit {
            return if self.ongoing_committed.remove(&header.producer_id) { kept } else { unneeded };
        }
        match self.ongoing_aborted.remove(&header.producer_id) {
            Some(ongoing) if ongoing.met_batches => {
                MarkerFate { unneeded: false, indexed: Some(ongoing.transaction) }
            }
            // Batches that no index entry calls aborted were met: whatever they are, their marker stays.
            _ if self.ongoing_committed.remove(&header.producer_id) => kept,
            _ => unneeded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_batches::{BatchSpec, batch, marker};

    fn data(producer_id: i64, base_offset: i64) -> BatchHeader {
        let spec = BatchSpec {
            base_offset,
            producer: Some((producer_id, 0, 0)),
            transactional: true,
            ..BatchSpec::default()
        };
        BatchHeader::parse(&batch(&spec)).unwrap()
    }

    fn control(producer_id: i64, offset: i64) -> BatchHeader {
        let header = BatchHeader::parse(&marker(true, (producer_id, 0), 0, 1)).unwrap();
        BatchHeader { base_offset: offset, ..header }
    }

    fn aborted(producer_id: i64, first_offset: i64, last_offset: i64) -> AbortedTransaction {
        AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset: last_offset + 1 }
    }

    const COMMIT: Option<Marker> = Some(Marker { commit: true, coordinator_epoch: 0 });
    const ABORT: Option<Marker> = Some(Marker { commit: false, coordinator_epoch: 0 });

    #[test]
    fn a_marker_is_needed_while_batches_are_there() {
        let first = aborted(1, 0, 2);
        let second = aborted(1, 6, 7);
        let mut walk = Transactions::new(vec![second, first, aborted(2, 9, 90)]);
        assert!(walk.on_data(&data(1, 0)));
        assert!(!walk.on_data(&data(2, 1)));
        assert_eq!(
            walk.on_control(&control(1, 2), ABORT),
            MarkerFate { unneeded: false, indexed: Some(first) }
        );
        assert!(!walk.on_data(&data(1, 3)), "the same producer's next transaction is another");
        assert!(!walk.on_control(&control(1, 4), COMMIT).unneeded);
        assert!(!walk.on_control(&control(2, 5), COMMIT).unneeded);
        let fate = walk.on_control(&control(1, 7), ABORT);
        assert_eq!(fate, MarkerFate { unneeded: true, indexed: None }, "its data went earlier");
        assert!(walk.on_control(&control(2, 8), COMMIT).unneeded);
        assert!(walk.on_data(&data(2, 9)));
        assert!(!walk.on_control(&control(3, 10), None).unneeded, "not a transaction marker");
        let empty = BatchHeader { record_count: 0, ..control(3, 11) };
        assert!(walk.on_control(&empty, None).unneeded);
    }

    #[test]
    fn plain_batches_belong_to_no_transaction() {
        let mut walk = Transactions::new(vec![aborted(1, 0, 9)]);
        let plain = BatchSpec { producer: Some((1, 0, 0)), ..BatchSpec::default() };
        assert!(!walk.on_data(&BatchHeader::parse(&batch(&plain)).unwrap()));
    }
}
