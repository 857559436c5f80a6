//! DescribeGroups (15), versions 0-5: state and members of groups. A group that does not exist is "Dead", and so is one
//! of the consumer protocol, which ConsumerGroupDescribe tells of.
//!
//! - v3 authorized operations, without an authorizer all; v4 static members.

use futures::StreamExt as _;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};
use zurau_common::rejection::Rejection;

use super::group_words::{optional_wire, text, wire};
use super::{Call, Starting};
use crate::groups::{DescribeRequest, Description};

/// Groups of one request that are asked at the same time.
const GROUPS_IN_FLIGHT: usize = 16;
/// Operations on a group: read, delete, describe.
pub(super) const GROUP_OPERATIONS: i32 = 0x0148;
/// What stands in for authorized operations that were not asked for.
pub(super) const NOT_ASKED: i32 = i32::MIN;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DescribeGroupsRequest| async move {
        let context = &call.context;
        let version = call.version();
        let operations = if request.include_authorized_operations { GROUP_OPERATIONS } else { NOT_ASKED };
        let descriptions: Vec<_> = request
            .groups
            .iter()
            .map(|group| async move {
                let described = context.groups.ask(context, &text(group), DescribeRequest).await.flatten();
                respond(group, described, version).with_authorized_operations(operations)
            })
            .collect();
        let groups = futures::stream::iter(descriptions).buffered(GROUPS_IN_FLIGHT).collect().await;
        DescribeGroupsResponse::default().with_groups(groups)
    })
}

fn respond(group: &GroupId, described: Result<Description, Rejection>, version: i16) -> DescribedGroup {
    let response = DescribedGroup::default().with_group_id(group.clone());
    let description = match described {
        Ok(description) => description,
        Err(rejection) => {
            return response.with_error_code(rejection.code()).with_authorized_operations(NOT_ASKED);
        }
    };
    let members = description.members.iter().map(|member| {
        DescribedGroupMember::default()
            .with_member_id(wire(&member.member_id))
            .with_group_instance_id(optional_wire(member.instance_id.as_ref()).filter(|_| 4 <= version))
            .with_client_id(wire(&member.client_id))
            .with_client_host(wire(&member.client_host))
            .with_member_metadata(member.metadata.clone())
            .with_member_assignment(member.assignment.clone())
    });
    response
        .with_group_state(wire(description.state))
        .with_protocol_type(wire(&description.protocol_type))
        .with_protocol_data(wire(&description.protocol))
        .with_members(members.collect())
        .with_authorized_operations(NOT_ASKED)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::groups::DescribedMember;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        let description = Description {
            state: "Stable",
            protocol_type: "consumer".into(),
            protocol: "range".into(),
            members: vec![DescribedMember {
                member_id: "m".into(),
                instance_id: Some("i".into()),
                client_id: "c".into(),
                client_host: "/127.0.0.1".into(),
                metadata: Bytes::from_static(b"x"),
                assignment: Bytes::from_static(b"y"),
            }],
        };
        let group = GroupId::from(wire("g"));
        assert_every_version_encodes::<DescribeGroupsRequest>(|version| {
            let refused = respond(&group, Err(Rejection::NotCoordinator), version);
            let groups = vec![respond(&group, Ok(description.clone()), version), refused];
            DescribeGroupsResponse::default().with_groups(groups)
        });
    }
}
