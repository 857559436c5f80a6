//! FindCoordinator (10), versions 0-6: which broker coordinates a group or a transactional id.
//!
//! - Until groups and transactions exist the answer is COORDINATOR_NOT_AVAILABLE, which clients take as "ask again".
//! - v1 adds the key type (0 group, 1 transaction) and a message; v4 asks for many keys at once.
//! - v6 knows share groups (type 2) in KRaft only; here an unknown type is INVALID_REQUEST.

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::Rejection;

use super::{Call, Starting};

const KEY_TYPE_GROUP: i8 = 0;
const KEY_TYPE_TRANSACTION: i8 = 1;

pub(super) fn start(call: Call) -> Starting {
    call.now(|call, request: FindCoordinatorRequest| answer(&request, call.version()))
}

fn answer(request: &FindCoordinatorRequest, version: i16) -> FindCoordinatorResponse {
    let (rejection, message) = match request.key_type {
        KEY_TYPE_GROUP => {
            (Rejection::CoordinatorNotAvailable, "this release has no group coordinator yet".to_owned())
        }
        KEY_TYPE_TRANSACTION => {
            (Rejection::CoordinatorNotAvailable, "this release has no transaction coordinator yet".to_owned())
        }
        other => (Rejection::InvalidRequest, format!("unknown coordinator type {other}")),
    };
    let message = Some(StrBytes::from_string(message));
    if 4 <= version {
        let coordinators = request.coordinator_keys.iter().map(|key| {
            Coordinator::default()
                .with_key(key.clone())
                .with_node_id((-1).into())
                .with_port(-1)
                .with_error_code(rejection.code())
                .with_error_message(message.clone())
        });
        return FindCoordinatorResponse::default().with_coordinators(coordinators.collect());
    }
    FindCoordinatorResponse::default()
        .with_error_code(rejection.code())
        .with_error_message(if 1 <= version { message } else { None })
        .with_node_id((-1).into())
        .with_port(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_says_that_there_is_none_yet() {
        let request = |version| {
            let request = FindCoordinatorRequest::default();
            if 4 <= version { request.with_coordinator_keys(vec!["a".into(), "b".into()]) } else { request }
        };
        assert_every_version_encodes::<FindCoordinatorRequest>(|version| answer(&request(version), version));
        assert_eq!(answer(&request(2), 2).error_code, 15);
        let codes: Vec<i16> = answer(&request(6), 6).coordinators.iter().map(|c| c.error_code).collect();
        assert_eq!(codes, [15, 15]);
        assert_eq!(answer(&request(2).with_key_type(9), 2).error_code, 42);
    }
}
