//! Words that the handlers of the group APIs share: strings to and from the wire, and what they have in common.

use std::sync::Arc;

use kafka_protocol::messages::GroupId as WireGroupId;
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::Rejection;

use crate::groups::GroupId;

pub(super) fn text(wire: &StrBytes) -> Arc<str> {
    wire.as_str().into()
}

pub(super) fn optional_text(wire: Option<&StrBytes>) -> Option<Arc<str>> {
    wire.map(text)
}

pub(super) fn wire(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) fn optional_wire(text: Option<&Arc<str>>) -> Option<StrBytes> {
    text.map(|text| wire(text))
}

/// The id of a group that has members; it may not be empty. Offsets may be stored without a group's name.
pub(super) fn named_group(id: &WireGroupId) -> Result<GroupId, Rejection> {
    if id.is_empty() { Err(Rejection::InvalidGroupId) } else { Ok(text(id)) }
}
