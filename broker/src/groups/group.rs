//! One group: its members, its generation, its offsets, and the states it goes through.
//!
//! ```text
//!            first join                 all joined, or timeout               leader's assignment stored
//!   Empty ───────────────▶ PreparingRebalance ───────────▶ CompletingRebalance ───────────▶ Stable
//!     ▲                      │        ▲    ▲                      │                            │
//!     └── nobody joined ─────┘        │    └── join, leave, silence, failed write ─────────────┤
//!                                     └────────────────────────────────────────────────────────┘
//!   Empty ── deleted or expired ──▶ Dead (until the removal is stored)
//! ```
//! Offsets, assignments and removals take effect when their records are committed (G1). Membership between two
//! generations is not stored: a coordinator that takes over finds the last finished generation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use zurau_common::id::TopicName;
use zurau_common::rejection::Rejection;

use super::consumer::Consumer;
use super::offsets::Offsets;
use super::outbox::{Effect, Now, Outbox, Timer, WriteId};
use super::records::{GroupId, GroupRecord, MemberId, StoredGroup, StoredMember};
use super::request::{JoinedMember, Protocol, ReplyId, Synced};
use crate::coordinator::Reader;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupState {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
    Dead,
}

impl GroupState {
    /// As clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }

    fn may_follow(self, before: Self) -> bool {
        match self {
            Self::Empty => matches!(before, Self::PreparingRebalance | Self::Dead),
            Self::PreparingRebalance => {
                matches!(before, Self::Stable | Self::CompletingRebalance | Self::Empty)
            }
            Self::CompletingRebalance => before == Self::PreparingRebalance,
            Self::Stable => before == Self::CompletingRebalance,
            Self::Dead => before == Self::Empty,
        }
    }
}

/// The protocol type of consumers; the coordinator may read their subscriptions.
pub(crate) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) session_timeout_ms: i32,
    /// In its order of preference.
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) assignment: Bytes,
    /// Who waits for the end of the rebalance.
    pub(crate) awaiting_join: Option<ReplyId>,
    /// Who waits for the assignment.
    pub(crate) awaiting_sync: Option<ReplyId>,
    /// It has not finished a rebalance yet, so it knows no id to send heartbeats with.
    pub(crate) is_new: bool,
}

impl Member {
    fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|supported| &*supported.name == protocol)
    }

    pub(crate) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|supported| &*supported.name == protocol);
        found.map(|supported| supported.metadata.clone()).unwrap_or_default()
    }
}

/// How long an empty group waits for more members, by the clock of [`Now::elapsed_ms`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gathering {
    pub(crate) last_arrival_ms: i64,
    /// The rebalance timeout of the first member is over.
    pub(crate) until_ms: i64,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) state: GroupState,
    /// Milliseconds since the epoch; unknown for groups that an old broker stored.
    pub(crate) state_since_ms: Option<i64>,
    /// 0 until the first rebalance has ended; raised by each one.
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<Arc<str>>,
    pub(crate) protocol: Option<Arc<str>>,
    /// One of `members`, unless there are none.
    pub(crate) leader: Option<MemberId>,
    pub(crate) members: BTreeMap<MemberId, Member>,
    /// The ids of members that have an instance id.
    pub(crate) static_members: HashMap<Arc<str>, MemberId>,
    /// Ids given out to members that have to join once more.
    pub(crate) pending_members: BTreeSet<MemberId>,
    /// Members of this generation that have not asked for their assignment; a subset of `members`.
    pub(crate) pending_sync: BTreeSet<MemberId>,
    /// Set while an empty group gathers its first members.
    pub(crate) gathering: Option<Gathering>,
    /// The assignment that is being stored.
    pub(crate) assignment_write: Option<WriteId>,
    /// What the members of a consumer group read; `None` when their subscriptions cannot be read.
    pub(crate) subscribed_topics: Option<BTreeSet<TopicName>>,
    pub(crate) offsets: Offsets,
    /// Set in a group of the consumer protocol. What stands above is then that of a group without members.
    pub(crate) consumer: Option<Box<Consumer>>,
}

impl Group {
    pub(crate) fn new(id: GroupId) -> Self {
        Self {
            id,
            state: GroupState::Empty,
            state_since_ms: None,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: HashMap::new(),
            pending_members: BTreeSet::new(),
            pending_sync: BTreeSet::new(),
            gathering: None,
            assignment_write: None,
            subscribed_topics: None,
            offsets: Offsets::default(),
            consumer: None,
        }
    }

    /// Whether nothing is lost when the group is forgotten.
    pub(crate) fn is_blank(&self) -> bool {
        self.state == GroupState::Empty
            && self.generation == 0
            && self.members.is_empty()
            && self.pending_members.is_empty()
            && self.consumer.is_none()
            && self.offsets.is_idle()
    }

