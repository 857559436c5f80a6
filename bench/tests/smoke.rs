//! The suite in tiny sizes: that every workload runs to its end and verifies what it wrote, and that two clusters are
//! compared. The numbers of such a run mean nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use zurau_tests::{Cluster, eventually, programs};

/// For what the other cluster does after the suite.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the suite; its JSON.
fn suite(output: &Path, arguments: &[&str]) -> Value {
    // Builds what the suite starts.
    programs::binary("zurau-broker").expect("the programs are built");
    let ran = Command::new(env!("CARGO_BIN_EXE_zurau-bench"))
        .args(["suite", "--smoke", "--zookeeper", "in-process", "--output"])
        .arg(output)
        .args(arguments)
        .env("ZURAU_BINARIES_ARE_BUILT", "1")
        .output()
        .expect("the bench can be started");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
    let json = std::fs::read_to_string(output.join("bench.json")).expect("bench.json is written");
    serde_json::from_str(&json).expect("bench.json is JSON")
}

#[test]
fn every_workload_of_the_suite_runs_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let json = suite(directory.path(), &[]);
    let results = json["results"].as_object().unwrap();
    let workloads = [
        "machine:",
        "W1",
        "W2",
        "W3",
        "W5",
        "W6",
        "W7",
        "W8",
        "W9",
        "W11",
        "W12",
        "W13",
        "W14",
        "W15",
        "W16",
        "machine at the end:",
    ];
    for workload in workloads {
        let found = results.keys().any(|name| name.starts_with(&format!("{workload} ")));
        assert!(found, "nothing about {workload} in {:?}", results.keys());
    }
    let verified = results.iter().filter(|(name, _)| name.ends_with("records verified"));
    let verified: Vec<f64> = verified.filter_map(|(_, result)| result["value"].as_f64()).collect();
    assert!(verified.len() >= 10 && verified.iter().all(|count| *count > 0.0), "{verified:?}");
    for name in ["bench.md", "latency.svg", "throughput.svg", "over-time.svg"] {
        assert!(directory.path().join(name).is_file(), "{name} is missing");
    }
}

#[test]
fn two_clusters_run_in_turns_and_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = Cluster::builder().start_in(directory.path()).unwrap();
    let pids: Vec<String> =
        other.brokers.iter_mut().map(|broker| broker.process().unwrap().pid().to_string()).collect();
    let output = directory.path().join("output");
    let (bootstrap, pids) = (other.bootstrap(), pids.join(","));
    let json = suite(&output, &["--only", "W1,W7", "--against", &bootstrap, "--against-pids", &pids]);
    let results = json["results"].as_object().unwrap();
    let rate = results.iter().find(|(name, _)| name.starts_with("W1 ") && name.ends_with("batch 100 kB"));
    let rate = rate.expect("the throughput of W1").1;
    assert_eq!(rate["samples"].as_array().unwrap().len(), 2, "{rate}");
    assert_eq!(rate["other"]["samples"].as_array().unwrap().len(), 2, "{rate}");
    let ratio = &rate["ratio"];
    let number = |name: &str| ratio[name].as_f64().unwrap();
    assert!(number("min") > 0.0 && number("min") <= number("max"), "{ratio}");
    let cpu = results.iter().find(|(name, _)| name.ends_with("CPU of all brokers")).unwrap().1;
    assert!(cpu["other"]["value"].as_f64().unwrap() > 0.0, "{cpu}");
    // What handles processes runs on our own cluster alone.
    let started = results.iter().find(|(name, _)| name.starts_with("W7 ")).unwrap().1;
    assert!(started.get("other").is_none() && started["samples"].as_array().unwrap().len() == 2, "{started}");
    // The topics of the bench are gone from the other cluster.
    let mut client = other.client();
    eventually("the topics are deleted", LIMIT, || {
        let topics = client.metadata(None)?.topics;
        let left = topics.iter().filter(|topic| topic.error_code == 0 && !topic.is_internal).count();
        Ok((left == 0).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_control_path_is_measured_with_real_brokers_and_without() {
    programs::binary("zurau-broker").expect("the programs are built");
    let directory = tempfile::tempdir().unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_zurau-bench"))
        .args(["control", "--smoke", "--in-process", "--output"])
        .arg(directory.path())
        .env("ZURAU_BINARIES_ARE_BUILT", "1")
        .output()
        .expect("the bench can be started");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
    for table in ["seconds at", "seconds on brokers at"] {
        assert!(text.contains(table), "no table of {table:?} in {text}");
    }
    let json = std::fs::read_to_string(directory.path().join("bench.json")).unwrap();
    let results: Value = serde_json::from_str::<Value>(&json).unwrap()["results"].clone();
    let measured = [
        "failover of 1 partition after detection p99",
        "failover of 20 of 20",
        "real brokers: failover of 1 partition after detection p99",
        "real brokers: controlled shutdown, all served again of 150",
        "real brokers: failover, all served again of 150",
        "real brokers: failover, each acknowledged a record on all that are left of 150",
        "5 topics: all accept a produce after",
    ];
    for name in measured {
        assert!(results[name]["value"].as_f64().is_some_and(|value| 0.0 < value), "{name} in {results}");
    }
}

#[test]
fn wrong_command_lines_are_refused_with_a_reason() {
    let refused = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_zurau-bench")).args(arguments).output().unwrap();
        assert!(!ran.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    assert!(refused(&["suite", "--only", "W99"]).contains("no workload is called W99"));
    assert!(refused(&["suite", "--rounds", "0"]).contains("--rounds"));
    let port = zurau_tests::port::free_port();
    assert!(refused(&["suite", "--against", &format!("127.0.0.1:{port}")]).contains("connecting to"));
    assert!(refused(&["suite", "--against-pids", "1"]).contains("--against"));
}
