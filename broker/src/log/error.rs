//! What can go wrong in a log, each as a value the caller maps to a Kafka error code or to a failed log directory.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use uuid::Uuid;

use super::batch::BatchError;

/// A disk operation that failed, with the file it failed on.
#[derive(Debug, Error)]
#[error("could not {action} {}: {source}", path.display())]
pub struct StorageError {
    pub action: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl StorageError {
    /// Whether the disk is of no more use: not when it is full, when this process has too many files open, when stored
    /// bytes are damaged (no error of the system then), when a file that is read was removed by hand, or when a name is
    /// taken.
    pub fn is_disk_failure(&self) -> bool {
        const PASSING: [rustix::io::Errno; 7] = [
            rustix::io::Errno::NOSPC,
            rustix::io::Errno::DQUOT,
            rustix::io::Errno::MFILE,
            rustix::io::Errno::NFILE,
            rustix::io::Errno::NOMEM,
            rustix::io::Errno::EXIST,
            rustix::io::Errno::NOTEMPTY,
        ];
        let Some(code) = self.source.raw_os_error() else { return false };
        let is_reading = matches!(self.action, "read" | "open" | "look at");
        let is_gone = code == rustix::io::Errno::NOENT.raw_os_error();
        !(PASSING.iter().any(|errno| errno.raw_os_error() == code) || is_reading && is_gone)
    }
}

/// Attaches action and path to an I/O result.
pub(crate) trait StorageContext<T> {
    fn storage(self, action: &'static str, path: &Path) -> Result<T, StorageError>;
}

impl<T> StorageContext<T> for io::Result<T> {
    fn storage(self, action: &'static str, path: &Path) -> Result<T, StorageError> {
        self.map_err(|source| StorageError { action, path: path.to_owned(), source })
    }
}

/// Opening, creating or maintaining a log failed.
#[derive(Debug, Error)]
pub enum LogError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The directory belongs to another incarnation of the topic (D11). Nothing was changed.
    #[error("directory {} holds topic id {found} but {expected} was asked for", path.display())]
    TopicIdMismatch { path: PathBuf, found: Uuid, expected: Uuid },
    /// The files contradict each other in a way that no rule repairs; the directory is left as it is.
    #[error("log directory {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// An earlier disk error stopped this log; only a restart (with recovery) makes it usable again.
    #[error("the log was stopped by an earlier error: {0}")]
    Stopped(String),
}

/// One record of a produce request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// Index of the record within its batch.
    pub batch_index: i32,
    pub message: String,
}

