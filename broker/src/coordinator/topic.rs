//! The topic in which coordinators keep their state: which partition a group or a transactional id belongs to, who
//! coordinates it, and how the topic comes to be.

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

/// How long the first question for a coordinator waits for the new topic's leaders.
const CREATION_WAIT: Duration = Duration::from_millis(1_500);

/// The partition of a group or transactional id: Java's `String.hashCode` (over UTF-16) modulo the number of partitions,
/// as every Kafka broker and tool computes it.
pub(crate) fn partition_of(key: &str, partitions: i32) -> i32 {
    let hash =
        key.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The absolute value of the smallest number does not fit; Kafka takes 0 for it.
    hash.checked_abs().unwrap_or(0) % partitions.max(1)
}

/// A topic of coordinators, as it is created when it is first needed.
#[derive(Debug)]
pub(crate) struct CoordinatorTopic {
    pub(crate) name: &'static str,
    /// What does not work without it, and what to lower if there are too few brokers.
    purpose: &'static str,
    replication_key: &'static str,
    partitions: i32,
    replication_factor: i16,
    configs: Vec<(String, Option<String>)>,
    /// One creation at a time.
    creating: Mutex<()>,
}

impl CoordinatorTopic {
    /// `__consumer_offsets`, by the settings `offsets.topic.*`.
    pub(crate) fn consumer_offsets(settings: &Settings) -> Self {
        let configs = [
            ("cleanup.policy", "compact".to_owned()),
            ("compression.type", "producer".to_owned()),
            ("segment.bytes", setting(settings, "offsets.topic.segment.bytes")),
        ];
        Self {
            name: "__consumer_offsets",
            purpose: "consumer groups",
            replication_key: "offsets.topic.replication.factor",
            partitions: setting(settings, "offsets.topic.num.partitions"),
            replication_factor: setting(settings, "offsets.topic.replication.factor"),
            configs: configs.map(|(key, value)| (key.to_owned(), Some(value))).into(),
            creating: Mutex::new(()),
        }
    }

    /// `__transaction_state`, by the settings `transaction.state.log.*`.
    pub(crate) fn transaction_state(settings: &Settings) -> Self {
        let configs = [
            ("cleanup.policy", "compact".to_owned()),
            ("compression.type", "uncompressed".to_owned()),
            ("min.insync.replicas", setting(settings, "transaction.state.log.min.isr")),
            ("segment.bytes", setting(settings, "transaction.state.log.segment.bytes")),
            ("unclean.leader.election.enable", "false".to_owned()),
        ];
        Self {
            name: "__transaction_state",
            purpose: "transactions",
            replication_key: "transaction.state.log.replication.factor",
            partitions: setting(settings, "transaction.state.log.num.partitions"),
            replication_factor: setting(settings, "transaction.state.log.replication.factor"),
            configs: configs.map(|(key, value)| (key.to_owned(), Some(value))).into(),
            creating: Mutex::new(()),
        }
    }

    /// The partition of a group or transactional id, by the topic as it is, or as it will be.
    pub(crate) fn partition_of(&self, context: &BrokerContext, key: &str) -> i32 {
        let image = context.metadata.image();
        let existing = image.topic(self.name).map(|topic| topic.partitions.len());
        let partitions = existing.and_then(|count| i32::try_from(count).ok()).unwrap_or(self.partitions);
        partition_of(key, partitions)
    }

    /// Who coordinates the group or transactional id. Creates the topic if nobody has needed it before.
    ///
    /// # Errors
    /// `CoordinatorNotAvailable`, which clients take as "ask again", with the reason for people.
    pub(crate) async fn coordinator_of(
        &self,
        context: &BrokerContext,
        key: &str,
    ) -> Result<BrokerId, Refusal> {
        let not_now = |reason: String| Refusal::new(Rejection::CoordinatorNotAvailable, reason);
        let name = self.name;
        if context.metadata.image().topic(name).is_none() {
            self.create(context).await.map_err(|refusal| not_now(refusal.message))?;
        }
        let number = self.partition_of(context, key);
        let image = context.metadata.image();
        let partition =
            image.partition(name, number).ok_or_else(|| not_now(format!("{name} is being created")))?;
        partition.leader.ok_or_else(|| not_now(format!("{name}-{number} has no leader right now")))
    }

    async fn create(&self, context: &BrokerContext) -> Result<(), Refusal> {
        let deadline = Instant::now() + CREATION_WAIT;
        let busy = || Refusal::new(Rejection::CoordinatorNotAvailable, "the topic is being created");
        let _creating = timeout_at(deadline, self.creating.lock()).await.map_err(|_| busy())?;
        if context.metadata.image().topic(self.name).is_some() {
            return Ok(());
        }
        let wanted = WantedTopic {
            partitions: self.partitions,
            replication_factor: self.replication_factor,
            configs: self.configs.clone(),
            ..WantedTopic::with_defaults(self.name)
        };
        let config = context.topic_configs.broker_config();
        let written = match plan_topic(&wanted, &config, &context.metadata.image(), random_seed()) {
            Ok(plan) => write_topic(context, &plan).await,
            Err(refusal) => Err(refusal),
        };
        match written {
            Ok(()) => info!(topic = self.name, "created because {} need it", self.purpose),
            Err(refusal) if refusal.rejection == Rejection::TopicAlreadyExists => {}
            Err(refusal) => {
                warn!(
                    topic = self.name,
                    replication_factor = self.replication_factor,
                    reason = refusal.message,
                    "{} do not work: their topic cannot be created; start more brokers or lower {}",
                    self.purpose,
                    self.replication_key
                );
                return Err(refusal);
            }
        }
        let partitions = usize::try_from(self.partitions).unwrap_or(0);
        wait_for_leaders(context, self.name, partitions, deadline).await.map(|_| ())
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
    fn keys_fall_into_the_partitions_that_java_computes() {
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
