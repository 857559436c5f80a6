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
    /// Whether a reassignment brings the partition to this host. One by the assignment itself (`replicas` was written)
    /// names nobody as added; then it is who is wanted and not in sync while others have to leave.
    pub fn is_adding(&self, host: BrokerId) -> bool {
        let is_wanted = self.replicas.contains(&host) && !self.removing_replicas.contains(&host);
        let is_new_in_a_move = is_wanted && !self.removing_replicas.is_empty() && !self.isr.contains(&host);
        self.adding_replicas.contains(&host) || is_new_in_a_move
    }

    /// The replicas that the partition shall have in the end.
    pub fn target(&self) -> Vec<BrokerId> {
        crate::assignment::difference(&self.replicas, &self.removing_replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_adds_whom_it_names_or_who_is_wanted_and_not_in_sync() {
        let ids = |numbers: &[i32]| numbers.iter().copied().map(BrokerId).collect::<Vec<_>>();
        // Hosts, adding, removing, ISR: who is added.
        let rows: [[&[i32]; 5]; 5] = [
            [&[1, 2], &[2], &[1], &[1], &[2]],
            [&[1, 2], &[2], &[1], &[1, 2], &[2]],
            [&[1, 2, 3], &[3], &[], &[1, 2], &[3]],
            [&[1, 2], &[], &[1], &[1], &[2]],
            [&[1, 2, 3], &[], &[], &[1, 2], &[]],
        ];
        for [hosts, adding, removing, isr, expected] in rows {
            let order = LeaderAndIsr {
                partition: TopicPartition::new("t", 0),
                topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
                controller_epoch: ControllerEpoch(1),
                leader: BrokerId(1),
                leader_epoch: LeaderEpoch(0),
                isr: ids(isr),
                partition_epoch: PartitionEpoch(0),
                replicas: ids(hosts),
                adding_replicas: ids(adding),
                removing_replicas: ids(removing),
                is_new: false,
                recovery: false,
                state_version: 0,
                elr: None,
            };
            let added: Vec<BrokerId> = (1..=4).map(BrokerId).filter(|id| order.is_adding(*id)).collect();
            assert_eq!(added, ids(expected), "{hosts:?} {adding:?} {removing:?} {isr:?}");
        }
    }
}
