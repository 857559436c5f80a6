//! What the control plane does with a partition: orders of the controller, taking office and leaving it, and the ISR
//! as it is stored.

use std::cmp::Ordering;
use std::sync::Arc;

use tracing::{error, info, warn};
use zurau_common::id::{BrokerId, LeaderEpoch, PartitionEpoch};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::StoredIsr;

use super::{Inner, Partition};
use crate::control::rules::{Stop, StopOrder, judge_stop};
use crate::log::{EpochEntry, StorageError, sync_created};
use crate::replica::Verdict;
use crate::replica::leader::Office;
use crate::replica::steps::log_facts;
use crate::replica::storing::{OpenProposal, StoredFacts};
use crate::replica::take_over::TakeOver;
use crate::resignations::Resignation;
use crate::shared::PartitionRequest;

/// What became of an order.
#[derive(Debug, Clone)]
pub(crate) enum Accepted {
    /// The epoch has to be recorded durably; then the take-over write is next.
    TakeOffice(TakeOver, EpochEntry),
    /// The replica follows the order's leader; a fetcher has to fetch for it.
    Follow,
    /// Nothing new; answered as before.
    Known(Result<(), Rejection>),
    /// `highest_epoch`: the highest leader epoch that this replica has seen; the controller goes above it.
    Refused { rejection: Rejection, highest_epoch: LeaderEpoch },
}

impl Partition {
    /// Judges an order and carries out what can be done at once. The caller makes the epoch of a leader durable before it
    /// takes office (F5, HW-06).
    pub(crate) fn accept(self: &Arc<Self>, order: &LeaderAndIsr) -> Accepted {
        self.step(|inner, wakes| {
            let Some(log) = &mut inner.log else {
                return Accepted::Refused {
                    rejection: Rejection::KafkaStorageError,
                    highest_epoch: LeaderEpoch::UNKNOWN,
                };
            };
            match inner.replica.judge(order, log_facts(log)) {
                Verdict::Known(outcome) => {
                    inner.replica.hear(order.controller_epoch);
                    Accepted::Known(outcome)
                }
                Verdict::Refuse(rejection) => {
                    let highest_epoch = highest_epoch(inner);
                    warn!(
                        partition = %self.id, leader = %order.leader, leader_epoch = %order.leader_epoch,
                        %highest_epoch, %rejection, "the controller's order is refused"
                    );
                    Accepted::Refused { rejection, highest_epoch }
                }
                Verdict::Follow => {
                    info!(
                        partition = %self.id, leader = %order.leader, leader_epoch = %order.leader_epoch,
                        log_end_offset = log.log_end_offset(), high_watermark = log.high_watermark(), "following"
                    );
                    self.dismiss_waiters(inner, wakes);
                    inner.replica.follow(order);
                    Accepted::Follow
                }
                Verdict::TakeOffice => {
                    let begun = match log.begin_epoch(order.leader_epoch.0) {
                        Ok(begun) => begun,
                        Err(error) => {
                            self.fail_by(inner, wakes, error);
                            return Accepted::Refused {
                                rejection: Rejection::KafkaStorageError,
                                highest_epoch: highest_epoch(inner),
                            };
                        }
                    };
                    let epoch_start = begun.start_offset;
                    if !inner.replica.begin_take_over(order) {
                        self.dismiss_waiters(inner, wakes);
                    }
                    let target = order.target().len();
                    let min_in_sync = inner.config.min_insync_replicas.min(target).max(1);
                    Accepted::TakeOffice(TakeOver { epoch_start, min_in_sync }, begun)
                }
            }
        })
    }

    /// Makes a log that was created just now durable, but for its name. Waits for the disk, but not under the lock.
    ///
    /// # Errors
    /// A disk error.
    pub(crate) fn sync_created(&self) -> Result<(), StorageError> {
        let Some(directory) = self.with_log(|log| log.directory().to_owned()) else { return Ok(()) };
        let has_moved = || self.with_log(|log| log.directory() != directory) == Some(true);
        // A copy that has taken its place meanwhile was synced as a whole.
        sync_created(&directory).or_else(|error| if has_moved() { Ok(()) } else { Err(error) })
    }

    /// What an order asked to be written could not be made durable. What reached the disk is unknown, and asking the kernel
    /// again would claim success: the log takes no more.
    pub(crate) fn fail_to_record(self: &Arc<Self>, reason: &str) {
        self.step(|inner, wakes| {
            if let Some(log) = &mut inner.log {
                log.stop(reason.to_owned());
            }
            self.fail(inner, wakes, &reason);
        });
    }

