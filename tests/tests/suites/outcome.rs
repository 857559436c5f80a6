//! How a suite did, held against what it may not do yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::workshop::workshop;

/// A longer line is no remark of a test about itself.
const REMARK_LENGTH: usize = 150;

/// Which suite, and how it ran.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Cluster and choice of tests, in a few words.
    pub(crate) setting: &'static str,
}

/// A test that cannot pass, and the feature that it needs; or "nothing: ", and what it takes for granted of where it
/// runs. Such a one may pass on another day.
pub(crate) struct Gap {
    pub(crate) test: &'static str,
    pub(crate) missing: &'static str,
}

/// The names of a suite's tests by their outcome.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    /// How many the suite itself leaves out, by the reason that it gives.
    pub(crate) skipped: BTreeMap<String, usize>,
    /// Those that failed and ran a second time, alone: what that gave counts.
    pub(crate) again: BTreeSet<String>,
}

impl Tally {
    pub(crate) fn skip(&mut self, why: &str, count: usize) {
        *self.skipped.entry(why.to_owned()).or_default() += count;
    }

    /// Takes what the second run of tests gave for them.
    pub(crate) fn settle(&mut self, second: Self) {
        for test in &second.passed {
            self.failed.remove(test);
        }
        self.again.extend(second.passed.iter().chain(&second.failed).cloned());
        self.passed.extend(second.passed);
        self.failed.extend(second.failed);
    }

    /// Adds a step that was taken here.
    pub(crate) fn step(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed.insert(name.to_owned()),
            Err(why) => self.failed.insert(format!("{name}: {why:#}")),
        };
    }

    /// # Errors
    /// Another number of steps was gone through: a program ended before its end.
    pub(crate) fn ensure_run(&self, count: usize) -> Result<()> {
        let run = self.passed.len() + self.failed.len();
        ensure!(run == count, "{run} of {count} steps were gone through");
        Ok(())
    }

    fn skips(&self) -> usize {
        self.skipped.values().sum()
    }

    /// Reads the lines `test NAME ... ok` of Rust's test runner, and what passing tests say with `--show-output`: one that
    /// says that it skips did not run.
    pub(crate) fn of_cargo(output: &str) -> Self {
        let mut tally = Self::default();
        let (mut program, mut talking) = ("", None);
        for line in output.lines() {
            if let Some(started) = line.trim_start().strip_prefix("Running ") {
                program = started.split(" (").next().unwrap_or_default();
            }
            if let Some(heading) = line.strip_prefix("---- ") {
                talking = heading.split(' ').next().map(|name| format!("{program} {name}"));
            }
            let says_so = line.len() < REMARK_LENGTH && line.to_lowercase().starts_with("skipping");
            if says_so && talking.take_if(|name| tally.passed.remove(name)).is_some() {
                tally.skip(line.trim(), 1);
            }
            let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            else {
                continue;
            };
            let name = format!("{program} {name}");
            match outcome.split(',').next().unwrap_or_default().trim() {
                "ok" => tally.passed.insert(name),
                "FAILED" => tally.failed.insert(name),
                _ => {
                    let why = outcome.split_once(',').map_or("marked #[ignore]", |(_, why)| why.trim());
                    tally.skip(why, 1);
                    false
                }
            };
        }
        tally
    }

    /// Reads the lines `ok STEP` and `FAIL STEP` of a program that goes through steps.
    pub(crate) fn of_steps(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output.lines() {
            match line.split_once(' ') {
                Some(("ok", step)) => tally.passed.insert(step.trim().to_owned()),
                Some(("FAIL", step)) => tally.failed.insert(step.trim().to_owned()),
                _ => false,
            };
        }
        tally
    }

    /// Reads the summary that `pytest -rA` ends with.
    pub(crate) fn of_pytest(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output.lines() {
            let (outcome, rest) = line.split_once(' ').unwrap_or_default();
            let name = rest.split(" - ").next().unwrap_or_default().trim().to_owned();
            match outcome {
                "PASSED" => {
                    tally.passed.insert(name);
                }
                "FAILED" | "ERROR" => {
                    tally.failed.insert(name);
                }
                "SKIPPED" => {
                    let (count, rest) = rest.trim_start_matches('[').split_once(']').unwrap_or(("1", rest));
                    let why = rest.split_once(": ").map_or(rest, |(_place, why)| why);
                    tally.skip(why.trim(), count.parse().unwrap_or(1));
                }
                _ => {}
            }
        }
        tally
    }
}

