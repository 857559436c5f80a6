//! EndTxn (26), versions 0-5: the producer decides how its transaction ends.
//!
//! - The answer says that the decision is stored; markers follow. A retry of it is answered the same, or with
//!   CONCURRENT_TRANSACTIONS ("ask again") while the markers are on their way.
//! - v2 knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH; v4 supports TRANSACTION_ABORTABLE.
//! - v5 gives the producer another epoch, or another id when none is left, for its next transaction (KIP-890).

use kafka_protocol::messages::EndTxnResponse as Fields;
use zurau_common::rejection::Rejection;
use zurau_common::wire::transactions::{EndTxnRequest, EndTxnResponse};

use super::group_words::text;
use super::transaction_words::{in_version, producer};
use super::{Call, Starting};
use crate::coordinator::Producer;
use crate::transactions::EndRequest;

/// First version of KIP-890's second part.
const VERSION_2_FROM: i16 = 5;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, EndTxnRequest(request)| async move {
        let context = &call.context;
        let id = text(&request.transactional_id);
        let asked = EndRequest {
            producer: producer(request.producer_id, request.producer_epoch),
            commits: request.committed,
            is_version_2: VERSION_2_FROM <= call.version(),
            fresh_producer_id: None,
        };
        let outcome = context.transactions.end(context, &id, asked).await;
        respond(outcome.map_err(|rejection| in_version(rejection, 2 <= call.version())))
    })
}

fn respond(outcome: Result<Producer, Rejection>) -> EndTxnResponse {
    let fields = Fields::default().with_error_code(outcome.err().map_or(0, Rejection::code));
    match outcome {
        Ok(Producer { id, epoch }) => {
            EndTxnResponse { fields, producer_id: id.into(), producer_epoch: epoch }
        }
        Err(_) => EndTxnResponse { fields, ..EndTxnResponse::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        for outcome in [Ok(Producer { id: 7, epoch: 4 }), Err(Rejection::InvalidTxnState)] {
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
