//! Every rule, switched off once: the simulation or the explorer must notice. One that nobody misses fails the test.

use std::time::{Duration, Instant};

use zurau_common::config::TruncationPath;
use zurau_common::id::BrokerId;
use zurau_common::rule::{Rule, without};

use crate::convergence::Expectation;
use crate::directed::DIRECTED;
use crate::director::{Director, Led};
use crate::simulation::{Setup, play, setup_of};
use crate::tampering::Tampering;
use crate::world::{Budgets, Config};

const STEPS: usize = 200;

/// No time is spent on healing: what goes wrong shows at once.
fn safety(setup: Setup, budgets: Budgets) -> Setup {
    let mut setup = Setup { budgets, expectation: Expectation::Nothing, ..setup };
    setup.config.coarse = true;
    setup
}

/// Wishes that keep partitions moving.
const MOVES: [&str; 5] = ["[1,2]", "[2,3]", "[3,1]", "[1,2,3]", "[3,2,1]"];

fn moving(mut setup: Setup) -> Setup {
    setup.config.wishes = MOVES.to_vec();
    setup
}

/// The way in which a rule matters.
fn truncation_for(rule: Rule) -> TruncationPath {
    match rule {
        Rule::TruncateBeforeFetch | Rule::EpochsAgree => TruncationPath::OffsetsForLeaderEpoch,
        _ => TruncationPath::Fetch,
    }
}

/// The trouble in which the absence of a rule shows.
fn setup_for(rule: Rule, seed: u64) -> Setup {
    let mut setup = setup_of(seed);
    setup.config.twin = false;
    setup.tamperings.clear();
    setup.config.truncation = truncation_for(rule);
    let tampering = |what: Tampering, expectation: Expectation| Setup {
        tamperings: vec![what],
        expectation,
        ..setup.clone()
    };
    match rule {
        Rule::StartedStaysStarted => tampering(Tampering::DeleteIsr, Expectation::Nothing),
        Rule::RecordsMeanStarted => tampering(Tampering::RestoreOldEntry, Expectation::Nothing),
        Rule::ErrorIsNoStray | Rule::StrayIsProven => tampering(Tampering::GarbleState, Expectation::Nothing),
        Rule::TargetStandsIn => tampering(Tampering::GarbleReplicas, Expectation::Leader),
        Rule::EpochAboveTree => tampering(Tampering::LowerControllerEpoch, Expectation::Nothing),
        Rule::FirstStateIsAwaited => tampering(Tampering::EmptyTopic, Expectation::Full),
        Rule::IdIsPutBack => tampering(Tampering::EmptyTopic, Expectation::Full),
        Rule::IncarnationExists | Rule::StopNamesIncarnation | Rule::StartedByIsr | Rule::OwnWriteIsKnown => {
            tampering(Tampering::RecreateTopic, Expectation::Full)
        }
        Rule::RegistrationOverFormer | Rule::DirectoryOfMachine => {
            setup.config.twin = true;
            setup
        }
        Rule::MissingElrIsRead => {
            setup.config.min_insync = 2;
            setup.config.drops_elr = true;
            setup.expectation = Expectation::Nothing;
            setup
        }
        Rule::ElrStopsHighWatermark | Rule::LeaveBeforeComplete | Rule::CompleteUnderBoot => {
            setup.config.min_insync = 2;
            setup.expectation = Expectation::Nothing;
            setup
        }
        Rule::RecoveryIsRecorded => {
            setup.config.unclean = true;
            setup.config.never_back = Some(0);
            setup.expectation = Expectation::Leader;
            setup
        }
        Rule::MinimumWithinTarget => {
            let mut config = Config::new(2);
            config.replicas = vec![BrokerId(1)];
            Setup { config, ..setup }
        }
        Rule::UnansweredLeaderAsks => {
            setup.config.own_isr_path = false;
            setup.config.wishes = MOVES.to_vec();
            setup.budgets.part = 1;
            setup.expectation = Expectation::NoStaleLeader;
            setup
        }
        Rule::ElrIsHosted => {
            setup.config.min_insync = 2;
            moving(setup)
        }
        Rule::MoveIsAnEpoch
        | Rule::HostsOnlyGrow
        | Rule::HostsDoNotLeave
        | Rule::WishAtItsVersion
        | Rule::RemovedStaysOut
        | Rule::DeleteInItsEpoch => moving(setup),
        Rule::RefusalIsRemembered | Rule::ResignInOwnEpoch => {
            setup.budgets.fail_log = 3;
            setup.expectation = Expectation::Nothing;
            setup
        }
        _ => safety_setup_for(rule, setup, seed),
    }
}

