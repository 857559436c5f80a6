//! SyncGroup (14), versions 0-5: a member asks for its assignment; the leader brings everyone's.
//!
//! - v3 static members; v5 protocol type and name, which must be given and be the group's.
//! - While the coordinator loads the answer is 27: the rebalance is lost, and older clients do not expect 14 here.

use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use zurau_common::rejection::Rejection;

use super::group_words::{named_group, optional_text, optional_wire, text};
use super::{Call, Starting};
use crate::groups::{GroupId, SyncRequest, Synced};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: SyncGroupRequest| async move {
        let version = call.version();
        let answer = match check(&request, version) {
            Ok(group) => {
                let synced = call.context.groups.ask(&call.context, &group, wanted(&request)).await.flatten();
                synced.map_err(|rejection| match rejection {
                    Rejection::CoordinatorLoadInProgress => Rejection::RebalanceInProgress,
                    other => other,
                })
            }
            Err(rejection) => Err(rejection),
        };
        respond(answer, version)
    })
}

fn check(request: &SyncGroupRequest, version: i16) -> Result<GroupId, Rejection> {
    if 5 <= version && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return Err(Rejection::InconsistentGroupProtocol);
    }
    named_group(&request.group_id)
}

fn wanted(request: &SyncGroupRequest) -> SyncRequest {
    SyncRequest {
        generation: request.generation_id,
        member_id: text(&request.member_id),
        instance_id: optional_text(request.group_instance_id.as_ref()),
        protocol_type: optional_text(request.protocol_type.as_ref()),
        protocol: optional_text(request.protocol_name.as_ref()),
        assignments: request
            .assignments
            .iter()
            .map(|assigned| (text(&assigned.member_id), assigned.assignment.clone()))
            .collect(),
    }
}

fn respond(answer: Result<Synced, Rejection>, version: i16) -> SyncGroupResponse {
    match answer {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type(optional_wire(synced.protocol_type.as_ref()).filter(|_| 5 <= version))
            .with_protocol_name(optional_wire(synced.protocol.as_ref()).filter(|_| 5 <= version))
            .with_assignment(synced.assignment),
        Err(rejection) => SyncGroupResponse::default().with_error_code(rejection.code()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::group_words::wire;
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let synced = Synced {
            protocol_type: Some("consumer".into()),
            protocol: Some("range".into()),
            assignment: Bytes::from_static(b"x"),
        };
        assert_every_version_encodes::<SyncGroupRequest>(|version| respond(Ok(synced.clone()), version));
        let refused = |version| respond(Err(Rejection::IllegalGeneration), version);
        assert_every_version_encodes::<SyncGroupRequest>(refused);
    }

    #[test]
    fn what_must_be_given_depends_on_the_version() {
        let request = SyncGroupRequest::default().with_group_id(wire("g").into());
        assert_eq!(check(&request, 4), Ok("g".into()));
        assert_eq!(check(&request, 5), Err(Rejection::InconsistentGroupProtocol));
        assert_eq!(check(&SyncGroupRequest::default(), 4), Err(Rejection::InvalidGroupId));
    }
}
