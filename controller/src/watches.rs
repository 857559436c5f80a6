//! Reads what the mirror wants to know: a few znodes, or the whole tree level by level.

use std::collections::BTreeSet;

use zurau_common::id::{TopicName, TopicPartition};
use zurau_common::zk::op::Node;
use zurau_common::zk::read::ReadError;
use zurau_common::zk::session::ZooKeeper;
use zurau_common::zk::znode::{self, DEFAULT_ENTITY, Znode};

use crate::event::Subject;
use crate::mirror::{Reading, broker_paths, partition_paths};

pub(crate) type Found = Vec<(String, Option<Node>)>;

/// Carries out a reading. `known`: paths that were known below the subjects, so that their absence is found.
pub(crate) async fn read(
    zookeeper: &ZooKeeper,
    reading: &Reading,
    known: Vec<String>,
) -> Result<Found, ReadError> {
    let paths = match reading {
        Reading::All => tree(zookeeper).await?,
        Reading::Some { paths, subjects } => {
            let mut all: BTreeSet<String> = paths.clone();
            all.extend(known);
            for subject in subjects {
                all.extend(paths_of(zookeeper, subject).await?);
            }
            all.into_iter().collect()
        }
    };
    // Brokers last: an ephemeral that was found missing went before its broker was looked at (L5).
    let (brokers, mut ordered): (Vec<String>, Vec<String>) =
        paths.into_iter().partition(|path| path.starts_with(znode::BROKER_IDS));
    ordered.extend(brokers);
    let nodes = zookeeper.get_many(&ordered).await?;
    Ok(ordered.into_iter().zip(nodes).collect())
}

async fn paths_of(zookeeper: &ZooKeeper, subject: &Subject) -> Result<Vec<String>, ReadError> {
    Ok(match subject {
        Subject::Broker(id) => broker_paths(*id).to_vec(),
        Subject::TopicId(id) => vec![Znode::TopicIdEntry(*id).path()],
        Subject::Partition(tp) => partition_paths(tp),
        Subject::Wishes => vec![Znode::PreferredReplicaElection.path()],
        Subject::Topic(topic) => {
            let path = Znode::Topic(topic.clone()).path();
            let children = zookeeper.children(&path).await?.unwrap_or_default();
            let mut paths = vec![path, Znode::DeleteTopic(topic.clone()).path()];
            paths.extend(partitions(topic, &children).iter().flat_map(partition_paths));
            paths
        }
    })
}

fn partitions(topic: &TopicName, children: &[String]) -> Vec<TopicPartition> {
    let parse = |child: &String| {
        let path = format!("{}/{child}", Znode::Topic(topic.clone()).path());
        match Znode::parse(&path) {
            Some(Znode::Partition(tp)) => Some(tp),
            _ => None,
        }
    };
    children.iter().filter_map(parse).collect()
}

/// Paths of everything below the parents that the machine knows.
async fn tree(zookeeper: &ZooKeeper) -> Result<Vec<String>, ReadError> {
    let parents = [
        znode::BROKER_IDS,
        znode::BROKER_ENDPOINTS,
        znode::BROKER_EPOCHS,
        znode::TOPIC_IDS,
        znode::DELETE_TOPICS,
        znode::TOPIC_CONFIGS,
    ];
    let mut paths = below(zookeeper, parents.map(str::to_owned).to_vec()).await?;
    paths.push(Znode::PreferredReplicaElection.path());
    paths.push(Znode::BrokerConfig(DEFAULT_ENTITY.to_owned()).path());
    for parent in [znode::REASSIGNMENTS, znode::REASSIGNMENT_ERRORS] {
        let topics = below(zookeeper, vec![parent.to_owned()]).await?;
        paths.extend(below(zookeeper, topics).await?);
    }
    let topics = below(zookeeper, vec![znode::TOPICS.to_owned()]).await?;
    let is_partition = |path: &String| matches!(Znode::parse(path), Some(Znode::Partition(_)));
    let partitions: Vec<String> =
        below(zookeeper, topics.clone()).await?.into_iter().filter(is_partition).collect();
    let leaves = below(zookeeper, partitions.clone()).await?;
    paths.extend(topics);
    paths.extend(partitions);
    paths.extend(leaves);
    paths.retain(|path| Znode::parse(path).is_some());
    Ok(paths)
}

/// Paths of all children of these znodes.
async fn below(zookeeper: &ZooKeeper, parents: Vec<String>) -> Result<Vec<String>, ReadError> {
    let children = zookeeper.children_many(&parents).await?;
    let pairs = parents.iter().zip(children);
    Ok(pairs
        .flat_map(|(parent, children)| {
            children.unwrap_or_default().into_iter().map(move |child| format!("{parent}/{child}"))
        })
        .collect())
}
