//! What is known of one partition, and where it is read: from the brokers, from each replica, and from ZooKeeper.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{ListOffsetsRequest, OffsetForLeaderEpochRequest};
use serde::Serialize;
use zurau_common::assignment::difference;
use zurau_common::id::{BrokerId, TopicPartition};
use zurau_common::wire::control::{TAG_HIGH_WATERMARK, get_i64, to_wire_topic};
use zurau_common::zk::controller::decode_controller_epoch;
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::Node;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::Znode;

use crate::client::{Client, EARLIEST, LATEST, Refused};

/// Replica id of a client that may look into every replica, followers too.
const DEBUGGING_CLIENT: i32 = -2;
/// How many leader epochs of the past are told.
const EPOCHS_MAX: i32 = 10;

/// Everything that is told of a partition. `None` in what only ZooKeeper knows: it was not asked.
#[derive(Debug, Default, Serialize)]
pub(super) struct Facts {
    pub(super) topic: String,
    pub(super) partition: i32,
    /// Who leads now.
    pub(super) leader: Option<i32>,
    /// Whom the controller elected last; it leads once it has taken office.
    pub(super) elected: Option<i32>,
    pub(super) leader_epoch: Option<i32>,
    pub(super) partition_epoch: Option<i32>,
    /// Of the controller that elected the leader.
    pub(super) elected_by_controller_epoch: Option<i32>,
    /// Of the active controller.
    pub(super) controller_epoch: Option<i32>,
    /// Assigned replicas; the first one is preferred.
    pub(super) ar: Vec<i32>,
    /// In-sync replicas.
    pub(super) isr: Vec<i32>,
    /// Replicas that are catching up.
    pub(super) cur: Vec<i32>,
    /// Wanted replicas, while the partition moves.
    pub(super) rar: Option<Vec<i32>>,
    /// Eligible leader replicas: they have every acknowledged record although they are not in the ISR.
    pub(super) elr: Option<Vec<i32>>,
    /// Brokers that must still delete their copies.
    pub(super) leaving: Option<Vec<i32>>,
    pub(super) min_insync_replicas: usize,
    pub(super) replicas: Vec<Replica>,
    /// Input of an admin that was rejected.
    pub(super) errors: Vec<InputError>,
    pub(super) last_changes: Vec<Change>,
    /// Leader epochs in the leader's log, the newest first: at most ten.
    pub(super) epochs: Vec<Epoch>,
}

/// One copy of the partition. All offsets are exclusive ends, but the start.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Replica {
    pub(super) broker: i32,
    pub(super) alive: bool,
    pub(super) broker_epoch: Option<i32>,
    pub(super) log_start_offset: Option<i64>,
    pub(super) high_watermark: Option<i64>,
    pub(super) log_end_offset: Option<i64>,
    /// Records behind the leader.
    pub(super) lag: Option<i64>,
    /// Why the offsets are missing.
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct InputError {
    pub(super) input: String,
    pub(super) error: String,
}

/// The last change of a znode of the partition.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    /// What became of it, and who asked for it.
    pub(super) change: String,
    /// Milliseconds since 1970, by ZooKeeper's clock.
    pub(super) at: i64,
    /// How often it has been changed since it was created.
    pub(super) changes: i32,
}

#[derive(Debug, Serialize)]
pub(super) struct Epoch {
    pub(super) leader_epoch: i32,
    pub(super) end_offset: i64,
}

/// Asks the brokers for who leads, and each replica for its offsets.
///
/// # Errors
/// No broker answers; there is no such partition.
pub(super) async fn ask_brokers(client: &mut Client, id: &TopicPartition) -> Result<Facts> {
    let name = id.topic.to_string();
    let cluster = client.cluster(Some(std::slice::from_ref(&name))).await?;
    let found = cluster.partition(&name, id.partition)?.clone();
    let alive = cluster.racks();
    let configs = crate::configs::topic_configs(client, std::slice::from_ref(&name)).await?;
    let min_isr = crate::topics::MinIsr::of(configs.get(&name).map_or(&[][..], Vec::as_slice));
    let mut facts = Facts {
        topic: name,
        partition: id.partition,
        leader: found.leader,
        leader_epoch: found.leader_epoch,
        min_insync_replicas: min_isr.for_partition(&found),
        ar: found.replicas,
        isr: found.isr,
        ..Facts::default()
    };
    for broker in facts.hosts() {
        let mut replica = Replica { broker, alive: alive.contains_key(&broker), ..Replica::default() };
        if replica.alive
            && let Err(error) = ask_replica(client, id, &mut replica).await
        {
            replica.error = Some(format!("{error:#}"));
        }
        facts.replicas.push(replica);
    }
    if let (Some(leader), Some(epoch)) = (facts.leader, facts.leader_epoch) {
        facts.epochs = epochs(client, id, leader, epoch).await?;
    }
    Ok(facts)
}