    /// The take-over write is stored: serve. False if another order came in between.
    pub(crate) fn take_office(
        self: &Arc<Self>,
        order: &LeaderAndIsr,
        take_over: TakeOver,
        stored: &StoredIsr,
        is_live: &dyn Fn(BrokerId) -> bool,
    ) -> bool {
        let now_ms = self.shared.now_ms();
        self.step(|inner, wakes| {
            let office = Office {
                own: self.shared.own,
                broker_epoch: self.shared.broker_epoch(),
                epoch_start: take_over.epoch_start,
                rules: self.rules(&inner.config),
            };
            if !inner.replica.take_office(order, office, stored.clone(), now_ms) {
                return false;
            }
            info!(
                partition = %self.id, leader_epoch = %order.leader_epoch, partition_epoch = %stored.partition_epoch,
                isr = ?stored.isr, elr = ?stored.elr, log_end_offset = take_over.epoch_start,
                recovery = order.recovery, "leading"
            );
            if let Some(leader) = inner.replica.leader_mut() {
                leader.record_live_brokers(is_live, now_ms);
            }
            self.settle(inner, wakes);
            self.propose(inner, wakes);
            true
        })
    }

    /// The take-over cannot be stored.
    pub(crate) fn refuse_office(&self, order: &LeaderAndIsr, rejection: Rejection) {
        warn!(
            partition = %self.id, leader_epoch = %order.leader_epoch, %rejection, "leadership is refused"
        );
        self.step(|inner, wakes| {
            self.dismiss_waiters(inner, wakes);
            inner.replica.refuse_office(order, rejection);
        });
    }

    /// A new session: stops, and forgets every number that came from ZooKeeper (L11).
    pub(crate) fn forget(&self) {
        self.step(|inner, wakes| {
            self.dismiss_waiters(inner, wakes);
            inner.replica.forget();
        });
    }

    /// Stops leading or following, as StopReplica or a shutdown asks.
    pub(crate) fn stop(&self) {
        self.step(|inner, wakes| self.leave_roles(inner, wakes, None));
    }

    /// What a StopReplica means to this replica.
    pub(crate) fn judge_stop(&self, order: StopOrder) -> Stop {
        judge_stop(order, self.topic_id, &self.inner.lock().replica)
    }

    /// This broker has learnt that it does not lead in that epoch any more.
    pub(crate) fn lose_leadership(&self, leader_epoch: LeaderEpoch, why: &str) {
        self.step(|inner, wakes| {
            if inner.replica.leader().is_some_and(|leader| leader.leader_epoch() == leader_epoch) {
                warn!(partition = %self.id, %leader_epoch, why, "leadership is lost");
                self.leave_roles(inner, wakes, None);
            }
        });
    }

    /// What a write has to check while this broker leads; `None` when it does not.
    pub(crate) fn stored_facts(&self) -> Option<StoredFacts> {
        facts(&self.inner.lock())
    }

    /// What gives back the leadership that this broker has, or may be recorded with.
    pub(crate) fn resignation(self: &Arc<Self>) -> Option<Resignation> {
        Resignation::of(self, &self.inner.lock().replica)
    }

    /// The highest leader epoch that this replica has seen.
    pub(crate) fn highest_epoch(&self) -> LeaderEpoch {
        highest_epoch(&self.inner.lock())
    }

    /// The controller's list of live brokers has changed (D15).
    pub(crate) fn record_live_brokers(self: &Arc<Self>, is_live: &dyn Fn(BrokerId) -> bool) {
        let now_ms = self.shared.now_ms();
        self.step(|inner, wakes| {
            if let Some(leader) = inner.replica.leader_mut() {
                leader.record_live_brokers(is_live, now_ms);
                self.settle_deletions(inner, wakes);
                self.propose(inner, wakes);
            }
        });
    }

    /// The controller tells of a stored ISR, as [`Leader::hear_of_isr`].
    pub(crate) fn hear_of_isr(self: &Arc<Self>, leader_epoch: LeaderEpoch, version: PartitionEpoch) {
        self.step(|inner, wakes| {
            if let Some(leader) = inner.replica.leader_mut() {
                leader.hear_of_isr(leader_epoch, version);
                if !leader.isr().is_clear() {
                    self.propose(inner, wakes);
                }
            }
        });
    }

