//! FindCoordinator (10), versions 0-6: which broker coordinates a group or a transactional id.
//!
//! - The first question creates `__consumer_offsets` or `__transaction_state`; until it has leaders the answer is
//!   COORDINATOR_NOT_AVAILABLE, which clients take as "ask again".
//! - v1 adds the key type (0 group, 1 transaction) and a message; v4 asks for many keys at once.
//! - v6 knows share groups (type 2) in KRaft only; here an unknown type is INVALID_REQUEST.

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::id::BrokerId;
use zurau_common::rejection::Rejection;

use super::{Call, Starting};
use crate::metadata::BrokerAddress;
use crate::topic_plan::Refusal;

const KEY_TYPE_GROUP: i8 = 0;
const KEY_TYPE_TRANSACTION: i8 = 1;

type Found = Result<(BrokerId, BrokerAddress), Refusal>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: FindCoordinatorRequest| async move {
        let version = call.version();
        if version < 4 {
            return respond_single(find(&call, request.key_type, &request.key).await, version);
        }
        let mut coordinators = Vec::with_capacity(request.coordinator_keys.len());
        for key in request.coordinator_keys {
            let found = find(&call, request.key_type, &key).await;
            coordinators.push(respond_key(key, found));
        }
        FindCoordinatorResponse::default().with_coordinators(coordinators)
    })
}

async fn find(call: &Call, key_type: i8, key: &str) -> Found {
    let context = &call.context;
    let leader = match key_type {
        KEY_TYPE_GROUP => context.groups.offices.topic.coordinator_of(context, key).await?,
        KEY_TYPE_TRANSACTION => context.transactions.offices.topic.coordinator_of(context, key).await?,
        other => {
            let message = format!("unknown coordinator type {other}");
            return Err(Refusal::new(Rejection::InvalidRequest, message));
        }
    };
    let listener = &*call.connection.listener.0;
    let image = context.metadata.image();
    let address = image.brokers.get(&leader).and_then(|broker| broker.address(listener)).cloned();
    address.map(|address| (leader, address)).ok_or_else(|| {
        let message =
            format!("broker {leader} coordinates, but is not reachable through listener {listener}");
        Refusal::new(Rejection::CoordinatorNotAvailable, message)
    })
}

fn respond_key(key: StrBytes, found: Found) -> Coordinator {
    let response = Coordinator::default().with_key(key);
    match found {
        Ok((leader, address)) => response
            .with_node_id(leader.0.into())
            .with_host(StrBytes::from_string(address.host))
            .with_port(i32::from(address.port)),
        Err(refusal) => response
            .with_node_id((-1).into())
            .with_port(-1)
            .with_error_code(refusal.rejection.code())
            .with_error_message(Some(StrBytes::from_string(refusal.message))),
    }
}

fn respond_single(found: Found, version: i16) -> FindCoordinatorResponse {
    let one = respond_key(StrBytes::default(), found);
    FindCoordinatorResponse::default()
        .with_error_code(one.error_code)
        .with_error_message(one.error_message.filter(|_| 1 <= version))
        .with_node_id(one.node_id)
        .with_host(one.host)
        .with_port(one.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let address = || BrokerAddress { listener: "PLAINTEXT".to_owned(), host: "h".to_owned(), port: 9092 };
        let not_now = || Err(Refusal::new(Rejection::CoordinatorNotAvailable, "why"));
        for is_found in [true, false] {
            assert_every_version_encodes::<FindCoordinatorRequest>(|version| {
                let found = if is_found { Ok((BrokerId(1), address())) } else { not_now() };
                if version < 4 {
                    return respond_single(found, version);
                }
                FindCoordinatorResponse::default().with_coordinators(vec![respond_key("a".into(), found)])
            });
        }
        let found = respond_single(Ok((BrokerId(1), address())), 2);
        assert_eq!((found.error_code, found.node_id.0, found.port), (0, 1, 9092));
        let refused = respond_key("a".into(), not_now());
        assert_eq!((refused.error_code, refused.node_id.0, refused.port), (15, -1, -1));
    }
}
