//! The replica of one partition on one broker: a synchronous core without clock, disk, network or ZooKeeper. Read in
//! this order: `progress` (one follower), `isr` (stored, proposed, possible), `leader`, `follower`, here the role and the
//! acceptance of what the controller says (M4, F5), `steps` (replica and log together), and what is written into
//! ZooKeeper: `take_over` and `storing`. `copying` is how a copy in another log directory follows the replica's log.

pub mod progress;

pub mod isr;

pub mod leader;

pub mod follower;

pub mod steps;

pub mod take_over;

pub mod storing;

pub(crate) mod copying;

pub(crate) mod selector;

use zurau_common::config::TruncationPath;
use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::isr::StoredIsr;

use follower::Follower;
use leader::{Leader, Office};

/// The epoch check that every read of a partition shares (KIP-320): what the asker believes against what is.
///
/// # Errors
/// The asker is behind, or ahead of this broker.
pub(crate) fn check_epoch(asked: LeaderEpoch, current: LeaderEpoch) -> Result<(), Rejection> {
    if asked == LeaderEpoch::UNKNOWN || asked == current || !holds(Rule::EpochOfReads) {
        return Ok(());
    }
    Err(if asked < current { Rejection::FencedLeaderEpoch } else { Rejection::UnknownLeaderEpoch })
}

/// What the broker was told last about the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub controller_epoch: ControllerEpoch,
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    pub state_version: i32,
    pub partition_epoch: PartitionEpoch,
    /// Whether the epoch was started with this broker as one of its hosts.
    pub is_host: bool,
    /// A reassignment adds this broker to the replicas.
    pub is_being_added: bool,
}

impl View {
    fn of(order: &LeaderAndIsr, own: BrokerId) -> Self {
        Self {
            is_host: order.replicas.contains(&own),
            is_being_added: order.is_adding(own),
            controller_epoch: order.controller_epoch,
            leader: order.leader,
            leader_epoch: order.leader_epoch,
            state_version: order.state_version,
            partition_epoch: order.partition_epoch,
        }
    }
}

/// What the broker does for the partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Nothing: not told yet, stopped, or refused by the rejection.
    Idle(Option<Rejection>),
    /// Elected; the take-over write is not stored yet. Nothing is served. `led_before`: in the epoch before this one, and
    /// the replica has not followed since (N19).
    TakingOffice {
        led_before: bool,
    },
    Leader(Box<Leader>),
    Follower(Follower),
}

/// What the log knows of itself when an order is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFacts {
    /// The last epoch of its history, durable; `None` in a log that never had one.
    pub latest_epoch: Option<LeaderEpoch>,
    pub is_empty: bool,
}

/// What is to be done about a LeaderAndIsr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    TakeOffice,
    Follow,
    /// Nothing new; answered with the outcome that the order had when it was.
    Known(Result<(), Rejection>),
    Refuse(Rejection),
}

/// The replica's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    own: BrokerId,
    topic_id: TopicId,
    truncation_path: TruncationPath,
    view: Option<View>,
    role: Role,
    #[cfg(feature = "model")]
    former: Option<Box<Leader>>,
}

impl Replica {
    pub fn new(own: BrokerId, topic_id: TopicId, truncation_path: TruncationPath) -> Self {
        Self {
            own,
            topic_id,
            truncation_path,
            view: None,
            role: Role::Idle(None),
            #[cfg(feature = "model")]
            former: None,
        }
    }

    pub fn view(&self) -> Option<View> {
        self.view
    }

    pub fn role(&self) -> &Role {
        &self.role
    }

