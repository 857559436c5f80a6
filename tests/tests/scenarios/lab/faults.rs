//! The faults, and the one way out of all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::ElectLeadersRequest;
use rustix::process::Signal;
use zurau_tests::cluster::Node;
use zurau_tests::network::{Host, Network};
use zurau_tests::{Cluster, TestDirectory};

use super::random::Random;
use super::{PARTITIONS, QUEUE, tail};

/// Size of each broker's disk.
const DISK_BYTES: u64 = 256 << 20;
/// What a broker's disk has left when it is full.
const FULL_DISK_REST: u64 = 1 << 20;
/// A link on which replication cannot keep up.
const SLOW_LINK_KILOBITS: u32 = 256;
const LOST_PACKETS: f64 = 0.15;
/// Clock jumps, in seconds.
const CLOCK_JUMPS: [i64; 4] = [-86_400, -30, 30, 86_400];
/// How long a broker may go on after its only disk has failed.
const DISK_ERROR_LIMIT: Duration = Duration::from_secs(30);
const PREFERRED_ELECTION: i8 = 0;

/// The cluster and what can be done to it.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    pub(super) disks: Disks,
    pub(super) network: Network,
    pub(super) random: Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9 of a broker.
    KillBroker,
    /// A broker stands still for shorter than its session, and everything at once.
    PauseBroker,
    /// A clean stop.
    StopBroker,
    KillController,
    PauseController,
    /// One broker reaches nobody.
    IsolateBroker,
    /// Two halves, each with brokers, controllers and ZooKeeper servers.
    Halves,
    BrokersFromController,
    BrokerFromZooKeeper,
    /// One direction between two brokers.
    OneWay,
    SlowLinks,
    LossyLinks,
    ClockJump,
    KillZooKeeper,
    LoseEnsemble,
    FillDisk,
    /// Writes to a broker's only disk fail.
    DiskError,
    /// A broker's machine loses its power, and with it what was not synced.
    LosePower,
    /// Partitions move to other brokers.
    Move,
    /// Preferred leaders are asked for, and a topic comes and goes.
    Administration,
}

impl Fault {
    pub(super) const ALL: [Self; 20] = [
        Self::KillBroker,
        Self::PauseBroker,
        Self::StopBroker,
        Self::KillController,
        Self::PauseController,
        Self::IsolateBroker,
        Self::Halves,
        Self::BrokersFromController,
        Self::BrokerFromZooKeeper,
        Self::OneWay,
        Self::SlowLinks,
        Self::LossyLinks,
        Self::ClockJump,
        Self::KillZooKeeper,
        Self::LoseEnsemble,
        Self::FillDisk,
        Self::DiskError,
        Self::LosePower,
        Self::Move,
        Self::Administration,
    ];

    /// One of each sort.
    pub(super) const SHORT: [Self; 9] = [
        Self::KillBroker,
        Self::KillController,
        Self::IsolateBroker,
        Self::Halves,
        Self::OneWay,
        Self::LoseEnsemble,
        Self::DiskError,
        Self::LosePower,
        Self::Move,
    ];

    /// Whether a round may hold both. Two machines that lose what they did not sync are more than any system survives
    /// whose acknowledgements promise page caches.
    pub(super) fn may_meet(self, other: Self) -> bool {
        let loses = |fault: Self| matches!(fault, Self::LosePower | Self::DiskError);
        !(loses(self) && loses(other))
    }

    pub(super) fn begin(self, lab: &mut Lab) -> Result<()> {
        let broker = lab.random.below(lab.cluster.brokers.len());
        match self {
            Self::KillBroker => kill(&mut lab.cluster.brokers[broker]),
            Self::PauseBroker => pause(&mut lab.cluster.brokers[broker]),
            Self::StopBroker => {
                let node = &mut lab.cluster.brokers[broker];
                if node.is_running() { node.process()?.signal(Signal::TERM) } else { Ok(()) }
            }
            Self::KillController => kill(active_controller(&mut lab.cluster)?),
            Self::PauseController => pause(active_controller(&mut lab.cluster)?),
            Self::KillZooKeeper => {
                let number = lab.random.below(lab.cluster.zookeepers.len());
                stop_zookeeper(&mut lab.cluster, number)
            }
            Self::LoseEnsemble => (0..lab.cluster.zookeepers.len())
                .try_for_each(|number| stop_zookeeper(&mut lab.cluster, number)),
            Self::ClockJump => {
                let seconds = *lab.random.of(&CLOCK_JUMPS);
                host(&lab.cluster.brokers[broker])?.set_clock(seconds)
            }
            Self::FillDisk => lab.disks.fill(broker),
            Self::DiskError => lab.disks.fail(broker),
            Self::LosePower => lose_power(lab, broker),
            Self::Move => move_partition(lab),
            Self::Administration => administrate(lab),
            _ => self.break_network(lab, broker),
        }
    }

