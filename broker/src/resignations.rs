//! Giving leaderships back. A `leader` znode says that its broker leads, and while it stands nobody else is elected: who
//! stops leading, or refuses an office that may have been stored all the same, deletes it.

use std::sync::Arc;

use tracing::{debug, info};
use zurau_common::id::LeaderEpoch;
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::zk::op::MultiError;
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::Znode;

use crate::partition::Partition;
use crate::replica::Replica;
use crate::replica::storing::resignation;

/// A leadership to give back.
#[derive(Debug, Clone)]
pub(crate) struct Resignation {
    partition: Arc<Partition>,
    leader_epoch: LeaderEpoch,
    /// Version of `state` in that epoch: with another one, another election has been recorded (F6).
    state_version: i32,
}

impl Resignation {
    /// From the epoch that was last heard of; `None` before the first.
    pub(crate) fn of(partition: &Arc<Partition>, replica: &Replica) -> Option<Self> {
        let view = replica.view()?;
        let (leader_epoch, state_version) = (view.leader_epoch, view.state_version);
        Some(Self { partition: Arc::clone(partition), leader_epoch, state_version })
    }

    /// From an office that was refused.
    pub(crate) fn from_office(partition: &Arc<Partition>, order: &LeaderAndIsr) -> Self {
        let (leader_epoch, state_version) = (order.leader_epoch, order.state_version);
        Self { partition: Arc::clone(partition), leader_epoch, state_version }
    }
}

/// Deletes the own `leader` znodes, unless another election has been recorded. Returns those of which nobody knows
/// whether they are gone: to be tried again.
pub(crate) async fn resign(zookeeper: &ZooKeeper, resignations: Vec<Resignation>) -> Vec<Resignation> {
    let path = |one: &Resignation| Znode::Leader(one.partition.id().clone()).path();
    let nodes = match zookeeper.get_many(&resignations.iter().map(path).collect::<Vec<_>>()).await {
        Ok(nodes) => nodes,
        Err(ReadError::ConnectionLoss) => return resignations,
        // The znodes ended with the session.
        Err(ReadError::SessionEnded) => return Vec::new(),
        Err(error @ ReadError::Refused(_)) => {
            debug!(%error, "not resigned");
            return Vec::new();
        }
    };
    let groups = resignations.into_iter().zip(nodes).filter_map(|(one, node)| {
        let ops = resignation(one.partition.id(), &node?, zookeeper.session_id(), one.state_version)?;
        Some((one, ops))
    });
    let mut unsettled = Vec::new();
    for (one, result) in zookeeper.multi_batched(groups.collect()).await {
        let (partition, leader_epoch) = (one.partition.id(), one.leader_epoch);
        match result {
            Ok(_) => info!(%partition, %leader_epoch, "resigned"),
            Err(MultiError::Unknown) => unsettled.push(one),
            Err(error) => debug!(%partition, %leader_epoch, %error, "not resigned"),
        }
    }
    unsettled
}
