//! What operators and their tools see over HTTP: alive, ready or why not.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{FindCoordinatorRequest, GroupId, OffsetCommitRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::Compression;
use serde_json::Value;
use zurau_tests::cluster::{Node, START_LIMIT};
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::metrics::Metrics;
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, eventually, http, scenario};

/// Until ZooKeeper's silence is noticed: half a session timeout, on a busy machine.
const NOTICE_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn ready_means_registered_and_recovered() {
    scenario("ready", ready);
}

/// The status and the content of `/ready`.
fn readiness(node: &Node) -> Result<(u16, Value)> {
    let page = http::get(&node.http_address(), "/ready")?;
    Ok((page.status, serde_json::from_str(&page.body).with_context(|| page.body.clone())?))
}

fn wait_until_ready(node: &Node) -> Result<Value> {
    eventually("ready", START_LIMIT, || {
        let (status, found) = readiness(node)?;
        ensure!(status == 200, "{found}");
        Ok(Some(found))
    })
}

/// Waits for a reason that contains `text`; the process is alive meanwhile.
fn wait_until_not_ready(node: &Node, text: &str, limit: Duration) -> Result<Value> {
    eventually(&format!("not ready: {text}"), limit, || {
        ensure!(http::get(&node.http_address(), "/live")?.status == 200, "not alive");
        let (status, found) = readiness(node)?;
        let told = found["reasons"].as_array().is_some_and(|reasons| {
            reasons.iter().any(|reason| reason.as_str().is_some_and(|reason| reason.contains(text)))
        });
        Ok((status == 503 && told).then_some(found))
    })
}

fn ready(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder().brokers(1).controllers(2).start(directory)?;
    let mut roles = Vec::new();
    for controller in &cluster.controllers {
        roles.push(wait_until_ready(controller)?["details"]["role"].to_string());
    }
    roles.sort();
    ensure!(roles == ["\"active\"", "\"standby\""], "roles of the controllers: {roles:?}");
    let found = wait_until_ready(&cluster.brokers[0])?;
    ensure!(found["details"]["log_directories"][0]["state"] == "online", "{found}");

    cluster.zookeepers[0].kill()?;
    wait_until_not_ready(&cluster.brokers[0], "ZooKeeper does not answer", NOTICE_LIMIT)?;
    wait_until_not_ready(&cluster.brokers[0], "the lease has run out", NOTICE_LIMIT)?;
    for controller in &cluster.controllers {
        wait_until_not_ready(controller, "ZooKeeper does not answer", NOTICE_LIMIT)?;
    }
    cluster.zookeepers[0].restart()?;
    for node in cluster.controllers.iter().chain(&cluster.brokers) {
        wait_until_ready(node)?;
    }
    d13_recovering_is_alive_and_not_ready(&mut cluster)
}

/// A log whose metadata is a pipe is being opened until somebody writes into it.
fn d13_recovering_is_alive_and_not_ready(cluster: &mut Cluster) -> Result<()> {
    let broker = &mut cluster.brokers[0];
    broker.stop(Duration::from_secs(20))?;
    let log = broker.data().join("slow-0");
    fs::create_dir(&log)?;
    let pipe = log.join("partition.metadata");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "mkfifo failed");
    broker.start()?;
    let found = wait_until_not_ready(broker, "are being recovered: 0 of 1 are done", START_LIMIT)?;
    let directory = &found["details"]["log_directories"][0];
    ensure!(directory["state"] == "recovering" && directory["logs"] == 1, "{found}");
    fs::write(&pipe, "version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n")?;
    let found = wait_until_ready(broker)?;
    ensure!(found["details"]["log_directories"][0]["logs_recovered"] == 1, "{found}");
    cluster.check_running()
}

/// Names are what dashboards and alerts are made of: a changed one must change this list too.
const BROKER_FAMILIES: &str = include_str!("broker_metrics.txt");
const CONTROLLER_FAMILIES: &str = include_str!("controller_metrics.txt");

#[test]
fn metrics_tell_of_records_and_of_a_lost_broker() {
    scenario("metrics", metrics);
}

