//! LeaveGroup (13), versions 0-5: members leave at once instead of by their session timeout.
//!
//! - v0-2 one member, whose outcome is the answer's; v3 many members, each with its outcome, static ones by name too;
//!   v5 a reason, which is not used.

use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use zurau_common::rejection::{Rejection, error_code};

use super::group_words::{named_group, optional_text, optional_wire, text, wire};
use super::{Call, Starting};
use crate::groups::{LeaveRequest, LeavingMember};

type Outcomes = Result<Vec<Result<(), Rejection>>, Rejection>;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: LeaveGroupRequest| async move {
        let version = call.version();
        let asked = wanted(&request, version);
        let answer = match named_group(&request.group_id) {
            Ok(group) => call.context.groups.ask(&call.context, &group, asked.clone()).await.flatten(),
            Err(rejection) => Err(rejection),
        };
        respond(&asked, answer, version)
    })
}

fn wanted(request: &LeaveGroupRequest, version: i16) -> LeaveRequest {
    if version < 3 {
        let member = LeavingMember { member_id: text(&request.member_id), instance_id: None };
        return LeaveRequest { members: vec![member] };
    }
    let members = request.members.iter().map(|member| LeavingMember {
        member_id: text(&member.member_id),
        instance_id: optional_text(member.group_instance_id.as_ref()),
    });
    LeaveRequest { members: members.collect() }
}

fn respond(asked: &LeaveRequest, answer: Outcomes, version: i16) -> LeaveGroupResponse {
    let outcomes = match answer {
        Ok(outcomes) => outcomes,
        Err(rejection) => return LeaveGroupResponse::default().with_error_code(rejection.code()),
    };
    if version < 3 {
        let code = outcomes.first().map_or(0, error_code);
        return LeaveGroupResponse::default().with_error_code(code);
    }
    let members = asked.members.iter().zip(&outcomes).map(|(member, outcome)| {
        MemberResponse::default()
            .with_member_id(wire(&member.member_id))
            .with_group_instance_id(optional_wire(member.instance_id.as_ref()))
            .with_error_code(error_code(outcome))
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let member = LeavingMember { member_id: "m".into(), instance_id: Some("i".into()) };
        let asked = LeaveRequest { members: vec![member] };
        let unknown = || Ok(vec![Err(Rejection::UnknownMemberId)]);
        assert_every_version_encodes::<LeaveGroupRequest>(|version| respond(&asked, unknown(), version));
        assert_eq!(respond(&asked, unknown(), 2).error_code, 25);
        let newest = respond(&asked, unknown(), 5);
        assert_eq!((newest.error_code, newest.members[0].error_code), (0, 25));
        assert_eq!(respond(&asked, Err(Rejection::NotCoordinator), 5).error_code, 16);
    }
}
