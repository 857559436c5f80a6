//! Asserts the znode tree against coordination.md, node by node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use zurau_tests::{Cluster, eventually};

/// How long ZooKeeper may lag behind what clients already see.
const LIMIT: Duration = Duration::from_secs(20);

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("'{text}' is not JSON"))
}

/// A set of ids, however it is ordered.
pub(crate) fn ids(text: &str) -> Result<BTreeSet<i64>> {
    let value = parse(text)?;
    let list = value.as_array().with_context(|| format!("'{text}' is not a list"))?;
    list.iter().map(|id| id.as_i64().with_context(|| format!("'{text}' holds something else"))).collect()
}

fn expect_json(text: Option<String>, what: &str, expected: Value) -> Result<()> {
    let found = parse(&text.with_context(|| format!("{what} is missing"))?)?;
    ensure!(found == expected, "{what} is {found}, not {expected}");
    Ok(())
}

/// The topic's id as stored in its node.
pub(crate) fn topic_id(cluster: &Cluster, topic: &str) -> Result<String> {
    let path = format!("/brokers/topics/{topic}");
    let value = parse(&cluster.znodes.text(&path)?.context("the topic's node is missing")?)?;
    Ok(value["topic_id"].as_str().context("the topic has no id yet")?.to_owned())
}

/// What a fresh, healthy topic must look like: every node that must be there, and none that must not.
/// `replicas[i]` are the ids of partition i, the first of which leads in epoch 0.
pub(crate) fn check_fresh_topic(cluster: &Cluster, topic: &str, replicas: &[&[i64]]) -> Result<()> {
    eventually(&format!("the documented tree of topic {topic}"), LIMIT, || {
        check_topic_once(cluster, topic, replicas).map(Some)
    })
}

fn check_topic_once(cluster: &Cluster, topic: &str, replicas: &[&[i64]]) -> Result<()> {
    let znodes = &cluster.znodes;
    let root = format!("/brokers/topics/{topic}");
    let id = topic_id(cluster, topic)?;
    let mut expected: BTreeSet<String> = BTreeSet::from([root.clone()]);
    expect_json(znodes.text(&root)?, &root, json!({"version": 1, "topic_id": id}))?;
    let last = replicas.len() as i64 - 1;
    expect_json(
        znodes.text(&format!("/brokers/topic_ids/{id}"))?,
        "the entry of the topic id",
        json!({"version": 1, "topic": topic, "started": [[0, last]]}),
    )?;
    for (partition, ids) in replicas.iter().enumerate() {
        let path = format!("{root}/{partition}");
        expected.insert(path.clone());
        for leaf in ["replicas", "state", "leader", "ISR"] {
            expected.insert(format!("{path}/{leaf}"));
        }
        check_fresh_partition(cluster, &path, ids)?;
    }
    let found: BTreeSet<String> = znodes.tree(&root)?.into_keys().collect();
    ensure!(found == expected, "the tree holds {found:?}, not {expected:?}");
    Ok(())
}

fn check_fresh_partition(cluster: &Cluster, path: &str, replicas: &[i64]) -> Result<()> {
    let znodes = &cluster.znodes;
    let state = znodes.get(&format!("{path}/state"))?.context("state is missing")?;
    let leader = znodes.get(&format!("{path}/leader"))?.context("leader is missing")?;
    let controller_epoch = znodes.text("/controller_epoch")?.context("/controller_epoch is missing")?;
    expect_json(
        Some(state.text),
        &format!("{path}/state"),
        json!({
            "version": 1,
            "leader": replicas[0],
            "leader_epoch": 0,
            "controller_epoch": controller_epoch.trim().parse::<i64>()?,
            "replicas": replicas,
            "target": replicas,
            "recovery": false,
            "reason": "the partition is new",
        }),
    )?;
    ensure!(leader.text == replicas[0].to_string(), "{path}/leader is '{}'", leader.text);
    let registration = znodes.get(&format!("/brokers/ids/{}", replicas[0]))?;
    let registration = registration.context("the leader is not registered")?;
    ensure!(
        leader.ephemeral_owner != 0 && leader.ephemeral_owner == registration.ephemeral_owner,
        "{path}/leader belongs to session {:#x}, the leader's is {:#x}",
        leader.ephemeral_owner,
        registration.ephemeral_owner
    );
    ensure!(leader.czxid > state.mzxid, "{path}/leader is older than the election it stands for");
    let isr = znodes.get(&format!("{path}/ISR"))?.context("ISR is missing")?;
    ensure!(isr.ephemeral_owner == 0, "{path}/ISR is ephemeral");
    let wanted: BTreeSet<i64> = replicas.iter().copied().collect();
    ensure!(ids(&isr.text)? == wanted, "{path}/ISR is {}", isr.text);
    Ok(())
}

