//! What the machine remembers of a write until its outcome comes.

use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, TopicId, TopicName, TopicPartition};
use zurau_common::zk::fence::{Fence, PartitionWrite};
use zurau_common::zk::topic::TopicIdEntry;

use crate::action::{PartitionExtra, Reason};
use crate::requests::WaitingProposal;

#[derive(Debug, Clone)]
pub(crate) enum Pending {
    RaiseEpoch(ControllerEpoch),
    PreferredElection,
    Partition(Box<PendingPartition>),
    Topic { topic: TopicName, change: TopicChange },
    Complaint(Complaint),
}

/// A multi on a partition. Outcome `Stored` makes the facts what the multi wrote.
#[derive(Debug, Clone)]
pub(crate) struct PendingPartition {
    pub(crate) fence: Fence,
    pub(crate) write: PartitionWrite,
    pub(crate) extra: PartitionExtra,
    pub(crate) purpose: Purpose,
}

#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// A new epoch. The leader is told only in the registration that it was chosen in (F5).
    Epoch { leader: BrokerId, registration: BrokerEpoch, reason: Reason },
    /// A leader's AlterIsr.
    Proposal(WaitingProposal),
    /// Hosts have deleted their copies.
    Left,
}

#[derive(Debug, Clone)]
pub(crate) enum TopicChange {
    Named { topic_id: TopicId, entry: Option<TopicIdEntry>, version: i32 },
    EntryCreated { topic_id: TopicId, entry: TopicIdEntry },
    EntrySet { topic_id: TopicId, entry: TopicIdEntry, version: i32 },
    EntryRemoved { topic_id: TopicId },
    Removed,
    DeletionRefused,
}

impl TopicChange {
    /// The incarnation that the change is about.
    pub(crate) fn topic_id(&self) -> Option<TopicId> {
        match self {
            Self::Named { topic_id, .. }
            | Self::EntryCreated { topic_id, .. }
            | Self::EntrySet { topic_id, .. }
            | Self::EntryRemoved { topic_id } => Some(*topic_id),
            Self::Removed | Self::DeletionRefused => None,
        }
    }
}

/// A write of an `error` child.
#[derive(Debug, Clone)]
pub(crate) struct Complaint {
    pub(crate) partition: TopicPartition,
    pub(crate) text: Option<String>,
    /// The wanted assignment's error, not the partition's own.
    pub(crate) about_wish: bool,
}
