//! A server that speaks the ZooKeeper 3.8 client protocol inside one process, for `zurau dev` and
//! for tests. **Development and tests only**: one member, no replication, and no other promise
//! than to behave towards clients as Apache ZooKeeper does. Production uses a real ensemble.
//!
//! `protocol` (bytes to values) and `core` (state and transitions) are pure; `journal` writes to
//! disk when a data directory is given; `server` and `connection` are the dull shell around them.
//!
//! Known differences from 3.8: nodes with a time to live need no switch; one-shot and persistent
//! watches of one client on one path do not replace each other (as from 3.9 on); reconfiguration,
//! SASL, TLS and quotas are absent.

mod connection;
mod core;
mod journal;
mod protocol;
mod server;

pub use server::{Server, ServerConfig};
