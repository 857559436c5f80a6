//! librdkafka's own tests: they come inside the crate `rdkafka-sys` and are built with the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use zurau_tests::clients::{python, python_missing};
use zurau_tests::programs::{binary, project_root};
use zurau_tests::{Cluster, TestDirectory, scenario, skip};

use crate::outcome::{Gap, Suite, Tally, judge};
use crate::workshop::{crate_source, must, run, workshop};

const VERSION: &str = "2.12.1";
const CRATE_VERSION: &str = "4.10.0";
/// What passes faster than this did nothing.
const VACUOUS_SECONDS: f64 = 0.01;
/// The authors' own choice for a quick look.
const QUICK: &str = "0001,0004,0012,0017,0022,0030,0039,0049,0087,0103";
const TIER_1: &str = "0001,0002,0003,0005,0007,0008,0011,0012,0013,0014,0015,0016,0017,0020,0021,0022,0029,0031,\
                      0034,0035,0036,0038,0039,0040,0041,0048,0053,0057,0063,0067,0070,0083,0110,0114,0123,0125";
const TIER_1B: &str = "0049,0068,0075,0076,0088,0093";
const TIER_2: &str = "0030,0033,0050,0051,0056,0059,0060,0061,0064,0065,0069,0084,0086,0091,0099,0112,0113,0118,\
                      0127,0130,0137,0140,0042,0044,0052,0081";
/// Of these the quick mode would leave out everything.
const TIER_2_FULL: &str = "0018,0019,0026,0045,0089,0102,0122,0132";
const TIER_3: &str = "0054,0055,0073,0077,0085,0090,0092,0094,0098,0101,0103,0129,0139";
const GAPS: [Gap; 3] = [
    Gap { test: "0052_msg_timestamps", missing: "record formats v0 and v1" },
    Gap { test: "0092_mixed_msgver", missing: "record formats v0 and v1" },
    Gap { test: "0081_admin", missing: "ACLs" },
];

#[test]
#[ignore = "builds librdkafka for minutes; run by tests/run --long"]
fn librdkafka_quick() {
    suite(&Suite { name: "librdkafka", version: VERSION, setting: "its authors' quick choice" }, |runner| {
        runner.run(QUICK, &["-Q"], Duration::from_secs(280))
    });
}

#[test]
#[ignore = "takes half an hour; run by tests/run --long"]
fn librdkafka_all_tiers() {
    let setting = "tiers 1 to 3 of its tests against brokers, three brokers";
    suite(&Suite { name: "librdkafka in full", version: VERSION, setting }, |runner| {
        let limit = Duration::from_secs(1500);
        let mut tally = Tally::default();
        for (tests, more) in [
            (TIER_1, &["-Q"][..]),
            (TIER_1B, &["-Q"]),
            (TIER_2, &["-Q"]),
            (TIER_2_FULL, &[]),
            (TIER_3, &["-Q"]),
            (TIER_1, &["-Q", "-P"]),
        ] {
            tally.add(runner.run(tests, more, limit)?);
        }
        Ok(tally)
    });
}

fn suite(suite: &Suite, tests: impl FnOnce(&Runner<'_>) -> Result<Tally>) {
    if let Some(why) = compiler_missing() {
        return skip(suite.name, &why);
    }
    scenario(&suite.name.replace(' ', "-"), |directory| {
        let (built, kafka) = (built()?, kafka_installation()?);
        let cluster = Cluster::builder()
            .set("num.partitions", 4)
            .set("default.replication.factor", 3)
            .set("group.initial.rebalance.delay.ms", 0)
            .start(directory)?;
        let runner = Runner { built, directory, bootstrap: cluster.bootstrap(), kafka };
        judge(suite, &tests(&runner)?, &GAPS)
    });
}

struct Runner<'a> {
    built: PathBuf,
    directory: &'a TestDirectory,
    bootstrap: String,
    /// What the tests take for an installation of Kafka.
    kafka: PathBuf,
}

impl Runner<'_> {
    /// Runs the tests whose numbers are listed, one after another.
    fn run(&self, tests: &str, more: &[&str], limit: Duration) -> Result<Tally> {
        let config = self.directory.join("librdkafka.conf");
        fs::write(&config, format!("metadata.broker.list={}\ntest.topic.random=true\n", self.bootstrap))?;
        let report = self.directory.join("report.json");
        let mut command = Command::new("./test-runner");
        command.args(["-L", "-p1"]).args(more).arg("-r").current_dir(self.built.join("tests"));
        command.env("RDKAFKA_TEST_CONF", &config).env("TEST_KAFKA_VERSION", "3.9.0").env("CI", "1");
        command.env("BROKERS", &self.bootstrap).env("TESTS", tests).env("TEST_REPORT", &report);
        command.env("KAFKA_PATH", &self.kafka);
        command.env("LD_LIBRARY_PATH", "../src:../src-cpp").env("ZURAU", binary("zurau")?);
        run(&mut command, &self.directory.join("test-runner.log"), limit)?;
        read_report(&report, tests)
    }
}

fn read_report(path: &Path, chosen: &str) -> Result<Tally> {
    let text = fs::read_to_string(path).context("the test runner wrote no report")?;
    let report: Value = serde_json::from_str(&text).context("the report of the test runner")?;
    let mut tally = Tally::default();
    // The report names every test there is.
    let is_chosen = |name: &str| chosen.split(',').any(|number| name.starts_with(number));
    let tests = report["tests"].as_object().context("no tests in the report")?;
    for (name, test) in tests.iter().filter(|(name, _)| is_chosen(name)) {
        match test["state"].as_str().unwrap_or_default() {
            // In the quick mode a test whose parts are all left out passes in no time.
            "PASSED" if test["duration"].as_f64() >= Some(VACUOUS_SECONDS) => {
                tally.passed.insert(name.clone());
            }
            "PASSED" | "SKIPPED" => tally.skipped += 1,
            _ => {
                tally.failed.insert(name.clone());
            }
        }
    }
    Ok(tally)
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

/// Stand-ins of Kafka's programs, and Kafka's client for the helpers that are written in Java. It comes from a package of
/// the Python registry, because there is no other source of it in reach.
fn kafka_installation() -> Result<PathBuf> {
    const PACKAGE: &str = "shigawire-apache-flink-libraries==2.0.0.post1";
    const UNPACK: &str = "import glob, os, sys, zipfile
archive = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])
for name in ('kafka-clients', 'lz4-java', 'zstd-jni', 'snappy-java', 'slf4j-api'):
    with open(f'{sys.argv[1]}/libs/{name}-.jar', 'wb') as jar:
        jar.write(archive.read(f'pyflink/lib/{name}.jar'))
";
    let installation = workshop("kafka")?;
    let programs = installation.join("bin");
    fs::create_dir_all(&programs)?;
    for entry in fs::read_dir(project_root().join("tests/suites/kafka/bin"))? {
        let entry = entry?;
        fs::copy(entry.path(), programs.join(entry.file_name()))?;
    }
    let libraries = installation.join("libs");
    if !libraries.join("slf4j-api-.jar").exists() {
        fs::create_dir_all(&libraries)?;
        let mut download = Command::new(python());
        download.args(["-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d"]).arg(&installation);
        must(&mut download, &installation.join("download.log"))?;
        must(
            Command::new(python()).args(["-c", UNPACK]).arg(&installation),
            &installation.join("unpack.log"),
        )?;
    }
    Ok(installation)
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
        step("configure.log", "bash", &["./configure"])?;
        step("library.log", "make", &["-j2", "libs"])?;
        step("tests.log", "make", &["-j2", "-C", "tests", "build"])?;
    }
    Ok(root)
}
