//! The whole suite in tiny sizes: that every workload runs to its end and verifies what it wrote. The numbers of such a
//! run mean nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use zurau_tests::programs;

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn every_workload_of_the_suite_runs_and_is_told() {
    // Builds what the suite starts.
    programs::binary("zurau-broker").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_zurau-bench"))
        .args(["suite", "--smoke", "--zookeeper", "in-process", "--output"])
        .arg(directory.path())
        .env("ZURAU_BINARIES_ARE_BUILT", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(start.elapsed() < LIMIT, "it took {:?}", start.elapsed());

    let json = std::fs::read_to_string(directory.path().join("bench.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
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
