//! AlterReplicaLogDirs (34), versions 0-2 (KIP-113): moves replicas of this broker between its log directories.
//!
//! - Answered when the moves have begun; DescribeLogDirs shows how far they are.
//! - A replica that does not exist yet gets error 9, and is created in the directory later.
//! - Other errors: 57 no log directory of this broker; 56 one that is offline; 17 a topic name that is too long.

use std::collections::BTreeMap;
use std::path::Path;

use kafka_protocol::messages::alter_replica_log_dirs_request::AlterReplicaLogDir;
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::{AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::{Call, Starting};

/// Outcomes by topic and partition; of two wishes for one partition the later one counts.
type Outcomes = BTreeMap<String, BTreeMap<i32, Result<(), Rejection>>>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: AlterReplicaLogDirsRequest| async move {
        // Makes directories.
        let altering = tokio::task::spawn_blocking(move || {
            alter(&request.dirs, |id, path| call.context.partitions.alter_log_dir(id, path))
        });
        response(&altering.await.unwrap_or_default())
    })
}

fn alter(
    wished: &[AlterReplicaLogDir],
    alter_one: impl Fn(&TopicPartition, &Path) -> Result<(), Rejection>,
) -> Outcomes {
    let mut wishes: BTreeMap<(String, i32), &str> = BTreeMap::new();
    for directory in wished {
        for topic in &directory.topics {
            for partition in &topic.partitions {
                wishes.insert((topic.name.to_string(), *partition), directory.path.as_str());
            }
        }
    }
    let mut outcomes = Outcomes::new();
    for ((topic, number), path) in wishes {
        let outcome = alter_one(&TopicPartition::new(topic.as_str(), number), Path::new(path));
        outcomes.entry(topic).or_default().insert(number, outcome);
    }
    outcomes
}

fn response(outcomes: &Outcomes) -> AlterReplicaLogDirsResponse {
    let results = outcomes.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|(number, outcome)| {
            AlterReplicaLogDirPartitionResult::default()
                .with_partition_index(*number)
                .with_error_code(outcome.map_or_else(Rejection::code, |()| 0))
        });
        AlterReplicaLogDirTopicResult::default()
            .with_topic_name(to_wire_topic(topic))
            .with_partitions(partitions.collect())
    });
    AlterReplicaLogDirsResponse::default().with_results(results.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_replica_log_dirs_request::AlterReplicaLogDirTopic;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn wish(path: &'static str, topic: &str, partitions: &[i32]) -> AlterReplicaLogDir {
        let topic = AlterReplicaLogDirTopic::default()
            .with_name(to_wire_topic(topic))
            .with_partitions(partitions.to_vec());
        AlterReplicaLogDir::default().with_path(path.into()).with_topics(vec![topic])
    }

    #[test]
    fn each_partition_is_answered_once_and_its_last_wish_counts() {
        let wished = [wish("/a", "t", &[0, 1]), wish("/b", "t", &[1]), wish("/b", "u", &[5])];
        let outcomes =
            alter(
                &wished,
                |_, path| {
                    if path == Path::new("/b") { Err(Rejection::LogDirNotFound) } else { Ok(()) }
                },
            );
        let answer = response(&outcomes);
        let codes: Vec<_> = answer
            .results
            .iter()
            .flat_map(|topic| {
                let partitions = topic.partitions.iter();
                partitions.map(|one| (topic.topic_name.to_string(), one.partition_index, one.error_code))
            })
            .collect();
        assert_eq!(codes, [("t".to_owned(), 0, 0), ("t".to_owned(), 1, 57), ("u".to_owned(), 5, 57)]);
        assert_every_version_encodes::<AlterReplicaLogDirsRequest>(|_| answer.clone());
    }
}
