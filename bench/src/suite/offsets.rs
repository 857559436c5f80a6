//! W15: how many OffsetCommits three brokers take in a second; W16: how long a group's coordinator loads.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{FindCoordinatorRequest, GroupId, OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::StrBytes;
use zurau_tests::eventually;
use zurau_tests::kafka::{Connection, KafkaClient, decode_answer, topic_name};

use super::Context;
use crate::report::Bar;
use crate::system::{PATIENCE, peak_resident_bytes, reset_peak_of};

const BAR_COMMITS: f64 = 20_000.0;
const BAR_LOAD_S: f64 = 3.0;
/// How long a broker may take to hand its partitions over.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const COMMIT_VERSION: i16 = 7;
const FETCH_VERSION: i16 = 5;
/// Coordinators that load, that are not known yet, or that have moved.
const LOADING: i16 = 14;
const ELSEWHERE: [i16; 2] = [15, 16];

fn group_id(name: &str) -> GroupId {
    GroupId(StrBytes::from_string(name.to_owned()))
}

fn coordinator(client: &mut KafkaClient, group: &GroupId) -> Result<(i32, String)> {
    let address = client.any_address()?;
    let request = FindCoordinatorRequest::default().with_key(group.0.clone());
    eventually("the group has a coordinator", PATIENCE, || {
        let answer = client.call(&address, 3, &request)?;
        ensure!(answer.error_code == 0, "FindCoordinator: error {}", answer.error_code);
        Ok(Some((answer.node_id.0, format!("{}:{}", answer.host.as_str(), answer.port))))
    })
}

/// A commit of somebody who is no member, of one offset for these partitions.
fn commit(
    group: &GroupId,
    topic: &str,
    partitions: std::ops::Range<i32>,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = |number: i32| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(number)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(StrBytes::default()))
    };
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(partitions.map(partition).collect());
    OffsetCommitRequest::default()
        .with_group_id(group.clone())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic])
}

/// The committed offset of one partition; `None` while the coordinator loads.
fn committed(
    connection: &mut Connection,
    group: &GroupId,
    (topic, partition): (&str, i32),
) -> Result<Result<i64, i16>> {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partition_indexes(vec![partition]);
    let request = OffsetFetchRequest::default().with_group_id(group.clone()).with_topics(Some(vec![topic]));
    let answer = connection.call(FETCH_VERSION, &request)?;
    if answer.error_code != 0 {
        return Ok(Err(answer.error_code));
    }
    let found = answer.topics.first().and_then(|topic| topic.partitions.first());
    Ok(Ok(found.context("the answer names no partition")?.committed_offset))
}

/// Commits to one coordinator over one connection, with so many under way. Returns how many were confirmed within the
/// time, and the last confirmed offset of each group.
fn keep_committing(
    address: &str,
    groups: &[GroupId],
    topic: &str,
    in_flight: usize,
    (start, time): (Instant, Duration),
) -> Result<(u64, Vec<i64>)> {
    let mut connection = Connection::open(address)?;
    let mut under_way: VecDeque<(i32, usize, i64)> = VecDeque::new();
    let mut last = vec![-1; groups.len()];
    let (mut sent, mut counted) = (0, 0);
    loop {
        let is_over = start + time <= Instant::now();
        while !is_over && under_way.len() < in_flight {
            let (group, offset) = (sent % groups.len(), (sent / groups.len()) as i64);
            let request = commit(&groups[group], topic, 0..1, offset);
            under_way.push_back((connection.send(COMMIT_VERSION, &request)?, group, offset));
            sent += 1;
        }
        let Some((id, group, offset)) = under_way.pop_front() else { return Ok((counted, last)) };
        let frame = connection.read_frame()?.context("the broker closed the connection")?;
        let answer = decode_answer::<OffsetCommitRequest>(COMMIT_VERSION, id, frame)?;
        let error = answer.topics[0].partitions[0].error_code;
        ensure!(error == 0, "OffsetCommit: error {error}");
        last[group] = offset;
        counted += u64::from(!is_over);
    }
}

