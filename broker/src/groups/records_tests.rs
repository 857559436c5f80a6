//! Golden bytes of the codec, round trips, and hostile bytes.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|d| u8::try_from(d).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// What Apache Kafka 3.9 wrote for a librdkafka consumer: (key, value).
const KAFKA_OFFSET: (&str, &str) = (
    "0001 000c 676f6c64656e2d67726f7570 000a 636f6465632d6e6f6e65 00000000",
    "0003 000000000000012c ffffffff 0007 676f6c64656e00 000001a229f4c4dd",
);
const KAFKA_EMPTY_GROUP: (&str, &str) = (
    "0002 000c 676f6c64656e2d67726f7570",
    "0003 0008 636f6e73756d6572 00000002 ffff ffff 000001a229f4c536 00000000",
);
const KAFKA_STABLE_GROUP: (&str, &str) = (
    "0002 000c 676f6c64656e2d67726f7570",
    "0003 0008 636f6e73756d6572 00000001 0005 72616e6765
     002c 72646b61666b612d64613363613335332d633563332d343764352d623934642d653634316463303739383964
     000001a229f4c366 00000001
     002c 72646b61666b612d64613363613335332d633563332d343764352d623934642d653634316463303739383964
     ffff 0007 72646b61666b61 000a 2f3132372e302e302e31 000493e0 0000afc8
     0000002a 0003 00000002 000a 636f6465632d6e6f6e65 0008 7365676d656e7473 00000000 00000000 ffffffff 0000
     00000034 0000 00000002 0008 7365676d656e7473 00000001 00000000
     000a 636f6465632d6e6f6e65 00000002 00000000 00000001 00000000",
);

fn offset_record(value: Option<CommittedOffset>) -> GroupRecord {
    GroupRecord::Offset { group: "golden-group".into(), topic: "codec-none".into(), partition: 0, value }
}

fn check_golden(golden: (&str, &str), expected: &GroupRecord) {
    let (key, value) = (hex(golden.0), hex(golden.1));
    assert_eq!(GroupRecord::decode(Some(&key), Some(&value)), Ok(Some(expected.clone())));
    let (written_key, written_value) = expected.encode();
    assert_eq!((&written_key[..], &written_value.unwrap()[..]), (&key[..], &value[..]));
}

#[test]
fn offsets_are_written_as_kafka_does() {
    let value = CommittedOffset {
        offset: 300,
        leader_epoch: -1,
        metadata: "golden\0".into(),
        commit_time_ms: 0x01a2_29f4_c4dd,
        expire_time_ms: None,
    };
    check_golden(KAFKA_OFFSET, &offset_record(Some(value)));
}

