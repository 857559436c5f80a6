//! How long a scrape of `/metrics` takes on a broker that leads many partitions, with a series for each of them.
//!
//! `cargo bench -p zurau-broker --bench scrape`. `ZURAU_BENCH_PARTITIONS` is their number (10000). A broker, a controller
//! and a ZooKeeper run in this process; the first scrapes are part of the count, since nothing is kept between two.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use zurau_broker::Broker;
use zurau_common::config::{BrokerConfig, ControllerConfig};
use zurau_common::id::TopicPartition;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::znode::Znode;
use zurau_controller::Controller;
use zurau_zookeeper::{Server, ServerConfig};

const SCRAPES: usize = 50;
const PARTITIONS_PER_TOPIC: i32 = 1_000;
const CREATION_LIMIT: Duration = Duration::from_secs(600);

/// What must stay alive.
struct Cluster {
    _server: Server,
    _controller: Controller,
    _broker: Broker,
    zookeeper: ZooKeeper,
    http: String,
}

async fn start(directory: &Path) -> Result<Cluster> {
    let server = Server::start(ServerConfig::default()).await?;
    let connect = server.connect_string();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let http = format!("127.0.0.1:{port}");
    let controller = [
        ("controller.id", "1".to_owned()),
        ("zookeeper.connect", connect.clone()),
        ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
    ];
    let broker = [
        ("broker.id", "1".to_owned()),
        ("zookeeper.connect", connect.clone()),
        ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
        ("log.dirs", directory.display().to_string()),
        ("http.listener", http.clone()),
        ("http.metrics.partitions", "true".to_owned()),
    ];
    let second = Duration::from_secs(1);
    let zookeeper =
        ZooKeeperConfig { connect, session_timeout: 30 * second, connection_timeout: 30 * second };
    Ok(Cluster {
        _controller: Controller::start(ControllerConfig::from_pairs(controller)?).await?,
        _broker: Broker::start(BrokerConfig::from_pairs(broker)?).await?,
        zookeeper: ZooKeeper::connect(zookeeper).await?,
        _server: server,
        http,
    })
}

/// Writes what an admin writes.
async fn create_topics(zookeeper: &ZooKeeper, partitions: i32) -> Result<()> {
    let create = |node: Znode, data: &[u8]| Op::Create {
        path: node.path(),
        data: data.to_vec(),
        lifetime: Lifetime::Persistent,
    };
    for first in (0..partitions).step_by(PARTITIONS_PER_TOPIC as usize) {
        let topic = format!("topic-{}", first / PARTITIONS_PER_TOPIC);
        let mut ops = vec![create(Znode::Topic(topic.as_str().into()), b"")];
        for number in 0..PARTITIONS_PER_TOPIC.min(partitions - first) {
            let id = TopicPartition::new(topic.as_str(), number);
            ops.push(create(Znode::Partition(id.clone()), b""));
            ops.push(create(Znode::Replicas(id), b"[1]"));
        }
        zookeeper.multi(&ops).await?;
    }
    Ok(())
}

fn scrape(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    ensure!(page.starts_with("HTTP/1.1 200"), "{page}");
    Ok(page)
}

/// Waits until the broker leads so many partitions.
async fn wait_until_led(address: &str, partitions: i32) -> Result<()> {
    let wanted = format!("kafka_server_replicamanager_leadercount {partitions}");
    let deadline = Instant::now() + CREATION_LIMIT;
    while !scrape(address)?.lines().any(|line| line == wanted) {
        ensure!(Instant::now() < deadline, "not in {CREATION_LIMIT:?}: {wanted}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

async fn measure() -> Result<()> {
    let partitions = match std::env::var("ZURAU_BENCH_PARTITIONS") {
        Ok(number) => number.parse().context("ZURAU_BENCH_PARTITIONS is a number")?,
        Err(_) => 10_000,
    };
    let directory = tempfile::tempdir()?;
    let cluster = start(directory.path()).await?;
    let started = Instant::now();
    create_topics(&cluster.zookeeper, partitions).await?;
    wait_until_led(&cluster.http, partitions).await?;
    println!("{partitions} partitions are led after {:.1} s", started.elapsed().as_secs_f64());
    let mut page = String::new();
    let mut times = Vec::with_capacity(SCRAPES);
    for _ in 0..SCRAPES {
        let started = Instant::now();
        page = scrape(&cluster.http)?;
        times.push(started.elapsed());
    }
    times.sort();
    let samples =
        page.lines().filter(|line| line.starts_with("kafka_") || line.starts_with("zurau_")).count();
    println!(
        "a scrape of {partitions} partitions, over HTTP: median {:.1} ms, worst of {SCRAPES} {:.1} ms \
         (wanted: below 50 ms for 10000); {samples} samples, {} bytes",
        milliseconds(times[SCRAPES / 2]),
        milliseconds(times[SCRAPES - 1]),
        page.len()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    measure().await
}
