//! Files of the log: opened on demand and closed again by age, written by position, replaced atomically.
//!
//! A broker may hold many thousand segments; only [`OPEN_FILES_MAX`] of them keep a descriptor. A reader that got
//! its `Arc<File>` goes on reading it, even after the file was closed here, renamed or unlinked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::error::{StorageContext, StorageError};
use super::faults::{self, Operation, before};

/// Descriptors that idle and busy segments together may hold before the longest unused ones are closed; less when
/// the process may open fewer than twice as many.
const OPEN_FILES_MAX: usize = 4096;
/// Slices per vectored write; the kernel takes at most 1024.
const IO_SLICES_MAX: usize = 512;
/// Of a copy that is about to take a file's place; a start removes what ends like this (F2).
const COPY_SUFFIX: &str = ".copy.deleted";

static CLOCK: AtomicU64 = AtomicU64::new(0);
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);
static OPENED: Mutex<Vec<Weak<LogFile>>> = Mutex::new(Vec::new());
static LIMIT: LazyLock<usize> = LazyLock::new(|| {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    allowed.map_or(OPEN_FILES_MAX, |allowed| OPEN_FILES_MAX.min(allowed as usize / 2))
});

/// A file of a segment, opened when it is used.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: Mutex<PathBuf>,
    open: Mutex<Option<Arc<File>>>,
    last_used: AtomicU64,
    /// Bytes below this position may be on their way to sockets.
    lent_bytes: AtomicU64,
}

