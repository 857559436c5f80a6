//! `zurau can-stop`: whether a broker may be stopped now without taking a partition away from its users. The exit code
//! is 0 for yes and 1 for no, so that a rolling restart can wait for it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::admin::{self, Common, exit_code};
use crate::client::{Client, Partition, Topic};
use crate::configs::topic_configs;
use crate::table::{Table, ids};
use crate::topics::MinIsr;

/// Arguments of `zurau can-stop`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Id of the broker.
    broker: i32,
}

#[derive(Serialize)]
struct Document {
    broker: i32,
    can_stop: bool,
    /// Partitions with a replica on the broker.
    replicas: usize,
    blocking: Vec<Blocking>,
}

/// A partition that would suffer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Blocking {
    topic: String,
    partition: i32,
    /// `offline` or `under_min_isr`.
    reason: &'static str,
    isr: Vec<i32>,
    /// What would be left of the ISR.
    left: Vec<i32>,
    min_insync_replicas: usize,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("can-stop", work(arguments))
}

async fn work(Arguments { common, broker }: Arguments) -> Result<ExitCode> {
    let mut client = Client::new(&common);
    let cluster = client.cluster(None).await?;
    let live: Vec<i32> = cluster.brokers.iter().map(|broker| broker.broker).collect();
    if !live.contains(&broker) {
        bail!("broker {broker} is not alive; live brokers: {}", ids(&live));
    }
    let hosts =
        |topic: &&Topic| topic.partitions.iter().any(|partition| partition.replicas.contains(&broker));
    let topics: Vec<&Topic> = cluster.topics.iter().filter(hosts).collect();
    let names: Vec<String> = topics.iter().map(|topic| topic.topic.clone()).collect();
    let configs = topic_configs(&mut client, &names).await?;
    let min_isr: BTreeMap<&str, MinIsr> =
        configs.iter().map(|(name, entries)| (name.as_str(), MinIsr::of(entries))).collect();
    let mut blocking = Vec::new();
    let mut replicas = 0;
    for topic in topics {
        let min_isr = min_isr.get(topic.topic.as_str()).copied().unwrap_or(MinIsr(1));
        for partition in topic.partitions.iter().filter(|one| one.replicas.contains(&broker)) {
            replicas += 1;
            blocking.extend(suffers(&topic.topic, partition, broker, &live, min_isr));
        }
    }
    let document = Document { broker, can_stop: blocking.is_empty(), replicas, blocking };
    common.output.print(&document, table)?;
    Ok(exit_code(document.can_stop))
}

/// What the partition would lose with the broker. One that has lost it already is not the broker's fault, unless the
/// broker is in its ISR: then it is needed to get better.
fn suffers(
    topic: &str,
    partition: &Partition,
    broker: i32,
    live: &[i32],
    min_isr: MinIsr,
) -> Option<Blocking> {
    if !partition.isr.contains(&broker) {
        return None;
    }
    let left: Vec<i32> =
        partition.isr.iter().copied().filter(|id| *id != broker && live.contains(id)).collect();
    let wanted = min_isr.for_partition(partition);
    let reason = if left.is_empty() {
        "offline"
    } else if left.len() < wanted {
        "under_min_isr"
    } else {
        return None;
    };
    Some(Blocking {
        topic: topic.to_owned(),
        partition: partition.partition,
        reason,
        isr: partition.isr.clone(),
        left,
        min_insync_replicas: wanted,
    })
}

fn table(document: &Document) -> Table {
    let Document { broker, replicas, blocking, .. } = document;
    if blocking.is_empty() {
        let mut table = Table::default();
        table.note(format!(
            "broker {broker} can be stopped: each of its {replicas} replicas has enough others"
        ));
        return table;
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "WOULD BE", "ISR", "LEFT", "MIN ISR"]);
    for one in blocking {
        table.row([
            one.topic.clone(),
            one.partition.to_string(),
            one.reason.replace('_', " "),
            ids(&one.isr),
            ids(&one.left),
            one.min_insync_replicas.to_string(),
        ]);
    }
    table.note(format!(
        "broker {broker} must not be stopped: {} of its {replicas} replicas are needed. Wait until the others are in \
         sync, or move replicas with `zurau reassign`",
        blocking.len()
    ));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_needed_where_too_few_others_are_in_sync() {
        let partition = |replicas: &[i32], isr: &[i32]| Partition {
            partition: 0,
            leader: isr.first().copied(),
            leader_epoch: Some(0),
            replicas: replicas.to_vec(),
            isr: isr.to_vec(),
            offline_replicas: vec![],
        };
        let live = [1, 2, 3];
        let reason = |replicas: &[i32], isr: &[i32], min| {
            let found = suffers("t", &partition(replicas, isr), 1, &live, MinIsr(min));
            found.map(|blocking| blocking.reason)
        };
        for (replicas, isr, min, expected) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], 2, None),
            (&[1, 2, 3], &[1, 2], 2, Some("under_min_isr")),
            (&[1, 2, 3], &[1, 2], 1, None),
            (&[1, 2, 3], &[1], 1, Some("offline")),
            (&[1, 2, 3], &[2], 2, None),
            (&[1], &[1], 1, Some("offline")),
            // One replica cannot be two in sync (L8), yet it is the only one.
            (&[1, 2], &[1, 2], 2, Some("under_min_isr")),
            // 4 is in the ISR of the metadata, but gone.
            (&[1, 4], &[1, 4], 1, Some("offline")),
        ] {
            assert_eq!(reason(replicas, isr, min), expected, "{replicas:?} {isr:?} {min}");
        }
    }
}
