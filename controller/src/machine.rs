//! The controller's core: one owner of all its state, stepped by [`Machine::apply`].
//!
//! Each event first changes what is known, which marks brokers, topics and partitions as dirty. Then
//! the machine settles: it looks once at everything dirty, compares what stands in ZooKeeper with what should, and
//! asks for at most one write per partition and topic. The outcome of a write is an event again. So every decision is
//! made from stored facts at known versions, an event may come twice, late or not at all, and a new controller that
//! knows nothing but the znodes goes on where the old one stopped. No clock, no IO, no randomness (ids come from a
//! seed); work is in proportion to what changed.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, TopicId, TopicPartition};
use zurau_common::rule::{Rule, holds};

use crate::action::{Action, LiveBroker, Note, PartitionMetadata, Reason, Write};
use crate::cluster::Cluster;
use crate::event::{Event, Fact, Millis, Subject, WriteId, WriteOutcome};
use crate::office::{Deadline, Office};
use crate::pending::Pending;
use crate::requests::Requests;

/// What the machine needs to know of the configuration. Times in milliseconds.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    pub session_timeout: u64,
    /// `leader.election.wait.time.ms`.
    pub leader_election_wait: u64,
    /// `unclean.leader.election.enable`, unless a topic says otherwise.
    pub unclean_election: bool,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `auto.leader.rebalance.enable`.
    pub auto_rebalance: bool,
    /// `leader.imbalance.check.interval.seconds`, in milliseconds.
    pub imbalance_check_interval: u64,
    /// `leader.imbalance.per.broker.percentage`.
    pub imbalance_percentage: u64,
    /// Random; topic ids are drawn from it.
    pub seed: u128,
}

/// How far the controller is with taking office.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    /// A `state` names an epoch that is not below the own one; going above it (N14).
    Raising,
    /// Fewer than half of the brokers that host something are registered (L12).
    WaitingForBrokers {
        until: Millis,
    },
    Active,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(crate) config: MachineConfig,
    pub(crate) epoch: ControllerEpoch,
    /// Data version of `/controller_epoch`: every write checks it.
    pub(crate) epoch_version: i32,
    phase: Phase,
    reloading: bool,
    pub(crate) now: Millis,
    pub(crate) cluster: Cluster,
    pub(crate) writes: BTreeMap<WriteId, Pending>,
    next_write: u64,
    topic_ids_drawn: u64,
    pub(crate) deadlines: BTreeSet<Deadline>,
    /// Partitions whose leader's broker has been read again (L5).
    pub(crate) confirmed: BTreeSet<TopicPartition>,
    rereading: BTreeSet<Subject>,
    /// Metadata that changed since it was last sent out.
    pub(crate) metadata: BTreeMap<TopicPartition, Option<PartitionMetadata>>,
    live_brokers: Vec<LiveBroker>,
    pub(crate) requests: Requests,
    pub(crate) preferred_in_flight: bool,
    pub(crate) next_balance: Millis,
    pub(crate) actions: Vec<Action>,
}

impl Machine {
    /// A controller that has just claimed `/controller` and stored `epoch` as version `epoch_version`; or a standby,
    /// which is only told facts until [`Self::take_office`].
    pub fn new(config: MachineConfig, epoch: ControllerEpoch, epoch_version: i32, now: Millis) -> Self {
        let next_balance = now.plus(config.imbalance_check_interval);
        Self {
            config,
            epoch,
            epoch_version,
            phase: Phase::Loading,
            reloading: true,
            now,
            cluster: Cluster::default(),
            writes: BTreeMap::new(),
            next_write: 0,
            topic_ids_drawn: 0,
            deadlines: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            rereading: BTreeSet::new(),
            metadata: BTreeMap::new(),
            live_brokers: Vec::new(),
            requests: Requests::default(),
            preferred_in_flight: false,
            next_balance,
            actions: Vec::new(),
        }
    }

    /// The claim was stored, by a machine that has learned as a standby's; it decides nothing before
    /// [`Event::Loaded`].
    pub fn take_office(&mut self, epoch: ControllerEpoch, epoch_version: i32, now: Millis) {
        assert!(self.phase == Phase::Loading && self.reloading, "an active controller is elected again");
        (self.epoch, self.epoch_version, self.now) = (epoch, epoch_version, now);
        self.next_balance = now.plus(self.config.imbalance_check_interval);
    }

