//! Consumer groups whose coordinator is killed, comes back and is killed again: members stay members, no committed
//! offset is lost, and "no offset" is never said of one that was committed (GRP-03, G1).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
    OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers};

on_both_zookeepers!(a_killed_coordinator_loses_no_offset);

const GROUP: &str = "readers";
const TOPIC: &str = "t";
const PARTITIONS: i32 = 4;
/// Long enough that no member expires while a coordinator is replaced.
const SESSION_MS: i32 = 120_000;

const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const NOT_COORDINATOR: i16 = 16;
const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

/// Errors that tell a client to look for the coordinator and ask again.
fn is_retriable(code: i16) -> bool {
    [COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR].contains(&code)
}

fn group_id() -> GroupId {
    GroupId(StrBytes::from_static_str(GROUP))
}

/// The coordinator as the first broker that answers names it: its id and address.
fn find(cluster: &Cluster, client: &mut KafkaClient) -> Result<Option<(i32, String)>> {
    let request = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str(GROUP));
    for broker in cluster.brokers.iter().filter(|broker| broker.is_running()) {
        let Ok(answer) = client.call(&broker.address(), 2, &request) else { continue };
        if answer.error_code == 0 {
            return Ok(Some((answer.node_id.0, format!("{}:{}", answer.host, answer.port))));
        }
        ensure!(answer.error_code == COORDINATOR_NOT_AVAILABLE, "error {}", answer.error_code);
    }
    Ok(None)
}

/// Asks the coordinator until it answers with something else than "look again"; a broken connection counts as that.
fn ask<T>(
    cluster: &Cluster,
    client: &mut KafkaClient,
    what: &str,
    mut request: impl FnMut(&mut KafkaClient, &str) -> Result<(i16, T)>,
) -> Result<(i16, T)> {
    eventually(what, START_LIMIT, || {
        let Some((_, address)) = find(cluster, client)? else { return Ok(None) };
        Ok(request(client, &address).ok().filter(|(code, _)| !is_retriable(*code)))
    })
}

fn join(cluster: &Cluster, client: &mut KafkaClient, member: &str) -> Result<(i16, JoinGroupResponse)> {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str("range"))
        .with_metadata(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]));
    let request = JoinGroupRequest::default()
        .with_group_id(group_id())
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_member_id(StrBytes::from_string(member.to_owned()))
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol]);
    ask(cluster, client, "JoinGroup", |client, address| {
        let answer = client.call(address, 9, &request)?;
        Ok((answer.error_code, answer))
    })
}

/// Becomes the only member; returns its id and generation.
fn become_member(cluster: &Cluster, client: &mut KafkaClient) -> Result<(StrBytes, i32)> {
    let (code, first) = join(cluster, client, "")?;
    ensure!(code == MEMBER_ID_REQUIRED, "the first join was answered with {code}");
    let (code, joined) = join(cluster, client, &first.member_id)?;
    ensure!(code == 0 && joined.leader == first.member_id, "{joined:?}");
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(first.member_id.clone())
        .with_assignment(Bytes::from_static(b"all of it"));
    let request = SyncGroupRequest::default()
        .with_group_id(group_id())
        .with_member_id(first.member_id.clone())
        .with_generation_id(joined.generation_id)
        .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
        .with_protocol_name(Some(StrBytes::from_static_str("range")))
        .with_assignments(vec![assignment]);
    let (code, assigned) = ask(cluster, client, "SyncGroup", |client, address| {
        let answer = client.call(address, 5, &request)?;
        Ok((answer.error_code, answer.assignment))
    })?;
    ensure!((code, &assigned[..]) == (0, &b"all of it"[..]), "error {code}, {assigned:?}");
    Ok((first.member_id, joined.generation_id))
}

