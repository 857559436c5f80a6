//! Where the explorer begins: a cluster at rest, and clusters in the middle of something.

use crate::actions::Action;
use crate::director::{Director, Led};
use crate::messages::Message;
use crate::world::{Budgets, Config, LAG_MS, World};
use zurau_controller::cores::Outgoing;

/// A start and what it is.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    pub(crate) make: fn() -> Led<World>,
    pub(crate) depth: usize,
}

pub(crate) const STARTS: &[Start] = &[
    Start { name: "at rest; one record, one crash", make: at_rest, depth: 8 },
    Start { name: "the leader has crashed with an uncommitted record", make: leader_crashed, depth: 10 },
    Start { name: "a controller was replaced and does not know", make: zombie_controller, depth: 5 },
    Start { name: "a reassignment is under way", make: reassignment, depth: 6 },
    Start { name: "an ISR proposal is in flight, its member restarts", make: proposal_in_flight, depth: 6 },
];

fn coarse(min_insync: usize) -> Config {
    Config { coarse: true, ..Config::new(min_insync) }
}

fn bounded(mut director: Director, budgets: Budgets) -> World {
    director.release();
    director.budget(budgets);
    director.world
}

fn at_rest() -> Led<World> {
    let director = Director::new(coarse(1))?;
    Ok(bounded(director, Budgets { produce: 1, kill: 1, long_time: 1, ..Budgets::default() }))
}

/// One follower has the record of the old leader, the other has not.
fn leader_crashed() -> Led<World> {
    let mut director = Director::new(coarse(1))?;
    director.budget(Budgets { produce: 1, kill: 1, ..Budgets::default() });
    director.hold(|_, action| matches!(action, Action::Ask(2)));
    director.produce()?;
    director.until("a follower has it", |world| {
        world.brokers[1].disk.log.as_ref().is_some_and(|log| log.records.len() == 1)
    })?;
    director.kill(0)?;
    Ok(bounded(director, Budgets { produce: 1, consume: 1, give_up: 1, ..Budgets::default() }))
}

/// It has orders on their way, and a write that it has not sent.
fn zombie_controller() -> Led<World> {
    let mut director = Director::new(coarse(1))?;
    director.budget(Budgets { kill: 1, depose: 1, ..Budgets::default() });
    director.kill(0)?;
    let old = (0..2).find(|c| director.world.controllers[*c].office.is_some()).ok_or("no controller")?;
    director.until("it decides", |world| {
        world.controllers[old].office.as_ref().is_some_and(|active| !active.writes.is_empty())
    })?;
    director.take(Action::Depose)?;
    director.hold(move |_, action| match action {
        Action::Read(c) | Action::Store(c) | Action::Claim(c) => c == old,
        _ => false,
    });
    director.until("another is in office", |world| world.controllers[1 - old].office.is_some())?;
    Ok(bounded(director, Budgets { give_up: 1, duplicate: 1, ..Budgets::default() }))
}

/// The new host fetches, and the completing write is still to come.
fn reassignment() -> Led<World> {
    let mut config = coarse(1);
    config.replicas.pop();
    config.wishes = vec!["[2,3]", "[1,2]"];
    let mut director = Director::new(config)?;
    director.budget(Budgets { wish: 1, produce: 1, ..Budgets::default() });
    director.produce()?;
    director.settle()?;
    director.take(Action::Wish(0))?;
    director.until("it is told to host", |world| {
        let told = |message: &Message| match message {
            Message::Order(order) => order.to.0 == 3 && matches!(&order.body, Outgoing::LeaderAndIsr { .. }),
            _ => false,
        };
        world.network.values().any(|message| told(message))
    })?;
    Ok(bounded(director, Budgets { wish: 1, kill: 1, ..Budgets::default() }))
}

fn proposal_in_flight() -> Led<World> {
    let mut director = Director::new(coarse(2))?;
    let faults = Budgets { produce: 2, kill: 1, power_loss: 1, long_time: 1, ..Budgets::default() };
    director.budget(faults);
    director.kill(2)?;
    director.settle()?;
    director.pass(LAG_MS)?;
    director.produce()?;
    director.settle()?;
    director.hold_messages(|message| matches!(message, Message::AlterIsr { .. }));
    director.take(Action::Restart(2))?;
    director.until("it is proposed", |world| {
        world.network.values().any(|message| matches!(&**message, Message::AlterIsr { .. }))
    })?;
    Ok(bounded(director, Budgets { power_loss: 1, give_up: 1, ..Budgets::default() }))
}
