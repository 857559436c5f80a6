//! Replays the recorded frames against our broker, in their order and unchanged. Every answer has the same version
//! and header and decodes to its last byte; what does not depend on the cluster is what Kafka 3.9 answered.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Message, Request};
use zurau_tests::kafka::{Connection, api_versions_request};
use zurau_tests::{Cluster, TestDirectory, eventually, scenario};

use crate::frames::{Frame, by_key, decode_request, decode_response, read_frames};

const TEST: &str = "recorded_frames_get_kafkas_answers";
/// Requests that only a controller or another broker sends. Their recorded epochs are wrong here.
const CONTROL_KEYS: [i16; 5] = [4, 5, 6, 27, 67];
/// What this project serves from the start, with the newest version that both Kafka 3.9 and the wire crate have.
const SERVED_KEYS: [i16; 12] = [0, 1, 2, 3, 10, 18, 19, 20, 22, 32, 37, 60];

const OFFSET_OUT_OF_RANGE: i16 = 1;

#[test]
fn recorded_frames_get_kafkas_answers() {
    scenario("replay", |directory| {
        let Some(frames) = read_frames(TEST)? else { return Ok(()) };
        replay_all(directory, &frames)
    });
}

struct Replay<'a> {
    cluster: &'a Cluster,
    /// Ranges that our broker says it serves.
    served: BTreeMap<i16, (i16, i16)>,
    connections: HashMap<String, Connection>,
    /// Topics that a transaction wrote to, here not: their offsets differ.
    transactional: BTreeSet<String>,
    compared: usize,
    closed: usize,
}

fn replay_all(directory: &TestDirectory, frames: &[Frame]) -> Result<()> {
    let mut cluster = Cluster::builder()
        .brokers(1)
        .set("num.partitions", 3)
        .set("auto.create.topics.enable", true)
        .set("log.message.timestamp.after.max.ms", i64::MAX)
        .set_for_brokers("broker.id", 0)
        .start(directory)?;
    let address = cluster.bootstrap();
    let mut replay = Replay {
        cluster: &cluster,
        served: served(&address)?,
        connections: HashMap::new(),
        transactional: transactional_topics(frames)?,
        compared: 0,
        closed: 0,
    };
    for key in SERVED_KEYS {
        ensure!(replay.served.contains_key(&key), "request key {key} is not served: {:?}", replay.served);
    }
    let (control, clients): (Vec<&Frame>, Vec<&Frame>) =
        frames.iter().partition(|frame| CONTROL_KEYS.contains(&frame.api_key));
    for frame in clients {
        by_key!(frame.api_key, replay_one(&mut replay, &address, frame)).with_context(|| describe(frame))?;
    }
    let before = cluster_metadata(&address)?;
    replay.connections.clear();
    for frame in control {
        by_key!(frame.api_key, survives(&mut replay, &address, frame)).with_context(|| describe(frame))?;
    }
    let after = cluster_metadata(&address)?;
    ensure!(before == after, "a stale controller's request changed the metadata: {before:?} {after:?}");
    let (compared, closed) = (replay.compared, replay.closed);
    eprintln!(
        "{compared} answers compared with Kafka's, {closed} requests of interfaces not served yet refused"
    );
    ensure!(compared >= 130, "only {compared} answers were compared");
    cluster.check_running()
}

fn describe(frame: &Frame) -> String {
    format!("line {} ({}): key {} version {}", frame.line, frame.client, frame.api_key, frame.api_version)
}

fn served(address: &str) -> Result<BTreeMap<i16, (i16, i16)>> {
    let answer = Connection::open(address)?.call(3, &api_versions_request())?;
    ensure!(answer.error_code == 0, "ApiVersions: error {}", answer.error_code);
    Ok(answer.api_keys.iter().map(|range| (range.api_key, (range.min_version, range.max_version))).collect())
}

fn cluster_metadata(address: &str) -> Result<String> {
    let request = MetadataRequest::default().with_topics(None);
    let mut answer = Connection::open(address)?.call(12, &request)?;
    answer.topics.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(format!("{answer:?}"))
}

