//! CreateTopics (19), versions 0-7. Any broker serves it: each is shown to clients as able (coordination.md, 8).
//!
//! - v1 `validate_only` and messages; v4 −1 means the broker's default; v5 answers with partitions, replicas and
//!   configs; v7 with the topic id.
//! - A topic that stands twice in a request is refused as a whole.
//! - With a timeout of 0 or less the topics are created and answered with error 7, as Kafka does.

use std::collections::BTreeMap;

use futures::future::join_all;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::info;
use uuid::Uuid;
use zurau_common::config::{BrokerConfig, describe_topic};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::from_wire_ids;

use super::{Call, Starting, deadline_after};
use crate::context::BrokerContext;
use crate::topic_creation::{TOPICS_IN_FLIGHT, random_seed, wait_for_leaders, write_topic};
use crate::topic_plan::{Refusal, TopicPlan, WantedTopic, plan_topic};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: CreateTopicsRequest| async move {
        let version = call.version();
        let context = &call.context;
        let deadline = deadline_after(request.timeout_ms);
        let mut count_of: BTreeMap<TopicName, usize> = BTreeMap::new();
        for topic in &request.topics {
            *count_of.entry(topic.name.clone()).or_default() += 1;
        }
        let mut first_of: Vec<&CreatableTopic> = Vec::new();
        for topic in &request.topics {
            if !first_of.iter().any(|seen| seen.name == topic.name) {
                first_of.push(topic);
            }
        }
        let how = How {
            validate_only: request.validate_only,
            deadline,
            writing: &Semaphore::new(TOPICS_IN_FLIGHT),
        };
        let creations =
            first_of.into_iter().map(|topic| create_one(context, topic, count_of[&topic.name], how));
        let created: Vec<(TopicName, Result<Created, Refusal>)> = join_all(creations).await;
        let config = context.topic_configs.broker_config();
        let results = created.into_iter().map(|(name, outcome)| match outcome {
            Ok(created) => accepted(name, &created, &config, version),
            Err(refusal) => refused(name, refusal),
        });
        CreateTopicsResponse::default().with_topics(results.collect())
    })
}

/// A topic that was created, or would be.
struct Created {
    plan: TopicPlan,
    /// Nil if it was only judged.
    topic_id: Uuid,
}

/// What holds for all topics of a request.
#[derive(Clone, Copy)]
struct How<'a> {
    validate_only: bool,
    deadline: Option<Instant>,
    /// Permits to write a topic.
    writing: &'a Semaphore,
}

async fn create_one(
    context: &BrokerContext,
    topic: &CreatableTopic,
    count: usize,
    how: How<'_>,
) -> (TopicName, Result<Created, Refusal>) {
    let name = topic.name.clone();
    if 1 < count {
        let refusal = Refusal::new(Rejection::InvalidRequest, "the topic stands twice in the request");
        return (name, Err(refusal));
    }
    let outcome = create(context, &wanted(topic), how).await;
    (name, outcome)
}

async fn create(context: &BrokerContext, wanted: &WantedTopic, how: How<'_>) -> Result<Created, Refusal> {
    let plan =
        plan_topic(wanted, &context.topic_configs.broker_config(), &context.metadata.image(), random_seed())?;
    if how.validate_only {
        return Ok(Created { plan, topic_id: Uuid::nil() });
    }
    let permit = how.writing.acquire().await;
    write_topic(context, &plan).await?;
    drop(permit);
    info!(topic = %plan.name, partitions = plan.assignments.len(), "topic written for a client");
    let Some(deadline) = how.deadline else {
        return Err(Refusal::new(
            Rejection::RequestTimedOut,
            "the topic is written; no time was given to wait",
        ));
    };
    let topic_id = wait_for_leaders(context, &plan.name, plan.assignments.len(), deadline).await?;
    Ok(Created { plan, topic_id: topic_id.0 })
}

