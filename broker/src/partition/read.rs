//! Reads: fetches of followers and consumers, offsets by time, ends of epochs. Consumers that can be sent to another
//! replica may read on a follower too, up to its own high watermark (KIP-392); everything else is the leader's.

use std::sync::Arc;

use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch};
use zurau_common::rejection::Rejection;

use super::{Inner, Partition};
use crate::fetch_waiter::FetchWaiter;
use crate::log::inspect::InspectedProducer;
use crate::log::{AbortedTransaction, EpochEnd, ReadError, ReadPlan, StorageError};
use crate::replica::leader::Leader;
use crate::replica::progress::FollowerFetch;
use crate::replica::selector::Readable;
use crate::replica::steps::{self, LeaderRead};

/// How far a consumer may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Up to the high watermark.
    ReadUncommitted,
    /// Up to the last stable offset.
    ReadCommitted,
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// `broker_epoch`: the registration that the follower names (Fetch from v15).
    Follower { broker: BrokerId, broker_epoch: Option<BrokerEpoch> },
    Consumer {
        isolation: Isolation,
        /// Fetch from v11: it can read from a follower, and be sent there.
        may_follow: bool,
    },
}

/// One partition of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub(crate) offset: i64,
    pub(crate) max_bytes: usize,
    /// Return the first batch whole even if it is larger than `max_bytes`.
    pub(crate) minimum_one_batch: bool,
    /// [`LeaderEpoch::UNKNOWN`] when the reader does not say.
    pub(crate) current_leader_epoch: LeaderEpoch,
    /// Epoch of the last record that the reader has; [`LeaderEpoch::UNKNOWN`] when it does not say.
    pub(crate) last_fetched_epoch: LeaderEpoch,
    /// Where a follower's log begins; −1 when the reader does not say.
    pub(crate) log_start: i64,
    pub(crate) reader: Reader,
}

impl ReadRequest {
    fn as_step(&self, now_ms: u64) -> LeaderRead {
        let follower = match self.reader {
            Reader::Follower { broker, broker_epoch } => {
                let fetch = FollowerFetch { offset: self.offset, broker_epoch, now_ms };
                Some((broker, fetch, self.log_start))
            }
            Reader::Consumer { .. } => None,
        };
        LeaderRead {
            current_leader_epoch: self.current_leader_epoch,
            offset: self.offset,
            last_fetched_epoch: self.last_fetched_epoch,
            follower,
        }
    }
}

/// Where the partition stood when it was read; a long poll waits until it has moved from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    leader_epoch: LeaderEpoch,
    /// High watermark for consumers, log end for followers.
    end: i64,
    follower: bool,
}

/// The answer to a fetch of one partition; the records are read by `plan`, outside of the lock. After that,
/// [`Partition::serves_in`] tells whether the answer may still be sent.
#[derive(Debug)]
pub(crate) struct ReadAnswer {
    pub(crate) plan: ReadPlan,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) high_watermark: i64,
    pub(crate) last_stable_offset: i64,
    pub(crate) log_start_offset: i64,
    /// The reader's history parts from the leader's here; there are no records then (KIP-595).
    pub(crate) diverging: Option<EpochEnd>,
    /// The consumer shall read from this follower instead; there are no records then (KIP-392).
    pub(crate) preferred_read_replica: Option<BrokerId>,
    /// Aborted transactions among the records; `None` unless read with [`Isolation::ReadCommitted`].
    pub(crate) aborted: Option<Vec<AbortedTransaction>>,
    pub(crate) seen: Seen,
    /// What the answer carries counts for the leaders' quota.
    pub(crate) counts_as_throttled: bool,
    /// It is for a replica that a reassignment adds.
    pub(crate) is_for_reassignment: bool,
    /// Kept until the answer is made: time inside this leader is not the follower's lag (D5).
    _hold: Option<FetchHold>,
}

#[derive(Debug)]
struct FetchHold {
    partition: Arc<Partition>,
    follower: BrokerId,
    fetched_ms: u64,
}

