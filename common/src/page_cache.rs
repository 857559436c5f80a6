//! What can be read without waiting for a disk.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Bytes of a file that go to a socket without being read into memory.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// What stands there must not change any more: the socket may refer to the file's pages for long.
    pub file: Arc<File>,
    /// In bytes from the beginning of the file.
    pub position: u64,
    /// At least one byte.
    pub length: usize,
}

/// Reads up to a buffer full at `position` as far as the page cache has it. `None`: not a single byte, or the file system
/// cannot tell.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &File, into: &mut [u8], position: u64) -> io::Result<Option<usize>> {
    loop {
        return match preadv2(file, &mut [IoSliceMut::new(into)], position, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(read)),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        };
    }
}

/// Whether the byte at `position` is there; false beyond the end, too.
///
/// # Errors
/// The file cannot be read.
pub fn holds(file: &File, position: u64) -> io::Result<bool> {
    Ok(read(file, &mut [0], position)? == Some(1))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_was_just_written_is_there_and_nothing_beyond_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[3; 100]).unwrap();
        let mut bytes = [0; 200];
        // A file system that cannot tell has nothing.
        if let Some(read) = read(&file, &mut bytes, 40).unwrap() {
            assert_eq!((read, &bytes[..read]), (60, &[3; 60][..]));
            assert!(holds(&file, 99).unwrap());
        }
        assert!(!holds(&file, 100).unwrap());
    }
}
