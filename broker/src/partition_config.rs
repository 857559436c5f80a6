//! What a topic's configuration means for a partition and its log.

use std::collections::BTreeMap;

use zurau_common::config::{BrokerConfig, TopicConfig};

use crate::log::LogConfig;
use crate::partition::PartitionConfig;
use crate::throttle::Throttled;

/// `overrides`: what the topic itself sets; who is throttled is said there only.
pub(crate) fn partition_config(
    broker: &BrokerConfig,
    topic: &TopicConfig,
    overrides: &BTreeMap<String, String>,
) -> PartitionConfig {
    let expiration_ms = i64::try_from(broker.producer_id_expiration.as_millis()).unwrap_or(i64::MAX);
    let throttled = |side: &str| {
        let value = overrides.get(&format!("{side}.replication.throttled.replicas"));
        value.map(|value| Throttled::parse(value, broker.broker_id)).unwrap_or_default()
    };
    PartitionConfig {
        log: LogConfig::from_topic(topic, expiration_ms),
        min_insync_replicas: usize::try_from(topic.min_insync_replicas).unwrap_or(usize::MAX).max(1),
        unclean_election: topic.unclean_leader_election_enable,
        throttled_leader: throttled("leader"),
        throttled_follower: throttled("follower"),
    }
}
