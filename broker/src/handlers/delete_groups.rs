//! DeleteGroups (42), versions 0-2: groups without members are removed, with their offsets.

use futures::StreamExt as _;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};
use zurau_common::rejection::error_code;

use super::group_words::text;
use super::{Call, Starting};
use crate::groups::DeleteRequest;

/// Groups of one request that are deleted at the same time.
const GROUPS_IN_FLIGHT: usize = 16;

pub(super) fn start(call: Call) -> Starting {
    call.later(|call, request: DeleteGroupsRequest| async move {
        let context = &call.context;
        let deletions: Vec<_> = request
            .groups_names
            .iter()
            .map(|group| async move {
                let id = text(group);
                let outcome = context.groups.ask_to_write(context, &id, DeleteRequest).await.flatten();
                DeletableGroupResult::default()
                    .with_group_id(group.clone())
                    .with_error_code(error_code(&outcome))
            })
            .collect();
        let results = futures::stream::iter(deletions).buffered(GROUPS_IN_FLIGHT).collect().await;
        DeleteGroupsResponse::default().with_results(results)
    })
}

#[cfg(test)]
mod tests {
    use super::super::group_words::wire;
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<DeleteGroupsRequest>(|_| {
            let result = DeletableGroupResult::default().with_group_id(wire("g").into()).with_error_code(68);
            DeleteGroupsResponse::default().with_results(vec![result])
        });
    }
}
