//! What controller processes do: claim the office, hear of changes, store, send, and take answers.

use zurau_common::id::BrokerId;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::op::Op;
use zurau_common::zk::znode::Znode;
use zurau_controller::action::StoredIsrAnswer;
use zurau_controller::cores::{Office, claim, outranked};
use zurau_controller::event::{Event, Proposal};

use zurau_broker::cores::storing::ProposalAnswer;

use crate::controller::{Active, Effect};
use crate::messages::{Answer, Asker, Caller, Message, Order};
use crate::world::{World, partition};

impl World {
    pub(crate) fn can_claim(&self, controller: usize) -> bool {
        let known = &self.controllers[controller];
        known.office.is_none()
            && known.cut_off_since.is_none()
            && self.zookeeper.is_live(known.session)
            && (self.still_in_office(controller) || self.zookeeper.get(&Znode::Controller.path()).is_none())
    }

    pub(crate) fn claim_office(&mut self, controller: usize) {
        let id = i32::try_from(controller).expect("a small number");
        let identity = ActiveController::new(id, format!("controller{id}"), 9090, 0);
        let epoch = self.zookeeper.get(&Znode::ControllerEpoch.path());
        let session = self.controllers[controller].session;
        if self.still_in_office(controller) {
            // Of a claim that is not worth anything any more.
            let delete = Op::Delete { path: Znode::Controller.path(), version: None };
            let _ = self.zookeeper.multi(&[delete], session);
            return;
        }
        let (office, ops) = claim(epoch, &identity).expect("a readable epoch");
        if self.zookeeper.multi(&ops, session).is_err() {
            return;
        }
        let serial = self.draw();
        self.zookeeper.dirty[controller].clear();
        self.referee.elections_now = 0;
        let config = self.config.machine(u128::from(serial));
        let active = Active::new(config, office, serial, self.now);
        self.controllers[controller].office = Some(active);
        let active = self.controllers[controller].office.as_mut().expect("set just now");
        let effects = active.apply(Event::Reloading, self.now);
        self.conclude_step(controller, effects);
    }

    /// The watch tells what changed; a reading begins.
    pub(crate) fn read(&mut self, controller: usize, part: bool) {
        let mut dirty = std::mem::take(&mut self.zookeeper.dirty[controller]);
        if part && let Some(last) = dirty.pop_last() {
            self.zookeeper.dirty[controller] = std::mem::replace(&mut dirty, [last].into());
        }
        let held = self.still_in_office(controller);
        let Some(active) = &mut self.controllers[controller].office else { return };
        if dirty.contains(&Znode::Controller.path()) && !held {
            active.depose();
        }
        active.mirror.mark(dirty);
        if active.reading.is_none() {
            active.read(&self.zookeeper);
        }
        self.conclude_step(controller, Vec::new());
    }

    pub(crate) fn told(&mut self, controller: usize) {
        let now = self.now;
        let Some(active) = &mut self.controllers[controller].office else { return };
        let effects = active.told(now);
        self.conclude_step(controller, effects);
    }

    /// Whether its session owns `/controller`.
    fn still_in_office(&self, controller: usize) -> bool {
        let node = self.zookeeper.get(&Znode::Controller.path());
        node.is_some_and(|node| node.ephemeral_owner == self.controllers[controller].session)
    }

    pub(crate) fn deafen(&mut self, controller: usize) {
        self.zookeeper.dirty[controller].clear();
        let (now, held) = (self.now, self.still_in_office(controller));
        let Some(active) = &mut self.controllers[controller].office else { return };
        if !held {
            active.depose();
        }
        let effects = active.reset(now);
        self.conclude_step(controller, effects);
    }

    pub(crate) fn store(&mut self, controller: usize, lost: bool) {
        let session = self.controllers[controller].session;
        let Some(active) = &mut self.controllers[controller].office else { return };
        let wish = self.zookeeper.get(&Znode::Reassignment(partition()).path()).cloned();
        if let Some(stored) = active.store(&mut self.zookeeper, session, lost) {
            self.referee.controller_wrote(&self.zookeeper, &stored, wish.as_ref(), self.now);
        }
        if self.config.coarse {
            self.hear_outcome(controller);
        }
    }

    pub(crate) fn hear_outcome(&mut self, controller: usize) {
        let now = self.now;
        let Some(active) = &mut self.controllers[controller].office else { return };
        let effects = active.hear_outcome(now);
        self.conclude_step(controller, effects);
    }

    pub(crate) fn tick(&mut self, controller: usize) {
        let now = self.now;
        let Some(active) = &mut self.controllers[controller].office else { return };
        let effects = active.apply(Event::Tick, now);
        self.conclude_step(controller, effects);
    }

