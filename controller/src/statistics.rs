//! The cluster in numbers, as the machine sees it at one moment; counted when somebody asks.

use zurau_common::id::BrokerId;

use crate::cluster::Partition;
use crate::machine::Machine;

/// What the active controller knows of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    pub topics: usize,
    pub partitions: usize,
    /// Partitions without a leader that clients could use.
    pub offline_partitions: usize,
    /// Partitions that another than their first replica leads.
    pub preferred_imbalance: usize,
    pub live_brokers: usize,
    /// Topics whose deletion was asked for and is not done.
    pub topics_to_delete: usize,
    /// Replicas of those.
    pub replicas_to_delete: usize,
    /// Topics whose deletion was asked for although `delete.topic.enable` is false.
    pub topics_ineligible_to_delete: usize,
}

impl Machine {
    /// What is wrong with partitions is counted once the controller has read the cluster and is in charge. Looks at every
    /// partition: in proportion to the cluster, not to what changed.
    pub fn statistics(&self) -> Statistics {
        let mut found = Statistics {
            topics: self.cluster.topics.len(),
            partitions: self.cluster.partitions.values().filter(|partition| partition.exists).count(),
            live_brokers: self.cluster.brokers.values().filter(|broker| broker.live().is_some()).count(),
            ..Statistics::default()
        };
        for topic in self.cluster.topics.values().filter(|topic| topic.delete_requested) {
            if self.is_deleting(topic) {
                found.topics_to_delete += 1;
            } else {
                found.topics_ineligible_to_delete += 1;
            }
        }
        for (id, partition) in self.cluster.partitions.iter().filter(|(_, partition)| partition.exists) {
            let replicas = partition.replicas.value().map_or(&[][..], Vec::as_slice);
            if self.cluster.topics.get(&id.topic).is_some_and(|topic| self.is_deleting(topic)) {
                found.replicas_to_delete += replicas.len();
                continue;
            }
            // Before that nothing was told to clients by this controller.
            if !self.is_in_charge() {
                continue;
            }
            match shown_leader(partition) {
                None => found.offline_partitions += 1,
                Some(leader) if replicas.first().is_some_and(|first| *first != leader) => {
                    found.preferred_imbalance += 1;
                }
                Some(_) => {}
            }
        }
        found
    }
}

/// The leader that clients are told of.
fn shown_leader(partition: &Partition) -> Option<BrokerId> {
    partition.work.published.as_ref()?.leader
}
