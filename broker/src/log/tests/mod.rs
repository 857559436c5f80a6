//! Stories about a whole log, on real files.

mod basics;
mod corpus;
mod crash;
mod fixtures;
mod model;
mod overflow;
mod producers;
mod recompression;
mod retention;
mod validation;
