//! What outcomes of writes and answers of brokers change.

use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicName, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::fence::{Expected, partition_epoch_after};

use crate::action::{Action, Note, PartitionExtra, Reason, StopReplica};
use crate::cluster::Partition;
use crate::event::{LeaderAndIsrAnswer, Read, Subject, Versioned, WriteOutcome};
use crate::machine::Machine;
use crate::office::{Office, Work};
use crate::pending::{PendingPartition, Purpose};

impl Machine {
    pub(crate) fn partition_written(&mut self, pending: PendingPartition, outcome: &WriteOutcome) {
        let tp = pending.fence.partition.clone();
        self.cluster.dirty_partitions.insert(tp.clone());
        self.partition_is_free(&tp.topic);
        let partition = self.cluster.partitions.get_or_insert(&tp);
        partition.work.in_flight = None;
        let WriteOutcome::Stored { zxid } = outcome else {
            // Nothing was stored, or perhaps it was: look, then decide again.
            partition.work.stale = true;
            match (pending.purpose, pending.write.state, outcome) {
                (Purpose::Proposal(proposal), ..) => self.proposal_again(&tp, proposal),
                (purpose @ Purpose::Epoch { .. }, Some(state), WriteOutcome::Unknown) => {
                    partition.work.lost = Some((state, purpose));
                }
                _ => {}
            }
            self.read_again(Subject::Partition(tp.clone()));
            return;
        };
        adopt(partition, &pending, *zxid);
        self.cluster.reindex(&tp);
        match pending.purpose {
            Purpose::Left => {}
            Purpose::Proposal(proposal) => self.proposal_stored(&tp, proposal),
            Purpose::Epoch { leader, registration, reason } => {
                self.epoch_stored(&tp, leader, registration, reason);
            }
        }
    }

    fn epoch_stored(
        &mut self,
        tp: &TopicPartition,
        leader: BrokerId,
        registration: BrokerEpoch,
        reason: Reason,
    ) {
        let deadline = self.now.plus(self.config.leader_election_wait);
        let partition = self.partition_mut(tp);
        partition.work.begin_epoch(Office::Awaited { registration, deadline });
        partition.work.epoch_floor = None;
        let state = partition.state.value().expect("it has been stored and is known");
        let (leader_epoch, recovery) = (state.leader_epoch, state.recovery);
        self.deadlines.insert((deadline, tp.clone()));
        self.note(Note::Elected { partition: tp.clone(), leader, leader_epoch, reason, recovery });
        self.send_leader_and_isr(tp);
    }

    /// An epoch whose answer was lost has been read back: it was stored.
    pub(crate) fn find_lost_epoch(&mut self, tp: &TopicPartition) {
        let partition = self.partition_mut(tp);
        if let Some((state, Purpose::Epoch { leader, registration, reason })) = partition.work.lost.take()
            && partition.state.value() == Some(&state)
        {
            self.epoch_stored(tp, leader, registration, reason);
        }
    }

    pub(crate) fn leader_and_isr_answered(
        &mut self,
        broker: BrokerId,
        registration: BrokerEpoch,
        answer: &LeaderAndIsrAnswer,
    ) {
        let now = self.now;
        let tp = &answer.partition;
        let started = self.standing(tp).is_some_and(|(_, started)| started);
        let Some(partition) = self.cluster.partitions.get_mut(tp) else { return };
        let Some(state) = partition.state.value() else { return };
        let Err(rejection) = answer.outcome else { return };
        if state.leader != broker {
            let ahead = answer.highest_known_epoch.filter(|highest| *highest > state.leader_epoch);
            if rejection == Rejection::FencedLeaderEpoch && ahead.is_some() {
                partition.work.epoch_floor = ahead;
                self.cluster.dirty_partitions.insert(tp.clone());
            }
            return;
        }
        // An answer about an earlier epoch or of another registration changes nothing.
        let awaited = partition.work.office;
        let Office::Awaited { registration: told, .. } = awaited else { return };
        if state.leader_epoch != answer.leader_epoch || told != registration {
            return;
        }
        self.cluster.dirty_partitions.insert(tp.clone());
        match rejection {
            // It lives in another registration by now: its znodes say which.
            Rejection::StaleBrokerEpoch => self.read_again(Subject::Broker(broker)),
            Rejection::FencedLeaderEpoch => {
                partition.work.epoch_floor = Some(answer.highest_known_epoch.unwrap_or(state.leader_epoch));
                partition.work.office = Office::Vacant(Reason::Refused);
            }
            // Its log of this topic id is not empty (N4): whatever happened, records exist.
            Rejection::IneligibleReplica if !started && holds(Rule::RecordsMeanStarted) => {
                partition.work.had_records = true
            }
            // The ground of the election moved, or the broker failed to lead: look again, take another.
            _ => {
                partition.work.refuse(broker, registration, now);
                partition.work.office = Office::Vacant(Reason::Refused);
                partition.work.stale = partition.work.in_flight.is_none();
                if partition.work.stale {
                    self.read_again(Subject::Partition(tp.clone()));
                }
            }
        }
    }

