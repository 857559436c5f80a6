//! The ZooKeeper client protocol as values: jute primitives, requests, replies. Pure: bytes in,
//! values out, no state and no sockets, so that hostile input can be tested without a server.

pub(crate) mod code;
pub(crate) mod jute;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod types;
