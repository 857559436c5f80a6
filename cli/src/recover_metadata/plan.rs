//! What the log directories of all brokers say about the cluster that ZooKeeper has forgotten, and the znodes that follow
//! from it. Pure. Which replicas are in sync is judged in `copies.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use zurau_broker::log::{Incarnation, SurveyedLog};
use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName, TopicPartition};
use zurau_common::zk::config::encode_config;
use zurau_common::zk::isr::encode_ids;
use zurau_common::zk::op::{Lifetime, Op};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::{TopicIdEntry, encode_topic};
use zurau_common::zk::znode::Znode;

use super::copies::{Copy, Judgement, judge, served};

/// Epochs above the highest one in any log that are left out: an election whose leader never took office, or wrote to a
/// directory that is lost, leaves no trace in the logs, and clients may know its epoch (F5).
const EPOCHS_LEFT_OUT: i32 = 1_000;
/// As [`EPOCHS_LEFT_OUT`]: ids that were handed out, but wrote nothing that is still in sight. An id given twice would
/// make new records look like repetitions of old ones.
const PRODUCER_IDS_LEFT_OUT: i64 = 1_000_000;
/// Partitions in one multi (coordination.md, section 6).
const PARTITIONS_PER_MULTI: usize = 100;

/// Topics of the brokers' own, which are compacted from the start.
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// One log directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) broker: BrokerId,
    pub(super) cluster_id: String,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) logs: Vec<SurveyedLog>,
    /// The highest leader epoch that anything in it knows of a partition.
    pub(super) highest_epochs: BTreeMap<TopicPartition, i32>,
}

/// The cluster as it will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) cluster_id: String,
    /// The registration for which each broker's directories are complete (D1).
    pub(super) brokers: BTreeMap<BrokerId, i64>,
    pub(super) topics: BTreeMap<TopicName, Topic>,
    /// No id up to this one, inclusive, is handed out again.
    pub(super) last_producer_id: i64,
    /// What its reader should know before anything is written.
    pub(super) warnings: Vec<String>,
    /// Committed records that are in none of the directories, as far as their checkpoints tell.
    pub(super) losses: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) id: TopicId,
    pub(super) compacted: bool,
    /// From 0 without a gap.
    pub(super) partitions: BTreeMap<i32, Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) hosts: Vec<BrokerId>,
    /// Not empty, part of `hosts`.
    pub(super) isr: Vec<BrokerId>,
    pub(super) leader_epoch: i32,
    pub(super) log_end_offset: i64,
    /// Which copy is the best, why, and what the others lack; a line for each.
    pub(super) reasons: Vec<String>,
}

/// Judges the directories of all brokers.
///
/// # Errors
/// What makes it impossible to say what the cluster was.
pub(super) fn plan(directories: &[Directory]) -> Result<Plan, String> {
    let cluster_id = cluster_of(directories)?;
    let (mut warnings, mut losses) = (Vec::new(), Vec::new());
    let epochs = highest_epochs(directories);
    let copies = served(directories, &mut warnings)?;
    let mut topics = BTreeMap::new();
    for (name, incarnations) in logs_by_topic(&copies, &mut warnings) {
        let (id, hosts) = incarnation(&name, incarnations, &mut warnings)?;
        let compacted =
            hosts.values().flat_map(BTreeMap::values).any(|copy| copy.log.compacted) || is_internal(&name);
        let mut partitions = BTreeMap::new();
        for (number, copies) in hosts {
            let highest = epochs.get(&TopicPartition { topic: name.clone(), partition: number });
            let judgement = judge(&copies.values().copied().collect::<Vec<_>>());
            losses.extend(judgement.losses.iter().cloned());
            let made = partition(number, &copies, judgement, highest.copied().unwrap_or(-1))
                .map_err(|reason| format!("{name}-{number}: {reason}"))?;
            partitions.insert(number, made);
        }
        topics.insert(name, Topic { id, compacted, partitions });
    }
    let all_logs = directories.iter().flat_map(|directory| &directory.logs);
    let highest = all_logs.map(|log| log.highest_producer_id).max().unwrap_or(-1);
    let mut brokers: BTreeMap<BrokerId, Vec<&Directory>> = BTreeMap::new();
    for directory in directories {
        brokers.entry(directory.broker).or_default().push(directory);
    }
    let brokers = brokers.into_iter().map(|(broker, homes)| (broker, registration(&homes))).collect();
    Ok(Plan {
        cluster_id,
        brokers,
        topics,
        last_producer_id: highest.saturating_add(PRODUCER_IDS_LEFT_OUT),
        warnings,
        losses,
    })
}