impl Drop for FetchHold {
    fn drop(&mut self) {
        let now_ms = self.partition.shared.now_ms();
        let mut inner = self.partition.inner.lock();
        if let Some(leader) = inner.replica.leader_mut() {
            leader.record_answer(self.follower, self.fetched_ms, now_ms);
        }
    }
}

/// What ListOffsets asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffsetQuery {
    /// −1.
    Latest,
    /// −2, and −4 because all records are local.
    Earliest,
    /// −3: the first record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The first record with this timestamp or a later one.
    AtOrAfter(i64),
}

/// An offset found by ListOffsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundOffset {
    /// Milliseconds since 1970; −1 for the ends.
    pub(crate) timestamp: i64,
    pub(crate) offset: i64,
    pub(crate) leader_epoch: Option<LeaderEpoch>,
}

/// Where a copy begins and ends; exclusive but for the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnEnds {
    pub(crate) log_start_offset: i64,
    pub(crate) high_watermark: i64,
    pub(crate) log_end_offset: i64,
}

impl Partition {
    /// A read failed, on the disk or because of damaged data.
    pub(crate) fn refuse_read(&self, error: StorageError) -> Rejection {
        tracing::error!(partition = %self.id, %error, "records cannot be read");
        self.report(error);
        Rejection::KafkaStorageError
    }

    /// Whether a leader may serve at this moment: it holds the lease, or is certain without one.
    pub(super) fn may_serve(&self, leader: &Leader) -> bool {
        self.shared.holds_lease() || leader.may_serve_without_lease(self.shared.now_ms())
    }

    /// The epoch in which this broker leads, if it may serve at this moment.
    pub(crate) fn serving_epoch(&self) -> Option<LeaderEpoch> {
        let inner = self.inner.lock();
        inner.replica.leader().filter(|leader| self.may_serve(leader)).map(Leader::leader_epoch)
    }

