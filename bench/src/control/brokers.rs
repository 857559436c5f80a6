//! Three real brokers, one of which leads all partitions: how long these are without a leader when it is killed, apart from
//! the time until ZooKeeper notices, and when it is asked to end. What counts is not what anybody says about a partition but
//! that its new leader answers ListOffsets for it, which takes a leader whose high watermark is known.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::ZooKeeper;
use zurau_tests::kafka::{KafkaClient, LATEST, LIST_OFFSETS_VERSION, topic_name};
use zurau_tests::{Cluster, ZooKeeperKind};

use super::LIMIT;
use super::plane::{PARTITIONS_PER_TOPIC, session};
use crate::histogram::Histogram;
use crate::probe::Probe;
use crate::system::settle;

const BROKERS: i32 = 3;
/// The one that leads everything.
const FIRST: i32 = 1;
/// The shortest that the servers grant: only the time after it is measured.
const SESSION_TIMEOUT_MS: u32 = 1_000;
/// Of a cluster whose machine is busy for seconds.
const LONG_SESSION_TIMEOUT_MS: u32 = 6_000;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What one number of partitions took.
pub(super) struct Costs {
    /// From the first write of an admin until the last partition is served.
    pub(super) created: Duration,
    pub(super) shut_down: Moved,
    /// Until the process that was asked to end had ended.
    pub(super) ended: Duration,
    pub(super) failed_over: Moved,
    /// Until each partition has acknowledged a record on all replicas that are left.
    pub(super) acknowledged: Duration,
}

/// How long partitions had no leader.
pub(super) struct Moved {
    /// Of each partition, until its new leader served it.
    pub(super) served: Histogram,
    /// Until all brokers that are left named the new leader of each.
    pub(super) told: Duration,
}

pub(super) fn measure(kind: ZooKeeperKind, partitions: usize, runtime: &Runtime) -> Result<Costs> {
    settle()?;
    let mut brokers = Brokers::start(kind, partitions, LONG_SESSION_TIMEOUT_MS, runtime)?;
    let created = brokers.create(runtime)?;
    brokers.until_in_sync()?;
    let start = Instant::now();
    brokers.cluster.broker(FIRST)?.process()?.signal(Signal::TERM)?;
    let shut_down = brokers.until_moved(start)?;
    let status = brokers.cluster.broker(FIRST)?.wait_for_end(LIMIT)?;
    let ended = start.elapsed();
    ensure!(status.success(), "broker {FIRST} ended with {status}");
    brokers.return_first(runtime)?;
    let start = brokers.kill_first()?;
    let failed_over = brokers.until_moved(start)?;
    let mut probe = Probe::new(brokers.all().collect(), Some(FIRST))?;
    probe.finish(&mut brokers.others(), LIMIT)?;
    let acknowledged = probe.since(start).max();
    brokers.finish()?;
    Ok(Costs { created, shut_down, ended, failed_over, acknowledged })
}

/// Failover of a single partition, again and again.
pub(super) fn single(kind: ZooKeeperKind, rounds: usize, runtime: &Runtime) -> Result<Histogram> {
    let mut brokers = Brokers::start(kind, 1, SESSION_TIMEOUT_MS, runtime)?;
    brokers.create(runtime)?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        brokers.until_in_sync()?;
        let start = brokers.kill_first()?;
        times.push(brokers.until_moved(start)?.served.max());
        brokers.return_first(runtime)?;
    }
    brokers.finish()?;
    Ok(times.into_iter().collect())
}

struct Brokers {
    cluster: Cluster,
    admin: ZooKeeper,
    partitions: usize,
    /// Where everything lies until the end.
    _directory: TempDir,
}

