//! Where the explorer begins: a cluster at rest, and clusters in the middle of something.

use std::sync::Arc;

use crate::actions::Action;
use crate::directed::stored;
use crate::director::{Director, Led};
use crate::messages::Message;
use crate::world::{Budgets, Config, LAG_MS, World};
use zurau_common::config::TruncationPath;
use zurau_common::id::BrokerId;
use zurau_controller::cores::Outgoing;

/// A start and what it is.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    make: fn() -> Led<Director>,
    /// What may still happen in a search that ends at `depth`.
    budgets: Budgets,
    pub(crate) depth: usize,
    /// Where a search to the end begins, if that is elsewhere.
    smaller: Option<fn() -> Led<Director>>,
    /// What may still happen in it.
    smallest: Budgets,
    /// What may still happen in a long one.
    small: Budgets,
    /// The broker that is down stays down in it.
    never_back: Option<usize>,
}

impl Start {
    /// For a search that ends at its depth.
    pub(crate) fn world(&self) -> Led<World> {
        Ok(bounded((self.make)()?, self.budgets))
    }

    /// For a search of everything. `long`: with one trouble more.
    pub(crate) fn smallest(&self, long: bool) -> Led<World> {
        let budgets = if long { self.small } else { self.smallest };
        let mut world = bounded(self.smaller.unwrap_or(self.make)()?, budgets);
        world.config = Arc::new(Config { never_back: self.never_back, ..Config::clone(&world.config) });
        Ok(world)
    }
}

const NONE: Budgets = Budgets::NONE;

pub(crate) const STARTS: &[Start] = &[
    Start {
        name: "at rest",
        make: at_rest,
        budgets: Budgets { produce: 1, kill: 1, long_time: 1, ..NONE },
        depth: 8,
        smaller: None,
        smallest: Budgets { produce: 1, duplicate: 1, ..NONE },
        small: Budgets { produce: 1, duplicate: 1, give_up: 1, ..NONE },
        never_back: None,
    },
    Start {
        name: "the leader has crashed with an uncommitted record",
        make: leader_crashed,
        budgets: Budgets { produce: 1, consume: 1, give_up: 1, ..NONE },
        depth: 10,
        smaller: None,
        smallest: Budgets { produce: 1, ..NONE },
        small: Budgets { produce: 1, give_up: 1, ..NONE },
        never_back: Some(0),
    },
    Start {
        name: "the same, and who has the record must cut it, asking where epochs end",
        make: leader_crashed_asking,
        budgets: Budgets { produce: 1, consume: 1, give_up: 1, ..NONE },
        depth: 8,
        smaller: None,
        smallest: Budgets { produce: 1, ..NONE },
        small: Budgets { produce: 1, give_up: 1, ..NONE },
        never_back: Some(0),
    },
    Start {
        name: "a controller was replaced and does not know",
        make: zombie_controller,
        budgets: Budgets { give_up: 1, duplicate: 1, ..NONE },
        depth: 5,
        smaller: None,
        smallest: NONE,
        small: Budgets { give_up: 1, ..NONE },
        never_back: Some(0),
    },
    Start {
        name: "a reassignment is under way",
        make: reassignment,
        budgets: Budgets { wish: 1, kill: 1, ..NONE },
        depth: 6,
        smaller: Some(reassignment_that_ends),
        smallest: NONE,
        small: Budgets { duplicate: 1, ..NONE },
        never_back: Some(2),
    },
    Start {
        name: "an ISR proposal is in flight, its member restarts",
        make: proposal_in_flight,
        budgets: Budgets { power_loss: 1, give_up: 1, ..NONE },
        depth: 6,
        smaller: None,
        smallest: NONE,
        small: Budgets { give_up: 1, ..NONE },
        never_back: None,
    },
];

fn coarse(min_insync: usize) -> Config {
    Config { coarse: true, ..Config::new(min_insync) }
}

fn bounded(mut director: Director, budgets: Budgets) -> World {
    director.release();
    director.budget(budgets);
    director.world.zookeeper.count_by_parts();
    director.world
}

fn at_rest() -> Led<Director> {
    Director::new(coarse(1))
}

/// One follower has the record of the old leader, the other has not.
fn leader_crashed() -> Led<Director> {
    crash_the_leader(coarse(1), 1)
}

/// The other follower is elected.
fn leader_crashed_asking() -> Led<Director> {
    crash_the_leader(Config { truncation: TruncationPath::OffsetsForLeaderEpoch, ..coarse(1) }, 2)
}

/// `has`: who has the record.
fn crash_the_leader(config: Config, has: usize) -> Led<Director> {
    let mut director = Director::new(config)?;
    director.budget(Budgets { produce: 1, kill: 1, ..Budgets::default() });
    director.hold(move |_, action| matches!(action, Action::Ask(follower) if follower != has));
    director.produce()?;
    director.until("a follower has it", |world| {
        world.brokers[has].disk.log.as_ref().is_some_and(|log| log.records.len() == 1)
    })?;
    director.kill(0)?;
    Ok(director)
}

/// It has orders on their way, and a write that it has not sent.
fn zombie_controller() -> Led<Director> {
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
    Ok(director)
}

/// The new host fetches, and the completing write is still to come.
fn reassignment() -> Led<Director> {
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
    Ok(director)
}

/// The follower shall have the partition for itself, leads, and is alone in sync: the completing write and the deletion are
/// still to come. The third broker is down.
fn reassignment_that_ends() -> Led<Director> {
    let replicas = vec![BrokerId(1), BrokerId(2)];
    let mut director = Director::new(Config { replicas, wishes: vec!["[2]"], ..coarse(1) })?;
    director.budget(Budgets { wish: 1, produce: 1, kill: 1, ..Budgets::default() });
    director.produce()?;
    director.kill(2)?;
    director.settle()?;
    director.take(Action::Wish(0))?;
    director.until("1 has left", |world| stored(world, &[2]))?;
    Ok(director)
}

fn proposal_in_flight() -> Led<Director> {
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
    Ok(director)
}
