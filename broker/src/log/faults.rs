//! The one place every change of a file passes before it is made, so that tests can stop the machine at any of them.
//!
//! In production this is nothing. A test arms a [`Machine`] on its thread: after a number of changes it is "off" and
//! every further change fails. It remembers what was synced, and can lose the rest. A [`Disk`] is one directory as all
//! threads see it: its syncs are counted and can be held, it can break, and it can be full.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;

/// The tests of this crate only note a sync: none of them takes the power away from the real machine.
pub(crate) const SYNC: bool = cfg!(not(test));

/// A change that is about to be made.
#[cfg_attr(not(test), expect(dead_code, reason = "read by the machine of the tests"))]
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Create(PathBuf),
    Write(PathBuf),
    SetLength(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncFile(PathBuf),
    SyncDirectory(PathBuf),
    /// Of the file system that holds this directory.
    SyncFileSystem(PathBuf),
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn before(_operation: impl FnOnce() -> Operation) -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn before_read(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn write_some(_file: &File, _parts: &[Bytes], _position: u64) {}

/// Bytes that one vectored write takes at most.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn write_max() -> usize {
    usize::MAX
}

#[cfg(test)]
pub(crate) use disk::{Disk, before_read};
#[cfg(test)]
pub(crate) use machine::{Machine, before, set_write_max, write_max, write_some};

#[cfg(test)]
mod disk {
    use std::os::fd::AsRawFd as _;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::{Condvar, Mutex};

    use super::*;

    static WATCHED: Mutex<Vec<Arc<Watched>>> = Mutex::new(Vec::new());
    static WATCHED_COUNT: AtomicUsize = AtomicUsize::new(0);

    #[derive(Default)]
    struct State {
        held: bool,
        broken: bool,
        unreadable: bool,
        full: bool,
        /// Syncs that go on all the same.
        let_through: usize,
        waiting: usize,
        synced_files: usize,
        synced_file_systems: usize,
    }

    struct Watched {
        directory: PathBuf,
        state: Mutex<State>,
        changed: Condvar,
    }

    /// Everything below a directory, until it is dropped.
    pub(crate) struct Disk(Arc<Watched>);

    impl Disk {
        pub(crate) fn watch(directory: &Path) -> Self {
            let (state, changed) = (Mutex::default(), Condvar::new());
            let watched = Arc::new(Watched { directory: directory.to_owned(), state, changed });
            WATCHED.lock().push(Arc::clone(&watched));
            WATCHED_COUNT.fetch_add(1, Ordering::SeqCst);
            Self(watched)
        }

        /// Syncs wait from now on, or go on.
        pub(crate) fn hold(&self, held: bool) {
            self.0.state.lock().held = held;
            self.0.changed.notify_all();
        }

        /// Every change fails from now on.
        pub(crate) fn break_down(&self) {
            self.0.state.lock().broken = true;
        }

        /// Every read fails from now on.
        pub(crate) fn break_reads(&self) {
            self.0.state.lock().unreadable = true;
        }

        /// Nothing more can be written from now on, or again. What frees space, or needs none, goes on.
        pub(crate) fn fill(&self, full: bool) {
            self.0.state.lock().full = full;
        }

        /// Syncs that are being held.
        pub(crate) fn waiting(&self) -> usize {
            self.0.state.lock().waiting
        }

        /// One of the syncs that are held, or the next one, goes on.
        pub(crate) fn let_one_through(&self) {
            self.0.state.lock().let_through += 1;
            self.0.changed.notify_all();
        }

        /// Syncs of single files.
        pub(crate) fn synced_files(&self) -> usize {
            self.0.state.lock().synced_files
        }

        pub(crate) fn synced_file_systems(&self) -> usize {
            self.0.state.lock().synced_file_systems
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            self.hold(false);
            WATCHED.lock().retain(|watched| !Arc::ptr_eq(watched, &self.0));
            WATCHED_COUNT.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_any_watched() -> bool {
        WATCHED_COUNT.load(Ordering::Relaxed) > 0
    }

    pub(super) fn step(operation: &Operation) -> io::Result<()> {
        let (path, is_sync) = match operation {
            Operation::Create(path) | Operation::Write(path) | Operation::SetLength(path, _) => (path, false),
            Operation::Remove(path) | Operation::Rename(path, _) | Operation::SyncDirectory(path) => {
                (path, false)
            }
            Operation::SyncFile(path) | Operation::SyncFileSystem(path) => (path, true),
        };
        let Some(watched) = find(path) else { return Ok(()) };
        let mut state = watched.state.lock();
        let needs_space = matches!(operation, Operation::Create(_) | Operation::Write(_));
        if is_sync {
            state.waiting += 1;
            while state.held && state.let_through == 0 {
                watched.changed.wait(&mut state);
            }
            state.let_through = state.let_through.saturating_sub(1);
            state.waiting -= 1;
            match operation {
                Operation::SyncFileSystem(_) => state.synced_file_systems += 1,
                _ => state.synced_files += 1,
            }
        }
        if state.broken {
            return Err(rustix::io::Errno::IO.into());
        }
        if state.full && needs_space { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) }
    }

    fn find(path: &Path) -> Option<Arc<Watched>> {
        WATCHED.lock().iter().find(|watched| path.starts_with(&watched.directory)).cloned()
    }

    pub(crate) fn before_read(file: &File) -> io::Result<()> {
        if !is_any_watched() {
            return Ok(());
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let unreadable = find(&path).is_some_and(|watched| watched.state.lock().unreadable);
        if unreadable { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod machine {
    use std::cell::{Cell, RefCell};
    use std::collections::{HashMap, HashSet};
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;

    thread_local! {
        static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
        static WRITE_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// A computer that goes off after some changes, and remembers which bytes and names are on its disk for sure.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Machine {
        left: Option<u64>,
        durable_bytes: HashMap<PathBuf, u64>,
        durable_names: HashSet<PathBuf>,
        created: HashSet<PathBuf>,
        random: u64,
    }

    impl Machine {
        pub(crate) fn start(seed: u64) {
            let machine = Self { random: seed.wrapping_mul(2) | 1, ..Self::default() };
            MACHINE.set(Some(machine));
        }

        /// Goes off before the change after `changes` more.
        pub(crate) fn stop_after(changes: u64) {
            MACHINE.with_borrow_mut(|machine| machine.as_mut().unwrap().left = Some(changes));
        }

        /// Switched on again; the disk is as it was.
        pub(crate) fn restart() {
            MACHINE.with_borrow_mut(|machine| machine.as_mut().unwrap().left = None);
        }

        pub(crate) fn is_off() -> bool {
            MACHINE.with_borrow(|machine| machine.as_ref().is_some_and(|machine| machine.left == Some(0)))
        }

        /// Loses, at random, what was never synced: ends of files (cut, or zeros instead), and new names.
        pub(crate) fn lose_unsynced(directory: &Path) {
            MACHINE.with_borrow_mut(|machine| machine.as_mut().unwrap().lose(directory));
        }

        fn next_random(&mut self, below: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % below
        }

        fn lose(&mut self, directory: &Path) {
            let mut files: Vec<PathBuf> =
                fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            for path in files {
                if self.created.contains(&path)
                    && !self.durable_names.contains(&path)
                    && self.next_random(2) == 0
                {
                    fs::remove_file(&path).unwrap();
                    continue;
                }
                let length = fs::metadata(&path).unwrap().len();
                let durable = self.durable_bytes.get(&path).copied().unwrap_or(0).min(length);
                let kept = durable + self.next_random(length - durable + 1);
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(kept).unwrap();
                if self.next_random(2) == 0 {
                    file.set_len(length).unwrap();
                }
            }
            self.created.clear();
        }

        /// What is known of files goes with the directory that they are in.
        fn move_below(&mut self, from: &Path, to: &Path) {
            let moved = |path: PathBuf| match path.strip_prefix(from) {
                Ok(below) if below.as_os_str().is_empty() => to.to_owned(),
                Ok(below) => to.join(below),
                Err(_) => path,
            };
            self.durable_bytes =
                self.durable_bytes.drain().map(|(path, bytes)| (moved(path), bytes)).collect();
            self.durable_names = self.durable_names.drain().map(moved).collect();
            self.created = self.created.drain().map(moved).collect();
        }

        fn keep_names(&mut self, directory: &Path) {
            let names = fs::read_dir(directory).into_iter().flatten();
            self.durable_names.extend(names.map(|entry| entry.unwrap().path()));
        }

        fn keep_all(&mut self, directory: &Path) {
            self.keep_names(directory);
            for entry in fs::read_dir(directory).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    self.keep_all(&path);
                } else {
                    let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                    self.durable_bytes.insert(path, length);
                }
            }
        }

        fn step(&mut self, operation: Operation) -> io::Result<()> {
            match self.left.as_mut() {
                Some(0) => return Err(io::Error::other("the machine is off")),
                Some(left) => *left -= 1,
                None => {}
            }
            if self.left == Some(0) {
                return Err(io::Error::other("the machine went off"));
            }
            match operation {
                Operation::Create(path) => {
                    self.durable_bytes.insert(path.clone(), 0);
                    self.created.insert(path);
                }
                Operation::Write(_) => {}
                Operation::SetLength(path, length) => {
                    self.durable_bytes.entry(path).and_modify(|durable| *durable = length.min(*durable));
                }
                Operation::Remove(path) => {
                    self.durable_names.remove(&path);
                    self.durable_bytes.remove(&path);
                }
                Operation::Rename(from, to) => {
                    let durable = self.durable_bytes.remove(&from).unwrap_or(0);
                    self.durable_bytes.insert(to.clone(), durable);
                    if self.durable_names.remove(&from) {
                        self.durable_names.insert(to.clone());
                    }
                    if from.is_dir() {
                        self.move_below(&from, &to);
                    }
                }
                Operation::SyncFile(path) => {
                    let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                    self.durable_bytes.insert(path, length);
                }
                Operation::SyncDirectory(directory) => self.keep_names(&directory),
                Operation::SyncFileSystem(directory) => self.keep_all(&directory),
            }
            Ok(())
        }
    }

    pub(crate) fn before(operation: impl FnOnce() -> Operation) -> io::Result<()> {
        if disk::is_any_watched() {
            let operation = operation();
            disk::step(&operation)?;
            return MACHINE.with_borrow_mut(|machine| machine.as_mut().map_or(Ok(()), |m| m.step(operation)));
        }
        MACHINE.with_borrow_mut(|machine| match machine.as_mut() {
            Some(machine) => machine.step(operation()),
            None => Ok(()),
        })
    }

    /// Vectored writes of this thread take no more than this at once from now on.
    pub(crate) fn set_write_max(bytes: usize) {
        WRITE_MAX.set(bytes);
    }

    pub(crate) fn write_max() -> usize {
        WRITE_MAX.get()
    }

    /// The part of a write that reached the file before the machine went off.
    pub(crate) fn write_some(file: &File, parts: &[Bytes], position: u64) {
        let bytes = parts.concat();
        let written = MACHINE.with_borrow_mut(|machine| {
            machine.as_mut().map_or(0, |machine| machine.next_random(bytes.len() as u64 + 1) as usize)
        });
        file.write_all_at(&bytes[..written], position).unwrap();
    }
}
