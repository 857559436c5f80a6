//! A follower's side of an incremental fetch session (KIP-227). The leader remembers what was asked, so that a request
//! names only what has changed since the one before, and an answer only what has moved; partitions that stand still cost
//! nothing on the way.
//!
//! A session belongs to one connection, whose answers come in order. Whatever is unclear ends it: the next request names
//! everything and asks for a new one. The leader's side is `handlers/fetch/session.rs`.

use std::collections::HashMap;

use zurau_common::id::TopicId;

use crate::replica::follower::FetchPosition;

/// Session id of a fetch without a session.
const NO_SESSION: i32 = 0;
/// Session epoch of a request that asks for a new session.
const EPOCH_INITIAL: i32 = 0;

/// A partition as requests name it: topic and number.
pub(super) type Name = (TopicId, i32);

/// What a request has to say about its session and its partitions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) session_id: i32,
    pub(super) session_epoch: i32,
    /// To be named with their positions, by their place among what is wanted.
    pub(super) named: Vec<usize>,
    /// No longer wanted.
    pub(super) forgotten: Vec<Name>,
}

/// What the leader of one connection knows of this follower's wishes.
#[derive(Debug, Default)]
pub(super) struct FetchSession {
    id: i32,
    /// Of the next request, while there is a session.
    epoch: i32,
    known: HashMap<Name, Known>,
    turns: u64,
}

#[derive(Debug)]
struct Known {
    position: FetchPosition,
    /// The turn in which it was last wanted.
    wanted_in: u64,
}

impl FetchSession {
    /// Begins the next request, for everything that is wanted: each partition once. Its answer is to be given to
    /// [`FetchSession::answered`] before the next one; if there is none, the connection and this session are of no use.
    pub(super) fn turn<'a>(
        &mut self,
        wanted: impl ExactSizeIterator<Item = (Name, &'a FetchPosition)>,
    ) -> Turn {
        self.turns += 1;
        let wanted_count = wanted.len();
        let mut named = Vec::new();
        for (index, (name, position)) in wanted.enumerate() {
            let known = Known { position: *position, wanted_in: self.turns };
            let former = self.known.insert(name, known);
            if self.id == NO_SESSION || former.is_none_or(|former| former.position != *position) {
                named.push(index);
            }
        }
        let mut forgotten = Vec::new();
        if wanted_count < self.known.len() {
            self.known.retain(|name, known| {
                let is_wanted = known.wanted_in == self.turns;
                if !is_wanted {
                    forgotten.push(*name);
                }
                is_wanted
            });
        }
        if self.id == NO_SESSION {
            // The leader knows nothing that it could forget.
            return Turn {
                session_id: NO_SESSION,
                session_epoch: EPOCH_INITIAL,
                named,
                forgotten: Vec::new(),
            };
        }
        Turn { session_id: self.id, session_epoch: self.epoch, named, forgotten }
    }

