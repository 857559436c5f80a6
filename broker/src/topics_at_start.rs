//! Creates the topics that `KAFKA_CREATE_TOPICS` names, once there are enough brokers for their replicas. Every broker of
//! a cluster may be told the same ones: who writes the topic's node first creates it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use zurau_common::config::TopicToCreate;
use zurau_common::rejection::Rejection;

use crate::context::BrokerContext;
use crate::topic_creation::{random_seed, write_topic};
use crate::topic_plan::{Refusal, WantedTopic, plan_topic};

const RETRY_PAUSE: Duration = Duration::from_millis(500);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Ends when every topic exists or was found to be impossible.
pub(crate) async fn create_topics_at_start(context: Arc<BrokerContext>) {
    for topic in &context.config.settings.create_topics {
        create(&context, topic).await;
    }
}

async fn create(context: &BrokerContext, topic: &TopicToCreate) {
    let wanted = wanted(topic);
    let mut logged = Instant::now();
    loop {
        // Without a controller's word no topic is known to exist, and no broker to live.
        context.metadata.wait_until(|image| (!image.brokers.is_empty()).then_some(())).await;
        let refusal = match write(context, &wanted).await {
            Ok(()) => {
                info!(topic = topic.name, "created, because KAFKA_CREATE_TOPICS names it");
                return;
            }
            Err(refusal) => refusal,
        };
        match refusal.rejection {
            Rejection::TopicAlreadyExists => {
                info!(topic = topic.name, "of KAFKA_CREATE_TOPICS exists");
                return;
            }
            // More brokers may come, and ZooKeeper may return.
            Rejection::InvalidReplicationFactor | Rejection::RequestTimedOut => {
                if LOG_EVERY <= logged.elapsed() {
                    logged = Instant::now();
                    warn!(
                        topic = topic.name,
                        reason = refusal.message,
                        "of KAFKA_CREATE_TOPICS is not created yet"
                    );
                }
            }
            _ => {
                error!(
                    topic = topic.name,
                    reason = refusal.message,
                    "of KAFKA_CREATE_TOPICS cannot be created"
                );
                return;
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}

async fn write(context: &BrokerContext, wanted: &WantedTopic) -> Result<(), Refusal> {
    let config = context.topic_configs.broker_config();
    let plan = plan_topic(wanted, &config, &context.metadata.image(), random_seed())?;
    write_topic(context, &plan).await
}

fn wanted(topic: &TopicToCreate) -> WantedTopic {
    let policy = topic.cleanup_policy.clone().map(|policy| ("cleanup.policy".to_owned(), Some(policy)));
    WantedTopic {
        name: topic.name.clone(),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        assignments: Vec::new(),
        configs: policy.into_iter().collect(),
    }
}
