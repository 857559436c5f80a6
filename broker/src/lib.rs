//! The broker: stores partitions, replicates them, and answers Kafka clients.
#![allow(dead_code)]

mod replica;

mod waiters;
