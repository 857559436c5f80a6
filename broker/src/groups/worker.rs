//! The owner of one coordinator: a task with a mailbox. It steps the core, appends what the core writes, and reports
//! back what was committed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::info;
use zurau_common::id::TopicName;

use super::outbox::{Effect, Now};
use super::records::{GroupId, GroupRecord};
use super::request::{Answer, Request, Summary, Transaction};
use super::shard::{Event, Shard};
use crate::coordinator::{Office, Producer, Replies, WriteSettings, Writer};
use crate::group_configs::GroupConfigs;
use crate::log::{Marker, Verification};
use crate::shared::wall_clock_ms;
use crate::shared_metadata::SharedMetadata;

/// Requests taken out of the mailbox at once.
const COMMANDS_AT_ONCE: usize = 256;

/// What a mailbox takes.
#[derive(Debug)]
pub(crate) enum Command {
    Ask {
        group: GroupId,
        request: Request,
        answer: oneshot::Sender<Answer>,
    },
    List {
        answer: oneshot::Sender<Answer>,
    },
    /// The topics that offsets are held of.
    Topics {
        answer: oneshot::Sender<Vec<TopicName>>,
    },
    /// What an operator sees of the groups.
    Observe {
        answer: oneshot::Sender<Vec<Summary>>,
    },
    TopicsDeleted(Vec<TopicName>),
    /// Write the marker of a transaction that has offsets here.
    EndTransaction {
        producer: Producer,
        marker: (Marker, Verification),
        answer: oneshot::Sender<Answer>,
    },
}

/// Serves one partition in one leader epoch.
pub(crate) struct Worker {
    office: Office,
    writer: Writer,
    shard: Shard,
    metadata: Arc<SharedMetadata>,
    configs: Arc<GroupConfigs>,
    replies: Replies<Answer>,
}

impl Worker {
    pub(crate) fn new(
        office: Office,
        shard: Shard,
        (metadata, configs): (Arc<SharedMetadata>, Arc<GroupConfigs>),
        settings: WriteSettings,
    ) -> Self {
        let writer = Writer::new(office.clone(), settings);
        Self { office, writer, shard, metadata, configs, replies: Replies::default() }
    }

    fn now(&self) -> Now {
        let elapsed_ms = i64::try_from(self.office.shared.now_ms()).unwrap_or(i64::MAX);
        Now { elapsed_ms, wall_ms: wall_clock_ms() }
    }

    /// Serves until nobody can send any more, or until it cannot be said what the log holds: then the partition is
    /// loaded again.
    pub(crate) async fn run(mut self, mut mailbox: mpsc::Receiver<Command>) {
        self.look_around();
        let effects = self.shard.finish_loading(self.now());
        self.carry_out(effects);
        let mut commands = Vec::with_capacity(COMMANDS_AT_ONCE);
        loop {
            let pause = self.pause();
            self.look_around();
            let effects = tokio::select! {
                biased;
                reported = self.writer.next(), if self.writer.is_waiting() => {
                    let Some((writes, outcome)) = reported else { break };
                    let now = self.now();
                    let shard = &mut self.shard;
                    let steps = writes.into_iter().flat_map(|(write, first_offset)| {
                        shard.step(now, Event::Written { write, outcome, first_offset })
                    });
                    steps.collect()
                }
                count = mailbox.recv_many(&mut commands, COMMANDS_AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                    self.look_around();
                    let steps = commands.drain(..).flat_map(|command| self.obey(command));
                    steps.collect()
                }
                () = tokio::time::sleep(pause) => self.shard.step(self.now(), Event::Tick),
            };
            self.carry_out(effects);
        }
        let effects = self.shard.abandon();
        self.carry_out(effects);
    }

    /// What holds outside of the log, for the next step.
    fn look_around(&mut self) {
        self.shard.note_topics(self.metadata.image());
        self.shard.note_configs(self.configs.in_force());
    }

    fn pause(&self) -> Duration {
        let now_ms = self.now().elapsed_ms;
        let due_ms = self.shard.next_deadline().unwrap_or(i64::MAX);
        Duration::from_millis(u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0))
    }

    fn obey(&mut self, command: Command) -> Vec<Effect> {
        let event = match command {
            Command::Ask { group, request, answer } => {
                let reply = self.replies.expect(answer);
                Event::Ask { reply, group, request }
            }
            Command::List { answer } => Event::List { reply: self.replies.expect(answer) },
            Command::Topics { answer } => {
                // Whoever asked may be gone.
                let _ = answer.send(self.shard.topics());
                return Vec::new();
            }
            Command::Observe { answer } => {
                let _ = answer.send(self.shard.summaries());
                return Vec::new();
            }
            Command::TopicsDeleted(topics) => Event::TopicsDeleted(topics),
            Command::EndTransaction { producer, marker: (marker, verification), answer } => {
                let reply = self.replies.expect(answer);
                Event::EndTransaction { reply, producer, marker, verification }
            }
        };
        self.shard.step(self.now(), event)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        self.office.shared.metrics.groups.count(self.shard.take_tally());
        for effect in effects {
            match effect {
                Effect::Answer(reply, answer) => self.replies.give(reply, answer),
                Effect::Write(write, records, transaction) => {
                    let records = records.iter().map(GroupRecord::encode).collect::<Vec<_>>();
                    match transaction {
                        Some(Transaction { producer, verification }) => {
                            self.writer.append_in_transaction(write, &records, producer, verification);
                        }
                        None => self.writer.put(write, records),
                    }
                }
                Effect::WriteMarker(write, producer, marker) => {
                    self.writer.append_marker(write, producer, marker);
                }
                Effect::Rebalances { group, epoch, members, reason } => info!(
                    partition = %self.office.partition.id(), group = &*group, members, reason,
                    "group is in epoch {epoch}"
                ),
                Effect::Moved { group, state, generation, members, reason } => info!(
                    partition = %self.office.partition.id(), group = &*group, generation, members, reason,
                    "group is {}", state.name()
                ),
            }
        }
        self.writer.flush();
    }
}
