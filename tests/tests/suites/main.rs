//! Suites that nobody here wrote: client libraries' own tests, against a cluster of real processes. What they need
//! comes from Debian's, Python's and Rust's registries into `target/suites` and stays there.
//!
//! Every test of a suite counts. One that cannot pass is named beside the feature that is missing, and must fail: once
//! it passes, its line has to go. The outcome of each suite is written down for the table in the README
//! (`tests/compatibility.py`). The quick ones run by default, all of them with `./tests/run --long`.

mod applications;
mod burrow;
mod java;
mod kafka_python;
mod librdkafka;
mod outcome;
mod rsyslog;
mod rust_crates;
mod workshop;
