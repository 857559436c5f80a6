//! What is asked of a transaction coordinator and what it answers, in its own words; handlers translate from and to the
//! wire.

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::records::{Transaction, TransactionState, TransactionalId};
use crate::coordinator::Producer;

/// Everything about one transactional id that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Init(InitRequest),
    /// Partitions that the producer is about to write to.
    Add {
        producer: Producer,
        partitions: Vec<TopicPartition>,
        /// A partition's leader adds, for a client of version 2.
        is_version_2: bool,
    },
    /// Whether the partitions are in the producer's open transaction (KIP-890).
    Verify {
        producer: Producer,
        partitions: Vec<TopicPartition>,
    },
    End(EndRequest),
    Describe,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitRequest {
    pub(crate) timeout_ms: i32,
    /// What the producer is, if it only wants a higher epoch (KIP-360).
    pub(crate) expected: Option<Producer>,
    /// A producer id that nobody has; taken when the coordinator has said that it needs one.
    pub(crate) fresh_producer_id: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndRequest {
    pub(crate) producer: Producer,
    pub(crate) commits: bool,
    /// The producer takes another epoch for its next transaction (KIP-890).
    pub(crate) is_version_2: bool,
    /// As for [`InitRequest`].
    pub(crate) fresh_producer_id: Option<i64>,
}

/// Who the producer is from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initialized {
    Producer(Producer),
    /// Ask again with a fresh one.
    NeedsProducerId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Init(Result<Initialized, Rejection>),
    /// To adding partitions.
    Done(Result<(), Rejection>),
    End(Result<Initialized, Rejection>),
    /// An outcome for each partition, in the order asked.
    Verify(Result<Vec<Option<Rejection>>, Rejection>),
    Describe(Result<Transaction, Rejection>),
    List(Vec<Listing>),
}

/// Which transactional ids are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListFilter {
    /// Names of states; empty for all.
    pub(crate) states: Vec<String>,
    /// Empty for all.
    pub(crate) producer_ids: Vec<i64>,
    /// Longer than this, in milliseconds; negative for all.
    pub(crate) duration_ms: i64,
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) id: TransactionalId,
    pub(crate) producer_id: i64,
    pub(crate) state: TransactionState,
}