    pub(crate) fn replica_stopped(
        &mut self,
        broker: BrokerId,
        registration: BrokerEpoch,
        stop: &StopReplica,
        outcome: Result<(), Rejection>,
    ) {
        let tp = &stop.partition;
        let current = self.standing(tp).is_some_and(|(current, _)| current == stop.topic_id);
        let Some(partition) = self.cluster.partitions.get_mut(tp).filter(|_| current) else { return };
        // A late answer, from before the broker hosted the partition again, says nothing about the copy it has now.
        let asked = partition.work.stopping.get(&broker) == Some(&(registration, stop.leader_epoch));
        let gone =
            matches!(outcome, Ok(()) | Err(Rejection::UnknownTopicOrPartition | Rejection::UnknownTopicId));
        if asked && gone {
            partition.work.left.insert(broker);
            self.cluster.dirty_partitions.insert(tp.clone());
        }
    }

    /// Copies of an incarnation that has ended are deleted on the live hosts; the others find out when they return
    /// (D6).
    pub(crate) fn stop_incarnation(&mut self, topic: &TopicName, topic_id: TopicId) {
        let partitions: Vec<TopicPartition> =
            self.cluster.partitions_of(topic).map(|(tp, _)| tp.clone()).collect();
        let mut last_epoch = LeaderEpoch::UNKNOWN;
        for tp in partitions {
            let partition = self.partition_mut(&tp);
            let Some((_, hosts, epoch)) = partition.work.hosted.take_if(|(id, ..)| *id == topic_id) else {
                continue;
            };
            last_epoch = last_epoch.max(epoch);
            let lists =
                [&partition.isr, &partition.elr, &partition.leaving, &partition.replicas, &partition.wanted];
            let hosts =
                lists.iter().filter_map(|list| list.value()).fold(hosts, |all, list| union(&all, list));
            // What the controller was doing belonged to that incarnation.
            let published = partition.work.published.take();
            let in_flight = partition.work.in_flight;
            partition.work = Work { published, in_flight, ..Default::default() };
            for broker in hosts {
                let Some(live) = self.cluster.live(broker) else { continue };
                // Above every epoch that names the broker as a host (F9).
                let stop = StopReplica { partition: tp.clone(), topic_id, leader_epoch: epoch.next() };
                let broker_epoch = live.epoch;
                self.actions.push(Action::StopReplica { broker, broker_epoch, stop });
            }
            self.cluster.dirty_partitions.insert(tp);
        }
        if last_epoch != LeaderEpoch::UNKNOWN {
            self.cluster.former_epochs.note(topic, last_epoch);
        }
    }
}

/// Makes the facts what a stored multi wrote.
fn adopt(partition: &mut Partition, pending: &PendingPartition, zxid: Option<i64>) {
    let after = |expected: Expected| match expected {
        Expected::Absent => 0,
        Expected::Version(version) => version + 1,
    };
    let PendingPartition { fence, write, extra, .. } = pending;
    if let Some(state) = &write.state {
        let version = after(fence.state);
        // Set operations report the zxid; a creation does not, and `leader` is not judged before it is read.
        let mzxid = zxid.filter(|_| fence.state != Expected::Absent);
        partition.state = Read::Value(Versioned { value: state.clone(), version, mzxid });
        // No host of this epoch is told to delete what an earlier one left behind (N5).
        partition.work.left.retain(|broker| !state.replicas.contains(broker));
        partition.work.stopping.retain(|broker, _| !state.replicas.contains(broker));
    }
    if let Some(isr) = &write.isr {
        let version = partition_epoch_after(fence.isr).0;
        partition.isr = Read::Value(Versioned { value: isr.isr.clone(), version, mzxid: zxid });
        partition.elr = match (isr.elr.is_empty(), partition.elr.version()) {
            (true, _) => Read::Absent,
            (false, before) => Read::Value(Versioned {
                value: isr.elr.clone(),
                version: before.map_or(0, |version| version + 1),
                mzxid: zxid,
            }),
        };
    }
    if write.delete_leader {
        partition.leader = None;
    }
    adopt_extra(partition, extra, zxid);
}

fn adopt_extra(partition: &mut Partition, extra: &PartitionExtra, zxid: Option<i64>) {
    let written = |ids: &[BrokerId], before: Option<i32>| {
        let version = before.map_or(0, |version| version + 1);
        Read::Value(Versioned { value: ids.to_vec(), version, mzxid: zxid })
    };
    if let Some((ids, before)) = &extra.replicas {
        partition.replicas = written(ids, *before);
    }
    if extra.remove_wanted.is_some() {
        partition.wanted = Read::Absent;
    }
    if let Some((ids, before)) = &extra.leaving {
        partition.leaving = if ids.is_empty() { Read::Absent } else { written(ids, *before) };
        let gone = difference(&partition.work.left.iter().copied().collect::<Vec<_>>(), ids);
        for broker in gone {
            partition.work.left.remove(&broker);
            partition.work.stopping.remove(&broker);
        }
    }
}
