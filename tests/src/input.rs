//! A real text file of at least 100,000 lines: a word list or a list of packages that came with the machine.

use std::fs;
use std::path::{Path, PathBuf};

pub const LINES_MIN: usize = 100_000;

/// Debian's word lists, the longer ones first; then what any Debian machine has.
const CANDIDATES: [&str; 5] = [
    "/usr/share/dict/american-english-large",
    "/usr/share/dict/american-english-huge",
    "/usr/share/dict/american-english-insane",
    "/usr/share/dict/ngerman",
    "/usr/share/dict/words",
];

/// The first candidate that is long enough, has no empty line and ends with a newline: kcat sends one record a line
/// and leaves empty lines out.
pub fn long_text_file() -> Option<PathBuf> {
    CANDIDATES.iter().map(Path::new).find(|path| is_suitable(path)).map(Path::to_owned)
}

fn is_suitable(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else { return false };
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    lines >= LINES_MIN
        && bytes.ends_with(b"\n")
        && !bytes.starts_with(b"\n")
        && !bytes.windows(2).any(|pair| pair == b"\n\n")
}

/// Why the tests on real input cannot run.
pub fn missing() -> String {
    format!("none of {CANDIDATES:?} has {LINES_MIN} lines; install Debian's package wamerican-large")
}
