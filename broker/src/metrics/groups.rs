//! Consumer groups that are coordinated here: GroupMetadataManager's counts, and what kafka_exporter tells of groups.
//! A lag is told only where the partition's end is known: from the replica here, or from its leader (`remote_ends`).

use std::collections::BTreeSet;

use tokio::runtime::Handle;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::id::TopicPartition;

use super::page::ANSWER_LIMIT;
use crate::context::BrokerContext;
use crate::groups::{GroupState, Summary};

/// Kafka's names for the groups in a state.
const STATES: [(&str, GroupState); 5] = [
    ("numgroupspreparingrebalance", GroupState::PreparingRebalance),
    ("numgroupscompletingrebalance", GroupState::CompletingRebalance),
    ("numgroupsstable", GroupState::Stable),
    ("numgroupsdead", GroupState::Dead),
    ("numgroupsempty", GroupState::Empty),
];

pub(super) fn write(context: &BrokerContext, page: &mut Exposition) {
    let mut groups = Handle::current().block_on(context.groups.observe(context, ANSWER_LIMIT));
    for group in groups.iter_mut().flatten() {
        group.offsets.sort_unstable();
    }
    if let Some(groups) = &mut groups {
        groups.sort_unstable_by(|one, other| one.group.cmp(&other.group));
    }
    counts(groups.as_deref(), page);
    let groups = groups.unwrap_or_default();
    let mut family = page.family("kafka_consumergroup_members", Kind::Gauge, "Members of a group.");
    for group in &groups {
        family.sample(&[("consumergroup", &*group.group)], group.members);
    }
    if context.config.http_metrics_partitions {
        offsets(context, &groups, page);
    }
}

/// `None`: not every coordinator has answered.
fn counts(groups: Option<&[Summary]>, page: &mut Exposition) {
    let mut count = |name: &str, help: &str, count: &dyn Fn(&[Summary]) -> usize| {
        let name = format!("kafka_coordinator_group_groupmetadatamanager_{name}");
        let mut family = page.family(&name, Kind::Gauge, help);
        if let Some(groups) = groups {
            family.sample(&[], count(groups));
        }
    };
    count("numgroups", "Groups that are coordinated here.", &<[Summary]>::len);
    for (name, state) in STATES {
        let help = format!("Groups in the state {}.", state.name());
        count(name, &help, &|groups| groups.iter().filter(|group| group.state == state).count());
    }
    count("numoffsets", "Committed offsets of the groups that are coordinated here.", &|groups| {
        groups.iter().map(|group| group.offsets.len()).sum()
    });
}

fn offsets(context: &BrokerContext, groups: &[Summary], page: &mut Exposition) {
    let numbered: Vec<(&Summary, &TopicPartition, String, i64)> = groups
        .iter()
        .flat_map(|group| {
            group.offsets.iter().map(move |(id, offset)| (group, id, id.partition.to_string(), *offset))
        })
        .collect();
    let help = "Offset that a group committed.";
    let mut family = page.family("kafka_consumergroup_current_offset", Kind::Gauge, help);
    for (group, id, number, offset) in &numbered {
        family.sample(&labels(group, id, number), *offset);
    }
    let remote_ends = &context.shared.metrics.remote_ends;
    let mut elsewhere = BTreeSet::new();
    let help = "Records between a group's committed offset and the partition's high watermark.";
    let mut family = page.family("kafka_consumergroup_lag", Kind::Gauge, help);
    for (group, id, number, offset) in &numbered {
        let end = local_end(context, id).or_else(|| {
            elsewhere.insert((*id).clone());
            remote_ends.get(id)
        });
        if let Some(end) = end {
            // The end may be the older of the two numbers.
            family.sample(&labels(group, id, number), (end - offset).max(0));
        }
    }
    remote_ends.want(elsewhere);
}

fn labels<'a>(group: &'a Summary, id: &'a TopicPartition, number: &'a str) -> [(&'static str, &'a str); 3] {
    [("consumergroup", &*group.group), ("topic", &*id.topic), ("partition", number)]
}

/// The high watermark, if this broker leads or is in sync.
fn local_end(context: &BrokerContext, id: &TopicPartition) -> Option<i64> {
    let partition = context.partitions.get(&id.topic, id.partition)?;
    let image = context.metadata.image();
    let is_in_sync = || {
        let known = image.partition(&id.topic, id.partition);
        known.is_some_and(|known| known.isr.contains(&context.shared.own))
    };
    if partition.is_leader() || is_in_sync() { partition.with_log(|log| log.high_watermark()) } else { None }
}
