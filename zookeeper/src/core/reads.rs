//! Reads and watches, including what a client missed while it was away.

use super::watches::WatchMode;
use super::{ConnectionId, Core, Effects, access, send_event};
use crate::protocol::code::{ErrorCode, EventType};
use crate::protocol::reply::{Body, Outcome};
use crate::protocol::request::{Read, SetWatches, WatcherKind};
use crate::protocol::types::{Stat, permission};

impl Core {
    fn readable(&self, connection: ConnectionId, path: &str) -> Result<&super::tree::Node, ErrorCode> {
        let node = self.tree.node(path).ok_or(ErrorCode::NoNode)?;
        access::check(&node.acls, permission::READ, self.identities(connection))?;
        Ok(node)
    }

    pub(super) fn read(&mut self, connection: ConnectionId, read: Read) -> Result<Outcome, ErrorCode> {
        match read {
            Read::Data { path, watch } => {
                let node = self.readable(connection, &path)?;
                let outcome = Outcome::Data(node.data.clone(), node.stat());
                if watch {
                    self.data_watches.add(&path, connection, WatchMode::OneShot);
                }
                Ok(outcome)
            }
            Read::Children { path, watch } => {
                let (children, _) = self.children(connection, &path, watch)?;
                Ok(Outcome::Children(children))
            }
        }
    }

    fn children(
        &mut self,
        connection: ConnectionId,
        path: &str,
        watch: bool,
    ) -> Result<(Vec<String>, Stat), ErrorCode> {
        let node = self.readable(connection, path)?;
        let result = (node.children.iter().cloned().collect(), node.stat());
        if watch {
            self.child_watches.add(path, connection, WatchMode::OneShot);
        }
        Ok(result)
    }

    pub(super) fn children_with_stat(
        &mut self,
        connection: ConnectionId,
        path: &str,
        watch: bool,
    ) -> Result<Body, ErrorCode> {
        let (children, stat) = self.children(connection, path, watch)?;
        Ok(Body::ChildrenWithStat(children, stat))
    }

    /// A watch stays also when the node is absent: its creation is what the client waits for.
    pub(super) fn exists(
        &mut self,
        connection: ConnectionId,
        path: &str,
        watch: bool,
    ) -> Result<Stat, ErrorCode> {
        if path.contains('\0') {
            return Err(ErrorCode::BadArguments);
        }
        if watch {
            self.data_watches.add(path, connection, WatchMode::OneShot);
        }
        Ok(self.tree.node(path).ok_or(ErrorCode::NoNode)?.stat())
    }

    pub(super) fn get_acl(&self, connection: ConnectionId, path: &str) -> Result<Body, ErrorCode> {
        let node = self.tree.node(path).ok_or(ErrorCode::NoNode)?;
        let caller = self.identities(connection);
        access::check(&node.acls, permission::READ | permission::ADMIN, caller)?;
        let administers = access::check(&node.acls, permission::ADMIN, caller).is_ok();
        let acls = if administers { node.acls.to_vec() } else { access::without_secrets(&node.acls) };
        Ok(Body::Acls(acls, node.stat()))
    }

    /// Ephemeral nodes of the caller's own session.
    pub(super) fn ephemerals(&self, connection: ConnectionId, prefix: &str) -> Vec<String> {
        let session = self.connections.get(&connection).map_or(0, |open| open.session);
        let paths = self.tree.ephemerals_of(session);
        paths.filter(|path| path.starts_with(prefix)).map(str::to_owned).collect()
    }

    pub(super) fn all_children_number(
        &self,
        connection: ConnectionId,
        path: &str,
    ) -> Result<Body, ErrorCode> {
        self.readable(connection, path)?;
        Ok(Body::Count(i32::try_from(self.tree.descendants(path)).unwrap_or(i32::MAX)))
    }

    /// A recursive watch lives in the data table alone: created, changed and deleted nodes are
    /// all it hears of.
    pub(super) fn add_watch(
        &mut self,
        connection: ConnectionId,
        path: &str,
        recursive: bool,
    ) -> Result<Body, ErrorCode> {
        if recursive {
            self.data_watches.add(path, connection, WatchMode::Recursive);
        } else {
            self.data_watches.add(path, connection, WatchMode::Persistent);
            self.child_watches.add(path, connection, WatchMode::Persistent);
        }
        // The only empty answer with a body: an error number once more.
        Ok(Body::Count(0))
    }

    pub(super) fn check_watches(
        &self,
        connection: ConnectionId,
        path: &str,
        kind: WatcherKind,
    ) -> Result<Body, ErrorCode> {
        let data = kind != WatcherKind::Children && self.data_watches.contains(path, connection);
        let child = kind != WatcherKind::Data && self.child_watches.contains(path, connection);
        if data || child { Ok(Body::Nothing) } else { Err(ErrorCode::NoWatcher) }
    }

    pub(super) fn remove_watches(
        &mut self,
        connection: ConnectionId,
        path: &str,
        kind: WatcherKind,
    ) -> Result<Body, ErrorCode> {
        let data = kind != WatcherKind::Children && self.data_watches.remove(path, connection);
        let child = kind != WatcherKind::Data && self.child_watches.remove(path, connection);
        if data || child { Ok(Body::Nothing) } else { Err(ErrorCode::NoWatcher) }
    }

    /// Puts a returning client's watches back; those whose event it missed fire at once. Persistent
    /// watches are only put back: nothing tells which changes they missed.
    pub(super) fn set_watches(
        &mut self,
        connection: ConnectionId,
        watches: SetWatches,
        effects: &mut Effects,
    ) {
        let seen = watches.relative_zxid;
        for path in watches.data {
            let missed = match self.tree.node(&path) {
                None => Some(EventType::Deleted),
                Some(node) => (node.mzxid > seen).then_some(EventType::DataChanged),
            };
            match missed {
                Some(event) => send_event([connection], &path, event, effects),
                None => self.data_watches.add(&path, connection, WatchMode::OneShot),
            }
        }
        for path in watches.exist {
            match self.tree.node(&path) {
                Some(_) => send_event([connection], &path, EventType::Created, effects),
                None => self.data_watches.add(&path, connection, WatchMode::OneShot),
            }
        }
        for path in watches.child {
            let missed = match self.tree.node(&path) {
                None => Some(EventType::Deleted),
                Some(node) => (node.pzxid > seen).then_some(EventType::ChildrenChanged),
            };
            match missed {
                Some(event) => send_event([connection], &path, event, effects),
                None => self.child_watches.add(&path, connection, WatchMode::OneShot),
            }
        }
        for path in watches.persistent {
            self.data_watches.add(&path, connection, WatchMode::Persistent);
            self.child_watches.add(&path, connection, WatchMode::Persistent);
        }
        for path in watches.persistent_recursive {
            self.data_watches.add(&path, connection, WatchMode::Recursive);
        }
    }
}
