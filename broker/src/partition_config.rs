//! What a topic's configuration means for a partition and its log.

use std::time::Duration;

use zurau_common::config::TopicConfig;

use crate::log::LogConfig;
use crate::partition::PartitionConfig;

/// `producer_id_expiration`: the broker's `producer.id.expiration.ms`.
pub(crate) fn partition_config(topic: &TopicConfig, producer_id_expiration: Duration) -> PartitionConfig {
    let expiration_ms = i64::try_from(producer_id_expiration.as_millis()).unwrap_or(i64::MAX);
    PartitionConfig {
        log: LogConfig::from_topic(topic, expiration_ms),
        min_insync_replicas: usize::try_from(topic.min_insync_replicas).unwrap_or(usize::MAX).max(1),
        unclean_election: topic.unclean_leader_election_enable,
    }
}
