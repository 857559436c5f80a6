//! Stories about a whole log, on real files.

mod basics;
mod cases;
mod corpus;
mod crash;
mod fixtures;
mod lookup;
mod model;
mod overflow;
mod producers;
mod recompression;
mod retention;
mod transactions;
mod validation;

/// A directory for a test that makes very many files: in memory, if the system has a place for that.
pub(crate) fn directory_in_memory() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    builder.tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}
