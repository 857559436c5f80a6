//! A broker: its disk, which outlives its processes, and the process that runs, if one does.

use std::collections::{BTreeMap, BTreeSet};

use zurau_broker::cores::follower::FetchPosition;
use zurau_broker::cores::take_over::{Plan, TakeOver};
use zurau_broker::cores::{Commander, Incarnation, OffsetWaiters, Replica, leader::Leader};
use zurau_common::id::{BrokerEpoch, BrokerId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::zk::op::Op;
use zurau_controller::action::PartitionMetadata;

use crate::log::MemoryLog;
use crate::messages::{Asker, Caller};

/// An acks=all produce that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) offset: i64,
    pub(crate) value: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) log: Option<MemoryLog>,
    /// Directories that were renamed.
    pub(crate) strays: Vec<MemoryLog>,
    pub(crate) home: Option<Incarnation>,
    pub(crate) boot: u64,
    /// A power loss took records, and the broker has not been readmitted since.
    pub(crate) lost: bool,
}

/// How far a process is with its registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The log directory is to be judged.
    Start,
    Claim {
        next: i64,
    },
    Depart {
        next: i64,
    },
    Appear,
    Live,
}

/// An office being taken: the broker handles control requests one at a time.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) order: LeaderAndIsr,
    pub(crate) take_over: TakeOver,
    /// What is to be stored next; `None`: look at the znodes first.
    pub(crate) plan: Option<Plan>,
    pub(crate) rounds: usize,
    pub(crate) asker: Asker,
    pub(crate) broker_epoch: BrokerEpoch,
}

/// The ISR change that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Proposer {
    pub(crate) wanted: bool,
    /// A call to the controller under way.
    pub(crate) call: Option<u64>,
    /// The fate is unclear: look at the znodes.
    pub(crate) look: bool,
    pub(crate) since: u64,
}

/// What the claim of a registration stands on, and its operations.
pub(crate) type Claiming = (Option<(i64, i32)>, Vec<Op>);

#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// Tells this run from all others.
    pub(crate) number: u64,
    pub(crate) session: i64,
    pub(crate) stage: Stage,
    pub(crate) held: Option<i64>,
    pub(crate) broker_epoch: BrokerEpoch,
    /// The log directory had everything of the former registration.
    pub(crate) complete: bool,
    pub(crate) replica: Option<Replica>,
    pub(crate) commits: OffsetWaiters<Waiter>,
    pub(crate) commander: Commander,
    pub(crate) live: Option<BTreeSet<BrokerId>>,
    pub(crate) metadata: Option<PartitionMetadata>,
    pub(crate) lane: Option<Lane>,
    pub(crate) proposer: Proposer,
    /// Fetches under way, by leader.
    pub(crate) fetches: BTreeMap<BrokerId, (u64, FetchPosition)>,
    /// Whether the full order that came named the partition; the look for strays is due.
    pub(crate) strays_due: bool,
    /// Milliseconds; exclusive.
    pub(crate) lease_until: u64,
    /// The lease lapsed once in this session.
    pub(crate) lapsed: bool,
    /// The disk failed: every order is refused.
    pub(crate) log_failed: bool,
    /// A claim that is decided and not written yet.
    pub(crate) claiming: Option<Claiming>,
    /// A resignation that is decided and not written yet.
    pub(crate) resigning: Option<Vec<Op>>,
}

impl Process {
    pub(crate) fn new(number: u64, session: i64) -> Self {
        Self {
            number,
            session,
            stage: Stage::Start,
            held: None,
            broker_epoch: BrokerEpoch(-1),
            complete: false,
            replica: None,
            commits: OffsetWaiters::default(),
            commander: Commander::default(),
            live: None,
            metadata: None,
            lane: None,
            proposer: Proposer::default(),
            fetches: BTreeMap::new(),
            strays_due: false,
            lease_until: 0,
            lapsed: false,
            log_failed: false,
            claiming: None,
            resigning: None,
        }
    }

    pub(crate) fn leader(&self) -> Option<&Leader> {
        self.replica.as_ref().and_then(Replica::leader)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Broker {
    pub(crate) id: BrokerId,
    pub(crate) disk: Disk,
    pub(crate) process: Option<Process>,
    /// ZooKeeper cannot be reached since then.
    pub(crate) cut_off_since: Option<u64>,
    /// Another machine, with a copy of the directory of the broker of this id; it only tries to register.
    pub(crate) is_twin: bool,
    /// It and the controllers do not hear each other.
    pub(crate) is_parted: bool,
}

impl Broker {
    pub(crate) fn new(id: BrokerId) -> Self {
        let disk = Disk { log: None, strays: Vec::new(), home: None, boot: 1, lost: false };
        Self { id, disk, process: None, cut_off_since: None, is_twin: false, is_parted: false }
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.stage == Stage::Live)
    }

    pub(crate) fn is_called(&self, caller: Caller) -> bool {
        self.process.as_ref().is_some_and(|process| process.number == caller.process)
    }
}
