//! What the former log directory of a replica still has when the replica has moved: epoch starts in a file of the directory
//! (HW-06), and files that are being sent to consumers.

use super::*;
use crate::log::{EpochEntry, ReadPlan, Wait};

const STARTS: &str = "leader-epoch-start-checkpoint";

/// A leader of this epoch begins, as an order makes it: its start stands in the file of its log directory alone.
fn lead(world: &World, leader_epoch: i32) -> EpochEntry {
    let partition = world.partition();
    let begun = partition.with_log(|log| log.begin_epoch(leader_epoch).unwrap()).unwrap();
    world.partitions.record_epochs(partition.directory(), [(&*partition, begun)].into_iter()).unwrap();
    begun
}

fn text(world: &World, index: usize, name: &str) -> String {
    std::fs::read_to_string(world.home(index).join(name)).unwrap_or_default()
}

fn starts(world: &World, index: usize) -> Option<EpochEntry> {
    world.partitions.directories[index].opened.lock().checkpoints.epoch_starts.get(&id(), TOPIC_ID)
}

fn latest(world: &World) -> Option<i32> {
    world.partition().with_log(|log| log.latest_epoch()).unwrap()
}

#[test]
fn hw_06_the_start_of_an_epoch_without_records_moves_with_the_replica() {
    for clean in [false, true] {
        let world = World::start();
        filled(&world);
        let begun = lead(&world, 7);
        let line = format!("7 {}\n", begun.start_offset);
        assert!(text(&world, 0, STARTS).ends_with(&line));
        assert!(!text(&world, 0, "t-0/leader-epoch-checkpoint").ends_with(&line), "only there");
        let world = world.restart(false);
        assert_eq!(latest(&world), Some(7), "before the move");
        world.wish(1).unwrap();
        assert!(world.run());
        assert!(text(&world, 1, "t-0/leader-epoch-checkpoint").ends_with(&line));
        assert_eq!((starts(&world, 0), starts(&world, 1)), (None, None));
        let world = world.restart(clean);
        assert_eq!((world.partition().directory(), latest(&world)), (1, Some(7)), "clean stop: {clean}");
        if clean {
            assert_eq!(text(&world, 0, STARTS), "0\n0\n");
        }
    }
}

/// The order's epoch begins, the replica moves, and only then the epoch is recorded, in the directory that the order found.
#[test]
fn hw_06_a_leader_that_begins_while_its_replica_moves_is_known() {
    let world = World::start();
    let partition = filled(&world);
    world.wish(1).unwrap();
    let begun = partition.with_log(|log| log.begin_epoch(7).unwrap()).unwrap();
    assert!(world.run());
    world.partitions.record_epochs(0, [(&*partition, begun)].into_iter()).unwrap();
    drop(partition);
    let world = world.restart(false);
    assert_eq!((world.partition().directory(), latest(&world)), (1, Some(7)));
}

#[test]
fn m11_an_epoch_start_of_an_older_stay_is_not_believed() {
    let world = World::start();
    filled(&world);
    let begun = lead(&world, 7);
    world.wish(1).unwrap();
    assert!(world.run());
    // Killed before the file of the former directory was written again.
    let world = world.restart(false);
    assert_eq!(starts(&world, 0), Some(begun));
    // The epoch is no part of the history any more: no leader has ever heard of it.
    append(&world.partition(), 7, &BatchSpec::default());
    world.partition().with_log(|log| log.truncate_to(begun.start_offset).unwrap());
    assert_eq!(latest(&world), Some(2));
    world.wish(0).unwrap();
    assert_eq!(text(&world, 0, STARTS), "0\n0\n", "forgotten before there is a copy");
    assert!(world.run());
    let world = world.restart(false);
    assert_eq!((world.partition().directory(), latest(&world)), (0, Some(2)));
}

/// A replica with a segment that is long enough to be streamed, and the plan to read it.
fn long(world: &World) -> (Arc<Partition>, ReadPlan) {
    let partition = world.partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    for _ in 0..600 {
        append(&partition, 0, &BatchSpec { value_bytes: 1_000, ..BatchSpec::default() });
    }
    let plan = partition.with_log(|log| log.read_plan(0, 500_000, i64::MAX, true).unwrap()).unwrap();
    (partition, plan)
}

#[test]
fn records_that_are_being_sent_are_read_on_from_the_former_directory() {
    let world = World::with(&[("log.segment.bytes", "8388608")]);
    let (partition, plan) = long(&world);
    let expected = plan.read().unwrap();
    let mut stream = plan.stream().unwrap();
    let mut sent = stream.next(Wait::Yes).unwrap().unwrap().to_vec();
    world.wish(1).unwrap();
    assert!(world.run());
    assert_eq!((partition.directory(), world.names(0)), (1, vec![]));
    assert!(0 < stream.remaining());
    while 0 < stream.remaining() {
        sent.extend_from_slice(&stream.next(Wait::Yes).unwrap().unwrap());
    }
    assert!(sent == expected, "{} bytes of {}", sent.len(), expected.len());
}

#[test]
fn log_10_a_read_that_fails_is_charged_to_the_directory_that_it_reads() {
    let world = World::with(&[("log.segment.bytes", "8388608")]);
    let (partition, plan) = long(&world);
    let mut stream = plan.stream().unwrap();
    stream.next(Wait::Yes).unwrap().unwrap();
    world.wish(1).unwrap();
    assert!(world.run());
    let disk = Disk::watch(&world.home(0));
    disk.break_reads();
    let error = stream.next(Wait::Yes).unwrap_err();
    assert!(error.path.starts_with(world.home(0)) && error.is_disk_failure(), "{error}");
    // As the answer's writer reports it: of the partition, which is elsewhere now.
    world.partitions.note_error(partition.directory(), &error);
    assert!(world.partitions.has_failed(0) && !world.partitions.has_failed(1));
    assert_ne!(partition.status().role, "offline");
}
