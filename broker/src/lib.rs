//! The broker: stores partitions, replicates them, and answers Kafka clients.
#![allow(dead_code)]

pub mod log;

mod replica;

mod waiters;

mod context;
mod handlers;
mod metadata;
mod placement;
mod producer_ids;
mod topic_configs;
mod topic_creation;
mod topic_plan;
