//! Who of a group shall read which partitions. `uniform` gives everyone as many and moves as few as it can; `range`
//! gives neighbours of a topic to the same member, and the same numbers of every topic.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::TopicId;

use super::partitions::Partitions;

/// Rounds over all topics in which partitions are moved; each one makes the assignment more even, and the first few
/// do almost everything.
const BALANCE_ROUNDS: usize = 64;

/// An assignor of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assignor {
    Uniform,
    Range,
}

impl Assignor {
    /// As clients name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// By its name or by Kafka's class.
    pub(crate) fn from_setting(text: &str) -> Option<Self> {
        let name = text.trim().rsplit('.').next()?;
        [
            ("uniform", Self::Uniform),
            ("UniformAssignor", Self::Uniform),
            ("range", Self::Range),
            ("RangeAssignor", Self::Range),
        ]
        .into_iter()
        .find_map(|(known, assignor)| (known == name).then_some(assignor))
    }

    /// The new parts, in the order of the members. Every partition of a topic that somebody reads is in exactly one.
    pub(crate) fn assign(self, members: &[Reader<'_>], topics: &BTreeMap<TopicId, i32>) -> Vec<Partitions> {
        match self {
            Self::Uniform => uniform(members, topics),
            Self::Range => range(members, topics),
        }
    }
}

/// A member, as an assignor sees it.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    pub(crate) member_id: &'a str,
    pub(crate) instance_id: Option<&'a str>,
    pub(crate) topics: BTreeSet<TopicId>,
    /// Its part so far.
    pub(crate) previous: &'a Partitions,
}

/// Members that have an instance id come first and by it, so that a restart changes nothing.
fn range(members: &[Reader<'_>], topics: &BTreeMap<TopicId, i32>) -> Vec<Partitions> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|index| {
        let member = &members[*index];
        (member.instance_id.is_none(), member.instance_id.unwrap_or(member.member_id))
    });
    let mut parts = vec![Partitions::default(); members.len()];
    for (topic, count) in topics {
        let readers: Vec<usize> =
            order.iter().copied().filter(|index| members[*index].topics.contains(topic)).collect();
        let Ok(among) = i32::try_from(readers.len()) else { continue };
        if among == 0 {
            continue;
        }
        let (each, more) = (count / among, count % among);
        let mut next = 0;
        for (position, index) in (0..).zip(readers) {
            let end = next + each + i32::from(position < more);
            parts[index].extend((next..end).map(|partition| (*topic, partition)));
            next = end;
        }
    }
    parts
}

/// Topics that the same members read are one pool: within it only the load of the members counts.
struct Pool {
    readers: Vec<usize>,
    topics: Vec<TopicId>,
}

struct Uniform {
    /// Owners by topic and partition.
    owners: BTreeMap<TopicId, Vec<Option<usize>>>,
    /// Partitions of each member.
    loads: Vec<usize>,
}

