//! The server's state and its transitions: `(state, input, now) → (state, outputs, transactions)`.
//! One owner calls it; no clock, randomness, socket or file is in here. Outputs may only be
//! delivered after the transactions of the same step are durable.

mod access;
pub(crate) mod change;
mod digest;
pub(crate) mod four_letter;
mod handshake;
mod path;
mod reads;
mod sessions;
mod snapshot;
mod tree;
mod watches;
mod writes;

use std::collections::HashMap;

use bytes::Bytes;

use crate::protocol::code::{ErrorCode, EventType};
use crate::protocol::reply::{Body, Outcome, encode_event, encode_reply};
use crate::protocol::request::{Envelope, Request};
use crate::protocol::types::Identity;
use change::{Change, Stamp, Transaction};
pub(crate) use handshake::Hello;
use sessions::Sessions;
use tree::{Tree, Undo};
use watches::Watches;

/// Most memory that the watches of one connection may take; more closes it.
const WATCH_BYTES_PER_CONNECTION_MAX: usize = 64 * 1024 * 1024;
/// How often containers and nodes with a time to live are looked at, in milliseconds.
const PERISHABLE_CHECK_INTERVAL_MS: u64 = 1_000;

/// A connection, numbered by the shell and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The two clocks, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) monotonic_ms: u64,
    pub(crate) unix_ms: i64,
}

/// Limits that clients negotiate with, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) min_session_timeout_ms: i32,
    pub(crate) max_session_timeout_ms: i32,
}

#[derive(Debug)]
pub(crate) enum Input {
    /// First frame of a connection.
    Connect(ConnectionId, Hello),
    /// Any later frame.
    Frame(ConnectionId, Bytes),
    Disconnected(ConnectionId),
    ExpireSession(i64),
    DropConnections,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    Send(ConnectionId, Bytes),
    /// After everything sent before.
    Close(ConnectionId),
}

/// What a step asks the shell to do.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) outputs: Vec<Output>,
}

#[derive(Debug)]
struct Connection {
    session: i64,
    identities: Vec<Identity>,
    requests: u64,
    address: String,
}

#[derive(Debug)]
pub(crate) struct Core {
    tree: Tree,
    sessions: Sessions,
    connections: HashMap<ConnectionId, Connection>,
    data_watches: Watches,
    child_watches: Watches,
    zxid: i64,
    limits: Limits,
    next_perishable_check_ms: u64,
    requests: u64,
    replies: u64,
}

impl Core {
    pub(crate) fn new(limits: Limits, now: Now) -> Self {
        Self {
            tree: Tree::new(),
            sessions: Sessions::new(now.unix_ms),
            connections: HashMap::new(),
            data_watches: Watches::default(),
            child_watches: Watches::default(),
            zxid: 0,
            limits,
            next_perishable_check_ms: now.monotonic_ms + PERISHABLE_CHECK_INTERVAL_MS,
            requests: 0,
            replies: 0,
        }
    }

    pub(crate) fn zxid(&self) -> i64 {
        self.zxid
    }

    /// When [`Core::tick`] has something to do next, on the monotonic clock.
    pub(crate) fn next_tick_ms(&self) -> u64 {
        let expiry = self.sessions.next_deadline_ms().unwrap_or(u64::MAX);
        expiry.min(self.next_perishable_check_ms)
    }

    pub(crate) fn step(&mut self, input: Input, now: Now, effects: &mut Effects) {
        match input {
            Input::Connect(connection, hello) => self.connect(connection, &hello, now, effects),
            Input::Frame(connection, frame) => self.frame(connection, frame, now, effects),
            Input::Disconnected(connection) => self.disconnect(connection),
            Input::ExpireSession(session) => {
                if self.sessions.get(session).is_some() {
                    self.close_session(session, now, effects);
                }
            }
            Input::DropConnections => {
                let mut open: Vec<ConnectionId> = self.connections.keys().copied().collect();
                open.sort_unstable();
                for connection in open {
                    self.close(connection, effects);
                }
            }
        }
    }

