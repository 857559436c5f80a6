//! The offsets that a group has committed: reading and writing them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::StrBytes;
use zurau_common::id::TopicPartition;
use zurau_common::wire::control::to_wire_topic;

use crate::client::{Client, CoordinatorOf, Refused};

/// A committed offset, and what the application wrote beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) offset: i64,
    pub(crate) metadata: String,
}

/// Who commits: a member in a generation, or nobody, which an empty group lets do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Committer {
    pub(crate) member: StrBytes,
    pub(crate) generation: i32,
}

impl Committer {
    pub(crate) fn nobody() -> Self {
        Self { member: StrBytes::default(), generation: -1 }
    }
}

/// All committed offsets of a group. One without any has none.
///
/// # Errors
/// The coordinator cannot be found in time, or refuses.
pub(crate) async fn committed(
    client: &mut Client,
    group: &str,
) -> Result<BTreeMap<TopicPartition, Committed>> {
    let asked = OffsetFetchRequestGroup::default()
        .with_group_id(StrBytes::from_string(group.to_owned()).into())
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![asked]);
    client
        .retry(async |client| {
            let answer = client.coordinator(CoordinatorOf::Group, group).await?.call(8, &request).await?;
            let found = answer.groups.first().context("the answer names no group")?;
            Refused::check(found.error_code, None, || format!("group {group}"))?;
            let mut offsets = BTreeMap::new();
            for topic in &found.topics {
                for partition in &topic.partitions {
                    let id = TopicPartition::new(topic.name.as_str(), partition.partition_index);
                    Refused::check(partition.error_code, None, || format!("group {group}, {id}"))?;
                    let metadata = partition.metadata.as_ref().map(ToString::to_string).unwrap_or_default();
                    if 0 <= partition.committed_offset {
                        offsets.insert(id, Committed { offset: partition.committed_offset, metadata });
                    }
                }
            }
            Ok(offsets)
        })
        .await
}

/// Commits offsets for a group.
///
/// # Errors
/// The coordinator cannot be found in time or refuses; offsets named before the refused one may be stored.
pub(crate) async fn commit(
    client: &mut Client,
    group: &str,
    committer: &Committer,
    offsets: &BTreeMap<TopicPartition, i64>,
) -> Result<()> {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for (id, offset) in offsets {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(id.partition)
            .with_committed_offset(*offset)
            .with_committed_leader_epoch(-1)
            .with_committed_metadata(Some(StrBytes::default()));
        topics.entry(&id.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        OffsetCommitRequestTopic::default().with_name(to_wire_topic(name)).with_partitions(partitions)
    });
    let request = OffsetCommitRequest::default()
        .with_group_id(StrBytes::from_string(group.to_owned()).into())
        .with_generation_id_or_member_epoch(committer.generation)
        .with_member_id(committer.member.clone())
        .with_topics(topics.collect());
    client
        .retry(async |client| {
            let answer = client.coordinator(CoordinatorOf::Group, group).await?.call(8, &request).await?;
            for topic in &answer.topics {
                for partition in &topic.partitions {
                    let subject =
                        || format!("group {group}, {}-{}", topic.name.as_str(), partition.partition_index);
                    Refused::check(partition.error_code, None, subject)?;
                }
            }
            Ok(())
        })
        .await
}