impl Brokers {
    fn start(kind: ZooKeeperKind, partitions: usize, timeout_ms: u32, runtime: &Runtime) -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory for the cluster")?;
        let cluster = Cluster::builder()
            .brokers(BROKERS)
            .zookeeper(kind)
            .set("zookeeper.session.timeout.ms", timeout_ms)
            .set_for_controllers("auto.leader.rebalance.enable", false)
            .start_in(directory.path())?;
        let admin = runtime.block_on(session(&cluster.zookeeper_connect()))?;
        Ok(Self { cluster, admin, partitions, _directory: directory })
    }

    fn finish(mut self) -> Result<()> {
        self.cluster.check_running()
    }

    fn name(index: usize) -> (String, i32) {
        let number = i32::try_from(index % PARTITIONS_PER_TOPIC).unwrap_or_default();
        (format!("topic-{}", index / PARTITIONS_PER_TOPIC), number)
    }

    fn all(&self) -> impl Iterator<Item = (String, i32)> {
        (0..self.partitions).map(Self::name)
    }

    /// The first one is preferred for all; the others share what it leads.
    fn replicas(index: usize) -> [i32; 3] {
        if index.is_multiple_of(2) { [FIRST, 2, 3] } else { [FIRST, 3, 2] }
    }

    /// As an admin does; until every partition is served.
    fn create(&mut self, runtime: &Runtime) -> Result<Duration> {
        let create = |path: String, data: String| Op::Create {
            path,
            data: data.into_bytes(),
            lifetime: Lifetime::Persistent,
        };
        let start = Instant::now();
        for first in (0..self.partitions).step_by(PARTITIONS_PER_TOPIC) {
            let topic = format!("/brokers/topics/{}", Self::name(first).0);
            let mut ops = vec![create(topic.clone(), String::new())];
            for index in first..(first + PARTITIONS_PER_TOPIC).min(self.partitions) {
                let partition = format!("{topic}/{}", Self::name(index).1);
                ops.push(create(partition.clone(), String::new()));
                ops.push(create(format!("{partition}/replicas"), format!("{:?}", Self::replicas(index))));
            }
            runtime.block_on(self.admin.multi(&ops)).context("writing a topic")?;
        }
        Ok(self.until_served(start, |index| Self::replicas(index)[0])?.max())
    }

    /// Until every replica of every partition is in sync, in the eyes of every broker.
    fn until_in_sync(&self) -> Result<()> {
        for first in (0..self.partitions).step_by(PARTITIONS_PER_TOPIC) {
            let count = PARTITIONS_PER_TOPIC.min(self.partitions - first);
            self.cluster.wait_for_full_isr(&Self::name(first).0, count, LIMIT)?;
        }
        Ok(())
    }

    /// Starts the first broker again, and has it lead everything.
    fn return_first(&mut self, runtime: &Runtime) -> Result<()> {
        self.cluster.broker(FIRST)?.start()?;
        self.cluster.wait_until_complete(LIMIT)?;
        self.until_in_sync()?;
        let all =
            self.all().map(|(topic, partition)| serde_json::json!({"topic": topic, "partition": partition}));
        let wish = serde_json::json!({"version": 1, "partitions": all.collect::<Vec<_>>()}).to_string();
        let path = "/admin/preferred_replica_election";
        runtime.block_on(self.admin.create_if_absent(path, wish.as_bytes()))?;
        self.until_served(Instant::now(), |_| FIRST)?;
        self.until_told(|_| FIRST)?;
        // What follows shall not wait for what was written before.
        settle()?;
        Ok(())
    }

    /// kill -9. Returns the last moment when its session was still there.
    fn kill_first(&mut self) -> Result<Instant> {
        let registration = format!("/brokers/ids/{FIRST}");
        self.cluster.broker(FIRST)?.kill()?;
        let killed = Instant::now();
        let mut seen = killed;
        loop {
            let asked = Instant::now();
            if self.cluster.znodes.get(&registration)?.is_none() {
                return Ok(seen);
            }
            seen = asked;
            ensure!(killed.elapsed() < LIMIT, "the session of broker {FIRST} does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// From `start` until the others lead what the first broker led.
    fn until_moved(&self, start: Instant) -> Result<Moved> {
        let heir = |index: usize| Self::replicas(index)[1];
        let served = self.until_served(start, heir)?;
        self.until_told(heir)?;
        Ok(Moved { served, told: start.elapsed() })
    }

    /// A client of the brokers that stay.
    fn others(&self) -> KafkaClient {
        let others = self.cluster.brokers.iter().filter(|broker| broker.id != FIRST);
        KafkaClient::new(&others.map(|broker| broker.address()).collect::<Vec<_>>().join(","))
    }

    fn address(&self, id: i32) -> Result<String> {
        let broker = self.cluster.brokers.iter().find(|broker| broker.id == id);
        Ok(broker.context("no such broker")?.address())
    }

    /// From `start` until each partition is served by the broker that shall lead it.
    fn until_served(&self, start: Instant, leader: impl Fn(usize) -> i32) -> Result<Histogram> {
        let mut pending: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for index in 0..self.partitions {
            pending.entry(leader(index)).or_default().push(index);
        }
        let mut client = self.others();
        let mut times = Vec::with_capacity(self.partitions);
        loop {
            for (leader, waiting) in &mut pending {
                let served = serves(&mut client, &self.address(*leader)?, waiting)?;
                let time = start.elapsed();
                waiting.retain(|index| !served.contains(&Self::name(*index)));
                times.extend(served.iter().map(|_| time));
            }
            pending.retain(|_, waiting| !waiting.is_empty());
            let Some((leader, waiting)) = pending.first_key_value() else {
                return Ok(times.into_iter().collect());
            };
            ensure!(start.elapsed() < LIMIT, "broker {leader} does not serve {} partitions", waiting.len());
            thread::sleep(PAUSE);
        }
    }

    /// Until the metadata of every broker that stays names these leaders.
    fn until_told(&self, leader: impl Fn(usize) -> i32) -> Result<()> {
        let start = Instant::now();
        let expected: HashMap<(String, i32), i32> =
            (0..self.partitions).map(|index| (Self::name(index), leader(index))).collect();
        let mut client = self.others();
        for id in 2..=BROKERS {
            let address = self.address(id)?;
            loop {
                let topics = client.metadata_from(&address, None)?.topics;
                let told = topics.iter().flat_map(|topic| {
                    let name = topic.name.as_ref().map(|name| name.0.to_string()).unwrap_or_default();
                    topic
                        .partitions
                        .iter()
                        .map(move |found| ((name.clone(), found.partition_index), found.leader_id.0))
                });
                let right = told.filter(|(name, leader)| expected.get(name) == Some(leader)).count();
                if right == self.partitions {
                    break;
                }
                ensure!(start.elapsed() < LIMIT, "{address} names {right} of {} leaders", self.partitions);
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// Which of these partitions a broker serves as their leader.
fn serves(client: &mut KafkaClient, address: &str, wanted: &[usize]) -> Result<HashSet<(String, i32)>> {
    let mut by_topic: BTreeMap<String, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for index in wanted {
        let (topic, number) = Brokers::name(*index);
        let partition = ListOffsetsPartition::default().with_partition_index(number).with_timestamp(LATEST);
        by_topic.entry(topic).or_default().push(partition);
    }
    let topics = by_topic.into_iter().map(|(topic, partitions)| {
        ListOffsetsTopic::default().with_name(topic_name(&topic)).with_partitions(partitions)
    });
    let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(topics.collect());
    let answer = client.call(address, LIST_OFFSETS_VERSION, &request)?;
    let mut served = HashSet::new();
    for topic in answer.topics {
        for partition in topic.partitions.iter().filter(|partition| partition.error_code == 0) {
            served.insert((topic.name.0.to_string(), partition.partition_index));
        }
    }
    Ok(served)
}
