//! Jute, ZooKeeper's serialization: big-endian integers, length-prefixed strings, buffers and
//! vectors. The reader never allocates more than the frame it reads from.

use bytes::{BufMut, Bytes, BytesMut};

/// A frame that does not hold what it announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) type Decoded<T> = Result<T, Malformed>;

/// Reads one frame from front to back.
#[derive(Debug)]
pub(crate) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(crate) fn new(frame: Bytes) -> Self {
        Self { rest: frame }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: usize) -> Decoded<Bytes> {
        if length > self.rest.len() {
            return Err(Malformed("the frame ends in the middle of a field"));
        }
        Ok(self.rest.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(<[u8; N]>::try_from(&bytes[..]).expect("take returned exactly N bytes"))
    }

    pub(crate) fn bool(&mut self) -> Decoded<bool> {
        Ok(self.array::<1>()?[0] != 0)
    }

    pub(crate) fn i32(&mut self) -> Decoded<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Decoded<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A buffer; length -1 stands for null.
    pub(crate) fn buffer(&mut self) -> Decoded<Option<Bytes>> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| Malformed("negative buffer length"))?;
                Ok(Some(self.take(length)?))
            }
        }
    }

    /// A string; null is read as the empty one, which is no valid path or scheme anywhere.
    pub(crate) fn string(&mut self) -> Decoded<String> {
        match self.buffer()? {
            None => Ok(String::new()),
            Some(bytes) => {
                String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("a string is not valid UTF-8"))
            }
        }
    }

    /// A vector whose elements take at least one byte each; length -1 stands for an empty one.
    pub(crate) fn vector<T>(&mut self, mut element: impl FnMut(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let length = match self.i32()? {
            -1 => 0,
            length => usize::try_from(length).map_err(|_| Malformed("negative vector length"))?,
        };
        if length > self.rest.len() {
            return Err(Malformed("a vector announces more elements than the frame has bytes"));
        }
        let mut elements = Vec::new();
        for _ in 0..length {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    pub(crate) fn strings(&mut self) -> Decoded<Vec<String>> {
        self.vector(Self::string)
    }
}

/// Builds one frame; the length prefix is filled in by [`Writer::into_frame`].
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: BytesMut,
}

impl Writer {
    pub(crate) fn new() -> Self {
        let mut bytes = BytesMut::with_capacity(128);
        bytes.put_i32(0);
        Self { bytes }
    }

    pub(crate) fn into_frame(mut self) -> Bytes {
        let length = i32::try_from(self.bytes.len() - 4).expect("replies stay far below 2 GiB");
        self.bytes[..4].copy_from_slice(&length.to_be_bytes());
        self.bytes.freeze()
    }

    /// The bytes written, without a length prefix.
    pub(crate) fn into_payload(mut self) -> Bytes {
        self.bytes.split_off(4).freeze()
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.bytes.put_u8(u8::from(value));
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.bytes.put_i32(value);
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes.put_i64(value);
    }

    pub(crate) fn length(&mut self, length: usize) {
        self.i32(i32::try_from(length).expect("no buffer or vector reaches 2 GiB"));
    }

    pub(crate) fn buffer(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.i32(-1),
            Some(value) => {
                self.length(value.len());
                self.bytes.put_slice(value);
            }
        }
    }

    pub(crate) fn string(&mut self, value: &str) {
        self.buffer(Some(value.as_bytes()));
    }

    pub(crate) fn strings<'a>(&mut self, values: impl ExactSizeIterator<Item = &'a str>) {
        self.length(values.len());
        for value in values {
            self.string(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_vector_cannot_announce_more_than_the_frame_holds() {
        let mut reader = Reader::new(Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
        assert!(reader.strings().is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in any::<i64>(), text in any::<Option<Vec<u8>>>(), names in any::<Vec<String>>()) {
            let mut writer = Writer::new();
            writer.i64(number);
            writer.buffer(text.as_deref());
            writer.strings(names.iter().map(String::as_str));
            let mut reader = Reader::new(writer.into_payload());
            prop_assert_eq!(reader.i64().unwrap(), number);
            prop_assert_eq!(reader.buffer().unwrap().map(|bytes| bytes.to_vec()), text);
            prop_assert_eq!(reader.strings().unwrap(), names);
            prop_assert!(reader.is_empty());
        }
    }
}
