//! JoinGroup (11), versions 0-9: a member joins its group, or joins again; the answer comes when the rebalance ends.
//!
//! - v1 the rebalance timeout, before it is the session timeout; v4 a dynamic member without an id gets one with error
//!   79 and joins with it; v5 static members (KIP-345); v7 the protocol's type in the answer; v8 a reason, for the log
//!   of the client only; v9 a static leader may be told not to assign (KIP-814).

use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use uuid::Uuid;
use zurau_common::rejection::Rejection;

use super::group_words::{STORED_TEXT_BYTES_MAX, named_group, optional_text, optional_wire, text, wire};
use super::{Call, Starting};
use crate::groups::{JoinAnswer, JoinRequest, Protocol};

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: JoinGroupRequest| async move {
        let version = call.version();
        let asked = wanted(&request, &call);
        let refused = |rejection| JoinAnswer::refused(rejection, text(&request.member_id));
        let answer = match named_group(&request.group_id).and_then(|group| storable(&asked).map(|()| group)) {
            Ok(group) => {
                let joined = call.context.groups.ask(&call.context, &group, asked).await;
                joined.unwrap_or_else(refused)
            }
            Err(rejection) => refused(rejection),
        };
        respond(&answer, version)
    })
}

fn wanted(request: &JoinGroupRequest, call: &Call) -> JoinRequest {
    let version = call.version();
    let client_id = call.frame.client_id.as_ref();
    JoinRequest {
        member_id: text(&request.member_id),
        instance_id: optional_text(request.group_instance_id.as_ref()),
        client_id: optional_text(client_id).unwrap_or_default(),
        // As Java prints an address, which tools show.
        client_host: format!("/{}", call.connection.peer_address.ip()).into(),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: if version == 0 {
            request.session_timeout_ms
        } else {
            request.rebalance_timeout_ms
        },
        protocol_type: text(&request.protocol_type),
        protocols: request
            .protocols
            .iter()
            .map(|protocol| Protocol { name: text(&protocol.name), metadata: protocol.metadata.clone() })
            .collect(),
        requires_known_member_id: 4 <= version && request.group_instance_id.is_none(),
        supports_skipping_assignment: 9 <= version,
        fresh_id: Uuid::new_v4().to_string().into(),
    }
}

/// Whether what the member says of itself fits into the record of its group.
fn storable(asked: &JoinRequest) -> Result<(), Rejection> {
    let names = asked.protocols.iter().map(|protocol| &protocol.name);
    let texts = [&asked.member_id, &asked.client_id, &asked.protocol_type].into_iter();
    let longest = texts.chain(&asked.instance_id).chain(names).map(|text| text.len()).max();
    if STORED_TEXT_BYTES_MAX < longest.unwrap_or(0) { Err(Rejection::InvalidRequest) } else { Ok(()) }
}

fn respond(answer: &JoinAnswer, version: i16) -> JoinGroupResponse {
    let members = answer.members.iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(wire(&member.member_id))
            .with_group_instance_id(optional_wire(member.instance_id.as_ref()).filter(|_| 5 <= version))
            .with_metadata(member.metadata.clone())
    });
    let protocol = optional_wire(answer.protocol.as_ref());
    JoinGroupResponse::default()
        .with_error_code(answer.rejection.map_or(0, Rejection::code))
        .with_generation_id(answer.generation)
        .with_protocol_type(optional_wire(answer.protocol_type.as_ref()).filter(|_| 7 <= version))
        .with_protocol_name(if 7 <= version { protocol } else { Some(protocol.unwrap_or_default()) })
        .with_leader(wire(&answer.leader))
        .with_skip_assignment(9 <= version && answer.skip_assignment)
        .with_member_id(wire(&answer.member_id))
        .with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::groups::JoinedMember;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let answer = JoinAnswer {
            rejection: None,
            generation: 3,
            protocol_type: Some("consumer".into()),
            protocol: Some("range".into()),
            leader: "l".into(),
            skip_assignment: true,
            member_id: "m".into(),
            members: vec![JoinedMember {
                member_id: "m".into(),
                instance_id: Some("i".into()),
                metadata: Bytes::from_static(b"x"),
            }],
        };
        assert_every_version_encodes::<JoinGroupRequest>(|version| respond(&answer, version));
        let refused = JoinAnswer::refused(Rejection::MemberIdRequired, "m".into());
        assert_every_version_encodes::<JoinGroupRequest>(|version| respond(&refused, version));
        assert_eq!(respond(&refused, 9).error_code, 79);
    }
}
