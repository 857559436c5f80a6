//! DescribeLogDirs: the log directories of one broker and the copies of replicas in them.

use anyhow::Result;
use kafka_protocol::messages::DescribeLogDirsRequest;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use serde::Serialize;
use zurau_common::wire::control::to_wire_topic;

use super::{Client, Refused, Topic};

/// A log directory of a broker.
#[derive(Debug, Serialize)]
pub(crate) struct LogDir {
    pub(crate) log_dir: String,
    /// Why the directory is of no use.
    pub(crate) error: Option<String>,
    /// Bytes of its file system.
    pub(crate) total_bytes: Option<i64>,
    pub(crate) usable_bytes: Option<i64>,
    /// In the order of topics and partitions.
    pub(crate) replicas: Vec<Replica>,
}

/// A copy of a partition in a log directory.
#[derive(Debug, Serialize)]
pub(crate) struct Replica {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) size_bytes: i64,
    /// Committed records that it lacks; of a future copy, records of the replica that it lacks. `null`: not known.
    pub(crate) offset_lag: Option<i64>,
    /// It is on its way into this directory, and will take the replica's place.
    pub(crate) is_future: bool,
}

impl Client {
    /// As [`Client::log_dirs`]; else why there are none: a broker that hangs must not hide the others.
    pub(crate) async fn log_dirs_or_why(
        &mut self,
        broker: i32,
        topics: Option<&[&Topic]>,
    ) -> (Vec<LogDir>, Option<String>) {
        match self.log_dirs(broker, topics).await {
            Ok(directories) => (directories, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        }
    }

    /// The log directories of a broker, with the replicas of these topics, or all.
    ///
    /// # Errors
    /// The broker does not answer, or refuses.
    pub(crate) async fn log_dirs(&mut self, broker: i32, topics: Option<&[&Topic]>) -> Result<Vec<LogDir>> {
        let asked = topics.map(|topics| {
            let asked = topics.iter().map(|topic| {
                DescribableLogDirTopic::default()
                    .with_topic(to_wire_topic(&topic.topic))
                    .with_partitions(topic.partitions.iter().map(|one| one.partition).collect())
            });
            asked.collect()
        });
        let request = DescribeLogDirsRequest::default().with_topics(asked);
        let answer = self.broker(broker).await?.call(4, &request).await?;
        Refused::check(answer.error_code, None, || format!("log directories of broker {broker}"))?;
        let known = |count: i64| (0 <= count).then_some(count);
        let directories = answer.results.iter().map(|found| {
            let mut replicas: Vec<Replica> = found
                .topics
                .iter()
                .flat_map(|topic| topic.partitions.iter().map(move |partition| (topic, partition)))
                .map(|(topic, partition)| Replica {
                    topic: topic.name.to_string(),
                    partition: partition.partition_index,
                    size_bytes: partition.partition_size,
                    offset_lag: known(partition.offset_lag),
                    is_future: partition.is_future_key,
                })
                .collect();
            replicas.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
            let refused = Refused::check(found.error_code, None, || found.log_dir.to_string());
            LogDir {
                log_dir: found.log_dir.to_string(),
                error: refused.err().map(|refused| refused.why()),
                total_bytes: known(found.total_bytes),
                usable_bytes: known(found.usable_bytes),
                replicas,
            }
        });
        Ok(directories.collect())
    }
}