fn metrics(directory: &TestDirectory) -> Result<()> {
    let cluster = Cluster::builder()
        .controllers(2)
        .set_for_brokers("http.metrics.partitions", true)
        .set_for_brokers("offsets.topic.num.partitions", 1);
    let mut cluster = cluster.start(directory)?;
    cluster.create_topic("t", &["[1,2,3]"])?;
    cluster.create_topic("alone", &["[3]"])?;
    let mut client = cluster.client();
    for number in 0..50 {
        let values = [format!("a{number}"), format!("b{number}")];
        let values: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
        let batch = encode_batch(&values, now_ms(), Compression::None)?;
        let (error, _) = client.produce("t", 0, batch, -1)?;
        ensure!(error == 0, "produce failed with {error}");
    }
    ensure!(client.read_partition("t", 0)?.len() == 100, "not all records came back");

    let leader = Metrics::get(&cluster.brokers[0].http_address())?;
    for (sample, expected) in [
        ("kafka_server_brokertopicmetrics_messagesin_total{topic=\"t\"}", 100.0),
        ("kafka_server_brokertopicmetrics_messagesin_total", 100.0),
        ("kafka_server_brokertopicmetrics_totalproducerequests_total{topic=\"t\"}", 50.0),
        ("kafka_server_brokertopicmetrics_failedproducerequests_total", 0.0),
        ("kafka_topic_partition_current_offset{topic=\"t\",partition=\"0\"}", 100.0),
        ("kafka_topic_partition_in_sync_replica{topic=\"t\",partition=\"0\"}", 3.0),
        ("kafka_topic_partition_leader_is_preferred{topic=\"t\",partition=\"0\"}", 1.0),
        ("kafka_log_log_logendoffset{topic=\"t\",partition=\"0\"}", 100.0),
        ("kafka_network_requestmetrics_totaltimems_count{request=\"Produce\"}", 50.0),
        ("kafka_network_requestmetrics_requestbytes_count{request=\"Produce\"}", 50.0),
        ("kafka_network_requestmetrics_throttletimems_count{request=\"Produce\"}", 50.0),
        ("kafka_network_requestmetrics_throttletimems_sum{request=\"Produce\"}", 0.0),
        ("kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"NONE\"}", 50.0),
        ("kafka_server_replicafetchermanager_deadthreadcount{clientid=\"Replica\"}", 0.0),
        ("kafka_server_replicaalterlogdirsmanager_maxlag{clientid=\"ReplicaAlterLogDirs\"}", 0.0),
        ("kafka_server_replicamanager_underreplicatedpartitions", 0.0),
        ("kafka_server_replicamanager_leadercount", 1.0),
        ("kafka_server_replicamanager_partitioncount", 1.0),
        ("kafka_server_kafkaserver_brokerstate", 3.0),
        ("kafka_brokers", 3.0),
        ("kafka_topic_partitions{topic=\"t\"}", 1.0),
        ("zurau_ready", 1.0),
    ] {
        let found = leader.value(sample)?;
        ensure!((found - expected).abs() < f64::EPSILON, "{sample} is {found}, not {expected}");
    }
    let bytes_in = leader.value("kafka_server_brokertopicmetrics_bytesin_total{topic=\"t\"}")?;
    let bytes_out = leader.value("kafka_server_brokertopicmetrics_bytesout_total{topic=\"t\"}")?;
    ensure!(bytes_in >= 100.0 && bytes_out >= bytes_in, "{bytes_in} bytes in, {bytes_out} bytes out");
    ensure!(leader.value("kafka_server_brokertopicmetrics_replicationbytesout_total")? >= 2.0 * bytes_in);
    let follower = Metrics::get(&cluster.brokers[1].http_address())?;
    bounds(&leader, &follower, bytes_in)?;
    let replicated = follower.value("kafka_server_brokertopicmetrics_replicationbytesin_total")?;
    ensure!((replicated - bytes_in).abs() < f64::EPSILON, "{replicated} bytes replicated of {bytes_in}");
    same_families(BROKER_FAMILIES, &leader)?;
    same_families(CONTROLLER_FAMILIES, &Metrics::get(&cluster.controllers[0].http_address())?)?;

    wait_for_sums(&cluster, &[("offlinepartitionscount", 0.0), ("activebrokercount", 3.0)])?;
    cluster.broker(3)?.kill()?;
    wait_for_sums(&cluster, &[("offlinepartitionscount", 1.0), ("activebrokercount", 2.0)])?;
    wait_for_lack(&cluster, 1.0)?;
    cluster.broker(3)?.start()?;
    wait_for_sums(&cluster, &[("offlinepartitionscount", 0.0), ("activebrokercount", 3.0)])?;
    wait_for_lack(&cluster, 0.0)?;
    let leader = Metrics::get(&cluster.brokers[0].http_address())?;
    ensure!(leader.value("kafka_server_replicamanager_isrshrinks_total")? >= 1.0);
    ensure!(leader.value("kafka_server_replicamanager_isrexpands_total")? >= 1.0);
    lag(&mut cluster)?;
    controller_times(&mut cluster)?;
    cluster.check_running()
}

