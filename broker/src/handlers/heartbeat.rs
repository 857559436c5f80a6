//! Heartbeat (12), versions 0-4: a member lives, and learns whether it has to join again. v3 static members.
//!
//! - While the coordinator loads every member is believed; its session begins after the load.

use kafka_protocol::messages::{HeartbeatRequest as WireRequest, HeartbeatResponse};
use zurau_common::rejection::{Rejection, error_code};

use super::group_words::{named_group, optional_text, text};
use super::{Call, Starting};
use crate::groups::HeartbeatRequest;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: WireRequest| async move {
        let asked = HeartbeatRequest {
            generation: request.generation_id,
            member_id: text(&request.member_id),
            instance_id: optional_text(request.group_instance_id.as_ref()),
        };
        let answer = match named_group(&request.group_id) {
            Ok(group) => call.context.groups.ask(&call.context, &group, asked).await.flatten(),
            Err(rejection) => Err(rejection),
        };
        respond(answer)
    })
}

fn respond(answer: Result<(), Rejection>) -> HeartbeatResponse {
    let answer = match answer {
        Err(Rejection::CoordinatorLoadInProgress) => Ok(()),
        other => other,
    };
    HeartbeatResponse::default().with_error_code(error_code(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<WireRequest>(|_| respond(Err(Rejection::RebalanceInProgress)));
        assert_eq!(respond(Err(Rejection::CoordinatorLoadInProgress)).error_code, 0);
        assert_eq!(respond(Err(Rejection::NotCoordinator)).error_code, 16);
    }
}
