//! The world: brokers, partitions, applications, and the messages between them. What a shell does around a core is done
//! here in its order.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zurau_common::rejection::Rejection;

use super::broker::Broker;
use super::client::{App, Versions};
use super::dice::Dice;
use super::log::{Appended, Node, Place, Replicated, Token};
use super::messages::{Answered, Asked, Caller, MarkerFor, Message, ReplyTo};
use super::referee::Referee;
use crate::coordinator::{BatchStyle, Now, Producer, encode_batch};
use crate::log::{AppendOrigin, Asking, BatchHeader, Verification, VerificationGuard};
use crate::transactions::{EndRequest, QueueKey, Request, Transaction, TransactionRecord, TransactionState};

pub(super) const BROKERS: usize = 3;

/// Who waits for a batch to be committed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waiting {
    Transactions(Node, i32),
    Groups(Node, i32),
    Client(Caller),
    Marker { delivery: u64, key: QueueKey, place: Place },
}

/// A question to a transaction coordinator, and what goes on when it is answered.
#[derive(Debug)]
struct Verifying {
    node: Node,
    from: Caller,
    what: Asked,
    guard: VerificationGuard,
}

/// A request for markers that is being served.
#[derive(Debug)]
struct Delivery {
    from: Node,
    request: u64,
    missing: usize,
    outcomes: super::broker::Outcomes,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now_ms: i64,
    pub(super) dice: Dice,
    pub(super) partitions: BTreeMap<Place, Replicated>,
    pub(super) brokers: Vec<Broker>,
    pub(super) apps: Vec<App>,
    pub(super) flying: Vec<Message>,
    /// Messages that take their time.
    pub(super) late: Vec<Message>,
    pub(super) referee: Referee,
    waiting: BTreeMap<Token, Waiting>,
    verifying: BTreeMap<u64, Verifying>,
    deliveries: BTreeMap<u64, Delivery>,
    last_number: u64,
    pub(super) last_producer_id: i64,
    /// Each thing that happens is printed.
    pub(super) tells: bool,
}

impl World {
    pub(super) fn new(seed: u64, apps: usize, versions: Versions) -> Self {
        let mut world = Self {
            now_ms: 1_000_000,
            dice: Dice::new(seed),
            partitions: Place::all().map(|place| (place, Replicated::new(0))).collect(),
            brokers: (0..BROKERS).map(Broker::new).collect(),
            apps: (0..apps).map(|slot| App::new(slot, 0, versions)).collect(),
            flying: Vec::new(),
            late: Vec::new(),
            referee: Referee::default(),
            waiting: BTreeMap::new(),
            verifying: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            last_number: 0,
            last_producer_id: 99,
            tells: false,
        };
        for node in 0..BROKERS {
            world.keep_up(node);
        }
        world
    }

    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            println!("      {}", what());
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { elapsed_ms: self.now_ms, wall_ms: self.now_ms }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Appends where a broker believes to lead, in that epoch if one is named, and waits for the commit.
    pub(super) fn append(
        &mut self,
        (node, place): (Node, Place),
        epoch: Option<i32>,
        (batch, origin, verification): (&Bytes, AppendOrigin, Verification),
    ) -> Result<Appended, Rejection> {
        let (now_ms, partition) = (self.now_ms, self.partitions.get_mut(&place).expect("it exists"));
        let lead = partition.leads.get_mut(&node).ok_or(Rejection::NotLeaderOrFollower)?;
        if epoch.is_some_and(|epoch| epoch != lead.epoch) {
            return Err(Rejection::NotLeaderOrFollower);
        }
        if partition.is_small {
            return Err(Rejection::NotEnoughReplicas);
        }
        lead.append(batch, (origin, verification), now_ms)
    }

    /// Waits for the commit of what was appended.
    pub(super) fn wait(&mut self, (node, place): (Node, Place), appended: Appended, who: Waiting) -> Token {
        let token = Token(self.next_number());
        self.waiting.insert(token, who);
        let lead = self.partitions.get_mut(&place).and_then(|partition| partition.leads.get_mut(&node));
        let lead = lead.expect("it has just appended");
        lead.wait(appended.end, token);
        token
    }

    /// What waited for nothing new is done at once.
    fn settle_waits(&mut self, place: Place) {
        let over = self.partitions.get_mut(&place).expect("it exists").commit(0);
        self.decided(over, Ok(()));
    }

