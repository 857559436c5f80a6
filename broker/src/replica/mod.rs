//! The replica of one partition on one broker: a synchronous core without clock, disk, network or ZooKeeper. Read in
//! this order: `progress` (one follower), `isr` (stored, proposed, possible), `leader`, `follower`, and here the role
//! and the acceptance of what the controller says (M4, F5).

pub(crate) mod progress;

pub(crate) mod isr;

pub(crate) mod leader;

pub(crate) mod follower;

pub(crate) mod selector;

use zurau_common::id::{BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::isr::StoredIsr;

use follower::Follower;
use leader::{Leader, Office};

/// The epoch check that every read of a partition shares (KIP-320): what the asker believes against what is.
///
/// # Errors
/// The asker is behind, or ahead of this broker.
pub(crate) fn check_epoch(asked: LeaderEpoch, current: LeaderEpoch) -> Result<(), Rejection> {
    if asked == LeaderEpoch::UNKNOWN || asked == current {
        return Ok(());
    }
    Err(if asked < current { Rejection::FencedLeaderEpoch } else { Rejection::UnknownLeaderEpoch })
}

/// What the broker was told last about the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) controller_epoch: ControllerEpoch,
    pub(crate) leader: BrokerId,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) state_version: i32,
    pub(crate) partition_epoch: PartitionEpoch,
    /// Whether the epoch was started with this broker as one of its hosts.
    pub(crate) is_host: bool,
}

impl View {
    fn of(order: &LeaderAndIsr, own: BrokerId) -> Self {
        Self {
            is_host: order.replicas.contains(&own),
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
pub(crate) enum Role {
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
pub(crate) struct LogFacts {
    /// The last epoch of its history, durable; `None` in a log that never had one.
    pub(crate) latest_epoch: Option<LeaderEpoch>,
    pub(crate) is_empty: bool,
}

/// What is to be done about a LeaderAndIsr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    TakeOffice,
    Follow,
    /// Nothing new; answered with the outcome that the order had when it was.
    Known(Result<(), Rejection>),
    Refuse(Rejection),
}

/// The replica's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replica {
    own: BrokerId,
    topic_id: TopicId,
    view: Option<View>,
    role: Role,
}

impl Replica {
    pub(crate) fn new(own: BrokerId, topic_id: TopicId) -> Self {
        Self { own, topic_id, view: None, role: Role::Idle(None) }
    }

    pub(crate) fn view(&self) -> Option<View> {
        self.view
    }

    pub(crate) fn role(&self) -> &Role {
        &self.role
    }

    pub(crate) fn leader(&self) -> Option<&Leader> {
        match &self.role {
            Role::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub(crate) fn leader_mut(&mut self) -> Option<&mut Leader> {
        match &mut self.role {
            Role::Leader(leader) => Some(leader),
            _ => None,
        }
    }

    pub(crate) fn is_taking_office(&self) -> bool {
        matches!(self.role, Role::TakingOffice { .. })
    }

    pub(crate) fn follower(&self) -> Option<Follower> {
        match &self.role {
            Role::Follower(follower) => Some(*follower),
            _ => None,
        }
    }

    /// The leader, if this broker is it and the asker's epoch is right.
    ///
    /// # Errors
    /// Not the leader; the asker is behind or ahead.
    pub(crate) fn leader_in(&self, asked: LeaderEpoch) -> Result<&Leader, Rejection> {
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
    pub(crate) fn judge(&self, order: &LeaderAndIsr, log: LogFacts) -> Verdict {
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
            if order.leader_epoch <= latest {
                return Verdict::Refuse(Rejection::FencedLeaderEpoch);
            }
            if order.partition_epoch == PartitionEpoch::CREATE && !log.is_empty {
                return Verdict::Refuse(Rejection::IneligibleReplica);
            }
            return Verdict::TakeOffice;
        }
        if order.leader_epoch < latest {
            return Verdict::Refuse(Rejection::FencedLeaderEpoch);
        }
        if order.is_new && !log.is_empty && log.latest_epoch != Some(order.leader_epoch) {
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
    pub(crate) fn hear(&mut self, controller_epoch: ControllerEpoch) {
        if let Some(view) = &mut self.view {
            view.controller_epoch = view.controller_epoch.max(controller_epoch);
        }
    }

    /// Begins to take office: the broker stops following and serves nothing until [`Replica::take_office`].
    /// Returns whether waiting acknowledgements are kept: only by one that leads already (N19).
    pub(crate) fn begin_take_over(&mut self, order: &LeaderAndIsr) -> bool {
        let led_before = matches!(self.role, Role::Leader(_) | Role::TakingOffice { led_before: true });
        self.view = Some(View::of(order, self.own));
        self.role = Role::TakingOffice { led_before };
        led_before
    }

    /// The take-over write is stored. False if another order came in between.
    pub(crate) fn take_office(
        &mut self,
        order: &LeaderAndIsr,
        office: Office,
        stored: StoredIsr,
        now_ms: u64,
    ) -> bool {
        let due =
            self.is_taking_office() && self.view.is_some_and(|view| view.leader_epoch == order.leader_epoch);
        if due {
            self.role = Role::Leader(Box::new(Leader::new(office, order, stored, now_ms)));
        }
        due
    }

    /// The order cannot be carried out; a repetition of it gets the same answer.
    pub(crate) fn refuse_office(&mut self, order: &LeaderAndIsr, rejection: Rejection) {
        if self.view.is_none_or(|view| view.leader_epoch <= order.leader_epoch) {
            self.view = Some(View::of(order, self.own));
            self.role = Role::Idle(Some(rejection));
        }
    }

    pub(crate) fn follow(&mut self, order: &LeaderAndIsr) {
        self.view = Some(View::of(order, self.own));
        self.role = Role::Follower(Follower { leader: order.leader, leader_epoch: order.leader_epoch });
    }

    /// Whether an order to delete this replica counts: its epoch must not be below the one that is known, and not the
    /// very epoch that named this broker as a host (F9, N5).
    pub(crate) fn may_delete(&self, leader_epoch: LeaderEpoch) -> bool {
        self.view.is_none_or(|view| {
            view.leader_epoch < leader_epoch || (view.leader_epoch == leader_epoch && !view.is_host)
        })
    }

    /// Serves nothing until told again. The view stays, so that older orders are still recognised.
    pub(crate) fn stop(&mut self, rejection: Option<Rejection>) {
        self.role = Role::Idle(rejection);
    }

    /// A new session: all numbers that came from ZooKeeper are forgotten (L11).
    pub(crate) fn forget(&mut self) {
        self.view = None;
        self.role = Role::Idle(None);
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
