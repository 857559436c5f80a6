//! Burrow from Debian: it reads `__consumer_offsets` record by record with Go's sarama, asks for the ends of partitions
//! with the oldest requests there are, and keeps a node in ZooKeeper with a Go client.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::http;
use zurau_tests::port::free_port;
use zurau_tests::process::Process;
use zurau_tests::{Cluster, TestDirectory, eventually, scenario, skip};

use crate::outcome::{Suite, Tally, judge};
use crate::workshop::program_missing;

const SUITE: Suite = Suite {
    name: "Burrow",
    version: "1.2.1",
    setting: "Debian's package, lags of a group that commits beside it; three brokers",
};
const LIMIT: Duration = Duration::from_secs(40);
const TOPIC: &str = "watched";
const GROUP: &str = "watched-by-burrow";
/// Records in each partition that the group has not read at the end.
const UNREAD: u64 = 7;

#[test]
fn burrow() {
    if let Some(why) = program_missing("Burrow", "burrow").or_else(kcat_missing) {
        return skip("suites::burrow", &why);
    }
    scenario("burrow", |directory| {
        let cluster = Cluster::builder().set("group.initial.rebalance.delay.ms", 0).start(directory)?;
        cluster.create_topic(TOPIC, &["[1,2,3]", "[2,3,1]"])?;
        let address = format!("127.0.0.1:{}", free_port());
        fs::write(directory.join("burrow.toml"), configuration(&cluster, directory.path(), &address))?;
        let mut command = Command::new("Burrow");
        command.arg("--config-dir").arg(directory.path());
        let mut burrow = Process::spawn("Burrow", &mut command, &directory.join("burrow-output.log"))?;
        let mut tally = Tally::default();
        tally.step("the cluster and its topics", topics(&address));
        tally.step("a group that commits is known", known(&cluster, directory, &address));
        tally.step("its lag grows with what it has not read", lags(&cluster, directory, &address));
        tally.step("Burrow's node in ZooKeeper", node(&cluster));
        burrow.check_running()?;
        tally.step("a clean end", burrow.stop(LIMIT).map(|_| ()));
        judge(&SUITE, &tally, &[])
    });
}

fn configuration(cluster: &Cluster, directory: &Path, http: &str) -> String {
    let quoted = |list: &str| {
        let each: Vec<String> = list.split(',').map(|address| format!("\"{address}\"")).collect();
        each.join(",")
    };
    let brokers = quoted(&cluster.bootstrap());
    let zookeepers = quoted(&cluster.zookeeper_connect());
    let directory = directory.display();
    format!(
        "[general]\npidfile=\"{directory}/burrow.pid\"\n\
         [logging]\nfilename=\"{directory}/burrow.log\"\nlevel=\"info\"\n\
         [zookeeper]\nservers=[{zookeepers}]\ntimeout=6\nroot-path=\"/burrow\"\n\
         [client-profile.steps]\nclient-id=\"burrow\"\nkafka-version=\"2.0.0\"\n\
         [cluster.zurau]\nclass-name=\"kafka\"\nservers=[{brokers}]\nclient-profile=\"steps\"\ntopic-refresh=1\n\
         offset-refresh=1\n\
         [consumer.zurau]\nclass-name=\"kafka\"\ncluster=\"zurau\"\nservers=[{brokers}]\nclient-profile=\"steps\"\n\
         [httpserver.default]\naddress=\"{http}\"\n\
         [storage.default]\nclass-name=\"inmemory\"\nworkers=2\nintervals=15\nexpire-group=604800\nmin-distance=1\n"
    )
}

fn ask(address: &str, path: &str) -> Result<Value> {
    let page = http::get(address, &format!("/v3/kafka{path}"))?;
    ensure!(page.status == 200, "{path} was answered with {}: {}", page.status, page.body);
    serde_json::from_str(&page.body).with_context(|| format!("{path}: {}", page.body))
}

fn topics(address: &str) -> Result<()> {
    eventually("Burrow names the topic", LIMIT, || {
        let topics = ask(address, "/zurau/topic")?;
        let named = topics["topics"].as_array().is_some_and(|names| names.iter().any(|name| name == TOPIC));
        ensure!(named, "{topics}");
        Ok(Some(()))
    })
}

/// The group commits again and again: Burrow counts only what is committed once it knows the partition.
fn known(cluster: &Cluster, directory: &TestDirectory, address: &str) -> Result<()> {
    eventually("Burrow says that the group has read everything", LIMIT, || {
        produce(cluster, directory, 1)?;
        let bootstrap = cluster.bootstrap();
        kcat(&["-b", &bootstrap, "-q", "-e", "-X", "auto.offset.reset=earliest", "-G", GROUP, TOPIC], None)?;
        let lag = ask(address, &format!("/zurau/consumer/{GROUP}/lag"))?;
        let status = &lag["status"];
        ensure!(status["partition_count"] == 2 && status["status"] == "OK", "{lag}");
        Ok((status["totallag"] == 0).then_some(()))
    })
}

fn lags(cluster: &Cluster, directory: &TestDirectory, address: &str) -> Result<()> {
    produce(cluster, directory, UNREAD)?;
    eventually("Burrow says how much is unread", LIMIT, || {
        let lag = ask(address, &format!("/zurau/consumer/{GROUP}/lag"))?;
        ensure!(lag["status"]["totallag"] == 2 * UNREAD, "{lag}");
        Ok(Some(()))
    })
}

fn node(cluster: &Cluster) -> Result<()> {
    cluster.znodes.text("/burrow")?.context("there is no /burrow").map(|_| ())
}

/// Adds records to each of the two partitions.
fn produce(cluster: &Cluster, directory: &TestDirectory, count: u64) -> Result<()> {
    let lines = directory.join("lines");
    fs::write(&lines, "a record\n".repeat(usize::try_from(count)?))?;
    for partition in ["0", "1"] {
        let bootstrap = cluster.bootstrap();
        kcat(&["-b", &bootstrap, "-P", "-t", TOPIC, "-p", partition, "-X", "acks=all"], Some(&lines))?;
    }
    Ok(())
}
