//! A whole cluster as separate processes on 127.0.0.1: ZooKeeper, controllers and brokers, each with its own
//! configuration file, data directory and log file in the test's directory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::directory::TestDirectory;
use crate::kafka::KafkaClient;
use crate::network::{Host, Network};
use crate::place::Place;
use crate::process::Process;
use crate::programs;
use crate::proxy::Proxy;
use crate::wait::eventually;
use crate::znodes::Znodes;
use crate::zookeeper::{ZooKeeperKind, ZooKeeperServer};

/// Kafka's usual port, on hosts where nobody else listens.
const USUAL_PORT: u16 = 9092;
/// Where nodes answer over HTTP, on hosts where nobody else listens.
const USUAL_HTTP_PORT: u16 = 9600;
/// ZooKeeper session timeout of every process in the tests, unless overridden.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the cluster may take to be complete after a start, on a busy machine with debug builds.
pub const START_LIMIT: Duration = Duration::from_secs(45);

/// A broker or a controller: what it needs to be started again as it was.
pub struct Node {
    pub id: i32,
    pub port: u16,
    http_port: u16,
    place: Place,
    program: &'static str,
    name: String,
    config: PathBuf,
    data: PathBuf,
    log: PathBuf,
    environment: BTreeMap<String, String>,
    process: Option<Process>,
}

impl Node {
    pub fn address(&self) -> String {
        format!("{}:{}", self.place.ip(), self.port)
    }

    /// The host that it runs on, if that is one of its own.
    pub fn host(&self) -> Option<&Host> {
        self.place.host()
    }

    /// Where it answers over HTTP.
    pub fn http_address(&self) -> String {
        format!("{}:{}", self.place.ip(), self.http_port)
    }

    /// The log directory of a broker.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts it, or starts it again with the same data.
    ///
    /// # Errors
    /// The program is missing.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "{} is already running", self.name);
        let mut command = self.place.command(&programs::binary(self.program)?);
        command.arg("--config").arg(&self.config).envs(&self.environment);
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "info");
        }
        self.process = Some(Process::spawn(self.name.clone(), &mut command, &self.log)?);
        Ok(())
    }

    /// # Errors
    /// It is not running.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().with_context(|| format!("{} is not running", self.name))
    }

    /// kill -9.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// SIGTERM, and a clean end within `limit`.
    ///
    /// # Errors
    /// It is not running, did not end in time or ended with an error.
    pub fn stop(&mut self, limit: Duration) -> Result<Duration> {
        let (status, took) = self.process()?.stop(limit)?;
        self.process = None;
        ensure!(status.success(), "{} ended with {status} after SIGTERM", self.name);
        Ok(took)
    }

    /// Whether it does not run: it was ended, or has ended by itself.
    ///
    /// # Errors
    /// The system cannot tell.
    pub fn has_ended(&mut self) -> Result<bool> {
        if let Some(process) = &mut self.process
            && process.exited()?.is_some()
        {
            self.process = None;
        }
        Ok(self.process.is_none())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = self.process()?.wait(limit)?;
        self.process = None;
        Ok(status)
    }

    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

thread_local! {
    static LEADERS_STORE_ISR: Cell<bool> = const { Cell::new(false) };
}

/// Clusters that this thread builds from now on have `isr.update.path=zookeeper`.
pub fn let_leaders_store_isr() {
    LEADERS_STORE_ISR.set(true);
}

/// What a cluster is made of.
pub struct ClusterBuilder {
    brokers: i32,
    first_broker: i32,
    controllers: i32,
    zookeeper: ZooKeeperKind,
    overrides: BTreeMap<String, String>,
    controller_overrides: BTreeMap<String, String>,
    broker_overrides: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    one_broker_overrides: BTreeMap<i32, BTreeMap<String, String>>,
    proxied_controllers: bool,
}

impl ClusterBuilder {
    #[must_use]
    pub fn brokers(mut self, count: i32) -> Self {
        self.brokers = count;
        self
    }

    /// The id of the first broker, 1 unless said otherwise; the others follow.
    #[must_use]
    pub fn first_broker(mut self, id: i32) -> Self {
        self.first_broker = id;
        self
    }

    #[must_use]
    pub fn controllers(mut self, count: i32) -> Self {
        self.controllers = count;
        self
    }

    #[must_use]
    pub fn zookeeper(mut self, kind: ZooKeeperKind) -> Self {
        self.zookeeper = kind;
        self
    }

