//! The APIs that this broker serves: one table, one file per API. ApiVersions is derived from the table, so it cannot
//! promise what is not served. Versions are those that the wire crate carries up to Kafka 3.9's, and those of Kafka 4 that
//! transactions of version 2 need (KIP-890), without the ones that only carry the record formats v0 and v1 (D7). Orders of
//! the controller are served in its own version only.

mod add_offsets_to_txn;
mod add_partitions_to_txn;
mod alter_configs;
mod alter_partition_reassignments;
mod alter_replica_log_dirs;
mod api_versions;
mod consumer_group_describe;
mod consumer_group_heartbeat;
mod control;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_topic_partitions;
mod describe_transactions;
mod elect_leaders;
mod end_txn;
mod fetch;
mod find_coordinator;
mod group_words;
mod heartbeat;
mod init_producer_id;
mod join_group;
mod leader_hint;
mod leave_group;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
mod list_transactions;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod produce;
mod sync_group;
mod transaction_words;
mod transactional;
mod txn_offset_commit;
mod unsupported;
mod write_txn_markers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Decodable, Encodable, Request};
use tokio::time::{Instant, timeout};
use tracing::error;
use zurau_common::wire::consumer_group;
use zurau_common::wire::frame::{RequestFrame, decode_request_body, encode_response};
use zurau_common::wire::server::{Answer, Answered, Connection, Frame, RequestHandler};
use zurau_common::wire::transactions::{
    END_TXN_VERSION_MAX, PRODUCE_VERSION_MAX, TXN_OFFSET_COMMIT_VERSION_MAX,
};

use crate::context::BrokerContext;

pub(crate) use self::fetch::FetchSessions;

/// One served API.
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    pub(crate) version_min: i16,
    pub(crate) version_max: i16,
    start: fn(Call) -> Starting,
}

/// What a handler returns: the answer, or a future that comes to it while the next request waits.
pub(crate) type Starting = BoxFuture<'static, Answer>;

/// All served APIs by ascending key.
pub(crate) const APIS: &[Api] = &[
    api(ApiKey::Produce, 3, PRODUCE_VERSION_MAX, produce::start),
    api(ApiKey::Fetch, 4, 17, fetch::start),
    api(ApiKey::ListOffsets, 0, 9, list_offsets::start),
    api(ApiKey::Metadata, 0, 12, metadata::start),
    api(ApiKey::LeaderAndIsr, 7, 7, control::start_leader_and_isr),
    api(ApiKey::StopReplica, 4, 4, control::start_stop_replica),
    api(ApiKey::UpdateMetadata, 8, 8, control::start_update_metadata),
    api(ApiKey::OffsetCommit, 0, 9, offset_commit::start),
    api(ApiKey::OffsetFetch, 0, 9, offset_fetch::start),
    api(ApiKey::FindCoordinator, 0, 6, find_coordinator::start),
    api(ApiKey::JoinGroup, 0, 9, join_group::start),
    api(ApiKey::Heartbeat, 0, 4, heartbeat::start),
    api(ApiKey::LeaveGroup, 0, 5, leave_group::start),
    api(ApiKey::SyncGroup, 0, 5, sync_group::start),
    api(ApiKey::DescribeGroups, 0, 5, describe_groups::start),
    api(ApiKey::ListGroups, 0, 5, list_groups::start),
    api(ApiKey::ApiVersions, 0, 4, api_versions::start),
    api(ApiKey::CreateTopics, 0, 7, create_topics::start),
    api(ApiKey::DeleteTopics, 0, 6, delete_topics::start),
    api(ApiKey::DeleteRecords, 0, 2, delete_records::start),
    api(ApiKey::InitProducerId, 0, 5, init_producer_id::start),
    api(ApiKey::OffsetForLeaderEpoch, 0, 4, offset_for_leader_epoch::start),
    api(ApiKey::AddPartitionsToTxn, 0, 5, add_partitions_to_txn::start),
    api(ApiKey::AddOffsetsToTxn, 0, 4, add_offsets_to_txn::start),
    api(ApiKey::EndTxn, 0, END_TXN_VERSION_MAX, end_txn::start),
    api(ApiKey::WriteTxnMarkers, 0, 1, write_txn_markers::start),
    api(ApiKey::TxnOffsetCommit, 0, TXN_OFFSET_COMMIT_VERSION_MAX, txn_offset_commit::start),
    api(ApiKey::DescribeConfigs, 0, 4, describe_configs::start),
    api(ApiKey::AlterConfigs, 0, 2, alter_configs::start),
    api(ApiKey::AlterReplicaLogDirs, 0, 2, alter_replica_log_dirs::start),
    api(ApiKey::DescribeLogDirs, 0, 4, describe_log_dirs::start),
    api(ApiKey::CreatePartitions, 0, 3, create_partitions::start),
    api(ApiKey::DeleteGroups, 0, 2, delete_groups::start),
    api(ApiKey::ElectLeaders, 0, 2, elect_leaders::start),
    api(ApiKey::IncrementalAlterConfigs, 0, 1, alter_configs::start_incremental),
    api(ApiKey::AlterPartitionReassignments, 0, 0, alter_partition_reassignments::start),
    api(ApiKey::ListPartitionReassignments, 0, 0, list_partition_reassignments::start),
    api(ApiKey::OffsetDelete, 0, 0, offset_delete::start),
    api(ApiKey::DescribeCluster, 0, 1, describe_cluster::start),
    api(ApiKey::DescribeProducers, 0, 0, describe_producers::start),
    api(ApiKey::DescribeTransactions, 0, 0, describe_transactions::start),
    api(ApiKey::ListTransactions, 0, 1, list_transactions::start),
    api(
        ApiKey::ConsumerGroupHeartbeat,
        0,
        consumer_group::HEARTBEAT_VERSION_MAX,
        consumer_group_heartbeat::start,
    ),
    api(ApiKey::ConsumerGroupDescribe, 0, 0, consumer_group_describe::start),
    api(ApiKey::DescribeTopicPartitions, 0, 0, describe_topic_partitions::start),
];

