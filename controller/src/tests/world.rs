//! The machine with a ZooKeeper and brokers that are maps: steps are taken until nothing more happens, and what
//! happened is written down.

use std::collections::{BTreeMap, VecDeque};

use zurau_common::assignment::{format_ids, parse_ids};
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::fence::{Expected, Fence, IsrWrite, PartitionWrite, build};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::Znode;

use super::zookeeper::FakeZooKeeper;
use crate::action::{Action, Note, PartitionMetadata, StopReplica, Write};
use crate::event::Subject;
use crate::event::{Event, LeaderAndIsrAnswer, Millis, WriteId, WriteOutcome};
use crate::machine::{Machine, MachineConfig};
use crate::mirror::{Mirror, Reading, broker_paths, partition_paths};
use crate::multi::{operations, zxid_of};

/// More steps than any story takes.
const STEPS_MAX: usize = 2_000;

/// What a broker does with an order to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Obey,
    Silent,
    Refuse(Rejection),
    /// As a broker whose epoch history is at least this.
    Ahead(LeaderEpoch),
}

#[derive(Debug, Clone)]
pub(super) struct SimBroker {
    pub(super) session: i64,
    pub(super) epoch: BrokerEpoch,
    pub(super) mood: Mood,
}

pub(super) struct World {
    pub(super) zookeeper: FakeZooKeeper,
    pub(super) machine: Machine,
    mirror: Mirror,
    pub(super) config: MachineConfig,
    pub(super) now: u64,
    pub(super) brokers: BTreeMap<i32, SimBroker>,
    next_session: i64,
    /// The controller hears nothing from ZooKeeper.
    pub(super) deaf: bool,
    /// Writes of the controller wait.
    pub(super) held: Option<Vec<(WriteId, Write)>>,
    /// The next write is stored, and its answer is lost.
    pub(super) lose_next: bool,
    /// A newer controller has raised the epoch: the shell has dropped this one.
    deposed: bool,
    queue: VecDeque<Event>,
    pub(super) metadata: BTreeMap<TopicPartition, PartitionMetadata>,
    pub(super) log: Vec<String>,
    pub(super) next_request: u64,
    /// Answers of silent brokers, as a patient outbox would get them in the end.
    pub(super) unanswered: Vec<Event>,
    /// Every order that was ever sent.
    pub(super) orders: Vec<(BrokerId, BrokerEpoch, LeaderAndIsr)>,
    pub(super) log_ends: BTreeMap<i32, (LeaderEpoch, i64)>,
}

impl World {
    pub(super) fn new() -> Self {
        let config = MachineConfig {
            session_timeout: 6_000,
            leader_election_wait: 30_000,
            unclean_election: false,
            delete_topics: true,
            auto_rebalance: false,
            imbalance_check_interval: 300_000,
            imbalance_percentage: 10,
            seed: 7,
        };
        let mut zookeeper = FakeZooKeeper::default();
        zookeeper.put("/controller_epoch", "1", 0);
        let mut world = Self {
            machine: Machine::new(config.clone(), ControllerEpoch(1), 0, Millis(0)),
            zookeeper,
            mirror: Mirror::default(),
            config,
            now: 0,
            brokers: BTreeMap::new(),
            next_session: 100,
            deaf: false,
            held: None,
            lose_next: false,
            deposed: false,
            queue: VecDeque::new(),
            metadata: BTreeMap::new(),
            log: Vec::new(),
            next_request: 0,
            unanswered: Vec::new(),
            orders: Vec::new(),
            log_ends: BTreeMap::new(),
        };
        world.reload();
        world
    }

    pub(super) fn say(&mut self, line: String) {
        self.log.push(line);
    }

    /// Another controller takes office; what the old one was doing is lost.
    pub(super) fn new_controller(&mut self) {
        let epoch: i32 = self.zookeeper.text("/controller_epoch").unwrap().parse().unwrap();
        self.zookeeper.put("/controller_epoch", &(epoch + 1).to_string(), 0);
        let version = self.zookeeper.get("/controller_epoch").unwrap().version;
        // The shell draws another seed for each office.
        self.config.seed += 1;
        self.machine =
            Machine::new(self.config.clone(), ControllerEpoch(epoch + 1), version, Millis(self.now));
        self.mirror = Mirror::default();
        self.queue.clear();
        self.unanswered.clear();
        self.metadata.clear();
        (self.deposed, self.deaf) = (false, false);
        self.held = self.held.as_ref().map(|_| Vec::new());
        self.reload();
    }

