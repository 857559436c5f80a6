//! Incremental fetch sessions (KIP-227): the broker remembers what a reader fetches, so that a request names only what
//! changed, and an answer only what moved. A session is identified by a random id and guarded by an epoch that both
//! sides raise with each request.
//!
//! Followers go before clients when sessions are scarce (CLI-08). A cached partition keeps every field of its last
//! mention, the leader epoch too (CLI-07).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zurau_common::rejection::Rejection;

use crate::handlers::leader_hint::TopicRef;
use crate::partition::Partition;

/// Session id of a fetch without a session.
pub(super) const NO_SESSION: i32 = 0;
/// The epoch that asks for a new session.
pub(super) const EPOCH_INITIAL: i32 = 0;
/// The epoch of a fetch without a session; with an id it ends that session.
pub(super) const EPOCH_FINAL: i32 = -1;

/// A session that was not used for so long makes room for others.
const IDLE_BEFORE_EVICTION_MS: u64 = 120_000;

/// Most partitions that one session remembers; a reader of more goes on without one.
const PARTITIONS_PER_SESSION_MAX: usize = 100_000;

/// Most partitions that all sessions together remember when a new one is opened.
const PARTITIONS_OF_ALL_SESSIONS_MAX: usize = 1_000_000;

/// A partition as a fetch request names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartitionKey {
    pub(super) topic: TopicRef,
    pub(super) partition: i32,
}

/// What is fetched of a partition. Epochs of −1 are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartitionFetch {
    pub(super) offset: i64,
    pub(super) max_bytes: i32,
    pub(super) current_leader_epoch: i32,
    pub(super) last_fetched_epoch: i32,
    /// Where a follower's log begins; −1 from a client.
    pub(super) log_start: i64,
}

/// The part of a request that is about sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SessionRequest {
    pub(super) id: i32,
    pub(super) epoch: i32,
    pub(super) uses_topic_ids: bool,
    pub(super) is_follower: bool,
    pub(super) partitions: Vec<(PartitionKey, PartitionFetch)>,
    pub(super) forgotten: Vec<PartitionKey>,
}

/// What of a partition's answer decides whether it must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) has_records: bool,
    /// An error, a diverging epoch: told every time.
    pub(super) is_special: bool,
    pub(super) high_watermark: i64,
    pub(super) log_start_offset: i64,
}

#[derive(Debug)]
struct Cached {
    key: PartitionKey,
    fetch: PartitionFetch,
    /// Where it was found last; it may be gone since.
    partition: Weak<Partition>,
    /// As last told; −1: tell it next time.
    high_watermark: i64,
    log_start_offset: i64,
}

/// Partitions in the order in which they are read: those that gave records go to the end (fairness).
#[derive(Debug, Default)]
struct Partitions {
    in_order: BTreeMap<u64, Cached>,
    place_of: HashMap<PartitionKey, u64>,
    next_place: u64,
}

impl Partitions {
    fn put(&mut self, key: &PartitionKey, fetch: PartitionFetch) {
        if let Some(known) = self.place_of.get(key).and_then(|place| self.in_order.get_mut(place)) {
            known.fetch = fetch;
            return;
        }
        let partition = Weak::new();
        self.append(Cached { key: key.clone(), fetch, partition, high_watermark: -1, log_start_offset: -1 });
    }

    fn append(&mut self, cached: Cached) {
        self.place_of.insert(cached.key.clone(), self.next_place);
        self.in_order.insert(self.next_place, cached);
        self.next_place += 1;
    }

    fn remove(&mut self, key: &PartitionKey) -> Option<Cached> {
        self.in_order.remove(&self.place_of.remove(key)?)
    }

