//! What waits for being written to a connection.

use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::{Frame, Piece, Stream};
use crate::page_cache::FilePart;

/// Bytes that a write can begin with; while fewer are at hand, the next part of a stream is fetched.
const AT_HAND_BYTES: usize = 64 << 10;

/// Pieces that wait for being written, in order; none is empty.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    size: usize,
}

/// Why the rest of an answer cannot be fetched.
pub(super) enum LoadError {
    CutOff(String),
    Panicked(Box<dyn Any + Send>),
    Stopping,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: Frame) {
        for piece in frame.0 {
            let size = piece.size();
            if 0 < size {
                self.size += size;
                self.pieces.push_back(piece);
            }
        }
    }

    /// Fetches what the next write needs. Afterwards the first piece is bytes or of a file, if there is any piece.
    pub(super) async fn load(&mut self) -> Result<(), LoadError> {
        let mut at_hand = 0;
        let mut index = 0;
        while at_hand < AT_HAND_BYTES {
            let part = match self.pieces.get_mut(index) {
                None => return Ok(()),
                Some(Piece::Bytes(_) | Piece::File(_)) => {
                    at_hand += self.pieces[index].size();
                    index += 1;
                    continue;
                }
                Some(Piece::Stream(stream)) => {
                    if let Some(part) = stream.next_of_file().map_err(LoadError::CutOff)? {
                        Piece::File(part)
                    } else if let Some(bytes) = stream.next_at_once().map_err(LoadError::CutOff)? {
                        Piece::Bytes(bytes)
                    } else if 0 < at_hand {
                        // The peer gets what there is, meanwhile nothing is fetched.
                        return Ok(());
                    } else {
                        Piece::Bytes(self.load_blocking(index).await?)
                    }
                }
            };
            if part.size() == 0 {
                return Err(LoadError::CutOff("a part of it is missing".to_owned()));
            }
            if self.pieces[index].size() == 0 {
                self.pieces[index] = part;
            } else {
                self.pieces.insert(index, part);
            }
        }
        Ok(())
    }

    /// The front piece, if it is of a file.
    pub(super) fn front_file(&self) -> Option<FilePart> {
        match self.pieces.front() {
            Some(Piece::File(part)) => Some(part.clone()),
            _ => None,
        }
    }

    /// The front piece, if it is bytes and the next one is of a file.
    pub(super) fn front_before_file(&self) -> Option<Bytes> {
        match (self.pieces.front(), self.pieces.get(1)) {
            (Some(Piece::Bytes(bytes)), Some(Piece::File(_))) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Fetches the next part of the stream at `index` on a thread that may wait for a disk.
    async fn load_blocking(&mut self, index: usize) -> Result<Bytes, LoadError> {
        // Nobody looks at the outbox until the stream is back in its place.
        let taken = std::mem::replace(&mut self.pieces[index], Piece::Bytes(Bytes::new()));
        let Piece::Stream(mut stream) = taken else { return Ok(Bytes::new()) };
        let fetch = move || {
            let fetched = stream.next_blocking();
            (stream, fetched)
        };
        let (stream, fetched): (Box<dyn Stream>, _) = match tokio::task::spawn_blocking(fetch).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => return Err(LoadError::Panicked(error.into_panic())),
            Err(_) => return Err(LoadError::Stopping),
        };
        self.pieces[index] = Piece::Stream(stream);
        fetched.map_err(LoadError::CutOff)
    }
}

impl Buf for Outbox {
    /// Streams included.
    fn remaining(&self) -> usize {
        self.size
    }

    fn chunk(&self) -> &[u8] {
        match self.pieces.front() {
            Some(Piece::Bytes(bytes)) => bytes,
            Some(Piece::File(_) | Piece::Stream(_)) | None => &[],
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let Piece::Bytes(bytes) = piece else { break };
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.size -= count;
        while 0 < count {
            match self.pieces.front_mut() {
                Some(Piece::Bytes(front)) if count < front.len() => {
                    front.advance(count);
                    return;
                }
                Some(Piece::File(front)) if count < front.length => {
                    front.position += count as u64;
                    front.length -= count;
                    return;
                }
                Some(Piece::Bytes(front)) => count -= front.len(),
                Some(Piece::File(front)) => count -= front.length,
                Some(Piece::Stream(_)) | None => panic!("no more is advanced than was written"),
            }
            self.pieces.pop_front();
        }
    }
}
