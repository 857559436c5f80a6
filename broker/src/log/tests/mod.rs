//! Stories about a whole log, on real files.

mod basics;
mod fixtures;
mod producers;
