//! The clients of the lab: who writes, who reads, who transforms, and what they recorded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::checker::{History, Statistics, check};
use zurau_tests::clients::{RunningScript, python_script};
use zurau_tests::history::lines;
use zurau_tests::wait::throughout;
use zurau_tests::{Cluster, TestDirectory, eventually};

use super::{OUTPUT, PARTITIONS, QUEUE};

/// Role and name of each client.
const CLIENTS: [(&str, &str); 7] = [
    ("write", "w1"),
    ("write", "w2"),
    ("read", "r1"),
    ("group", "g1"),
    ("group", "g2"),
    ("transform", "x1"),
    ("transform", "x2"),
];
/// Lines that a client records at least before it counts as being at work.
const PROGRESS: usize = 20;
/// How long the transformers may take to catch up once the writers have stopped.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(120);

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
    /// Values of the queue at the end.
    pub(super) inputs: BTreeSet<String>,
    /// Committed values of the output at the end.
    pub(super) outputs: Vec<String>,
}

impl Clients {
    pub(super) fn start(cluster: &Cluster, directory: &TestDirectory, seed: u64) -> Result<Self> {
        let mut running = Vec::new();
        for (role, name) in CLIENTS {
            let history = directory.join(&format!("{name}.history"));
            let log = directory.join(&format!("{name}.log"));
            let arguments = arguments(role, name, cluster, &history, seed, QUEUE);
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
        let (writers, mut others): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|client| client.role == "write");
        finish_all(writers)?;
        let finals = [QUEUE, OUTPUT].map(|topic| directory.join(&format!("final-{topic}.history")));
        let inputs: BTreeSet<String> = read(cluster, &finals[0], seed, QUEUE)?.into_iter().collect();
        wait_for_outputs(cluster, directory, seed, inputs.len(), &mut others)?;
        finish_all(others)?;
        let outputs = read(cluster, &finals[1], seed, OUTPUT)?;
        histories.extend(finals);
        let mut history = History::default();
        for path in &histories {
            history.read(path)?;
        }
        let operations = history.len();
        let statistics = check(&history).into_result()?;
        Ok(Results { statistics, operations, inputs, outputs })
    }
}

fn arguments(
    role: &str,
    name: &str,
    cluster: &Cluster,
    history: &Path,
    seed: u64,
    topic: &str,
) -> Vec<String> {
    let mut arguments = vec![
        role.to_owned(),
        name.to_owned(),
        cluster.bootstrap(),
        history.to_string_lossy().into_owned(),
        seed.to_string(),
        topic.to_owned(),
        PARTITIONS.to_string(),
    ];
    if role == "transform" {
        arguments.extend([OUTPUT.to_owned(), PARTITIONS.to_string()]);
    }
    arguments
}

fn finish_all(clients: Vec<Client>) -> Result<()> {
    for client in clients {
        let name = client.history.display().to_string();
        client.script.finish(Duration::from_secs(150)).with_context(|| format!("the client of {name}"))?;
    }
    Ok(())
}

/// Waits until as many outputs are committed as there are inputs; whether they are the right ones is judged later.
fn wait_for_outputs(
    cluster: &Cluster,
    directory: &TestDirectory,
    seed: u64,
    inputs: usize,
    clients: &mut [Client],
) -> Result<()> {
    let mut attempt = 0;
    eventually("the transformers have seen everything", CATCH_UP_LIMIT, || {
        clients.iter_mut().try_for_each(|client| client.script.check_running())?;
        attempt += 1;
        let path = directory.join(&format!("look-{attempt}.history"));
        let made = read(cluster, &path, seed, OUTPUT)?.len();
        ensure!(made >= inputs, "{made} of {inputs}");
        Ok(Some(()))
    })
}

/// Reads all of a topic, records that in a history and returns the values.
fn read(cluster: &Cluster, path: &Path, seed: u64, topic: &str) -> Result<Vec<String>> {
    let name = format!("final-{topic}");
    python_script("lab.py", &arguments("everything", &name, cluster, path, seed, topic))?;
    let mut history = History::default();
    history.read(path)?;
    Ok(history.polled())
}
