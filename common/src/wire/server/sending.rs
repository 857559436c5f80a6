//! One write to a connection: of bytes, or of a part of a file, which the kernel takes from the page cache.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Buf as _;
use rustix::fs::sendfile;
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::spawn_blocking;

use super::outbox::Outbox;
use crate::page_cache::{self, FilePart};

/// What is read ahead of a part that is not in the page cache any more.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// Writes some of what is at hand. Returns its size; 0 if the peer takes nothing any more.
pub(super) async fn send_some(socket: &mut OwnedWriteHalf, outbox: &mut Outbox) -> io::Result<usize> {
    let stream: &TcpStream = (*socket).as_ref();
    let sent = if let Some(part) = outbox.front_file() {
        send_file(stream, &part).await?
    } else if let Some(head) = outbox.front_before_file() {
        // The head of an answer goes out with its records, not in a segment of its own that wakes the peer for nothing.
        let send_head = || Ok(retry_on_intr(|| send(stream, &head, SendFlags::MORE))?);
        stream.async_io(Interest::WRITABLE, send_head).await?
    } else {
        return socket.write_buf(outbox).await;
    };
    outbox.advance(sent);
    Ok(sent)
}

async fn send_file(stream: &TcpStream, part: &FilePart) -> io::Result<usize> {
    // It was there when it was fetched; the peer may have been slow since.
    if !page_cache::holds(&part.file, part.position)? {
        read_ahead(part).await?;
    }
    let send_part = || {
        let mut position = part.position;
        Ok(retry_on_intr(|| sendfile(stream, &part.file, Some(&mut position), part.length))?)
    };
    match stream.async_io(Interest::WRITABLE, send_part).await? {
        0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the file is shorter than it was")),
        sent => Ok(sent),
    }
}

/// Waits for the disk on a thread that may.
async fn read_ahead(part: &FilePart) -> io::Result<()> {
    let (file, position) = (Arc::clone(&part.file), part.position);
    let length = part.length.min(READ_AHEAD_BYTES);
    let read = spawn_blocking(move || file.read_exact_at(&mut vec![0; length], position));
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::super::{Frame, Piece, Stream};
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);
    /// More than fits between sender and receiver.
    const FILE_BYTES: usize = 9 << 20;

    /// A connection whose receiver takes little at a time.
    async fn connected() -> (OwnedWriteHalf, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let receiver = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0.into_split().1, receiver)
    }

    fn contents() -> Vec<u8> {
        (0..FILE_BYTES as u32).map(|number| (number % 251) as u8).collect()
    }

    fn file_of(contents: &[u8]) -> Arc<File> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(contents, 0).unwrap();
        Arc::new(file)
    }

    /// A file, in turns as parts of it and as bytes.
    struct InTurns {
        file: Arc<File>,
        position: u64,
        as_part: bool,
    }

    impl InTurns {
        fn advance(&mut self) -> usize {
            let length = self.remaining().min(700_001);
            self.position += length as u64;
            length
        }
    }

    impl Stream for InTurns {
        fn remaining(&self) -> usize {
            FILE_BYTES - self.position as usize
        }

        fn next_of_file(&mut self) -> Result<Option<FilePart>, String> {
            self.as_part = !self.as_part;
            let (file, position) = (Arc::clone(&self.file), self.position);
            Ok(self.as_part.then(|| FilePart { file, position, length: self.advance() }))
        }

        fn next_at_once(&mut self) -> Result<Option<Bytes>, String> {
            self.next_blocking().map(Some)
        }

        fn next_blocking(&mut self) -> Result<Bytes, String> {
            let position = self.position;
            let mut bytes = vec![0; self.advance()];
            self.file.read_exact_at(&mut bytes, position).unwrap();
            Ok(bytes.into())
        }
    }

    #[tokio::test]
    async fn bytes_and_parts_of_files_leave_in_their_order() {
        let (mut socket, mut receiver) = connected().await;
        let contents = contents();
        let file = file_of(&contents);
        let part = |position: usize, length: usize| {
            Piece::File(FilePart { file: Arc::clone(&file), position: position as u64, length })
        };
        let bytes = |text: &'static str| Piece::Bytes(Bytes::from_static(text.as_bytes()));
        let in_turns = InTurns { file: Arc::clone(&file), position: 0, as_part: false };
        let pieces =
            vec![bytes("head"), part(5, 3), part(1 << 20, 4 << 20), bytes("a"), bytes("b"), part(0, 1)];
        let mut outbox = Outbox::default();
        outbox.push(Frame(pieces));
        outbox.push(Frame(vec![bytes("c"), Piece::Stream(Box::new(in_turns)), bytes("end")]));
        let expected = [
            &b"head"[..],
            &contents[5..8],
            &contents[1 << 20..5 << 20],
            b"ab",
            &contents[..1],
            b"c",
            &contents,
            b"end",
        ]
        .concat();
        let announced = outbox.remaining();
        assert_eq!(announced, expected.len());
        let sending = tokio::spawn(async move {
            while outbox.has_remaining() {
                assert!(outbox.load().await.is_ok());
                assert!(0 < send_some(&mut socket, &mut outbox).await.unwrap());
            }
        });
        let mut got = Vec::new();
        timeout(DEADLINE, receiver.read_to_end(&mut got)).await.unwrap().unwrap();
        sending.await.unwrap();
        assert!(got == expected, "{} of {announced} bytes", got.len());
    }

    #[tokio::test]
    async fn a_part_that_its_file_does_not_have_is_an_error() {
        let (mut socket, _receiver) = connected().await;
        let mut outbox = Outbox::default();
        let file = file_of(b"abc");
        outbox.push(Frame(vec![Piece::File(FilePart { file, position: 3, length: 1 })]));
        assert!(outbox.load().await.is_ok());
        let error = send_some(&mut socket, &mut outbox).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_an_error() {
        let (mut socket, receiver) = connected().await;
        drop(receiver);
        let file = file_of(&contents());
        let mut outbox = Outbox::default();
        outbox.push(Frame(vec![Piece::File(FilePart { file, position: 0, length: FILE_BYTES })]));
        let sending = async {
            while outbox.has_remaining() {
                send_some(&mut socket, &mut outbox).await?;
            }
            Ok::<_, io::Error>(())
        };
        timeout(DEADLINE, sending).await.unwrap().unwrap_err();
    }
}
