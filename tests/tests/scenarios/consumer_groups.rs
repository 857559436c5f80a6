//! Groups of the consumer protocol (KIP-848) with librdkafka: members come and go and coordinators are killed. No
//! partition is ever read by two, everything is read, and nothing again that was committed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, FindCoordinatorRequest, GroupId, InitProducerIdRequest, JoinGroupRequest,
    OffsetCommitRequest, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::clients::{RunningScript, python_missing};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::history::{lines, read_history};
use zurau_tests::kafka::{KafkaClient, topic_name};
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, on_both_zookeepers, scenario, skip};

on_both_zookeepers!(members_and_coordinators_come_and_go);

const GROUP: &str = "readers";
const INVALID_GROUP_ID: i16 = 24;
const INVALID_REQUEST: i16 = 42;
const STOP_LIMIT: Duration = Duration::from_secs(60);

fn start(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<Cluster> {
    Cluster::builder()
        .zookeeper(kind)
        .set_for_brokers("min.insync.replicas", 2)
        .set_for_brokers("offsets.topic.num.partitions", 3)
        .set_for_brokers("group.consumer.min.session.timeout.ms", 1_000)
        .set_for_brokers("group.consumer.session.timeout.ms", 10_000)
        .set_for_brokers("group.consumer.min.heartbeat.interval.ms", 100)
        .set_for_brokers("group.consumer.heartbeat.interval.ms", 300)
        .start(directory)
}

/// A running member and where it notes what it sees.
struct Member {
    script: RunningScript,
    history: PathBuf,
}

impl Member {
    fn start(
        cluster: &Cluster,
        directory: &TestDirectory,
        name: &str,
        topic: &str,
        instance: Option<&str>,
    ) -> Result<Self> {
        let history = directory.join(&format!("{name}.history"));
        let path = history.display().to_string();
        let bootstrap = cluster.bootstrap();
        let mut arguments = vec![bootstrap.as_str(), GROUP, topic, path.as_str()];
        arguments.extend(instance);
        let log = directory.join(&format!("{name}.log"));
        let script = RunningScript::start("group_member.py", &arguments, &log)?;
        Ok(Self { script, history })
    }
}

/// The coordinator's id and address, as the first broker that answers names it.
fn coordinator(cluster: &Cluster, client: &mut KafkaClient) -> Result<Option<(i32, String)>> {
    let request = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str(GROUP));
    for broker in cluster.brokers.iter().filter(|broker| broker.is_running()) {
        let Ok(answer) = client.call(&broker.address(), 2, &request) else { continue };
        if answer.error_code == 0 {
            return Ok(Some((answer.node_id.0, format!("{}:{}", answer.host, answer.port))));
        }
    }
    Ok(None)
}

fn describe(cluster: &Cluster, client: &mut KafkaClient) -> Result<Option<DescribedGroup>> {
    let Some((_, address)) = coordinator(cluster, client)? else { return Ok(None) };
    let id = GroupId(StrBytes::from_static_str(GROUP));
    let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![id]);
    let Ok(answer) = client.call(&address, 0, &request) else { return Ok(None) };
    Ok(answer.groups.into_iter().next().filter(|group| group.error_code == 0))
}

/// Waits until the group is at rest with so many partitions for each member, in ascending order.
fn wait_for_rest(cluster: &Cluster, client: &mut KafkaClient, shares: &[usize]) -> Result<DescribedGroup> {
    eventually("the group at rest", START_LIMIT, || {
        let Some(group) = describe(cluster, client)? else { return Ok(None) };
        let mut found: Vec<usize> = group
            .members
            .iter()
            .map(|member| member.assignment.topic_partitions.iter().map(|topic| topic.partitions.len()).sum())
            .collect();
        found.sort_unstable();
        Ok((&*group.group_state == "Stable" && found == shares).then_some(group))
    })
}