    /// Looks for members that have to leave the ISR and replicas that may join it.
    pub(crate) fn check_isr(self: &Arc<Self>) {
        self.step(|inner, wakes| {
            inner.commits.retain(|waiter| !waiter.is_closed());
            self.settle(inner, wakes);
            self.propose(inner, wakes);
        });
    }

    /// The proposal in flight, if this broker may make one now: proposing needs the right to serve (section 5).
    pub(crate) fn open_proposal(&self) -> Option<OpenProposal> {
        let inner = self.inner.lock();
        let leader = inner.replica.leader()?;
        if !self.may_serve(leader) {
            return None;
        }
        let facts = facts(&inner)?;
        Some(OpenProposal {
            facts,
            stored: leader.isr().stored().clone(),
            proposal: leader.isr().proposal()?.clone(),
        })
    }

    /// Whether a proposal is in flight.
    pub(crate) fn has_proposal(&self) -> bool {
        self.inner.lock().replica.leader().is_some_and(|leader| leader.isr().proposal().is_some())
    }

    /// What is stored, as an answer or a reading says; settles the proposal in flight.
    pub(crate) fn settle_isr(self: &Arc<Self>, leader_epoch: LeaderEpoch, stored: &StoredIsr) {
        self.step(|inner, wakes| {
            let Inner { replica, .. } = inner;
            let Some(leader) = replica.leader_mut().filter(|leader| leader.leader_epoch() == leader_epoch)
            else {
                return;
            };
            if !stored.isr.contains(&self.shared.own) {
                error!(
                    partition = %self.id, %leader_epoch, ?stored,
                    "the stored ISR lacks its leader (was it written by hand?): resigning"
                );
                let resignation = Resignation::of(self, replica);
                wakes.requests.extend(resignation.map(PartitionRequest::Resign));
                self.leave_roles(inner, wakes, None);
                return;
            }
            let (before, after) = (leader.isr().stored().isr.len(), stored.isr.len());
            if stored.partition_epoch != leader.isr().stored().partition_epoch {
                let metrics = &self.shared.metrics;
                match after.cmp(&before) {
                    Ordering::Less => metrics.isr_shrinks.add(1),
                    Ordering::Greater => metrics.isr_expands.add(1),
                    Ordering::Equal => {}
                }
            }
            leader.hear_stored(stored.clone(), self.shared.now_ms());
            info!(
                partition = %self.id, %leader_epoch, partition_epoch = %stored.partition_epoch,
                isr = ?stored.isr, elr = ?stored.elr, "ISR is stored"
            );
            self.settle(inner, wakes);
            self.propose(inner, wakes);
        });
    }

    /// The proposal was refused, and not stored.
    pub(crate) fn refuse_proposal(&self, leader_epoch: LeaderEpoch, rejection: Rejection) {
        let now_ms = self.shared.now_ms();
        self.step(|inner, wakes| {
            let leader = inner.replica.leader_mut().filter(|leader| leader.leader_epoch() == leader_epoch);
            if let Some(leader) = leader {
                info!(partition = %self.id, %leader_epoch, %rejection, "the ISR change was refused; it is proposed again later");
                self.shared.metrics.failed_isr_updates.add(1);
                leader.refuse_proposal(now_ms);
                self.settle(inner, wakes);
            }
        });
    }

    /// The answer to the proposal was lost: it may be stored.
    pub(crate) fn lose_answer(&self, leader_epoch: LeaderEpoch) {
        let mut inner = self.inner.lock();
        if let Some(leader) =
            inner.replica.leader_mut().filter(|leader| leader.leader_epoch() == leader_epoch)
        {
            leader.lose_answer();
        }
    }
}

fn facts(inner: &Inner) -> Option<StoredFacts> {
    let leader = inner.replica.leader()?;
    Some(StoredFacts {
        leader_epoch: leader.leader_epoch(),
        state_version: inner.replica.view()?.state_version,
        partition_epoch: leader.isr().stored().partition_epoch,
    })
}

fn highest_epoch(inner: &Inner) -> LeaderEpoch {
    let told = inner.replica.view().map_or(LeaderEpoch::UNKNOWN, |view| view.leader_epoch);
    let recorded =
        inner.log.as_ref().and_then(|log| log.latest_epoch()).map_or(LeaderEpoch::UNKNOWN, LeaderEpoch);
    told.max(recorded)
}
