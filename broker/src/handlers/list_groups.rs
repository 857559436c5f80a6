//! ListGroups (16), versions 0-5: the groups that this broker coordinates. There are none until groups exist.
//!
//! - v4 filters by state, v5 by type.

use kafka_protocol::messages::{ListGroupsRequest, ListGroupsResponse};

use super::{Call, Starting};

pub(super) fn start(call: Call) -> Starting {
    call.now(|_, _: ListGroupsRequest| ListGroupsResponse::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;

    #[test]
    fn every_version_encodes() {
        assert_every_version_encodes::<ListGroupsRequest>(|_| ListGroupsResponse::default());
    }
}
