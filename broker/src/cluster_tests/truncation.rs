//! Logs that have parted, cut in both ways (`replica.truncation.path`).

use kafka_protocol::messages::ApiKey;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use zurau_common::id::TopicId;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_TOPIC_ID, put_topic_id, to_wire_topic};
use zurau_common::wire::peer::Peer;

use super::world::{World, eventually, ids};
use crate::partition::Acks;

const EPOCH_VERSION: i16 = 4;

async fn start(path: &str) -> World {
    let mut world = World::start_with(vec![("replica.truncation.path", path.to_owned())]).await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    assert_eq!(world.produce(1, b'a', Acks::All).await, 0);
    world.agree(1).await;
    world
}

/// How often the brokers were asked where an epoch ends.
fn questions(world: &World) -> u64 {
    let of = |number: &i32| {
        let metrics = &world.broker(*number).parts.context.shared.metrics;
        metrics.requests.count(ApiKey::OffsetForLeaderEpoch)
    };
    world.running().iter().map(of).sum()
}

/// Two logs with one record in common. 1: epochs 0, 0, 0 and 2; 2 and 3: epochs 0 and 1. 1 has never heard of epoch 1, nor
/// 2 and 3 of epoch 2, when 2 is elected in epoch 3.
async fn logs_that_have_parted_become_equal(path: &str) {
    let mut world = start(path).await;
    world.elect(2, 1).await;
    let second = world.order(2, 1).await;
    // HW-02: what 1 appends by itself stands where others append under the next epoch.
    world.send(2, &second).await.unwrap();
    world.send(3, &second).await.unwrap();
    assert_eq!(world.produce(1, b'x', Acks::Leader).await, 1);
    assert_eq!(world.produce(1, b'y', Acks::Leader).await, 2);
    assert_eq!(world.produce(2, b'b', Acks::None).await, 1);
    eventually("3 has what 2 has", async || world.log_end(3) == 2).await;
    // HW-03: so quickly back to 1 that nobody else hears of it, and it has not cut its log.
    world.elect(1, 2).await;
    let third = world.order(1, 2).await;
    world.send(1, &third).await.unwrap();
    assert_eq!(world.produce(1, b'z', Acks::Leader).await, 3);
    assert_eq!((world.log_end(1), world.log_end(2)), (4, 2));

    world.elect(2, 3).await;
    world.send_to_all(2, 3).await;
    assert_eq!(world.produce(2, b'c', Acks::All).await, 2);
    world.agree(3).await;
    assert_eq!(world.isr().await.unwrap().0, ids(&[1, 2, 3]));
    let asked = questions(&world);
    assert_eq!(0 < asked, path != "fetch", "{asked} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_02_hw_03_by_the_diverging_epoch_in_fetch_answers() {
    logs_that_have_parted_become_equal("fetch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_02_hw_03_by_offsets_for_leader_epoch() {
    logs_that_have_parted_become_equal("offsets-for-leader-epoch").await;
}

/// HW-01: a follower that restarts and finds no leader removes nothing; once there is one it removes what that one lacks.
#[tokio::test(flavor = "multi_thread")]
async fn hw_01_who_restarts_cuts_nothing_before_a_leader_says_so() {
    let mut world = start("offsets-for-leader-epoch").await;
    drop(world.brokers[1].take());
    assert_eq!(world.produce(1, b'x', Acks::Leader).await, 1);
    eventually("3 has it", async || world.log_end(3) == 2).await;
    drop(world.brokers[2].take());
    world.start_broker(3).await;
    assert_eq!(world.log_end(3), 2);
    // It follows 2, which does not run.
    world.elect(2, 1).await;
    let order = world.order(2, 1).await;
    world.send(3, &order).await.unwrap();
    assert_eq!(world.log_end(3), 2);
    world.start_broker(2).await;
    world.elect(2, 2).await;
    world.send_to_all(2, 2).await;
    eventually("3 has cut its log", async || world.log_end(3) == 1).await;
    assert_eq!(world.produce(2, b'b', Acks::Leader).await, 1);
    eventually("all have the same", async || {
        world.running().iter().all(|number| world.bytes(*number) == world.bytes(2))
    })
    .await;
}

/// One request for many partitions; each is answered by itself.
#[tokio::test(flavor = "multi_thread")]
async fn each_partition_has_its_own_answer_of_where_an_epoch_ends() {
    let mut world = start("fetch").await;
    world.elect(1, 4).await;
    world.send_to_all(1, 4).await;
    // Above the high watermark.
    drop(world.brokers[1].take());
    drop(world.brokers[2].take());
    assert_eq!(world.produce(1, b'x', Acks::Leader).await, 1);
    let hosted = to_wire_topic(&world.hosted.topic);
    let topic = |id: Option<TopicId>, asked: &[(i32, i32, i32)]| {
        let partitions = asked.iter().map(|(partition, current, epoch)| {
            OffsetForLeaderPartition::default()
                .with_partition(*partition)
                .with_current_leader_epoch(*current)
                .with_leader_epoch(*epoch)
        });
        let mut topic =
            OffsetForLeaderTopic::default().with_topic(hosted.clone()).with_partitions(partitions.collect());
        if let Some(id) = id {
            put_topic_id(&mut topic.unknown_tagged_fields, TAG_TOPIC_ID, id);
        }
        topic
    };
    let foreign = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEQ").unwrap();
    let topics = vec![
        topic(Some(world.topic_id), &[(0, 4, 4), (0, 4, 3), (0, 3, 0), (0, 5, 0), (1, 4, 0)]),
        topic(Some(foreign), &[(0, 4, 4)]),
        topic(None, &[(0, -1, 0)]),
    ];
    let address = format!("127.0.0.1:{}", world.port(1));
    let peer = Peer::connect(&address, "a follower", std::time::Duration::from_secs(5)).await.unwrap();
    let request = OffsetForLeaderEpochRequest::default().with_replica_id(2.into()).with_topics(topics);
    let answer: OffsetForLeaderEpochResponse = peer.call(EPOCH_VERSION, &request).await.unwrap();
    let ends: Vec<_> = answer.topics.iter().flat_map(|topic| &topic.partitions).collect();
    let rejected = |rejection: Rejection| (rejection.code(), -1, -1);
    let expected = [
        (0, 4, 2),
        (0, 0, 1),
        rejected(Rejection::FencedLeaderEpoch),
        rejected(Rejection::UnknownLeaderEpoch),
        rejected(Rejection::UnknownTopicOrPartition),
        rejected(Rejection::InconsistentTopicId),
        (0, 0, 1),
    ];
    let found: Vec<_> = ends.iter().map(|end| (end.error_code, end.leader_epoch, end.end_offset)).collect();
    assert_eq!(found, expected);
    assert_eq!(world.partition(1).status().high_watermark, 1, "the answer was not bound by it");
}
