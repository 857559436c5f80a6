//! Step (2) of the registration: a broker takes itself out of every ISR and ELR that it cannot honour, because it has no
//! log of that incarnation or may have lost records (D1, D2, D4, M8). The last member of both stays: there is nothing
//! better than it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tracing::{error, info, warn};
use zurau_common::assignment::difference;
use zurau_common::http::instruments::Counter;
use zurau_common::id::{BrokerEpoch, BrokerId, TopicId, TopicPartition};
use zurau_common::zk::fence::{self, Expected, Fence, IsrWrite, PartitionWrite};
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::{MultiError, Node, Op};
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::topic::decode_topic;
use zurau_common::zk::znode::{TOPICS, Znode};

use crate::context::BrokerContext;
use crate::partition::Partition;

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
            if let Some(ops) = departure(&id, topic_id, nodes, (own, epoch), possible_losses) {
                groups.push(((id, topic_id), ops));
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

/// The write by which this broker leaves; `None` when it is in neither set, or the last of both.
fn departure(
    id: &TopicPartition,
    topic_id: TopicId,
    nodes: &[Option<Node>],
    (own, epoch): (BrokerId, BrokerEpoch),
    possible_losses: &Counter,
) -> Option<Vec<Op>> {
    let [Some(isr_node), elr_node, state] = nodes else { return None };
    let isr = decode_ids(&isr_node.data).ok()?;
    let elr = elr_node.as_ref().map_or(Some(Vec::new()), |elr| decode_ids(&elr.data).ok())?;
    if !isr.contains(&own) && !elr.contains(&own) {
        return None;
    }
    let (new_isr, new_elr) = without(&isr, &elr, own);
    if new_isr.is_empty() {
        possible_losses.add(1);
        error!(
            partition = %id, %topic_id,
            "this broker is the last in-sync replica but may have lost records: it stays, there is nothing better"
        );
        return None;
    }
    let fence = Fence {
        partition: id.clone(),
        topic_id,
        state: state.as_ref().map_or(Expected::Absent, |state| Expected::Version(state.version)),
        isr: Expected::Version(isr_node.version),
        controller_epoch_version: None,
        broker_epochs: vec![(own, epoch)],
    };
    let isr = IsrWrite { isr: new_isr, elr: new_elr, elr_exists: elr_node.is_some() };
    Some(fence::build(&fence, &PartitionWrite { isr: Some(isr), ..PartitionWrite::default() }))
}

/// Both sets without a member. If no ISR remains, the rest of the ELR takes its place (D2).
fn without(isr: &[BrokerId], elr: &[BrokerId], own: BrokerId) -> (Vec<BrokerId>, Vec<BrokerId>) {
    let (isr, elr) = (difference(isr, &[own]), difference(elr, &[own]));
    if isr.is_empty() { (elr, Vec::new()) } else { (isr, elr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_remains() {
        let ids = |numbers: &[i32]| numbers.iter().copied().map(BrokerId).collect::<Vec<_>>();
        //   ISR, ELR, what remains of both without 1
        type Ids = &'static [i32];
        let rows: [(Ids, Ids, Ids, Ids); 5] = [
            (&[1, 2], &[], &[2], &[]),
            (&[2], &[1, 3], &[2], &[3]),
            (&[1], &[2, 3], &[2, 3], &[]),
            (&[1], &[], &[], &[]),
            (&[2], &[1], &[2], &[]),
        ];
        for (isr, elr, new_isr, new_elr) in rows {
            let remaining = without(&ids(isr), &ids(elr), BrokerId(1));
            assert_eq!(remaining, (ids(new_isr), ids(new_elr)), "{isr:?} {elr:?}");
        }
    }
}