    /// Sets a configuration key of every broker and controller.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.overrides.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets a configuration key of every controller, over [`Self::set`].
    #[must_use]
    pub fn set_for_controllers(mut self, key: &str, value: impl ToString) -> Self {
        self.controller_overrides.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets a configuration key of every broker, over [`Self::set`].
    #[must_use]
    pub fn set_for_brokers(mut self, key: &str, value: impl ToString) -> Self {
        self.broker_overrides.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets an environment variable of every broker and controller.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets a configuration key of one broker, over [`Self::set_for_brokers`].
    #[must_use]
    pub fn set_for_broker(mut self, id: i32, key: &str, value: impl ToString) -> Self {
        self.one_broker_overrides.entry(id).or_default().insert(key.to_owned(), value.to_string());
        self
    }

    /// Controllers reach ZooKeeper through [`Cluster::controller_proxy`].
    #[must_use]
    pub fn proxied_controllers(mut self) -> Self {
        self.proxied_controllers = true;
        self
    }

    /// Starts everything and waits until every broker names every broker.
    ///
    /// # Errors
    /// A process cannot be started, ends, or the cluster is not complete in time.
    pub fn start(self, directory: &TestDirectory) -> Result<Cluster> {
        self.start_in(directory.path())
    }

    /// Like [`Self::start`], below any directory.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_in(self, directory: &Path) -> Result<Cluster> {
        let zookeepers = vec![ZooKeeperServer::start(self.zookeeper, directory)?];
        self.start_with(zookeepers, directory, |_| Ok(Place::Loopback))
    }

    /// Starts an ensemble of three of Apache's servers, the controllers and the brokers, each on a host of its own.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_on(self, network: &mut Network, directory: &Path) -> Result<Cluster> {
        let hosts: Vec<Host> =
            (1..=3).map(|number| network.add(&format!("zk{number}"))).collect::<Result<_>>()?;
        let zookeepers = ZooKeeperServer::start_ensemble(&hosts, directory)?;
        self.start_with(zookeepers, directory, |name| Ok(Place::Host(network.add(name)?)))
    }

    fn start_with(
        self,
        zookeepers: Vec<ZooKeeperServer>,
        directory: &Path,
        mut place: impl FnMut(&str) -> Result<Place>,
    ) -> Result<Cluster> {
        let connect = connect_string(&zookeepers);
        let znodes = Znodes::connect(&connect)?;
        let controller_proxy =
            if self.proxied_controllers { Some(Proxy::start(connect.clone())?) } else { None };
        let controller_connect = controller_proxy.as_ref().map_or_else(|| connect.clone(), Proxy::address);
        let mut cluster =
            Cluster { controllers: Vec::new(), brokers: Vec::new(), znodes, controller_proxy, zookeepers };
        for id in 1..=self.controllers {
            let place = place(&format!("c{id}"))?;
            cluster.controllers.push(self.node("controller", id, place, &controller_connect, directory)?);
        }
        for id in self.first_broker..self.first_broker + self.brokers {
            let place = place(&format!("b{id}"))?;
            cluster.brokers.push(self.node("broker", id, place, &connect, directory)?);
        }
        for node in cluster.controllers.iter_mut().chain(&mut cluster.brokers) {
            node.start()?;
        }
        cluster.wait_until_complete(START_LIMIT)?;
        Ok(cluster)
    }

    fn node(
        &self,
        role: &'static str,
        id: i32,
        place: Place,
        connect: &str,
        directory: &Path,
    ) -> Result<Node> {
        let (ip, port, http_port) = (place.ip(), place.port(USUAL_PORT), place.port(USUAL_HTTP_PORT));
        let name = format!("{role}-{id}");
        let data = directory.join(format!("{name}-data"));
        fs::create_dir_all(&data).context("creating a data directory")?;
        let mut keys = BTreeMap::from([
            ("zookeeper.connect".to_owned(), connect.to_owned()),
            ("zookeeper.session.timeout.ms".to_owned(), SESSION_TIMEOUT.as_millis().to_string()),
            ("listeners".to_owned(), format!("PLAINTEXT://{ip}:{port}")),
            ("http.listener".to_owned(), format!("{ip}:{http_port}")),
        ]);
        if role == "broker" {
            keys.insert("broker.id".to_owned(), id.to_string());
            keys.insert("log.dirs".to_owned(), data.display().to_string());
        } else {
            keys.insert("controller.id".to_owned(), id.to_string());
        }
        keys.extend(self.overrides.clone());
        let own = if role == "controller" { &self.controller_overrides } else { &self.broker_overrides };
        keys.extend(own.clone());
        if role == "broker" {
            keys.extend(self.one_broker_overrides.get(&id).cloned().unwrap_or_default());
        }
        let config = directory.join(format!("{name}.properties"));
        let text: String = keys.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        fs::write(&config, text).context("writing the configuration")?;
        Ok(Node {
            id,
            port,
            http_port,
            place,
            program: if role == "broker" { "zurau-broker" } else { "zurau-controller" },
            log: directory.join(format!("{name}.log")),
            name,
            config,
            data,
            environment: self.environment.clone(),
            process: None,
        })
    }
}

/// A running cluster. Everything is killed when it is dropped; ZooKeeper last.
pub struct Cluster {
    pub brokers: Vec<Node>,
    pub controllers: Vec<Node>,
    pub controller_proxy: Option<Proxy>,
    pub znodes: Znodes,
    /// One server, or the members of an ensemble.
    pub zookeepers: Vec<ZooKeeperServer>,
}

/// `zookeeper.connect` of these servers.
fn connect_string(zookeepers: &[ZooKeeperServer]) -> String {
    let addresses: Vec<String> = zookeepers.iter().map(ZooKeeperServer::address).collect();
    addresses.join(",")
}