    /// The watches are set anew: everything is read.
    pub(super) fn reload(&mut self) {
        self.zookeeper.dirty.clear();
        self.queue.push_back(Event::Reloading);
        self.mirror.read_everything();
        self.run();
    }

    pub(super) fn start_broker(&mut self, id: i32) {
        let path = format!("/brokers/epochs/{id}");
        self.zookeeper.put(&path, "registration", 0);
        let epoch = BrokerEpoch(i64::from(self.zookeeper.get(&path).unwrap().version));
        self.next_session += 1;
        let session = self.next_session;
        self.zookeeper.put(&format!("/brokers/ids/{id}"), &format!("host{id}:9092"), session);
        self.brokers.insert(id, SimBroker { session, epoch, mood: Mood::Obey });
    }

    pub(super) fn stop_broker(&mut self, id: i32) {
        let broker = self.brokers.remove(&id).expect("a live broker");
        self.zookeeper.end_session(broker.session);
    }

    /// Takes steps until nothing more happens.
    pub(super) fn run(&mut self) {
        for step in 0.. {
            assert!(step < STEPS_MAX, "this never ends:\n{}", self.log[self.log.len() - 20..].join("\n"));
            if self.deposed {
                self.queue.clear();
                return;
            }
            if let Some(event) = self.queue.pop_front() {
                let actions = self.machine.apply(event, Millis(self.now));
                self.carry_out(actions);
                continue;
            }
            if self.deaf {
                return;
            }
            let dirty = std::mem::take(&mut self.zookeeper.dirty);
            self.mirror.mark(dirty);
            let Some(reading) = self.mirror.next_reading() else { return };
            let paths = self.paths_of(&reading);
            let found = paths.into_iter().map(|path| (path.clone(), self.zookeeper.get(&path).cloned()));
            let facts = self.mirror.told(&reading, found.collect());
            self.queue.push_back(Event::Facts(facts));
            if reading == Reading::All {
                self.queue.push_back(Event::Loaded);
            }
        }
    }

    fn paths_of(&self, reading: &Reading) -> Vec<String> {
        let Reading::Some { paths, subjects } = reading else { return self.zookeeper.paths() };
        let mut all = paths.clone();
        all.extend(self.mirror.known_of(reading));
        for subject in subjects {
            match subject {
                Subject::Broker(id) => all.extend(broker_paths(*id)),
                Subject::TopicId(id) => all.extend([Znode::TopicIdEntry(*id).path()]),
                Subject::Partition(tp) => all.extend(partition_paths(tp)),
                Subject::Wishes => all.extend([Znode::PreferredReplicaElection.path()]),
                Subject::Topic(topic) => {
                    all.extend([
                        Znode::DeleteTopic(topic.clone()).path(),
                        Znode::Topic(topic.clone()).path(),
                    ]);
                    all.extend(self.zookeeper.below(&Znode::Topic(topic.clone()).path()));
                }
            }
        }
        all.into_iter().collect()
    }