/// Commits `offset` for every partition and waits until it is acknowledged.
fn commit(
    cluster: &Cluster,
    client: &mut KafkaClient,
    (member, generation): &(StrBytes, i32),
    offset: i64,
) -> Result<()> {
    let partition = |number| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(number)
            .with_committed_offset(offset + i64::from(number))
            .with_committed_metadata(Some(StrBytes::from_string(format!("round {offset}"))))
    };
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partitions((0..PARTITIONS).map(partition).collect());
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id())
        .with_member_id(member.clone())
        .with_generation_id_or_member_epoch(*generation)
        .with_topics(vec![topic]);
    let (code, ()) = ask(cluster, client, "OffsetCommit", |client, address| {
        let answer = client.call(address, 8, &request)?;
        let codes = answer.topics.iter().flat_map(|topic| &topic.partitions).map(|each| each.error_code);
        Ok((codes.max().context("no partition in the answer")?, ()))
    })?;
    ensure!(code == 0, "the commit of {offset} was answered with {code}");
    Ok(())
}

/// One look at what is committed, at any broker: `None` for an answer that says "ask again" or "not here".
fn look(client: &mut KafkaClient, address: &str) -> Result<Option<Vec<i64>>> {
    let topic = OffsetFetchRequestTopics::default()
        .with_name(topic_name(TOPIC))
        .with_partition_indexes((0..PARTITIONS).collect());
    let group = OffsetFetchRequestGroup::default().with_group_id(group_id()).with_topics(Some(vec![topic]));
    let request = OffsetFetchRequest::default().with_groups(vec![group]).with_require_stable(true);
    let Ok(answer) = client.call(address, 8, &request) else { return Ok(None) };
    let group = answer.groups.first().context("no group in the answer")?;
    if is_retriable(group.error_code) {
        return Ok(None);
    }
    ensure!(group.error_code == 0, "error {}", group.error_code);
    let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
    Ok(Some(partitions.map(|partition| partition.committed_offset).collect()))
}

/// Looks at every broker until one answers: whoever answers says what was committed.
fn check_offsets(cluster: &Cluster, client: &mut KafkaClient, offset: i64) -> Result<()> {
    let expected: Vec<i64> = (0..PARTITIONS).map(|number| offset + i64::from(number)).collect();
    // A wrong answer ends the wait; it is not a reason to look again.
    let answered = eventually("the committed offsets", START_LIMIT, || {
        for broker in cluster.brokers.iter().filter(|broker| broker.is_running()) {
            if let Some(found) = look(client, &broker.address())? {
                return Ok(Some((broker.id, found)));
            }
        }
        Ok(None)
    })?;
    ensure!(answered.1 == expected, "broker {} says {:?} instead of {expected:?}", answered.0, answered.1);
    Ok(())
}

fn a_killed_coordinator_loses_no_offset(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    let mut cluster = Cluster::builder()
        .zookeeper(kind)
        .set_for_brokers("min.insync.replicas", 2)
        .set_for_brokers("offsets.topic.num.partitions", 5)
        .set_for_brokers("group.initial.rebalance.delay.ms", 0)
        .start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2,3]", "[2,3,1]", "[3,1,2]", "[1,3,2]"])?;
    let mut client = cluster.client();
    let member = become_member(&cluster, &mut client)?;
    commit(&cluster, &mut client, &member, 100)?;
    check_offsets(&cluster, &mut client, 100)?;
    for round in 2..=4i64 {
        let (coordinator, _) = eventually("a coordinator", START_LIMIT, || find(&cluster, &mut client))?;
        cluster.broker(coordinator)?.kill()?;
        check_offsets(&cluster, &mut client, 100 * (round - 1))?;
        commit(&cluster, &mut client, &member, 100 * round)?;
        check_offsets(&cluster, &mut client, 100 * round)?;
        heartbeat(&cluster, &mut client, &member)?;
        cluster.broker(coordinator)?.start()?;
        cluster.wait_until_complete(START_LIMIT)?;
        cluster.wait_for_full_isr("__consumer_offsets", 5, Duration::from_secs(60))?;
    }
    cluster.check_running()
}

/// The member is still one, and of the same generation.
fn heartbeat(
    cluster: &Cluster,
    client: &mut KafkaClient,
    (member, generation): &(StrBytes, i32),
) -> Result<()> {
    let request = HeartbeatRequest::default()
        .with_group_id(group_id())
        .with_member_id(member.clone())
        .with_generation_id(*generation);
    let (code, ()) = ask(cluster, client, "Heartbeat", |client, address| {
        Ok((client.call(address, 4, &request)?.error_code, ()))
    })?;
    ensure!(code == 0, "heartbeat {code} (rebalancing would be {REBALANCE_IN_PROGRESS})");
    Ok(())
}
