//! Produce (0), versions 3-12: appends record batches. Versions below 3 carry record formats v0 and v1 only (D7).
//!
//! - acks 0: no answer at all; an error closes the connection, so that the client looks for the leader (CLI-14).
//!   acks 1: answered after the append, and after its sync if `flush.messages` or `flush.ms` ask for one.
//!   acks −1: when every in-sync replica has the records, or after the timeout.
//! - The append happens before the next request of the connection is read, so the order of requests is the order of
//!   the log; only the wait for the replicas is pipelined.
//! - Records of a transaction need the transactional id (v3). The first ones of a transaction in a partition wait until
//!   its coordinator has confirmed that the partition is part of it (`transactional`).
//! - One batch per partition, as in Kafka from v3 on. v7 allows zstd. v8 adds what was wrong with which record.
//! - v10 names the leader when this broker is not it (KIP-951). v11 supports TRANSACTION_ABORTABLE. v12 has the leader
//!   add the partition to the transaction (KIP-890).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ApiKey, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use tokio::time::{Instant, timeout_at};
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::server::Answer;

use super::leader_hint::{LeaderHints, TopicRef, not_hosted};
use super::transactional::{TransactionClient, Verified, WAIT_MAX, opening_of, refusal, verify};
use super::{Call, Starting, deadline_after, ready};
use crate::context::BrokerContext;
use crate::disk_space::Space;
use crate::log::Verification;
use crate::metadata::{MetadataImage, is_internal};
use crate::partition::{Acks, Append, Appended, Partition, ProduceRejection};
use crate::shared::wall_clock_ms;

/// How long acks=1 waits for a sync at most; its request says nothing of that.
const SYNC_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long a produce waits at most while this broker is taking office. The requests behind it on the connection wait
/// too, which keeps the order of an idempotent producer.
const OFFICE_WAIT_MAX: Duration = Duration::from_secs(5);

/// First version that may carry zstd.
const ZSTD_FROM: i16 = 7;
/// First version whose clients know TRANSACTION_ABORTABLE.
const ABORTABLE_FROM: i16 = 11;
/// First version that leaves adding partitions to a transaction to their leaders.
const ADDING_LEFT_FROM: i16 = 12;

fn client_of(version: i16) -> TransactionClient {
    TransactionClient { may_abort: ABORTABLE_FROM <= version, leaves_adding: ADDING_LEFT_FROM <= version }
}

pub(super) fn start(call: Call) -> Starting {
    let request = match call.decode::<ProduceRequest>() {
        Ok(request) => request,
        Err(refused) => return ready(refused),
    };
    Box::pin(async move {
        if !(-1..=1).contains(&request.acks) {
            return refuse_all(&call, &request, Rejection::InvalidRequiredAcks);
        }
        let verified = match opening_of(&request, client_of(call.version())) {
            Ok(Some(opening)) => verify(&call.context, &opening, Instant::now() + WAIT_MAX).await,
            Ok(None) => Verified::new(),
            Err(rejection) => return refuse_all(&call, &request, rejection),
        };
        match request.acks {
            0 => append_silently(&call, request, &verified).await,
            1 => append_here(call, request, &verified).await,
            _ => append_everywhere(call, request, &verified).await,
        }
    })
}

/// What became of one partition of a request.
struct Outcome {
    topic: TopicName,
    partition: i32,
    result: Result<Written, ProduceRejection>,
}

impl Outcome {
    fn waits(&self) -> bool {
        let waits = |written: &Written| written.appended.committed.is_some() || !written.throttle.is_zero();
        self.result.as_ref().is_ok_and(waits)
    }

    fn throttle(&self) -> Duration {
        self.result.as_ref().map_or(Duration::ZERO, |written| written.throttle)
    }
}

/// An append with what is left to wait for.
struct Written {
    appended: Appended,
    at: Arc<Partition>,
    /// How long the answer is held back because little space is left (D17).
    throttle: Duration,
}

async fn append_silently(call: &Call, request: ProduceRequest, verified: &Verified) -> Answer {
    let outcomes = append_all(call, request, Acks::None, verified).await;
    // There is no answer to hold back: the connection is not read meanwhile.
    hold_back(throttle(&outcomes)).await;
    let failed = outcomes.iter().find_map(|outcome| {
        let rejection = outcome.result.as_ref().err()?.rejection;
        Some(format!("produce with acks=0 to {}-{} failed: {rejection}", outcome.topic, outcome.partition))
    });
    failed.map_or(Answer::Nothing, Answer::Close)
}

/// Answers at once, unless the records must be synced first.
async fn append_here(call: Call, request: ProduceRequest, verified: &Verified) -> Answer {
    let outcomes = append_all(&call, request, Acks::Leader, verified).await;
    if outcomes.iter().any(Outcome::waits) {
        return wait_and_answer(call, outcomes, Instant::now() + SYNC_WAIT_MAX);
    }
    let image = call.context.metadata.image();
    let response = respond(&outcomes, &image, &call.connection.listener.0, call.version());
    call.reply().now(&response)
}

