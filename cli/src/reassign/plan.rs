//! A proposal of where replicas shall be: on the given brokers only, on different racks as far as there are racks, evenly
//! spread, and with as few replicas moved as that needs. Pure.
//!
//! Racks count only if every broker has one (KIP-36). Leaders are spread by the order of replicas, which moves no data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zurau_common::id::TopicPartition;

/// Brokers that may host replicas, with their racks.
pub(super) type Racks = BTreeMap<i32, Option<String>>;

/// Replicas of each partition, the preferred leader first.
pub(super) type Replicas = BTreeMap<TopicPartition, Vec<i32>>;

/// The replicas of every given partition as they shall be.
///
/// # Errors
/// A partition has more replicas than there are brokers.
pub(super) fn propose(current: &Replicas, racks: &Racks) -> Result<Replicas, String> {
    for (partition, replicas) in current {
        if racks.len() < replicas.len() {
            return Err(format!(
                "{partition} has {} replicas, but only {} brokers are given; name more with --broker-list",
                replicas.len(),
                racks.len()
            ));
        }
    }
    let mut plan = Plan::new(current, racks);
    plan.fill(current);
    plan.spread_over_racks();
    plan.balance();
    plan.spread_leaders();
    Ok(plan.replicas)
}

/// How many copies are made: replicas on brokers that have none of the partition.
pub(super) fn moved_replicas(current: &Replicas, proposed: &Replicas) -> usize {
    let new = |(partition, replicas): (&TopicPartition, &Vec<i32>)| {
        let old = current.get(partition);
        replicas.iter().filter(|id| !old.is_some_and(|old| old.contains(id))).count()
    };
    proposed.iter().map(new).sum()
}

struct Plan {
    replicas: Replicas,
    /// Rack by broker; without racks each broker is its own.
    rack_of: BTreeMap<i32, String>,
    /// Replicas by broker.
    load: BTreeMap<i32, usize>,
}

impl Plan {
    /// What may stay where it is.
    fn new(current: &Replicas, racks: &Racks) -> Self {
        let all_have_racks = racks.values().all(Option::is_some);
        let rack = |(id, rack): (&i32, &Option<String>)| {
            let name = rack.clone().filter(|_| all_have_racks).unwrap_or_else(|| id.to_string());
            (*id, name)
        };
        let stay =
            |replicas: &Vec<i32>| replicas.iter().copied().filter(|id| racks.contains_key(id)).collect();
        let replicas: Replicas = current.iter().map(|(id, replicas)| (id.clone(), stay(replicas))).collect();
        let mut load: BTreeMap<i32, usize> = racks.keys().map(|id| (*id, 0)).collect();
        for id in replicas.values().flatten() {
            *load.entry(*id).or_default() += 1;
        }
        Self { replicas, rack_of: racks.iter().map(rack).collect(), load }
    }

    /// How many of the replicas are on the rack of a broker.
    fn on_rack_of(&self, broker: i32, replicas: &[i32]) -> usize {
        replicas.iter().filter(|id| self.rack_of.get(id) == self.rack_of.get(&broker)).count()
    }

    /// The broker that fits best beside `others`: the rack that is used least, then the least load.
    fn best_beside(&self, others: &[i32]) -> Option<i32> {
        let free = self.load.iter().filter(|(id, _)| !others.contains(id));
        free.min_by_key(|(id, load)| (self.on_rack_of(**id, others), **load, **id)).map(|(id, _)| *id)
    }

    /// Gives each partition as many replicas as it had.
    fn fill(&mut self, current: &Replicas) {
        let partitions: Vec<TopicPartition> = self.replicas.keys().cloned().collect();
        for partition in partitions {
            let wanted = current.get(&partition).map_or(0, Vec::len);
            let mut replicas = self.replicas.remove(&partition).unwrap_or_default();
            while replicas.len() < wanted {
                let Some(best) = self.best_beside(&replicas) else { break };
                replicas.push(best);
                *self.load.entry(best).or_default() += 1;
            }
            self.replicas.insert(partition, replicas);
        }
    }

    fn replace(&mut self, partition: &TopicPartition, from: i32, to: i32) {
        if let Some(place) =
            self.replicas.get_mut(partition).and_then(|ids| ids.iter_mut().find(|id| **id == from))
        {
            *place = to;
            *self.load.entry(from).or_default() -= 1;
            *self.load.entry(to).or_default() += 1;
        }
    }

