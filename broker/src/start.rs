//! Starting and stopping a broker: the order of things, the two runtimes, and the life of its ZooKeeper sessions.

mod stop;

mod tasks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use zurau_common::config::{BrokerConfig, Listener};
use zurau_common::http::HttpServer;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::process::host_name;
use zurau_common::wire::server::{ListenerName, Server};
use zurau_common::zk::broker::{Address, Endpoint, Endpoints};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::session_metrics::SessionMetrics;
use zurau_common::zk::znode::Znode;

use crate::Broker;
use crate::context::BrokerContext;
use crate::control::ControlPlane;
use crate::fetchers::FetchSettings;
use crate::health::Health;
use crate::isr_proposer::Proposer;
use crate::log::{DirectoryError, LogDirectory};
use crate::partition_config::partition_config;
use crate::partitions::{LoadingProgress, Partitions, space_marks};
use crate::registration::{Conflict, Identity, Registrar};
use crate::shared::{PartitionRequest, ReplicationSettings, Shared};
use crate::throttle::Throttles;
use crate::topic_configs::Changed;

pub(crate) use stop::shutdown;

/// Threads of the control plane: the session, the lease, orders of the controller.
const CONTROL_THREADS: usize = 2;
/// Logs opened at a time in each directory, at least.
const LOADING_THREADS_MIN: usize = 4;
/// Pause before another session is tried after one could not be had.
const SESSION_RETRY_PAUSE: Duration = Duration::from_secs(1);

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

/// What a start needs of the runtimes.
struct Planes {
    data: Handle,
    control: Handle,
    failure: watch::Sender<Option<Arc<str>>>,
}

/// What a running broker is made of, besides its runtimes.
pub(crate) struct Parts {
    pub(crate) context: Arc<BrokerContext>,
    pub(crate) server: Arc<Server>,
    pub(crate) health: Arc<Health>,
    /// Answers over HTTP until the broker ends.
    pub(crate) http: Option<HttpServer>,
    pub(crate) registrar: Arc<tokio::sync::Mutex<Registrar>>,
    /// Cancelled when the broker stops: sessions are not replaced any more, background work ends.
    pub(crate) stopping: CancellationToken,
}

pub(crate) async fn start(config: BrokerConfig) -> anyhow::Result<Broker> {
    let runtimes = Runtimes::new(config.broker_id.0)?;
    let planes =
        Planes { data: runtimes.data(), control: runtimes.control(), failure: runtimes.failure.clone() };
    let starting = runtimes.control().spawn(start_on_control(config, planes));
    let parts = starting.await.context("starting the broker panicked")??;
    let addresses = parts.server.local_addresses();
    let addresses = addresses.iter().map(|(name, address)| (name.to_string(), *address)).collect();
    Ok(Broker { parts, runtimes, addresses })
}

async fn start_on_control(config: BrokerConfig, planes: Planes) -> anyhow::Result<Parts> {
    let health = Health::new(&config, planes.data.clone());
    let http = health.serve(&config).await?;
    let zookeeper = connect(&config, &health.sessions);
    let (data, control) = (planes.data.clone(), planes.control.clone());
    let (for_logs, for_progress) = (config.clone(), Arc::clone(&health));
    let opening = tokio::task::spawn_blocking(move || open(for_logs, &for_progress.loading, control, data));
    // A directory that cannot be used is told at once, however long ZooKeeper is waited for.
    let opening = async {
        let opened = opening.await.context("opening the logs panicked")??;
        health.loaded(&opened.0);
        anyhow::Ok(opened)
    };
    let (zookeeper, (context, requests, unclean)) = tokio::try_join!(zookeeper, opening)?;
    let server = Arc::new(bind(&context, &planes.data).await?);
    let identity = identity(&context.config, server.local_addresses())?;
    let mut registrar = Registrar::new(Arc::clone(&context), identity, unclean);
    planes.control.spawn(Proposer::new(Arc::clone(&context), requests).run());
    enter(&context, &mut registrar, &zookeeper).await?;
    let registrar = Arc::new(tokio::sync::Mutex::new(registrar));
    let stopping = CancellationToken::new();
    let parts = Parts { context, server, health, http, registrar, stopping };
    tasks::spawn(&parts.context, &planes.data, &parts.stopping);
    let (of_sessions, registrar) = (Arc::clone(&parts.context), Arc::clone(&parts.registrar));
    let sessions = keep_sessions(of_sessions, registrar, zookeeper, Arc::clone(&parts.health.sessions));
    let (stopping, failure) = (parts.stopping.clone(), planes.failure);
    let for_disks = Arc::clone(&parts.context);
    planes.control.spawn(async move {
        tokio::select! {
            reason = sessions => {
                error!("the broker cannot go on: {reason:#}");
                failure.send_replace(Some(format!("{reason:#}").into()));
            }
            () = for_disks.partitions.all_directories_failed() => {
                error!("the broker cannot go on: every log directory is offline");
                failure.send_replace(Some("every log directory is offline".into()));
            }
            () = stopping.cancelled() => {}
        }
    });
    Ok(parts)
}

