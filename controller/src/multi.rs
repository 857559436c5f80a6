//! Turns the machine's writes into the operations of a multi. Every one of them checks `/controller_epoch`, so nothing
//! that an old controller decided is stored after a newer one took office (CTL-01).

use zurau_common::id::TopicPartition;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::controller::encode_controller_epoch;
use zurau_common::zk::fence::build;
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::{Lifetime, Op, OpResult};
use zurau_common::zk::topic::encode_topic;
use zurau_common::zk::znode::Znode;

use crate::action::{PartitionChange, PartitionExtra, Write};

/// The multi of a write. `epoch_version`: data version of `/controller_epoch`. `None` for [`Write::RemoveTopic`], which
/// takes several multis.
pub fn operations(write: &Write, epoch_version: i32) -> Option<Vec<Op>> {
    let mut ops = Vec::new();
    if holds(Rule::ControllerEpoch) {
        ops.push(Op::CheckVersion { path: Znode::ControllerEpoch.path(), version: epoch_version });
    }
    match write {
        Write::Partition(change) => {
            let PartitionChange { fence, write, extra } = &**change;
            let mut write = write.clone();
            write.others.extend(extra_operations(&fence.partition, extra));
            return Some(build(fence, &write));
        }
        Write::NameTopic { topic, version, topic_id, entry } => {
            match entry {
                Some(entry) => ops.push(create(&Znode::TopicIdEntry(*topic_id), entry.encode())),
                None => ops.push(Op::CheckExists { path: Znode::TopicIdEntry(*topic_id).path() }),
            }
            ops.push(set(&Znode::Topic(topic.clone()), encode_topic(*topic_id), *version));
        }
        Write::CreateTopicIdEntry { topic_id, entry } => {
            ops.push(create(&Znode::TopicIdEntry(*topic_id), entry.encode()));
        }
        Write::SetTopicIdEntry { topic_id, version, entry, isrs } => {
            // What is remembered of a partition may be of an incarnation that was removed by hand a moment ago.
            let seen = isrs.iter().filter(|_| holds(Rule::StartedByIsr));
            ops.extend(seen.map(|tp| Op::CheckExists { path: Znode::Isr(tp.clone()).path() }));
            ops.push(set(&Znode::TopicIdEntry(*topic_id), entry.encode(), *version));
        }
        Write::RemoveTopicIdEntry { topic_id, version } => {
            ops.push(delete(&Znode::TopicIdEntry(*topic_id), *version));
        }
        Write::RemoveTopic { .. } => return None,
        Write::RefuseDeletion { topic } => {
            ops.push(Op::Delete { path: Znode::DeleteTopic(topic.clone()).path(), version: None });
        }
        Write::PartitionError { partition, text, exists } => {
            ops.extend(text_operation(&Znode::PartitionError(partition.clone()), text.as_deref(), *exists));
        }
        Write::ReassignmentError { partition, text, exists } => {
            ops.extend(text_operation(
                &Znode::ReassignmentError(partition.clone()),
                text.as_deref(),
                *exists,
            ));
        }
        Write::RaiseControllerEpoch { epoch } => {
            return Some(vec![set(&Znode::ControllerEpoch, encode_controller_epoch(*epoch), epoch_version)]);
        }
        Write::RemovePreferredElection { version } => {
            ops.push(delete(&Znode::PreferredReplicaElection, *version));
        }
    }
    Some(ops)
}

/// The zxid of a stored multi, if one of its answers carries it.
pub fn zxid_of(results: &[OpResult]) -> Option<i64> {
    results.iter().find_map(|result| match result {
        OpResult::Set { mzxid, .. } => Some(*mzxid),
        OpResult::Checked | OpResult::Created | OpResult::Deleted => None,
    })
}

/// The parent of a wish's error, which must exist before it.
pub(crate) fn parent_of_error(partition: &TopicPartition) -> String {
    let path = Znode::ReassignmentError(partition.clone()).path();
    path.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned())
}

fn extra_operations(tp: &TopicPartition, extra: &PartitionExtra) -> Vec<Op> {
    let mut ops = Vec::new();
    if let Some(version) = extra.topic_version {
        ops.push(Op::CheckVersion { path: Znode::Topic(tp.topic.clone()).path(), version });
    }
    if let Some((ids, version)) = &extra.replicas {
        ops.push(put(&Znode::Replicas(tp.clone()), encode_ids(ids), *version));
    }
    if let Some(version) = extra.remove_wanted {
        let path = Znode::Reassignment(tp.clone()).path();
        let version = holds(Rule::WishAtItsVersion).then_some(version);
        ops.push(Op::Delete { path, version });
    }
    if let Some((ids, version)) = &extra.leaving {
        let znode = Znode::Leaving(tp.clone());
        match (ids.is_empty(), version) {
            (true, Some(version)) => ops.push(delete(&znode, *version)),
            (true, None) => {}
            (false, _) => ops.push(put(&znode, encode_ids(ids), *version)),
        }
    }
    ops
}

