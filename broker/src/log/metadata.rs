//! `partition.metadata`: which incarnation of the topic a directory belongs to (D11).

use std::path::Path;

use tracing::warn;
use uuid::Uuid;
use zurau_common::id::TopicId;

use super::error::StorageError;
use super::files::read_if_present;

pub(crate) const PARTITION_METADATA: &str = "partition.metadata";

pub(crate) fn encode_topic_id(topic_id: Uuid) -> String {
    format!("version: 0\ntopic_id: {}\n", TopicId(topic_id))
}

fn decode_topic_id(text: &[u8]) -> Option<Uuid> {
    let text = std::str::from_utf8(text).ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim))
    };
    if field("version")? != "0" {
        return None;
    }
    TopicId::parse(field("topic_id")?).map(|topic_id| topic_id.0)
}

/// The topic id of a directory, `None` without a (readable) file; a damaged one is reported.
pub(crate) fn read_topic_id(path: &Path) -> Result<Option<Uuid>, StorageError> {
    let Some(text) = read_if_present(path)? else { return Ok(None) };
    let topic_id = decode_topic_id(&text);
    if topic_id.is_none() {
        warn!(path = %path.display(), "partition metadata is damaged; the topic id of this directory is unknown");
    }
    Ok(topic_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_kafkas() {
        let topic_id = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        assert_eq!(encode_topic_id(topic_id), "version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n");
        for text in
            ["", "version: 1\ntopic_id: ABEiM0RVZneImaq7zN3u_w", "version: 0\ntopic_id: short", "\u{0}"]
        {
            assert_eq!(decode_topic_id(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(value in 1..u128::MAX) {
            let topic_id = Uuid::from_u128(value);
            prop_assert_eq!(decode_topic_id(encode_topic_id(topic_id).as_bytes()), Some(topic_id));
        }
    }
}
