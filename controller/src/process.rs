//! A controller process: its listener, its ZooKeeper session, and its way in and out of office.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;
use zurau_common::config::{ControllerConfig, load_controller};
use zurau_common::http::HttpServer;
use zurau_common::process::{ServerArguments, StopSignals, host_name, run_server};
use zurau_common::wire::server::{ListenerAddress, ListenerName, Server, ServerLimits};
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};

use crate::api::{Api, SharedApi};
use crate::health::{Health, Role};
use crate::leadership::resign;
use crate::machine::MachineConfig;
use crate::runtime::{Ended, RuntimeConfig, Station, serve};

/// Pause before a new session after the last one ended.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A running controller: active or standby.
pub struct Controller {
    server: Server,
    health: Arc<Health>,
    /// Answers over HTTP until the controller ends.
    _http: Option<HttpServer>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
    ended: watch::Receiver<Option<String>>,
}

impl Controller {
    /// Binds the listener, starts the first ZooKeeper session and competes for the office.
    ///
    /// # Errors
    /// An address that cannot be bound; no ZooKeeper session within `zookeeper.connection.timeout.ms`.
    pub async fn start(config: ControllerConfig) -> anyhow::Result<Self> {
        let api: SharedApi = Arc::default();
        let health = Arc::new(Health::new(config.controller_id, Arc::clone(&api)));
        let http = match &config.http_listener {
            Some(listener) => Some(HttpServer::bind(listener, Arc::clone(&health) as _).await?),
            None => None,
        };
        let listeners: Vec<ListenerAddress> = config
            .listeners
            .iter()
            .map(|listener| ListenerAddress {
                name: ListenerName::from(listener.name.as_str()),
                host: listener.host.clone(),
                port: listener.port,
            })
            .collect();
        let limits =
            ServerLimits { request_bytes_max: config.socket_request_max_bytes, ..ServerLimits::default() };
        let handler: Arc<Api> = Arc::clone(&api);
        let server = Server::bind(&listeners, limits, handler).await?;
        let identity = identity(&config, server.local_addresses())?;
        let counters = health.counters();
        let zookeeper = ZooKeeper::connect_counted(zookeeper_config(&config), Arc::clone(&counters.sessions))
            .await
            .context("the controller cannot start without ZooKeeper")?;
        let stop = CancellationToken::new();
        let (end, ended) = watch::channel(None);
        let life = Life { config, api, identity, health: Arc::clone(&health), stop: stop.clone() };
        let task = tokio::spawn(async move {
            if let Err(error) = life.run(zookeeper).await {
                end.send_replace(Some(format!("{error:#}")));
            }
        });
        Ok(Self { server, health, _http: http, stop, task: Some(task), ended })
    }

    /// Where brokers reach this controller.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.server.local_addresses().iter().map(|(_, address)| *address).collect()
    }

    /// Ends when the controller cannot go on by itself.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn wait(&self) -> anyhow::Result<()> {
        let mut ended = self.ended.clone();
        let reason = ended.wait_for(Option::is_some).await.map(|reason| reason.clone());
        match reason {
            Ok(Some(reason)) => Err(anyhow::anyhow!(reason)),
            // Stopped on purpose.
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Gives up the office, so that a standby takes over at once, and ends the session.
    pub async fn shutdown(mut self) {
        self.health.set_role(Role::Stopping);
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            // A panic was its own: the session's end says so to everybody.
            let _ = task.await;
        }
        self.server.shutdown().await;
    }
}

/// The controller as a process: from its command line to its exit code (2: wrong configuration).
pub fn run(arguments: &ServerArguments) -> ExitCode {
    let config = load_controller(arguments.config.as_deref(), &arguments.overrides);
    run_server("zurau-controller", config, |config| &config.settings, serve_until_stopped)
}

