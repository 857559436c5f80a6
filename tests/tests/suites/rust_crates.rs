//! The tests inside Rust's published client crates.

use std::fs;
use std::path::Path;
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
        let mut command = cargo();
        command.args(["test", "--tests", "--features", "full", "--no-fail-fast", "--", "--test-threads=2"]);
        command.env("TEST_INTEGRATION", "1").env("TEST_BROKER_IMPL", "kafka");
        command.env("KAFKA_CONNECT", cluster.bootstrap()).current_dir(&source);
        let output = run(&mut command, &directory.join("rskafka.log"), LIMIT)?;
        judge(&suite, &Tally::of_cargo(&output), &[])
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
        let mut command = cargo();
        command.args(["test", "--test", "integration_tests", "--no-fail-fast", "--", "--test-threads=2"]);
        command.args(["--include-ignored"]).env("ZURAU_BOOTSTRAP", cluster.bootstrap()).current_dir(&source);
        let output = run(&mut command, &directory.join("krafka.log"), LIMIT)?;
        judge(&suite, &Tally::of_cargo(&output), &[])
    });
}

#[test]
#[ignore = "builds a client for minutes; run by tests/run --long"]
fn rdkafka() {
    let suite = Suite { name: "rdkafka", version: "0.39.0", setting: "all its tests, three brokers" };
    let gaps = [
        Gap {
            test: "test_high_producers",
            missing: "nothing: real Kafka fails them too, by a time limit of theirs",
        },
        Gap {
            test: "test_metadata",
            missing: "nothing: it wants a broker 0, and real Kafka of three fails it too",
        },
    ];
    scenario(suite.name, |directory| {
        let source = crate_source(suite.name, suite.version)?;
        let cluster = Cluster::builder()
            .set("num.partitions", 3)
            .set("group.initial.rebalance.delay.ms", 0)
            .start(directory)?;
        let mut command = cargo();
        command.args(["test", "--tests", "--no-fail-fast", "--", "--test-threads=2"]).current_dir(&source);
        command.env("KAFKA_HOST", cluster.bootstrap()).env("KAFKA_VERSION", "3.9.0");
        let output = run(&mut command, &directory.join("rdkafka.log"), LIMIT)?;
        judge(&suite, &Tally::of_cargo(&output), &gaps)
    });
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
