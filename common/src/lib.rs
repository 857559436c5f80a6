//! What the controller and the brokers must agree on: identifiers, the LeaderAndIsr record, rejections, wire
//! frames, the ZooKeeper layout and configuration. Neither side sees the other's crate; they meet here.

pub mod assignment;
pub mod config;
pub mod http;
pub mod id;
pub mod leader_and_isr;
pub mod page_cache;
pub mod process;
pub mod rejection;
pub mod rule;
pub mod wire;
pub mod zk;
