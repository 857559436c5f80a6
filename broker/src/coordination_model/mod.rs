//! The model of the coordinators: the production cores of transactions, groups, markers and producers on partitions, with
//! the records that they write, in one deterministic world of brokers and applications. Messages are lost, repeated and
//! late; leaders change in every state, and go on until they hear of it. Then everything heals, and a referee looks at what
//! was committed.
//!
//! `SEED=n` plays one history, `TELL=1` prints it, `SEEDS=n` plays more of them.
//!
//! Applications do their transactions in version 1, in version 2 (KIP-890), or in both, some near the last epoch of their
//! producer id. Not among the histories: an EndTxn, a TxnOffsetCommit or a marker of one transaction of version 1 that
//! arrives in the next one of the same producer epoch, sent by the same coordinator. Without an epoch for each transaction
//! nobody can tell them apart (TXN-02); those of version 2 come as late as they like.

mod broker;
mod client;
#[path = "../../../tests/tests/model/dice.rs"]
mod dice;
mod directed;
mod directed_version_2;
mod log;
mod messages;
mod offices;
mod referee;
mod shells;
mod simulation;
mod words;
mod world;

use directed::{DIRECTED, Directed};
use directed_version_2::DIRECTED_2;
use simulation::{Setup, play};

/// Histories of one run.
const SEEDS: u64 = 150;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn transactions_are_whole_and_read_once_whatever_happens() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SEEDS").unwrap_or(SEEDS) + 1,
    };
    let (mut steps, mut commits) = (0, 0);
    for seed in seeds {
        let history = play(Setup::of(seed), seed);
        if let Some(what) = &history.violation {
            panic!(
                "seed {seed}, step {}: {what}\n{}\nreplay: SEED={seed} TELL=1 cargo test -p zurau-broker --lib \
                 coordination_model::transactions_are_whole",
                history.steps, history.summary
            );
        }
        steps += history.steps;
        commits += history.commits;
    }
    println!("{steps} steps, {commits} committed transactions");
}

fn directed() -> impl Iterator<Item = &'static Directed> {
    DIRECTED.iter().chain(DIRECTED_2)
}

/// Histories in which the absence of a rule must show.
#[cfg(feature = "model")]
const SEEDS_OF_RULE: u64 = 300;

/// `RULE=a,b` looks at these only; `SEED=n` at one history, `SEEDS=n` at more.
#[cfg(feature = "model")]
#[test]
fn every_rule_is_missed_when_it_is_switched_off() {
    use zurau_common::rule::{Rule, without};

    let only = std::env::var("RULE").ok();
    let wanted =
        |rule: &Rule| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == format!("{rule:?}")));
    // A core without one of its rules may well panic; that is noticed, and no news.
    std::panic::set_hook(Box::new(|_| {}));
    let mut unnoticed = Vec::new();
    let is_directed = |rule: &Rule| directed().any(|(directed, _)| directed == rule);
    for rule in Rule::OF_COORDINATORS.iter().copied().filter(wanted).filter(|rule| !is_directed(rule)) {
        let seeds =
            number("SEED").map_or(1..number("SEEDS").unwrap_or(SEEDS_OF_RULE) + 1, |seed| seed..seed + 1);
        let caught = seeds.clone().find_map(|seed| {
            let setup = Setup::of(seed);
            let history = without(&[rule], || play(setup.clone(), seed));
            let what = history.violation?;
            let control = play(setup, seed).violation;
            Some((seed, history.steps, what, control))
        });
        match caught {
            Some((seed, steps, what, None)) => {
                let what: String = what.chars().take(100).collect();
                println!("{:26} seed {seed:4}, step {steps:5}: {what}", format!("{rule:?}"));
            }
            Some((seed, _, _, Some(control))) => {
                println!("{rule:?}, seed {seed}: it goes wrong with the rule too: {control}");
                unnoticed.push(rule);
            }
            None => {
                println!("{:26} NOBODY in {seeds:?}", format!("{rule:?}"));
                unnoticed.push(rule);
            }
        }
    }
    for (rule, lead) in directed().filter(|(rule, _)| wanted(rule)) {
        let caught = std::panic::catch_unwind(|| without(&[*rule], lead));
        match caught.unwrap_or_else(|_| Some("a core panicked".to_owned())) {
            Some(what) => println!("{:26} directed: {what}", format!("{rule:?}")),
            None => {
                println!("{:26} NOTHING is wrong", format!("{rule:?}"));
                unnoticed.push(*rule);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(unnoticed.is_empty(), "nobody misses {unnoticed:?}");
}

#[test]
fn directed_histories_end_well() {
    for (rule, lead) in directed() {
        assert_eq!(lead(), None, "{rule:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 4] {
        let (one, other) = (play(Setup::of(seed), seed), play(Setup::of(seed), seed));
        assert_eq!(
            (one.steps, one.commits, one.fingerprint),
            (other.steps, other.commits, other.fingerprint)
        );
    }
}
