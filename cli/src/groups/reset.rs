//! `zurau groups reset-offsets`: shows, or with `--execute` commits, other offsets for a group without members.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use zurau_common::id::TopicPartition;

use super::describe::one;
use super::goal::{Goal, Known, parse_datetime, parse_duration};
use super::offsets::{Committed, Committer, commit, committed};
use crate::admin::{Common, exit_code, usage};
use crate::client::{Client, EARLIEST, LATEST};
use crate::table::{Table, known};

#[derive(Args, Debug)]
pub(super) struct ResetArguments {
    #[arg(value_name = "GROUP", required_unless_present = "flag")]
    word: Option<String>,
    #[arg(long = "group", value_name = "GROUP", conflicts_with = "word")]
    flag: Option<String>,
    /// A topic, or some of its partitions as TOPIC:0,1; may be repeated.
    #[arg(long, required_unless_present = "all_topics", value_parser = parse_topic)]
    topic: Vec<(String, Vec<i32>)>,
    /// Every topic that the group has offsets of.
    #[arg(long, conflicts_with = "topic")]
    all_topics: bool,
    #[command(flatten)]
    goal: GoalFlags,
    /// Commit the offsets.
    #[arg(long)]
    execute: bool,
    /// Only show them; so it is without --execute.
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct GoalFlags {
    #[arg(long)]
    to_earliest: bool,
    #[arg(long)]
    to_latest: bool,
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<i64>,
    /// Forwards, or backwards with a minus.
    #[arg(long, value_name = "RECORDS", allow_hyphen_values = true)]
    shift_by: Option<i64>,
    /// For instance 2026-11-30T06:25:00Z; without a zone it is UTC.
    #[arg(long, value_name = "TIME", value_parser = parse_datetime)]
    to_datetime: Option<i64>,
    /// That long ago, for instance PT1H30M or 1h30m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    by_duration: Option<i64>,
    /// Where it is, but within what the log holds.
    #[arg(long)]
    to_current: bool,
}

impl GoalFlags {
    fn goal(&self, now_ms: i64) -> Goal {
        if self.to_earliest {
            return Goal::Earliest;
        }
        if self.to_latest {
            return Goal::Latest;
        }
        let goal = self.to_offset.map(Goal::Offset).or(self.shift_by.map(Goal::ShiftBy));
        let since = self.by_duration.map(|millis| now_ms.saturating_sub(millis));
        goal.or(self.to_datetime.or(since).map(Goal::Time)).unwrap_or(Goal::Current)
    }
}

/// Parses `TOPIC` or `TOPIC:0,1`.
fn parse_topic(text: &str) -> Result<(String, Vec<i32>), String> {
    let Some((topic, numbers)) = text.split_once(':') else { return Ok((text.to_owned(), Vec::new())) };
    let numbers: Result<Vec<i32>, _> = numbers.split(',').map(str::parse).collect();
    let numbers = numbers.map_err(|_| format!("'{text}' is not TOPIC or TOPIC:0,1"))?;
    Ok((topic.to_owned(), numbers))
}

#[derive(Serialize)]
struct Document {
    group: String,
    /// Whether the offsets were committed.
    executed: bool,
    offsets: Vec<Reset>,
}

#[derive(Serialize)]
struct Reset {
    topic: String,
    partition: i32,
    old_offset: Option<i64>,
    new_offset: i64,
}

pub(super) async fn reset(
    client: &mut Client,
    common: &Common,
    arguments: &ResetArguments,
) -> Result<ExitCode> {
    let Some(group) = arguments.word.as_ref().or(arguments.flag.as_ref()) else {
        return Err(usage("name the group"));
    };
    let committed = committed(client, group).await?;
    if arguments.execute && !committed.is_empty() {
        let state = one(client, group).await?.state;
        if state != "Empty" && state != "Dead" {
            bail!(
                "group {group} is {state}: its members would go on from where they are; stop them first \
                 (`zurau groups describe {group} --members` names them)"
            );
        }
    }
    let partitions = partitions(client, arguments, &committed).await?;
    if partitions.is_empty() {
        bail!("group {group} has no offsets; name topics with --topic");
    }
    let goal = arguments.goal.goal(Timestamp::now().as_millisecond());
    let offsets = compute(client, &partitions, &committed, goal).await?;
    if arguments.execute {
        commit(client, group, &Committer::nobody(), &offsets).await?;
    }
    let document = Document {
        group: group.clone(),
        executed: arguments.execute,
        offsets: offsets
            .iter()
            .map(|(id, offset)| Reset {
                topic: id.topic.to_string(),
                partition: id.partition,
                old_offset: committed.get(id).map(|found| found.offset),
                new_offset: *offset,
            })
            .collect(),
    };
    common.output.print(&document, table)?;
    Ok(exit_code(true))
}

async fn partitions(
    client: &mut Client,
    arguments: &ResetArguments,
    committed: &BTreeMap<TopicPartition, Committed>,
) -> Result<BTreeSet<TopicPartition>> {
    if arguments.all_topics {
        return Ok(committed.keys().cloned().collect());
    }
    let names: Vec<String> = arguments.topic.iter().map(|(topic, _)| topic.clone()).collect();
    let cluster = client.cluster(Some(&names)).await?;
    let mut partitions = BTreeSet::new();
    for (topic, numbers) in &arguments.topic {
        let all =
            || cluster.topic(topic).map(|found| found.partitions.iter().map(|one| one.partition).collect());
        let numbers = if numbers.is_empty() { all()? } else { numbers.clone() };
        for number in numbers {
            cluster.partition(topic, number)?;
            partitions.insert(TopicPartition::new(topic.as_str(), number));
        }
    }
    Ok(partitions)
}

async fn compute(
    client: &mut Client,
    partitions: &BTreeSet<TopicPartition>,
    committed: &BTreeMap<TopicPartition, Committed>,
    goal: Goal,
) -> Result<BTreeMap<TopicPartition, i64>> {
    let at = |time: i64| partitions.iter().map(|id| (id.clone(), time)).collect::<BTreeMap<_, _>>();
    let earliest = client.offsets(&at(EARLIEST), false).await?;
    let latest = client.offsets(&at(LATEST), false).await?;
    let at_time = match goal {
        Goal::Time(time) => client.offsets(&at(time), false).await?,
        _ => BTreeMap::new(),
    };
    let mut offsets = BTreeMap::new();
    for id in partitions {
        let of = |found: &BTreeMap<TopicPartition, Option<i64>>| found.get(id).copied().flatten();
        let known = Known {
            earliest: of(&earliest).unwrap_or(0),
            latest: of(&latest).unwrap_or(0),
            committed: committed.get(id).map(|found| found.offset),
            at_time: of(&at_time),
        };
        match goal.offset(known) {
            Ok(offset) => offsets.insert(id.clone(), offset),
            Err(why) => bail!("{id}: {why}"),
        };
    }
    Ok(offsets)
}

fn table(document: &Document) -> Table {
    let mut table = Table::new(&["TOPIC", "PARTITION", "OLD OFFSET", "NEW OFFSET"]);
    for reset in &document.offsets {
        table.row([
            reset.topic.clone(),
            reset.partition.to_string(),
            known(reset.old_offset),
            reset.new_offset.to_string(),
        ]);
    }
    table.note(match document.executed {
        true => format!("group {} goes on from the new offsets", document.group),
        false => "nothing was changed; --execute commits the new offsets".to_owned(),
    });
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_name_its_partitions() {
        assert_eq!(parse_topic("t"), Ok(("t".to_owned(), vec![])));
        assert_eq!(parse_topic("t:0,2"), Ok(("t".to_owned(), vec![0, 2])));
        assert!(parse_topic("t:x").is_err());
    }
}
