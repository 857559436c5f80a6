//! What the shells of the coordinators do: they end and begin with leaderships, hand requests to the cores, and carry out
//! what comes of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::log::{Node, Place, Token};
use super::messages::{Answered, Asked, Caller, Message, ReplyTo};
use super::offices::{Office, Reported, group_shard, transaction_shard};
use super::world::{Waiting, World, transactions_init};
use crate::coordinator::{BatchStyle, Producer, encode_batch};
use crate::groups;
use crate::log::{AppendOrigin, Marker, Verification};
use crate::transactions::{self, EndRequest, Initialized, MarkingId};

pub(super) fn marked(marking: MarkingId, partition: TopicPartition) -> transactions::Event {
    transactions::Event::Marked { marking, partition }
}

fn plain_batch(records: &[crate::coordinator::KeyValue], producer: Option<Producer>, now_ms: i64) -> Bytes {
    encode_batch(records, BatchStyle { time_ms: now_ms, producer, compression: 0 })
}

impl World {
    /// Coordinators of former leaderships end, those of new ones begin to load.
    pub(super) fn keep_up(&mut self, node: Node) {
        let epoch = |world: &Self, place| world.partitions[&place].leads.get(&node).map(|lead| lead.epoch);
        if self.brokers[node].transactions.as_ref().map(|office| office.epoch)
            != epoch(self, Place::Transactions)
        {
            self.end_transactions(node);
            let lead = self.partitions[&Place::Transactions].leads.get(&node);
            self.brokers[node].transactions = lead.map(Office::new);
        }
        if self.brokers[node].groups.as_ref().map(|office| office.epoch) != epoch(self, Place::Offsets) {
            self.end_groups(node);
            let lead = self.partitions[&Place::Offsets].leads.get(&node);
            self.brokers[node].groups = lead.map(Office::new);
        }
    }

    fn end_transactions(&mut self, node: Node) {
        let Some(mut office) = self.brokers[node].transactions.take() else { return };
        let effects = office.shard.take().map(|mut shard| shard.abandon()).unwrap_or_default();
        for effect in effects {
            if let transactions::Effect::Answer(reply, answer) = effect {
                let to = office.take_reply(reply);
                self.answer_of_transactions(node, to, answer);
            }
        }
        self.brokers[node].forget_orders(office.epoch);
        for to in office.unanswered() {
            self.refuse(to, Rejection::NotCoordinator);
        }
    }

