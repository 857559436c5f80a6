//! The shipped `Dockerfile` and `docker-compose.yml`, as they are: one command to all healthy, clients on both sides,
//! a killed leader, stop and start, down and up, and a ZooKeeper that comes back empty.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::containers::{Compose, containers_missing, docker, image_bytes_beyond_base};
use zurau_tests::kafka::KafkaClient;
use zurau_tests::znodes::Znodes;
use zurau_tests::{TestDirectory, eventually, scenario, skip};

const HEALTHY_LIMIT: Duration = Duration::from_secs(60);
pub(super) const TOPIC: &str = "t";
const INSIDE: &str = "broker-1:9092,broker-2:9092,broker-3:9092";
const SERVICES: [&str; 6] = ["zookeeper", "controller-1", "controller-2", "broker-1", "broker-2", "broker-3"];
const RECORDS: usize = 500;
/// Beyond the base image.
const IMAGE_BYTES_MAX: u64 = 60 << 20;
const IDLE_BYTES_MAX: u64 = 30 << 20;

#[test]
fn a_cluster_in_containers() {
    const NAME: &str = "a_cluster_in_containers";
    if let Some(why) = containers_missing().or_else(kcat_missing) {
        return skip(NAME, &why);
    }
    scenario("containers", cluster_in_containers);
}

fn cluster_in_containers(directory: &TestDirectory) -> Result<()> {
    let mut compose = Compose::new(&["docker-compose.yml"]);
    compose.set("KAFKA_CREATE_TOPICS", "asked-for:1:3");
    let beyond = image_bytes_beyond_base()?;
    eprintln!("image: {:.1} MB beyond its base", beyond as f64 / 1e6);
    ensure!(beyond < IMAGE_BYTES_MAX, "the image has {beyond} bytes beyond its base");
    let took = up(&compose)?;
    eprintln!("up to all healthy: {took:?}");
    for service in ["controller-1", "broker-1"] {
        let bytes = resident_bytes(&compose, service)?;
        eprintln!("{service}: {:.1} MB resident, idle", bytes as f64 / 1e6);
        ensure!(bytes < IDLE_BYTES_MAX, "{service} holds {bytes} bytes");
    }

    create_topic(&compose)?;
    wait_until_in_sync(&compose, "asked-for")?;
    let mut expected = produce_on_both_sides(&compose, directory, "first")?;
    let leader = leader(&compose)?;
    docker(&["kill", &compose.container(&format!("broker-{leader}"))?])?;
    expected.extend(produce_on_both_sides(&compose, directory, "second")?);
    check_on_both_sides(&compose, &expected).context("after the leader was killed")?;

    let start = Instant::now();
    compose.run(&["stop"])?;
    compose.run(&["start"])?;
    wait_until_complete(&compose)?;
    eprintln!("stop, start, all healthy: {:?}", start.elapsed());
    check_on_both_sides(&compose, &expected).context("after stop and start")?;
    let start = Instant::now();
    compose.run(&["down"])?;
    up(&compose)?;
    eprintln!("down, up, all healthy: {:?}", start.elapsed());
    check_on_both_sides(&compose, &expected).context("after down and up")?;
    let start = Instant::now();
    recover(&compose)?;
    eprintln!("ZooKeeper lost and recovered: {:?}", start.elapsed());
    check_on_both_sides(&compose, &expected).context("after ZooKeeper was lost")?;
    expected.extend(produce_on_both_sides(&compose, directory, "third")?);
    check_on_both_sides(&compose, &expected)
}

/// `up`, and how long it took until every container was healthy and every broker knew every broker.
pub(super) fn up(compose: &Compose) -> Result<Duration> {
    let start = Instant::now();
    compose.run(&["up", "-d", "--no-build"])?;
    wait_until_complete(compose)?;
    Ok(start.elapsed())
}

fn wait_until_complete(compose: &Compose) -> Result<()> {
    eventually("every container is healthy", HEALTHY_LIMIT, || {
        let containers = compose.containers()?;
        for service in SERVICES {
            let status = containers.get(service).map(|container| container.status.as_str());
            let healthy = status.is_some_and(|status| status.contains("(healthy)"));
            ensure!(healthy, "{service}: {}", status.unwrap_or("no container"));
        }
        Ok(Some(()))
    })?;
    let bootstrap = compose.bootstrap(3);
    let mut client = KafkaClient::new(&bootstrap);
    eventually("every broker knows every broker", HEALTHY_LIMIT, || {
        for address in bootstrap.split(',') {
            let known = client.metadata_from(address, Some(&[]))?.brokers.len();
            ensure!(known == 3, "{address} knows {known} brokers");
        }
        Ok(Some(()))
    })
}

