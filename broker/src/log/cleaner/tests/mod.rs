//! Stories about compaction.

mod cases;
mod crashes;
mod fixtures;
mod model;
mod support;
mod workers;
