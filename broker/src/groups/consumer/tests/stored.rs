//! The records, byte for byte as Kafka 4.0 writes them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::member::{CurrentAssignment, MemberState, Subscription};
use super::super::records::{ConsumerRecord, ResolvedRegex, TopicFacts};
use super::*;
use crate::groups::records::{GroupRecord, RecordProblem};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Key and value as hexadecimal digits; blanks in the expectation only structure it.
fn check(record: ConsumerRecord, key: &str, value: &str) {
    let whole = GroupRecord::Consumer { group: "g".into(), record };
    let (found_key, found_value) = whole.encode();
    assert_eq!(hex(&found_key), key.replace(' ', ""));
    assert_eq!(found_value.as_deref().map(hex).unwrap_or_default(), value.replace(' ', ""));
    let read = GroupRecord::decode(Some(&found_key), found_value.as_deref());
    assert_eq!(read, Ok(Some(whole)));
}

const ID: &str = "00000000000000000000000000000007";

#[test]
fn records_are_as_kafka_writes_them() {
    // A key is its version, then classic strings; a value its version, compact fields, no tagged fields.
    check(ConsumerRecord::Epoch(Some(9)), "0003 0001 67", "0000 00000009 00");
    let topics = BTreeMap::from([("t".into(), TopicFacts { id: id(7), partitions: 3 })]);
    check(
        ConsumerRecord::Topics(Some(topics)),
        "0004 0001 67",
        &format!("0000 02 {ID} 02 74 00000003 01 00 00"),
    );
    let subscription = Subscription {
        instance_id: Some("i".into()),
        rack_id: None,
        client_id: "c".into(),
        client_host: "/h".into(),
        topics: BTreeSet::from(["t".into()]),
        regex: Some("a.".into()),
        rebalance_timeout_ms: 300,
        assignor: None,
    };
    check(
        ConsumerRecord::Member("m".into(), Some(Box::new(subscription))),
        "0005 0001 67 0001 6d",
        "0000 02 69 00 02 63 03 2f68 02 02 74 03 612e 0000012c 00 00",
    );
    check(ConsumerRecord::TargetEpoch(Some(9)), "0006 0001 67", "0000 00000009 00");
    check(
        ConsumerRecord::Target("m".into(), Some(parts(&[(7, 0), (7, 2)]))),
        "0007 0001 67 0001 6d",
        &format!("0000 02 {ID} 03 00000000 00000002 00 00"),
    );
    let current = CurrentAssignment {
        epoch: 9,
        previous_epoch: 8,
        state: MemberState::UnrevokedPartitions,
        assigned: parts(&[(7, 0)]),
        pending_revocation: parts(&[(7, 2)]),
    };
    check(
        ConsumerRecord::Current("m".into(), Some(current)),
        "0008 0001 67 0001 6d",
        &format!("0000 00000009 00000008 01 02 {ID} 02 00000000 00 02 {ID} 02 00000002 00 00"),
    );
    let regex = ResolvedRegex { topics: BTreeSet::from(["t".into()]), resolved_ms: 5 };
    check(
        ConsumerRecord::Regex("a.".into(), Some(regex)),
        "0010 0001 67 0002 612e",
        "0000 02 02 74 0000000000000000 0000000000000005 00",
    );
    check(ConsumerRecord::Epoch(None), "0003 0001 67", "");
    check(ConsumerRecord::Current("m".into(), None), "0008 0001 67 0001 6d", "");
}

#[test]
fn tagged_fields_of_later_versions_are_passed_over_and_cut_values_are_told() {
    let key = Bytes::from_static(&[0, 3, 0, 1, b'g']);
    let tagged = [0, 0, 0, 0, 0, 9, 1, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let epoch = GroupRecord::Consumer { group: "g".into(), record: ConsumerRecord::Epoch(Some(9)) };
    assert_eq!(GroupRecord::decode(Some(&key), Some(&tagged)), Ok(Some(epoch)));
    assert_eq!(GroupRecord::decode(Some(&key), Some(&[0, 1, 0])), Err(RecordProblem::ValueVersion(1)));
    let current = ConsumerRecord::Current("m".into(), Some(CurrentAssignment::default()));
    let (key, value) = GroupRecord::Consumer { group: "g".into(), record: current }.encode();
    let value = value.unwrap();
    for length in 0..value.len() {
        assert!(GroupRecord::decode(Some(&key), Some(&value[..length])).is_err(), "{length}");
    }
    for length in 0..key.len() {
        assert!(GroupRecord::decode(Some(&key[..length]), None).is_err(), "{length}");
    }
}

#[test]
fn what_kafka_knows_beyond_is_survived() {
    assert_eq!(MemberState::from_code(5), MemberState::Unknown);
    for code in [0, 1, 2, 127] {
        assert_eq!(MemberState::from_code(code).code(), code);
    }
    // A member in a state that is not understood has to begin anew.
    let mut world = world(1);
    ask(&mut world, join("a"));
    let unknown = CurrentAssignment { state: MemberState::Unknown, epoch: 1, ..CurrentAssignment::default() };
    let record = ConsumerRecord::Current("a".into(), Some(unknown));
    world.log.push(crate::groups::tests::Logged::Record(
        GroupRecord::Consumer { group: "g".into(), record },
        None,
    ));
    world.fail_over();
    assert_eq!(ask(&mut world, beat("a", 1)), "FencedMemberEpoch");
    assert_eq!(ask(&mut world, owns("a", 1, &[])), "a e1 [1-0]");
}
