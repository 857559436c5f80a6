//! Which brokers get the replicas of a new topic: evenly spread leaders and replicas, and replicas of a partition on
//! different racks as far as there are racks (KIP-36). Pure: the two starting points are drawn by the caller.

use std::collections::BTreeMap;

use zurau_common::id::BrokerId;
use zurau_common::rejection::Rejection;

/// A broker that may host replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) broker: BrokerId,
    pub(crate) rack: Option<String>,
}

/// Where the round begins. Drawn at random for a new topic, so that small topics do not all sit on the first brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed {
    /// Index of the broker that leads partition 0; any number.
    pub(crate) first_broker: usize,
    /// Distance from the leader to its first follower; any number.
    pub(crate) follower_shift: usize,
}

/// Replicas for the partitions `first_partition..first_partition + count`, the preferred leader first.
///
/// # Errors
/// [`Rejection::InvalidReplicationFactor`] when it is 0 or there are fewer candidates.
pub(crate) fn place(
    candidates: &[Candidate],
    first_partition: usize,
    count: usize,
    replication_factor: usize,
    seed: Seed,
) -> Result<Vec<Vec<BrokerId>>, Rejection> {
    if replication_factor == 0 || candidates.len() < replication_factor {
        return Err(Rejection::InvalidReplicationFactor);
    }
    let ring = ring(candidates);
    let racks = ring.iter().map(|(_, rack)| rack).collect::<std::collections::BTreeSet<_>>().len();
    // With racks the followers move on by whole rounds of racks, else the order of racks would never change.
    let stride = if racks == ring.len() { 1 } else { racks };
    let assignments = (first_partition..first_partition.saturating_add(count)).map(|partition| {
        let position = partition % ring.len() + seed.first_broker % ring.len();
        let rounds = partition / ring.len();
        let shift = (seed.follower_shift % ring.len() + rounds) * stride;
        replicas(&ring, racks, position % ring.len(), shift, replication_factor)
    });
    Ok(assignments.collect())
}

/// The brokers in the order of the round, each with the number of its rack. Racks take turns. Unless every broker
/// names a rack, racks are ignored and each broker counts as its own.
fn ring(candidates: &[Candidate]) -> Vec<(BrokerId, usize)> {
    let mut brokers: Vec<&Candidate> = candidates.iter().collect();
    brokers.sort_by_key(|candidate| candidate.broker);
    if brokers.iter().any(|candidate| candidate.rack.is_none()) {
        return brokers.iter().enumerate().map(|(index, candidate)| (candidate.broker, index)).collect();
    }
    let mut by_rack: BTreeMap<&str, Vec<BrokerId>> = BTreeMap::new();
    for candidate in brokers {
        by_rack.entry(candidate.rack.as_deref().unwrap_or_default()).or_default().push(candidate.broker);
    }
    let longest = by_rack.values().map(Vec::len).max().unwrap_or(0);
    let turns = (0..longest).flat_map(|turn| {
        let of_turn = by_rack.values().enumerate();
        of_turn.filter_map(move |(rack, brokers)| brokers.get(turn).map(|broker| (*broker, rack)))
    });
    turns.collect()
}

/// The broker at `leader` and the following ones of the round, on new racks while there are any.
fn replicas(
    ring: &[(BrokerId, usize)],
    racks: usize,
    leader: usize,
    shift: usize,
    replication_factor: usize,
) -> Vec<BrokerId> {
    let mut chosen = vec![ring[leader]];
    let others = ring.len() - 1;
    let followers: Vec<(BrokerId, usize)> =
        (0..others).map(|step| ring[(leader + 1 + (shift + step) % others) % ring.len()]).collect();
    while chosen.len() < replication_factor {
        let free = || followers.iter().filter(|broker| !chosen.contains(broker));
        let uses = |rack: usize| chosen.iter().filter(|(_, used)| *used == rack).count();
        // As long as a rack has no replica, take from it; afterwards from the racks with the fewest.
        let fewest =
            if chosen.len() < racks { 0 } else { free().map(|(_, rack)| uses(*rack)).min().unwrap_or(0) };
        let next = free().find(|(_, rack)| uses(*rack) <= fewest).or_else(|| free().next());
        chosen.push(*next.expect("there are at least as many brokers as replicas"));
    }
    chosen.into_iter().map(|(broker, _)| broker).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use proptest::prelude::*;

    use super::*;

    fn candidates(racks: &[Option<&str>]) -> Vec<Candidate> {
        let brokers = racks.iter().enumerate();
        brokers
            .map(|(index, rack)| Candidate {
                broker: BrokerId(index as i32),
                rack: rack.map(ToOwned::to_owned),
            })
            .collect()
    }

    fn numbers(assignments: &[Vec<BrokerId>]) -> Vec<Vec<i32>> {
        assignments.iter().map(|replicas| replicas.iter().map(|id| id.0).collect()).collect()
    }

    #[test]
    fn without_racks_leaders_go_round_and_followers_move_on_with_each_round() {
        let seed = Seed { first_broker: 0, follower_shift: 0 };
        let placed = place(&candidates(&[None; 3]), 0, 6, 2, seed).unwrap();
        assert_eq!(
            numbers(&placed),
            [vec![0, 1], vec![1, 2], vec![2, 0], vec![0, 2], vec![1, 0], vec![2, 1]]
        );
        let later = place(&candidates(&[None; 3]), 4, 2, 2, seed).unwrap();
        assert_eq!(later, placed[4..], "added partitions go on where the topic stopped");
    }

    #[test]
    fn too_few_brokers_are_refused() {
        let seed = Seed { first_broker: 7, follower_shift: 7 };
        for (brokers, factor) in [(0, 1), (2, 3), (2, 0)] {
            let placed = place(&candidates(&vec![None; brokers]), 0, 1, factor, seed);
            assert_eq!(placed, Err(Rejection::InvalidReplicationFactor));
        }
        let alone = place(&candidates(&[Some("a")]), 0, 2, 1, seed).unwrap();
        assert_eq!(numbers(&alone), [vec![0], vec![0]]);
    }

    proptest! {
        #[test]
        fn replicas_are_distinct_spread_over_racks_and_leaders_are_balanced(
            racks in proptest::collection::vec(0..3_usize, 1..9),
            factor in 1..4_usize,
            rounds in 1..4_usize,
            first_broker in 0..100_usize,
            follower_shift in 0..100_usize,
        ) {
            let names = ["a", "b", "c"];
            let brokers = candidates(&racks.iter().map(|rack| Some(names[*rack])).collect::<Vec<_>>());
            prop_assume!(factor <= brokers.len());
            let count = brokers.len() * rounds;
            let placed = place(&brokers, 0, count, factor, Seed { first_broker, follower_shift }).unwrap();
            let rack_count = racks.iter().collect::<BTreeSet<_>>().len();
            let mut leaders: HashMap<BrokerId, usize> = HashMap::new();
            for replicas in &placed {
                let distinct: BTreeSet<_> = replicas.iter().collect();
                prop_assert_eq!(distinct.len(), factor);
                let used: BTreeSet<_> = replicas.iter().map(|id| racks[id.0 as usize]).collect();
                prop_assert_eq!(used.len(), factor.min(rack_count));
                *leaders.entry(replicas[0]).or_default() += 1;
            }
            prop_assert!(leaders.values().all(|count| *count == rounds), "{:?}", leaders);
        }
    }
}
