//! The fences as a whole (coordination.md, section 3): a write is stored if and only if everything it was decided
//! from still holds, and then it has changed exactly what it said. Checked on a model of ZooKeeper's multi.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use zurau_common::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use zurau_common::zk::fence::{Expected, Fence, IsrWrite, PartitionWrite, build, partition_epoch_after};
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::{Lifetime, Op, OpFailure};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::Znode;

/// Data, data version, ephemeral.
type Tree = BTreeMap<String, (Vec<u8>, i32, bool)>;

/// A multi as ZooKeeper does it: in order, each operation seeing the ones before, all or nothing.
fn apply(tree: &Tree, ops: &[Op]) -> Result<Tree, (usize, OpFailure)> {
    let mut tree = tree.clone();
    for (index, op) in ops.iter().enumerate() {
        apply_one(&mut tree, op).map_err(|reason| (index, reason))?;
    }
    Ok(tree)
}

fn apply_one(tree: &mut Tree, op: &Op) -> Result<(), OpFailure> {
    let path = op.path().to_owned();
    let found = tree.get(&path).cloned();
    let at_version = |wanted: Option<i32>| match (&found, wanted) {
        (None, _) => Err(OpFailure::NoNode),
        (Some((_, version, _)), Some(wanted)) if wanted != -1 && wanted != *version => {
            Err(OpFailure::BadVersion)
        }
        (Some((_, version, _)), _) => Ok(*version),
    };
    let creatable = || {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match (&found, parent.is_empty() || tree.contains_key(parent)) {
            (Some(_), _) => Err(OpFailure::NodeExists),
            (None, false) => Err(OpFailure::NoNode),
            (None, true) => Ok(()),
        }
    };
    match op {
        Op::CheckExists { .. } => drop(at_version(None)?),
        Op::CheckVersion { version, .. } => drop(at_version(Some(*version))?),
        Op::CheckAbsent { .. } => creatable()?,
        Op::Create { data, lifetime, .. } => {
            creatable()?;
            tree.insert(path, (data.clone(), 0, *lifetime == Lifetime::Ephemeral));
        }
        Op::SetData { data, version, .. } => {
            let version = at_version(*version)?;
            let ephemeral = found.is_some_and(|(_, _, ephemeral)| ephemeral);
            tree.insert(path, (data.clone(), version + 1, ephemeral));
        }
        Op::Delete { version, .. } => {
            at_version(*version)?;
            tree.remove(&path);
        }
    }
    Ok(())
}

fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn topic_id() -> TopicId {
    TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap()
}

/// What stands in ZooKeeper when the write arrives.
#[derive(Debug, Clone)]
struct World {
    topic_id: bool,
    controller_epoch: i32,
    broker_epochs: [i32; 3],
    state: Option<i32>,
    isr: Option<i32>,
    elr: bool,
    leader: bool,
}

impl World {
    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        for parent in [
            "/brokers",
            "/brokers/topics",
            "/brokers/topics/t",
            "/brokers/topics/t/0",
            "/brokers/topic_ids",
            "/brokers/epochs",
        ] {
            tree.insert(parent.to_owned(), (vec![], 0, false));
        }
        let mut put = |znode: Znode, version: i32, ephemeral: bool| {
            tree.insert(znode.path(), (b"before".to_vec(), version, ephemeral));
        };
        put(Znode::ControllerEpoch, self.controller_epoch, false);
        for (id, version) in (1..).zip(self.broker_epochs) {
            put(Znode::BrokerEpoch(BrokerId(id)), version, false);
        }
        if self.topic_id {
            put(Znode::TopicIdEntry(topic_id()), 0, false);
        }
        if let Some(version) = self.state {
            put(Znode::State(partition()), version, false);
        }
        if let Some(version) = self.isr {
            put(Znode::Isr(partition()), version, false);
        }
        if self.elr {
            put(Znode::Elr(partition()), 0, false);
        }
        if self.leader {
            put(Znode::Leader(partition()), 0, true);
        }
        tree
    }

    /// Whether everything that the write was decided from holds.
    fn upholds(&self, fence: &Fence, write: &PartitionWrite) -> bool {
        let matches = |expected: Expected, stored: Option<i32>| match expected {
            Expected::Absent => stored.is_none(),
            Expected::Version(version) => stored == Some(version),
        };
        let epochs = fence.broker_epochs.iter().all(|(broker, epoch)| {
            let stored = usize::try_from(broker.0 - 1).ok().and_then(|index| self.broker_epochs.get(index));
            stored.is_some_and(|stored| i64::from(*stored) == epoch.0)
        });
        // What was read of `ELR` matters when it is written; what was read of `leader` likewise.
        let elr = write
            .isr
            .as_ref()
            .is_none_or(|isr| isr.elr_exists == self.elr || (isr.elr.is_empty() && !isr.elr_exists));
        let leader = match (write.delete_leader, write.create_leader) {
            (true, _) => self.leader,
            (false, Some(_)) => !self.leader,
            (false, None) => true,
        };
        self.topic_id
            && fence.controller_epoch_version.is_none_or(|version| version == self.controller_epoch)
            && epochs
            && matches(fence.state, self.state)
            && matches(fence.isr, self.isr)
            && elr
            && leader
    }
}