    /// Moves the clock, stopping at each deadline.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        let due = |machine: &Machine| machine.next_deadline().filter(|deadline| deadline.0 <= end);
        while let Some(deadline) = due(&self.machine).filter(|_| !self.deposed) {
            self.now = self.now.max(deadline.0);
            self.queue.push_back(Event::Tick);
            self.run();
        }
        self.now = end;
        self.queue.push_back(Event::Tick);
        self.run();
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.queue.push_back(event);
        self.run();
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Write { id, write } => {
                    self.mirror.write_began(&write);
                    match &mut self.held {
                        Some(held) => held.push((id, write)),
                        None => self.store(id, write),
                    }
                }
                Action::ReadAgain(subject) => self.mirror.ask(subject),
                Action::LiveBrokers(live) => {
                    let ids: Vec<BrokerId> = live.iter().map(|broker| broker.broker).collect();
                    self.say(format!("live {}", format_ids(&ids)));
                }
                Action::LeaderAndIsr { broker, broker_epoch, partition } => {
                    self.order(broker, broker_epoch, "", partition);
                }
                Action::FullLeaderAndIsr { broker, broker_epoch, partitions } => {
                    self.say(format!("to {broker}: everything, {} partitions", partitions.len()));
                    for partition in partitions {
                        self.order(broker, broker_epoch, "  ", partition);
                    }
                }
                Action::StopReplica { broker, broker_epoch, stop } => {
                    self.stop_replica(broker, broker_epoch, &stop);
                }
                Action::Metadata(changes) => {
                    for (tp, metadata) in changes {
                        match metadata {
                            Some(metadata) => self.metadata.insert(tp, metadata),
                            None => self.metadata.remove(&tp),
                        };
                    }
                }
                Action::QueryLogEnd { broker, partition, .. } => {
                    self.say(format!("to {broker}: how far goes {partition}?"));
                    if let Some(end) = self.log_ends.get(&broker.0).copied() {
                        self.queue.push_back(Event::LogEnd { broker, partition, end: Some(end) });
                    }
                }
                Action::AnswerAlterIsr { request, outcomes } => self.say_outcomes(request.0, outcomes),
                Action::AnswerControlledShutdown { request, outcome } => {
                    self.say(format!("answer {}: {outcome:?}", request.0));
                }
                Action::Note(note) => self.note(&note),
            }
        }
    }

    fn say_outcomes(
        &mut self,
        request: u64,
        outcomes: Result<Vec<Result<crate::action::StoredIsrAnswer, Rejection>>, Rejection>,
    ) {
        let text = match outcomes {
            Err(rejection) => format!("{rejection:?}"),
            Ok(outcomes) => {
                let one = |outcome: &Result<crate::action::StoredIsrAnswer, Rejection>| match outcome {
                    Ok(stored) => format!(
                        "stored isr {} elr {} version {}",
                        format_ids(&stored.isr),
                        format_ids(&stored.elr),
                        stored.partition_epoch
                    ),
                    Err(rejection) => format!("{rejection:?}"),
                };
                outcomes.iter().map(one).collect::<Vec<_>>().join("; ")
            }
        };
        self.say(format!("answer {request}: {text}"));
    }

    pub(super) fn store(&mut self, id: WriteId, write: Write) {
        let version = self.machine.epoch_version();
        let outcome = match operations(&write, version) {
            Some(ops) => self.zookeeper.multi(&ops, 0).map(|results| zxid_of(&results)),
            None => {
                let Write::RemoveTopic { topic } = &write else { unreachable!("{write:?}") };
                self.zookeeper.remove(&Znode::Topic(topic.clone()).path());
                self.zookeeper.remove(&Znode::DeleteTopic(topic.clone()).path());
                Ok(None)
            }
        };
        let outcome = match outcome {
            Ok(_) if std::mem::take(&mut self.lose_next) => {
                self.say("the answer of a write is lost".to_owned());
                WriteOutcome::Unknown
            }
            Ok(zxid) => WriteOutcome::Stored { zxid },
            Err(why) => {
                self.say(format!("conflict: {why}"));
                self.deposed |= why.starts_with("/controller_epoch");
                WriteOutcome::Conflict
            }
        };
        self.mirror.write_ended(&write);
        self.queue.push_back(Event::Written(vec![(id, outcome)]));
    }

    fn order(&mut self, broker: BrokerId, broker_epoch: BrokerEpoch, indent: &str, record: LeaderAndIsr) {
        self.orders.push((broker, broker_epoch, record.clone()));
        let tp = &record.partition;
        let epoch = record.leader_epoch;
        let mut text = format!("{indent}to {broker}: {tp} epoch {epoch} ");
        if record.leader == broker {
            text += &format!("lead, isr {} version {}", format_ids(&record.isr), record.partition_epoch);
        } else {
            text += &format!("follow {}", record.leader);
        }
        for (name, list) in [("adding", &record.adding_replicas), ("removing", &record.removing_replicas)] {
            if !list.is_empty() {
                text += &format!(", {name} {}", format_ids(list));
            }
        }
        if let Some(elr) = record.elr.as_ref().filter(|elr| !elr.is_empty()) {
            text += &format!(", elr {}", format_ids(elr));
        }
        text += if record.recovery { ", recovery" } else { "" };
        self.say(text);
        let Some(sim) = self.brokers.get(&broker.0).filter(|sim| sim.epoch == broker_epoch).cloned() else {
            return;
        };
        let mut highest = None;
        let outcome = match sim.mood {
            Mood::Silent => return,
            Mood::Refuse(rejection) if record.leader == broker => Err(rejection),
            Mood::Ahead(known) if epoch <= known => {
                highest = Some(known);
                Err(Rejection::FencedLeaderEpoch)
            }
            _ if record.leader == broker => self.take_over(&sim, &record),
            _ => Ok(()),
        };
        if let Err(rejection) = outcome {
            self.say(format!("{indent}{broker} refuses: {rejection:?}"));
        }
        let answer = LeaderAndIsrAnswer {
            partition: record.partition,
            leader_epoch: epoch,
            outcome,
            highest_known_epoch: highest,
        };
        self.queue.push_back(Event::LeaderAndIsrAnswered { broker, broker_epoch, answers: vec![answer] });
    }

    /// The take-over multi of coordination.md, section 4.
    fn take_over(&mut self, sim: &SimBroker, record: &LeaderAndIsr) -> Result<(), Rejection> {
        let tp = &record.partition;
        let leader = self.zookeeper.get(&Znode::Leader(tp.clone()).path());
        let state = self.zookeeper.get(&Znode::State(tp.clone()).path());
        if let (Some(leader), Some(state)) = (leader, state)
            && leader.czxid > state.mzxid
            && leader.ephemeral_owner == sim.session
        {
            return Ok(());
        }
        let fence = Fence {
            partition: tp.clone(),
            topic_id: record.topic_id,
            state: Expected::Version(record.state_version),
            isr: match record.partition_epoch {
                PartitionEpoch::CREATE => Expected::Absent,
                epoch => Expected::Version(epoch.0),
            },
            controller_epoch_version: None,
            broker_epochs: vec![(record.leader, sim.epoch)],
        };
        let elr_exists = self.zookeeper.get(&Znode::Elr(tp.clone()).path()).is_some();
        let write = PartitionWrite {
            isr: Some(IsrWrite { isr: record.isr.clone(), elr: vec![], elr_exists }),
            delete_leader: leader.is_some(),
            create_leader: Some(record.leader),
            ..PartitionWrite::default()
        };
        match self.zookeeper.multi(&build(&fence, &write), sim.session) {
            Ok(_) => Ok(()),
            Err(why) => {
                self.say(format!("{} cannot take office: {why}", record.leader));
                Err(Rejection::InvalidUpdateVersion)
            }
        }
    }

    fn stop_replica(&mut self, broker: BrokerId, broker_epoch: BrokerEpoch, stop: &StopReplica) {
        self.check_stop(broker, stop);
        let (tp, epoch) = (&stop.partition, stop.leader_epoch);
        self.say(format!("to {broker}: delete {tp} epoch {epoch}"));
        let obeys = self.brokers.get(&broker.0).is_some_and(|sim| sim.mood == Mood::Obey);
        let answer = Event::ReplicaStopped { broker, broker_epoch, stop: stop.clone(), outcome: Ok(()) };
        if obeys { self.queue.push_back(answer) } else { self.unanswered.push(answer) }
    }

    /// N5, F8: nobody who hosts the living incarnation is told to delete it.
    fn check_stop(&self, broker: BrokerId, stop: &StopReplica) {
        let entry = self.zookeeper.get(&Znode::TopicIdEntry(stop.topic_id).path());
        let state = self.zookeeper.get(&Znode::State(stop.partition.clone()).path());
        if let (Some(_), Some(state)) = (entry, state)
            && let Ok(state) = PartitionState::decode(&state.data)
        {
            assert!(
                !state.replicas.contains(&broker),
                "{broker} hosts what it shall delete: {stop:?} {state:?}"
            );
        }
    }

    fn note(&mut self, note: &Note) {
        let text = match note {
            Note::Elected { partition, leader, leader_epoch, reason, recovery } => {
                let unclean = if *recovery { ", UNCLEAN" } else { "" };
                format!("{partition}: epoch {leader_epoch}, leader {leader} ({reason:?}{unclean})")
            }
            Note::Offline { partition, why } => format!("{partition}: offline, {why}"),
            Note::IsrStored { .. } | Note::BrokerUp { .. } | Note::BrokerDown { .. } => return,
            Note::ProposalRefused { partition, broker, rejection } => {
                format!("{partition}: proposal of {broker} refused, {rejection:?}")
            }
            Note::TopicNamed { topic, .. } => format!("{topic}: has an id"),
            Note::TopicRemoved { topic } => format!("{topic}: removed"),
            Note::Rejected { subject, why } => format!("{subject}: {why}"),
            Note::TookOffice { epoch, .. } => format!("controller {epoch} in charge"),
            Note::WaitingForBrokers { registered, named } => {
                format!("waiting: {registered} of {named} brokers")
            }
        };
        self.say(text);
    }
}

pub(super) fn ids(text: &str) -> Vec<BrokerId> {
    if text == "[]" { Vec::new() } else { parse_ids(text.as_bytes()).expect("a set of ids") }
}
