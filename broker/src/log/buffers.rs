//! Buffers for records on their way from the log to a socket, used again and again: memory that the system has just given
//! out has to be cleared first, which costs more than reading the records.

use std::fs::File;
use std::io;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::{Errno, pread};
use zurau_common::page_cache;

use super::faults;

/// Size of a buffer, and so of what is read at once of a long answer.
pub(crate) const BUFFER_BYTES: usize = 256 << 10;
/// Buffers that are kept while nobody uses them.
const KEPT_MAX: usize = 16;
/// Shorter reads are not worth a buffer, which lives as long as the bytes are used.
const POOLED_FROM_BYTES: usize = 32 << 10;

static KEPT: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// `WouldBlock` if the first byte is not in the page cache, or if the file system cannot tell.
    No,
    Yes,
}

/// A buffer that goes back when the last reader of its bytes is gone.
struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut kept = KEPT.lock();
        if self.bytes.len() == BUFFER_BYTES && kept.len() < KEPT_MAX {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

fn buffer(length: usize) -> Buffer {
    let pooled = (POOLED_FROM_BYTES..=BUFFER_BYTES).contains(&length);
    let kept = pooled.then(|| KEPT.lock().pop()).flatten();
    let size = if pooled { BUFFER_BYTES } else { length };
    Buffer { bytes: kept.unwrap_or_else(|| vec![0; size].into()), length }
}

/// Reads up to `length` bytes at `position`; fewer at the end of the file, or where waiting would begin.
///
/// # Errors
/// The disk fails; `WouldBlock` as [`Wait::No`] says.
pub(crate) fn read_pooled(file: &File, length: usize, position: u64, wait: Wait) -> io::Result<Bytes> {
    faults::before_read(file)?;
    let mut buffer = buffer(length);
    let mut filled = 0;
    while filled < length {
        let (into, at) = (&mut buffer.bytes[filled..length], position + filled as u64);
        let read = match wait {
            Wait::Yes => pread(file, into, at),
            Wait::No => match page_cache::read(file, into, at)? {
                Some(read) => Ok(read),
                None if 0 < filled => break,
                None => return Err(io::ErrorKind::WouldBlock.into()),
            },
        };
        match read {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    buffer.length = filled;
    Ok(Bytes::from_owner(buffer))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn reads_what_is_there_into_buffers_of_any_size() {
        let mut file = tempfile::tempfile().unwrap();
        let contents: Vec<u8> = (0..600_000_u32).map(|number| (number % 251) as u8).collect();
        file.write_all(&contents).unwrap();
        for length in
            [0, 1, 100, POOLED_FROM_BYTES, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 700_000]
        {
            for position in [0, 1, 599_999, 600_000, 600_001] {
                let found = read_pooled(&file, length, position as u64, Wait::Yes).unwrap();
                let until = contents.len().min(position + length);
                assert_eq!(found, contents[position.min(until)..until], "{length} at {position}");
            }
        }
    }

    #[test]
    fn a_buffer_is_used_again_only_when_its_bytes_are_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; BUFFER_BYTES]).unwrap();
        let kept = read_pooled(&file, BUFFER_BYTES, 0, Wait::Yes).unwrap();
        let slice = kept.slice(1000..2000);
        drop(kept);
        for _ in 0..2 * KEPT_MAX {
            let mut other = tempfile::tempfile().unwrap();
            other.write_all(&[2; BUFFER_BYTES]).unwrap();
            assert_eq!(read_pooled(&other, BUFFER_BYTES, 0, Wait::Yes).unwrap()[1500], 2);
        }
        assert_eq!(slice, [1; 1000][..]);
    }

    #[test]
    fn what_is_in_the_page_cache_is_read_without_waiting() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[3; 100]).unwrap();
        match read_pooled(&file, 200, 0, Wait::No) {
            Ok(found) => assert_eq!(found, [3; 100][..]),
            // A file system that cannot tell.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
}
