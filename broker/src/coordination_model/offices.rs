//! The coordinators of one broker as their shells carry them on: a core, the writes on their way in the order of the log,
//! and who waits for answers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zurau_common::rejection::Rejection;

use super::log::{Lead, Token};
use super::messages::ReplyTo;
use crate::coordinator::{Replay, ReplyId, WriteId, WriteOutcome, replay};
use crate::groups;
use crate::transactions;

/// A write that was handed to the log.
#[derive(Debug)]
struct InFlight {
    token: Token,
    write: WriteId,
    first_offset: i64,
    outcome: Option<Result<(), Rejection>>,
}

/// A coordinator in one leader epoch.
#[derive(Debug)]
pub(super) struct Office<S> {
    pub(super) epoch: i32,
    /// Where the log ended when it began: it loads up to there.
    target: i64,
    /// `None` while it loads.
    pub(super) shard: Option<S>,
    in_flight: VecDeque<InFlight>,
    replies: BTreeMap<ReplyId, ReplyTo>,
    last_reply: u64,
}

/// What the oldest write came to.
pub(super) enum Reported {
    Nothing,
    Write {
        write: WriteId,
        first_offset: i64,
        outcome: WriteOutcome,
    },
    /// Nobody can say what the log holds: the coordinator stops.
    Stop,
}

impl<S: Replay> Office<S> {
    pub(super) fn new(lead: &Lead) -> Self {
        Self {
            epoch: lead.epoch,
            target: lead.end,
            shard: None,
            in_flight: VecDeque::new(),
            replies: BTreeMap::new(),
            last_reply: 0,
        }
    }

    /// Whether everything that the log had then is committed, and can be loaded.
    pub(super) fn can_load(&self, lead: &Lead) -> bool {
        self.shard.is_none() && self.target <= lead.high_watermark
    }

    pub(super) fn load(&self, lead: &Lead, mut shard: S) -> S {
        for batch in lead.committed() {
            replay(&mut shard, batch, &mut Default::default()).expect("the log is sound");
        }
        shard
    }

    pub(super) fn expect(&mut self, to: ReplyTo) -> ReplyId {
        self.last_reply += 1;
        self.replies.insert(ReplyId(self.last_reply), to);
        ReplyId(self.last_reply)
    }

    pub(super) fn take_reply(&mut self, reply: ReplyId) -> ReplyTo {
        self.replies.remove(&reply).expect("one answer to each request")
    }

    /// Whoever is not answered by a coordinator that ends.
    pub(super) fn unanswered(self) -> Vec<ReplyTo> {
        self.replies.into_values().collect()
    }

    pub(super) fn wrote(&mut self, token: Token, write: WriteId, appended: Result<i64, Rejection>) {
        let outcome = appended.err().map(Err);
        let first_offset = appended.unwrap_or(-1);
        self.in_flight.push_back(InFlight { token, write, first_offset, outcome });
    }

    pub(super) fn decided(&mut self, token: Token, outcome: Result<(), Rejection>) {
        // A coordinator that was begun anew in the same epoch does not know what its predecessor wrote.
        if let Some(found) = self.in_flight.iter_mut().find(|one| one.token == token) {
            found.outcome = Some(outcome);
        }
    }

    /// As the writer reports: in the order of the log.
    pub(super) fn next_report(&mut self) -> Reported {
        let Some(outcome) = self.in_flight.front().and_then(|oldest| oldest.outcome) else {
            return Reported::Nothing;
        };
        let Some(InFlight { write, first_offset, .. }) = self.in_flight.pop_front() else {
            return Reported::Nothing;
        };
        let outcome = match outcome {
            Ok(()) => WriteOutcome::Committed,
            Err(Rejection::NotEnoughReplicasAfterAppend) => WriteOutcome::CommittedBelowMinimum,
            Err(
                rejection @ (Rejection::NotEnoughReplicas
                | Rejection::InvalidProducerEpoch
                | Rejection::InvalidTxnState
                | Rejection::TransactionCoordinatorFenced),
            ) => WriteOutcome::Refused(rejection),
            Err(_) => return Reported::Stop,
        };
        Reported::Write { write, first_offset, outcome }
    }
}

pub(super) fn transaction_shard() -> transactions::Shard {
    transactions::Shard::new(Arc::new(transactions::TransactionSettings {
        timeout_max_ms: 900_000,
        id_expiration_ms: i64::MAX,
        timeout_check_interval_ms: 1_000,
        expiration_check_interval_ms: 3_600_000,
    }))
}

pub(super) fn group_shard() -> groups::Shard {
    groups::Shard::new(Arc::new(groups::GroupSettings {
        session_timeout_min_ms: 1,
        session_timeout_max_ms: 1_800_000,
        initial_rebalance_delay_ms: 0,
        group_size_max: 100,
        consumer_session_timeout_ms: 10_000,
        consumer_heartbeat_interval_ms: 3_000,
        consumer_size_max: 100,
        consumer_assignors: Vec::new(),
        offset_metadata_bytes_max: 16,
        offsets_retention_ms: i64::MAX / 4,
        retention_check_interval_ms: 3_600_000,
    }))
}
