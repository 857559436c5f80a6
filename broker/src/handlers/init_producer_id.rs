//! InitProducerId (22), versions 0-5: an id and an epoch for an idempotent producer.
//!
//! - v3 adds the producer's current id and epoch: with both the producer only wants a higher epoch. Without a
//!   transactional id it gets a new id, as from Kafka.
//! - v5 supports TRANSACTION_ABORTABLE. Transactional ids are refused with COORDINATOR_NOT_AVAILABLE, which clients
//!   take as "ask again", until there is a transaction coordinator.

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use zurau_common::rejection::Rejection;

use super::{Call, Starting};
use crate::context::BrokerContext;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: InitProducerIdRequest| async move {
        match producer_id(&call.context, &request).await {
            Ok(id) => granted(id),
            Err(rejection) => refused(rejection),
        }
    })
}

async fn producer_id(context: &BrokerContext, request: &InitProducerIdRequest) -> Result<i64, Rejection> {
    check(request)?;
    context.producer_ids.next(context.config.broker_id, context.zookeeper.current()).await
}

fn check(request: &InitProducerIdRequest) -> Result<(), Rejection> {
    let has_id = request.producer_id.0 != -1;
    let has_epoch = request.producer_epoch != -1;
    match &request.transactional_id {
        Some(id) if id.is_empty() => Err(Rejection::InvalidRequest),
        Some(_) if has_id != has_epoch => Err(Rejection::InvalidRequest),
        Some(_) => Err(Rejection::CoordinatorNotAvailable),
        None if has_id != has_epoch => Err(Rejection::InvalidRequest),
        None => Ok(()),
    }
}

fn granted(id: i64) -> InitProducerIdResponse {
    InitProducerIdResponse::default().with_producer_id(id.into()).with_producer_epoch(0)
}

fn refused(rejection: Rejection) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(rejection.code())
        .with_producer_id((-1).into())
        .with_producer_epoch(-1)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<InitProducerIdRequest>(|_| granted(7));
        assert_every_version_encodes::<InitProducerIdRequest>(|_| refused(Rejection::InvalidRequest));
    }

    #[test]
    fn only_idempotent_producers_get_ids() {
        let rows: [(Option<&'static str>, i64, i16, i16); 6] = [
            (None, -1, -1, 0),
            (None, 5, 0, 0),
            (None, 5, -1, 42),
            (Some(""), -1, -1, 42),
            (Some("t"), -1, -1, 15),
            (Some("t"), -1, 3, 42),
        ];
        for (transactional_id, id, epoch, code) in rows {
            let request = InitProducerIdRequest::default()
                .with_transactional_id(transactional_id.map(|id| StrBytes::from_static_str(id).into()))
                .with_producer_id(id.into())
                .with_producer_epoch(epoch);
            let actual = check(&request).err().map_or(0, Rejection::code);
            assert_eq!(actual, code, "{transactional_id:?} {id} {epoch}");
        }
    }
}
