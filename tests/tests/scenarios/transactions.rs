//! An application that consumes, transforms and produces in transactions, while brokers are killed: transaction and group
//! coordinators and partition leaders at once. What it wrote is there exactly once for readers of committed records
//! (TXN-11, T4, T5).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use zurau_tests::clients::{RunningScript, python_missing};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, skip};

on_both_zookeepers!(sums_stay_right_while_brokers_are_killed);

const PARTITIONS: i32 = 3;
/// Longer than a session, an election and the time-outs of a client that meets both.
const MORE: Duration = Duration::from_secs(90);

struct Application {
    script: RunningScript,
    progress: PathBuf,
}

impl Application {
    fn start(cluster: &Cluster, directory: &TestDirectory) -> Result<Self> {
        let progress = directory.join("progress");
        let arguments = [
            cluster.bootstrap(),
            "numbers".to_owned(),
            "doubled".to_owned(),
            PARTITIONS.to_string(),
            progress.display().to_string(),
        ];
        let script = RunningScript::start("transform.py", &arguments, &directory.join("transform.log"))?;
        Ok(Self { script, progress })
    }

    /// Transactions that have ended.
    fn ended(&self) -> usize {
        std::fs::read_to_string(&self.progress).unwrap_or_default().lines().count()
    }

    fn wait_for_more(&mut self, transactions: usize) -> Result<()> {
        let wanted = self.ended() + transactions;
        eventually("more transactions", MORE, || {
            self.script.check_running()?;
            Ok((wanted <= self.ended()).then_some(()))
        })
    }
}

fn sums_stay_right_while_brokers_are_killed(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("a scenario with real clients", &why);
        return Ok(());
    }
    let mut cluster = Cluster::builder()
        .zookeeper(kind)
        .set_for_brokers("min.insync.replicas", 2)
        .set_for_brokers("offsets.topic.num.partitions", 3)
        .set_for_brokers("transaction.state.log.num.partitions", 3)
        .set_for_brokers("group.initial.rebalance.delay.ms", 0)
        .start(directory)?;
    cluster.create_topic("numbers", &["[1,2,3]", "[2,3,1]", "[3,1,2]"])?;
    cluster.create_topic("doubled", &["[2,1,3]", "[3,2,1]", "[1,3,2]"])?;
    let mut application = Application::start(&cluster, directory)?;
    application.wait_for_more(10)?;
    for broker in 1..=3 {
        cluster.broker(broker)?.kill()?;
        application.wait_for_more(10)?;
        cluster.broker(broker)?.start()?;
        cluster.wait_until_complete(START_LIMIT)?;
        for topic in ["doubled", "__transaction_state", "__consumer_offsets"] {
            cluster.wait_for_full_isr(topic, 3, Duration::from_secs(60))?;
        }
        application.wait_for_more(5)?;
    }
    application.script.finish(Duration::from_secs(240))?;
    cluster.check_running()
}
