//! `zurau reassign start --throttle`: set before anything moves, changed by starting again, gone with the last move.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, ZooKeeperKind, eventually, scenario};

use super::{answer, json_of};
use crate::throttle::fill;

const MIB: usize = 1 << 20;
/// Bytes to move, and bytes a second.
const MOVED: usize = 6 * MIB;
const RATE: usize = MIB;

#[test]
fn moves_are_throttled_until_they_are_done() {
    scenario("moves-are-throttled-until-they-are-done", |directory| {
        let mut cluster = Cluster::builder()
            .zookeeper(ZooKeeperKind::InProcess)
            .set_for_brokers("replica.fetch.max.bytes", 256 << 10)
            .start(directory)?;
        cluster.create_topic("moved", &["[1]"])?;
        fill(&cluster, "moved", MOVED)?;
        let file = directory.join("plan.json");
        let wish = |replicas: Value| json!({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": replicas}]});
        std::fs::write(&file, wish(json!([2])).to_string())?;
        let file = file.display().to_string();

        let start = Instant::now();
        let rate = RATE.to_string();
        json_of(&cluster, &["reassign", "start", &file, "--throttle", &rate])?;
        let expected =
            json!({"leader.replication.throttled.rate": rate, "follower.replication.throttled.rate": rate});
        for broker in ["1", "2"] {
            let set = config(&cluster, &format!("/config/brokers/{broker}"))?;
            ensure!(set == expected, "broker {broker}: {set}");
        }
        ensure!(config(&cluster, "/config/brokers/3")? == json!({}), "broker 3 takes no part");
        let expected = json!({"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "0:2"});
        let set = config(&cluster, "/config/topics/moved")?;
        ensure!(set == expected, "topic: {set}");

        eventually("the move is complete", Duration::from_secs(90), || {
            let (code, status) = answer(&cluster, &["reassign", "status", &file])?;
            let set = config(&cluster, "/config/topics/moved")?;
            ensure!(code == 0 || set == expected, "unthrottled while it moves: {status}, {set}");
            Ok((code == 0).then_some(()))
        })?;
        let (took, least) = (start.elapsed(), Duration::from_secs((MOVED / RATE) as u64) / 2);
        ensure!(least < took, "{MOVED} bytes at {RATE} a second took {took:?}");
        not_throttled(&cluster)?;

        // So slow that it never ends; the last cancelled move takes the throttle with it, unless it shall stay.
        std::fs::write(&file, wish(json!([3])).to_string())?;
        let keys = ["reassign", "start", file.as_str(), "--throttle", "1"];
        json_of(&cluster, &keys)?;
        json_of(&cluster, &["reassign", "start", &file, "--throttle", "2"])?;
        let set = config(&cluster, "/config/brokers/3")?;
        ensure!(set["follower.replication.throttled.rate"] == "2", "started again with another rate: {set}");
        json_of(&cluster, &["reassign", "cancel", "--all", "--preserve-throttles"])?;
        ensure!(config(&cluster, "/config/topics/moved")? != json!({}), "the throttle shall stay");
        json_of(&cluster, &keys)?;
        json_of(&cluster, &["reassign", "cancel", "--all"])?;
        not_throttled(&cluster)?;
        cluster.wait_until_complete(START_LIMIT)?;
        cluster.check_running()
    });
}

/// What an entity is configured with; nothing if there is no znode.
fn config(cluster: &Cluster, path: &str) -> Result<Value> {
    match cluster.znodes.text(path)? {
        None => Ok(json!({})),
        Some(text) => {
            let value: Value = serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))?;
            Ok(value["config"].clone())
        }
    }
}

fn not_throttled(cluster: &Cluster) -> Result<()> {
    for path in ["brokers/1", "brokers/2", "brokers/3", "topics/moved"] {
        let set = config(cluster, &format!("/config/{path}"))?;
        ensure!(set == json!({}), "{path} keeps {set}");
    }
    Ok(())
}