/// W15.
pub(super) fn commits(context: &mut Context<'_>) -> Result<()> {
    let mut system = context.start(3, &[])?;
    let topic = system.create_topic(1, 3, &[])?;
    let count = context.scale.pick(60, 6);
    let in_flight = context.scale.pick(200, 10);
    let mut by_address: HashMap<String, Vec<GroupId>> = HashMap::new();
    let mut client = system.client();
    for number in 0..count {
        let group = group_id(&format!("{topic}-{number}"));
        let (_, address) = coordinator(&mut client, &group)?;
        let mut connection = Connection::open(&address)?;
        eventually("the coordinator has loaded", PATIENCE, || {
            Ok(committed(&mut connection, &group, (&topic, 0))?.is_ok().then_some(()))
        })?;
        by_address.entry(address).or_default().push(group);
    }
    let (warm_up, time) = context.scale.full;
    // What is not counted warms everything up.
    for (time, counts) in [(warm_up, false), (time, true)] {
        let span = (Instant::now(), time);
        let done = thread::scope(|scope| {
            let topic = &topic;
            let each = |(address, groups): (&String, &Vec<GroupId>)| {
                let (address, groups) = (address.clone(), groups.clone());
                scope.spawn(move || keep_committing(&address, &groups, topic, in_flight, span))
            };
            let running: Vec<_> = by_address.iter().map(each).collect();
            let join = |one: thread::ScopedJoinHandle<'_, Result<(u64, Vec<i64>)>>| {
                one.join().map_err(|_| anyhow!("a committer panicked"))?
            };
            running.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        if !counts {
            continue;
        }
        let rate = done.iter().map(|(count, _)| *count).sum::<u64>() as f64 / time.as_secs_f64();
        let name = format!("OffsetCommit of {count} groups, {in_flight} under way at each coordinator");
        context.report.add(name, rate, "/s", Some(Bar::Above(BAR_COMMITS)));
        let mut verified = 0;
        for ((address, groups), (_, last)) in by_address.iter().zip(&done) {
            let mut connection = Connection::open(address)?;
            for (group, expected) in groups.iter().zip(last) {
                let found = committed(&mut connection, group, (&topic, 0))?;
                ensure!(
                    found == Ok(*expected),
                    "{group:?}: {found:?} is committed, {expected} was confirmed"
                );
                verified += 1;
            }
        }
        context.report.add("OffsetCommit: records verified", f64::from(verified), "", None);
    }
    system.finish()
}

/// W16: a coordinator is stopped, another one takes its groups over.
pub(super) fn load(context: &mut Context<'_>) -> Result<()> {
    let (partitions, commits) = context.scale.pick((1_000, 1_000), (20, 10));
    let mut system = context.start(3, &[])?;
    let topic = system.create_topic(partitions, 1, &[])?;
    let group = group_id(&format!("{topic}-group"));
    let (id, address) = coordinator(&mut system.client(), &group)?;
    let mut connection = Connection::open(&address)?;
    eventually("the coordinator has loaded", PATIENCE, || {
        Ok(committed(&mut connection, &group, (&topic, 0))?.is_ok().then_some(()))
    })?;
    let start = Instant::now();
    for offset in 0..commits {
        let answer = connection.call(COMMIT_VERSION, &commit(&group, &topic, 0..partitions, offset))?;
        let refused = answer.topics[0].partitions.iter().find(|partition| partition.error_code != 0);
        ensure!(refused.is_none(), "OffsetCommit: {refused:?}");
    }
    let records = i64::from(partitions) * commits;
    context.report.add(
        format!("{records} offset records, written in"),
        start.elapsed().as_secs_f64(),
        "s",
        None,
    );
    drop(connection);
    let others: Vec<(u32, String)> = system
        .own()?
        .brokers
        .iter_mut()
        .filter(|broker| broker.id != id)
        .map(|broker| Ok((broker.process()?.pid(), broker.address())))
        .collect::<Result<_>>()?;
    let mut before = Vec::new();
    for (pid, _) in &others {
        reset_peak_of(*pid)?;
        before.push(peak_resident_bytes(*pid)?);
    }
    let is_over = AtomicBool::new(false);
    let (watched, topic, group) = (&others, &topic, &group);
    let loaded = thread::scope(|scope| {
        let watch = |place: usize| {
            let is_over = &is_over;
            scope.spawn(move || watch(&watched[place].1, (group, topic), commits - 1, is_over))
        };
        let watching: Vec<_> = (0..watched.len()).map(watch).collect();
        let stopped = system.own()?.broker(id)?.stop(STOP_LIMIT);
        let found = watching.into_iter().map(|one| one.join().map_err(|_| anyhow!("a watcher panicked"))?);
        let found = found.collect::<Result<Vec<_>>>();
        stopped?;
        found
    })?;
    let place = loaded.iter().position(Option::is_some).context("nobody took the group over")?;
    let took = loaded[place].context("nobody took the group over")?;
    let report = &mut *context.report;
    let bar = Some(Bar::Below(BAR_LOAD_S));
    report.add(format!("{records} offset records, loaded in"), took.as_secs_f64(), "s", bar);
    let peak = peak_resident_bytes(others[place].0)?.saturating_sub(before[place]);
    report.add(
        format!("{records} offset records, more memory at most"),
        peak as f64 / f64::from(1 << 20),
        "MiB",
        None,
    );
    report.add("coordinator load: records verified", records as f64, "", None);
    system.own()?.broker(id)?.start()?;
    system.finish()
}

/// Asks a broker until it, or another one, coordinates the group. How long this one said that it loads.
fn watch(
    address: &str,
    (group, topic): (&GroupId, &str),
    expected: i64,
    is_over: &AtomicBool,
) -> Result<Option<Duration>> {
    let mut connection = Connection::open(address)?;
    let mut since = None;
    let limit = Instant::now() + STOP_LIMIT + PATIENCE;
    while !is_over.load(Ordering::Relaxed) && Instant::now() < limit {
        let asked = Instant::now();
        match committed(&mut connection, group, (topic, 0))? {
            Ok(offset) => {
                is_over.store(true, Ordering::Relaxed);
                ensure!(offset == expected, "offset {offset} is committed, {expected} was confirmed");
                return Ok(Some(since.map_or(Duration::ZERO, |since: Instant| since.elapsed())));
            }
            Err(LOADING) => drop(since.get_or_insert(asked)),
            Err(error) if ELSEWHERE.contains(&error) => {}
            Err(error) => bail!("OffsetFetch: error {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}
