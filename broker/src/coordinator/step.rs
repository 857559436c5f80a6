//! Words of every coordinator's core: who waits, when it is, what became of a write.
//!
//! Pure.

use zurau_common::rejection::Rejection;

/// A name of the shell for whoever waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReplyId(pub(crate) u64);

/// The time of a step, by two clocks: timeouts need one that never goes back, records carry the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) elapsed_ms: i64,
    /// Milliseconds since the epoch.
    pub(crate) wall_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WriteId(pub(crate) u64);

/// What became of a write. Writes are reported in the order they were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Committed,
    /// Committed, but the ISR is smaller than `min.insync.replicas` by now: the records count, the client is told
    /// to try again.
    CommittedBelowMinimum,
    /// Not in the log, or this broker leads no more and will forget everything.
    Refused(Rejection),
}

impl WriteOutcome {
    pub(crate) fn is_in_log(self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// What a client is told: a code that every client takes as a reason to look for the coordinator and try again,
    /// except `too_large` when the request itself is at fault.
    pub(crate) fn for_client(self, too_large: Rejection) -> Result<(), Rejection> {
        let rejection = match self {
            Self::Committed => return Ok(()),
            Self::CommittedBelowMinimum => Rejection::NotEnoughReplicasAfterAppend,
            Self::Refused(rejection) => rejection,
        };
        Err(match rejection {
            Rejection::NotLeaderOrFollower | Rejection::KafkaStorageError | Rejection::FencedLeaderEpoch => {
                Rejection::NotCoordinator
            }
            Rejection::MessageTooLarge | Rejection::RecordListTooLarge => too_large,
            // Of a transaction: it is over, or its producer or its coordinator was replaced.
            Rejection::InvalidProducerEpoch
            | Rejection::InvalidTxnState
            | Rejection::TransactionCoordinatorFenced => rejection,
            _ => Rejection::CoordinatorNotAvailable,
        })
    }
}
