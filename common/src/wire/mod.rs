//! The Kafka wire protocol as brokers and the controller speak it: frames, the guard that keeps a hostile frame from
//! claiming memory, the connection to a peer, and our own tagged fields in control requests.
//!
//! Message types come from `kafka-protocol`; nothing here interprets a field of them except `control`. What the crate
//! lacks is in `consumer_group` and `transactions`.

pub mod consumer_group;
pub mod control;
pub mod frame;
mod guard;
pub mod peer;
pub mod places;
pub mod server;
pub mod transactions;
pub mod transport;
