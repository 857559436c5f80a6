//! Fetches that wait: what they look at again, and what they are told.

use kafka_protocol::messages::FetchRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use zurau_common::id::{BrokerId, LeaderEpoch, TopicId, TopicPartition};

use super::wire::connect;
use super::world::{World, eventually};
use crate::fetch_waiter::{FetchWaiter, News};
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::{Acks, ReadRequest, Reader};

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_wants_more_waits_for_all_its_partitions_and_gets_what_each_has() {
    let mut world = World::start().await;
    world.create_topic().await;
    let mut orders = vec![world.order(1, 0).await];
    world.hosted = TopicPartition::new("u", 0);
    world.topic_id = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEQ").unwrap();
    world.create_topic().await;
    orders.push(world.order(1, 0).await);
    for number in world.running() {
        world.send_many(number, &orders).await;
    }

    let batch_bytes = batch(&BatchSpec::default()).len();
    let topics = orders.iter().map(|order| {
        let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
        FetchTopic::default().with_topic_id(order.topic_id.0).with_partitions(vec![partition])
    });
    let request = FetchRequest::default()
        .with_max_wait_ms(20_000)
        .with_min_bytes(i32::try_from(4 * batch_bytes).unwrap())
        .with_max_bytes(1 << 20)
        .with_topics(topics.collect());
    let consumer = connect(&world, 1).await;
    let waiting = tokio::spawn(async move { consumer.call(17, &request).await });
    let leader = world.partition(1);
    eventually("the fetch waits", async || leader.observe().waiting_fetches == 3).await;
    // Each wakes it, and the last one makes it enough: two batches in each.
    for topic in ["u", "t", "u", "t"] {
        assert!(!waiting.is_finished(), "answered with too little");
        world.hosted = TopicPartition::new(topic, 0);
        world.produce(1, b'a', Acks::All).await;
    }
    let answer = waiting.await.unwrap().unwrap();
    let records = answer.responses.iter().flat_map(|topic| &topic.partitions);
    let sizes: Vec<usize> =
        records.map(|partition| partition.records.as_ref().map_or(0, |records| records.len())).collect();
    assert_eq!(sizes, [2 * batch_bytes; 2]);
}

/// Its next answer tells, whatever it is for: else the follower's high watermark would stay behind until it has waited
/// in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_waits_has_a_risen_high_watermark_noted_and_is_not_woken_for_it() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let epochs = [2, 3].map(|number| world.broker(number).parts.context.broker_epoch());
    drop((world.brokers[1].take(), world.brokers[2].take()));
    let leader = world.partition(1);
    eventually("their own fetches are over", async || leader.observe().waiting_fetches == 0).await;
    leader.append(batch(&BatchSpec::default()), Acks::Leader, 0).unwrap();
    let fetch = |number: usize, offset| ReadRequest {
        offset,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch(0),
        last_fetched_epoch: LeaderEpoch(0),
        log_start: 0,
        reader: Reader::Follower { broker: BrokerId(number as i32), broker_epoch: Some(epochs[number - 2]) },
    };
    let waiter = FetchWaiter::new();
    let seen = leader.read(&fetch(2, 1)).unwrap().seen;
    leader.wait_for_data((&waiter, 7), seen);
    assert_eq!(leader.status().high_watermark, 0);
    leader.read(&fetch(3, 1)).unwrap();
    assert_eq!(leader.status().high_watermark, 1);
    assert_eq!(waiter.take_news(), News { moved: vec![], noted: vec![7] });
    leader.append(batch(&BatchSpec::default()), Acks::Leader, 0).unwrap();
    waiter.woken().await;
    assert_eq!(waiter.take_news(), News { moved: vec![7], noted: vec![] });
}
