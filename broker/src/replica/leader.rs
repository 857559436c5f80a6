//! The leader of a partition in one leader epoch: when the high watermark may rise (R12, D3, F2), who may join the ISR
//! (R13, N11), who has to leave it (D5, D15), and when the leader may serve without a lease (coordination.md,
//! section 5). Events in, decisions out.

use std::collections::BTreeMap;

use zurau_common::assignment::difference;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::isr::StoredIsr;

use super::isr::{IsrState, Proposal};
use super::progress::{FollowerFetch, Progress};
use super::selector::Readable;

/// How long a refused change is not proposed again.
const PROPOSAL_PAUSE_MS: u64 = 1_000;

/// Configuration that a leader decides with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderRules {
    /// `min.insync.replicas`, at least 1.
    pub min_insync_replicas: usize,
    /// `unclean.leader.election.enable`.
    pub unclean_election: bool,
    /// `replica.lag.time.max.ms` (KeepInSyncTime).
    pub lag_max_ms: u64,
    /// `replica.fetch.wait.max.ms`.
    pub fetch_wait_max_ms: u64,
}

/// Where the leader's log stands; both ends exclusive, `high_watermark <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnds {
    pub high_watermark: i64,
    pub log_end: i64,
}

/// The leader's state. It is a member of its own stored ISR (M6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    own: BrokerId,
    own_broker_epoch: BrokerEpoch,
    leader_epoch: LeaderEpoch,
    /// Log end at the moment of taking office (LESO).
    epoch_start: i64,
    hosts: Vec<BrokerId>,
    target: Vec<BrokerId>,
    /// Hosts that a reassignment adds.
    adding: Vec<BrokerId>,
    isr: IsrState,
    followers: BTreeMap<BrokerId, Progress>,
    rules: LeaderRules,
    propose_not_before_ms: u64,
}

/// What a broker brings into office.
#[derive(Debug, Clone, Copy)]
pub struct Office {
    pub own: BrokerId,
    pub broker_epoch: BrokerEpoch,
    /// Log end at the start of the epoch.
    pub epoch_start: i64,
    pub rules: LeaderRules,
}

impl Leader {
    /// Starts the epoch of `order` with what the take-over write stored. All followers begin unheard, whatever an
    /// earlier epoch knew of them.
    pub fn new(office: Office, order: &LeaderAndIsr, stored: StoredIsr, now_ms: u64) -> Self {
        let Office { own, broker_epoch, epoch_start, rules } = office;
        assert!(stored.isr.contains(&own), "{}: leader {own} is not in {stored:?}", order.partition);
        let others = order.replicas.iter().filter(|id| **id != own);
        Self {
            own,
            own_broker_epoch: broker_epoch,
            leader_epoch: order.leader_epoch,
            epoch_start,
            hosts: order.replicas.clone(),
            target: order.target(),
            adding: others.clone().filter(|id| order.is_adding(**id)).copied().collect(),
            isr: IsrState::new(stored),
            followers: others.map(|id| (*id, Progress::new(now_ms))).collect(),
            rules,
            propose_not_before_ms: 0,
        }
    }

