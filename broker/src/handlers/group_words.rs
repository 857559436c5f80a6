//! Words that the handlers of the group APIs share: strings to and from the wire, and what they have in common.

use std::sync::Arc;

use kafka_protocol::messages::GroupId as WireGroupId;
use kafka_protocol::protocol::StrBytes;
use zurau_common::rejection::Rejection;

use crate::groups::{CommittedTopic, GroupId};
use crate::metadata::MetadataImage;

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

/// Longest id or name that is stored, in bytes: flexible versions carry longer ones than Kafka's records can, and an id
/// of a member is made of a name and a number.
pub(super) const STORED_TEXT_BYTES_MAX: usize = i16::MAX as usize - 64;

/// The id of a group that has members; it may not be empty. Offsets may be stored without a group's name.
pub(super) fn named_group(id: &WireGroupId) -> Result<GroupId, Rejection> {
    if id.is_empty() { Err(Rejection::InvalidGroupId) } else { any_group(id) }
}

/// The id of a group that offsets are stored for.
pub(super) fn any_group(id: &WireGroupId) -> Result<GroupId, Rejection> {
    if STORED_TEXT_BYTES_MAX < id.len() { Err(Rejection::InvalidGroupId) } else { Ok(text(id)) }
}

/// What became of each partition of a commit's topic, which is the `index`th of the request. Partitions that do not exist
/// were not handed to the coordinator; `answer` does not hold them.
pub(super) fn committed<'a>(
    answer: &'a Result<Vec<CommittedTopic>, Rejection>,
    image: &'a MetadataImage,
    (index, topic): (usize, &'a str),
    partitions: impl Iterator<Item = i32> + 'a,
) -> impl Iterator<Item = (i32, Option<Rejection>)> + 'a {
    let committed = answer.as_ref().ok().and_then(|topics| topics.get(index));
    let mut outcomes = committed.into_iter().flat_map(|(_, partitions)| partitions);
    partitions.map(move |number| {
        let rejection = match answer {
            _ if image.partition(topic, number).is_none() => Some(Rejection::UnknownTopicOrPartition),
            Ok(_) => outcomes.next().and_then(|(_, refused)| *refused),
            Err(rejection) => Some(*rejection),
        };
        (number, rejection)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_groups_fit_into_their_records() {
        let id = |length| WireGroupId(wire(&"g".repeat(length)));
        assert_eq!(named_group(&id(0)), Err(Rejection::InvalidGroupId));
        assert!(any_group(&id(0)).is_ok());
        for check in [named_group, any_group] {
            assert!(check(&id(STORED_TEXT_BYTES_MAX)).is_ok());
            assert_eq!(check(&id(STORED_TEXT_BYTES_MAX + 1)), Err(Rejection::InvalidGroupId));
        }
    }
}