fn text_operation(znode: &Znode, text: Option<&str>, exists: bool) -> Option<Op> {
    let path = znode.path();
    match (text, exists) {
        (Some(text), true) => Some(Op::SetData { path, data: text.as_bytes().to_vec(), version: None }),
        (Some(text), false) => Some(create(znode, text.as_bytes().to_vec())),
        (None, true) => Some(Op::Delete { path, version: None }),
        (None, false) => None,
    }
}

fn create(znode: &Znode, data: Vec<u8>) -> Op {
    Op::Create { path: znode.path(), data, lifetime: Lifetime::Persistent }
}

fn set(znode: &Znode, data: Vec<u8>, version: i32) -> Op {
    Op::SetData { path: znode.path(), data, version: Some(version) }
}

fn put(znode: &Znode, data: Vec<u8>, version: Option<i32>) -> Op {
    match version {
        Some(version) => set(znode, data, version),
        None => create(znode, data),
    }
}

fn delete(znode: &Znode, version: i32) -> Op {
    Op::Delete { path: znode.path(), version: Some(version) }
}

#[cfg(test)]
mod tests {
    use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId};
    use zurau_common::zk::fence::{Expected, Fence, PartitionWrite};
    use zurau_common::zk::state::PartitionState;
    use zurau_common::zk::topic::TopicIdEntry;

    use super::*;

    fn described(write: &Write) -> Vec<String> {
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        let ops = operations(write, 4).unwrap();
        let one = |op: Op| match op {
            Op::CheckExists { path } => format!("exists {path}"),
            Op::CheckVersion { path, version } => format!("check {path} v{version}"),
            Op::CheckAbsent { path } => format!("absent {path}"),
            Op::Create { path, data, .. } => format!("create {path} {}", text(&data)),
            Op::SetData { path, data, version } => format!("set {path} {} {version:?}", text(&data)),
            Op::Delete { path, version } => format!("delete {path} {version:?}"),
        };
        ops.into_iter().map(one).collect()
    }

    #[test]
    fn n9_the_completing_multi_checks_the_wish_and_the_assignment_it_was_made_from() {
        let (tp, ids) = (TopicPartition::new("t", 0), vec![BrokerId(2), BrokerId(3)]);
        let topic_id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        let fence = Fence {
            partition: tp,
            topic_id,
            state: Expected::Version(6),
            isr: Expected::Version(2),
            controller_epoch_version: Some(4),
            broker_epochs: vec![],
        };
        let state =
            PartitionState::new(BrokerId(2), LeaderEpoch(7), ControllerEpoch(5), ids.clone(), ids.clone());
        let write = PartitionWrite { state: Some(state), delete_leader: true, ..PartitionWrite::default() };
        let extra = PartitionExtra {
            replicas: Some((ids, Some(1))),
            topic_version: None,
            remove_wanted: Some(0),
            leaving: Some((vec![BrokerId(1)], None)),
        };
        expect_test::expect![[r#"
            exists /brokers/topic_ids/AQIDBAUGBwgJCgsMDQ4PEA
            check /controller_epoch v4
            check /brokers/topics/t/0/ISR v2
            set /brokers/topics/t/0/state {"version":1,"leader":2,"leader_epoch":7,"controller_epoch":5,"replicas":[2,3],"target":[2,3],"recovery":false} Some(6)
            delete /brokers/topics/t/0/leader None
            set /brokers/topics/t/0/replicas [2,3] Some(1)
            delete /brokers/partitions_reassigned/t/0 Some(0)
            create /brokers/topics/t/0/leaving [1]"#]]
        .assert_eq(&described(&Write::Partition(Box::new(PartitionChange { fence, write, extra }))).join("\n"));
    }

    #[test]
    fn ctl_01_every_other_write_checks_the_controller_epoch_too() {
        let topic_id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEA").unwrap();
        let (tp, topic) = (TopicPartition::new("t", 0), zurau_common::id::TopicName::from("t"));
        let entry = TopicIdEntry::new("t".into());
        let text = Some("why".to_owned());
        let writes = [
            Write::NameTopic { topic: topic.clone(), version: 0, topic_id, entry: Some(entry.clone()) },
            Write::NameTopic { topic, version: 0, topic_id, entry: None },
            Write::CreateTopicIdEntry { topic_id, entry: entry.clone() },
            Write::SetTopicIdEntry { topic_id, version: 3, entry, isrs: vec![tp.clone()] },
            Write::RemoveTopicIdEntry { topic_id, version: 3 },
            Write::PartitionError { partition: tp.clone(), text, exists: false },
            Write::ReassignmentError { partition: tp, text: None, exists: true },
            Write::RemovePreferredElection { version: 0 },
            Write::RefuseDeletion { topic: "t".into() },
        ];
        for write in writes {
            let ops = described(&write);
            assert_eq!(ops[0], "check /controller_epoch v4", "{write:?}");
            assert!(ops.len() > 1, "{write:?}");
        }
    }
}
