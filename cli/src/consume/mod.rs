//! `zurau consume`: records to standard output, from some partitions or as a member of a group.

mod assign;
mod fetch;
mod member;
mod print;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use tokio::time::{Instant, sleep};
use zurau_common::id::TopicPartition;
use zurau_common::process::StopSignals;

use self::fetch::{Positions, Reader};
use self::member::{Member, is_forgotten, is_rebalance};
use self::print::{Fields, json_line, text};
use crate::admin::{self, Common, Output, exit_code, usage};
use crate::client::{Client, EARLIEST, LATEST};
use crate::groups::{commit, committed};

/// How often a group's progress is stored, and how long a member without partitions waits before it looks again.
const COMMIT_EVERY: Duration = Duration::from_secs(5);
const IDLE_PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `zurau consume`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    #[arg(value_name = "TOPIC", required_unless_present = "flag")]
    word: Option<String>,
    #[arg(long = "topic", value_name = "TOPIC", conflicts_with = "word")]
    flag: Option<String>,
    /// Only these partitions.
    #[arg(long, value_delimiter = ',', conflicts_with = "group")]
    partition: Vec<i32>,
    /// Share the partitions with the other members of this group, and go on where it has come to.
    #[arg(long, short = 'g')]
    group: Option<String>,
    /// Begin with the oldest record; in a group only where nothing is committed.
    #[arg(long)]
    from_beginning: bool,
    /// Begin here: `beginning`, `end`, an offset, or so many records before the end as -N.
    #[arg(long, value_parser = parse_start, allow_hyphen_values = true, conflicts_with_all = ["group", "from_beginning"])]
    offset: Option<Start>,
    /// End after so many records.
    #[arg(long, short = 'n', value_name = "RECORDS")]
    max_messages: Option<u64>,
    /// End at what is the end of the partitions at the start.
    #[arg(long, short = 'e')]
    exit: bool,
    /// End when no record has come for so long; the exit code is 0 all the same.
    #[arg(long, value_name = "MILLISECONDS")]
    timeout_ms: Option<u64>,
    /// Whether records of transactions that are open or were aborted are shown.
    #[arg(long, value_enum, alias = "isolation-level", default_value_t = Isolation::ReadUncommitted)]
    isolation: Isolation,
    #[command(flatten)]
    fields: Fields,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Isolation {
    #[value(alias = "read_uncommitted")]
    ReadUncommitted,
    #[value(alias = "read_committed")]
    ReadCommitted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Beginning,
    End,
    At(i64),
    BeforeEnd(i64),
}

fn parse_start(text: &str) -> Result<Start, String> {
    let number = || text.parse::<i64>().map_err(|_| format!("'{text}' is not beginning, end or a number"));
    match text {
        "beginning" | "earliest" => Ok(Start::Beginning),
        "end" | "latest" => Ok(Start::End),
        _ => number().map(|offset| if offset < 0 { Start::BeforeEnd(-offset) } else { Start::At(offset) }),
    }
}

impl Arguments {
    fn start(&self) -> Start {
        let default = if self.from_beginning { Start::Beginning } else { Start::End };
        self.offset.unwrap_or(default)
    }

    fn committed_only(&self) -> bool {
        self.isolation == Isolation::ReadCommitted
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    admin::run("consume", work(arguments))
}

async fn work(arguments: Arguments) -> Result<ExitCode> {
    let Some(topic) = arguments.word.clone().or_else(|| arguments.flag.clone()) else {
        return Err(usage("name the topic"));
    };
    let mut signals = StopSignals::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let mut client = Client::new(&arguments.common);
    let cluster = client.cluster(Some(std::slice::from_ref(&topic))).await?;
    let mut consumer = Consumer::new(&arguments);
    if let Some(group) = &arguments.group {
        consumer.member = Some(Member::new(group, &topic, arguments.common.timeout()));
        consumer.rejoin(&mut client).await?;
    } else {
        let all =
            || cluster.topic(&topic).map(|found| found.partitions.iter().map(|one| one.partition).collect());
        let numbers: Vec<i32> =
            if arguments.partition.is_empty() { all()? } else { arguments.partition.clone() };
        for number in &numbers {
            cluster.partition(&topic, *number)?;
        }
        let ids = numbers.iter().map(|number| TopicPartition::new(topic.as_str(), *number));
        consumer.take(&mut client, ids.collect()).await?;
    }
    let outcome = tokio::select! {
        outcome = consumer.consume(&mut client) => Some(outcome),
        _ = signals.wait() => None,
    };
    // Also after a failure: the others of the group go on where this one stopped.
    let finished = consumer.finish(&mut client).await;
    outcome.unwrap_or(Ok(()))?;
    finished?;
    Ok(exit_code(true))
}

struct Consumer<'a> {
    arguments: &'a Arguments,
    member: Option<Member>,
    reader: Reader,
    positions: Positions,
    /// Ends of the partitions when they were taken.
    ends: Positions,
    committed: Positions,
    commit_due: Instant,
    left: Option<u64>,
}

