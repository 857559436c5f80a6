//! Keeps a hostile frame from claiming memory it does not contain.
//!
//! `kafka-protocol` allocates an array by the length that stands in the frame, before it has seen one element: twelve
//! bytes can ask for hundreds of gigabytes, and a refused allocation aborts the process. A reader cannot see whether an
//! `i32` is a length or a plain field, but it can see every read. So a frame is first decoded through [`Guard`], which
//! shows any number larger than what can still follow as "one more than can follow": an array of that length must run
//! out of bytes and fail. If only plain fields were replaced, the frame is proven harmless and is decoded once more as
//! it is. Lengths of strings and bytes are told apart because the very next call asks for just that many bytes.
//! Most frames hold no such number and are decoded once.

use bytes::{Buf, Bytes};
use kafka_protocol::protocol::buf::{ByteBuf, NotEnoughBytesError};

/// Bytes of a frame that may be structure, that is everything but the contents of strings, bytes and records. With it
/// an array has at most this many elements; a frame that needs more is refused.
pub(super) const STRUCTURE_BYTES_MAX: usize = 8 << 20;

/// Numbers up to this are passed as they are: an array of so few elements claims a few megabytes at most, and the
/// usual timeouts and tag numbers need no second decoding.
const HARMLESS_LENGTH: usize = 1 << 16;

/// A number that was shown smaller than it is, and the length of bytes that it may turn out to be.
struct Shown {
    shown: usize,
    real: usize,
    /// From a varint. Those are lengths, tags, or forged booleans; only a length of bytes can be so large.
    must_be_bytes: bool,
}

/// A view of a frame; slices taken from it share the frame's memory.
pub(super) struct Guard {
    inner: Bytes,
    structure_left: usize,
    last_shown: Option<Shown>,
    /// Rest of a replaced varint, last byte first.
    replaced_varint: Vec<u8>,
    replaced_a_field: bool,
    trusted: bool,
}

impl Guard {
    /// For the first decoding: nothing in the frame is believed.
    pub(super) fn suspicious(frame: Bytes) -> Self {
        Self {
            inner: frame,
            structure_left: STRUCTURE_BYTES_MAX,
            last_shown: None,
            replaced_varint: Vec::new(),
            replaced_a_field: false,
            trusted: false,
        }
    }

    /// For the second decoding of a frame whose first one succeeded.
    pub(super) fn trusting(frame: Bytes) -> Self {
        Self { trusted: true, ..Self::suspicious(frame) }
    }

    /// Whether what was decoded differs from the frame, so that it must be decoded again.
    pub(super) fn replaced_a_field(&self) -> bool {
        self.replaced_a_field || self.last_shown.is_some()
    }

    /// Bytes of the frame that were not read.
    pub(super) fn unread(&self) -> usize {
        self.inner.len()
    }

    /// Whether the limit on structure, and not the end of the frame, stopped the decoding.
    pub(super) fn structure_exhausted(&self) -> bool {
        self.structure_left < 16 && self.structure_left < self.inner.len()
    }

    /// The largest number that need not be replaced.
    fn length_max(&self) -> usize {
        self.inner.len().min(self.structure_left).max(HARMLESS_LENGTH)
    }

    fn note_other_read(&mut self) {
        if self.last_shown.take().is_some() {
            self.replaced_a_field = true;
        }
    }

    /// Looks at the varint ahead. `Err` when it can be neither a length nor a tag.
    fn inspect_varint(&mut self) -> Result<(), ()> {
        let mut value = 0_u32;
        let mut length = 0;
        for (index, byte) in self.inner.iter().take(5).enumerate() {
            value |= u32::from(byte & 0x7f) << (index * 7);
            length = index + 1;
            if *byte < 0x80 {
                break;
            }
        }
        // Compact lengths are stored plus one.
        let claimed = (value as usize).saturating_sub(1);
        if claimed <= self.length_max() {
            return Ok(());
        }
        if claimed > self.inner.len() - length {
            return Err(());
        }
        self.inner.advance(length);
        self.structure_left = self.structure_left.saturating_sub(length);
        let shown = self.length_max() + 1;
        let mut rest = u32::try_from(shown + 1).map_err(|_| ())?;
        let mut encoded = Vec::new();
        while rest >= 0x80 {
            encoded.push((rest as u8) | 0x80);
            rest >>= 7;
        }
        encoded.push(rest as u8);
        encoded.reverse();
        self.replaced_varint = encoded;
        self.last_shown = Some(Shown { shown, real: claimed, must_be_bytes: true });
        Ok(())
    }
}

impl Buf for Guard {
    fn remaining(&self) -> usize {
        let bytes_must_follow = self.last_shown.as_ref().is_some_and(|shown| shown.must_be_bytes);
        if self.trusted {
            self.inner.len()
        } else if bytes_must_follow {
            0
        } else {
            self.inner.len().min(self.structure_left)
        }
    }

    fn chunk(&self) -> &[u8] {
        &self.inner[..self.remaining()]
    }

    fn advance(&mut self, count: usize) {
        if !self.trusted {
            self.note_other_read();
            self.structure_left = self.structure_left.saturating_sub(count);
        }
        self.inner.advance(count);
    }

