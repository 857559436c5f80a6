//! Messages on their way: which can arrive, what they do when they do, and which never will.

use zurau_common::id::BrokerId;
use zurau_controller::cores::Outgoing;

use crate::actions::Action;
use crate::messages::{Caller, Message};
use crate::part::Part;
use crate::world::World;

impl World {
    pub(crate) fn enabled_of_network(&self, actions: &mut Vec<Action>) {
        for (number, message) in &self.network {
            if self.can_deliver(message) {
                actions.push(Action::Deliver(*number));
                if self.budgets.duplicate > 0 && may_come_twice(message) {
                    actions.push(Action::Duplicate(*number));
                }
            }
        }
        for (c, controller) in self.controllers.iter().enumerate() {
            let Some(active) = &controller.office else { continue };
            for (broker, link) in &active.links {
                if link.under_way.as_ref().is_some_and(|(number, _)| self.is_order_lost(c, *number)) {
                    actions.push(Action::GiveLostOrderUp(c, *broker));
                }
            }
        }
        for (i, broker) in self.brokers.iter().enumerate() {
            let Some(process) = &broker.process else { continue };
            let own = (broker.id, process.number);
            for (leader, (call, _)) in &process.fetches {
                if self.is_call_lost(own, *call) {
                    actions.push(Action::GiveLostFetchUp(i, *leader));
                }
            }
            if process.proposer.call.is_some_and(|call| self.is_call_lost(own, call)) {
                actions.push(Action::GiveLostProposalUp(i));
            }
        }
    }

    fn is_order_lost(&self, controller: usize, number: u64) -> bool {
        let brokers = &self.brokers;
        let in_lane = brokers.iter().filter_map(|broker| broker.process.as_ref()?.lane.as_ref());
        let mut askers = in_lane.map(|lane| lane.asker);
        if askers.any(|asker| asker.controller == controller && asker.request == number) {
            return false;
        }
        !self.network.values().any(|message| match &**message {
            Message::Order(order) => order.from.controller == controller && order.from.request == number,
            Message::OrderAnswered { to, .. } => to.controller == controller && to.request == number,
            _ => false,
        })
    }

    /// Whether nothing is on its way that could answer the call.
    fn is_call_lost(&self, (broker, process): (BrokerId, u64), call: u64) -> bool {
        let mut waiting = self.controllers.iter().filter_map(|one| one.office.as_ref());
        if waiting.any(|active| active.waiting.values().any(|who| *who == (broker, process, call))) {
            return false;
        }
        !self.network.values().any(|message| {
            let caller = message.caller();
            caller.is_some_and(|who| (who.broker, who.process, who.call) == (broker, process, call))
        })
    }

    /// A call of the process that runs. A number that nothing knows any more is used again: whoever only calls and hears
    /// comes back to the state in which it was.
    pub(crate) fn caller(&self, broker: usize) -> Option<Caller> {
        let id = self.brokers[broker].id;
        let process = self.brokers[broker].process.as_ref()?;
        let open = process.fetches.values().map(|(call, _)| *call).chain(process.proposer.call);
        let open: Vec<u64> = open.collect();
        let own = (id, process.number);
        let free = |call: &u64| !open.contains(call) && self.is_call_lost(own, *call);
        let call = (1..).find(free).expect("there are more numbers than messages");
        Some(Caller { broker: id, process: process.number, call })
    }

    fn can_deliver(&self, message: &Message) -> bool {
        if let Some(broker) = message.to_broker() {
            let Some(process) = &self.brokers[self.index_of(broker)].process else { return false };
            let parted = self.brokers[self.index_of(broker)].is_parted;
            return !matches!(message, Message::Order(_)) || process.lane.is_none() && !parted;
        }
        message.to_controller().is_some_and(|controller| self.controllers[controller].office.is_some())
    }

    pub(crate) fn deliver(&mut self, number: u64, again: bool) {
        let found = if again { self.network.get(&number).cloned() } else { self.network.remove(&number) };
        let Some(message) = found.map(Part::into_value) else { return };
        let broker = message.to_broker().map(|broker| self.index_of(broker));
        match (message, broker) {
            (Message::Order(order), Some(i)) => self.obey(i, *order),
            (Message::Fetch { from, broker_epoch, topic_id, asked, .. }, Some(i)) => {
                self.answer_fetch(i, from, (broker_epoch, topic_id), asked);
            }
            (Message::Fetched { to, topic_id, asked, outcome, records }, Some(i)) => {
                self.apply_fetched(i, (to, topic_id), (asked, outcome), &records);
            }
            (Message::AlterIsrAnswered { to, answer }, Some(i)) => self.hear_proposal_answer(i, to, answer),
            (Message::OrderAnswered { to, from, answers }, _) => self.hear_order_answer(to, from, answers),
            (Message::AlterIsr { from, to, serial, broker_epoch, proposal }, _) => {
                self.hear_alter_isr((to, serial), from, broker_epoch, *proposal);
            }
            (message, None) => unreachable!("nobody takes {message:?}"),
        }
    }

    /// Answers to processes and offices that are gone arrive nowhere.
    pub(crate) fn forget_dead_letters(&mut self) {
        let (brokers, controllers) = (&self.brokers, &self.controllers);
        let serial_of = |controller: usize| controllers[controller].office.as_ref().map(|one| one.serial);
        self.network.retain(|_, message| match &**message {
            Message::Fetched { to, .. } | Message::AlterIsrAnswered { to, .. } => {
                brokers.iter().any(|broker| broker.id == to.broker && broker.is_called(*to))
            }
            Message::OrderAnswered { to, .. } => serial_of(to.controller) == Some(to.serial),
            Message::AlterIsr { to, serial, .. } => serial_of(*to) == Some(*serial),
            Message::Order(order) => {
                // Kept, late as it may be; but what says nothing to nobody is dropped.
                !matches!(order.body, Outgoing::LogEnds(_))
                    || serial_of(order.from.controller) == Some(order.from.serial)
            }
            Message::Fetch { .. } => true,
        });
    }
}

/// Metadata has no version: only the order within one connection tells what is newer, and an older connection is not
/// heard any more (F9).
fn may_come_twice(message: &Message) -> bool {
    let metadata = |body: &Outgoing| matches!(body, Outgoing::Metadata(_) | Outgoing::FullMetadata);
    !matches!(message, Message::Order(order) if metadata(&order.body))
}
