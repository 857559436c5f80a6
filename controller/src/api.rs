//! The controller's own listener: AlterPartition (AlterIsr), ControlledShutdown and ApiVersions, all for brokers.
//! Clients never talk to the controller. While this process is not the active controller every request is answered
//! NOT_CONTROLLER, also those that were waiting when it left office (CTL-18).

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use kafka_protocol::messages::api_versions_response::{ApiVersion as SupportedVersion, ApiVersionsResponse};
use kafka_protocol::messages::controlled_shutdown_response::RemainingPartition;
use kafka_protocol::messages::{
    AlterPartitionRequest, AlterPartitionResponse, ApiKey, ApiVersionsRequest, BrokerId as WireBrokerId,
    ControlledShutdownRequest, ControlledShutdownResponse, alter_partition_request, alter_partition_response,
};
use kafka_protocol::protocol::Encodable;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{
    TAG_ELR, TaggedFields, from_wire_ids, get_ids, put_ids, to_wire_ids, to_wire_topic,
};
use zurau_common::wire::frame::{RequestFrame, decode_request_body, encode_response};
use zurau_common::wire::server::{Answer, Connection, RequestHandler};

use crate::action::StoredIsrAnswer;
use crate::event::{Proposal, ProposalTopic};
use crate::inbox::Queued;
use crate::metrics::InOffice;

/// What this listener answers; ApiVersions is derived from it.
const APIS: [(ApiKey, i16, i16); 3] =
    [(ApiKey::ControlledShutdown, 0, 3), (ApiKey::ApiVersions, 0, 4), (ApiKey::AlterPartition, 0, 3)];

/// Requests that wait for the active controller; one more is answered NOT_CONTROLLER and comes again.
pub(crate) const WAITING_MAX: usize = 1024;

pub(crate) type AlterIsrOutcome = Result<Vec<Result<StoredIsrAnswer, Rejection>>, Rejection>;
pub(crate) type ShutdownOutcome = Result<Vec<TopicPartition>, Rejection>;

/// A broker's request on its way to the machine. Dropping `reply` answers NOT_CONTROLLER.
#[derive(Debug)]
pub(crate) enum BrokerRequest {
    AlterIsr {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        proposals: Vec<Proposal>,
        reply: oneshot::Sender<AlterIsrOutcome>,
    },
    ControlledShutdown {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        reply: oneshot::Sender<ShutdownOutcome>,
    },
    /// For `/metrics`; no broker asks it.
    Observe { reply: oneshot::Sender<InOffice> },
}

/// Answers the controller's listener. `open` and `close` follow the process in and out of office.
#[derive(Debug, Default)]
pub(crate) struct Api {
    active: Mutex<Option<mpsc::Sender<Queued<BrokerRequest>>>>,
}

impl Api {
    pub(crate) fn open(&self, requests: mpsc::Sender<Queued<BrokerRequest>>) {
        *self.active.lock() = Some(requests);
    }

    pub(crate) fn close(&self) {
        self.active.lock().take();
    }

    /// What the loop in office knows; an error when this process is not in office.
    pub(crate) fn observe(&self) -> oneshot::Receiver<InOffice> {
        let (reply, observed) = oneshot::channel();
        if let Some(active) = &*self.active.lock() {
            // A full queue drops the question: then nothing is told.
            let _ = active.try_send(Queued::now(BrokerRequest::Observe { reply }));
        }
        observed
    }