    /// Expires sessions and removes containers and nodes whose time is over.
    pub(crate) fn tick(&mut self, now: Now, effects: &mut Effects) {
        while let Some(session) = self.sessions.next_expired(now.monotonic_ms) {
            self.close_session(session, now, effects);
        }
        if self.next_perishable_check_ms <= now.monotonic_ms {
            self.next_perishable_check_ms = now.monotonic_ms + PERISHABLE_CHECK_INTERVAL_MS;
            self.remove_perished(now, effects);
        }
    }

    /// Forgets the connection; the session lives on until its deadline.
    pub(crate) fn disconnect(&mut self, connection: ConnectionId) {
        if let Some(gone) = self.connections.remove(&connection) {
            self.sessions.detach(gone.session, connection);
            self.data_watches.remove_connection(connection);
            self.child_watches.remove_connection(connection);
        }
    }

    fn close(&mut self, connection: ConnectionId, effects: &mut Effects) {
        self.disconnect(connection);
        effects.outputs.push(Output::Close(connection));
    }

    fn frame(&mut self, connection: ConnectionId, frame: Bytes, now: Now, effects: &mut Effects) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        open.requests += 1;
        let session = open.session;
        self.requests += 1;
        self.sessions.touch(session, now.monotonic_ms);
        let Ok(Envelope { xid, request }) = Envelope::decode(frame) else {
            return self.close(connection, effects);
        };
        let closes = match &request {
            Request::CloseSession => {
                self.end_session(session, now, effects);
                true
            }
            Request::Unknown | Request::Sasl => true,
            _ => false,
        };
        let result = self.execute(connection, request, now, effects);
        let refused = result == Err(ErrorCode::AuthFailed);
        let reply = encode_reply(xid, self.zxid, &result);
        self.replies += 1;
        effects.outputs.push(Output::Send(connection, reply));
        let watch_bytes = self.data_watches.bytes_of(connection) + self.child_watches.bytes_of(connection);
        if closes || refused || watch_bytes > WATCH_BYTES_PER_CONNECTION_MAX {
            self.close(connection, effects);
        }
    }

    fn execute(
        &mut self,
        connection: ConnectionId,
        request: Request,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Body, ErrorCode> {
        match request {
            Request::Write(write) => self.write(connection, write, now, effects).map(Body::One),
            Request::Multi(writes) => Ok(Body::Multi(self.multi(connection, writes, now, effects))),
            Request::Read(read) => self.read(connection, read).map(Body::One),
            Request::ChildrenWithStat { path, watch } => self.children_with_stat(connection, &path, watch),
            Request::Exists { path, watch } => self.exists(connection, &path, watch).map(Body::Stat),
            Request::GetAcl { path } => self.get_acl(connection, &path),
            Request::MultiRead(reads) => {
                let outcomes = reads.into_iter().map(|read| self.read(connection, read));
                Ok(Body::Multi(outcomes.map(|outcome| outcome.unwrap_or_else(Outcome::Failed)).collect()))
            }
            Request::Sync { path } => Ok(Body::Path(path)),
            Request::Ping | Request::CloseSession => Ok(Body::Nothing),
            Request::Ephemerals { prefix } => Ok(Body::Paths(self.ephemerals(connection, &prefix))),
            Request::AllChildrenNumber { path } => self.all_children_number(connection, &path),
            Request::AddWatch { path, recursive } => self.add_watch(connection, &path, recursive),
            Request::SetWatches(watches) => {
                self.set_watches(connection, watches, effects);
                Ok(Body::Nothing)
            }
            Request::CheckWatches { path, kind } => self.check_watches(connection, &path, kind),
            Request::RemoveWatches { path, kind } => self.remove_watches(connection, &path, kind),
            Request::Auth { scheme, credential } => self.authenticate(connection, &scheme, &credential),
            Request::WhoAmI => Ok(Body::Identities(access::names_of(self.identities(connection)))),
            Request::Reconfigure => Err(ErrorCode::ReconfigDisabled),
            Request::Sasl | Request::Unknown => Err(ErrorCode::Unimplemented),
            Request::Malformed => Err(ErrorCode::MarshallingError),
        }
    }

    fn identities(&self, connection: ConnectionId) -> &[Identity] {
        self.connections.get(&connection).map_or(&[], |open| &open.identities)
    }

    fn authenticate(
        &mut self,
        connection: ConnectionId,
        scheme: &str,
        credential: &[u8],
    ) -> Result<Body, ErrorCode> {
        let open = self.connections.get_mut(&connection).ok_or(ErrorCode::AuthFailed)?;
        let address = Identity { scheme: "ip".to_owned(), id: open.address.clone() };
        let identity = access::authenticate(scheme, credential, &address).ok_or(ErrorCode::AuthFailed)?;
        if !open.identities.contains(&identity) {
            open.identities.push(identity);
        }
        Ok(Body::Nothing)
    }

    fn next_stamp(&mut self, now: Now) -> Stamp {
        self.zxid += 1;
        Stamp { zxid: self.zxid, time_ms: now.unix_ms }
    }

    /// Applies one validated change of the tree. Sessions have no undo: no multi contains them.
    fn apply_to_tree(&mut self, change: &Change, stamp: Stamp) -> Option<Undo> {
        match change {
            Change::Create { path, data, acls, owner } => {
                Some(self.tree.create(path, data.clone(), acls.clone(), *owner, stamp))
            }
            Change::Delete { path } => Some(self.tree.delete(path, stamp)),
            Change::SetData { path, data } => Some(self.tree.set_data(path, data.clone(), stamp)),
            Change::SetAcls { path, acls } => {
                self.tree.set_acls(path, acls.clone());
                None
            }
            Change::OpenSession { .. } | Change::CloseSession { .. } => None,
        }
    }

    /// Tells watchers about changes that are now part of the state, and hands them to the log.
    fn commit(&mut self, stamp: Stamp, changes: Vec<Change>, effects: &mut Effects) {
        for change in &changes {
            match change {
                Change::Create { path, .. } => {
                    self.notify_data(path, EventType::Created, effects);
                    self.notify_parent(path, effects);
                }
                Change::Delete { path } => {
                    // A client with both kinds of watch hears of the deletion once.
                    let mut told = self.data_watches.trigger(path, EventType::Deleted);
                    told.extend(self.child_watches.trigger(path, EventType::Deleted));
                    send_event(told, path, EventType::Deleted, effects);
                    self.notify_parent(path, effects);
                }
                Change::SetData { path, .. } => {
                    self.notify_data(path, EventType::DataChanged, effects);
                }
                Change::SetAcls { .. } | Change::OpenSession { .. } | Change::CloseSession { .. } => {}
            }
        }
        effects.transactions.push(Transaction { stamp, changes });
    }

    fn notify_data(&mut self, path: &str, event: EventType, effects: &mut Effects) {
        send_event(self.data_watches.trigger(path, event), path, event, effects);
    }

    fn notify_parent(&mut self, path: &str, effects: &mut Effects) {
        if let Some((parent, _)) = path::split(path) {
            let event = EventType::ChildrenChanged;
            send_event(self.child_watches.trigger(parent, event), parent, event, effects);
        }
    }

    /// Takes a durable transaction into a state that is being rebuilt. The caller replays them in
    /// order, from the state they were made for.
    pub(crate) fn replay(&mut self, transaction: &Transaction, now: Now) {
        for change in &transaction.changes {
            match change {
                Change::OpenSession { id, timeout_ms, password } => {
                    self.sessions.open(*id, *timeout_ms, *password, now.monotonic_ms);
                }
                Change::CloseSession { id } => {
                    self.sessions.close(*id);
                }
                _ => {
                    self.apply_to_tree(change, transaction.stamp);
                }
            }
        }
        self.zxid = transaction.stamp.zxid;
    }
}

fn send_event(
    told: impl IntoIterator<Item = ConnectionId>,
    path: &str,
    event: EventType,
    effects: &mut Effects,
) {
    let mut encoded: Option<Bytes> = None;
    for connection in told {
        let frame = encoded.get_or_insert_with(|| encode_event(event, path)).clone();
        effects.outputs.push(Output::Send(connection, frame));
    }
}

#[cfg(test)]
mod tests;
