//! Stories about a whole log, on real files.

mod basics;
mod crash;
mod fixtures;
mod model;
mod producers;
mod recompression;
mod retention;
mod validation;
