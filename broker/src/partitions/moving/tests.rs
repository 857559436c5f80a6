//! Moves between two log directories, a step at a time, without a cluster.

use std::path::PathBuf;

use bytes::Bytes;
use zurau_common::config::{BrokerConfig, TruncationPath};
use zurau_common::id::{BrokerId, TopicId};

use super::*;
use crate::log::inspect::InspectedProducer;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{AppendOrigin, Batches, Disk, LogDirectory};
use crate::partition_config::partition_config;
use crate::partitions::{Loaded, LoadingProgress};
use crate::shared::{ReplicationSettings, Shared};
use crate::throttle::Throttles;

mod crashes;

mod left_behind;

const TOPIC_ID: TopicId = TopicId(Uuid::from_u128(5));
const NOW: i64 = 1_000;

/// Three log directories and the broker's partitions in them.
struct World {
    root: tempfile::TempDir,
    partitions: Partitions,
    loaded: Loaded,
}

fn id() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn load(paths: &[PathBuf], pairs: &[(&str, &str)]) -> (Partitions, Loaded) {
    let settings =
        ReplicationSettings { lag_max_ms: 1, fetch_wait_max_ms: 1, truncation_path: TruncationPath::Fetch };
    let mut all = vec![("broker.id", "1"), ("log.segment.bytes", "300"), ("log.retention.ms", "-1")];
    all.extend_from_slice(pairs);
    let config = BrokerConfig::from_pairs(all).unwrap();
    let (shared, _requests) = Shared::new(BrokerId(1), settings, Throttles::new(&config.settings));
    let default = partition_config(&config, &config.topic_defaults, &std::collections::BTreeMap::new());
    let opened = paths.iter().map(|path| LogDirectory::open(path).unwrap()).collect();
    let partitions = Partitions::new(shared, (opened, Vec::new()), default);
    let loaded = partitions.load(1, &LoadingProgress::default()).unwrap();
    (partitions, loaded)
}

impl World {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(pairs: &[(&str, &str)]) -> Self {
        Self::within(tempfile::tempdir().unwrap(), pairs)
    }

    fn within(root: tempfile::TempDir, pairs: &[(&str, &str)]) -> Self {
        let (partitions, loaded) = load(&homes(root.path()), pairs);
        Self { root, partitions, loaded }
    }

    /// As after a kill, or after a clean stop.
    fn restart(self, clean: bool) -> Self {
        let Self { root, partitions, .. } = self;
        if clean {
            partitions.close().unwrap();
        }
        drop(partitions);
        let (partitions, loaded) = load(&homes(root.path()), &[]);
        Self { root, partitions, loaded }
    }

    fn home(&self, index: usize) -> PathBuf {
        homes(self.root.path())[index].clone()
    }

    fn partition(&self) -> Arc<Partition> {
        self.partitions.get("t", 0).unwrap()
    }

    fn wish(&self, index: usize) -> Result<(), Rejection> {
        self.partitions.alter_log_dir(&id(), &self.home(index))
    }

    /// Steps until the move has ended; false if it waits for something.
    fn run(&self) -> bool {
        for _ in 0..1_000 {
            match self.partitions.step_move(&self.partition()) {
                Next::Step => {}
                Next::Later(_) => return false,
                Next::End if self.partition().future().is_some() => {}
                Next::End => return true,
            }
        }
        panic!("the move has no end");
    }