/// What a member noted between getting a partition and giving it up. Times are nanoseconds of one clock.
#[derive(Debug)]
struct Tenure {
    member: String,
    begin: i64,
    end: i64,
    /// Time and offset.
    reads: Vec<(i64, i64)>,
    commits: Vec<(i64, i64)>,
    values: BTreeSet<String>,
}

fn read_tenures(members: &[PathBuf]) -> Result<BTreeMap<String, Vec<Tenure>>> {
    let mut tenures: BTreeMap<String, Vec<Tenure>> = BTreeMap::new();
    for path in members {
        let mut open: BTreeMap<String, Tenure> = BTreeMap::new();
        let mut last = 0;
        for line in std::fs::read_to_string(path)?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, time, place, rest @ ..] = words.as_slice() else { anyhow::bail!("'{line}'") };
            last = time.parse()?;
            if *kind == "assigned" {
                let tenure = Tenure {
                    member: path.display().to_string(),
                    begin: last,
                    end: i64::MAX,
                    reads: Vec::new(),
                    commits: Vec::new(),
                    values: BTreeSet::new(),
                };
                ensure!(open.insert((*place).to_owned(), tenure).is_none(), "{line}: it had that already");
                continue;
            }
            let tenure = open.get_mut(*place).with_context(|| format!("{line}: it was not told to"))?;
            match *kind {
                "read" => {
                    tenure.reads.push((last, rest[0].parse()?));
                    tenure.values.insert(rest[1].to_owned());
                }
                "committed" => tenure.commits.push((last, rest[0].parse()?)),
                _ => {
                    let mut ended = open.remove(*place).context("looked up above")?;
                    ended.end = last;
                    tenures.entry((*place).to_owned()).or_default().push(ended);
                }
            }
        }
        for (place, mut tenure) in open {
            tenure.end = last;
            tenures.entry(place).or_default().push(tenure);
        }
    }
    Ok(tenures)
}

/// Holds what the members noted against each other.
fn check_tenures(tenures: &mut BTreeMap<String, Vec<Tenure>>) -> Result<()> {
    for (place, tenures) in tenures {
        tenures.sort_by_key(|tenure| tenure.begin);
        for pair in tenures.windows(2) {
            let [former, next] = pair else { continue };
            ensure!(
                former.end <= next.begin,
                "{place} was read by {} and {} at once",
                former.member,
                next.member
            );
        }
        let mut committed = 0;
        for tenure in tenures.iter() {
            let offsets: Vec<i64> = tenure.reads.iter().map(|(_, offset)| *offset).collect();
            ensure!(
                offsets.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "{place} has a hole or a repetition at {}: {offsets:?}",
                tenure.member
            );
            if let Some(first) = offsets.first() {
                ensure!(
                    committed <= *first,
                    "{place}: {} began at {first} though {committed} was committed",
                    tenure.member
                );
            }
            committed = tenure.commits.iter().map(|(_, offset)| *offset).fold(committed, i64::max);
        }
    }
    Ok(())
}

