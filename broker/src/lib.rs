//! The broker: stores partitions, replicates them, and answers Kafka clients.
#![allow(dead_code)]

pub mod log;

mod replica;

mod waiters;
