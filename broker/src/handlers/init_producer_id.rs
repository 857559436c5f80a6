//! InitProducerId (22), versions 0-5: an id and an epoch for an idempotent or transactional producer.
//!
//! - v3 adds the producer's current id and epoch: with both the producer only wants a higher epoch (KIP-360). Without a
//!   transactional id it gets a new id, as from Kafka.
//! - v4 knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH; v5 supports TRANSACTION_ABORTABLE.

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use zurau_common::rejection::Rejection;

use super::group_words::{STORED_TEXT_BYTES_MAX, text};
use super::transaction_words::{in_version, producer};
use super::{Call, Starting};
use crate::context::BrokerContext;
use crate::coordinator::Producer;
use crate::transactions::InitRequest;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: InitProducerIdRequest| async move {
        match initialize(&call.context, &request).await {
            Ok(producer) => granted(producer),
            Err(rejection) => refused(in_version(rejection, 4 <= call.version())),
        }
    })
}

async fn initialize(context: &BrokerContext, request: &InitProducerIdRequest) -> Result<Producer, Rejection> {
    let expected = expected(request)?;
    match &request.transactional_id {
        Some(id) if STORED_TEXT_BYTES_MAX < id.len() => Err(Rejection::InvalidRequest),
        Some(id) => {
            let timeout_ms = request.transaction_timeout_ms;
            let request = InitRequest { timeout_ms, expected, fresh_producer_id: None };
            context.transactions.initialize(context, &text(id), request).await
        }
        None => {
            let id = context.producer_ids.next(context.config.broker_id, context.zookeeper.current()).await?;
            Ok(Producer { id, epoch: 0 })
        }
    }
}

/// What the producer says it is. Id and epoch come together.
fn expected(request: &InitProducerIdRequest) -> Result<Option<Producer>, Rejection> {
    let named = producer(request.producer_id, request.producer_epoch);
    match (named.id != -1, named.epoch != -1) {
        (true, true) => Ok(Some(named)),
        (false, false) => Ok(None),
        _ => Err(Rejection::InvalidRequest),
    }
}

fn granted(producer: Producer) -> InitProducerIdResponse {
    InitProducerIdResponse::default().with_producer_id(producer.id.into()).with_producer_epoch(producer.epoch)
}

fn refused(rejection: Rejection) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(rejection.code())
        .with_producer_id((-1).into())
        .with_producer_epoch(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let producer = Producer { id: 7, epoch: 3 };
        assert_every_version_encodes::<InitProducerIdRequest>(|_| granted(producer));
        assert_every_version_encodes::<InitProducerIdRequest>(|_| refused(Rejection::InvalidRequest));
    }

    #[test]
    fn id_and_epoch_come_together() {
        let asked = |id: i64, epoch: i16| {
            let request = InitProducerIdRequest::default();
            expected(&request.with_producer_id(id.into()).with_producer_epoch(epoch))
        };
        assert_eq!(asked(-1, -1), Ok(None));
        assert_eq!(asked(5, 2), Ok(Some(Producer { id: 5, epoch: 2 })));
        assert_eq!(asked(5, -1), Err(Rejection::InvalidRequest));
        assert_eq!(asked(-1, 2), Err(Rejection::InvalidRequest));
    }
}