    /// Hands a request over; what comes of it when nobody takes it: NOT_CONTROLLER.
    fn submit<T: Send + 'static>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Rejection>>) -> BrokerRequest,
    ) -> BoxFuture<'static, Result<T, Rejection>> {
        let (reply, outcome) = oneshot::channel();
        if let Some(active) = &*self.active.lock() {
            // A full queue drops the request, and with it `reply`.
            let _ = active.try_send(Queued::now(request(reply)));
        }
        outcome.map(|outcome| outcome.unwrap_or(Err(Rejection::NotController))).boxed()
    }

    fn alter_partition(&self, frame: &RequestFrame) -> anyhow::Result<Answer> {
        let request: AlterPartitionRequest = decode_request_body(frame)?;
        let version = frame.api_version;
        let proposals = proposals(&request, version)?;
        let outcome = self.submit(|reply| BrokerRequest::AlterIsr {
            broker: BrokerId(request.broker_id.0),
            broker_epoch: BrokerEpoch(request.broker_epoch),
            proposals,
            reply,
        });
        let respond = respond_to(frame);
        let answer = async move { respond(&alter_partition_response(&request, version, &outcome.await)) };
        Ok(Answer::Later(answer.map(|bytes| bytes.map(Into::into)).boxed()))
    }

    fn controlled_shutdown(&self, frame: &RequestFrame) -> anyhow::Result<Answer> {
        let request: ControlledShutdownRequest = decode_request_body(frame)?;
        let outcome = self.submit(|reply| BrokerRequest::ControlledShutdown {
            broker: BrokerId(request.broker_id.0),
            broker_epoch: BrokerEpoch(request.broker_epoch),
            reply,
        });
        let respond = respond_to(frame);
        let answer = async move { respond(&controlled_shutdown_response(&outcome.await)) };
        Ok(Answer::Later(answer.map(|bytes| bytes.map(Into::into)).boxed()))
    }

    fn answer(&self, frame: &RequestFrame) -> anyhow::Result<Answer> {
        let served = APIS.iter().find(|(key, ..)| *key as i16 == frame.api_key);
        let in_range = served.is_some_and(|(_, min, max)| (*min..=*max).contains(&frame.api_version));
        match served.map(|(key, ..)| *key) {
            Some(ApiKey::ApiVersions) if !in_range => {
                // Whatever the version, this answer has the form of version 0.
                let response = api_versions(Some(Rejection::UnsupportedVersion));
                let bytes = encode_response(frame.api_key, 0, frame.correlation_id, &response)?;
                Ok(Answer::Now(bytes.into()))
            }
            Some(ApiKey::ApiVersions) => {
                let _: ApiVersionsRequest = decode_request_body(frame)?;
                Ok(respond_to(frame)(&api_versions(None))
                    .map_or(Answer::Nothing, |bytes| Answer::Now(bytes.into())))
            }
            Some(ApiKey::AlterPartition) if in_range => self.alter_partition(frame),
            Some(ApiKey::ControlledShutdown) if in_range => self.controlled_shutdown(frame),
            _ => anyhow::bail!(
                "{} is not served by the controller; clients connect to brokers (bootstrap.servers)",
                frame.api()
            ),
        }
    }
}

impl RequestHandler for Api {
    fn start<'a>(&'a self, _connection: &'a Connection, request: RequestFrame) -> BoxFuture<'a, Answer> {
        let answer = self.answer(&request).unwrap_or_else(|error| Answer::Close(error.to_string()));
        std::future::ready(answer).boxed()
    }
}

/// Encodes answers to a request. An answer that cannot be encoded is our bug; the request then gets none.
fn respond_to<R: Encodable>(frame: &RequestFrame) -> impl FnOnce(&R) -> Option<Bytes> + Send + use<R> {
    let (api_key, api_version, correlation_id) = (frame.api_key, frame.api_version, frame.correlation_id);
    move |response| match encode_response(api_key, api_version, correlation_id, response) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            tracing::error!("{error}");
            None
        }
    }
}

fn api_versions(rejection: Option<Rejection>) -> ApiVersionsResponse {
    let keys = APIS.iter().map(|(key, min, max)| {
        SupportedVersion::default().with_api_key(*key as i16).with_min_version(*min).with_max_version(*max)
    });
    ApiVersionsResponse::default()
        .with_error_code(rejection.map_or(0, Rejection::code))
        .with_api_keys(keys.collect())
}

