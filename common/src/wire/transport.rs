//! Reads frames from a socket.
//!
//! The size in front of a frame is a claim: memory is taken as bytes arrive, and a size beyond the limit is an error
//! before any. A frame comes out as one contiguous `Bytes`, so that records can be handed on without a copy.

use std::io;

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frame::{FrameError, LENGTH_PREFIX};

/// Taken while waiting for a frame: small requests come out of one read.
const READ_BYTES: usize = 8 << 10;

/// Taken at once for a frame that announces more; beyond it the buffer doubles as bytes arrive.
const FIRST_CLAIM_BYTES: usize = 2 << 20;

#[derive(Debug, Error)]
pub enum ReadFrameError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the connection ended in the middle of a frame")]
    EndedInFrame,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Frames of one connection, in order.
#[derive(Debug)]
pub struct FrameReader<R> {
    reader: R,
    buffer: BytesMut,
    limit: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// `limit`: the largest frame in bytes, its length not counted.
    pub fn new(reader: R, limit: usize) -> Self {
        Self { reader, buffer: BytesMut::new(), limit }
    }

    /// The next frame without its length; `None` when the peer closed the connection between two frames. Cancel safe.
    ///
    /// # Errors
    /// A negative or oversized frame, an end in mid-frame, an error of the socket. The connection is of no use then.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadFrameError> {
        loop {
            let missing = match self.announced_size()? {
                None => READ_BYTES,
                Some(size) if LENGTH_PREFIX + size <= self.buffer.len() => {
                    let mut frame = self.buffer.split_to(LENGTH_PREFIX + size).freeze();
                    return Ok(Some(frame.split_off(LENGTH_PREFIX)));
                }
                Some(size) => LENGTH_PREFIX + size - self.buffer.len(),
            };
            self.buffer.reserve(missing.min(FIRST_CLAIM_BYTES.max(self.buffer.len())));
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ReadFrameError::EndedInFrame) };
            }
        }
    }

    /// The size of the frame ahead, when its length has arrived.
    fn announced_size(&self) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_PREFIX>() else { return Ok(None) };
        frame_size(*prefix, self.limit).map(Some)
    }
}

fn frame_size(prefix: [u8; LENGTH_PREFIX], limit: usize) -> Result<usize, FrameError> {
    let announced = i32::from_be_bytes(prefix);
    let size = usize::try_from(announced).map_err(|_| FrameError::NegativeSize { size: announced })?;
    if limit < size {
        return Err(FrameError::FrameTooLarge { size, limit });
    }
    Ok(size)
}

/// One frame without its length, reading nothing beyond it; `None` when the connection ended before it. Not cancel
/// safe: use [`FrameReader`] in a `select!`.
///
/// # Errors
/// As [`FrameReader::next`].
pub async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    limit: usize,
) -> Result<Option<Bytes>, ReadFrameError> {
    let mut prefix = BytesMut::with_capacity(LENGTH_PREFIX);
    if !read_exactly(reader, &mut prefix, LENGTH_PREFIX).await? {
        return if prefix.is_empty() { Ok(None) } else { Err(ReadFrameError::EndedInFrame) };
    }
    let size = frame_size(*prefix.first_chunk().expect("four bytes were read"), limit)?;
    let mut frame = BytesMut::new();
    if !read_exactly(reader, &mut frame, size).await? {
        return Err(ReadFrameError::EndedInFrame);
    }
    Ok(Some(frame.freeze()))
}

/// Reads until `buffer` holds `size` bytes; false when the connection ended first.
async fn read_exactly<R: AsyncRead + Unpin>(
    reader: &mut R,
    buffer: &mut BytesMut,
    size: usize,
) -> io::Result<bool> {
    while buffer.len() < size {
        let missing = size - buffer.len();
        buffer.reserve(missing.min(FIRST_CLAIM_BYTES.max(buffer.len())));
        let got = (&mut *reader).take(missing as u64).read_buf(buffer).await?;
        if got == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn framed(bodies: &[&[u8]]) -> Vec<u8> {
        bodies.iter().flat_map(|body| [&(body.len() as i32).to_be_bytes(), *body].concat()).collect()
    }

    #[tokio::test]
    async fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let big = vec![7_u8; 5 << 20];
        let stream = framed(&[b"one", b"", &big, b"four"]);
        for cut in [1_usize, 3, 4, 5, 11, 4096, stream.len()] {
            let (mut writer, reader) = tokio::io::duplex(1 << 20);
            let mut frames = FrameReader::new(reader, 6 << 20);
            let stream = stream.clone();
            let writing = tokio::spawn(async move {
                let (head, tail) = stream.split_at(64.min(stream.len()));
                for piece in head.chunks(cut).chain(tail.chunks(cut.max(4096))) {
                    writer.write_all(piece).await.unwrap();
                }
            });
            assert_eq!(frames.next().await.unwrap().unwrap(), b"one"[..]);
            assert_eq!(frames.next().await.unwrap().unwrap(), b""[..]);
            assert_eq!(frames.next().await.unwrap().unwrap(), big[..]);
            assert_eq!(frames.next().await.unwrap().unwrap(), b"four"[..]);
            assert!(frames.next().await.unwrap().is_none());
            writing.await.unwrap();
        }
    }

    #[tokio::test]
    async fn bad_sizes_are_errors_and_claim_no_memory() {
        let cases: [(&[u8], &str); 4] = [
            (&[0xff, 0xff, 0xff, 0xff], "negative size -1"),
            (b"GET / HTTP/1.1\r\n", "a frame of 1195725856 bytes is larger than the limit of 1000 bytes"),
            (&[0, 0, 0, 9, 1, 2], "in the middle of a frame"),
            (&[0, 0], "in the middle of a frame"),
        ];
        for (stream, expected) in cases {
            let mut frames = FrameReader::new(stream, 1000);
            let error = frames.next().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            let mut reader = stream;
            let error = read_frame(&mut reader, 1000).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let announced = [&0x4000_0000_i32.to_be_bytes()[..], b"x"].concat();
        let mut frames = FrameReader::new(&announced[..], usize::MAX);
        assert!(matches!(frames.next().await, Err(ReadFrameError::EndedInFrame)));
        assert!(frames.buffer.capacity() <= 2 * FIRST_CLAIM_BYTES);
    }

    #[tokio::test]
    async fn read_frame_leaves_what_follows() {
        let stream = framed(&[b"one", b"two"]);
        let mut reader = &stream[..];
        assert_eq!(read_frame(&mut reader, 10).await.unwrap().unwrap(), b"one"[..]);
        assert_eq!(reader.len(), 7);
        assert_eq!(read_frame(&mut reader, 10).await.unwrap().unwrap(), b"two"[..]);
        assert!(read_frame(&mut reader, 10).await.unwrap().is_none());
    }
}
