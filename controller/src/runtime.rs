//! The active controller's loop: waits for watch events, reads, outcomes, answers and requests; steps the machine;
//! carries out its actions. It decides nothing itself. A standby keeps the same memory up to date (`standby.rs`), so
//! that it has only to catch up when it takes office.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use zurau_common::id::ControllerEpoch;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::op::{MultiError, Op};
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::watch::TreeEvent;
use zurau_common::zk::znode::{CONTROLLER_WATCHES, Znode};

use crate::action::{Action, Note, Write};
use crate::api::AlterIsrOutcome;
use crate::api::{Api, BrokerRequest, ShutdownOutcome, WAITING_MAX};
use crate::claim::Office;
use crate::event::{Event, Millis, RequestId, WriteId, WriteOutcome};
use crate::health::{Health, Role};
use crate::inbox::{Inbox, Queued};
use crate::leadership::{prepare, resign, still_in_office, yield_if_outranked};
use crate::machine::{Machine, MachineConfig};
use crate::metrics::{Elections, InOffice, Metrics, Task};
use crate::mirror::{Mirror, Reading};
use crate::multi::{operations, parent_of_error, zxid_of};
use crate::outbox::{Outbox, Reply};
use crate::removal::remove_topic;
use crate::standby::{Elected, Memory, Watched};
use crate::story::tell;
use crate::watches::{Found, read};

/// Writes that go to ZooKeeper as one task; tasks run side by side.
const WRITES_PER_TASK: usize = 250;

/// Tasks whose writes are under way; the others wait, in the order in which they were asked for.
const TASKS_AT_ONCE: usize = 16;

/// Pause after ZooKeeper refused a read, before it is tried again.
const READ_PAUSE: Duration = Duration::from_millis(200);

/// Inputs that are taken together before the machine's actions are carried out.
const INPUTS_AT_ONCE: usize = 256;

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The session is over: everything known is worthless.
    Session,
    /// Somebody else is, or may become, the active controller.
    Deposed,
    Stopped,
}

/// What the loop runs with.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeConfig {
    pub(crate) controller_id: i32,
    pub(crate) machine: MachineConfig,
    pub(crate) socket_timeout: Duration,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) enum Input {
    Read(Reading, Result<Found, ReadError>),
    Written(Vec<(WriteId, Result<WriteOutcome, MultiError>)>),
    InOffice(bool),
}

enum Waiting {
    AlterIsr(oneshot::Sender<AlterIsrOutcome>),
    Shutdown(oneshot::Sender<ShutdownOutcome>),
}

pub(crate) struct Runtime {
    pub(crate) zookeeper: ZooKeeper,
    machine: Machine,
    pub(crate) mirror: Mirror,
    pub(crate) memory: Memory,
    outbox: Outbox,
    metrics: Arc<Metrics>,
    started: Instant,
    inputs: Inbox<Input>,
    /// Under way, and since when.
    writes: HashMap<WriteId, (Write, Instant)>,
    places: Arc<Semaphore>,
    waiting: HashMap<RequestId, (Waiting, Instant)>,
    /// Taken, but not in charge of the cluster yet.
    took_office: Option<Instant>,
    /// Those whose outcome the machine is being told.
    elections: Elections,
    next_request: u64,
    deposed: bool,
}

/// What is of the process, not of one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Station<'a> {
    pub(crate) identity: &'a ActiveController,
    pub(crate) api: &'a Arc<Api>,
    pub(crate) health: &'a Health,
    pub(crate) stop: &'a CancellationToken,
}