fn proposals(request: &AlterPartitionRequest, version: i16) -> anyhow::Result<Vec<Proposal>> {
    let mut proposals = Vec::new();
    for topic in &request.topics {
        let topic_of = || {
            if version >= 2 {
                ProposalTopic::Id(TopicId(topic.topic_id))
            } else {
                ProposalTopic::Name(topic.topic_name.as_str().into())
            }
        };
        for partition in &topic.partitions {
            proposals.push(proposal(topic_of(), partition, version)?);
        }
    }
    Ok(proposals)
}

fn proposal(
    topic: ProposalTopic,
    partition: &alter_partition_request::PartitionData,
    version: i16,
) -> anyhow::Result<Proposal> {
    let (isr, broker_epochs) = if version >= 3 {
        let members = &partition.new_isr_with_epochs;
        let epoch = |epoch: i64| (epoch >= 0).then_some(BrokerEpoch(epoch));
        let epochs = members.iter().map(|member| epoch(member.broker_epoch)).collect();
        (members.iter().map(|member| BrokerId(member.broker_id.0)).collect(), epochs)
    } else {
        (from_wire_ids(&partition.new_isr), vec![None; partition.new_isr.len()])
    };
    Ok(Proposal {
        topic,
        partition: partition.partition_index,
        leader_epoch: LeaderEpoch(partition.leader_epoch),
        partition_epoch: PartitionEpoch(partition.partition_epoch),
        isr,
        broker_epochs,
        elr: get_ids(&partition.unknown_tagged_fields, TAG_ELR)?,
    })
}

/// Answers stand in the order of the proposals, which is that of the request.
fn alter_partition_response(
    request: &AlterPartitionRequest,
    version: i16,
    outcome: &AlterIsrOutcome,
) -> AlterPartitionResponse {
    let outcomes = match outcome {
        Ok(outcomes) => outcomes,
        Err(rejection) => return AlterPartitionResponse::default().with_error_code(rejection.code()),
    };
    let mut outcomes = outcomes.iter();
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().zip(outcomes.by_ref());
        let partitions =
            partitions.map(|(asked, outcome)| partition_answer(asked.partition_index, version, outcome));
        let answer = alter_partition_response::TopicData::default().with_partitions(partitions.collect());
        if version >= 2 {
            answer.with_topic_id(topic.topic_id)
        } else {
            answer.with_topic_name(topic.topic_name.clone())
        }
    });
    AlterPartitionResponse::default().with_topics(topics.collect())
}

fn partition_answer(
    partition: i32,
    version: i16,
    outcome: &Result<StoredIsrAnswer, Rejection>,
) -> alter_partition_response::PartitionData {
    let answer = alter_partition_response::PartitionData::default().with_partition_index(partition);
    let stored = match outcome {
        Ok(stored) => stored,
        Err(rejection) => return answer.with_error_code(rejection.code()),
    };
    let mut fields = TaggedFields::new();
    put_ids(&mut fields, TAG_ELR, &stored.elr);
    let recovery = if version >= 1 { i8::from(stored.recovery) } else { 0 };
    answer
        .with_leader_id(WireBrokerId(stored.leader.0))
        .with_leader_epoch(stored.leader_epoch.0)
        .with_isr(to_wire_ids(&stored.isr))
        .with_leader_recovery_state(recovery)
        .with_partition_epoch(stored.partition_epoch.0)
        .with_unknown_tagged_fields(fields)
}

fn controlled_shutdown_response(outcome: &ShutdownOutcome) -> ControlledShutdownResponse {
    match outcome {
        Err(rejection) => ControlledShutdownResponse::default().with_error_code(rejection.code()),
        Ok(remaining) => {
            let remaining = remaining.iter().map(|tp| {
                RemainingPartition::default()
                    .with_topic_name(to_wire_topic(&tp.topic))
                    .with_partition_index(tp.partition)
            });
            ControlledShutdownResponse::default().with_remaining_partitions(remaining.collect())
        }
    }
}

/// Shared between the listener and the controller's loop.
pub(crate) type SharedApi = Arc<Api>;
