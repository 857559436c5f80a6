//! Which registration of the broker a log directory is complete for, and since which boot of the machine (D1, N1).
//!
//! Kafka has no such file. It is replaced atomically; a damaged one says nothing, and the directory then counts as
//! incomplete.

use std::path::{Path, PathBuf};

use tracing::warn;
use zurau_common::rule::{Rule, holds};

use super::error::{StorageContext, StorageError};
use super::files::{read_if_present, write_atomically};

const FILE: &str = ".zurau_registration";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Registration id (broker epoch) that this directory's data is complete for; -1 for none.
    pub id: i64,
    /// Registration id that is being taken; -1 for none.
    pub next_id: i64,
    /// The machine's boot at which `id` was written.
    pub boot_id: String,
    /// The broker stopped cleanly.
    pub clean: bool,
}

impl Incarnation {
    /// Reads the file of a log directory; `None` when absent or damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>, StorageError> {
        let path = directory.join(FILE);
        let Some(text) = read_if_present(&path)? else { return Ok(None) };
        let decoded = Self::decode(&text);
        if decoded.is_none() {
            warn!(path = %path.display(), "registration file is damaged; the directory counts as incomplete");
        }
        Ok(decoded)
    }

    pub fn write(&self, directory: &Path) -> Result<(), StorageError> {
        write_atomically(&directory.join(FILE), self.encode().as_bytes())
    }

    /// Whether the directory holds everything that was in it under registration `id` (D1, without the sync check).
    pub fn is_complete_for(&self, id: i64, boot_id: &str) -> bool {
        let witnessed = self.clean || self.boot_id == boot_id || !holds(Rule::CompleteUnderBoot);
        (self.id == id || self.next_id == id) && witnessed
    }

    /// Whether registration `id` was made by a process with this directory, under this boot (D12, F11).
    pub fn made(&self, id: i64, boot_id: &str) -> bool {
        let here = self.boot_id == boot_id || !holds(Rule::DirectoryOfMachine);
        (self.id == id || self.next_id == id) && here
    }

    fn encode(&self) -> String {
        let Self { id, next_id, boot_id, clean } = self;
        format!("version=0\nid={id}\nnext={next_id}\nboot={boot_id}\nclean={clean}\n")
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        if field("version")? != "0" {
            return None;
        }
        Some(Self {
            id: field("id")?.parse().ok()?,
            next_id: field("next")?.parse().ok()?,
            boot_id: field("boot")?.to_owned(),
            clean: field("clean")?.parse().ok()?,
        })
    }
}

/// The id of the machine's current boot.
pub fn current_boot_id() -> Result<String, StorageError> {
    let path = PathBuf::from(BOOT_ID);
    Ok(std::fs::read_to_string(&path).storage("read", &path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_only_with_the_right_id_and_no_lost_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Incarnation::read(directory.path()).unwrap(), None);
        let boot_id = current_boot_id().unwrap();
        let written = Incarnation { id: 5, next_id: 9, boot_id: boot_id.clone(), clean: false };
        written.write(directory.path()).unwrap();
        let read = Incarnation::read(directory.path()).unwrap().unwrap();
        assert_eq!(read, written);
        let clean = Incarnation { clean: true, ..read.clone() };
        //   file, asked id, boot id, complete
        let rows = [
            (&read, 5, boot_id.as_str(), true),
            (&read, 9, boot_id.as_str(), true),
            (&read, 6, boot_id.as_str(), false),
            (&read, 5, "another boot", false),
            (&clean, 5, "another boot", true),
            (&clean, 6, boot_id.as_str(), false),
        ];
        for (file, id, boot, complete) in rows {
            assert_eq!(file.is_complete_for(id, boot), complete, "{file:?} {id} {boot}");
        }
        std::fs::write(directory.path().join(FILE), "version=0\nid=5").unwrap();
        assert_eq!(Incarnation::read(directory.path()).unwrap(), None);
    }
}
