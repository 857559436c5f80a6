//! Changes: what a transaction does to the state, and nothing else. State is a fold over them, so
//! replaying a log gives the state that the live server had.

use bytes::Bytes;

use crate::protocol::jute::{Decoded, Malformed, Reader, Writer};
use crate::protocol::types::{AclList, read_acls, write_acls};

/// One validated step. Applying it cannot fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Create { path: String, data: Option<Bytes>, acls: AclList, owner: i64 },
    Delete { path: String },
    SetData { path: String, data: Option<Bytes> },
    SetAcls { path: String, acls: AclList },
    OpenSession { id: i64, timeout_ms: i32, password: [u8; 16] },
    CloseSession { id: i64 },
}

/// When changes happen: the transaction's number and its time in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) zxid: i64,
    pub(crate) time_ms: i64,
}

/// Changes that happen together or not at all. One without changes records that a number was
/// used up by a write that failed, since clients have seen that number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) stamp: Stamp,
    pub(crate) changes: Vec<Change>,
}

impl Transaction {
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.i64(self.stamp.zxid);
        writer.i64(self.stamp.time_ms);
        writer.length(self.changes.len());
        for change in &self.changes {
            change.write(&mut writer);
        }
        writer.into_payload()
    }

    pub(crate) fn decode(payload: Bytes) -> Decoded<Self> {
        let mut reader = Reader::new(payload);
        let stamp = Stamp { zxid: reader.i64()?, time_ms: reader.i64()? };
        let changes = reader.vector(Change::read)?;
        if !reader.is_empty() {
            return Err(Malformed("bytes after the last change of a transaction"));
        }
        Ok(Self { stamp, changes })
    }
}

impl Change {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Create { path, data, acls, owner } => {
                writer.i32(1);
                writer.string(path);
                writer.buffer(data.as_deref());
                write_acls(writer, acls);
                writer.i64(*owner);
            }
            Self::Delete { path } => {
                writer.i32(2);
                writer.string(path);
            }
            Self::SetData { path, data } => {
                writer.i32(3);
                writer.string(path);
                writer.buffer(data.as_deref());
            }
            Self::SetAcls { path, acls } => {
                writer.i32(4);
                writer.string(path);
                write_acls(writer, acls);
            }
            Self::OpenSession { id, timeout_ms, password } => {
                writer.i32(5);
                writer.i64(*id);
                writer.i32(*timeout_ms);
                writer.buffer(Some(password));
            }
            Self::CloseSession { id } => {
                writer.i32(6);
                writer.i64(*id);
            }
        }
    }

    fn read(reader: &mut Reader) -> Decoded<Self> {
        Ok(match reader.i32()? {
            1 => Self::Create {
                path: reader.string()?,
                data: reader.buffer()?,
                acls: read_acls(reader)?.into(),
                owner: reader.i64()?,
            },
            2 => Self::Delete { path: reader.string()? },
            3 => Self::SetData { path: reader.string()?, data: reader.buffer()? },
            4 => Self::SetAcls { path: reader.string()?, acls: read_acls(reader)?.into() },
            5 => Self::OpenSession {
                id: reader.i64()?,
                timeout_ms: reader.i32()?,
                password: read_password(reader)?,
            },
            6 => Self::CloseSession { id: reader.i64()? },
            _ => return Err(Malformed("unknown kind of change")),
        })
    }
}

pub(crate) fn read_password(reader: &mut Reader) -> Decoded<[u8; 16]> {
    let bytes = reader.buffer()?.unwrap_or_default();
    <[u8; 16]>::try_from(&bytes[..]).map_err(|_| Malformed("a session password is not 16 bytes long"))
}

#[cfg(test)]
mod tests {
    use super::super::access;
    use super::*;

    #[test]
    fn transactions_round_trip() {
        let acls = access::open_to_all();
        let path = "/a".to_owned();
        let data = Some(Bytes::from_static(b"x"));
        let transaction = Transaction {
            stamp: Stamp { zxid: 7, time_ms: 8 },
            changes: vec![
                Change::Create { path: path.clone(), data: None, acls: acls.clone(), owner: 9 },
                Change::SetData { path: path.clone(), data },
                Change::SetAcls { path: path.clone(), acls },
                Change::Delete { path },
                Change::OpenSession { id: 1, timeout_ms: 2, password: [3; 16] },
                Change::CloseSession { id: 1 },
            ],
        };
        let encoded = transaction.encode();
        assert_eq!(Transaction::decode(encoded.clone()), Ok(transaction));
        for cut in 0..encoded.len() {
            assert!(Transaction::decode(encoded.slice(..cut)).is_err());
        }
    }
}
