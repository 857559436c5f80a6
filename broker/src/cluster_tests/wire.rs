//! The client-facing APIs over a socket: the same brokers, the same test that plays the controller.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, FetchRequest,
    FetchResponse, IncrementalAlterConfigsRequest, InitProducerIdRequest, ProduceRequest, ProduceResponse,
};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;
use zurau_common::zk::znode::{TOPICS, Znode};

use super::world::{World, eventually};
use crate::log::test_batches::{BatchSpec, batch};
use crate::metadata::tests::{topic, update};
use crate::topic_creation::TOPICS_IN_FLIGHT;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A world whose brokers know brokers 1 and 2 as live and this topic.
pub(super) async fn world_with_metadata() -> World {
    let world = World::start().await;
    for number in 1..=3 {
        let metadata = &world.broker(number).parts.context.metadata;
        metadata.apply(&update(1, vec![topic("t", world.topic_id, &[1])])).unwrap();
    }
    world
}

pub(super) async fn connect(world: &World, number: i32) -> Peer {
    let address = world.broker(number).addresses()[0].1.to_string();
    Peer::connect(&address, "test", TIMEOUT).await.unwrap()
}

pub(super) fn produce(topic: &str, acks: i16, records: Bytes) -> ProduceRequest {
    let partition = PartitionProduceData::default().with_records(Some(records));
    let topic =
        TopicProduceData::default().with_name(to_wire_topic(topic)).with_partition_data(vec![partition]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

pub(super) fn produce_code(response: &ProduceResponse) -> i16 {
    response.responses[0].partition_responses[0].error_code
}

fn fetch(world: &World, session: (i32, i32), offset: i64, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition::default().with_fetch_offset(offset).with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic_id(world.topic_id.0).with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_session_id(session.0)
        .with_session_epoch(session.1)
        .with_topics(vec![topic])
}

fn record_bytes(response: &FetchResponse) -> usize {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.records.as_ref().map_or(0, Bytes::len)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_topic_of_a_request_is_written_before_any_of_them_is_waited_for() {
    let world = world_with_metadata().await;
    let count = 3 * TOPICS_IN_FLIGHT;
    let client = connect(&world, 1).await;
    let topics = (0..count).map(|number| {
        let name = to_wire_topic(&format!("u-{number}"));
        CreatableTopic::default().with_name(name).with_num_partitions(1).with_replication_factor(1)
    });
    let topics = topics.collect();
    let creating = tokio::spawn(async move {
        let request = CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(60_000);
        client.call(5, &request).await
    });
    // Nobody elects leaders here.
    eventually("all are written", async || {
        world.zookeeper.children(TOPICS).await.unwrap().is_some_and(|all| all.len() == count)
    })
    .await;
    assert!(!creating.is_finished(), "answered without leaders");
    creating.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_produce_and_fetch_in_a_session() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let (producer, consumer) = (connect(&world, 1).await, connect(&world, 1).await);
    let records = batch(&BatchSpec::default());
    let response = producer.call(9, &produce("t", -1, records.clone())).await.unwrap();
    assert_eq!(produce_code(&response), 0);
    assert_eq!(response.responses[0].partition_responses[0].base_offset, 0);

    let first = consumer.call(17, &fetch(&world, (0, 0), 0, 10_000)).await.unwrap();
    assert!(0 < first.session_id);
    assert_eq!(record_bytes(&first), records.len());
    let next_offset = first.responses[0].partitions[0].high_watermark;

    // Nothing moved: the answer names no partition. Then a long poll ends with the next append.
    let session = |epoch| (first.session_id, epoch);
    let idle = consumer.call(17, &fetch(&world, session(1), next_offset, 0)).await.unwrap();
    assert!(idle.responses.is_empty());
    let asked = fetch(&world, session(2), next_offset, 15_000);
    let waiting = tokio::spawn(async move { consumer.call(17, &asked).await });
    let response = producer.call(3, &produce("t", 1, records.clone())).await.unwrap();
    assert_eq!(produce_code(&response), 0);
    assert_eq!(record_bytes(&waiting.await.unwrap().unwrap()), records.len());

    let other = connect(&world, 1).await;
    let wrong = other.call(17, &fetch(&world, session(9), 0, 0)).await.unwrap();
    assert_eq!(wrong.error_code, Rejection::InvalidFetchSessionEpoch.code());
    let beyond = other.call(17, &fetch(&world, (0, -1), 1_000, 10_000)).await.unwrap();
    assert_eq!(beyond.responses[0].partitions[0].error_code, Rejection::OffsetOutOfRange.code());
}

/// CLI-14 for the silent ones.
#[tokio::test(flavor = "multi_thread")]
async fn refused_produces_say_why_and_silent_ones_close() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let records = batch(&BatchSpec::default());
    let leader = connect(&world, 1).await;
    let rows = [
        ("t", 2, Rejection::InvalidRequiredAcks),
        ("nothing", 1, Rejection::UnknownTopicOrPartition),
        ("__consumer_offsets", -1, Rejection::InvalidTopicException),
    ];
    for (name, acks, rejection) in rows {
        let response = leader.call(9, &produce(name, acks, records.clone())).await.unwrap();
        assert_eq!(produce_code(&response), rejection.code(), "{name} acks={acks}");
    }
    let follower = connect(&world, 2).await;
    let response = follower.call(10, &produce("t", 1, records.clone())).await.unwrap();
    assert_eq!(produce_code(&response), Rejection::NotLeaderOrFollower.code());
    let partition = &response.responses[0].partition_responses[0];
    assert_eq!(partition.current_leader.leader_id.0, 1, "KIP-951");
    assert!(
        follower.call(9, &produce("t", 0, records)).await.is_err(),
        "an error closes: acks=0 has no answer"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_written_as_an_admin_would_write_them() {
    let world = world_with_metadata().await;
    let peer = connect(&world, 1).await;
    let create = |timeout_ms| {
        let topic = CreatableTopic::default()
            .with_name(to_wire_topic("new"))
            .with_num_partitions(2)
            .with_replication_factor(2);
        CreateTopicsRequest::default().with_timeout_ms(timeout_ms).with_topics(vec![topic])
    };
    let code = async |timeout_ms| peer.call(7, &create(timeout_ms)).await.unwrap().topics[0].error_code;
    assert_eq!(code(0).await, Rejection::RequestTimedOut.code(), "written, not waited for");
    assert_eq!(code(10_000).await, Rejection::TopicAlreadyExists.code());
    let more =
        CreatePartitionsTopic::default().with_name(to_wire_topic("new")).with_count(3).with_assignments(None);
    let more = CreatePartitionsRequest::default().with_topics(vec![more]);
    let response = peer.call(3, &more).await.unwrap();
    assert_eq!(response.results[0].error_code, Rejection::RequestTimedOut.code());
    for path in ["", "/0/replicas", "/1/replicas", "/2/replicas"] {
        let path = format!("{}{path}", Znode::Topic("new".into()).path());
        assert!(world.zookeeper.exists(&path).await.unwrap(), "{path}");
    }

    let delete = |name: &str, timeout_ms| {
        DeleteTopicsRequest::default().with_topic_names(vec![to_wire_topic(name)]).with_timeout_ms(timeout_ms)
    };
    let unknown = peer.call(5, &delete("nothing", 0)).await.unwrap();
    assert_eq!(unknown.responses[0].error_code, Rejection::UnknownTopicOrPartition.code());
    let marker = Znode::DeleteTopic("new".into()).path();
    let deleting = tokio::spawn(async move { peer.call(5, &delete("new", 15_000)).await });
    eventually("the topic is marked", async || world.zookeeper.exists(&marker).await.unwrap()).await;
    assert!(!deleting.is_finished(), "the marker is still there");
    let remove = zurau_common::zk::op::Op::Delete { path: marker, version: None };
    world.zookeeper.multi(&[remove]).await.unwrap();
    assert_eq!(deleting.await.unwrap().unwrap().responses[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn producer_ids_are_unique_and_configurations_come_back() {
    let mut world = world_with_metadata().await;
    world.create_topic().await;
    let mut ids = std::collections::BTreeSet::new();
    let idempotent = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    for number in [1, 2, 1, 2] {
        let response = connect(&world, number).await.call(4, &idempotent).await.unwrap();
        assert_eq!(response.error_code, 0);
        assert!(ids.insert(response.producer_id.0), "{response:?}");
    }

    let peer = connect(&world, 1).await;
    let alter = |name: &'static str, key: &'static str| {
        let config = AlterableConfig::default().with_name(key.into()).with_value(Some("77777".into()));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(name.into())
            .with_configs(vec![config]);
        IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
    };
    for (name, key, code) in [("t", "segment.ms", 0), ("t", "no.such", 40), ("nothing", "segment.ms", 3)] {
        let response = peer.call(1, &alter(name, key)).await.unwrap();
        assert_eq!(response.responses[0].error_code, code, "{name} {key}");
    }
    assert_eq!(world.broker(1).parts.context.topic_configs.get("t").segment_age_max.as_millis(), 77_777);
    // One broker's threads: twice as many as there are, and no more in one step.
    for (value, code) in [("3", 42), ("2", 0), ("5", 42), ("4", 0), ("1", 42)] {
        let mut request = alter("1", "log.cleaner.threads");
        request.resources[0].resource_type = 4;
        request.resources[0].configs[0].value = Some(value.into());
        let response = peer.call(1, &request).await.unwrap();
        assert_eq!(response.responses[0].error_code, code, "{value}");
    }

    let resource = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name("t".into())
        .with_configuration_keys(Some(vec!["segment.ms".into()]));
    let describe = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let response = connect(&world, 2).await.call(4, &describe).await.unwrap();
    assert_eq!(response.results[0].configs[0].value.as_deref(), Some("77777"));
}