async fn connect(config: &BrokerConfig, metrics: &Arc<SessionMetrics>) -> anyhow::Result<ZooKeeper> {
    let config = ZooKeeperConfig {
        connect: config.zookeeper_connect.to_string(),
        session_timeout: config.zookeeper_session_timeout,
        connection_timeout: config.zookeeper_connection_timeout,
    };
    ZooKeeper::connect_counted(config, Arc::clone(metrics)).await
}

type Opened =
    (Arc<BrokerContext>, tokio::sync::mpsc::UnboundedReceiver<PartitionRequest>, Vec<TopicPartition>);

/// Opens the log directories and loads every log. Waits for the disk.
fn open(
    config: BrokerConfig,
    progress: &LoadingProgress,
    control: Handle,
    data: Handle,
) -> anyhow::Result<Opened> {
    let settings = ReplicationSettings {
        lag_max_ms: millis(config.replica_lag_time_max),
        fetch_wait_max_ms: millis(config.replica_fetch_wait_max),
        truncation_path: config.replica_truncation_path,
    };
    let (shared, requests) = Shared::new(config.broker_id, settings, Throttles::new(&config.settings));
    let directories = open_directories(&config)?;
    // What cannot be opened is not used until the next start; an index into `log.dirs` is one of those that can.
    let config = BrokerConfig {
        log_dirs: directories.0.iter().map(|directory| directory.path().to_owned()).collect(),
        ..config
    };
    let default = partition_config(&config, &config.topic_defaults, &BTreeMap::new());
    let partitions = Partitions::new(Arc::clone(&shared), directories, default);
    partitions.check_space(space_marks(&config.settings));
    let threads = config.num_recovery_threads_per_data_dir.max(LOADING_THREADS_MIN);
    let loaded = partitions.load(threads, progress)?;
    let plane = ControlPlane::new(Arc::clone(&shared), FetchSettings::of(&config), control, data);
    let context = Arc::new(BrokerContext::new(config, shared, partitions, plane));
    Ok((context, requests, loaded.unclean))
}

/// Opens the log directories; the second list names those whose disk fails. At least one can be opened.
fn open_directories(config: &BrokerConfig) -> anyhow::Result<(Vec<LogDirectory>, Vec<PathBuf>)> {
    let (mut directories, mut unopened) = (Vec::new(), Vec::new());
    let mut failure = None;
    for path in &config.log_dirs {
        match LogDirectory::open(path) {
            Ok(directory) => directories.push(directory),
            Err(DirectoryError::Storage(error)) => {
                error!(directory = %path.display(), %error, "the log directory is offline: it cannot be opened");
                failure = Some(error);
                unopened.push(path.clone());
            }
            // Used or owned by somebody else: a mistake that only its operator can put right.
            Err(error) => return Err(error.into()),
        }
    }
    match failure {
        Some(error) if directories.is_empty() => Err(error.into()),
        _ => Ok((directories, unopened)),
    }
}

/// Listens, on the data plane.
async fn bind(context: &Arc<BrokerContext>, data: &Handle) -> anyhow::Result<Server> {
    let binding = data.spawn(crate::server::serve(Arc::clone(context)));
    binding.await.context("binding the listeners panicked")?
}

/// How others reach this broker. A port that the system chose is known only now.
fn identity(config: &BrokerConfig, bound: &[(ListenerName, SocketAddr)]) -> anyhow::Result<Identity> {
    let endpoint = |listener: &Listener| {
        let bound =
            bound.iter().find(|(name, _)| *name.0 == *listener.name).map(|(_, address)| address.port());
        let port = if listener.port == 0 { bound.unwrap_or(0) } else { listener.port };
        let host = if listener.host.is_empty() { host_name() } else { listener.host.clone() };
        Endpoint { name: listener.name.clone(), host, port, protocol: listener.protocol.name().to_owned() }
    };
    let endpoints: Vec<Endpoint> = config.advertised_listeners.iter().map(endpoint).collect();
    let inter_broker = endpoints
        .iter()
        .find(|endpoint| endpoint.name == config.inter_broker_listener_name)
        .context("the inter-broker listener is not advertised")?;
    let address = Address { host: inter_broker.host.clone(), port: inter_broker.port };
    let software = format!("zurau {}", env!("CARGO_PKG_VERSION"));
    Ok(Identity { address, endpoints: Endpoints::new(endpoints, config.broker_rack.clone(), software) })
}

