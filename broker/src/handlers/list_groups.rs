//! ListGroups (16), versions 0-5: the groups that this broker coordinates. v4 filters by state, v5 by type.
//!
//! - If a partition of the coordinator still loads, the others' groups come with error 14.

use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::{Rejection, error_code};

use super::group_words::wire;
use super::{Call, Starting};
use crate::groups::Listing;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: ListGroupsRequest| async move {
        let (listings, outcome) = call.context.groups.list(&call.context).await;
        respond(&request, &listings, outcome, call.version())
    })
}

fn respond(
    request: &ListGroupsRequest,
    listings: &[Listing],
    outcome: Result<(), Rejection>,
    version: i16,
) -> ListGroupsResponse {
    let wants = |filter: &[StrBytes], value: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(value))
    };
    let groups = listings
        .iter()
        .filter(|group| {
            wants(&request.states_filter, group.state) && wants(&request.types_filter, group.group_type)
        })
        .map(|group| {
            ListedGroup::default()
                .with_group_id(wire(&group.group).into())
                .with_protocol_type(wire(&group.protocol_type))
                .with_group_state(if 4 <= version { wire(group.state) } else { StrBytes::default() })
                .with_group_type(if 5 <= version { wire(group.group_type) } else { StrBytes::default() })
        });
    ListGroupsResponse::default().with_error_code(error_code(&outcome)).with_groups(groups.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    fn listings() -> Vec<Listing> {
        let listing = |group: &str, state, group_type| Listing {
            group: group.into(),
            protocol_type: "".into(),
            state,
            group_type,
        };
        vec![
            listing("a", "Stable", "classic"),
            listing("b", "Empty", "classic"),
            listing("c", "Reconciling", "consumer"),
        ]
    }

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<ListGroupsRequest>(|version| {
            respond(&ListGroupsRequest::default(), &listings(), Ok(()), version)
        });
    }

    #[test]
    fn filters_are_lists_of_what_is_wanted() {
        let names = |states: &[&'static str], types: &[&'static str]| -> Vec<String> {
            let filter = |names: &[&'static str]| names.iter().map(|name| (*name).into()).collect();
            let request = ListGroupsRequest::default()
                .with_states_filter(filter(states))
                .with_types_filter(filter(types));
            let response = respond(&request, &listings(), Ok(()), 5);
            response.groups.iter().map(|group| group.group_id.to_string()).collect()
        };
        assert_eq!(names(&[], &[]), ["a", "b", "c"]);
        assert_eq!(names(&["Empty"], &[]), ["b"]);
        assert_eq!(names(&["stable", "Dead"], &["Classic"]), ["a"]);
        assert_eq!(names(&[], &["consumer"]), ["c"]);
        assert_eq!(names(&["reconciling"], &["share", "Consumer"]), ["c"]);
        assert_eq!(names(&[], &["share"]), [""; 0]);
    }
}
