//! WriteTxnMarkers (27), versions 0-1: a transaction coordinator ends a transaction in the partitions led here.
//!
//! - Each partition is answered when its marker is committed, or refused; the coordinator asks again for whatever may
//!   still succeed (TXN-11). v1 only changes the encoding.
//! - A tagged field says that a marker is of version 2 (KIP-890): it must not end the next transaction (TXN-02).
//! - In `__consumer_offsets` the group coordinator writes the marker, so that the offsets of the transaction count from
//!   the moment on at which it is committed. One that cannot is not the leader, to the transaction coordinator.

use futures::future::join_all;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use tokio::time::{Instant, timeout_at};
use zurau_common::id::LeaderEpoch;
use zurau_common::rejection::{Rejection, error_code};
use zurau_common::wire::control::TAG_ENDS_LOWER_EPOCHS;

use super::leader_hint::{TopicRef, not_hosted};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::coordinator::Producer;
use crate::log::{Marker, Verification};
use crate::partition::{Acks, Append};
use crate::shared::wall_clock_ms;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: WriteTxnMarkersRequest| async move {
        let deadline = Instant::now() + call.context.config.request_timeout;
        let markers = request.markers.iter().map(|marker| end(&call.context, marker, deadline));
        WriteTxnMarkersResponse::default().with_markers(join_all(markers).await)
    })
}

async fn end(
    context: &BrokerContext,
    asked: &WritableTxnMarker,
    deadline: Instant,
) -> WritableTxnMarkerResult {
    let producer = Producer { id: asked.producer_id.0, epoch: asked.producer_epoch };
    let marker = Marker { commit: asked.transaction_result, coordinator_epoch: asked.coordinator_epoch };
    let verification = match asked.unknown_tagged_fields.contains_key(&TAG_ENDS_LOWER_EPOCHS) {
        true => Verification::EndsLowerEpochs,
        false => Verification::NotAsked,
    };
    let what = (producer, (marker, verification));
    let topics = asked.topics.iter().map(|topic| async move {
        let partitions = topic.partition_indexes.iter().map(|number| async move {
            let outcome = write(context, (&topic.name, *number), what, deadline).await;
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(*number)
                .with_error_code(error_code(&outcome))
        });
        WritableTxnMarkerTopicResult::default()
            .with_name(topic.name.clone())
            .with_partitions(join_all(partitions).await)
    });
    WritableTxnMarkerResult::default().with_producer_id(asked.producer_id).with_topics(join_all(topics).await)
}

async fn write(
    context: &BrokerContext,
    (topic, number): (&str, i32),
    (producer, (marker, verification)): (Producer, (Marker, Verification)),
    deadline: Instant,
) -> Result<(), Rejection> {
    let Some(partition) = context.partitions.get(topic, number) else {
        return Err(not_hosted(&context.metadata.image(), &TopicRef::Name(topic.into()), number));
    };
    if topic == context.groups.offices.topic.name {
        let ended = context.groups.end_transaction(context, number, producer, (marker, verification));
        let ended = timeout_at(deadline, ended);
        return match ended.await.unwrap_or(Err(Rejection::RequestTimedOut)) {
            Err(Rejection::NotCoordinator | Rejection::CoordinatorLoadInProgress) => {
                Err(Rejection::NotLeaderOrFollower)
            }
            other => other,
        };
    }
    let now_ms = wall_clock_ms();
    let batch = marker.encode((producer.id, producer.epoch), now_ms);
    let what = Append { verification, ..Append::by_coordinator(batch, Acks::All) };
    let appended = partition.append_in_epoch(&what, LeaderEpoch::UNKNOWN, now_ms);
    let appended = appended.map_err(|refused| refused.rejection)?;
    let Some(committed) = appended.committed else { return Ok(()) };
    timeout_at(deadline, committed).await.unwrap_or_else(|_| Err(partition.commit_timeout()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let partition = WritableTxnMarkerPartitionResult::default().with_error_code(6);
        let topic = WritableTxnMarkerTopicResult::default().with_partitions(vec![partition]);
        let marker = WritableTxnMarkerResult::default().with_topics(vec![topic]);
        let response = WriteTxnMarkersResponse::default().with_markers(vec![marker]);
        assert_every_version_encodes::<WriteTxnMarkersRequest>(|_| response.clone());
    }
}
