//! The tests inside Rust's published client crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::{Cluster, scenario};

use crate::outcome::{Gap, Suite, Tally, judge};
use crate::workshop::{cargo, crate_source, must, run};

const LIMIT: Duration = Duration::from_secs(900);

#[test]
#[ignore = "builds a client for minutes; run by tests/run --long"]
fn rskafka() {
    let suite = Suite { name: "rskafka", version: "0.6.0", setting: "all its tests, three brokers" };
    scenario(suite.name, |directory| {
        let source = crate_source(suite.name, suite.version)?;
        // The locked rsasl does not build with the Rust of today, and the toolchain file asks for one of yesterday.
        remove(&source.join("rust-toolchain.toml"))?;
        must(cargo().args(["update", "-p", "rsasl"]).current_dir(&source), &directory.join("update.log"))?;
        let cluster = Cluster::builder().set("auto.create.topics.enable", false).start(directory)?;
        let bootstrap = cluster.bootstrap();
        let environment = [("TEST_INTEGRATION", "1"), ("TEST_BROKER_IMPL", "kafka")];
        let tests = Tests {
            source,
            chosen: &["--tests", "--features", "full"],
            flags: &[],
            environment: [&environment[..], &[("KAFKA_CONNECT", &*bootstrap)]].concat(),
            log: directory.join("rskafka.log"),
        };
        judge(&suite, &tests.run(&[])?, &[])
    });
}

#[test]
#[ignore = "builds a client for minutes; run by tests/run --long"]
fn krafka() {
    let suite = Suite { name: "krafka", version: "0.28.1", setting: "its integration tests, one broker" };
    scenario(suite.name, |directory| {
        let source = crate_source(suite.name, suite.version)?;
        remove(&source.join("Cargo.lock"))?;
        use_our_broker(&source.join("tests/integration_tests.rs"))?;
        let cluster = Cluster::builder()
            .brokers(1)
            .set("offsets.topic.replication.factor", 1)
            .set("transaction.state.log.replication.factor", 1)
            .set("transaction.state.log.min.isr", 1)
            .set("group.initial.rebalance.delay.ms", 0)
            .start(directory)?;
        let bootstrap = cluster.bootstrap();
        let tests = Tests {
            source,
            chosen: &["--test", "integration_tests"],
            flags: &["--include-ignored"],
            environment: vec![("ZURAU_BOOTSTRAP", &*bootstrap)],
            log: directory.join("krafka.log"),
        };
        judge(&suite, &tests.run(&[])?, &[])
    });
}

#[test]
#[ignore = "builds a client for minutes; run by tests/run --long"]
fn rdkafka() {
    let suite = Suite { name: "rdkafka", version: "0.39.0", setting: "all its tests, three brokers" };
    let gaps = [
        Gap {
            test: "test_high_producers.rs test_future_producer_send",
            missing: "nothing: it asks localhost:9092, whatever it is told; real Kafka fails it too",
        },
        Gap {
            test: "test_metadata.rs test_metadata",
            missing: "nothing: it wants one broker, on port 9092; real Kafka of three fails it too",
        },
        Gap {
            test: "test_base_producer_timeout",
            missing: "nothing: it wants a topic not to be there 100 ms after its first message",
        },
    ];
    scenario(suite.name, |directory| {
        let source = crate_source(suite.name, suite.version)?;
        let cluster = Cluster::builder()
            // It asks for broker 0 by its number.
            .first_broker(0)
            .set("num.partitions", 3)
            .set("group.initial.rebalance.delay.ms", 0)
            .start(directory)?;
        let bootstrap = cluster.bootstrap();
        let tests = Tests {
            source,
            chosen: &["--tests"],
            flags: &[],
            environment: vec![("KAFKA_HOST", &*bootstrap), ("KAFKA_VERSION", "3.9.0")],
            log: directory.join("rdkafka.log"),
        };
        judge(&suite, &tests.run(&gaps)?, &gaps)
    });
}

/// The tests of a crate, and how they are run.
struct Tests<'a> {
    source: PathBuf,
    /// What cargo builds and runs.
    chosen: &'a [&'a str],
    /// For the programs of tests.
    flags: &'a [&'a str],
    environment: Vec<(&'a str, &'a str)>,
    log: PathBuf,
}

impl Tests<'_> {
    /// Builds and runs them. What fails and is no gap runs once more, alone: on a busy machine some wait microseconds
    /// too short.
    fn run(&self, gaps: &[Gap]) -> Result<Tally> {
        let output = self.run_some(&["--test-threads=2"], &self.log)?;
        let mut tally = Tally::of_cargo(&output);
        let is_gap = |test: &String| gaps.iter().any(|gap| test.contains(gap.test));
        let again: Vec<String> = tally.failed.iter().filter(|test| !is_gap(test)).cloned().collect();
        if !again.is_empty() {
            eprintln!("{}", reasons(&output));
            eprintln!("once more, alone: {again:?}");
            // "PROGRAM NAME"; the runner is told names.
            let names = again.iter().filter_map(|test| Some(test.rsplit_once(' ')?.1));
            let filters: Vec<&str> = ["--test-threads=1", "--exact"].into_iter().chain(names).collect();
            tally.settle(Tally::of_cargo(&self.run_some(&filters, &self.log.with_extension("again.log"))?));
        }
        Ok(tally)
    }

    fn run_some(&self, filters: &[&str], log: &Path) -> Result<String> {
        let mut command = cargo();
        command
            .arg("test")
            .args(self.chosen)
            .args(["--no-fail-fast", "--", "--show-output"])
            .args(self.flags)
            .args(filters);
        run(command.envs(self.environment.iter().copied()).current_dir(&self.source), log, LIMIT)
    }
}

/// What the runner prints of tests that failed: their panics, with a few lines each.
fn reasons(output: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = output.lines().collect();
    let panics = lines.iter().enumerate().filter(|(_, line)| line.contains("' panicked at "));
    let told = panics.map(|(index, _)| lines[index..lines.len().min(index + LINES)].join("\n"));
    told.collect::<Vec<_>>().join("\n")
}

fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// krafka starts a broker in a container; here one is there already.
fn use_our_broker(path: &Path) -> Result<()> {
    const LINE: &str = "    if let Ok(address) = std::env::var(\"ZURAU_BOOTSTRAP\") { return address; }\n";
    let text = fs::read_to_string(path)?;
    if text.contains("ZURAU_BOOTSTRAP") {
        return Ok(());
    }
    let start = text.find("fn kafka()").context("krafka has no function kafka any more")?;
    let body = text[start..].find("{\n").context("the function has a body")? + start + 2;
    ensure!(text.is_char_boundary(body), "krafka's tests are not text");
    fs::write(path, format!("{}{LINE}{}", &text[..body], &text[body..]))?;
    Ok(())
}
