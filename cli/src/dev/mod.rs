//! `zurau dev`: a whole cluster on one machine with nothing else installed. ZooKeeper's protocol is served inside
//! this process; the controller and each broker are processes of their own, so that one can be killed for real.

mod plan;
mod ready;
mod supervisor;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use plan::{Member, Ports, Role};
use zurau_common::process::StopSignals;
use zurau_zookeeper::{Server, ServerConfig};

/// How long the cluster may take to come up before the start counts as failed. Recovery of large logs is the only
/// thing that takes long, and then the brokers' logs tell of it.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A whole cluster on this machine, for development: an in-process ZooKeeper, a controller and brokers.
#[derive(Debug, clap::Args)]
pub(crate) struct DevArguments {
    /// Number of brokers; their ids count from 1.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    brokers: u16,
    /// Port of the first broker; the others take the next ones. 0 takes free ports.
    #[arg(long, default_value_t = 9092)]
    port: u16,
    /// Keep everything in this folder; a later start continues with its topics and records. Without it, everything
    /// lies in a temporary folder that is removed at the end.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Use this ZooKeeper ensemble instead of the one inside this process.
    #[arg(long, value_name = "HOST:PORT")]
    zookeeper: Option<String>,
    /// Port of the ZooKeeper inside this process. 0 takes a free port.
    #[arg(long, default_value_t = 2181, conflicts_with = "zookeeper")]
    zookeeper_port: u16,
    /// Seconds after which a process that died is started again.
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    restart_after: u64,
}

/// Runs the cluster until Ctrl-C or SIGTERM.
///
/// # Errors
/// A port is taken, the data folder cannot be written, or the cluster does not become ready.
pub(crate) async fn run(arguments: DevArguments) -> Result<()> {
    // Heard from the first moment on, so that a Ctrl-C during the start leaves nothing behind.
    let mut signals = StopSignals::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let data = DataFolder::open(arguments.data.as_deref())?;
    let ports = choose_ports(&arguments)?;
    let zookeeper = start_zookeeper(&arguments, data.path()).await?;
    let connect = match (&arguments.zookeeper, &zookeeper) {
        (Some(given), _) => given.clone(),
        (None, Some(server)) => server.connect_string(),
        (None, None) => bail!("no ZooKeeper was given and none was started"),
    };
    let members = plan::members(data.path(), &ports, &connect);
    let mut groups = [Role::Broker, Role::Controller].map(|role| (role, Supervised::default()));
    for member in members {
        // The kernel tells a child when the thread that started it ends; this one and the runtime's workers last as
        // long as the process.
        let child = supervisor::start(&member)?;
        announce(&member, child.id());
        let (_, group) =
            groups.iter_mut().find(|(role, _)| *role == member.role).expect("both roles are there");
        group.add(member, child, Duration::from_secs(arguments.restart_after));
    }
    let outcome = serve(&ports, &connect, &data, &mut signals).await;
    println!("stopping");
    // Brokers first: they hand their leaderships over through the controller.
    for (_, group) in groups {
        group.stop().await;
    }
    if let Some(server) = zookeeper {
        server.shutdown().await.context("cannot stop the in-process ZooKeeper")?;
    }
    outcome
}

/// Waits until the cluster is ready, says so, and returns when the user asks to stop.
async fn serve(ports: &Ports, connect: &str, data: &DataFolder, signals: &mut StopSignals) -> Result<()> {
    tokio::select! {
        ready = wait_until_ready(ports) => ready?,
        signal = signals.wait() => {
            println!("{signal} before the cluster was ready");
            return Ok(());
        }
    }
    println!("bootstrap.servers={}", plan::bootstrap_servers(ports));
    println!("zookeeper.connect={connect}");
    println!("{data}");
    println!("ready; Ctrl-C stops the cluster");
    println!("{}", signals.wait().await);
    Ok(())
}

async fn wait_until_ready(ports: &Ports) -> Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    for port in &ports.brokers {
        ready::wait_for_broker(&format!("127.0.0.1:{port}"), ports.brokers.len(), deadline).await?;
    }
    Ok(())
}

/// Processes that are stopped together.
#[derive(Default)]
struct Supervised {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Supervised {
    fn add(&mut self, member: Member, child: tokio::process::Child, restart_after: Duration) {
        self.tasks.spawn(supervisor::supervise(member, child, restart_after, self.stop.clone()));
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.join_all().await;
    }
}

fn announce(member: &Member, pid: Option<u32>) {
    println!("{} (pid {})", member.name, pid.unwrap_or_default());
}

/// Finds a port for each process and makes sure that none is taken, before anything is started.
fn choose_ports(arguments: &DevArguments) -> Result<Ports> {
    let mut taken = Vec::new();
    let mut choose = |wanted: u16, whose: &str| -> Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).with_context(|| {
            format!(
                "port {wanted} for {whose} is taken; stop what listens there, or choose others with --port"
            )
        })?;
        let port = listener.local_addr()?.port();
        // Held until every port is chosen, so that two processes cannot get the same free one.
        taken.push(listener);
        Ok(port)
    };
    let mut brokers = Vec::new();
    for index in 0..arguments.brokers {
        let wanted = match arguments.port {
            0 => 0,
            first => {
                first.checked_add(index).with_context(|| format!("--port {first} leaves too few ports"))?
            }
        };
        brokers.push(choose(wanted, &format!("broker {}", index + 1))?);
    }
    let controller = choose(0, "the controller")?;
    Ok(Ports { brokers, controller })
}

async fn start_zookeeper(arguments: &DevArguments, data: &Path) -> Result<Option<Server>> {
    if arguments.zookeeper.is_some() {
        return Ok(None);
    }
    let port = arguments.zookeeper_port;
    let config = ServerConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        data_dir: arguments.data.is_some().then(|| data.join("zookeeper")),
        ..ServerConfig::default()
    };
    let server = Server::start(config).await.with_context(|| {
        format!(
            "cannot serve ZooKeeper's protocol on 127.0.0.1:{port}; --zookeeper-port chooses another port"
        )
    })?;
    Ok(Some(server))
}

/// The folder of the cluster; a temporary one is removed when this value goes.
enum DataFolder {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl DataFolder {
    fn open(data: Option<&Path>) -> Result<Self> {
        let Some(data) = data else {
            let folder = tempfile::Builder::new().prefix("zurau-dev-").tempdir();
            return Ok(Self::Temporary(folder.context("cannot create a temporary folder")?));
        };
        std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
        let absolute = data.canonicalize().with_context(|| format!("cannot find {}", data.display()))?;
        ensure!(absolute.is_dir(), "{} is not a folder", absolute.display());
        Ok(Self::Kept(absolute))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

impl fmt::Display for DataFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path().display();
        match self {
            Self::Kept(_) => write!(f, "logs and data are kept in {path}"),
            Self::Temporary(_) => {
                write!(f, "logs and data are in {path} until the end; --data DIR keeps them")
            }
        }
    }
}
