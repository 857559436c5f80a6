//! Followers fetch in incremental sessions (KIP-227), and go on when their leader does not give or keep them.

use super::world::{World, eventually};
use crate::partition::Acks;

const SESSIONS: &str = "kafka_server_fetchsessioncache_numincrementalfetchsessions";
const PARTITIONS: &str = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached";

async fn start(slots: usize) -> World {
    let slots = slots.to_string();
    let mut world = World::start_with(vec![("max.incremental.fetch.session.cache.slots", slots)]).await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    assert_eq!(world.produce(1, b'a', Acks::All).await, 0);
    world.agree(1).await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn each_follower_has_a_session_with_its_leader() {
    let mut world = start(10).await;
    assert_eq!((world.metric(1, SESSIONS).await, world.metric(1, PARTITIONS).await), (2.0, 2.0));
    for (offset, tag) in (1..).zip(*b"bcd") {
        assert_eq!(world.produce(1, tag, Acks::All).await, offset);
    }
    world.agree(4).await;
    assert_eq!(world.metric(1, SESSIONS).await, 2.0, "the same ones");
    // The epoch that a session remembers is over (CLI-07).
    world.elect(2, 1).await;
    world.send_to_all(2, 1).await;
    assert_eq!(world.produce(2, b'e', Acks::All).await, 4);
    world.agree(5).await;
    assert_eq!(world.metric(2, SESSIONS).await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_whose_session_was_given_up_open_another_one() {
    let world = start(10).await;
    world.broker(1).parts.context.fetch_sessions.forget_all();
    assert_eq!(world.metric(1, SESSIONS).await, 0.0);
    assert_eq!(world.produce(1, b'b', Acks::All).await, 1);
    world.agree(2).await;
    eventually("both have a session again", async || world.metric(1, SESSIONS).await == 2.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_that_get_no_session_name_everything_each_time() {
    let world = start(0).await;
    assert_eq!(world.produce(1, b'b', Acks::All).await, 1);
    world.agree(2).await;
    assert_eq!(world.metric(1, SESSIONS).await, 0.0);
}
