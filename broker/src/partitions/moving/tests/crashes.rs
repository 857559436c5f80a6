//! The machine stops before every single change of a file that a move makes, as by a kill or by a power loss: the next
//! start has the replica in one place, complete, and the move comes to its end (R9, L2).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::log::Machine;
use crate::log::tests::directory_in_memory;

/// Loses what was not synced in every partition's directory.
fn lose_power(root: &Path) {
    for home in homes(root) {
        for entry in std::fs::read_dir(home).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                Machine::lose_unsynced(&entry.path());
            }
        }
    }
}

/// Moves with the machine going off before the change after so many; returns whether it did.
fn crash(changes: u64, seed: u64, power_lost: bool) -> bool {
    Machine::start(seed);
    let world = World::within(directory_in_memory(), &[]);
    let partition = filled(&world);
    world.partitions.checkpoint_high_watermarks();
    world.partitions.checkpoint_logs();
    let before = content(&partition);
    Machine::stop_after(changes);
    if world.wish(1).is_ok() {
        for _ in 0..30 {
            if Machine::is_off() || matches!(world.partitions.step_move(&partition), Next::End) {
                break;
            }
        }
    }
    let off = Machine::is_off();
    let World { root, partitions, .. } = world;
    drop((partition, partitions));
    Machine::restart();
    if power_lost {
        lose_power(root.path());
    }
    let told = format!("off before change {changes}, seed {seed}, power lost: {power_lost}");
    let (partitions, loaded) = load(&homes(root.path()), &[]);
    let world = World { root, partitions, loaded };
    assert_eq!(world.loaded.unclean, [], "{told}");
    let check = |what: &str| {
        let found = content(&world.partition());
        let ends = |content: &Content| (content.start, content.end, content.stable, content.aborted.clone());
        assert_eq!((&found.bytes, ends(&found)), (&before.bytes, ends(&before)), "{told}, {what}");
        assert_eq!((&found.epochs, &found.producers), (&before.epochs, &before.producers), "{told}, {what}");
    };
    check("after the start");
    let names = (0..3).flat_map(|index| world.names(index));
    assert_eq!(names.filter(|name| name == "t-0").count(), 1, "{told}");
    world.wish(1).unwrap();
    assert!(world.run(), "{told}");
    assert_eq!(world.partition().directory(), 1, "{told}");
    check("after the move");
    assert_eq!((world.names(0), world.names(1)), (vec![], vec!["t-0".to_owned()]), "{told}");
    off
}

#[test]
fn r9_a_move_survives_a_stop_at_every_change() {
    let (next, survived) = (AtomicU64::new(1), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !survived.load(Ordering::Relaxed) {
                    let changes = next.fetch_add(1, Ordering::Relaxed);
                    let stopped = [false, true].map(|power_lost| crash(changes, changes, power_lost));
                    survived.fetch_or(stopped == [false, false], Ordering::Relaxed);
                }
            });
        }
    });
    let changes = next.into_inner();
    assert!(changes > 60, "{changes} changes");
}
