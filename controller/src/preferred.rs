//! Preferred leaders: on request (`/admin/preferred_replica_election`) and by the automatic balance.

use std::collections::BTreeMap;

use zurau_common::id::{BrokerId, TopicPartition};

use crate::action::{Note, Write};
use crate::event::Read;
use crate::machine::Machine;
use crate::office::is_held;
use crate::pending::Pending;

impl Machine {
    /// Carries out a request that stands in ZooKeeper, and the automatic balance when it is time.
    pub(crate) fn look_for_preferred_leaders(&mut self) {
        let request = std::mem::take(&mut self.cluster.preferred_election);
        if !self.preferred_in_flight {
            match &request {
                Read::Absent => {}
                Read::Bad { why, .. } => {
                    let subject = "preferred replica election".to_owned();
                    self.note(Note::Rejected { subject, why: why.clone() });
                }
                Read::Value(request) => match &request.value {
                    Some(partitions) => self.prefer_all(&partitions.clone()),
                    None => self.prefer_all(&self.cluster.partitions.keys().cloned().collect::<Vec<_>>()),
                },
            }
            if let Some(version) = request.version() {
                self.preferred_in_flight = true;
                self.issue(Write::RemovePreferredElection { version }, Pending::PreferredElection);
            }
        }
        if self.config.auto_rebalance && self.next_balance <= self.now {
            self.next_balance = self.now.plus(self.config.imbalance_check_interval);
            self.balance();
        }
    }

    fn prefer_all(&mut self, partitions: &[TopicPartition]) {
        for tp in partitions {
            if let Some(partition) = self.cluster.partitions.get_mut(tp) {
                partition.work.prefer = true;
                self.cluster.dirty_partitions.insert(tp.clone());
            }
        }
    }

    /// Brokers that lead too few of the partitions that prefer them get them back.
    fn balance(&mut self) {
        let mut preferred: BTreeMap<BrokerId, (u64, Vec<TopicPartition>)> = BTreeMap::new();
        for (tp, partition) in self.cluster.partitions.iter() {
            let Some(state) = partition.state.value() else { continue };
            let Some(first) = self.target_of(partition).unwrap_or(&state.target).first() else { continue };
            let (all, elsewhere) = preferred.entry(*first).or_default();
            *all += 1;
            // A move in progress has its own rules.
            if state.leader != *first && is_held(partition) && partition.wanted.is_absent() {
                elsewhere.push(tp.clone());
            }
        }
        for (broker, (all, elsewhere)) in preferred {
            let missing = u64::try_from(elsewhere.len()).unwrap_or(u64::MAX);
            let too_few = missing * 100 > all * self.config.imbalance_percentage;
            if too_few && self.cluster.live(broker).is_some() {
                self.prefer_all(&elsewhere);
            }
        }
    }
}
