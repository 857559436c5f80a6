//! kafka-python's integration tests, from its source distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use zurau_tests::clients::{python, python_missing};
use zurau_tests::programs::project_root;
use zurau_tests::{Cluster, TestDirectory, scenario, skip};

use crate::outcome::{Gap, Suite, Tally, judge};
use crate::workshop::{must, run, workshop};

const SUITE: Suite = Suite {
    name: "kafka-python",
    version: "3.0.12",
    setting: "its integration tests but those of TLS, one broker",
};
const LIMIT: Duration = Duration::from_secs(500);
const GAPS: [Gap; 1] = [Gap { test: "test_create_describe_delete_acls", missing: "ACLs" }];

#[test]
fn kafka_python() {
    if let Some(why) = python_missing() {
        return skip("suites::kafka_python", &why);
    }
    scenario("kafka-python", |directory| {
        let source = source()?;
        let cluster = Cluster::builder()
            .brokers(1)
            .first_broker(0)
            .set("num.partitions", 4)
            .set("group.min.session.timeout.ms", 1000)
            .set("group.initial.rebalance.delay.ms", 0)
            .set("offsets.topic.replication.factor", 1)
            .set("offsets.topic.num.partitions", 5)
            .set("transaction.state.log.replication.factor", 1)
            .set("transaction.state.log.min.isr", 1)
            .set("transaction.state.log.num.partitions", 5)
            .start(directory)?;
        test(&cluster, directory, &source)
    });
}

/// What fails and is no gap runs once more, alone: on a busy machine some wait too short a time.
fn test(cluster: &Cluster, directory: &TestDirectory, source: &Path) -> Result<()> {
    let pytest = |tests: &[&str], log: &str| -> Result<String> {
        let mut command = Command::new(python());
        command.args(["-m", "pytest", "-q", "-rA", "--timeout", "120", "--timeout-method", "signal"]);
        command.args(["-p", "no:asyncio", "-p", "no:cacheprovider", "-W", "ignore"]);
        command.args(["--deselect", "test/integration/test_ssl_integration.py"]);
        command.args(tests).current_dir(source);
        command.env("KAFKA_ROOT", directory.path()).env("KAFKA_VERSION", "3.9.0");
        command.env("KAFKA_URI", format!("kafka://{}", cluster.bootstrap()));
        run(&mut command, &directory.join(log), LIMIT)
    };
    let output = pytest(&["test/integration"], "pytest.log")?;
    let mut tally = Tally::of_pytest(&output);
    let is_gap = |test: &String| GAPS.iter().any(|gap| test.contains(gap.test));
    let again: Vec<String> = tally.failed.iter().filter(|test| !is_gap(test)).cloned().collect();
    if !again.is_empty() {
        // What pytest marks so says why a test failed; its whole log is long.
        output
            .lines()
            .filter(|line| line.starts_with("E  ") || line.starts_with("____"))
            .for_each(|line| eprintln!("{line}"));
        eprintln!("once more, alone: {again:?}");
        let tests: Vec<&str> = again.iter().map(String::as_str).collect();
        tally.settle(Tally::of_pytest(&pytest(&tests, "pytest-again.log")?));
    }
    judge(&SUITE, &tally, &GAPS)
}

/// The unpacked distribution, with the package files that it lacks.
fn source() -> Result<PathBuf> {
    let shop = workshop("kafka-python")?;
    let source = shop.join(format!("kafka_python-{}", SUITE.version));
    if !source.join("test/__init__.py").exists() {
        let wanted = format!("kafka-python=={}", SUITE.version);
        let mut download = Command::new(python());
        download.args(["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", &wanted, "-d"]);
        must(download.arg(&shop), &shop.join("download.log"))?;
        let archive = shop.join(format!("kafka_python-{}.tar.gz", SUITE.version));
        must(
            Command::new("tar").args(["--no-same-owner", "-xf"]).arg(archive).arg("-C").arg(&shop),
            &shop.join("unpack.log"),
        )?;
        let stand_in = project_root().join("tests/suites/kafka_python_service.py");
        fs::copy(stand_in, source.join("test/service.py")).context("adding the missing module")?;
        fs::write(source.join("test/__init__.py"), "")?;
    }
    Ok(source)
}
