//! Metadata (3), versions 0-12: brokers, topics, leaders; creates a missing topic if allowed.
//!
//! - Which topics: v0 an empty list means all; from v1 null means all and an empty list none. v12 finds by topic id.
//! - Addresses are those of the listener that the request came in on.
//! - v0 leaves replicas without a live broker out (error 9), v1+ names them. A leader without an address on the
//!   listener is error 5, from v6 error 72 when its broker lives.
//! - v4 `allow_auto_topic_creation`, before it is always true; it needs `auto.create.topics.enable` too. Unlike Kafka
//!   we wait a moment for the new leaders, so that the usual client need not ask again. So we do for what somebody
//!   else created a moment ago: Kafka's brokers do not know a partition before it has had a leader, and rskafka goes
//!   by its first answer for ever when that names none. Each creation is waited for once, and without ZooKeeper none is.
//! - v8-10 authorized operations of the cluster, v8+ of topics: without an authorizer everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse};
use kafka_protocol::protocol::StrBytes;
use zurau_common::id::{BrokerId, LeaderEpoch, TopicId, topic_name_problem};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{to_wire_ids, to_wire_topic};
use zurau_common::wire::server::Answer;

use super::{Call, Starting, ready};
use crate::context::BrokerContext;
use crate::first_leaders::NewTopic;
use crate::metadata::{MetadataImage, PartitionImage, TopicImage, is_internal};

/// Operations on a topic: read, write, create, delete, alter, describe, describe configs, alter configs.
pub(super) const TOPIC_OPERATIONS: i32 = 0x0df8;
/// Operations on the cluster: create, alter, describe, cluster action, describe and alter configs, idempotent write.
pub(super) const CLUSTER_OPERATIONS: i32 = 0x1fa0;

/// What stands in for authorized operations that were not asked for.
const NOT_ASKED: i32 = i32::MIN;

pub(super) fn start(call: Call) -> Starting {
    ready(match call.decode::<MetadataRequest>() {
        Ok(request) => begin(call, request),
        Err(refused) => refused,
    })
}

fn begin(call: Call, request: MetadataRequest) -> Answer {
    let image = call.context.metadata.image();
    let asker = Asker::new(&call);
    let missing = if call.context.config.auto_create_topics_enable {
        topics_to_create(&image, &request, asker.version)
    } else {
        BTreeSet::new()
    };
    if missing.is_empty() && starting(&image, &request, asker.version).is_empty() {
        return call.reply().now(&answer(&image, &request, &asker, &BTreeMap::new()));
    }
    if !call.context.has_zookeeper() {
        // Nothing is created and no leader is chosen before it is back.
        let absent = missing.into_iter().map(|name| (name, Rejection::LeaderNotAvailable)).collect();
        return call.reply().now(&answer(&image, &request, &asker, &absent));
    }
    call.pend(|call| async move {
        let context = &call.context;
        let outcomes = auto_create(context, &missing).await;
        let image = context.metadata.image();
        let created = |name: &&String| {
            image.topic(name).is_none() && outcomes.get(*name) == Some(&Rejection::LeaderNotAvailable)
        };
        let untold = missing.iter().filter(created).map(|name| NewTopic {
            name: name.as_str().into(),
            topic_id: None,
            partitions: 0,
        });
        let told = starting(&image, &request, asker.version).into_iter().map(|topic| NewTopic {
            name: topic.name.clone(),
            topic_id: Some(topic.topic_id),
            partitions: topic.partitions.len(),
        });
        wait_for_first_leaders(context, untold.chain(told).collect()).await;
        answer(&context.metadata.image(), &request, &asker, &outcomes)
    })
}

/// Too slow is no error: the client is told that the leader is not available yet.
async fn wait_for_first_leaders(context: &BrokerContext, new: Vec<NewTopic>) {
    let now_ms = context.shared.now_ms();
    let waits = |image: &MetadataImage, name: &str| image.topic(name).map(|topic| starts(image, topic));
    let (names, until_ms) = {
        let mut leaders = context.first_leaders.lock();
        let image = context.metadata.image();
        leaders.forget(|name| waits(&image, name), now_ms);
        leaders.wait_for(new, now_ms)
    };
    let led = context
        .metadata
        .wait_until(|image| names.iter().all(|name| waits(image, name) == Some(false)).then_some(()));
    let _ = tokio::time::timeout(Duration::from_millis(until_ms - now_ms), led).await;
}

/// The topics that are asked for of which a partition waits for its first leader, and a replica lives that can be it.
fn starting<'a>(
    image: &'a MetadataImage,
    request: &MetadataRequest,
    version: i16,
) -> Vec<&'a Arc<TopicImage>> {
    let named = |topic: &MetadataRequestTopic| match &topic.name {
        Some(name) => image.topic(name.as_str()),
        None => image.topic_by_id(TopicId(topic.topic_id)),
    };
    match &request.topics {
        Some(asked) if !asked.is_empty() || version != 0 => {
            asked.iter().filter_map(named).filter(|topic| starts(image, topic)).collect()
        }
        _ => image.topics().filter(|topic| starts(image, topic)).collect(),
    }
}

