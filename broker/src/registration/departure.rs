//! Step (2) of the registration: a broker takes itself out of every ISR and ELR that it cannot honour, because it has no
//! log of that incarnation or may have lost records (D1, D2, D4, M8). The last member of both stays: there is nothing
//! better than it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tracing::{error, info, warn};
use zurau_common::id::{BrokerEpoch, TopicId, TopicPartition};
use zurau_common::zk::op::MultiError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::topic::decode_topic;
use zurau_common::zk::znode::{TOPICS, Znode};

use crate::context::BrokerContext;
use crate::partition::Partition;
use crate::replica::storing::{Departure, departure};

const ROUNDS_MAX: usize = 20;

/// Znodes of one partition that the decision needs: `ISR`, `ELR`, `state`.
const PER_PARTITION: usize = 3;

/// `is_whole`: whether the replica has everything that it ever acknowledged.
pub(super) async fn leave_what_cannot_be_honoured(
    context: &Arc<BrokerContext>,
    zookeeper: &ZooKeeper,
    epoch: BrokerEpoch,
    is_whole: impl Fn(&Partition) -> bool,
) -> anyhow::Result<()> {
    let own = context.shared.own;
    let possible_losses = &context.shared.metrics.possible_losses;
    let honours = |id: &TopicPartition, topic_id: TopicId| {
        let replica = context.partitions.get(&id.topic, id.partition);
        replica.is_some_and(|replica| replica.topic_id() == topic_id && is_whole(&replica))
    };
    let mut partitions = all_partitions(zookeeper).await?;
    for _ in 0..ROUNDS_MAX {
        let paths: Vec<String> = partitions
            .iter()
            .flat_map(|(id, _)| [Znode::Isr(id.clone()), Znode::Elr(id.clone()), Znode::State(id.clone())])
            .map(|znode| znode.path())
            .collect();
        let nodes = zookeeper.get_many(&paths).await.context("the ISRs cannot be read")?;
        let mut groups = Vec::new();
        for ((id, topic_id), nodes) in partitions.into_iter().zip(nodes.chunks_exact(PER_PARTITION)) {
            if honours(&id, topic_id) {
                continue;
            }
            match departure(&id, topic_id, nodes, (own, epoch)) {
                Departure::Leave(ops) => groups.push(((id, topic_id), ops)),
                Departure::LastOne => {
                    possible_losses.add(1);
                    error!(
                        partition = %id, %topic_id,
                        "this broker is the last in-sync replica but may have lost records: it stays, there is nothing better"
                    );
                }
                Departure::NotNamed => {}
            }
        }
        partitions = Vec::new();
        for ((id, topic_id), result) in zookeeper.multi_batched(groups).await {
            match result {
                Ok(_) => {
                    info!(partition = %id, %topic_id, "left the ISR: this broker has no complete log of it")
                }
                Err(MultiError::SessionEnded) => bail!("the session ended during the registration"),
                Err(error) => {
                    info!(partition = %id, %error, "the ISR was not left; looking again");
                    partitions.push((id, topic_id));
                }
            }
        }
        if partitions.is_empty() {
            return Ok(());
        }
    }
    bail!("the ISR of {} could not be left in {ROUNDS_MAX} attempts", partitions[0].0)
}

/// Every partition of the tree, with the topic id of its topic. Topics without a readable id have no ISR to leave.
async fn all_partitions(zookeeper: &ZooKeeper) -> anyhow::Result<Vec<(TopicPartition, TopicId)>> {
    let topics = zookeeper.children(TOPICS).await.context("the topics cannot be listed")?.unwrap_or_default();
    let paths: Vec<String> = topics.iter().map(|topic| format!("{TOPICS}/{topic}")).collect();
    let nodes = zookeeper.get_many(&paths).await.context("the topics cannot be read")?;
    let children = zookeeper.children_many(&paths).await.context("the partitions cannot be listed")?;
    let mut partitions = Vec::new();
    for ((path, node), children) in paths.iter().zip(nodes).zip(children) {
        let Some(Znode::Topic(topic)) = Znode::parse(path) else { continue };
        let topic_id = match node.as_ref().map(|node| decode_topic(&node.data)) {
            Some(Ok(Some(topic_id))) => topic_id,
            Some(Err(reason)) => {
                warn!(%topic, %reason, "the topic has no id; its ISRs are not looked at");
                continue;
            }
            _ => continue,
        };
        for child in children.unwrap_or_default() {
            if let Some(Znode::Partition(id)) = Znode::parse(&format!("{path}/{child}")) {
                partitions.push((id, topic_id));
            }
        }
    }
    Ok(partitions)
}
