//! The tree of nodes: lookups, and changes that can be undone. It checks nothing; callers validate
//! first (see `writes`), and a change that does not fit is a bug here and not a client's error.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use super::access;
use super::change::Stamp;
use super::path;
use crate::protocol::types::{AclList, Stat};

/// `owner` of a container.
pub(crate) const CONTAINER_OWNER: i64 = i64::MIN;
/// High byte of the `owner` of a node with a time to live; the low 40 bits hold it.
const TTL_OWNER: i64 = 0xff << 56;
/// Largest time to live, in milliseconds.
pub(crate) const TTL_MAX_MS: i64 = 0x00ff_ffff_ffff;

/// What the owner field of a node says about its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Persistent,
    Ephemeral(i64),
    Container,
    TimeToLive(i64),
}

impl Lifetime {
    pub(crate) fn owner(self) -> i64 {
        match self {
            Self::Persistent => 0,
            Self::Ephemeral(session) => session,
            Self::Container => CONTAINER_OWNER,
            Self::TimeToLive(ttl_ms) => TTL_OWNER | ttl_ms,
        }
    }

    pub(crate) fn of_owner(owner: i64) -> Self {
        match owner {
            0 => Self::Persistent,
            CONTAINER_OWNER => Self::Container,
            owner if (owner & TTL_OWNER) == TTL_OWNER => Self::TimeToLive(owner & TTL_MAX_MS),
            session => Self::Ephemeral(session),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) data: Option<Bytes>,
    pub(crate) acls: AclList,
    pub(crate) children: BTreeSet<String>,
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    /// Number of children ever created; the source of sequence numbers.
    pub(crate) creations: i32,
    pub(crate) pzxid: i64,
    pub(crate) owner: i64,
}

impl Node {
    pub(crate) fn lifetime(&self) -> Lifetime {
        Lifetime::of_owner(self.owner)
    }

    pub(crate) fn stat(&self) -> Stat {
        let count = |length: usize| i32::try_from(length).unwrap_or(i32::MAX);
        let num_children = count(self.children.len());
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Clients are told creations plus deletions; each creation without a child left was
            // followed by a deletion.
            cversion: self.creations.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.aversion,
            // What marks containers and times to live is the server's own affair.
            ephemeral_owner: match self.lifetime() {
                Lifetime::Ephemeral(session) => session,
                Lifetime::Persistent | Lifetime::Container | Lifetime::TimeToLive(_) => 0,
            },
            data_length: count(self.data.as_ref().map_or(0, Bytes::len)),
            num_children,
            pzxid: self.pzxid,
        }
    }

    fn new(data: Option<Bytes>, acls: AclList, owner: i64, stamp: Stamp) -> Self {
        let Stamp { zxid, time_ms } = stamp;
        Self {
            data,
            acls,
            children: BTreeSet::new(),
            czxid: zxid,
            mzxid: zxid,
            ctime: time_ms,
            mtime: time_ms,
            version: 0,
            aversion: 0,
            creations: 0,
            pzxid: zxid,
            owner,
        }
    }
}

/// What takes a change back. To be applied in the reverse order of the changes.
#[derive(Debug)]
pub(crate) enum Undo {
    Uncreate { path: String, parent_pzxid: i64, parent_creations: i32 },
    Undelete { path: String, node: Node, parent_pzxid: i64 },
    RestoreData { path: String, data: Option<Bytes>, version: i32, mzxid: i64, mtime: i64 },
}

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<String, Node>,
    /// Paths per owning session.
    ephemerals: BTreeMap<i64, BTreeSet<String>>,
    /// Containers and nodes with a time to live: the only ones that may go by themselves.
    perishable: BTreeSet<String>,
}

impl Tree {
    /// An empty tree: the root and ZooKeeper's own nodes, which no count of children includes.
    pub(crate) fn new() -> Self {
        let mut tree = Self::without_nodes();
        let stamp = Stamp { zxid: 0, time_ms: 0 };
        for (path, child) in [
            ("/", Some("zookeeper")),
            ("/zookeeper", Some("quota")),
            ("/zookeeper/quota", None),
            ("/zookeeper/config", None),
        ] {
            let mut node = Node::new(Some(Bytes::new()), access::open_to_all(), 0, stamp);
            node.children.extend(child.map(str::to_owned));
            tree.nodes.insert(path.to_owned(), node);
        }
        tree.node_mut("/zookeeper").children.insert("config".to_owned());
        tree
    }