/// Keeps a copy of the tree until this process is the active controller, then serves until the office, the session or
/// the process ends.
///
/// # Errors
/// The office can never be taken, see [`crate::leadership::claim`].
pub(crate) async fn serve(
    zookeeper: &ZooKeeper,
    config: RuntimeConfig,
    station: Station<'_>,
) -> anyhow::Result<Ended> {
    let Station { identity, api, health, stop } = station;
    let (replies, mut answers) = Inbox::new();
    let (inputs, incoming) = Inbox::new();
    // Watches first, then the tree.
    let mut watched = Watched { watch: zookeeper.watch_trees(CONTROLLER_WATCHES), incoming };
    let mut runtime = Runtime::standby(zookeeper, config, inputs, replies);
    let office = match runtime.until_elected(&mut watched, identity, stop).await? {
        Elected::Office(office) => office,
        Elected::Not(ended) => return Ok(ended),
    };
    if let Err(error) = prepare(zookeeper).await {
        // The office is lost with the session, or tried again in it.
        warn!("the persistent znodes cannot be created: {error}");
        resign(zookeeper).await;
        return Ok(Ended::Deposed);
    }
    let Watched { mut watch, mut incoming } = watched;
    watch.caught_up().await;
    let (requests, mut asked) = mpsc::channel(WAITING_MAX);
    runtime.take_office(office);
    health.set_role(Role::Active(office.epoch));
    api.open(requests);
    let ended = loop {
        if watch.is_current() {
            runtime.decide_if_loaded();
        } else {
            // Deaf since the connection was lost: nothing is decided before the tree was read again (L1).
            runtime.decide_nothing();
        }
        if runtime.deposed {
            break Ended::Deposed;
        }
        runtime.read_next();
        let deadline = runtime.deadline();
        tokio::select! {
            () = stop.cancelled() => break Ended::Stopped,
            event = watch.next() => match event {
                None => break Ended::Session,
                Some(TreeEvent::Reset) => {
                    runtime.reset();
                    runtime.look_at_office();
                }
                Some(TreeEvent::Dirty(paths)) => runtime.dirty(paths),
            },
            Some(input) = incoming.recv() => {
                runtime.input(input);
                for _ in 0..INPUTS_AT_ONCE {
                    let Ok(input) = incoming.try_recv() else { break };
                    runtime.input(input);
                }
            }
            Some(reply) = answers.recv() => runtime.reply(reply),
            Some(request) = asked.recv() => {
                runtime.request(request, incoming.len() + answers.len() + asked.len());
            }
            () = sleep_until(deadline) => runtime.apply(Event::Tick),
        }
    };
    api.close();
    runtime.outbox.close();
    if ended == Ended::Stopped {
        // Before the memory of a large cluster is given back, which takes a while.
        resign(zookeeper).await;
    }
    Ok(ended)
}

