//! ZooKeeper as a map: multis with checks, versions, zxids and sessions, and a list of what changed.

use std::collections::{BTreeMap, BTreeSet};

use zurau_common::zk::op::{Lifetime, Node, Op, OpFailure, OpResult};

#[derive(Debug, Clone, Default)]
pub(super) struct FakeZooKeeper {
    nodes: BTreeMap<String, Node>,
    zxid: i64,
    /// Paths changed since the watcher last looked.
    pub(super) dirty: BTreeSet<String>,
}

impl FakeZooKeeper {
    pub(super) fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.get(path)?.data).into_owned())
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    pub(super) fn below(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        self.nodes.keys().filter(|other| *other == path || other.starts_with(&below)).cloned().collect()
    }

    /// An admin's or broker's write, parents included.
    pub(super) fn put(&mut self, path: &str, data: &str, session: i64) {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        for end in 1..parts.len() {
            let parent = format!("/{}", parts[..end].join("/"));
            if self.get(&parent).is_none() {
                self.put(&parent, "", 0);
            }
        }
        let (path, data) = (path.to_owned(), data.as_bytes().to_vec());
        let op = match self.get(&path) {
            Some(_) => Op::SetData { path, data, version: None },
            None if session == 0 => Op::Create { path, data, lifetime: Lifetime::Persistent },
            None => Op::Create { path, data, lifetime: Lifetime::Ephemeral },
        };
        self.multi(&[op], session).expect("an unconditional write");
    }

    pub(super) fn remove(&mut self, path: &str) {
        for path in self.below(path).into_iter().rev() {
            self.multi(&[Op::Delete { path, version: None }], 0).expect("leaves go first");
        }
    }

    pub(super) fn end_session(&mut self, session: i64) {
        let owned: Vec<Op> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.ephemeral_owner == session)
            .map(|(path, _)| Op::Delete { path: path.clone(), version: None })
            .collect();
        self.multi(&owned, 0).expect("ephemerals have no children");
    }

    /// All or nothing, under one zxid.
    pub(super) fn multi(&mut self, ops: &[Op], session: i64) -> Result<Vec<OpResult>, String> {
        let (nodes, dirty) = (self.nodes.clone(), self.dirty.clone());
        self.zxid += 1;
        let results: Result<Vec<OpResult>, String> = ops
            .iter()
            .map(|op| self.one(op, session).map_err(|reason| format!("{} {reason:?}", op.path())))
            .collect();
        if results.is_err() {
            (self.nodes, self.dirty) = (nodes, dirty);
        }
        results
    }

    fn one(&mut self, op: &Op, session: i64) -> Result<OpResult, OpFailure> {
        let found = self.nodes.get_mut(op.path());
        match (op, found) {
            (Op::CheckExists { .. }, Some(_)) | (Op::CheckAbsent { .. }, None) => Ok(OpResult::Checked),
            (Op::CheckVersion { version, .. }, Some(node)) if node.version == *version => {
                Ok(OpResult::Checked)
            }
            (Op::Create { path, data, lifetime }, None) => {
                let ephemeral_owner = if *lifetime == Lifetime::Ephemeral { session } else { 0 };
                let (czxid, mzxid) = (self.zxid, self.zxid);
                let node = Node { data: data.clone(), version: 0, czxid, mzxid, ephemeral_owner };
                self.nodes.insert(path.clone(), node);
                self.dirty.insert(path.clone());
                Ok(OpResult::Created)
            }
            (Op::SetData { path, data, version }, Some(node))
                if version.is_none_or(|v| v == node.version) =>
            {
                node.data.clone_from(data);
                node.version += 1;
                node.mzxid = self.zxid;
                self.dirty.insert(path.clone());
                Ok(OpResult::Set { version: node.version, mzxid: self.zxid })
            }
            (Op::Delete { path, version }, Some(node)) if version.is_none_or(|v| v == node.version) => {
                let below = format!("{path}/");
                if self
                    .nodes
                    .range(below.clone()..)
                    .next()
                    .is_some_and(|(other, _)| other.starts_with(&below))
                {
                    return Err(OpFailure::NotEmpty);
                }
                self.nodes.remove(path);
                self.dirty.insert(path.clone());
                Ok(OpResult::Deleted)
            }
            (Op::CheckAbsent { .. } | Op::Create { .. }, Some(_)) => Err(OpFailure::NodeExists),
            (_, None) => Err(OpFailure::NoNode),
            (_, Some(_)) => Err(OpFailure::BadVersion),
        }
    }
}