impl LogFile {
    pub(crate) fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            path: Mutex::new(path),
            open: Mutex::new(None),
            last_used: AtomicU64::new(0),
            lent_bytes: AtomicU64::new(0),
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.lock().clone()
    }

    /// Creates the file, empty.
    pub(crate) fn create(self: &Arc<Self>) -> Result<(), StorageError> {
        let path = self.path();
        before(|| Operation::Create(path.clone()))
            .and_then(|()| File::create(&path))
            .storage("create", &path)?;
        Ok(())
    }

    /// The open file. Never creates it: a segment that was deleted meanwhile must not come back.
    pub(crate) fn get(self: &Arc<Self>) -> Result<Arc<File>, StorageError> {
        self.last_used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(file) = self.open.lock().as_ref() {
            return Ok(file.clone());
        }
        let path = self.path();
        let file = Arc::new(open(&path).storage("open", &path)?);
        if self.open.lock().replace(file.clone()).is_none() {
            OPEN_COUNT.fetch_add(1, Ordering::Relaxed);
        }
        self.remember();
        Ok(file)
    }

    /// Closes the descriptor here; readers that hold it keep it.
    pub(crate) fn close(&self) {
        if self.open.lock().take().is_some() {
            OPEN_COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn remember(self: &Arc<Self>) {
        let mut opened = OPENED.lock();
        opened.push(Arc::downgrade(self));
        if OPEN_COUNT.load(Ordering::Relaxed) > *LIMIT {
            close_oldest(&mut opened);
        } else if opened.len() > 2 * *LIMIT {
            opened.retain(|file| file.upgrade().is_some_and(|file| file.open.lock().is_some()));
        }
    }

    /// The directory of this file was renamed.
    pub(crate) fn moved_to(&self, path: PathBuf) {
        *self.path.lock() = path;
    }

    /// From now on sockets may refer to the pages that hold the bytes below `end`: they are never changed in place.
    pub(crate) fn lend(&self, end: u64) {
        self.lent_bytes.fetch_max(end, Ordering::SeqCst);
    }

    /// Cuts or extends to `bytes`. What was lent stays as it is for whoever has it: a shorter copy takes the file's place.
    pub(crate) fn set_len(self: &Arc<Self>, bytes: u64) -> Result<(), StorageError> {
        let path = self.path();
        if bytes < self.lent_bytes.load(Ordering::SeqCst) {
            return self.replace_by_copy(&path, bytes);
        }
        let file = self.get()?;
        before(|| Operation::SetLength(path.clone(), bytes))
            .and_then(|()| file.set_len(bytes))
            .storage("truncate", &path)
    }

    /// A crash in between leaves the whole file, and a copy that the next start removes.
    fn replace_by_copy(&self, path: &Path, bytes: u64) -> Result<(), StorageError> {
        let temporary = with_suffix(path, COPY_SUFFIX);
        let mut source = File::open(path).storage("open", path)?.take(bytes);
        let mut copy = before(|| Operation::Create(temporary.clone()))
            .and_then(|()| File::create(&temporary))
            .storage("create", &temporary)?;
        before(|| Operation::Write(temporary.clone()))
            .and_then(|()| io::copy(&mut source, &mut copy))
            .storage("write", &temporary)?;
        sync_file(&copy, &temporary)?;
        rename(&temporary, path)?;
        self.close();
        self.lent_bytes.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Removes the file; its absence is fine.
    pub(crate) fn remove(&self) -> Result<(), StorageError> {
        self.close();
        remove_if_present(&self.path())
    }

    pub(crate) fn read_exact_at(self: &Arc<Self>, buffer: &mut [u8], at: u64) -> Result<(), StorageError> {
        let file = self.get()?;
        let read = faults::before_read(&file).and_then(|()| file.read_exact_at(buffer, at));
        read.map_err(|source| StorageError { action: "read", path: self.path(), source })
    }

    pub(crate) fn write_all_at(self: &Arc<Self>, bytes: &[u8], at: u64) -> Result<(), StorageError> {
        let path = self.path();
        let file = self.get()?;
        before(|| Operation::Write(path.clone()))
            .and_then(|()| file.write_all_at(bytes, at))
            .storage("write", &path)
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens an existing file for reads and writes. Reads of what has just been written would each store their time.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().custom_flags(OFlags::NOATIME.bits().cast_signed()).open(path) {
        // Only a file's owner may ask for that.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    }
}

/// Closes a quarter of the open files, the longest unused first, and forgets the closed ones.
fn close_oldest(opened: &mut Vec<Weak<LogFile>>) {
    let mut files: Vec<Arc<LogFile>> = opened.iter().filter_map(Weak::upgrade).collect();
    files.sort_by_key(|file| (file.last_used.load(Ordering::Relaxed), Arc::as_ptr(file)));
    files.dedup_by(|left, right| Arc::ptr_eq(left, right));
    files.retain(|file| file.open.lock().is_some());
    let surplus = files.len() / 4;
    for file in &files[..surplus] {
        file.close();
    }
    *opened = files[surplus..].iter().map(Arc::downgrade).collect();
}

/// Writes all of `parts` at `position`, with as few system calls as the kernel allows and in a loop for short
/// writes (LOG-16).
pub(crate) fn write_vectored_all_at(
    file: &File,
    path: impl FnOnce() -> PathBuf,
    parts: &[Bytes],
    position: u64,
) -> io::Result<()> {
    if let Err(error) = before(|| Operation::Write(path())) {
        // A stop in the middle of a write leaves a part of it.
        faults::write_some(file, parts, position);
        return Err(error);
    }
    let mut position = position;
    for group in parts.chunks(IO_SLICES_MAX) {
        let mut index = 0;
        let mut skip = 0;
        while index < group.len() {
            let first = &group[index][skip..];
            let first = &first[..first.len().min(faults::write_max())];
            let others = if faults::write_max() == usize::MAX { &group[index + 1..] } else { &[] };
            let slices: Vec<IoSlice<'_>> =
                [first].into_iter().chain(others.iter().map(|part| &part[..])).map(IoSlice::new).collect();
            let mut written = match rustix::io::pwritev(file, &slices, position) {
                Ok(0) if first.is_empty() => 0,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            position += written as u64;
            while index < group.len() && written >= group[index].len() - skip {
                written -= group[index].len() - skip;
                index += 1;
                skip = 0;
            }
            skip += written;
        }
    }
    Ok(())
}

/// Reads up to `length` bytes at `position`; fewer only at the end of the file.
pub(crate) fn read_up_to(file: &File, length: usize, position: u64) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    read_again(file, &mut buffer, length, position)?;
    Ok(buffer)
}

/// As [`read_up_to`], into a buffer that was used before; it holds nothing after an error.
pub(crate) fn read_again(file: &File, buffer: &mut Vec<u8>, length: usize, position: u64) -> io::Result<()> {
    buffer.clear();
    faults::before_read(file)?;
    buffer.reserve_exact(length);
    while buffer.len() < length {
        let at = position + buffer.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(buffer), at) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                buffer.clear();
                return Err(error.into());
            }
        }
    }
    buffer.truncate(length);
    Ok(())
}

/// Makes creations, renames and removals inside `directory` durable (LOG-08).
pub(crate) fn sync_directory(directory: &Path) -> Result<(), StorageError> {
    before(|| Operation::SyncDirectory(directory.to_owned()))
        .and_then(|()| File::open(directory))
        .and_then(|file| if faults::SYNC { file.sync_all() } else { Ok(()) })
        .storage("sync directory", directory)
}

/// Makes the contents of an open file durable.
pub(crate) fn sync_file(file: &File, path: &Path) -> Result<(), StorageError> {
    before(|| Operation::SyncFile(path.to_owned()))
        .and_then(|()| if faults::SYNC { file.sync_data() } else { Ok(()) })
        .storage("sync", path)
}

/// Of a kernel of this release.
fn tells_failures(release: &str) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    (5, 8) <= (major, minor)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), StorageError> {
    before(|| Operation::Rename(from.to_owned(), to.to_owned()))
        .and_then(|()| fs::rename(from, to))
        .storage("rename", from)
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Writes a new file; not durable until it is synced.
pub(crate) fn write_file(path: &Path, contents: &[u8]) -> Result<(), StorageError> {
    before(|| Operation::Create(path.to_owned()))
        .and_then(|()| File::create(path))
        .storage("create", path)?;
    before(|| Operation::Write(path.to_owned()))
        .and_then(|()| fs::write(path, contents))
        .storage("write", path)
}

/// Replaces `path` by `contents`: temporary file, fsync, rename, fsync of the directory (LOG-06).
pub(crate) fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), StorageError> {
    let temporary = with_suffix(path, ".tmp");
    write_file(&temporary, contents)?;
    sync_path(&temporary)?;
    rename(&temporary, path)?;
    sync_directory(path.parent().unwrap_or_else(|| Path::new(".")))
}