    /// The leader answered with this session id. `was_refused`: the answer is an error for the whole request.
    pub(super) fn answered(&mut self, session_id: i32, was_refused: bool) {
        if was_refused || session_id == NO_SESSION || (self.id != NO_SESSION && session_id != self.id) {
            self.id = NO_SESSION;
        } else {
            self.epoch = if self.id == NO_SESSION { 1 } else { self.epoch.checked_add(1).unwrap_or(1) };
            self.id = session_id;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;
    use zurau_common::id::{BrokerId, LeaderEpoch};

    use super::*;
    use crate::replica::follower::Asked;

    const TOPIC: TopicId = TopicId(Uuid::from_u128(7));

    fn at(offset: i64) -> FetchPosition {
        FetchPosition {
            leader: BrokerId(1),
            leader_epoch: LeaderEpoch(3),
            offset,
            last_fetched_epoch: -1,
            log_start: 0,
            asked: Asked::Records,
        }
    }

    fn turn(session: &mut FetchSession, wanted: &[(i32, i64)]) -> Turn {
        let wanted: Vec<_> =
            wanted.iter().map(|(partition, offset)| ((TOPIC, *partition), at(*offset))).collect();
        session.turn(wanted.iter().map(|(name, position)| (*name, position)))
    }

    fn told(session_id: i32, session_epoch: i32, named: &[usize], forgotten: &[i32]) -> Turn {
        let forgotten = forgotten.iter().map(|partition| (TOPIC, *partition)).collect();
        Turn { session_id, session_epoch, named: named.to_vec(), forgotten }
    }

    #[test]
    fn only_changes_are_named() {
        let mut session = FetchSession::default();
        assert_eq!(turn(&mut session, &[(0, 0), (1, 0), (2, 0)]), told(0, 0, &[0, 1, 2], &[]));
        session.answered(9, false);
        assert_eq!(turn(&mut session, &[(0, 0), (1, 5), (2, 0)]), told(9, 1, &[1], &[]));
        session.answered(9, false);
        assert_eq!(turn(&mut session, &[(0, 0), (1, 5), (3, 0)]), told(9, 2, &[2], &[2]));
        session.answered(9, false);
        assert_eq!(turn(&mut session, &[(0, 0), (1, 5), (3, 0)]), told(9, 3, &[], &[]));
    }

    #[test]
    fn a_session_that_the_leader_lost_is_opened_again_with_everything() {
        for (id, was_refused) in [(9, true), (0, true), (0, false), (8, false)] {
            let mut session = FetchSession::default();
            turn(&mut session, &[(0, 0), (1, 0)]);
            session.answered(9, false);
            turn(&mut session, &[(0, 0), (1, 1)]);
            session.answered(id, was_refused);
            assert_eq!(turn(&mut session, &[(0, 0)]), told(0, 0, &[0], &[]), "{id} {was_refused}");
        }
        let mut without = FetchSession::default();
        for _ in 0..2 {
            assert_eq!(turn(&mut without, &[(0, 0), (1, 0)]), told(0, 0, &[0, 1], &[]));
            without.answered(0, false);
        }
    }

    #[test]
    fn epochs_go_round_past_the_special_ones() {
        let mut session = FetchSession { id: 9, epoch: i32::MAX, ..FetchSession::default() };
        assert_eq!(turn(&mut session, &[]).session_epoch, i32::MAX);
        session.answered(9, false);
        assert_eq!(turn(&mut session, &[]).session_epoch, 1);
    }

    proptest! {
        /// CLI-07: whatever changes and whatever is lost, the leader ends up with what is wanted.
        #[test]
        fn a_leader_that_follows_the_requests_knows_what_is_wanted(
            steps in prop::collection::vec((prop::collection::btree_map(0..6_i32, 0..4_i64, 0..6), 0..5_u8), 1..30),
        ) {
            let mut session = FetchSession::default();
            let mut at_leader: Option<(i32, i32, HashMap<i32, i64>)> = None;
            let mut next_id = 0;
            for (wanted, fate) in steps {
                let wanted: Vec<_> = wanted.into_iter().collect();
                if fate == 0 {
                    at_leader = None;
                }
                let turn = turn(&mut session, &wanted);
                let named = turn.named.iter().map(|index| wanted[*index]);
                if turn.session_epoch == EPOCH_INITIAL {
                    let all: HashMap<i32, i64> = named.collect();
                    prop_assert_eq!(&all, &wanted.iter().copied().collect());
                    if fate == 1 || all.is_empty() {
                        at_leader = None;
                        session.answered(NO_SESSION, false);
                    } else {
                        next_id += 1;
                        at_leader = Some((next_id, 1, all));
                        session.answered(next_id, false);
                    }
                    continue;
                }
                match &mut at_leader {
                    Some((id, epoch, all)) if *id == turn.session_id && *epoch == turn.session_epoch => {
                        *epoch += 1;
                        all.extend(named);
                        for (_, partition) in &turn.forgotten {
                            all.remove(partition);
                        }
                        prop_assert_eq!(&*all, &wanted.iter().copied().collect());
                        session.answered(*id, false);
                    }
                    _ => session.answered(NO_SESSION, true),
                }
            }
        }
    }
}