fn starts(image: &MetadataImage, topic: &TopicImage) -> bool {
    topic.partitions.values().any(|partition| {
        let never_led = partition.leader.is_none() && partition.leader_epoch == LeaderEpoch::UNKNOWN;
        never_led && offline(image, partition).len() < partition.replicas.len()
    })
}

/// What an answer depends on besides the image.
struct Asker {
    version: i16,
    listener: Arc<str>,
    cluster_id: String,
}

impl Asker {
    fn new(call: &Call) -> Self {
        Self {
            version: call.version(),
            listener: Arc::clone(&call.connection.listener.0),
            cluster_id: call.context.cluster_id().to_owned(),
        }
    }
}

fn topics_to_create(image: &MetadataImage, request: &MetadataRequest, version: i16) -> BTreeSet<String> {
    let allowed = version < 4 || request.allow_auto_topic_creation;
    let named = request.topics.iter().flatten().filter_map(|topic| topic.name.as_ref());
    let missing = named.map(|name| name.as_str()).filter(|name| {
        allowed && image.topic(name).is_none() && topic_name_problem(name).is_none() && !is_internal(name)
    });
    missing.map(ToOwned::to_owned).collect()
}

/// Creates the topics. Says for each why it is not there: of those that are created, that they have no leader yet.
async fn auto_create(context: &BrokerContext, names: &BTreeSet<String>) -> BTreeMap<String, Rejection> {
    let outcomes = crate::topic_creation::create_with_defaults(context, names).await;
    let pending = names.iter().filter(|name| !outcomes.contains_key(*name));
    let pending: Vec<_> = pending.map(|name| (name.clone(), Rejection::LeaderNotAvailable)).collect();
    outcomes.into_iter().chain(pending).collect()
}

/// `absent`: why a valid topic that the image lacks is not there; else it is unknown.
fn answer(
    image: &MetadataImage,
    request: &MetadataRequest,
    asker: &Asker,
    absent: &BTreeMap<String, Rejection>,
) -> MetadataResponse {
    let version = asker.version;
    let describe = |topic: &TopicImage| {
        let operations =
            if request.include_topic_authorized_operations { TOPIC_OPERATIONS } else { NOT_ASKED };
        describe_topic(image, topic, asker).with_topic_authorized_operations(operations)
    };
    let topics = match &request.topics {
        None => image.topics().map(|topic| describe(topic)).collect(),
        Some(asked) if asked.is_empty() && version == 0 => {
            image.topics().map(|topic| describe(topic)).collect()
        }
        Some(asked) => asked
            .iter()
            .map(|topic| {
                let name = topic.name.as_ref().map(|name| name.as_str());
                match find(image, name, topic.topic_id, version, absent) {
                    Ok(found) => describe(found),
                    Err(rejection) => refuse_topic(name, topic.topic_id, rejection, version),
                }
            })
            .collect(),
    };
    let response = MetadataResponse::default()
        .with_brokers(brokers(image, &asker.listener))
        .with_cluster_id(Some(StrBytes::from_string(asker.cluster_id.clone())))
        .with_controller_id(image.shown_controller().map_or(-1, |id| id.0).into())
        .with_topics(topics);
    if request.include_cluster_authorized_operations && (8..=10).contains(&version) {
        response.with_cluster_authorized_operations(CLUSTER_OPERATIONS)
    } else {
        response
    }
}

fn find<'a>(
    image: &'a MetadataImage,
    name: Option<&str>,
    topic_id: uuid::Uuid,
    version: i16,
    absent: &BTreeMap<String, Rejection>,
) -> Result<&'a TopicImage, Rejection> {
    if version < 12 && (name.is_none() || !topic_id.is_nil()) {
        return Err(Rejection::InvalidRequest);
    }
    if !topic_id.is_nil() {
        return image.topic_by_id(TopicId(topic_id)).map(AsRef::as_ref).ok_or(Rejection::UnknownTopicId);
    }
    let name = name.ok_or(Rejection::InvalidRequest)?;
    if topic_name_problem(name).is_some() {
        return Err(Rejection::InvalidTopicException);
    }
    let unknown = || absent.get(name).copied().unwrap_or(Rejection::UnknownTopicOrPartition);
    image.topic(name).map(AsRef::as_ref).ok_or_else(unknown)
}

