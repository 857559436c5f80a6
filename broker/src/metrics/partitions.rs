//! A series for each partition (`http.metrics.partitions`): its log here, and, for those led here, what kafka_exporter
//! tells of it. Each partition is told of by its leader alone, so that sums over brokers are right.

use std::collections::BTreeMap;
use std::sync::Arc;

use zurau_common::http::exposition::{Exposition, Kind, LabelText};

use crate::context::BrokerContext;
use crate::fetchers::FollowerLag;
use crate::partition::{Leading, Observation, Partition};
use crate::partitions::ObservedMoves;

struct Row {
    labels: LabelText,
    seen: Observation,
    leader_is_preferred: Option<bool>,
}

pub(super) fn write(
    context: &BrokerContext,
    mut observed: Vec<(Arc<Partition>, Observation)>,
    moves: &ObservedMoves,
    page: &mut Exposition,
) {
    observed.retain(|(_, seen)| !seen.is_offline);
    observed.sort_by(|(left, _), (right, _)| left.id().cmp(right.id()));
    let image = context.metadata.image();
    let own = context.shared.own;
    let rows: Vec<Row> = observed
        .into_iter()
        .map(|(partition, seen)| {
            let id = partition.id();
            let preferred = image.partition(&id.topic, id.partition).and_then(|known| known.replicas.first());
            let leader_is_preferred = preferred.map(|preferred| *preferred == own);
            let number = id.partition.to_string();
            let labels = LabelText::new(&[("topic", &id.topic), ("partition", &number)]);
            Row { labels, seen, leader_is_preferred }
        })
        .collect();
    logs(&rows, page);
    led(&rows, own.0, page);
    lags(context, moves, page);
}

/// What each follower here lacks, and each copy of a replica that moves between log directories.
fn lags(context: &BrokerContext, moves: &ObservedMoves, page: &mut Exposition) {
    let help = "Records below the leader's high watermark that a follower here lacked when its leader last answered; records \
                that the copy of a replica lacks which moves to another log directory (in the order of log.dirs, from 0).";
    let mut family = page.family("kafka_server_fetcherlagmetrics_consumerlag", Kind::Gauge, help);
    let mut clients = BTreeMap::new();
    for FollowerLag { partition, leader, fetcher, lag } in context.control.fetchers.lags() {
        let client = clients
            .entry((fetcher, leader))
            .or_insert_with(|| format!("ReplicaFetcherThread-{fetcher}-{leader}"));
        let number = partition.partition.to_string();
        family.sample(&[("clientid", client), ("topic", &partition.topic), ("partition", &number)], lag);
    }
    for (partition, directory, lag) in &moves.lags {
        let (client, number) =
            (format!("ReplicaAlterLogDirsThread-{directory}"), partition.partition.to_string());
        let labels = [("clientid", client.as_str()), ("topic", &partition.topic), ("partition", &number)];
        family.sample(&labels, *lag);
    }
}

type Read = fn(&Observation) -> i64;
type ReadLed = fn(&Row, &Leading) -> Option<i64>;

fn logs(rows: &[Row], page: &mut Exposition) {
    let families: [(&str, &str, Read); 4] = [
        ("size", "Bytes of a log.", |seen| seen.size_bytes),
        ("logstartoffset", "First offset of a log.", |seen| seen.log_start_offset),
        ("logendoffset", "Offset after the last record of a log.", |seen| seen.log_end_offset),
        ("numlogsegments", "Segments of a log.", |seen| seen.segments),
    ];
    for (name, help, read) in families {
        let name = format!("kafka_log_log_{name}");
        let mut family = page.family(&name, Kind::Gauge, help);
        for row in rows {
            family.sample_of(&row.labels, read(&row.seen));
        }
    }
}

fn led(rows: &[Row], own: i32, page: &mut Exposition) {
    let families: [(&str, &str, ReadLed); 6] = [
        ("current_offset", "Offset up to which consumers can read.", |row, _| Some(row.seen.high_watermark)),
        ("oldest_offset", "First offset.", |row, _| Some(row.seen.log_start_offset)),
        ("replicas", "Replicas.", |_, leading| i64::try_from(leading.replicas).ok()),
        ("in_sync_replica", "Replicas in sync.", |_, leading| i64::try_from(leading.isr).ok()),
        ("leader_is_preferred", "1 if the preferred replica leads.", |row, _| {
            row.leader_is_preferred.map(i64::from)
        }),
        ("under_replicated_partition", "1 if a replica is not in sync.", |row, _| {
            Some(i64::from(row.seen.is_under_replicated()))
        }),
    ];
    let mut family = page.family("kafka_topic_partition_leader", Kind::Gauge, "Broker that leads.");
    for row in rows.iter().filter(|row| row.seen.leads.is_some()) {
        family.sample_of(&row.labels, i64::from(own));
    }
    for (name, help, read) in families {
        let name = format!("kafka_topic_partition_{name}");
        let mut family = page.family(&name, Kind::Gauge, help);
        for row in rows {
            let value = row.seen.leads.as_ref().and_then(|leading| read(row, leading));
            if let Some(value) = value {
                family.sample_of(&row.labels, value);
            }
        }
    }
}
