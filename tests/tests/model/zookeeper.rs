//! ZooKeeper as the model sees it: multis, versions, zxids, sessions, one set of changed paths for each watcher, and the
//! states before the last writes, which a server that lags still shows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use zurau_common::zk::op::{Lifetime, MultiError, Node, Op, OpFailure, OpResult};
use zurau_common::zk::znode::PERSISTENT_PARENTS;

use crate::part::Part;

/// Writes that a server may lag behind.
pub(crate) const PAST_MAX: usize = 4;

type Nodes = BTreeMap<String, Node>;

#[derive(Debug, Clone)]
pub(crate) struct ZooKeeper {
    nodes: Part<Nodes>,
    /// Before the last writes, the oldest first.
    past: VecDeque<Part<Nodes>>,
    zxid: i64,
    /// The last write of each part of the tree, where parts count by themselves.
    zxid_of_part: Option<BTreeMap<String, i64>>,
    sessions: BTreeSet<i64>,
    next_session: i64,
    /// Changed paths that each watcher has not heard of.
    pub(crate) dirty: Vec<BTreeSet<String>>,
}

impl ZooKeeper {
    pub(crate) fn new(watchers: usize) -> Self {
        let mut zookeeper = Self {
            nodes: Nodes::new().into(),
            past: VecDeque::new(),
            zxid: 0,
            zxid_of_part: None,
            sessions: BTreeSet::new(),
            next_session: 100,
            dirty: vec![BTreeSet::new(); watchers],
        };
        for parent in PERSISTENT_PARENTS {
            zookeeper.put(parent, b"");
        }
        zookeeper
    }

    /// From now on the topics, each broker and everything else have a zxid of their own: nobody compares those of two parts,
    /// so that writes in two of them lead to one state, whichever comes first.
    pub(crate) fn count_by_parts(&mut self) {
        self.zxid_of_part = Some(BTreeMap::new());
    }

    pub(crate) fn open_session(&mut self) -> i64 {
        self.next_session += 1;
        self.sessions.insert(self.next_session);
        self.next_session
    }

    pub(crate) fn is_live(&self, session: i64) -> bool {
        self.sessions.contains(&session)
    }

    pub(crate) fn end_session(&mut self, session: i64) {
        if !self.sessions.remove(&session) {
            return;
        }
        let owned = self.nodes.iter().filter(|(_, node)| node.ephemeral_owner == session);
        let deletions: Vec<Op> =
            owned.map(|(path, _)| Op::Delete { path: path.clone(), version: None }).collect();
        self.multi(&deletions, 0).expect("ephemerals have no children");
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.get(path)?.data).into_owned())
    }

    /// As a server shows them that has not heard of the last `age` writes.
    pub(crate) fn get_many(&self, paths: &[String], age: usize) -> Vec<Option<Node>> {
        let at = self.past.len().checked_sub(age).and_then(|at| self.past.get(at));
        let nodes = at.unwrap_or(&self.nodes);
        paths.iter().map(|path| nodes.get(path).cloned()).collect()
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&String, &Node)> {
        self.nodes.iter()
    }

    pub(crate) fn below(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        self.nodes.keys().filter(|other| *other == path || other.starts_with(&below)).cloned().collect()
    }

    /// Another ensemble, with a copy of what is persistent: versions begin anew, and nobody has a session.
    pub(crate) fn begin_anew(&mut self) {
        self.zxid = 1;
        let copy = |(path, node): (&String, &Node)| {
            let node = Node { version: 0, czxid: 1, mzxid: 1, ..node.clone() };
            (node.ephemeral_owner == 0).then(|| (path.clone(), node))
        };
        self.nodes = self.nodes.iter().filter_map(copy).collect::<Nodes>().into();
        self.past.clear();
        self.sessions.clear();
    }

    /// An admin's write, parents included.
    pub(crate) fn put(&mut self, path: &str, data: &[u8]) {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        for end in 1..parts.len() {
            let parent = format!("/{}", parts[..end].join("/"));
            if self.get(&parent).is_none() {
                self.put(&parent, b"");
            }
        }
        let (exists, path, data) = (self.get(path).is_some(), path.to_owned(), data.to_vec());
        let op = match exists {
            true => Op::SetData { path, data, version: None },
            false => Op::Create { path, data, lifetime: Lifetime::Persistent },
        };
        self.multi(&[op], 0).expect("an unconditional write");
    }

    /// An admin's removal, with everything below.
    pub(crate) fn remove(&mut self, path: &str) {
        for path in self.below(path).into_iter().rev() {
            self.multi(&[Op::Delete { path, version: None }], 0).expect("leaves go first");
        }
    }

    /// `with_past`: what a server that lags may show belongs to it. `hears`: whether a watcher will ever hear of what is
    /// dirty; one that takes office reads everything.
    pub(crate) fn hash(&self, hasher: &mut impl Hasher, with_past: bool, hears: impl Fn(usize) -> bool) {
        (self.nodes.fingerprint(), &self.sessions, self.next_session).hash(hasher);
        match &self.zxid_of_part {
            None => self.zxid.hash(hasher),
            Some(zxids) => zxids.hash(hasher),
        }
        for (_, dirty) in self.dirty.iter().enumerate().filter(|(watcher, _)| hears(*watcher)) {
            dirty.hash(hasher);
        }
        if with_past {
            self.past.iter().for_each(|past| past.fingerprint().hash(hasher));
        }
    }

    /// Of a write to that path, which is the next one of all, or of its part.
    fn zxid_of(&self, path: &str, next: i64) -> i64 {
        let Some(zxids) = &self.zxid_of_part else { return next };
        zxids.get(&part_of(path)).copied().unwrap_or(BEFORE_PARTS) + 1
    }

    /// All or nothing, under one zxid. Session 0 is an admin's.
    pub(crate) fn multi(&mut self, ops: &[Op], session: i64) -> Result<Vec<OpResult>, MultiError> {
        if session != 0 && !self.is_live(session) {
            return Err(MultiError::SessionEnded);
        }
        let mut nodes = Nodes::clone(&self.nodes);
        let mut changed = BTreeSet::new();
        let zxid = self.zxid + 1;
        let mut results = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let zxid = self.zxid_of(op.path(), zxid);
            match one(&mut nodes, &mut changed, (zxid, session), op) {
                Ok(result) => results.push(result),
                Err(reason) => {
                    return Err(MultiError::Failed { index, path: op.path().to_owned(), reason });
                }
            }
        }
        self.zxid = zxid;
        if let Some(zxids) = &mut self.zxid_of_part {
            let parts: BTreeSet<String> = changed.iter().map(|path| part_of(path)).collect();
            parts.into_iter().for_each(|part| *zxids.entry(part).or_insert(BEFORE_PARTS) += 1);
        }
        self.past.push_back(std::mem::replace(&mut self.nodes, nodes.into()));
        if self.past.len() > PAST_MAX {
            self.past.pop_front();
        }
        for dirty in &mut self.dirty {
            dirty.extend(changed.iter().cloned());
        }
        Ok(results)
    }
}