const fn api(key: ApiKey, version_min: i16, version_max: i16, start: fn(Call) -> Starting) -> Api {
    Api { key, version_min, version_max, start }
}

impl Api {
    /// Whether the operator wants it: the consumer protocol can be switched off
    /// (`group.coordinator.rebalance.protocols`).
    fn is_offered(&self, offers_consumer_protocol: bool) -> bool {
        offers_consumer_protocol
            || !matches!(self.key, ApiKey::ConsumerGroupHeartbeat | ApiKey::ConsumerGroupDescribe)
    }
}

fn find(api_key: i16) -> Option<&'static Api> {
    APIS.iter().find(|api| api.key as i16 == api_key)
}

/// Starts the requests of clients, brokers and the controller alike.
pub(crate) struct Handlers {
    context: Arc<BrokerContext>,
}

impl Handlers {
    pub(crate) fn new(context: Arc<BrokerContext>) -> Self {
        Self { context }
    }
}

impl RequestHandler for Handlers {
    fn start<'a>(&'a self, connection: &'a Connection, frame: RequestFrame) -> BoxFuture<'a, Answer> {
        let call = Call { context: Arc::clone(&self.context), connection: connection.clone(), frame };
        let offers_consumer_protocol = self.context.groups.offers_consumer_protocol;
        match find(call.frame.api_key).filter(|api| api.is_offered(offers_consumer_protocol)) {
            Some(api) if (api.version_min..=api.version_max).contains(&call.frame.api_version) => {
                if describes_the_cluster(api.key) && !self.context.metadata.image().is_told() {
                    return Box::pin(start_when_told(call, api.start));
                }
                (api.start)(call)
            }
            _ => unsupported::start(call),
        }
    }

    fn answered(&self, answered: &Answered) {
        self.context.shared.metrics.requests.record(answered);
    }
}

/// How long a request waits for what only a controller can tell.
const UNTOLD_LIMIT: Duration = Duration::from_secs(5);

const fn describes_the_cluster(key: ApiKey) -> bool {
    matches!(key, ApiKey::Metadata | ApiKey::DescribeCluster | ApiKey::DescribeTopicPartitions)
}

/// A broker that was not told of the cluster yet answers nothing about it, as Kafka's brokers answer nothing before they
/// are registered: it would say that no topic exists, and an idempotent producer of librdkafka that hears so about its
/// topic may never send anything again. The client is left to ask another broker in the end.
async fn start_when_told(call: Call, start: fn(Call) -> Starting) -> Answer {
    let told = call.context.metadata.wait_until(|image| image.is_told().then_some(()));
    match timeout(UNTOLD_LIMIT, told).await {
        Ok(()) => start(call).await,
        Err(_) => Answer::Close("no controller has told this broker of the cluster yet".to_owned()),
    }
}

/// When a request that gives itself so many milliseconds is over; `None` if it gives itself none.
fn deadline_after(timeout_ms: i32) -> Option<Instant> {
    let timeout = u64::try_from(timeout_ms).ok().filter(|millis| 0 < *millis)?;
    Some(Instant::now() + Duration::from_millis(timeout))
}

/// One request and what is needed to answer it.
pub(crate) struct Call {
    pub(crate) context: Arc<BrokerContext>,
    pub(crate) connection: Connection,
    pub(crate) frame: RequestFrame,
}

impl Call {
    pub(crate) fn version(&self) -> i16 {
        self.frame.api_version
    }

