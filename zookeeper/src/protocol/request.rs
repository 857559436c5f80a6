//! What a client may ask, decoded from frames. A body that cannot be decoded is one value
//! ([`Request::Malformed`]), because the protocol answers it instead of dropping the client.

use bytes::Bytes;

use super::code::op;
use super::jute::{Decoded, Malformed, Reader};
use super::types::{Acl, read_acls};

/// The first frame of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectRequest {
    pub(crate) last_zxid_seen: i64,
    pub(crate) timeout_ms: i32,
    pub(crate) session_id: i64,
    pub(crate) password: Bytes,
    /// Clients older than 3.4 send no read-only flag and expect none back.
    pub(crate) knows_read_only: bool,
}

impl ConnectRequest {
    pub(crate) fn decode(frame: Bytes) -> Decoded<Self> {
        let mut reader = Reader::new(frame);
        let _protocol_version = reader.i32()?;
        let last_zxid_seen = reader.i64()?;
        let timeout_ms = reader.i32()?;
        let session_id = reader.i64()?;
        let password = reader.buffer()?.unwrap_or_default();
        let knows_read_only = !reader.is_empty();
        if knows_read_only {
            reader.bool()?;
        }
        Ok(Self { last_zxid_seen, timeout_ms, session_id, password, knows_read_only })
    }
}

/// A numbered request of an established connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) xid: i32,
    pub(crate) request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Create {
    pub(crate) path: String,
    pub(crate) data: Option<Bytes>,
    pub(crate) acls: Vec<Acl>,
    /// `CreateMode` of the Java client: 0 to 6.
    pub(crate) mode: i32,
    /// Milliseconds; -1 where the operation has none.
    pub(crate) ttl_ms: i64,
    /// Whether the answer carries the new node's stat.
    pub(crate) wants_stat: bool,
}

/// An operation that changes the tree; a multi may contain all but the setting of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    Create(Create),
    Delete { path: String, version: i32 },
    SetData { path: String, data: Option<Bytes>, version: i32 },
    SetAcl { path: String, acls: Vec<Acl>, version: i32 },
    Check { path: String, version: i32 },
}

/// An operation that a multi-read may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    Data { path: String, watch: bool },
    Children { path: String, watch: bool },
}

/// Watches of a client before it reconnected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SetWatches {
    /// Everything after this transaction is news to the client.
    pub(crate) relative_zxid: i64,
    pub(crate) data: Vec<String>,
    pub(crate) exist: Vec<String>,
    pub(crate) child: Vec<String>,
    pub(crate) persistent: Vec<String>,
    pub(crate) persistent_recursive: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatcherKind {
    Children,
    Data,
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Write(Write),
    Multi(Vec<Write>),
    Read(Read),
    ChildrenWithStat {
        path: String,
        watch: bool,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetAcl {
        path: String,
    },
    MultiRead(Vec<Read>),
    Sync {
        path: String,
    },
    Ping,
    Ephemerals {
        prefix: String,
    },
    AllChildrenNumber {
        path: String,
    },
    AddWatch {
        path: String,
        recursive: bool,
    },
    SetWatches(SetWatches),
    CheckWatches {
        path: String,
        kind: WatcherKind,
    },
    RemoveWatches {
        path: String,
        kind: WatcherKind,
    },
    Auth {
        scheme: String,
        credential: Bytes,
    },
    WhoAmI,
    Reconfigure,
    Sasl,
    CloseSession,
    /// An operation code that is not of this protocol: answered, then the connection closes.
    Unknown,
    /// A known operation with a body that is not its own, or an argument that does not exist.
    Malformed,
}

impl Envelope {
    /// Fails only when even the header is incomplete; the connection is closed then.
    pub(crate) fn decode(frame: Bytes) -> Decoded<Self> {
        let mut reader = Reader::new(frame);
        let xid = reader.i32()?;
        let operation = reader.i32()?;
        let request = Request::decode(operation, &mut reader).unwrap_or(Request::Malformed);
        Ok(Self { xid, request })
    }
}

impl Request {
    fn decode(operation: i32, reader: &mut Reader) -> Decoded<Self> {
        let request = match operation {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                Self::Write(decode_write(operation, reader)?)
            }
            op::DELETE | op::SET_DATA | op::CHECK => Self::Write(decode_write(operation, reader)?),
            op::EXISTS => Self::Exists { path: reader.string()?, watch: reader.bool()? },
            op::GET_DATA | op::GET_CHILDREN => Self::Read(decode_read(operation, reader)?),
            op::GET_CHILDREN2 => Self::ChildrenWithStat { path: reader.string()?, watch: reader.bool()? },
            op::GET_ACL => Self::GetAcl { path: reader.string()? },
            op::SET_ACL => Self::Write(Write::SetAcl {
                path: reader.string()?,
                acls: read_acls(reader)?,
                version: reader.i32()?,
            }),
            op::SYNC => Self::Sync { path: reader.string()? },
            op::PING => Self::Ping,
            op::MULTI => Self::Multi(decode_multi(reader, decode_write)?),
            op::MULTI_READ => Self::MultiRead(decode_multi(reader, decode_read)?),
            op::RECONFIG => Self::Reconfigure,
            op::CHECK_WATCHES => watcher_request(reader, |path, kind| Self::CheckWatches { path, kind })?,
            op::REMOVE_WATCHES => watcher_request(reader, |path, kind| Self::RemoveWatches { path, kind })?,
            op::AUTH => {
                let _type = reader.i32()?;
                Self::Auth { scheme: reader.string()?, credential: reader.buffer()?.unwrap_or_default() }
            }
            op::SET_WATCHES => Self::SetWatches(decode_set_watches(reader, false)?),
            op::SET_WATCHES2 => Self::SetWatches(decode_set_watches(reader, true)?),
            op::SASL => Self::Sasl,
            op::GET_EPHEMERALS => Self::Ephemerals { prefix: reader.string()? },
            op::GET_ALL_CHILDREN_NUMBER => Self::AllChildrenNumber { path: reader.string()? },
            op::ADD_WATCH => {
                let path = reader.string()?;
                match reader.i32()? {
                    0 => Self::AddWatch { path, recursive: false },
                    1 => Self::AddWatch { path, recursive: true },
                    _ => return Err(Malformed("unknown mode of a watch")),
                }
            }
            op::WHO_AM_I => Self::WhoAmI,
            op::CLOSE_SESSION => Self::CloseSession,
            _ => Self::Unknown,
        };
        Ok(request)
    }
}

