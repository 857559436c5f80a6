//! The range assignor, for when this program leads its group: the partitions of each topic go in runs to the members
//! that want the topic, in the order of their names; the first ones get one more where it does not come out even. Pure.

use std::collections::BTreeMap;

use kafka_protocol::protocol::StrBytes;

/// Topics and partitions by member; every member is named, even one that gets nothing.
pub(super) type Assignments = BTreeMap<StrBytes, BTreeMap<String, Vec<i32>>>;

/// `wanted`: the topics of each member; `partitions`: how many each topic has.
pub(super) fn assign_ranges(
    wanted: &BTreeMap<StrBytes, Vec<String>>,
    partitions: &BTreeMap<String, i32>,
) -> Assignments {
    let mut assignments: Assignments =
        wanted.keys().map(|member| (member.clone(), BTreeMap::new())).collect();
    for (topic, count) in partitions {
        let members: Vec<&StrBytes> =
            wanted.iter().filter(|(_, topics)| topics.contains(topic)).map(|(member, _)| member).collect();
        let Ok(size) = i32::try_from(members.len()) else { continue };
        let mut first = 0;
        for (member, index) in members.into_iter().zip(0..) {
            let share = count / size + i32::from(index < count % size);
            if 0 < share
                && let Some(assignment) = assignments.get_mut(member)
            {
                assignment.insert(topic.clone(), (first..first + share).collect());
            }
            first += share;
        }
    }
    assignments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_goes_to_one_member_that_wants_it() {
        let wants = |member: &'static str, topics: &[&str]| {
            (StrBytes::from_static_str(member), topics.iter().map(|topic| (*topic).to_owned()).collect())
        };
        let wanted = BTreeMap::from([wants("b", &["t", "u"]), wants("a", &["t"]), wants("c", &["v"])]);
        let partitions = BTreeMap::from([("t".to_owned(), 3), ("u".to_owned(), 1), ("w".to_owned(), 9)]);
        let assigned = assign_ranges(&wanted, &partitions);
        let of = |member: &'static str| assigned[&StrBytes::from_static_str(member)].clone();
        assert_eq!(of("a"), BTreeMap::from([("t".to_owned(), vec![0, 1])]));
        assert_eq!(of("b"), BTreeMap::from([("t".to_owned(), vec![2]), ("u".to_owned(), vec![0])]));
        assert_eq!(of("c"), BTreeMap::new());
    }
}