    /// Moves replicas that share a rack onto racks without any.
    fn spread_over_racks(&mut self) {
        let partitions: Vec<TopicPartition> = self.replicas.keys().cloned().collect();
        for partition in partitions {
            while let Some((from, to)) = self.better_rack(&self.replicas[&partition]) {
                self.replace(&partition, from, to);
            }
        }
    }

    fn better_rack(&self, replicas: &[i32]) -> Option<(i32, i32)> {
        let crowded = replicas.iter().copied().filter(|id| 1 < self.on_rack_of(*id, replicas));
        let from =
            crowded.max_by_key(|id| (self.on_rack_of(*id, replicas), self.load.get(id).copied(), *id))?;
        let others: Vec<i32> = replicas.iter().copied().filter(|id| *id != from).collect();
        let to = self.best_beside(replicas)?;
        (self.on_rack_of(to, &others) < self.on_rack_of(from, &others)).then_some((from, to))
    }

    /// Moves replicas from full to empty brokers while that evens the load and no rack gets more crowded. Each move
    /// makes the sum of the squared loads smaller, so it ends.
    fn balance(&mut self) {
        while let Some((partition, from, to)) = self.evening_move() {
            self.replace(&partition, from, to);
        }
    }

    fn evening_move(&self) -> Option<(TopicPartition, i32, i32)> {
        let mut by_load: Vec<(usize, i32)> = self.load.iter().map(|(id, load)| (*load, *id)).collect();
        by_load.sort_unstable();
        for (most, from) in by_load.iter().rev() {
            for (least, to) in by_load.iter().take_while(|(least, _)| least + 1 < *most) {
                debug_assert!(least < most);
                if let Some(partition) = self.movable(*from, *to) {
                    return Some((partition, *from, *to));
                }
            }
        }
        None
    }

    fn movable(&self, from: i32, to: i32) -> Option<TopicPartition> {
        let fits = |replicas: &Vec<i32>| {
            let others: Vec<i32> = replicas.iter().copied().filter(|id| *id != from).collect();
            replicas.contains(&from)
                && !replicas.contains(&to)
                && self.on_rack_of(to, &others) <= self.on_rack_of(from, &others)
        };
        // A follower is moved rather than a leader: its clients need not follow.
        let found = |leads: bool| {
            self.replicas
                .iter()
                .find(|(_, replicas)| fits(replicas) && (replicas.first() == Some(&from)) == leads)
        };
        found(false).or_else(|| found(true)).map(|(partition, _)| partition.clone())
    }

    /// Evens out who is preferred to lead, by the order of the replicas.
    fn spread_leaders(&mut self) {
        let mut led: BTreeMap<i32, usize> = self.load.keys().map(|id| (*id, 0)).collect();
        for leader in self.replicas.values().filter_map(|replicas| replicas.first()) {
            *led.entry(*leader).or_default() += 1;
        }
        while let Some(path) = self.handover(&led) {
            for (partition, to) in path {
                let Some(replicas) = self.replicas.get_mut(&partition) else { continue };
                let Some(place) = replicas.iter().position(|id| *id == to) else { continue };
                *led.entry(replicas[0]).or_default() -= 1;
                *led.entry(to).or_default() += 1;
                replicas.swap(0, place);
            }
        }
    }

