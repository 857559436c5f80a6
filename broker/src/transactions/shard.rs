//! The coordinator of one partition of `__transaction_state`: all transactional ids that fall into it.
//!
//! Pure: events in, effects out. It is made empty, fed every record of its partition, and then serves. A change is
//! written first and takes effect when it is committed; an id has at most one write under way, and whoever asks meanwhile
//! is told to ask again. A write that is refused leaves the id as it was (TXN-12). A decided transaction asks for its
//! markers until each partition has one, and is complete then; after a failover that begins again (TXN-11, T4).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use zurau_common::id::TopicPartition;
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};

use super::records::{NO_PRODUCER, Transaction, TransactionRecord, TransactionState, TransactionalId};
use super::request::{Answer, EndRequest, InitRequest, Initialized, ListFilter, Listing, Request};
use super::rules::{
    Ending, abort_with_higher_epoch, after_end, after_retry, initialize, is_retry, may_expire,
    with_partitions,
};
use crate::coordinator::{Now, Producer, RecordProblem, Replay, ReplyId, Timers, WriteId, WriteOutcome};

/// What an operator sets, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionSettings {
    /// `transaction.max.timeout.ms`.
    pub(crate) timeout_max_ms: i64,
    /// `transactional.id.expiration.ms`.
    pub(crate) id_expiration_ms: i64,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    pub(crate) timeout_check_interval_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    pub(crate) expiration_check_interval_ms: i64,
}

/// The shell's name for the markers of one decided transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MarkingId(pub(crate) u64);

/// The markers that a decided transaction needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marking {
    pub(crate) producer: Producer,
    pub(crate) commits: bool,
    /// The producer's epoch is above the one of the transaction, so the markers end nothing of this epoch (KIP-890).
    pub(crate) ends_lower_epochs: bool,
    pub(crate) partitions: BTreeSet<TopicPartition>,
}

/// Everything that can happen to a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Ask {
        reply: ReplyId,
        id: TransactionalId,
        request: Request,
    },
    List {
        reply: ReplyId,
        filter: ListFilter,
    },
    Written {
        write: WriteId,
        outcome: WriteOutcome,
    },
    /// The partition has its marker, or does not exist any more.
    Marked {
        marking: MarkingId,
        partition: TopicPartition,
    },
    /// A deadline has passed.
    Tick,
}

/// What the shell has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Answer(ReplyId, Answer),
    /// Append with acks=all, and report.
    Write(WriteId, Arc<TransactionRecord>),
    /// Write the markers, however long it takes, and report each partition once.
    Mark(MarkingId, Marking),
    /// For the log: a transaction is aborted though its producer did not ask.
    Aborting {
        id: TransactionalId,
        producer: Producer,
        reason: &'static str,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Timer {
    /// Look for transactions that are open for too long.
    Timeouts,
    /// Look for transactional ids that nobody has used for long.
    Expiration,
    /// That a transaction is complete could not be stored; try again.
    Complete(TransactionalId),
}

/// Time between two attempts to store that a transaction is complete.
const COMPLETE_RETRY_MS: i64 = 1_000;

/// Who waits for the end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// Its time was over.
    Nobody,
    Ending(ReplyId),
    /// A new incarnation of the producer: it is to ask again when the transaction is aborted.
    Initializing(ReplyId),
}

/// What happens when a write is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Initialize(ReplyId),
    Add(ReplyId),
    End(Waiter),
    Complete,
    Expire,
}

#[derive(Debug)]
struct PendingWrite {
    record: Arc<TransactionRecord>,
    then: Then,
}

#[derive(Debug)]
struct Entry {
    /// As it is in the log; the epoch is −1 until it is there.
    transaction: Transaction,
    is_writing: bool,
    /// Partitions without their marker, of a prepared transaction.
    unmarked: BTreeSet<TopicPartition>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    settings: Arc<TransactionSettings>,
    entries: HashMap<TransactionalId, Entry>,
    markings: HashMap<MarkingId, TransactionalId>,
    writes: HashMap<WriteId, PendingWrite>,
    timers: Timers<Timer>,
    effects: Vec<Effect>,
    /// Of writes and of markings.
    last_number: u64,
}

impl Replay for Shard {
    fn replay(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        _producer_id: Option<i64>,
        _at: i64,
    ) -> Result<bool, RecordProblem> {
        let record = TransactionRecord::decode(key, value)?;
        let is_known = record.is_some();
        if let Some(record) = record {
            self.apply(&record);
        }
        Ok(is_known)
    }

