//! What a broker does with the controller's requests: the thin logic of the shell around the production rules.

use zurau_broker::cores::steps::{ReplicaLog, log_facts};
use zurau_broker::cores::take_over::{Found, Plan, ROUNDS_MAX, TakeOver, assumed, interpret, paths};
use zurau_broker::cores::{
    Absent, Admission, Replica, Stop, StopOrder, Verdict, judge_absent, judge_stop, leader::Office, stray,
};
use zurau_common::id::{LeaderEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::isr::StoredIsr;
use zurau_common::zk::op::MultiError;
use zurau_common::zk::znode::Znode;
use zurau_controller::action::StopReplica;
use zurau_controller::cores::Outgoing;
use zurau_controller::event::{Event, LeaderAndIsrAnswer};

use crate::broker::Lane;
use crate::log::MemoryLog;
use crate::messages::{Answer, Message, Order};
use crate::world::{World, partition};

impl World {
    pub(crate) fn obey(&mut self, broker: usize, order: Order) {
        let known = &mut *self.brokers[broker];
        let Some(process) = &mut known.process else { return };
        let named = (order.broker_epoch, process.broker_epoch);
        let (admission, _) = process.commander.admit((order.controller_epoch, order.connection), named);
        match admission {
            // The connection is closed unread; the controller asks again over another.
            Admission::Close => {}
            Admission::Refused(Rejection::StaleBrokerEpoch) => self.reply(&order, vec![Answer::NotHeard]),
            Admission::Refused(Rejection::StaleControllerEpoch) => {
                self.reply(&order, vec![Answer::NewerController]);
            }
            Admission::Refused(other) => unreachable!("{other:?} is no reason to refuse a whole request"),
            Admission::Admitted => self.carry_out(broker, order),
        }
    }

    fn reply(&mut self, order: &Order, answers: Vec<Answer>) {
        self.send(Message::OrderAnswered { to: order.from, from: order.to, answers });
    }

    fn carry_out(&mut self, broker: usize, order: Order) {
        self.referee.obeyed(&self.brokers[broker], &order);
        match order.body.clone() {
            Outgoing::LeaderAndIsr { full, partitions } => {
                let named = partitions.iter().any(|record| record.partition == partition());
                if full && !named {
                    self.brokers[broker].process.as_mut().expect("it runs").strays_due = true;
                }
                match partitions.into_iter().next() {
                    Some(record) => self.hear(broker, &order, record),
                    None => self.reply(&order, vec![Answer::Heard]),
                }
            }
            Outgoing::StopReplicas(stops) => {
                let stopped = stops.into_iter().map(|stop| {
                    let outcome = self.stop(broker, &stop);
                    let broker_epoch = order.broker_epoch;
                    let event = Event::ReplicaStopped { broker: order.to, broker_epoch, stop, outcome };
                    Answer::Event(Box::new(event))
                });
                let answers = stopped.collect();
                self.reply(&order, answers);
            }
            Outgoing::FullMetadata | Outgoing::Metadata(_) => {
                self.hear_metadata(broker, &order);
                self.reply(&order, vec![Answer::Heard]);
            }
            Outgoing::LogEnds(partitions) => {
                let log = self.brokers[broker].disk.log.as_ref();
                let epoch = |log: &MemoryLog| LeaderEpoch(log.latest_epoch().unwrap_or(-1));
                let end = log.map(|log| (epoch(log), log.log_end_offset()));
                let answers = partitions.into_iter().map(|partition| {
                    Answer::Event(Box::new(Event::LogEnd { broker: order.to, partition, end }))
                });
                let answers = answers.collect();
                self.reply(&order, answers);
            }
        }
    }

    fn hear_metadata(&mut self, broker: usize, order: &Order) {
        let now = self.now;
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.live = Some(order.live.iter().copied().collect());
        process.metadata.clone_from(&order.metadata);
        let live = process.live.clone().unwrap_or_default();
        if let Some(leader) = process.replica.as_mut().and_then(Replica::leader_mut) {
            leader.record_live_brokers(|id| live.contains(&id), now);
            if let Some(metadata) = &order.metadata {
                leader.hear_of_isr(metadata.leader_epoch, metadata.partition_epoch);
            }
        }
        self.propose(broker);
    }

    fn answer_record(
        &mut self,
        broker: usize,
        order: &Order,
        record: &LeaderAndIsr,
        outcome: Result<(), Rejection>,
    ) {
        let known = &self.brokers[broker];
        let replica = known.process.as_ref().and_then(|process| process.replica.as_ref());
        let told = replica.and_then(|replica| replica.view()).map(|view| view.leader_epoch);
        let recorded = known.disk.log.as_ref().and_then(|log| log.latest_epoch()).map(LeaderEpoch);
        let answer = LeaderAndIsrAnswer {
            partition: record.partition.clone(),
            leader_epoch: record.leader_epoch,
            outcome,
            highest_known_epoch: Some(told.max(recorded).unwrap_or(LeaderEpoch::UNKNOWN)),
        };
        let broker_epoch = order.broker_epoch;
        let event = Event::LeaderAndIsrAnswered { broker: order.to, broker_epoch, answers: vec![answer] };
        self.reply(order, vec![Answer::Event(Box::new(event))]);
    }

    /// LeaderAndIsr for the one partition.
    fn hear(&mut self, broker: usize, order: &Order, mut record: LeaderAndIsr) {
        if self.config.drops_elr {
            record.elr = None;
        }
        if let Some(held) = self.brokers[broker].disk.log.as_ref().map(|log| log.topic_id)
            && held != record.topic_id
            && !self.clear_the_way(broker, held)
        {
            self.answer_record(broker, order, &record, Err(Rejection::InconsistentTopicId));
            return;
        }
        let own = self.brokers[broker].id;
        if self.brokers[broker].disk.log.is_none() {
            let outcome = match judge_absent(&record, own) {
                Absent::Create => None,
                Absent::Nothing => Some(Ok(())),
                Absent::Refuse(rejection) => Some(Err(rejection)),
            };
            if let Some(outcome) = outcome {
                self.answer_record(broker, order, &record, outcome);
                return;
            }
            self.brokers[broker].disk.log = Some(MemoryLog::new(record.topic_id));
            self.brokers[broker].disk.lost = false;
            let truncation = self.config.truncation;
            let process = self.brokers[broker].process.as_mut().expect("it runs");
            process.replica = Some(Replica::new(own, record.topic_id, truncation));
        }
        if self.brokers[broker].process.as_ref().is_some_and(|process| process.log_failed) {
            self.answer_record(broker, order, &record, Err(Rejection::KafkaStorageError));
            return;
        }
        let known = &mut *self.brokers[broker];
        let process = known.process.as_mut().expect("it runs");
        let (Some(replica), Some(log)) = (&mut process.replica, &mut known.disk.log) else { return };
        match replica.judge(&record, log_facts(log)) {
            Verdict::Known(outcome) => {
                replica.hear(record.controller_epoch);
                self.answer_record(broker, order, &record, outcome);
            }
            Verdict::Refuse(rejection) => self.answer_record(broker, order, &record, Err(rejection)),
            Verdict::Follow => {
                process.commits.drain();
                process.proposer = crate::broker::Proposer::default();
                replica.follow(&record);
                self.answer_record(broker, order, &record, Ok(()));
            }
            Verdict::TakeOffice => self.take_office(broker, order, record),
        }
    }

    fn take_office(&mut self, broker: usize, order: &Order, record: LeaderAndIsr) {
        let (min, known) = (self.min_insync, &mut *self.brokers[broker]);
        let process = known.process.as_mut().expect("it runs");
        let (Some(replica), Some(log)) = (&mut process.replica, &mut known.disk.log) else { return };
        log.assign_epoch_start(record.leader_epoch);
        let epoch_start = log.log_end_offset();
        let led = replica.leader().is_some();
        let keeps = replica.begin_take_over(&record);
        if led && !keeps {
            self.referee.violate("N19: a leader that goes on drops its acknowledgements");
        }
        if !keeps {
            process.commits.drain();
        }
        let min_in_sync = min.min(record.target().len()).max(1);
        let take_over = TakeOver { epoch_start, min_in_sync };
        let lane = Lane {
            take_over,
            plan: None,
            rounds: 0,
            asker: order.from,
            broker_epoch: order.broker_epoch,
            order: record,
        };
        process.lane = Some(lane);
        if let Some(stored) = assumed(&process.lane.as_ref().expect("set").order, take_over) {
            self.plan(broker, (stored, false));
        }
    }

    fn plan(&mut self, broker: usize, found: (Option<StoredIsr>, bool)) {
        let own = self.brokers[broker].id;
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        let Some(lane) = &mut process.lane else { return };
        match Plan::decide(&lane.order, lane.take_over, found, own) {
            Ok(plan) => lane.plan = Some(plan),
            Err(rejection) => self.end_lane(broker, Err(rejection)),
        }
    }

    /// The next step of an office that is being taken: a look, or a write. `lost`: the answer does not come.
    pub(crate) fn take_over(&mut self, broker: usize, lost: bool) {
        let known = &mut *self.brokers[broker];
        let own = known.id;
        let Some(process) = &mut known.process else { return };
        let (session, own) = (process.session, (own, process.broker_epoch));
        let Some(lane) = &mut process.lane else { return };
        let Some(plan) = lane.plan.take() else {
            let nodes = self.zookeeper.get_many(&paths(&lane.order), 0);
            match interpret(&lane.order, &nodes, session) {
                Ok(Found::Decide { stored, delete_leader }) => self.plan(broker, (stored, delete_leader)),
                Ok(Found::InOffice(stored)) if stored.isr.contains(&own.0) => {
                    self.end_lane(broker, Ok(stored));
                }
                Ok(Found::InOffice(_)) => self.end_lane(broker, Err(Rejection::NotLeaderOrFollower)),
                Err(rejection) => self.end_lane(broker, Err(rejection)),
            }
            return;
        };
        lane.rounds += 1;
        let rounds = lane.rounds;
        let (ops, order) = (plan.operations(&lane.order, own), lane.order.clone());
        let result = self.zookeeper.multi(&ops, session);
        if result.is_ok() {
            self.referee.took_office(&self.zookeeper, (own.0, session), &order, self.now);
        }
        match result {
            Ok(_) if lost => {}
            Ok(_) => {
                let stored = plan.stored();
                self.end_lane(broker, Ok(stored));
            }
            Err(MultiError::SessionEnded | MultiError::Refused(_)) => {
                self.end_lane(broker, Err(Rejection::NotLeaderOrFollower));
            }
            Err(_) if ROUNDS_MAX <= rounds => self.end_lane(broker, Err(Rejection::NotLeaderOrFollower)),
            Err(_) => {}
        }
    }

    /// What is stored cannot be read for too long.
    pub(crate) fn give_take_over_up(&mut self, broker: usize) {
        self.end_lane(broker, Err(Rejection::NotLeaderOrFollower));
    }

    fn end_lane(&mut self, broker: usize, outcome: Result<StoredIsr, Rejection>) {
        let (now, rules) = (self.now, self.config.rules(self.min_insync));
        let known = &mut *self.brokers[broker];
        let own = known.id;
        let process = known.process.as_mut().expect("it runs");
        let Some(lane) = process.lane.take() else { return };
        let Some(replica) = &mut process.replica else { return };
        let outcome = match outcome {
            Ok(stored) => {
                let broker_epoch = process.broker_epoch;
                let epoch_start = lane.take_over.epoch_start;
                let office = Office { own, broker_epoch, epoch_start, rules };
                let serving = replica.take_office(&lane.order, office, stored, now);
                let live = process.live.clone();
                if let Some(leader) = replica.leader_mut() {
                    leader.record_live_brokers(|id| live.as_ref().is_none_or(|live| live.contains(&id)), now);
                }
                process.proposer = crate::broker::Proposer::default();
                if serving { Ok(()) } else { Err(Rejection::NotLeaderOrFollower) }
            }
            Err(rejection) => {
                process.commits.drain();
                replica.refuse_office(&lane.order, rejection);
                if holds(Rule::RefusedOfficeIsGivenBack) {
                    self.resign(broker);
                }
                Err(rejection)
            }
        };
        let order = Order {
            from: lane.asker,
            to: own,
            connection: 0,
            controller_epoch: lane.order.controller_epoch,
            broker_epoch: lane.broker_epoch,
            body: Outgoing::FullMetadata,
            live: Vec::new(),
            metadata: None,
        };
        self.answer_record(broker, &order, &lane.order, outcome);
        self.settle(broker);
        self.propose(broker);
    }

    /// Sets a directory of an incarnation aside that ZooKeeper does not know any more. Whether the way is free.
    fn clear_the_way(&mut self, broker: usize, held: TopicId) -> bool {
        if self.zookeeper.get(&Znode::TopicIdEntry(held).path()).is_some() {
            return false;
        }
        self.set_aside(broker);
        true
    }

    fn set_aside(&mut self, broker: usize) {
        let known = &mut *self.brokers[broker];
        if let Some(log) = known.disk.log.take() {
            known.disk.strays.push(log);
        }
        if let Some(process) = &mut known.process {
            process.replica = None;
            process.commits.drain();
        }
    }

    /// After a full order that did not name the partition.
    pub(crate) fn look_for_strays(&mut self, broker: usize) {
        let known = &mut *self.brokers[broker];
        let own = known.id;
        let Some(process) = &mut known.process else { return };
        process.strays_due = false;
        let Some(log) = &known.disk.log else { return };
        if process.replica.as_ref().is_some_and(|replica| replica.view().is_some()) {
            return;
        }
        let entry = self.zookeeper.get(&Znode::TopicIdEntry(log.topic_id).path());
        let state = self.zookeeper.get(&Znode::State(partition()).path());
        if stray(entry, state, own).is_some() {
            self.referee.set_aside(&self.zookeeper, own, log.topic_id);
            self.set_aside(broker);
        }
    }

    fn stop(&mut self, broker: usize, stop: &StopReplica) -> Result<(), Rejection> {
        let known = &mut *self.brokers[broker];
        let process = known.process.as_mut().expect("it runs");
        let (Some(replica), Some(log)) = (&mut process.replica, &known.disk.log) else { return Ok(()) };
        let order =
            StopOrder { topic_id: Some(stop.topic_id), leader_epoch: stop.leader_epoch, delete: true };
        match judge_stop(order, log.topic_id, replica) {
            Stop::Nothing => Ok(()),
            Stop::Refuse(rejection) => Err(rejection),
            Stop::Stop | Stop::Delete => {
                self.referee.deleted(&self.zookeeper, known.id, log.topic_id);
                process.replica = None;
                process.commits.drain();
                known.disk.log = None;
                Ok(())
            }
        }
    }

    /// A leader serves with the lease, or while it is certain without one.
    pub(crate) fn may_serve(&self, broker: usize) -> bool {
        let Some(process) = &self.brokers[broker].process else { return false };
        let Some(leader) = process.leader() else { return false };
        self.holds_lease(broker) || leader.may_serve_without_lease(self.now)
    }

    pub(crate) fn holds_lease(&self, broker: usize) -> bool {
        let Some(process) = &self.brokers[broker].process else { return false };
        if !holds(Rule::LeaseByWrites) {
            // Pings answered by a server that knows nothing.
            return true;
        }
        if process.lapsed && !holds(Rule::LeaseReturns) {
            return false;
        }
        self.now < process.lease_until
    }
}
