//! Pieces that the records of both coordinators are made of, as Kafka's classic encoding writes them. Every length is
//! checked against the bytes that are there.
//!
//! Pure.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;
use uuid::Uuid;

/// Clients cannot send longer strings, so a stored one is never longer.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Why a record cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum RecordProblem {
    #[error("the record has no key")]
    NoKey,
    #[error("the {0} ends early, has a negative length or text that is not UTF-8")]
    Malformed(&'static str),
    #[error("the value has version {0}, which this broker does not know")]
    ValueVersion(i16),
}

pub(crate) fn put_string(bytes: &mut BytesMut, text: &str) {
    assert!(text.len() <= STRING_BYTES_MAX, "a string of {} bytes came through the wire's limit", text.len());
    bytes.put_i16(text.len() as i16);
    bytes.put_slice(text.as_bytes());
}

/// Seven bits a byte, the low ones first.
pub(crate) fn put_unsigned_varint(bytes: &mut BytesMut, mut value: u32) {
    while 0x80 <= value {
        bytes.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value as u8);
}

/// A length in the compact encoding: one more than it is.
pub(crate) fn put_compact_length(bytes: &mut BytesMut, length: usize) {
    let length =
        u32::try_from(length + 1).expect("what a coordinator holds is bounded by its requests' frames");
    put_unsigned_varint(bytes, length);
}

pub(crate) fn put_compact_string(bytes: &mut BytesMut, text: &str) {
    put_compact_length(bytes, text.len());
    bytes.put_slice(text.as_bytes());
}

pub(crate) fn put_compact_nullable_string(bytes: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_compact_string(bytes, text),
        None => bytes.put_u8(0),
    }
}

/// Reads from the front of stored bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// For the error.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], RecordProblem> {
        let (head, rest) = self.bytes.split_at_checked(length).ok_or(RecordProblem::Malformed(self.what))?;
        self.bytes = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordProblem> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub(crate) fn i8(&mut self) -> Result<i8, RecordProblem> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    /// Seven bits a byte, the low ones first, as the compact encoding writes lengths.
    pub(crate) fn unsigned_varint(&mut self) -> Result<u32, RecordProblem> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(RecordProblem::Malformed(self.what))
    }

    /// A length in the compact encoding; `None` for null.
    pub(crate) fn compact_length(&mut self) -> Result<Option<usize>, RecordProblem> {
        Ok(self.unsigned_varint()?.checked_sub(1).map(|length| length as usize))
    }

    /// The length of a list that may not be null.
    pub(crate) fn compact_count(&mut self) -> Result<usize, RecordProblem> {
        self.compact_length()?.ok_or(RecordProblem::Malformed(self.what))
    }

    pub(crate) fn compact_nullable_string(&mut self) -> Result<Option<Arc<str>>, RecordProblem> {
        let Some(length) = self.compact_length()? else { return Ok(None) };
        self.text(length).map(Some)
    }

    pub(crate) fn compact_string(&mut self) -> Result<Arc<str>, RecordProblem> {
        self.compact_nullable_string()?.ok_or(RecordProblem::Malformed(self.what))
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, RecordProblem> {
        Ok(Uuid::from_bytes(self.array()?))
    }

    /// Tagged fields say nothing that is needed here.
    pub(crate) fn skip_tagged_fields(&mut self) -> Result<(), RecordProblem> {
        for _ in 0..self.unsigned_varint()? {
            self.unsigned_varint()?;
            let length = self.unsigned_varint()?;
            self.skip(length as usize)?;
        }
        Ok(())
    }

    /// As many bytes of text.
    pub(crate) fn text(&mut self, length: usize) -> Result<Arc<str>, RecordProblem> {
        let text = std::str::from_utf8(self.take(length)?);
        Ok(text.map_err(|_| RecordProblem::Malformed(self.what))?.into())
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<(), RecordProblem> {
        self.take(length).map(|_| ())
    }

    pub(crate) fn i16(&mut self) -> Result<i16, RecordProblem> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, RecordProblem> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, RecordProblem> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(crate) fn nullable_string(&mut self) -> Result<Option<Arc<str>>, RecordProblem> {
        let Ok(length) = usize::try_from(self.i16()?) else { return Ok(None) };
        self.text(length).map(Some)
    }

    pub(crate) fn string(&mut self) -> Result<Arc<str>, RecordProblem> {
        self.nullable_string()?.ok_or(RecordProblem::Malformed(self.what))
    }

    pub(crate) fn byte_string(&mut self) -> Result<Bytes, RecordProblem> {
        let length = usize::try_from(self.i32()?).map_err(|_| RecordProblem::Malformed(self.what))?;
        Ok(Bytes::copy_from_slice(self.take(length)?))
    }
}
