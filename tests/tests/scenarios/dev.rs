//! `zurau dev`: one command gives a whole cluster, ends cleanly and keeps what it was told.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::records::Compression;
use rustix::process::Signal;
use zurau_tests::kafka::KafkaClient;
use zurau_tests::port::{free_port, free_port_row};
use zurau_tests::process::Process;
use zurau_tests::programs::binary;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::znodes::Znodes;
use zurau_tests::{TestDirectory, ZooKeeperKind, ZooKeeperServer, eventually, scenario, skip};

const READY_LIMIT: Duration = Duration::from_secs(40);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A running `zurau dev` and the two addresses it has printed.
struct Dev {
    process: Process,
    bootstrap: String,
    zookeeper: String,
}

impl Dev {
    fn start(log: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary("zurau")?);
        command.arg("dev").args(arguments);
        let mut process = Process::spawn("zurau dev", &mut command, log)?;
        let earlier = process.log_text().len();
        let (bootstrap, zookeeper) = eventually("zurau dev is ready", READY_LIMIT, || {
            process.check_running()?;
            let text = process.log_text();
            let value = |key: &str| {
                let found = text[earlier.min(text.len())..].lines().find_map(|line| line.strip_prefix(key));
                found.map(str::to_owned)
            };
            Ok(value("bootstrap.servers=").zip(value("zookeeper.connect=")))
        })?;
        Ok(Self { process, bootstrap, zookeeper })
    }

    fn stop(mut self) -> Result<()> {
        let (status, took) = self.process.stop_with(Signal::INT, STOP_LIMIT)?;
        ensure!(status.success(), "zurau dev ended with {status} after Ctrl-C");
        eprintln!("zurau dev stopped in {took:?}");
        for address in self.bootstrap.split(',') {
            ensure!(std::net::TcpStream::connect(address).is_err(), "{address} still answers");
        }
        Ok(())
    }
}

fn produce(client: &mut KafkaClient, topic: &str, value: &str) -> Result<i64> {
    let batch = encode_batch(&[value.as_bytes()], now_ms(), Compression::Lz4)?;
    eventually("a record is acknowledged", Duration::from_secs(30), || {
        let (error, offset) = client.produce(topic, 0, batch.clone(), -1)?;
        ensure!(error == 0, "error {error}");
        Ok(Some(offset))
    })
}

/// Creates a topic the way that the README shows: by znodes.
fn create_topic(znodes: &Znodes, client: &mut KafkaClient, topic: &str) -> Result<()> {
    znodes.create(&format!("/brokers/topics/{topic}"), "")?;
    znodes.create(&format!("/brokers/topics/{topic}/0"), "")?;
    znodes.create(&format!("/brokers/topics/{topic}/0/replicas"), "[1,2,3]")?;
    eventually("the topic leads", Duration::from_secs(30), || {
        let partition = client.partition(topic, 0)?;
        Ok((partition.isr_nodes.len() == 3).then_some(()))
    })
}

fn data_directory(directory: &TestDirectory) -> (PathBuf, String) {
    let data = directory.join("data");
    let shown = data.to_string_lossy().into_owned();
    (data, shown)
}

#[test]
fn a_cluster_in_one_command_keeps_topics_and_records() {
    scenario("dev", |directory| {
        let (_, data) = data_directory(directory);
        let log = directory.join("dev.log");
        let port = free_port_row(3).to_string();
        let zookeeper_port = free_port().to_string();
        let arguments = ["--port", &port, "--data", &data, "--zookeeper-port", &zookeeper_port];

        let start = Instant::now();
        let dev = Dev::start(&log, &arguments)?;
        let mut client = KafkaClient::new(&dev.bootstrap);
        ensure!(dev.bootstrap.split(',').count() == 3, "bootstrap.servers={}", dev.bootstrap);
        let expected = format!("127.0.0.1:{port},");
        ensure!(dev.bootstrap.starts_with(&expected), "bootstrap.servers={}", dev.bootstrap);
        let znodes = Znodes::connect(&dev.zookeeper)?;
        create_topic(&znodes, &mut client, "kept")?;
        let first = produce(&mut client, "kept", "before the restart")?;
        eprintln!("first acknowledged record after {:?} (debug or release as built)", start.elapsed());
        ensure!(first == 0, "the first record has offset {first}");
        drop(znodes);
        dev.stop()?;

        let dev = Dev::start(&log, &arguments)?;
        let mut client = KafkaClient::new(&dev.bootstrap);
        eventually("the topic leads again", Duration::from_secs(30), || {
            Ok((client.partition("kept", 0)?.isr_nodes.len() == 3).then_some(()))
        })?;
        ensure!(produce(&mut client, "kept", "after the restart")? == 1, "the old record is not there");
        let values: Vec<_> = client.read_partition("kept", 0)?.into_iter().map(|one| one.value).collect();
        ensure!(values == ["before the restart", "after the restart"], "{values:?}");
        dev.stop()
    });
}

#[test]
fn a_cluster_in_one_command_with_a_real_zookeeper() {
    if let Some(why) = ZooKeeperKind::Real.missing() {
        return skip("a_cluster_in_one_command_with_a_real_zookeeper", &why);
    }
    scenario("dev-real", |directory| {
        let server = ZooKeeperServer::start(ZooKeeperKind::Real, directory.path())?;
        let (_, data) = data_directory(directory);
        let port = free_port_row(3).to_string();
        let address = server.address();
        let arguments = ["--port", &port, "--data", &data, "--zookeeper", &address];
        let dev = Dev::start(&directory.join("dev.log"), &arguments)?;
        ensure!(dev.zookeeper == address, "zookeeper.connect={}", dev.zookeeper);
        let mut client = KafkaClient::new(&dev.bootstrap);
        let znodes = Znodes::connect(&address)?;
        create_topic(&znodes, &mut client, "t")?;
        ensure!(produce(&mut client, "t", "x")? == 0, "the first record has another offset");
        dev.stop()?;
        let controller = znodes.text("/controller")?;
        ensure!(controller.is_none(), "the controller left its znode behind: {controller:?}");
        let ids = znodes.children("/brokers/ids")?;
        ensure!(ids.is_empty(), "brokers {ids:?} left their registration behind");
        let leader = znodes.text("/brokers/topics/t/0/state")?.context("the topic is gone");
        leader.map(|_| ())
    });
}
