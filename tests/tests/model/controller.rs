//! A controller process: the production machine, mirror and queues, with the thin logic of their shell around them.

use std::collections::{BTreeMap, VecDeque};

use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch};
use zurau_common::zk::op::{MultiError, Node};
use zurau_common::zk::znode::Znode;
use zurau_controller::action::{Action, LiveBroker, Note, PartitionMetadata, Write};
use zurau_controller::cores::{
    BrokerQueue, Mirror, Office, Outgoing, Reading, broker_paths, operations, partition_paths, zxid_of,
};
use zurau_controller::event::{Event, Millis, RequestId, Subject, WriteId, WriteOutcome};
use zurau_controller::machine::{Machine, MachineConfig};

use crate::zookeeper::ZooKeeper;

/// What one broker has still to be told, and what is under way to it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) epoch: BrokerEpoch,
    pub(crate) queue: BrokerQueue,
    /// Number of the request, and the request.
    pub(crate) under_way: Option<(u64, Outgoing)>,
    pub(crate) connection: u64,
}

/// A write that was stored or not, whose outcome the machine does not know yet.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    id: WriteId,
    write: Write,
    outcome: WriteOutcome,
    deposed: bool,
}

/// Nodes by path, as they were read.
type Found = Vec<(String, Option<Node>)>;

/// A controller in office.
#[derive(Debug, Clone)]
pub(crate) struct Active {
    /// Tells this office from others of any controller.
    pub(crate) serial: u64,
    pub(crate) machine: Machine,
    pub(crate) mirror: Mirror,
    pub(crate) reading: Option<(Reading, Found)>,
    pub(crate) writes: VecDeque<(WriteId, Write)>,
    pub(crate) done: VecDeque<Done>,
    pub(crate) links: BTreeMap<BrokerId, Link>,
    pub(crate) live: Vec<LiveBroker>,
    pub(crate) metadata: Option<PartitionMetadata>,
    /// Who waits for the answer to which request: broker, its process, its call.
    pub(crate) waiting: BTreeMap<RequestId, (BrokerId, u64, u64)>,
    /// The last number of a request, by broker.
    pub(crate) last_numbers: BTreeMap<BrokerId, u64>,
    deposed: bool,
    /// When the office was taken.
    pub(crate) since: u64,
}

/// What the world has to do for a controller after a step.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    Answer {
        request: RequestId,
        outcomes: Result<
            Vec<Result<zurau_controller::action::StoredIsrAnswer, zurau_common::rejection::Rejection>>,
            zurau_common::rejection::Rejection,
        >,
    },
    Note(Note),
}

impl Active {
    pub(crate) fn new(config: MachineConfig, office: Office, serial: u64, now: u64) -> Self {
        let mut mirror = Mirror::default();
        mirror.read_everything();
        Self {
            serial,
            machine: Machine::new(config, office.epoch, office.epoch_version, Millis(now)),
            mirror,
            reading: None,
            writes: VecDeque::new(),
            done: VecDeque::new(),
            links: BTreeMap::new(),
            live: Vec::new(),
            metadata: None,
            waiting: BTreeMap::new(),
            last_numbers: BTreeMap::new(),
            deposed: false,
            since: now,
        }
    }

    pub(crate) fn epoch(&self) -> ControllerEpoch {
        self.machine.epoch()
    }

    pub(crate) fn is_deposed(&self) -> bool {
        self.deposed
    }

    pub(crate) fn depose(&mut self) {
        self.deposed = true;
    }

    /// The machine's step, and what follows from it inside of the controller.
    pub(crate) fn apply(&mut self, event: Event, now: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for action in self.machine.apply(event, Millis(now)) {
            match action {
                Action::Write { id, write } => {
                    self.mirror.write_began(&write);
                    self.writes.push_back((id, write));
                }
                Action::ReadAgain(subject) => self.mirror.ask(subject),
                Action::LiveBrokers(live) => self.set_live(live),
                Action::LeaderAndIsr { broker, broker_epoch, partition } => {
                    self.change(broker, broker_epoch, |queue| queue.tell(partition));
                }
                Action::FullLeaderAndIsr { broker, broker_epoch, partitions } => {
                    self.change(broker, broker_epoch, |queue| queue.tell_everything(partitions));
                }
                Action::StopReplica { broker, broker_epoch, stop } => {
                    self.change(broker, broker_epoch, |queue| queue.stop(stop));
                }
                Action::Metadata(changes) => {
                    if let Some((_, last)) = changes.last() {
                        self.metadata.clone_from(last);
                    }
                    self.links.values_mut().for_each(|link| link.queue.publish(&changes));
                }
                Action::QueryLogEnd { broker, broker_epoch, partition } => {
                    self.change(broker, broker_epoch, |queue| queue.ask_log_end(partition));
                }
                Action::AnswerAlterIsr { request, outcomes } => {
                    effects.push(Effect::Answer { request, outcomes });
                }
                Action::AnswerControlledShutdown { .. } => {}
                Action::Note(note) => effects.push(Effect::Note(note)),
            }
        }
        effects
    }

    fn change(&mut self, broker: BrokerId, epoch: BrokerEpoch, change: impl FnOnce(&mut BrokerQueue)) {
        if let Some(link) = self.links.get_mut(&broker).filter(|link| link.epoch == epoch) {
            change(&mut link.queue);
        }
    }

