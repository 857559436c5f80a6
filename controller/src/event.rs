//! What can happen to the controller: facts read from ZooKeeper, outcomes of its writes, answers and requests of
//! brokers, and time. A closed list; the machine learns of nothing else.

use zurau_common::id::{
    BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicName, TopicPartition,
};
use zurau_common::rejection::Rejection;
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::TopicIdEntry;

use crate::action::StopReplica;

/// Milliseconds of a monotonic clock; only differences mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    pub(crate) fn plus(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

/// What stands in a znode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Read<T> {
    #[default]
    Absent,
    Value(Versioned<T>),
    /// Something stands there that is not a value of its kind; `why` is for the admin.
    Bad {
        why: String,
        version: i32,
    },
}

/// A readable value with the numbers that fences and comparisons are built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    pub value: T,
    /// Data version, never negative.
    pub version: i32,
    /// zxid of the last change; `None` right after an own creation, until the znode is read.
    pub mzxid: Option<i64>,
}

impl<T> Read<T> {
    pub(crate) fn value(&self) -> Option<&T> {
        match self {
            Self::Value(versioned) => Some(&versioned.value),
            Self::Absent | Self::Bad { .. } => None,
        }
    }

    pub(crate) fn version(&self) -> Option<i32> {
        match self {
            Self::Value(versioned) => Some(versioned.version),
            Self::Bad { version, .. } => Some(*version),
            Self::Absent => None,
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// The registration that owns `/brokers/ids/[id]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Session that owns it: a `leader` node counts only when the same session owns it.
    pub session: i64,
    /// zxid of its creation.
    pub czxid: i64,
    /// `host:port`, or why the value is not an address.
    pub address: Result<Address, String>,
}

/// A `leader` znode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderNode {
    /// `None` when the value is not a broker id.
    pub broker: Option<BrokerId>,
    pub session: i64,
    pub czxid: i64,
}

/// Something read from ZooKeeper, in the terms of the cluster: never a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    Broker {
        broker: BrokerId,
        registration: Option<Registration>,
    },
    Endpoints {
        broker: BrokerId,
        endpoints: Option<Endpoints>,
    },
    BrokerEpoch {
        broker: BrokerId,
        epoch: Option<BrokerEpoch>,
    },
    /// `Value(None)`: an admin created the topic and nobody gave it an id yet.
    Topic {
        topic: TopicName,
        node: Read<Option<TopicId>>,
    },
    TopicIdEntry {
        topic_id: TopicId,
        entry: Read<TopicIdEntry>,
    },
    /// Whether the partition's parent node exists.
    Partition {
        partition: TopicPartition,
        exists: bool,
    },
    Replicas {
        partition: TopicPartition,
        ids: Read<Vec<BrokerId>>,
    },
    State {
        partition: TopicPartition,
        state: Read<PartitionState>,
    },
    Isr {
        partition: TopicPartition,
        ids: Read<Vec<BrokerId>>,
    },
    Elr {
        partition: TopicPartition,
        ids: Read<Vec<BrokerId>>,
    },
    Leader {
        partition: TopicPartition,
        node: Option<LeaderNode>,
    },
    Leaving {
        partition: TopicPartition,
        ids: Read<Vec<BrokerId>>,
    },
    /// The wanted assignment of a reassignment (RAR).
    Wanted {
        partition: TopicPartition,
        ids: Read<Vec<BrokerId>>,
    },
    PartitionError {
        partition: TopicPartition,
        text: Option<String>,
    },
    ReassignmentError {
        partition: TopicPartition,
        text: Option<String>,
    },
    DeleteTopic {
        topic: TopicName,
        requested: bool,
    },
    /// Partitions that shall be led by their preferred replica; `None` for all of them.
    PreferredElection {
        request: Read<Option<Vec<TopicPartition>>>,
    },
    /// The topic's own `unclean.leader.election.enable`, if it has one.
    UncleanElection {
        topic: TopicName,
        enabled: Option<bool>,
    },
    /// The cluster-wide dynamic value, if there is one.
    UncleanElectionDefault {
        enabled: Option<bool>,
    },
    /// Everything about the subject that was asked for by `Action::ReadAgain` has been told.
    Fresh(Subject),
}

/// What the machine may ask to be read again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Broker(BrokerId),
    /// The topic's node, the wish to delete it, and all its partitions.
    Topic(TopicName),
    TopicId(TopicId),
    Partition(TopicPartition),
    /// The request for preferred leaders.
    Wishes,
}

/// Names a write in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// `zxid` of the multi, when an answer carried it.
    Stored { zxid: Option<i64> },
    /// A fence did not hold; nothing was stored.
    Conflict,
    /// The answer was lost (L2).
    Unknown,
}

/// Names a broker's request that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One partition of a leader's AlterIsr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub topic: ProposalTopic,
    pub partition: i32,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub isr: Vec<BrokerId>,
    /// Broker epoch of each member as the leader knows it; `None` from versions that do not carry it.
    pub broker_epochs: Vec<Option<BrokerEpoch>>,
    /// `None` when the request does not carry it.
    pub elr: Option<Vec<BrokerId>>,
}

/// Old versions of AlterPartition name a topic, newer ones its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProposalTopic {
    Name(TopicName),
    Id(TopicId),
}

/// A broker's answer about one partition of a LeaderAndIsr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderAndIsrAnswer {
    pub partition: TopicPartition,
    /// The epoch that was sent.
    pub leader_epoch: LeaderEpoch,
    pub outcome: Result<(), Rejection>,
    /// The highest epoch in the broker's log, when it is ahead of `state`.
    pub highest_known_epoch: Option<LeaderEpoch>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The watches were lost and are armed anew: decide nothing until [`Event::Loaded`] (L1).
    Reloading,
    Facts(Vec<Fact>),
    /// The whole tree has been read and told since [`Event::Reloading`] (or since the start).
    Loaded,
    Written(Vec<(WriteId, WriteOutcome)>),
    LeaderAndIsrAnswered {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        answers: Vec<LeaderAndIsrAnswer>,
    },
    /// `outcome` of a StopReplica that deletes.
    ReplicaStopped {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        /// What was asked for.
        stop: StopReplica,
        outcome: Result<(), Rejection>,
    },
    /// The last epoch and the log end of a replica, for an unclean election; `None` when it did not say.
    LogEnd {
        broker: BrokerId,
        partition: TopicPartition,
        end: Option<(LeaderEpoch, i64)>,
    },
    AlterIsr {
        request: RequestId,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        proposals: Vec<Proposal>,
    },
    ControlledShutdown {
        request: RequestId,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
    },
    /// Time has passed; deadlines are looked at.
    Tick,
}
