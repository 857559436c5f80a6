//! One operation of a ZooKeeper multi, and what became of the multi.

/// A znode as read, with the numbers that fences are built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub data: Vec<u8>,
    /// Data version, never negative.
    pub version: i32,
    /// zxid of the creation.
    pub czxid: i64,
    /// zxid of the last change of the data.
    pub mzxid: i64,
    /// Session that owns an ephemeral znode; 0 for a persistent one.
    pub ephemeral_owner: i64,
}

/// How long a created znode lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    Persistent,
    /// Until the session that created it ends.
    Ephemeral,
}

/// One operation of a multi. All succeed or none has an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// The znode exists.
    CheckExists {
        path: String,
    },
    /// The znode exists at this data version.
    CheckVersion {
        path: String,
        version: i32,
    },
    /// The znode does not exist. ZooKeeper has no such check: the session writes it as create and delete.
    CheckAbsent {
        path: String,
    },
    Create {
        path: String,
        data: Vec<u8>,
        lifetime: Lifetime,
    },
    /// `version: None` means whatever version.
    SetData {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    Delete {
        path: String,
        version: Option<i32>,
    },
}

impl Op {
    pub fn path(&self) -> &str {
        match self {
            Self::CheckExists { path }
            | Self::CheckVersion { path, .. }
            | Self::CheckAbsent { path }
            | Self::Create { path, .. }
            | Self::SetData { path, .. }
            | Self::Delete { path, .. } => path,
        }
    }
}

/// What a stored operation left behind, in the order of the operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    Checked,
    /// The new znode has data version 0.
    Created,
    Set {
        version: i32,
        mzxid: i64,
    },
    Deleted,
}

/// Why a multi was not stored, or may have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MultiError {
    /// The operation at `index` failed; nothing was stored. A failed fence is an event, not a fault: read again,
    /// decide again.
    #[error("operation {index} on {path} failed: {reason:?}; nothing was stored")]
    Failed { index: usize, path: String, reason: OpFailure },
    /// The answer was lost: the multi may have been stored (L2). Look at the znodes before doing anything else.
    #[error("the answer to a multi was lost; it may have been stored")]
    Unknown,
    /// The session is over; nothing can be written any more under it.
    #[error("the ZooKeeper session has ended")]
    SessionEnded,
    #[error("ZooKeeper refused the request: {0}")]
    Refused(String),
}

/// Why one operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpFailure {
    NoNode,
    NodeExists,
    BadVersion,
    NotEmpty,
    Other,
}
