//! What brokers and clients are told: LeaderAndIsr records and metadata, built from what is stored.

use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rule::{Rule, holds};

use crate::action::{Action, PartitionMetadata};
use crate::cluster::Partition;
use crate::election::isr_to_take_over;
use crate::event::Read;
use crate::machine::Machine;
use crate::office::{self, Office};

impl Machine {
    /// To all live hosts that have had their full LeaderAndIsr; the full one covers the others.
    pub(crate) fn send_leader_and_isr(&mut self, tp: &TopicPartition) {
        let Some(record) = self.leader_and_isr(tp) else { return };
        self.partition_mut(tp).work.untold.clear();
        self.send_to(tp, &record, &record.replicas);
    }

    /// To hosts whose full LeaderAndIsr came while nothing could be said about the partition.
    pub(crate) fn send_to_untold(&mut self, tp: &TopicPartition) {
        let Some(partition) = self.cluster.partitions.get(tp) else { return };
        let work = &partition.work;
        let deciding = work.in_flight.is_some() || work.stale || work.confirming;
        if deciding || work.untold.is_empty() || !holds(Rule::UntoldIsToldLater) {
            return;
        }
        let Some(record) = self.leader_and_isr(tp) else { return };
        let untold = std::mem::take(&mut self.partition_mut(tp).work.untold);
        let hosts: Vec<BrokerId> = untold.into_iter().filter(|id| record.replicas.contains(id)).collect();
        self.send_to(tp, &record, &hosts);
    }

    fn send_to(&mut self, tp: &TopicPartition, record: &LeaderAndIsr, brokers: &[BrokerId]) {
        for broker in brokers {
            let Some(live) = self.cluster.live(*broker) else { continue };
            let told = self.cluster.brokers[broker].told_in_full == Some(live.epoch);
            if told && self.may_be_told(&self.cluster.partitions[tp], *broker, live.epoch) {
                let (broker, broker_epoch, partition) = (*broker, live.epoch, record.clone());
                self.actions.push(Action::LeaderAndIsr { broker, broker_epoch, partition });
            }
        }
    }

    /// An epoch is never sent to its leader once that broker has registered anew (F5); followers are sent it.
    fn may_be_told(&self, partition: &Partition, broker: BrokerId, epoch: BrokerEpoch) -> bool {
        let Some(state) = partition.state.value() else { return false };
        state.leader != broker
            || !holds(Rule::EpochLedOnce)
            || match partition.work.office {
                Office::Awaited { registration, .. } | Office::Held { registration } => registration == epoch,
                Office::Unjudged | Office::Vacant(_) => false,
            }
    }

    fn leader_and_isr(&self, tp: &TopicPartition) -> Option<LeaderAndIsr> {
        self.record(tp, self.cluster.partitions.get(tp)?)
    }

    fn record(&self, tp: &TopicPartition, partition: &Partition) -> Option<LeaderAndIsr> {
        let (topic_id, started) = self.standing(tp)?;
        let Read::Value(state) = &partition.state else { return None };
        let (state_version, state) = (state.version, &state.value);
        let is_live = |id| self.cluster.live(id).is_some();
        let (isr, partition_epoch) = match &partition.isr {
            // The leader creates it with the live hosts.
            Read::Absent if !started || !holds(Rule::StartedStaysStarted) => {
                (isr_to_take_over(state.leader, &state.replicas, is_live), PartitionEpoch::CREATE)
            }
            Read::Value(isr) if office::is_held(partition) => {
                (isr.value.clone(), PartitionEpoch(isr.version))
            }
            Read::Value(isr) => {
                (isr_to_take_over(state.leader, &isr.value, is_live), PartitionEpoch(isr.version))
            }
            Read::Absent | Read::Bad { .. } => return None,
        };
        let removing = difference(&state.replicas, &state.target);
        let adding = match partition.replicas.value() {
            Some(assigned) => difference(&state.target, assigned),
            None => Vec::new(),
        };
        Some(LeaderAndIsr {
            partition: tp.clone(),
            topic_id,
            controller_epoch: state.controller_epoch,
            leader: state.leader,
            leader_epoch: state.leader_epoch,
            isr,
            partition_epoch,
            replicas: state.replicas.clone(),
            adding_replicas: adding,
            removing_replicas: removing,
            is_new: partition.isr.is_absent() && (!started || !holds(Rule::StartedStaysStarted)),
            recovery: state.recovery,
            state_version,
            elr: match &partition.elr {
                Read::Absent => Some(Vec::new()),
                Read::Value(elr) => Some(elr.value.clone()),
                Read::Bad { .. } => None,
            },
        })
    }

    /// Once per controller and registration, when no election that could change it is in flight.
    /// Whether some were sent.
    pub(crate) fn send_full_leader_and_isr(&mut self) -> bool {
        let mut sent = false;
        let due: Vec<(BrokerId, BrokerEpoch)> = self
            .cluster
            .brokers
            .iter()
            .filter_map(|(id, broker)| {
                let live = broker.live()?;
                (broker.told_in_full != Some(live.epoch)).then_some((*id, live.epoch))
            })
            .collect();
        for (broker, broker_epoch) in due {
            if self.waits(broker) {
                continue;
            }
            let hosted = self.cluster.hosted_by(broker);
            let hosted: Vec<_> = hosted.map(|tp| (tp, &self.cluster.partitions[tp])).collect();
            let mut partitions = Vec::with_capacity(hosted.len());
            let (mut untold, mut leaving) = (Vec::new(), Vec::new());
            for (tp, partition) in hosted {
                if partition.leaving.value().is_some_and(|leaving| leaving.contains(&broker)) {
                    leaving.push(tp.clone());
                }
                let is_readable = partition.state.value().is_some();
                if is_readable && !self.may_be_told(partition, broker, broker_epoch) {
                    continue;
                }
                match self.record(tp, partition) {
                    Some(record) => partitions.push(record),
                    None if partition.state.is_absent() => {}
                    None => untold.push(tp.clone()),
                }
            }
            for tp in untold {
                self.partition_mut(&tp).work.untold.insert(broker);
            }
            if let Some(known) = self.cluster.brokers.get_mut(&broker) {
                known.told_in_full = Some(broker_epoch);
            }
            self.actions.push(Action::FullLeaderAndIsr { broker, broker_epoch, partitions });
            sent = true;
            // Now it can be told to delete what it hosted in earlier epochs.
            self.cluster.dirty_partitions.extend(leaving);
        }
        sent
    }

