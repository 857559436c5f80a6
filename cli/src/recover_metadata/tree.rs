//! Writing the plan into a ZooKeeper that holds no cluster, or what an interrupted run has left there.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::time::{Instant, sleep};
use zurau_common::id::TopicId;
use zurau_common::zk::controller::{ProducerIdBlock, decode_cluster_id, encode_cluster_id};
use zurau_common::zk::op::{Lifetime, MultiError, Node, Op, OpFailure};
use zurau_common::zk::session::{ZooKeeper, ZooKeeperConfig};
use zurau_common::zk::topic::decode_topic;
use zurau_common::zk::znode::{BROKER_IDS, TOPICS, Znode};

use super::plan::Plan;

const CONNECTION_LIMIT: Duration = Duration::from_secs(20);
const SESSION_TIMEOUT: Duration = Duration::from_secs(18);
/// Longer than a session whose process is gone: servers grant 40 s at most, unless configured otherwise.
const SIGN_OFF_LIMIT: Duration = Duration::from_secs(45);
const SIGN_OFF_POLL: Duration = Duration::from_millis(200);
/// Writes of the same znode; more are only needed if somebody else writes it too.
const ATTEMPTS_MAX: usize = 3;

/// Checks that the tree may be written, and writes it if `execute` says so.
///
/// # Errors
/// ZooKeeper holds a cluster, or does not answer.
pub(super) async fn write(connect: &str, plan: &Plan, execute: bool) -> anyhow::Result<()> {
    let config = ZooKeeperConfig {
        connect: connect.to_owned(),
        session_timeout: SESSION_TIMEOUT,
        connection_timeout: CONNECTION_LIMIT,
    };
    let zookeeper = ZooKeeper::connect(config).await?;
    let outcome = write_in(&zookeeper, plan, execute).await;
    zookeeper.close().await;
    outcome
}

async fn write_in(zookeeper: &ZooKeeper, plan: &Plan, execute: bool) -> anyhow::Result<()> {
    check_tree(zookeeper, plan).await?;
    if !execute {
        println!("Nothing was written. Add --execute to write this.");
        return Ok(());
    }
    zookeeper.ensure_parents().await.context("the parents of the tree cannot be created")?;
    for (broker, registration) in &plan.brokers {
        put(zookeeper, &Znode::BrokerEpoch(*broker), registration.to_string().into_bytes()).await?;
    }
    let broker = *plan.brokers.keys().next().context("there is a broker")?;
    let block = ProducerIdBlock { broker, start: 0, end: plan.last_producer_id };
    put(zookeeper, &Znode::ProducerIdBlock, block.encode()).await?;
    for (name, topic) in &plan.topics {
        put(zookeeper, &Znode::TopicConfig(name.clone()), topic.config()).await?;
        for ops in topic.writes(name) {
            create(zookeeper, ops).await.with_context(|| format!("topic '{name}' cannot be written"))?;
        }
    }
    put(zookeeper, &Znode::ClusterId, encode_cluster_id(&plan.cluster_id)).await?;
    println!("Written. Start controllers and brokers again.");
    Ok(())
}

/// Nobody is at work in the tree, and it holds no other topics than planned ones.
async fn check_tree(zookeeper: &ZooKeeper, plan: &Plan) -> anyhow::Result<()> {
    wait_until_nobody_is_at_work(zookeeper).await?;
    let topics = zookeeper.children(TOPICS).await?.unwrap_or_default();
    let cluster_id = zookeeper.get(&Znode::ClusterId.path()).await?;
    let cluster_id = cluster_id.map(|node| decode_cluster_id(&node.data)).transpose()?;
    if cluster_id.as_ref() == Some(&plan.cluster_id) && !topics.is_empty() {
        bail!(
            "this ZooKeeper holds cluster {} with {} topics; it has lost nothing",
            plan.cluster_id,
            topics.len()
        );
    }
    for topic in topics {
        let path = Znode::Topic(topic.as_str().into()).path();
        let found = zookeeper.get(&path).await?.and_then(|node| decode_topic(&node.data).ok().flatten());
        let planned: Option<TopicId> = plan.topics.get(topic.as_str()).map(|topic| topic.id);
        ensure!(
            found.is_some() && found == planned,
            "this ZooKeeper holds a topic '{topic}' that is not in the log directories: it belongs to another cluster; \
             recover into an empty one, or below another chroot"
        );
    }
    Ok(())
}

/// Who was stopped together with ZooKeeper could not sign off: its session ends by its timeout.
async fn wait_until_nobody_is_at_work(zookeeper: &ZooKeeper) -> anyhow::Result<()> {
    let deadline = Instant::now() + SIGN_OFF_LIMIT;
    let mut told = false;
    loop {
        let mut at_work = zookeeper.children(BROKER_IDS).await?.unwrap_or_default();
        at_work.iter_mut().for_each(|id| *id = format!("broker {id}"));
        if zookeeper.exists(&Znode::Controller.path()).await? {
            at_work.push("a controller".to_owned());
        }
        if at_work.is_empty() {
            return Ok(());
        }
        let at_work = at_work.join(", ");
        ensure!(
            Instant::now() < deadline,
            "at work in this ZooKeeper: {at_work}; stop every broker and controller first"
        );
        if !told {
            told = true;
            println!(
                "registered in this ZooKeeper: {at_work}; waiting up to {SIGN_OFF_LIMIT:?} for the sessions to end"
            );
        }
        sleep(SIGN_OFF_POLL).await;
    }
}

/// Every write fails once a controller is there.
fn guarded(ops: Vec<Op>) -> Vec<Op> {
    let mut guarded = vec![Op::CheckAbsent { path: Znode::Controller.path() }];
    guarded.extend(ops);
    guarded
}

/// Creates the znode, or sets it to this value.
async fn put(zookeeper: &ZooKeeper, znode: &Znode, data: Vec<u8>) -> anyhow::Result<()> {
    let path = znode.path();
    for _ in 0..ATTEMPTS_MAX {
        let op = match zookeeper.get(&path).await? {
            None => Op::Create { path: path.clone(), data: data.clone(), lifetime: Lifetime::Persistent },
            Some(Node { data: found, .. }) if found == data => return Ok(()),
            Some(Node { version, .. }) => {
                Op::SetData { path: path.clone(), data: data.clone(), version: Some(version) }
            }
        };
        match zookeeper.multi(&guarded(vec![op])).await {
            Ok(_) => return Ok(()),
            // Whether it was stored shows when it is read again.
            Err(MultiError::Unknown) => {}
            Err(error) => return Err(error).with_context(|| format!("{path} cannot be written")),
        }
    }
    bail!("{path} could not be written in {ATTEMPTS_MAX} attempts")
}

/// Creates all of it; an interrupted run may have done so before.
async fn create(zookeeper: &ZooKeeper, ops: Vec<Op>) -> anyhow::Result<()> {
    let ops = guarded(ops);
    for _ in 0..ATTEMPTS_MAX {
        match zookeeper.multi(&ops).await {
            Ok(_) => return Ok(()),
            Err(MultiError::Failed { path, reason: OpFailure::NodeExists, .. })
                if path != Znode::Controller.path() =>
            {
                return Ok(());
            }
            Err(MultiError::Unknown) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("no answer in {ATTEMPTS_MAX} attempts")
}
