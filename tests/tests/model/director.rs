//! Histories that are led to where something is at stake: whoever wants one holds back what shall come late, and lets
//! everything else happen in a fixed order.

use crate::actions::Action;
use crate::messages::Message;
use crate::world::{Budgets, Config, World};

/// Steps in which a cluster comes to rest, or to what is waited for.
const STEPS_MAX: usize = 600;

/// What is held back.
type Held = Box<dyn Fn(&World, Action) -> bool>;

pub(crate) struct Director {
    pub(crate) world: World,
    pub(crate) actions: Vec<Action>,
    held: Vec<Held>,
}

/// Why a history did not come to where it was led: something was violated on the way, or it does not happen.
pub(crate) type Led<T = ()> = Result<T, String>;

impl Director {
    /// A cluster at rest, whose partition has a leader and a full ISR.
    pub(crate) fn new(config: Config) -> Led<Self> {
        Self::watching(World::new(config))
    }

    pub(crate) fn watching(world: World) -> Led<Self> {
        let mut director = Self { world, actions: Vec::new(), held: Vec::new() };
        director.settle()?;
        // The author of the topic has had his time.
        director.pass(1_000)?;
        Ok(director)
    }

    /// Holds these actions back, until [`Director::release`].
    pub(crate) fn hold(&mut self, what: impl Fn(&World, Action) -> bool + 'static) {
        self.held.push(Box::new(what));
    }

    /// Holds messages back.
    pub(crate) fn hold_messages(&mut self, which: impl Fn(&Message) -> bool + 'static) {
        self.hold(move |world, action| match action {
            Action::Deliver(number) => world.network.get(&number).is_some_and(|message| which(message)),
            _ => false,
        });
    }

    /// Nothing is held back any more.
    pub(crate) fn release(&mut self) {
        self.held.clear();
    }

    pub(crate) fn take(&mut self, action: Action) -> Led {
        if crate::number("TELL").is_some() {
            println!("{:4} {action:?} {}", self.actions.len() + 1, self.world.told_by(action));
        }
        self.actions.push(action);
        let world = &mut self.world;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.take(action)));
        if panicked.is_err() {
            self.world.referee.violate(format!("M13: a core panicked at {action:?}"));
        }
        self.world.referee.violation.clone().map_or(Ok(()), Err)
    }

    /// What is not held back, is no trouble, and takes no time; the first of them.
    fn next(&self) -> Option<Action> {
        let quiet = |action: &Action| {
            !action.is_disturbance()
                && !action.takes_time()
                && !action.heals()
                && !matches!(
                    action,
                    Action::Produce(_) | Action::Consume(_) | Action::Sync(_) | Action::Checkpoint(_)
                )
                && !self.held.iter().any(|held| held(&self.world, *action))
        };
        self.world.enabled().into_iter().find(quiet)
    }

    /// Until nothing is left to happen.
    pub(crate) fn settle(&mut self) -> Led {
        for _ in 0..STEPS_MAX {
            let Some(action) = self.next() else { return Ok(()) };
            self.take(action)?;
        }
        Err("it does not come to rest".to_owned())
    }

    /// Until it is so.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) -> Led {
        for _ in 0..STEPS_MAX {
            if is_so(&self.world) {
                return Ok(());
            }
            let Some(action) = self.next() else { break };
            self.take(action)?;
        }
        Err(format!("it is never so: {what}"))
    }

    /// A client's record, which all in sync may take. The leader by index.
    pub(crate) fn produce(&mut self) -> Led {
        let leader = self.leader().ok_or("nobody leads")?;
        self.take(Action::Produce(leader))
    }

    /// The one that leads in the highest epoch.
    pub(crate) fn leader(&self) -> Option<usize> {
        let epoch = |index: &usize| {
            let process = self.world.brokers[*index].process.as_ref()?;
            Some(process.leader()?.leader_epoch())
        };
        (0..self.world.brokers.len()).filter(|index| epoch(index).is_some()).max_by_key(|index| epoch(index))
    }

    /// Time passes, and what is due happens.
    pub(crate) fn pass(&mut self, milliseconds: u64) -> Led {
        self.world.pass(milliseconds);
        self.settle()
    }

    /// The broker is killed, and its session ends at once.
    pub(crate) fn kill(&mut self, broker: usize) -> Led {
        self.take(Action::Kill(broker))?;
        self.end_orphans();
        Ok(())
    }

    /// ZooKeeper has not heard of the processes that are gone for long enough.
    fn end_orphans(&mut self) {
        for (session, _) in std::mem::take(&mut self.world.orphans) {
            self.world.zookeeper.end_session(session);
        }
    }

    pub(crate) fn budget(&mut self, budgets: Budgets) {
        self.world.budgets = budgets;
    }
}
