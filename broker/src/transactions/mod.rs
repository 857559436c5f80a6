//! Transactions: who may write under a transactional id, which partitions are in its open transaction, how it ends.
//!
//! Reading order: `records` (what is stored), `request` (what is asked), `rules` (what one transaction becomes), `shard`
//! (all ids of one partition of `__transaction_state`) and `marker_queue` (what goes to whom): these are pure. Then the
//! shells: `worker` (owns a shard), `marker_sender` (writes markers into the partitions), `coordinator` (all shards of
//! this broker).

mod records;

mod request;

mod rules;

mod shard;

mod marker_queue;

mod marker_sender;

mod worker;

mod coordinator;

#[cfg(test)]
pub(crate) use marker_queue::{Batch, Destination, MarkerQueue, QueueKey};
#[cfg(test)]
pub(crate) use records::TransactionRecord;
#[cfg(test)]
pub(crate) use request::{Answer, Initialized, Request};
#[cfg(test)]
pub(crate) use shard::{Effect, Event, Marking, MarkingId, Shard, TransactionSettings};

pub(crate) use coordinator::{TransactionCoordinator, run};
pub(crate) use records::{Transaction, TransactionState};
pub(crate) use request::{EndRequest, InitRequest, ListFilter, Listing};

#[cfg(test)]
mod tests;
