//! What producers were promised and consumers saw, checked against what the cluster holds: every acknowledged record
//! at exactly its offset, none twice, offsets without holes, replicas' files byte-equal.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{Cluster, Node};
use crate::kafka::KafkaClient;
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
    let mut count = 0;
    let mut promised: BTreeMap<i32, HashMap<i64, &str>> = BTreeMap::new();
    for one in history {
        let before = promised.entry(one.partition).or_default().insert(one.offset, &one.value);
        ensure!(before.is_none(), "offset {} of {topic}-{} was given twice", one.offset, one.partition);
    }
    for partition in 0..partitions {
        let records = client.read_partition(topic, partition)?;
        let mut seen = HashSet::new();
        for (record, expected) in records.iter().zip(0..) {
            ensure!(
                record.offset == expected,
                "{topic}-{partition}: offset {} follows {}",
                record.offset,
                expected - 1
            );
            ensure!(seen.insert(&record.value), "{topic}-{partition}: {:?} is there twice", record.value);
        }
        for (offset, value) in promised.remove(&partition).unwrap_or_default() {
            let found = usize::try_from(offset).ok().and_then(|index| records.get(index));
            match found {
                Some(record) if record.value == value => {}
                Some(record) => bail!(
                    "{topic}-{partition} offset {offset}: acknowledged {value}, found {:?}",
                    record.value
                ),
                None => bail!("{topic}-{partition}: acknowledged {value} at {offset}, the log ends before"),
            }
        }
        count += records.len();
    }
    ensure!(promised.is_empty(), "records were acknowledged in unknown partitions {:?}", promised.keys());
    Ok(count)
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
        for node in &cluster.brokers {
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