async fn append_everywhere(call: Call, request: ProduceRequest, verified: &Verified) -> Answer {
    // A timeout of 0 or less still finds what is committed at once.
    let deadline = deadline_after(request.timeout_ms).unwrap_or_else(Instant::now);
    let outcomes = append_all(&call, request, Acks::All, verified).await;
    wait_and_answer(call, outcomes, deadline)
}

fn wait_and_answer(call: Call, mut outcomes: Vec<Outcome>, deadline: Instant) -> Answer {
    let (reply, context, connection) = (call.reply(), call.context, call.connection);
    Answer::Later(Box::pin(async move {
        let throttle = throttle(&outcomes);
        wait_for_commits(&mut outcomes, deadline).await;
        hold_back(throttle).await;
        let image = context.metadata.image();
        let response = respond(&outcomes, &image, &connection.listener.0, reply.api_version);
        reply.later(&response, &connection)
    }))
}

/// A sleep of no time would still wait for the timer's next millisecond.
async fn hold_back(throttle: Duration) {
    if !throttle.is_zero() {
        tokio::time::sleep(throttle).await;
    }
}

/// The longest that any partition of the request asks for.
fn throttle(outcomes: &[Outcome]) -> Duration {
    outcomes.iter().map(Outcome::throttle).max().unwrap_or_default()
}

/// One after the other: the deadline is the same for all, and what was committed meanwhile is found at once.
async fn wait_for_commits(outcomes: &mut [Outcome], deadline: Instant) {
    for outcome in outcomes {
        let Ok(written) = &mut outcome.result else { continue };
        let Some(committed) = written.appended.committed.take() else { continue };
        let committed = match timeout_at(deadline, committed).await {
            Ok(committed) => committed,
            Err(_) => Err(written.at.commit_timeout()),
        };
        if let Err(rejection) = committed {
            outcome.result = Err(rejection.into());
        }
    }
}

fn refuse_all(call: &Call, request: &ProduceRequest, rejection: Rejection) -> Answer {
    if request.acks == 0 {
        return Answer::Close(format!("produce with acks=0 failed: {rejection}"));
    }
    let image = call.context.metadata.image();
    let outcomes = all_refused(request, rejection);
    call.reply().now(&respond(&outcomes, &image, &call.connection.listener.0, call.version()))
}

fn all_refused(request: &ProduceRequest, rejection: Rejection) -> Vec<Outcome> {
    let outcomes = request.topic_data.iter().flat_map(|topic| {
        let name = TopicName::from(topic.name.as_str());
        topic.partition_data.iter().map(move |partition| Outcome {
            topic: name.clone(),
            partition: partition.index,
            result: Err(rejection.into()),
        })
    });
    outcomes.collect()
}

/// Appends every partition's batch. The request, and with it the frame, is dropped here: from now on the log holds
/// the records. Waits only while this broker is taking office for one of the partitions.
async fn append_all(call: &Call, request: ProduceRequest, acks: Acks, verified: &Verified) -> Vec<Outcome> {
    let now_ms = wall_clock_ms();
    let limit = Instant::now() + OFFICE_WAIT_MAX;
    let client = client_of(call.version());
    let mut outcomes = Vec::new();
    for topic in request.topic_data {
        let name = TopicName::from(topic.name.as_str());
        for data in topic.partition_data {
            // Records of a transaction on a partition that was not hosted a moment ago count as not verified.
            let verification = match verified.get(&(name.clone(), data.index)) {
                Some(outcome) => outcome.map_err(|rejection| refusal(rejection, client)),
                None => Ok(Verification::Asked(None)),
            };
            let checked = check_batch(data.records, call.version()).map_err(ProduceRejection::from);
            let result = match verification.and_then(|verification| Ok((checked?, verification))) {
                Ok((records, verification)) => {
                    let what = Append { verification, ..Append::by_client(records, acks) };
                    let appended = append(&call.context, (&name, data.index), (&what, now_ms), limit).await;
                    appended.map_err(|refused| overtaken(refused, verification, client))
                }
                Err(refused) => Err(refused),
            };
            outcomes.push(Outcome { topic: name.clone(), partition: data.index, result });
        }
    }
    call.context.shared.metrics.requests.record_throttle(ApiKey::Produce, throttle(&outcomes));
    outcomes
}

/// A marker may come between the coordinator's answer and the append: then the client of version 2 asks again, and the
/// coordinator decides.
fn overtaken(
    refused: ProduceRejection,
    verification: Verification,
    client: TransactionClient,
) -> ProduceRejection {
    let was_verified = client.leaves_adding && matches!(verification, Verification::Asked(_));
    match refused.rejection {
        Rejection::InvalidTxnState if was_verified => Rejection::ConcurrentTransactions.into(),
        _ => refused,
    }
}

