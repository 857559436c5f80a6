//! From typing `zurau dev` to the first record that three replicas have acknowledged.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::records::Compression;
use zurau_tests::eventually;
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::port::{free_port, free_port_row};
use zurau_tests::process::Process;
use zurau_tests::programs::binary;
use zurau_tests::records::{encode_batch, now_ms};

const LIMIT: Duration = Duration::from_secs(30);

/// Times from the start of the process.
pub(crate) struct ColdStart {
    pub(crate) ready: Duration,
    pub(crate) first_acknowledged: Duration,
}

/// # Errors
/// The cluster does not start or takes no record.
pub(crate) fn measure(directory: &Path) -> Result<ColdStart> {
    let log = directory.join("dev.log");
    let port = free_port_row(3);
    let zookeeper_port = free_port();
    let mut command = Command::new(binary("zurau")?);
    command.args(["dev", "--port", &port.to_string(), "--zookeeper-port", &zookeeper_port.to_string()]);
    command.arg("--data").arg(directory.join("dev-data"));
    let start = Instant::now();
    let mut process = Process::spawn("zurau dev", &mut command, &log)?;
    let bootstrap = eventually("zurau dev is ready", LIMIT, || {
        process.check_running()?;
        let text = process.log_text();
        Ok(text.lines().find_map(|line| line.strip_prefix("bootstrap.servers=").map(str::to_owned)))
    })?;
    let ready = start.elapsed();
    let mut client = KafkaClient::new(&bootstrap);
    create_topic(&mut client, &bootstrap, "first", 1, 3)?;
    let batch = encode_batch(&[b"first"], now_ms(), Compression::None)?;
    eventually("the first record is acknowledged", LIMIT, || {
        let (error, _) = client.produce("first", 0, batch.clone(), -1)?;
        ensure!(error == 0, "error {error}");
        Ok(Some(()))
    })?;
    let first_acknowledged = start.elapsed();
    process.stop(Duration::from_secs(10))?;
    Ok(ColdStart { ready, first_acknowledged })
}

/// Creates a topic by CreateTopics.
///
/// # Errors
/// The cluster refuses.
pub(crate) fn create_topic(
    client: &mut KafkaClient,
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    replicas: i16,
) -> Result<()> {
    let wanted = CreatableTopic::default()
        .with_name(topic_name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas);
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(20_000);
    let address = bootstrap.split(',').next().context("there is no bootstrap server")?;
    let answer = client.call(address, 7, &request)?;
    let found = answer.topics.first().context("the answer names no topic")?;
    ensure!(found.error_code == 0, "creating {topic}: error {} {:?}", found.error_code, found.error_message);
    Ok(())
}
