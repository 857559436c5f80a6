//! The owner of one coordinator: a task with a mailbox. It steps the core, appends what the core writes, and reports
//! back what was committed. Writes that come together go into one batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tokio::sync::{mpsc, oneshot};
use tracing::info;
use zurau_common::id::{LeaderEpoch, TopicName};
use zurau_common::rejection::Rejection;

use super::batch::{KeyValue, encode_batch, record_bytes_max};
use super::outbox::{Effect, Now, WriteId, WriteOutcome};
use super::records::{GroupId, GroupRecord};
use super::request::{Answer, ReplyId, Request};
use super::shard::{Event, Shard};
use crate::partition::Partition;
use crate::shared::{Shared, wall_clock_ms};

/// Requests that wait in a mailbox; more senders wait outside.
pub(crate) const MAILBOX: usize = 1_024;
/// Requests taken out of the mailbox at once.
const COMMANDS_AT_ONCE: usize = 256;
/// Records of several writes are put into one batch up to this size.
const BATCH_BYTES: usize = 256 << 10;

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
    TopicsDeleted(Vec<TopicName>),
    #[expect(dead_code, reason = "sent by WriteTxnMarkers, which comes with the transaction coordinator")]
    TransactionEnded {
        producer_id: i64,
        commits: bool,
    },
}

type Reported = (Vec<WriteId>, Result<(), Rejection>);

/// Serves one partition in one leader epoch.
pub(crate) struct Worker {
    partition: Arc<Partition>,
    leader_epoch: LeaderEpoch,
    shared: Arc<Shared>,
    shard: Shard,
    waiting: HashMap<ReplyId, oneshot::Sender<Answer>>,
    last_reply: u64,
    /// In the order of the log.
    in_flight: FuturesOrdered<BoxFuture<'static, Reported>>,
}

/// What becomes one batch.
#[derive(Default)]
struct Gathered {
    writes: Vec<WriteId>,
    records: Vec<KeyValue>,
    bytes: usize,
}

impl Worker {
    pub(crate) fn new(
        partition: Arc<Partition>,
        leader_epoch: LeaderEpoch,
        shared: Arc<Shared>,
        shard: Shard,
    ) -> Self {
        Self {
            partition,
            leader_epoch,
            shared,
            shard,
            waiting: HashMap::new(),
            last_reply: 0,
            in_flight: FuturesOrdered::new(),
        }
    }

    fn now(&self) -> Now {
        let elapsed_ms = i64::try_from(self.shared.now_ms()).unwrap_or(i64::MAX);
        Now { elapsed_ms, wall_ms: wall_clock_ms() }
    }

    /// Serves until nobody can send any more, or until it cannot be said what the log holds: then the partition is
    /// loaded again.
    pub(crate) async fn run(mut self, mut mailbox: mpsc::Receiver<Command>) {
        let effects = self.shard.finish_loading(self.now());
        self.carry_out(effects);
        let mut commands = Vec::with_capacity(COMMANDS_AT_ONCE);
        loop {
            let pause = self.pause();
            let has_writes = !self.in_flight.is_empty();
            let effects = tokio::select! {
                biased;
                Some(reported) = self.in_flight.next(), if has_writes => match self.report(reported) {
                    Some(effects) => effects,
                    None => break,
                },
                count = mailbox.recv_many(&mut commands, COMMANDS_AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
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

    fn pause(&self) -> Duration {
        let now_ms = self.now().elapsed_ms;
        let due_ms = self.shard.next_deadline().unwrap_or(i64::MAX);
        Duration::from_millis(u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0))
    }

    fn obey(&mut self, command: Command) -> Vec<Effect> {
        let event = match command {
            Command::Ask { group, request, answer } => {
                let reply = self.wait_for_reply(answer);
                Event::Ask { reply, group, request }
            }
            Command::List { answer } => Event::List { reply: self.wait_for_reply(answer) },
            Command::Topics { answer } => {
                // Whoever asked may be gone.
                let _ = answer.send(self.shard.topics());
                return Vec::new();
            }
            Command::TopicsDeleted(topics) => Event::TopicsDeleted(topics),
            Command::TransactionEnded { producer_id, commits } => {
                Event::TransactionEnded { producer_id, commits }
            }
        };
        self.shard.step(self.now(), event)
    }

    fn wait_for_reply(&mut self, answer: oneshot::Sender<Answer>) -> ReplyId {
        self.last_reply += 1;
        let reply = ReplyId(self.last_reply);
        self.waiting.insert(reply, answer);
        reply
    }

    /// A batch was committed, or not. `None` when it is not known what became of it: the log has it, and whether it
    /// stays is decided by others.
    fn report(&mut self, (writes, committed): Reported) -> Option<Vec<Effect>> {
        let outcome = match committed {
            Ok(()) => WriteOutcome::Committed,
            Err(Rejection::NotEnoughReplicasAfterAppend) => WriteOutcome::CommittedBelowMinimum,
            Err(rejection @ (Rejection::NotEnoughReplicas | Rejection::MessageTooLarge)) => {
                WriteOutcome::Refused(rejection)
            }
            Err(rejection) => {
                info!(
                    partition = %self.partition.id(), leader_epoch = %self.leader_epoch, %rejection,
                    "group coordinator stops: a write was not confirmed"
                );
                return None;
            }
        };
        let now = self.now();
        let shard = &mut self.shard;
        let steps = writes.into_iter().flat_map(|write| shard.step(now, Event::Written { write, outcome }));
        Some(steps.collect())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        let limit_bytes = self.batch_bytes_max();
        let mut gathered = Gathered::default();
        for effect in effects {
            match effect {
                Effect::Answer(reply, answer) => {
                    if let Some(sender) = self.waiting.remove(&reply) {
                        // The client may be gone.
                        let _ = sender.send(answer);
                    }
                }
                Effect::Write(write, records) => {
                    let encoded: Vec<KeyValue> = records.iter().map(GroupRecord::encode).collect();
                    let bytes: usize = encoded.iter().map(record_bytes_max).sum();
                    if limit_bytes < gathered.bytes + bytes && !gathered.writes.is_empty() {
                        self.append(std::mem::take(&mut gathered));
                    }
                    gathered.writes.push(write);
                    gathered.records.extend(encoded);
                    gathered.bytes += bytes;
                }
                Effect::Moved { group, state, generation, members, reason } => info!(
                    partition = %self.partition.id(), group = &*group, generation, members, reason,
                    "group is {}", state.name()
                ),
            }
        }
        if !gathered.writes.is_empty() {
            self.append(gathered);
        }
    }

    fn batch_bytes_max(&self) -> usize {
        let topic = self.partition.with_log(|log| log.config().max_message_bytes).unwrap_or(i32::MAX);
        // Half of it, because a batch has a header.
        BATCH_BYTES.min(usize::try_from(topic).unwrap_or(0) / 2)
    }

    fn append(&mut self, gathered: Gathered) {
        let now_ms = wall_clock_ms();
        let batch = encode_batch(&gathered.records, now_ms, None);
        let appended = self.partition.append_in_epoch(batch, self.leader_epoch, now_ms);
        let writes = gathered.writes;
        self.in_flight.push_back(match appended {
            Ok(appended) => Box::pin(async move {
                let committed = match appended.committed {
                    Some(committed) => committed.await,
                    None => Ok(()),
                };
                (writes, committed)
            }),
            Err(refused) => {
                let rejection = match refused.rejection {
                    Rejection::RecordListTooLarge => Rejection::MessageTooLarge,
                    other => other,
                };
                Box::pin(std::future::ready((writes, Err(rejection))))
            }
        });
    }
}
