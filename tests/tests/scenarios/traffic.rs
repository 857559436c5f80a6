//! Real producers and a consumer that run while a scenario breaks things, and the check of all that they were told.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::RunningScript;
use zurau_tests::history::{
    Acknowledged, check_history, check_replicas_equal, lines, longest_gap, read_history,
};
use zurau_tests::{Cluster, TestDirectory, eventually};

const PRODUCERS: usize = 2;
/// Records a second of each producer.
const RATE: &str = "250";

pub(crate) struct Traffic {
    topic: String,
    partitions: i32,
    producers: Vec<(RunningScript, PathBuf)>,
    consumer: (RunningScript, PathBuf),
}

impl Traffic {
    /// Starts writing to and reading from a topic that exists, and waits until both have begun.
    pub(crate) fn start(
        cluster: &Cluster,
        directory: &TestDirectory,
        topic: &str,
        partitions: i32,
    ) -> Result<Self> {
        let bootstrap = cluster.bootstrap();
        let count = partitions.to_string();
        let mut producers = Vec::new();
        for number in 0..PRODUCERS {
            let name = format!("p{number}");
            let path = directory.join(&format!("{topic}-{name}.history"));
            let shown = path.to_string_lossy().into_owned();
            let arguments = [&bootstrap, topic, &count, RATE, &name, &shown];
            let log = directory.join(&format!("producer-{name}.log"));
            producers.push((RunningScript::start("produce_history.py", &arguments, &log)?, path));
        }
        let path = directory.join(&format!("{topic}-consumer.history"));
        let shown = path.to_string_lossy().into_owned();
        let log = directory.join("consumer.log");
        let arguments = [&bootstrap, topic, &count, &shown];
        let consumer = (RunningScript::start("consume_history.py", &arguments, &log)?, path);
        let mut traffic = Self { topic: topic.to_owned(), partitions, producers, consumer };
        traffic.wait_for_more("traffic has begun", 200, Duration::from_secs(30))?;
        Ok(traffic)
    }

    /// Acknowledgements and consumed records so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let acknowledged = self.producers.iter().map(|(_, path)| lines(path)).sum();
        (acknowledged, lines(&self.consumer.1))
    }

    /// Waits until every producer was acknowledged `count` more records and the consumer saw as many.
    pub(crate) fn wait_for_more(&mut self, what: &str, count: usize, limit: Duration) -> Result<()> {
        let start: Vec<usize> = self.producers.iter().map(|(_, path)| lines(path)).collect();
        let (_, consumed) = self.counts();
        eventually(what, limit, || {
            for ((script, path), before) in self.producers.iter_mut().zip(&start) {
                script.check_running()?;
                let more = lines(path) - before;
                ensure!(more >= count, "a producer got {more} of {count} acknowledgements");
            }
            self.consumer.0.check_running()?;
            let more = lines(&self.consumer.1) - consumed;
            ensure!(more >= count, "the consumer saw {more} of {count} records");
            Ok(Some(()))
        })
    }

    fn acknowledged(&self) -> Result<Vec<Acknowledged>> {
        let mut all = Vec::new();
        for (_, path) in &self.producers {
            all.extend(read_history(path)?);
        }
        Ok(all)
    }

    /// Waits until a record was acknowledged in every partition after `time_ms`.
    pub(crate) fn wait_for_every_partition_since(&self, time_ms: i64, limit: Duration) -> Result<()> {
        eventually("acknowledgements in every partition", limit, || {
            let all = self.acknowledged()?;
            for partition in 0..self.partitions {
                let found = all.iter().any(|one| one.partition == partition && one.time_ms > time_ms);
                ensure!(found, "nothing was acknowledged in {}-{partition}", self.topic);
            }
            Ok(Some(()))
        })
    }

    /// Ends producers and consumer and checks everything: acknowledged records at their offsets, none twice, no
    /// holes, the consumer's view, and equal files on all replicas.
    pub(crate) fn finish_and_check(self, cluster: &Cluster) -> Result<()> {
        let history = {
            let mut all = Vec::new();
            for (script, path) in self.producers {
                script.finish(Duration::from_secs(110)).context("a producer lost records")?;
                all.extend(read_history(&path)?);
            }
            all
        };
        let records = check_history(&mut cluster.client(), &self.topic, self.partitions, &history)?;
        // The consumer must get to the end by itself.
        eventually("the consumer has seen everything", Duration::from_secs(30), || {
            let seen = lines(&self.consumer.1);
            ensure!(seen == records, "{seen} of {records} records");
            Ok(Some(()))
        })?;
        self.consumer.0.finish(Duration::from_secs(20)).context("the consumer failed")?;
        let seen = read_history(&self.consumer.1)?;
        let consumed = check_history(&mut cluster.client(), &self.topic, self.partitions, &seen)?;
        ensure!(consumed == seen.len(), "the consumer saw {} of {consumed} records", seen.len());
        for partition in 0..self.partitions {
            check_replicas_equal(cluster, &self.topic, partition, Duration::from_secs(30))?;
            let gap = longest_gap(&history, partition);
            eprintln!("{}-{partition}: longest time without an acknowledgement {gap:?}", self.topic);
        }
        eprintln!("{}: {} acknowledged, {records} stored", self.topic, history.len());
        Ok(())
    }
}