    /// The start of a tree read from a snapshot, which brings all nodes, the root included.
    pub(crate) fn without_nodes() -> Self {
        Self { nodes: HashMap::new(), ephemerals: BTreeMap::new(), perishable: BTreeSet::new() }
    }

    pub(crate) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// Approximate size of paths and data, in bytes.
    pub(crate) fn data_size(&self) -> usize {
        self.nodes.iter().map(|(path, node)| path.len() + node.data.as_ref().map_or(0, Bytes::len)).sum()
    }

    /// Paths of the session's ephemeral nodes, in order.
    pub(crate) fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &str> {
        self.ephemerals.get(&session).into_iter().flatten().map(String::as_str)
    }

    pub(crate) fn perishable(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.perishable.iter().map(|path| (path.as_str(), &self.nodes[path]))
    }

    /// Number of nodes below `path`.
    pub(crate) fn descendants(&self, path: &str) -> usize {
        if path == "/" {
            return self.nodes.len() - 1;
        }
        let mut count = 0;
        let mut pending = vec![path.to_owned()];
        while let Some(here) = pending.pop() {
            if let Some(node) = self.nodes.get(&here) {
                count += node.children.len();
                pending.extend(node.children.iter().map(|name| path::join(&here, name)));
            }
        }
        count
    }

    fn node_mut(&mut self, path: &str) -> &mut Node {
        self.nodes.get_mut(path).expect("changes are validated against the tree before")
    }

    /// Inserts a node as it is, for snapshots.
    pub(crate) fn restore(&mut self, path: String, node: Node) {
        self.index(&path, node.lifetime());
        self.nodes.insert(path, node);
    }

    /// Enters a restored node into its parent; the creations are restored with the parent.
    pub(crate) fn link_to_parent(&mut self, path: &str) {
        if path != "/"
            && let Some((parent, name)) = path::split(path)
            && let Some(parent) = self.nodes.get_mut(parent)
        {
            parent.children.insert(name.to_owned());
        }
    }

