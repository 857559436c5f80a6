//! What the log says of a group of the consumer protocol: its members, what each shall have and what each has. It
//! changes by its records alone, so that a coordinator that replays the log holds what the one before it held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zurau_common::id::{TopicId, TopicName};

use super::member::ConsumerMember;
use super::partitions::Partitions;
use super::records::{ConsumerRecord, ResolvedRegex, TopicFacts};
use crate::groups::records::MemberId;

/// As clients see the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Empty,
    /// The targets are older than the group's epoch.
    Assigning,
    /// Members are on their way to their targets.
    Reconciling,
    Stable,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// A group as its records make it. Cheap to clone where little differs: what is large is shared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConsumerState {
    /// Raised whenever the members or what they read changes.
    pub(crate) epoch: i32,
    /// The epoch that `targets` were made for.
    pub(crate) target_epoch: i32,
    pub(crate) members: BTreeMap<MemberId, Arc<ConsumerMember>>,
    /// The ids of members that have an instance id.
    pub(crate) static_members: BTreeMap<Arc<str>, MemberId>,
    pub(crate) targets: BTreeMap<MemberId, Arc<Partitions>>,
    /// The topics that members read, as far as they exist.
    pub(crate) topics: Arc<BTreeMap<TopicName, TopicFacts>>,
    pub(crate) regexes: BTreeMap<Arc<str>, Arc<ResolvedRegex>>,
}

impl ConsumerState {
    /// A record of the log takes effect. What removes something that is not there does nothing.
    pub(crate) fn apply(&mut self, record: &ConsumerRecord) {
        match record {
            ConsumerRecord::Epoch(epoch) => self.epoch = epoch.unwrap_or(0),
            ConsumerRecord::TargetEpoch(epoch) => self.target_epoch = epoch.unwrap_or(0),
            ConsumerRecord::Topics(topics) => self.topics = Arc::new(topics.clone().unwrap_or_default()),
            ConsumerRecord::Member(id, Some(subscription)) => {
                if let Some(instance_id) = &subscription.instance_id {
                    self.static_members.insert(Arc::clone(instance_id), Arc::clone(id));
                }
                self.member_mut(id).subscription = subscription.as_ref().clone();
            }
            ConsumerRecord::Member(id, None) => {
                let removed = self.members.remove(id);
                if let Some(instance_id) = removed.and_then(|member| member.subscription.instance_id.clone())
                    && self.static_members.get(&instance_id) == Some(id)
                {
                    self.static_members.remove(&instance_id);
                }
            }
            ConsumerRecord::Target(id, Some(target)) => {
                self.targets.insert(Arc::clone(id), Arc::new(target.clone()));
            }
            ConsumerRecord::Target(id, None) => {
                self.targets.remove(id);
            }
            ConsumerRecord::Current(id, Some(current)) => self.member_mut(id).current = current.clone(),
            ConsumerRecord::Current(id, None) => {
                if self.members.contains_key(id) {
                    self.member_mut(id).current = super::member::CurrentAssignment::default();
                }
            }
            ConsumerRecord::Regex(regex, Some(resolved)) => {
                self.regexes.insert(Arc::clone(regex), Arc::new(resolved.clone()));
            }
            ConsumerRecord::Regex(regex, None) => {
                self.regexes.remove(regex);
            }
        }
    }

    fn member_mut(&mut self, id: &MemberId) -> &mut ConsumerMember {
        Arc::make_mut(self.members.entry(Arc::clone(id)).or_default())
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.members.is_empty() {
            Phase::Empty
        } else if self.target_epoch < self.epoch {
            Phase::Assigning
        } else if self.members.values().all(|member| member.current.is_reconciled_to(self.target_epoch)) {
            Phase::Stable
        } else {
            Phase::Reconciling
        }
    }

    /// The topics of a member, by name and by its regular expression.
    pub(crate) fn topics_of<'a>(&'a self, member: &'a ConsumerMember) -> impl Iterator<Item = &'a TopicName> {
        let resolved = member.subscription.regex.as_ref().and_then(|regex| self.regexes.get(regex));
        member.subscription.topics.iter().chain(resolved.into_iter().flat_map(|resolved| &resolved.topics))
    }

    /// The topics of all members, whether they exist or not.
    pub(crate) fn subscribed_topics(&self) -> BTreeSet<&TopicName> {
        self.members.values().flat_map(|member| self.topics_of(member)).collect()
    }

    pub(crate) fn has_subscribed(&self, topic: &TopicName) -> bool {
        self.members.values().any(|member| self.topics_of(member).any(|subscribed| subscribed == topic))
    }

    /// Whether somebody else than `member` has, or may still have, the partition.
    pub(crate) fn is_held_by_another(&self, member: &MemberId, topic: TopicId, partition: i32) -> bool {
        self.members.iter().any(|(id, other)| id != member && other.holds(topic, partition))
    }

    /// What removes the member.
    pub(crate) fn member_tombstones(id: &MemberId) -> [ConsumerRecord; 3] {
        [
            ConsumerRecord::Current(Arc::clone(id), None),
            ConsumerRecord::Target(Arc::clone(id), None),
            ConsumerRecord::Member(Arc::clone(id), None),
        ]
    }

    /// What removes the group, in the order in which Kafka wants it.
    pub(crate) fn tombstones(&self) -> Vec<ConsumerRecord> {
        let mut records: Vec<ConsumerRecord> = Vec::new();
        records.extend(self.members.keys().map(|id| ConsumerRecord::Current(Arc::clone(id), None)));
        records.extend(self.targets.keys().map(|id| ConsumerRecord::Target(Arc::clone(id), None)));
        records.push(ConsumerRecord::TargetEpoch(None));
        records.extend(self.members.keys().map(|id| ConsumerRecord::Member(Arc::clone(id), None)));
        records.extend(self.regexes.keys().map(|regex| ConsumerRecord::Regex(Arc::clone(regex), None)));
        records.push(ConsumerRecord::Topics(None));
        records.push(ConsumerRecord::Epoch(None));
        records
    }
}