impl<'a> Consumer<'a> {
    fn new(arguments: &'a Arguments) -> Self {
        Self {
            arguments,
            member: None,
            reader: Reader::new(arguments.committed_only()),
            positions: Positions::new(),
            ends: Positions::new(),
            committed: Positions::new(),
            commit_due: Instant::now() + COMMIT_EVERY,
            left: arguments.max_messages,
        }
    }

    /// Begins with other partitions.
    async fn take(&mut self, client: &mut Client, partitions: BTreeSet<TopicPartition>) -> Result<()> {
        let stored = match &self.arguments.group {
            Some(group) => committed(client, group).await?,
            None => BTreeMap::new(),
        };
        let at = |time: i64| partitions.iter().map(|id| (id.clone(), time)).collect::<BTreeMap<_, _>>();
        let committed_only = self.arguments.committed_only();
        let earliest = client.offsets(&at(EARLIEST), committed_only).await?;
        let latest = client.offsets(&at(LATEST), committed_only).await?;
        let of = |found: &BTreeMap<TopicPartition, Option<i64>>, id: &TopicPartition| {
            found.get(id).copied().flatten().unwrap_or(0)
        };
        self.positions.clear();
        self.ends.clear();
        for id in &partitions {
            let (earliest, latest) = (of(&earliest, id), of(&latest, id));
            let start = match self.arguments.start() {
                Start::Beginning => earliest,
                Start::End => latest,
                Start::At(offset) if offset < earliest || latest < offset => {
                    bail!("{id} holds the offsets {earliest} to {latest}, not {offset}");
                }
                Start::At(offset) => offset,
                Start::BeforeEnd(records) => latest.saturating_sub(records).max(earliest),
            };
            let position = stored.get(id).map_or(start, |found| found.offset);
            self.positions.insert(id.clone(), position);
            self.ends.insert(id.clone(), latest);
        }
        self.committed = self.positions.clone();
        Ok(())
    }

    /// Reads and prints until it is enough.
    async fn consume(&mut self, client: &mut Client) -> Result<()> {
        let quiet = self.arguments.timeout_ms.map(Duration::from_millis);
        let mut last_record = Instant::now();
        loop {
            self.keep_membership(client).await?;
            if self.left == Some(0) || (self.arguments.exit && self.is_at_end()) {
                return Ok(());
            }
            if self.positions.is_empty() {
                sleep(IDLE_PAUSE).await;
            } else if self.round(client).await? {
                last_record = Instant::now();
            }
            if quiet.is_some_and(|quiet| quiet <= last_record.elapsed()) {
                return Ok(());
            }
        }
    }

    fn is_at_end(&self) -> bool {
        self.ends.iter().all(|(id, end)| self.positions.get(id).is_none_or(|position| end <= position))
    }

    /// One fetch of everything; whether a record was printed.
    async fn round(&mut self, client: &mut Client) -> Result<bool> {
        let reads = self.reader.read(client, &self.positions).await?;
        let mut output = std::io::BufWriter::new(std::io::stdout().lock());
        let mut printed = false;
        for read in reads {
            let mut next = read.next_offset;
            for record in &read.records {
                if self.left == Some(0) {
                    next = record.offset;
                    break;
                }
                let line = match self.arguments.common.output {
                    Output::Json => json_line(&read.id, record),
                    Output::Table => text(&read.id, record, &self.arguments.fields),
                };
                output.write_all(&line)?;
                printed = true;
                self.left = self.left.map(|left| left - 1);
            }
            self.positions.insert(read.id, next);
        }
        output.flush()?;
        Ok(printed)
    }

    async fn keep_membership(&mut self, client: &mut Client) -> Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        if member.stays(client).await? {
            if self.commit_due <= Instant::now() {
                self.commit(client).await?;
            }
            return Ok(());
        }
        // Whoever gets the partitions goes on behind what was printed.
        self.commit(client).await?;
        self.rejoin(client).await
    }

    async fn rejoin(&mut self, client: &mut Client) -> Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        let partitions = member.join(client).await?;
        self.take(client, partitions).await
    }

    /// Stores how far the group has come. What can no longer be stored belongs to another member by now.
    async fn commit(&mut self, client: &mut Client) -> Result<()> {
        self.commit_due = Instant::now() + COMMIT_EVERY;
        let (Some(member), Some(group)) = (&self.member, &self.arguments.group) else { return Ok(()) };
        let moved = self.positions.iter().filter(|(id, offset)| self.committed.get(*id) != Some(*offset));
        let moved: Positions = moved.map(|(id, offset)| (id.clone(), *offset)).collect();
        if moved.is_empty() {
            return Ok(());
        }
        match commit(client, group, member.committer(), &moved).await {
            Ok(()) => self.committed.extend(moved),
            Err(error) if is_forgotten(&error) || is_rebalance(&error) => {
                eprintln!("what was read last could not be committed: {error:#}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn finish(mut self, client: &mut Client) -> Result<()> {
        self.commit(client).await?;
        match self.member.take() {
            Some(member) => member.leave(client).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_an_end_a_number_or_a_distance() {
        for (text, expected) in [
            ("beginning", Start::Beginning),
            ("end", Start::End),
            ("7", Start::At(7)),
            ("-3", Start::BeforeEnd(3)),
        ] {
            assert_eq!(parse_start(text), Ok(expected), "{text}");
        }
        assert!(parse_start("x").is_err());
    }
}