/// The highest leader epoch of each partition that anything on a disk knows: also copies that are not served, and other
/// incarnations, which clients do not tell apart (CLI-11).
fn highest_epochs(directories: &[Directory]) -> BTreeMap<TopicPartition, i32> {
    let mut highest = BTreeMap::new();
    for (partition, epoch) in directories.iter().flat_map(|directory| &directory.highest_epochs) {
        let known = highest.entry(partition.clone()).or_insert(*epoch);
        *known = (*known).max(*epoch);
    }
    highest
}

fn cluster_of(directories: &[Directory]) -> Result<String, String> {
    let ids: BTreeSet<&str> = directories.iter().map(|directory| directory.cluster_id.as_str()).collect();
    match ids.iter().collect::<Vec<_>>().as_slice() {
        [id] => Ok((**id).to_string()),
        _ => {
            let each = directories.iter().map(|one| format!("{}: {}", one.path.display(), one.cluster_id));
            Err(format!(
                "the log directories belong to different clusters; give those of one cluster only\n  {}",
                each.collect::<Vec<_>>().join("\n  ")
            ))
        }
    }
}

type Copies<'a> = BTreeMap<i32, BTreeMap<BrokerId, &'a Copy<'a>>>;
type Incarnations<'a> = BTreeMap<TopicId, Copies<'a>>;

fn logs_by_topic<'a>(
    copies: &'a [Copy<'a>],
    warnings: &mut Vec<String>,
) -> BTreeMap<TopicName, Incarnations<'a>> {
    let mut found: BTreeMap<TopicName, Incarnations<'a>> = BTreeMap::new();
    for copy in copies {
        let TopicPartition { topic, partition } = &copy.log.partition;
        let Some(id) = copy.log.topic_id else {
            warnings.push(format!("{} has no topic id; it is left as it is", copy.path().display()));
            continue;
        };
        let incarnations = found.entry(topic.clone()).or_default();
        incarnations.entry(id).or_default().entry(*partition).or_default().insert(copy.broker, copy);
    }
    found
}

/// The topic of a name: of several incarnations the one with the most copies, for what is left of a deleted one is on a
/// broker that was away.
fn incarnation<'a>(
    name: &TopicName,
    incarnations: Incarnations<'a>,
    warnings: &mut Vec<String>,
) -> Result<(TopicId, Copies<'a>), String> {
    let copies = |copies: &Copies<'_>| copies.values().map(BTreeMap::len).sum::<usize>();
    let most = incarnations.values().map(copies).max().unwrap_or(0);
    let (chosen, others): (Vec<_>, Vec<_>) =
        incarnations.into_iter().partition(|(_, found)| copies(found) == most);
    let [(id, partitions)] = chosen.as_slice() else {
        let ids: Vec<String> = chosen.iter().map(|(id, _)| id.to_string()).collect();
        return Err(format!(
            "topic '{name}' was created more than once (ids {}), and the directories do not say which is the last; \
             move those of the others away",
            ids.join(", ")
        ));
    };
    for (other, found) in others {
        warnings.push(format!(
            "topic '{name}' has {} copies of another incarnation ({other}); their brokers will rename them to -stray",
            copies(&found)
        ));
    }
    let last = partitions.keys().last().copied().unwrap_or(-1);
    let missing: Vec<i32> = (0..=last).filter(|partition| !partitions.contains_key(partition)).collect();
    if !missing.is_empty() {
        return Err(format!(
            "topic '{name}' has a partition {last}, but none of the directories holds partitions {missing:?}; give the \
             log directories of all brokers"
        ));
    }
    let widest = partitions.values().map(BTreeMap::len).max().unwrap_or(0);
    for (partition, hosts) in partitions.iter().filter(|(_, hosts)| hosts.len() < widest) {
        let hosts: Vec<&BrokerId> = hosts.keys().collect();
        warnings.push(format!(
            "{name}-{partition} is only on {hosts:?}, other partitions of the topic are on {widest} brokers: is a log \
             directory missing?"
        ));
    }
    Ok((*id, partitions.clone()))
}

