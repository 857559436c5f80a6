//! The life of a session: opening, re-attaching, closing, expiring.

use super::change::Change;
use super::tree::Lifetime;
use super::{Connection, ConnectionId, Core, Effects, Now, Output};
use crate::protocol::reply::encode_connected;
use crate::protocol::request::ConnectRequest;
use crate::protocol::types::Identity;

/// Most sessions at a time; a client beyond is turned away.
const SESSIONS_MAX: usize = 65_536;

/// A connection that introduces itself.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) request: ConnectRequest,
    /// The peer's address, without a port.
    pub(crate) address: String,
    /// Fresh randomness; becomes the password if a session is opened.
    pub(crate) entropy: [u8; 16],
}

impl Core {
    pub(super) fn connect(
        &mut self,
        connection: ConnectionId,
        hello: &Hello,
        now: Now,
        effects: &mut Effects,
    ) {
        let request = &hello.request;
        let opens = request.session_id == 0;
        if request.last_zxid_seen > self.zxid || (opens && self.sessions.len() >= SESSIONS_MAX) {
            // A client that has seen more than this server knows must not read older state here.
            effects.outputs.push(Output::Close(connection));
            return;
        }
        let timeout_ms =
            request.timeout_ms.clamp(self.limits.min_session_timeout_ms, self.limits.max_session_timeout_ms);
        let granted = if opens {
            Some(self.open_session(timeout_ms, hello.entropy, now, effects))
        } else {
            self.reattach(request, effects)
        };
        let reply = match granted {
            Some((id, password)) => {
                self.sessions.attach(id, connection, timeout_ms, now.monotonic_ms);
                let identity = Identity { scheme: "ip".to_owned(), id: hello.address.clone() };
                let open = Connection {
                    session: id,
                    identities: vec![identity],
                    requests: 1,
                    address: hello.address.clone(),
                };
                self.connections.insert(connection, open);
                encode_connected(timeout_ms, id, &password, request.knows_read_only)
            }
            None => encode_connected(0, 0, &[0; 16], request.knows_read_only),
        };
        effects.outputs.push(Output::Send(connection, reply));
        if granted.is_none() {
            effects.outputs.push(Output::Close(connection));
        }
    }

    fn open_session(
        &mut self,
        timeout_ms: i32,
        password: [u8; 16],
        now: Now,
        effects: &mut Effects,
    ) -> (i64, [u8; 16]) {
        let id = self.sessions.take_id();
        self.sessions.open(id, timeout_ms, password, now.monotonic_ms);
        let stamp = self.next_stamp(now);
        self.commit(stamp, vec![Change::OpenSession { id, timeout_ms, password }], effects);
        (id, password)
    }

    /// The session again, if it is alive and the password is its own. The newest connection of a
    /// session is the only one.
    fn reattach(&mut self, request: &ConnectRequest, effects: &mut Effects) -> Option<(i64, [u8; 16])> {
        let session = self.sessions.get(request.session_id)?;
        let password = session.password;
        if request.password != password[..] {
            return None;
        }
        if let Some(previous) = session.connection {
            self.close(previous, effects);
        }
        Some((request.session_id, password))
    }

    /// Ends the session and its connection.
    pub(super) fn close_session(&mut self, session: i64, now: Now, effects: &mut Effects) {
        let connection = self.sessions.get(session).and_then(|session| session.connection);
        self.end_session(session, now, effects);
        if let Some(connection) = connection {
            self.close(connection, effects);
        }
    }

    /// Ends the session with all its ephemeral nodes, in one transaction.
    pub(super) fn end_session(&mut self, session: i64, now: Now, effects: &mut Effects) {
        self.sessions.close(session);
        let paths: Vec<String> = self.tree.ephemerals_of(session).map(str::to_owned).collect();
        let mut changes: Vec<Change> = paths.into_iter().map(|path| Change::Delete { path }).collect();
        let stamp = self.next_stamp(now);
        for change in &changes {
            self.apply_to_tree(change, stamp);
        }
        changes.push(Change::CloseSession { id: session });
        self.commit(stamp, changes, effects);
    }

    /// Removes empty containers that once had a child, and nodes without children that nobody
    /// has written to for longer than their time to live. Each goes in a transaction of its own,
    /// so that a parent may follow at the next check.
    pub(super) fn remove_perished(&mut self, now: Now, effects: &mut Effects) {
        let perished: Vec<String> = self
            .tree
            .perishable()
            .filter(|(_, node)| {
                node.children.is_empty()
                    && match node.lifetime() {
                        Lifetime::Container => node.creations > 0,
                        Lifetime::TimeToLive(ttl_ms) => now.unix_ms - node.mtime > ttl_ms,
                        Lifetime::Persistent | Lifetime::Ephemeral(_) => false,
                    }
            })
            .map(|(path, _)| path.to_owned())
            .collect();
        for path in perished {
            let change = Change::Delete { path };
            let stamp = self.next_stamp(now);
            self.apply_to_tree(&change, stamp);
            self.commit(stamp, vec![change], effects);
        }
    }
}