fn wanted(topic: &CreatableTopic) -> WantedTopic {
    WantedTopic {
        name: topic.name.to_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignments: topic
            .assignments
            .iter()
            .map(|assignment| (assignment.partition_index, from_wire_ids(&assignment.broker_ids)))
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|config| (config.name.to_string(), config.value.as_ref().map(ToString::to_string)))
            .collect(),
    }
}

fn accepted(name: TopicName, created: &Created, config: &BrokerConfig, version: i16) -> CreatableTopicResult {
    // The codec's default would be an empty message; Kafka sends none.
    let result = CreatableTopicResult::default().with_name(name).with_error_message(None);
    if version < 5 {
        return result.with_configs(None);
    }
    let replicas = created.plan.assignments.first().map_or(0, Vec::len);
    let partitions = created.plan.assignments.len();
    let configs = describe_topic(config, &created.plan.configs).into_iter().map(|entry| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(entry.name))
            .with_value(entry.value.map(StrBytes::from_string))
            .with_read_only(entry.read_only)
            .with_config_source(entry.source.wire_code())
            .with_is_sensitive(entry.sensitive)
    });
    result
        .with_topic_id(if 7 <= version { created.topic_id } else { Uuid::nil() })
        .with_num_partitions(i32::try_from(partitions).unwrap_or(i32::MAX))
        .with_replication_factor(i16::try_from(replicas).unwrap_or(i16::MAX))
        .with_configs(Some(configs.collect()))
}

fn refused(name: TopicName, refusal: Refusal) -> CreatableTopicResult {
    CreatableTopicResult::default()
        .with_name(name)
        .with_error_code(refusal.rejection.code())
        .with_error_message(Some(StrBytes::from_string(refusal.message)))
        .with_configs(Some(Vec::new()))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopicConfig};
    use zurau_common::id::BrokerId;
    use zurau_common::wire::control::{to_wire_ids, to_wire_topic};

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn created() -> Created {
        let plan = TopicPlan {
            name: "t".into(),
            assignments: vec![vec![BrokerId(1), BrokerId(2)]; 3],
            configs: BTreeMap::from([("retention.ms".to_owned(), "7".to_owned())]),
        };
        Created { plan, topic_id: Uuid::from_u128(9) }
    }

    #[test]
    fn every_version_encodes() {
        let config = BrokerConfig::from_pairs([("broker.id", "1")]).unwrap();
        assert_every_version_encodes::<CreateTopicsRequest>(|version| {
            let refusal = Refusal::new(Rejection::InvalidPartitions, "why");
            let topics = vec![
                accepted(to_wire_topic("a"), &created(), &config, version),
                refused(to_wire_topic("b"), refusal),
            ];
            CreateTopicsResponse::default().with_topics(topics)
        });
        let newest = accepted(to_wire_topic("a"), &created(), &config, 7);
        assert_eq!((newest.num_partitions, newest.replication_factor), (3, 2));
        let configs = newest.configs.unwrap();
        let retention = configs.iter().find(|config| config.name.as_str() == "retention.ms").unwrap();
        assert_eq!((retention.value.as_deref(), retention.config_source), (Some("7"), 1));
    }

    #[test]
    fn requests_are_read_whole() {
        let assignment = CreatableReplicaAssignment::default()
            .with_partition_index(3)
            .with_broker_ids(to_wire_ids(&[BrokerId(2)]));
        let config = CreatableTopicConfig::default().with_name("k".into()).with_value(None);
        let topic = CreatableTopic::default()
            .with_name(to_wire_topic("t"))
            .with_num_partitions(-1)
            .with_replication_factor(-1)
            .with_assignments(vec![assignment])
            .with_configs(vec![config]);
        let expected = WantedTopic {
            assignments: vec![(3, vec![BrokerId(2)])],
            configs: vec![("k".to_owned(), None)],
            ..WantedTopic::with_defaults("t")
        };
        assert_eq!(wanted(&topic), expected);
    }
}
