//! Seeded histories of whole clusters: faults while clients work, then healing, then everything must have converged. The
//! same seed gives the same history.

use std::hash::{DefaultHasher, Hash, Hasher};

use zurau_common::config::TruncationPath;

use crate::actions::Action;
use crate::broker::Broker;
use crate::convergence::Expectation;
use crate::dice::Dice;
use crate::part::Part;
use crate::tampering::Tampering;
use crate::world::{Budgets, Config, World};

/// What a history came to.
#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The first thing that was wrong, and after how many steps.
    pub(crate) violation: Option<(String, usize)>,
    pub(crate) steps: usize,
    pub(crate) acknowledged: usize,
    /// Of all actions, in order.
    pub(crate) fingerprint: u64,
    pub(crate) actions: Vec<Action>,
    /// What stood where in the end.
    pub(crate) summary: String,
}

/// What a history is played with.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) budgets: Budgets,
    pub(crate) tamperings: Vec<Tampering>,
    pub(crate) expectation: Expectation,
}

/// The setup that a seed stands for: every kind of cluster gets its share.
pub(crate) fn setup_of(seed: u64) -> Setup {
    let mut config = Config::new(1 + usize::try_from(seed % 2).expect("0 or 1"));
    config.own_isr_path = seed % 4 < 2;
    if seed % 5 < 2 {
        config.truncation = TruncationPath::OffsetsForLeaderEpoch;
    }
    config.coarse = seed.is_multiple_of(3);
    config.twin = seed % 16 == 5;
    if seed % 8 >= 4 {
        config.wishes = vec!["[1,2]", "[2,3]", "[3,1]", "[1,2,3]", "[3,2,1]"];
    }
    let mut tamperings = Vec::new();
    match seed % 32 {
        9 => tamperings.push(Tampering::EmptyTopic),
        27 => tamperings.push(Tampering::RecreateTopic),
        _ => {}
    }
    let budgets = Budgets { tamper: 1, ..swarm(seed) };
    Setup { config, budgets, tamperings, expectation: Expectation::Full }
}

/// Only some kinds of trouble in each history: each gets room to show what it does (swarm testing).
fn swarm(seed: u64) -> Budgets {
    let (mut dice, mut budgets) = (Dice::new(seed ^ 0xfeed), Budgets::unlimited());
    for budget in [
        &mut budgets.kill,
        &mut budgets.power_loss,
        &mut budgets.stop,
        &mut budgets.cut_off,
        &mut budgets.controller_cut_off,
        &mut budgets.depose,
        &mut budgets.deafen,
        &mut budgets.lose_answer,
        &mut budgets.give_up,
        &mut budgets.duplicate,
        &mut budgets.stale_read,
        &mut budgets.consume,
    ] {
        if dice.one_in(2) {
            *budget = 0;
        }
    }
    budgets
}

struct Run {
    world: World,
    dice: Dice,
    actions: Vec<Action>,
    violation: Option<(String, usize)>,
    expectation: Expectation,
    /// One step in so many is trouble.
    trouble: usize,
    /// Each step is printed.
    tell: bool,
}

/// Plays the history of a seed: `steps` of trouble, then healing.
pub(crate) fn play(setup: Setup, seed: u64, steps: usize) -> History {
    let Setup { config, budgets, tamperings, expectation } = setup;
    let mut world = World::new(config);
    world.budgets = budgets;
    world.tamperings = tamperings;
    let mut dice = Dice::new(seed);
    let trouble = 6 + dice.roll(20);
    let (actions, violation) = (Vec::new(), None);
    let mut run =
        Run { world, dice, actions, violation, expectation, trouble, tell: crate::number("TELL").is_some() };
    run.settle(40);
    for _ in 0..steps {
        if run.violation.is_some() {
            break;
        }
        let action = run.choose();
        run.take(action);
    }
    if run.expectation != Expectation::Nothing {
        run.heal();
    }
    let mut hasher = DefaultHasher::new();
    run.actions.hash(&mut hasher);
    History {
        steps: run.actions.len(),
        acknowledged: run.world.referee.acknowledged.len(),
        fingerprint: hasher.finish(),
        summary: if run.violation.is_some() { run.world.summary() } else { String::new() },
        violation: run.violation,
        actions: run.actions,
    }
}

impl Run {
    fn take(&mut self, action: Action) {
        if self.violation.is_some() {
            return;
        }
        if self.tell {
            println!("{:5} {action:?} {}", self.actions.len() + 1, self.world.told_by(action));
        }
        self.actions.push(action);
        let step = self.actions.len();
        let world = &mut self.world;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.take(action)));
        let what = match panicked {
            Err(_) => Some(format!("M13: a core panicked at {action:?}")),
            Ok(()) => self.world.referee.violation.clone(),
        };
        self.violation = what.map(|what| (what, step));
    }

    /// Something that can happen now: mostly work, sometimes trouble, and what heals takes its time.
    fn choose(&mut self) -> Action {
        let mut enabled = self.world.enabled();
        let produce = enabled.iter().copied().find(|action| matches!(action, Action::Produce(_)));
        if let Some(produce) = produce.filter(|_| self.dice.one_in(12)) {
            return produce;
        }
        if !self.dice.one_in(8) && enabled.iter().any(|action| !action.takes_time()) {
            enabled.retain(|action| !action.takes_time());
        }
        if !self.dice.one_in(6) && enabled.iter().any(|action| !action.heals()) {
            enabled.retain(|action| !action.heals());
        }
        let trouble = self.dice.one_in(self.trouble);
        let (disturbances, work): (Vec<Action>, Vec<Action>) =
            enabled.into_iter().partition(|action| action.is_disturbance());
        let chosen = if trouble && !disturbances.is_empty() || work.is_empty() { disturbances } else { work };
        chosen[self.dice.roll(chosen.len())]
    }

    /// Work only, no trouble and no time, at most so many steps.
    fn settle(&mut self, most: usize) {
        for _ in 0..most {
            let enabled = self.world.enabled();
            let quiet = |action: &Action| {
                !action.is_disturbance()
                    && !action.takes_time()
                    && !matches!(
                        action,
                        Action::Produce(_) | Action::Consume(_) | Action::Sync(_) | Action::Checkpoint(_)
                    )
            };
            let work: Vec<Action> = enabled.into_iter().filter(quiet).collect();
            if work.is_empty() || self.violation.is_some() {
                return;
            }
            let action = work[self.dice.roll(work.len())];
            self.take(action);
        }
    }

    /// No more trouble: the cluster must find back to its full strength by itself.
    fn heal(&mut self) {
        self.world.budgets = Budgets { long_time: 250, produce: 250, ..Budgets::default() };
        for round in 0..60 {
            self.settle(120);
            if self.violation.is_some() {
                return;
            }
            let leads =
                |broker: &Part<Broker>| broker.process.as_ref().is_some_and(|one| one.leader().is_some());
            let leader = self.world.brokers.iter().position(leads);
            if let Some(leader) = leader.filter(|_| round % 8 == 1) {
                self.take(Action::Produce(leader));
                self.settle(120);
            }
            if round > 1 && self.world.missing(self.expectation).is_none() {
                break;
            }
            self.take(if round % 4 == 3 { Action::PassALag } else { Action::PassALittle });
        }
        if self.violation.is_none() {
            let mut referee = self.world.referee.clone();
            if let Some(why) = self.world.missing(self.expectation) {
                referee.violate(format!("it does not converge: {why}"));
            }
            if self.expectation == Expectation::Full {
                referee.check_everywhere(&self.world);
            }
            self.violation = referee.violation.map(|what| (what, self.actions.len()));
        }
    }
}