/// Why an append was refused; unless it says otherwise nothing was written. Each variant names its Kafka error.
#[derive(Debug, Error)]
pub enum AppendError {
    /// CORRUPT_MESSAGE (2).
    #[error("corrupt record batch: {0}")]
    CorruptMessage(BatchError),
    /// MESSAGE_TOO_LARGE (10).
    #[error("batch of {size_bytes} bytes exceeds max.message.bytes = {limit_bytes}")]
    MessageTooLarge { size_bytes: usize, limit_bytes: usize },
    /// RECORD_LIST_TOO_LARGE (18).
    #[error("batch of {size_bytes} bytes exceeds segment.bytes = {limit_bytes}")]
    RecordListTooLarge { size_bytes: usize, limit_bytes: usize },
    /// INVALID_TIMESTAMP (32), with the records concerned.
    #[error("{message}")]
    InvalidTimestamp { message: String, record_errors: Vec<RecordError> },
    /// INVALID_RECORD (87), with the records concerned (none when the whole batch is meant).
    #[error("{message}")]
    InvalidRecord { message: String, record_errors: Vec<RecordError> },
    /// UNSUPPORTED_FOR_MESSAGE_FORMAT (43): message formats 0 and 1 (D7).
    #[error("message format {magic} is not supported; only format 2 is stored")]
    UnsupportedForMessageFormat { magic: i8 },
    /// UNSUPPORTED_COMPRESSION_TYPE (76).
    #[error("compression type {0} is not known")]
    UnsupportedCompressionType(u8),
    /// OUT_OF_ORDER_SEQUENCE_NUMBER (45).
    #[error(
        "producer {producer_id} (epoch {producer_epoch}) sent sequence {sequence} where {expected} was expected"
    )]
    OutOfOrderSequence { producer_id: i64, producer_epoch: i16, sequence: i32, expected: i32 },
    /// DUPLICATE_SEQUENCE_NUMBER (46): every record is stored already, but not as one batch with one offset.
    #[error("producer {producer_id} sent sequences {first}..={last} again in other batches")]
    DuplicateSequence { producer_id: i64, first: i32, last: i32 },
    /// INVALID_PRODUCER_EPOCH (47).
    #[error("producer {producer_id} uses epoch {producer_epoch}, the current one is {current}")]
    InvalidProducerEpoch { producer_id: i64, producer_epoch: i16, current: i16 },
    /// INVALID_TXN_STATE (48).
    #[error("producer {producer_id} wrote a plain batch inside its open transaction")]
    InvalidTransactionState { producer_id: i64 },
    /// INVALID_TXN_STATE (48): it would open a transaction that nobody ends (TXN-01).
    #[error("producer {producer_id} wrote a batch that belongs to no transaction known as ongoing")]
    TransactionNotVerified { producer_id: i64 },
    /// TRANSACTION_COORDINATOR_FENCED (52).
    #[error("marker for producer {producer_id} by coordinator epoch {epoch}, the current one is {current}")]
    TransactionCoordinatorFenced { producer_id: i64, epoch: i32, current: i32 },
    /// The leader's batch does not continue the follower's log (R18); nothing of it was appended.
    #[error("batch {base_offset}..={last_offset} does not continue the log, which ends at {log_end_offset}")]
    NotContiguous { base_offset: i64, last_offset: i64, log_end_offset: i64 },
    /// KAFKA_STORAGE_ERROR (56). The log takes no more appends when it could not be cut back.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// KAFKA_STORAGE_ERROR (56): see [`LogError::Stopped`].
    #[error("the log was stopped by an earlier error: {0}")]
    Stopped(String),
}

impl AppendError {
    /// INVALID_RECORD about a whole batch.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRecord { message: message.into(), record_errors: Vec::new() }
    }
}

impl From<BatchError> for AppendError {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Magic(magic @ 0..=1) => Self::UnsupportedForMessageFormat { magic },
            other => Self::CorruptMessage(other),
        }
    }
}

/// Why a read was refused.
#[derive(Debug, Error)]
pub enum ReadError {
    /// OFFSET_OUT_OF_RANGE (1).
    #[error("offset {offset} is outside {log_start_offset}..={log_end_offset}")]
    OffsetOutOfRange { offset: i64, log_start_offset: i64, log_end_offset: i64 },
    /// KAFKA_STORAGE_ERROR (56).
    #[error(transparent)]
    Storage(#[from] StorageError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_damaged_bytes_are_no_failure_of_the_disk() {
        use rustix::io::Errno;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "damaged batch");
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let rows: [(&'static str, io::Error, bool); 14] = [
            ("rename", Errno::NOTEMPTY.into(), false),
            ("write", Errno::NOSPC.into(), false),
            ("write", Errno::DQUOT.into(), false),
            ("open", Errno::MFILE.into(), false),
            ("write", Errno::IO.into(), true),
            ("write", Errno::ROFS.into(), true),
            ("rename", Errno::NOENT.into(), true),
            ("create", Errno::NOTDIR.into(), true),
            ("read", Errno::IO.into(), true),
            ("open", Errno::IO.into(), true),
            ("read", Errno::NOENT.into(), false),
            ("open", Errno::NOENT.into(), false),
            ("read", damaged(), false),
            ("read", short(), false),
        ];
        for (action, source, expected) in rows {
            let error = StorageError { action, path: "/d/t-0/x".into(), source };
            assert_eq!(error.is_disk_failure(), expected, "{error}");
        }
    }
}
