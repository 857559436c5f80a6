//! The next step of a partition from the hosts it has to the hosts it shall have (coordination.md, section 4,
//! "Reassignment"). Each step follows from the znodes alone, so a new controller goes on where the old one stopped.

use zurau_common::assignment::{difference, same_set, union};
use zurau_common::id::BrokerId;
use zurau_common::rule::{Rule, holds};

/// What a step is derived from. The partition is started and its leader serves.
#[derive(Debug, Clone)]
pub(crate) struct Move<'a> {
    /// The wanted replicas: the RAR if there is one, else `replicas`; `state.target` stands in for what cannot be read.
    pub(crate) target: &'a [BrokerId],
    /// `replicas`; `None` when it cannot be read.
    pub(crate) assigned: Option<&'a [BrokerId]>,
    /// A wanted assignment stands in `/brokers/partitions_reassigned`.
    pub(crate) wish_stands: bool,
    pub(crate) isr: &'a [BrokerId],
    pub(crate) elr: &'a [BrokerId],
    pub(crate) state_hosts: &'a [BrokerId],
    pub(crate) state_target: &'a [BrokerId],
    pub(crate) leader: BrokerId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Nothing moves, or the leader has to act (catch up, drop the others) first.
    Nothing,
    /// (1) Start an epoch with these hosts and this target; the leader stays.
    Grow { hosts: Vec<BrokerId>, target: Vec<BrokerId> },
    /// (3) The leader is not in the target, and all of the target is in sync.
    MoveLeader,
    /// (5) All is in place: one multi ends the move.
    Complete { leaving: Vec<BrokerId> },
}

impl Move<'_> {
    /// Hosts only grow before the completing write (N8).
    pub(crate) fn hosts(&self) -> Vec<BrokerId> {
        let assigned = self.assigned.unwrap_or_default();
        if !holds(Rule::HostsOnlyGrow) {
            return union(self.target, assigned);
        }
        if !holds(Rule::ElrIsHosted) {
            return union(&union(self.target, assigned), self.isr);
        }
        [assigned, self.isr, self.elr, self.state_hosts]
            .iter()
            .fold(self.target.to_vec(), |all, list| union(&all, list))
    }

    pub(crate) fn next(&self) -> NextStep {
        let subset = |left: &[BrokerId], right: &[BrokerId]| left.iter().all(|id| right.contains(id));
        let hosts = self.hosts();
        let replaces = self.assigned.is_some_and(|assigned| !same_set(assigned, self.target));
        let moving = self.wish_stands || replaces || !same_set(self.state_hosts, self.target);
        let in_sync = subset(self.target, self.isr);
        let alone = subset(self.isr, self.target) && subset(self.elr, self.target);
        if moving && in_sync && alone && self.target.contains(&self.leader) {
            let leaving = difference(&union(&hosts, self.state_hosts), self.target);
            return NextStep::Complete { leaving };
        }
        if !same_set(self.target, self.state_target) || !same_set(&hosts, self.state_hosts) {
            return NextStep::Grow { hosts, target: self.target.to_vec() };
        }
        if moving && in_sync && !self.target.contains(&self.leader) {
            return NextStep::MoveLeader;
        }
        NextStep::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn grow(hosts: &[i32], target: &[i32]) -> NextStep {
        NextStep::Grow { hosts: ids(hosts), target: ids(target) }
    }

    type Ids = &'static [i32];
    type Row = (Option<Ids>, Ids, Ids, Ids, Ids, Ids, i32, NextStep);

    #[test]
    fn a_move_grows_catches_up_moves_its_leader_and_completes() {
        use NextStep::{Complete, MoveLeader, Nothing};
        let done = |leaving: &[i32]| Complete { leaving: ids(leaving) };
        #[rustfmt::skip]
        let rows: [Row; 13] = [
            // RAR            replicas    isr         elr   state hosts   target     leader  step
            (None,            &[1, 2],    &[1, 2],    &[],  &[1, 2],      &[1, 2],    1, Nothing),
            (Some(&[2, 3]),   &[1, 2],    &[1, 2],    &[],  &[1, 2],      &[1, 2],    1, grow(&[2, 3, 1], &[2, 3])),
            (Some(&[2, 3]),   &[1, 2],    &[1, 2],    &[],  &[2, 3, 1],   &[2, 3],    1, Nothing),
            (Some(&[2, 3]),   &[1, 2],    &[1, 2, 3], &[],  &[2, 3, 1],   &[2, 3],    1, MoveLeader),
            (Some(&[2, 3]),   &[1, 2],    &[1, 2, 3], &[],  &[2, 3, 1],   &[2, 3],    2, Nothing),
            (Some(&[2, 3]),   &[1, 2],    &[2, 3],    &[1], &[2, 3, 1],   &[2, 3],    2, Nothing),
            (Some(&[2, 3]),   &[1, 2],    &[2, 3],    &[],  &[2, 3, 1],   &[2, 3],    2, done(&[1])),
            // a wish overridden in mid-move, and a cancelled one
            (Some(&[2, 4]),   &[1, 2],    &[1, 2],    &[],  &[2, 3, 1],   &[2, 3],    1, grow(&[2, 4, 1, 3], &[2, 4])),
            (None,            &[1, 2],    &[1, 2, 3], &[],  &[2, 3, 1],   &[2, 3],    1, grow(&[1, 2, 3], &[1, 2])),
            (None,            &[1, 2],    &[1, 2],    &[],  &[1, 2, 3],   &[1, 2],    1, done(&[3])),
            // `replicas` edited directly; the same set in another order moves nothing
            (None,            &[1, 3],    &[1, 2],    &[],  &[1, 2],      &[1, 2],    1, grow(&[1, 3, 2], &[1, 3])),
            (None,            &[2, 1],    &[1, 2],    &[],  &[1, 2],      &[1, 2],    1, Nothing),
            // a wish for what is there already only has to go
            (Some(&[2, 1]),   &[1, 2],    &[1, 2],    &[],  &[1, 2],      &[1, 2],    1, done(&[])),
        ];
        for (wanted, replicas, isr, elr, hosts, state_target, leader, expected) in rows {
            let (replicas, isr, elr) = (ids(replicas), ids(isr), ids(elr));
            let (hosts, state_target) = (ids(hosts), ids(state_target));
            let target = wanted.map_or(replicas.clone(), ids);
            let step = Move {
                target: &target,
                assigned: Some(&replicas),
                wish_stands: wanted.is_some(),
                isr: &isr,
                elr: &elr,
                state_hosts: &hosts,
                state_target: &state_target,
                leader: BrokerId(leader),
            };
            assert_eq!(step.next(), expected, "{step:?}");
        }
    }

    #[test]
    fn n8_hosts_do_not_shrink_in_mid_move() {
        let step = Move {
            target: &ids(&[4]),
            assigned: Some(&ids(&[1])),
            wish_stands: true,
            isr: &ids(&[1]),
            elr: &ids(&[2]),
            state_hosts: &ids(&[1, 3]),
            state_target: &ids(&[3]),
            leader: BrokerId(1),
        };
        assert_eq!(step.hosts(), ids(&[4, 1, 2, 3]));
    }
}
