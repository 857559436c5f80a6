//! The broker: stores partitions, replicates them, and answers Kafka clients.
//!
//! Reading order: `replica` (the pure core), `log`, `partition` (core and log behind one lock), `partitions`, then the
//! shells that move them, then `handlers`.

mod replica;

pub mod log;

mod partition;

mod waiters;

mod features;
mod fetch_waiter;

mod partitions;

mod partition_config;

mod shared;

mod shared_metadata;

mod session;

mod coordinator;

mod groups;

mod transactions;

#[cfg(test)]
mod coordination_model;

mod config_changes;
mod context;
mod disk_space;
mod first_leaders;
mod group_configs;
mod handlers;
mod health;
mod metadata;
mod metrics;
mod placement;
mod producer_ids;
mod server;
mod topic_configs;
mod topic_creation;
mod topic_plan;
mod topics_at_start;
mod verifier;

mod control;
mod fetchers;
mod isr_proposer;
mod registration;
mod resignations;
mod take_over;
mod throttle;

mod start;

/// The pure cores, for the model of the `tests` crate. No part of the broker's interface.
#[doc(hidden)]
pub mod cores {
    pub use crate::control::rules::{
        Absent, Admission, Commander, Stop, StopOrder, judge_absent, judge_stop, stray,
    };
    pub use crate::log::{Incarnation, LeaderEpochs};
    pub use crate::registration::rules as registration;
    pub use crate::replica::{
        LogFacts, Replica, Role, Verdict, View, follower, isr, leader, progress, steps, storing, take_over,
    };
    pub use crate::waiters::OffsetWaiters;
}

use std::net::SocketAddr;
use std::process::ExitCode;

use zurau_common::config::{BrokerConfig, load_broker};
use zurau_common::id::TopicPartition;
use zurau_common::process::{ServerArguments, StopSignals, run_server};

pub use partition::PartitionStatus;

use start::{Parts, Runtimes};

/// A running broker. Dropping it stops it at once, as a kill would; [`Broker::shutdown`] hands its partitions over.
pub struct Broker {
    parts: Parts,
    runtimes: Runtimes,
    addresses: Vec<(String, SocketAddr)>,
}

impl Broker {
    /// Starts a broker: recovers its logs, registers, and serves. May be called from any tokio runtime; the broker runs
    /// on its own two.
    ///
    /// # Errors
    /// A log directory that cannot be used, an address that is taken, no ZooKeeper within the connection timeout, a
    /// broker id that another process uses.
    pub async fn start(config: BrokerConfig) -> anyhow::Result<Self> {
        start::start(config).await
    }

    /// The bound addresses by listener, in the order of `listeners`.
    pub fn addresses(&self) -> &[(String, SocketAddr)] {
        &self.addresses
    }

    /// What this broker does for each of its partitions at this moment, in no particular order.
    pub fn partitions(&self) -> Vec<(TopicPartition, PartitionStatus)> {
        let all = self.parts.context.partitions.all();
        all.iter().map(|partition| (partition.id().clone(), partition.status())).collect()
    }

    /// Ends when the broker cannot go on, with the reason.
    pub async fn wait(&self) -> anyhow::Error {
        self.runtimes.failure().await
    }

    /// Controlled shutdown: hands leaderships over, ends the session, closes the logs. At most ten seconds.
    pub async fn shutdown(self) {
        start::shutdown(self).await;
    }
}

/// The broker as a process: from its command line to its exit code (2: wrong configuration).
pub fn run(arguments: &ServerArguments) -> ExitCode {
    let config = load_broker(arguments.config.as_deref(), &arguments.overrides);
    run_server("zurau-broker", config, |config| &config.settings, serve)
}

async fn serve(config: BrokerConfig, signals: &mut StopSignals) -> anyhow::Result<()> {
    let broker = tokio::select! {
        broker = Broker::start(config) => broker?,
        signal = signals.wait() => {
            tracing::info!("{signal} before the broker was ready");
            return Ok(());
        }
    };
    tokio::select! {
        reason = broker.wait() => Err(reason),
        signal = signals.wait() => {
            tracing::info!("{signal}: handing over and stopping");
            broker.shutdown().await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod cluster_tests;
