//! Properties of the assignors: complete, even, and with as little movement as evenness allows.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::assignor::{Assignor, Reader};
use super::*;

/// Members with what they read and what they had; topics with their partitions.
#[derive(Debug, Clone)]
struct Case {
    topics: BTreeMap<TopicId, i32>,
    members: Vec<(BTreeSet<TopicId>, Partitions)>,
}

fn cases(same_topics: bool) -> impl Strategy<Value = Case> {
    let topics = prop::collection::vec(0..12i32, 1..5);
    let members =
        prop::collection::vec((any::<u8>(), prop::collection::vec((1..6u128, 0..14i32), 0..10)), 1..8);
    (topics, members).prop_map(move |(topics, members)| {
        let topics: BTreeMap<TopicId, i32> = (1..).map(id).zip(topics).collect();
        let mut taken = BTreeSet::new();
        let members = members.into_iter().map(|(reads, had)| {
            let reads_this = |(index, _): &(usize, &TopicId)| same_topics || reads & (1 << index) != 0;
            let reads = topics.keys().enumerate().filter(reads_this).map(|(_, topic)| *topic).collect();
            // Of topics that are gone, of partitions that never were: the assignor forgets them.
            let had = had.into_iter().map(|(topic, partition)| (id(topic), partition));
            (reads, had.filter(|each| taken.insert(*each)).collect())
        });
        Case { members: members.collect(), topics }
    })
}

fn assign(assignor: Assignor, case: &Case) -> Vec<Partitions> {
    let names: Vec<String> = (0..case.members.len()).map(|number| format!("m{number}")).collect();
    let readers: Vec<Reader<'_>> = case
        .members
        .iter()
        .zip(&names)
        .map(|((topics, previous), name)| Reader {
            member_id: name,
            instance_id: None,
            topics: topics.clone(),
            previous,
        })
        .collect();
    assignor.assign(&readers, &case.topics)
}

/// Every partition that somebody reads has one owner, who reads its topic; nothing else is given out.
fn check_complete(case: &Case, parts: &[Partitions]) {
    let mut given = BTreeSet::new();
    for ((reads, _), part) in case.members.iter().zip(parts) {
        for (topic, partition) in part.iter() {
            assert!(reads.contains(&topic) && partition < case.topics[&topic]);
            assert!(given.insert((topic, partition)), "given to two");
        }
    }
    let read = |topic: &TopicId| case.members.iter().any(|(reads, _)| reads.contains(topic));
    let all: i32 = case.topics.iter().filter(|(topic, _)| read(topic)).map(|(_, count)| count).sum();
    assert_eq!(given.len(), usize::try_from(all).unwrap());
}

/// What a member keeps and could keep.
fn valid_before<'a>(case: &'a Case, index: usize) -> impl Iterator<Item = (TopicId, i32)> + 'a {
    let (reads, had) = &case.members[index];
    had.iter().filter(|(topic, partition)| {
        reads.contains(topic) && case.topics.get(topic).is_some_and(|count| partition < count)
    })
}

proptest! {
    #[test]
    fn uniform_gives_equal_readers_equal_parts_and_moves_the_least(case in cases(true)) {
        let parts = assign(Assignor::Uniform, &case);
        check_complete(&case, &parts);
        let sizes: Vec<usize> = parts.iter().map(Partitions::len).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        for (index, part) in parts.iter().enumerate() {
            let lost = valid_before(&case, index).filter(|(topic, partition)| !part.contains(*topic, *partition));
            let had: Partitions = valid_before(&case, index).collect();
            let gained = part.iter().filter(|(topic, partition)| !had.contains(*topic, *partition)).count();
            prop_assert!(lost.count() == 0 || gained == 0, "member {index} swapped");
        }
        // And it stays so.
        let members = case.members.iter().zip(&parts).map(|((reads, _), part)| (reads.clone(), part.clone()));
        let again = Case { members: members.collect(), ..case };
        prop_assert_eq!(assign(Assignor::Uniform, &again), parts);
    }

    #[test]
    fn uniform_leaves_no_move_that_would_make_different_readers_more_equal(case in cases(false)) {
        let parts = assign(Assignor::Uniform, &case);
        check_complete(&case, &parts);
        for (giver, part) in parts.iter().enumerate() {
            for (topic, _) in part.iter() {
                for (taker, (reads, _)) in case.members.iter().enumerate() {
                    prop_assert!(
                        !reads.contains(&topic) || part.len() <= parts[taker].len() + 1,
                        "{giver} could give to {taker}: {parts:?}"
                    );
                }
            }
        }
        let members = case.members.iter().zip(&parts).map(|((reads, _), part)| (reads.clone(), part.clone()));
        let again = Case { members: members.collect(), ..case };
        prop_assert_eq!(assign(Assignor::Uniform, &again), parts);
    }

    #[test]
    fn range_gives_neighbours_and_equal_parts_of_each_topic(case in cases(false)) {
        let parts = assign(Assignor::Range, &case);
        check_complete(&case, &parts);
        for topic in case.topics.keys() {
            let of_topic = |part: &Partitions| -> Vec<i32> {
                part.iter().filter(|(id, _)| id == topic).map(|(_, partition)| partition).collect()
            };
            let readers = case.members.iter().zip(&parts).filter(|((reads, _), _)| reads.contains(topic));
            let runs: Vec<Vec<i32>> = readers.map(|(_, part)| of_topic(part)).collect();
            prop_assert!(runs.iter().all(|run| run.windows(2).all(|pair| pair[1] == pair[0] + 1)));
            let sizes = runs.iter().map(Vec::len);
            prop_assert!(sizes.clone().max().unwrap_or(0) - sizes.min().unwrap_or(0) <= 1);
        }
    }
}

#[test]
fn range_goes_by_instance_ids_and_gives_the_same_numbers_of_every_topic() {
    let nothing = Partitions::default();
    let reader = |member_id, instance_id| Reader {
        member_id,
        instance_id,
        topics: [id(1), id(2)].into(),
        previous: &nothing,
    };
    let members = [reader("a", None), reader("z", Some("i1")), reader("b", Some("i2"))];
    let topics = BTreeMap::from([(id(1), 4), (id(2), 4)]);
    let assigned = Assignor::Range.assign(&members, &topics);
    assert_eq!(assigned[1], parts(&[(1, 0), (1, 1), (2, 0), (2, 1)]));
    assert_eq!(assigned[2], parts(&[(1, 2), (2, 2)]));
    assert_eq!(assigned[0], parts(&[(1, 3), (2, 3)]));
}

#[test]
fn assignors_have_kafkas_names() {
    for (text, expected) in [
        ("uniform", Some(Assignor::Uniform)),
        (" range", Some(Assignor::Range)),
        ("org.apache.kafka.coordinator.group.assignor.UniformAssignor", Some(Assignor::Uniform)),
        ("org.apache.kafka.coordinator.group.assignor.RangeAssignor", Some(Assignor::Range)),
        ("sticky", None),
    ] {
        assert_eq!(Assignor::from_setting(text), expected, "{text}");
    }
}

#[test]
fn thousands_of_members_are_assigned_without_delay() {
    let topics: BTreeMap<TopicId, i32> = (1..=50).map(|number| (id(number), 100)).collect();
    let reads: BTreeSet<TopicId> = topics.keys().copied().collect();
    let case = Case { members: vec![(reads, Partitions::default()); 2_000], topics };
    let parts = assign(Assignor::Uniform, &case);
    check_complete(&case, &parts);
    assert!(parts.iter().all(|part| (2..=3).contains(&part.len())));
}
