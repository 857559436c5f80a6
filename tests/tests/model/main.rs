//! The model: production cores of controllers and brokers in one deterministic world, walked at random (seeded
//! simulation) and exhaustively within bounds (model checking), with every rule switched off once.

use std::time::Duration;

mod actions;
mod attacks;
mod broker;
mod control;
mod controller;
mod convergence;
mod dice;
mod directed;
mod directed_tree;
mod director;
mod explorer;
mod log;
mod messages;
mod mutations;
mod network;
mod office;
mod part;
mod records;
mod referee;
mod registration;
mod serving;
mod simulation;
mod starts;
mod tampering;
mod world;
mod zookeeper;

use director::Led;
use explorer::{Bounds, Explored, explore};
use simulation::{play, setup_of};
use starts::{STARTS, Start};
use tampering::Tampering;
use world::World;

/// Histories of one run; `SEEDS=n` plays more, `SEED=n` one.
const SEEDS: u64 = 200;
const STEPS: usize = 150;
/// States that a search may see: what bounds its memory.
const STATES_MAX: usize = 2_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn seeded_histories_keep_what_was_promised_and_converge() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SEEDS").unwrap_or(SEEDS) + 1,
    };
    let (mut steps, mut acknowledged) = (0, 0);
    for seed in seeds {
        let history = play(setup_of(seed), seed, STEPS);
        if let Some((what, step)) = &history.violation {
            let last = &history.actions[history.actions.len().saturating_sub(60)..];
            panic!(
                "seed {seed}, step {step}: {what}\nthe last steps were {last:?}\n{}\nreplay: SEED={seed} cargo nextest \
                 run -p zurau-tests --test model seeded_histories",
                history.summary
            );
        }
        steps += history.steps;
        acknowledged += history.acknowledged;
    }
    println!("{steps} steps, {acknowledged} acknowledged records");
}

/// What people do to znodes, once in each history, is survived in full.
#[test]
fn histories_with_people_in_the_tree_converge() {
    let people = [
        Tampering::EmptyTopic,
        Tampering::RecreateTopic,
        Tampering::LowerControllerEpoch,
        Tampering::CopyTree,
    ];
    for what in people {
        let seeds = match number("SEED") {
            Some(seed) => seed..seed + 1,
            None => 1..number("SEEDS").unwrap_or(SEEDS / 4) + 1,
        };
        let only = std::env::var("TAMPER").ok();
        if only.is_some_and(|only| only != format!("{what:?}")) {
            continue;
        }
        for seed in seeds {
            let mut setup = setup_of(seed);
            setup.config.twin = false;
            setup.tamperings = vec![what];
            let history = play(setup, seed, STEPS);
            if let Some((why, step)) = &history.violation {
                panic!("{what:?}, seed {seed}, step {step}: {why}\n{}", history.summary);
            }
        }
    }
}

/// The starts that are wanted: all, or that of `START=n`.
fn starts() -> impl Iterator<Item = &'static Start> {
    let only = number("START").map(|only| usize::try_from(only).expect("a small number"));
    STARTS
        .iter()
        .enumerate()
        .filter(move |(at, _)| only.is_none_or(|only| only == *at))
        .map(|(_, start)| start)
}

/// Looks at everything within bounds, says how much that was, and fails where something is wrong.
fn search(start: &Start, world: Led<World>, bounds: Bounds) -> Explored {
    let world = world.unwrap_or_else(|why| panic!("{}: {why}", start.name));
    let explored = explore(&world, bounds);
    println!(
        "{}: {} states by {} steps, {} at once, {}, {} ms",
        start.name,
        explored.states,
        explored.steps,
        explored.widest,
        match explored.exhausted {
            true => format!("exhausted at depth {}", explored.depth),
            false => format!("complete to depth {}", explored.depth),
        },
        explored.took.as_millis()
    );
    if let Some((what, way)) = &explored.violation {
        panic!("{}: {what}\nby {way:?}", start.name);
    }
    explored
}

/// `LONG=n`: for so many seconds from each start, however deep that is.
#[test]
fn everything_within_bounds_keeps_what_was_promised() {
    let long = number("LONG");
    let limit = Duration::from_secs(long.unwrap_or(60));
    for start in starts() {
        let depth = if long.is_some() { usize::MAX } else { start.depth };
        search(start, start.world(), Bounds { depth, limit, states: STATES_MAX });
    }
}

/// Until no state is left that was not seen. `LONG=n`: with one trouble more, for n seconds at most from each start.
#[test]
fn the_smallest_bounds_are_searched_to_the_end() {
    let long = number("LONG");
    let limit = Duration::from_secs(long.unwrap_or(300));
    for start in starts() {
        let bounds = Bounds { depth: usize::MAX, limit, states: STATES_MAX };
        let explored = search(start, start.smallest(long.is_some()), bounds);
        assert!(explored.exhausted || long.is_some(), "{}: states are left", start.name);
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 4] {
        let (one, other) = (play(setup_of(seed), seed, STEPS), play(setup_of(seed), seed, STEPS));
        assert_eq!(one.actions, other.actions);
        assert_eq!(one.fingerprint, other.fingerprint);
    }
}
