//! What is on its way between applications and brokers.

use std::collections::BTreeMap;

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::log::{Node, Place};
use crate::coordinator::Producer;
use crate::groups::JoinAnswer;
use crate::log::{Marker, Verification};
use crate::transactions::{EndRequest, QueueKey};

/// A request of one run of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Caller {
    pub(super) slot: usize,
    pub(super) incarnation: u32,
    pub(super) number: u64,
}

/// What an application asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Init {
        expected: Option<Producer>,
    },
    Add {
        producer: Producer,
        places: Vec<Place>,
    },
    End {
        producer: Producer,
        commits: bool,
        is_version_2: bool,
    },
    Produce {
        place: Place,
        batch: Bytes,
        /// The leader adds the partition to the transaction.
        is_version_2: bool,
    },
    CommitOffsets {
        producer: Producer,
        is_version_2: bool,
        generation: i32,
        member: String,
        input: i32,
        offset: i64,
    },
    Join {
        member: String,
    },
    Sync {
        generation: i32,
        member: String,
        assignments: Vec<(String, Vec<i32>)>,
    },
    Heartbeat {
        generation: i32,
        member: String,
    },
    /// How far the group is, without what open transactions may still change.
    Offsets,
}

impl Asked {
    /// The partition whose leader answers.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Init { .. } | Self::Add { .. } | Self::End { .. } => Place::Transactions,
            Self::Produce { place, .. } => *place,
            _ => Place::Offsets,
        }
    }

    /// Whether it belongs to a transaction of version 2.
    pub(super) fn is_version_2(&self) -> bool {
        matches!(
            self,
            Self::End { is_version_2: true, .. }
                | Self::Produce { is_version_2: true, .. }
                | Self::CommitOffsets { is_version_2: true, .. }
        )
    }

    /// Requests that nobody can tell from those of the next transaction of the same epoch (TXN-02): those of old clients.
    pub(super) fn belongs_to_its_transaction(&self) -> bool {
        !self.is_version_2() && matches!(self, Self::End { .. } | Self::CommitOffsets { .. })
    }
}

/// What it hears.
#[derive(Debug, Clone)]
pub(super) enum Answered {
    Init(Result<Producer, Rejection>),
    /// With the producer of the next transaction.
    Ended(Result<Producer, Rejection>),
    Done(Result<(), Rejection>),
    Join(JoinAnswer),
    Sync(Result<Vec<i32>, Rejection>),
    /// By input.
    Offsets(Result<BTreeMap<i32, i64>, Rejection>),
}

/// A marker for one partition.
#[derive(Debug, Clone)]
pub(super) struct MarkerFor {
    pub(super) key: QueueKey,
    pub(super) place: Place,
    pub(super) producer: Producer,
    pub(super) marker: Marker,
    /// Whether it is of version 2.
    pub(super) verification: Verification,
}

#[derive(Debug, Clone)]
pub(super) enum Message {
    Ask {
        to: Node,
        from: Caller,
        what: Asked,
    },
    Answer {
        to: Caller,
        what: Answered,
    },
    Verify {
        to: Node,
        number: u64,
        slot: usize,
        producer: Producer,
        place: Place,
        /// Adds the partition if it is not there.
        adds: bool,
    },
    /// With the epoch of the coordinator.
    Verified {
        number: u64,
        verdict: Result<(), Rejection>,
        epoch: i32,
    },
    Markers {
        from: Node,
        to: Node,
        request: u64,
        markers: Vec<MarkerFor>,
    },
    Marked {
        to: Node,
        request: u64,
        outcomes: Vec<(QueueKey, Place, Result<(), Rejection>)>,
    },
}

/// Who waits for an answer of a coordinator.
#[derive(Debug, Clone)]
pub(super) enum ReplyTo {
    Client(Caller),
    /// As [`ReplyTo::Client`]: asks again when it needs a producer id.
    Init(Caller, Option<Producer>),
    /// The same, of an EndTxn.
    End(Caller, EndRequest),
    Verification {
        number: u64,
        epoch: i32,
    },
    Marker {
        delivery: u64,
        key: QueueKey,
    },
}
