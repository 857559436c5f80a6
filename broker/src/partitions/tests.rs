//! The registry on its own: log directories without a cluster.

use uuid::Uuid;
use zurau_common::config::{BrokerConfig, TruncationPath};
use zurau_common::id::BrokerId;

use super::*;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition_config::partition_config;
use crate::shared::ReplicationSettings;
use crate::throttle::Throttles;

const TOPIC_ID: TopicId = TopicId(Uuid::from_u128(5));

fn id() -> TopicPartition {
    TopicPartition::new("t", 0)
}

/// The registry as after a start on these directories.
fn started(directories: &[&std::path::Path]) -> Partitions {
    let settings =
        ReplicationSettings { lag_max_ms: 1, fetch_wait_max_ms: 1, truncation_path: TruncationPath::Fetch };
    let config = BrokerConfig::from_pairs([("broker.id", "1")]).unwrap();
    let (shared, _requests) = Shared::new(BrokerId(1), settings, Throttles::new(&config.settings));
    let default = partition_config(&config, &config.topic_defaults, &std::collections::BTreeMap::new());
    let opened = directories.iter().map(|directory| LogDirectory::open(directory).unwrap()).collect();
    let partitions = Partitions::new(shared, (opened, Vec::new()), default);
    partitions.load(1, &LoadingProgress::default()).unwrap();
    partitions
}

fn append(partition: &Partition) {
    let records = batch(&BatchSpec { records: 3, ..BatchSpec::default() });
    partition.with_log(|log| log.append_as_leader(&records, 0, 1_000).unwrap()).unwrap();
}

/// Log start, high watermark, log end and cleaned offset.
fn offsets(partition: &Partition) -> (i64, i64, i64, i64) {
    let of = |log: &mut PartitionLog| {
        (log.log_start_offset(), log.high_watermark(), log.log_end_offset(), log.cleaned_offset())
    };
    partition.with_log(of).unwrap()
}

#[test]
fn m11_a_new_partition_knows_nothing_of_a_former_one_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut opened = LogDirectory::open(directory.path()).unwrap();
    opened.checkpoints.high_watermarks.set(&id(), 1_000);
    opened.checkpoints.recovery_points.set(&id(), 1_000);
    opened.checkpoints.log_starts.set(&id(), 500);
    opened.checkpoints.cleaner_offsets.set(&id(), 700);
    opened.checkpoints.write().unwrap();
    drop(opened);
    let partitions = started(&[directory.path()]);
    append(&partitions.get_or_create(&id(), TOPIC_ID).unwrap());
    // Killed before any checkpoint.
    drop(partitions);
    let partitions = started(&[directory.path()]);
    assert_eq!(offsets(&partitions.get("t", 0).unwrap()), (0, 0, 3, 0));
}

#[test]
fn m11_a_partition_made_anew_after_a_deletion_is_in_no_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let partitions = started(&[directory.path()]);
    let partition = partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    append(&partition);
    partitions.checkpoint_high_watermarks();
    partitions.checkpoint_logs();
    let file = directory.path().join("replication-offset-checkpoint");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n1\nt 0 0\n");
    partitions.delete(&partition).unwrap();
    partitions.get_or_create(&id(), TopicId(Uuid::from_u128(6))).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n0\n");
}

#[test]
fn a_log_that_could_not_be_opened_is_tried_again_where_it_is() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let paths = [directories[0].path(), directories[1].path()];
    let partitions = started(&paths[1..]);
    let partition = partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    append(&partition);
    partition.with_log(|log| log.advance_log_start_offset(2).unwrap());
    partitions.checkpoint_logs();
    drop((partition, partitions));
    let in_the_way = paths[1].join("t-0/leader-epoch-checkpoint");
    let text = std::fs::read(&in_the_way).unwrap();
    std::fs::remove_file(&in_the_way).unwrap();
    std::fs::create_dir(&in_the_way).unwrap();
    let partitions = started(&paths);
    assert!(partitions.get("t", 0).is_none(), "left out");
    assert!(partitions.get_or_create(&id(), TOPIC_ID).is_err(), "no second copy in the other directory");
    std::fs::remove_dir(&in_the_way).unwrap();
    std::fs::write(&in_the_way, text).unwrap();
    assert!(partitions.get_or_create(&id(), TopicId(Uuid::from_u128(6))).is_err(), "another topic's");
    let partition = partitions.get_or_create(&id(), TOPIC_ID).unwrap();
    assert_eq!((partition.directory(), offsets(&partition)), (1, (2, 2, 3, 0)));
    assert!(!paths[0].join("t-0").exists());
}

#[test]
fn log_02_a_directory_marked_for_deletion_goes_on_to_be_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let partitions = started(&[directory.path()]);
    append(&partitions.get_or_create(&id(), TOPIC_ID).unwrap());
    drop(partitions);
    let marked = directory.path().join(format!("t-0.{:032x}-delete", 5));
    std::fs::rename(directory.path().join("t-0"), &marked).unwrap();
    std::fs::remove_file(marked.join("00000000000000000000.log")).unwrap();
    let partitions = started(&[directory.path()]);
    assert!(partitions.all().is_empty() && !marked.exists());
}