fn worlds() -> impl Strategy<Value = World> {
    (
        prop::bool::weighted(0.9),
        0..3_i32,
        prop::array::uniform3(0..2_i32),
        prop::option::weighted(0.8, 0..3_i32),
        prop::option::weighted(0.7, 0..3_i32),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(topic_id, controller_epoch, broker_epochs, state, isr, elr, leader)| World {
            topic_id,
            controller_epoch,
            broker_epochs,
            state,
            isr,
            elr,
            leader,
        })
}

/// What was read, mostly right: a world that differs from the true one here and there.
fn memories(world: World) -> impl Strategy<Value = (World, World)> {
    (worlds(), prop::array::uniform6(prop::bool::weighted(0.12))).prop_map(move |(other, wrong)| {
        let mut memory = world.clone();
        if wrong[0] {
            memory.controller_epoch = other.controller_epoch;
        }
        if wrong[1] {
            memory.broker_epochs = other.broker_epochs;
        }
        if wrong[2] {
            memory.state = other.state;
        }
        if wrong[3] {
            memory.isr = other.isr;
        }
        if wrong[4] {
            memory.elr = other.elr;
        }
        if wrong[5] {
            memory.leader = other.leader;
        }
        (world.clone(), memory)
    })
}

fn expected(stored: Option<i32>) -> Expected {
    stored.map_or(Expected::Absent, Expected::Version)
}

/// A write as a controller or a leader would decide it from memory.
fn decide(memory: &World, choice: u8, epochs: usize, elr: Vec<BrokerId>) -> (Fence, PartitionWrite) {
    let leader = BrokerId(1);
    let controller = choice % 4 != 1;
    let fence = Fence {
        partition: partition(),
        topic_id: topic_id(),
        state: expected(memory.state),
        isr: expected(memory.isr),
        controller_epoch_version: controller.then_some(memory.controller_epoch),
        broker_epochs: (1..)
            .zip(memory.broker_epochs)
            .take(epochs)
            .map(|(id, version)| (BrokerId(id), BrokerEpoch(version.into())))
            .collect(),
    };
    let isr = IsrWrite { isr: vec![leader, BrokerId(2)], elr, elr_exists: memory.elr };
    let write = match choice % 4 {
        // An election.
        0 => PartitionWrite {
            state: Some(PartitionState::new(
                leader,
                LeaderEpoch(1),
                ControllerEpoch(1),
                vec![leader],
                vec![leader],
            )),
            delete_leader: memory.leader,
            ..PartitionWrite::default()
        },
        // A take-over.
        1 => PartitionWrite {
            isr: Some(isr),
            delete_leader: memory.leader,
            create_leader: Some(leader),
            ..PartitionWrite::default()
        },
        // An ISR change.
        2 => PartitionWrite { isr: Some(isr), ..PartitionWrite::default() },
        // Something else on the partition.
        _ => PartitionWrite {
            others: vec![Op::CheckExists { path: Znode::Partition(partition()).path() }],
            ..PartitionWrite::default()
        },
    };
    (fence, write)
}

