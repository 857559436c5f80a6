//! Everything that can happen within bounds: breadth first over the same world as the histories, each state once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::actions::Action;
use crate::world::World;

/// How far is looked. Faults, records and time are bounded by the budgets of the world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) depth: usize,
    pub(crate) limit: Duration,
    pub(crate) states: usize,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// Every state at this distance or less was visited.
    pub(crate) depth: usize,
    /// Nothing is left to visit at any distance.
    pub(crate) exhausted: bool,
    /// States of the widest level: so many worlds were in memory at once.
    pub(crate) widest: usize,
    pub(crate) took: Duration,
    /// What was wrong, and the shortest way there.
    pub(crate) violation: Option<(String, Vec<Action>)>,
}

/// How each state was reached first: from which, and by what.
type Ways = Vec<(usize, Action)>;

fn way_to(ways: &Ways, mut state: usize) -> Vec<Action> {
    let mut actions = Vec::new();
    while state != 0 {
        let (before, action) = ways[state];
        actions.push(action);
        state = before;
    }
    actions.reverse();
    actions
}

/// Visits every state that can be reached from `start`, level by level.
pub(crate) fn explore(start: &World, bounds: Bounds) -> Explored {
    let began = Instant::now();
    let mut seen = HashSet::from([start.fingerprint()]);
    // The first entry stands for the start and is never read.
    let mut ways: Ways = vec![(0, Action::Depose)];
    let mut level = vec![(0, start.clone())];
    let (mut steps, mut depth, mut widest) = (0, 0, 1);
    let explored = |ways: &Ways, (steps, widest), depth, exhausted, violation| Explored {
        states: ways.len(),
        steps,
        depth,
        exhausted,
        widest,
        took: began.elapsed(),
        violation,
    };
    while !level.is_empty() && depth < bounds.depth {
        let (mut next, level_size) = (Vec::new(), level.len());
        for (state, world) in level {
            for action in world.enabled() {
                let mut after = world.clone();
                let panicked =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| after.take(action))).is_err();
                steps += 1;
                let what = match panicked {
                    true => Some(format!("M13: a core panicked at {action:?}")),
                    false => after.referee.violation.clone(),
                };
                if let Some(what) = what {
                    let mut way = way_to(&ways, state);
                    way.push(action);
                    return explored(&ways, (steps, widest), depth, false, Some((what, way)));
                }
                if seen.insert(after.fingerprint()) {
                    next.push((ways.len(), after));
                    ways.push((state, action));
                }
            }
            if bounds.limit < began.elapsed() || bounds.states < ways.len() {
                return explored(&ways, (steps, widest), depth, false, None);
            }
        }
        if crate::number("TELL").is_some() {
            println!("{depth}: {} states, {} ms", level_size, began.elapsed().as_millis());
        }
        level = next;
        widest = widest.max(level.len());
        depth += 1;
    }
    explored(&ways, (steps, widest), depth, level.is_empty(), None)
}
