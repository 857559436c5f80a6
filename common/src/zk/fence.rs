//! The one builder of multis on a partition (coordination.md, section 3, "Fences"). Whoever writes a partition's
//! znodes says what it decided from; a write whose ground has moved is not stored.

use super::isr::encode_ids;
use super::op::{Lifetime, Op};
use super::state::PartitionState;
use super::znode::Znode;
use crate::id::{BrokerEpoch, BrokerId, PartitionEpoch, TopicId, TopicPartition};
use crate::rule::{Rule, holds};

/// The version of a znode that a decision was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Absent,
    Version(i32),
}

/// What must still hold when a write on a partition is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub partition: TopicPartition,
    /// The incarnation that the write belongs to: its entry must exist (F4).
    pub topic_id: TopicId,
    pub state: Expected,
    /// Version of `ISR` that the decision was made from, or its absence (F1).
    pub isr: Expected,
    /// Data version of `/controller_epoch`, in every multi of a controller.
    pub controller_epoch_version: Option<i32>,
    /// Broker epochs that must be current: the leader's in its own multis and in those made for its AlterIsr, and
    /// each added member's (F3).
    pub broker_epochs: Vec<(BrokerId, BrokerEpoch)>,
}

/// What becomes of the `ISR` and `ELR` znodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsrWrite {
    pub isr: Vec<BrokerId>,
    pub elr: Vec<BrokerId>,
    /// Whether an `ELR` znode exists now: it is created, set or deleted accordingly.
    pub elr_exists: bool,
}

/// One change of a partition's znodes, applied in this order. Each part is optional; the fences always apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionWrite {
    /// Write the election record (created when the fence says that it is absent).
    pub state: Option<PartitionState>,
    /// Write `ISR` and `ELR` (created when the fence says that `ISR` is absent).
    pub isr: Option<IsrWrite>,
    /// Delete the `leader` znode that was read.
    pub delete_leader: bool,
    /// Create the `leader` znode, ephemeral, for this broker.
    pub create_leader: Option<BrokerId>,
    /// Further operations of the same multi: `replicas`, `leaving`, the wanted assignment.
    pub others: Vec<Op>,
}

/// Builds the multi: every check of the fence, then the writes.
///
/// # Panics
/// If the write would store an empty ISR, or an ISR without the leader that it installs: our own bug (M6).
pub fn build(fence: &Fence, write: &PartitionWrite) -> Vec<Op> {
    let tp = &fence.partition;
    let mut ops = Vec::new();
    if holds(Rule::IncarnationExists) {
        ops.push(Op::CheckExists { path: Znode::TopicIdEntry(fence.topic_id).path() });
    }
    if let Some(version) = fence.controller_epoch_version
        && holds(Rule::ControllerEpoch)
    {
        ops.push(Op::CheckVersion { path: Znode::ControllerEpoch.path(), version });
    }
    let checked = if holds(Rule::MemberRegistration) { fence.broker_epochs.len() } else { 1 };
    for (broker, epoch) in fence.broker_epochs.iter().take(checked) {
        ops.push(Op::CheckVersion {
            path: Znode::BrokerEpoch(*broker).path(),
            version: broker_epoch_version(*epoch),
        });
    }
    if write.state.is_none() {
        ops.push(check(Znode::State(tp.clone()), fence.state));
    }
    let elects = write.state.is_some() && !holds(Rule::ElectionFromStoredIsr);
    if write.isr.is_none() && !elects {
        ops.push(check(Znode::Isr(tp.clone()), fence.isr));
    }
    if let Some(state) = &write.state {
        ops.push(put(Znode::State(tp.clone()), fence.state, state.encode()));
    }
    if let Some(isr) = &write.isr {
        assert!(!isr.isr.is_empty(), "an empty ISR of {tp} was about to be stored: {fence:?} {write:?}");
        if let Some(leader) = write.create_leader {
            assert!(isr.isr.contains(&leader), "{tp}: the ISR would lack its leader: {fence:?} {write:?}");
        }
        ops.push(match fence.isr {
            Expected::Version(_) if !holds(Rule::PartitionVersion) => {
                let path = Znode::Isr(tp.clone()).path();
                Op::SetData { path, data: encode_ids(&isr.isr), version: None }
            }
            expected => put(Znode::Isr(tp.clone()), expected, encode_ids(&isr.isr)),
        });
        ops.extend(elr_write(tp, isr));
    }
    if write.delete_leader {
        ops.push(Op::Delete { path: Znode::Leader(tp.clone()).path(), version: None });
    }
    if let Some(leader) = write.create_leader {
        ops.push(Op::Create {
            path: Znode::Leader(tp.clone()).path(),
            data: leader.to_string().into_bytes(),
            lifetime: Lifetime::Ephemeral,
        });
    }
    ops.extend(write.others.iter().cloned());
    ops
}

/// The partition epoch after a stored [`IsrWrite`]: a created znode has version 0, a set one the next.
pub fn partition_epoch_after(isr: Expected) -> PartitionEpoch {
    match isr {
        Expected::Absent => PartitionEpoch(0),
        Expected::Version(version) => PartitionEpoch(version + 1),
    }
}

fn check(znode: Znode, expected: Expected) -> Op {
    let path = znode.path();
    match expected {
        Expected::Absent => Op::CheckAbsent { path },
        Expected::Version(version) => Op::CheckVersion { path, version: known(version) },
    }
}

