//! The owner of one coordinator: a task with a mailbox. It steps the core, appends what the core writes, hands markers to
//! the sender, and reports back what came of both.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::info;
use zurau_common::id::TopicPartition;

use super::marker_sender::Order;
use super::records::{TransactionState, TransactionalId};
use super::request::{Answer, ListFilter, Request};
use super::shard::{Effect, Event, MarkingId, Shard};
use crate::coordinator::{Now, Office, Replies, WriteSettings, Writer};
use crate::partition::Acks;
use crate::shared::wall_clock_ms;

/// Requests taken out of the mailbox, and reports of markers, at once.
const AT_ONCE: usize = 256;

/// What a mailbox takes.
#[derive(Debug)]
pub(crate) enum Command {
    Ask {
        id: TransactionalId,
        request: Request,
        answer: oneshot::Sender<Answer>,
    },
    List {
        filter: ListFilter,
        answer: oneshot::Sender<Answer>,
    },
    /// How many transactional ids are in each state.
    Count {
        answer: oneshot::Sender<BTreeMap<TransactionState, usize>>,
    },
}

/// Serves one partition in one leader epoch.
pub(super) struct Worker {
    office: Office,
    writer: Writer,
    shard: Shard,
    orders: mpsc::UnboundedSender<Order>,
    /// Given to the sender with each order; closed with this worker.
    reports: mpsc::UnboundedSender<(MarkingId, TopicPartition)>,
    replies: Replies<Answer>,
}

impl Worker {
    /// Serves until nobody can ask any more, or until it cannot be said what the log holds: then the partition is loaded
    /// again.
    pub(super) async fn run(
        office: Office,
        shard: Shard,
        orders: mpsc::UnboundedSender<Order>,
        mut mailbox: mpsc::Receiver<Command>,
    ) {
        let settings = WriteSettings { acks: Acks::All, compression: 0 };
        let writer = Writer::new(office.clone(), settings);
        let (reports, mut reported) = mpsc::unbounded_channel();
        let replies = Replies::default();
        let mut worker = Self { office, writer, shard, orders, reports, replies };
        let effects = worker.shard.finish_loading(worker.now());
        worker.carry_out(effects);
        let mut commands = Vec::with_capacity(AT_ONCE);
        let mut marked = Vec::with_capacity(AT_ONCE);
        loop {
            let pause = worker.pause();
            let effects: Vec<Effect> = tokio::select! {
                biased;
                reported = worker.writer.next(), if worker.writer.is_waiting() => {
                    let Some((writes, outcome)) = reported else { break };
                    let events = writes.into_iter().map(|(write, _)| Event::Written { write, outcome });
                    worker.steps(events)
                }
                _ = reported.recv_many(&mut marked, AT_ONCE) => {
                    let events = marked.drain(..).map(|(marking, partition)| Event::Marked { marking, partition });
                    worker.steps(events)
                }
                count = mailbox.recv_many(&mut commands, AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                    let steps = commands.drain(..).flat_map(|command| worker.obey(command));
                    steps.collect()
                }
                () = tokio::time::sleep(pause) => worker.steps([Event::Tick]),
            };
            worker.carry_out(effects);
        }
        let effects = worker.shard.abandon();
        worker.carry_out(effects);
    }

    fn now(&self) -> Now {
        let elapsed_ms = i64::try_from(self.office.shared.now_ms()).unwrap_or(i64::MAX);
        Now { elapsed_ms, wall_ms: wall_clock_ms() }
    }

    fn pause(&self) -> Duration {
        let now_ms = self.now().elapsed_ms;
        let due_ms = self.shard.next_deadline().unwrap_or(i64::MAX);
        Duration::from_millis(u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0))
    }

    fn steps(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let now = self.now();
        events.into_iter().flat_map(|event| self.shard.step(now, event)).collect()
    }

    fn obey(&mut self, command: Command) -> Vec<Effect> {
        let event = match command {
            Command::Ask { id, request, answer } => {
                Event::Ask { reply: self.replies.expect(answer), id, request }
            }
            Command::Count { answer } => {
                // Whoever asked may be gone.
                let _ = answer.send(self.shard.count());
                return Vec::new();
            }
            Command::List { filter, answer } => Event::List { reply: self.replies.expect(answer), filter },
        };
        self.steps([event])
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(reply, answer) => self.replies.give(reply, answer),
                Effect::Write(write, record) => self.writer.put(write, vec![record.encode()]),
                Effect::Mark(id, marking) => {
                    let coordinator_epoch = self.office.leader_epoch;
                    let order = Order { id, marking, coordinator_epoch, reports: self.reports.clone() };
                    // The sender ends with the broker; the next coordinator begins with the markers again.
                    let _ = self.orders.send(order);
                }
                Effect::Aborting { id, producer, reason } => info!(
                    partition = %self.office.partition.id(), transactional_id = &*id, producer_id = producer.id,
                    producer_epoch = producer.epoch, reason, "a transaction is aborted"
                ),
            }
        }
        self.writer.flush();
    }
}