#[test]
fn groups_are_written_as_kafka_does() {
    let empty = StoredGroup {
        protocol_type: "consumer".into(),
        generation: 2,
        protocol: None,
        leader: None,
        state_since_ms: Some(0x01a2_29f4_c536),
        members: vec![],
    };
    check_golden(
        KAFKA_EMPTY_GROUP,
        &GroupRecord::Group { group: "golden-group".into(), value: Some(empty.clone()) },
    );
    let id: MemberId = "rdkafka-da3ca353-c5c3-47d5-b94d-e641dc07989d".into();
    let member = StoredMember {
        member_id: id.clone(),
        instance_id: None,
        client_id: "rdkafka".into(),
        client_host: "/127.0.0.1".into(),
        rebalance_timeout_ms: 300_000,
        session_timeout_ms: 45_000,
        subscription: hex(
            "0003 00000002 000a 636f6465632d6e6f6e65 0008 7365676d656e7473 00000000 00000000 ffffffff 0000",
        )
        .into(),
        assignment: hex("0000 00000002 0008 7365676d656e7473 00000001 00000000
             000a 636f6465632d6e6f6e65 00000002 00000000 00000001 00000000")
        .into(),
    };
    let stable = StoredGroup {
        generation: 1,
        protocol: Some("range".into()),
        leader: Some(id),
        state_since_ms: Some(0x01a2_29f4_c366),
        members: vec![member],
        ..empty
    };
    check_golden(
        KAFKA_STABLE_GROUP,
        &GroupRecord::Group { group: "golden-group".into(), value: Some(stable) },
    );
}

#[test]
fn older_versions_are_read() {
    let base = CommittedOffset {
        offset: 5,
        leader_epoch: -1,
        metadata: "m".into(),
        commit_time_ms: 7,
        expire_time_ms: None,
    };
    let key = hex("0000 0001 67 0001 74 00000003");
    let record = |value| GroupRecord::Offset { group: "g".into(), topic: "t".into(), partition: 3, value };
    let rows = [
        ("0000 0000000000000005 0001 6d 0000000000000007", base.clone()),
        ("0002 0000000000000005 0001 6d 0000000000000007", base.clone()),
        ("0001 0000000000000005 0001 6d 0000000000000007 ffffffffffffffff", base.clone()),
        ("0001 0000000000000005 0001 6d 0000000000000007 0000000000000009", {
            CommittedOffset { expire_time_ms: Some(9), ..base.clone() }
        }),
        ("0003 0000000000000005 00000004 0001 6d 0000000000000007", {
            CommittedOffset { leader_epoch: 4, ..base }
        }),
    ];
    for (value, expected) in rows {
        assert_eq!(GroupRecord::decode(Some(&key), Some(&hex(value))), Ok(Some(record(Some(expected)))));
    }
    assert_eq!(GroupRecord::decode(Some(&key), None), Ok(Some(record(None))));

    let group_key = hex("0002 0001 67");
    let stored = |value: &str| match GroupRecord::decode(Some(&group_key), Some(&hex(value))) {
        Ok(Some(GroupRecord::Group { value: Some(value), .. })) => value,
        other => panic!("{other:?}"),
    };
    let head = "0001 70 00000004 0001 72 0001 6c";
    let v0 = stored(&format!("0000 {head} 00000001 0001 6d 0001 63 0001 68 0000000a 00000000 00000001 ff"));
    assert_eq!((v0.generation, v0.state_since_ms, v0.members[0].rebalance_timeout_ms), (4, None, 10));
    let v1 = stored(&format!(
        "0001 {head} 00000001 0001 6d 0001 63 0001 68 00000014 0000000a 00000000 00000001 ff"
    ));
    assert_eq!((v1.members[0].rebalance_timeout_ms, v1.members[0].session_timeout_ms), (20, 10));
    let v2 = stored(&format!("0002 {head} 0000000000000063 00000000"));
    assert_eq!(v2.state_since_ms, Some(99));
}

#[test]
fn what_cannot_be_understood_is_an_error_or_skipped() {
    let key = hex("0001 0001 67 0001 74 00000003");
    type Row<'a> = (&'a str, Option<&'a [u8]>, Option<&'a [u8]>, Result<Option<GroupRecord>, RecordProblem>);
    let rows: [Row<'_>; 6] = [
        ("no key", None, Some(&[]), Err(RecordProblem::NoKey)),
        ("a key of a share group", Some(&[0, 11, 0, 1, b'g']), Some(&[0, 0]), Ok(None)),
        ("short key", Some(&key[..4]), None, Err(RecordProblem::Malformed("key"))),
        ("value version 4", Some(&key), Some(&[0, 4, 0]), Err(RecordProblem::ValueVersion(4))),
        ("short value", Some(&key), Some(&[0, 3, 0]), Err(RecordProblem::Malformed("value of an offset"))),
        ("not UTF-8", Some(&[0, 2, 0, 1, 0xff]), None, Err(RecordProblem::Malformed("key"))),
    ];
    for (name, key, value, expected) in rows {
        assert_eq!(GroupRecord::decode(key, value), expected, "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_without_panic(
        kind in 0..18i16, version in 0..5i16, rest in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut key = kind.to_be_bytes().to_vec();
        key.extend_from_slice(&[0, 1, b'g', 0, 1, b't', 0, 0, 0, 1]);
        let mut value = version.to_be_bytes().to_vec();
        value.extend_from_slice(&rest);
        let _ = GroupRecord::decode(Some(&key), Some(&value));
        let _ = GroupRecord::decode(Some(&rest), Some(&rest));
    }

    #[test]
    fn offsets_come_back(
        offset in any::<i64>(), leader_epoch in any::<i32>(), metadata in ".{0,20}",
        commit_time_ms in 0..i64::MAX, expire in prop::option::of(0..i64::MAX),
    ) {
        let leader_epoch = if expire.is_some() { -1 } else { leader_epoch };
        let value = CommittedOffset {
            offset, leader_epoch, metadata: metadata.into(), commit_time_ms, expire_time_ms: expire,
        };
        let record = offset_record(Some(value));
        let (key, value) = record.encode();
        prop_assert_eq!(GroupRecord::decode(Some(&key), value.as_deref()), Ok(Some(record)));
    }
}
