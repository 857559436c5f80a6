//! librdkafka's own tests: they come inside the crate `rdkafka-sys` and are built with the library.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use zurau_tests::clients::python_missing;
use zurau_tests::programs::binary;
use zurau_tests::{Cluster, TestDirectory, scenario, skip};

use crate::java;
use crate::outcome::{Gap, Suite, Tally, judge};
use crate::workshop::{crate_source, must, run, workshop};

const VERSION: &str = "2.12.1";
const CRATE_VERSION: &str = "4.10.0";
/// What passes faster than this did nothing.
const VACUOUS_SECONDS: f64 = 0.01;
/// What the runner says of a test that needs no broker, and we.
const LOCAL: &str = "Filtered due to negative test flags";
const ON_A_MOCK: &str = "needs no broker";
/// The authors' own choice for a quick look.
const QUICK: &str = "0001,0004,0012,0017,0022,0030,0039,0049,0087,0103";
/// How often the runner is started again for tests that it did not come to: one that hangs ends it.
const STARTS: usize = 6;
const LIMIT: Duration = Duration::from_secs(1500);

/// Some tests, and how they are run.
struct Tier {
    tests: &'static str,
    flags: &'static [&'static str],
    /// Added to the names of tests that run in more than one way.
    mark: &'static str,
}

const PRODUCE_CONSUME: &str = "0001,0002,0003,0005,0007,0008,0011,0012,0013,0014,0015,0016,0017,0020,0021,0022,0029,\
                               0031,0034,0035,0036,0038,0039,0040,0041,0048,0053,0057,0063,0067,0070,0083,0110,0114,\
                               0123,0125";
const TIERS: [Tier; 7] = [
    Tier { tests: PRODUCE_CONSUME, flags: &["-Q"], mark: "" },
    // Resilience on real sockets.
    Tier { tests: "0049,0068,0075,0076,0088,0093", flags: &["-Q"], mark: "" },
    // Groups, offsets, admin.
    Tier {
        tests: "0030,0033,0050,0051,0056,0059,0060,0061,0064,0065,0069,0084,0086,0091,0099,0112,0113,0118,0127,0130,\
                0137,0140,0042,0044,0052,0081",
        flags: &["-Q"],
        mark: "",
    },
    // Of these the quick mode leaves out everything.
    Tier { tests: "0018,0019,0026,0045,0082,0089,0102,0122,0132", flags: &[], mark: "" },
    // Idempotence, transactions, headers, timestamps, compaction, follower fetch.
    Tier {
        tests: "0054,0055,0073,0077,0085,0090,0092,0094,0098,0101,0103,0129,0139",
        flags: &["-Q"],
        mark: "",
    },
    // Security: the suite leaves out what it is not told to have.
    Tier { tests: "0097,0109,0115,0119,0126,0128,0135,0142", flags: &["-Q"], mark: "" },
    Tier { tests: PRODUCE_CONSUME, flags: &["-Q", "-P"], mark: " (idempotent)" },
];
/// These want topics that nobody creates by naming them.
const NO_AUTO_CREATE: Tier =
    Tier { tests: "0045,0107,0111", flags: &["-s", "noautocreate"], mark: " (noautocreate)" };