    /// Keeps of an earlier epoch what two rules of the model forbid to keep.
    #[cfg(feature = "model")]
    pub(super) fn inherit(mut self, former: Option<Box<Self>>) -> Self {
        let Some(former) = former else { return self };
        for (id, progress) in &mut self.followers {
            let Some(known) = former.followers.get(id) else { continue };
            if !holds(Rule::ProgressPerEpoch) {
                progress.clone_from(known);
            } else if !holds(Rule::JoinAfterFetch) {
                progress.adopt_registration(known);
            }
        }
        self
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    pub fn isr(&self) -> &IsrState {
        &self.isr
    }

    /// Number of hosts in this epoch.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Number of replicas that the partition shall have in the end.
    pub(crate) fn replicas(&self) -> usize {
        self.target.len()
    }

    /// Whether a reassignment adds this broker to the replicas.
    pub(crate) fn is_adding(&self, broker: BrokerId) -> bool {
        self.adding.contains(&broker)
    }

    /// min = min(`min.insync.replicas`, number of target replicas): L8.
    pub fn min_in_sync(&self) -> usize {
        if !holds(Rule::MinimumWithinTarget) {
            return self.rules.min_insync_replicas;
        }
        self.rules.min_insync_replicas.min(self.target.len()).max(1)
    }

    pub fn has_enough_in_sync(&self) -> bool {
        self.min_in_sync() <= self.isr.stored().isr.len()
    }

    /// Until the high watermark has reached the start of this epoch, older leaders may have shown a later end than
    /// this one knows; latest-offset queries wait (KIP-207, R15).
    pub fn knows_the_committed_end(&self, high_watermark: i64) -> bool {
        self.epoch_start <= high_watermark
    }

    /// The new high watermark, if it may rise now (R12, D3, F2).
    pub fn risen_high_watermark(&self, ends: LogEnds) -> Option<i64> {
        let stands = !self.has_enough_in_sync() || self.isr.may_have_elr();
        if stands && holds(Rule::ElrStopsHighWatermark) {
            return None;
        }
        let mut reached = ends.log_end;
        for member in self.isr.maximal() {
            if member != self.own {
                reached = reached.min(self.followers.get(&member)?.log_end()?);
            }
        }
        (ends.high_watermark < reached).then_some(reached)
    }

    /// Notes a follower's fetch; false if the sender is not a host of this epoch or of an older registration.
    pub fn record_fetch(&mut self, follower: BrokerId, fetch: FollowerFetch, log_end: i64) -> bool {
        self.followers.get_mut(&follower).is_some_and(|progress| progress.record_fetch(fetch, log_end))
    }

    /// Notes where a follower's log begins.
    pub fn record_log_start(&mut self, follower: BrokerId, log_start: i64) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.record_log_start(log_start);
        }
    }

    /// The lowest log start of this leader and of its live followers; `None` until each of them has told its own.
    pub fn low_watermark(&self, own_log_start: i64) -> Option<i64> {
        let live = self.followers.values().filter(|progress| !progress.is_gone());
        live.map(Progress::log_start).try_fold(own_log_start, |lowest, told| Some(lowest.min(told?)))
    }

    /// Members of the stored ISR, other than this leader, that are alive and hold the offset.
    pub(crate) fn readable_at(&self, offset: i64, now_ms: u64) -> Vec<Readable> {
        let members = self.followers.iter().filter(|(id, progress)| {
            self.isr.stored().isr.contains(id)
                && !progress.is_gone()
                && progress.log_start().is_some_and(|start| start <= offset)
        });
        members
            .filter_map(|(id, progress)| {
                let log_end = progress.log_end().filter(|end| offset <= *end)?;
                Some(Readable { broker: *id, log_end, behind_ms: progress.behind_ms(now_ms) })
            })
            .collect()
    }

    /// The follower's fetch that came at `fetched_ms` has been answered.
    pub fn record_answer(&mut self, follower: BrokerId, fetched_ms: u64, now_ms: u64) {
        if let Some(progress) = self.followers.get_mut(&follower) {
            progress.record_answer(fetched_ms, now_ms);
        }
    }

    /// The controller's list of live brokers has changed.
    pub fn record_live_brokers(&mut self, is_live: impl Fn(BrokerId) -> bool, now_ms: u64) {
        for (follower, progress) in &mut self.followers {
            if is_live(*follower) {
                progress.record_alive();
            } else {
                progress.record_gone(now_ms);
            }
        }
    }

    pub fn set_rules(&mut self, rules: LeaderRules) {
        self.rules = rules;
    }

    /// The controller tells which version of `ISR` is stored while this epoch is. Nothing, if it is another epoch.
    pub fn hear_of_isr(&mut self, leader_epoch: LeaderEpoch, version: PartitionEpoch) {
        if leader_epoch == self.leader_epoch {
            self.isr.hear_of(version);
        }
    }

    /// What is stored, as an answer or a reading says.
    pub fn hear_stored(&mut self, stored: StoredIsr, now_ms: u64) {
        if stored.partition_epoch == self.isr.stored().partition_epoch {
            // Nothing was stored: the same is not proposed again at once.
            self.refuse_proposal(now_ms);
        } else {
            self.isr.settle(stored);
        }
    }

    /// The open proposal was refused; it is not made again at once.
    pub fn refuse_proposal(&mut self, now_ms: u64) {
        self.isr.refused();
        self.propose_not_before_ms = now_ms.saturating_add(PROPOSAL_PAUSE_MS);
    }

    pub fn lose_answer(&mut self) {
        self.isr.answer_lost();
    }

    /// Opens a proposal if the ISR should change and none is in flight. Returns it.
    pub fn propose(&mut self, ends: LogEnds, now_ms: u64) -> Option<&Proposal> {
        if self.isr.proposal().is_some() || now_ms < self.propose_not_before_ms {
            return None;
        }
        let isr = self.wanted_isr(ends, now_ms);
        let elr = self.isr.elr_beside(&isr, self.min_in_sync());
        if !self.isr.differs_from(&isr, &elr) {
            return None;
        }
        let broker_epochs = isr.iter().filter_map(|id| Some((*id, self.broker_epoch_of(*id)?))).collect();
        let partition_epoch = self.isr.stored().partition_epoch;
        self.isr.propose(Proposal { isr, elr, partition_epoch, broker_epochs });
        self.isr.proposal()
    }

    fn broker_epoch_of(&self, broker: BrokerId) -> Option<BrokerEpoch> {
        if broker == self.own {
            return Some(self.own_broker_epoch);
        }
        self.followers.get(&broker)?.broker_epoch()
    }

    /// Whether every host is a stored member and wanted, and nothing else is open: then no fetch changes the ISR.
    pub fn is_complete(&self) -> bool {
        let all = |ids: &[BrokerId]| ids.iter().all(|id| self.isr.stored().isr.contains(id));
        all(&self.hosts)
            && self.hosts.iter().all(|id| self.target.contains(id))
            && self.isr.proposal().is_none()
            && !self.isr.may_have_elr()
            && self.isr.is_clear()
    }

    /// The ISR as it should be: lagging and dead members out, non-target members out once the target is in sync
    /// (reassignment step 4), replicas that have caught up in.
    fn wanted_isr(&self, ends: LogEnds, now_ms: u64) -> Vec<BrokerId> {
        let stored = &self.isr.stored().isr;
        let moved = self.target.contains(&self.own) && difference(&self.target, stored).is_empty();
        let mut isr: Vec<BrokerId> = stored
            .iter()
            .copied()
            .filter(|id| *id == self.own || !(self.must_leave(*id, ends, now_ms)))
            .filter(|id| !moved || self.target.contains(id))
            .collect();
        let target_in_sync = difference(&self.target, &isr).is_empty();
        let stays_out = |id| !self.target.contains(&id) && target_in_sync && holds(Rule::RemovedStaysOut);
        for id in difference(&self.hosts, stored) {
            if self.may_join(id, ends, now_ms) && !stays_out(id) {
                isr.push(id);
            }
        }
        isr
    }

    fn must_leave(&self, member: BrokerId, ends: LogEnds, now_ms: u64) -> bool {
        let Some(progress) = self.followers.get(&member) else {
            // Not a host of this epoch: nothing will ever be fetched from it.
            return true;
        };
        progress.is_lagging(ends.log_end, self.rules.lag_max_ms, now_ms)
            || progress.is_silent_and_gone(self.rules.fetch_wait_max_ms, now_ms)
    }

    /// R13: fetched in this epoch under a known registration, alive, and holds everything committed as well as the
    /// start of this epoch. Nor is it one that would be thrown out again at once (D15): while too few are in sync the
    /// high watermark stands, and a follower that has gone silent still holds everything below it (JEP-01).
    fn may_join(&self, replica: BrokerId, ends: LogEnds, now_ms: u64) -> bool {
        let committed = if holds(Rule::JoinAtHighWatermark) { ends.high_watermark } else { 0 };
        let start = if holds(Rule::JoinAtEpochStart) { self.epoch_start } else { 0 };
        self.followers.get(&replica).is_some_and(|progress| {
            let unheard = !holds(Rule::JoinAfterFetch);
            let reached = progress.log_end().map_or(unheard, |end| committed.max(start) <= end);
            let stays = !progress.is_lagging(ends.log_end, self.rules.lag_max_ms, now_ms);
            reached && stays && !progress.is_gone() && progress.broker_epoch().is_some()
        })
    }

    /// Whether the leader may go on without a lease: nobody can have been elected in its place unnoticed, because
    /// every possible member of the ISR has just fetched from it in its epoch (N2, N13).
    pub fn may_serve_without_lease(&self, now_ms: u64) -> bool {
        if !holds(Rule::CertainWithoutLease) {
            return true;
        }
        let horizon_ms = now_ms.saturating_sub(2 * self.rules.fetch_wait_max_ms + 1_000);
        !self.rules.unclean_election
            && !self.isr.may_have_elr()
            && self.isr.maximal().into_iter().filter(|member| *member != self.own).all(|member| {
                let last_ms = self.followers.get(&member).and_then(Progress::last_fetch_ms);
                last_ms.is_some_and(|last_ms| horizon_ms <= last_ms)
            })
    }

    /// While unclean election is off the high watermark alone makes acks=all safe, lease or not.
    pub fn acknowledges_without_lease(&self) -> bool {
        !self.rules.unclean_election
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
