//! ConsumerGroupHeartbeat (68), versions 0-1: a member of the consumer protocol joins, lives, reports and leaves, and
//! learns what it may read (KIP-848).
//!
//! - v1: clients choose the ids of their members, and may subscribe to a regular expression.

use kafka_protocol::messages::ConsumerGroupHeartbeatResponse as Fields;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions as WireOwned;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use uuid::Uuid;
use zurau_common::id::TopicId;
use zurau_common::rejection::Rejection;
use zurau_common::wire::consumer_group::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};

use super::group_words::{optional_text, text, wire};
use super::{Call, Starting};
use crate::groups::{ConsumerHeartbeatRequest, ConsumerRefusal, HeartbeatOutcome, Partitions};

/// What Kafka's encoding of stored records can carry.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ConsumerGroupHeartbeatRequest| async move {
        let client_id = optional_text(call.frame.client_id.as_ref()).unwrap_or_default();
        let client_host = format!("/{}", call.connection.peer_address.ip()).into();
        let asked = ConsumerHeartbeatRequest { client_id, client_host, ..wanted(&request, call.version()) };
        let outcome = match problem(&request, call.version()) {
            Some(message) => Err(ConsumerRefusal::new(Rejection::InvalidRequest, message)),
            None => {
                let group = text(&request.fields.group_id);
                let answer = call.context.groups.ask_to_write(&call.context, &group, asked).await;
                answer.unwrap_or_else(|rejection| Err(rejection.into()))
            }
        };
        respond(&outcome)
    })
}

/// What no group could make sense of.
fn problem(request: &ConsumerGroupHeartbeatRequest, version: i16) -> Option<&'static str> {
    let fields = &request.fields;
    let names = fields.subscribed_topic_names.iter().flatten().map(|name| name.len());
    let texts =
        [&fields.instance_id, &fields.rack_id, &fields.server_assignor, &request.subscribed_topic_regex];
    let longest = texts.into_iter().flatten().map(|text| text.len()).chain(names).max().unwrap_or(0);
    if STRING_BYTES_MAX < longest.max(fields.group_id.len()).max(fields.member_id.len()) {
        return Some("a text is longer than 32767 bytes");
    }
    if fields.group_id.is_empty() {
        return Some("GroupId can't be empty");
    }
    if fields.instance_id.as_ref().is_some_and(|id| id.is_empty()) {
        return Some("InstanceId can't be empty");
    }
    if fields.rack_id.as_ref().is_some_and(|id| id.is_empty()) {
        return Some("RackId can't be empty");
    }
    if fields.member_id.is_empty() && (1 <= version || fields.member_epoch != 0) {
        return Some("MemberId can't be empty");
    }
    match fields.member_epoch {
        1.. | -1 => None,
        -2 if fields.instance_id.is_none() => {
            Some("InstanceId can't be null when a static member leaves for a while")
        }
        -2 => None,
        0 => problem_of_join(request),
        _ => Some("MemberEpoch is invalid"),
    }
}

fn problem_of_join(request: &ConsumerGroupHeartbeatRequest) -> Option<&'static str> {
    let fields = &request.fields;
    let subscribes = fields.subscribed_topic_names.as_ref().is_some_and(|names| !names.is_empty())
        || request.subscribed_topic_regex.as_ref().is_some_and(|regex| !regex.is_empty());
    if fields.rebalance_timeout_ms == -1 {
        Some("RebalanceTimeoutMs must be provided in the first request")
    } else if fields.topic_partitions.as_ref().is_none_or(|owned| !owned.is_empty()) {
        Some("TopicPartitions must be empty when joining")
    } else if !subscribes {
        Some("SubscribedTopicNames or SubscribedTopicRegex must be set in the first request")
    } else {
        None
    }
}

fn wanted(request: &ConsumerGroupHeartbeatRequest, version: i16) -> ConsumerHeartbeatRequest {
    let fields = &request.fields;
    let chooses_none = version == 0 && fields.member_id.is_empty();
    ConsumerHeartbeatRequest {
        member_id: text(&fields.member_id),
        epoch: fields.member_epoch,
        instance_id: optional_text(fields.instance_id.as_ref()),
        rack_id: optional_text(fields.rack_id.as_ref()),
        client_id: "".into(),
        client_host: "".into(),
        rebalance_timeout_ms: Some(fields.rebalance_timeout_ms).filter(|timeout_ms| *timeout_ms != -1),
        topics: fields
            .subscribed_topic_names
            .as_ref()
            .map(|names| names.iter().map(|name| text(name)).collect()),
        regex: optional_text(request.subscribed_topic_regex.as_ref()),
        assignor: optional_text(fields.server_assignor.as_ref()),
        owned: fields.topic_partitions.as_ref().map(|owned| owned.iter().flat_map(partitions).collect()),
        fresh_id: chooses_none.then(|| Uuid::new_v4().to_string().into()),
    }
}

fn partitions(owned: &WireOwned) -> impl Iterator<Item = (TopicId, i32)> + '_ {
    owned.partitions.iter().map(|partition| (TopicId(owned.topic_id), *partition))
}

