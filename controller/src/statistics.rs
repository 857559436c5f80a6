//! The cluster in numbers, as the machine sees it at one moment; counted when somebody asks.

use zurau_common::id::BrokerId;

use crate::action::Reason;
use crate::cluster::Partition;
use crate::machine::Machine;
use crate::pending::{Pending, Purpose, TopicChange};

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
    /// Replicas of those.
    pub replicas_ineligible_to_delete: usize,
    pub doing: Doing,
}

/// What kind of work is under way: Kafka's ControllerState and its numbers. Kafka has one event in its hands at a time; here
/// many writes can be under way, and the first kind of [`Doing::ORDER`] among them is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Doing {
    #[default]
    Idle = 0,
    /// Not in charge of the cluster yet.
    ControllerChange = 1,
    /// Leaders of brokers that are gone, or that cannot lead.
    BrokerChange = 2,
    TopicChange = 3,
    TopicDeletion = 4,
    AlterPartitionReassignment = 5,
    /// Preferred leaders, asked for by an admin or by the automatic balance.
    ManualLeaderBalance = 7,
    ControlledShutdown = 8,
    IsrChange = 9,
}

impl Doing {
    const ORDER: [Self; 8] = [
        Self::ControllerChange,
        Self::BrokerChange,
        Self::ControlledShutdown,
        Self::TopicChange,
        Self::TopicDeletion,
        Self::AlterPartitionReassignment,
        Self::ManualLeaderBalance,
        Self::IsrChange,
    ];

    fn of(pending: &Pending) -> Self {
        match pending {
            Pending::RaiseEpoch(_) => Self::ControllerChange,
            Pending::PreferredElection => Self::ManualLeaderBalance,
            Pending::Partition(write) => match write.purpose {
                Purpose::Proposal(_) => Self::IsrChange,
                Purpose::Left => Self::AlterPartitionReassignment,
                Purpose::Epoch { reason, .. } => Self::electing(reason),
            },
            Pending::Topic {
                change: TopicChange::EntryRemoved { .. } | TopicChange::Removed | TopicChange::DeletionRefused,
                ..
            } => Self::TopicDeletion,
            Pending::Topic { .. } => Self::TopicChange,
            Pending::Complaint(_) => Self::Idle,
        }
    }

    fn electing(reason: Reason) -> Self {
        match reason {
            Reason::ControllerStart => Self::ControllerChange,
            Reason::NewPartition => Self::TopicChange,
            Reason::BrokerGone
            | Reason::BrokerRestarted
            | Reason::Resigned
            | Reason::Refused
            | Reason::NoAnswer => Self::BrokerChange,
            Reason::Preferred => Self::ManualLeaderBalance,
            Reason::ControlledShutdown => Self::ControlledShutdown,
            Reason::Reassignment | Reason::ReassignmentDone => Self::AlterPartitionReassignment,
        }
    }
}

impl Machine {
    /// What is wrong with partitions is counted once the controller has read the cluster and is in charge. Looks at every
    /// partition: in proportion to the cluster, not to what changed.
    pub fn statistics(&self) -> Statistics {
        let mut found = Statistics {
            topics: self.cluster.topics.len(),
            partitions: self.cluster.partitions.values().filter(|partition| partition.exists).count(),
            live_brokers: self.cluster.brokers.values().filter(|broker| broker.live().is_some()).count(),
            doing: self.doing(),
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
            let topic = self.cluster.topics.get(&id.topic).filter(|topic| topic.delete_requested);
            if topic.is_some_and(|topic| self.is_deleting(topic)) {
                found.replicas_to_delete += replicas.len();
                continue;
            }
            if topic.is_some() {
                found.replicas_ineligible_to_delete += replicas.len();
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

    fn doing(&self) -> Doing {
        if !self.is_in_charge() {
            return Doing::ControllerChange;
        }
        let is_under_way = |kind: &Doing| self.writes.values().any(|pending| Doing::of(pending) == *kind);
        Doing::ORDER.into_iter().find(is_under_way).unwrap_or_default()
    }
}

/// The leader that clients are told of.
fn shown_leader(partition: &Partition) -> Option<BrokerId> {
    partition.work.published.as_ref()?.leader
}