    fn set_live(&mut self, live: Vec<LiveBroker>) {
        let epoch_of = |id: BrokerId| live.iter().find(|now| now.broker == id).map(|now| now.broker_epoch);
        self.links.retain(|id, link| epoch_of(*id) == Some(link.epoch));
        self.links.values_mut().for_each(|link| link.queue.brokers_changed());
        for broker in &live {
            self.links.entry(broker.broker).or_insert_with(|| Link {
                epoch: broker.broker_epoch,
                queue: BrokerQueue::new(),
                under_way: None,
                connection: 0,
            });
        }
        self.live = live;
    }

    /// A number that nobody waits under is used again.
    pub(crate) fn ask(&mut self, who: (BrokerId, u64, u64)) -> RequestId {
        let free = (1..).map(RequestId).find(|id| !self.waiting.contains_key(id));
        let id = free.expect("there are more numbers than requests");
        self.waiting.insert(id, who);
        id
    }

    /// Begins the next reading: what is read now is told later.
    pub(crate) fn read(&mut self, zookeeper: &ZooKeeper) {
        let Some(reading) = self.mirror.next_reading() else { return };
        let paths = paths_of(&self.mirror, zookeeper, &reading);
        let found = paths.into_iter().map(|path| (path.clone(), zookeeper.get(&path).cloned())).collect();
        self.reading = Some((reading, found));
    }

    pub(crate) fn told(&mut self, now: u64) -> Vec<Effect> {
        let Some((reading, found)) = self.reading.take() else { return Vec::new() };
        let facts = self.mirror.told(&reading, found);
        let mut effects = Vec::new();
        if !facts.is_empty() {
            effects = self.apply(Event::Facts(facts), now);
        }
        if reading == Reading::All && !self.mirror.must_read_everything() {
            effects.extend(self.apply(Event::Loaded, now));
        }
        effects
    }

    /// The watches were lost and set anew.
    pub(crate) fn reset(&mut self, now: u64) -> Vec<Effect> {
        if zurau_common::rule::holds(zurau_common::rule::Rule::ReadAfterDeafness) {
            self.mirror.read_everything();
            return self.apply(Event::Reloading, now);
        }
        Vec::new()
    }

    /// Stores the oldest write. `lost`: its answer does not arrive.
    pub(crate) fn store(&mut self, zookeeper: &mut ZooKeeper, session: i64, lost: bool) -> Option<Stored> {
        let (id, write) = self.writes.pop_front()?;
        let ops = match (&write, operations(&write, self.machine.epoch_version())) {
            (_, Some(ops)) => ops,
            (Write::RemoveTopic { topic }, None) => {
                zookeeper.remove(&Znode::Topic(topic.clone()).path());
                zookeeper.remove(&Znode::DeleteTopic(topic.clone()).path());
                self.done.push_back(Done {
                    id,
                    write,
                    outcome: WriteOutcome::Stored { zxid: None },
                    deposed: false,
                });
                return None;
            }
            (write, None) => unreachable!("{write:?} has no operations"),
        };
        if let Write::ReassignmentError { .. } = &write
            && let Some(parent) = ops.last().and_then(|op| op.path().rsplit_once('/'))
            && zookeeper.get(parent.0).is_none()
        {
            zookeeper.put(parent.0, b"");
        }
        let result = zookeeper.multi(&ops, session);
        let stored = result.is_ok().then(|| Stored { write: write.clone(), epoch: self.epoch() });
        let (mut outcome, deposed) = match result {
            Ok(results) => (WriteOutcome::Stored { zxid: zxid_of(&results) }, false),
            Err(MultiError::Failed { path, .. }) => {
                (WriteOutcome::Conflict, path == Znode::ControllerEpoch.path())
            }
            Err(_) => (WriteOutcome::Conflict, false),
        };
        let deposed = deposed && !lost;
        if lost {
            outcome = WriteOutcome::Unknown;
        }
        self.done.push_back(Done { id, write, outcome, deposed });
        stored
    }

    /// The outcome of the oldest write arrives.
    pub(crate) fn hear_outcome(&mut self, now: u64) -> Vec<Effect> {
        let Some(done) = self.done.pop_front() else { return Vec::new() };
        self.mirror.write_ended(&done.write);
        self.deposed |= done.deposed;
        if self.deposed {
            return Vec::new();
        }
        self.apply(Event::Written(vec![(done.id, done.outcome)]), now)
    }

    pub(crate) fn has_to_read(&self) -> bool {
        self.reading.is_none() && self.mirror.clone().next_reading().is_some()
    }
}

/// A write of a controller that took effect.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) write: Write,
    pub(crate) epoch: ControllerEpoch,
}

fn paths_of(mirror: &Mirror, zookeeper: &ZooKeeper, reading: &Reading) -> Vec<String> {
    let Reading::Some { paths, subjects } = reading else {
        return zookeeper.paths().cloned().collect();
    };
    let mut all = paths.clone();
    all.extend(mirror.known_of(reading));
    for subject in subjects {
        match subject {
            Subject::Broker(id) => all.extend(broker_paths(*id)),
            Subject::TopicId(id) => all.extend([Znode::TopicIdEntry(*id).path()]),
            Subject::Partition(tp) => all.extend(partition_paths(tp)),
            Subject::Wishes => all.extend([Znode::PreferredReplicaElection.path()]),
            Subject::Topic(topic) => {
                all.extend([Znode::DeleteTopic(topic.clone()).path(), Znode::Topic(topic.clone()).path()]);
                all.extend(zookeeper.below(&Znode::Topic(topic.clone()).path()));
            }
        }
    }
    all.into_iter().collect()
}

/// A controller process.
#[derive(Debug, Clone)]
pub(crate) struct Controller {
    pub(crate) session: i64,
    pub(crate) office: Option<Active>,
    /// ZooKeeper cannot be reached since then.
    pub(crate) cut_off_since: Option<u64>,
}
