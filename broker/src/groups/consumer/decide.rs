//! What a heartbeat, a leave or a silence does to a group: the records to write, and the answer once they are written.
//! A heartbeat notes what its member says, makes new targets if the group has changed, and brings its own member a
//! step nearer to its target. Each record takes effect as it is decided, so that the next request is decided from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use regex::RegexBuilder;
use zurau_common::id::{TopicId, TopicName};
use zurau_common::rejection::Rejection;

use super::assignor::{Assignor, Reader};
use super::member::{
    ConsumerMember, CurrentAssignment, Goal, LEAVE_EPOCH, MemberState, STATIC_LEAVE_EPOCH, Subscription,
};
use super::partitions::Partitions;
use super::records::{ConsumerRecord, ResolvedRegex, TopicFacts};
use super::request::{ConsumerHeartbeatAnswer, ConsumerHeartbeatRequest, ConsumerRefusal, HeartbeatOutcome};
use super::state::ConsumerState;
use crate::groups::outbox::{Effect, GroupSettings, Now, Outbox, Timer};
use crate::groups::records::{GroupId, MemberId};
use crate::metadata::MetadataImage;

/// How long a topic must be missing in the metadata before its partitions are taken away: the metadata of a broker that
/// was just started may come in several parts.
const MISSING_TOPIC_GRACE_MS: i64 = 10_000;
/// Memory of a compiled regular expression.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// What of the metadata a group has taken into account.
#[derive(Debug, Default)]
pub(crate) struct TopicsView {
    image: Option<Arc<MetadataImage>>,
    missing_since_ms: Option<i64>,
}

/// The requests that become one write.
pub(crate) struct Decision<'a> {
    pub(crate) group: &'a GroupId,
    pub(crate) state: &'a mut Arc<ConsumerState>,
    pub(crate) view: &'a mut TopicsView,
    pub(crate) now: Now,
    pub(crate) out: &'a mut Outbox,
    pub(crate) records: &'a mut Vec<ConsumerRecord>,
}