    /// As [`Partition::read_at`], now.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn read(self: &Arc<Self>, request: &ReadRequest) -> Result<ReadAnswer, Rejection> {
        self.read_at(request, self.shared.now_ms())
    }

    /// Reads. A follower's offset is noted as its progress, unless its history diverges. `fetched_ms`: the time, by
    /// [`Shared::now_ms`](crate::shared::Shared::now_ms).
    ///
    /// # Errors
    /// Not the leader, wrong epoch, an offset outside the log, a follower that is no host.
    pub(crate) fn read_at(
        self: &Arc<Self>,
        request: &ReadRequest,
        fetched_ms: u64,
    ) -> Result<ReadAnswer, Rejection> {
        let answer = self.step(|inner, wakes| {
            let leader_epoch = match request.reader {
                Reader::Consumer { may_follow: true, .. } => {
                    inner.replica.readable_in(request.current_leader_epoch)?
                }
                _ => inner.replica.leader_in(request.current_leader_epoch)?.leader_epoch(),
            };
            let Inner { replica, log, .. } = inner;
            let log = log.as_ref().ok_or(Rejection::KafkaStorageError)?;
            let is_complete = replica.leader().is_some_and(Leader::is_complete);
            if let Some(end) = steps::admit_read(replica, log, &request.as_step(fetched_ms))? {
                let diverging = EpochEnd { leader_epoch: end.leader_epoch, end_offset: end.end_offset };
                return Ok(self.answer(inner, request, ReadPlan::EMPTY, (leader_epoch, Some(diverging))));
            }
            if matches!(request.reader, Reader::Follower { .. }) {
                self.settle(inner, wakes);
                if !is_complete {
                    self.propose(inner, wakes);
                }
            }
            self.plan(inner, request, leader_epoch)
        });
        if let Reader::Follower { broker, .. } = request.reader {
            // Made, and on a refusal dropped, outside of the lock that it takes when it is dropped.
            let hold = FetchHold { partition: Arc::clone(self), follower: broker, fetched_ms };
            return answer.map(|answer| ReadAnswer { _hold: Some(hold), ..answer });
        }
        answer
    }

    fn plan(
        &self,
        inner: &Inner,
        request: &ReadRequest,
        leader_epoch: LeaderEpoch,
    ) -> Result<ReadAnswer, Rejection> {
        let log = inner.log.as_ref().ok_or(Rejection::KafkaStorageError)?;
        let bound = match request.reader {
            Reader::Follower { .. } => log.log_end_offset(),
            Reader::Consumer { isolation: Isolation::ReadUncommitted, .. } => log.high_watermark(),
            Reader::Consumer { isolation: Isolation::ReadCommitted, .. } => log.last_stable_offset(),
        };
        if self.must_wait(inner, request.reader) {
            return Ok(self.answer(inner, request, ReadPlan::EMPTY, (leader_epoch, None)));
        }
        let plan = log
            .read_plan(request.offset, request.max_bytes, bound, request.minimum_one_batch)
            .map_err(|error| match error {
                ReadError::OffsetOutOfRange { .. } => Rejection::OffsetOutOfRange,
                ReadError::Storage(error) => self.refuse_read(error),
            })?;
        let aborted = match request.reader {
            Reader::Consumer { isolation: Isolation::ReadCommitted, .. } => {
                let found = log.aborted_transactions(request.offset, bound);
                Some(found.map_err(|error| self.refuse_read(error))?)
            }
            _ => None,
        };
        Ok(ReadAnswer { aborted, ..self.answer(inner, request, plan, (leader_epoch, None)) })
    }

    /// A follower that is not in sync gets nothing while throttled replicas have had more than their rate; one in sync
    /// always does (RSN-11).
    fn must_wait(&self, inner: &Inner, reader: Reader) -> bool {
        let Reader::Follower { broker, .. } = reader else { return false };
        let in_sync =
            inner.replica.leader().is_some_and(|leader| leader.isr().stored().isr.contains(&broker));
        !in_sync
            && inner.config.throttled_leader.contains(self.id.partition)
            && self.shared.throttles.leader.exceeded(self.shared.now_ms()).is_some()
    }

    fn answer(
        &self,
        inner: &Inner,
        request: &ReadRequest,
        plan: ReadPlan,
        (leader_epoch, diverging): (LeaderEpoch, Option<EpochEnd>),
    ) -> ReadAnswer {
        let log = inner.log.as_ref().expect("the caller has just read from it");
        let follower = matches!(request.reader, Reader::Follower { .. });
        let end = if follower { log.log_end_offset() } else { log.high_watermark() };
        let is_for_reassignment = match request.reader {
            Reader::Follower { broker, .. } => {
                inner.replica.leader().is_some_and(|leader| leader.is_adding(broker))
            }
            Reader::Consumer { .. } => false,
        };
        ReadAnswer {
            plan,
            leader_epoch,
            high_watermark: log.high_watermark(),
            last_stable_offset: log.last_stable_offset(),
            log_start_offset: log.log_start_offset(),
            diverging,
            preferred_read_replica: None,
            aborted: None,
            seen: Seen { leader_epoch, end, follower },
            counts_as_throttled: follower && inner.config.throttled_leader.contains(self.id.partition),
            is_for_reassignment,
            _hold: None,
        }
    }

    /// Registers a long poll, to which this partition is the one at `place`. It is woken when the partition moves from
    /// what was `seen`: the high watermark for consumers, the log end for followers, or the leadership. Woken at once if
    /// that has happened already.
    pub(crate) fn wait_for_data(&self, (waiter, place): (&Arc<FetchWaiter>, usize), seen: Seen) {
        let mut inner = self.inner.lock();
        let Inner { replica, log, committed_waiters, appended_waiters, .. } = &mut *inner;
        let unchanged = match (replica.readable_in(seen.leader_epoch), log) {
            (Ok(_), Some(log)) => {
                let end = if seen.follower { log.log_end_offset() } else { log.high_watermark() };
                end == seen.end
            }
            _ => false,
        };
        if !unchanged {
            drop(inner);
            waiter.wake_at_once(place);
        } else if seen.follower {
            appended_waiters.add(waiter, place);
        } else {
            committed_waiters.add(waiter, place);
        }
    }

    /// The in-sync followers that a consumer of this offset could read from instead; none unless this broker leads.
    pub(crate) fn readable_followers(&self, offset: i64) -> Vec<Readable> {
        let now_ms = self.shared.now_ms();
        let inner = self.inner.lock();
        inner.replica.leader().map(|leader| leader.readable_at(offset, now_ms)).unwrap_or_default()
    }

    /// Finds an offset. `isolation`: `None` for a follower, which sees the whole log. `Ok(None)`: there is no such
    /// record.
    ///
    /// # Errors
    /// Not the leader, wrong epoch; `OffsetNotAvailable` until the high watermark has reached the start of the epoch
    /// (KIP-207); `NotLeaderOrFollower` for the latest offset while the leader may not serve.
    pub(crate) fn list_offset(
        &self,
        query: OffsetQuery,
        isolation: Option<Isolation>,
        current_leader_epoch: LeaderEpoch,
    ) -> Result<Option<FoundOffset>, Rejection> {
        let inner = self.inner.lock();
        let leader = inner.replica.leader_in(current_leader_epoch)?;
        let log = inner.log.as_ref().ok_or(Rejection::KafkaStorageError)?;
        let known = isolation.is_none() || leader.knows_the_committed_end(log.high_watermark());
        let bound = match isolation {
            None => log.log_end_offset(),
            Some(Isolation::ReadUncommitted) => log.high_watermark(),
            Some(Isolation::ReadCommitted) => log.last_stable_offset(),
        };
        let found = match query {
            OffsetQuery::Earliest => {
                let offset = log.log_start_offset();
                let leader_epoch = log.epoch_at(offset).map(LeaderEpoch);
                return Ok(Some(FoundOffset { timestamp: -1, offset, leader_epoch }));
            }
            OffsetQuery::Latest if isolation.is_some() && !self.may_serve(leader) => {
                return Err(Rejection::NotLeaderOrFollower);
            }
            OffsetQuery::Latest if !known => return Err(Rejection::OffsetNotAvailable),
            OffsetQuery::Latest => {
                let leader_epoch = Some(leader.leader_epoch());
                return Ok(Some(FoundOffset { timestamp: -1, offset: bound, leader_epoch }));
            }
            OffsetQuery::MaxTimestamp => log.max_timestamp_offset(),
            OffsetQuery::AtOrAfter(timestamp) => log.offset_for_timestamp(timestamp),
        };
        match found.map_err(|error| self.refuse_read(error))? {
            Some((timestamp, offset, epoch)) if offset < bound => {
                Ok(Some(FoundOffset { timestamp, offset, leader_epoch: epoch.map(LeaderEpoch) }))
            }
            _ if !known => Err(Rejection::OffsetNotAvailable),
            _ => Ok(None),
        }
    }

    /// The ends of this very copy, whatever its role is, and nothing of what is committed: for tools.
    ///
    /// # Errors
    /// The log cannot be used.
    pub(crate) fn own_ends(&self) -> Result<OwnEnds, Rejection> {
        let inner = self.inner.lock();
        let log = inner.log.as_ref().ok_or(Rejection::KafkaStorageError)?;
        Ok(OwnEnds {
            log_start_offset: log.log_start_offset(),
            high_watermark: log.high_watermark(),
            log_end_offset: log.log_end_offset(),
        })
    }

    /// What the log knows of its producers, by id.
    ///
    /// # Errors
    /// Not the leader.
    pub(crate) fn producers(&self) -> Result<Vec<InspectedProducer>, Rejection> {
        let inner = self.inner.lock();
        inner.replica.leader_in(LeaderEpoch::UNKNOWN)?;
        Ok(inner.log.as_ref().ok_or(Rejection::KafkaStorageError)?.inspect_producers())
    }

    /// Where the largest epoch not above `asked` ends in the leader's log (OffsetsForLeaderEpoch).
    ///
    /// # Errors
    /// Not the leader, wrong epoch.
    pub(crate) fn end_offset_for_epoch(
        &self,
        current_leader_epoch: LeaderEpoch,
        asked: LeaderEpoch,
    ) -> Result<EpochEnd, Rejection> {
        let inner = self.inner.lock();
        let log = inner.log.as_ref().ok_or(Rejection::KafkaStorageError)?;
        let end = steps::epoch_end(&inner.replica, log, current_leader_epoch, asked)?;
        Ok(EpochEnd { leader_epoch: end.leader_epoch, end_offset: end.end_offset })
    }
}
