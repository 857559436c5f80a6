//! Which control requests are obeyed (F9, M5), which replicas are made (D4) and which are strays (F8, N7).

use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::op::Node;
use zurau_common::zk::state::PartitionState;

use crate::replica::Replica;

/// The newest connection of the highest controller epoch: only it may give orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commander(Option<(ControllerEpoch, u64)>);

/// Whether a request may be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    Refused(Rejection),
    /// The connection may not give orders: it is closed.
    Close,
}

impl Commander {
    /// Judges a request of a controller of that epoch over that connection (later ones have higher numbers), made for
    /// the registration `named` of a broker that lives in the registration `own`. Returns also whether the connection
    /// takes the place of another.
    pub fn admit(
        &mut self,
        (epoch, connection): (ControllerEpoch, u64),
        (named, own): (BrokerEpoch, BrokerEpoch),
    ) -> (Admission, bool) {
        let mut replaces = false;
        if let Some((known, of)) = self.0
            && holds(Rule::NewestCommander)
        {
            if epoch < known {
                return (Admission::Refused(Rejection::StaleControllerEpoch), false);
            }
            if epoch == known && connection < of {
                return (Admission::Close, false);
            }
            replaces = connection != of;
        }
        self.0 = Some((epoch, connection));
        if named != own {
            return (Admission::Refused(Rejection::StaleBrokerEpoch), replaces);
        }
        (Admission::Admitted, replaces)
    }
}

/// A StopReplica for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    /// `None` from a controller that does not say.
    pub topic_id: Option<TopicId>,
    pub leader_epoch: LeaderEpoch,
    pub delete: bool,
}

/// What a StopReplica does to the replica that stands here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is about another incarnation, of which nothing is here.
    Nothing,
    Stop,
    Delete,
    Refuse(Rejection),
}

/// Only what is certainly meant is deleted: the right incarnation, in a late enough epoch (F9, N5).
pub fn judge_stop(order: StopOrder, held: TopicId, replica: &Replica) -> Stop {
    if order.topic_id.is_some_and(|topic_id| topic_id != held) && holds(Rule::StopNamesIncarnation) {
        return Stop::Nothing;
    }
    let known = replica.view().map(|view| view.leader_epoch);
    match order.delete {
        true if order.topic_id.is_none() || !replica.may_delete(order.leader_epoch) => {
            Stop::Refuse(Rejection::FencedLeaderEpoch)
        }
        true => Stop::Delete,
        false if known.is_some_and(|known| order.leader_epoch < known) => {
            Stop::Refuse(Rejection::FencedLeaderEpoch)
        }
        false => Stop::Stop,
    }
}

/// What an order means to a broker that holds no replica of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    Create,
    /// The order does not name this broker as a host: it is told what it shall delete, and has deleted it already. An
    /// order that comes again after the deletion brings no copy back.
    Nothing,
    /// D4: the ISR exists, so records may exist, and this broker has none of them.
    Refuse(Rejection),
}

pub fn judge_absent(order: &LeaderAndIsr, own: BrokerId) -> Absent {
    if order.leader == own && order.partition_epoch != PartitionEpoch::CREATE {
        return Absent::Refuse(Rejection::KafkaStorageError);
    }
    if order.replicas.contains(&own) { Absent::Create } else { Absent::Nothing }
}

/// Why a replica that no full LeaderAndIsr names is a stray; `None` when ZooKeeper does not say so too. `entry`: of its
/// topic id.
pub fn stray(entry: Option<&Node>, state: Option<&Node>, own: BrokerId) -> Option<&'static str> {
    if !holds(Rule::StrayIsProven) {
        return Some("no order names it");
    }
    if entry.is_none() {
        return Some("its topic is gone");
    }
    match PartitionState::decode(&state?.data) {
        Ok(state) if !state.replicas.contains(&own) => Some("this broker is no host of it"),
        Err(_) if !holds(Rule::ErrorIsNoStray) => Some("its state cannot be read"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use zurau_common::id::TopicPartition;

    use super::*;

    #[test]
    fn a_broker_without_the_replica_makes_it_only_as_a_host() {
        let ids = |numbers: &[i32]| numbers.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let order = |leader: i32, partition_epoch: i32| LeaderAndIsr {
            partition: TopicPartition::new("t", 0),
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            controller_epoch: ControllerEpoch(1),
            leader: BrokerId(leader),
            leader_epoch: LeaderEpoch(2),
            isr: ids(&[1, 2]),
            partition_epoch: PartitionEpoch(partition_epoch),
            replicas: ids(&[1, 2]),
            adding_replicas: Vec::new(),
            removing_replicas: Vec::new(),
            is_new: false,
            recovery: false,
            state_version: 2,
            elr: None,
        };
        //   own, leader, partition epoch
        let rows = [
            (2, 1, 4, Absent::Create),
            (3, 1, 4, Absent::Nothing), // its copy was deleted a moment ago (N5)
            (1, 1, 4, Absent::Refuse(Rejection::KafkaStorageError)), // D4
            (1, 1, -1, Absent::Create),
        ];
        for (own, leader, partition_epoch, expected) in rows {
            let judged = judge_absent(&order(leader, partition_epoch), BrokerId(own));
            assert_eq!(judged, expected, "{own} {leader} {partition_epoch}");
        }
    }
}
