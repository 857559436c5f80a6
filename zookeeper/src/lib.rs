//! A server that speaks the ZooKeeper 3.8 client protocol inside one process, for `zurau dev` and
//! for tests. **Development and tests only**: one member, no replication, and no other promise
//! than to behave towards clients as Apache ZooKeeper does. Production uses a real ensemble.
//!
//! `protocol` (bytes to values) and `core` (state and transitions) are pure; `journal` writes to
//! disk when a data directory is given; `server` and `connection` are the dull shell around them.
//!
//! Known differences from 3.8: nodes with a time to live need no switch; reconfiguration, SASL, TLS
//! and quotas are absent. Traps of 3.8 that clients must survive are kept: the last watch that a
//! client sets on a path replaces its others there, and a multi does not tell created nodes' stats.

mod connection;
mod core;
mod journal;
mod protocol;
mod server;

pub use server::{Server, ServerConfig};