fn respond(outcome: &HeartbeatOutcome) -> ConsumerGroupHeartbeatResponse {
    let fields = match outcome {
        Ok(answer) => Fields::default()
            .with_member_id(Some(wire(&answer.member_id)))
            .with_member_epoch(answer.epoch)
            .with_heartbeat_interval_ms(answer.interval_ms)
            .with_assignment(answer.assignment.as_ref().map(assignment)),
        Err(refusal) => Fields::default()
            .with_error_code(refusal.rejection.code())
            .with_error_message(Some(wire(&refusal.message))),
    };
    ConsumerGroupHeartbeatResponse(fields)
}

fn assignment(partitions: &Partitions) -> Assignment {
    let topics = partitions.topics().map(|(topic, numbers)| {
        TopicPartitions::default().with_topic_id(topic.0).with_partitions(numbers.iter().copied().collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::ConsumerGroupHeartbeatRequest as RequestFields;
    use kafka_protocol::messages::{GroupId, TopicName};

    use super::*;
    use crate::groups::ConsumerHeartbeatAnswer;
    use crate::handlers::tests::assert_every_version_encodes;

    fn join() -> ConsumerGroupHeartbeatRequest {
        let fields = RequestFields::default()
            .with_group_id(GroupId(wire("g")))
            .with_member_id(wire("m"))
            .with_rebalance_timeout_ms(300)
            .with_subscribed_topic_names(Some(vec![TopicName(wire("t"))]))
            .with_topic_partitions(Some(Vec::new()));
        ConsumerGroupHeartbeatRequest { fields, subscribed_topic_regex: None }
    }

    fn with(change: impl FnOnce(RequestFields) -> RequestFields) -> ConsumerGroupHeartbeatRequest {
        let whole = join();
        ConsumerGroupHeartbeatRequest { fields: change(whole.fields), ..whole }
    }

    #[test]
    fn every_version_encodes() {
        let answer = ConsumerHeartbeatAnswer {
            member_id: "m".into(),
            epoch: 3,
            interval_ms: 5_000,
            assignment: Some(
                [(TopicId(Uuid::from_u128(7)), 0), (TopicId(Uuid::from_u128(7)), 2)].into_iter().collect(),
            ),
        };
        let response = respond(&Ok(answer));
        let assigned = &response.0.assignment.as_ref().unwrap().topic_partitions;
        assert_eq!((assigned.len(), &assigned[0].partitions[..]), (1, &[0, 2][..]));
        assert_every_version_encodes::<ConsumerGroupHeartbeatRequest>(|_| response.clone());
        let refused = respond(&Err(ConsumerRefusal::new(Rejection::FencedMemberEpoch, "no")));
        assert_eq!((refused.0.error_code, refused.0.error_message.as_deref()), (110, Some("no")));
        assert_every_version_encodes::<ConsumerGroupHeartbeatRequest>(|_| refused.clone());
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let rows = [
            (join(), None),
            (with(|fields| fields.with_group_id(GroupId(wire("")))), Some("GroupId")),
            (with(|fields| fields.with_instance_id(Some(wire("")))), Some("InstanceId")),
            (with(|fields| fields.with_rack_id(Some(wire("")))), Some("RackId")),
            (with(|fields| fields.with_member_id(wire(""))), Some("MemberId")),
            (with(|fields| fields.with_member_id(wire(&"x".repeat(40_000)))), Some("longer")),
            (with(|fields| fields.with_rebalance_timeout_ms(-1)), Some("RebalanceTimeoutMs")),
            (with(|fields| fields.with_topic_partitions(None)), Some("TopicPartitions")),
            (
                with(|fields| fields.with_subscribed_topic_names(Some(Vec::new()))),
                Some("SubscribedTopicNames"),
            ),
            (with(|fields| fields.with_subscribed_topic_names(None)), Some("SubscribedTopicNames")),
            (with(|fields| fields.with_member_epoch(-2)), Some("InstanceId")),
            (with(|fields| fields.with_member_epoch(-3)), Some("MemberEpoch")),
            (with(|fields| fields.with_member_epoch(-1).with_topic_partitions(None)), None),
        ];
        for (request, expected) in rows {
            let found = problem(&request, 1);
            assert_eq!(found.is_some(), expected.is_some(), "{request:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{found:?}");
        }
        let by_regex = ConsumerGroupHeartbeatRequest {
            subscribed_topic_regex: Some(wire("^t")),
            ..with(|fields| fields.with_subscribed_topic_names(Some(Vec::new())))
        };
        assert_eq!(problem(&by_regex, 1), None);
    }

    #[test]
    fn only_version_0_lets_the_coordinator_choose_the_id() {
        let nameless = with(|fields| fields.with_member_id(wire("")));
        assert_eq!(problem(&nameless, 0), None);
        assert!(wanted(&nameless, 0).fresh_id.is_some());
        assert_eq!(wanted(&join(), 1).fresh_id, None);
        assert_eq!(
            (wanted(&join(), 1).rebalance_timeout_ms, wanted(&join(), 1).is_full()),
            (Some(300), true)
        );
    }
}
