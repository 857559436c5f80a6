//! What the controller remembers about its own work on a partition: whether the elected leader has taken office, who
//! refused it, what was told to clients. None of it outlives the controller; a new one derives it from the znodes.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::state::PartitionState;

use crate::action::{PartitionMetadata, Reason};
use crate::cluster::{Cluster, Partition};
use crate::event::{Millis, Read, WriteId};
use crate::pending::Purpose;

/// How far the leader named by `state` is with its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Office {
    /// Not looked at since this controller took over.
    #[default]
    Unjudged,
    /// The leader, in this registration, has been told.
    Awaited { registration: BrokerEpoch, deadline: Millis },
    /// Its `leader` node of this epoch has been seen.
    Held { registration: BrokerEpoch },
    /// Somebody must be elected.
    Vacant(Reason),
}

/// A replica that could not or would not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// It counts only for this registration.
    pub(crate) registration: BrokerEpoch,
    /// With no other candidate it is asked again from here on (L4).
    pub(crate) retry_at: Millis,
    pub(crate) delay: u64,
}

/// First and longest pause before a refusing replica is asked again, in milliseconds (L4).
pub(crate) const RETRY_FIRST: u64 = 1_000;
pub(crate) const RETRY_MAX: u64 = 30_000;

#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    /// At most one multi per partition is in flight.
    pub(crate) in_flight: Option<WriteId>,
    /// The facts are being read again; nothing is decided before.
    pub(crate) stale: bool,
    pub(crate) office: Office,
    /// The leader's broker is being read again before its absence counts as a resignation (L5).
    pub(crate) confirming: bool,
    pub(crate) refusals: BTreeMap<BrokerId, Refusal>,
    /// The next epoch must be above this one: a broker's history is ahead of `state`.
    pub(crate) epoch_floor: Option<LeaderEpoch>,
    /// The preferred replica, if it can, shall lead.
    pub(crate) prefer: bool,
    /// The log of the broker that was asked to create the ISR is not empty (N4): it counts as started.
    pub(crate) had_records: bool,
    pub(crate) published: Option<PartitionMetadata>,
    /// An input that is wrong since then; shown once it has stayed so for a while (L9).
    pub(crate) wrong_since: Option<Millis>,
    /// Answers to an unclean election's question, by replica.
    pub(crate) log_ends: Option<LogEnds>,
    /// Why the partition is offline, as last noted.
    pub(crate) offline: Option<String>,
    /// Replicas that a StopReplica was sent to: in which registration, with which leader epoch.
    pub(crate) stopping: BTreeMap<BrokerId, (BrokerEpoch, LeaderEpoch)>,
    /// Hosts whose full LeaderAndIsr could not name the partition, because its topic's id or its `state` was missing.
    pub(crate) untold: BTreeSet<BrokerId>,
    /// Replicas that have deleted their copy and still stand in `leaving`.
    pub(crate) left: BTreeSet<BrokerId>,
    /// Where the incarnation was hosted, and in which epoch, as last seen: needed when its znodes are gone.
    pub(crate) hosted: Option<(TopicId, Vec<BrokerId>, LeaderEpoch)>,
    /// A new epoch whose outcome is unknown: if it is read back, it was stored (L2).
    pub(crate) lost: Option<(PartitionState, Purpose)>,
    /// A write of the partition's `error`, or of its reassignment's, is in flight.
    pub(crate) complaining: bool,
    /// A write of the reassignment's error waits, like [`Work::wrong_since`].
    pub(crate) wish_wrong_since: Option<Millis>,
}

/// An unclean election waits for the replicas' log ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogEnds {
    pub(crate) asked: BTreeMap<BrokerId, BrokerEpoch>,
    pub(crate) answers: BTreeMap<BrokerId, Option<(LeaderEpoch, i64)>>,
    pub(crate) deadline: Millis,
}

impl Work {
    /// Forgets what belonged to the epoch that has just ended. A wish for the preferred leader stays: it may have come
    /// while this epoch was being stored.
    pub(crate) fn begin_epoch(&mut self, office: Office) {
        self.office = office;
        self.confirming = false;
        self.log_ends = None;
    }

    pub(crate) fn refuse(&mut self, broker: BrokerId, registration: BrokerEpoch, now: Millis) {
        if !holds(Rule::RefusalIsRemembered) {
            return;
        }
        let before = self.refusals.get(&broker).filter(|refusal| refusal.registration == registration);
        let delay = before.map_or(RETRY_FIRST, |refusal| (refusal.delay * 2).min(RETRY_MAX));
        self.refusals.insert(broker, Refusal { registration, retry_at: now.plus(delay), delay });
    }

    pub(crate) fn refusal(&self, broker: BrokerId, registration: BrokerEpoch) -> Option<Refusal> {
        self.refusals.get(&broker).copied().filter(|refusal| refusal.registration == registration)
    }
}

/// What looking at a leader's office found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    Unchanged,
    Now(Office),
    /// The `leader` node is gone and its broker seems alive: read the broker again first (L5).
    Confirm(BrokerId),
    /// The deadline passed.
    NoAnswer(BrokerId, BrokerEpoch),
    /// It left office by its own will.
    Resigned(BrokerId, BrokerEpoch),
}

/// Looks at the office of a partition whose `state` is readable.
pub(crate) fn look(cluster: &Cluster, partition: &Partition, confirmed: bool, now: Millis) -> Finding {
    let Read::Value(state) = &partition.state else { return Finding::Unchanged };
    let leader = state.value.leader;
    let live = cluster.live(leader);
    // Of the current epoch if and only if it is younger than the record.
    let node = partition
        .leader
        .as_ref()
        .filter(|node| node.broker == Some(leader) && state.mzxid.is_some_and(|mzxid| node.czxid > mzxid));
    let held = live.filter(|live| node.is_some_and(|node| node.session == live.session));
    let office = partition.work.office;
    match (office, live) {
        (Office::Unjudged, _) => match held {
            Some(live) => Finding::Now(Office::Held { registration: live.epoch }),
            None => Finding::Now(Office::Vacant(Reason::ControllerStart)),
        },
        (Office::Vacant(_), _) => match held {
            Some(live) => Finding::Now(Office::Held { registration: live.epoch }),
            None => Finding::Unchanged,
        },
        (Office::Awaited { .. } | Office::Held { .. }, None) => {
            Finding::Now(Office::Vacant(Reason::BrokerGone))
        }
        (Office::Awaited { registration, .. } | Office::Held { registration }, Some(live))
            if live.epoch != registration && holds(Rule::BounceIsSeen) =>
        {
            Finding::Now(Office::Vacant(Reason::BrokerRestarted))
        }
        (Office::Awaited { registration, deadline }, Some(_)) => match held {
            Some(_) => Finding::Now(Office::Held { registration }),
            None if deadline <= now => Finding::NoAnswer(leader, registration),
            None => Finding::Unchanged,
        },
        (Office::Held { registration }, Some(_)) => match (held, confirmed) {
            (Some(_), _) => Finding::Unchanged,
            // The own record's zxid is not known yet: wait for it to be read.
            (None, _) if state.mzxid.is_none() => Finding::Unchanged,
            (None, false) if holds(Rule::BrokerBeforeResignation) => Finding::Confirm(leader),
            (None, _) => Finding::Resigned(leader, registration),
        },
    }
}

/// Whether the leader serves in the stored epoch.
pub(crate) fn is_held(partition: &Partition) -> bool {
    matches!(partition.work.office, Office::Held { .. })
}

/// A partition and when it must be looked at again.
pub(crate) type Deadline = (Millis, TopicPartition);