    /// A chain of handovers from the broker that leads most to one that leads at least two fewer.
    fn handover(&self, led: &BTreeMap<i32, usize>) -> Option<Vec<(TopicPartition, i32)>> {
        let (start, most) = led.iter().max_by_key(|(id, count)| (**count, -**id))?;
        let mut by_leader: BTreeMap<i32, Vec<(&TopicPartition, &[i32])>> = BTreeMap::new();
        for (partition, replicas) in &self.replicas {
            if let [leader, followers @ ..] = replicas.as_slice() {
                by_leader.entry(*leader).or_default().push((partition, followers));
            }
        }
        let mut came_by: BTreeMap<i32, (i32, TopicPartition)> = BTreeMap::new();
        let mut seen = BTreeSet::from([*start]);
        let mut open = VecDeque::from([*start]);
        while let Some(broker) = open.pop_front() {
            if led.get(&broker).is_some_and(|count| count + 1 < *most) {
                let mut path = Vec::new();
                let mut at = broker;
                while let Some((before, partition)) = came_by.get(&at) {
                    path.push((partition.clone(), at));
                    at = *before;
                }
                return Some(path);
            }
            for (partition, followers) in by_leader.get(&broker).into_iter().flatten() {
                for follower in followers.iter().filter(|id| seen.insert(**id)) {
                    came_by.insert(*follower, (broker, (*partition).clone()));
                    open.push_back(*follower);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn racks(names: &[Option<&str>]) -> Racks {
        (1..).zip(names).map(|(id, rack)| (id, rack.map(str::to_owned))).collect()
    }

    fn replicas(partitions: &[&[i32]]) -> Replicas {
        let numbered = (0..).zip(partitions);
        numbered.map(|(number, ids)| (TopicPartition::new("t", number), ids.to_vec())).collect()
    }

    fn loads(plan: &Replicas, racks: &Racks) -> Vec<usize> {
        racks.keys().map(|id| plan.values().flatten().filter(|other| *other == id).count()).collect()
    }

    fn leads(plan: &Replicas, racks: &Racks) -> Vec<usize> {
        racks.keys().map(|id| plan.values().filter(|ids| ids.first() == Some(id)).count()).collect()
    }

    #[test]
    fn what_is_balanced_stays() {
        let current = replicas(&[&[1, 2], &[2, 3], &[3, 1]]);
        assert_eq!(propose(&current, &racks(&[None; 3])), Ok(current));
    }

    #[test]
    fn a_new_broker_takes_its_share_and_no_more() {
        let current = replicas(&[&[1, 2], &[2, 1], &[1, 2], &[2, 1], &[1, 2], &[2, 1]]);
        let brokers = racks(&[None; 3]);
        let plan = propose(&current, &brokers).unwrap();
        assert_eq!(loads(&plan, &brokers), [4, 4, 4]);
        assert_eq!(leads(&plan, &brokers), [2, 2, 2]);
        assert_eq!(moved_replicas(&current, &plan), 4);
    }

    #[test]
    fn a_broker_that_is_not_given_is_emptied() {
        let current = replicas(&[&[1, 4], &[4, 2], &[3, 1]]);
        let brokers = racks(&[None; 3]);
        let plan = propose(&current, &brokers).unwrap();
        assert_eq!(loads(&plan, &brokers), [2, 2, 2]);
        assert_eq!(moved_replicas(&current, &plan), 2);
    }

    #[test]
    fn replicas_go_to_different_racks() {
        let brokers = racks(&[Some("a"), Some("a"), Some("b"), Some("b")]);
        let plan = propose(&replicas(&[&[1, 2], &[3, 4]]), &brokers).unwrap();
        for ids in plan.values() {
            assert!(ids.iter().any(|id| *id <= 2) && ids.iter().any(|id| 3 <= *id), "{plan:?}");
        }
        assert_eq!(loads(&plan, &brokers), [1, 1, 1, 1]);
    }

    #[test]
    fn too_few_brokers_are_refused() {
        let error = propose(&replicas(&[&[1, 2]]), &racks(&[None])).unwrap_err();
        assert!(error.contains("t-0 has 2 replicas, but only 1 brokers"), "{error}");
    }

    proptest! {
        #[test]
        fn a_plan_keeps_its_promises(
            rack_of in proptest::collection::vec(0..3_usize, 3..8),
            with_racks in proptest::bool::ANY,
            partitions in proptest::collection::vec(
                proptest::sample::subsequence((1..10).collect::<Vec<i32>>(), 1..4).prop_shuffle(), 1..30),
        ) {
            let names: Vec<Option<&str>> =
                rack_of.iter().map(|rack| with_racks.then_some(["a", "b", "c"][*rack])).collect();
            let brokers = racks(&names);
            let current = replicas(&partitions.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let plan = propose(&current, &brokers).unwrap();
            let rack_count = brokers.values().collect::<BTreeSet<_>>().len();
            for (partition, ids) in &plan {
                prop_assert_eq!(ids.len(), current[partition].len());
                prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
                prop_assert!(ids.iter().all(|id| brokers.contains_key(id)));
                if with_racks {
                    let used: BTreeSet<_> = ids.iter().map(|id| &brokers[id]).collect();
                    prop_assert_eq!(used.len(), ids.len().min(rack_count), "{:?}", ids);
                }
            }
            if !with_racks {
                let loads = loads(&plan, &brokers);
                prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{:?}", loads);
            }
            prop_assert_eq!(propose(&plan, &brokers), Ok(plan.clone()), "a second plan moves nothing");
        }
    }
}