const CONSUMER: &str = " (consumer protocol)";
/// The tests that read as members of groups; the setting concerns no other.
const CONSUMER_PROTOCOL: [Tier; 2] = [
    Tier {
        tests: "0015,0017,0020,0022,0029,0030,0031,0033,0034,0036,0038,0040,0041,0042,0049,0050,0051,0053,0056,0059,0060,\
                0061,0064,0067,0069,0070,0073,0083,0084,0085,0091,0093,0098,0101,0103,0109,0112,0113,0118,0127,0130,0137,\
                0139,0140,0153",
        flags: &["-Q"],
        mark: CONSUMER,
    },
    // Of these the quick mode leaves out everything.
    Tier { tests: "0018,0019,0026,0045,0082,0089,0102,0122,0132", flags: &[], mark: CONSUMER },
];
const ACLS: &str = "ACLs";
const OLD_FORMATS: &str = "record formats v0 and v1";
const GAPS: [Gap; 6] = [
    Gap {
        test: "0045_resubscribe_with_regex (consumer protocol)",
        missing: "nothing: it wants topics of a regular expression in a later heartbeat than others",
    },
    Gap { test: "0052_msg_timestamps", missing: OLD_FORMATS },
    Gap { test: "0081_admin", missing: ACLS },
    Gap { test: "0109_auto_create_topics", missing: ACLS },
    Gap { test: "0115_producer_auth", missing: ACLS },
    Gap { test: "0119_consumer_auth", missing: ACLS },
];

#[test]
#[ignore = "builds librdkafka for minutes; run by tests/run --long"]
fn librdkafka_quick() {
    suite(&Suite { name: "librdkafka", version: VERSION, setting: "its authors' quick choice" }, |runner| {
        runner.run(&[Tier { tests: QUICK, flags: &["-Q"], mark: "" }])
    });
}

#[test]
#[ignore = "takes half an hour; run by tests/run --long"]
fn librdkafka_all_tiers() {
    let setting = "its tests against brokers, three brokers";
    suite(&Suite { name: "librdkafka in full", version: VERSION, setting }, |runner| runner.run(&TIERS));
}

#[test]
#[ignore = "builds librdkafka for minutes; run by tests/run --long"]
fn librdkafka_without_auto_creation() {
    let setting = "its scenario noautocreate, three brokers";
    suite(&Suite { name: "librdkafka, noautocreate", version: VERSION, setting }, |runner| {
        runner.run(&[NO_AUTO_CREATE])
    });
}

#[test]
#[ignore = "takes seven minutes; run by tests/run --long"]
fn librdkafka_consumer_protocol() {
    let setting = "its tests of groups with group.protocol=consumer (KIP-848), three brokers";
    suite(&Suite { name: "librdkafka, consumer protocol", version: VERSION, setting }, |runner| {
        Runner { group_protocol: Some("consumer"), ..runner }.run(&CONSUMER_PROTOCOL[..1])
    });
}

#[test]
#[ignore = "takes five minutes; run by tests/run --long"]
fn librdkafka_consumer_protocol_slow() {
    let setting = "those that its quick mode leaves out, with group.protocol=consumer, three brokers";
    suite(
        &Suite { name: "librdkafka, consumer protocol, slow tests", version: VERSION, setting },
        |runner| Runner { group_protocol: Some("consumer"), ..runner }.run(&CONSUMER_PROTOCOL[1..]),
    );
}

fn suite(suite: &Suite, tests: impl FnOnce(Runner<'_>) -> Result<Tally>) {
    if let Some(why) = compiler_missing() {
        return skip(suite.name, &why);
    }
    scenario(&suite.name.replace([' ', ','], "-"), |directory| {
        let (built, kafka) = (built()?, java::installation()?);
        let cluster = Cluster::builder()
            .set("num.partitions", 4)
            .set("default.replication.factor", 3)
            .set("group.initial.rebalance.delay.ms", 0)
            .set("auto.create.topics.enable", !suite.name.ends_with("noautocreate"))
            .start(directory)?;
        let bootstrap = cluster.bootstrap();
        let runner = Runner { built, directory, bootstrap, kafka, group_protocol: None };
        judge(suite, &tests(runner)?, &GAPS)
    });
}

struct Runner<'a> {
    built: PathBuf,
    directory: &'a TestDirectory,
    bootstrap: String,
    /// What the tests take for an installation of Kafka.
    kafka: PathBuf,
    /// That of all consumers; `None` is the client's own choice.
    group_protocol: Option<&'static str>,
}

