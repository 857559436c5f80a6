//! Three brokers in one process against the in-process ZooKeeper; the test plays the controller.

mod client_cases;
mod deletion;
mod disks;
mod durability;
mod fetch_sessions;
mod first_leaders;
mod group_configs;
mod isolation;
mod log_dirs;
mod long_polls;
mod recording;
mod refusals;
mod same_leader;
mod streams;
mod transactions;
mod transactions_2;
mod truncation;
mod wire;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka_protocol::messages::StopReplicaRequest;
use kafka_protocol::messages::stop_replica_request::{StopReplicaPartitionState, StopReplicaTopicState};
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_TOPIC_ID, TaggedFields, put_topic_id, to_wire_topic};
use zurau_common::zk::op::Op;
use zurau_common::zk::znode::Znode;

use crate::Broker;
use crate::control::{Answered, leader_and_isr, stop_replica};
use crate::fetch_waiter::FetchWaiter;
use crate::log::test_batches::{BatchSpec, batch};
use crate::partition::{Acks, Isolation, ReadRequest, Reader};

use world::{World, eventually, id, ids};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_topic_is_replicated_and_fails_over() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    assert_eq!(world.isr().await, Some((ids(&[1, 2, 3]), PartitionEpoch(0))));
    let leader = world.zookeeper.get(&Znode::Leader(id()).path()).await.unwrap().unwrap();
    assert_eq!(leader.data, b"1");
    for (offset, tag) in (0..).zip(*b"abc") {
        assert_eq!(world.produce(1, tag, Acks::All).await, offset);
    }
    world.agree(3).await;

    // 2 and 3 leave 1 alone; what it still appends is lost, and must vanish from its log.
    world.elect(2, 1).await;
    let order = world.order(2, 1).await;
    world.send(2, &order).await.unwrap();
    world.send(3, &order).await.unwrap();
    assert_eq!(world.produce(1, b'x', Acks::Leader).await, 3);
    assert_eq!(world.produce(1, b'y', Acks::Leader).await, 4);
    assert_eq!(world.produce(2, b'z', Acks::None).await, 3);
    world.send(1, &order).await.unwrap();
    assert!(world.partition(1).append(batch(&BatchSpec::default()), Acks::All, 0).is_err(), "1 follows now");
    assert_eq!(world.produce(2, b'w', Acks::All).await, 4);
    world.agree(5).await;
    let twice = world.order(2, 1).await;
    world.send(2, &twice).await.unwrap();
    assert!(world.partition(2).is_leader(), "the same order again changes nothing");
    let older = LeaderAndIsr { leader_epoch: LeaderEpoch(0), ..twice };
    assert_eq!(world.send(2, &older).await, Err(Rejection::FencedLeaderEpoch));
}

