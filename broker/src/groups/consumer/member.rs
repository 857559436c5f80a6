//! A member of a group of the consumer protocol, and the reconciliation that leads it from the partitions it has to
//! those it shall have (KIP-848, "Reconciliation"): it gives up first, and gets nothing that another still has.

use std::collections::BTreeSet;
use std::sync::Arc;

use zurau_common::id::{TopicId, TopicName};

use super::partitions::Partitions;

/// The epoch of a static member that left for a while; its place is kept for its session timeout.
pub(crate) const STATIC_LEAVE_EPOCH: i32 = -2;
/// The epoch in the request of a member that leaves.
pub(crate) const LEAVE_EPOCH: i32 = -1;

/// Where a member stands on its way to the target assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberState {
    /// It has what it shall have in its epoch.
    Stable,
    /// It has to give up partitions before it enters the next epoch.
    UnrevokedPartitions,
    /// It is in the epoch of the target, and waits for partitions that others have.
    UnreleasedPartitions,
    /// Written by a software that knows more states.
    Unknown,
}

impl MemberState {
    /// As it is stored.
    pub(crate) fn code(self) -> i8 {
        match self {
            Self::Stable => 0,
            Self::UnrevokedPartitions => 1,
            Self::UnreleasedPartitions => 2,
            Self::Unknown => 127,
        }
    }

    pub(crate) fn from_code(code: i8) -> Self {
        match code {
            0 => Self::Stable,
            1 => Self::UnrevokedPartitions,
            2 => Self::UnreleasedPartitions,
            _ => Self::Unknown,
        }
    }
}

/// What a member said of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subscription {
    /// `group.instance.id` of a static member.
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) rack_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) topics: BTreeSet<TopicName>,
    /// Topics by a regular expression, beside those by name.
    pub(crate) regex: Option<Arc<str>>,
    /// How long it may take to give up partitions, in milliseconds.
    pub(crate) rebalance_timeout_ms: i32,
    /// Its wish; the group's assignor is what most wish.
    pub(crate) assignor: Option<Arc<str>>,
}

/// What a member has. The partitions of two members never overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CurrentAssignment {
    pub(crate) epoch: i32,
    /// The epoch before: the answer that brought the member into `epoch` may have been lost.
    pub(crate) previous_epoch: i32,
    pub(crate) state: MemberState,
    /// What it may read.
    pub(crate) assigned: Partitions,
    /// What it was told to give up, and may still read.
    pub(crate) pending_revocation: Partitions,
}

impl Default for CurrentAssignment {
    fn default() -> Self {
        Self {
            epoch: 0,
            previous_epoch: 0,
            state: MemberState::Stable,
            assigned: Partitions::default(),
            pending_revocation: Partitions::default(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConsumerMember {
    pub(crate) subscription: Subscription,
    pub(crate) current: CurrentAssignment,
}

impl ConsumerMember {
    /// Whether the member has, or may still have, the partition.
    pub(crate) fn holds(&self, topic: TopicId, partition: i32) -> bool {
        self.current.assigned.contains(topic, partition)
            || self.current.pending_revocation.contains(topic, partition)
    }
}

/// Where a member shall get to, and what it reports.
pub(crate) struct Goal<'a, F: Fn(TopicId, i32) -> bool> {
    pub(crate) epoch: i32,
    pub(crate) target: &'a Partitions,
    /// What the member says it has; `None` when it does not say.
    pub(crate) owned: Option<&'a Partitions>,
    /// Whether another member holds the partition.
    pub(crate) is_held_by_another: F,
}

impl CurrentAssignment {
    pub(crate) fn is_reconciled_to(&self, epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// The next step; `None` for a member that has to join anew, because its state is not understood.
    pub(crate) fn step_to<F: Fn(TopicId, i32) -> bool>(&self, goal: &Goal<'_, F>) -> Option<Self> {
        match self.state {
            MemberState::Stable if self.epoch == goal.epoch => Some(self.clone()),
            MemberState::Stable | MemberState::UnreleasedPartitions => Some(self.next(self.epoch, goal)),
            MemberState::UnrevokedPartitions if may_hold(goal.owned, &self.pending_revocation) => {
                Some(self.clone())
            }
            MemberState::UnrevokedPartitions => Some(self.next(self.epoch + 1, goal)),
            MemberState::Unknown => {
                goal.owned.is_some_and(Partitions::is_empty).then(|| self.next(goal.epoch, goal))
            }
        }
    }

    /// `epoch`: the member's, once it has given up what it was told to.
    fn next<F: Fn(TopicId, i32) -> bool>(&self, epoch: i32, goal: &Goal<'_, F>) -> Self {
        let (mut assigned, given_up) = self.assigned.split_by(goal.target);
        if !given_up.is_empty() && may_hold(goal.owned, &given_up) {
            return Self {
                epoch,
                previous_epoch: self.epoch,
                state: MemberState::UnrevokedPartitions,
                assigned,
                pending_revocation: given_up,
            };
        }
        let (_, wanted) = goal.target.split_by(&assigned);
        let mut state = MemberState::Stable;
        for (topic, partition) in wanted.iter() {
            if (goal.is_held_by_another)(topic, partition) {
                state = MemberState::UnreleasedPartitions;
            } else {
                assigned.insert(topic, partition);
            }
        }
        Self {
            epoch: goal.epoch,
            previous_epoch: self.epoch,
            state,
            assigned,
            pending_revocation: Partitions::default(),
        }
    }
}

/// A member that does not say what it has may have everything.
fn may_hold(owned: Option<&Partitions>, partitions: &Partitions) -> bool {
    owned.is_none_or(|owned| owned.intersects(partitions))
}