/// What the report tells of a test.
struct Entry {
    name: String,
    state: String,
    seconds: f64,
    /// Why it was left out, or failed.
    why: String,
}

impl Entry {
    /// Why it was left out. The runner says nothing of those of other scenarios, and lines of tests that print at the
    /// same time may have swallowed what it says.
    fn reason(&self) -> &str {
        match &*self.why {
            why if why.starts_with(LOCAL) => ON_A_MOCK,
            "" => "belongs to another scenario",
            why if why.starts_with('[') => "its reason was not printed whole",
            why => why,
        }
    }
}

impl Runner<'_> {
    /// Runs one tier after another, each test after the other. What fails and is no gap runs once more, alone: on a
    /// busy machine the time limits of some are short for real Kafka too.
    fn run(&self, tiers: &[Tier]) -> Result<Tally> {
        let mut tally = Tally::default();
        for tier in tiers {
            for entry in self.run_all(tier.tests, tier.flags)? {
                let name = format!("{}{}", entry.name, tier.mark);
                match &*entry.state {
                    "PASSED" if entry.seconds >= VACUOUS_SECONDS => {
                        tally.passed.insert(name);
                    }
                    "PASSED" => tally.skip("its quick mode does nothing", 1),
                    "SKIPPED" => {
                        tally.skip(entry.reason(), 1);
                    }
                    _ if GAPS.iter().any(|gap| name.contains(gap.test)) => {
                        tally.failed.insert(name);
                    }
                    _ => {
                        eprintln!("{name} failed: {}; once more, alone", entry.why);
                        let again = self.run_all(&entry.name[..4], tier.flags)?;
                        let passes = |again: &Entry| again.name == entry.name && again.state == "PASSED";
                        let mut second = Tally::default();
                        let list =
                            if again.iter().any(passes) { &mut second.passed } else { &mut second.failed };
                        list.insert(name);
                        tally.settle(second);
                    }
                }
            }
        }
        Ok(tally)
    }

    /// Runs the tests whose numbers are listed, and goes on behind one that takes the runner with it.
    fn run_all(&self, tests: &str, flags: &[&str]) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut open = tests.to_owned();
        for _ in 0..STARTS {
            let mut not_started = Vec::new();
            for entry in self.run_once(&open, flags)? {
                if entry.state == "DNS" {
                    not_started.push(entry.name[..4].to_owned());
                } else if !entries.iter().any(|known| known.name == entry.name) {
                    entries.push(entry);
                }
            }
            if not_started.is_empty() {
                return Ok(entries);
            }
            open = not_started.join(",");
        }
        bail!("the runner ended {STARTS} times; it did not come to {open}")
    }

    fn run_once(&self, tests: &str, flags: &[&str]) -> Result<Vec<Entry>> {
        let config = self.directory.join("librdkafka.conf");
        fs::write(&config, format!("metadata.broker.list={}\ntest.topic.random=true\n", self.bootstrap))?;
        let report = self.directory.join("report.json");
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let mut command = Command::new("./test-runner");
        command.args(["-L", "-p1"]).args(flags).arg("-r").current_dir(self.built.join("tests"));
        command.env("RDKAFKA_TEST_CONF", &config).env("TEST_KAFKA_VERSION", "3.9.0").env("CI", "1");
        command.env("BROKERS", &self.bootstrap).env("TESTS", tests).env("TEST_REPORT", &report);
        command.env("KAFKA_PATH", &self.kafka);
        command.envs(self.group_protocol.map(|protocol| ("TEST_CONSUMER_GROUP_PROTOCOL", protocol)));
        command.env("LD_LIBRARY_PATH", "../src:../src-cpp").env("ZURAU", binary("zurau")?);
        let log = self.directory.join(&format!("test-runner-{}.log", tests.len()));
        let output = run(&mut command, &log, LIMIT)?;
        read_report(&report, tests, &output)
    }
}