async fn append(
    context: &BrokerContext,
    (topic, number): (&TopicName, i32),
    (what, now_ms): (&Append, i64),
    limit: Instant,
) -> Result<Written, ProduceRejection> {
    if is_internal(topic) {
        return Err(Rejection::InvalidTopicException.into());
    }
    let Some(partition) = context.partitions.get(topic, number) else {
        let image = context.metadata.image();
        return Err(not_hosted(&image, &TopicRef::Name(topic.clone()), number).into());
    };
    let space = context.partitions.space_of(&partition);
    if space == Space::Exhausted {
        let message = "the broker's log directory has less free space than log.dirs.space.hard.min.bytes";
        return Err(ProduceRejection {
            message: Some(message.to_owned()),
            ..Rejection::KafkaStorageError.into()
        });
    }
    let appended = partition.append_in_office(what, now_ms, limit).await?;
    Ok(Written { appended, at: partition, throttle: space.throttle() })
}

/// What the version of the request says about its batches; the log checks everything else.
fn check_batch(records: Option<Bytes>, version: i16) -> Result<Bytes, Rejection> {
    const LENGTH_AT: usize = 8;
    const MAGIC_AT: usize = 16;
    const ATTRIBUTES_AT: usize = 21;
    const ZSTD: u8 = 4;
    let records = records.filter(|records| !records.is_empty()).ok_or(Rejection::InvalidRecord)?;
    let Some(attributes) = records.get(ATTRIBUTES_AT + 1) else { return Err(Rejection::CorruptMessage) };
    if records[MAGIC_AT] != 2 {
        // Where a batch of an old format ends is not known here.
        return Ok(records);
    }
    let length: [u8; 4] = records[LENGTH_AT..LENGTH_AT + 4].try_into().expect("four bytes");
    let end = usize::try_from(i32::from_be_bytes(length)).ok().map(|length| LENGTH_AT + 4 + length);
    if end.is_some_and(|end| end < records.len()) {
        return Err(Rejection::InvalidRecord);
    }
    if attributes & 0x07 == ZSTD && version < ZSTD_FROM {
        return Err(Rejection::UnsupportedCompressionType);
    }
    Ok(records)
}

fn respond(outcomes: &[Outcome], image: &MetadataImage, listener: &str, version: i16) -> ProduceResponse {
    let mut hints = LeaderHints::new(image, listener);
    let mut topics: Vec<TopicProduceResponse> = Vec::new();
    for same_topic in outcomes.chunk_by(|left, right| left.topic == right.topic) {
        let partitions = same_topic.iter().map(|outcome| match &outcome.result {
            Ok(written) => accepted(outcome.partition, &written.appended, version),
            Err(refused) => refuse(outcome, refused, &mut hints, version),
        });
        topics.push(
            TopicProduceResponse::default()
                .with_name(to_wire_topic(&same_topic[0].topic))
                .with_partition_responses(partitions.collect()),
        );
    }
    let endpoints = hints.endpoints().map(|(id, address, rack)| {
        NodeEndpoint::default()
            .with_node_id(id.0.into())
            .with_host(StrBytes::from_string(address.host.clone()))
            .with_port(i32::from(address.port))
            .with_rack(rack.map(|rack| StrBytes::from_string(rack.to_owned())))
    });
    let throttle_ms = i32::try_from(throttle(outcomes).as_millis()).unwrap_or(i32::MAX);
    ProduceResponse::default()
        .with_responses(topics)
        .with_throttle_time_ms(throttle_ms)
        .with_node_endpoints(endpoints.collect())
}

fn accepted(partition: i32, appended: &Appended, version: i16) -> PartitionProduceResponse {
    let log_start_offset = if 5 <= version { appended.log_start_offset } else { -1 };
    PartitionProduceResponse::default()
        .with_index(partition)
        .with_base_offset(appended.first_offset)
        .with_log_append_time_ms(appended.log_append_time_ms.unwrap_or(-1))
        .with_log_start_offset(log_start_offset)
}