/// What a running cluster's tree must hold outside the topics.
pub(crate) fn check_cluster(cluster: &Cluster) -> Result<()> {
    let znodes = &cluster.znodes;
    for parent in [
        "/brokers/ids",
        "/brokers/endpoints",
        "/brokers/epochs",
        "/brokers/topics",
        "/brokers/topic_ids",
        "/brokers/partitions_reassigned",
        "/leases",
        "/cluster",
        "/config/topics",
        "/config/brokers",
        "/config/groups",
        "/config/users",
        "/config/clients",
        "/admin/delete_topics",
        "/admin/reassignment_errors",
    ] {
        let node = znodes.get(parent)?.with_context(|| format!("{parent} is missing"))?;
        ensure!(node.ephemeral_owner == 0, "{parent} is ephemeral");
    }
    let controller = znodes.get("/controller")?.context("/controller is missing")?;
    ensure!(controller.ephemeral_owner != 0, "/controller is not ephemeral");
    let value = parse(&controller.text)?;
    ensure!(value["version"] == 1 && value["host"].is_string() && value["port"].is_number(), "{value}");
    let epoch = znodes.text("/controller_epoch")?.context("/controller_epoch is missing")?;
    ensure!(epoch == "1", "/controller_epoch is '{epoch}' in a new cluster");
    let cluster_id = parse(&znodes.text("/cluster/id")?.context("/cluster/id is missing")?)?;
    ensure!(cluster_id["version"] == "1", "/cluster/id is {cluster_id}");
    let id_length = cluster_id["id"].as_str().map(str::len);
    ensure!(id_length == Some(22), "the cluster id is {}", cluster_id["id"]);
    for broker in &cluster.brokers {
        check_broker(cluster, broker.id, &broker.address())?;
    }
    Ok(())
}

fn check_broker(cluster: &Cluster, id: i32, address: &str) -> Result<()> {
    let znodes = &cluster.znodes;
    let ids = znodes.get(&format!("/brokers/ids/{id}"))?.context("the broker's id is missing")?;
    ensure!(ids.text == address, "/brokers/ids/{id} is '{}', not {address}", ids.text);
    ensure!(ids.ephemeral_owner != 0, "/brokers/ids/{id} is not ephemeral");
    let endpoints = znodes.get(&format!("/brokers/endpoints/{id}"))?.context("no endpoints")?;
    let lease = znodes.get(&format!("/leases/{id}"))?.context("no lease")?;
    ensure!(endpoints.ephemeral_owner == ids.ephemeral_owner, "/brokers/endpoints/{id} of another session");
    ensure!(lease.ephemeral_owner == ids.ephemeral_owner, "/leases/{id} of another session");
    let epoch = znodes.get(&format!("/brokers/epochs/{id}"))?.context("no broker epoch")?;
    ensure!(epoch.ephemeral_owner == 0, "/brokers/epochs/{id} is ephemeral");
    ensure!(!epoch.text.is_empty(), "/brokers/epochs/{id} holds no registration id");
    let listeners = parse(&endpoints.text)?;
    let listener = &listeners["listeners"][0];
    let (host, port) = address.rsplit_once(':').context("host:port")?;
    ensure!(
        listener["host"] == host && listener["port"] == port.parse::<i64>()?,
        "/brokers/endpoints/{id} is {listeners}"
    );
    ensure!(listener["protocol"] == "PLAINTEXT", "/brokers/endpoints/{id} is {listeners}");
    Ok(())
}

/// Waits until nothing in ZooKeeper or on disk remembers the topic.
pub(crate) fn check_gone(cluster: &Cluster, topic: &str, id: &str) -> Result<()> {
    eventually(&format!("every trace of topic {topic} gone"), LIMIT, || {
        for path in [
            format!("/brokers/topics/{topic}"),
            format!("/brokers/topic_ids/{id}"),
            format!("/admin/delete_topics/{topic}"),
            format!("/brokers/partitions_reassigned/{topic}"),
        ] {
            ensure!(cluster.znodes.get(&path)?.is_none(), "{path} is still there");
        }
        for broker in &cluster.brokers {
            for entry in std::fs::read_dir(broker.data())? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                let ours = name.starts_with(&format!("{topic}-"));
                ensure!(
                    !ours || name.ends_with("-delete"),
                    "broker {} still has the directory {name}",
                    broker.id
                );
            }
        }
        Ok(Some(()))
    })
}

/// Every znode below `/brokers/topics` as text, for messages.
pub(crate) fn dump(cluster: &Cluster) -> BTreeMap<String, String> {
    cluster.znodes.tree("/brokers/topics").unwrap_or_default()
}
