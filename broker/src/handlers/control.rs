//! What the controller orders: LeaderAndIsr (4), version 7; StopReplica (5), version 4; UpdateMetadata (6), version 8.
//!
//! - Only these versions: our own tagged fields (the version of `state`, the ELR, the topic id of a StopReplica) need
//!   the newest ones, and no client ever sends an order. Older versions are refused with error 35.
//! - An order is carried out before the next request of its connection is read; orders that come over a connection
//!   which is not the commanding one close it (F9).

use kafka_protocol::messages::{LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest};
use kafka_protocol::protocol::{Encodable, Request};
use zurau_common::wire::server::Answer;

use super::{Call, Starting};
use crate::control::{Answered, leader_and_isr, stop_replica, update_metadata};

pub(super) fn start_leader_and_isr(call: Call) -> Starting {
    Box::pin(async move {
        match call.decode::<LeaderAndIsrRequest>() {
            Ok(order) => told(&call, leader_and_isr(&call.context, &call.connection, order).await),
            Err(refused) => refused,
        }
    })
}

pub(super) fn start_stop_replica(call: Call) -> Starting {
    Box::pin(async move {
        match call.decode::<StopReplicaRequest>() {
            Ok(order) => told(&call, stop_replica(&call.context, &call.connection, order).await),
            Err(refused) => refused,
        }
    })
}

pub(super) fn start_update_metadata(call: Call) -> Starting {
    Box::pin(async move {
        match call.decode::<UpdateMetadataRequest>() {
            Ok(order) => told(&call, update_metadata(&call.context, &call.connection, order).await),
            Err(refused) => refused,
        }
    })
}

fn told(call: &Call, answered: Answered<impl Encodable + 'static>) -> Answer {
    match answered {
        Answered::Answer(response) => call.reply().now(&response),
        Answered::Close => Answer::Close(format!(
            "{} came over a connection that gives no orders (any more)",
            call.frame.api()
        )),
    }
}

/// The refusal of an older version, in its shape.
pub(super) fn refuse_version<R: Request>(call: Call) -> Starting
where
    R::Response: Refusable + 'static,
{
    call.now(|_, _: R| R::Response::unsupported())
}

/// A response that can say no as a whole.
pub(super) trait Refusable {
    fn unsupported() -> Self;
}

macro_rules! refusable {
    ($($response:ident)*) => {
        $(impl Refusable for kafka_protocol::messages::$response {
            fn unsupported() -> Self {
                Self::default().with_error_code(zurau_common::rejection::Rejection::UnsupportedVersion.code())
            }
        })*
    };
}

refusable! { LeaderAndIsrResponse StopReplicaResponse UpdateMetadataResponse }

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kafka_protocol::messages::{LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse};

    use super::*;

    #[test]
    fn older_versions_are_refused_in_their_shape() {
        for version in 0..7 {
            LeaderAndIsrResponse::unsupported().encode(&mut BytesMut::new(), version).unwrap();
            UpdateMetadataResponse::unsupported().encode(&mut BytesMut::new(), version).unwrap();
        }
        for version in 0..4 {
            StopReplicaResponse::unsupported().encode(&mut BytesMut::new(), version).unwrap();
        }
        assert_eq!(StopReplicaResponse::unsupported().error_code, 35);
    }
}
