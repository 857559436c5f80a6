//! Histories that are led to where something is at stake: whoever wants one holds back what shall come late, and lets
//! everything else happen in a fixed order.

use zurau_broker::cores::steps::ReplicaLog;

use crate::actions::Action;
use crate::convergence::Expectation;
use crate::messages::Message;
use crate::world::{Budgets, Config, LAG_MS, World};

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
        // All brokers are there before a controller is.
        director.hold(|_, action| matches!(action, Action::Claim(_)));
        director.settle()?;
        director.release();
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
                && !self.asks_in_vain(*action)
                && !self.held.iter().any(|held| held(&self.world, *action))
        };
        self.world.enabled().into_iter().find(quiet)
    }

    /// A follower that has everything, and whose leader has heard so; or one that would be refused.
    fn asks_in_vain(&self, action: Action) -> bool {
        let Action::Ask(i) = action else { return false };
        let world = &self.world;
        let broker = &world.brokers[i];
        let (Some(asked), Some(log)) = (world.question(i), &broker.disk.log) else { return false };
        let leader = &world.brokers[world.index_of(asked.leader)];
        let Some(leaders) = &leader.disk.log else { return false };
        let leads = leader.process.as_ref().and_then(|process| process.leader());
        if leads.is_some_and(|leader| leader.leader_epoch() != asked.leader_epoch) {
            return true;
        }
        let same = leaders.records == log.records && leaders.high_watermark() == log.high_watermark();
        let key = (log.topic_id, asked.leader_epoch, broker.id);
        let registration = broker.process.as_ref().map(|process| process.broker_epoch);
        same && registration.is_some_and(|of| world.referee.has_fetched(key, of, asked.offset))
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

    /// Waits for a message and hands it over. `again`: and leaves it on its way.
    pub(crate) fn deliver(&mut self, what: &str, again: bool, which: impl Fn(&Message) -> bool) -> Led {
        let found = self.world.network.iter().find(|(_, message)| which(message));
        let Some((number, _)) = found else { return Err(format!("no such message: {what}")) };
        let number = *number;
        self.take(if again { Action::Duplicate(number) } else { Action::Deliver(number) })
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

    /// It loses what was not flushed, too.
    pub(crate) fn lose_power(&mut self, broker: usize) -> Led {
        self.take(Action::LosePower(broker))?;
        self.end_orphans();
        Ok(())
    }

    /// ZooKeeper has not heard of the processes that are gone for long enough.
    fn end_orphans(&mut self) {
        for (session, _) in std::mem::take(&mut self.world.orphans) {
            self.world.zookeeper.end_session(session);
        }
    }

    /// What it must have come to.
    pub(crate) fn converge(&mut self) -> Led {
        for _ in 0..12 {
            self.settle()?;
            if self.world.missing(Expectation::Full).is_none() {
                return Ok(());
            }
            self.pass(LAG_MS)?;
        }
        let why = self.world.missing(Expectation::Full).unwrap_or_default();
        self.world.referee.violate(format!("it does not converge: {why}"));
        self.world.referee.violation.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn budget(&mut self, budgets: Budgets) {
        self.world.budgets = budgets;
    }
}
