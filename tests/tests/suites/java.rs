//! Kafka's own Java client: it comes inside a package of the Python registry, because there is no other source of it in
//! reach. The program that goes through its API lies beside the project.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use zurau_tests::clients::{python, python_missing};
use zurau_tests::programs::project_root;
use zurau_tests::shared::shared_file;
use zurau_tests::{Cluster, scenario, skip};

use crate::outcome::{Gap, Suite, Tally, judge};
use crate::workshop::{must, program_missing, run, workshop};

const SUITE: Suite = Suite {
    name: "Java client",
    version: "3.9.1",
    setting: "36 steps: admin, producers, consumers of both group protocols; three brokers",
};
const STEPS: usize = 36;
const GAPS: [Gap; 3] = [
    Gap { test: "describeAcls", missing: "ACLs" },
    Gap { test: "describeClientQuotas", missing: "client quotas" },
    Gap { test: "describeUserScram", missing: "SASL/SCRAM" },
];
const LIMIT: Duration = Duration::from_secs(150);

#[test]
fn java_client() {
    let Some(program) = shared_file("suites::java_client", "clients/JavaClient.java") else { return };
    if let Some(why) = python_missing().or_else(|| program_missing("javac", "default-jdk-headless")) {
        return skip("suites::java_client", &why);
    }
    scenario("java-client", |directory| {
        let libraries = format!("{}/*", installation()?.join("libs").display());
        let mut compiler = Command::new("javac");
        compiler.args(["-cp", &libraries, "-d"]).arg(directory.path()).arg(program);
        must(&mut compiler, &directory.join("javac.log"))?;
        // It asks for broker 0 by its number.
        let cluster =
            Cluster::builder().first_broker(0).set("group.initial.rebalance.delay.ms", 0).start(directory)?;
        let mut java = Command::new("java");
        java.args(["-cp", &format!("{libraries}:{}", directory.path().display())]);
        java.args(["JavaClient", &cluster.bootstrap()]);
        let tally = Tally::of_steps(&run(&mut java, &directory.join("java.log"), LIMIT)?);
        judge(&SUITE, &tally, &GAPS)?;
        tally.ensure_run(STEPS)
    });
}

/// What librdkafka's tests take for an installation of Kafka: stand-ins of Kafka's programs, and Kafka's client below
/// `libs` for helpers that are written in Java.
pub(crate) fn installation() -> Result<PathBuf> {
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
