//! EndTxn (26), versions 0-4: the producer decides how its transaction ends.
//!
//! - The answer says that the decision is stored; markers follow. A retry of it is answered the same, or with
//!   CONCURRENT_TRANSACTIONS ("ask again") while the markers are on their way.
//! - v2 knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH; v4 supports TRANSACTION_ABORTABLE. A new epoch for
//!   each transaction (v5) is not part of Kafka 3.9's default either.

use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse};
use zurau_common::rejection::Rejection;

use super::group_words::text;
use super::transaction_words::{in_version, producer};
use super::{Call, Starting};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: EndTxnRequest| async move {
        let context = &call.context;
        let id = text(&request.transactional_id);
        let decision = (producer(request.producer_id, request.producer_epoch), request.committed);
        let outcome = context.transactions.end(context, &id, decision).await;
        respond(outcome.map_err(|rejection| in_version(rejection, 2 <= call.version())))
    })
}

fn respond(outcome: Result<(), Rejection>) -> EndTxnResponse {
    EndTxnResponse::default().with_error_code(outcome.err().map_or(0, Rejection::code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        for outcome in [Ok(()), Err(Rejection::InvalidTxnState)] {
            assert_every_version_encodes::<EndTxnRequest>(|_| respond(outcome));
        }
    }

    #[test]
    fn old_clients_hear_the_old_word_for_fenced() {
        assert_eq!(in_version(Rejection::ProducerFenced, false), Rejection::InvalidProducerEpoch);
        assert_eq!(in_version(Rejection::ProducerFenced, true), Rejection::ProducerFenced);
        assert_eq!(in_version(Rejection::InvalidTxnState, false), Rejection::InvalidTxnState);
    }
}