impl Facts {
    /// Every broker that may have a copy.
    fn hosts(&self) -> Vec<i32> {
        let mut hosts = self.ar.clone();
        let others = self.isr.iter().chain(self.rar.iter().flatten()).chain(self.elr.iter().flatten());
        for id in others {
            if !hosts.contains(id) {
                hosts.push(*id);
            }
        }
        hosts
    }

    /// What follows from the rest; the last step.
    pub(super) fn conclude(&mut self) {
        let brokers = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Vec<_>>();
        let catching_up = difference(&brokers(&self.ar), &brokers(&self.isr));
        self.cur = catching_up.into_iter().map(|id| id.0).collect();
        let end = self.replicas.iter().find(|replica| Some(replica.broker) == self.leader);
        let end = end.and_then(|leader| leader.log_end_offset);
        for replica in &mut self.replicas {
            replica.lag = end.zip(replica.log_end_offset).map(|(end, own)| (end - own).max(0));
        }
    }
}

/// The offsets of one copy, whatever its role.
async fn ask_replica(client: &mut Client, id: &TopicPartition, replica: &mut Replica) -> Result<()> {
    for time in [EARLIEST, LATEST] {
        let asked = ListOffsetsPartition::default().with_partition_index(id.partition).with_timestamp(time);
        let asked =
            ListOffsetsTopic::default().with_name(to_wire_topic(&id.topic)).with_partitions(vec![asked]);
        let request =
            ListOffsetsRequest::default().with_replica_id(DEBUGGING_CLIENT.into()).with_topics(vec![asked]);
        let answer = client.broker(replica.broker).await?.call(7, &request).await?;
        let found = answer.topics.first().and_then(|topic| topic.partitions.first());
        let found = found.context("the answer names no partition")?;
        Refused::check(found.error_code, None, || id.to_string())?;
        if time == EARLIEST {
            replica.log_start_offset = Some(found.offset);
        } else {
            replica.log_end_offset = Some(found.offset);
            replica.high_watermark = get_i64(&found.unknown_tagged_fields, TAG_HIGH_WATERMARK)?;
        }
    }
    Ok(())
}

/// Where the newest epochs of the leader's log end.
async fn epochs(client: &mut Client, id: &TopicPartition, leader: i32, newest: i32) -> Result<Vec<Epoch>> {
    let connection = client.broker(leader).await?;
    let mut epochs: Vec<Epoch> = Vec::new();
    let mut wanted = newest;
    for _ in 0..EPOCHS_MAX {
        if wanted < 0 {
            break;
        }
        let asked = OffsetForLeaderPartition::default()
            .with_partition(id.partition)
            .with_current_leader_epoch(-1)
            .with_leader_epoch(wanted);
        let asked =
            OffsetForLeaderTopic::default().with_topic(to_wire_topic(&id.topic)).with_partitions(vec![asked]);
        let request =
            OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
        let answer = connection.call(4, &request).await?;
        let found = answer.topics.first().and_then(|topic| topic.partitions.first());
        let found = found.context("the answer names no partition")?;
        // The leader may have changed meanwhile: what is known is told.
        if found.error_code != 0 || found.leader_epoch < 0 {
            break;
        }
        epochs.push(Epoch { leader_epoch: found.leader_epoch, end_offset: found.end_offset });
        wanted = found.leader_epoch - 1;
    }
    Ok(epochs)
}