/// What is not known exactly. `bytes_in`: produced to the leader.
fn bounds(leader: &Metrics, follower: &Metrics, bytes_in: f64) -> Result<()> {
    ensure!(leader.value("kafka_network_requestmetrics_requestbytes_sum{request=\"Produce\"}")? >= bytes_in);
    for (sample, least, most) in [
        ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", 0.01, 1.0),
        ("kafka_network_socketserver_networkprocessoravgidle_percent", 0.01, 1.0),
        ("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count", 1.0, f64::MAX),
        ("kafka_server_sessionexpirelistener_zookeepersyncconnects_total", 1.0, f64::MAX),
        ("kafka_network_requestmetrics_errors_total{request=\"Fetch\",error=\"NONE\"}", 1.0, f64::MAX),
        ("kafka_network_requestmetrics_responsequeuetimems_count{request=\"UpdateMetadata\"}", 1.0, f64::MAX),
    ] {
        let found = leader.value(sample)?;
        ensure!((least..=most).contains(&found), "{sample} is {found}");
    }
    let of_follower = "kafka_server_fetcherlagmetrics_consumerlag{clientid=\"ReplicaFetcherThread-0-1\",topic=\"t\",partition=\"0\"}";
    ensure!(follower.value(of_follower)?.abs() < f64::EPSILON, "a follower in sync lags");
    Ok(())
}

/// Of all controllers together, since another may have taken office: after the loss of a broker, with a topic's deletion
/// and a broker's goodbye.
fn controller_times(cluster: &mut Cluster) -> Result<()> {
    cluster.znodes.create("/admin/delete_topics/on1", "")?;
    cluster.broker(2)?.stop(START_LIMIT)?;
    let prefixes = ["kafka_controller_controllerstats_", "kafka_controller_controllereventmanager_"];
    eventually("the controllers' times", START_LIMIT, || {
        let mut pages = Vec::new();
        for controller in &cluster.controllers {
            pages.push(Metrics::get(&controller.http_address())?);
        }
        let sum = |sample: &str| pages.iter().map(|page| page.value(sample)).sum::<Result<f64>>();
        for (prefix, name, least) in [
            // One for each process that took office; two topics; one lost leader.
            (0, "controllerchangerateandtimems_count", 1.0),
            (0, "topicchangerateandtimems_count", 2.0),
            (0, "leaderelectionrateandtimems_count", 1.0),
            (0, "isrchangerateandtimems_count", 1.0),
            (0, "leaderandisrresponsereceivedrateandtimems_count", 1.0),
            (0, "topicdeletionrateandtimems_count", 1.0),
            (0, "controlledshutdownrateandtimems_count", 1.0),
            (1, "eventqueuetimems_count", 1.0),
            (1, "eventqueueprocessingtimems_count", 1.0),
        ] {
            let found = sum(&format!("{}{name}", prefixes[prefix]))?;
            ensure!(found >= least, "{name} is {found}");
        }
        let found = sum("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count")?;
        ensure!(found >= 2.0, "{found} requests to ZooKeeper");
        let queued =
            "kafka_controller_controllerchannelmanager_requestrateandqueuetimems_count{brokerid=\"1\"}";
        ensure!(pages.iter().any(|page| page.value(queued).is_ok_and(|found| found >= 1.0)), "{queued}");
        Ok(Some(()))
    })?;
    cluster.broker(2)?.start()
}