    /// Decodes the body; what cannot be decoded closes the connection, as there is nothing to answer.
    pub(crate) fn decode<T: Decodable>(&self) -> Result<T, Answer> {
        decode_request_body(&self.frame).map_err(|error| Answer::Close(error.to_string()))
    }

    /// How the answer will be framed; small, so that a later answer need not keep the request.
    pub(crate) fn reply(&self) -> Reply {
        Reply {
            context: Arc::clone(&self.context),
            api_key: self.frame.api_key,
            api_version: self.frame.api_version,
            correlation_id: self.frame.correlation_id,
        }
    }

    /// Answers at once.
    pub(crate) fn now<R: Request<Response: 'static>>(
        self,
        answer: impl FnOnce(&Self, R) -> R::Response,
    ) -> Starting {
        let answer = match self.decode::<R>() {
            Ok(request) => self.reply().now(&answer(&self, request)),
            Err(refused) => refused,
        };
        ready(answer)
    }

    /// Answers when the future is done; the next request of the connection starts meanwhile.
    pub(crate) fn later<R, F>(self, answer: impl FnOnce(Self, R) -> F) -> Starting
    where
        R: Request<Response: 'static>,
        F: Future<Output = R::Response> + Send + 'static,
    {
        let answer = match self.decode::<R>() {
            Ok(request) => self.pend(|call| answer(call, request)),
            Err(refused) => refused,
        };
        ready(answer)
    }

    /// The answer that a future comes to.
    pub(crate) fn pend<A, F>(self, answer: impl FnOnce(Self) -> F) -> Answer
    where
        A: Encodable + 'static,
        F: Future<Output = A> + Send + 'static,
    {
        let (reply, connection) = (self.reply(), self.connection.clone());
        let coming = answer(self);
        Answer::Later(Box::pin(async move { reply.later(&coming.await, &connection) }))
    }
}

/// An answer that is there.
pub(crate) fn ready(answer: Answer) -> Starting {
    Box::pin(std::future::ready(answer))
}

/// What an answer repeats of its request.
pub(crate) struct Reply {
    context: Arc<BrokerContext>,
    pub(crate) api_key: i16,
    pub(crate) api_version: i16,
    pub(crate) correlation_id: i32,
}

impl Reply {
    /// The framed answer; `None` if a field holds what the version cannot carry. That is our bug: it is logged, and
    /// the caller closes the connection rather than leave the client waiting.
    pub(crate) fn frame(&self, response: &(impl Encodable + 'static)) -> Option<Frame> {
        self.context.shared.metrics.requests.record_errors(self.api_key, response);
        match encode_response(self.api_key, self.api_version, self.correlation_id, response) {
            Ok(frame) => Some(frame.into()),
            Err(error) => {
                error!(%error, "an answer cannot be encoded (a bug); closing the connection");
                None
            }
        }
    }

    /// The framed answer of [`Answer::Later`]; one that cannot be encoded closes the connection.
    pub(crate) fn later(
        self,
        response: &(impl Encodable + 'static),
        connection: &Connection,
    ) -> Option<Frame> {
        let frame = self.frame(response);
        if frame.is_none() {
            connection.closer.cancel();
        }
        frame
    }

    pub(crate) fn now(&self, response: &(impl Encodable + 'static)) -> Answer {
        self.frame(response).map_or_else(
            || Answer::Close(format!("the answer to API {} cannot be encoded", self.api_key)),
            Answer::Now,
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::BytesMut;
    use zurau_common::wire::frame::is_known_version;
    use zurau_common::wire::transactions::coded_as;

    use super::*;
    use crate::metrics::each_code;

    /// Encodes the response in every version of its API and checks that a client decodes what the broker meant.
    pub(crate) fn assert_every_version_encodes<R: Request<Response: 'static>>(
        response: impl Fn(i16) -> R::Response,
    ) {
        let api = find(R::KEY).expect("the API is in the table");
        for version in api.version_min..=api.version_max {
            let coded = coded_as(R::KEY, version);
            let mut bytes = BytesMut::new();
            assert!(each_code(&response(version), |_| {}), "the errors of {:?} are not counted", api.key);
            response(version)
                .encode(&mut bytes, coded)
                .unwrap_or_else(|error| panic!("{:?} v{version}: {error}", api.key));
            let mut bytes = bytes.freeze();
            R::Response::decode(&mut bytes, coded).unwrap();
            assert!(bytes.is_empty(), "{:?} v{version}", api.key);
        }
    }

    #[test]
    fn the_table_is_sorted_and_within_what_the_wire_crate_carries() {
        assert!(APIS.windows(2).all(|pair| (pair[0].key as i16) < pair[1].key as i16));
        for api in APIS {
            let is_carried = |version| is_known_version(api.key, version);
            assert!(is_carried(api.version_min) && is_carried(api.version_max), "{:?}", api.key);
        }
    }
}
