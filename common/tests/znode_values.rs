//! Whatever stands in a znode, reading it neither panics nor takes long; what was written reads back.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use zurau_common::zk::controller::{
    ActiveController, ProducerIdBlock, decode_cluster_id, decode_controller_epoch,
};
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::{TopicIdEntry, decode_topic};

fn read_in_every_way(value: &[u8]) {
    let _ = ActiveController::decode(value);
    let _ = decode_controller_epoch(value);
    let _ = decode_cluster_id(value);
    let _ = decode_ids(value);
    let _ = decode_topic(value);
    let _ = ProducerIdBlock::decode(value);
    if let Ok(entry) = TopicIdEntry::decode(value) {
        assert_eq!(TopicIdEntry::decode(&entry.encode()), Ok(entry));
    }
    if let Ok(state) = PartitionState::decode(value) {
        assert!(state.leader_epoch.next() > state.leader_epoch, "an election can follow");
        assert_eq!(PartitionState::decode(&state.encode()), Ok(state));
    }
}

/// Numbers at the edges, as text.
fn number() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "0",
        "1",
        "7",
        "-1",
        "2147483647",
        "2147483648",
        "-2147483648",
        "9223372036854775807",
        "1e400",
        "1.5",
        "null",
        "\"1\"",
        "[]",
        "{}",
    ])
    .prop_map(str::to_owned)
}

/// Something like the documented values, with wrong parts here and there.
fn almost_valid() -> impl Strategy<Value = String> {
    (prop::collection::vec(number(), 8), 0..5_usize).prop_map(|(n, kind)| match kind {
        0 => format!(
            r#"{{"version":1,"leader":{},"leader_epoch":{},"controller_epoch":{},"replicas":[{},{}],"target":[{}],"recovery":false}}"#,
            n[0], n[1], n[2], n[3], n[4], n[3]
        ),
        1 => format!(r#"{{"version":1,"topic":"t","started":[[{},{}],[{},{}]]}}"#, n[0], n[1], n[2], n[3]),
        2 => format!(r#"{{"version":1,"controller_id":{},"host":"h","port":{},"timestamp":{}}}"#, n[0], n[1], n[2]),
        3 => format!(r#"{{"version":1,"broker":{},"block_start":"{}","block_end":"{}"}}"#, n[0], n[1], n[2]),
        _ => format!("[{},{},{}]", n[0], n[1], n[2]),
    })
}

proptest! {
    #[test]
    fn reading_anything_never_panics(value in prop::collection::vec(any::<u8>(), 0..200)) {
        read_in_every_way(&value);
    }

    #[test]
    fn reading_almost_valid_values_never_panics(value in almost_valid()) {
        read_in_every_way(value.as_bytes());
    }

    #[test]
    fn an_entry_remembers_exactly_the_started_partitions(started in prop::collection::vec(0..40_i32, 0..40)) {
        let mut entry = TopicIdEntry::new("t".into());
        for partition in &started {
            entry.start(*partition);
        }
        let read = TopicIdEntry::decode(&entry.encode()).unwrap();
        prop_assert_eq!(&read, &entry);
        let started: BTreeSet<i32> = started.into_iter().collect();
        for partition in 0..41 {
            prop_assert_eq!(read.is_started(partition), started.contains(&partition), "{}", partition);
        }
    }
}

#[test]
fn the_largest_value_that_fits_into_a_znode_is_read_at_once() {
    let ranges: Vec<String> = (0..60_000).map(|n| format!("[{0},{0}]", n * 2)).collect();
    let value = format!(r#"{{"version":1,"topic":"t","started":[{}]}}"#, ranges.join(","));
    let ids: Vec<String> = (0..150_000).map(|id| id.to_string()).collect();
    let began = Instant::now();
    assert!(TopicIdEntry::decode(value.as_bytes()).unwrap().is_started(119_998));
    assert_eq!(decode_ids(ids.join(",").as_bytes()).unwrap().len(), 150_000);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
