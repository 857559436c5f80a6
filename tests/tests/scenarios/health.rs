//! What operators and their tools see over HTTP: alive, ready or why not.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zurau_tests::cluster::{Node, START_LIMIT};
use zurau_tests::{Cluster, TestDirectory, eventually, http, scenario};

/// Until ZooKeeper's silence is noticed: half a session timeout, on a busy machine.
const NOTICE_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn ready_means_registered_and_recovered() {
    scenario("ready", ready);
}

/// The status and the content of `/ready`.
fn readiness(node: &Node) -> Result<(u16, Value)> {
    let page = http::get(&node.http_address(), "/ready")?;
    Ok((page.status, serde_json::from_str(&page.body).with_context(|| page.body.clone())?))
}

fn wait_until_ready(node: &Node) -> Result<Value> {
    eventually("ready", START_LIMIT, || {
        let (status, found) = readiness(node)?;
        ensure!(status == 200, "{found}");
        Ok(Some(found))
    })
}

/// Waits for a reason that contains `text`; the process is alive meanwhile.
fn wait_until_not_ready(node: &Node, text: &str, limit: Duration) -> Result<Value> {
    eventually(&format!("not ready: {text}"), limit, || {
        ensure!(http::get(&node.http_address(), "/live")?.status == 200, "not alive");
        let (status, found) = readiness(node)?;
        let told = found["reasons"].as_array().is_some_and(|reasons| {
            reasons.iter().any(|reason| reason.as_str().is_some_and(|reason| reason.contains(text)))
        });
        Ok((status == 503 && told).then_some(found))
    })
}

fn ready(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder().brokers(1).controllers(2).start(directory)?;
    let mut roles = Vec::new();
    for controller in &cluster.controllers {
        roles.push(wait_until_ready(controller)?["details"]["role"].to_string());
    }
    roles.sort();
    ensure!(roles == ["\"active\"", "\"standby\""], "roles of the controllers: {roles:?}");
    let found = wait_until_ready(&cluster.brokers[0])?;
    ensure!(found["details"]["log_directories"][0]["state"] == "online", "{found}");

    cluster.zookeepers[0].kill()?;
    wait_until_not_ready(&cluster.brokers[0], "ZooKeeper does not answer", NOTICE_LIMIT)?;
    wait_until_not_ready(&cluster.brokers[0], "the lease has run out", NOTICE_LIMIT)?;
    for controller in &cluster.controllers {
        wait_until_not_ready(controller, "ZooKeeper does not answer", NOTICE_LIMIT)?;
    }
    cluster.zookeepers[0].restart()?;
    for node in cluster.controllers.iter().chain(&cluster.brokers) {
        wait_until_ready(node)?;
    }
    d13_recovering_is_alive_and_not_ready(&mut cluster)
}

/// A log whose metadata is a pipe is being opened until somebody writes into it.
fn d13_recovering_is_alive_and_not_ready(cluster: &mut Cluster) -> Result<()> {
    let broker = &mut cluster.brokers[0];
    broker.stop(Duration::from_secs(20))?;
    let log = broker.data().join("slow-0");
    fs::create_dir(&log)?;
    let pipe = log.join("partition.metadata");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "mkfifo failed");
    broker.start()?;
    let found = wait_until_not_ready(broker, "are being recovered: 0 of 1 are done", START_LIMIT)?;
    let directory = &found["details"]["log_directories"][0];
    ensure!(directory["state"] == "recovering" && directory["logs"] == 1, "{found}");
    fs::write(&pipe, "version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n")?;
    let found = wait_until_ready(broker)?;
    ensure!(found["details"]["log_directories"][0]["logs_recovered"] == 1, "{found}");
    cluster.check_running()
}
