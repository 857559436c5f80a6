//! The log directories as witnesses of this broker's registrations (D1): which registration each is complete for, and
//! what is written into them on the way to the next one. Waits for the disk on threads of its own.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tracing::{error, info};

use crate::log::{Incarnation, current_boot_id};

#[derive(Debug, Clone)]
struct Home {
    path: PathBuf,
    found: Option<Incarnation>,
    complete: bool,
}

/// All log directories, in the order of `log.dirs`.
#[derive(Debug, Clone)]
pub(super) struct Homes {
    homes: Vec<Home>,
    boot_id: String,
}

impl Homes {
    pub(super) fn new(paths: &[PathBuf]) -> Self {
        let homes = paths.iter().map(|path| Home { path: path.clone(), found: None, complete: false });
        Self { homes: homes.collect(), boot_id: String::new() }
    }

    /// Finds out which directories are complete for the registration `held`, the one that is stored.
    pub(super) async fn judge(&mut self, held: i64) -> anyhow::Result<()> {
        let mut homes = self.homes.clone();
        let (homes, boot_id) = tokio::task::spawn_blocking(move || {
            let boot_id = current_boot_id()?;
            for home in &mut homes {
                home.found = Incarnation::read(&home.path).unwrap_or_else(|reason| {
                    error!(directory = %home.path.display(), %reason, "the registration cannot be read; the directory counts as incomplete");
                    None
                });
                let candidate =
                    home.found.as_ref().is_some_and(|found| found.is_complete_for(held, &boot_id));
                home.complete = candidate && is_sound(&home.path);
                info!(directory = %home.path.display(), complete = home.complete, registration = held, "log directory");
            }
            anyhow::Ok((homes, boot_id))
        })
        .await
        .context("judging the log directories panicked")??;
        (self.homes, self.boot_id) = (homes, boot_id);
        for home in self.homes.iter_mut().filter(|home| home.complete) {
            if let Some(found) = &mut home.found {
                found.id = held;
            }
        }
        Ok(())
    }

    pub(super) fn is_complete(&self, directory: usize) -> bool {
        self.homes.get(directory).is_some_and(|home| home.complete)
    }

    /// Whether the registration `held` was made by a process with these directories, under this boot (D12). The
    /// directories are locked, so that process is gone.
    pub(super) fn are_of(&self, held: i64) -> bool {
        let known: Vec<&Incarnation> = self.homes.iter().filter_map(|home| home.found.as_ref()).collect();
        !known.is_empty() && known.iter().all(|found| found.made(held, &self.boot_id))
    }

    /// Notes the coming registration in the complete directories; the others are left as they are.
    pub(super) async fn announce(&mut self, next: i64) -> anyhow::Result<()> {
        for home in self.homes.iter_mut().filter(|home| home.complete) {
            if let Some(found) = &mut home.found {
                found.next_id = next;
            }
        }
        self.write(|home| home.complete).await
    }

    /// All directories are complete for the registration `id` from now on.
    pub(super) async fn complete(&mut self, id: i64) -> anyhow::Result<()> {
        self.set_all(id, false).await
    }

    /// As [`Homes::complete`], and stays so over a restart of the machine.
    pub(super) async fn mark_clean(&self, id: i64) -> anyhow::Result<()> {
        self.clone().set_all(id, true).await
    }

    async fn set_all(&mut self, id: i64, clean: bool) -> anyhow::Result<()> {
        for home in &mut self.homes {
            home.complete = true;
            home.found = Some(Incarnation { id, next_id: -1, boot_id: self.boot_id.clone(), clean });
        }
        self.write(|_| true).await
    }

    async fn write(&self, which: impl Fn(&Home) -> bool) -> anyhow::Result<()> {
        let homes: Vec<Home> = self.homes.iter().filter(|home| which(home)).cloned().collect();
        tokio::task::spawn_blocking(move || {
            let (mut written, mut failure) = (0, None);
            for Home { path, found, .. } in &homes {
                let Some(found) = found else { continue };
                match found.write(path) {
                    Ok(()) => written += 1,
                    Err(reason) => {
                        // It keeps what it said before, and so counts as incomplete at the next start.
                        error!(directory = %path.display(), %reason, "the registration cannot be written into the log directory");
                        failure = Some(reason);
                    }
                }
            }
            match failure {
                Some(reason) if written == 0 => Err(reason.into()),
                _ => anyhow::Ok(()),
            }
        })
        .await
        .context("writing the registration into the log directories panicked")?
    }
}

/// Whether the file system can store everything that it was given; a lost write shows here (D1).
fn is_sound(path: &Path) -> bool {
    let synced = File::open(path).and_then(|file| Ok(rustix::fs::syncfs(&file)?));
    if let Err(reason) = &synced {
        error!(directory = %path.display(), %reason, "the file system reports an error at sync; the directory counts as incomplete");
    }
    synced.is_ok()
}