fn put(znode: Znode, expected: Expected, data: Vec<u8>) -> Op {
    let path = znode.path();
    match expected {
        Expected::Absent => Op::Create { path, data, lifetime: Lifetime::Persistent },
        Expected::Version(version) => Op::SetData { path, data, version: Some(known(version)) },
    }
}

fn elr_write(tp: &TopicPartition, write: &IsrWrite) -> Option<Op> {
    let path = Znode::Elr(tp.clone()).path();
    let data = || encode_ids(&write.elr);
    match (write.elr.is_empty(), write.elr_exists) {
        (true, false) => None,
        (true, true) => Some(Op::Delete { path, version: None }),
        (false, false) => Some(Op::Create { path, data: data(), lifetime: Lifetime::Persistent }),
        (false, true) => Some(Op::SetData { path, data: data(), version: None }),
    }
}

/// A broker epoch may come from the wire, where -1 means "unknown" and any number may stand. What cannot be a data
/// version becomes one that no znode ever reaches: such a fence holds nothing, and does not hold for anything.
fn broker_epoch_version(epoch: BrokerEpoch) -> i32 {
    i32::try_from(epoch.0).ok().filter(|version| *version >= 0).unwrap_or(i32::MAX)
}

/// A version that ZooKeeper cannot take for "any" (F12).
fn known(version: i32) -> i32 {
    assert!(version >= 0 || !holds(Rule::MinusOneIsNoVersion), "version {version} would mean any version");
    version
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ControllerEpoch, LeaderEpoch};

    fn fence(state: Expected, isr: Expected) -> Fence {
        Fence {
            partition: TopicPartition::new("t", 0),
            topic_id: TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap(),
            state,
            isr,
            controller_epoch_version: None,
            broker_epochs: vec![(BrokerId(1), BrokerEpoch(4))],
        }
    }

    fn describe(ops: &[Op]) -> String {
        let lines: Vec<String> = ops
            .iter()
            .map(|op| match op {
                Op::CheckExists { path } => format!("exists {path}"),
                Op::CheckVersion { path, version } => format!("check {path} {version}"),
                Op::CheckAbsent { path } => format!("absent {path}"),
                Op::Create { path, data, lifetime } => {
                    format!("create {path} {} {lifetime:?}", String::from_utf8_lossy(data))
                }
                Op::SetData { path, data, version } => {
                    format!("set {path} {} {version:?}", String::from_utf8_lossy(data))
                }
                Op::Delete { path, version } => format!("delete {path} {version:?}"),
            })
            .collect();
        lines.join("\n")
    }

    #[test]
    fn a_take_over_checks_everything_it_was_decided_from() {
        let write = PartitionWrite {
            isr: Some(IsrWrite { isr: vec![BrokerId(1), BrokerId(2)], elr: vec![], elr_exists: true }),
            delete_leader: true,
            create_leader: Some(BrokerId(1)),
            ..PartitionWrite::default()
        };
        let ops = build(&fence(Expected::Version(7), Expected::Version(3)), &write);
        expect_test::expect![[r#"
            exists /brokers/topic_ids/AQIDBAUGBwgJCgsMDQ4PEA
            check /brokers/epochs/1 4
            check /brokers/topics/t/0/state 7
            set /brokers/topics/t/0/ISR [1,2] Some(3)
            delete /brokers/topics/t/0/ELR None
            delete /brokers/topics/t/0/leader None
            create /brokers/topics/t/0/leader 1 Ephemeral"#]]
        .assert_eq(&describe(&ops));
    }

    #[test]
    fn the_first_election_checks_that_no_isr_exists() {
        let state = PartitionState::new(
            BrokerId(1),
            LeaderEpoch(0),
            ControllerEpoch(2),
            vec![BrokerId(1)],
            vec![BrokerId(1)],
        );
        let fence = Fence {
            controller_epoch_version: Some(9),
            broker_epochs: vec![],
            ..fence(Expected::Absent, Expected::Absent)
        };
        let ops = build(&fence, &PartitionWrite { state: Some(state), ..PartitionWrite::default() });
        expect_test::expect![[r#"
            exists /brokers/topic_ids/AQIDBAUGBwgJCgsMDQ4PEA
            check /controller_epoch 9
            absent /brokers/topics/t/0/ISR
            create /brokers/topics/t/0/state {"version":1,"leader":1,"leader_epoch":0,"controller_epoch":2,"replicas":[1],"target":[1],"recovery":false} Persistent"#]]
        .assert_eq(&describe(&ops));
    }

    #[test]
    #[should_panic(expected = "lack its leader")]
    fn an_isr_without_its_leader_is_our_bug() {
        let write = PartitionWrite {
            isr: Some(IsrWrite { isr: vec![BrokerId(2)], elr: vec![], elr_exists: false }),
            create_leader: Some(BrokerId(1)),
            ..PartitionWrite::default()
        };
        build(&fence(Expected::Version(0), Expected::Absent), &write);
    }

    #[test]
    fn a_broker_epoch_that_cannot_be_is_a_fence_that_fails() {
        for epoch in [-1, i64::from(i32::MAX) + 1, i64::MIN, 1 << 32] {
            assert_eq!(broker_epoch_version(BrokerEpoch(epoch)), i32::MAX, "F3, F12: {epoch}");
        }
        assert_eq!(broker_epoch_version(BrokerEpoch(4)), 4);
    }

    #[test]
    #[should_panic(expected = "would mean any version")]
    fn minus_one_never_reaches_zookeeper() {
        build(&fence(Expected::Version(-1), Expected::Absent), &PartitionWrite::default());
    }
}
