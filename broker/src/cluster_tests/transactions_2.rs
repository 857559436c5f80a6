//! The partition side of transactions of version 2 over sockets (KIP-890): partitions are added by their leaders, records
//! wait for the marker of the transaction before, and what is late of that one is refused. The test plays the transaction
//! coordinator.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_ENDS_LOWER_EPOCHS, TaggedFields};
use zurau_common::wire::peer::Peer;

use super::transactions::{
    Coordinator, OFFSETS, end_with, produced, set_verification, settled, stable_end, txn_offset_commit,
    world_of,
};
use super::wire::connect;

const CONCURRENT: i16 = Rejection::ConcurrentTransactions.code();
const FENCED: i16 = Rejection::InvalidProducerEpoch.code();

/// A marker of version 2.
async fn mark(peer: &Peer, topic: &str, commits: bool, producer: (i64, i16)) -> i16 {
    let tags = TaggedFields::from([(TAG_ENDS_LOWER_EPOCHS, Bytes::new())]);
    end_with(peer, topic, commits, producer, (0, tags)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_adds_the_partition_and_asks_again_while_markers_are_written() {
    let early = Rejection::ConcurrentTransactions;
    let (coordinator, server) = Coordinator::start(&[early, early], 1_000).await;
    let world = world_of("t", &server).await;
    // Version 2 does not ask the switch of the other one.
    set_verification(&world, false);
    let leader = connect(&world, 1).await;
    assert_eq!(produced(&leader, 12, (7, 0, 0)).await, 0, "it is asked again within the request");
    assert_eq!(coordinator.added.load(Ordering::Acquire), 3);
    assert_eq!(produced(&leader, 12, (7, 0, 1)).await, 0);
    assert_eq!(coordinator.added.load(Ordering::Acquire), 3, "it was added");

    // Not for ever: then the client is told.
    coordinator.codes.lock().extend([CONCURRENT; 500]);
    assert_eq!(produced(&leader, 12, (8, 0, 0)).await, CONCURRENT);
    coordinator.codes.lock().clear();
    let rows = [
        (Rejection::ProducerFenced, FENCED),
        (Rejection::InvalidProducerIdMapping, Rejection::InvalidProducerIdMapping.code()),
        (Rejection::NotCoordinator, Rejection::NotEnoughReplicas.code()),
        (Rejection::OperationNotAttempted, Rejection::NotEnoughReplicas.code()),
    ];
    for (told, code) in rows {
        coordinator.codes.lock().push_back(told.code());
        assert_eq!(produced(&leader, 12, (8, 0, 0)).await, code, "{told:?}");
    }
    assert_eq!(produced(&leader, 12, (8, 0, 0)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn txn_02_records_and_markers_stay_in_their_transaction() {
    let (coordinator, server) = Coordinator::start(&[], 1_000).await;
    let world = world_of("t", &server).await;
    let leader = connect(&world, 1).await;
    assert_eq!(produced(&leader, 12, (7, 0, 0)).await, 0);
    // The next one begins before the marker: it does not join.
    coordinator.codes.lock().extend([CONCURRENT; 500]);
    assert_eq!(produced(&leader, 12, (7, 1, 0)).await, CONCURRENT);
    coordinator.codes.lock().clear();
    assert_eq!(mark(&leader, "t", true, (7, 1)).await, 0);
    assert_eq!(stable_end(&leader).await, 2);
    assert_eq!(produced(&leader, 12, (7, 1, 1)).await, Rejection::OutOfOrderSequenceNumber.code());
    assert_eq!(produced(&leader, 12, (7, 1, 0)).await, 0);
    // A marker comes again, and a record of before.
    assert_eq!(mark(&leader, "t", true, (7, 1)).await, FENCED);
    assert_eq!(produced(&leader, 12, (7, 0, 1)).await, FENCED);
    assert_eq!((stable_end(&leader).await, world.log_end(1)), (2, 3), "the next one is open");
    assert_eq!(mark(&leader, "t", false, (7, 2)).await, 0);
    assert_eq!(mark(&leader, "t", false, (7, 2)).await, 0, "again, and nothing is open");
    assert_eq!(stable_end(&leader).await, 5);

    // The client goes over to version 2 while the marker of its last transaction of version 1 is on its way.
    assert_eq!(produced(&leader, 11, (9, 0, 0)).await, 0);
    coordinator.codes.lock().extend([CONCURRENT; 500]);
    assert_eq!(produced(&leader, 12, (9, 0, 1)).await, CONCURRENT, "of the same epoch");
    coordinator.codes.lock().clear();
    assert_eq!(end_with(&leader, "t", true, (9, 0), (0, TaggedFields::new())).await, 0);
    assert_eq!(produced(&leader, 12, (9, 0, 1)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_overtakes_the_answer_has_the_coordinator_asked_again() {
    let (coordinator, server) = Coordinator::start(&[], 0).await;
    let world = world_of("t", &server).await;
    let (producer, markers) = (connect(&world, 1).await, connect(&world, 1).await);
    let written = tokio::spawn(async move { produced(&producer, 12, (7, 1, 0)).await });
    coordinator.asked.acquire().await.unwrap().forget();
    assert_eq!(mark(&markers, "t", false, (7, 1)).await, 0);
    coordinator.permits.add_permits(1);
    // Its first answer counts no more.
    coordinator.asked.acquire().await.unwrap().forget();
    assert_eq!(world.log_end(1), 1, "the marker");
    coordinator.permits.add_permits(1);
    assert_eq!(written.await.unwrap(), 0);
    assert_eq!(coordinator.added.load(Ordering::Acquire), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_group_coordinator_adds_its_partition() {
    let (coordinator, server) = Coordinator::start(&[], 1_000).await;
    let world = world_of(OFFSETS, &server).await;
    let peer = connect(&world, 1).await;
    let commit = async |version, producer, offset| {
        let response = peer.call(version, &txn_offset_commit(producer, offset)).await.unwrap();
        response.topics[0].partitions[0].error_code
    };
    assert_eq!(settled("the group is loaded", async || commit(5, (7, 0), 1).await).await, 0);
    assert!(0 < coordinator.added.load(Ordering::Acquire));
    assert_eq!(mark(&peer, OFFSETS, true, (7, 1)).await, 0);
    assert_eq!(commit(5, (7, 1), 2).await, 0);
    // Late, of the transaction before: offsets and marker.
    coordinator.codes.lock().push_back(Rejection::ProducerFenced.code());
    assert_eq!(commit(5, (7, 0), 1).await, FENCED);
    assert_eq!(mark(&peer, OFFSETS, true, (7, 1)).await, FENCED);
    assert_eq!(mark(&peer, OFFSETS, false, (7, 2)).await, 0);
}
