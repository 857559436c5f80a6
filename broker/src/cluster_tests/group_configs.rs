//! Configurations of single groups: set by clients through any broker, or by hand in ZooKeeper, and felt by members.

use std::time::Duration;

use kafka_protocol::messages::ConsumerGroupHeartbeatResponse as Fields;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as ReplacedResource, AlterableConfig as ReplacedConfig,
};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, GroupId, IncrementalAlterConfigsRequest,
};
use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::wire::consumer_group::ConsumerGroupHeartbeatRequest;
use zurau_common::wire::control::to_wire_topic;
use zurau_common::wire::peer::Peer;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::znode::Znode;

use super::transactions::{OFFSETS, publish};
use super::wire::connect;
use super::world::{World, eventually};

const SESSION: &str = "consumer.session.timeout.ms";
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";

/// `None` takes the key back. The answer's code and words.
async fn alter(
    peer: &Peer,
    group: &'static str,
    key: &'static str,
    value: Option<&'static str>,
) -> (i16, String) {
    let config = AlterableConfig::default()
        .with_name(key.into())
        .with_config_operation(if value.is_some() { 0 } else { 1 })
        .with_value(value.map(Into::into));
    let resource = AlterConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(group.into())
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let mut response = peer.call(1, &request).await.unwrap();
    let answer = response.responses.remove(0);
    (answer.error_code, answer.error_message.map(|message| message.to_string()).unwrap_or_default())
}

/// Key, value, source and the sources of what stands for it, strongest first.
async fn described(peer: &Peer, group: &'static str) -> Vec<(String, String, i8, Vec<i8>)> {
    let resource = DescribeConfigsResource::default().with_resource_type(32).with_resource_name(group.into());
    let request =
        DescribeConfigsRequest::default().with_resources(vec![resource]).with_include_synonyms(true);
    let mut response = peer.call(4, &request).await.unwrap();
    let result = response.results.remove(0);
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    let rows = result.configs.into_iter().map(|config| {
        let synonyms = config.synonyms.iter().map(|synonym| synonym.source).collect();
        (
            config.name.to_string(),
            config.value.unwrap_or_default().to_string(),
            config.config_source,
            synonyms,
        )
    });
    rows.collect()
}

async fn beat(peer: &Peer, member: &'static str, epoch: i32) -> Fields {
    let mut request = ConsumerGroupHeartbeatRequest::default();
    request.fields.group_id = GroupId("readers".into());
    request.fields.member_id = member.into();
    request.fields.member_epoch = epoch;
    if epoch == 0 {
        request.fields.rebalance_timeout_ms = 60_000;
        request.fields.subscribed_topic_names = Some(vec![to_wire_topic("t")]);
        request.fields.topic_partitions = Some(Vec::new());
    } else {
        request.fields.rebalance_timeout_ms = -1;
        request.fields.topic_partitions = None;
    }
    peer.call(1, &request).await.unwrap().0
}

