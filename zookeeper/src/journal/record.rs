//! Records of journal files: length, CRC-32C of the payload, payload. Pure.

use bytes::{Buf, Bytes};

const HEADER_BYTES: usize = 8;

pub(crate) fn append(bytes: &mut Vec<u8>, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("records stay far below 4 GiB");
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(payload).to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// The payloads up to the first record that is cut or damaged, and the number of bytes from there.
pub(crate) fn split(mut bytes: Bytes) -> (Vec<Bytes>, usize) {
    let mut payloads = Vec::new();
    while bytes.len() >= HEADER_BYTES {
        let mut header = bytes.slice(..HEADER_BYTES);
        let (length, crc) = (header.get_u32() as usize, header.get_u32());
        if length > bytes.len() - HEADER_BYTES {
            break;
        }
        let payload = bytes.slice(HEADER_BYTES..HEADER_BYTES + length);
        // A zeroed tail would pass as empty records: no record of ours is empty.
        if length == 0 || crc32c::crc32c(&payload) != crc {
            break;
        }
        payloads.push(payload);
        bytes.advance(HEADER_BYTES + length);
    }
    (payloads, bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_or_flipped_byte_ends_the_records_there() {
        let mut bytes = Vec::new();
        append(&mut bytes, b"one");
        let first = bytes.len();
        append(&mut bytes, b"two");
        for cut in first..bytes.len() {
            let (payloads, rest) = split(Bytes::copy_from_slice(&bytes[..cut]));
            assert_eq!((payloads, rest), (vec![Bytes::from_static(b"one")], cut - first));
        }
        for position in first..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1;
            assert_eq!(split(damaged.into()).0.len(), 1, "byte {position}");
        }
        bytes.extend_from_slice(&[0; 64]);
        assert_eq!(split(bytes.into()), (vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")], 64));
    }
}
