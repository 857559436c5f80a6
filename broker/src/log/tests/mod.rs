//! Stories about a whole log, on real files.

mod basics;
mod fixtures;
mod model;
mod producers;
mod retention;
mod validation;
