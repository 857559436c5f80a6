//! A directory for one test, kept when the test fails; and the note that a test was skipped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Removed when the test passes, kept with all logs and data when it fails or when `ZURAU_KEEP` is set.
pub struct TestDirectory {
    path: PathBuf,
    keep: bool,
}

impl TestDirectory {
    /// # Panics
    /// If no directory can be created: no test can run then.
    pub fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix(&format!("zurau-{name}-"))
            .tempdir()
            .expect("a temporary directory can be created");
        Self { path: directory.keep(), keep: std::env::var_os("ZURAU_KEEP").is_some() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        if self.keep || std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} was not removed: {error}", self.path.display());
        }
    }
}

/// Runs one test in its own directory.
///
/// # Panics
/// If the body fails, with the error's whole chain and the place where logs and data were kept.
pub fn scenario(name: &str, body: impl FnOnce(&TestDirectory) -> Result<()>) {
    let mut directory = TestDirectory::new(name);
    if let Err(error) = body(&directory) {
        directory.keep = true;
        print_log_ends(directory.path());
        panic!("{name} failed: {error:#}\nlogs and data: {}", directory.path().display());
    }
}

/// The last lines of every log, so that a failure in CI can be read without the machine.
fn print_log_ends(directory: &Path) {
    const LINES: usize = 25;
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut logs: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    for log in logs {
        let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("--- end of {}", log.display());
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            eprintln!("{line}");
        }
    }
}

/// Says that a test, or a part of it, could not run. `tests/summary.py` finds the line and counts the test as skipped.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}
