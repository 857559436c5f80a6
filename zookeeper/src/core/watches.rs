//! Watches: which connection wants to hear about which path. As in ZooKeeper 3.8, a connection has
//! one watch per path and table, and the last one set replaces the one before (3.9 keeps them apart).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{ConnectionId, path};
use crate::protocol::code::EventType;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchMode {
    OneShot,
    Persistent,
    Recursive,
}

/// What one more watch costs besides its path, roughly, in bytes.
const WATCH_OVERHEAD_BYTES: usize = 128;

#[derive(Debug, Default)]
struct Watched {
    paths: HashSet<String>,
    bytes: usize,
}

/// One table; a server has one for data and one for children.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: HashMap<String, BTreeMap<ConnectionId, WatchMode>>,
    by_connection: HashMap<ConnectionId, Watched>,
    /// Number of (path, connection) pairs with a recursive watch; without any, a change need not
    /// look at its path's ancestors.
    recursive_count: usize,
}

impl Watches {
    pub(crate) fn add(&mut self, path: &str, connection: ConnectionId, mode: WatchMode) {
        let previous = self.by_path.entry(path.to_owned()).or_default().insert(connection, mode);
        self.recursive_count += usize::from(mode == WatchMode::Recursive);
        self.recursive_count -= usize::from(previous == Some(WatchMode::Recursive));
        let watched = self.by_connection.entry(connection).or_default();
        if watched.paths.insert(path.to_owned()) {
            watched.bytes += path.len() + WATCH_OVERHEAD_BYTES;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.by_connection.values().map(|watched| watched.paths.len()).sum()
    }

    /// Memory that the connection's watches take, roughly.
    pub(crate) fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, |watched| watched.bytes)
    }

    pub(crate) fn contains(&self, path: &str, connection: ConnectionId) -> bool {
        let mode = |path: &str| self.by_path.get(path)?.get(&connection).copied();
        mode(path).is_some()
            || (self.recursive_count > 0
                && path::ancestors(path).any(|ancestor| mode(ancestor) == Some(WatchMode::Recursive)))
    }

    /// Removes the connection's watch on `path`; whether there was one.
    pub(crate) fn remove(&mut self, path: &str, connection: ConnectionId) -> bool {
        let Some(watchers) = self.by_path.get_mut(path) else { return false };
        let Some(mode) = watchers.remove(&connection) else { return false };
        if watchers.is_empty() {
            self.by_path.remove(path);
        }
        self.recursive_count -= usize::from(mode == WatchMode::Recursive);
        self.forget(path, connection);
        true
    }

    fn forget(&mut self, path: &str, connection: ConnectionId) {
        if let Some(watched) = self.by_connection.get_mut(&connection)
            && watched.paths.remove(path)
        {
            watched.bytes -= path.len() + WATCH_OVERHEAD_BYTES;
            if watched.paths.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }

    pub(crate) fn remove_connection(&mut self, connection: ConnectionId) {
        let watched = self.by_connection.get(&connection).map(|watched| watched.paths.clone());
        for path in watched.unwrap_or_default() {
            self.remove(&path, connection);
        }
    }

    /// The connections to tell about `event` at `path`, each once. One-shot watches are used up.
    pub(crate) fn trigger(&mut self, path: &str, event: EventType) -> BTreeSet<ConnectionId> {
        let mut told = BTreeSet::new();
        let mut used_up = Vec::new();
        // A recursive watch hears of each node below; a change of children would say it twice.
        let recursive_hears = event != EventType::ChildrenChanged;
        for (connection, mode) in self.by_path.get(path).into_iter().flatten() {
            if *mode != WatchMode::Recursive || recursive_hears {
                told.insert(*connection);
            }
            if *mode == WatchMode::OneShot {
                used_up.push(*connection);
            }
        }
        for connection in used_up {
            self.remove(path, connection);
        }
        if recursive_hears && self.recursive_count > 0 {
            for ancestor in path::ancestors(path) {
                let watchers = self.by_path.get(ancestor).into_iter().flatten();
                let recursive = watchers.filter(|(_, mode)| **mode == WatchMode::Recursive);
                told.extend(recursive.map(|(connection, _)| *connection));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConnectionId = ConnectionId(1);

    #[test]
    fn the_last_mode_set_is_the_one_that_counts() {
        let mut watches = Watches::default();
        watches.add("/a", ONE, WatchMode::OneShot);
        watches.add("/a", ONE, WatchMode::Recursive);
        assert_eq!(watches.trigger("/a", EventType::ChildrenChanged).len(), 0);
        assert_eq!(watches.trigger("/a", EventType::DataChanged).len(), 1);
        assert_eq!(watches.trigger("/a/b/c", EventType::Created).len(), 1);
        assert_eq!(watches.trigger("/ab", EventType::Created).len(), 0);
        assert!(watches.contains("/a/b", ONE) && watches.remove("/a", ONE) && !watches.remove("/a", ONE));
        assert_eq!(watches.trigger("/a/b/c", EventType::Created).len(), 0);
        watches.add("/a", ONE, WatchMode::Recursive);
        watches.add("/a", ONE, WatchMode::OneShot);
        assert_eq!(watches.trigger("/a", EventType::DataChanged).len(), 1);
        assert_eq!(watches.trigger("/a", EventType::DataChanged).len(), 0);
        assert_eq!((watches.count(), watches.recursive_count), (0, 0));
    }

    #[test]
    fn a_recursive_watch_on_the_root_hears_everything() {
        let mut watches = Watches::default();
        watches.add("/", ONE, WatchMode::Recursive);
        assert_eq!(watches.trigger("/a", EventType::Created).len(), 1);
        watches.remove_connection(ONE);
        assert_eq!(watches.trigger("/a", EventType::Created).len(), 0);
    }
}