#[tokio::test(flavor = "multi_thread")]
async fn isr_05_a_dead_follower_leaves_the_isr_and_returns() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.publish_live_brokers().await;
    world.produce(1, b'a', Acks::All).await;

    drop(world.brokers[2].take());
    world.publish_live_brokers().await;
    eventually("3 is out of the ISR", async || world.isr().await.unwrap().0 == ids(&[1, 2])).await;
    world.produce(1, b'b', Acks::All).await;

    world.start_broker(3).await;
    let order = world.order(1, 0).await;
    world.send(3, &order).await.unwrap();
    world.publish_live_brokers().await;
    eventually("3 is in the ISR again", async || world.isr().await.unwrap().0.len() == 3).await;
    world.produce(1, b'c', Acks::All).await;
    world.agree(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_13_a_broker_without_its_log_leaves_the_isr_before_it_is_alive() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    drop(world.brokers[1].take());
    std::fs::remove_dir_all(world.directories.path().join("2")).unwrap();
    world.start_broker(2).await;
    assert_eq!(world.isr().await.unwrap().0, ids(&[1, 3]), "M8");
    // It must not lead either (D4).
    world.elect(2, 1).await;
    let order = LeaderAndIsr { isr: ids(&[2]), ..world.order(2, 1).await };
    assert_eq!(world.send(2, &order).await, Err(Rejection::KafkaStorageError));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_keeps_everything_and_resigns() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let stopping = world.brokers[0].take().unwrap();
    let started = Instant::now();
    stopping.shutdown().await;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(world.zookeeper.get(&Znode::Leader(id()).path()).await.unwrap(), None);
    assert_eq!(world.zookeeper.get(&Znode::Broker(BrokerId(1)).path()).await.unwrap(), None);
    world.start_broker(1).await;
    assert_eq!(world.isr().await.unwrap().0, ids(&[1, 2, 3]), "nothing was lost");
    assert_eq!(world.log_end(1), 1);
    // F5: it does not lead in the same epoch again.
    let order = world.order(1, 0).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::FencedLeaderEpoch));
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    world.agree(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_08_a_lost_session_stops_everything_until_told_again() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let context = Arc::clone(&world.broker(1).parts.context);
    let before = context.broker_epoch();
    let session = context.zookeeper.current().unwrap().session_id();
    world.server.expire_session(session);
    eventually("1 is registered again", async || {
        before < context.broker_epoch() && context.shared.holds_lease()
    })
    .await;
    assert!(!world.partition(1).is_leader());
    let order = world.order(1, 0).await;
    assert_eq!(world.send(1, &order).await, Err(Rejection::FencedLeaderEpoch), "F5");
    world.elect(1, 1).await;
    world.send_to_all(1, 1).await;
    world.produce(1, b'b', Acks::All).await;
    world.agree(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_see_what_is_committed() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let request = ReadRequest {
        offset: 0,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch(0),
        last_fetched_epoch: LeaderEpoch::UNKNOWN,
        log_start: -1,
        reader: Reader::Consumer { isolation: Isolation::ReadUncommitted, may_follow: false },
    };
    let answer = world.partition(1).read(&request).unwrap();
    assert_eq!((answer.high_watermark, answer.plan.read().unwrap().is_empty()), (1, false));
    let ahead = ReadRequest { current_leader_epoch: LeaderEpoch(1), ..request };
    assert_eq!(world.partition(1).read(&ahead).err(), Some(Rejection::UnknownLeaderEpoch));
    let beyond = ReadRequest { offset: 2, ..request };
    assert_eq!(world.partition(1).read(&beyond).err(), Some(Rejection::OffsetOutOfRange));
    assert_eq!(world.partition(2).read(&request).err(), Some(Rejection::NotLeaderOrFollower));
}

/// KIP-392: in-sync followers are offered to consumers, and serve them up to their own high watermark.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_serves_consumers_what_it_knows_to_be_committed() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let follower = world.partition(2);
    let request = ReadRequest {
        offset: 0,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch(0),
        last_fetched_epoch: LeaderEpoch::UNKNOWN,
        log_start: -1,
        reader: Reader::Consumer { isolation: Isolation::ReadUncommitted, may_follow: true },
    };
    // Its high watermark comes with the next answer of the leader; whoever waits for it is woken.
    while follower.status().high_watermark < 1 {
        let waiter = FetchWaiter::new();
        follower.wait_for_data((&waiter, 0), follower.read(&request).unwrap().seen);
        tokio::time::timeout(Duration::from_secs(20), waiter.woken()).await.unwrap();
    }
    let answer = follower.read(&request).unwrap();
    assert_eq!((answer.high_watermark, answer.plan.read().unwrap().is_empty()), (1, false));
    assert!(follower.serves_in(answer.leader_epoch) && !follower.leads_in(answer.leader_epoch));
    let rows = [
        (ReadRequest { offset: 2, ..request }, Rejection::OffsetOutOfRange),
        (ReadRequest { current_leader_epoch: LeaderEpoch(1), ..request }, Rejection::UnknownLeaderEpoch),
    ];
    for (refused, rejection) in rows {
        assert_eq!(follower.read(&refused).err(), Some(rejection));
    }
    let offered = |offset| {
        let found = world.partition(1).readable_followers(offset);
        found.iter().map(|follower| follower.broker.0).collect::<Vec<i32>>()
    };
    assert_eq!((offered(1), offered(2)), (vec![2, 3], vec![]), "only who holds the offset");
    assert_eq!(follower.readable_followers(0), [], "only the leader knows");
}