fn is_internal(topic: &str) -> bool {
    INTERNAL_TOPICS.contains(&topic)
}

/// # Errors
/// No leader epoch is left above those on the disks.
fn partition(
    number: i32,
    copies: &BTreeMap<BrokerId, &Copy<'_>>,
    judgement: Judgement,
    highest_epoch: i32,
) -> Result<Partition, String> {
    let Judgement { in_sync, log_end_offset, reasons, .. } = judgement;
    let mut hosts: Vec<BrokerId> = copies.keys().copied().collect();
    // Who was preferred is not known; this spreads the leaders.
    let first = usize::try_from(number).unwrap_or(0) % hosts.len();
    hosts.rotate_left(first);
    let isr = hosts.iter().copied().filter(|host| in_sync.contains(host)).collect();
    let above = highest_epoch.max(0).checked_add(EPOCHS_LEFT_OUT);
    let leader_epoch =
        above.ok_or_else(|| format!("a directory names leader epoch {highest_epoch}; it must be damaged"))?;
    Ok(Partition { hosts, isr, leader_epoch, log_end_offset, reasons })
}

/// The registration for which most of a broker's directories are complete; -1, for which none is, if they do not agree.
fn registration(homes: &[&Directory]) -> i64 {
    let known: Vec<&Incarnation> = homes.iter().filter_map(|home| home.incarnation.as_ref()).collect();
    let complete = |id: i64| known.iter().filter(|home| home.id == id || home.next_id == id).count();
    let most = known.iter().map(|home| complete(home.id)).max().unwrap_or(0);
    let ids: BTreeSet<i64> = known.iter().map(|home| home.id).filter(|id| complete(*id) == most).collect();
    match ids.into_iter().collect::<Vec<_>>().as_slice() {
        [id] => *id,
        _ => -1,
    }
}

impl Topic {
    /// The multis that make the topic, in this order. Each is a whole: a partition never stands there in part, and all of
    /// them count as started from the first one on, so that none is ever begun anew with an empty log.
    pub(super) fn writes(&self, name: &TopicName) -> Vec<Vec<Op>> {
        let create = |znode: Znode, data: Vec<u8>| Op::Create {
            path: znode.path(),
            data,
            lifetime: Lifetime::Persistent,
        };
        let mut entry = TopicIdEntry::new(name.clone());
        self.partitions.keys().for_each(|partition| entry.start(*partition));
        let mut first = vec![
            create(Znode::TopicIdEntry(self.id), entry.encode()),
            create(Znode::Topic(name.clone()), encode_topic(self.id)),
        ];
        let all: Vec<_> = self.partitions.iter().collect();
        let mut writes = Vec::new();
        for chunk in all.chunks(PARTITIONS_PER_MULTI) {
            let mut ops = std::mem::take(&mut first);
            for (number, partition) in chunk {
                let id = TopicPartition { topic: name.clone(), partition: **number };
                let Partition { hosts, isr, leader_epoch, .. } = partition;
                // No controller has decided it: epoch 0 is below that of every controller.
                let state = PartitionState::new(
                    isr[0],
                    LeaderEpoch(*leader_epoch),
                    ControllerEpoch(0),
                    hosts.clone(),
                    hosts.clone(),
                );
                ops.push(create(Znode::Partition(id.clone()), Vec::new()));
                ops.push(create(Znode::Replicas(id.clone()), encode_ids(hosts)));
                ops.push(create(Znode::State(id.clone()), state.encode()));
                ops.push(create(Znode::Isr(id), encode_ids(isr)));
            }
            writes.push(ops);
        }
        writes
    }

    /// The topic's configuration. What it was is lost, so nothing of the topic may be deleted before an admin has said
    /// again for how long it is kept.
    pub(super) fn config(&self) -> Vec<u8> {
        let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        encode_config(&match self.compacted {
            true => BTreeMap::from([text("cleanup.policy", "compact")]),
            false => BTreeMap::from([text("retention.bytes", "-1"), text("retention.ms", "-1")]),
        })
    }
}
