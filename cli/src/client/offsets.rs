//! Offsets of many partitions, asked of their leaders.

use std::collections::BTreeMap;

use anyhow::Result;
use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use super::{Client, Cluster, Refused};

/// The end of the committed records.
pub(crate) const LATEST: i64 = -1;
/// The first offset that is still there.
pub(crate) const EARLIEST: i64 = -2;

impl Client {
    /// For each partition the first offset at its time (milliseconds since 1970, or [`LATEST`] or [`EARLIEST`]); `None`
    /// when no record is so young. `committed`: as a consumer of isolation level read_committed sees it.
    ///
    /// # Errors
    /// A partition has no leader in time, or a leader refuses.
    pub(crate) async fn offsets(
        &mut self,
        wanted: &BTreeMap<TopicPartition, i64>,
        committed: bool,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>> {
        let names: Vec<String> = wanted.keys().map(|tp| tp.topic.to_string()).collect();
        self.retry(async |client| {
            let cluster = client.cluster(Some(&names)).await?;
            let mut found = BTreeMap::new();
            for (leader, asked) in by_leader(&cluster, wanted)? {
                let request = request(&asked, committed);
                let answer = client.broker(leader).await?.call(7, &request).await?;
                for topic in &answer.topics {
                    for partition in &topic.partitions {
                        let tp = TopicPartition::new(topic.name.as_str(), partition.partition_index);
                        Refused::check(partition.error_code, None, || format!("the offset of {tp}"))?;
                        found.insert(tp, Some(partition.offset).filter(|offset| 0 <= *offset));
                    }
                }
            }
            Ok(found)
        })
        .await
    }
}

type Asked = Vec<(TopicPartition, i64)>;

fn by_leader(cluster: &Cluster, wanted: &BTreeMap<TopicPartition, i64>) -> Result<BTreeMap<i32, Asked>> {
    let mut leaders: BTreeMap<i32, Asked> = BTreeMap::new();
    for (tp, time) in wanted {
        leaders.entry(cluster.leader(tp)?).or_default().push((tp.clone(), *time));
    }
    Ok(leaders)
}

fn request(asked: &[(TopicPartition, i64)], committed: bool) -> ListOffsetsRequest {
    let mut topics: BTreeMap<&str, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for (tp, time) in asked {
        let partition =
            ListOffsetsPartition::default().with_partition_index(tp.partition).with_timestamp(*time);
        topics.entry(&tp.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        ListOffsetsTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
    });
    ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(i8::from(committed))
        .with_topics(topics.collect())
}
