//! The ZooKeeper layout (coordination.md, sections 1 to 3): every path in one enum, one codec file per kind of
//! value, the one builder of fenced multis, and the session wrapper. Only files in this folder spell a path.

pub mod znode;

pub mod broker;
pub mod config;
pub mod controller;
pub mod election;
pub mod isr;
pub mod state;
pub mod topic;

pub mod fence;
pub mod op;

mod batch;
mod connect_string;
pub mod lease;
mod lease_term;
pub mod read;
pub mod session;
pub mod session_metrics;
pub mod watch;
mod write;

use thiserror::Error;

/// The largest leader or controller epoch that is read: far beyond any number of elections, and as far from the end of
/// the numbers, so that a mistyped one cannot make the next overflow.
pub(crate) const EPOCH_MAX: i32 = i32::MAX / 2;

/// A znode holds something that its reader cannot understand. Shown to the admin in an `error` child, so the text
/// says what stands there and what should.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} cannot be read: {why}")]
pub struct InvalidZnode {
    /// The kind of value, for instance "the partition's state".
    pub what: &'static str,
    pub why: String,
}

impl InvalidZnode {
    pub(crate) fn new(what: &'static str, why: impl std::fmt::Display) -> Self {
        Self { what, why: why.to_string() }
    }
}
