//! The whole state as a sequence of records, and back.

use bytes::Bytes;

use super::change::read_password;
use super::tree::{Node, Tree};
use super::{Core, Limits, Now};
use crate::protocol::jute::{Decoded, Malformed, Reader, Writer};
use crate::protocol::types::{read_acls, write_acls};

const RECORD_HEAD: i32 = 1;
const RECORD_SESSION: i32 = 2;
const RECORD_NODE: i32 = 3;
const RECORD_END: i32 = 4;

impl Core {
    /// Records of a snapshot at [`Core::zxid`]. The last one says how many there are, so that a
    /// file cut between two records is not taken for a whole one.
    pub(crate) fn to_snapshot(&self) -> Vec<Bytes> {
        let mut records = Vec::with_capacity(self.tree.node_count() + self.sessions.len() + 2);
        let mut head = Writer::new();
        head.i32(RECORD_HEAD);
        head.i64(self.zxid);
        records.push(head.into_payload());
        for (id, session) in self.sessions.iter() {
            let mut writer = Writer::new();
            writer.i32(RECORD_SESSION);
            writer.i64(id);
            writer.i32(session.timeout_ms);
            writer.buffer(Some(&session.password));
            records.push(writer.into_payload());
        }
        for (path, node) in self.tree.nodes() {
            records.push(encode_node(path, node));
        }
        let mut end = Writer::new();
        end.i32(RECORD_END);
        end.i64(records.len() as i64);
        records.push(end.into_payload());
        records
    }

    pub(crate) fn from_snapshot(records: Vec<Bytes>, limits: Limits, now: Now) -> Decoded<Self> {
        let mut core = Self::new(limits, now);
        core.tree = Tree::without_nodes();
        let last = records.len().checked_sub(1).ok_or(Malformed("a snapshot without records"))?;
        for (index, record) in records.into_iter().enumerate() {
            let mut reader = Reader::new(record);
            match reader.i32()? {
                RECORD_HEAD => core.zxid = reader.i64()?,
                RECORD_SESSION => {
                    let (id, timeout_ms) = (reader.i64()?, reader.i32()?);
                    core.sessions.open(id, timeout_ms, read_password(&mut reader)?, now.monotonic_ms);
                }
                RECORD_NODE => {
                    let (path, node) = decode_node(&mut reader)?;
                    core.tree.restore(path, node);
                }
                RECORD_END if index == last && reader.i64()? == last as i64 => {
                    core.link_children();
                    return Ok(core);
                }
                _ => return Err(Malformed("an unexpected record in a snapshot")),
            }
        }
        Err(Malformed("a snapshot without its last record"))
    }

    /// Children are not stored: the paths tell them.
    fn link_children(&mut self) {
        let paths: Vec<String> = self.tree.nodes().map(|(path, _)| path.to_owned()).collect();
        for path in paths {
            self.tree.link_to_parent(&path);
        }
    }
}

fn encode_node(path: &str, node: &Node) -> Bytes {
    let mut writer = Writer::new();
    writer.i32(RECORD_NODE);
    writer.string(path);
    writer.buffer(node.data.as_deref());
    write_acls(&mut writer, &node.acls);
    for number in [node.czxid, node.mzxid, node.ctime, node.mtime, node.pzxid, node.owner] {
        writer.i64(number);
    }
    for number in [node.version, node.aversion, node.creations] {
        writer.i32(number);
    }
    writer.into_payload()
}

fn decode_node(reader: &mut Reader) -> Decoded<(String, Node)> {
    let path = reader.string()?;
    let node = Node {
        data: reader.buffer()?,
        acls: read_acls(reader)?.into(),
        children: std::collections::BTreeSet::new(),
        czxid: reader.i64()?,
        mzxid: reader.i64()?,
        ctime: reader.i64()?,
        mtime: reader.i64()?,
        pzxid: reader.i64()?,
        owner: reader.i64()?,
        version: reader.i32()?,
        aversion: reader.i32()?,
        creations: reader.i32()?,
    };
    Ok((path, node))
}
