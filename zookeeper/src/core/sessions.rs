//! Sessions: who is alive until when. Deadlines are on the monotonic clock, in milliseconds; they
//! are not persisted, so a restart gives every session its full timeout again.

use std::collections::{BTreeMap, BTreeSet};

use super::ConnectionId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) password: [u8; 16],
    pub(crate) timeout_ms: i32,
    pub(crate) connection: Option<ConnectionId>,
    deadline_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Sessions {
    by_id: BTreeMap<i64, Session>,
    /// The same sessions, the next to expire first.
    by_deadline: BTreeSet<(u64, i64)>,
    next_id: i64,
}

impl Sessions {
    /// Ids start at a number made from the wall clock, so that a server without data directory
    /// does not hand out the ids of its previous life. The top byte stays zero: ZooKeeper keeps
    /// that range of owners apart from containers and nodes with a time to live.
    pub(crate) fn new(time_ms: i64) -> Self {
        let next_id = ((time_ms << 24) as u64 >> 8) as i64 | 1;
        Self { by_id: BTreeMap::new(), by_deadline: BTreeSet::new(), next_id }
    }

    pub(crate) fn take_id(&mut self) -> i64 {
        while self.by_id.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn get(&self, id: i64) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Session)> {
        self.by_id.iter().map(|(id, session)| (*id, session))
    }

    pub(crate) fn open(&mut self, id: i64, timeout_ms: i32, password: [u8; 16], now_ms: u64) {
        self.close(id);
        self.by_id.insert(id, Session { password, timeout_ms, connection: None, deadline_ms: 0 });
        self.touch(id, now_ms);
    }

    pub(crate) fn close(&mut self, id: i64) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.by_deadline.remove(&(session.deadline_ms, id));
        Some(session)
    }

    /// A sign of life. Nothing happens for a session that is gone.
    pub(crate) fn touch(&mut self, id: i64, now_ms: u64) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let deadline_ms = now_ms + u64::try_from(session.timeout_ms).unwrap_or(0);
        if deadline_ms != session.deadline_ms {
            self.by_deadline.remove(&(session.deadline_ms, id));
            self.by_deadline.insert((deadline_ms, id));
            session.deadline_ms = deadline_ms;
        }
    }

    /// Ties the session to a connection, with a timeout negotiated anew.
    pub(crate) fn attach(&mut self, id: i64, connection: ConnectionId, timeout_ms: i32, now_ms: u64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.connection = Some(connection);
            session.timeout_ms = timeout_ms;
        }
        self.touch(id, now_ms);
    }

    pub(crate) fn detach(&mut self, id: i64, connection: ConnectionId) {
        if let Some(session) = self.by_id.get_mut(&id)
            && session.connection == Some(connection)
        {
            session.connection = None;
        }
    }

    /// A session whose time is over.
    pub(crate) fn next_expired(&self, now_ms: u64) -> Option<i64> {
        let (deadline_ms, id) = self.by_deadline.first()?;
        (*deadline_ms <= now_ms).then_some(*id)
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline_ms, _)| *deadline_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_session_lives_on_and_an_untouched_one_expires() {
        let mut sessions = Sessions::new(1_700_000_000_000);
        let (first, second) = (sessions.take_id(), sessions.take_id());
        assert!(0 < first && first < second && second >> 56 == 0);
        sessions.open(first, 100, [0; 16], 0);
        sessions.open(second, 150, [0; 16], 0);
        sessions.touch(first, 90);
        assert_eq!(sessions.next_expired(149), None);
        assert_eq!(sessions.next_expired(150), Some(second));
        sessions.close(second);
        assert_eq!((sessions.next_expired(189), sessions.next_expired(190)), (None, Some(first)));
    }
}
