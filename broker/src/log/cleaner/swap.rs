//! Putting new segments in the place of old ones, so that a crash after any step leaves the old or the new set.
//!
//! | step | a crash after it finds | loading makes of it |
//! |---|---|---|
//! | 1 new files written and synced as `.cleaned` | `.cleaned` | the old set |
//! | 2 renamed to `.swap`, the highest base offset first | `.swap` and `.cleaned` of the lowest | the old set |
//! | 3 directory synced | a complete `.swap` set | the new set |
//! | 4 old files renamed to `.deleted` | some old files beside the complete `.swap` set | the new set |
//! | 5 renamed to their final names, logs first | complete logs, some indexes still `.swap` | the new set |
//!
//! Loading knows from the end of a `.swap` log which old files it replaces: the last batch of a set always stays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::log::error::{LogError, StorageError};
use crate::log::files::{remove_if_present, rename, sync_directory, with_suffix};
use crate::log::partition_log::{PartitionLog, PendingRemoval};
use crate::log::retention::DELETED_SUFFIX;
use crate::log::segment::Segment;

pub(crate) const CLEANED_SUFFIX: &str = ".cleaned";
pub(crate) const SWAP_SUFFIX: &str = ".swap";

/// One step on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileStep {
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// The file need not exist (a transaction index often does not).
    RenameIfPresent {
        from: PathBuf,
        to: PathBuf,
    },
    SyncDirectory(PathBuf),
}

impl FileStep {
    pub(crate) fn run(&self) -> Result<(), StorageError> {
        match self {
            Self::Rename { from, to } => rename(from, to),
            Self::RenameIfPresent { from, to } => match rename(from, to) {
                Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
            Self::SyncDirectory(path) => sync_directory(path),
        }
    }
}

/// The steps of one replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SwapSteps {
    /// Up to the complete `.swap` set; may be undone.
    pub(crate) prepare: Vec<FileStep>,
    /// Must be completed, here or when the log is opened again.
    pub(crate) finish: Vec<FileStep>,
}

/// `new`: for each new segment, lowest base offset first, its final paths, the log before its indexes. The files are
/// there with [`CLEANED_SUFFIX`]. `old`: paths of every file the old segments may have.
pub(crate) fn swap_steps(directory: &Path, old: &[PathBuf], new: &[Vec<PathBuf>]) -> SwapSteps {
    let sync = || FileStep::SyncDirectory(directory.to_owned());
    // The names must not be lost while later renames are kept.
    let mut prepare = vec![sync()];
    for files in new.iter().rev() {
        prepare.extend(files.iter().map(|path| FileStep::Rename {
            from: with_suffix(path, CLEANED_SUFFIX),
            to: with_suffix(path, SWAP_SUFFIX),
        }));
        prepare.push(sync());
    }
    let set_aside = |path: &PathBuf| FileStep::RenameIfPresent {
        from: path.clone(),
        to: with_suffix(path, DELETED_SUFFIX),
    };
    let mut finish: Vec<FileStep> = old.iter().map(set_aside).collect();
    finish.push(sync());
    for path in new.iter().flatten() {
        finish.push(FileStep::Rename { from: with_suffix(path, SWAP_SUFFIX), to: path.clone() });
    }
    finish.push(sync());
    SwapSteps { prepare, finish }
}

/// The final paths of the files that a segment with [`CLEANED_SUFFIX`] has.
fn final_paths(segment: &Segment) -> Vec<PathBuf> {
    segment.files().iter().map(|file| without_suffix(&file.path())).collect()
}

fn without_suffix(path: &Path) -> PathBuf {
    path.with_extension("")
}

impl PartitionLog {
    /// Replaces the segments with the given base offsets by `new` ones, written and synced with [`CLEANED_SUFFIX`].
    /// The old files go after `file.delete.delay.ms`; who reads them may go on.
    ///
    /// # Errors
    /// A step that failed. The log is unchanged, or stopped: then opening it again completes the replacement.
    pub(crate) fn replace_segments(
        &mut self,
        old: &[i64],
        new: Vec<Segment>,
        now_ms: i64,
    ) -> Result<(), LogError> {
        self.check_running()?;
        let steps = self.steps_for(old, &new);
        let prepared =
            self.write_missing_epochs().and_then(|()| steps.prepare.iter().try_for_each(FileStep::run));
        if let Err(error) = prepared {
            self.undo_swap(&new);
            return Err(error.into());
        }
        if let Err(error) = steps.finish.iter().try_for_each(FileStep::run) {
            self.stop(format!("segments were replaced only in part: {error}"));
            return Err(error.into());
        }
        self.adopt_replacement(old, new, now_ms)?;
        Ok(())
    }

    pub(crate) fn steps_for(&self, old: &[i64], new: &[Segment]) -> SwapSteps {
        let old_files: Vec<PathBuf> = old
            .iter()
            .filter_map(|base| self.segments.get(base))
            .flat_map(|segment| segment.all_files())
            .map(|file| file.path())
            .collect();
        let new_files: Vec<Vec<PathBuf>> = new.iter().map(final_paths).collect();
        swap_steps(&self.directory, &old_files, &new_files)
    }

    /// Removes what a failed preparation left. A `.swap` file that stays would be completed much later, over other
    /// records: better no log than that.
    fn undo_swap(&mut self, new: &[Segment]) {
        for path in new.iter().flat_map(final_paths) {
            for suffix in [SWAP_SUFFIX, CLEANED_SUFFIX] {
                if let Err(error) = remove_if_present(&with_suffix(&path, suffix)) {
                    self.stop(format!("a replacement of segments could not be undone: {error}"));
                }
            }
        }
        if let Err(error) = sync_directory(&self.directory) {
            self.stop(format!("a replacement of segments could not be undone: {error}"));
        }
    }

    fn adopt_replacement(&mut self, old: &[i64], new: Vec<Segment>, now_ms: i64) -> Result<(), StorageError> {
        let due_ms = now_ms.saturating_add(self.config.file_delete_delay_ms);
        for base in old {
            let Some(segment) = self.segments.remove(base) else { continue };
            for file in segment.all_files() {
                let path = with_suffix(&file.path(), DELETED_SUFFIX);
                file.moved_to(path.clone());
                self.pending_removals.push(PendingRemoval { path, due_ms });
            }
        }
        let kept: BTreeSet<i64> = new.iter().map(|segment| segment.base_offset).collect();
        for segment in new {
            for file in segment.all_files() {
                file.moved_to(without_suffix(&file.path()));
            }
            self.segments.insert(segment.base_offset, Box::new(segment));
        }
        // A snapshot serves the recovery of the segment that begins at its offset.
        let latest = self.snapshots.last().copied().unwrap_or(0);
        let unneeded = |offset: i64| old.contains(&offset) && !kept.contains(&offset) && offset != latest;
        if let Err(error) = self.remove_snapshots(unneeded) {
            warn!(directory = %self.directory.display(), %error, "a producer snapshot stays that is not needed");
        }
        Ok(())
    }
}
