//! Why a request is refused: the one place that spells Kafka's error codes (protocol guide, "Error Codes").
//! A rejection is an answer to a peer; it is never used for our own bugs.

use thiserror::Error;

macro_rules! rejections {
    ($($name:ident = $code:literal, $message:literal;)*) => {
        /// A refusal with its Kafka error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
        pub enum Rejection {
            $(#[error($message)] $name,)*
        }

        impl Rejection {
            /// Every rejection, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Kafka's error code; never 0, which means success.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// The rejection of a code received from a peer: `None` for 0 (success). A code that this table does
            /// not hold counts as [`Rejection::UnknownServerError`].
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    0 => None,
                    $($code => Some(Self::$name),)*
                    _ => Some(Self::UnknownServerError),
                }
            }
        }
    };
}

rejections! {
    UnknownServerError = -1, "an unexpected error in this broker; its log has the details";
    OffsetOutOfRange = 1, "the offset is outside the range that the partition holds";
    CorruptMessage = 2, "the record batch fails its checksum, has a wrong size or is otherwise malformed";
    UnknownTopicOrPartition = 3, "this broker does not host that topic or partition";
    InvalidFetchSize = 4, "the fetch size is invalid";
    LeaderNotAvailable = 5, "the partition has no leader right now";
    NotLeaderOrFollower = 6, "this broker is not the leader, or not a replica, of the partition";
    RequestTimedOut = 7, "the request timed out";
    ReplicaNotAvailable = 9, "the replica is not available";
    MessageTooLarge = 10, "the record batch is larger than max.message.bytes";
    StaleControllerEpoch = 11, "the request comes from an older controller";
    OffsetMetadataTooLarge = 12, "the metadata of the offset is too large";
    NetworkException = 13, "the connection broke before an answer arrived";
    CoordinatorLoadInProgress = 14, "the coordinator is still loading";
    CoordinatorNotAvailable = 15, "the coordinator is not available";
    NotCoordinator = 16, "this broker is not the coordinator";
    InvalidTopicException = 17, "the topic name is invalid";
    RecordListTooLarge = 18, "the record batch is larger than a segment";
    NotEnoughReplicas = 19, "fewer replicas are in sync than min.insync.replicas asks for";
    NotEnoughReplicasAfterAppend = 20, "the records were written, but fewer replicas are in sync than min.insync.replicas asks for";
    InvalidRequiredAcks = 21, "acks must be -1 (all), 0 or 1";
    IllegalGeneration = 22, "the generation of the group is not the current one";
    InconsistentGroupProtocol = 23, "the member's protocols do not fit the group's";
    InvalidGroupId = 24, "the group id is invalid";
    UnknownMemberId = 25, "the coordinator does not know this member";
    InvalidSessionTimeout = 26, "the session timeout is outside the allowed range";
    RebalanceInProgress = 27, "the group is rebalancing";
    InvalidCommitOffsetSize = 28, "the offset commit is too large";
    TopicAuthorizationFailed = 29, "not authorized for the topic";
    GroupAuthorizationFailed = 30, "not authorized for the group";
    ClusterAuthorizationFailed = 31, "not authorized for the cluster";
    InvalidTimestamp = 32, "the timestamp of a record is out of the accepted range";
    UnsupportedSaslMechanism = 33, "the SASL mechanism is not enabled";
    IllegalSaslState = 34, "the request is not valid in the current SASL state";
    UnsupportedVersion = 35, "the version of this API is not supported";
    TopicAlreadyExists = 36, "a topic with this name exists already";
    InvalidPartitions = 37, "the number of partitions is invalid";
    InvalidReplicationFactor = 38, "the replication factor is below 1 or larger than the number of live brokers";
    InvalidReplicaAssignment = 39, "the replica assignment is invalid";
    InvalidConfig = 40, "a configuration value is invalid";
    NotController = 41, "this is not the active controller";
    InvalidRequest = 42, "the request is malformed or contradicts itself";
    UnsupportedForMessageFormat = 43, "only record batches of format v2 (magic 2) are supported";
    PolicyViolation = 44, "the request violates a policy";
    OutOfOrderSequenceNumber = 45, "the producer's sequence number does not follow its last one";
    DuplicateSequenceNumber = 46, "the producer's sequence number was written before";
    InvalidProducerEpoch = 47, "the producer's epoch is older than the current one";
    InvalidTxnState = 48, "the transaction is not in a state that allows this";
    InvalidProducerIdMapping = 49, "the producer id does not belong to the transactional id";
    InvalidTransactionTimeout = 50, "the transaction timeout is larger than transaction.max.timeout.ms";
    ConcurrentTransactions = 51, "another change of the same transaction is in progress";
    TransactionCoordinatorFenced = 52, "the transaction coordinator was replaced";
    TransactionalIdAuthorizationFailed = 53, "not authorized for the transactional id";
    SecurityDisabled = 54, "security features are disabled";
    OperationNotAttempted = 55, "the operation was not attempted";
    KafkaStorageError = 56, "the disk of the log failed or refuses writes";
    LogDirNotFound = 57, "the log directory is unknown";
    SaslAuthenticationFailed = 58, "SASL authentication failed";
    UnknownProducerId = 59, "the broker does not know this producer id";
    ReassignmentInProgress = 60, "the partition is being reassigned";
    DelegationTokenAuthDisabled = 61, "delegation tokens are disabled";
    NonEmptyGroup = 68, "the group is not empty";
    GroupIdNotFound = 69, "the group does not exist";
    FetchSessionIdNotFound = 70, "the fetch session is unknown";
    InvalidFetchSessionEpoch = 71, "the epoch of the fetch session is wrong";
    ListenerNotFound = 72, "no listener of that name on the leader";
    TopicDeletionDisabled = 73, "topic deletion is disabled (delete.topic.enable)";
    FencedLeaderEpoch = 74, "the leader epoch is older than the broker's";
    UnknownLeaderEpoch = 75, "the leader epoch is newer than the broker's";
    UnsupportedCompressionType = 76, "the compression type is not supported";
    StaleBrokerEpoch = 77, "the broker epoch is older than the registered one";
    OffsetNotAvailable = 78, "the leader's high watermark has not caught up since its election";
    MemberIdRequired = 79, "the member needs an id before it can join";
    PreferredLeaderNotAvailable = 80, "the preferred leader is not available";
    GroupMaxSizeReached = 81, "the group is full";
    FencedInstanceId = 82, "another member uses the same group.instance.id";
    EligibleLeadersNotAvailable = 83, "no eligible leader is available";
    ElectionNotNeeded = 84, "the partition needs no election";
    NoReassignmentInProgress = 85, "no reassignment of the partition is in progress";
    GroupSubscribedToTopic = 86, "the group is subscribed to the topic";
    InvalidRecord = 87, "a record is invalid";
    UnstableOffsetCommit = 88, "offsets of an open transaction are pending";
    ThrottlingQuotaExceeded = 89, "the quota is exceeded";
    ProducerFenced = 90, "a newer producer uses the same transactional id";
    ResourceNotFound = 91, "the resource does not exist";
    InvalidUpdateVersion = 95, "the partition epoch is not the current one";
    InconsistentTopicId = 103, "the topic id is not that of the topic's current incarnation";
    UnknownTopicId = 100, "the topic id is unknown";
    TransactionalIdNotFound = 105, "the transactional id does not exist";
    FetchSessionTopicIdError = 106, "the fetch session mixes topic ids and names";
    IneligibleReplica = 107, "the replica is not eligible to join the ISR";
    NewLeaderElected = 108, "a new leader was elected meanwhile";
    FencedMemberEpoch = 110, "the member's epoch is not the one that the coordinator knows";
    UnreleasedInstanceId = 111, "the instance id is still used by another member";
    UnsupportedAssignor = 112, "the assignor is not offered (group.consumer.assignors)";
    StaleMemberEpoch = 113, "the member's epoch is not the current one";
    MismatchedEndpointType = 114, "the request asks for another kind of endpoint than this one";
    UnsupportedEndpointType = 115, "the endpoint type is unknown";
    UnknownSubscriptionId = 117, "the subscription id is unknown";
    TransactionAbortable = 120, "the transaction must be aborted";
    InvalidRegularExpression = 128, "the regular expression is not valid";
}

/// The error code of an outcome: 0 for success.
pub fn error_code<T>(outcome: &Result<T, Rejection>) -> i16 {
    outcome.as_ref().err().map_or(0, |rejection| rejection.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_agree_with_the_wire_crate() {
        let mut seen = std::collections::HashSet::new();
        for rejection in Rejection::ALL {
            assert!(seen.insert(rejection.code()), "{rejection:?}");
            assert_eq!(Rejection::from_code(rejection.code()), Some(*rejection));
            let name = format!("{:?}", kafka_protocol::ResponseError::try_from_code(rejection.code()));
            let unknown_there = name.starts_with("Some(Unknown");
            assert!(unknown_there || name == format!("Some({rejection:?})"), "{rejection:?} is {name} there");
        }
        assert_eq!(Rejection::from_code(0), None);
        assert_eq!(Rejection::from_code(32_000), Some(Rejection::UnknownServerError));
    }
}
