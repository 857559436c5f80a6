//! One ZooKeeper, controllers as processes, hosts without records; and what is timed on them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::{BrokerId as WireBrokerId, ControlledShutdownRequest};
use rustix::process::Signal;
use tempfile::TempDir;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::wire::peer::Peer;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::znode::Znode;
use zurau_tests::ZooKeeperKind;
use zurau_tests::host::{Host, Witness};
use zurau_tests::port::free_port;
use zurau_tests::process::Process;
use zurau_tests::programs::binary;
use zurau_tests::zookeeper::{ZooKeeperServer, four_letters};

use super::LIMIT;

pub(super) const PARTITIONS_PER_TOPIC: usize = 100;
/// One broker leads so many: a dead one, or one that shuts down, is replaced.
const LED_BY_ONE: usize = 10_000;
const REPLICAS: usize = 3;
/// What a standby logs once it holds the tree.
const WARM: &str = "the tree is in memory";

/// Of every session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// ZooKeeper is quiet while it gets no more requests within [`QUIET`] than sessions without work send.
const QUIET_REQUESTS: u64 = 20;
const QUIET: Duration = Duration::from_secs(1);

/// What something took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time: Duration,
    /// CPU time of the controllers.
    pub(super) controllers: Duration,
    /// CPU time of ZooKeeper.
    pub(super) zookeeper: Duration,
}

/// What one number of partitions took.
pub(super) struct Costs {
    /// Partitions that the dead broker, and the one that shut down, led.
    pub(super) led: usize,
    pub(super) created: Cost,
    pub(super) shut_down: Cost,
    pub(super) failed_over: Cost,
    pub(super) warm: Cost,
    pub(super) cold: Cost,
}

/// What all hosts of a cluster have done.
#[derive(Debug, Default)]
struct Counts {
    /// Partitions whose leader has taken office.
    taken: AtomicUsize,
    /// Full LeaderAndIsr requests that have come: their controller has judged everything.
    full: AtomicUsize,
}

impl Witness for Counts {
    fn ordered(&self, full: bool) {
        self.full.fetch_add(usize::from(full), Ordering::AcqRel);
    }

    fn took_office(&self, partitions: usize) {
        self.taken.fetch_add(partitions, Ordering::AcqRel);
    }
}

/// # Errors
/// ZooKeeper cannot be reached.
pub(super) async fn session(connect: &str) -> Result<ZooKeeper> {
    let config = ZooKeeperConfig {
        connect: connect.to_owned(),
        session_timeout: SESSION_TIMEOUT,
        connection_timeout: LIMIT,
    };
    ZooKeeper::connect(config).await
}

pub(super) async fn measure(kind: ZooKeeperKind, partitions: usize) -> Result<Costs> {
    let led = partitions.min(LED_BY_ONE);
    let mut plane = Plane::start(kind, partitions.div_ceil(LED_BY_ONE).max(1) + REPLICAS - 1).await?;
    let created = plane.create(partitions).await?;
    plane.until_quiet().await?;
    let warm = plane.take_over_warm().await?;
    plane.until_quiet().await?;
    let cold = plane.take_over_cold().await?;
    plane.until_quiet().await?;
    // Broker 1 is the preferred leader of its share, and leads it.
    let shut_down = plane.shut_down(1, led).await?;
    plane.restart(1).await?;
    plane.prefer(1, led).await?;
    plane.until_quiet().await?;
    let failed_over = plane.fail_over(1, led).await?;
    plane.stop()?;
    Ok(Costs { led, created, shut_down, failed_over, warm, cold })
}

/// See the module's text.
pub(super) struct Plane {
    directory: TempDir,
    server: ZooKeeperServer,
    admin: ZooKeeper,
    controllers: Vec<Process>,
    started: usize,
    hosts: Vec<(i32, Host)>,
    counts: Arc<Counts>,
}

