//! The controller: elects leaders, drives creation, reassignment and deletion of partitions. A pure core
//! ([`machine::Machine`]: events in, actions out) and a shell that talks to ZooKeeper and to brokers.

pub mod action;
mod claim;
mod cluster;
mod complaints;
mod election;
pub mod event;
mod isr;
pub mod machine;
mod office;
mod outcomes;
mod partition_map;
mod partitions;
mod pending;
mod preferred;
mod publish;
mod reassignment;
mod requests;
mod statistics;
mod topics;

#[cfg(test)]
mod tests;

mod facts;
mod mirror;
mod multi;
mod queue;

mod api;
mod health;
mod inbox;
mod leadership;
mod messages;
mod metrics;
mod outbox;
mod process;
mod removal;
mod runtime;
mod standby;
mod story;
mod watches;

/// The pure cores beside the machine, for the model of the `tests` crate. No part of the controller's interface.
#[doc(hidden)]
pub mod cores {
    pub use crate::claim::{Office, claim, claimed, outranked};
    pub use crate::mirror::{Mirror, Reading, broker_paths, partition_paths};
    pub use crate::multi::{operations, zxid_of};
    pub use crate::queue::{BrokerQueue, MetadataChanges, Outgoing};
}

pub use messages::LOG_END_QUERY;
pub use process::{Controller, run};
pub use zurau_common::config::ControllerConfig;