    pub(super) fn commit(&mut self, place: Place, batches: usize) {
        let partition = self.partitions.get_mut(&place).expect("it exists");
        let over = partition.commit(batches);
        let outcome = if partition.is_small { Err(Rejection::NotEnoughReplicasAfterAppend) } else { Ok(()) };
        self.decided(over, outcome);
        let log = &self.partitions[&place];
        self.referee.look_at_stable_offset(place, log);
    }

    fn decided(&mut self, over: Vec<Token>, outcome: Result<(), Rejection>) {
        for token in over {
            match self.waiting.remove(&token).expect("who waits is known") {
                Waiting::Transactions(node, epoch) => {
                    self.transaction_write_decided(node, epoch, token, outcome)
                }
                Waiting::Groups(node, epoch) => self.group_write_decided(node, epoch, token, outcome),
                Waiting::Client(caller) => self.answer(caller, Answered::Done(outcome)),
                Waiting::Marker { delivery, key, place } => {
                    self.marker_decided(delivery, key, place, outcome)
                }
            }
        }
    }

    pub(super) fn elect(&mut self, place: Place, node: Node, kept: usize) {
        self.partitions.get_mut(&place).expect("it exists").elect(node, kept);
        self.brokers[node].view.insert(place, node);
        self.keep_up(node);
    }

    /// A broker hears who leads.
    pub(super) fn inform(&mut self, node: Node, place: Place) {
        let partition = self.partitions.get_mut(&place).expect("it exists");
        let leader = partition.leader;
        let lost = if node == leader { Vec::new() } else { partition.resign(node) };
        self.brokers[node].view.insert(place, leader);
        self.decided(lost, Err(Rejection::NotLeaderOrFollower));
        self.keep_up(node);
    }

    pub(super) fn answer(&mut self, to: Caller, what: Answered) {
        self.flying.push(Message::Answer { to, what });
    }

    /// A message arrives.
    pub(super) fn deliver(&mut self, message: Message) {
        match message {
            Message::Ask { to, from, what } => self.asked(to, from, what),
            Message::Answer { to, what } => {
                let found = |app: &&mut App| (app.slot, app.incarnation) == (to.slot, to.incarnation);
                let Some(app) = self.apps.iter_mut().find(found) else { return };
                if app.waiting.as_ref().is_none_or(|(number, _)| *number != to.number) {
                    return;
                }
                let ends = matches!(app.waiting, Some((_, Asked::End { .. })));
                app.hear(what, &mut self.referee);
                if ends {
                    self.forget_late_requests(to);
                }
            }
            Message::Verify { to, number, slot, producer, place, adds } => {
                let epoch = self.brokers[to].transactions.as_ref().map_or(-1, |office| office.epoch);
                let asked = transactions_verify(producer, place, adds);
                self.ask_transactions(to, slot, asked, ReplyTo::Verification { number, epoch });
            }
            Message::Verified { number, verdict, epoch } => self.verified(number, verdict, epoch),
            Message::Markers { from, to, request, markers } => self.mark(from, to, request, markers),
            Message::Marked { to, request, outcomes } => self.marked(to, request, Some(&outcomes)),
        }
    }

    /// Copies of requests of a transaction that is over do not come after it (TXN-02).
    fn forget_late_requests(&mut self, of: Caller) {
        let same = |from: &Caller| (from.slot, from.incarnation) == (of.slot, of.incarnation);
        let may_come = |message: &Message| match message {
            Message::Ask { from, what, .. } => !same(from) || !what.belongs_to_its_transaction(),
            _ => true,
        };
        self.flying.retain(may_come);
        self.late.retain(may_come);
        self.verifying
            .retain(|_, verifying| !same(&verifying.from) || !verifying.what.belongs_to_its_transaction());
    }

    /// The transactional ids have been used for long: few epochs are left (TXN-05).
    pub(super) fn near_the_last_epoch(&mut self, epoch: i16) {
        for slot in 0..self.apps.len() {
            let id = format!("application-{slot}").into();
            let producer = Producer { id: i64::try_from(slot).expect("a small number"), epoch };
            let value = Some(Transaction {
                producer,
                previous: Producer { id: -1, epoch: -1 },
                next_id: None,
                is_version_2: false,
                timeout_ms: 20_000,
                state: TransactionState::Empty,
                partitions: BTreeSet::new(),
                updated_ms: self.now_ms,
                started_ms: -1,
            });
            let record = TransactionRecord { id, value };
            let style = BatchStyle { time_ms: self.now_ms, producer: None, compression: 0 };
            let batch = encode_batch(&[record.encode()], style);
            let what = (&batch, AppendOrigin::Coordinator, Verification::NotAsked);
            self.append((0, Place::Transactions), None, what).expect("broker 0 leads");
        }
        self.commit(Place::Transactions, 100);
    }

