//! `zurau log-dirs`: what is where, and moves between the log directories of one broker.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, ZooKeeperKind, eventually, scenario};

use super::{answer, json_of, refused, run};
use crate::throttle::fill;

const MOVED: usize = 4 << 20;
/// Bytes a second; so slow that a move can be looked at.
const SLOW: i64 = 64 << 10;

#[test]
fn replicas_move_between_log_directories() {
    scenario("replicas-move-between-log-directories", |directory| {
        let homes = ["a", "b"].map(|name| directory.join(name).display().to_string());
        let mut cluster = Cluster::builder()
            .brokers(2)
            .zookeeper(ZooKeeperKind::InProcess)
            .set_for_broker(1, "log.dirs", homes.join(","))
            .start(directory)?;
        cluster.create_topic("moved", &["[1,2]"])?;
        cluster.create_topic("other", &["[1,2]"])?;
        fill(&cluster, "moved", MOVED)?;
        let from = home_of(&cluster, "moved")?;
        let to = homes.iter().find(|home| **home != from).context("another one")?;
        let move_to = |to: &str, flags: &[&str]| {
            answer(&cluster, &[&["log-dirs", "move", "moved:0", "--broker", "1", "--to", to], flags].concat())
        };

        json_of(&cluster, &["configs", "set", "--broker", "1", &slow(SLOW)])?;
        let begun = move_to(to, &["--no-wait"])?;
        ensure!(begun.0 == 0 && begun.1[0]["status"] == "in_progress", "{begun:?}");
        let future = copies(&cluster, "moved")?;
        let copy = future.iter().find(|copy| copy["is_future"] == true).context("no copy is on its way")?;
        ensure!(future.len() == 2 && copy["log_dir"] == to.as_str(), "{future:?}");
        ensure!(copy["offset_lag"].as_i64().is_some_and(|lag| 0 < lag), "{copy}");
        let (code, waited) = move_to(to, &["--timeout", "1"])?;
        ensure!(code == 1 && waited[0]["status"] == "in_progress", "{waited}");
        let shown = run(&cluster, &["log-dirs", "describe", "--topic", "moved"], "")?;
        let shown = String::from_utf8(shown.stdout)?;
        ensure!(shown.contains("LOG DIR") && shown.contains("on its way here"), "{shown}");
        // Back to where it is: that ends the move.
        let (code, back) = move_to(&from, &[])?;
        ensure!(code == 0 && back[0]["status"] == "complete", "{back}");
        ensure!(
            copies(&cluster, "moved")?.len() == 1 && home_of(&cluster, "moved")? == from,
            "it moves still"
        );

        json_of(&cluster, &["configs", "delete", "--broker", "1", RATE])?;
        let (code, moved) = move_to(&format!("{to}/"), &[])?;
        ensure!(code == 0 && moved[0]["status"] == "complete" && moved[0]["error"].is_null(), "{moved}");
        ensure!(
            home_of(&cluster, "moved")? == *to && Path::new(to).join("moved-0").is_dir(),
            "it is elsewhere"
        );
        eventually("the former log is gone", START_LIMIT, || {
            Ok((!Path::new(&from).join("moved-0").exists()).then_some(()))
        })?;
        let sizes = copies(&cluster, "moved")?;
        ensure!(sizes[0]["size_bytes"].as_i64().is_some_and(|size| MOVED as i64 <= size), "{sizes:?}");

        what_cannot_move(&cluster, to)?;
        cluster.wait_until_complete(START_LIMIT)?;
        cluster.check_running()
    });
}

const RATE: &str = "replica.alter.log.dirs.io.max.bytes.per.second";

fn slow(rate: i64) -> String {
    format!("{RATE}={rate}")
}

fn what_cannot_move(cluster: &Cluster, to: &str) -> Result<()> {
    let (code, absent) =
        answer(cluster, &["log-dirs", "move", "moved:0", "--broker", "1", "--to", "/absent"])?;
    let why = absent[0]["error"].as_str().unwrap_or_default();
    ensure!(code == 1 && why.contains("zurau log-dirs describe"), "{absent}");
    let absent = refused(cluster, &["log-dirs", "move", "absent:0", "--broker", "1", "--to", to], 1)?;
    ensure!(absent.contains("absent"), "{absent}");
    let dead = refused(cluster, &["log-dirs", "move", "moved:0", "--broker", "7", "--to", to], 1)?;
    ensure!(dead.contains("broker 7"), "{dead}");
    refused(cluster, &["log-dirs", "move", "moved", "--broker", "1", "--to", to], 2)?;
    let (code, dead) = answer(cluster, &["log-dirs", "describe", "--broker", "1,7"])?;
    ensure!(code == 1 && dead[1]["error"].is_string() && dead[0]["error"].is_null(), "{dead}");
    Ok(())
}

/// The copies of partition 0 of a topic on broker 1, each with its directory. Other topics are not described.
fn copies(cluster: &Cluster, topic: &str) -> Result<Vec<Value>> {
    let described = json_of(cluster, &["log-dirs", "describe", "--broker", "1", "--topic", topic])?;
    let directories = described[0]["log_dirs"].as_array().context("no directories")?;
    ensure!(directories.len() == 2 && described[0]["broker"] == 1, "{described}");
    let mut copies = Vec::new();
    for directory in directories {
        for replica in directory["replicas"].as_array().context("no replicas")? {
            ensure!(replica["topic"] == topic && replica["partition"] == 0, "{described}");
            let mut copy = replica.clone();
            copy["log_dir"] = json!(directory["log_dir"]);
            copies.push(copy);
        }
    }
    Ok(copies)
}

fn home_of(cluster: &Cluster, topic: &str) -> Result<String> {
    let copies = copies(cluster, topic)?;
    let current = copies.iter().find(|copy| copy["is_future"] == false).context("no replica")?;
    Ok(current["log_dir"].as_str().context("a path")?.to_owned())
}