async fn joined(peer: &Peer, member: &'static str) -> Fields {
    loop {
        let answer = beat(peer, member, 0).await;
        let loads = [Rejection::CoordinatorLoadInProgress, Rejection::NotCoordinator].map(|one| one.code());
        if !loads.contains(&answer.error_code) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_feel_what_is_set_for_their_group_alone() {
    let mut world = World::start_with(vec![
        ("group.consumer.min.session.timeout.ms", "300".to_owned()),
        ("group.consumer.min.heartbeat.interval.ms", "50".to_owned()),
    ])
    .await;
    world.hosted = TopicPartition::new(OFFSETS, 0);
    publish(&world, 1);
    world.create_topic().await;
    world.send_to_all(1, 0).await;
    let (coordinator, other) = (connect(&world, 1).await, connect(&world, 2).await);
    let first = joined(&coordinator, "first").await;
    assert_eq!((first.error_code, first.heartbeat_interval_ms), (0, 5_000), "{first:?}");

    // Through a broker that does not coordinate the group; the coordinator hears of it from ZooKeeper.
    assert_eq!(alter(&other, "readers", HEARTBEAT, Some("100")).await, (0, String::new()));
    assert_eq!(alter(&other, "readers", SESSION, Some("600")).await, (0, String::new()));
    let told = async || beat(&coordinator, "first", first.member_epoch).await.heartbeat_interval_ms == 100;
    eventually("the member is told the new interval", told).await;
    let rows = [
        (HEARTBEAT.to_owned(), "100".to_owned(), 8, vec![8, 5]),
        (SESSION.to_owned(), "600".to_owned(), 8, vec![8, 5]),
    ];
    assert_eq!(described(&other, "readers").await, rows);
    assert_eq!(described(&coordinator, "readers").await, rows);
    assert!(described(&other, "others").await.iter().all(|row| row.2 == 5 && row.3 == [5]));

    // Its session is the short one now.
    let before = tokio::time::Instant::now();
    let silent = async || {
        let groups = &world.broker(1).parts.context.groups;
        let groups = groups.observe(&world.broker(1).parts.context, Duration::from_secs(5)).await.unwrap();
        groups.iter().all(|group| group.members == 0)
    };
    eventually("the silent member is removed", silent).await;
    assert!(before.elapsed() < Duration::from_secs(9), "the default would be 45 s");

    let refusals = [
        (HEARTBEAT, "600", "above consumer.heartbeat.interval.ms (600)"),
        (SESSION, "299", "from group.consumer.min.session.timeout.ms (300)"),
        ("consumer.session", "400", "a configuration key of groups"),
    ];
    for (key, value, part) in refusals {
        let (code, message) = alter(&other, "readers", key, Some(value)).await;
        assert!(code == Rejection::InvalidConfig.code() && message.contains(part), "{key}: {code} {message}");
    }
    assert_eq!(alter(&other, "", SESSION, Some("400")).await.0, Rejection::InvalidRequest.code());
    replaces_all(&other).await;
}

/// AlterConfigs takes back what it does not name.
async fn replaces_all(peer: &Peer) {
    let config = ReplacedConfig::default().with_name(SESSION.into()).with_value(Some("6000".into()));
    let resource = ReplacedResource::default()
        .with_resource_type(32)
        .with_resource_name("readers".into())
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(peer.call(2, &request).await.unwrap().responses[0].error_code, 0);
    let sources: Vec<i8> = described(peer, "readers").await.into_iter().map(|row| row.2).collect();
    assert_eq!(sources, [5, 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_by_hand_counts_and_what_is_wrong_in_it_does_not() {
    let world = World::start().await;
    let write = async |group: &str, config: &str| {
        let path = Znode::GroupConfig(group.into()).path();
        let data = format!(r#"{{"version":1,"config":{config}}}"#).into_bytes();
        let op = match world.zookeeper.get(&path).await.unwrap() {
            None => Op::Create { path, data, lifetime: Lifetime::Persistent },
            Some(node) => Op::SetData { path, data, version: Some(node.version) },
        };
        world.zookeeper.multi(&[op]).await.unwrap();
    };
    let in_force = |number: i32, group: &str| {
        let configs = world.broker(number).parts.context.topic_configs.groups.in_force();
        configs.get(group).map(|one| (one.consumer_heartbeat_interval_ms, one.consumer_session_timeout_ms))
    };
    write("a/b", r#"{"consumer.session.timeout.ms":"50000","consumer.heartbeat.interval.ms":"soon"}"#).await;
    for number in 1..=3 {
        eventually("the group's session is known", async || in_force(number, "a/b") == Some((5_000, 50_000)))
            .await;
    }
    let peer = connect(&world, 3).await;
    let rows = described(&peer, "a/b").await;
    assert_eq!(
        rows.iter().map(|row| (row.1.as_str(), row.2)).collect::<Vec<_>>(),
        [("5000", 5), ("50000", 8)],
        "described is what is in force"
    );
    write("a/b", "{}").await;
    eventually("the group has the defaults again", async || in_force(1, "a/b").is_none()).await;
    let path = Znode::GroupConfig("a/b".into()).path();
    write("a/b", r#"{"consumer.session.timeout.ms":"51000"}"#).await;
    eventually("the group's session is known", async || in_force(1, "a/b") == Some((5_000, 51_000))).await;
    world.zookeeper.multi(&[Op::Delete { path, version: None }]).await.unwrap();
    eventually("the group has the defaults again", async || in_force(1, "a/b").is_none()).await;
}