async fn serve_until_stopped(config: ControllerConfig, signals: &mut StopSignals) -> anyhow::Result<()> {
    let controller = tokio::select! {
        controller = Controller::start(config) => controller?,
        signal = signals.wait() => {
            info!("{signal} before the controller was ready");
            return Ok(());
        }
    };
    tokio::select! {
        ended = controller.wait() => ended,
        signal = signals.wait() => {
            info!("{signal}: giving up the office and stopping");
            controller.shutdown().await;
            Ok(())
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn zookeeper_config(config: &ControllerConfig) -> ZooKeeperConfig {
    ZooKeeperConfig {
        connect: config.zookeeper_connect.to_string(),
        session_timeout: config.zookeeper_session_timeout,
        connection_timeout: config.zookeeper_connection_timeout,
    }
}

fn identity(
    config: &ControllerConfig,
    bound: &[(ListenerName, SocketAddr)],
) -> anyhow::Result<ActiveController> {
    let advertised =
        config.advertised_listeners.first().context("a controller needs a listener (listeners)")?;
    let (_, bound) = bound.first().context("a controller needs a listener (listeners)")?;
    let host = if advertised.host.is_empty() { host_name() } else { advertised.host.clone() };
    let port = if advertised.port == 0 { bound.port() } else { advertised.port };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
    Ok(ActiveController::new(config.controller_id, host, port, timestamp))
}

/// One process from its first session to its end.
struct Life {
    config: ControllerConfig,
    api: SharedApi,
    identity: ActiveController,
    health: Arc<Health>,
    stop: CancellationToken,
}

impl Life {
    async fn run(self, first: ZooKeeper) -> anyhow::Result<()> {
        let mut zookeeper = first;
        loop {
            self.health.set_session(Some(&zookeeper));
            let ended = self.session(&zookeeper).await;
            self.health.set_session(None);
            let ended = ended?;
            if ended == Ended::Stopped {
                resign(&zookeeper).await;
                zookeeper.close().await;
                return Ok(());
            }
            warn!("the ZooKeeper session is over; starting another");
            let Some(next) = self.reconnect().await else { return Ok(()) };
            zookeeper = next;
        }
    }

    /// Retries for ever: a controller without ZooKeeper is of no use and does no harm (CTL-09).
    async fn reconnect(&self) -> Option<ZooKeeper> {
        let counters = self.health.counters();
        loop {
            let config = zookeeper_config(&self.config);
            tokio::select! {
                () = self.stop.cancelled() => return None,
                connected = ZooKeeper::connect_counted(config, Arc::clone(&counters.sessions)) => match connected {
                    Ok(zookeeper) => return Some(zookeeper),
                    Err(error) => warn!("{error:#}"),
                },
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    /// In and out of office until the session or the process ends.
    async fn session(&self, zookeeper: &ZooKeeper) -> anyhow::Result<Ended> {
        loop {
            let config = self.runtime(zookeeper);
            let station =
                Station { identity: &self.identity, api: &self.api, health: &self.health, stop: &self.stop };
            let ended = serve(zookeeper, config, station).await;
            self.health.set_role(Role::Standby);
            match ended? {
                Ended::Deposed => info!("no longer the active controller"),
                ended => return Ok(ended),
            }
        }
    }

    fn runtime(&self, zookeeper: &ZooKeeper) -> RuntimeConfig {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let config = &self.config;
        RuntimeConfig {
            controller_id: config.controller_id,
            machine: MachineConfig {
                session_timeout: millis(zookeeper.session_timeout()),
                leader_election_wait: millis(config.leader_election_wait_time),
                unclean_election: config.unclean_leader_election_enable,
                delete_topics: config.delete_topic_enable,
                auto_rebalance: config.auto_leader_rebalance_enable,
                imbalance_check_interval: millis(config.leader_imbalance_check_interval),
                imbalance_percentage: u64::from(config.leader_imbalance_per_broker_percentage),
                seed: Uuid::new_v4().as_u128(),
            },
            socket_timeout: config.controller_socket_timeout,
            metrics: self.health.counters(),
        }
    }
}
