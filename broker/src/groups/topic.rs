//! `__consumer_offsets`: which partition a group belongs to, and how the topic comes to be.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};
use zurau_common::config::Settings;
use zurau_common::id::BrokerId;
use zurau_common::rejection::Rejection;

use crate::context::BrokerContext;
use crate::topic_creation::{random_seed, wait_for_leaders, write_topic};
use crate::topic_plan::{Refusal, WantedTopic, plan_topic};

pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// How long the first question for a coordinator waits for the new topic's leaders.
const CREATION_WAIT: Duration = Duration::from_millis(1_500);

/// The partition of a group: Java's `String.hashCode` (over UTF-16) modulo the number of partitions, as every Kafka
/// broker and tool computes it.
pub(crate) fn partition_of(group: &str, partitions: i32) -> i32 {
    let hash =
        group.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The absolute value of the smallest number does not fit; Kafka takes 0 for it.
    hash.checked_abs().unwrap_or(0) % partitions.max(1)
}

/// How the topic is created.
#[derive(Debug)]
pub(crate) struct OffsetsTopic {
    /// `offsets.topic.num.partitions`.
    partitions: i32,
    /// `offsets.topic.replication.factor`.
    replication_factor: i16,
    /// `offsets.topic.segment.bytes`.
    segment_bytes: String,
    /// One creation at a time.
    creating: Mutex<()>,
}

impl OffsetsTopic {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            partitions: setting(settings, "offsets.topic.num.partitions"),
            replication_factor: setting(settings, "offsets.topic.replication.factor"),
            segment_bytes: setting(settings, "offsets.topic.segment.bytes"),
            creating: Mutex::new(()),
        }
    }

    /// The partition of a group, by the topic as it is, or as it will be.
    pub(crate) fn partition_of(&self, context: &BrokerContext, group: &str) -> i32 {
        let image = context.metadata.image();
        let existing = image.topic(OFFSETS_TOPIC).map(|topic| topic.partitions.len());
        let partitions = existing.and_then(|count| i32::try_from(count).ok()).unwrap_or(self.partitions);
        partition_of(group, partitions)
    }

    /// Who coordinates the group. Creates the topic if nobody has needed it before.
    ///
    /// # Errors
    /// `CoordinatorNotAvailable`, which clients take as "ask again", with the reason for people.
    pub(crate) async fn coordinator_of(
        &self,
        context: &BrokerContext,
        group: &str,
    ) -> Result<BrokerId, Refusal> {
        let not_now = |reason: String| Refusal::new(Rejection::CoordinatorNotAvailable, reason);
        if context.metadata.image().topic(OFFSETS_TOPIC).is_none() {
            self.create(context).await.map_err(|refusal| not_now(refusal.message))?;
        }
        let number = self.partition_of(context, group);
        let image = context.metadata.image();
        let partition = image
            .partition(OFFSETS_TOPIC, number)
            .ok_or_else(|| not_now(format!("{OFFSETS_TOPIC} is being created")))?;
        partition.leader.ok_or_else(|| not_now(format!("{OFFSETS_TOPIC}-{number} has no leader right now")))
    }

    async fn create(&self, context: &BrokerContext) -> Result<(), Refusal> {
        let deadline = Instant::now() + CREATION_WAIT;
        let busy = || Refusal::new(Rejection::CoordinatorNotAvailable, "the topic is being created");
        let _creating = timeout_at(deadline, self.creating.lock()).await.map_err(|_| busy())?;
        if context.metadata.image().topic(OFFSETS_TOPIC).is_some() {
            return Ok(());
        }
        let wanted = WantedTopic {
            partitions: self.partitions,
            replication_factor: self.replication_factor,
            configs: vec![
                ("cleanup.policy".to_owned(), Some("compact".to_owned())),
                ("compression.type".to_owned(), Some("producer".to_owned())),
                ("segment.bytes".to_owned(), Some(self.segment_bytes.clone())),
            ],
            ..WantedTopic::with_defaults(OFFSETS_TOPIC)
        };
        let config = context.topic_configs.broker_config();
        let written = match plan_topic(&wanted, &config, &context.metadata.image(), random_seed()) {
            Ok(plan) => write_topic(context, &plan).await,
            Err(refusal) => Err(refusal),
        };
        match written {
            Ok(()) => info!(topic = OFFSETS_TOPIC, "created for the first group"),
            Err(refusal) if refusal.rejection == Rejection::TopicAlreadyExists => {}
            Err(refusal) => {
                warn!(
                    topic = OFFSETS_TOPIC,
                    replication_factor = self.replication_factor,
                    reason = refusal.message,
                    "consumer groups do not work: their topic cannot be created; start more brokers or lower \
                     offsets.topic.replication.factor"
                );
                return Err(refusal);
            }
        }
        let partitions = usize::try_from(self.partitions).unwrap_or(0);
        wait_for_leaders(context, OFFSETS_TOPIC, partitions, deadline).await.map(|_| ())
    }
}

/// A value that the configuration's table has checked.
pub(crate) fn setting<T: std::str::FromStr>(settings: &Settings, name: &str) -> T {
    let value = settings.get(name).and_then(|(text, _)| text.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} has a checked value or a default in the table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fall_into_the_partitions_that_java_computes() {
        // The first is where a Kafka 3.9 cluster with 8 partitions put it; the others follow from Java's rule.
        let rows = [
            ("golden-group", 8, 5),
            ("", 50, 0),
            ("a", 50, 97 % 50),
            ("ab", 50, (97 * 31 + 98) % 50),
            ("\u{1F600}", 50, (0xd83d_i32 * 31 + 0xde00) % 50),
            // Its hash is the smallest number.
            ("polygenelubricants", 50, 0),
            ("golden-group", 1, 0),
        ];
        for (group, partitions, expected) in rows {
            assert_eq!(partition_of(group, partitions), expected, "{group}");
        }
    }
}