fn stop_request(world: &World, topic_id: TopicId, leader_epoch: i32) -> StopReplicaRequest {
    let mut fields = TaggedFields::new();
    put_topic_id(&mut fields, TAG_TOPIC_ID, topic_id);
    let state = StopReplicaPartitionState::default()
        .with_partition_index(0)
        .with_leader_epoch(leader_epoch)
        .with_delete_partition(true);
    let topic = StopReplicaTopicState::default()
        .with_topic_name(to_wire_topic("t"))
        .with_partition_states(vec![state])
        .with_unknown_tagged_fields(fields);
    StopReplicaRequest::default()
        .with_controller_epoch(1)
        .with_broker_epoch(world.broker(3).parts.context.broker_epoch().0)
        .with_topic_states(vec![topic])
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_04_only_the_right_incarnation_is_deleted_and_only_late_enough() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let directory = world.directories.path().join("3").join("t-0");
    let other = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEQ").unwrap();
    let rows =
        [("F9", other, 9, 0, true), ("N5", world.topic_id, 0, 74, true), ("", world.topic_id, 1, 0, false)];
    for (name, topic_id, leader_epoch, code, stays) in rows {
        let request = stop_request(&world, topic_id, leader_epoch);
        let connection = world.connection();
        let context = &world.broker(3).parts.context;
        let Answered::Answer(answer) = stop_replica(context, &connection, request).await else {
            panic!("the connection was closed")
        };
        assert_eq!(answer.partition_errors[0].error_code, code, "{name}");
        assert_eq!(directory.exists(), stays, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_02_orders_come_from_the_newest_connection_of_the_highest_controller() {
    let mut world = World::start().await;
    world.create_topic().await;
    let (older, newer) = (world.connection(), world.connection());
    let order = world.order(1, 0).await;
    let context = Arc::clone(&world.broker(2).parts.context);
    let request = world.request(2, std::slice::from_ref(&order));
    assert!(matches!(leader_and_isr(&context, &older, request.clone()).await, Answered::Answer(_)));
    assert!(matches!(leader_and_isr(&context, &newer, request.clone()).await, Answered::Answer(_)));
    assert!(older.closer.is_cancelled(), "F9");
    assert!(matches!(leader_and_isr(&context, &older, request.clone()).await, Answered::Close));

    let stale_broker = request.clone().with_broker_epoch(77);
    let next = LeaderAndIsr { controller_epoch: ControllerEpoch(2), ..order };
    let rows = [
        (stale_broker, Some(Rejection::StaleBrokerEpoch)),
        (world.request(2, std::slice::from_ref(&next)), None),
        (request, Some(Rejection::StaleControllerEpoch)),
    ];
    for (request, expected) in rows {
        let Answered::Answer(answer) = leader_and_isr(&context, &newer, request).await else {
            panic!("the connection was closed")
        };
        assert_eq!(Rejection::from_code(answer.error_code), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_a_deleted_incarnation_gives_way_and_is_kept_aside() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let order = world.order(2, 1).await;
    let next = TopicId::parse("AQIDBAUGBwgJCgsMDQ4PEQ").unwrap();
    let recreated = LeaderAndIsr { topic_id: next, ..order };
    assert_eq!(world.send(3, &recreated).await, Err(Rejection::InconsistentTopicId), "the old one exists");
    let entry = Znode::TopicIdEntry(world.topic_id).path();
    world.zookeeper.multi(&[Op::Delete { path: entry, version: None }]).await.unwrap();
    assert_eq!(world.send(3, &recreated).await, Ok(()));
    assert_eq!(world.partition(3).topic_id(), next);
    let names = std::fs::read_dir(world.directories.path().join("3")).unwrap();
    let strays =
        names.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with("-stray"));
    assert_eq!(strays.count(), 1, "D6");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctl_14_a_second_broker_with_the_same_id_does_not_start() {
    let world = World::start().await;
    let mut pairs = world.pairs(1);
    let directory = world.directories.path().join("copy");
    pairs.retain(|(key, _)| *key != "log.dirs");
    pairs.push(("log.dirs", directory.display().to_string()));
    let Err(reason) = Broker::start(World::config_of(pairs)).await else { panic!("it started") };
    let reason = format!("{reason:#}");
    assert!(reason.contains("broker id 1 is registered by another broker at 127.0.0.1"), "{reason}");
    assert!(world.broker(1).parts.context.shared.holds_lease(), "the first one goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_zookeeper_a_healthy_partition_is_served_and_a_lonely_one_is_not() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let shared = Arc::clone(&world.broker(1).parts.context.shared);
    shared.end_lease();
    world.produce(1, b'b', Acks::All).await;
    drop(world.brokers[1].take());
    drop(world.brokers[2].take());
    let partition = world.partition(1);
    eventually("the leader stops serving", async || {
        partition.append(batch(&BatchSpec::default()), Acks::Leader, 0).is_err()
    })
    .await;
    let rejection = partition.append(batch(&BatchSpec::default()), Acks::Leader, 0).unwrap_err().rejection;
    assert_eq!(rejection, Rejection::NotLeaderOrFollower);
    let zookeeper = world.broker(1).parts.context.zookeeper.current().unwrap();
    shared.set_lease(zookeeper.lease());
    assert!(partition.append(batch(&BatchSpec::default()), Acks::Leader, 0).is_ok(), "L6: the same epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn hw_08_isr_15_a_follower_that_may_not_fetch_is_refused_and_harms_nobody() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    world.agree(1).await;
    let of = |broker: i32, epoch: i64, offset: i64| ReadRequest {
        offset,
        max_bytes: 1 << 20,
        minimum_one_batch: true,
        current_leader_epoch: LeaderEpoch(0),
        last_fetched_epoch: LeaderEpoch::UNKNOWN,
        log_start: -1,
        reader: Reader::Follower { broker: BrokerId(broker), broker_epoch: Some(BrokerEpoch(epoch)) },
    };
    let partition = world.partition(1);
    assert_eq!(partition.read(&of(9, 5, 0)).err(), Some(Rejection::NotLeaderOrFollower), "no host");
    assert_eq!(partition.read(&of(3, -1, 0)).err(), Some(Rejection::NotLeaderOrFollower), "F3");
    assert_eq!(partition.read(&of(3, 99, 5)).err(), Some(Rejection::OffsetOutOfRange));
    let diverging = ReadRequest { last_fetched_epoch: LeaderEpoch(0), ..of(3, 99, 5) };
    let end = partition.read(&diverging).unwrap().diverging.unwrap();
    assert_eq!((end.leader_epoch, end.end_offset), (0, 1));
    assert_eq!(partition.status().high_watermark, 1, "a diverging offset is no progress");
    world.produce(1, b'b', Acks::All).await;
    world.agree(2).await;
}