    /// Names in a log directory that are partitions' in some form.
    fn names(&self, index: usize) -> Vec<String> {
        let entries = std::fs::read_dir(self.home(index)).unwrap().map(Result::unwrap);
        let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        let mut names: Vec<_> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn homes(root: &Path) -> Vec<PathBuf> {
    ["a", "b", "c"].map(|name| root.join(name)).to_vec()
}

/// All that a replica is made of, as far as anybody can tell.
#[derive(Debug, PartialEq)]
struct Content {
    start: i64,
    end: i64,
    high_watermark: i64,
    epochs: Vec<(i32, i64)>,
    producers: Vec<InspectedProducer>,
    stable: i64,
    aborted: Vec<(i64, i64)>,
    segments: Vec<i64>,
    bytes: Bytes,
}

fn content(partition: &Partition) -> Content {
    let of = |log: &mut PartitionLog| {
        let (mut bytes, mut offset) = (Vec::new(), log.log_start_offset());
        while offset < log.log_end_offset() {
            let part = log.read_plan(offset, 1 << 20, i64::MAX, true).unwrap().read().unwrap();
            offset = Batches::new(&part).map(Result::unwrap).last().unwrap().0.next_offset();
            bytes.extend_from_slice(&part);
        }
        let aborted = log.aborted_transactions(log.log_start_offset(), i64::MAX).unwrap();
        let segments = log.segments.keys().copied().filter(|base| *base != log.log_end_offset());
        Content {
            start: log.log_start_offset(),
            end: log.log_end_offset(),
            high_watermark: log.high_watermark(),
            epochs: log
                .epoch_entries()
                .iter()
                .map(|entry| (entry.leader_epoch, entry.start_offset))
                .collect(),
            producers: log.inspect_producers(),
            stable: log.last_stable_offset(),
            aborted: aborted.iter().map(|one| (one.producer_id, one.last_offset)).collect(),
            segments: segments.collect(),
            bytes: bytes.into(),
        }
    };
    partition.with_log(of).unwrap()
}

fn append(partition: &Partition, leader_epoch: i32, spec: &BatchSpec) {
    let records = batch(spec);
    partition.with_log(|log| log.append_as_leader(&records, leader_epoch, NOW).unwrap()).unwrap();
}

/// A replica in the first directory: several segments, epochs, an aborted and an open transaction, a producer whose records
/// are gone, committed but for the last records.
fn filled(world: &World) -> Arc<Partition> {
    let partition = world.partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    fill(&partition);
    partition
}

fn fill(partition: &Partition) {
    append(partition, 0, &BatchSpec { producer: Some((9, 0, 0)), ..BatchSpec::default() });
    for round in 0..6 {
        append(partition, 0, &BatchSpec { records: 3, tag: b'a' + round, ..BatchSpec::default() });
    }
    let transaction = |sequence| BatchSpec {
        producer: Some((7, 0, sequence)),
        transactional: true,
        ..BatchSpec::default()
    };
    partition.with_log(|log| log.assign_epoch_start(2).unwrap());
    append(partition, 2, &transaction(0));
    append(partition, 2, &transaction(1));
    let aborting = marker(false, (7, 0), 0, NOW);
    partition.with_log(|log| log.append_with_origin(&aborting, 2, AppendOrigin::Coordinator, NOW).unwrap());
    append(partition, 2, &transaction(2));
    append(partition, 2, &BatchSpec { records: 2, ..BatchSpec::default() });
    partition.with_log(|log| {
        // Nothing was written in it yet.
        log.assign_epoch_start(4).unwrap();
        log.update_high_watermark(log.log_end_offset() - 1);
        log.advance_log_start_offset(5).unwrap();
        log.apply_retention(NOW).unwrap();
        log.flush().unwrap();
    });
}

#[test]
fn hw_06_d9_a_replica_moves_with_everything_it_knows() {
    let world = World::start();
    let partition = filled(&world);
    let before = content(&partition);
    assert!(before.segments.len() > 3 && before.producers.len() == 2, "{before:?}");
    world.wish(1).unwrap();
    let future = partition.future().unwrap();
    assert_eq!((future.directory, future.log_end_offset, partition.directory()), (1, 5, 0));
    assert!(world.run());
    assert_eq!((partition.directory(), content(&partition)), (1, before));
    let before = content(&partition);
    assert_eq!((world.names(0), world.names(1)), (vec![], vec!["t-0".to_owned()]));
    append(&partition, 4, &BatchSpec::default());
    partition.with_log(|log| log.truncate_to(before.end).unwrap());
    world.partitions.checkpoint_high_watermarks();
    world.partitions.checkpoint_logs();
    let source = std::fs::read_to_string(world.home(0).join("replication-offset-checkpoint")).unwrap();
    assert_eq!(source, "0\n0\n");
    let mut world = world;
    for clean in [false, true] {
        world = world.restart(clean);
        assert_eq!(world.loaded.unclean, []);
        // The latest epoch of a log that was cut is not known any more.
        let epochs = before.epochs[..before.epochs.len() - 1].to_vec();
        let found = content(&world.partition());
        assert_eq!((found.epochs.clone(), &found.bytes), (epochs, &before.bytes));
        assert_eq!(
            (found.start, found.high_watermark, found.stable),
            (before.start, before.high_watermark, before.stable)
        );
        assert_eq!(found.producers, before.producers);
    }
}

#[test]
fn r16_the_copy_follows_what_happens_to_the_log() {
    let world = World::start();
    let partition = filled(&world);
    world.wish(1).unwrap();
    let step = || world.partitions.step_move(&partition);
    for _ in 0..2 {
        assert!(matches!(step(), Next::Step));
    }
    let copied = partition.future().unwrap().log_end_offset;
    assert!(5 < copied && copied < content(&partition).end, "{copied}");
    // A new leader's history takes the place of what was copied last, and more is deleted.
    partition.with_log(|log| {
        log.truncate_to(copied - 2).unwrap();
        log.update_high_watermark(copied - 2);
    });
    append(&partition, 9, &BatchSpec { records: 2, tag: b'n', ..BatchSpec::default() });
    append(&partition, 9, &BatchSpec { records: 2, tag: b'n', ..BatchSpec::default() });
    partition.with_log(|log| log.advance_log_start_offset(6).unwrap());
    let expected = content(&partition);
    assert!(world.run());
    let found = content(&partition);
    assert_eq!((partition.directory(), &found.bytes, found.start), (1, &expected.bytes, 6));
    assert_eq!((found.epochs, found.producers), (expected.epochs, expected.producers));
}

#[test]
fn a_log_that_is_dropped_meanwhile_is_copied_anew() {
    let world = World::start();
    let partition = filled(&world);
    world.wish(1).unwrap();
    assert!(matches!(world.partitions.step_move(&partition), Next::Step));
    for start in [100, 50] {
        partition.with_log(|log| log.truncate_fully_and_start_at(start).unwrap());
        append(&partition, 9, &BatchSpec::default());
        assert!(matches!(world.partitions.step_move(&partition), Next::Step));
    }
    assert!(world.run());
    let found = content(&partition);
    assert_eq!((partition.directory(), found.start, found.end), (1, 50, 51));
}

#[test]
fn wishes_that_cannot_be_fulfilled_have_kafkas_errors() {
    let world = World::start();
    let partition = filled(&world);
    let ask = |topic: &str, path: &Path| world.partitions.alter_log_dir(&TopicPartition::new(topic, 0), path);
    let elsewhere = Path::new("/nowhere/at/all");
    assert_eq!(ask("t", elsewhere), Err(Rejection::LogDirNotFound));
    assert_eq!(ask("u", elsewhere), Err(Rejection::LogDirNotFound));
    assert_eq!(ask("t", Path::new("b")), Err(Rejection::LogDirNotFound), "not absolute");
    assert_eq!(ask(&"l".repeat(214), &world.home(1)), Err(Rejection::InvalidTopicException));
    assert_eq!(ask(&"l".repeat(213), &world.home(1)), Err(Rejection::ReplicaNotAvailable));
    assert_eq!(ask("../t", &world.home(1)), Err(Rejection::InvalidTopicException));
    assert_eq!(ask("t", &world.home(0)), Ok(()), "there already");
    assert!(partition.future().is_none());
    let disk = Disk::watch(&world.home(2));
    disk.break_down();
    world.wish(2).unwrap_err();
    assert!(world.partitions.has_failed(2), "found out by the attempt");
    assert_eq!(ask("t", &world.home(2)), Err(Rejection::KafkaStorageError));
    assert_eq!(
        ask("t", &world.home(1)),
        Err(Rejection::KafkaStorageError),
        "a copy may be in the one that is offline"
    );
    assert!(partition.future().is_none());
    assert_eq!(world.names(1), Vec::<String>::new());
}

#[test]
fn another_wish_turns_the_move_and_one_for_home_ends_it() {
    let world = World::start();
    let partition = filled(&world);
    let before = content(&partition);
    world.wish(1).unwrap();
    assert!(matches!(world.partitions.step_move(&partition), Next::Step));
    world.wish(1).unwrap();
    assert!(5 < partition.future().unwrap().log_end_offset, "the same wish changes nothing");
    world.wish(2).unwrap();
    assert_eq!((world.names(1).len(), world.names(2).len()), (0, 1));
    world.wish(0).unwrap();
    assert_eq!((world.names(1).len(), world.names(2).len(), partition.future()), (0, 0, None));
    assert!(matches!(world.partitions.step_move(&partition), Next::End));
    assert_eq!((partition.directory(), content(&partition)), (0, before));
}

#[test]
fn a_replica_that_does_not_exist_yet_is_created_where_it_was_wished() {
    let world = World::start();
    assert_eq!(world.wish(2), Err(Rejection::ReplicaNotAvailable));
    assert_eq!(world.wish(1), Err(Rejection::ReplicaNotAvailable), "the last wish counts");
    let partition = world.partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    assert_eq!(partition.directory(), 1);
    world.partitions.delete(&partition).unwrap();
    assert_eq!(world.partitions.get_or_create(&id(), TOPIC_ID).unwrap().directory(), 0, "once");
}

#[test]
fn a_move_goes_on_after_a_restart() {
    for clean in [false, true] {
        let world = World::start();
        let before = content(&filled(&world));
        world.wish(1).unwrap();
        for _ in 0..3 {
            assert!(matches!(world.partitions.step_move(&world.partition()), Next::Step));
        }
        let copied = world.partition().future().unwrap().log_end_offset;
        world.partitions.checkpoint_logs();
        let world = world.restart(clean);
        let future = world.partition().future().expect("the move goes on");
        assert_eq!((future.directory, future.log_end_offset), (1, copied), "from where it was");
        assert_eq!(world.partitions.moves.waiting.lock().len(), 1);
        assert!(world.run());
        let found = content(&world.partition());
        assert_eq!((world.partition().directory(), found.bytes), (1, before.bytes));
        assert_eq!((world.names(0), world.names(1)), (vec![], vec!["t-0".to_owned()]));
        assert_eq!(found.producers, before.producers);
    }
}

#[test]
fn m11_a_deleted_replica_leaves_no_copy() {
    let world = World::start();
    let partition = filled(&world);
    world.wish(1).unwrap();
    world.partitions.delete(&partition).unwrap();
    assert_eq!((world.names(0).len(), world.names(1).len()), (0, 0));
    assert!(matches!(world.partitions.step_move(&partition), Next::End));
    // The copy of a topic that was created again meanwhile is none of the new one.
    let world = World::start();
    filled(&world);
    world.wish(1).unwrap();
    let copy = world.home(1).join(&world.names(1)[0]);
    let other = copy.with_file_name("kept");
    std::fs::rename(&copy, &other).unwrap();
    let World { root, partitions, .. } = world;
    partitions.delete(&partitions.get("t", 0).unwrap()).unwrap();
    partitions.get_or_create(&id(), TopicId(Uuid::from_u128(6))).unwrap();
    std::fs::rename(&other, &copy).unwrap();
    let world = World { root, partitions, loaded: Loaded::default() }.restart(false);
    assert_eq!(world.partition().future(), None);
    assert!(world.names(1)[0].ends_with("-stray"), "{:?}", world.names(1));
}

#[test]
fn c1_nothing_is_compacted_while_it_is_copied_and_such_a_copy_is_not_continued() {
    let world = World::with(&[("log.cleanup.policy", "compact"), ("log.segment.bytes", "300")]);
    let partition = filled(&world);
    partition.with_log(|log| log.update_high_watermark(i64::MAX));
    let plan =
        partition.with_log(|log| log.cleaning_plan(NOW).unwrap().expect("there is something to clean"));
    let plan = plan.unwrap();
    world.wish(1).unwrap();
    let may_replace = || partition.with_log(|log| log.still_has(&plan.sources, plan.truncations)).unwrap();
    assert!(!may_replace(), "a pass under way ends");
    assert!(partition.with_log(|log| log.cleaning_plan(NOW).unwrap()).unwrap().is_none());
    assert!(partition.with_log(|log| log.dirtiness(NOW).unwrap()).unwrap().is_none());
    world.wish(0).unwrap();
    assert!(partition.with_log(|log| log.cleaning_plan(NOW).unwrap()).unwrap().is_some());
    partition.with_log(|log| log.set_cleaned_offset(6));
    world.wish(1).unwrap();
    assert!(world.run());
    assert_eq!(partition.with_log(|log| log.cleaned_offset()), Some(6), "CMP-08");
    assert!(!may_replace() && partition.with_log(|log| log.cleaning_plan(NOW).unwrap()).unwrap().is_some());
    world.wish(0).unwrap();
    assert!(matches!(world.partitions.step_move(&partition), Next::Step));
    drop(partition);
    let World { root, partitions, .. } = world;
    drop(partitions);
    let (partitions, _) = load(&homes(root.path()), &[("log.cleanup.policy", "compact")]);
    let partition = partitions.get("t", 0).unwrap();
    assert_eq!(partition.future().map(|future| future.log_end_offset), Some(5), "anew");
    assert_eq!(partition.with_log(|log| log.cleaned_offset()), Some(6));
}

#[test]
fn log_10_a_failing_disk_ends_the_move_and_hurts_nobody_on_the_other_one() {
    for (broken, offline) in [(1, false), (0, true)] {
        let world = World::start();
        let partition = filled(&world);
        let before = content(&partition);
        world.wish(1).unwrap();
        assert!(matches!(world.partitions.step_move(&partition), Next::Step));
        let moves = world.partitions.observe_moves();
        assert_eq!((moves.lags.len(), moves.failing), (1, 0));
        let disk = Disk::watch(&world.home(broken));
        disk.break_down();
        disk.break_reads();
        assert!(matches!(world.partitions.step_move(&partition), Next::End));
        assert!(world.partitions.has_failed(broken));
        assert_eq!(partition.status().role == "offline", offline);
        let moves = world.partitions.observe_moves();
        // It may go on after a restart if the replica is what went offline; else there is no move left.
        assert_eq!((moves.lags.len(), moves.failing), (usize::from(offline), usize::from(offline)));
        if !offline {
            assert_eq!((partition.future(), partition.directory(), content(&partition)), (None, 0, before));
            assert!(partition.with_log(|log| !log.compaction_paused).unwrap());
        }
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    let world = World::start();
    let partition = filled(&world);
    world.wish(1).unwrap();
    let disk = Disk::watch(&world.home(1));
    disk.fill(true);
    assert!(matches!(world.partitions.step_move(&partition), Next::Later(_)));
    assert!(matches!(world.partitions.step_move(&partition), Next::Later(_)));
    assert_eq!(world.partitions.observe_moves().failing, 1);
    disk.fill(false);
    // Anew, if need be.
    while partition.directory() == 0 {
        assert!(!matches!(world.partitions.step_move(&partition), Next::Later(_)));
    }
    assert_eq!(world.partitions.observe_moves(), ObservedMoves { lags: vec![], failing: 0, dead: 0 });
    assert_eq!(world.names(1), ["t-0"]);
}

#[test]
fn moves_are_as_fast_as_the_quota_lets_them() {
    let world = World::with(&[("replica.alter.log.dirs.io.max.bytes.per.second", "1")]);
    let partition = filled(&world);
    world.wish(1).unwrap();
    assert!(matches!(world.partitions.step_move(&partition), Next::Step));
    let whole = content(&partition).end;
    assert!(!world.run(), "the quota is used up");
    let moves = world.partitions.observe_moves();
    let [(moving, 1, lag)] = moves.lags.as_slice() else { panic!("{moves:?}") };
    assert!(*moving == id() && 0 < *lag && *lag < whole, "{moves:?} of {whole}");
    assert_eq!(partition.directory(), 0);
}

#[test]
fn r9_a_log_whose_copy_could_not_be_renamed_stays_the_right_one() {
    let world = World::start();
    let partition = filled(&world);
    let before = content(&partition);
    world.wish(1).unwrap();
    // Not empty: the copy's new name is taken.
    std::fs::create_dir_all(world.home(1).join("t-0/x")).unwrap();
    while matches!(world.partitions.step_move(&partition), Next::Step) {}
    assert_eq!((partition.directory(), partition.with_log(|log| log.generation())), (0, Some(2)));
    let anew = world.partitions.step_move(&partition);
    assert!(matches!(anew, Next::End), "made anew, in the place that was cleared");
    assert!(world.run());
    assert_eq!((partition.directory(), content(&partition).bytes), (1, before.bytes));
    assert_eq!((world.names(0), world.names(1)), (vec![], vec!["t-0".to_owned()]));
}

/// Of two directories the one of the later move is right, whichever is longer; the other goes when that one is open.
#[test]
fn r9_of_two_logs_of_a_partition_the_last_moved_is_right() {
    let world = World::start();
    let partition = filled(&world);
    let copy = world.root.path().join("copy");
    copy_directory(&world.home(0).join("t-0"), &copy);
    world.wish(1).unwrap();
    assert!(world.run());
    partition.with_log(|log| log.truncate_to(8).unwrap());
    drop(partition);
    let World { root, partitions, .. } = world;
    drop(partitions);
    copy_directory(&copy, &root.path().join("a/t-0"));
    let damaged = root.path().join("b/t-0/leader-epoch-checkpoint");
    let good = std::fs::read(&damaged).unwrap();
    std::fs::remove_file(&damaged).unwrap();
    std::fs::create_dir(&damaged).unwrap();
    let (partitions, _) = load(&homes(root.path()), &[]);
    assert!(
        partitions.get("t", 0).is_none() && root.path().join("a/t-0").exists(),
        "the former one is kept for now"
    );
    assert!(partitions.get_or_create(&id(), TOPIC_ID).is_err(), "nor is it served");
    drop(partitions);
    std::fs::remove_dir(&damaged).unwrap();
    std::fs::write(&damaged, good).unwrap();
    let (partitions, _) = load(&homes(root.path()), &[]);
    let partition = partitions.get("t", 0).unwrap();
    assert_eq!((partition.directory(), content(&partition).end <= 8), (1, true));
    assert!(!root.path().join("a/t-0").exists());
    // Without any knowledge which one is right nothing is deleted.
    drop((partition, partitions));
    copy_directory(&copy, &root.path().join("a/t-0"));
    std::fs::remove_file(root.path().join("b/t-0/copy-generation")).unwrap();
    let (partitions, _) = load(&homes(root.path()), &[]);
    let aside = std::fs::read_dir(root.path().join("a"))
        .unwrap()
        .chain(std::fs::read_dir(root.path().join("b")).unwrap());
    let strays =
        aside.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with("-stray"));
    assert_eq!((strays.count(), partitions.all().len()), (1, 1));
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
