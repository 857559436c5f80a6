//! Consumer groups that are coordinated here: GroupMetadataManager's counts, group-coordinator-metrics, and what
//! kafka_exporter tells of groups.
//!
//! A lag is told only where the partition's end is known: from the replica here, or from its leader (`remote_ends`).

use std::collections::BTreeSet;

use tokio::runtime::Handle;
use zurau_common::http::exposition::{Exposition, Kind};
use zurau_common::id::TopicPartition;

use super::GroupCounters;
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
    happenings(context, page);
    let groups = groups.unwrap_or_default();
    let mut family = page.family("kafka_consumergroup_members", Kind::Gauge, "Members of a group.");
    for group in &groups {
        family.sample(&[("consumergroup", &*group.group)], group.members);
    }
    offsets(context, &groups, page);
}

/// Kafka tells their rates beside them; Prometheus makes these from the counts.
fn happenings(context: &BrokerContext, page: &mut Exposition) {
    let metrics = &context.shared.metrics;
    let GroupCounters {
        offset_commits,
        offset_deletions,
        offset_expirations,
        completed_rebalances,
        consumer_rebalances,
    } = &metrics.groups;
    for (name, help, counter) in [
        ("offset_commit", "Offsets committed.", offset_commits),
        ("offset_deletion", "Offsets that clients deleted.", offset_deletions),
        ("offset_expiration", "Offsets whose time was over.", offset_expirations),
        (
            "group_completed_rebalance",
            "Generations of classic groups that were assigned.",
            completed_rebalances,
        ),
        ("consumer_group_rebalance", "New epochs of groups of the consumer protocol.", consumer_rebalances),
    ] {
        page.counter(&format!("kafka_server_group_coordinator_metrics_{name}_count"), help, counter.get());
    }
    let help = "Loads of partitions of group coordinators.";
    let prefix = "kafka_server_group_coordinator_metrics_partition_load_time";
    metrics.group_loads.expose(page, prefix, help);
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

/// A series for each partition if the configuration asks for it; the sums for each topic, as kafka_exporter has them, in
/// any case.
fn offsets(context: &BrokerContext, groups: &[Summary], page: &mut Exposition) {
    let numbered: Vec<(&Summary, &TopicPartition, String, i64)> = groups
        .iter()
        .flat_map(|group| {
            group.offsets.iter().map(move |(id, offset)| (group, id, id.partition.to_string(), *offset))
        })
        .collect();
    let remote_ends = &context.shared.metrics.remote_ends;
    let mut elsewhere = BTreeSet::new();
    let mut lag = |id: &TopicPartition, offset: i64| {
        let end = local_end(context, id).or_else(|| {
            elsewhere.insert(id.clone());
            remote_ends.get(id)
        });
        // The end may be the older of the two numbers.
        end.map(|end| (end - offset).max(0))
    };
    let lags: Vec<Option<i64>> = numbered.iter().map(|(_, id, _, offset)| lag(id, *offset)).collect();
    remote_ends.want(elsewhere);
    if context.config.http_metrics_partitions {
        let help = "Offset that a group committed.";
        let mut family = page.family("kafka_consumergroup_current_offset", Kind::Gauge, help);
        for (group, id, number, offset) in &numbered {
            family.sample(&labels(group, id, number), *offset);
        }
        let help = "Records between a group's committed offset and the partition's high watermark.";
        let mut family = page.family("kafka_consumergroup_lag", Kind::Gauge, help);
        for ((group, id, number, _), lag) in numbered.iter().zip(&lags) {
            if let Some(lag) = lag {
                family.sample(&labels(group, id, number), *lag);
            }
        }
    }
    let known = numbered.iter().map(|(group, id, _, offset)| (*group, *id, *offset)).zip(lags);
    sums(&known.collect::<Vec<_>>(), page);
}

/// Committed offsets in the order of groups and topics, each with its lag.
type WithLag<'a> = ((&'a Summary, &'a TopicPartition, i64), Option<i64>);

fn sums(known: &[WithLag<'_>], page: &mut Exposition) {
    let of_one_topic = |((group, id, _), _): &WithLag<'_>, ((other_group, other, _), _): &WithLag<'_>| {
        group.group == other_group.group && id.topic == other.topic
    };
    let mut write = |name: &str, help: &str, sum: &dyn Fn(&[WithLag<'_>]) -> Option<i64>| {
        let mut family = page.family(name, Kind::Gauge, help);
        for topic in known.chunk_by(of_one_topic) {
            let (group, id, _) = topic[0].0;
            if let Some(sum) = sum(topic) {
                family.sample(&[("consumergroup", &*group.group), ("topic", &*id.topic)], sum);
            }
        }
    };
    let help = "Offsets that a group committed, summed over the partitions of a topic.";
    write("kafka_consumergroup_current_offset_sum", help, &|topic| {
        Some(topic.iter().map(|((_, _, offset), _)| offset).sum())
    });
    let help =
        "Lag of a group, summed over the partitions of a topic; left out while the end of one is not known.";
    write("kafka_consumergroup_lag_sum", help, &|topic| topic.iter().map(|(_, lag)| *lag).sum());
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