    fn break_network(self, lab: &mut Lab, broker: usize) -> Result<()> {
        let brokers = hosts(lab.cluster.brokers.iter().map(Node::host))?;
        let controllers = hosts(lab.cluster.controllers.iter().map(Node::host))?;
        let zookeepers = hosts(lab.cluster.zookeepers.iter().map(|server| server.host()))?;
        let own = &brokers[broker];
        let others = brokers.iter().filter(|other| other.address() != own.address());
        match self {
            Self::IsolateBroker => {
                others.chain(&controllers).chain(&zookeepers).try_for_each(|other| own.cut(other))
            }
            Self::Halves => {
                let mut all = [brokers.clone(), controllers, zookeepers].concat();
                lab.random.shuffle(&mut all);
                let (left, right) = all.split_at(all.len() / 2);
                left.iter().try_for_each(|one| right.iter().try_for_each(|other| one.cut(other)))
            }
            Self::BrokersFromController => {
                let number = active(&lab.cluster)?;
                brokers.iter().try_for_each(|broker| broker.cut(&controllers[number]))
            }
            Self::BrokerFromZooKeeper => zookeepers.iter().try_for_each(|server| own.cut(server)),
            Self::OneWay => {
                let peers: Vec<Host> = others.cloned().collect();
                own.refuse_from(lab.random.of(&peers))
            }
            Self::SlowLinks => brokers.iter().try_for_each(|broker| broker.slow_down(SLOW_LINK_KILOBITS)),
            _ => brokers.iter().chain(&controllers).try_for_each(|host| host.lose(LOST_PACKETS)),
        }
    }
}

/// Cuts a broker from the other brokers only: controllers, ZooKeeper and clients still reach it.
pub(super) fn cut_from_brokers(lab: &Lab, broker: usize) -> Result<()> {
    let brokers = hosts(lab.cluster.brokers.iter().map(Node::host))?;
    let own = &brokers[broker];
    brokers.iter().filter(|other| other.address() != own.address()).try_for_each(|other| own.cut(other))
}

/// Ends every fault: whatever is stopped runs again, whatever is cut is joined. Says nothing of recovery.
pub(super) fn heal(lab: &mut Lab) -> Result<()> {
    lab.network.heal()?;
    for (number, node) in lab.cluster.brokers.iter_mut().enumerate() {
        if lab.disks.has_failed(number) && !node.has_ended()? {
            // Its last directory is gone, so it is about to end by itself.
            node.wait_for_end(DISK_ERROR_LIMIT).context("a broker without a disk ends")?;
        }
    }
    lab.disks.heal()?;
    for server in &mut lab.cluster.zookeepers {
        if !server.is_running() {
            server.spawn()?;
        }
    }
    lab.cluster.zookeepers.iter_mut().try_for_each(|server| server.wait_until_it_serves())?;
    let nodes = lab.cluster.controllers.iter_mut().chain(&mut lab.cluster.brokers);
    for node in nodes {
        host(node)?.set_clock(0)?;
        if node.is_running() {
            node.process()?.resume()?;
        }
        // A process that ended did so because of its fault: a full stop was asked for, its session or its disk was lost.
        if node.has_ended()? {
            node.start()?;
        }
    }
    Ok(())
}

fn host(node: &Node) -> Result<&Host> {
    node.host().context("a node of the lab has a host")
}

fn hosts<'a>(all: impl Iterator<Item = Option<&'a Host>>) -> Result<Vec<Host>> {
    all.map(|host| host.cloned().context("everything in the lab has a host")).collect()
}

pub(super) fn kill(node: &mut Node) -> Result<()> {
    if node.is_running() { node.kill() } else { Ok(()) }
}

fn pause(node: &mut Node) -> Result<()> {
    if node.is_running() { node.process()?.pause() } else { Ok(()) }
}

fn stop_zookeeper(cluster: &mut Cluster, number: usize) -> Result<()> {
    let server = &mut cluster.zookeepers[number];
    if server.is_running() { server.kill() } else { Ok(()) }
}

/// Index of the controller that holds `/controller`; any if nobody does just now.
fn active(cluster: &Cluster) -> Result<usize> {
    let text = cluster.znodes.text("/controller").ok().flatten().unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let id = value["controllerid"].as_i64().or_else(|| value["brokerid"].as_i64());
    let found = cluster.controllers.iter().position(|node| Some(i64::from(node.id)) == id);
    ensure!(!cluster.controllers.is_empty(), "the lab has no controller");
    Ok(found.unwrap_or_default())
}

fn active_controller(cluster: &mut Cluster) -> Result<&mut Node> {
    let number = active(cluster)?;
    Ok(&mut cluster.controllers[number])
}

fn lose_power(lab: &mut Lab, broker: usize) -> Result<()> {
    let node = &mut lab.cluster.brokers[broker];
    kill(node)?;
    host(node)?.reboot()?;
    let lost = tail::lose_unsynced(node.data(), &mut lab.random)?;
    eprintln!("broker {} lost its power and {lost} bytes", node.id);
    Ok(())
}

