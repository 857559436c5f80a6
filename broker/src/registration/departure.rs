//! Step (2) of the registration: a broker takes itself out of every ISR and ELR that it cannot honour, because it has no
//! log of that incarnation or may have lost records (D1, D2, D4, M8). The last member of both stays: there is nothing
//! better than it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tracing::{error, info, warn};
use zurau_common::id::{BrokerEpoch, TopicId, TopicPartition};
use zurau_common::zk::op::MultiError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::topic::{decode_topic, only_incarnation};
use zurau_common::zk::znode::{TOPIC_IDS, TOPICS, Znode};

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

/// Every partition of the tree, with the topic id of its topic. A node that gives no id any more has lost it: then the
/// entry of the id tells (N3); without one it is an error until an admin mends it.
async fn all_partitions(zookeeper: &ZooKeeper) -> anyhow::Result<Vec<(TopicPartition, TopicId)>> {
    let topics = zookeeper.children(TOPICS).await.context("the topics cannot be listed")?.unwrap_or_default();
    let paths: Vec<String> = topics.iter().map(|topic| format!("{TOPICS}/{topic}")).collect();
    let nodes = zookeeper.get_many(&paths).await.context("the topics cannot be read")?;
    let children = zookeeper.children_many(&paths).await.context("the partitions cannot be listed")?;
    let entries = match nodes.iter().flatten().all(|node| matches!(decode_topic(&node.data), Ok(Some(_)))) {
        true => Vec::new(),
        false => topic_id_entries(zookeeper).await?,
    };
    let mut partitions = Vec::new();
    for ((path, node), children) in paths.iter().zip(nodes).zip(children) {
        let Some(Znode::Topic(topic)) = Znode::parse(path) else { continue };
        let Some(node) = node else { continue };
        let known = entries.iter().map(|(id, data)| (*id, data.as_slice()));
        let stored = decode_topic(&node.data).ok().flatten();
        let Some(topic_id) = stored.or_else(|| only_incarnation(&topic, known)) else {
            if children.is_some_and(|children| !children.is_empty()) {
                warn!(%topic, "the topic has no id; its ISRs are not looked at");
            }
            continue;
        };
        for child in children.unwrap_or_default() {
            if let Some(Znode::Partition(id)) = Znode::parse(&format!("{path}/{child}")) {
                partitions.push((id, topic_id));
            }
        }
    }
    Ok(partitions)
}

/// Every topic id that has an entry, with the entry's data.
async fn topic_id_entries(zookeeper: &ZooKeeper) -> anyhow::Result<Vec<(TopicId, Vec<u8>)>> {
    let children = zookeeper.children(TOPIC_IDS).await.context("the topic ids cannot be listed")?;
    let ids: Vec<TopicId> =
        children.unwrap_or_default().iter().filter_map(|child| TopicId::parse(child)).collect();
    let paths: Vec<String> = ids.iter().map(|id| Znode::TopicIdEntry(*id).path()).collect();
    let nodes = zookeeper.get_many(&paths).await.context("the topic ids cannot be read")?;
    Ok(ids.into_iter().zip(nodes).filter_map(|(id, node)| Some((id, node?.data))).collect())
}