/// Adds what only ZooKeeper knows.
///
/// # Errors
/// ZooKeeper cannot be read, or `state` cannot be understood.
pub(super) async fn ask_zookeeper(
    zookeeper: &ZooKeeper,
    id: &TopicPartition,
    facts: &mut Facts,
) -> Result<()> {
    let own = |make: fn(TopicPartition) -> Znode| make(id.clone());
    let znodes = [
        own(Znode::State),
        own(Znode::Isr),
        own(Znode::Elr),
        own(Znode::Leader),
        own(Znode::Replicas),
        own(Znode::Leaving),
        own(Znode::Reassignment),
        Znode::ControllerEpoch,
    ];
    let paths = znodes.map(|znode| znode.path());
    let mut nodes = zookeeper.get_many(&paths).await?;
    nodes.resize(paths.len(), None);
    let [state, isr, elr, leader, replicas, leaving, reassignment, controller_epoch] = nodes.as_slice()
    else {
        anyhow::bail!("ZooKeeper answered with {} znodes", nodes.len());
    };
    let ids = |node: &Option<Node>| {
        let decoded = node.as_ref().and_then(|node| decode_ids(&node.data).ok());
        decoded.map(|ids| ids.into_iter().map(|id| id.0).collect::<Vec<i32>>())
    };
    // Its own value, and nothing older that a broker has heard of.
    facts.isr = ids(isr).unwrap_or_default();
    facts.ar = ids(replicas).unwrap_or_else(|| facts.ar.clone());
    facts.elr = Some(ids(elr).unwrap_or_default());
    facts.leaving = Some(ids(leaving).unwrap_or_default());
    facts.rar = ids(reassignment);
    facts.partition_epoch = isr.as_ref().map(|node| node.version);
    let epoch = controller_epoch.as_ref().and_then(|node| decode_controller_epoch(&node.data).ok());
    facts.controller_epoch = epoch.map(|epoch| epoch.0);
    let sets = |ids: &[i32]| crate::table::ids(ids);
    let mut told = Vec::new();
    if let Some(node) = state {
        let state = PartitionState::decode(&node.data)?;
        facts.elected = Some(state.leader.0);
        facts.leader_epoch = Some(state.leader_epoch.0);
        facts.elected_by_controller_epoch = Some(state.controller_epoch.0);
        told.push((Znode::State(id.clone()), node.version, elected(&state)));
    }
    if let Some(node) = leader {
        let change = format!("broker {} took office", String::from_utf8_lossy(&node.data).trim());
        told.push((Znode::Leader(id.clone()), node.version, change));
    }
    if let Some(node) = isr {
        let change = format!("the leader had the ISR stored as {}", sets(&facts.isr));
        told.push((Znode::Isr(id.clone()), node.version, change));
    }
    if let Some(node) = replicas {
        let change = format!("replicas set to {} by an admin or by a finished move", sets(&facts.ar));
        told.push((Znode::Replicas(id.clone()), node.version, change));
    }
    if let Some(node) = reassignment {
        let change =
            format!("an admin asked for the replicas {}", sets(facts.rar.as_deref().unwrap_or_default()));
        told.push((Znode::Reassignment(id.clone()), node.version, change));
    }
    for (znode, changes, change) in told {
        // Gone by now: then it is not the last change.
        if let Some(at) = zookeeper.modified_ms(&znode.path()).await? {
            facts.last_changes.push(Change { change, at, changes });
        }
    }
    facts.last_changes.sort_by_key(|change| std::cmp::Reverse(change.at));
    rejected(zookeeper, id, facts).await?;
    broker_epochs(zookeeper, facts).await
}

fn elected(state: &PartitionState) -> String {
    let why = state.reason.as_deref().unwrap_or("for a reason that an older release did not record");
    let unclean = if state.recovery { ", UNCLEANLY" } else { "" };
    format!(
        "the controller of epoch {} elected broker {} in leader epoch {}{unclean}: {why}",
        state.controller_epoch, state.leader, state.leader_epoch
    )
}

async fn rejected(zookeeper: &ZooKeeper, id: &TopicPartition, facts: &mut Facts) -> Result<()> {
    for (input, znode) in [
        ("the assignment", Znode::PartitionError(id.clone())),
        ("the wished move", Znode::ReassignmentError(id.clone())),
    ] {
        if let Some(node) = zookeeper.get(&znode.path()).await? {
            let error = String::from_utf8_lossy(&node.data).into_owned();
            facts.errors.push(InputError { input: input.to_owned(), error });
        }
    }
    Ok(())
}

async fn broker_epochs(zookeeper: &ZooKeeper, facts: &mut Facts) -> Result<()> {
    let known: Vec<i32> = facts.replicas.iter().map(|replica| replica.broker).collect();
    let more = facts.hosts().into_iter().filter(|id| !known.contains(id));
    facts.replicas.extend(more.map(|broker| Replica { broker, ..Replica::default() }));
    let paths: Vec<String> =
        facts.replicas.iter().map(|replica| Znode::BrokerEpoch(BrokerId(replica.broker)).path()).collect();
    let epochs: BTreeMap<String, i32> = paths
        .iter()
        .cloned()
        .zip(zookeeper.get_many(&paths).await?)
        .filter_map(|(path, node)| Some((path, node?.version)))
        .collect();
    for (replica, path) in facts.replicas.iter_mut().zip(&paths) {
        replica.broker_epoch = epochs.get(path).copied();
    }
    Ok(())
}