fn members_and_coordinators_come_and_go(directory: &TestDirectory, kind: ZooKeeperKind) -> Result<()> {
    if let Some(why) = python_missing() {
        skip("members_and_coordinators_come_and_go", &why);
        return Ok(());
    }
    let mut cluster = start(directory, kind)?;
    let replicas = ["[1,2,3]", "[2,3,1]", "[3,1,2]", "[1,3,2]", "[2,1,3]", "[3,2,1]"];
    cluster.create_topic("t", &replicas)?;
    let produced = directory.join("produced.history");
    let path = produced.display().to_string();
    let arguments = [cluster.bootstrap().as_str(), "t", "6", "150", "p", path.as_str()].map(str::to_owned);
    let producer = RunningScript::start("produce_history.py", &arguments, &directory.join("producer.log"))?;
    let mut client = cluster.client();

    let first = Member::start(&cluster, directory, "first", "t", None)?;
    wait_for_rest(&cluster, &mut client, &[6])?;
    let second = Member::start(&cluster, directory, "second", "t", Some("an-instance"))?;
    let third = Member::start(&cluster, directory, "third", "t", None)?;
    let before = wait_for_rest(&cluster, &mut client, &[2, 2, 2])?;

    kill_coordinator(&mut cluster, &mut client, &[&first, &second, &third])?;
    let after = wait_for_rest(&cluster, &mut client, &[2, 2, 2])?;
    ensure!(
        (before.group_epoch, members(&before)) == (after.group_epoch, members(&after)),
        "the group is another one after its coordinator was replaced: {before:?}, {after:?}"
    );

    third.script.finish(STOP_LIMIT)?;
    wait_for_rest(&cluster, &mut client, &[3, 3])?;
    let fourth = Member::start(&cluster, directory, "fourth", "t", None)?;
    kill_coordinator(&mut cluster, &mut client, &[&first, &second])?;
    wait_for_rest(&cluster, &mut client, &[2, 2, 2])?;

    // Its session ends, and what it had goes to the others.
    fourth.script.kill()?;
    wait_for_rest(&cluster, &mut client, &[3, 3])?;

    producer.finish(Duration::from_secs(120))?;
    let produced: BTreeSet<String> = read_history(&produced)?.into_iter().map(|one| one.value).collect();
    let histories = [&first.history, &second.history, &third.history, &fourth.history].map(Clone::clone);
    eventually("everything to be read", START_LIMIT, || {
        let tenures = read_tenures(&histories)?;
        let read: BTreeSet<&String> = tenures.values().flatten().flat_map(|tenure| &tenure.values).collect();
        Ok((produced.iter().all(|value| read.contains(value))).then_some(()))
    })?;
    for member in [first, second] {
        member.script.finish(STOP_LIMIT)?;
    }
    check_tenures(&mut read_tenures(&histories)?)?;
    cluster.check_running()
}

fn members(group: &DescribedGroup) -> BTreeMap<String, i32> {
    group.members.iter().map(|member| (member.member_id.to_string(), member.member_epoch)).collect()
}

/// Kills the group's coordinator, waits until the members go on and have committed under another, and starts it again.
fn kill_coordinator(cluster: &mut Cluster, client: &mut KafkaClient, members: &[&Member]) -> Result<()> {
    let (killed, _) = eventually("a coordinator", START_LIMIT, || coordinator(cluster, client))?;
    cluster.broker(killed)?.kill()?;
    eventually("another coordinator", START_LIMIT, || {
        let found = coordinator(cluster, client)?;
        Ok(found.filter(|(id, _)| *id != killed))
    })?;
    let seen: Vec<usize> = members.iter().map(|member| lines(&member.history)).collect();
    eventually("the members to go on", START_LIMIT, || {
        let go_on = members.iter().zip(&seen).all(|(member, seen)| seen + 50 < lines(&member.history));
        Ok(go_on.then_some(()))
    })?;
    cluster.broker(killed)?.start()?;
    cluster.wait_until_complete(START_LIMIT)?;
    cluster.wait_for_full_isr("__consumer_offsets", 3, Duration::from_secs(60))
}

