//! The throttle of moves, as kafka-reassign-partitions sets it (KIP-73): a rate on every broker that sends or receives,
//! and on each topic a list of who is throttled: as leaders the replicas that there are, as followers those that are
//! added. It stays until it is taken away: by `status` once nothing moves any more, or by `cancel`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use zurau_common::id::TopicPartition;

use super::Move;
use super::proposal::Proposal;
use crate::client::{Client, Cluster};
use crate::configs::{Change, Resource, change_configs, own_keys};

/// On brokers, in bytes a second.
const RATES: [&str; 2] = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"];
/// On topics, as `partition:broker,…`: leaders, then followers.
const REPLICAS: [&str; 2] =
    ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"];

/// From where to where a partition moves.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Journey {
    from: Vec<i32>,
    to: Vec<i32>,
}

/// Who is throttled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Throttled {
    brokers: BTreeSet<i32>,
    /// Values of [`REPLICAS`] by topic.
    topics: BTreeMap<String, [String; 2]>,
}

impl Throttled {
    fn of(journeys: &BTreeMap<TopicPartition, Journey>) -> Self {
        let mut lists: BTreeMap<String, [Vec<String>; 2]> = BTreeMap::new();
        let mut brokers = BTreeSet::new();
        for (id, Journey { from, to }) in journeys {
            let added: Vec<i32> = to.iter().copied().filter(|broker| !from.contains(broker)).collect();
            let [leaders, followers] = lists.entry(id.topic.to_string()).or_default();
            leaders.extend(from.iter().map(|broker| format!("{}:{broker}", id.partition)));
            followers.extend(added.iter().map(|broker| format!("{}:{broker}", id.partition)));
            brokers.extend(from.iter().chain(&added).copied());
        }
        let topics =
            lists.into_iter().map(|(topic, lists)| (topic, lists.map(|one: Vec<String>| one.join(","))));
        Self { brokers, topics: topics.collect() }
    }
}

/// The moves under way, and over them those of the proposal.
fn journeys(
    under_way: &BTreeMap<TopicPartition, Move>,
    proposal: &Proposal,
    cluster: &Cluster,
) -> Result<BTreeMap<TopicPartition, Journey>> {
    let mut journeys = BTreeMap::new();
    for (id, one) in under_way {
        let without =
            |left_out: &[i32]| one.replicas.iter().copied().filter(|id| !left_out.contains(id)).collect();
        journeys.insert(id.clone(), Journey { from: without(&one.adding), to: without(&one.removing) });
    }
    for wanted in &proposal.partitions {
        let to = wanted.replicas.clone();
        let journey = match journeys.remove(&wanted.id()) {
            Some(before) => Journey { to, ..before },
            None => {
                let partition = cluster.partition(&wanted.topic, wanted.partition)?;
                Journey { from: partition.replicas.clone(), to }
            }
        };
        journeys.insert(wanted.id(), journey);
    }
    Ok(journeys)
}

/// Sets the throttle of a proposal that is about to be started, and of what moves already.
///
/// # Errors
/// A configuration is refused: nothing should be moved. A broker that is not alive is only told of.
pub(super) async fn set(
    client: &mut Client,
    under_way: &BTreeMap<TopicPartition, Move>,
    proposal: &Proposal,
    cluster: &Cluster,
    bytes_per_second: u64,
) -> Result<()> {
    let throttled = Throttled::of(&journeys(under_way, proposal, cluster)?);
    // Rates first: a list without a rate throttles nothing.
    let rate = bytes_per_second.to_string();
    let rates = RATES.map(|key| Change::set(key, &rate));
    let live = cluster.racks();
    for broker in throttled.brokers {
        if live.contains_key(&broker) {
            change_configs(client, &Resource::Broker(Some(broker)), &rates, false).await??;
        } else {
            eprintln!("broker {broker} is not alive and gets no throttle; start this again when it is back");
        }
    }
    for (topic, [leaders, followers]) in throttled.topics {
        let lists = [Change::set(REPLICAS[0], &leaders), Change::set(REPLICAS[1], &followers)];
        change_configs(client, &Resource::Topic(topic), &lists, false).await??;
    }
    eprintln!(
        "throttled to {rate} bytes a second on each broker; `zurau reassign status FILE` takes the throttle away \
         when nothing moves any more"
    );
    Ok(())
}

/// Takes the throttle away from those of these topics that have one, and then from every live broker: a rate that is
/// left on a dead one throttles nobody.
///
/// # Errors
/// A broker cannot be asked, or refuses. The topics are freed last, so that the next attempt finds the rest.
pub(super) async fn clear(
    client: &mut Client,
    cluster: &Cluster,
    topics: impl IntoIterator<Item = String>,
) -> Result<()> {
    let mut throttled = Vec::new();
    for topic in topics {
        let resource = Resource::Topic(topic);
        let keys = own_keys(client, &resource, &REPLICAS).await?;
        throttled.extend((!keys.is_empty()).then_some((resource, keys)));
    }
    if throttled.is_empty() {
        return Ok(());
    }
    let mut all = Vec::new();
    for broker in &cluster.brokers {
        let resource = Resource::Broker(Some(broker.broker));
        let keys = own_keys(client, &resource, &RATES).await?;
        all.extend((!keys.is_empty()).then_some((resource, keys)));
    }
    all.append(&mut throttled);
    for (resource, keys) in all {
        let changes: Vec<Change> = keys.iter().map(|key| Change::delete(key)).collect();
        change_configs(client, &resource, &changes, false).await??;
        eprintln!("the throttle of {resource} is gone");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journey(partition: i32, from: &[i32], to: &[i32]) -> (TopicPartition, Journey) {
        (TopicPartition::new("t", partition), Journey { from: from.to_vec(), to: to.to_vec() })
    }

    #[test]
    fn whoever_has_a_copy_sends_and_whoever_is_added_receives() {
        let throttled = Throttled::of(&BTreeMap::from([
            journey(0, &[1, 2], &[2, 3]),
            journey(1, &[1], &[4, 1]),
            journey(2, &[5], &[5]),
        ]));
        assert_eq!(throttled.brokers, BTreeSet::from([1, 2, 3, 4, 5]));
        assert_eq!(throttled.topics["t"], ["0:1,0:2,1:1,2:5".to_owned(), "0:3,1:4".to_owned()]);
    }

    #[test]
    fn a_move_under_way_is_throttled_too_and_its_new_copies_are_no_sources() {
        let under_way = BTreeMap::from([
            (
                TopicPartition::new("t", 0),
                Move { replicas: vec![3, 1, 2], adding: vec![3], removing: vec![1] },
            ),
            (TopicPartition::new("u", 7), Move { replicas: vec![2, 1], adding: vec![2], removing: vec![1] }),
        ]);
        let proposal = Proposal::new(vec![super::super::Wanted::new("t", 0, vec![4, 2])]);
        let cluster = Cluster { brokers: Vec::new(), controller: None, topics: Vec::new() };
        let throttled = Throttled::of(&journeys(&under_way, &proposal, &cluster).unwrap());
        assert_eq!(throttled.topics["t"], ["0:1,0:2".to_owned(), "0:4".to_owned()]);
        assert_eq!(throttled.topics["u"], ["7:1".to_owned(), "7:2".to_owned()]);
        let unknown = Proposal::new(vec![super::super::Wanted::new("absent", 0, vec![1])]);
        assert!(journeys(&under_way, &unknown, &cluster).is_err());
    }
}