    pub fn leader(&self) -> Option<&Leader> {
        match &self.role {
            Role::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub fn leader_mut(&mut self) -> Option<&mut Leader> {
        match &mut self.role {
            Role::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub fn is_taking_office(&self) -> bool {
        matches!(self.role, Role::TakingOffice { .. })
    }

    pub fn follower(&self) -> Option<Follower> {
        match &self.role {
            Role::Follower(follower) => Some(*follower),
            _ => None,
        }
    }

    /// The leader, if this broker is it and the asker's epoch is right.
    ///
    /// # Errors
    /// Not the leader; the asker is behind or ahead.
    pub fn leader_in(&self, asked: LeaderEpoch) -> Result<&Leader, Rejection> {
        match (&self.role, self.view) {
            (Role::Leader(leader), _) => check_epoch(asked, leader.leader_epoch()).map(|()| &**leader),
            (_, Some(view)) => {
                check_epoch(asked, view.leader_epoch)?;
                Err(Rejection::NotLeaderOrFollower)
            }
            (_, None) => Err(Rejection::NotLeaderOrFollower),
        }
    }

    /// The epoch of a replica that consumers may read from, if the asker's epoch is right: the leader, or a follower up to
    /// its own high watermark (KIP-392).
    ///
    /// # Errors
    /// Neither; the asker is behind or ahead.
    pub(crate) fn readable_in(&self, asked: LeaderEpoch) -> Result<LeaderEpoch, Rejection> {
        match &self.role {
            Role::Follower(follower) => {
                check_epoch(asked, follower.leader_epoch).map(|()| follower.leader_epoch)
            }
            _ => self.leader_in(asked).map(Leader::leader_epoch),
        }
    }

    /// The acceptance table: what an order means to a broker that knows what this one knows.
    ///
    /// Two orders of one leader epoch say the same about who leads; the later partition epoch of the second carries
    /// nothing that a leader does not know better itself, nor a follower needs.
    pub fn judge(&self, order: &LeaderAndIsr, log: LogFacts) -> Verdict {
        if order.topic_id != self.topic_id {
            return Verdict::Refuse(Rejection::InconsistentTopicId);
        }
        if let Some(view) = self.view {
            if order.controller_epoch < view.controller_epoch {
                return Verdict::Refuse(Rejection::StaleControllerEpoch);
            }
            if order.leader_epoch < view.leader_epoch {
                return Verdict::Refuse(Rejection::FencedLeaderEpoch);
            }
            if order.leader_epoch == view.leader_epoch && !self.is_idle_without_reason() {
                return Verdict::Known(self.outcome());
            }
        }
        let latest = log.latest_epoch.unwrap_or(LeaderEpoch::UNKNOWN);
        if order.leader == self.own {
            if order.leader_epoch <= latest && holds(Rule::EpochLedOnce) {
                return Verdict::Refuse(Rejection::FencedLeaderEpoch);
            }
            let creates = order.partition_epoch == PartitionEpoch::CREATE;
            if creates && !log.is_empty && holds(Rule::StartedStaysStarted) {
                return Verdict::Refuse(Rejection::IneligibleReplica);
            }
            return Verdict::TakeOffice;
        }
        if order.leader_epoch < latest {
            return Verdict::Refuse(Rejection::FencedLeaderEpoch);
        }
        let foreign = !log.is_empty && log.latest_epoch != Some(order.leader_epoch);
        if order.is_new && foreign && holds(Rule::StartedStaysStarted) {
            return Verdict::Refuse(Rejection::IneligibleReplica);
        }
        Verdict::Follow
    }

    fn is_idle_without_reason(&self) -> bool {
        matches!(self.role, Role::Idle(None))
    }

    fn outcome(&self) -> Result<(), Rejection> {
        match self.role {
            Role::Idle(Some(rejection)) => Err(rejection),
            _ => Ok(()),
        }
    }

    /// Takes note of a controller that says nothing new.
    pub fn hear(&mut self, controller_epoch: ControllerEpoch) {
        if let Some(view) = &mut self.view {
            view.controller_epoch = view.controller_epoch.max(controller_epoch);
        }
    }

    /// Begins to take office: the broker stops following and serves nothing until [`Replica::take_office`].
    /// Returns whether waiting acknowledgements are kept: only by one that leads already (N19).
    pub fn begin_take_over(&mut self, order: &LeaderAndIsr) -> bool {
        let led_before = matches!(self.role, Role::Leader(_) | Role::TakingOffice { led_before: true });
        self.view = Some(View::of(order, self.own));
        #[cfg(feature = "model")]
        self.remember_leader();
        self.role = Role::TakingOffice { led_before };
        led_before && holds(Rule::CommitQueueIsKept)
    }

    /// The take-over write is stored. False if another order came in between.
    pub fn take_office(
        &mut self,
        order: &LeaderAndIsr,
        office: Office,
        stored: StoredIsr,
        now_ms: u64,
    ) -> bool {
        let due =
            self.is_taking_office() && self.view.is_some_and(|view| view.leader_epoch == order.leader_epoch);
        if due {
            let leader = Leader::new(office, order, stored, now_ms);
            #[cfg(feature = "model")]
            let leader = leader.inherit(self.former.take());
            self.role = Role::Leader(Box::new(leader));
        }
        due
    }

    /// The order cannot be carried out; a repetition of it gets the same answer.
    pub fn refuse_office(&mut self, order: &LeaderAndIsr, rejection: Rejection) {
        if self.view.is_none_or(|view| view.leader_epoch <= order.leader_epoch) {
            self.view = Some(View::of(order, self.own));
            self.role = Role::Idle(Some(rejection));
        }
    }

    pub fn follow(&mut self, order: &LeaderAndIsr) {
        self.view = Some(View::of(order, self.own));
        if self.follower().is_some_and(|known| known.leader == order.leader) && !holds(Rule::FetchInNewEpoch)
        {
            return;
        }
        self.role = Role::Follower(Follower {
            leader: order.leader,
            leader_epoch: order.leader_epoch,
            path: self.truncation_path,
            agrees: false,
        });
    }

    /// The follower's log holds nothing that its leader's lacks, for as long as the epoch lasts.
    pub fn agree(&mut self) {
        self.set_agreement(true);
    }

    /// What a follower's log has in common with its leader's has to be found out again.
    pub fn doubt(&mut self) {
        self.set_agreement(false);
    }

    fn set_agreement(&mut self, agrees: bool) {
        if let Role::Follower(follower) = &mut self.role {
            follower.agrees = agrees && follower.path == TruncationPath::OffsetsForLeaderEpoch;
        }
    }

    /// Whether an order to delete this replica counts: its epoch must not be below the one that is known, and not the
    /// very epoch that named this broker as a host (F9, N5).
    pub fn may_delete(&self, leader_epoch: LeaderEpoch) -> bool {
        if !holds(Rule::DeleteInItsEpoch) || !holds(Rule::HostsDoNotLeave) {
            return true;
        }
        self.view.is_none_or(|view| {
            view.leader_epoch < leader_epoch || (view.leader_epoch == leader_epoch && !view.is_host)
        })
    }

    /// Serves nothing until told again. The view stays, so that older orders are still recognised.
    pub fn stop(&mut self, rejection: Option<Rejection>) {
        self.role = Role::Idle(rejection);
    }

    /// A new session: all numbers that came from ZooKeeper are forgotten (L11).
    pub fn forget(&mut self) {
        if !holds(Rule::NumbersOfSession) {
            return;
        }
        self.view = None;
        self.role = Role::Idle(None);
    }

    /// What a leader that takes office again knew of its followers: nothing of it counts, unless the model says so.
    #[cfg(feature = "model")]
    fn remember_leader(&mut self) {
        if let Role::Leader(leader) = &self.role {
            self.former = Some(leader.clone());
        }
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
