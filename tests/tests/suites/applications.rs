//! Programs that use Kafka, unchanged: Go's sarama, two generations of Python clients from Debian, aiokafka, quixstreams,
//! Burrow and rsyslog. What they do is written in `tests/clients`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use zurau_tests::clients::{python, python_missing};
use zurau_tests::programs::project_root;
use zurau_tests::{Cluster, TestDirectory, scenario, skip};

use crate::outcome::{Suite, Tally, judge};
use crate::workshop::{file_missing, must, program_missing, python_packages, run, workshop};

const LIMIT: Duration = Duration::from_secs(150);
/// Where Debian's packages of Go's libraries are.
const GO_PATH: &str = "/usr/share/gocode";
/// The Python that sees Debian's packages, and where they are.
const DEBIAN_PYTHON: &str = "/usr/bin/python3";
const DEBIAN_PACKAGES: &str = "/usr/lib/python3/dist-packages";

#[test]
fn sarama() {
    let suite = Suite { name: "sarama", version: "1.22.1", setting: "steps of ours, three brokers" };
    let library = format!("{GO_PATH}/src/github.com/Shopify/sarama");
    let missing = program_missing("go", "golang-go")
        .or_else(|| file_missing(&library, "golang-github-shopify-sarama-dev"));
    steps(&suite, 22, missing, |_| {
        let shop = workshop("sarama")?;
        let program = shop.join("sarama_steps");
        let mut compiler = Command::new("go");
        compiler.args(["build", "-o"]).arg(&program).arg(script("sarama_steps.go"));
        compiler.env("GO111MODULE", "off").env("GOPATH", GO_PATH).env("GOCACHE", shop.join("cache"));
        must(&mut compiler, &shop.join("build.log"))?;
        Ok(Command::new(program))
    });
}

#[test]
fn kafka_python_of_debian() {
    let suite =
        Suite { name: "Debian's python3-kafka", version: "2.0.2", setting: "steps of ours, three brokers" };
    let missing = file_missing(&format!("{DEBIAN_PACKAGES}/kafka"), "python3-kafka");
    steps(&suite, 10, missing, |_| {
        let mut command = Command::new(DEBIAN_PYTHON);
        command.arg(script("debian_kafka_steps.py"));
        Ok(command)
    });
}

#[test]
fn confluent_kafka_of_debian() {
    let suite = Suite {
        name: "Debian's python3-confluent-kafka",
        version: "1.7.0 on librdkafka 2.0.2",
        setting: "steps of ours, three brokers",
    };
    let missing = file_missing(&format!("{DEBIAN_PACKAGES}/confluent_kafka"), "python3-confluent-kafka");
    steps(&suite, 13, missing, |_| {
        let mut command = Command::new(DEBIAN_PYTHON);
        command.arg(script("debian_confluent_steps.py"));
        Ok(command)
    });
}

#[test]
fn aiokafka() {
    let suite = Suite { name: "aiokafka", version: "0.14.0", setting: "steps of ours, three brokers" };
    steps(&suite, 13, python_missing(), |_| {
        // The codecs come with what the other Python clients need.
        let packages = python_packages("aiokafka", &["aiokafka==0.14.0"])?;
        let mut command = Command::new(python());
        command.arg(script("aiokafka_steps.py")).env("PYTHONPATH", packages);
        Ok(command)
    });
}

#[test]
fn quixstreams() {
    let suite = Suite {
        name: "quixstreams",
        version: "3.28.1",
        setting: "an application of ours with state, exactly once, started again without its files; three brokers",
    };
    steps(&suite, 3, python_missing(), |directory| {
        let packages = python_packages("quixstreams", &["quixstreams==3.28.1"])?;
        let mut command = Command::new(python());
        command.arg(script("quixstreams_sums.py")).env("PYTHONPATH", packages);
        command.env("STATE_DIRECTORY", directory.join("state"));
        Ok(command)
    });
}

/// Runs a program, which is told where three brokers are and goes through `count` steps.
fn steps(
    suite: &Suite,
    count: usize,
    missing: Option<String>,
    program: impl FnOnce(&TestDirectory) -> Result<Command>,
) {
    if let Some(why) = missing {
        return skip(suite.name, &why);
    }
    scenario(&suite.name.replace([' ', '\''], "-"), |directory| {
        let mut command = program(directory)?;
        let cluster = Cluster::builder().set("group.initial.rebalance.delay.ms", 0).start(directory)?;
        let output = run(command.arg(cluster.bootstrap()), &directory.join("steps.log"), LIMIT)?;
        let tally = Tally::of_steps(&output);
        judge(suite, &tally, &[])?;
        tally.ensure_run(count)
    });
}

fn script(name: &str) -> PathBuf {
    project_root().join("tests/clients").join(name)
}