fn refuse(
    outcome: &Outcome,
    refused: &ProduceRejection,
    hints: &mut LeaderHints<'_>,
    version: i16,
) -> PartitionProduceResponse {
    let mut response = PartitionProduceResponse::default()
        .with_index(outcome.partition)
        .with_error_code(refused.rejection.code())
        .with_base_offset(-1)
        .with_log_append_time_ms(-1)
        .with_log_start_offset(-1);
    if 8 <= version {
        let records = refused.record_errors.iter().map(|error| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(error.batch_index)
                .with_batch_index_error_message(Some(StrBytes::from_string(error.message.clone())))
        });
        response = response
            .with_record_errors(records.collect())
            .with_error_message(refused.message.clone().map(StrBytes::from_string));
    }
    let topic = TopicRef::Name(outcome.topic.clone());
    let leader =
        if 10 <= version { hints.leader(refused.rejection, &topic, outcome.partition) } else { None };
    if let Some((leader, epoch)) = leader {
        let leader = LeaderIdAndEpoch::default().with_leader_id(leader.0.into()).with_leader_epoch(epoch.0);
        response = response.with_current_leader(leader);
    }
    response
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::log::RecordError;
    use crate::metadata::tests::{id, image, topic};

    fn refused(topic: &str, rejection: Rejection) -> Outcome {
        let record_errors = vec![RecordError { batch_index: 2, message: "no key".to_owned() }];
        let refused = ProduceRejection { rejection, message: Some("why".to_owned()), record_errors };
        Outcome { topic: topic.into(), partition: 0, result: Err(refused) }
    }

    /// Each answer would leave a millisecond later, and those behind it on the connection too.
    #[tokio::test]
    async fn only_what_is_throttled_waits_for_the_clock() {
        assert!(hold_back(Duration::ZERO).now_or_never().is_some());
        assert!(hold_back(Duration::from_secs(60)).now_or_never().is_none());
    }

    #[test]
    fn every_version_encodes_and_new_ones_name_the_leader() {
        let image = image(vec![topic("a", id(1), &[2])]);
        let outcomes =
            || vec![refused("a", Rejection::NotLeaderOrFollower), refused("b", Rejection::InvalidRecord)];
        assert_every_version_encodes::<ProduceRequest>(|version| {
            respond(&outcomes(), &image, "PLAINTEXT", version)
        });
        let newest = respond(&outcomes(), &image, "PLAINTEXT", 10);
        assert_eq!(newest.responses.len(), 2);
        let partition = &newest.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (6, -1));
        assert_eq!((partition.current_leader.leader_id.0, partition.current_leader.leader_epoch), (2, 5));
        assert_eq!(newest.node_endpoints[0].port, 9000);
        let other = &newest.responses[1].partition_responses[0];
        assert_eq!(other.record_errors[0].batch_index, 2);
        assert_eq!(other.current_leader, LeaderIdAndEpoch::default());
        assert!(respond(&outcomes(), &image, "PLAINTEXT", 9).node_endpoints.is_empty());
    }

    #[test]
    fn accepted_appends_tell_what_their_version_knows() {
        let appended =
            Appended { first_offset: 7, log_append_time_ms: None, log_start_offset: 3, committed: None };
        let newest = accepted(1, &appended, 9);
        assert_eq!((newest.index, newest.error_code, newest.base_offset), (1, 0, 7));
        assert_eq!((newest.log_append_time_ms, newest.log_start_offset), (-1, 3));
        assert_eq!(accepted(1, &appended, 4).log_start_offset, -1);
    }

    /// CLI-06.
    #[test]
    fn batches_fit_the_version_of_their_request() {
        let batch = |magic: u8, attributes: u8, length: i32| {
            let mut batch = vec![0; 61];
            batch[8..12].copy_from_slice(&length.to_be_bytes());
            batch[16] = magic;
            batch[22] = attributes;
            Some(Bytes::from(batch))
        };
        let rows = [
            (batch(2, 0, 49), 3, None),
            (batch(2, 4, 49), 7, None),
            (batch(2, 4, 49), 6, Some(Rejection::UnsupportedCompressionType)),
            (batch(2, 0, 30), 3, Some(Rejection::InvalidRecord)),
            (batch(2, 0, 500), 3, None),
            (batch(2, 0, -1), 3, None),
            (batch(1, 4, 30), 3, None),
            (Some(Bytes::from_static(b"short")), 3, Some(Rejection::CorruptMessage)),
            (Some(Bytes::new()), 3, Some(Rejection::InvalidRecord)),
            (None, 3, Some(Rejection::InvalidRecord)),
        ];
        for (index, (records, version, expected)) in rows.into_iter().enumerate() {
            assert_eq!(check_batch(records, version).err(), expected, "row {index}");
        }
    }

    #[test]
    fn wrong_acks_refuse_every_partition() {
        let partitions = vec![PartitionProduceData::default(), PartitionProduceData::default().with_index(1)];
        let topic = TopicProduceData::default().with_name(to_wire_topic("t")).with_partition_data(partitions);
        let request = ProduceRequest::default().with_topic_data(vec![topic]);
        let outcomes = all_refused(&request, Rejection::InvalidRequiredAcks);
        let response = respond(&outcomes, &MetadataImage::default(), "PLAINTEXT", 9);
        let codes: Vec<i16> =
            response.responses[0].partition_responses.iter().map(|partition| partition.error_code).collect();
        assert_eq!(codes, [21, 21]);
    }
}
