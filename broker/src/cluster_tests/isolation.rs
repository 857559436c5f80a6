//! What a reader of committed records sees: one view of high watermark, last stable offset and aborted transactions, at
//! once and after a wait.

use zurau_common::id::LeaderEpoch;

use super::world::World;
use crate::fetch_waiter::FetchWaiter;
use crate::log::test_batches::{BatchSpec, batch, marker};
use crate::log::{AbortedTransaction, Batches};
use crate::partition::{Acks, Append, Isolation, OffsetQuery, Partition, ReadAnswer, ReadRequest, Reader};

const NOW: i64 = 1_000;

fn read(partition: &std::sync::Arc<Partition>, offset: i64, isolation: Isolation) -> ReadAnswer {
    let request = ReadRequest {
        offset,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch::UNKNOWN,
        last_fetched_epoch: LeaderEpoch::UNKNOWN,
        log_start: -1,
        reader: Reader::Consumer { isolation, may_follow: false },
    };
    partition.read(&request).unwrap()
}

/// The offset after the last record that an answer holds.
fn end_of(answer: &ReadAnswer) -> Option<i64> {
    let bytes = answer.plan.read().unwrap();
    Batches::new(&bytes).map(|batch| batch.unwrap().0.next_offset()).last()
}

#[tokio::test(flavor = "multi_thread")]
async fn txn_09_txn_10_isolation_holds_at_once_after_a_wait_and_for_offsets() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let partition = world.partition(1);
    let data = |producer: Option<i64>, timestamp| {
        let producer = producer.map(|id| (id, 0, 0));
        let transactional = producer.is_some();
        batch(&BatchSpec { producer, transactional, timestamp, ..BatchSpec::default() })
    };
    let end = |producer| {
        let records = marker(false, (producer, 0), 0, NOW);
        partition.append_in_epoch(&Append::by_coordinator(records, Acks::All), LeaderEpoch(0), NOW).unwrap();
    };
    partition.append(data(Some(7), NOW), Acks::All, NOW).unwrap(); // 0
    partition.append(data(None, NOW), Acks::All, NOW).unwrap(); // 1
    end(7); // 2
    partition.append(data(Some(8), NOW + 50), Acks::All, NOW).unwrap(); // 3
    world.agree(4).await;
    let aborted = |producer_id, first_offset, last_offset, last_stable_offset| AbortedTransaction {
        producer_id,
        first_offset,
        last_offset,
        last_stable_offset,
    };
    let committed = read(&partition, 0, Isolation::ReadCommitted);
    assert_eq!((committed.high_watermark, committed.last_stable_offset, end_of(&committed)), (4, 3, Some(3)));
    assert_eq!(committed.aborted, Some(vec![aborted(7, 0, 2, 3)]));
    let uncommitted = read(&partition, 0, Isolation::ReadUncommitted);
    assert_eq!((uncommitted.aborted.clone(), end_of(&uncommitted)), (None, Some(4)));
    let offset = |query, isolation| {
        let found = partition.list_offset(query, Some(isolation), LeaderEpoch::UNKNOWN).unwrap();
        found.map(|found| found.offset)
    };
    //   query, read committed, read uncommitted
    let rows = [
        (OffsetQuery::Latest, Some(3), Some(4)),
        (OffsetQuery::AtOrAfter(NOW + 1), None, Some(3)),
        (OffsetQuery::MaxTimestamp, None, Some(3)),
        (OffsetQuery::AtOrAfter(NOW), Some(0), Some(0)),
    ];
    for (query, committed, uncommitted) in rows {
        assert_eq!(offset(query, Isolation::ReadCommitted), committed, "{query:?}");
        assert_eq!(offset(query, Isolation::ReadUncommitted), uncommitted, "{query:?}");
    }

    let nothing = read(&partition, 3, Isolation::ReadCommitted);
    assert!(nothing.plan.is_empty());
    let waiter = FetchWaiter::new();
    partition.wait_for_data((&waiter, 0), nothing.seen);
    end(8); // 4
    tokio::time::timeout(std::time::Duration::from_secs(20), waiter.woken()).await.expect("woken in time");
    world.agree(5).await;
    let delayed = read(&partition, 3, Isolation::ReadCommitted);
    assert_eq!((delayed.last_stable_offset, end_of(&delayed)), (5, Some(5)));
    assert_eq!(delayed.aborted, Some(vec![aborted(8, 3, 4, 5)]));
}