fn resident_bytes(compose: &Compose, service: &str) -> Result<u64> {
    let pid = docker(&["inspect", "-f", "{{.State.Pid}}", &compose.container(service)?])?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kib * 1024)
}

pub(super) fn create_topic(compose: &Compose) -> Result<()> {
    let znodes = Znodes::connect(&compose.zookeeper())?;
    let topic = format!("/brokers/topics/{TOPIC}");
    znodes.create(&topic, "")?;
    znodes.create(&format!("{topic}/0"), "")?;
    znodes.create(&format!("{topic}/0/replicas"), "[1,2,3]")?;
    wait_until_in_sync(compose, TOPIC)
}

fn wait_until_in_sync(compose: &Compose, topic: &str) -> Result<()> {
    let mut client = KafkaClient::new(&compose.bootstrap(3));
    eventually("every replica is in sync", HEALTHY_LIMIT, || {
        Ok((client.partition(topic, 0)?.isr_nodes.len() == 3).then_some(()))
    })
}

fn leader(compose: &Compose) -> Result<i32> {
    let path = format!("/brokers/topics/{TOPIC}/0/leader");
    let leader = Znodes::connect(&compose.zookeeper())?.text(&path)?.context("no leader")?;
    Ok(leader.parse()?)
}

/// Returns the values, all of which were acknowledged.
fn produce_on_both_sides(
    compose: &Compose,
    directory: &TestDirectory,
    name: &str,
) -> Result<BTreeSet<String>> {
    let values = |side: &str| (0..RECORDS).map(|n| format!("{name} {side} {n}\n")).collect::<String>();
    let produce = ["-P", "-t", TOPIC, "-X", "acks=all", "-b"];
    let (host, container) = (values("host"), values("container"));
    let file = directory.join("input");
    std::fs::write(&file, &host)?;
    let bootstrap = compose.bootstrap(3);
    kcat(&[&produce[..], &[&bootstrap]].concat(), Some(&file)).context("producing on the host")?;
    let program = [&["kcat"], &produce[..], &[INSIDE]].concat();
    compose.run_inside(&program, Some(container.as_bytes())).context("producing in a container")?;
    Ok(host.lines().chain(container.lines()).map(str::to_owned).collect())
}

fn check_on_both_sides(compose: &Compose, expected: &BTreeSet<String>) -> Result<()> {
    let consume = ["-C", "-t", TOPIC, "-o", "beginning", "-e", "-q", "-b"];
    let bootstrap = compose.bootstrap(3);
    eventually("everything can be read on the host", HEALTHY_LIMIT, || {
        let read = kcat(&[&consume[..], &[&bootstrap]].concat(), None)?;
        same(&String::from_utf8_lossy(&read), expected).map(Some)
    })?;
    let program = [&["kcat"], &consume[..], &[INSIDE]].concat();
    same(&compose.run_inside(&program, None)?, expected).context("in a container")
}

fn same(read: &str, expected: &BTreeSet<String>) -> Result<()> {
    let values: BTreeSet<String> = read.lines().map(str::to_owned).collect();
    let lines = read.lines().count();
    ensure!(lines == expected.len() && values == *expected, "{lines} records instead of {}", expected.len());
    Ok(())
}

/// ZooKeeper's volumes are removed: brokers say what is wrong, and one command brings everything back.
fn recover(compose: &Compose) -> Result<()> {
    compose.run(&["rm", "-s", "-f", "-v", "zookeeper"])?;
    compose.remove_volumes(&["zookeeper-data", "zookeeper-log"])?;
    compose.run(&["up", "-d", "--no-build"])?;
    eventually("a broker says what is wrong", HEALTHY_LIMIT, || {
        let logs = compose.run(&["logs", "broker-1"])?;
        Ok((logs.contains("belongs to cluster") && logs.contains("recover-metadata")).then_some(()))
    })?;
    compose.run(&["stop"])?;
    let written = compose.run(&["run", "--rm", "recover-metadata", "--execute"])?;
    ensure!(written.contains("Written."), "{written}");
    up(compose).map(|_| ())
}