    pub(crate) fn is(&self, state: GroupState) -> bool {
        self.state == state
    }

    /// Whether nobody is in the group, or on the way into it.
    pub(crate) fn has_no_members(&self) -> bool {
        self.is(GroupState::Empty) && self.consumer.as_ref().is_none_or(|consumer| consumer.is_empty())
    }

    pub(crate) fn is_leader(&self, member: &MemberId) -> bool {
        self.leader.as_ref() == Some(member)
    }

    pub(crate) fn move_to(&mut self, state: GroupState, now: Now, out: &mut Outbox, reason: &str) {
        assert!(
            state.may_follow(self.state),
            "group {} of generation {} went from {:?} to {state:?}: {reason}",
            self.id,
            self.generation,
            self.state
        );
        self.state = state;
        self.state_since_ms = Some(now.wall_ms);
        out.effects.push(Effect::Moved {
            group: Arc::clone(&self.id),
            state,
            generation: self.generation,
            members: self.members.len(),
            reason: reason.to_owned(),
        });
    }

    /// Why a request does not come from a current member (GRP-05, GRP-08).
    pub(crate) fn member_problem(
        &self,
        member_id: &MemberId,
        instance_id: Option<&Arc<str>>,
    ) -> Option<Rejection> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Some(Rejection::UnknownMemberId),
                Some(current) if current != member_id => return Some(Rejection::FencedInstanceId),
                Some(_) => {}
            }
        }
        (!self.members.contains_key(member_id)).then_some(Rejection::UnknownMemberId)
    }

    /// As [`Group::member_problem`], for one that names the generation it believes in.
    pub(crate) fn generation_problem(
        &self,
        generation: i32,
        member_id: &MemberId,
        instance_id: Option<&Arc<str>>,
    ) -> Option<Rejection> {
        if self.is(GroupState::Dead) {
            return Some(Rejection::CoordinatorNotAvailable);
        }
        let stale = || (generation != self.generation).then_some(Rejection::IllegalGeneration);
        self.member_problem(member_id, instance_id).or_else(stale)
    }

    /// The member gave a sign of life.
    pub(crate) fn touch(&self, member_id: &MemberId, now: Now, out: &mut Outbox) {
        if let Some(member) = self.members.get(member_id) {
            let due_ms = now.elapsed_ms + i64::from(member.session_timeout_ms);
            out.timers.set(self.session_timer(member_id), due_ms);
        }
    }

    pub(crate) fn session_timer(&self, member_id: &MemberId) -> Timer {
        Timer::Session(Arc::clone(&self.id), Arc::clone(member_id))
    }

    /// The longest that any member may take to join again.
    pub(crate) fn rebalance_timeout_ms(&self) -> i64 {
        let longest = self.members.values().map(|member| member.rebalance_timeout_ms).max();
        i64::from(longest.unwrap_or(0).max(0))
    }

    /// Whether a member with these protocols can be in the group: one of them is supported by all.
    pub(crate) fn supports(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if protocol_type.is_empty() || protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let by_all = |name: &str| self.members.values().all(|member| member.supports(name));
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| by_all(&protocol.name))
    }

    /// The protocol that most members prefer among those that all support; of two, the one its leader likes better.
    pub(crate) fn select_protocol(&self) -> Option<Arc<str>> {
        let first = self.leader.as_ref().and_then(|leader| self.members.get(leader));
        let first = first.or_else(|| self.members.values().next())?;
        let by_all = |name: &str| self.members.values().all(|member| member.supports(name));
        let candidates: Vec<&Arc<str>> =
            first.protocols.iter().map(|protocol| &protocol.name).filter(|name| by_all(name)).collect();
        let mut votes = vec![0usize; candidates.len()];
        for member in self.members.values() {
            let liked = member
                .protocols
                .iter()
                .find_map(|protocol| candidates.iter().position(|candidate| **candidate == protocol.name));
            if let Some(liked) = liked {
                votes[liked] += 1;
            }
        }
        let best = votes.iter().copied().max()?;
        let winner = votes.iter().position(|count| *count == best)?;
        Some(Arc::clone(candidates[winner]))
    }

    /// What the leader needs to assign.
    pub(crate) fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let joined = |(id, member): (&MemberId, &Member)| JoinedMember {
            member_id: Arc::clone(id),
            instance_id: member.instance_id.clone(),
            metadata: member.metadata(protocol),
        };
        self.members.iter().map(joined).collect()
    }

    pub(crate) fn synced(&self, assignment: Bytes) -> Synced {
        Synced { protocol_type: self.protocol_type.clone(), protocol: self.protocol.clone(), assignment }
    }

    /// Takes a member out. Whoever waits in its name learns that it is none any more.
    pub(crate) fn remove_member(&mut self, member_id: &MemberId, out: &mut Outbox) {
        let Some(member) = self.members.remove(member_id) else { return };
        out.timers.cancel(&self.session_timer(member_id));
        if let Some(reply) = member.awaiting_join {
            out.refuse_join(reply, Rejection::UnknownMemberId, member_id);
        }
        if let Some(reply) = member.awaiting_sync {
            out.answer_sync(reply, Err(Rejection::UnknownMemberId));
        }
        if let Some(instance_id) = &member.instance_id {
            self.static_members.remove(instance_id);
        }
        self.forget_pending_sync(member_id, out);
        if self.is_leader(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    pub(crate) fn forget_pending_sync(&mut self, member_id: &MemberId, out: &mut Outbox) {
        self.pending_sync.remove(member_id);
        if self.pending_sync.is_empty() {
            out.timers.cancel(&Timer::Sync(Arc::clone(&self.id)));
        }
    }

    pub(crate) fn note_subscriptions(&mut self) {
        self.subscribed_topics = self.read_subscriptions();
    }

    fn read_subscriptions(&self) -> Option<BTreeSet<TopicName>> {
        if self.protocol_type.as_deref() != Some(CONSUMER_PROTOCOL_TYPE) {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            topics.extend(subscribed_topics(&member.metadata(self.protocol.as_deref()?))?);
        }
        Some(topics)
    }

    /// The group's record, with each member's assignment as `assignment` says.
    pub(crate) fn record(&self, assignment: impl Fn(&MemberId, &Member) -> Bytes) -> GroupRecord {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let stored = |(id, member): (&MemberId, &Member)| StoredMember {
            member_id: Arc::clone(id),
            instance_id: member.instance_id.clone(),
            client_id: Arc::clone(&member.client_id),
            client_host: Arc::clone(&member.client_host),
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            session_timeout_ms: member.session_timeout_ms,
            subscription: member.metadata(protocol),
            assignment: assignment(id, member),
        };
        let value = StoredGroup {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_since_ms: self.state_since_ms,
            members: self.members.iter().map(stored).collect(),
        };
        GroupRecord::Group { group: Arc::clone(&self.id), value: Some(value) }
    }

    pub(crate) fn tombstone(&self) -> GroupRecord {
        GroupRecord::Group { group: Arc::clone(&self.id), value: None }
    }

    /// Takes over what is stored (`None` after a removal); offsets stay.
    pub(crate) fn restore(&mut self, stored: Option<&StoredGroup>) {
        let offsets = std::mem::take(&mut self.offsets);
        *self = Self { offsets, ..Self::new(Arc::clone(&self.id)) };
        let Some(stored) = stored else { return };
        self.state = if stored.members.is_empty() { GroupState::Empty } else { GroupState::Stable };
        self.state_since_ms = stored.state_since_ms;
        self.generation = stored.generation;
        self.protocol_type = Some(Arc::clone(&stored.protocol_type)).filter(|name| !name.is_empty());
        self.protocol = stored.protocol.clone();
        for member in &stored.members {
            self.restore_member(member);
        }
        let leader = stored.leader.clone().filter(|leader| self.members.contains_key(leader));
        self.leader = leader.or_else(|| self.members.keys().next().cloned());
        self.note_subscriptions();
    }

    fn restore_member(&mut self, stored: &StoredMember) {
        let name = self.protocol.clone().unwrap_or_default();
        let member = Member {
            instance_id: stored.instance_id.clone(),
            client_id: Arc::clone(&stored.client_id),
            client_host: Arc::clone(&stored.client_host),
            rebalance_timeout_ms: stored.rebalance_timeout_ms,
            session_timeout_ms: stored.session_timeout_ms,
            protocols: vec![Protocol { name, metadata: stored.subscription.clone() }],
            assignment: stored.assignment.clone(),
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
        };
        if let Some(instance_id) = &stored.instance_id {
            self.static_members.insert(Arc::clone(instance_id), Arc::clone(&stored.member_id));
        }
        self.members.insert(Arc::clone(&stored.member_id), member);
    }
}

/// The topics of a consumer's subscription, whatever its version; `None` when the bytes are something else.
fn subscribed_topics(metadata: &[u8]) -> Option<Vec<TopicName>> {
    let mut reader = Reader::new(metadata, "subscription");
    let version = reader.i16().ok()?;
    let count = reader.i32().ok()?;
    if version < 0 || count < 0 {
        return None;
    }
    (0..count).map(|_| reader.string().ok()).collect()
}
