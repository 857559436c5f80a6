//! DeleteRecords over three replicas.

use std::time::Duration;

use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use zurau_common::config::CleanupPolicy;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;

use super::world::{World, eventually};
use crate::partition::Acks;

async fn delete(world: &World, broker: i32, topic: &str, offset: i64, timeout_ms: i32) -> (i64, i16) {
    let address = world.broker(broker).addresses()[0].1.to_string();
    let peer = Peer::connect(&address, "test", Duration::from_secs(5)).await.unwrap();
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(offset);
    let asked =
        DeleteRecordsTopic::default().with_name(to_wire_topic(topic)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![asked]).with_timeout_ms(timeout_ms);
    let response: DeleteRecordsResponse = peer.call(2, &request).await.unwrap();
    let result = &response.topics[0].partitions[0];
    (result.low_watermark, result.error_code)
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_are_gone_from_every_replica() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    for tag in *b"abcdef" {
        world.produce(1, tag, Acks::All).await;
    }
    world.agree(6).await;
    let refused = |rejection: Rejection| (-1, rejection.code());
    assert_eq!(
        delete(&world, 1, "t", 7, 20_000).await,
        refused(Rejection::OffsetOutOfRange),
        "beyond the end"
    );
    assert_eq!(delete(&world, 1, "t", -2, 20_000).await, refused(Rejection::OffsetOutOfRange));
    assert_eq!(delete(&world, 2, "t", 1, 20_000).await, refused(Rejection::NotLeaderOrFollower));
    assert_eq!(delete(&world, 1, "none", 1, 20_000).await, refused(Rejection::UnknownTopicOrPartition));
    assert_eq!(
        delete(&world, 1, "__consumer_offsets", 1, 20_000).await,
        refused(Rejection::InvalidTopicException)
    );
    assert_eq!(world.partition(1).status().log_start_offset, 0);

    assert_eq!(delete(&world, 1, "t", 4, 20_000).await, (4, 0));
    for number in 1..=3 {
        assert_eq!(world.partition(number).status().log_start_offset, 4, "the answer waited for {number}");
    }
    assert_eq!(delete(&world, 1, "t", 2, 20_000).await, (4, 0), "deleted already");

    drop(world.brokers[2].take());
    let answer = delete(&world, 1, "t", 5, 300).await;
    assert_eq!(answer, refused(Rejection::RequestTimedOut), "3 has not followed");
    world.publish_live_brokers().await;
    assert_eq!(delete(&world, 1, "t", -1, 20_000).await, (6, 0), "a dead replica is not waited for");
    eventually("2 has deleted everything", async || world.partition(2).status().log_start_offset == 6).await;

    for number in 1..=2 {
        world.broker(number).parts.context.partitions.checkpoint_logs();
        let path = world.directories.path().join(number.to_string()).join("log-start-offset-checkpoint");
        assert!(std::fs::read_to_string(path).unwrap().contains("t 0 6"), "{number} remembers it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_topic_keeps_its_records() {
    let mut world = World::start().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    world.produce(1, b'a', Acks::All).await;
    let partition = world.partition(1);
    let rows = [(true, false, Some(Rejection::PolicyViolation)), (true, true, None), (false, true, None)];
    for (compact, delete, expected) in rows {
        partition.with_log(|log| {
            let mut config = log.config().clone();
            config.cleanup_policy = CleanupPolicy { compact, delete };
            log.set_config(config);
        });
        assert_eq!(partition.delete_records(0).err(), expected, "compact {compact}, delete {delete}");
    }
}
