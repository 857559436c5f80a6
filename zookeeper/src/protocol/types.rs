//! Values that requests and replies share.

use std::sync::Arc;

use super::jute::{Decoded, Reader, Writer};

/// Bits of an access control entry.
pub(crate) mod permission {
    pub(crate) const READ: i32 = 1;
    pub(crate) const WRITE: i32 = 2;
    pub(crate) const CREATE: i32 = 4;
    pub(crate) const DELETE: i32 = 8;
    pub(crate) const ADMIN: i32 = 16;
    pub(crate) const ALL: i32 = 31;
}

/// Who somebody is: `world:anyone`, `ip:127.0.0.1`, `digest:user:hash`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) scheme: String,
    pub(crate) id: String,
}

/// One access control entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) permissions: i32,
    pub(crate) identity: Identity,
}

/// The entries of a node, shared because nearly all nodes have the same ones.
pub(crate) type AclList = Arc<[Acl]>;

pub(crate) fn read_acls(reader: &mut Reader) -> Decoded<Vec<Acl>> {
    reader.vector(|reader| {
        Ok(Acl {
            permissions: reader.i32()?,
            identity: Identity { scheme: reader.string()?, id: reader.string()? },
        })
    })
}

pub(crate) fn write_acls(writer: &mut Writer, acls: &[Acl]) {
    writer.length(acls.len());
    for acl in acls {
        writer.i32(acl.permissions);
        writer.string(&acl.identity.scheme);
        writer.string(&acl.identity.id);
    }
}

/// What the protocol tells about a node. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    pub(crate) ephemeral_owner: i64,
    pub(crate) data_length: i32,
    pub(crate) num_children: i32,
    pub(crate) pzxid: i64,
}

impl Stat {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.i64(self.czxid);
        writer.i64(self.mzxid);
        writer.i64(self.ctime);
        writer.i64(self.mtime);
        writer.i32(self.version);
        writer.i32(self.cversion);
        writer.i32(self.aversion);
        writer.i64(self.ephemeral_owner);
        writer.i32(self.data_length);
        writer.i32(self.num_children);
        writer.i64(self.pzxid);
    }
}
