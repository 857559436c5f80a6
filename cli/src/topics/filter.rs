//! Which partitions `zurau topics describe` shows: the filters of kafka-topics, under its names and shorter ones.

use clap::Args;

use crate::client::Partition;
use crate::configs::Entry;

/// Several filters show what passes any of them.
#[derive(Args, Debug, Default)]
pub(super) struct Filters {
    /// Only partitions with a replica that is not in sync.
    #[arg(long, alias = "under-replicated-partitions")]
    under_replicated: bool,
    /// Only partitions without a live leader.
    #[arg(long, alias = "unavailable-partitions")]
    unavailable: bool,
    /// Only partitions that refuse acks=all, for fewer replicas are in sync than min.insync.replicas asks for.
    #[arg(long, alias = "under-min-isr-partitions")]
    under_min_isr: bool,
    /// Only partitions that refuse acks=all when one more replica is lost.
    #[arg(long, alias = "at-min-isr-partitions")]
    at_min_isr: bool,
}

impl Filters {
    pub(super) fn any(&self) -> bool {
        self.under_replicated || self.unavailable || self.under_min_isr || self.at_min_isr
    }

    pub(super) fn pass(&self, partition: &Partition, min_isr: MinIsr) -> bool {
        !self.any()
            || self.under_replicated && is_under_replicated(partition)
            || self.unavailable && partition.leader.is_none()
            || self.under_min_isr && is_under_min_isr(partition, min_isr)
            || self.at_min_isr && min_isr.for_partition(partition) == partition.isr.len()
    }
}

/// `min.insync.replicas` of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinIsr(pub(crate) i32);

impl MinIsr {
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let found = entries.iter().find(|entry| entry.name == "min.insync.replicas");
        Self(found.and_then(|entry| entry.value.as_deref()?.parse().ok()).unwrap_or(1))
    }

    /// What is asked of one partition: never more than it has replicas (L8).
    pub(crate) fn for_partition(self, partition: &Partition) -> usize {
        usize::try_from(self.0).unwrap_or(0).min(partition.replicas.len())
    }
}

pub(super) fn is_under_replicated(partition: &Partition) -> bool {
    partition.replicas.iter().any(|replica| !partition.isr.contains(replica))
}

pub(super) fn is_under_min_isr(partition: &Partition, min_isr: MinIsr) -> bool {
    partition.isr.len() < min_isr.for_partition(partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(leader: Option<i32>, replicas: &[i32], isr: &[i32]) -> Partition {
        Partition {
            partition: 0,
            leader,
            leader_epoch: Some(0),
            replicas: replicas.to_vec(),
            isr: isr.to_vec(),
            offline_replicas: vec![],
        }
    }

    #[test]
    fn a_filter_shows_what_it_names() {
        let healthy = partition(Some(1), &[1, 2, 3], &[1, 2, 3]);
        let lagging = partition(Some(1), &[1, 2, 3], &[1, 2]);
        let alone = partition(Some(1), &[1, 2, 3], &[1]);
        let dead = partition(None, &[1, 2], &[1]);
        let single = partition(Some(1), &[1], &[1]);
        let all = [&healthy, &lagging, &alone, &dead, &single];
        let shown = |filters: Filters| all.map(|partition| filters.pass(partition, MinIsr(2)));
        assert_eq!(shown(Filters::default()), [true; 5]);
        let filters = Filters { under_replicated: true, ..Filters::default() };
        assert_eq!(shown(filters), [false, true, true, true, false]);
        let filters = Filters { unavailable: true, ..Filters::default() };
        assert_eq!(shown(filters), [false, false, false, true, false]);
        let filters = Filters { under_min_isr: true, ..Filters::default() };
        assert_eq!(shown(filters), [false, false, true, true, false]);
        let filters = Filters { at_min_isr: true, ..Filters::default() };
        assert_eq!(shown(filters), [false, true, false, false, true], "one replica cannot be two");
        let filters = Filters { at_min_isr: true, unavailable: true, ..Filters::default() };
        assert_eq!(shown(filters), [false, true, false, true, true]);
    }
}
