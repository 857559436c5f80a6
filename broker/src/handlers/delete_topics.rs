//! DeleteTopics (20), versions 0-6: marks topics for deletion and waits until they are gone.
//!
//! - v0-5 names; v6 names or ids, and the answer has the id only if the request had it. v5 adds messages.
//! - `delete.topic.enable=false`: error 73, before v3 (which cannot know it) error 42.
//! - A topic that stands twice, or both by name and id, is refused as a whole.

use futures::future::join_all;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::info;
use uuid::Uuid;
use zurau_common::id::{TopicId, TopicName};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;

use super::{Call, Starting, deadline_after};
use crate::context::BrokerContext;
use crate::topic_creation::{TOPICS_IN_FLIGHT, TopicKey, find_topic, request_deletion, wait_for_deletion};
use crate::topic_plan::Refusal;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DeleteTopicsRequest| async move {
        let keys = keys(&request, call.version());
        if !call.context.config.delete_topic_enable {
            let rejection =
                if call.version() < 3 { Rejection::InvalidRequest } else { Rejection::TopicDeletionDisabled };
            let refusals = keys.iter().map(|key| match key {
                Ok(key) => refused(key, Refusal::new(rejection, rejection.to_string()), call.version()),
                Err(bad) => bad.clone(),
            });
            return DeleteTopicsResponse::default().with_responses(refusals.collect());
        }
        let deadline = deadline_after(request.timeout_ms);
        let context = &call.context;
        let version = call.version();
        let marking = &Semaphore::new(TOPICS_IN_FLIGHT);
        let deletions = keys.iter().map(|key| async move {
            match key {
                Ok(key) => delete(context, key, (marking, deadline), version).await,
                Err(bad) => bad.clone(),
            }
        });
        let results = join_all(deletions).await;
        DeleteTopicsResponse::default().with_responses(results)
    })
}

/// `marking`: permits to look for a topic and to mark it.
async fn delete(
    context: &BrokerContext,
    key: &TopicKey,
    (marking, deadline): (&Semaphore, Option<Instant>),
    version: i16,
) -> DeletableTopicResult {
    let permit = marking.acquire().await;
    let (name, id) = match find_topic(context, key).await {
        Ok(found) => found,
        Err(refusal) => return refused(key, refusal, version),
    };
    let outcome = async {
        request_deletion(context, &name, id).await?;
        drop(permit);
        info!(topic = %name, "topic marked for deletion for a client");
        let deadline = deadline
            .ok_or_else(|| Refusal::new(Rejection::RequestTimedOut, "marked; no time was given to wait"))?;
        wait_for_deletion(context, &name, id, deadline).await
    };
    let result = match outcome.await {
        Ok(()) => DeletableTopicResult::default(),
        Err(refusal) => failure(refusal, version),
    };
    let asked_id = match key {
        TopicKey::Name(_) => None,
        TopicKey::Id(id) => Some(*id),
    };
    named(result, Some(&name), asked_id, version)
}

fn refused(key: &TopicKey, refusal: Refusal, version: i16) -> DeletableTopicResult {
    let result = failure(refusal, version);
    match key {
        TopicKey::Name(name) => named(result, Some(name), None, version),
        TopicKey::Id(id) => named(result, None, Some(*id), version),
    }
}

fn failure(refusal: Refusal, version: i16) -> DeletableTopicResult {
    let message = (5 <= version).then(|| StrBytes::from_string(refusal.message));
    DeletableTopicResult::default().with_error_code(refusal.rejection.code()).with_error_message(message)
}

fn named(
    result: DeletableTopicResult,
    name: Option<&TopicName>,
    id: Option<TopicId>,
    version: i16,
) -> DeletableTopicResult {
    let id = id.filter(|_| 6 <= version).map_or_else(Uuid::nil, |id| id.0);
    result.with_name(name.map(|name| to_wire_topic(name))).with_topic_id(id)
}

/// What the request names; `Err` answers an entry that names nothing, twice or in two ways.
fn keys(request: &DeleteTopicsRequest, version: i16) -> Vec<Result<TopicKey, DeletableTopicResult>> {
    let invalid = |name: Option<&str>, id: Uuid, message: &str| {
        let refusal = Refusal::new(Rejection::InvalidRequest, message);
        named(failure(refusal, version), name.map(TopicName::from).as_ref(), Some(TopicId(id)), version)
    };
    if version < 6 {
        let mut seen = std::collections::BTreeSet::new();
        let names: Vec<&str> =
            request.topic_names.iter().map(|name| name.as_str()).filter(|name| seen.insert(*name)).collect();
        return names.into_iter().map(|name| Ok(TopicKey::Name(name.into()))).collect();
    }
    let same = |left: &(Option<&str>, Uuid)| {
        request
            .topics
            .iter()
            .filter(|topic| (topic.name.as_ref().map(|name| name.as_str()), topic.topic_id) == *left)
            .count()
    };
    let entries = request.topics.iter().map(|topic| {
        let name = topic.name.as_ref().map(|name| name.as_str());
        match (name, topic.topic_id.is_nil()) {
            _ if 1 < same(&(name, topic.topic_id)) => {
                Err(invalid(name, topic.topic_id, "the topic stands twice in the request"))
            }
            (Some(name), true) => Ok(TopicKey::Name(name.into())),
            (None, false) => Ok(TopicKey::Id(TopicId(topic.topic_id))),
            _ => Err(invalid(name, topic.topic_id, "name a topic either by name or by id")),
        }
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_topics_request::DeleteTopicState;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn state(name: Option<&str>, id: u128) -> DeleteTopicState {
        DeleteTopicState::default().with_name(name.map(to_wire_topic)).with_topic_id(Uuid::from_u128(id))
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<DeleteTopicsRequest>(|version| {
            let refusal = || Refusal::new(Rejection::UnknownTopicOrPartition, "why");
            let mut results = vec![refused(&TopicKey::Name("t".into()), refusal(), version)];
            if 6 <= version {
                results.push(refused(&TopicKey::Id(TopicId(Uuid::from_u128(1))), refusal(), version));
            }
            DeleteTopicsResponse::default().with_responses(results)
        });
    }

    #[test]
    fn each_entry_names_one_topic_in_one_way() {
        let request = DeleteTopicsRequest::default().with_topics(vec![
            state(Some("a"), 0),
            state(None, 1),
            state(Some("b"), 2),
            state(None, 0),
            state(Some("c"), 0),
            state(Some("c"), 0),
        ]);
        let codes: Vec<i16> = keys(&request, 6)
            .iter()
            .map(|key| key.as_ref().err().map_or(0, |result| result.error_code))
            .collect();
        assert_eq!(codes, [0, 0, 42, 42, 42, 42]);
        let old =
            DeleteTopicsRequest::default().with_topic_names(vec![to_wire_topic("a"), to_wire_topic("a")]);
        assert_eq!(keys(&old, 1).len(), 1);
    }
}