    fn asked(&mut self, node: Node, from: Caller, what: Asked) {
        match what {
            Asked::Produce { .. } | Asked::CommitOffsets { .. } => self.begin_writing(node, from, what),
            Asked::Init { expected } => {
                let request = transactions_init(expected, None);
                self.ask_transactions(node, from.slot, request, ReplyTo::Init(from, expected));
            }
            Asked::Add { producer, places } => {
                let partitions = places.iter().map(|place| place.id()).collect();
                let request = Request::Add { producer, partitions, is_version_2: false };
                self.ask_transactions(node, from.slot, request, ReplyTo::Client(from));
            }
            Asked::End { producer, commits, is_version_2 } => {
                let request = EndRequest { producer, commits, is_version_2, fresh_producer_id: None };
                let to = ReplyTo::End(from, request.clone());
                self.ask_transactions(node, from.slot, Request::End(request), to);
            }
            _ => self.ask_groups(node, from, &what, None),
        }
    }

    /// A write in a transaction: whoever would open it here is verified first (KIP-890).
    fn begin_writing(&mut self, node: Node, from: Caller, what: Asked) {
        let place = what.place();
        let (producer, sequence) = writer_of(&what);
        let now_ms = self.now_ms;
        let lead = self.partitions.get_mut(&place).and_then(|partition| partition.leads.get_mut(&node));
        let Some(lead) = lead else {
            let rejection = match what {
                Asked::Produce { .. } => Rejection::NotLeaderOrFollower,
                _ => Rejection::NotCoordinator,
            };
            return self.answer(from, Answered::Done(Err(rejection)));
        };
        let adds = what.is_version_2();
        let asking = Asking { producer: (producer.id, producer.epoch), sequence, adds };
        let Some(guard) = lead.verifications.begin_if_needed(&lead.producers, asking, now_ms) else {
            return self.go_on_writing(node, from, &what, Verification::Asked(None));
        };
        let number = self.next_number();
        let to = self.brokers[node].view[&Place::Transactions];
        self.flying.push(Message::Verify { to, number, slot: from.slot, producer, place, adds });
        self.verifying.insert(number, Verifying { node, from, what, guard });
    }