fn move_partition(lab: &mut Lab) -> Result<()> {
    let mut ids: Vec<i32> = lab.cluster.brokers.iter().map(|node| node.id).collect();
    lab.random.shuffle(&mut ids);
    ids.truncate(3);
    let partition = lab.random.below(PARTITIONS as usize);
    let parent = format!("/brokers/partitions_reassigned/{QUEUE}");
    lab.cluster.znodes.put(&parent, "")?;
    lab.cluster.znodes.put(&format!("{parent}/{partition}"), &format!("{ids:?}").replace(' ', ""))
}

fn administrate(lab: &mut Lab) -> Result<()> {
    let znodes = &lab.cluster.znodes;
    let topic = format!("passing-{}", lab.random.below(1_000_000));
    znodes.create(&format!("/brokers/topics/{topic}"), "")?;
    znodes.create(&format!("/brokers/topics/{topic}/0"), "")?;
    znodes.create(&format!("/brokers/topics/{topic}/0/replicas"), "[1,2,3]")?;
    let request = ElectLeadersRequest::default()
        .with_election_type(PREFERRED_ELECTION)
        .with_topic_partitions(None)
        .with_timeout_ms(5000);
    let address = lab.cluster.brokers[0].address();
    let answer = lab.cluster.client().call(&address, 2, &request)?;
    ensure!([0, 41].contains(&answer.error_code), "ElectLeaders: {}", answer.error_code);
    znodes.create(&format!("/admin/delete_topics/{topic}"), "")
}

/// A small disk for each broker: a file system of its own, in a file, mounted at its data directory.
pub(super) struct Disks {
    disks: Vec<Disk>,
    /// Shared with the mount namespaces of the hosts, so that they too give up a disk that is taken away.
    shared: PathBuf,
}

struct Disk {
    image: PathBuf,
    directory: PathBuf,
    failed: bool,
}

impl Disks {
    /// Why no disk can be made here.
    pub(super) fn missing() -> Option<String> {
        let directory = TestDirectory::new("disk-probe");
        Self::mount(directory.path(), 1).err().map(|error| format!("no disk can be mounted: {error:#}"))
    }

    /// # Errors
    /// The system refuses to make a file system or to mount it.
    pub(super) fn mount(directory: &Path, brokers: usize) -> Result<Self> {
        let mut disks = Self { disks: Vec::new(), shared: directory.to_owned() };
        run("mount", &["--bind", &directory.to_string_lossy()], directory)?;
        run("mount", &["--make-shared"], directory)?;
        for id in 1..=brokers {
            let image = directory.join(format!("broker-{id}.disk"));
            fs::File::create(&image)?.set_len(DISK_BYTES)?;
            run("mkfs.ext4", &["-q", "-F"], &image)?;
            let directory = directory.join(format!("broker-{id}-data"));
            fs::create_dir_all(&directory)?;
            let disk = Disk { image, directory, failed: false };
            disk.mount()?;
            fs::remove_dir(disk.directory.join("lost+found"))?;
            disks.disks.push(disk);
        }
        Ok(disks)
    }

    fn fill(&self, broker: usize) -> Result<()> {
        let disk = &self.disks[broker];
        let free = rustix::fs::statvfs(&disk.directory)?;
        let bytes = (free.f_bavail * free.f_frsize).saturating_sub(FULL_DISK_REST);
        let file = fs::File::create(disk.filler())?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.max(1))?;
        Ok(())
    }

    /// From now on every write fails, as after an error of the device.
    fn fail(&mut self, broker: usize) -> Result<()> {
        let disk = &mut self.disks[broker];
        disk.failed = true;
        run("mount", &["-o", "remount,abort"], &disk.directory)
    }

    fn has_failed(&self, broker: usize) -> bool {
        self.disks[broker].failed
    }

    /// Disks that failed must not be in use any more.
    fn heal(&mut self) -> Result<()> {
        for disk in &mut self.disks {
            if disk.failed {
                run("umount", &[], &disk.directory)?;
                disk.mount()?;
                disk.failed = false;
            }
            if disk.filler().exists() {
                fs::remove_file(disk.filler())?;
            }
        }
        Ok(())
    }
}

impl Disk {
    fn mount(&self) -> Result<()> {
        let image = self.image.to_string_lossy();
        run("mount", &["-o", "loop", &image], &self.directory)
    }

    fn filler(&self) -> PathBuf {
        self.directory.join("filler")
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let directories = self.disks.iter().map(|disk| &disk.directory).chain([&self.shared]);
        for directory in directories {
            // Lazily: a process that is just being ended may still be there.
            if let Err(error) = run("umount", &["-l"], directory) {
                eprintln!("a disk is still mounted: {error:#}");
            }
        }
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> Result<()> {
    let output = Command::new(program).args(arguments).arg(path).output();
    let output = output.with_context(|| format!("running {program}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?} {}: {complaint}", path.display());
    Ok(())
}
