//! What the controller tells each host of a partition: who leads, in which epoch, on which hosts.

use crate::id::{BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};

/// One partition of a LeaderAndIsr request. A broker acts on it only if its epochs are not behind what the broker
/// already applied (M4).
///
/// `leader` is in `isr`, or in `elr`, or `recovery` is set. `isr`, `elr` and `target` are subsets of `replicas`
/// (the hosts: N8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderAndIsr {
    pub partition: TopicPartition,
    pub topic_id: TopicId,
    pub controller_epoch: ControllerEpoch,
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    /// The stored ISR without members whose broker is gone: exactly what the leader's take-over write stores.
    pub isr: Vec<BrokerId>,
    /// Version of `ISR` that `isr` was read from; [`PartitionEpoch::CREATE`] when there is none yet.
    pub partition_epoch: PartitionEpoch,
    /// Hosts of this epoch (`state.replicas`).
    pub replicas: Vec<BrokerId>,
    /// Hosts that are not in the current `replicas` znode but in the wanted set.
    pub adding_replicas: Vec<BrokerId>,
    /// Hosts that are not in the wanted set. The wanted set (target) is `replicas` without them.
    pub removing_replicas: Vec<BrokerId>,
    /// The partition is not `started`: no replica may hold a record of it (N4).
    pub is_new: bool,
    /// The leader was elected uncleanly and may lack acknowledged records.
    pub recovery: bool,
    /// Data version of `state`; every multi of the leader checks it.
    pub state_version: i32,
    /// Eligible leader replicas beside `partition_epoch`. `None` means "read it from the znode", never "empty" (N15).
    pub elr: Option<Vec<BrokerId>>,
}

impl LeaderAndIsr {
    /// The replicas that the partition shall have in the end.
    pub fn target(&self) -> Vec<BrokerId> {
        crate::assignment::difference(&self.replicas, &self.removing_replicas)
    }
}