impl Cluster {
    /// Three brokers, one controller, the in-process ZooKeeper.
    pub fn builder() -> ClusterBuilder {
        let mut broker_overrides = BTreeMap::new();
        if LEADERS_STORE_ISR.get() {
            broker_overrides.insert("isr.update.path".to_owned(), "zookeeper".to_owned());
        }
        ClusterBuilder {
            brokers: 3,
            first_broker: 1,
            controllers: 1,
            zookeeper: ZooKeeperKind::InProcess,
            overrides: BTreeMap::new(),
            controller_overrides: BTreeMap::new(),
            environment: BTreeMap::new(),
            broker_overrides,
            one_broker_overrides: BTreeMap::new(),
            proxied_controllers: false,
        }
    }

    /// `bootstrap.servers` of all brokers.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.brokers.iter().map(Node::address).collect();
        addresses.join(",")
    }

    /// `zookeeper.connect` of all servers.
    pub fn zookeeper_connect(&self) -> String {
        connect_string(&self.zookeepers)
    }

    pub fn client(&self) -> KafkaClient {
        KafkaClient::new(&self.bootstrap())
    }

    /// # Errors
    /// There is no such broker.
    pub fn broker(&mut self, id: i32) -> Result<&mut Node> {
        self.brokers.iter_mut().find(|node| node.id == id).with_context(|| format!("no broker {id}"))
    }

    /// # Errors
    /// There is no such controller.
    pub fn controller(&mut self, id: i32) -> Result<&mut Node> {
        self.controllers.iter_mut().find(|node| node.id == id).with_context(|| format!("no controller {id}"))
    }

    /// Waits until a controller is active and every running broker names every running broker.
    ///
    /// # Errors
    /// A process has ended, or the cluster is not complete within `limit`.
    pub fn wait_until_complete(&mut self, limit: Duration) -> Result<()> {
        let mut client = self.client();
        let znodes = &self.znodes;
        let mut nodes: Vec<&mut Node> = self.controllers.iter_mut().chain(&mut self.brokers).collect();
        let addresses: Vec<String> = nodes
            .iter()
            .filter(|node| node.program == "zurau-broker" && node.is_running())
            .map(|node| node.address())
            .collect();
        eventually("the cluster is complete", limit, || {
            for node in nodes.iter_mut().filter(|node| node.is_running()) {
                node.process()?.check_running()?;
            }
            if znodes.text("/controller")?.is_none() {
                return Ok(None);
            }
            for address in &addresses {
                let known = client.metadata_from(address, Some(&[]))?.brokers.len();
                ensure!(known == addresses.len(), "{address} knows {known} brokers");
            }
            Ok(Some(()))
        })
    }

    /// Fails if a process that should run has ended.
    ///
    /// # Errors
    /// The first process that has ended, with the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        for node in self.controllers.iter_mut().chain(&mut self.brokers) {
            if node.is_running() {
                node.process()?.check_running()?;
            }
        }
        self.zookeepers
            .iter_mut()
            .filter(|server| server.is_running())
            .try_for_each(|server| server.process()?.check_running())
    }

    /// Creates a topic as an admin does with nothing but a ZooKeeper shell, and waits until every partition leads
    /// with a full ISR. `replicas[i]` is the value of partition i, for instance `[1,2,3]`.
    ///
    /// # Errors
    /// ZooKeeper refuses, or the topic is not ready in time.
    pub fn create_topic(&self, topic: &str, replicas: &[&str]) -> Result<()> {
        self.znodes.create(&format!("/brokers/topics/{topic}"), "")?;
        for (partition, ids) in replicas.iter().enumerate() {
            self.znodes.create(&format!("/brokers/topics/{topic}/{partition}"), "")?;
            self.znodes.create(&format!("/brokers/topics/{topic}/{partition}/replicas"), ids)?;
        }
        self.wait_for_full_isr(topic, replicas.len(), START_LIMIT)
    }

    /// Waits until each of the topic's partitions has a leader and all its replicas in sync, in the eyes of every
    /// running broker.
    ///
    /// # Errors
    /// It is not so within `limit`.
    pub fn wait_for_full_isr(&self, topic: &str, partitions: usize, limit: Duration) -> Result<()> {
        let mut client = self.client();
        let running: Vec<String> =
            self.brokers.iter().filter(|node| node.is_running()).map(Node::address).collect();
        eventually(&format!("every replica of {topic} in sync"), limit, || {
            for address in &running {
                let answer = client.metadata_from(address, Some(&[topic]))?;
                let found = answer.topics.first().context("no topic in the metadata")?;
                ensure!(found.error_code == 0, "{address}: {topic} has error {}", found.error_code);
                ensure!(
                    found.partitions.len() == partitions,
                    "{address}: {} of {partitions} partitions",
                    found.partitions.len()
                );
                for partition in &found.partitions {
                    ensure!(
                        partition.error_code == 0
                            && partition.leader_id.0 >= 0
                            && partition.isr_nodes.len() == partition.replica_nodes.len(),
                        "{address}: {topic}-{} is {partition:?}",
                        partition.partition_index
                    );
                }
            }
            Ok(Some(()))
        })
    }
}