    fn end_groups(&mut self, node: Node) {
        let Some(mut office) = self.brokers[node].groups.take() else { return };
        let effects = office.shard.take().map(|mut shard| shard.abandon()).unwrap_or_default();
        let mut answers: Vec<_> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                groups::Effect::Answer(reply, answer) => Some((reply, answer)),
                _ => None,
            })
            .collect();
        answers.sort_by_key(|(reply, _)| *reply);
        for (reply, answer) in answers {
            let to = office.take_reply(reply);
            self.answer_of_groups(to, answer);
        }
        for to in office.unanswered() {
            self.refuse(to, Rejection::NotCoordinator);
        }
    }

    fn refuse(&mut self, to: ReplyTo, rejection: Rejection) {
        match to {
            ReplyTo::Client(caller) | ReplyTo::Init(caller, _) | ReplyTo::End(caller, _) => {
                self.answer(caller, Answered::Done(Err(rejection)));
            }
            ReplyTo::Verification { number, epoch } => {
                self.flying.push(Message::Verified { number, verdict: Err(rejection), epoch });
            }
            ReplyTo::Marker { delivery, key } => {
                self.marker_decided(delivery, key, Place::Offsets, Err(Rejection::NotLeaderOrFollower));
            }
        }
    }

    /// Whether a coordinator there can load, of transactions or of groups.
    pub(super) fn can_load(&self, node: Node, place: Place) -> bool {
        let Some(lead) = self.partitions[&place].leads.get(&node) else { return false };
        let broker = &self.brokers[node];
        match place {
            Place::Transactions => broker.transactions.as_ref().is_some_and(|office| office.can_load(lead)),
            Place::Offsets => broker.groups.as_ref().is_some_and(|office| office.can_load(lead)),
            Place::Output(_) => false,
        }
    }

    pub(super) fn load(&mut self, node: Node, place: Place) {
        let (now, lead) = (self.now(), &self.partitions[&place].leads[&node]);
        if place == Place::Transactions {
            let Some(office) = &mut self.brokers[node].transactions else { return };
            let mut shard = office.load(lead, transaction_shard());
            let (effects, epoch) = (shard.finish_loading(now), office.epoch);
            office.shard = Some(shard);
            self.carry_out_transactions(node, epoch, effects);
        } else {
            let Some(office) = &mut self.brokers[node].groups else { return };
            let mut shard = office.load(lead, group_shard());
            let (effects, epoch) = (shard.finish_loading(now), office.epoch);
            office.shard = Some(shard);
            self.carry_out_groups(node, epoch, effects);
        }
    }

    pub(super) fn ask_transactions(
        &mut self,
        node: Node,
        slot: usize,
        request: transactions::Request,
        to: ReplyTo,
    ) {
        let Some(office) = &mut self.brokers[node].transactions else {
            return self.refuse(to, Rejection::NotCoordinator);
        };
        if office.shard.is_none() {
            return self.refuse(to, Rejection::CoordinatorLoadInProgress);
        }
        let (reply, epoch) = (office.expect(to), office.epoch);
        let id = format!("application-{slot}").into();
        self.step_transactions(node, epoch, transactions::Event::Ask { reply, id, request });
    }

    /// Steps the coordinator of that epoch, if it is still there.
    pub(super) fn step_transactions(&mut self, node: Node, epoch: i32, event: transactions::Event) {
        let now = self.now();
        let office = self.brokers[node].transactions.as_mut().filter(|office| office.epoch == epoch);
        let Some(shard) = office.and_then(|office| office.shard.as_mut()) else { return };
        let effects = shard.step(now, event);
        self.carry_out_transactions(node, epoch, effects);
    }

    fn carry_out_transactions(&mut self, node: Node, epoch: i32, effects: Vec<transactions::Effect>) {
        for effect in effects {
            let office = self.brokers[node].transactions.as_mut();
            let Some(office) = office.filter(|office| office.epoch == epoch) else { return };
            match effect {
                transactions::Effect::Answer(reply, answer) => {
                    let to = office.take_reply(reply);
                    self.answer_of_transactions(node, to, answer);
                }
                transactions::Effect::Write(write, record) => {
                    self.tell(|| format!("broker {node} in epoch {epoch} writes {record:?}"));
                    let batch = plain_batch(&[record.encode()], None, self.now_ms);
                    let at = (node, Place::Transactions);
                    let what = (&batch, AppendOrigin::Coordinator, Verification::NotAsked);
                    let appended = self.append(at, Some(epoch), what);
                    let waiting = Waiting::Transactions(node, epoch);
                    let (token, first) = self.begin_wait(at, appended, waiting);
                    if let Some(office) = &mut self.brokers[node].transactions {
                        office.wrote(token, write, first);
                    }
                }
                transactions::Effect::Mark(id, marking) => {
                    let now_ms = self.now_ms;
                    self.brokers[node].order(id, marking, epoch, now_ms);
                }
                transactions::Effect::Aborting { .. } => {}
            }
        }
        self.report_transactions(node, epoch);
    }

    /// The name of a write on its way, and where it begins or why it does not.
    fn begin_wait(
        &mut self,
        at: (Node, Place),
        appended: Result<super::log::Appended, Rejection>,
        waiting: Waiting,
    ) -> (Token, Result<i64, Rejection>) {
        match appended {
            Ok(appended) => (self.wait(at, appended, waiting), Ok(appended.first_offset)),
            Err(rejection) => (Token(self.next_number()), Err(rejection)),
        }
    }

    pub(super) fn transaction_write_decided(
        &mut self,
        node: Node,
        epoch: i32,
        token: Token,
        outcome: Result<(), Rejection>,
    ) {
        let office = self.brokers[node].transactions.as_mut().filter(|office| office.epoch == epoch);
        let Some(office) = office.filter(|office| office.shard.is_some()) else { return };
        office.decided(token, outcome);
        self.report_transactions(node, epoch);
    }

    fn report_transactions(&mut self, node: Node, epoch: i32) {
        loop {
            let office = self.brokers[node].transactions.as_mut().filter(|office| office.epoch == epoch);
            let Some(office) = office else { return };
            match office.next_report() {
                Reported::Nothing => return,
                Reported::Write { write, outcome, .. } => {
                    self.step_transactions(node, epoch, transactions::Event::Written { write, outcome });
                }
                Reported::Stop => {
                    self.end_transactions(node);
                    return self.keep_up(node);
                }
            }
        }
    }

    fn answer_of_transactions(&mut self, node: Node, to: ReplyTo, answer: transactions::Answer) {
        match (to, answer) {
            (
                ReplyTo::Init(caller, expected),
                transactions::Answer::Init(Ok(Initialized::NeedsProducerId)),
            ) => {
                self.last_producer_id += 1;
                let request = transactions_init(expected, Some(self.last_producer_id));
                self.ask_transactions(node, caller.slot, request, ReplyTo::Init(caller, expected));
            }
            (ReplyTo::Init(caller, _), transactions::Answer::Init(answer)) => {
                let answer = answer.map(|initialized| match initialized {
                    Initialized::Producer(producer) => producer,
                    Initialized::NeedsProducerId => panic!("answered before"),
                });
                self.answer(caller, Answered::Init(answer));
            }
            (ReplyTo::End(caller, request), transactions::Answer::End(Ok(Initialized::NeedsProducerId))) => {
                self.last_producer_id += 1;
                let request = EndRequest { fresh_producer_id: Some(self.last_producer_id), ..request };
                let asked = transactions::Request::End(request.clone());
                self.ask_transactions(node, caller.slot, asked, ReplyTo::End(caller, request));
            }
            (ReplyTo::End(caller, _), transactions::Answer::End(answer)) => {
                let answer = answer.map(|initialized| match initialized {
                    Initialized::Producer(producer) => producer,
                    Initialized::NeedsProducerId => panic!("answered before"),
                });
                self.answer(caller, Answered::Ended(answer));
            }
            (ReplyTo::Client(caller), transactions::Answer::Done(answer)) => {
                self.answer(caller, Answered::Done(answer));
            }
            (ReplyTo::Verification { number, epoch }, transactions::Answer::Done(verdict)) => {
                self.flying.push(Message::Verified { number, verdict, epoch });
            }
            (ReplyTo::Verification { number, epoch }, transactions::Answer::Verify(verdict)) => {
                let verdict = verdict.and_then(|each| each[0].map_or(Ok(()), Err));
                self.flying.push(Message::Verified { number, verdict, epoch });
            }
            (to, answer) => panic!("{answer:?} is no answer for {to:?}"),
        }
    }

    pub(super) fn ask_groups(
        &mut self,
        node: Node,
        from: Caller,
        what: &Asked,
        verification: Option<Verification>,
    ) {
        let fresh = self.next_number();
        let Some(office) = &mut self.brokers[node].groups else {
            return self.refuse(ReplyTo::Client(from), Rejection::NotCoordinator);
        };
        if office.shard.is_none() {
            return self.refuse(ReplyTo::Client(from), Rejection::CoordinatorLoadInProgress);
        }
        let (reply, epoch) = (office.expect(ReplyTo::Client(from)), office.epoch);
        let request = super::words::request(what, verification, fresh);
        let group = "readers".into();
        self.step_groups(node, epoch, groups::Event::Ask { reply, group, request });
    }

    /// The group coordinator writes the marker of a transaction with offsets.
    pub(super) fn end_transaction_of_groups(
        &mut self,
        node: Node,
        (producer, marker, verification): (Producer, Marker, Verification),
        to: ReplyTo,
    ) {
        let office = self.brokers[node].groups.as_mut().filter(|office| office.shard.is_some());
        let Some(office) = office else { return self.refuse(to, Rejection::NotCoordinator) };
        let (reply, epoch) = (office.expect(to), office.epoch);
        self.step_groups(
            node,
            epoch,
            groups::Event::EndTransaction { reply, producer, marker, verification },
        );
    }

    pub(super) fn step_groups(&mut self, node: Node, epoch: i32, event: groups::Event) {
        let now = self.now();
        let office = self.brokers[node].groups.as_mut().filter(|office| office.epoch == epoch);
        let Some(shard) = office.and_then(|office| office.shard.as_mut()) else { return };
        let effects = shard.step(now, event);
        self.carry_out_groups(node, epoch, effects);
    }

    fn carry_out_groups(&mut self, node: Node, epoch: i32, effects: Vec<groups::Effect>) {
        for effect in effects {
            let office = self.brokers[node].groups.as_mut();
            let Some(office) = office.filter(|office| office.epoch == epoch) else { return };
            let (write, batch, verification) = match effect {
                groups::Effect::Answer(reply, answer) => {
                    let to = office.take_reply(reply);
                    self.answer_of_groups(to, answer);
                    continue;
                }
                groups::Effect::Write(write, records, transaction) => {
                    let encoded: Vec<_> = records.iter().map(groups::GroupRecord::encode).collect();
                    let producer = transaction.map(|transaction| transaction.producer);
                    let verification =
                        transaction.map_or(Verification::NotAsked, |transaction| transaction.verification);
                    self.tell(|| {
                        format!("broker {node} in epoch {epoch} writes {records:?} of {producer:?}")
                    });
                    (write, plain_batch(&encoded, producer, self.now_ms), verification)
                }
                groups::Effect::WriteMarker(write, producer, (marker, verification)) => {
                    self.tell(|| format!("broker {node} in epoch {epoch} writes {marker:?} of {producer:?}"));
                    let batch = marker.encode((producer.id, producer.epoch), self.now_ms);
                    (write, batch, verification)
                }
                groups::Effect::Moved { .. } | groups::Effect::Rebalances { .. } => continue,
            };
            let at = (node, Place::Offsets);
            let appended = self.append(at, Some(epoch), (&batch, AppendOrigin::Coordinator, verification));
            let (token, first) = self.begin_wait(at, appended, Waiting::Groups(node, epoch));
            if let Some(office) = &mut self.brokers[node].groups {
                office.wrote(token, write, first);
            }
        }
        self.report_groups(node, epoch);
    }

    pub(super) fn group_write_decided(
        &mut self,
        node: Node,
        epoch: i32,
        token: Token,
        outcome: Result<(), Rejection>,
    ) {
        let office = self.brokers[node].groups.as_mut().filter(|office| office.epoch == epoch);
        let Some(office) = office.filter(|office| office.shard.is_some()) else { return };
        office.decided(token, outcome);
        self.report_groups(node, epoch);
    }

    fn report_groups(&mut self, node: Node, epoch: i32) {
        loop {
            let office = self.brokers[node].groups.as_mut().filter(|office| office.epoch == epoch);
            let Some(office) = office else { return };
            match office.next_report() {
                Reported::Nothing => return,
                Reported::Write { write, first_offset, outcome } => {
                    let event = groups::Event::Written { write, outcome, first_offset };
                    self.step_groups(node, epoch, event);
                }
                Reported::Stop => {
                    self.end_groups(node);
                    return self.keep_up(node);
                }
            }
        }
    }

    fn answer_of_groups(&mut self, to: ReplyTo, answer: groups::Answer) {
        match (to, answer) {
            (ReplyTo::Marker { delivery, key }, groups::Answer::EndTransaction(outcome)) => {
                self.marker_decided(delivery, key, Place::Offsets, outcome);
            }
            (ReplyTo::Client(caller), answer) => {
                let answered = super::words::answered(answer);
                self.answer(caller, answered);
            }
            (to, answer) => panic!("{answer:?} is no answer for {to:?}"),
        }
    }

    /// Deadlines of all coordinators.
    pub(super) fn tick(&mut self) {
        let now_ms = self.now_ms;
        for node in 0..self.brokers.len() {
            let due: BTreeMap<bool, i32> = self.due(node, now_ms);
            if let Some(epoch) = due.get(&false) {
                self.step_transactions(node, *epoch, transactions::Event::Tick);
            }
            if let Some(epoch) = due.get(&true) {
                self.step_groups(node, *epoch, groups::Event::Tick);
            }
        }
    }

    /// The epochs of the coordinators with something due: false for transactions, true for groups.
    fn due(&self, node: Node, now_ms: i64) -> BTreeMap<bool, i32> {
        let broker = &self.brokers[node];
        let is_due = |deadline: Option<i64>| deadline.is_some_and(|due_ms| due_ms <= now_ms);
        let of_transactions = broker.transactions.as_ref().and_then(|office| {
            let shard = office.shard.as_ref()?;
            is_due(shard.next_deadline()).then_some((false, office.epoch))
        });
        let of_groups = broker.groups.as_ref().and_then(|office| {
            let shard = office.shard.as_ref()?;
            is_due(shard.next_deadline()).then_some((true, office.epoch))
        });
        of_transactions.into_iter().chain(of_groups).collect()
    }
}