/// A group that has read nothing, then everything. Of two of its partitions at least one is led by another broker than
/// its coordinator, which has no replica of it.
fn lag(cluster: &mut Cluster) -> Result<()> {
    let mut client = cluster.client();
    cluster.create_topic("on1", &["[1]"])?;
    cluster.create_topic("on2", &["[2]"])?;
    for topic in ["on1", "on2"] {
        let (error, _) = client.produce(topic, 0, encode_batch(&[b"a"], now_ms(), Compression::None)?, -1)?;
        ensure!(error == 0, "produce failed with {error}");
    }
    let coordinator = commit(cluster, &mut client, [("t", 0), ("on1", 0), ("on2", 0)])?;
    let http = cluster.broker(coordinator)?.http_address();
    let prefix = "kafka_server_group_coordinator_metrics";
    let load = Metrics::get(&http)?.value(&format!("{prefix}_partition_load_time_max"))?;
    ensure!((0.0..30_000.0).contains(&load), "the coordinator took {load} ms to load");
    wait_for_lags(&http, [("t", 100.0), ("on1", 1.0), ("on2", 1.0)])?;
    let page = Metrics::get(&http)?;
    for (sample, expected) in [
        ("kafka_consumergroup_members{consumergroup=\"readers\"}", 0.0),
        ("kafka_coordinator_group_groupmetadatamanager_numgroups", 1.0),
        ("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", 1.0),
        ("kafka_coordinator_group_groupmetadatamanager_numoffsets", 3.0),
        ("kafka_server_group_coordinator_metrics_offset_commit_count", 3.0),
        ("kafka_consumergroup_lag_sum{consumergroup=\"readers\",topic=\"t\"}", 100.0),
        ("kafka_consumergroup_current_offset_sum{consumergroup=\"readers\",topic=\"t\"}", 0.0),
    ] {
        let found = page.value(sample)?;
        ensure!((found - expected).abs() < f64::EPSILON, "{sample} is {found}, not {expected}");
    }
    commit(cluster, &mut client, [("t", 100), ("on1", 1), ("on2", 1)])?;
    wait_for_lags(&http, [("t", 0.0), ("on1", 0.0), ("on2", 0.0)])
}

/// Commits offsets of partition 0 of topics without being a member; returns who coordinates.
fn commit(cluster: &Cluster, client: &mut KafkaClient, offsets: [(&str, i64); 3]) -> Result<i32> {
    let topic = |(topic, offset)| {
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
        OffsetCommitRequestTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition])
    };
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("readers")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(offsets.map(topic).into());
    let key = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("readers"));
    eventually("the offsets are committed", START_LIMIT, || {
        let found = client.call(&cluster.brokers[0].address(), 2, &key)?;
        ensure!(found.error_code == 0, "error {}", found.error_code);
        let answer = client.call(&format!("{}:{}", found.host, found.port), 8, &request)?;
        let mut codes = answer.topics.iter().flat_map(|topic| &topic.partitions).map(|each| each.error_code);
        ensure!(codes.all(|code| code == 0), "{answer:?}");
        Ok(Some(found.node_id.0))
    })
}

fn wait_for_lags(http: &str, expected: [(&str, f64); 3]) -> Result<()> {
    eventually("the lags", START_LIMIT, || {
        let page = Metrics::get(http)?;
        for (topic, expected) in expected {
            let labels = format!("{{consumergroup=\"readers\",topic=\"{topic}\",partition=\"0\"}}");
            let found = page.value(&format!("kafka_consumergroup_lag{labels}"))?;
            ensure!((found - expected).abs() < f64::EPSILON, "{topic}: {found}, not {expected}");
        }
        Ok(Some(()))
    })
}

/// Waits until the controllers' numbers have these sums, with exactly one controller active.
fn wait_for_sums(cluster: &Cluster, expected: &[(&str, f64)]) -> Result<()> {
    let sum = |name: &str| -> Result<f64> {
        let mut sum = 0.0;
        for controller in &cluster.controllers {
            let page = Metrics::get(&controller.http_address())?;
            sum += page.value(&format!("kafka_controller_kafkacontroller_{name}"))?;
        }
        Ok(sum)
    };
    eventually("the controllers' numbers", START_LIMIT, || {
        for (name, expected) in [("activecontrollercount", 1.0)].iter().chain(expected) {
            let found = sum(name)?;
            ensure!((found - expected).abs() < f64::EPSILON, "{name}: {found}, not {expected}");
        }
        Ok(Some(()))
    })
}

/// Waits until the first broker leads so many partitions that lack a replica.
fn wait_for_lack(cluster: &Cluster, expected: f64) -> Result<()> {
    eventually("the number of partitions that lack a replica", START_LIMIT, || {
        let page = Metrics::get(&cluster.brokers[0].http_address())?;
        let found = page.value("kafka_server_replicamanager_underreplicatedpartitions")?;
        ensure!((found - expected).abs() < f64::EPSILON, "{found}, not {expected}");
        Ok(Some(()))
    })
}

fn same_families(expected: &str, found: &Metrics) -> Result<()> {
    let expected: BTreeSet<&str> = expected.lines().collect();
    let found: BTreeSet<&str> = found.families.iter().map(String::as_str).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let unexpected: Vec<_> = found.difference(&expected).collect();
    ensure!(
        missing.is_empty() && unexpected.is_empty(),
        "missing: {missing:#?}\nnot in the list: {unexpected:#?}"
    );
    Ok(())
}