    fn index(&mut self, path: &str, lifetime: Lifetime) {
        match lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => {
                self.ephemerals.entry(session).or_default().insert(path.to_owned());
            }
            Lifetime::Container | Lifetime::TimeToLive(_) => {
                self.perishable.insert(path.to_owned());
            }
        }
    }

    fn unindex(&mut self, path: &str, lifetime: Lifetime) {
        match lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => {
                if let Some(paths) = self.ephemerals.get_mut(&session) {
                    paths.remove(path);
                    if paths.is_empty() {
                        self.ephemerals.remove(&session);
                    }
                }
            }
            Lifetime::Container | Lifetime::TimeToLive(_) => {
                self.perishable.remove(path);
            }
        }
    }

    pub(crate) fn create(
        &mut self,
        path: &str,
        data: Option<Bytes>,
        acls: AclList,
        owner: i64,
        stamp: Stamp,
    ) -> Undo {
        let (parent, name) = path::split(path).expect("validated paths have a parent");
        let parent = self.node_mut(parent);
        let undo = Undo::Uncreate {
            path: path.to_owned(),
            parent_pzxid: parent.pzxid,
            parent_creations: parent.creations,
        };
        parent.children.insert(name.to_owned());
        parent.creations = parent.creations.wrapping_add(1);
        parent.pzxid = stamp.zxid;
        self.restore(path.to_owned(), Node::new(data, acls, owner, stamp));
        undo
    }

    pub(crate) fn delete(&mut self, path: &str, stamp: Stamp) -> Undo {
        let node = self.nodes.remove(path).expect("changes are validated against the tree before");
        self.unindex(path, node.lifetime());
        let (parent, name) = path::split(path).expect("validated paths have a parent");
        let parent = self.node_mut(parent);
        parent.children.remove(name);
        let parent_pzxid = std::mem::replace(&mut parent.pzxid, stamp.zxid);
        Undo::Undelete { path: path.to_owned(), node, parent_pzxid }
    }

    pub(crate) fn set_data(&mut self, path: &str, data: Option<Bytes>, stamp: Stamp) -> Undo {
        let node = self.node_mut(path);
        let undo = Undo::RestoreData {
            path: path.to_owned(),
            data: std::mem::replace(&mut node.data, data),
            version: node.version,
            mzxid: node.mzxid,
            mtime: node.mtime,
        };
        node.version = node.version.wrapping_add(1);
        node.mzxid = stamp.zxid;
        node.mtime = stamp.time_ms;
        undo
    }

    pub(crate) fn set_acls(&mut self, path: &str, acls: AclList) {
        let node = self.node_mut(path);
        node.acls = acls;
        node.aversion = node.aversion.wrapping_add(1);
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Uncreate { path, parent_pzxid, parent_creations } => {
                let node = self.nodes.remove(&path).expect("undo follows the change it takes back");
                self.unindex(&path, node.lifetime());
                let (parent, name) = path::split(&path).expect("validated paths have a parent");
                let parent = self.node_mut(parent);
                parent.children.remove(name);
                parent.pzxid = parent_pzxid;
                parent.creations = parent_creations;
            }
            Undo::Undelete { path, node, parent_pzxid } => {
                let (parent, name) = path::split(&path).expect("validated paths have a parent");
                let parent = self.node_mut(parent);
                parent.children.insert(name.to_owned());
                parent.pzxid = parent_pzxid;
                self.restore(path, node);
            }
            Undo::RestoreData { path, data, version, mzxid, mtime } => {
                let node = self.node_mut(&path);
                (node.data, node.version, node.mzxid, node.mtime) = (data, version, mzxid, mtime);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Image = (BTreeMap<String, Node>, BTreeMap<i64, BTreeSet<String>>, BTreeSet<String>);

    fn image(tree: &Tree) -> Image {
        let nodes = tree.nodes().map(|(path, node)| (path.to_owned(), node.clone())).collect();
        (nodes, tree.ephemerals.clone(), tree.perishable.clone())
    }

    /// Applies whatever of the wished change is possible.
    fn attempt(tree: &mut Tree, kind: u8, path: &str, zxid: i64) -> Option<Undo> {
        let stamp = Stamp { zxid, time_ms: zxid * 10 };
        let (parent, _) = path::split(path).unwrap();
        let exists = tree.node(path).is_some();
        match kind {
            0..=3 if !exists && tree.node(parent).is_some() => {
                let owner = [0, 5, CONTAINER_OWNER, Lifetime::TimeToLive(9).owner()][usize::from(kind)];
                Some(tree.create(path, None, access::open_to_all(), owner, stamp))
            }
            4 if exists && tree.node(path).unwrap().children.is_empty() => Some(tree.delete(path, stamp)),
            5 if exists => Some(tree.set_data(path, Some(Bytes::from(vec![1; 3])), stamp)),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn undoing_everything_gives_the_tree_before(steps in proptest::collection::vec((0u8..6, 0usize..6), 1..60), keep in 0usize..20) {
            let paths = ["/a", "/b", "/a/c", "/a/d", "/a/c/e", "/b/f"];
            let mut tree = Tree::new();
            let mut before = image(&tree);
            let mut undos = Vec::new();
            for (index, (kind, path)) in steps.into_iter().enumerate() {
                if index == keep {
                    undos.clear();
                    before = image(&tree);
                }
                undos.extend(attempt(&mut tree, kind, paths[path], index as i64 + 1));
            }
            while let Some(undo) = undos.pop() {
                tree.undo(undo);
            }
            prop_assert_eq!(image(&tree), before);
        }
    }

    #[test]
    fn children_are_counted_as_the_protocol_wants() {
        let mut tree = Tree::new();
        assert_eq!(tree.node("/").unwrap().stat().cversion, -1);
        let stamp = |zxid| Stamp { zxid, time_ms: 0 };
        tree.create("/a", None, access::open_to_all(), 0, stamp(1));
        tree.create("/a/x", None, access::open_to_all(), 0, stamp(2));
        tree.create("/a/y", None, access::open_to_all(), 0, stamp(3));
        tree.delete("/a/x", stamp(4));
        let stat = tree.node("/a").unwrap().stat();
        assert_eq!((stat.cversion, stat.num_children, stat.pzxid, stat.mzxid), (3, 1, 4, 1));
        assert_eq!(tree.descendants("/a"), 1);
    }
}
