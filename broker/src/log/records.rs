//! The records inside a batch, walked without copying: what validation, lookups by timestamp and compaction need.
//!
//! Pure. Every length is checked against the bytes that are there; bad input is an error, never a panic.

/// One record, borrowed from uncompressed batch bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordView<'a> {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    /// The whole record, its length in front included.
    pub(crate) bytes: &'a [u8],
    /// What follows the timestamp delta: offset delta, key, value, headers.
    pub(crate) rest: &'a [u8],
    pub(crate) attributes: u8,
    header_count: usize,
    header_bytes: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Names and values of the record's headers.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
        let mut reader = Reader(self.header_bytes);
        (0..self.header_count).map_while(move |_| Some((reader.nullable()??, reader.nullable()?)))
    }
}

/// Reads from the front of a byte slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn unsigned(&mut self, bytes_max: u32) -> Option<u64> {
        let mut value = 0u64;
        for index in 0..bytes_max {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(7 * index)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Zigzag, at most 5 bytes.
    fn varint(&mut self) -> Option<i32> {
        let raw = u32::try_from(self.unsigned(5)?).ok()?;
        Some((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// Zigzag, at most 10 bytes.
    fn varlong(&mut self) -> Option<i64> {
        let raw = self.unsigned(10)?;
        Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    /// A byte string with a length in front; `-1` is null.
    fn nullable(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varint()? {
            -1 => Some(None),
            length => Some(Some(self.take(usize::try_from(length).ok()?)?)),
        }
    }
}

/// Walks `count` records; yields `Err` once for malformed bytes, missing records, or bytes left over.
pub(crate) struct Records<'a> {
    reader: Reader<'a>,
    left: i32,
    done: bool,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8], count: i32) -> Self {
        Self { reader: Reader(bytes), left: count, done: false }
    }

    fn record(&mut self) -> Option<RecordView<'a>> {
        let from = self.reader.0;
        let length = usize::try_from(self.reader.varint()?).ok()?;
        let mut body = Reader(self.reader.take(length)?);
        let bytes = &from[..from.len() - self.reader.0.len()];
        let attributes = body.byte()?;
        let timestamp_delta = body.varlong()?;
        let rest = body.0;
        let offset_delta = body.varint()?;
        let key = body.nullable()?;
        let value = body.nullable()?;
        let header_count = usize::try_from(body.varint()?).ok()?;
        let header_bytes = body.0;
        for _ in 0..header_count {
            body.nullable()??;
            body.nullable()?;
        }
        let view = RecordView {
            timestamp_delta,
            offset_delta,
            key,
            value,
            bytes,
            rest,
            attributes,
            header_count,
            header_bytes,
        };
        body.0.is_empty().then_some(view)
    }
}

/// What [`Records`] says of bytes that are not the announced records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.left <= 0 {
            self.done = true;
            return (!self.reader.0.is_empty()).then_some(Err(Malformed));
        }
        self.left -= 1;
        match self.record() {
            Some(record) => Some(Ok(record)),
            None => {
                self.done = true;
                Some(Err(Malformed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::batch::HEADER_BYTES;
    use crate::log::test_batches::{BatchSpec, batch};
    use proptest::prelude::*;

    #[test]
    fn walks_what_the_encoder_wrote() {
        let bytes = batch(&BatchSpec { records: 3, value_bytes: 4, ..BatchSpec::default() });
        let records: Vec<_> = Records::new(&bytes[HEADER_BYTES..], 3).map(Result::unwrap).collect();
        for (index, record) in records.iter().enumerate() {
            assert_eq!((record.timestamp_delta, record.offset_delta), (index as i64, index as i32));
            assert_eq!((record.key, record.value), (Some(&b"k"[..]), Some(&b"vvvv"[..])));
            assert_eq!(record.headers().count(), 0);
        }
        assert_eq!(
            records.iter().map(|record| record.bytes).collect::<Vec<_>>().concat(),
            bytes[HEADER_BYTES..]
        );
        assert_eq!(Records::new(&bytes[HEADER_BYTES..], 2).last(), Some(Err(Malformed)), "bytes left over");
        assert_eq!(
            Records::new(&bytes[HEADER_BYTES..], 4).last(),
            Some(Err(Malformed)),
            "a record is missing"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), count in any::<i32>()) {
            prop_assert!(Records::new(&bytes, count).count() <= 201);
        }
    }
}
