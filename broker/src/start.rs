//! Starting and stopping a broker: the order of things, and the two runtimes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tracing::{error, info};
use zurau_common::config::BrokerConfig;

use crate::Broker;
use crate::context::BrokerContext;
use crate::log::LogDirectory;
use crate::partition_config::partition_config;
use crate::partitions::Partitions;
use crate::shared::{ReplicationSettings, Shared};

/// Threads of the control plane: the session, the lease, orders of the controller.
const CONTROL_THREADS: usize = 2;

/// The broker's two runtimes: a page-cache write that blocks on the data plane never delays a heartbeat.
pub(crate) struct Runtimes {
    data: Option<Runtime>,
    control: Option<Runtime>,
    failure: watch::Sender<Option<Arc<str>>>,
}

impl Runtimes {
    fn new(broker: i32) -> anyhow::Result<Self> {
        let build = |name: String, threads: Option<usize>| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            if let Some(threads) = threads {
                builder.worker_threads(threads);
            }
            builder.thread_name(name).enable_all().build().context("no threads for a runtime")
        };
        Ok(Self {
            data: Some(build(format!("data-{broker}"), None)?),
            control: Some(build(format!("control-{broker}"), Some(CONTROL_THREADS))?),
            failure: watch::Sender::new(None),
        })
    }

    pub(crate) fn data(&self) -> Handle {
        self.data.as_ref().expect("the runtime ends with this value").handle().clone()
    }

    pub(crate) fn control(&self) -> Handle {
        self.control.as_ref().expect("the runtime ends with this value").handle().clone()
    }

    /// Ends the broker with a reason.
    pub(crate) fn failure_sender(&self) -> watch::Sender<Option<Arc<str>>> {
        self.failure.clone()
    }

    pub(crate) async fn failure(&self) -> anyhow::Error {
        let mut failure = self.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.expect("the sender is in this value").clone();
        anyhow::anyhow!("{}", reason.unwrap_or_default())
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        // A runtime must not wait for its tasks in a drop that may happen on another runtime.
        for runtime in [self.data.take(), self.control.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) async fn start(config: BrokerConfig) -> anyhow::Result<Broker> {
    let runtimes = Runtimes::new(config.broker_id.0)?;
    let control = runtimes.control();
    let starting = control.spawn(start_on_control(config));
    let context = starting.await.context("starting the broker panicked")??;
    Ok(Broker { context, runtimes, addresses: Vec::new() })
}

async fn start_on_control(config: BrokerConfig) -> anyhow::Result<Arc<BrokerContext>> {
    let context =
        tokio::task::spawn_blocking(move || open(config)).await.context("opening the logs panicked")??;
    Ok(context)
}

/// Opens the log directories and loads every log. Waits for the disk.
fn open(config: BrokerConfig) -> anyhow::Result<Arc<BrokerContext>> {
    let settings = ReplicationSettings {
        lag_max_ms: millis(config.replica_lag_time_max),
        fetch_wait_max_ms: millis(config.replica_fetch_wait_max),
    };
    let (shared, _requests) = Shared::new(config.broker_id, settings);
    let directories = config
        .log_dirs
        .iter()
        .map(|path| LogDirectory::open(path).map_err(anyhow::Error::from))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let default = partition_config(&config.topic_defaults, config.producer_id_expiration);
    let partitions = Partitions::new(Arc::clone(&shared), directories, default);
    partitions.load(config.num_recovery_threads_per_data_dir.max(4))?;
    Ok(Arc::new(BrokerContext::new(config, shared, partitions)))
}

pub(crate) async fn shutdown(broker: Broker) {
    let Broker { context, runtimes, .. } = broker;
    let closing = runtimes.control().spawn_blocking(move || context.partitions.close());
    match tokio::time::timeout(Duration::from_secs(10), closing).await {
        Ok(Ok(Ok(()))) => info!("the broker has stopped"),
        Ok(Ok(Err(reason))) => error!("the broker has stopped, not cleanly: {reason:#}"),
        Ok(Err(_)) | Err(_) => error!("the broker has stopped before its logs were closed"),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