    /// Notes what an answer says, and where the partition was found, and returns whether the reader must be told.
    fn note(&mut self, asked: &Asked, told: Told) -> bool {
        let place = match self.in_order.get(&asked.place) {
            Some(cached) if cached.key == asked.key => asked.place,
            _ => match self.place_of.get(&asked.key) {
                Some(place) => *place,
                None => return true,
            },
        };
        let Some(cached) = self.in_order.get_mut(&place) else { return true };
        if !cached.partition.ptr_eq(&asked.partition) {
            cached.partition = Weak::clone(&asked.partition);
        }
        let must = told.has_records
            || told.is_special
            || cached.high_watermark != told.high_watermark
            || cached.log_start_offset != told.log_start_offset;
        cached.high_watermark = if told.is_special { -1 } else { told.high_watermark };
        cached.log_start_offset = told.log_start_offset;
        if told.has_records
            && let Some(cached) = self.in_order.remove(&place)
        {
            self.append(cached);
        }
        must
    }
}

#[derive(Debug)]
struct Session {
    id: i32,
    /// The next request must carry this epoch.
    epoch: i32,
    uses_topic_ids: bool,
    is_follower: bool,
    last_used_ms: u64,
    partitions: Partitions,
}

/// All sessions of a broker.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    slots: usize,
    sessions: Mutex<HashMap<i32, Arc<Mutex<Session>>>>,
}

/// A fetch that is being answered.
#[derive(Debug)]
pub(super) struct Fetching {
    kind: Kind,
    pub(super) partitions: Vec<Asked>,
}

/// A partition of such a fetch.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) key: PartitionKey,
    pub(super) fetch: PartitionFetch,
    /// Where it was found last; it may be gone since, or replaced.
    pub(super) partition: Weak<Partition>,
    /// In the session, if there is one already.
    place: u64,
}

impl Asked {
    fn new((key, fetch): (PartitionKey, PartitionFetch)) -> Self {
        Self { key, fetch, partition: Weak::new(), place: 0 }
    }
}

#[derive(Debug)]
enum Kind {
    Alone,
    Opening { uses_topic_ids: bool, is_follower: bool },
    Incremental(Arc<Mutex<Session>>),
}

impl FetchSessions {
    /// `slots`: `max.incremental.fetch.session.cache.slots`.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots, sessions: Mutex::new(HashMap::new()) }
    }

    /// Sessions, and partitions that they remember.
    pub(crate) fn observe(&self) -> (usize, usize) {
        let sessions = self.sessions.lock();
        (sessions.len(), remembered(&sessions))
    }

    #[cfg(test)]
    pub(crate) fn forget_all(&self) {
        self.sessions.lock().clear();
    }

    /// Finds out what a request fetches.
    ///
    /// # Errors
    /// `FetchSessionIdNotFound`, `InvalidFetchSessionEpoch`, `FetchSessionTopicIdError`: the reader goes on with a
    /// full request.
    pub(super) fn begin(&self, request: SessionRequest, now_ms: u64) -> Result<Fetching, Rejection> {
        if request.epoch == EPOCH_INITIAL || request.epoch == EPOCH_FINAL {
            if request.id != NO_SESSION {
                self.sessions.lock().remove(&request.id);
            }
            let kind = if request.epoch == EPOCH_FINAL {
                Kind::Alone
            } else {
                let SessionRequest { uses_topic_ids, is_follower, .. } = request;
                Kind::Opening { uses_topic_ids, is_follower }
            };
            let partitions = request.partitions.into_iter().map(Asked::new).collect();
            return Ok(Fetching { kind, partitions });
        }
        let found = self.sessions.lock().get(&request.id).cloned();
        let session = found.ok_or(Rejection::FetchSessionIdNotFound)?;
        let partitions = session.lock().update(&request, now_ms)?;
        if partitions.is_empty() || PARTITIONS_PER_SESSION_MAX < partitions.len() {
            self.sessions.lock().remove(&request.id);
            return Ok(Fetching { kind: Kind::Alone, partitions });
        }
        Ok(Fetching { kind: Kind::Incremental(session), partitions })
    }

    /// Ends a fetch. `answers`: what is known of each of its partitions, in its order. Returns the session id to
    /// answer with, and for each partition whether it is part of the answer.
    pub(super) fn finish(
        &self,
        fetching: &Fetching,
        answers: &[Told],
        fresh_id: impl FnMut() -> i32,
        now_ms: u64,
    ) -> (i32, Vec<bool>) {
        let asked = fetching.partitions.iter().zip(answers);
        match &fetching.kind {
            Kind::Alone => (NO_SESSION, vec![true; answers.len()]),
            Kind::Incremental(session) => {
                let mut session = session.lock();
                let told = asked.map(|(asked, told)| session.partitions.note(asked, *told)).collect();
                (session.id, told)
            }
            Kind::Opening { uses_topic_ids, is_follower } => {
                let mut partitions = Partitions::default();
                for (asked, told) in asked {
                    partitions.put(&asked.key, asked.fetch);
                    partitions.note(asked, *told);
                }
                let session = Session {
                    id: NO_SESSION,
                    epoch: next_epoch(EPOCH_INITIAL),
                    uses_topic_ids: *uses_topic_ids,
                    is_follower: *is_follower,
                    last_used_ms: now_ms,
                    partitions,
                };
                (self.open(session, fresh_id, now_ms), vec![true; answers.len()])
            }
        }
    }

    /// Takes a session in, if there is a place for it. Returns its id.
    fn open(&self, mut session: Session, mut fresh_id: impl FnMut() -> i32, now_ms: u64) -> i32 {
        let size = session.partitions.in_order.len();
        if size == 0 || PARTITIONS_PER_SESSION_MAX < size {
            return NO_SESSION;
        }
        let mut sessions = self.sessions.lock();
        if PARTITIONS_OF_ALL_SESSIONS_MAX < remembered(&sessions) + size {
            return NO_SESSION;
        }
        if self.slots <= sessions.len() {
            match evictable(&sessions, session.is_follower, now_ms) {
                Some(id) => sessions.remove(&id),
                None => return NO_SESSION,
            };
        }
        let id = loop {
            let id = fresh_id();
            if NO_SESSION < id && !sessions.contains_key(&id) {
                break id;
            }
        };
        session.id = id;
        sessions.insert(id, Arc::new(Mutex::new(session)));
        id
    }
}

