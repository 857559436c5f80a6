//! What operators and their tools ask over HTTP, on a port of its own: `/live`, `/ready`, `/metrics`.
//!
//! `server` is the shell; what a process knows about itself it says through [`Observed`]. `instruments`
//! are what it counts with, `exposition` is the form in which that is read.

pub mod exposition;
pub mod instruments;
mod server;

pub use server::HttpServer;

use serde::Serialize;
use serde_json::Value;

use exposition::Exposition;

/// A process that tells about itself.
pub trait Observed: Send + Sync + 'static {
    /// Whether the process does its work now. Must not wait: it is asked on the runtime that answers.
    fn readiness(&self) -> Readiness;

    /// Writes what `/metrics` shows. May wait a little: it is asked on a thread of its own, one at a time.
    fn metrics(&self, page: &mut Exposition);
}

/// What `/ready` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    ready: bool,
    reasons: Vec<String>,
    warnings: Vec<String>,
    details: Value,
}

impl Readiness {
    /// `reasons`: why the process is not ready; none when it is. `warnings`: what an operator should look at although
    /// it is.
    pub fn new(reasons: Vec<String>, warnings: Vec<String>, details: Value) -> Self {
        Self { ready: reasons.is_empty(), reasons, warnings, details }
    }

    pub fn is_ready(&self) -> bool {
        self.ready
    }

    fn to_json(&self) -> String {
        serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| unreachable!("a readiness is plain JSON: {error}"))
    }
}