impl Runtime {
    /// A controller that has no office yet.
    fn standby(
        zookeeper: &ZooKeeper,
        config: RuntimeConfig,
        inputs: Inbox<Input>,
        replies: Inbox<Reply>,
    ) -> Self {
        let epoch = ControllerEpoch(0);
        Self {
            zookeeper: zookeeper.clone(),
            outbox: Outbox::new(config.controller_id, epoch, config.socket_timeout, replies),
            machine: Machine::new(config.machine, epoch, 0, Millis(0)),
            mirror: Mirror::default(),
            memory: Memory::default(),
            metrics: config.metrics,
            started: Instant::now(),
            inputs,
            writes: HashMap::new(),
            places: Arc::new(Semaphore::new(TASKS_AT_ONCE)),
            waiting: HashMap::new(),
            took_office: None,
            elections: Elections::default(),
            next_request: 0,
            deposed: false,
        }
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn deadline(&self) -> Instant {
        /// An hour: when nothing is due.
        const IDLE: u64 = 3_600_000;
        let at = self.machine.next_deadline().map_or(self.now().0 + IDLE, |at| at.0);
        self.started + Duration::from_millis(at)
    }

    fn apply(&mut self, event: Event) {
        let (now, began) = (self.now(), Instant::now());
        let actions = self.machine.apply(event, now);
        self.metrics.events.record(began.elapsed());
        self.carry_out(actions);
    }

    /// The watches were set anew: decide nothing before everything was read.
    pub(crate) fn reset(&mut self) {
        self.mirror.read_everything();
        self.memory.complete = false;
        self.decide_nothing();
    }

    fn decide_nothing(&mut self) {
        self.memory.loaded = false;
        self.apply(Event::Reloading);
    }

    fn decide_if_loaded(&mut self) {
        if self.memory.is_current() && !self.memory.loaded {
            self.memory.loaded = true;
            self.apply(Event::Loaded);
        }
    }

    fn take_office(&mut self, office: Office) {
        self.took_office = Some(Instant::now());
        self.machine.take_office(office.epoch, office.epoch_version, self.now());
        self.memory.elected(&self.mirror);
    }

    fn dirty(&mut self, paths: Vec<String>) {
        if paths.iter().any(|path| *path == Znode::Controller.path()) {
            self.look_at_office();
        }
        self.mirror.mark(paths);
    }

    fn look_at_office(&self) {
        let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
        tokio::spawn(async move {
            // Without an answer there is a reset, or the session's end.
            if let Ok(held) = still_in_office(&zookeeper).await {
                inputs.put(Input::InOffice(held));
            }
        });
    }

    fn yield_if_outranked(&self) {
        let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
        let office = Office { epoch: self.machine.epoch(), epoch_version: self.machine.epoch_version() };
        tokio::spawn(async move {
            if let Ok(held) = yield_if_outranked(&zookeeper, office).await {
                inputs.put(Input::InOffice(held));
            }
        });
    }

    pub(crate) fn read_next(&mut self) {
        let Some(reading) = self.mirror.next_reading() else { return };
        let known = self.mirror.known_of(&reading);
        let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let found = read(&zookeeper, &reading, known).await;
            if let Err(error) = &found {
                debug!("a read failed: {error}");
                tokio::time::sleep(READ_PAUSE).await;
            }
            inputs.put(Input::Read(reading, found));
        });
    }

    pub(crate) fn input(&mut self, input: Queued<Input>) {
        match input.take(&self.metrics) {
            Input::InOffice(true) => {}
            Input::InOffice(false) => {
                warn!("the znode /controller is not owned by this session any more");
                self.deposed = true;
            }
            Input::Read(reading, Err(_)) => {
                self.mirror.failed(reading);
                self.memory.reading_began_late = true;
            }
            Input::Read(reading, Ok(found)) => {
                let facts = self.mirror.told(&reading, found);
                if !facts.is_empty() {
                    self.apply(Event::Facts(facts));
                }
                self.memory.read(&reading, &self.mirror);
            }
            Input::Written(outcomes) => self.written(outcomes),
        }
    }

    fn written(&mut self, outcomes: Vec<(WriteId, Result<WriteOutcome, MultiError>)>) {
        let mut told = Vec::with_capacity(outcomes.len());
        let mut elections = Elections::default();
        for (id, outcome) in outcomes {
            if let Some((write, began)) = self.writes.remove(&id) {
                self.mirror.write_ended(&write);
                match &write {
                    Write::Partition(change) => elections.took(&change.fence.partition, began.elapsed()),
                    Write::RemoveTopic { .. } if outcome.is_ok() => {
                        self.metrics.done(Task::TopicDeletion, began.elapsed());
                    }
                    _ => {}
                }
            }
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(MultiError::Failed { path, .. }) if path == Znode::ControllerEpoch.path() => {
                    warn!("a newer controller has taken office");
                    self.deposed = true;
                    WriteOutcome::Conflict
                }
                Err(MultiError::Failed { path, reason, .. }) => {
                    debug!(%path, ?reason, "a fence did not hold; reading again");
                    WriteOutcome::Conflict
                }
                Err(MultiError::Unknown) => WriteOutcome::Unknown,
                Err(error @ (MultiError::Refused(_) | MultiError::SessionEnded)) => {
                    debug!("a write was not sent: {error}");
                    WriteOutcome::Conflict
                }
            };
            told.push((id, outcome));
        }
        if !self.deposed {
            self.elections = elections;
            self.apply(Event::Written(told));
            self.elections = Elections::default();
        }
    }

    fn reply(&mut self, reply: Queued<Reply>) {
        match reply.take(&self.metrics) {
            Reply::Event(event @ Event::LeaderAndIsrAnswered { .. }) => {
                let began = Instant::now();
                self.apply(event);
                self.metrics.done(Task::LeaderAndIsrResponseReceived, began.elapsed());
            }
            Reply::Event(event) => self.apply(event),
            Reply::NewerController => self.yield_if_outranked(),
        }
    }

    fn request(&mut self, request: Queued<BrokerRequest>, waiting_events: usize) {
        let request = match request.what() {
            BrokerRequest::Observe { .. } => request.take_uncounted(),
            _ => request.take(&self.metrics),
        };
        let id = RequestId(self.next_request);
        self.next_request += 1;
        match request {
            BrokerRequest::AlterIsr { broker, broker_epoch, proposals, reply } => {
                self.waiting.insert(id, (Waiting::AlterIsr(reply), Instant::now()));
                self.apply(Event::AlterIsr { request: id, broker, broker_epoch, proposals });
            }
            BrokerRequest::ControlledShutdown { broker, broker_epoch, reply } => {
                info!(%broker, "broker asks for controlled shutdown");
                self.waiting.insert(id, (Waiting::Shutdown(reply), Instant::now()));
                self.apply(Event::ControlledShutdown { request: id, broker, broker_epoch });
            }
            BrokerRequest::Observe { reply } => {
                let (cluster, outbox) = (self.machine.statistics(), self.outbox.waiting());
                // Whoever asked may be gone.
                let _ = reply.send(InOffice { cluster, waiting_events, outbox });
            }
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        self.outbox.set_controller_epoch(self.machine.epoch());
        let mut writes = Vec::new();
        for action in actions {
            match action {
                Action::Write { id, write } => {
                    self.mirror.write_began(&write);
                    writes.push((id, write));
                }
                Action::ReadAgain(subject) => self.mirror.ask(subject),
                Action::LiveBrokers(live) => self.outbox.set_live_brokers(live),
                Action::LeaderAndIsr { broker, broker_epoch, partition } => {
                    self.outbox.leader_and_isr(broker, broker_epoch, partition);
                }
                Action::FullLeaderAndIsr { broker, broker_epoch, partitions } => {
                    self.outbox.full_leader_and_isr(broker, broker_epoch, partitions);
                }
                Action::StopReplica { broker, broker_epoch, stop } => {
                    self.outbox.stop_replica(broker, broker_epoch, stop);
                }
                Action::Metadata(changes) => self.outbox.metadata(changes),
                Action::QueryLogEnd { broker, broker_epoch, partition } => {
                    self.outbox.query_log_end(broker, broker_epoch, partition);
                }
                Action::AnswerAlterIsr { request, outcomes } => {
                    if let Some((Waiting::AlterIsr(reply), began)) = self.waiting.remove(&request) {
                        self.metrics.done(Task::IsrChange, began.elapsed());
                        let _ = reply.send(outcomes);
                    }
                }
                Action::AnswerControlledShutdown { request, outcome } => {
                    if let Some((Waiting::Shutdown(reply), began)) = self.waiting.remove(&request) {
                        self.metrics.done(Task::ControlledShutdown, began.elapsed());
                        let _ = reply.send(outcome);
                    }
                }
                Action::Note(note) => {
                    self.metrics.count(&note, &self.elections);
                    if let Note::TookOffice { .. } = note
                        && let Some(began) = self.took_office.take()
                    {
                        self.metrics.done(Task::ControllerChange, began.elapsed());
                    }
                    tell(&note);
                }
            }
        }
        self.send_writes(writes);
    }

    fn send_writes(&mut self, writes: Vec<(WriteId, Write)>) {
        let epoch_version = self.machine.epoch_version();
        let mut groups: Vec<(WriteId, Vec<Op>)> = Vec::new();
        for (id, write) in writes {
            let ops = operations(&write, epoch_version);
            match (&write, ops) {
                (Write::ReassignmentError { partition, text: Some(_), exists: false }, ops) => {
                    self.send_below(id, parent_of_error(partition), ops);
                }
                (_, Some(ops)) => groups.push((id, ops)),
                (Write::RemoveTopic { topic }, None) => {
                    let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
                    let topic = topic.clone();
                    tokio::spawn(async move {
                        let outcome = remove_topic(&zookeeper, &topic, epoch_version).await;
                        inputs.put(Input::Written(vec![(id, outcome)]));
                    });
                }
                (write, None) => unreachable!("{write:?} has no operations"),
            }
            self.writes.insert(id, (write, Instant::now()));
        }
        let mut groups = groups.into_iter();
        loop {
            let chunk: Vec<_> = groups.by_ref().take(WRITES_PER_TASK).collect();
            if chunk.is_empty() {
                return;
            }
            let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
            let places = Arc::clone(&self.places);
            tokio::spawn(async move {
                let _place = places.acquire_owned().await.expect("the semaphore is never closed");
                let stored = zookeeper.multi_batched(chunk).await.into_iter();
                let outcomes = stored.map(|(id, results)| {
                    (id, results.map(|results| WriteOutcome::Stored { zxid: zxid_of(&results) }))
                });
                inputs.put(Input::Written(outcomes.collect()));
            });
        }
    }

    /// A znode whose parent may be missing.
    fn send_below(&self, id: WriteId, parent: String, ops: Option<Vec<Op>>) {
        let (zookeeper, inputs) = (self.zookeeper.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let outcome = async {
                zookeeper.create_if_absent(&parent, b"").await?;
                let results = zookeeper.multi(&ops.unwrap_or_default()).await?;
                Ok(WriteOutcome::Stored { zxid: zxid_of(&results) })
            };
            inputs.put(Input::Written(vec![(id, outcome.await)]));
        });
    }
}
