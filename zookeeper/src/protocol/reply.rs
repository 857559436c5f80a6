//! What the server says, encoded into frames.

use bytes::Bytes;

use super::code::{ErrorCode, EventType, XID_WATCH_EVENT, op};
use super::jute::Writer;
use super::types::{Acl, Identity, Stat, write_acls};

/// `KeeperState.SyncConnected`, the only state that a server names in an event.
const STATE_SYNC_CONNECTED: i32 = 3;

/// Result of one operation; alone it is a reply's body, in a multi one of many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Created(String),
    CreatedWithStat(String, Stat),
    Deleted,
    /// Data or access control list set.
    Set(Stat),
    Checked,
    Data(Option<Bytes>, Stat),
    Children(Vec<String>),
    Failed(ErrorCode),
    /// In a multi: this operation would have succeeded, another did not.
    RolledBack,
}

/// Body of a reply that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Nothing,
    One(Outcome),
    Multi(Vec<Outcome>),
    Stat(Stat),
    ChildrenWithStat(Vec<String>, Stat),
    Acls(Vec<Acl>, Stat),
    Path(String),
    Paths(Vec<String>),
    Count(i32),
    Identities(Vec<Identity>),
}

impl Outcome {
    /// Operation code in the header of a multi's result.
    fn code(&self) -> i32 {
        match self {
            Self::Created(_) => op::CREATE,
            Self::CreatedWithStat(..) => op::CREATE2,
            Self::Deleted => op::DELETE,
            Self::Set(_) => op::SET_DATA,
            Self::Checked => op::CHECK,
            Self::Data(..) => op::GET_DATA,
            Self::Children(_) => op::GET_CHILDREN,
            Self::Failed(_) | Self::RolledBack => op::ERROR,
        }
    }

    fn error_number(&self) -> i32 {
        match self {
            Self::Failed(error) => error.number(),
            _ => 0,
        }
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Created(path) => writer.string(path),
            Self::CreatedWithStat(path, stat) => {
                writer.string(path);
                stat.write(writer);
            }
            Self::Set(stat) => stat.write(writer),
            Self::Data(data, stat) => {
                writer.buffer(data.as_deref());
                stat.write(writer);
            }
            Self::Children(children) => writer.strings(children.iter().map(String::as_str)),
            Self::Deleted | Self::Checked => {}
            Self::Failed(_) | Self::RolledBack => writer.i32(self.error_number()),
        }
    }
}

fn write_multi(writer: &mut Writer, outcomes: &[Outcome]) {
    for outcome in outcomes {
        writer.i32(outcome.code());
        writer.bool(false);
        writer.i32(outcome.error_number());
        outcome.write(writer);
    }
    writer.i32(-1);
    writer.bool(true);
    writer.i32(-1);
}

impl Body {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Nothing => {}
            Self::One(outcome) => outcome.write(writer),
            Self::Multi(outcomes) => write_multi(writer, outcomes),
            Self::Stat(stat) => stat.write(writer),
            Self::ChildrenWithStat(children, stat) => {
                writer.strings(children.iter().map(String::as_str));
                stat.write(writer);
            }
            Self::Acls(acls, stat) => {
                write_acls(writer, acls);
                stat.write(writer);
            }
            Self::Path(path) => writer.string(path),
            Self::Paths(paths) => writer.strings(paths.iter().map(String::as_str)),
            Self::Count(count) => writer.i32(*count),
            Self::Identities(identities) => {
                writer.length(identities.len());
                for identity in identities {
                    writer.string(&identity.scheme);
                    writer.string(&identity.id);
                }
            }
        }
    }
}

/// A reply to the request `xid`; a refused one has no body.
pub(crate) fn encode_reply(xid: i32, zxid: i64, result: &Result<Body, ErrorCode>) -> Bytes {
    let mut writer = Writer::new();
    writer.i32(xid);
    writer.i64(zxid);
    match result {
        Ok(body) => {
            writer.i32(0);
            body.write(&mut writer);
        }
        Err(error) => writer.i32(error.number()),
    }
    writer.into_frame()
}

/// An event for a watcher.
pub(crate) fn encode_event(event: EventType, path: &str) -> Bytes {
    let mut writer = Writer::new();
    writer.i32(XID_WATCH_EVENT);
    writer.i64(-1);
    writer.i32(0);
    writer.i32(event as i32);
    writer.i32(STATE_SYNC_CONNECTED);
    writer.string(path);
    writer.into_frame()
}

/// The answer to the first frame. Timeout and session 0 say that the session has expired.
pub(crate) fn encode_connected(
    timeout_ms: i32,
    session_id: i64,
    password: &[u8; 16],
    with_read_only: bool,
) -> Bytes {
    let mut writer = Writer::new();
    writer.i32(0);
    writer.i32(timeout_ms);
    writer.i64(session_id);
    writer.buffer(Some(password));
    if with_read_only {
        writer.bool(false);
    }
    writer.into_frame()
}
