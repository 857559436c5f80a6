//! A compacted topic as its clients see it: many overwrites and deletions, the cleaner at work on every replica, and the
//! same last value of each key before and after, also from the next leader.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zurau_tests::clients::{kcat, kcat_missing};
use zurau_tests::cluster::START_LIMIT;
use zurau_tests::{Cluster, TestDirectory, ZooKeeperKind, eventually, scenario, skip};

use crate::leader_loss::leader_in_office;

const TOPIC: &str = "latest";
const KEYS: usize = 60;
const ROUNDS: usize = 40;
/// Every key of these is deleted in the last round.
const DELETED_EVERY: usize = 6;
/// What may be left of all records: a tombstone or value of each key, and what no segment boundary has passed yet.
const LEFT_MAX: usize = 6 * KEYS;
const CLEANING_LIMIT: Duration = Duration::from_secs(60);

type Map = BTreeMap<String, String>;

#[test]
fn the_last_value_of_each_key_stays() {
    match kcat_missing() {
        Some(why) => skip("the_last_value_of_each_key_stays", &why),
        None => scenario("the_last_value_of_each_key_stays", overwrite_and_read),
    }
}

fn overwrite_and_read(directory: &TestDirectory) -> Result<()> {
    let mut cluster = Cluster::builder()
        .zookeeper(ZooKeeperKind::InProcess)
        .set_for_brokers("min.insync.replicas", 2)
        .set_for_brokers("log.cleanup.policy", "compact")
        .set_for_brokers("log.segment.bytes", 8_000)
        .set_for_brokers("log.cleaner.backoff.ms", 100)
        .set_for_brokers("log.cleaner.min.cleanable.ratio", "0.01")
        .start(directory)?;
    cluster.create_topic(TOPIC, &["[1,2,3]"])?;
    let mut expected = Map::new();
    for round in 0..ROUNDS {
        let mut lines = String::new();
        for key in 0..KEYS {
            let deletes = round + 1 == ROUNDS && key % DELETED_EVERY == 0;
            let value = if deletes { String::new() } else { format!("value-{round}-of-{key}") };
            writeln!(lines, "key-{key}:{value}")?;
            if deletes {
                expected.remove(&format!("key-{key}"));
            } else {
                expected.insert(format!("key-{key}"), value);
            }
        }
        produce(&cluster, directory, &lines)?;
    }
    let (leader, _) = leader_in_office(&cluster, TOPIC, 0)?.context("no leader")?;
    check(&cluster, &expected, true)?;
    cluster.broker(leader)?.kill()?;
    eventually("another leader", START_LIMIT, || {
        Ok(leader_in_office(&cluster, TOPIC, 0)?.filter(|(next, _)| *next != leader))
    })?;
    check(&cluster, &expected, false)?;
    // What comes next overwrites as well, and the broker that was killed takes part again.
    cluster.broker(leader)?.start()?;
    cluster.wait_for_full_isr(TOPIC, 1, START_LIMIT)?;
    produce(&cluster, directory, "key-0:back\nkey-1:\n")?;
    expected.insert("key-0".to_owned(), "back".to_owned());
    expected.remove("key-1");
    check(&cluster, &expected, false)?;
    cluster.check_running()
}

/// `key:value` lines; an empty value is a tombstone.
fn produce(cluster: &Cluster, directory: &TestDirectory, lines: &str) -> Result<()> {
    let file = directory.path().join("lines");
    std::fs::write(&file, lines)?;
    let file = file.display().to_string();
    let bootstrap = cluster.bootstrap();
    let to = ["-P", "-b", &bootstrap, "-t", TOPIC, "-p", "0", "-K", ":", "-Z"];
    // Small batches: a batch must fit into a segment.
    let with =
        ["-X", "acks=all", "-X", "enable.idempotence=true", "-X", "batch.num.messages=20", "-l", &file];
    kcat(&[&to[..], &with[..]].concat(), None).map(|_| ())
}

/// Waits until the leader's log is compacted, then compares what it says of each key. `settled`: nothing but compaction
/// happens meanwhile, so that every read must say the same; a new leader may know of less as committed for a moment.
fn check(cluster: &Cluster, expected: &Map, settled: bool) -> Result<()> {
    let records = eventually("the log is compacted", CLEANING_LIMIT, || {
        let records = read(cluster)?;
        let is_right = &fold(&records) == expected;
        let is_done = if is_right { records.len() <= LEFT_MAX } else { settled };
        Ok(is_done.then_some(records))
    })?;
    let found = fold(&records);
    ensure!(&found == expected, "the log says {found:?} instead of {expected:?}");
    ensure!(records.is_sorted_by(|left, right| left.0 < right.0), "offsets go back");
    Ok(())
}

/// Offset, key, and value, in the order of the log.
fn read(cluster: &Cluster) -> Result<Vec<(u64, String, Option<String>)>> {
    let bootstrap = cluster.bootstrap();
    let from = ["-C", "-b", &bootstrap, "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-q"];
    let printed = kcat(&[&from[..], &["-f", "%o %k %S %s\n"]].concat(), None)?;
    let printed = String::from_utf8(printed)?;
    let parse = |line: &str| -> Option<(u64, String, Option<String>)> {
        let mut words = line.splitn(4, ' ');
        let (offset, key) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let length: i64 = words.next()?.parse().ok()?;
        Some((offset, key, (length >= 0).then(|| words.next().unwrap_or_default().to_owned())))
    };
    printed.lines().map(|line| parse(line).with_context(|| format!("kcat printed {line:?}"))).collect()
}

fn fold(records: &[(u64, String, Option<String>)]) -> Map {
    let mut map = Map::new();
    for (_, key, value) in records {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
    map
}
