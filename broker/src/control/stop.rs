//! Carrying out StopReplica: stop serving, and delete only what is certainly meant, the right incarnation in a late
//! enough epoch (F9, N5).

use std::sync::Arc;

use kafka_protocol::messages::stop_replica_response::StopReplicaPartitionError;
use kafka_protocol::messages::{StopReplicaRequest, StopReplicaResponse};
use tracing::{error, info, warn};
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_TOPIC_ID, get_topic_id, to_wire_topic};

use crate::context::BrokerContext;
use crate::partition::Partition;

use super::rules::{Stop, StopOrder};

pub(super) async fn carry_out(
    context: &Arc<BrokerContext>,
    request: StopReplicaRequest,
) -> StopReplicaResponse {
    let context = Arc::clone(context);
    let done = tokio::task::spawn_blocking(move || stop_all(&context, &request));
    done.await.unwrap_or_else(|_| {
        StopReplicaResponse::default().with_error_code(Rejection::UnknownServerError.code())
    })
}

fn stop_all(context: &BrokerContext, request: &StopReplicaRequest) -> StopReplicaResponse {
    let mut errors = Vec::new();
    for topic in &request.topic_states {
        let topic_id = match get_topic_id(&topic.unknown_tagged_fields, TAG_TOPIC_ID) {
            Ok(topic_id) => topic_id,
            Err(reason) => {
                error!(topic = topic.topic_name.as_str(), %reason, "a StopReplica request cannot be read");
                return StopReplicaResponse::default().with_error_code(Rejection::InvalidRequest.code());
            }
        };
        for state in &topic.partition_states {
            let found = context.partitions.get(topic.topic_name.as_str(), state.partition_index);
            let outcome = match found {
                // Nothing of it is here: it is stopped, and deleted.
                None => Ok(()),
                Some(partition) => {
                    let leader_epoch = LeaderEpoch(state.leader_epoch);
                    let order = StopOrder { topic_id, leader_epoch, delete: state.delete_partition };
                    stop(context, &partition, order)
                }
            };
            errors.push(
                StopReplicaPartitionError::default()
                    .with_topic_name(to_wire_topic(topic.topic_name.as_str()))
                    .with_partition_index(state.partition_index)
                    .with_error_code(outcome.map_or_else(Rejection::code, |()| 0)),
            );
        }
    }
    StopReplicaResponse::default().with_partition_errors(errors)
}

fn stop(context: &BrokerContext, partition: &Arc<Partition>, order: StopOrder) -> Result<(), Rejection> {
    let StopOrder { topic_id, leader_epoch, delete } = order;
    match partition.judge_stop(order) {
        Stop::Nothing => {
            info!(
                partition = %partition.id(), held = %partition.topic_id(), asked = ?topic_id,
                "the replica that shall stop is of another incarnation than the one here, which stays"
            );
            return Ok(());
        }
        Stop::Refuse(rejection) => {
            warn!(
                partition = %partition.id(), %leader_epoch, delete, known = ?partition.leader_epoch(), ?topic_id,
                "an order to stop the replica is refused"
            );
            return Err(rejection);
        }
        Stop::Stop | Stop::Delete => {}
    }
    info!(partition = %partition.id(), %leader_epoch, delete, "the replica stops");
    context.control.fetchers.remove([partition.id()]);
    partition.stop();
    if delete {
        context.partitions.delete(partition).map_err(|reason| {
            error!(partition = %partition.id(), "the replica cannot be deleted: {reason:#}");
            Rejection::KafkaStorageError
        })?;
    }
    Ok(())
}