/// Of rules whose absence breaks safety: it shows at once, and best when little else happens.
fn safety_setup_for(rule: Rule, mut setup: Setup, seed: u64) -> Setup {
    match rule {
        Rule::NewerIsrOnly | Rule::LostAnswerLingers | Rule::PartitionVersion | Rule::MemberRegistration => {
            let all = Budgets::unlimited();
            let few = Budgets { produce: 250, kill: 250, give_up: 250, long_time: 250, ..Budgets::default() };
            let budgets =
                Budgets { stale_read: all.stale_read, lose_answer: all.lose_answer, duplicate: 250, ..few };
            safety(setup, Budgets { tamper: 0, ..budgets })
        }
        Rule::DivergingFetchIsNoProgress
        | Rule::ProgressPerEpoch
        | Rule::JoinAfterFetch
        | Rule::JoinAtHighWatermark
        | Rule::JoinAtEpochStart
        | Rule::AnswerInItsEpoch
        | Rule::DivergenceForItsQuestion
        | Rule::TruncateBeforeFetch
        | Rule::EpochsAgree
        | Rule::EpochOfReads
        | Rule::ElectionFromStoredIsr
        | Rule::RegistrationOfFetch
        | Rule::TakeOverOfStoredIsr => {
            let few = Budgets { produce: 250, kill: 250, give_up: 250, long_time: 250, ..Budgets::default() };
            setup.config.wishes = if seed.is_multiple_of(2) { MOVES.to_vec() } else { Vec::new() };
            safety(setup, Budgets { duplicate: 250, wish: 250, cut_off: 250, ..few })
        }
        Rule::LeaseByWrites | Rule::NumbersOfSession => {
            let few = Budgets { produce: 250, consume: 250, long_time: 250, ..Budgets::default() };
            safety(setup, Budgets { cut_off: 250, ..few })
        }
        Rule::CertainWithoutLease => {
            setup.config.min_insync = 2;
            let few = Budgets { produce: 250, consume: 250, long_time: 250, ..Budgets::default() };
            safety(setup, Budgets { cut_off: 250, kill: 1, ..few })
        }
        _ => setup,
    }
}

/// Histories that a rule is looked for in, and for how long.
const SEEDS: u64 = 400;
const LIMIT: Duration = Duration::from_secs(180);

/// The first seed to play: of a rule that is seldom missed, one that a long search (`RULE=a SEEDS=6000`) has found. What
/// changes histories moves it.
fn first_seed(rule: Rule) -> u64 {
    match rule {
        Rule::JoinAtEpochStart => 1569,
        _ => 1,
    }
}

/// How the absence of a rule was noticed.
struct Catch {
    seed: u64,
    steps: usize,
    what: String,
}

