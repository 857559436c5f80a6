//! How far a start is with opening the logs: counted by the threads that open them, shown to whoever waits (D13).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How far one log directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirectoryProgress {
    pub(crate) path: PathBuf,
    pub(crate) logs_done: usize,
    pub(crate) logs_total: usize,
    /// Bytes read by recovery, of those that it has to read: what lies after the recovery points of a directory that
    /// was not closed cleanly, and segments whose index is damaged, once they are found.
    pub(crate) bytes_scanned: u64,
    pub(crate) bytes_total: u64,
}

/// The counters of one log directory.
#[derive(Debug)]
pub(super) struct DirectoryCounters {
    path: PathBuf,
    logs_total: usize,
    bytes_total: u64,
    logs_done: AtomicUsize,
    pub(super) bytes_scanned: AtomicU64,
}

impl DirectoryCounters {
    pub(super) fn new(path: &Path, logs_total: usize, bytes_total: u64) -> Self {
        Self {
            path: path.to_owned(),
            logs_total,
            bytes_total,
            logs_done: AtomicUsize::new(0),
            bytes_scanned: AtomicU64::new(0),
        }
    }

    pub(super) fn note_log_done(&self) {
        self.logs_done.fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> DirectoryProgress {
        let bytes_scanned = self.bytes_scanned.load(Ordering::Relaxed);
        DirectoryProgress {
            path: self.path.clone(),
            logs_done: self.logs_done.load(Ordering::Relaxed),
            logs_total: self.logs_total,
            bytes_scanned,
            bytes_total: self.bytes_total.max(bytes_scanned),
        }
    }
}

/// The progress of a whole start. Empty until the log directories are listed.
#[derive(Debug, Default)]
pub(crate) struct LoadingProgress(OnceLock<Vec<DirectoryCounters>>);

impl LoadingProgress {
    /// Called once, when it is known what there is to do. In the order of the directories.
    pub(super) fn begin(&self, directories: Vec<DirectoryCounters>) -> &[DirectoryCounters] {
        self.0.get_or_init(|| directories)
    }

    /// By log directory.
    pub(crate) fn snapshot(&self) -> Vec<DirectoryProgress> {
        self.0.get().into_iter().flatten().map(DirectoryCounters::snapshot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_directory_and_never_shows_more_done_than_there_is() {
        let progress = LoadingProgress::default();
        assert_eq!(progress.snapshot(), []);
        let directories = vec![
            DirectoryCounters::new(Path::new("/a"), 2, 100),
            DirectoryCounters::new(Path::new("/b"), 1, 0),
        ];
        let counters = progress.begin(directories);
        counters[0].note_log_done();
        counters[0].bytes_scanned.fetch_add(60, Ordering::Relaxed);
        counters[1].bytes_scanned.fetch_add(7, Ordering::Relaxed);
        let shown: Vec<_> = progress
            .snapshot()
            .iter()
            .map(|shown| (shown.logs_done, shown.logs_total, shown.bytes_scanned, shown.bytes_total))
            .collect();
        assert_eq!(shown, [(1, 2, 60, 100), (0, 1, 7, 7)]);
    }
}