    /// Nobody writes into this topic in a transaction.
    fn replay_transaction_end(&mut self, _producer_id: i64, _commits: bool) {}
}

impl Shard {
    pub(crate) fn new(settings: Arc<TransactionSettings>) -> Self {
        Self {
            settings,
            entries: HashMap::new(),
            markings: HashMap::new(),
            writes: HashMap::new(),
            timers: Timers::default(),
            effects: Vec::new(),
            last_number: 0,
        }
    }

    /// The whole log was replayed: what was decided and not complete goes on.
    pub(crate) fn finish_loading(&mut self, now: Now) -> Vec<Effect> {
        let mut prepared: Vec<TransactionalId> = Vec::new();
        for (id, entry) in &self.entries {
            if is_prepared(entry.transaction.state) && holds(Rule::DecidedGoesOn) {
                prepared.push(Arc::clone(id));
            }
        }
        prepared.sort();
        for id in prepared {
            self.mark(now, &id);
        }
        self.timers.set(Timer::Timeouts, now.elapsed_ms + self.settings.timeout_check_interval_ms);
        self.timers.set(Timer::Expiration, now.elapsed_ms + self.settings.expiration_check_interval_ms);
        std::mem::take(&mut self.effects)
    }

    /// When [`Event::Tick`] is due, by the clock of [`Now::elapsed_ms`].
    pub(crate) fn next_deadline(&self) -> Option<i64> {
        self.timers.next_deadline()
    }