    pub fn epoch(&self) -> ControllerEpoch {
        self.epoch
    }

    /// Data version of `/controller_epoch` that this controller's writes check.
    pub fn epoch_version(&self) -> i32 {
        self.epoch_version
    }

    /// Whether the cluster is known and looked after.
    pub(crate) fn is_in_charge(&self) -> bool {
        self.phase == Phase::Active
    }

    /// When [`Event::Tick`] has something to do, if no other event comes before.
    pub fn next_deadline(&self) -> Option<Millis> {
        if self.reloading {
            return None;
        }
        let next = match self.phase {
            Phase::Loading | Phase::Raising => return None,
            Phase::WaitingForBrokers { until } => Some(until),
            Phase::Active => self.deadlines.first().map(|(at, _)| *at),
        };
        let others = [self.requests.next_deadline(), self.config.auto_rebalance.then_some(self.next_balance)];
        others.into_iter().flatten().chain(next).min()
    }

    /// Steps the machine. `now` never goes back.
    pub fn apply(&mut self, event: Event, now: Millis) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Reloading => self.reloading = true,
            Event::Loaded => self.reloading = false,
            Event::Facts(facts) => facts.into_iter().for_each(|fact| self.learn(fact)),
            Event::Written(outcomes) => {
                for (id, outcome) in outcomes {
                    self.written(id, &outcome);
                }
            }
            Event::LeaderAndIsrAnswered { broker, broker_epoch, answers } => {
                for answer in answers {
                    self.leader_and_isr_answered(broker, broker_epoch, &answer);
                }
            }
            Event::ReplicaStopped { broker, broker_epoch, stop, outcome } => {
                self.replica_stopped(broker, broker_epoch, &stop, outcome);
            }
            Event::LogEnd { broker, partition, end } => self.log_end(broker, &partition, end),
            Event::AlterIsr { request, broker, broker_epoch, proposals } => {
                self.alter_isr(request, broker, broker_epoch, proposals);
            }
            Event::ControlledShutdown { request, broker, broker_epoch } => {
                self.controlled_shutdown(request, broker, broker_epoch);
            }
            Event::Tick => {}
        }
        self.settle();
        std::mem::take(&mut self.actions)
    }

    fn learn(&mut self, fact: Fact) {
        if let Fact::Fresh(subject) = fact {
            self.fresh(subject);
        } else {
            self.cluster.learn(fact);
        }
    }

    /// What was asked for by [`Self::read_again`] has been read.
    fn fresh(&mut self, subject: Subject) {
        self.rereading.remove(&subject);
        match subject {
            Subject::Broker(broker) => {
                let waiting: Vec<TopicPartition> = self
                    .cluster
                    .hosted_by(broker)
                    .filter(|tp| self.cluster.partitions[*tp].work.confirming)
                    .cloned()
                    .collect();
                for tp in waiting {
                    self.confirmed.insert(tp.clone());
                    self.cluster.dirty_partitions.insert(tp);
                }
            }
            Subject::Topic(topic) => {
                if let Some(known) = self.cluster.topics.get_mut(&topic) {
                    known.stale = false;
                    known.fresh = true;
                    self.cluster.mark_topic(&topic);
                }
            }
            Subject::Partition(tp) => {
                if let Some(known) = self.cluster.partitions.get_mut(&tp) {
                    known.work.stale = false;
                    self.partition_is_free(&tp.topic);
                    self.cluster.dirty_partitions.insert(tp);
                }
            }
            Subject::TopicId(_) => {}
            Subject::Wishes => self.preferred_in_flight = false,
        }
    }

    /// Asks for a subject once, however many need it.
    pub(crate) fn read_again(&mut self, subject: Subject) {
        if self.rereading.insert(subject.clone()) {
            self.actions.push(Action::ReadAgain(subject));
        }
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.actions.push(Action::Note(note));
    }

    pub(crate) fn issue(&mut self, write: Write, pending: Pending) -> WriteId {
        let id = WriteId(self.next_write);
        self.next_write += 1;
        self.writes.insert(id, pending);
        self.actions.push(Action::Write { id, write });
        id
    }

    /// A random id: the seed is random, and a step with an odd increment never repeats a value.
    pub(crate) fn draw_topic_id(&mut self) -> TopicId {
        const STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        self.topic_ids_drawn += 1;
        let bits = self.config.seed.wrapping_add(STEP.wrapping_mul(u128::from(self.topic_ids_drawn)));
        TopicId(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active && !self.reloading
    }

    fn settle(&mut self) {
        if self.reloading {
            return;
        }
        let begins = self.phase != Phase::Active;
        match self.phase {
            Phase::Loading => self.begin(),
            Phase::Raising => {}
            Phase::WaitingForBrokers { .. } => self.wait_for_brokers(),
            Phase::Active => {}
        }
        if self.phase != Phase::Active {
            return;
        }
        self.meet_deadlines();
        self.settle_brokers(begins);
        self.look_for_preferred_leaders();
        loop {
            if let Some(topic) = self.cluster.dirty_topics.pop_first() {
                self.step_topic(&topic);
            } else if let Some(partition) = self.cluster.dirty_partitions.pop_first() {
                self.step_partition(&partition);
            } else if !self.send_full_leader_and_isr() {
                break;
            }
        }
        if !self.metadata.is_empty() {
            let changes = std::mem::take(&mut self.metadata).into_iter().collect();
            self.actions.push(Action::Metadata(changes));
        }
        self.answer_shutdowns();
    }

    /// The whole tree has been read for the first time.
    fn begin(&mut self) {
        let states = self.cluster.partitions.values().filter_map(|partition| partition.state.value());
        let highest = states.map(|state| state.controller_epoch).max();
        let above = highest.filter(|highest| *highest >= self.epoch && holds(Rule::EpochAboveTree));
        if let Some(highest) = above {
            self.phase = Phase::Raising;
            let epoch = ControllerEpoch(highest.0 + 1);
            self.issue(Write::RaiseControllerEpoch { epoch }, Pending::RaiseEpoch(epoch));
            return;
        }
        let until = self.now.plus(self.config.session_timeout);
        self.phase = Phase::WaitingForBrokers { until };
        let (registered, named) = self.count_brokers();
        if 2 * registered < named {
            self.note(Note::WaitingForBrokers { registered, named });
        }
        self.wait_for_brokers();
    }

    fn epoch_raised(&mut self, epoch: ControllerEpoch, outcome: &WriteOutcome) {
        match outcome {
            WriteOutcome::Stored { .. } => {
                self.epoch = epoch;
                self.epoch_version += 1;
                // All states are below it now.
                self.phase = Phase::Loading;
            }
            // It is written again. If it was stored, the version has moved, and the shell learns from the conflict that
            // the office has to be claimed anew (L2).
            WriteOutcome::Unknown if holds(Rule::RaiseIsRepeated) => self.phase = Phase::Loading,
            // Somebody else wrote the epoch: the shell learns that it is no controller any more.
            WriteOutcome::Unknown | WriteOutcome::Conflict => {}
        }
    }

    /// Brokers that host something, and how many of them are registered.
    fn count_brokers(&self) -> (usize, usize) {
        let states = self.cluster.partitions.values().filter_map(|partition| partition.state.value());
        let named: BTreeSet<BrokerId> = states.flat_map(|state| state.replicas.iter().copied()).collect();
        let registered = named.iter().filter(|broker| self.cluster.live(**broker).is_some()).count();
        (registered, named.len())
    }

    fn wait_for_brokers(&mut self) {
        let Phase::WaitingForBrokers { until } = self.phase else { return };
        let (registered, named) = self.count_brokers();
        if 2 * registered < named && self.now < until && holds(Rule::WaitForBrokers) {
            return;
        }
        self.phase = Phase::Active;
        self.note(Note::TookOffice {
            epoch: self.epoch,
            brokers: registered,
            partitions: self.cluster.partitions.len(),
        });
        self.cluster.changed_brokers.extend(self.cluster.brokers.keys().copied());
        self.cluster.dirty_topics.extend(self.cluster.topics.keys().cloned());
        self.cluster.dirty_topics.extend(self.cluster.partitions.keys().map(|tp| tp.topic.clone()));
        let mut all: BTreeSet<TopicPartition> = self.cluster.partitions.keys().cloned().collect();
        self.cluster.dirty_partitions.append(&mut all);
    }

    fn meet_deadlines(&mut self) {
        while let Some((at, _)) = self.deadlines.first()
            && *at <= self.now
        {
            let (_, partition) = self.deadlines.pop_first().expect("there is a first one");
            self.cluster.dirty_partitions.insert(partition);
        }
    }

    /// Turns changes of registrations into what they mean for partitions and other brokers. `begins`: every partition
    /// is looked at anyway.
    fn settle_brokers(&mut self, begins: bool) {
        let changed = std::mem::take(&mut self.cluster.changed_brokers);
        if changed.is_empty() {
            return;
        }
        for id in changed {
            let Some(broker) = self.cluster.brokers.get_mut(&id) else { continue };
            let live = broker.live().map(|live| live.epoch);
            if live == broker.announced {
                continue;
            }
            let before = std::mem::replace(&mut broker.announced, live);
            if before.is_some() {
                self.actions.push(Action::Note(Note::BrokerDown { broker: id }));
            }
            if let Some(broker_epoch) = live {
                self.actions.push(Action::Note(Note::BrokerUp { broker: id, broker_epoch }));
            }
            if !begins {
                self.cluster.mark_broker(id);
            }
            if live.is_some() && !holds(Rule::FollowerBouncesFreely) {
                let hosted: Vec<TopicPartition> = self.cluster.hosted_by(id).cloned().collect();
                for tp in hosted {
                    self.partition_mut(&tp).work.office = Office::Vacant(Reason::BrokerRestarted);
                }
            }
        }
        let live_brokers = self.cluster.brokers.iter().filter_map(|(id, broker)| {
            let live = broker.live()?;
            let address = broker.address()?.clone();
            let endpoints = broker.endpoints.clone();
            Some(LiveBroker { broker: *id, broker_epoch: live.epoch, address, endpoints })
        });
        let live_brokers: Vec<LiveBroker> = live_brokers.collect();
        if live_brokers != self.live_brokers {
            self.live_brokers.clone_from(&live_brokers);
            self.actions.push(Action::LiveBrokers(live_brokers));
        }
    }

    /// The leader's registration, when it is the one that asked for controlled shutdown.
    pub(crate) fn is_leaving(&self, broker: BrokerId) -> bool {
        self.cluster.brokers.get(&broker).is_some_and(|known| {
            known.leaving_in.is_some() && known.leaving_in == known.live().map(|live| live.epoch)
        })
    }

    pub(crate) fn is_current(&self, broker: BrokerId, epoch: BrokerEpoch) -> bool {
        self.cluster.live(broker).is_some_and(|live| live.epoch == epoch)
    }

    fn written(&mut self, id: WriteId, outcome: &WriteOutcome) {
        let Some(pending) = self.writes.remove(&id) else { return };
        match pending {
            Pending::RaiseEpoch(epoch) => self.epoch_raised(epoch, outcome),
            Pending::PreferredElection => self.read_again(Subject::Wishes),
            Pending::Partition(pending) => self.partition_written(*pending, outcome),
            Pending::Topic { topic, change } => self.topic_written(&topic, &change, outcome),
            Pending::Complaint(complaint) => self.complaint_written(complaint, outcome),
        }
    }
}

/// Topic ids are version 4 UUIDs: never nil, never Kafka's reserved ones.
#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn drawn_topic_ids_differ_and_are_not_nil() {
        let config = MachineConfig {
            session_timeout: 1,
            leader_election_wait: 1,
            unclean_election: false,
            delete_topics: true,
            auto_rebalance: false,
            imbalance_check_interval: 1,
            imbalance_percentage: 10,
            seed: 0,
        };
        let mut machine = Machine::new(config, ControllerEpoch(1), 0, Millis(0));
        let ids: BTreeSet<TopicId> = (0..1000).map(|_| machine.draw_topic_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.0 != Uuid::nil()));
    }
}