/// Makes the contents of a file durable that is not open.
pub(crate) fn sync_path(path: &Path) -> Result<(), StorageError> {
    let file = File::open(path).storage("open", path)?;
    sync_file(&file, path)
}

/// As [`sync_path`]; the file may have been removed or renamed meanwhile.
pub(crate) fn sync_path_if_present(path: &Path) -> Result<(), StorageError> {
    match File::open(path) {
        Ok(file) => sync_file(&file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).storage("open", path),
    }
}

/// The file system that holds a directory, to be synced as a whole: one call for any number of changed files. Open it
/// before the first change that it shall cover: the sync then tells of every write-back that failed since.
#[derive(Debug)]
pub(crate) struct FileSystem {
    path: PathBuf,
    root: File,
}

impl FileSystem {
    pub(crate) fn of(directory: &Path) -> Result<Self, StorageError> {
        let root = File::open(directory).storage("open", directory)?;
        Ok(Self { path: directory.to_owned(), root })
    }

    /// Whether [`FileSystem::sync`] says so when something could not be written back: Linux does since 5.8.
    pub(crate) fn tells_failures() -> bool {
        static RELEASE: LazyLock<bool> =
            LazyLock::new(|| tells_failures(&rustix::system::uname().release().to_string_lossy()));
        *RELEASE
    }

    /// Makes every change of every file durable. Writes back what others have changed there, too.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        before(|| Operation::SyncFileSystem(self.path.clone()))
            .and_then(|()| if faults::SYNC { Ok(rustix::fs::syncfs(&self.root)?) } else { Ok(()) })
            .storage("sync the file system of", &self.path)
    }
}

pub(crate) fn remove_if_present(path: &Path) -> Result<(), StorageError> {
    match before(|| Operation::Remove(path.to_owned())).and_then(|()| fs::remove_file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.storage("remove", path),
    }
}

/// The file's bytes, or nothing when there is no such file.
pub(crate) fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).storage("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, Arc<LogFile>) {
        let directory = tempfile::tempdir().unwrap();
        let file = LogFile::new(directory.path().join("x"));
        file.create().unwrap();
        (directory, file)
    }

    #[test]
    fn vectored_write_takes_more_parts_than_one_call_can() {
        let (_directory, file) = fresh();
        let parts: Vec<Bytes> = (0..3000u32).map(|n| Bytes::from(vec![n as u8; (n % 7) as usize])).collect();
        let expected: Vec<u8> = parts.concat();
        write_vectored_all_at(&file.get().unwrap(), PathBuf::new, &parts, 5).unwrap();
        assert_eq!(read_up_to(&file.get().unwrap(), 1 << 20, 5).unwrap(), expected);
    }

    #[test]
    fn log_16_short_writes_are_continued() {
        let (_directory, file) = fresh();
        let parts = ["abcdefg", "", "h", "ijk"].map(|part| Bytes::from_static(part.as_bytes()));
        for bytes in 1..9 {
            file.set_len(0).unwrap();
            faults::set_write_max(bytes);
            write_vectored_all_at(&file.get().unwrap(), PathBuf::new, &parts, 0).unwrap();
            faults::set_write_max(usize::MAX);
            assert_eq!(
                read_up_to(&file.get().unwrap(), 100, 0).unwrap(),
                b"abcdefghijk",
                "{bytes} at a time"
            );
        }
    }

    #[test]
    fn releases_whose_sync_of_a_file_system_tells_failures() {
        let rows = [("5.8.0", true), ("5.10.0-8-amd64", true), ("6.1", true), ("10.0.1", true)];
        let others = [("5.7.19", false), ("4.19.0", false), ("", false), ("5", false), ("x.y", false)];
        for (release, expected) in rows.into_iter().chain(others) {
            assert_eq!(tells_failures(release), expected, "{release}");
        }
    }

    #[test]
    fn atomic_write_replaces_and_leaves_no_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("checkpoint");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Where the file system stores times of reads at all.
    #[test]
    fn a_read_is_no_write_of_its_time() {
        let (_directory, file) = fresh();
        file.write_all_at(b"abc", 0).unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        file.get().unwrap().set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
        file.read_exact_at(&mut [0; 3], 0).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().accessed().unwrap(), long_ago);
    }

    #[test]
    fn a_closed_file_stays_readable_for_its_reader() {
        let (_directory, file) = fresh();
        file.write_all_at(b"abc", 0).unwrap();
        let reader = file.get().unwrap();
        file.remove().unwrap();
        assert_eq!(read_up_to(&reader, 10, 0).unwrap(), b"abc");
    }
}
