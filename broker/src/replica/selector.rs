//! Which replica a consumer is sent to (KIP-392, `replica.selector.class`): one in the consumer's rack, if the leader is
//! not in it and an in-sync follower that holds the wanted offset is.

use std::cmp::Reverse;

use zurau_common::id::BrokerId;

/// An in-sync follower that holds the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readable {
    pub(crate) broker: BrokerId,
    pub(crate) log_end: i64,
    /// Milliseconds since it last held everything that the leader held.
    pub(crate) behind_ms: u64,
}

/// The follower to read from; `None`: the leader. Of several the longest log wins, then the one that kept up last.
pub(crate) fn nearest<'a>(
    rack: &str,
    leader: BrokerId,
    followers: &[Readable],
    rack_of: impl Fn(BrokerId) -> Option<&'a str>,
) -> Option<BrokerId> {
    if rack.is_empty() || rack_of(leader) == Some(rack) {
        return None;
    }
    let near = followers.iter().filter(|follower| rack_of(follower.broker) == Some(rack));
    let best =
        near.max_by_key(|follower| (follower.log_end, Reverse(follower.behind_ms), Reverse(follower.broker)));
    best.map(|best| best.broker)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(broker: i32, log_end: i64, behind_ms: u64) -> Readable {
        Readable { broker: BrokerId(broker), log_end, behind_ms }
    }

    #[test]
    fn a_consumer_reads_in_its_rack_if_it_can() {
        let racks = |broker: BrokerId| [None, Some("a"), Some("b"), Some("b"), None][broker.0 as usize];
        let all = [readable(2, 9, 5), readable(3, 9, 4), readable(4, 10, 0)];
        let rows = [
            ("a", 1, &all[..], None),
            ("b", 1, &all[..], Some(3)),
            ("b", 1, &all[..1], Some(2)),
            ("b", 1, &all[2..], None),
            ("c", 1, &all[..], None),
            ("", 1, &all[..], None),
            ("b", 4, &[readable(2, 10, 9), readable(3, 9, 0)][..], Some(2)),
        ];
        for (rack, leader, followers, expected) in rows {
            let found = nearest(rack, BrokerId(leader), followers, racks);
            assert_eq!(found, expected.map(BrokerId), "rack '{rack}', leader {leader}, {followers:?}");
        }
    }
}