    /// Whether one of the broker's partitions is not settled. The one found last time is looked at first, and it was the
    /// last in order, where most of them settle: otherwise every outcome would look at all partitions.
    fn waits(&mut self, broker: BrokerId) -> bool {
        let unsettled = |tp: &TopicPartition| {
            let work = self.cluster.partitions.get(tp).map(|partition| &partition.work);
            work.is_some_and(|work| work.in_flight.is_some() || work.stale || work.confirming)
        };
        let known = self.cluster.brokers.get(&broker).and_then(|known| known.waits_for.as_ref());
        if known.is_some_and(unsettled) {
            return true;
        }
        let found = self.cluster.hosted_by(broker).rev().find(|tp| unsettled(tp)).cloned();
        let waits = found.is_some();
        if let Some(known) = self.cluster.brokers.get_mut(&broker) {
            known.waits_for = found;
        }
        waits
    }

    /// Notes what clients must hear about the partition, if it changed.
    pub(crate) fn publish(&mut self, tp: &TopicPartition) {
        let partition = &self.cluster.partitions[tp];
        let deciding =
            partition.work.in_flight.is_some() || partition.work.stale || partition.work.confirming;
        if deciding && partition.work.published.is_some() || self.has_problem(tp) {
            return;
        }
        let wanted = self.metadata_of(tp);
        let partition = self.partition_mut(tp);
        if partition.work.published != wanted {
            partition.work.published.clone_from(&wanted);
            self.metadata.insert(tp.clone(), wanted);
        }
    }

    /// A topic in error, with its leaders serving on: clients are told nothing new.
    fn has_problem(&self, tp: &TopicPartition) -> bool {
        let topic = self.cluster.topics.get(&tp.topic);
        topic.is_some_and(|topic| topic.problem.is_some() && !self.is_deleting(topic))
    }

    fn metadata_of(&self, tp: &TopicPartition) -> Option<PartitionMetadata> {
        let partition = &self.cluster.partitions[tp];
        let Some((topic_id, _)) = self.standing(tp) else {
            // Only a topic that is being removed is no more; one whose id is being put back goes on.
            let topic = self.cluster.topics.get(&tp.topic);
            let goes = topic.is_none_or(|topic| self.is_deleting(topic) || topic.node.is_absent());
            return if goes || partition.state.is_absent() { None } else { partition.work.published.clone() };
        };
        // What was published while the partition waited for its start holds no ISR.
        let published = partition.work.published.as_ref().filter(|known| !known.isr.is_empty());
        let known_isr = || published.map(|known| known.isr.clone());
        let Some(state) = partition.state.value() else {
            // The record is missing or unreadable: an error, and a serving leader goes on.
            if let Some(known) = partition.work.published.as_ref().filter(|known| known.leader_epoch.0 >= 0) {
                return Some(known.clone());
            }
            // Clients need partitions without gaps: one that waits for its start is shown without a leader.
            let contiguous = self.cluster.topics.get(&tp.topic)?.contiguous;
            let waits = partition.state.is_absent() && partition.exists && tp.partition < contiguous;
            return (waits || partition.work.published.is_some()).then(|| PartitionMetadata {
                topic_id,
                leader: None,
                leader_epoch: LeaderEpoch::UNKNOWN,
                controller_epoch: self.epoch,
                isr: Vec::new(),
                partition_epoch: PartitionEpoch(0),
                replicas: partition.replicas.value().cloned().unwrap_or_default(),
                offline: self.offline_of(partition.replicas.value().map_or(&[], Vec::as_slice)),
            });
        };
        let serves = matches!(partition.work.office, Office::Awaited { .. } | Office::Held { .. });
        let target = self.target_of(partition).unwrap_or(&state.target);
        let first: Vec<BrokerId> = target.iter().copied().filter(|id| state.replicas.contains(id)).collect();
        let isr = match &partition.isr {
            Read::Value(isr) => isr.value.clone(),
            Read::Absent | Read::Bad { .. } => known_isr().unwrap_or_else(|| vec![state.leader]),
        };
        Some(PartitionMetadata {
            topic_id,
            leader: (serves && self.cluster.live(state.leader).is_some()).then_some(state.leader),
            leader_epoch: state.leader_epoch,
            controller_epoch: state.controller_epoch,
            isr,
            partition_epoch: PartitionEpoch(partition.isr.version().unwrap_or(0)),
            replicas: union(&first, &state.replicas),
            offline: self.offline_of(&state.replicas),
        })
    }

    fn offline_of(&self, replicas: &[BrokerId]) -> Vec<BrokerId> {
        replicas.iter().copied().filter(|id| self.cluster.live(*id).is_none()).collect()
    }
}