fn uniform(members: &[Reader<'_>], topics: &BTreeMap<TopicId, i32>) -> Vec<Partitions> {
    let pools = pools(members, topics);
    let mut state = Uniform::keep(members, topics);
    for pool in &pools {
        state.assign_rest(pool);
    }
    for _ in 0..BALANCE_ROUNDS {
        let moved: usize = pools.iter().map(|pool| state.balance(pool)).sum();
        // A pool alone is even after one round.
        if moved == 0 || pools.len() == 1 {
            break;
        }
    }
    let mut parts = vec![Partitions::default(); members.len()];
    for (topic, owners) in &state.owners {
        for (partition, owner) in (0..).zip(owners) {
            if let Some(owner) = owner {
                parts[*owner].insert(*topic, partition);
            }
        }
    }
    parts
}

/// Those with the fewest readers first: their partitions have the least choice.
fn pools(members: &[Reader<'_>], topics: &BTreeMap<TopicId, i32>) -> Vec<Pool> {
    let everyone: Vec<usize> = (0..members.len()).collect();
    if members.windows(2).all(|pair| pair[0].topics == pair[1].topics) {
        let read = |topic: &&TopicId| members.first().is_some_and(|member| member.topics.contains(topic));
        return vec![Pool { readers: everyone, topics: topics.keys().filter(read).copied().collect() }];
    }
    let mut by_readers: BTreeMap<Vec<usize>, Vec<TopicId>> = BTreeMap::new();
    for topic in topics.keys() {
        let readers: Vec<usize> =
            everyone.iter().copied().filter(|index| members[*index].topics.contains(topic)).collect();
        if !readers.is_empty() {
            by_readers.entry(readers).or_default().push(*topic);
        }
    }
    let mut pools: Vec<Pool> =
        by_readers.into_iter().map(|(readers, topics)| Pool { readers, topics }).collect();
    pools.sort_by_key(|pool| pool.readers.len());
    pools
}

impl Uniform {
    /// Everyone keeps what still exists and what it still reads.
    fn keep(members: &[Reader<'_>], topics: &BTreeMap<TopicId, i32>) -> Self {
        let none = |count: &i32| vec![None; usize::try_from(*count).unwrap_or(0)];
        let owners = topics.iter().map(|(topic, count)| (*topic, none(count))).collect();
        let mut state = Self { owners, loads: vec![0; members.len()] };
        for (index, member) in members.iter().enumerate() {
            for (topic, partition) in member.previous.iter() {
                let owners = state.owners.get_mut(&topic).filter(|_| member.topics.contains(&topic));
                let slot = owners.and_then(|owners| {
                    usize::try_from(partition).ok().and_then(|number| owners.get_mut(number))
                });
                if let Some(slot) = slot.filter(|slot| slot.is_none()) {
                    *slot = Some(index);
                    state.loads[index] += 1;
                }
            }
        }
        state
    }

    /// The members of a pool by their load.
    fn by_load(&self, pool: &Pool) -> BTreeSet<(usize, usize)> {
        pool.readers.iter().map(|index| (self.loads[*index], *index)).collect()
    }

    /// Gives what nobody has to who has least.
    fn assign_rest(&mut self, pool: &Pool) {
        let mut by_load = self.by_load(pool);
        for topic in &pool.topics {
            let owners = self.owners.get_mut(topic).expect("pools are made of these topics");
            for slot in owners.iter_mut().filter(|slot| slot.is_none()) {
                let Some((load, index)) = by_load.pop_first() else { return };
                *slot = Some(index);
                self.loads[index] += 1;
                by_load.insert((load + 1, index));
            }
        }
    }

    /// Moves partitions of the pool from who has most to who has least, until they differ by one at most. Returns how
    /// many were moved.
    fn balance(&mut self, pool: &Pool) -> usize {
        let mut by_load = self.by_load(pool);
        let spread = |by_load: &BTreeSet<(usize, usize)>| {
            by_load.last().map_or(0, |last| last.0) - by_load.first().map_or(0, |first| first.0)
        };
        if spread(&by_load) <= 1 {
            return 0;
        }
        let mut parts: BTreeMap<usize, Vec<(TopicId, usize)>> = BTreeMap::new();
        for topic in &pool.topics {
            for (partition, owner) in self.owners[topic].iter().enumerate() {
                if let Some(owner) = owner {
                    parts.entry(*owner).or_default().push((*topic, partition));
                }
            }
        }
        let mut givers: BTreeSet<(usize, usize)> =
            parts.keys().map(|index| (self.loads[*index], *index)).collect();
        let mut moved = 0;
        while let (Some(&(most, giver)), Some(&(least, taker))) = (givers.last(), by_load.first()) {
            if most <= least + 1 {
                break;
            }
            let part = parts.get_mut(&giver).expect("a giver has a part");
            let (topic, partition) = part.pop().expect("and something in it");
            let is_spent = part.is_empty();
            self.owners.get_mut(&topic).expect("it was taken from here")[partition] = Some(taker);
            self.loads[giver] -= 1;
            self.loads[taker] += 1;
            givers.remove(&(most, giver));
            by_load.remove(&(most, giver));
            by_load.remove(&(least, taker));
            by_load.extend([(most - 1, giver), (least + 1, taker)]);
            if !is_spent {
                givers.insert((most - 1, giver));
            }
            // What was just taken is not given on in this round: a taker ends below every giver.
            if givers.remove(&(least, taker)) {
                givers.insert((least + 1, taker));
            }
            moved += 1;
        }
        moved
    }
}