/// A regular expression of librdkafka stands for topics that come later too, and `zurau groups` tells of the group.
#[test]
fn a_regular_expression_and_what_operators_see() {
    const NAME: &str = "a_regular_expression_and_what_operators_see";
    if let Some(why) = python_missing() {
        return skip(NAME, &why);
    }
    scenario(NAME, |directory| {
        let mut cluster = start(directory, ZooKeeperKind::InProcess)?;
        cluster.create_topic("logs-a", &["[1,2,3]", "[2,3,1]"])?;
        cluster.create_topic("other", &["[1,2,3]"])?;
        let mut client = cluster.client();
        let one = Member::start(&cluster, directory, "one", "^logs-.*", None)?;
        let other = Member::start(&cluster, directory, "two", "^logs-.*", Some("i"))?;
        wait_for_rest(&cluster, &mut client, &[1, 1])?;
        cluster.create_topic("logs-b", &["[1,2,3]", "[2,3,1]", "[3,1,2]"])?;
        let group = wait_for_rest(&cluster, &mut client, &[2, 3])?;
        ensure!(group.members.iter().all(|member| member.subscribed_topic_regex.is_some()), "{group:?}");

        let listed = super::verbs::json_of(&cluster, &["groups", "list"])?;
        ensure!(listed[0]["group_type"] == "consumer" && listed[0]["state"] == "Stable", "{listed}");
        let described = super::verbs::json_of(&cluster, &["groups", "describe", GROUP])?;
        let described = &described[0];
        ensure!(
            described["group_type"] == "consumer"
                && described["protocol"] == "uniform"
                && described["group_epoch"] == group.group_epoch
                && described["assignment_epoch"] == group.group_epoch,
            "{described}"
        );
        let members = described["members"].as_array().context("members")?;
        ensure!(
            members.len() == 2
                && members.iter().all(|member| {
                    member["member_epoch"] == group.group_epoch && member["assignment"] == member["target"]
                })
                && members.iter().any(|member| member["instance_id"] == "i"),
            "{described}"
        );
        super::verbs::refused(&cluster, &["groups", "delete", GROUP], 1)?;
        one.script.finish(STOP_LIMIT)?;
        other.script.finish(STOP_LIMIT)?;
        cluster.check_running()
    });
}

#[test]
fn ids_that_cannot_be_stored_are_refused() {
    scenario("ids-that-cannot-be-stored", |directory| {
        let mut cluster = Cluster::builder()
            .brokers(1)
            .set_for_brokers("offsets.topic.replication.factor", 1)
            .start(directory)?;
        cluster.create_topic("t", &["[1]"])?;
        let address = cluster.bootstrap();
        ids_too_long_to_be_stored(&mut cluster.client(), &address)?;
        cluster.check_running()
    });
}

/// Flexible versions carry longer texts than the records of `__consumer_offsets`.
fn ids_too_long_to_be_stored(client: &mut KafkaClient, address: &str) -> Result<()> {
    let find = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("g"));
    eventually("a coordinator", START_LIMIT, || {
        Ok((client.call(address, 2, &find)?.error_code == 0).then_some(()))
    })?;
    let long = StrBytes::from_string("x".repeat(40_000));
    let join = JoinGroupRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(10_000)
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![JoinGroupRequestProtocol::default().with_name(StrBytes::from_static_str("p"))]);
    let of_long_group = join.clone().with_group_id(GroupId(long.clone()));
    let of_long_instance = join.clone().with_group_instance_id(Some(long.clone()));
    let long_protocol = JoinGroupRequestProtocol::default().with_name(long.clone());
    let of_long_protocol = join.with_protocols(vec![long_protocol]);
    let partition = OffsetCommitRequestPartition::default().with_committed_metadata(None);
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
    let commit = OffsetCommitRequest::default().with_group_id(GroupId(long.clone())).with_topics(vec![topic]);
    for (name, request, code) in [
        ("group", of_long_group, INVALID_GROUP_ID),
        ("instance", of_long_instance, INVALID_REQUEST),
        ("protocol", of_long_protocol, INVALID_REQUEST),
    ] {
        let answer = client.call(address, 9, &request)?;
        ensure!(answer.error_code == code, "a join with a long {name} got error {}", answer.error_code);
    }
    let answer = client.call(address, 8, &commit)?;
    let code = answer.topics[0].partitions[0].error_code;
    ensure!(code == INVALID_GROUP_ID, "a commit of a long group got error {code}");
    let initialize = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(long)))
        .with_transaction_timeout_ms(10_000);
    let code = client.call(address, 4, &initialize)?.error_code;
    ensure!(code == INVALID_REQUEST, "a long transactional id got error {code}");
    Ok(())
}
