//! AddOffsetsToTxn (25), versions 0-4: the producer is about to commit offsets of a group in its transaction, which adds
//! the group's partition of `__consumer_offsets`.
//!
//! v2 knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH; v4 supports TRANSACTION_ABORTABLE.

use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;

use super::group_words::text;
use super::transaction_words::{in_version, producer};
use super::{Call, Starting};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: AddOffsetsToTxnRequest| async move {
        let context = &call.context;
        let topic = &context.groups.offices.topic;
        let partition = TopicPartition::new(topic.name, topic.partition_of(context, &request.group_id));
        let id = text(&request.transactional_id);
        let added = (producer(request.producer_id, request.producer_epoch), vec![partition], false);
        let outcome = context.transactions.add(context, &id, added).await;
        respond(outcome.map_err(|rejection| in_version(rejection, 2 <= call.version())))
    })
}

fn respond(outcome: Result<(), Rejection>) -> AddOffsetsToTxnResponse {
    AddOffsetsToTxnResponse::default().with_error_code(outcome.err().map_or(0, Rejection::code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        for outcome in [Ok(()), Err(Rejection::ConcurrentTransactions)] {
            assert_every_version_encodes::<AddOffsetsToTxnRequest>(|_| respond(outcome));
        }
    }
}
