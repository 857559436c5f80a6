//! `ISR` and `ELR`: one version covers both, because every write of `ELR` also sets `ISR`.

use crate::assignment::{InvalidIds, format_ids, parse_ids};
use crate::id::{BrokerId, PartitionEpoch};

/// What is stored of a partition's in-sync and eligible replicas. They are disjoint; `isr` is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredIsr {
    pub isr: Vec<BrokerId>,
    /// Empty when the `ELR` znode is absent.
    pub elr: Vec<BrokerId>,
    pub partition_epoch: PartitionEpoch,
}

/// Value of `ISR`, `ELR`, `replicas`, `leaving` and a wanted assignment alike.
///
/// # Errors
/// Whatever is not a set of ids (coordination.md, section 1).
pub fn decode_ids(value: &[u8]) -> Result<Vec<BrokerId>, InvalidIds> {
    parse_ids(value)
}

pub fn encode_ids(ids: &[BrokerId]) -> Vec<u8> {
    format_ids(ids).into_bytes()
}