fn decisions() -> impl Strategy<Value = (World, World, u8, usize, Vec<BrokerId>)> {
    let elr = prop::collection::btree_set(3..6_i32, 0..3);
    (worlds().prop_flat_map(memories), any::<u8>(), 0..4_usize, elr).prop_map(
        |((world, memory), choice, epochs, elr)| {
            (world, memory, choice, epochs, elr.into_iter().map(BrokerId).collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_write_is_stored_exactly_when_its_ground_holds((world, memory, choice, epochs, elr) in decisions()) {
        let (fence, write) = decide(&memory, choice, epochs, elr);
        let before = world.tree();
        let stored = apply(&before, &build(&fence, &write));
        prop_assert_eq!(stored.is_ok(), world.upholds(&fence, &write), "{:?} {:?}", &fence, &write);
        let Ok(after) = stored else { return Ok(()) };

        let mut predicted = before;
        let mut put = |znode: Znode, data: Vec<u8>, version: i32, ephemeral: bool| {
            predicted.insert(znode.path(), (data, version, ephemeral));
        };
        if let Some(state) = &write.state {
            put(Znode::State(partition()), state.encode(), world.state.map_or(0, |version| version + 1), false);
        }
        if let Some(isr) = &write.isr {
            let PartitionEpoch(version) = partition_epoch_after(fence.isr);
            put(Znode::Isr(partition()), encode_ids(&isr.isr), version, false);
            if !isr.elr.is_empty() {
                put(Znode::Elr(partition()), encode_ids(&isr.elr), i32::from(isr.elr_exists), false);
            } else if isr.elr_exists {
                predicted.remove(&Znode::Elr(partition()).path());
            }
        }
        if write.delete_leader {
            predicted.remove(&Znode::Leader(partition()).path());
        }
        if let Some(leader) = write.create_leader {
            predicted.insert(Znode::Leader(partition()).path(), (leader.to_string().into_bytes(), 0, true));
        }
        prop_assert_eq!(after, predicted);
    }

    /// A path that is recognised is the one written form of what it was recognised as.
    #[test]
    fn recognised_paths_are_canonical(parts in prop::collection::vec(part(), 1..6)) {
        let path: String = parts.iter().flat_map(|part| ["/", part]).collect();
        if let Some(znode) = Znode::parse(&path) {
            prop_assert_eq!(znode.path(), path);
        }
    }

    #[test]
    fn written_paths_are_recognised(topic in "[a-zA-Z0-9._-]{2,20}x", partition in 0..i32::MAX, id in 0..i32::MAX) {
        let tp = || TopicPartition::new(topic.as_str(), partition);
        for znode in [
            Znode::Broker(BrokerId(id)),
            Znode::Endpoints(BrokerId(id)),
            Znode::BrokerEpoch(BrokerId(id)),
            Znode::Lease(BrokerId(id)),
            Znode::Topic(topic.as_str().into()),
            Znode::Partition(tp()),
            Znode::Replicas(tp()),
            Znode::Leader(tp()),
            Znode::Isr(tp()),
            Znode::Elr(tp()),
            Znode::State(tp()),
            Znode::Leaving(tp()),
            Znode::PartitionError(tp()),
            Znode::Reassignment(tp()),
            Znode::ReassignmentError(tp()),
            Znode::DeleteTopic(topic.as_str().into()),
            Znode::TopicConfig(topic.as_str().into()),
            Znode::BrokerConfig(id.to_string()),
        ] {
            prop_assert_eq!(Znode::parse(&znode.path()), Some(znode.clone()));
        }
    }

    #[test]
    fn reading_a_path_never_panics(path in ".*") {
        let _ = Znode::parse(&path);
    }
}

/// Parts of paths, mostly those that mean something.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "brokers", "ids", "endpoints", "epochs", "topics", "topic_ids", "partitions_reassigned", "leases",
            "controller", "controller_epoch", "cluster", "id", "config", "admin", "delete_topics",
            "reassignment_errors", "replicas", "leader", "ISR", "ELR", "state", "leaving", "error",
            "AQIDBAUGBwgJCgsMDQ4PEA", "AQIDBAUGBwgJCgsMDQ4PEB", "t", "0", "1", "01", "-1", "+1", "2147483648",
        ])
        .prop_map(str::to_owned),
        1 => "[a-zA-Z0-9._-]{1,8}",
        1 => "[^/]{1,8}",
    ]
}