    fn conclude_step(&mut self, controller: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Note(note) => {
                    let since = self.controllers[controller].office.as_ref().map_or(0, |one| one.since);
                    self.referee.noted(&self.zookeeper, &note, (since, self.now));
                }
                Effect::Answer { request, outcomes } => {
                    let Some(active) = &mut self.controllers[controller].office else { return };
                    let Some((broker, process, call)) = active.waiting.remove(&request) else { continue };
                    let to = Caller { broker, process, call };
                    let first =
                        outcomes.and_then(|outcomes| outcomes.into_iter().next().expect("one was asked"));
                    self.send(Message::AlterIsrAnswered { to, answer: first.map(answer_of) });
                }
            }
        }
        if self.controllers[controller].office.as_ref().is_some_and(Active::is_deposed) {
            self.controllers[controller].office = None;
        }
        self.send_orders(controller);
    }

    /// One request at a time to each broker.
    pub(crate) fn send_orders(&mut self, controller: usize) {
        let Some(active) = &mut self.controllers[controller].office else { return };
        let mut orders = Vec::new();
        for (broker, link) in &mut active.links {
            if link.under_way.is_some() {
                continue;
            }
            let Some(body) = link.queue.next_outgoing() else { continue };
            // Numbers that do not depend on the order in which brokers are told.
            let last = active.last_numbers.entry(*broker).or_default();
            *last += 1;
            let number = (*last << 8) + u64::try_from(broker.0).expect("a small id");
            if link.connection == 0 {
                link.connection = number;
            }
            link.under_way = Some((number, body.clone()));
            let live: Vec<BrokerId> = active.live.iter().map(|live| live.broker).collect();
            orders.push(Order {
                from: Asker { controller, serial: active.serial, request: number },
                to: *broker,
                connection: link.connection,
                controller_epoch: active.machine.epoch(),
                broker_epoch: link.epoch,
                body,
                live,
                metadata: active.metadata.clone(),
            });
        }
        for order in orders {
            self.send(Message::Order(Box::new(order)));
        }
    }

    pub(crate) fn hear_order_answer(&mut self, to: Asker, from: BrokerId, answers: Vec<Answer>) {
        let (controller, now) = (to.controller, self.now);
        let session = self.controllers[controller].session;
        let Some(active) = &mut self.controllers[controller].office else { return };
        if active.serial != to.serial {
            return;
        }
        let Some(link) = active.links.get_mut(&from) else { return };
        let under_way = link.under_way.as_ref().is_some_and(|(number, _)| *number == to.request);
        if !under_way {
            return;
        }
        let Some((_, body)) = link.under_way.take() else { return };
        let mut effects = Vec::new();
        for answer in answers {
            match answer {
                Answer::Heard => {}
                Answer::NotHeard => {
                    let link = active.links.get_mut(&from).expect("as before");
                    link.queue.put_back(body.clone());
                    link.connection = 0;
                }
                Answer::NewerController => {
                    let office =
                        Office { epoch: active.epoch(), epoch_version: active.machine.epoch_version() };
                    let node = self.zookeeper.get(&Znode::Controller.path());
                    let held = node.is_some_and(|node| node.ephemeral_owner == session);
                    let yields = outranked(office).filter(|_| held);
                    if !held || yields.is_some_and(|ops| self.zookeeper.multi(&ops, session).is_ok()) {
                        active.depose();
                    }
                }
                Answer::Event(event) => effects.extend(active.apply(*event, now)),
            }
        }
        self.conclude_step(controller, effects);
    }

    /// No answer came in time: the request goes again, over another connection.
    pub(crate) fn give_order_up(&mut self, controller: usize, broker: BrokerId) {
        let Some(active) = &mut self.controllers[controller].office else { return };
        let Some(link) = active.links.get_mut(&broker) else { return };
        if let Some((_, body)) = link.under_way.take() {
            link.queue.put_back(body);
            link.connection = 0;
        }
        self.send_orders(controller);
    }

    pub(crate) fn hear_alter_isr(
        &mut self,
        (controller, serial): (usize, u64),
        from: Caller,
        broker_epoch: zurau_common::id::BrokerEpoch,
        proposal: Proposal,
    ) {
        let now = self.now;
        let Some(active) = &mut self.controllers[controller].office else { return };
        if active.serial != serial {
            return;
        }
        let request = active.ask((from.broker, from.process, from.call));
        let broker = from.broker;
        let event = Event::AlterIsr { request, broker, broker_epoch, proposals: vec![proposal] };
        let effects = active.apply(event, now);
        self.conclude_step(controller, effects);
    }

    /// Whether the controller has anything to hear.
    pub(crate) fn has_news(&self, controller: usize) -> bool {
        let Some(active) = &self.controllers[controller].office else { return false };
        !self.zookeeper.dirty[controller].is_empty() || active.has_to_read()
    }

    pub(crate) fn remove_wish(&mut self) {
        self.zookeeper.remove(&Znode::Reassignment(partition()).path());
    }
}

fn answer_of(stored: StoredIsrAnswer) -> ProposalAnswer {
    ProposalAnswer {
        leader_epoch: stored.leader_epoch,
        isr: stored.isr,
        elr: Some(stored.elr),
        partition_epoch: stored.partition_epoch,
    }
}