fn refuse_topic(
    name: Option<&str>,
    topic_id: uuid::Uuid,
    rejection: Rejection,
    version: i16,
) -> MetadataResponseTopic {
    let by_id = 12 <= version && !topic_id.is_nil();
    let shown = if by_id { None } else { Some(to_wire_topic(name.unwrap_or_default())) };
    MetadataResponseTopic::default()
        .with_error_code(rejection.code())
        .with_name(shown)
        .with_topic_id(if 10 <= version { topic_id } else { uuid::Uuid::nil() })
        .with_is_internal(name.is_some_and(is_internal))
        .with_topic_authorized_operations(NOT_ASKED)
}

fn brokers(image: &MetadataImage, listener: &str) -> Vec<MetadataResponseBroker> {
    let brokers = image.brokers.iter().filter_map(|(id, broker)| {
        let address = broker.address(listener)?;
        Some(
            MetadataResponseBroker::default()
                .with_node_id(id.0.into())
                .with_host(address.host.clone().into())
                .with_port(i32::from(address.port))
                .with_rack(broker.rack.clone().map(StrBytes::from_string)),
        )
    });
    brokers.collect()
}

fn describe_topic(image: &MetadataImage, topic: &TopicImage, asker: &Asker) -> MetadataResponseTopic {
    let partitions = topic
        .partitions
        .iter()
        .map(|(number, partition)| describe_partition(image, *number, partition, asker));
    MetadataResponseTopic::default()
        .with_name(Some(to_wire_topic(&topic.name)))
        .with_topic_id(if 10 <= asker.version { topic.topic_id.0 } else { uuid::Uuid::nil() })
        .with_is_internal(is_internal(&topic.name))
        .with_partitions(partitions.collect())
}

fn describe_partition(
    image: &MetadataImage,
    number: i32,
    partition: &PartitionImage,
    asker: &Asker,
) -> MetadataResponsePartition {
    let reachable = |id: &BrokerId| image.reaches(*id, &asker.listener);
    let shown = |ids: &[BrokerId]| -> Vec<BrokerId> {
        ids.iter().copied().filter(|id| asker.version != 0 || reachable(id)).collect()
    };
    let (replicas, isr) = (shown(&partition.replicas), shown(&partition.isr));
    let leader = partition.leader.filter(reachable);
    let rejection = match partition.leader {
        Some(id) if leader.is_none() && 6 <= asker.version && image.brokers.contains_key(&id) => {
            Some(Rejection::ListenerNotFound)
        }
        _ if leader.is_none() => Some(Rejection::LeaderNotAvailable),
        _ if replicas.len() < partition.replicas.len() || isr.len() < partition.isr.len() => {
            Some(Rejection::ReplicaNotAvailable)
        }
        _ => None,
    };
    let offline = offline(image, partition);
    let epoch = if 7 <= asker.version { partition.leader_epoch.0 } else { -1 };
    MetadataResponsePartition::default()
        .with_error_code(rejection.map_or(0, Rejection::code))
        .with_partition_index(number)
        .with_leader_id(leader.map_or(-1, |id| id.0).into())
        .with_leader_epoch(epoch)
        .with_replica_nodes(to_wire_ids(&replicas))
        .with_isr_nodes(to_wire_ids(&isr))
        .with_offline_replicas(if 5 <= asker.version { to_wire_ids(&offline) } else { Vec::new() })
}

