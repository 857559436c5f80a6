//! A leader that takes office again, as at each step of a reassignment: producers notice nothing (N19).

use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, timeout};
use zurau_common::id::PartitionEpoch;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::StoredIsr;

use super::world::World;
use crate::log::test_batches::{BatchSpec, batch};
use crate::log::{Asking, Verification};
use crate::partition::{Accepted, Acks, Append};
use crate::replica::take_over::TakeOver;

const ENOUGH: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn produces_wait_while_their_leader_takes_office_again() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let partition = world.partition(1);
    let (isr, PartitionEpoch(version)) = world.isr().await.unwrap();
    let stored = StoredIsr { isr, elr: Vec::new(), partition_epoch: PartitionEpoch(version + 1) };

    // Two orders in a row, the second before the first office is taken.
    let mut take_over: Option<TakeOver> = None;
    for epoch in [1, 2] {
        let order = world.order(1, epoch).await;
        let Accepted::TakeOffice(next, _) = partition.accept(&order) else { panic!("not elected again") };
        take_over = Some(next);
    }
    let what = Append::by_client(batch(&BatchSpec::default()), Acks::Leader);
    let produce = |limit| partition.append_in_office(&what, 1_000, limit);
    let given_up = produce(Instant::now()).await.unwrap_err();
    assert_eq!(given_up.rejection, Rejection::NotLeaderOrFollower, "not longer than the limit");

    let idempotent = |sequence| {
        let spec = BatchSpec { producer: Some((7, 0, sequence)), ..BatchSpec::default() };
        Append::by_client(batch(&spec), Acks::Leader)
    };
    let (first, second) = (idempotent(0), idempotent(1));
    let given_up = partition.append_in_office(&first, 1_000, Instant::now()).await.unwrap_err();
    assert_eq!(given_up.rejection, Rejection::NotLeaderOrFollower);

    let verification = |sequence| {
        let asking = Asking { producer: (8, 0), sequence, adds: false };
        partition.begin_verification(asking, 1_000, Instant::now())
    };
    assert_eq!(verification(0).await, Err(Rejection::NotLeaderOrFollower));

    let mut waiting = Box::pin(produce(Instant::now() + ENOUGH));
    assert!((&mut waiting).now_or_never().is_none(), "answered while nobody leads");
    let order = world.order(1, 2).await;
    assert!(partition.take_office(&order, take_over.unwrap(), &stored, &|_| true));
    let appended = timeout(ENOUGH, waiting).await.expect("told of the office").unwrap();
    assert_eq!(appended.first_offset, 0);

    // The pipeline behind a batch that was given up does not overtake it, though nobody knows its producer.
    let refused = partition.append_in_office(&second, 1_000, Instant::now()).await.unwrap_err();
    assert_eq!(refused.rejection, Rejection::OutOfOrderSequenceNumber);
    for what in [&first, &second] {
        partition.append_in_office(what, 1_000, Instant::now()).await.unwrap();
    }

    // The same in a transaction, where the first one was given up before it could be verified.
    let transactional = |sequence, guard| {
        let spec =
            BatchSpec { producer: Some((8, 0, sequence)), transactional: true, ..BatchSpec::default() };
        let verification = Verification::Asked(guard);
        Append { verification, ..Append::by_client(batch(&spec), Acks::Leader) }
    };
    let second = transactional(1, verification(1).await.unwrap());
    let refused = partition.append_in_office(&second, 1_000, Instant::now()).await.unwrap_err();
    assert_eq!(refused.rejection, Rejection::OutOfOrderSequenceNumber);
    let first = transactional(0, verification(0).await.unwrap());
    for what in [&first, &second] {
        partition.append_in_office(what, 1_000, Instant::now()).await.unwrap();
    }
}