impl Decision<'_> {
    fn record(&mut self, record: ConsumerRecord) {
        Arc::make_mut(self.state).apply(&record);
        self.records.push(record);
    }

    pub(crate) fn heartbeat(&mut self, request: &ConsumerHeartbeatRequest) -> HeartbeatOutcome {
        if request.epoch < 0 {
            return self.leave(request);
        }
        let id = self.admit(request)?;
        let before = self.state.members.get(&id).map(|member| member.current.assigned.clone());
        let changed = self.note_subscription(&id, request);
        self.look_at_topics(changed.then(|| format!("member {id} subscribes")));
        self.make_targets();
        self.reconcile(&id, request.owned.as_ref())?;
        self.touch(&id);
        let current = &self.state.members[&id].current;
        let is_told = request.is_full() || before.as_ref() != Some(&current.assigned);
        Ok(ConsumerHeartbeatAnswer {
            epoch: current.epoch,
            interval_ms: self.out.consumer_heartbeat_interval_ms(self.group),
            assignment: is_told.then(|| current.assigned.clone()),
            member_id: id,
        })
    }

    /// The id of the member whose heartbeat this is. A static member that comes back takes its old place.
    fn admit(&mut self, request: &ConsumerHeartbeatRequest) -> Result<MemberId, ConsumerRefusal> {
        if let Some(regex) = request.regex.as_deref().filter(|regex| !regex.is_empty()) {
            compile(regex)
                .map_err(|problem| ConsumerRefusal::new(Rejection::InvalidRegularExpression, problem))?;
        }
        let id = request.fresh_id.as_ref().unwrap_or(&request.member_id);
        let former = request.instance_id.as_ref().map(|instance| self.state.static_members.get(instance));
        let joins = request.epoch == 0;
        match former {
            Some(Some(former)) if former == id => self.check_epoch_of(id, request)?,
            Some(Some(former)) if joins => {
                let former = Arc::clone(former);
                if self.state.members[&former].current.epoch != STATIC_LEAVE_EPOCH {
                    let message = format!("the instance id is used by member {former}, which has not left");
                    return Err(ConsumerRefusal::new(Rejection::UnreleasedInstanceId, message));
                }
                self.replace(&former, id);
            }
            Some(Some(former)) => {
                let message = format!("the instance id is used by member {former}");
                return Err(ConsumerRefusal::new(Rejection::FencedInstanceId, message));
            }
            Some(None) if !joins => {
                return Err(ConsumerRefusal::new(Rejection::UnknownMemberId, "the instance id is unknown"));
            }
            Some(None) | None if self.state.members.contains_key(id) => self.check_epoch_of(id, request)?,
            Some(None) | None if joins => self.check_room()?,
            Some(None) | None => return Err(unknown(id)),
        }
        Ok(Arc::clone(id))
    }

    fn check_room(&self) -> Result<(), ConsumerRefusal> {
        let size_max = self.out.settings.consumer_size_max;
        if self.state.members.len() < size_max {
            return Ok(());
        }
        let message = format!("the group has as many members as group.consumer.max.size allows ({size_max})");
        Err(ConsumerRefusal::new(Rejection::GroupMaxSizeReached, message))
    }

    /// The epoch must be the member's, or the one before if what it owns fits into what it was given: then the answer
    /// with the new epoch was lost.
    fn check_epoch_of(
        &mut self,
        id: &MemberId,
        request: &ConsumerHeartbeatRequest,
    ) -> Result<(), ConsumerRefusal> {
        let current = &self.state.members[id].current;
        if current.epoch == STATIC_LEAVE_EPOCH && request.epoch == 0 {
            // It left for a while and is back under the same id.
            let id = Arc::clone(id);
            self.replace(&id, &id);
            return Ok(());
        }
        let owned_fits = || request.owned.as_ref().is_some_and(|owned| owned.is_subset_of(&current.assigned));
        let is_retry =
            request.epoch < current.epoch && request.epoch == current.previous_epoch && owned_fits();
        if request.epoch == current.epoch || is_retry {
            return Ok(());
        }
        let message = format!(
            "the member's epoch is {}, not {}; it must give up its partitions and join again",
            current.epoch, request.epoch
        );
        Err(ConsumerRefusal::new(Rejection::FencedMemberEpoch, message))
    }

    /// A static member came back with another id: the new id gets everything of the old one, and joins with it.
    fn replace(&mut self, former: &MemberId, id: &MemberId) {
        let member = Arc::clone(&self.state.members[former]);
        let target = self.state.targets.get(former).map(|target| Partitions::clone(target));
        for tombstone in ConsumerState::member_tombstones(former) {
            self.record(tombstone);
        }
        self.cancel_timers(former);
        self.record(ConsumerRecord::Member(Arc::clone(id), Some(Box::new(member.subscription.clone()))));
        self.record(ConsumerRecord::Target(Arc::clone(id), Some(target.unwrap_or_default())));
        let current = CurrentAssignment { epoch: 0, previous_epoch: 0, ..member.current.clone() };
        self.record(ConsumerRecord::Current(Arc::clone(id), Some(current)));
    }

    /// Returns whether the member reads other topics than before.
    fn note_subscription(&mut self, id: &MemberId, request: &ConsumerHeartbeatRequest) -> bool {
        let known = self.state.members.get(id).map(|member| member.subscription.clone());
        let is_new = known.is_none();
        let old = known.unwrap_or_default();
        let new = Subscription {
            instance_id: request.instance_id.clone().or_else(|| old.instance_id.clone()),
            rack_id: request.rack_id.clone().or_else(|| old.rack_id.clone()),
            client_id: Arc::clone(&request.client_id),
            client_host: Arc::clone(&request.client_host),
            topics: request.topics.clone().unwrap_or_else(|| old.topics.clone()),
            regex: match &request.regex {
                Some(regex) => Some(Arc::clone(regex)).filter(|regex| !regex.is_empty()),
                None => old.regex.clone(),
            },
            rebalance_timeout_ms: request.rebalance_timeout_ms.unwrap_or(old.rebalance_timeout_ms),
            assignor: request.assignor.clone().or_else(|| old.assignor.clone()),
        };
        let reads_others = is_new || new.topics != old.topics || new.regex != old.regex;
        if is_new || new != old {
            self.record(ConsumerRecord::Member(Arc::clone(id), Some(Box::new(new))));
        }
        reads_others
    }

    /// Compares the topics that members read with the metadata, and raises the group's epoch if they differ from what
    /// the group knows, or for the `reason` that there is already.
    fn look_at_topics(&mut self, mut reason: Option<String>) {
        let image = Arc::clone(&self.out.topics);
        let is_new_image = self.view.image.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &image));
        if reason.is_some() || is_new_image || self.view.missing_since_ms.is_some() {
            let lost = self.lost_topics(&image);
            if self.resolve_regexes(&image, &lost) {
                reason.get_or_insert_with(|| "a regular expression stands for other topics".to_owned());
            }
            let topics = self.topics_now(&image, &lost);
            if topics != *self.state.topics {
                self.record(ConsumerRecord::Topics(Some(topics)));
                reason.get_or_insert_with(|| "topics have changed".to_owned());
            }
            self.view.image = Some(image);
        }
        if let Some(reason) = reason {
            self.raise_epoch(reason);
        }
    }

    fn raise_epoch(&mut self, reason: String) {
        // After 2^31 changes the number starts again.
        let epoch = self.state.epoch.checked_add(1).unwrap_or(1);
        self.record(ConsumerRecord::Epoch(Some(epoch)));
        self.out.tally.rebalances_begun += 1;
        self.out.effects.push(Effect::Rebalances {
            group: Arc::clone(self.group),
            epoch,
            members: self.state.members.len(),
            reason,
        });
    }

    /// Topics that the metadata lacks since too short a time to believe that they are gone.
    fn lost_topics(&mut self, image: &MetadataImage) -> BTreeMap<TopicName, TopicFacts> {
        let known = self.state.topics.iter();
        let lost: BTreeMap<TopicName, TopicFacts> = known
            .filter(|(name, _)| image.topic(name).is_none())
            .map(|(name, facts)| (Arc::clone(name), *facts))
            .collect();
        let now_ms = self.now.elapsed_ms;
        let since_ms = *self.view.missing_since_ms.get_or_insert(now_ms);
        if lost.is_empty() || MISSING_TOPIC_GRACE_MS <= now_ms - since_ms {
            self.view.missing_since_ms = None;
            return BTreeMap::new();
        }
        lost
    }

    /// Returns whether a regular expression stands for other topics than before.
    fn resolve_regexes(&mut self, image: &MetadataImage, lost: &BTreeMap<TopicName, TopicFacts>) -> bool {
        let used: BTreeSet<Arc<str>> =
            self.state.members.values().filter_map(|member| member.subscription.regex.clone()).collect();
        let unused: Vec<Arc<str>> =
            self.state.regexes.keys().filter(|regex| !used.contains(*regex)).cloned().collect();
        for regex in unused {
            self.record(ConsumerRecord::Regex(regex, None));
        }
        let mut changed = false;
        for text in used {
            let known = self.state.regexes.get(&text).map(|resolved| &resolved.topics);
            // What another broker took for valid may not be so here; it stands for nothing then.
            let mut topics: BTreeSet<TopicName> = compile(&text).map_or_else(
                |_| BTreeSet::new(),
                |regex| {
                    let names = image.topics().map(|topic| &topic.name);
                    names.filter(|name| regex.is_match(name)).cloned().collect()
                },
            );
            topics.extend(known.into_iter().flatten().filter(|topic| lost.contains_key(*topic)).cloned());
            if known != Some(&topics) {
                let resolved = ResolvedRegex { topics, resolved_ms: self.now.wall_ms };
                self.record(ConsumerRecord::Regex(text, Some(resolved)));
                changed = true;
            }
        }
        changed
    }

    fn topics_now(
        &self,
        image: &MetadataImage,
        lost: &BTreeMap<TopicName, TopicFacts>,
    ) -> BTreeMap<TopicName, TopicFacts> {
        let facts = |name: &TopicName| {
            let Some(topic) = image.topic(name) else { return lost.get(name).copied() };
            let mut partitions = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
            if let Some(known) = self.state.topics.get(name).filter(|known| known.id == topic.topic_id) {
                // Partitions are never taken away from a topic.
                partitions = partitions.max(known.partitions);
            }
            Some(TopicFacts { id: topic.topic_id, partitions })
        };
        let subscribed = self.state.subscribed_topics();
        subscribed.into_iter().filter_map(|name| Some((Arc::clone(name), facts(name)?))).collect()
    }

    /// Makes targets for the group's epoch, if those that there are were made for an older one.
    fn make_targets(&mut self) {
        let state = Arc::clone(self.state);
        if state.target_epoch == state.epoch {
            return;
        }
        let nothing = Partitions::default();
        let ids_of = |member: &ConsumerMember| -> BTreeSet<TopicId> {
            state.topics_of(member).filter_map(|name| state.topics.get(name)).map(|facts| facts.id).collect()
        };
        let readers: Vec<Reader<'_>> = state
            .members
            .iter()
            .map(|(id, member)| Reader {
                member_id: id,
                instance_id: member.subscription.instance_id.as_deref(),
                topics: ids_of(member),
                previous: state.targets.get(id).map_or(&nothing, |target| &**target),
            })
            .collect();
        let topics: BTreeMap<TopicId, i32> =
            state.topics.values().map(|facts| (facts.id, facts.partitions)).collect();
        let parts = assignor(&state, &self.out.settings).assign(&readers, &topics);
        for (id, part) in state.members.keys().zip(parts) {
            if state.targets.get(id).is_none_or(|target| **target != part) {
                self.record(ConsumerRecord::Target(Arc::clone(id), Some(part)));
            }
        }
        self.record(ConsumerRecord::TargetEpoch(Some(state.epoch)));
    }

    fn reconcile(&mut self, id: &MemberId, owned: Option<&Partitions>) -> Result<(), ConsumerRefusal> {
        let state = Arc::clone(self.state);
        let member = &state.members[id];
        if member.current.is_reconciled_to(state.target_epoch) {
            return Ok(());
        }
        let nothing = Partitions::default();
        let goal = Goal {
            epoch: state.target_epoch,
            target: state.targets.get(id).map_or(&nothing, |target| &**target),
            owned,
            is_held_by_another: |topic, partition| state.is_held_by_another(id, topic, partition),
        };
        let next = member.current.step_to(&goal).ok_or_else(|| {
            let message = "the state of the member is not understood; it must join again without partitions";
            ConsumerRefusal::new(Rejection::FencedMemberEpoch, message)
        })?;
        if next == member.current {
            return Ok(());
        }
        let timer = Timer::Revocation(Arc::clone(self.group), Arc::clone(id));
        if next.state == MemberState::UnrevokedPartitions {
            let timeout_ms = i64::from(member.subscription.rebalance_timeout_ms.max(0));
            self.out.timers.set(timer, self.now.elapsed_ms + timeout_ms);
        } else {
            self.out.timers.cancel(&timer);
        }
        self.record(ConsumerRecord::Current(Arc::clone(id), Some(next)));
        Ok(())
    }

    fn leave(&mut self, request: &ConsumerHeartbeatRequest) -> HeartbeatOutcome {
        let id = &request.member_id;
        if let Some(instance_id) = &request.instance_id {
            let current = self.state.static_members.get(instance_id);
            let current = current.ok_or_else(|| {
                ConsumerRefusal::new(Rejection::UnknownMemberId, "the instance id is unknown")
            })?;
            if current != id {
                let message = format!("the instance id is used by member {current}");
                return Err(ConsumerRefusal::new(Rejection::FencedInstanceId, message));
            }
        }
        let member = self.state.members.get(id).cloned().ok_or_else(|| unknown(id))?;
        if request.epoch == LEAVE_EPOCH {
            self.fence(id, format!("member {id} leaves"));
        } else {
            let timer = Timer::Revocation(Arc::clone(self.group), Arc::clone(id));
            self.out.timers.cancel(&timer);
            let left = CurrentAssignment {
                epoch: STATIC_LEAVE_EPOCH,
                pending_revocation: Partitions::default(),
                ..member.current.clone()
            };
            self.record(ConsumerRecord::Current(Arc::clone(id), Some(left)));
        }
        Ok(ConsumerHeartbeatAnswer {
            member_id: Arc::clone(id),
            epoch: request.epoch,
            interval_ms: 0,
            assignment: None,
        })
    }

    /// Takes a member out, with all that it has. The next heartbeat of another makes targets without it.
    pub(crate) fn fence(&mut self, id: &MemberId, reason: String) {
        self.cancel_timers(id);
        for tombstone in ConsumerState::member_tombstones(id) {
            self.record(tombstone);
        }
        let subscribed = self.state.subscribed_topics();
        let mut topics = BTreeMap::clone(&self.state.topics);
        topics.retain(|name, _| subscribed.contains(name));
        if topics != *self.state.topics {
            self.record(ConsumerRecord::Topics(Some(topics)));
        }
        self.raise_epoch(reason);
    }

    fn touch(&mut self, id: &MemberId) {
        let due_ms = self.now.elapsed_ms + self.out.consumer_session_timeout_ms(self.group);
        self.out.timers.set(Timer::Session(Arc::clone(self.group), Arc::clone(id)), due_ms);
    }

    fn cancel_timers(&mut self, id: &MemberId) {
        self.out.timers.cancel(&Timer::Session(Arc::clone(self.group), Arc::clone(id)));
        self.out.timers.cancel(&Timer::Revocation(Arc::clone(self.group), Arc::clone(id)));
    }
}

fn unknown(id: &MemberId) -> ConsumerRefusal {
    ConsumerRefusal::new(Rejection::UnknownMemberId, format!("{id} is not a member of the group"))
}

/// The expression as it is matched: against the whole name, as in Kafka.
fn compile(text: &str) -> Result<regex::Regex, String> {
    let build = |text: &str| RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
    build(text).and_then(|_| build(&format!(r"\A(?:{text})\z"))).map_err(|problem| problem.to_string())
}

/// What most members wish among what is offered; of two, the one that is offered first.
pub(crate) fn assignor(state: &ConsumerState, settings: &GroupSettings) -> Assignor {
    let offered = &settings.consumer_assignors;
    let votes = |assignor: &Assignor| {
        let wishes = state.members.values().filter_map(|member| member.subscription.assignor.as_deref());
        wishes.filter(|wish| *wish == assignor.name()).count()
    };
    let first = offered.first().copied().unwrap_or(Assignor::Uniform);
    offered.iter().copied().fold(first, |best, next| if votes(&best) < votes(&next) { next } else { best })
}
