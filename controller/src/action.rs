//! What the controller's machine wants done. The shell carries each action out, in order, and adds nothing of its own.

use zurau_common::id::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicName, TopicPartition,
};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::fence::{Fence, PartitionWrite};
use zurau_common::zk::topic::TopicIdEntry;

use crate::event::{RequestId, Subject, WriteId};

/// A conditional write. The shell builds the multi from it ([`crate::multi`]), stores it and reports the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Partition(Box<PartitionChange>),
    /// Gives a topic its id; creates the id's entry unless it exists.
    NameTopic {
        topic: TopicName,
        version: i32,
        topic_id: TopicId,
        entry: Option<TopicIdEntry>,
    },
    /// Makes the missing entry of a stored id anew.
    CreateTopicIdEntry {
        topic_id: TopicId,
        entry: TopicIdEntry,
    },
    /// Marks partitions as started. `isrs`: those whose ISR says so; it must still exist.
    SetTopicIdEntry {
        topic_id: TopicId,
        version: i32,
        entry: TopicIdEntry,
        isrs: Vec<TopicPartition>,
    },
    /// Ends an incarnation.
    RemoveTopicIdEntry {
        topic_id: TopicId,
        version: i32,
    },
    /// Removes the topic's znodes, whatever is left of them, the wish to delete it last.
    RemoveTopic {
        topic: TopicName,
    },
    /// Takes the wish to delete a topic away: deletion is not allowed.
    RefuseDeletion {
        topic: TopicName,
    },
    /// Puts (or, with `None`, removes) the line that tells an admin why the partition's input was rejected.
    PartitionError {
        partition: TopicPartition,
        text: Option<String>,
        exists: bool,
    },
    /// The same for a wanted assignment.
    ReassignmentError {
        partition: TopicPartition,
        text: Option<String>,
        exists: bool,
    },
    /// Goes above an epoch that a `state` names (N14).
    RaiseControllerEpoch {
        epoch: ControllerEpoch,
    },
    /// The request for preferred leaders has been carried out.
    RemovePreferredElection {
        version: i32,
    },
}

/// Changes a partition; `extra` rides in the same multi, under the same fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionChange {
    pub fence: Fence,
    pub write: PartitionWrite,
    pub extra: PartitionExtra,
}

/// Writes beside `state` and `ISR` that a move needs. `None` leaves the znode alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionExtra {
    /// `replicas` := these, at the version read; `None` as version when the znode does not exist.
    pub replicas: Option<(Vec<BrokerId>, Option<i32>)>,
    /// The topic's node is still at this version: a first `state` is not written below a topic that was removed and
    /// made anew a moment ago (F4).
    pub topic_version: Option<i32>,
    /// The wanted assignment is removed, at the version read (N9).
    pub remove_wanted: Option<i32>,
    /// `leaving` := these (none of them: it is removed); `None` as version when the znode does not exist.
    pub leaving: Option<(Vec<BrokerId>, Option<i32>)>,
}

/// What clients are told about a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMetadata {
    pub topic_id: TopicId,
    /// `None`: nobody leads it now.
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub controller_epoch: ControllerEpoch,
    pub isr: Vec<BrokerId>,
    pub partition_epoch: PartitionEpoch,
    /// Hosts, the wanted ones first, in the wanted order.
    pub replicas: Vec<BrokerId>,
    pub offline: Vec<BrokerId>,
}

/// A broker that can be talked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveBroker {
    pub broker: BrokerId,
    pub broker_epoch: BrokerEpoch,
    pub address: Address,
    pub endpoints: Option<Endpoints>,
}

/// A copy that its host shall delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopReplica {
    pub partition: TopicPartition,
    pub topic_id: TopicId,
    /// Not below the epoch that the broker knows (F9).
    pub leader_epoch: LeaderEpoch,
}

/// What AlterIsr is answered about one partition: what is stored now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredIsrAnswer {
    pub leader: BrokerId,
    pub leader_epoch: LeaderEpoch,
    pub isr: Vec<BrokerId>,
    pub elr: Vec<BrokerId>,
    pub partition_epoch: PartitionEpoch,
    pub recovery: bool,
}

/// Why a leader is elected, for the log and for the record of the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The partition has never had a leader.
    NewPartition,
    /// This controller found no leader of the stored epoch when it took office.
    ControllerStart,
    BrokerGone,
    /// The leader's broker registered anew, so it forgot its office.
    BrokerRestarted,
    Resigned,
    Refused,
    NoAnswer,
    Preferred,
    ControlledShutdown,
    /// The target or the hosts of the partition changed.
    Reassignment,
    ReassignmentDone,
}

impl Reason {
    /// For the record of the election, which people read.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::NewPartition => "the partition is new",
            Self::ControllerStart => "no leader was found when this controller took office",
            Self::BrokerGone => "the leader's broker was gone",
            Self::BrokerRestarted => "the leader's broker had restarted",
            Self::Resigned => "the leader resigned",
            Self::Refused => "the broker elected before refused to lead",
            Self::NoAnswer => "the broker elected before did not take office in time",
            Self::Preferred => "an admin or the balancer asked for the preferred leader",
            Self::ControlledShutdown => "the leader's broker asked to shut down",
            Self::Reassignment => "an admin asked for other replicas",
            Self::ReassignmentDone => "the move that an admin asked for is complete",
        }
    }
}

/// A state transition, for the log: one line each, with partition and epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    Elected {
        partition: TopicPartition,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        reason: Reason,
        recovery: bool,
    },
    Offline {
        partition: TopicPartition,
        why: String,
    },
    IsrStored {
        partition: TopicPartition,
        isr: Vec<BrokerId>,
        elr: Vec<BrokerId>,
        partition_epoch: PartitionEpoch,
    },
    ProposalRefused {
        partition: TopicPartition,
        broker: BrokerId,
        rejection: Rejection,
    },
    TopicNamed {
        topic: TopicName,
        topic_id: TopicId,
    },
    TopicRemoved {
        topic: TopicName,
    },
    Rejected {
        subject: String,
        why: String,
    },
    BrokerUp {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
    },
    BrokerDown {
        broker: BrokerId,
    },
    TookOffice {
        epoch: ControllerEpoch,
        brokers: usize,
        partitions: usize,
    },
    WaitingForBrokers {
        registered: usize,
        named: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Write {
        id: WriteId,
        write: Write,
    },
    ReadAgain(Subject),
    /// The brokers that are alive now. Told before anything is sent to a new one.
    LiveBrokers(Vec<LiveBroker>),
    /// To one broker, which has had its full LeaderAndIsr.
    LeaderAndIsr {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        partition: LeaderAndIsr,
    },
    /// Everything that concerns a broker: once per controller and registration.
    FullLeaderAndIsr {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        partitions: Vec<LeaderAndIsr>,
    },
    StopReplica {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        stop: StopReplica,
    },
    /// To all live brokers. `None`: the partition is no more.
    Metadata(Vec<(TopicPartition, Option<PartitionMetadata>)>),
    /// Ask a replica how far its log goes (unclean election).
    QueryLogEnd {
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        partition: TopicPartition,
    },
    AnswerAlterIsr {
        request: RequestId,
        /// Outcome per proposal, in their order; or why the whole request is refused.
        outcomes: Result<Vec<Result<StoredIsrAnswer, Rejection>>, Rejection>,
    },
    AnswerControlledShutdown {
        request: RequestId,
        outcome: Result<Vec<TopicPartition>, Rejection>,
    },
    Note(Note),
}
