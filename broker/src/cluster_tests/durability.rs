//! `flush.messages=1`: nothing is acknowledged before it is synced, and many appends share a sync.

use std::time::Duration;

use futures::FutureExt as _;
use zurau_common::rejection::Rejection;

use super::world::{World, eventually};
use crate::log::Disk;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::{Acks, CommitWait};

const APPENDS: i64 = 200;

/// A world with one partition, led by 1, that syncs each append.
async fn world() -> (World, Disk) {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.partition(1).with_log(|log| {
        let mut config = log.config().clone();
        config.flush_messages = 1;
        log.set_config(config);
    });
    let disk = Disk::watch(&world.directories.path().join("1").join("t-0"));
    (world, disk)
}

fn append(world: &World, acks: Acks) -> CommitWait {
    let appended = world.partition(1).append(batch(&BatchSpec::default()), acks, 1_000).unwrap();
    appended.committed.expect("the append must be synced")
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_share_a_sync_that_holds_up_nobody() {
    let (world, disk) = world().await;
    disk.hold(true);
    let mut first = append(&world, Acks::Leader);
    eventually("the first append is being synced", async || disk.waiting() == 1).await;
    let mut others: Vec<CommitWait> = (1..APPENDS)
        .map(|number| append(&world, if number % 2 == 0 { Acks::All } else { Acks::Leader }))
        .collect();
    eventually("they are committed as far as replicas are concerned", async || {
        world.partition(1).status().high_watermark == APPENDS
    })
    .await;
    assert!((&mut first).now_or_never().is_none(), "acknowledged before the sync");
    assert!(others.iter_mut().all(|other| other.now_or_never().is_none()), "acknowledged before the sync");
    assert_eq!(world.partition(1).with_log(|log| log.recovery_point()), Some(0));

    disk.hold(false);
    for wait in std::iter::once(first).chain(others) {
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("synced in time").unwrap();
    }
    assert_eq!(world.partition(1).with_log(|log| log.recovery_point()), Some(APPENDS));
    // Two syncs: the one that was held, and one for all others; log and two indexes each, and the history of epochs once.
    assert!(disk.synced_files() <= 7, "{} files were synced", disk.synced_files());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_acknowledges_nothing_and_takes_the_replica_offline() {
    let (world, disk) = world().await;
    disk.hold(true);
    let waits = [append(&world, Acks::Leader), append(&world, Acks::All)];
    eventually("the first append is being synced", async || disk.waiting() == 1).await;
    disk.break_down();
    disk.hold(false);
    for wait in waits {
        let outcome = tokio::time::timeout(Duration::from_secs(20), wait).await.expect("answered in time");
        assert!(outcome.is_err(), "{outcome:?}");
    }
    assert_eq!(world.partition(1).status().role, "offline");
    let refused = world.partition(1).append(batch(&BatchSpec::default()), Acks::Leader, 1_000).unwrap_err();
    assert_eq!(refused.rejection, Rejection::KafkaStorageError);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followers_sync_holds_up_nobody_and_is_waited_for() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    // The first record of an epoch syncs the epoch's start, too.
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    world.partition(2).with_log(|log| {
        let mut config = log.config().clone();
        config.flush_messages = 1;
        log.set_config(config);
    });
    let disk = Disk::watch(&world.directories.path().join("2").join("t-0"));
    disk.hold(true);
    let appended = world.partition(1).append(batch(&BatchSpec::default()), Acks::All, 1_000).unwrap();
    let mut committed = appended.committed.expect("the followers are not asked yet");
    eventually("2 syncs", async || disk.waiting() == 1).await;
    eventually("3 has the record", async || world.partition(3).status().log_end_offset == 2).await;
    // The partition is free meanwhile, and its leader does not count what is not synced.
    assert_eq!(world.partition(2).status().log_end_offset, 2);
    assert!((&mut committed).now_or_never().is_none(), "acknowledged before the follower's sync");
    assert_eq!(world.partition(1).status().high_watermark, 1);
    disk.hold(false);
    tokio::time::timeout(Duration::from_secs(20), committed).await.expect("synced in time").unwrap();
    assert_eq!(world.partition(2).with_log(|log| log.recovery_point()), Some(2));
}
