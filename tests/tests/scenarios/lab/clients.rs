//! The clients of the lab: who writes, who reads, and what they recorded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::checker::{History, Statistics, check};
use zurau_tests::clients::{RunningScript, python_script};
use zurau_tests::history::lines;
use zurau_tests::wait::throughout;
use zurau_tests::{Cluster, TestDirectory, eventually};

use super::{PARTITIONS, QUEUE};

/// Role and name of each client.
const CLIENTS: [(&str, &str); 5] =
    [("write", "w1"), ("write", "w2"), ("read", "r1"), ("group", "g1"), ("group", "g2")];
/// Lines that a client records at least before it counts as being at work.
const PROGRESS: usize = 20;

pub(super) struct Clients {
    running: Vec<Client>,
}

struct Client {
    role: &'static str,
    script: RunningScript,
    history: PathBuf,
}

/// What the clients' histories come to.
pub(super) struct Results {
    pub(super) statistics: Statistics,
    pub(super) operations: usize,
}

impl Clients {
    pub(super) fn start(cluster: &Cluster, directory: &TestDirectory, seed: u64) -> Result<Self> {
        let mut running = Vec::new();
        for (role, name) in CLIENTS {
            let history = directory.join(&format!("{name}.history"));
            let log = directory.join(&format!("{name}.log"));
            let arguments = arguments(role, name, cluster, &history, seed);
            let script = RunningScript::start("lab.py", &arguments, &log)?;
            running.push(Client { role, script, history });
        }
        Ok(Self { running })
    }

    /// Every client runs for the whole of `time`.
    pub(super) fn keep_running(&mut self, time: Duration) -> Result<()> {
        throughout("clients are at work", time, || {
            self.running.iter_mut().try_for_each(|client| client.script.check_running())
        })
    }

    /// Waits until each client has got something done again.
    pub(super) fn wait_for_progress(&mut self, limit: Duration) -> Result<()> {
        let before: Vec<usize> = self.running.iter().map(|client| lines(&client.history)).collect();
        eventually("every client gets on", limit, || {
            for (client, before) in self.running.iter_mut().zip(&before) {
                client.script.check_running()?;
                let more = lines(&client.history) - before;
                ensure!(more >= PROGRESS, "{} recorded {more} lines", client.history.display());
            }
            Ok(Some(()))
        })
    }

    /// Stops the writers, then the others once they have seen everything; reads all topics; judges.
    pub(super) fn finish(
        mut self,
        cluster: &Cluster,
        directory: &TestDirectory,
        seed: u64,
    ) -> Result<Results> {
        let mut histories: Vec<PathBuf> = self.running.iter().map(|client| client.history.clone()).collect();
        let (writers, others): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|client| client.role == "write");
        finish_all(writers)?;
        finish_all(others)?;
        let end = directory.join("final.history");
        python_script("lab.py", &arguments("everything", "final", cluster, &end, seed))?;
        histories.push(end);
        let mut history = History::default();
        for path in &histories {
            history.read(path)?;
        }
        let operations = history.len();
        let statistics = check(&history).into_result()?;
        Ok(Results { statistics, operations })
    }
}

fn arguments(role: &str, name: &str, cluster: &Cluster, history: &Path, seed: u64) -> Vec<String> {
    vec![
        role.to_owned(),
        name.to_owned(),
        cluster.bootstrap(),
        history.to_string_lossy().into_owned(),
        seed.to_string(),
        QUEUE.to_owned(),
        PARTITIONS.to_string(),
    ]
}

fn finish_all(clients: Vec<Client>) -> Result<()> {
    for client in clients {
        let name = client.history.display().to_string();
        client.script.finish(Duration::from_secs(150)).with_context(|| format!("the client of {name}"))?;
    }
    Ok(())
}