/// Partitions of all sessions.
fn remembered(sessions: &HashMap<i32, Arc<Mutex<Session>>>) -> usize {
    sessions.values().map(|session| session.lock().partitions.in_order.len()).sum()
}

/// The session to give up for a new one: the one unused longest, if that is long enough; for a follower also the
/// client's unused longest.
fn evictable(sessions: &HashMap<i32, Arc<Mutex<Session>>>, for_follower: bool, now_ms: u64) -> Option<i32> {
    let used = sessions.iter().map(|(id, session)| {
        let session = session.lock();
        (session.last_used_ms, *id, session.is_follower)
    });
    let used: Vec<_> = used.collect();
    let idle = |last_used_ms: u64| IDLE_BEFORE_EVICTION_MS < now_ms.saturating_sub(last_used_ms);
    let oldest = used.iter().min().filter(|(last_used_ms, ..)| idle(*last_used_ms));
    let oldest_client = used.iter().filter(|(.., is_follower)| for_follower && !is_follower).min();
    oldest.or(oldest_client).map(|(_, id, _)| *id)
}

impl Session {
    fn update(&mut self, request: &SessionRequest, now_ms: u64) -> Result<Vec<Asked>, Rejection> {
        if self.epoch != request.epoch {
            return Err(Rejection::InvalidFetchSessionEpoch);
        }
        if self.uses_topic_ids != request.uses_topic_ids {
            return Err(Rejection::FetchSessionTopicIdError);
        }
        self.epoch = next_epoch(self.epoch);
        self.last_used_ms = now_ms;
        for (key, fetch) in &request.partitions {
            self.partitions.put(key, *fetch);
        }
        for key in &request.forgotten {
            self.partitions.remove(key);
        }
        let asked = self.partitions.in_order.iter().map(|(place, cached)| Asked {
            key: cached.key.clone(),
            fetch: cached.fetch,
            partition: Weak::clone(&cached.partition),
            place: *place,
        });
        Ok(asked.collect())
    }
}

/// Epochs wrap round to 1: 0 and −1 have meanings of their own.
fn next_epoch(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