/// Registers under a session and lets everything use it.
async fn enter(
    context: &Arc<BrokerContext>,
    registrar: &mut Registrar,
    zookeeper: &ZooKeeper,
) -> anyhow::Result<()> {
    // Requests of the controller may come the moment the broker is alive.
    context.zookeeper.set(Some(zookeeper.clone()));
    if let Err(reason) = registrar.register(zookeeper).await {
        context.zookeeper.set(None);
        return Err(reason);
    }
    let (for_configs, session) = (Arc::clone(context), zookeeper.clone());
    tokio::spawn(async move {
        let changed = |changed: &Changed| apply_config(&for_configs, changed);
        for_configs.topic_configs.follow(session, changed).await;
    });
    let (for_features, session) = (Arc::clone(context), zookeeper.clone());
    tokio::spawn(async move { for_features.features.follow(session).await });
    Ok(())
}

fn apply_config(context: &BrokerContext, changed: &Changed) {
    let configs = &context.topic_configs;
    let config_of =
        |topic: &str| partition_config(&context.config, &configs.get(topic), &configs.overrides(topic));
    match changed {
        Changed::Topic(topic) => context.partitions.update_topic_config(topic, Some(config_of(topic))),
        Changed::Everything => {
            context.shared.throttles.set_rates(&configs.broker_config().settings);
            context.partitions.set_default_config(config_of(""));
            let topics: std::collections::BTreeSet<_> =
                context.partitions.all().iter().map(|partition| Arc::clone(&partition.id().topic)).collect();
            for topic in topics {
                context.partitions.update_topic_config(&topic, Some(config_of(&topic)));
            }
        }
    }
}

/// Follows the session, and replaces it when the server has ended it. Returns the reason why the broker must stop.
async fn keep_sessions(
    context: Arc<BrokerContext>,
    registrar: Arc<tokio::sync::Mutex<Registrar>>,
    mut zookeeper: ZooKeeper,
    metrics: Arc<SessionMetrics>,
) -> anyhow::Error {
    loop {
        if let Err(reason) = until_ended(&registrar, &zookeeper, context.shared.own.0).await {
            return reason;
        }
        warn!(broker = %context.shared.own, "the ZooKeeper session has ended: leading and following nothing until registered again");
        leave(&context).await;
        zookeeper = loop {
            match register_anew(&context, &registrar, &metrics).await {
                Ok(zookeeper) => break zookeeper,
                Err(reason) if reason.is::<Conflict>() => return reason,
                Err(reason) => warn!("not registered; trying again: {reason:#}"),
            }
            tokio::time::sleep(SESSION_RETRY_PAUSE).await;
        };
    }
}

async fn register_anew(
    context: &Arc<BrokerContext>,
    registrar: &tokio::sync::Mutex<Registrar>,
    metrics: &Arc<SessionMetrics>,
) -> anyhow::Result<ZooKeeper> {
    let zookeeper = connect(&context.config, metrics).await?;
    enter(context, &mut *registrar.lock().await, &zookeeper).await?;
    Ok(zookeeper)
}

/// Waits for the end of a session. An error if another process registers with this broker's id meanwhile (D12).
async fn until_ended(
    registrar: &tokio::sync::Mutex<Registrar>,
    zookeeper: &ZooKeeper,
    own: i32,
) -> anyhow::Result<()> {
    let path = Znode::Broker(BrokerId(own)).path();
    let mut watch = zookeeper.watch_trees(&[&path]);
    while watch.next().await.is_some() {
        registrar.lock().await.check_owner(zookeeper).await?;
    }
    Ok(())
}

/// The session is over: nothing that it said holds any more (L11).
async fn leave(context: &Arc<BrokerContext>) {
    context.shared.end_lease();
    context.zookeeper.set(None);
    context.control.forget().await;
    context.metadata.forget_controller_epoch();
    let for_partitions = Arc::clone(context);
    let forgetting = tokio::task::spawn_blocking(move || {
        for partition in for_partitions.partitions.all() {
            partition.forget();
        }
    });
    // It only fails if the process is stopping.
    let _ = forgetting.await;
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