    /// The questions that are not answered.
    pub(super) fn questions(&self) -> impl Iterator<Item = u64> + '_ {
        self.verifying.keys().copied()
    }

    /// A coordinator of that epoch says whether a write may open a transaction.
    pub(super) fn verified(&mut self, number: u64, verdict: Result<(), Rejection>, epoch: i32) {
        let Some(Verifying { node, from, what, guard }) = self.verifying.remove(&number) else { return };
        let producer_id = writer_of(&what).0.id;
        let lead = self.partitions[&what.place()].leads.get(&node);
        let is_outdated = lead.is_some_and(|lead| !lead.producers.believes_coordinator(producer_id, epoch));
        let verdict = verdict.and(if is_outdated { Err(Rejection::NotCoordinator) } else { Ok(()) });
        let is_current = lead.is_some_and(|lead| lead.verifications.is_current(producer_id, guard));
        let is_overtaken = what.is_version_2() && !is_current;
        let verdict = verdict.and(if is_overtaken { Err(Rejection::ConcurrentTransactions) } else { Ok(()) });
        match verdict {
            Ok(()) => self.go_on_writing(node, from, &what, Verification::Asked(Some(guard))),
            Err(rejection) => {
                let told = refusal(&what, rejection);
                self.answer(from, Answered::Done(Err(told)));
            }
        }
    }

    fn go_on_writing(&mut self, node: Node, from: Caller, what: &Asked, verification: Verification) {
        let Asked::Produce { place, batch, .. } = what else {
            return self.ask_groups(node, from, what, Some(verification));
        };
        let at = (node, *place);
        match self.append(at, None, (batch, AppendOrigin::Client, verification)) {
            Ok(appended) => {
                self.wait(at, appended, Waiting::Client(from));
                if node == self.partitions[place].leader {
                    self.settle_waits(*place);
                }
            }
            Err(rejection) => {
                let told = overtaken(what, rejection);
                self.answer(from, Answered::Done(Err(told)));
            }
        }
    }

    /// A request for markers arrives at the leader, or at who was.
    fn mark(&mut self, from: Node, node: Node, request: u64, markers: Vec<MarkerFor>) {
        let delivery = self.next_number();
        let missing = markers.len();
        self.deliveries.insert(delivery, Delivery { from, request, missing, outcomes: Vec::new() });
        for MarkerFor { key, place, producer, marker, verification } in markers {
            if place == Place::Offsets {
                let what = (producer, marker, verification);
                self.end_transaction_of_groups(node, what, ReplyTo::Marker { delivery, key });
                continue;
            }
            let batch = marker.encode((producer.id, producer.epoch), self.now_ms);
            let what = (&batch, AppendOrigin::Coordinator, verification);
            match self.append((node, place), None, what) {
                Ok(appended) => {
                    self.wait((node, place), appended, Waiting::Marker { delivery, key, place });
                }
                Err(rejection) => self.marker_decided(delivery, key, place, Err(rejection)),
            }
        }
    }

    pub(super) fn marker_decided(
        &mut self,
        delivery: u64,
        key: QueueKey,
        place: Place,
        outcome: Result<(), Rejection>,
    ) {
        let open = self.deliveries.get_mut(&delivery).expect("it is being served");
        open.outcomes.push((key, place, outcome));
        open.missing -= 1;
        if open.missing == 0
            && let Some(Delivery { from, request, outcomes, .. }) = self.deliveries.remove(&delivery)
        {
            self.flying.push(Message::Marked { to: from, request, outcomes });
        }
    }

    /// What can be sent of the markers of a broker.
    pub(super) fn send_markers(&mut self, node: Node) {
        for (to, batch, markers) in self.brokers[node].take_markers(self.now_ms) {
            let request = self.next_number();
            // The connection of an earlier attempt was closed: nothing of it comes after this one. Markers of version 2
            // may come whenever they like.
            let is_again = |earlier: &MarkerFor| {
                earlier.verification == Verification::NotAsked
                    && markers.iter().any(|new| new.key == earlier.key)
            };
            let again = |message: &Message| match message {
                Message::Markers { from, markers: earlier, .. } => {
                    *from == node && earlier.iter().any(is_again)
                }
                _ => false,
            };
            self.flying.retain(|message| !again(message));
            self.late.retain(|message| !again(message));
            self.flying.push(Message::Markers { from: node, to, request, markers });
            self.brokers[node].calls.insert(request, batch);
        }
    }

    /// Markers are written, or nobody knows.
    pub(super) fn marked(&mut self, node: Node, request: u64, outcomes: Option<&super::broker::Outcomes>) {
        let marked = self.brokers[node].finish_markers(request, outcomes, self.now_ms);
        for (marking, epoch, partition) in marked {
            self.step_transactions(node, epoch, super::shells::marked(marking, partition));
        }
    }
}

fn transactions_verify(producer: Producer, place: Place, adds: bool) -> Request {
    let partitions = vec![place.id()];
    match adds {
        true => Request::Add { producer, partitions, is_version_2: true },
        false => Request::Verify { producer, partitions },
    }
}

pub(super) fn transactions_init(expected: Option<Producer>, fresh_producer_id: Option<i64>) -> Request {
    let request = crate::transactions::InitRequest { timeout_ms: 20_000, expected, fresh_producer_id };
    Request::Init(request)
}

/// Who writes, and the first sequence; −1 for offsets.
fn writer_of(what: &Asked) -> (Producer, i32) {
    match what {
        Asked::Produce { batch, .. } => {
            let header = BatchHeader::parse(batch).expect("an application sends whole batches");
            (Producer { id: header.producer_id, epoch: header.producer_epoch }, header.base_sequence)
        }
        Asked::CommitOffsets { producer, .. } => (*producer, -1),
        other => panic!("{other:?} writes nothing in a transaction"),
    }
}

/// What a client is told when its write could not be verified; see `handlers/transactional.rs`, `handlers/txn_offset_commit.rs`.
fn refusal(what: &Asked, rejection: Rejection) -> Rejection {
    let is_produce = matches!(what, Asked::Produce { .. });
    match rejection {
        Rejection::ProducerFenced => Rejection::InvalidProducerEpoch,
        Rejection::ConcurrentTransactions if what.is_version_2() => rejection,
        Rejection::ConcurrentTransactions
        | Rejection::NetworkException
        | Rejection::CoordinatorLoadInProgress
        | Rejection::CoordinatorNotAvailable
        | Rejection::NotCoordinator
            if is_produce =>
        {
            Rejection::NotEnoughReplicas
        }
        Rejection::NetworkException => Rejection::CoordinatorLoadInProgress,
        other => other,
    }
}

/// As [`refusal`], when a marker came before the append. For offsets, the client is told so too.
fn overtaken(what: &Asked, rejection: Rejection) -> Rejection {
    match rejection {
        Rejection::InvalidTxnState if what.is_version_2() => Rejection::ConcurrentTransactions,
        _ => rejection,
    }
}
