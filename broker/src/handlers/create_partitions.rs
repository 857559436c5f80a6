//! CreatePartitions (37), versions 0-3: adds partitions to topics.
//!
//! - Answers when the new partitions have leaders, or with error 7 after the timeout.
//! - v2 is flexible; v3 may be throttled, which never happens here.

use futures::StreamExt as _;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use tokio::time::Instant;
use tracing::info;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::from_wire_ids;

use super::{Call, Starting, deadline_after};
use crate::context::BrokerContext;
use crate::topic_creation::{add_partitions, wait_for_leaders};
use crate::topic_plan::{Refusal, WantedPartitions};

/// Topics of one request that grow at the same time.
const TOPICS_IN_FLIGHT: usize = 8;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: CreatePartitionsRequest| async move {
        let deadline = deadline_after(request.timeout_ms);
        let context = &call.context;
        let mut distinct: Vec<&CreatePartitionsTopic> = Vec::new();
        for topic in &request.topics {
            if !distinct.iter().any(|seen| seen.name == topic.name) {
                distinct.push(topic);
            }
        }
        let validate_only = request.validate_only;
        let additions: Vec<_> = distinct
            .into_iter()
            .map(|topic| {
                let twice = 1 < request.topics.iter().filter(|other| other.name == topic.name).count();
                async move {
                    let outcome = if twice {
                        Err(Refusal::new(Rejection::InvalidRequest, "the topic stands twice in the request"))
                    } else {
                        add(context, &wanted(topic), validate_only, deadline).await
                    };
                    result(topic.name.clone(), outcome)
                }
            })
            .collect();
        let results = futures::stream::iter(additions).buffered(TOPICS_IN_FLIGHT).collect().await;
        CreatePartitionsResponse::default().with_results(results)
    })
}

async fn add(
    context: &BrokerContext,
    wanted: &WantedPartitions,
    validate_only: bool,
    deadline: Option<Instant>,
) -> Result<(), Refusal> {
    let total = add_partitions(context, wanted, validate_only).await?;
    if validate_only {
        return Ok(());
    }
    info!(topic = %wanted.name, partitions = total, "partitions added for a client");
    let deadline = deadline
        .ok_or_else(|| Refusal::new(Rejection::RequestTimedOut, "written; no time was given to wait"))?;
    wait_for_leaders(context, &wanted.name, total, deadline).await.map(|_| ())
}

fn wanted(topic: &CreatePartitionsTopic) -> WantedPartitions {
    let assignments = topic.assignments.as_ref().map(|assignments| {
        assignments.iter().map(|assignment| from_wire_ids(&assignment.broker_ids)).collect()
    });
    WantedPartitions { name: topic.name.as_str().into(), count: topic.count, assignments }
}

fn result(name: TopicName, outcome: Result<(), Refusal>) -> CreatePartitionsTopicResult {
    let result = CreatePartitionsTopicResult::default().with_name(name);
    match outcome {
        Ok(()) => result,
        Err(refusal) => result
            .with_error_code(refusal.rejection.code())
            .with_error_message(Some(StrBytes::from_string(refusal.message))),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;
    use zurau_common::id::BrokerId;
    use zurau_common::wire::control::{to_wire_ids, to_wire_topic};

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<CreatePartitionsRequest>(|_| {
            let refusal = Refusal::new(Rejection::InvalidPartitions, "why");
            let results = vec![result(to_wire_topic("a"), Ok(())), result(to_wire_topic("b"), Err(refusal))];
            CreatePartitionsResponse::default().with_results(results)
        });
    }

    #[test]
    fn requests_are_read_whole() {
        let assignment = CreatePartitionsAssignment::default().with_broker_ids(to_wire_ids(&[BrokerId(4)]));
        let topic = CreatePartitionsTopic::default()
            .with_name(to_wire_topic("t"))
            .with_count(5)
            .with_assignments(Some(vec![assignment]));
        let read = wanted(&topic);
        assert_eq!((read.count, read.assignments), (5, Some(vec![vec![BrokerId(4)]])));
    }
}