fn read_report(path: &Path, chosen: &str, output: &str) -> Result<Vec<Entry>> {
    let text = fs::read_to_string(path).context("the test runner wrote no report")?;
    let report: Value = serde_json::from_str(&text).context("the report of the test runner")?;
    let reasons = reasons(output);
    // The report names every test there is.
    let is_chosen = |name: &str| chosen.split(',').any(|number| name.starts_with(number));
    let tests = report["tests"].as_object().context("no tests in the report")?;
    let entries = tests.iter().filter(|(name, _)| is_chosen(name)).map(|(name, test)| Entry {
        name: name.clone(),
        state: test["state"].as_str().unwrap_or_default().to_owned(),
        seconds: test["duration"].as_f64().unwrap_or_default(),
        why: reasons.get(name).cloned().unwrap_or_default(),
    });
    Ok(entries.collect())
}

/// Why tests were left out or failed: the runner says it in coloured lines `[NAME / SECONDS] SKIPPING TEST: REASON`, and
/// `| NAME | STATE | SECONDS | REASON` at its end.
fn reasons(output: &str) -> BTreeMap<String, String> {
    let mut reasons = BTreeMap::new();
    for line in output.lines() {
        let mut parts = line.split('\u{1b}');
        let mut plain = parts.next().unwrap_or_default().to_owned();
        // A colour is "ESC [ numbers m".
        parts.for_each(|part| plain.push_str(part.split_once('m').map_or(part, |(_, text)| text)));
        if let Some((head, reason)) = plain.split_once("SKIPPING TEST: ") {
            let name = head.trim_start_matches('[').split('/').next().unwrap_or_default();
            reasons.insert(name.trim().to_owned(), reason.trim().to_owned());
        }
        let cells: Vec<&str> = plain.split('|').map(str::trim).collect();
        if let ["", name, _state, _seconds, reason @ ..] = &cells[..]
            && reason.iter().any(|part| !part.is_empty())
        {
            reasons.insert((*name).to_owned(), reason.join("|"));
        }
    }
    reasons
}

/// Why the suite cannot be built here.
fn compiler_missing() -> Option<String> {
    if let Some(why) = python_missing() {
        return Some(why);
    }
    ["g++", "make", "javac"].into_iter().find_map(|program| {
        let found = Command::new(program).arg("--version").output();
        found.is_err().then(|| {
            format!("there is no {program}; install Debian's packages g++, make and default-jdk-headless")
        })
    })
}

/// The directory in which library and tests are built.
fn built() -> Result<PathBuf> {
    let copy = crate_source("rdkafka-sys", CRATE_VERSION)?;
    let root = copy.join("librdkafka");
    if !root.join("tests/test-runner").exists() {
        let logs = workshop("librdkafka-logs")?;
        let step = |name: &str, program: &str, arguments: &[&str]| {
            must(Command::new(program).args(arguments).current_dir(&root), &logs.join(name))
        };
        step("configure.log", "bash", &["./configure", "--disable-optimization"])?;
        step("library.log", "make", &["-j2", "libs"])?;
        step("tests.log", "make", &["-j2", "-C", "tests", "build"])?;
    }
    Ok(root)
}

#[test]
fn reasons_are_found_in_coloured_lines() {
    let output = "\u{1b}[0m\u{1b}[33m[0097_ssl_verify             /  0.000s] WARN: SKIPPING TEST: wants TLS\n\
                  |\u{1b}[32m 0001_multiobj | PASSED | 3.203s \u{1b}[0m|\n\
                  |\u{1b}[31m 0002_unkpart | FAILED | 3.203s \u{1b}[0m|\u{1b}[31m too late\u{1b}[0m\n";
    let reasons = reasons(output);
    assert_eq!(reasons.len(), 2);
    assert_eq!(reasons["0097_ssl_verify"], "wants TLS");
    assert_eq!(reasons["0002_unkpart"], "too late");
}