    fn try_get_u8(&mut self) -> Result<u8, bytes::TryGetError> {
        if !self.trusted {
            if self.replaced_varint.is_empty() && self.chunk().first().is_some_and(|first| *first >= 0x80) {
                self.note_other_read();
                let refused = bytes::TryGetError { requested: usize::MAX, available: self.inner.len() };
                self.inspect_varint().map_err(|()| refused)?;
            }
            if let Some(byte) = self.replaced_varint.pop() {
                return Ok(byte);
            }
        }
        let [byte] = self.take_array()?;
        Ok(byte)
    }

    fn try_get_i32(&mut self) -> Result<i32, bytes::TryGetError> {
        let value = i32::from_be_bytes(self.take_array()?);
        let Ok(claimed) = usize::try_from(value) else { return Ok(value) };
        if self.trusted || claimed <= self.length_max() {
            return Ok(value);
        }
        let shown = self.length_max() + 1;
        self.last_shown = Some(Shown { shown, real: claimed, must_be_bytes: false });
        Ok(i32::try_from(shown).expect("it is smaller than an i32"))
    }
}

impl Guard {
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], bytes::TryGetError> {
        let available = self.remaining();
        let too_short = bytes::TryGetError { requested: N, available };
        let bytes = self.chunk().first_chunk::<N>().copied().ok_or(too_short)?;
        self.advance(N);
        Ok(bytes)
    }
}

impl ByteBuf for Guard {
    fn peek_bytes(&mut self, range: std::ops::Range<usize>) -> Bytes {
        self.inner.slice(range)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.inner.split_to(size)
    }

    fn try_get_bytes(&mut self, size: usize) -> Result<Bytes, NotEnoughBytesError> {
        let size = match self.last_shown.take() {
            Some(shown) if !self.replaced_varint.is_empty() || shown.shown != size => {
                if shown.must_be_bytes {
                    return Err(NotEnoughBytesError);
                }
                self.replaced_a_field = true;
                size
            }
            Some(shown) => shown.real,
            None => size,
        };
        if self.inner.len() < size {
            return Err(NotEnoughBytesError);
        }
        Ok(self.inner.split_to(size))
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;

    fn guard(build: impl FnOnce(&mut BytesMut)) -> Guard {
        let mut frame = BytesMut::new();
        build(&mut frame);
        Guard::suspicious(frame.freeze())
    }

    #[test]
    fn a_number_larger_than_what_follows_is_shown_as_one_more_than_can_follow() {
        let mut guard = guard(|frame| {
            frame.put_i32(i32::MAX);
            frame.put_i32(7);
        });
        assert_eq!(guard.try_get_i32().unwrap(), 65_537);
        assert!(guard.replaced_a_field());
        assert_eq!(guard.try_get_i32().unwrap(), 7);
        assert!(guard.replaced_a_field());
        assert_eq!(guard.unread(), 0);
    }

    #[test]
    fn small_and_negative_numbers_are_passed() {
        let mut guard = guard(|frame| {
            frame.put_i32(-1);
            frame.put_i32(30_000);
            frame.put_slice(&[0x91, 0x4e]);
        });
        assert_eq!(guard.try_get_i32().unwrap(), -1);
        assert_eq!(guard.try_get_i32().unwrap(), 30_000);
        assert_eq!((guard.try_get_u8().unwrap(), guard.try_get_u8().unwrap()), (0x91, 0x4e));
        assert!(!guard.replaced_a_field());
    }

    #[test]
    fn lengths_of_bytes_beyond_the_structure_limit_pass_unharmed() {
        let big = STRUCTURE_BYTES_MAX + 1000;
        let mut plain = guard(|frame| {
            frame.put_i32(big as i32);
            frame.put_bytes(7, big);
        });
        let shown = plain.try_get_i32().unwrap();
        assert!((shown as usize) < big);
        assert_eq!(plain.try_get_bytes(shown as usize).unwrap().len(), big);
        assert!(!plain.replaced_a_field());

        let mut compact = guard(|frame| {
            let value = (big + 1) as u32;
            frame.put_slice(&[
                value as u8 | 0x80,
                (value >> 7) as u8 | 0x80,
                (value >> 14) as u8 | 0x80,
                (value >> 21) as u8,
            ]);
            frame.put_bytes(7, big);
        });
        let mut shown = 0_usize;
        for index in 0.. {
            let byte = compact.try_get_u8().unwrap();
            shown |= usize::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                break;
            }
        }
        assert!(shown < big);
        assert_eq!(compact.try_get_bytes(shown - 1).unwrap().len(), big);
        assert!(!compact.replaced_a_field());
        assert_eq!(compact.unread(), 0);
    }

    #[test]
    fn a_varint_that_can_be_no_length_is_refused() {
        let mut guard = guard(|frame| frame.put_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1]));
        assert!(guard.try_get_u8().is_err());
    }

    #[test]
    fn structure_is_limited() {
        let mut guard = guard(|frame| frame.put_bytes(0, STRUCTURE_BYTES_MAX + 64));
        while guard.try_get_i32().is_ok() {}
        assert!(guard.structure_exhausted());
        assert_eq!(guard.unread(), 64);
    }
}