fn transactional_topics(frames: &[Frame]) -> Result<BTreeSet<String>> {
    let mut topics = BTreeSet::new();
    for frame in frames.iter().filter(|frame| frame.api_key == 0) {
        let (_, request) = decode_request::<ProduceRequest>(frame)?;
        if request.transactional_id.is_some() {
            topics.extend(request.topic_data.iter().map(|topic| topic.name.to_string()));
        }
    }
    Ok(topics)
}

/// Sends the frame unchanged; `None` when the broker closes the connection.
fn send(replay: &mut Replay<'_>, address: &str, frame: &Frame) -> Result<Option<bytes::Bytes>> {
    let mut connection = match replay.connections.remove(&frame.client) {
        Some(connection) => connection,
        None => Connection::open(address)?,
    };
    connection.send_frame(&frame.request)?;
    let answer = connection.read_frame()?;
    if answer.is_some() {
        replay.connections.insert(frame.client.clone(), connection);
    }
    Ok(answer)
}

fn is_served(replay: &Replay<'_>, frame: &Frame) -> bool {
    let range = replay.served.get(&frame.api_key);
    range.is_some_and(|(min, max)| (*min..=*max).contains(&frame.api_version))
}

fn replay_one<R>(replay: &mut Replay<'_>, address: &str, frame: &Frame) -> Result<()>
where
    R: Request + Any,
    R::Response: Any + std::fmt::Debug,
{
    let (header, request) = decode_request::<R>(frame)?;
    if !is_served(replay, frame) {
        ensure!(!SERVED_KEYS.contains(&frame.api_key), "our broker does not serve this version");
        return survives::<R>(replay, address, frame);
    }
    let answer = send(replay, address, frame)?.context("the broker closed the connection")?;
    let (answer_header, ours) = decode_response::<R>(&answer, frame.api_version)?;
    let (_, theirs) = decode_response::<R>(&frame.response, frame.api_version)?;
    ensure!(answer_header.correlation_id == header.correlation_id, "the answer is to another request");
    compare(replay, &request, &ours, &theirs)
        .with_context(|| format!("ours:  {}\nKafka: {}", shortened(&ours), shortened(&theirs)))?;
    replay.compared += 1;
    wait_for_topics(replay, &request)
}

fn shortened(answer: &impl std::fmt::Debug) -> String {
    let text = format!("{answer:?}").replace(", unknown_tagged_fields: {}", "");
    text.chars().take(2000).collect()
}

/// The broker answers or closes the connection, and lives.
fn survives<R: Request>(replay: &mut Replay<'_>, address: &str, frame: &Frame) -> Result<()> {
    let (header, _) = decode_request::<R>(frame)?;
    match send(replay, address, frame)? {
        Some(answer) => {
            let (answer, _) = decode_response::<R>(&answer, frame.api_version)?;
            ensure!(answer.correlation_id == header.correlation_id, "the answer is to another request");
        }
        None => replay.closed += 1,
    }
    served(address).map(|_| ())
}

/// The recorded clients asked again until a topic that they had created was there; the replay waits instead.
fn wait_for_topics<R: Any>(replay: &Replay<'_>, request: &R) -> Result<()> {
    let request: &dyn Any = request;
    let mut names: Vec<String> = Vec::new();
    if let Some(request) = request.downcast_ref::<MetadataRequest>() {
        let topics = request.topics.iter().flatten().filter(|_| request.allow_auto_topic_creation);
        names.extend(topics.filter_map(|topic| topic.name.as_ref().map(|name| name.to_string())));
    } else if let Some(request) = request.downcast_ref::<CreateTopicsRequest>() {
        names.extend(request.topics.iter().map(|topic| topic.name.to_string()));
    }
    let mut client = replay.cluster.client();
    for name in names {
        eventually(&format!("topic {name} leads"), Duration::from_secs(15), || {
            let topic = client.topic(&name)?;
            let leads = topic.partitions.iter().all(|partition| partition.error_code == 0);
            Ok((leads && !topic.partitions.is_empty()).then_some(()))
        })?;
    }
    Ok(())
}

fn compare<R: Any, A: Any>(replay: &Replay<'_>, request: &R, ours: &A, theirs: &A) -> Result<()> {
    let request: &dyn Any = request;
    let pair = (ours as &dyn Any, theirs as &dyn Any);
    if let Some(request) = request.downcast_ref::<ProduceRequest>() {
        return compare_produce(replay, request, typed(pair)?);
    }
    if let Some(request) = request.downcast_ref::<FetchRequest>() {
        return compare_fetch(replay, request, typed(pair)?);
    }
    if let Some(request) = request.downcast_ref::<MetadataRequest>() {
        return compare_metadata(request, typed(pair)?);
    }
    if request.is::<ListOffsetsRequest>() {
        return compare_list_offsets(typed(pair)?);
    }
    if request.is::<ApiVersionsRequest>() {
        return compare_api_versions(typed(pair)?);
    }
    if request.is::<CreateTopicsRequest>() {
        return compare_create_topics(typed(pair)?);
    }
    if request.is::<DescribeConfigsRequest>() {
        return compare_describe_configs(typed(pair)?);
    }
    compare_small(request, pair)
}

fn typed<'a, A: 'static>(pair: (&'a dyn Any, &'a dyn Any)) -> Result<(&'a A, &'a A)> {
    Ok((
        pair.0.downcast_ref().context("an answer of another kind")?,
        pair.1.downcast_ref().context("an answer of another kind")?,
    ))
}

fn compare_produce(
    replay: &Replay<'_>,
    request: &ProduceRequest,
    (ours, theirs): (&ProduceResponse, &ProduceResponse),
) -> Result<()> {
    if request.transactional_id.is_some() {
        return Ok(());
    }
    let mut ours = ours.clone();
    for (ours, theirs) in ours.responses.iter_mut().zip(&theirs.responses) {
        if replay.transactional.contains(&*theirs.name.0) {
            for (ours, theirs) in ours.partition_responses.iter_mut().zip(&theirs.partition_responses) {
                ours.base_offset = theirs.base_offset; // one partition a request in these
            }
        }
    }
    // In which order the partitions stand means nothing.
    let sorted = |mut answer: ProduceResponse| {
        for topic in &mut answer.responses {
            topic.partition_responses.sort_by_key(|partition| partition.index);
        }
        answer
    };
    ensure!(sorted(ours) == sorted(theirs.clone()), "another answer to Produce");
    Ok(())
}

fn compare_fetch(
    replay: &Replay<'_>,
    request: &FetchRequest,
    (ours, theirs): (&FetchResponse, &FetchResponse),
) -> Result<()> {
    // A recorded session or topic id means nothing here; real clients test both.
    let by_id = request.topics.iter().any(|topic| !topic.topic_id.is_nil());
    if request.session_id != 0 || by_id || theirs.responses.is_empty() {
        return Ok(());
    }
    ensure!(ours.error_code == theirs.error_code, "another error");
    for theirs in &theirs.responses {
        if replay.transactional.contains(&*theirs.topic.0) {
            continue;
        }
        let ours =
            ours.responses.iter().find(|ours| ours.topic == theirs.topic).context("a topic is missing")?;
        for theirs in &theirs.partitions {
            let ours = ours.partitions.iter().find(|ours| ours.partition_index == theirs.partition_index);
            let mut ours = ours.context("a partition is missing")?.clone();
            if ours.high_watermark != theirs.high_watermark {
                // Not every produce request was recorded: another log, other data, and offsets that are not there.
                let beyond_the_end = ours.error_code == OFFSET_OUT_OF_RANGE;
                ensure!(beyond_the_end || ours.error_code == theirs.error_code, "another error");
                continue;
            }
            // Kafka answers a first fetch without data by null or empty records; both mean the same.
            if ours.records.as_ref().is_none_or(|records| records.is_empty())
                && theirs.records.as_ref().is_none_or(|records| records.is_empty())
            {
                ours.records.clone_from(&theirs.records);
            }
            ensure!(ours == *theirs, "another answer for partition {}", theirs.partition_index);
        }
    }
    Ok(())
}

fn compare_metadata(
    request: &MetadataRequest,
    (ours, theirs): (&MetadataResponse, &MetadataResponse),
) -> Result<()> {
    ensure!(ours.throttle_time_ms == 0 && ours.controller_id == theirs.controller_id, "another controller");
    ensure!(ours.cluster_id.is_some() == theirs.cluster_id.is_some(), "a cluster id where there is none");
    let operations = theirs.cluster_authorized_operations;
    ensure!(ours.cluster_authorized_operations == operations, "other authorized operations");
    let nodes =
        |answer: &MetadataResponse| -> Vec<i32> { answer.brokers.iter().map(|b| b.node_id.0).collect() };
    ensure!(nodes(ours) == nodes(theirs), "other brokers");
    if request.topics.as_ref().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    for theirs in &theirs.topics {
        let ours = ours.topics.iter().find(|ours| ours.name == theirs.name).context("a topic is missing")?;
        // 5, LEADER_NOT_AVAILABLE, while it is being created: how often depends on the moment.
        if theirs.error_code == 5 || ours.error_code == 5 {
            continue;
        }
        let sorted = |topic: &metadata_response::MetadataResponseTopic| {
            let mut topic = topic.clone().with_topic_id(uuid::Uuid::nil());
            topic.partitions.sort_by_key(|partition| partition.partition_index);
            topic
        };
        ensure!(sorted(ours) == sorted(theirs), "topic {:?} differs", theirs.name);
        ensure!(ours.topic_id.is_nil() == theirs.topic_id.is_nil(), "a topic id where there is none");
    }
    Ok(())
}

fn compare_list_offsets((ours, theirs): (&ListOffsetsResponse, &ListOffsetsResponse)) -> Result<()> {
    // Not every produce request was recorded, so that only what stands at the start of a log is the same here.
    let known = |answer: &ListOffsetsResponse, like: &ListOffsetsResponse| {
        let mut answer = answer.clone();
        for (topic, like) in answer.topics.iter_mut().zip(&like.topics) {
            for (partition, like) in topic.partitions.iter_mut().zip(&like.partitions) {
                if like.offset > 0 {
                    (partition.offset, partition.timestamp) = (0, 0);
                }
            }
        }
        answer
    };
    ensure!(known(ours, theirs) == known(theirs, theirs), "another answer to ListOffsets");
    Ok(())
}

fn compare_api_versions((ours, theirs): (&ApiVersionsResponse, &ApiVersionsResponse)) -> Result<()> {
    ensure!(ours.error_code == theirs.error_code, "another error");
    for key in SERVED_KEYS {
        let range = |answer: &ApiVersionsResponse| {
            let found = answer.api_keys.iter().find(|range| range.api_key == key);
            found.map(|range| (range.min_version, range.max_version))
        };
        let (min, max) = range(ours).with_context(|| format!("key {key} is missing"))?;
        let (_, kafka_max) = range(theirs).with_context(|| format!("Kafka lacks key {key}"))?;
        let crate_range = by_key!(key, versions());
        let lowest = match key {
            0 => 3,
            1 => 4,
            _ => crate_range.min,
        };
        let highest = match key {
            // Transactions of version 2 (KIP-890) are Kafka 4's.
            0 => 12,
            26 | 28 => 5,
            _ => kafka_max.min(crate_range.max),
        };
        ensure!((min, max) == (lowest, highest), "key {key}: {min}-{max}, wanted {lowest}-{highest}");
    }
    Ok(())
}

fn versions<R: Request>() -> kafka_protocol::protocol::VersionRange {
    <R as Message>::VERSIONS
}

fn compare_create_topics((ours, theirs): (&CreateTopicsResponse, &CreateTopicsResponse)) -> Result<()> {
    ensure!(ours.topics.len() == theirs.topics.len(), "another number of topics");
    for (ours, theirs) in ours.topics.iter().zip(&theirs.topics) {
        let plain = |topic: &create_topics_response::CreatableTopicResult| {
            topic.clone().with_topic_id(uuid::Uuid::nil()).with_configs(None)
        };
        ensure!(plain(ours) == plain(theirs), "topic {:?} differs", theirs.name);
        ensure!(ours.topic_id.is_nil() == theirs.topic_id.is_nil(), "a topic id where there is none");
        let values =
            |topic: &create_topics_response::CreatableTopicResult| -> BTreeMap<String, Option<String>> {
                let all = topic.configs.iter().flatten();
                all.map(|one| (one.name.to_string(), one.value.as_ref().map(|value| value.to_string())))
                    .collect()
            };
        same_values(&values(ours), &values(theirs))?;
    }
    Ok(())
}

fn compare_describe_configs(
    (ours, theirs): (&DescribeConfigsResponse, &DescribeConfigsResponse),
) -> Result<()> {
    ensure!(ours.results.len() == theirs.results.len(), "another number of resources");
    for (ours, theirs) in ours.results.iter().zip(&theirs.results) {
        ensure!(
            (ours.error_code, ours.resource_type, &ours.resource_name)
                == (theirs.error_code, theirs.resource_type, &theirs.resource_name),
            "another resource"
        );
        // 5: a default. What was altered before is not altered here yet.
        let values = |result: &describe_configs_response::DescribeConfigsResult| {
            let defaults = result.configs.iter().filter(|config| config.config_source == 5);
            let pair = |one: &describe_configs_response::DescribeConfigsResourceResult| {
                (one.name.to_string(), one.value.as_ref().map(|value| value.to_string()))
            };
            defaults.map(pair).collect()
        };
        same_values(&values(ours), &values(theirs))?;
    }
    Ok(())
}

/// Every configuration key that both have, has Kafka's default here.
fn same_values(
    ours: &BTreeMap<String, Option<String>>,
    theirs: &BTreeMap<String, Option<String>>,
) -> Result<()> {
    ensure!(ours.is_empty() == theirs.is_empty(), "configuration where there is none");
    for (key, value) in ours {
        // The test's own cluster allows any timestamp.
        if key == "message.timestamp.after.max.ms" {
            continue;
        }
        if let Some(theirs) = theirs.get(key) {
            ensure!(value == theirs, "{key} is {value:?}, Kafka's default is {theirs:?}");
        }
    }
    Ok(())
}

fn compare_small(request: &dyn Any, pair: (&dyn Any, &dyn Any)) -> Result<()> {
    if let Some(request) = request.downcast_ref::<InitProducerIdRequest>() {
        if request.transactional_id.is_some() {
            return Ok(()); // there are no transactions yet
        }
        let (ours, theirs): (&InitProducerIdResponse, &InitProducerIdResponse) = typed(pair)?;
        // 14 and 15: Kafka's coordinator was still loading when this was recorded.
        let loading = [14, 15].contains(&theirs.error_code);
        ensure!(loading || ours.error_code == theirs.error_code, "another error");
        ensure!(loading || ours.producer_epoch == theirs.producer_epoch, "another producer epoch");
    } else if request.is::<DeleteTopicsRequest>() {
        let (ours, theirs): (&DeleteTopicsResponse, &DeleteTopicsResponse) = typed(pair)?;
        let plain = |answer: &DeleteTopicsResponse| -> Vec<_> {
            answer.responses.iter().map(|one| (one.name.clone(), one.error_code)).collect()
        };
        ensure!(plain(ours) == plain(theirs), "another answer to DeleteTopics");
    } else if request.is::<CreatePartitionsRequest>() {
        let (ours, theirs): (&CreatePartitionsResponse, &CreatePartitionsResponse) = typed(pair)?;
        ensure!(ours == theirs, "another answer to CreatePartitions");
    } else if request.is::<DescribeClusterRequest>() {
        let (ours, theirs): (&DescribeClusterResponse, &DescribeClusterResponse) = typed(pair)?;
        let plain = |answer: &DescribeClusterResponse| {
            let ids: Vec<i32> = answer.brokers.iter().map(|broker| broker.broker_id.0).collect();
            (answer.error_code, answer.controller_id, ids, answer.endpoint_type)
        };
        ensure!(plain(ours) == plain(theirs), "another cluster");
    } else if request.is::<FindCoordinatorRequest>() {
        // Answered clearly; there is no coordinator yet.
        let (_, _): (&FindCoordinatorResponse, &FindCoordinatorResponse) = typed(pair)?;
    } else if pair.0.type_id() != pair.1.type_id() {
        bail!("an answer of another kind");
    }
    Ok(())
}