/// Replicas that are not reachable: told so, or of a broker that does not live.
pub(super) fn offline(image: &MetadataImage, partition: &PartitionImage) -> Vec<BrokerId> {
    let replicas = partition.replicas.iter().copied();
    replicas.filter(|id| partition.offline_replicas.contains(id) || !image.brokers.contains_key(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::assert_every_version_encodes;
    use crate::metadata::tests::{id, image, topic};

    fn asker(version: i16, listener: &str) -> Asker {
        Asker { version, listener: listener.into(), cluster_id: "cluster".to_owned() }
    }

    fn by_name(names: &[&str]) -> MetadataRequest {
        let topics =
            names.iter().map(|name| MetadataRequestTopic::default().with_name(Some(to_wire_topic(name))));
        MetadataRequest::default().with_topics(Some(topics.collect()))
    }

    fn ask(image: &MetadataImage, request: &MetadataRequest, version: i16) -> MetadataResponse {
        answer(image, request, &asker(version, "PLAINTEXT"), &BTreeMap::new())
    }

    #[test]
    fn every_version_encodes() {
        let image = image(vec![topic("a", id(1), &[1, -1]), topic("__consumer_offsets", id(2), &[2])]);
        let request = by_name(&["a", "missing", "bad name", "__consumer_offsets"])
            .with_include_topic_authorized_operations(true)
            .with_include_cluster_authorized_operations(true);
        assert_every_version_encodes::<MetadataRequest>(|version| {
            let mut request = request.clone();
            if version < 8 {
                request.include_topic_authorized_operations = false;
            }
            ask(&image, &request, version)
        });
    }

    #[test]
    fn null_and_empty_lists_mean_what_their_version_says() {
        let image = image(vec![topic("a", id(1), &[1]), topic("b", id(2), &[2])]);
        let all = MetadataRequest::default().with_topics(None);
        for (request, version, count) in
            [(&by_name(&[]), 0, 2), (&by_name(&[]), 1, 0), (&all, 1, 2), (&all, 12, 2)]
        {
            assert_eq!(ask(&image, request, version).topics.len(), count, "v{version}");
        }
    }

    #[test]
    fn topics_that_are_not_there_say_why() {
        let image = image(vec![topic("a", id(1), &[1])]);
        let codes = |request: &MetadataRequest, version| -> Vec<i16> {
            ask(&image, request, version).topics.iter().map(|topic| topic.error_code).collect()
        };
        assert_eq!(codes(&by_name(&["a", "b", "a b", ""]), 9), [0, 3, 17, 17]);
        let absent = BTreeMap::from([("b".to_owned(), Rejection::LeaderNotAvailable)]);
        let response = answer(&image, &by_name(&["b"]), &asker(9, "PLAINTEXT"), &absent);
        assert_eq!(response.topics[0].error_code, 5);

        let with_id = |number: u128| {
            let topic = MetadataRequestTopic::default().with_topic_id(id(number).0).with_name(None);
            MetadataRequest::default().with_topics(Some(vec![topic]))
        };
        assert_eq!(codes(&with_id(1), 12), [0]);
        assert_eq!(codes(&with_id(9), 12), [100]);
        assert_eq!(codes(&with_id(1), 10), [42], "ids are accepted from version 12 on");
        assert_eq!(ask(&image, &with_id(9), 12).topics[0].name, None);
    }

    #[test]
    fn cli_16_partitions_without_a_reachable_leader_say_so() {
        let mut image = image(vec![topic("a", id(1), &[1, -1, 3])]);
        image.brokers.remove(&BrokerId(2));
        let partitions = |listener: &str, version| {
            let response = answer(&image, &by_name(&["a"]), &asker(version, listener), &BTreeMap::new());
            response.topics[0].partitions.clone()
        };
        let codes = |listener: &str, version| -> Vec<i16> {
            partitions(listener, version).iter().map(|partition| partition.error_code).collect()
        };
        assert_eq!(codes("PLAINTEXT", 12), [0, 5, 5]);
        assert_eq!(codes("PLAINTEXT", 0), [9, 5, 5], "a replica is not alive");
        assert_eq!(codes("OTHER", 12), [72, 5, 5]);
        assert_eq!(codes("OTHER", 5), [5, 5, 5]);
        let first = &partitions("PLAINTEXT", 12)[0];
        assert_eq!((first.leader_id.0, first.leader_epoch), (1, 5));
        assert_eq!(first.offline_replicas, to_wire_ids(&[BrokerId(2)]));
    }

    #[test]
    fn answers_wait_for_the_first_leaders_of_what_is_asked_for() {
        let mut new = topic("new", id(1), &[1, -1]);
        new.partition_states[1].leader_epoch = LeaderEpoch::UNKNOWN.0;
        let mut image = image(vec![new, topic("offline", id(2), &[1, -1]), topic("led", id(3), &[1])]);
        let starting = |image: &MetadataImage, request: &MetadataRequest, version| {
            !super::starting(image, request, version).is_empty()
        };
        assert!(starting(&image, &by_name(&["led", "new"]), 9));
        let by_id = MetadataRequestTopic::default().with_topic_id(id(1).0).with_name(None);
        assert!(starting(&image, &MetadataRequest::default().with_topics(Some(vec![by_id])), 12));
        let all = MetadataRequest::default().with_topics(None);
        assert!(starting(&image, &all, 9) && starting(&image, &by_name(&[]), 0));
        assert!(!starting(&image, &by_name(&[]), 1));
        assert!(!starting(&image, &by_name(&["led", "missing"]), 9));
        let had_one = by_name(&["offline"]);
        assert!(!starting(&image, &had_one, 9), "it has had a leader, and may have none for hours");
        image.brokers.clear();
        assert!(!starting(&image, &by_name(&["new"]), 9), "nobody can lead it");
    }

    #[test]
    fn only_valid_missing_topics_are_created_and_only_if_allowed() {
        let image = image(vec![topic("a", id(1), &[1])]);
        let request = by_name(&["a", "b", "b", "bad name", "__consumer_offsets"]);
        let forbidden = request.clone().with_allow_auto_topic_creation(false);
        assert_eq!(topics_to_create(&image, &request, 4), BTreeSet::from(["b".to_owned()]));
        assert!(topics_to_create(&image, &forbidden, 4).is_empty());
        assert_eq!(topics_to_create(&image, &forbidden, 3).len(), 1, "older versions cannot forbid it");
    }
}
