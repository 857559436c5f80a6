//! What is on its way between processes. Messages are a set: they arrive in any order, late, or never.

use zurau_broker::cores::follower::{FetchPosition, FetchedOutcome};
use zurau_broker::cores::storing::ProposalAnswer;
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, TopicId};
use zurau_common::rejection::Rejection;
use zurau_controller::action::PartitionMetadata;
use zurau_controller::cores::Outgoing;
use zurau_controller::event::{Event, Proposal};

use crate::log::Record;

/// An office of a controller, and one of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) controller: usize,
    pub(crate) serial: u64,
    pub(crate) request: u64,
}

/// A call of one run of a broker's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) broker: BrokerId,
    pub(crate) process: u64,
    pub(crate) call: u64,
}

/// A control request.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) from: Asker,
    pub(crate) to: BrokerId,
    pub(crate) connection: u64,
    pub(crate) controller_epoch: ControllerEpoch,
    pub(crate) broker_epoch: BrokerEpoch,
    pub(crate) body: Outgoing,
    pub(crate) live: Vec<BrokerId>,
    pub(crate) metadata: Option<PartitionMetadata>,
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Event(Box<Event>),
    /// Nothing that the machine has to know.
    Heard,
    /// The broker lives in another registration: the request is repeated.
    NotHeard,
    NewerController,
}

#[derive(Debug, Clone)]
pub(crate) enum Message {
    Order(Box<Order>),
    OrderAnswered {
        to: Asker,
        from: BrokerId,
        answers: Vec<Answer>,
    },
    Fetch {
        from: Caller,
        to: BrokerId,
        broker_epoch: BrokerEpoch,
        topic_id: TopicId,
        asked: FetchPosition,
    },
    Fetched {
        to: Caller,
        topic_id: TopicId,
        asked: FetchPosition,
        outcome: FetchedOutcome,
        records: Vec<Record>,
    },
    AlterIsr {
        from: Caller,
        to: usize,
        serial: u64,
        broker_epoch: BrokerEpoch,
        proposal: Box<Proposal>,
    },
    AlterIsrAnswered {
        to: Caller,
        answer: Result<ProposalAnswer, Rejection>,
    },
}

impl Message {
    /// The broker that has to take it, if it is one.
    pub(crate) fn to_broker(&self) -> Option<BrokerId> {
        match self {
            Self::Order(order) => Some(order.to),
            Self::Fetch { to, .. } => Some(*to),
            Self::Fetched { to, .. } | Self::AlterIsrAnswered { to, .. } => Some(to.broker),
            Self::OrderAnswered { .. } | Self::AlterIsr { .. } => None,
        }
    }

    /// The call that it belongs to, if it is of a broker's.
    pub(crate) fn caller(&self) -> Option<Caller> {
        match self {
            Self::Fetch { from: who, .. }
            | Self::Fetched { to: who, .. }
            | Self::AlterIsr { from: who, .. }
            | Self::AlterIsrAnswered { to: who, .. } => Some(*who),
            Self::Order(_) | Self::OrderAnswered { .. } => None,
        }
    }

    /// The controller that has to take it, if it is one.
    pub(crate) fn to_controller(&self) -> Option<usize> {
        match self {
            Self::OrderAnswered { to, .. } => Some(to.controller),
            Self::AlterIsr { to, .. } => Some(*to),
            _ => None,
        }
    }
}
