//! What producers were promised and consumers saw, checked against what the cluster holds: every acknowledged record
//! at exactly its offset, none twice, offsets without holes, replicas' files byte-equal.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{Cluster, Node};
use crate::kafka::KafkaClient;
use crate::records::ReadRecord;
use crate::wait::eventually;

/// An acknowledged record, as `produce_history.py` notes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledged {
    /// Milliseconds since 1970 when the acknowledgement arrived.
    pub time_ms: i64,
    pub partition: i32,
    pub offset: i64,
    pub value: String,
}

/// Reads the lines `time partition offset value` that are complete.
///
/// # Errors
/// The file is missing or has another shape.
pub fn read_history(path: &Path) -> Result<Vec<Acknowledged>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| -> Result<Acknowledged> {
        let mut fields = line.split(' ');
        let mut next = || fields.next().context("a field is missing");
        Ok(Acknowledged {
            time_ms: next()?.parse()?,
            partition: next()?.parse()?,
            offset: next()?.parse()?,
            value: next()?.to_owned(),
        })
    };
    complete.lines().map(|line| parse(line).with_context(|| format!("in line '{line}'"))).collect()
}

/// Number of lines so far; 0 while the file is not there yet.
pub fn lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}

/// The longest time between two neighbouring events, and when it began.
pub fn longest_gap(history: &[Acknowledged], partition: i32) -> Duration {
    let mut times: Vec<i64> =
        history.iter().filter(|one| one.partition == partition).map(|one| one.time_ms).collect();
    times.sort_unstable();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    Duration::from_millis(u64::try_from(longest).unwrap_or_default())
}

/// Reads every partition and holds it against what was acknowledged. Returns the number of records read.
///
/// # Errors
/// An acknowledged record is missing, at another offset or there twice; offsets have a hole.
pub fn check_history(
    client: &mut KafkaClient,
    topic: &str,
    partitions: i32,
    history: &[Acknowledged],
) -> Result<usize> {
    let mut promised: BTreeMap<i32, Vec<&Acknowledged>> = BTreeMap::new();
    for one in history {
        promised.entry(one.partition).or_default().push(one);
    }
    let mut count = 0;
    for partition in 0..partitions {
        let records = client.read_partition(topic, partition)?;
        let promised = promised.remove(&partition).unwrap_or_default();
        check_partition(&records, &promised).with_context(|| format!("{topic}-{partition}"))?;
        count += records.len();
    }
    ensure!(promised.is_empty(), "records were acknowledged in unknown partitions {:?}", promised.keys());
    Ok(count)
}

/// Holds what a partition stores against what was acknowledged there.
fn check_partition(records: &[ReadRecord], promised: &[&Acknowledged]) -> Result<()> {
    let mut seen = HashSet::new();
    for (record, expected) in records.iter().zip(0..) {
        ensure!(record.offset == expected, "offset {} follows {}", record.offset, expected - 1);
        ensure!(seen.insert(&record.value), "{:?} is there twice", record.value);
    }
    let mut given = HashSet::new();
    for one in promised {
        let (offset, value) = (one.offset, &one.value);
        ensure!(given.insert(offset), "offset {offset} was given twice");
        match usize::try_from(offset).ok().and_then(|index| records.get(index)) {
            Some(record) if record.value == *value => {}
            Some(record) => bail!("offset {offset}: acknowledged {value}, found {:?}", record.value),
            None => bail!("offset {offset}: acknowledged {value}, the log ends at {}", records.len()),
        }
    }
    Ok(())
}

/// The concatenated `.log` files of a replica, in offset order.
fn replica_bytes(node: &Node, topic: &str, partition: i32) -> Result<Vec<u8>> {
    let directory = node.data().join(format!("{topic}-{partition}"));
    let entries = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
    let mut segments = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            segments.push(path);
        }
    }
    segments.sort();
    let mut bytes = Vec::new();
    for segment in segments {
        bytes.extend(fs::read(&segment)?);
    }
    Ok(bytes)
}

/// Waits until the files of all replicas are byte-equal and not empty. Nobody may be writing: then everything is
/// below the high watermark.
///
/// # Errors
/// They still differ after `limit`; says where.
pub fn check_replicas_equal(cluster: &Cluster, topic: &str, partition: i32, limit: Duration) -> Result<()> {
    eventually(&format!("equal replicas of {topic}-{partition}"), limit, || {
        let mut first: Option<(i32, Vec<u8>)> = None;
        let hosts = cluster.client().partition(topic, partition)?.replica_nodes;
        for node in cluster.brokers.iter().filter(|node| hosts.iter().any(|host| host.0 == node.id)) {
            let bytes = replica_bytes(node, topic, partition)?;
            ensure!(!bytes.is_empty(), "broker {} holds nothing", node.id);
            let Some((id, expected)) = &first else {
                first = Some((node.id, bytes));
                continue;
            };
            if let Some(at) = first_difference(expected, &bytes) {
                bail!(
                    "brokers {id} ({} bytes) and {} ({} bytes) differ at byte {at}",
                    expected.len(),
                    node.id,
                    bytes.len()
                );
            }
        }
        Ok(Some(()))
    })
}

fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    let differing = left.iter().zip(right).position(|(left, right)| left != right);
    differing.or_else(|| (left.len() != right.len()).then(|| left.len().min(right.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(values: &[&'static str]) -> Vec<ReadRecord> {
        let record = |(value, offset): (&&'static str, i64)| ReadRecord {
            offset,
            key: None,
            value: bytes::Bytes::from_static(value.as_bytes()),
        };
        values.iter().zip(0..).map(record).collect()
    }

    fn promise(offset: i64, value: &str) -> Acknowledged {
        Acknowledged { time_ms: 0, partition: 0, offset, value: value.to_owned() }
    }

    fn verdict(records: &[ReadRecord], promised: &[Acknowledged]) -> String {
        let promised: Vec<&Acknowledged> = promised.iter().collect();
        check_partition(records, &promised).map_or_else(|error| error.to_string(), |()| "right".to_owned())
    }

    #[test]
    fn every_kind_of_broken_promise_is_found() {
        let records = stored(&["a", "b", "c"]);
        assert_eq!(verdict(&records, &[promise(0, "a"), promise(2, "c")]), "right");
        let lost = verdict(&records, &[promise(3, "d")]);
        assert_eq!(lost, "offset 3: acknowledged d, the log ends at 3");
        let moved = verdict(&records, &[promise(1, "a")]);
        assert_eq!(moved, "offset 1: acknowledged a, found b\"b\"");
        assert_eq!(verdict(&stored(&["a", "b", "a"]), &[]), "b\"a\" is there twice");
        let mut holed = stored(&["a", "b"]);
        holed[1].offset = 2;
        assert_eq!(verdict(&holed, &[]), "offset 2 follows 0");
        let twice = verdict(&records, &[promise(0, "a"), promise(0, "a")]);
        assert_eq!(twice, "offset 0 was given twice");
    }

    #[test]
    fn differing_files_are_told_where() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"abd"), Some(2));
        assert_eq!(first_difference(b"abc", b"ab"), Some(2));
    }
}
