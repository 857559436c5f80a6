//! Metadata waits for the first leaders of a new topic once, and not while ZooKeeper is away.

use std::time::{Duration, Instant};

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, UpdateMetadataRequest};
use zurau_common::id::{LeaderEpoch, TopicId};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;

use super::wire::{connect, world_with_metadata};
use super::world::{World, eventually};
use crate::Broker;
use crate::metadata::tests::{id, topic, update};

/// What is answered at once takes far less, even on a slow machine; what waits takes 500 ms at least.
const SHORT: Duration = Duration::from_millis(400);

/// A topic with one partition that has never had a leader, or is led by broker 1.
fn told(name: &str, topic_id: TopicId, leader: Option<i32>) -> UpdateMetadataRequest {
    let mut topic = topic(name, topic_id, &[leader.unwrap_or(-1)]);
    topic.partition_states[0].leader_epoch = leader.map_or(LeaderEpoch::UNKNOWN.0, |_| 0);
    update(1, vec![topic])
}

/// Error of the first partition, or else of the topic, and how long the answer took.
async fn ask(peer: &Peer, name: &str) -> (i16, Duration) {
    let asked = MetadataRequestTopic::default().with_name(Some(to_wire_topic(name)));
    let request =
        MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(true);
    let start = Instant::now();
    let answer = peer.call(9, &request).await.unwrap();
    let topic = &answer.topics[0];
    let code = topic.partitions.first().map_or(topic.error_code, |partition| partition.error_code);
    (code, start.elapsed())
}

fn tell(broker: &Broker, update: &UpdateMetadataRequest) {
    broker.parts.context.metadata.apply(update).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_is_waited_for_once() {
    let world = world_with_metadata().await;
    let (broker, peer) = (world.broker(1), connect(&world, 1).await);
    let no_leader = Rejection::LeaderNotAvailable.code();
    tell(broker, &told("new", id(7), None));
    let (code, took) = ask(&peer, "new").await;
    assert!(code == no_leader && SHORT < took, "{code} after {took:?}");
    for _ in 0..5 {
        let (code, took) = ask(&peer, "new").await;
        assert!(code == no_leader && took < SHORT, "{code} after {took:?}: it was waited for already");
    }
    // Nobody hears of a topic whose controller is away: it is created once, and waited for once.
    let (code, took) = ask(&peer, "on-demand").await;
    assert!(code == no_leader && SHORT < took, "{code} after {took:?}");
    let (code, took) = ask(&peer, "on-demand").await;
    assert!(code == no_leader && took < SHORT, "{code} after {took:?}: it was waited for already");
    // A topic of the same name that was created anew has a wait of its own, which its leader ends.
    tell(broker, &told("new", id(8), None));
    let (asked, ()) = tokio::join!(ask(&peer, "new"), async {
        eventually("the question is there", async || {
            broker.parts.context.first_leaders.lock().has_awaited(id(8))
        })
        .await;
        tell(broker, &told("new", id(8), Some(1)));
    });
    assert_eq!(asked.0, 0, "after {:?}", asked.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_waited_for_without_zookeeper() {
    let world = world_with_metadata().await;
    let peer = connect(&world, 1).await;
    let World { server, brokers, directories: _directories, .. } = world;
    server.shutdown().await.unwrap();
    let broker = brokers[0].as_ref().unwrap();
    eventually("the broker has lost ZooKeeper", async || !broker.parts.context.has_zookeeper()).await;
    tell(broker, &told("new", id(7), None));
    for name in ["new", "on-demand", "t"] {
        let (code, took) = ask(&peer, name).await;
        let expected = if name == "t" { 0 } else { Rejection::LeaderNotAvailable.code() };
        assert!(code == expected && took < SHORT, "{name}: {code} after {took:?}");
    }
}
