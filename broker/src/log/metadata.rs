//! `partition.metadata`: which incarnation of the topic a directory belongs to (D11).

use std::path::Path;

use tracing::warn;
use uuid::Uuid;

use super::error::StorageError;
use super::files::read_if_present;

pub(crate) const PARTITION_METADATA: &str = "partition.metadata";

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// A topic id in base64 for URLs, without padding.
const ENCODED_BYTES: usize = 22;

pub(crate) fn encode_topic_id(topic_id: Uuid) -> String {
    let value = topic_id.as_u128();
    // 128 bits are 21 groups of six and one of two.
    let mut text = String::from("version: 0\ntopic_id: ");
    for group in 0..ENCODED_BYTES {
        let six = if group < ENCODED_BYTES - 1 { value >> (122 - 6 * group) } else { value << 4 };
        text.push(char::from(ALPHABET[(six & 0x3f) as usize]));
    }
    text.push('\n');
    text
}

fn decode_topic_id(text: &[u8]) -> Option<Uuid> {
    let text = std::str::from_utf8(text).ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim))
    };
    if field("version")? != "0" {
        return None;
    }
    let encoded = field("topic_id")?.as_bytes();
    if encoded.len() != ENCODED_BYTES {
        return None;
    }
    let mut value = 0u128;
    for (group, byte) in encoded.iter().enumerate() {
        let six = ALPHABET.iter().position(|letter| letter == byte)? as u128;
        value = if group < ENCODED_BYTES - 1 { value << 6 | six } else { value << 2 | six >> 4 };
    }
    Some(Uuid::from_u128(value))
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
        fn round_trip(value in any::<u128>()) {
            let topic_id = Uuid::from_u128(value);
            prop_assert_eq!(decode_topic_id(encode_topic_id(topic_id).as_bytes()), Some(topic_id));
        }
    }
}