    pub(crate) fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        match event {
            Event::Ask { reply, id, request } => self.ask(now, reply, &id, request),
            Event::List { reply, filter } => {
                let listings = self.list(now, &filter);
                self.answer(reply, Answer::List(listings));
            }
            Event::Written { write, outcome } => self.written(now, write, outcome),
            Event::Marked { marking, partition } => self.marked(now, marking, &partition),
            Event::Tick => {}
        }
        while let Some(timer) = self.timers.take_due(now.elapsed_ms) {
            self.fire(now, timer);
        }
        std::mem::take(&mut self.effects)
    }

    /// This broker coordinates no more: everyone who waits is sent to look for who does.
    pub(crate) fn abandon(&mut self) -> Vec<Effect> {
        let mut writes: Vec<_> = std::mem::take(&mut self.writes).into_iter().collect();
        writes.sort_by_key(|(write, _)| *write);
        for (_, write) in writes {
            self.reply(write.then, &write.record, Err(Rejection::NotCoordinator));
        }
        std::mem::take(&mut self.effects)
    }

    fn answer(&mut self, reply: ReplyId, answer: Answer) {
        self.effects.push(Effect::Answer(reply, answer));
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A record in the log is what the id is.
    /// How many transactional ids are in each state; states without any are absent.
    pub(crate) fn count(&self) -> BTreeMap<TransactionState, usize> {
        let mut counts = BTreeMap::new();
        // One whose first write is under way has no state yet.
        for entry in self.entries.values().filter(|entry| 0 <= entry.transaction.producer.epoch) {
            *counts.entry(entry.transaction.state).or_default() += 1;
        }
        counts
    }

    fn apply(&mut self, record: &TransactionRecord) {
        let Some(transaction) = record.value.clone() else {
            self.entries.remove(&record.id);
            return;
        };
        match self.entries.get_mut(&record.id) {
            Some(entry) => entry.transaction = transaction,
            None => {
                let entry = Entry { transaction, is_writing: false, unmarked: BTreeSet::new() };
                self.entries.insert(Arc::clone(&record.id), entry);
            }
        }
    }

    fn write(&mut self, id: &TransactionalId, value: Option<Transaction>, then: Then) {
        let entry = self.entries.get_mut(id).expect("only what is known is written");
        assert!(!entry.is_writing, "an id has one write under way");
        entry.is_writing = true;
        let write = WriteId(self.next_number());
        let record = Arc::new(TransactionRecord { id: Arc::clone(id), value });
        self.effects.push(Effect::Write(write, Arc::clone(&record)));
        self.writes.insert(write, PendingWrite { record, then });
    }

    fn ask(&mut self, now: Now, reply: ReplyId, id: &TransactionalId, request: Request) {
        match request {
            Request::Init(request) => {
                if let Err(rejection) = self.init(now, reply, id, &request) {
                    self.answer(reply, Answer::Init(Err(rejection)));
                }
            }
            Request::Add { producer, partitions, is_version_2 } => {
                match self.add(now, id, producer, (&partitions, is_version_2)) {
                    Ok(Some(transaction)) => self.write(id, Some(transaction), Then::Add(reply)),
                    Ok(None) => self.answer(reply, Answer::Done(Ok(()))),
                    Err(rejection) => self.answer(reply, Answer::Done(Err(rejection))),
                }
            }
            Request::Verify { producer, partitions } => {
                let verified = self.verify(id, producer, &partitions);
                self.answer(reply, Answer::Verify(verified));
            }
            Request::End(request) => {
                let answer = match self.end(now, id, &request) {
                    Ok(Ending::Decided(transaction)) => {
                        return self.write(id, Some(transaction), Then::End(Waiter::Ending(reply)));
                    }
                    Ok(Ending::Complete(producer)) => Ok(Initialized::Producer(producer)),
                    Ok(Ending::NeedsProducerId) => Ok(Initialized::NeedsProducerId),
                    Err(rejection) => Err(rejection),
                };
                self.answer(reply, Answer::End(answer));
            }
            Request::Describe => {
                let known = self.entries.get(id).filter(|entry| 0 <= entry.transaction.producer.epoch);
                let found = known.map(|entry| entry.transaction.clone());
                self.answer(reply, Answer::Describe(found.ok_or(Rejection::TransactionalIdNotFound)));
            }
        }
    }

    fn init(
        &mut self,
        now: Now,
        reply: ReplyId,
        id: &TransactionalId,
        request: &InitRequest,
    ) -> Result<(), Rejection> {
        if !(1..=self.settings.timeout_max_ms).contains(&i64::from(request.timeout_ms)) {
            return Err(Rejection::InvalidTransactionTimeout);
        }
        let Some(entry) = self.entries.get(id) else {
            let Some(producer_id) = request.fresh_producer_id else {
                self.answer(reply, Answer::Init(Ok(Initialized::NeedsProducerId)));
                return Ok(());
            };
            let blank = Transaction {
                producer: Producer { id: producer_id, epoch: -1 },
                previous: NO_PRODUCER,
                next_id: None,
                is_version_2: false,
                timeout_ms: request.timeout_ms,
                state: TransactionState::Empty,
                partitions: BTreeSet::new(),
                updated_ms: now.wall_ms,
                started_ms: -1,
            };
            let first = Transaction { producer: Producer { id: producer_id, epoch: 0 }, ..blank.clone() };
            let entry = Entry { transaction: blank, is_writing: false, unmarked: BTreeSet::new() };
            self.entries.insert(Arc::clone(id), entry);
            self.write(id, Some(first), Then::Initialize(reply));
            return Ok(());
        };
        if entry.is_writing || is_prepared(entry.transaction.state) {
            return Err(Rejection::ConcurrentTransactions);
        }
        if entry.transaction.state == TransactionState::Ongoing && holds(Rule::OpenIsAbortedFirst) {
            if request.expected.is_some_and(|expected| expected != entry.transaction.producer) {
                // Also a delayed duplicate, which must not abort what came after it.
                return Err(Rejection::ProducerFenced);
            }
            self.abort(now, id, Waiter::Initializing(reply), "its producer starts again");
            return Ok(());
        }
        match initialize(&entry.transaction, request, now.wall_ms)? {
            Some(transaction) => self.write(id, Some(transaction), Then::Initialize(reply)),
            None => self.answer(reply, Answer::Init(Ok(Initialized::NeedsProducerId))),
        }
        Ok(())
    }

    /// Aborts an ongoing transaction under a higher epoch, so that its producer can do nothing more (TXN-13).
    fn abort(&mut self, now: Now, id: &TransactionalId, waiter: Waiter, reason: &'static str) {
        let entry = self.entries.get(id).expect("it was looked at");
        let producer = entry.transaction.producer;
        let aborting = abort_with_higher_epoch(&entry.transaction, now.wall_ms);
        self.effects.push(Effect::Aborting { id: Arc::clone(id), producer, reason });
        self.write(id, Some(aborting), Then::End(waiter));
    }

    /// The entry, if the producer is its current one (T6).
    fn owned(&self, id: &TransactionalId, producer: Producer) -> Result<&Entry, Rejection> {
        let entry = self.entries.get(id).ok_or(Rejection::InvalidProducerIdMapping)?;
        let current = entry.transaction.holder();
        if current.id != producer.id {
            return Err(Rejection::InvalidProducerIdMapping);
        }
        // The last epoch is nobody's.
        let is_current = current.epoch == producer.epoch && producer.epoch != i16::MAX;
        if !is_current && holds(Rule::TransactionOfItsProducer) {
            return Err(Rejection::ProducerFenced);
        }
        Ok(entry)
    }

    /// The transaction with more partitions; `None` if it has them already.
    fn add(
        &self,
        now: Now,
        id: &TransactionalId,
        producer: Producer,
        added: (&[TopicPartition], bool),
    ) -> Result<Option<Transaction>, Rejection> {
        let entry = self.owned(id, producer)?;
        let is_closed = is_prepared(entry.transaction.state) && holds(Rule::DecidedIsClosed);
        if entry.is_writing || is_closed {
            return Err(Rejection::ConcurrentTransactions);
        }
        Ok(with_partitions(&entry.transaction, added, now.wall_ms))
    }

    /// A write under way is not looked at: the leader checks again when it appends.
    fn verify(
        &self,
        id: &TransactionalId,
        producer: Producer,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<Rejection>>, Rejection> {
        let transaction = &self.owned(id, producer)?.transaction;
        if is_prepared(transaction.state) && holds(Rule::DecidedIsNotVerified) {
            return Err(Rejection::ConcurrentTransactions);
        }
        let outcome = |partition| {
            (!transaction.partitions.contains(partition)).then_some(Rejection::TransactionAbortable)
        };
        Ok(partitions.iter().map(outcome).collect())
    }

    fn end(&self, now: Now, id: &TransactionalId, request: &EndRequest) -> Result<Ending, Rejection> {
        let retried = self.entries.get(id).filter(|entry| is_retry(&entry.transaction, request));
        let entry = retried.map_or_else(|| self.owned(id, request.producer), Ok)?;
        if entry.is_writing {
            return Err(Rejection::ConcurrentTransactions);
        }
        if retried.is_some() {
            return after_retry(&entry.transaction, request.commits);
        }
        after_end(&entry.transaction, request, now.wall_ms)
    }

    fn list(&self, now: Now, filter: &ListFilter) -> Vec<Listing> {
        let is_wanted = |transaction: &Transaction| {
            let (id, name) = (transaction.producer.id, transaction.state.name());
            let duration_ms = now.wall_ms.saturating_sub(transaction.started_ms);
            0 <= transaction.producer.epoch
                && (filter.producer_ids.is_empty() || filter.producer_ids.contains(&id))
                && (filter.states.is_empty() || filter.states.iter().any(|state| state == name))
                && (filter.duration_ms < 0 || filter.duration_ms < duration_ms)
        };
        let wanted = self.entries.iter().filter(|(_, entry)| is_wanted(&entry.transaction));
        let listing = |(id, entry): (&TransactionalId, &Entry)| Listing {
            id: Arc::clone(id),
            producer_id: entry.transaction.producer.id,
            state: entry.transaction.state,
        };
        let mut listings: Vec<Listing> = wanted.map(listing).collect();
        listings.sort_by(|one, other| one.id.cmp(&other.id));
        listings
    }

    fn written(&mut self, now: Now, write: WriteId, outcome: WriteOutcome) {
        let Some(PendingWrite { record, then }) = self.writes.remove(&write) else { return };
        let id = &record.id;
        self.entries.get_mut(id).expect("it has a write under way").is_writing = false;
        if outcome.is_in_log() {
            self.apply(&record);
            if let Then::End(_) = then {
                self.mark(now, id);
            }
        } else if then == Then::Complete {
            self.timers.set(Timer::Complete(Arc::clone(id)), now.elapsed_ms + COMPLETE_RETRY_MS);
        } else if self.entries.get(id).is_some_and(|entry| entry.transaction.producer.epoch < 0) {
            // Its first record is not there: nobody has the id (TXN-16).
            self.entries.remove(id);
        }
        self.reply(then, &record, outcome.for_client(Rejection::UnknownServerError));
    }

    fn reply(&mut self, then: Then, record: &TransactionRecord, outcome: Result<(), Rejection>) {
        match then {
            Then::Initialize(reply) => {
                let producer = record.value.as_ref().map_or(NO_PRODUCER, |value| value.producer);
                let initialized = outcome.map(|()| Initialized::Producer(producer));
                self.answer(reply, Answer::Init(initialized));
            }
            Then::Add(reply) => self.answer(reply, Answer::Done(outcome)),
            Then::End(Waiter::Ending(reply)) => {
                let producer = record.value.as_ref().map_or(NO_PRODUCER, Transaction::holder);
                self.answer(reply, Answer::End(outcome.map(|()| Initialized::Producer(producer))));
            }
            Then::End(Waiter::Initializing(reply)) => {
                let rejection = outcome.err().unwrap_or(Rejection::ConcurrentTransactions);
                self.answer(reply, Answer::Init(Err(rejection)));
            }
            Then::End(Waiter::Nobody) | Then::Complete | Then::Expire => {}
        }
    }

    /// Asks for the markers of a prepared transaction.
    fn mark(&mut self, now: Now, id: &TransactionalId) {
        let marking = MarkingId(self.next_number());
        let entry = self.entries.get_mut(id).expect("a prepared transaction is known");
        entry.unmarked = entry.transaction.partitions.clone();
        if entry.unmarked.is_empty() {
            return self.complete(now, id);
        }
        let order = Marking {
            producer: entry.transaction.producer,
            commits: entry.transaction.state == TransactionState::PrepareCommit,
            ends_lower_epochs: entry.transaction.is_version_2 && holds(Rule::EpochOfEachTransaction),
            partitions: entry.unmarked.clone(),
        };
        self.markings.insert(marking, Arc::clone(id));
        self.effects.push(Effect::Mark(marking, order));
    }

    fn marked(&mut self, now: Now, marking: MarkingId, partition: &TopicPartition) {
        // Of a marking that is over.
        let Some(id) = self.markings.get(&marking).cloned() else { return };
        let entry = self.entries.get_mut(&id).expect("a prepared transaction is known");
        entry.unmarked.remove(partition);
        if entry.unmarked.is_empty() || !holds(Rule::MarkedEverywhere) {
            self.markings.remove(&marking);
            self.complete(now, &id);
        }
    }

    fn complete(&mut self, now: Now, id: &TransactionalId) {
        let prepared = &self.entries.get(id).expect("a prepared transaction is known").transaction;
        let state = match prepared.state {
            TransactionState::PrepareCommit => TransactionState::CompleteCommit,
            TransactionState::PrepareAbort => TransactionState::CompleteAbort,
            other => panic!("only a prepared transaction can be complete, not one that is {}", other.name()),
        };
        let partitions = BTreeSet::new();
        let (producer, updated_ms) = (prepared.holder(), now.wall_ms);
        let complete =
            Transaction { producer, next_id: None, state, partitions, updated_ms, ..prepared.clone() };
        self.write(id, Some(complete), Then::Complete);
    }

    fn fire(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::Complete(id) => self.complete(now, &id),
            Timer::Timeouts => {
                let is_over = |transaction: &Transaction| {
                    transaction.state == TransactionState::Ongoing
                        && transaction.started_ms.saturating_add(i64::from(transaction.timeout_ms))
                            < now.wall_ms
                };
                for id in self.resting(is_over) {
                    self.abort(now, &id, Waiter::Nobody, "its timeout is over");
                }
                self.timers.set(Timer::Timeouts, now.elapsed_ms + self.settings.timeout_check_interval_ms);
            }
            Timer::Expiration => {
                let before_ms = now.wall_ms.saturating_sub(self.settings.id_expiration_ms);
                for id in self.resting(|transaction| may_expire(transaction, before_ms)) {
                    self.write(&id, None, Then::Expire);
                }
                let due_ms = now.elapsed_ms + self.settings.expiration_check_interval_ms;
                self.timers.set(Timer::Expiration, due_ms);
            }
        }
    }

    /// Ids without a write under way whose transaction is such, in a fixed order.
    fn resting(&self, is_such: impl Fn(&Transaction) -> bool) -> Vec<TransactionalId> {
        let such = self.entries.iter().filter(|(_, entry)| !entry.is_writing && is_such(&entry.transaction));
        let mut ids: Vec<TransactionalId> = such.map(|(id, _)| Arc::clone(id)).collect();
        ids.sort();
        ids
    }
}

fn is_prepared(state: TransactionState) -> bool {
    matches!(state, TransactionState::PrepareCommit | TransactionState::PrepareAbort)
}
