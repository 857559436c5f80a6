//! The active controller dies, and a controller is cut off from ZooKeeper while the cluster changes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zurau_tests::cluster::{SESSION_TIMEOUT, START_LIMIT};
use zurau_tests::records::{encode_batch, now_ms};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers};

use crate::leader_loss::leader_in_office;
use crate::tree;

on_both_zookeepers!(a_standby_takes_over, and_leaders_store_isr);
on_both_zookeepers!(l1_a_controller_cut_off_notices_what_it_missed);
on_both_zookeepers!(n14_a_controller_epoch_that_was_deleted_comes_back);

pub(crate) fn active(cluster: &Cluster) -> Result<Option<i32>> {
    let Some(text) = cluster.znodes.text("/controller")? else { return Ok(None) };
    let value: Value = serde_json::from_str(&text).context("reading /controller")?;
    let id = value["controller_id"].as_i64().context("no controller id")?;
    Ok(Some(i32::try_from(id)?))
}

pub(crate) fn wait_for_another(cluster: &Cluster, old: i32, limit: Duration) -> Result<i32> {
    eventually("another active controller", limit, || Ok(active(cluster)?.filter(|id| *id != old)))
}

fn expect_epoch(cluster: &Cluster, expected: &str) -> Result<()> {
    let epoch = cluster.znodes.text("/controller_epoch")?;
    ensure!(epoch.as_deref() == Some(expected), "/controller_epoch is {epoch:?}, not {expected}");
    Ok(())
}

/// The cluster still elects: a broker dies and its partition moves; and a topic starts and takes a record.
fn still_elects(cluster: &mut Cluster, topic: &str) -> Result<()> {
    cluster.create_topic(topic, &["[1,2,3]"])?;
    tree::check_fresh_topic(cluster, topic, &[&[1, 2, 3]])?;
    cluster.broker(1)?.kill()?;
    eventually("another leader than broker 1", START_LIMIT, || {
        Ok(leader_in_office(cluster, topic, 0)?.filter(|(leader, _)| *leader != 1))
    })
    .with_context(|| format!("the tree: {:?}", tree::dump(cluster)))?;
    let batch = encode_batch(&[b"after"], now_ms(), kafka_protocol::records::Compression::None)?;
    let mut client = cluster.client();
    eventually("a record is acknowledged", Duration::from_secs(20), || {
        let (error, offset) = client.produce(topic, 0, batch.clone(), -1)?;
        ensure!(error == 0, "error {error}");
        Ok(Some(offset))
    })?;
    cluster.broker(1)?.start()?;
    cluster.wait_for_full_isr(topic, 1, START_LIMIT)
}

fn a_standby_takes_over(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder().zookeeper(kind).controllers(2).start(directory)?;
    cluster.create_topic("before", &["[1,2,3]"])?;
    expect_epoch(&cluster, "1")?;
    let first = active(&cluster)?.context("no active controller")?;

    cluster.controller(first)?.kill()?;
    let second = wait_for_another(&cluster, first, SESSION_TIMEOUT + Duration::from_secs(3))?;
    expect_epoch(&cluster, "2")?;
    still_elects(&mut cluster, "second")?;

    // The first one returns as the standby; a clean stop hands over at once, without waiting for a session to end.
    cluster.controller(first)?.start()?;
    cluster.wait_until_complete(START_LIMIT)?;
    let log_is = |cluster: &mut Cluster| cluster.controller(first).map(|node| node.log_text());
    let quiet = log_is(&mut cluster)?.len();
    ensure!(quiet > 0, "the standby logs nothing");
    expect_epoch(&cluster, "2")?;
    cluster.controller(second)?.stop(Duration::from_secs(10))?;
    wait_for_another(&cluster, second, Duration::from_secs(3))?;
    expect_epoch(&cluster, "3")?;
    still_elects(&mut cluster, "third")?;
    cluster.check_running()
}

/// L1: persistent watches replay nothing that happened while disconnected.
fn l1_a_controller_cut_off_notices_what_it_missed(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let mut cluster = Cluster::builder()
        .zookeeper(kind)
        .proxied_controllers()
        .set_for_controllers("zookeeper.session.timeout.ms", 12_000)
        .set("zookeeper.session.timeout.ms", 2_000)
        .start(directory)?;
    cluster.create_topic("before", &["[3,1,2]"])?;
    let owner = cluster.znodes.get("/controller")?.context("no controller")?.ephemeral_owner;

    cluster.controller_proxy.as_ref().context("the proxy")?.cut();
    cluster.broker(3)?.kill()?;
    cluster.znodes.create("/brokers/topics/missed", "")?;
    cluster.znodes.create("/brokers/topics/missed/0", "")?;
    cluster.znodes.create("/brokers/topics/missed/0/replicas", "[1,2]")?;
    // Healed only once the broker's registration is gone, so that this event, too, falls into the gap.
    cluster.znodes.wait_for("/brokers/ids/3", Duration::from_secs(8), |text| text.is_none())?;
    ensure!(
        cluster.znodes.get("/brokers/topics/missed/0/state")?.is_none(),
        "the controller was not cut off"
    );
    cluster.controller_proxy.as_ref().context("the proxy")?.heal();

    eventually("the dead broker's partition has another leader", Duration::from_secs(10), || {
        Ok(leader_in_office(&cluster, "before", 0)?.filter(|(leader, _)| *leader != 3))
    })?;
    cluster.wait_for_full_isr("missed", 1, Duration::from_secs(10))?;
    tree::check_fresh_topic(&cluster, "missed", &[&[1, 2]])?;
    let now = cluster.znodes.get("/controller")?.context("no controller")?.ephemeral_owner;
    ensure!(now == owner, "the controller has another session: the test did not test a reconnect");
    cluster.check_running()
}

/// N14: brokers know a controller epoch that neither `/controller_epoch` nor any `state` names.
fn n14_a_controller_epoch_that_was_deleted_comes_back(
    directory: &TestDirectory,
    kind: ZooKeeperKind,
) -> Result<()> {
    let mut cluster = Cluster::builder().zookeeper(kind).controllers(2).start(directory)?;
    cluster.create_topic("before", &["[1,2,3]"])?;
    let deposed = |cluster: &Cluster| -> Result<()> {
        let old = cluster.znodes.get("/controller")?.context("no controller")?.czxid;
        cluster.znodes.delete("/controller")?;
        eventually("another claim", SESSION_TIMEOUT, || {
            Ok(cluster.znodes.get("/controller")?.filter(|node| node.czxid != old))
        })?;
        Ok(())
    };
    deposed(&cluster)?;
    deposed(&cluster)?;
    expect_epoch(&cluster, "3")?;
    // The third controller speaks to all brokers, and leaves no trace of its epoch.
    cluster.create_topic("trace", &["[1,2,3]"])?;
    cluster.wait_for_full_isr("trace", 1, START_LIMIT)?;
    cluster.znodes.create("/admin/delete_topics/trace", "")?;
    cluster.znodes.wait_for("/admin/delete_topics/trace", START_LIMIT, |text| text.is_none())?;

    cluster.znodes.delete("/controller_epoch")?;
    cluster.znodes.delete("/controller")?;
    eventually("a controller above epoch 3, which the brokers know", START_LIMIT, || {
        let epoch = cluster.znodes.text("/controller_epoch")?.unwrap_or_default().parse().unwrap_or(0);
        Ok(active(&cluster)?.filter(|_| epoch > 3))
    })?;
    still_elects(&mut cluster, "after")?;
    cluster.check_running()
}