/// The first history that goes wrong without the rule, and does not with it; and how many were played.
fn hunt(rule: Rule, seeds: u64) -> (Option<Catch>, u64) {
    let started = Instant::now();
    // A longer search than the usual one is for another seed.
    let first = if seeds == SEEDS { first_seed(rule) } else { 1 };
    let range = crate::number("SEED").map_or(first..first + seeds, |seed| seed..seed + 1);
    for seed in range {
        let history = without(&[rule], || play(setup_for(rule, seed), seed, STEPS));
        if let Some((what, steps)) = history.violation {
            let control = play(setup_for(rule, seed), seed, STEPS);
            if let Some((why, _)) = control.violation {
                println!("{rule:?}, seed {seed}: it goes wrong with the rule too: {why}");
                if crate::number("TELL").is_some() {
                    println!("{}", control.summary);
                }
                return (None, seed);
            }
            return (Some(Catch { seed, steps, what }), seed);
        }
        if LIMIT < started.elapsed() {
            return (None, seed);
        }
    }
    (None, seeds)
}

/// `RULE=a,b` looks for these only, also for those of the directed histories; `SEEDS=n` in more of them, `SEED=n` in one,
/// which `TELL=1` prints without the rule and with it.
#[test]
fn every_rule_is_missed_when_it_is_switched_off() {
    let only = std::env::var("RULE").ok();
    let wanted = |rule: Rule| match &only {
        Some(only) => only.split(',').any(|one| one == format!("{rule:?}")),
        None => !DIRECTED.iter().any(|directed| directed.rule == rule),
    };
    // A core without one of its rules may well panic; that is noticed, and no news.
    std::panic::set_hook(Box::new(|_| {}));
    let mut unnoticed = Vec::new();
    for rule in Rule::OF_PARTITIONS.iter().copied().filter(|rule| wanted(*rule)) {
        let (name, started) = (format!("{rule:?}"), Instant::now());
        let (catch, histories) = hunt(rule, crate::number("SEEDS").unwrap_or(SEEDS));
        let took = started.elapsed().as_millis();
        match catch {
            Some(Catch { seed, steps, what }) => {
                let what: String = what.chars().take(90).collect();
                println!("{name:26} simulation, seed {seed:4}, step {steps:5}, {took:6} ms: {what}");
            }
            None => {
                println!("{name:26} NOBODY in {histories} histories, {took} ms");
                unnoticed.push(name);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(unnoticed.is_empty(), "nobody misses {unnoticed:?}");
}

/// Leads a history; what was wrong on the way, and what it came to.
fn lead(directed: &crate::directed::Directed) -> (Option<String>, usize, Led) {
    let led = Director::new((directed.config)()).map(|mut director| {
        let led = (directed.lead)(&mut director);
        (director.world.referee.violation.take(), director.actions.len(), led)
    });
    led.unwrap_or_else(|why| (Some(why.clone()), 0, Err(why)))
}

#[test]
fn every_directed_history_goes_wrong_without_its_rule_and_only_then() {
    let only = std::env::var("RULE").ok();
    let wanted =
        |rule: Rule| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == format!("{rule:?}")));
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = Vec::new();
    for directed in DIRECTED.iter().filter(|directed| wanted(directed.rule)) {
        let name = format!("{:?}", directed.rule);
        let (control, steps, led) = lead(directed);
        if let Some(what) = control.or(led.err()) {
            println!("{name:26} WITH THE RULE, step {steps}: {what}");
            wrong.push(name);
            continue;
        }
        if !directed.covered_by.is_empty()
            && let (Some(what), steps, _) = without(&[directed.rule], || lead(directed))
        {
            println!("{name:26} IS NOT COVERED, step {steps}: {what}");
            wrong.push(name);
            continue;
        }
        let mut off = vec![directed.rule];
        off.extend(directed.covered_by);
        let (caught, steps, led) = without(&off, || lead(directed));
        match caught {
            Some(what) => {
                let what: String = what.chars().take(90).collect();
                let with =
                    directed.covered_by.iter().map(|rule| format!(", with {rule:?} off")).collect::<String>();
                println!("{name:26} directed, step {steps:5}{with}: {what}");
            }
            None => {
                println!("{name:26} NOTHING is wrong after {steps} steps: {led:?}");
                wrong.push(name);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{wrong:?}");
}