fn watcher_request(reader: &mut Reader, build: impl Fn(String, WatcherKind) -> Request) -> Decoded<Request> {
    let path = reader.string()?;
    let kind = match reader.i32()? {
        1 => WatcherKind::Children,
        2 => WatcherKind::Data,
        3 => WatcherKind::Any,
        _ => return Err(Malformed("unknown kind of watcher")),
    };
    Ok(build(path, kind))
}

fn decode_write(operation: i32, reader: &mut Reader) -> Decoded<Write> {
    let write = match operation {
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => Write::Create(Create {
            path: reader.string()?,
            data: reader.buffer()?,
            acls: read_acls(reader)?,
            mode: reader.i32()?,
            ttl_ms: if operation == op::CREATE_TTL { reader.i64()? } else { -1 },
            wants_stat: operation != op::CREATE,
        }),
        op::DELETE => Write::Delete { path: reader.string()?, version: reader.i32()? },
        op::SET_DATA => {
            Write::SetData { path: reader.string()?, data: reader.buffer()?, version: reader.i32()? }
        }
        op::CHECK => Write::Check { path: reader.string()?, version: reader.i32()? },
        _ => return Err(Malformed("not an operation that a multi may contain")),
    };
    Ok(write)
}

fn decode_read(operation: i32, reader: &mut Reader) -> Decoded<Read> {
    let path = reader.string()?;
    let watch = reader.bool()?;
    match operation {
        op::GET_DATA => Ok(Read::Data { path, watch }),
        op::GET_CHILDREN => Ok(Read::Children { path, watch }),
        _ => Err(Malformed("not an operation that a multi-read may contain")),
    }
}

/// Headers (type, done, error) and bodies in turn, up to the header that says "done".
fn decode_multi<T>(reader: &mut Reader, element: impl Fn(i32, &mut Reader) -> Decoded<T>) -> Decoded<Vec<T>> {
    let mut elements = Vec::new();
    loop {
        let operation = reader.i32()?;
        let done = reader.bool()?;
        let _error = reader.i32()?;
        if done {
            return Ok(elements);
        }
        elements.push(element(operation, reader)?);
    }
}

fn decode_set_watches(reader: &mut Reader, with_persistent: bool) -> Decoded<SetWatches> {
    let mut watches = SetWatches {
        relative_zxid: reader.i64()?,
        data: reader.strings()?,
        exist: reader.strings()?,
        child: reader.strings()?,
        ..SetWatches::default()
    };
    if with_persistent {
        watches.persistent = reader.strings()?;
        watches.persistent_recursive = reader.strings()?;
    }
    Ok(watches)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(operation in -12i32..110, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = vec![0, 0, 0, 1];
            frame.extend_from_slice(&operation.to_be_bytes());
            frame.extend_from_slice(&body);
            let _ = Envelope::decode(frame.into());
            let _ = ConnectRequest::decode(body.into());
        }
    }

    #[test]
    fn a_body_cut_short_is_answerable_and_a_header_cut_short_is_not() {
        let body_cut = Bytes::from_static(&[0, 0, 0, 7, 0, 0, 0, 4, 0, 0]);
        assert_eq!(Envelope::decode(body_cut), Ok(Envelope { xid: 7, request: Request::Malformed }));
        assert!(Envelope::decode(Bytes::from_static(&[0, 0, 0, 7])).is_err());
    }
}
