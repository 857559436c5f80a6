//! How a suite did, held against what it may not do yet.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::workshop::workshop;

/// Which suite, and how it ran.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Cluster and choice of tests, in a few words.
    pub(crate) setting: &'static str,
}

/// A test that cannot pass, and the feature that it needs.
pub(crate) struct Gap {
    pub(crate) test: &'static str,
    pub(crate) missing: &'static str,
}

/// The names of a suite's tests by their outcome.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    /// The suite itself leaves them out.
    pub(crate) skipped: usize,
}

impl Tally {
    /// Adds another run: a test that failed once has failed.
    pub(crate) fn add(&mut self, other: Self) {
        self.failed.extend(other.failed);
        self.passed.extend(other.passed);
        self.passed = self.passed.difference(&self.failed).cloned().collect();
        self.skipped += other.skipped;
    }

    /// Reads the lines `test NAME ... ok` of Rust's test runner.
    pub(crate) fn of_cargo(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output.lines() {
            let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            else {
                continue;
            };
            match outcome.split(',').next().unwrap_or_default().trim() {
                "ok" => tally.passed.insert(name.to_owned()),
                "FAILED" => tally.failed.insert(name.to_owned()),
                _ => {
                    tally.skipped += 1;
                    false
                }
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
                    let count = rest.trim_start_matches('[').split(']').next().unwrap_or_default();
                    tally.skipped += count.parse().unwrap_or(1);
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
    let closed: Vec<&String> = tally.passed.iter().filter(|test| gap_of(test).is_some()).collect();
    let missing: BTreeSet<&str> =
        tally.failed.iter().filter_map(|test| gap_of(test).map(|gap| gap.missing)).collect();
    let record = json!({
        "name": suite.name,
        "version": suite.version,
        "setting": suite.setting,
        "passed": tally.passed.len(),
        "failed": tally.failed.len(),
        "skipped": tally.skipped,
        "missing": missing,
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
        tally.skipped
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
        let output = "test a ... ok\ntest b::c ... FAILED\ntest d ... ignored, why\nother\n";
        let tally = Tally::of_cargo(output);
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skipped), (1, 1, 1));
        let output =
            "PASSED test/a.py::one\nFAILED test/a.py::two[x] - Boom\nSKIPPED [3] test/b.py:1: no TLS\n";
        let tally = Tally::of_pytest(output);
        assert_eq!((tally.passed.len(), tally.failed.len(), tally.skipped), (1, 1, 3));
        let suite = Suite { name: "made up", version: "0", setting: "none" };
        assert!(judge(&suite, &tally, &[]).is_err());
        judge(&suite, &tally, &[Gap { test: "a.py::two", missing: "everything" }]).unwrap();
        assert!(judge(&suite, &tally, &[Gap { test: "a.py", missing: "everything" }]).is_err());
        assert!(judge(&suite, &Tally::default(), &[]).is_err());
        fs::remove_file(workshop("results").unwrap().join("made-up.json")).unwrap();
    }
}