/// Writes the outcome down, and holds it against the gaps.
///
/// # Errors
/// A test failed that is no gap, a gap passed, or nothing ran.
pub(crate) fn judge(suite: &Suite, tally: &Tally, gaps: &[Gap]) -> Result<()> {
    let gap_of = |test: &String| gaps.iter().find(|gap| test.contains(gap.test));
    let unexpected: Vec<&String> = tally.failed.iter().filter(|test| gap_of(test).is_none()).collect();
    let lacks = |gap: &Gap| !gap.missing.starts_with("nothing");
    let closed: Vec<&String> = tally.passed.iter().filter(|test| gap_of(test).is_some_and(lacks)).collect();
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for test in &tally.failed {
        missing.entry(gap_of(test).map_or("not known", |gap| gap.missing)).or_default().push(test);
    }
    let record = json!({
        "name": suite.name,
        "version": suite.version,
        "setting": suite.setting,
        "passed": tally.passed.len(),
        "failed": tally.failed.len(),
        "missing": missing,
        "skipped": tally.skipped,
        "again": tally.again.intersection(&tally.passed).collect::<Vec<_>>(),
    });
    let directory = workshop("results")?;
    let path = directory.join(format!("{}.json", suite.name.replace(' ', "-")));
    fs::write(&path, format!("{record:#}\n")).context("writing the outcome of a suite")?;
    eprintln!(
        "{} {}: {} passed, {} failed, {} skipped",
        suite.name,
        suite.version,
        tally.passed.len(),
        tally.failed.len(),
        tally.skips()
    );
    ensure!(unexpected.is_empty(), "{} tests of {} failed: {unexpected:?}", unexpected.len(), suite.name);
    ensure!(closed.is_empty(), "these tests of {} pass now; take them off the list: {closed:?}", suite.name);
    ensure!(!tally.passed.is_empty(), "no test of {} ran", suite.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_and_gaps_are_held_against_them() {
        let output = "     Running tests/x.rs (target/x)\ntest a ... ok\ntest b::c ... FAILED\ntest d ... ignored, why\nother\n";
        let tally = Tally::of_cargo(output);
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skips()), (1, 1, 1));
        assert_eq!(tally.skipped.keys().collect::<Vec<_>>(), ["why"]);
        let output = format!(
            "{output}\nsuccesses:\n\n---- a stdout ----\nSkipping it: no delete\n\nsuccesses:\n    a\n"
        );
        let tally = Tally::of_cargo(&output);
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skips()), (0, 1, 2));
        let tally = Tally::of_steps("ok   one thing\nnoise\nFAIL another: why\nok two\n");
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skips()), (2, 1, 0));
        let output =
            "PASSED test/a.py::one\nFAILED test/a.py::two[x] - Boom\nSKIPPED [3] test/b.py:1: no TLS\n";
        let tally = Tally::of_pytest(output);
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skips()), (1, 1, 3));
        assert_eq!(tally.skipped.keys().collect::<Vec<_>>(), ["no TLS"]);
        let mut settled = Tally::of_pytest(output);
        settled.settle(Tally::of_pytest("PASSED test/a.py::two[x]\n"));
        assert_eq!((settled.passed.len(), settled.failed.len(), settled.again.len()), (2, 0, 1));
        let suite = Suite { name: "made up", version: "0", setting: "none" };
        assert!(judge(&suite, &tally, &[]).is_err());
        judge(&suite, &tally, &[Gap { test: "a.py::two", missing: "everything" }]).unwrap();
        assert!(judge(&suite, &tally, &[Gap { test: "a.py", missing: "everything" }]).is_err());
        judge(&suite, &Tally::of_steps("ok a\n"), &[Gap { test: "a", missing: "nothing: slow" }]).unwrap();
        assert!(judge(&suite, &Tally::default(), &[]).is_err());
        fs::remove_file(workshop("results").unwrap().join("made-up.json")).unwrap();
    }
}