/// Above every zxid of the time before parts counted by themselves.
const BEFORE_PARTS: i64 = 1_000;

/// `/brokers/topics` and what belongs to topics, each broker by its id, and the rest.
fn part_of(path: &str) -> String {
    let mut names = path.trim_start_matches('/').split('/');
    let part = match (names.next(), names.next(), names.next()) {
        (Some("brokers"), Some("ids" | "epochs" | "endpoints"), Some(id))
        | (Some("leases"), Some(id), None) => id,
        (Some("brokers"), ..) => "topics",
        _ => "rest",
    };
    part.to_owned()
}

fn one(
    nodes: &mut Nodes,
    changed: &mut BTreeSet<String>,
    (zxid, session): (i64, i64),
    op: &Op,
) -> Result<OpResult, OpFailure> {
    // To ZooKeeper -1 means any version (F12).
    let fits = |node: &Node, version: Option<i32>| version.is_none_or(|v| v == -1 || v == node.version);
    let found = nodes.get_mut(op.path());
    match (op, found) {
        (Op::CheckExists { .. }, Some(_)) | (Op::CheckAbsent { .. }, None) => Ok(OpResult::Checked),
        (Op::CheckVersion { version, .. }, Some(node)) if fits(node, Some(*version)) => Ok(OpResult::Checked),
        (Op::Create { path, data, lifetime }, None) => {
            let ephemeral_owner = if *lifetime == Lifetime::Ephemeral { session } else { 0 };
            let node = Node { data: data.clone(), version: 0, czxid: zxid, mzxid: zxid, ephemeral_owner };
            nodes.insert(path.clone(), node);
            changed.insert(path.clone());
            Ok(OpResult::Created)
        }
        (Op::SetData { path, data, version }, Some(node)) if fits(node, *version) => {
            node.data.clone_from(data);
            node.version += 1;
            node.mzxid = zxid;
            changed.insert(path.clone());
            Ok(OpResult::Set { version: node.version, mzxid: zxid })
        }
        (Op::Delete { path, version }, Some(node)) if fits(node, *version) => {
            let below = format!("{path}/");
            let child = nodes.range(below.clone()..).next();
            if child.is_some_and(|(other, _)| other.starts_with(&below)) {
                return Err(OpFailure::NotEmpty);
            }
            nodes.remove(path);
            changed.insert(path.clone());
            Ok(OpResult::Deleted)
        }
        (Op::CheckAbsent { .. } | Op::Create { .. }, Some(_)) => Err(OpFailure::NodeExists),
        (_, None) => Err(OpFailure::NoNode),
        (_, Some(_)) => Err(OpFailure::BadVersion),
    }
}
