//! `zurau brokers`: who is alive, where, with how much work and how full its disks are.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use zurau_common::id::BrokerId;
use zurau_common::zk::broker::Endpoints;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::admin::{self, Common, exit_code};
use crate::client::{self, Broker, Client, Cluster};
use crate::table::{Table, bytes, known};
use crate::tree::Tree;

/// Arguments of `zurau brokers`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    tree: Tree,
}

#[derive(Serialize)]
struct Document {
    /// The active controller process; `null` without `--zookeeper`, or when there is none.
    controller: Option<Controller>,
    brokers: Vec<Described>,
}

#[derive(Serialize)]
struct Controller {
    controller: i32,
    host: String,
    port: u16,
    /// Milliseconds since 1970.
    since: i64,
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    broker: Broker,
    /// Whom Metadata names as controller: clients send there what Kafka's controller does.
    shown_as_controller: bool,
    broker_epoch: Option<i32>,
    version: Option<String>,
    leaders: usize,
    replicas: usize,
    log_dirs: Vec<LogDir>,
    /// Why `log_dirs` is empty.
    error: Option<String>,
}

#[derive(Serialize)]
struct LogDir {
    log_dir: String,
    /// Why the directory is of no use.
    error: Option<String>,
    replicas: usize,
    /// Bytes of its replicas.
    used_bytes: i64,
    /// Bytes of its file system.
    total_bytes: Option<i64>,
    usable_bytes: Option<i64>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("brokers", work(arguments))
}

async fn work(Arguments { common, tree }: Arguments) -> Result<ExitCode> {
    let mut client = Client::new(&common);
    let cluster = client.cluster(None).await?;
    let zookeeper = tree.open(&common).await?;
    let mut brokers = Vec::new();
    for broker in &cluster.brokers {
        let registered = match &zookeeper {
            Some(zookeeper) => registration(zookeeper, broker.broker).await?,
            None => Registration::default(),
        };
        let (log_dirs, error) = client.log_dirs_or_why(broker.broker, None).await;
        let log_dirs = log_dirs.into_iter().map(LogDir::from).collect();
        let count = counts(&cluster, broker.broker);
        brokers.push(Described {
            broker: broker.clone(),
            shown_as_controller: cluster.controller == Some(broker.broker),
            broker_epoch: registered.epoch,
            version: registered.version,
            leaders: count.0,
            replicas: count.1,
            log_dirs,
            error,
        });
    }
    let controller = match &zookeeper {
        Some(zookeeper) => controller(zookeeper).await?,
        None => None,
    };
    if let Some(zookeeper) = zookeeper {
        zookeeper.close().await;
    }
    let document = Document { controller, brokers };
    common.output.print(&document, table)?;
    Ok(exit_code(document.brokers.iter().all(|broker| broker.error.is_none())))
}

/// Leaders and replicas on a broker.
fn counts(cluster: &Cluster, broker: i32) -> (usize, usize) {
    let partitions = || cluster.topics.iter().flat_map(|topic| &topic.partitions);
    let leaders = partitions().filter(|partition| partition.leader == Some(broker)).count();
    (leaders, partitions().filter(|partition| partition.replicas.contains(&broker)).count())
}

#[derive(Default)]
struct Registration {
    epoch: Option<i32>,
    version: Option<String>,
}

async fn registration(zookeeper: &ZooKeeper, broker: i32) -> Result<Registration> {
    let id = BrokerId(broker);
    let paths = [Znode::BrokerEpoch(id).path(), Znode::Endpoints(id).path()];
    let mut nodes = zookeeper.get_many(&paths).await?.into_iter();
    let epoch = nodes.next().flatten().map(|node| node.version);
    let endpoints = nodes.next().flatten().and_then(|node| Endpoints::decode(&node.data).ok());
    Ok(Registration { epoch, version: endpoints.map(|endpoints| endpoints.software) })
}

async fn controller(zookeeper: &ZooKeeper) -> Result<Option<Controller>> {
    let Some(node) = zookeeper.get(&Znode::Controller.path()).await? else { return Ok(None) };
    let active = ActiveController::decode(&node.data)?;
    Ok(Some(Controller {
        controller: active.controller_id,
        host: active.host,
        port: active.port,
        since: active.timestamp,
    }))
}

impl From<client::LogDir> for LogDir {
    fn from(found: client::LogDir) -> Self {
        let replicas: BTreeSet<(&str, i32)> =
            found.replicas.iter().map(|replica| (replica.topic.as_str(), replica.partition)).collect();
        Self {
            replicas: replicas.len(),
            used_bytes: found.replicas.iter().map(|replica| replica.size_bytes).sum(),
            log_dir: found.log_dir,
            error: found.error,
            total_bytes: found.total_bytes,
            usable_bytes: found.usable_bytes,
        }
    }
}

fn table(document: &Document) -> Table {
    let mut table = Table::new(&[
        "BROKER", "ADDRESS", "RACK", "EPOCH", "VERSION", "LEADERS", "REPLICAS", "LOG DIR", "USED", "FREE",
        "NOTE",
    ]);
    for described in &document.brokers {
        let broker = &described.broker;
        let start = |first: bool| {
            let cells = [
                broker.broker.to_string(),
                format!("{}:{}", broker.host, broker.port),
                known(broker.rack.as_ref()),
                known(described.broker_epoch),
                known(described.version.as_ref()),
                described.leaders.to_string(),
                described.replicas.to_string(),
            ];
            if first { cells } else { Default::default() }
        };
        for (index, directory) in described.log_dirs.iter().enumerate() {
            let shown = if described.shown_as_controller && index == 0 { "shown as controller" } else { "" };
            let note = directory.error.clone().unwrap_or_else(|| shown.to_owned());
            let end = [
                directory.log_dir.clone(),
                bytes(directory.used_bytes),
                known(directory.usable_bytes.map(bytes)),
                note,
            ];
            table.row(start(index == 0).into_iter().chain(end));
        }
        if let Some(error) = &described.error {
            let dash = || "-".to_owned();
            table.row(start(true).into_iter().chain([dash(), dash(), dash(), error.clone()]));
        }
    }
    if let Some(active) = &document.controller {
        let Controller { controller, host, port, .. } = active;
        table.note(format!("active controller: {controller} at {host}:{port}"));
    }
    table
}