impl Plane {
    pub(super) async fn start(kind: ZooKeeperKind, hosts: usize) -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for ZooKeeper")?;
        let server = ZooKeeperServer::start(kind, directory.path())?;
        let admin = session(&server.address()).await?;
        admin.ensure_parents().await?;
        let counts: Arc<Counts> = Arc::default();
        let mut plane =
            Self { directory, server, admin, controllers: Vec::new(), started: 0, hosts: Vec::new(), counts };
        plane.start_controller()?;
        for id in 1..=hosts {
            plane.restart(i32::try_from(id)?).await?;
        }
        plane.until("every host is told", |plane| plane.full() == hosts).await?;
        Ok(plane)
    }

    pub(super) fn stop(mut self) -> Result<()> {
        for controller in &mut self.controllers {
            controller.check_running()?;
        }
        Ok(())
    }

    fn start_controller(&mut self) -> Result<()> {
        self.started += 1;
        let config = properties(self.directory.path(), self.started, &self.server.address())?;
        let mut command = Command::new(binary("zurau-controller")?);
        command.arg("--config").arg(&config).env("RUST_LOG", "info");
        let log = config.with_extension("log");
        self.controllers.push(Process::spawn(format!("controller-{}", self.started), &mut command, &log)?);
        Ok(())
    }

    fn taken(&self) -> usize {
        self.counts.taken.load(Ordering::Acquire)
    }

    fn full(&self) -> usize {
        self.counts.full.load(Ordering::Acquire)
    }

    /// CPU time of the controllers that run, and of ZooKeeper.
    fn cpu(&mut self) -> Result<(Duration, Duration)> {
        let mut controllers = Duration::ZERO;
        for controller in &self.controllers {
            controllers += controller.cpu_time()?;
        }
        Ok((controllers, self.server.process()?.cpu_time()?))
    }

    /// What has been spent since `start`, when [`Self::cpu`] was `before`.
    fn cost(&mut self, start: Instant, before: (Duration, Duration)) -> Result<Cost> {
        let time = start.elapsed();
        let (controllers, zookeeper) = self.cpu()?;
        Ok(Cost { time, controllers: controllers - before.0, zookeeper: zookeeper - before.1 })
    }

    /// Until nobody has work: what is measured next is not held up by what came before.
    async fn until_quiet(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut before = self.requests()?;
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.requests()?;
            if now < before + QUIET_REQUESTS {
                return Ok(());
            }
            before = now;
            ensure!(start.elapsed() < LIMIT, "ZooKeeper is not quiet within {LIMIT:?}");
        }
    }

    /// Requests that ZooKeeper has had.
    fn requests(&self) -> Result<u64> {
        let text = tokio::task::block_in_place(|| four_letters(&self.server.address(), "srvr"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Received:"));
        Ok(line.context("ZooKeeper tells no number of requests")?.trim().parse()?)
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !condition(self) {
            ensure!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Starts a host, or starts it again.
    pub(super) async fn restart(&mut self, id: i32) -> Result<()> {
        let counts = Arc::<Counts>::clone(&self.counts);
        let host = Host::start(id, &self.server.address(), SESSION_TIMEOUT, counts).await?;
        self.hosts.push((id, host));
        Ok(())
    }

    fn partition(index: usize) -> TopicPartition {
        let number = i32::try_from(index % PARTITIONS_PER_TOPIC).unwrap_or_default();
        TopicPartition::new(format!("topic-{}", index / PARTITIONS_PER_TOPIC), number)
    }

    /// Preferred leaders: each host has the next share.
    fn replicas(&self, index: usize) -> Vec<BrokerId> {
        let hosts = self.hosts.len();
        let first = index / LED_BY_ONE;
        (0..REPLICAS.min(hosts))
            .map(|next| BrokerId(i32::try_from(1 + (first + next) % hosts).unwrap_or_default()))
            .collect()
    }

    /// Writes topics as an admin does, and waits until every partition has a leader in office.
    pub(super) async fn create(&mut self, partitions: usize) -> Result<Cost> {
        let create = |znode: Znode, data: Vec<u8>| Op::Create {
            path: znode.path(),
            data,
            lifetime: Lifetime::Persistent,
        };
        let (start, cpu) = (Instant::now(), self.cpu()?);
        let before = self.taken();
        for first in (0..partitions).step_by(PARTITIONS_PER_TOPIC) {
            let of_topic = first..(first + PARTITIONS_PER_TOPIC).min(partitions);
            let mut ops = vec![create(Znode::Topic(Self::partition(first).topic), Vec::new())];
            for index in of_topic {
                let tp = Self::partition(index);
                ops.push(create(Znode::Partition(tp.clone()), Vec::new()));
                ops.push(create(Znode::Replicas(tp), encode_ids(&self.replicas(index))));
            }
            self.admin.multi(&ops).await?;
        }
        self.until("every partition has a leader", |plane| plane.taken() == before + partitions).await?;
        self.cost(start, cpu)
    }

    /// A second controller, warm, from the moment when the first one is told to leave until it has told every host.
    async fn take_over_warm(&mut self) -> Result<Cost> {
        self.start_controller()?;
        self.until("the standby holds the tree", |plane| {
            plane.controllers.last().is_some_and(|standby| standby.log_text().contains(WARM))
        })
        .await?;
        let full = self.full();
        let (start, cpu) = (Instant::now(), self.cpu()?);
        self.controllers[0].signal(Signal::TERM)?;
        self.all_told_since(full).await?;
        let cost = self.cost(start, cpu)?;
        self.leave_office()?;
        Ok(cost)
    }

    /// A controller that is started after the last one has left, from its start until it has told every host.
    async fn take_over_cold(&mut self) -> Result<Cost> {
        let full = self.full();
        self.leave_office()?;
        let (start, cpu) = (Instant::now(), self.cpu()?);
        self.start_controller()?;
        self.all_told_since(full).await?;
        self.cost(start, cpu)
    }

    fn leave_office(&mut self) -> Result<()> {
        let mut first = self.controllers.remove(0);
        tokio::task::block_in_place(|| first.stop(LIMIT))?;
        Ok(())
    }

    /// Until every host has been told everything by the new controller.
    async fn all_told_since(&mut self, before: usize) -> Result<()> {
        let hosts = self.hosts.len();
        self.until("every host is told", |plane| before + hosts <= plane.full()).await
    }

    /// A host asks to leave, until nothing is left on it.
    async fn shut_down(&mut self, id: i32, led: usize) -> Result<Cost> {
        let node = self.admin.get(&Znode::Controller.path()).await?.context("no controller")?;
        let active = ActiveController::decode(&node.data).context("/controller")?;
        let address = format!("{}:{}", active.host, active.port);
        let peer = Peer::connect(&address, "bench", LIMIT).await?;
        let host = self.hosts.iter().find(|(host, _)| *host == id).context("no such host")?;
        let request = ControlledShutdownRequest::default()
            .with_broker_id(WireBrokerId(id))
            .with_broker_epoch(host.1.epoch.0);
        let before = self.taken();
        let (start, cpu) = (Instant::now(), self.cpu()?);
        loop {
            let answer = peer.call_within(LIMIT, 3, &request).await?;
            ensure!(answer.error_code == 0, "controlled shutdown: error {}", answer.error_code);
            if answer.remaining_partitions.is_empty() {
                break;
            }
        }
        self.until("every partition has another leader", |plane| before + led <= plane.taken()).await?;
        let cost = self.cost(start, cpu)?;
        self.kill(id).await?;
        Ok(cost)
    }

    async fn kill(&mut self, id: i32) -> Result<()> {
        let at = self.hosts.iter().position(|(host, _)| *host == id).context("no such host")?;
        self.hosts.remove(at).1.die().await;
        Ok(())
    }

    /// Has the preferred leader of the first partitions lead them again.
    async fn prefer(&mut self, id: i32, led: usize) -> Result<()> {
        let before = self.taken();
        // The leaders would put the returned host into the ISR; these hosts hold no records.
        let mut groups = Vec::new();
        for index in 0..led {
            let path = Znode::Isr(Self::partition(index)).path();
            groups.push((
                index,
                vec![Op::SetData { path, data: encode_ids(&self.replicas(index)), version: None }],
            ));
        }
        for (index, outcome) in self.admin.multi_batched(groups).await {
            outcome.with_context(|| format!("the ISR of partition {index}"))?;
        }
        let all = (0..led).map(|index| {
            let tp = Self::partition(index);
            serde_json::json!({"topic": tp.topic.to_string(), "partition": tp.partition})
        });
        let wish = serde_json::json!({"version": 1, "partitions": all.collect::<Vec<_>>()});
        self.admin
            .create_if_absent(&Znode::PreferredReplicaElection.path(), wish.to_string().as_bytes())
            .await?;
        self.until("the preferred replicas lead", |plane| before + led <= plane.taken()).await?;
        ensure!(self.hosts.iter().any(|(host, _)| *host == id), "host {id} is gone");
        Ok(())
    }

    /// The leader's session ends; until every partition that it led has another leader.
    async fn fail_over(&mut self, id: i32, led: usize) -> Result<Cost> {
        let before = self.taken();
        let (start, cpu) = (Instant::now(), self.cpu()?);
        self.kill(id).await?;
        self.until("every partition has another leader", |plane| before + led <= plane.taken()).await?;
        self.cost(start, cpu)
    }

    /// One failover of the first partition; the former leader comes back.
    pub(super) async fn fail_over_leader_of_first(&mut self) -> Result<Duration> {
        let tp = Self::partition(0);
        let isr = Znode::Isr(tp.clone()).path();
        // Whoever returned last shall be electable.
        let all = encode_ids(&self.replicas(0));
        self.admin.multi(&[Op::SetData { path: isr, data: all, version: None }]).await?;
        let leader = self.admin.get(&Znode::Leader(tp).path()).await?.context("no leader")?;
        let id: i32 = String::from_utf8(leader.data)?.trim().parse()?;
        let full = self.full();
        let took = self.fail_over(id, 1).await?.time;
        self.restart(id).await?;
        self.until("the former leader is told", |plane| full < plane.full()).await?;
        Ok(took)
    }
}

fn properties(directory: &Path, id: usize, zookeeper: &str) -> Result<PathBuf> {
    let path = directory.join(format!("controller-{id}.properties"));
    let text = format!(
        "controller.id={id}\nzookeeper.connect={zookeeper}\nzookeeper.session.timeout.ms=30000\n\
         listeners=PLAINTEXT://127.0.0.1:{}\nauto.leader.rebalance.enable=false\n",
        free_port()
    );
    std::fs::write(&path, text).context("writing a configuration")?;
    Ok(path)
}
