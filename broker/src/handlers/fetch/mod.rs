//! Fetch (1), versions 4-17: reads record batches, for clients and for followers. Versions below 4 carry record
//! formats v0 and v1 only (D7).
//!
//! - An answer waits up to `max_wait_ms` until `min_bytes` are there; an error or a diverging epoch ends the wait.
//! - The first batch of an answer is returned whole, however small the limits are.
//! - v4 isolation level; v7 sessions (`session`); v9 the reader's leader epoch; v10 allows topics of zstd; v11 the consumer's rack,
//!   answered with the replica to read from; v12 the epoch of the last fetched record, answered with the point of
//!   divergence; v13 topics by id; v15 the follower's broker epoch; v16 names the leader when this broker is not it; v17 the follower's directory, of no use in ZooKeeper mode.
//! - Records are passed from the log to the socket as they are (`encode`).

mod encode;
mod session;
mod stream;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::FetchRequest;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;
use zurau_common::config::{CompressionType, ReplicaSelector};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicName};
use zurau_common::rejection::Rejection;
use zurau_common::wire::server::{Answer, Connection, Frame};

use self::encode::{FetchAnswer, PartitionAnswer, Records, encode};
pub(crate) use self::session::FetchSessions;
use self::session::{Asked, Fetching, NO_SESSION, PartitionFetch, PartitionKey, SessionRequest, Told};
use self::stream::ServedRecords;
use super::leader_hint::{LeaderHints, TopicRef, not_hosted};
use super::{Call, Reply, Starting, ready};
use crate::context::BrokerContext;
use crate::fetch_waiter::{FetchWaiter, News};
use crate::log::{ReadPlan, STREAMED_FROM_BYTES};
use crate::partition::{Isolation, Partition, ReadAnswer, ReadRequest, Reader};
use crate::replica::selector::nearest;

/// First version that names topics by id.
const TOPIC_IDS_FROM: i16 = 13;
/// First version that may ask for a topic whose `compression.type` is zstd (KIP-110).
const ZSTD_FROM: i16 = 10;
/// First version that names the leader beside an error.
const LEADER_HINTS_FROM: i16 = 16;

/// First version that names the consumer's rack, and whose consumers may read from followers (KIP-392).
const RACKS_FROM: i16 = 11;

/// Answers with more to read are read on a thread that may wait for the disk.
const READ_AT_ONCE_BYTES_MAX: usize = 128 << 10;

pub(super) fn start(call: Call) -> Starting {
    let answer = match call.decode::<FetchRequest>() {
        Ok(request) => begin(call, &request),
        Err(refused) => refused,
    };
    ready(answer)
}

fn begin(call: Call, request: &FetchRequest) -> Answer {
    let version = call.version();
    let reader = reader(request, version);
    let session = session_request(request, version, matches!(reader, Reader::Follower { .. }));
    let reply = call.reply();
    match call.context.fetch_sessions.begin(session, call.context.shared.now_ms()) {
        Err(rejection) => {
            call.context.shared.metrics.requests.record_error(reply.api_key, rejection.code());
            let answer = FetchAnswer {
                error_code: rejection.code(),
                session_id: NO_SESSION,
                partitions: Vec::new(),
                endpoints: Vec::new(),
            };
            Answer::Now(encode(answer, version, reply.correlation_id))
        }
        Ok(fetching) => {
            let bytes_max =
                usize::try_from(request.max_bytes).unwrap_or(0).min(call.context.config.fetch_max_bytes);
            let job = Job {
                reply,
                reader,
                rack: rack(&call.context, request, reader),
                bytes_min: usize::try_from(request.min_bytes).unwrap_or(0).min(bytes_max),
                bytes_max,
                deadline: Instant::now()
                    + Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)),
                fetching,
                context: call.context,
                connection: call.connection,
            };
            Answer::Later(Box::pin(async move { Some(job.run().await) }))
        }
    }
}

fn reader(request: &FetchRequest, version: i16) -> Reader {
    let (replica, epoch) = if 15 <= version {
        (request.replica_state.replica_id.0, request.replica_state.replica_epoch)
    } else {
        (request.replica_id.0, -1)
    };
    if 0 <= replica {
        let broker_epoch = (0 <= epoch).then_some(BrokerEpoch(epoch));
        return Reader::Follower { broker: BrokerId(replica), broker_epoch };
    }
    let isolation =
        if request.isolation_level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted };
    Reader::Consumer { isolation, may_follow: RACKS_FROM <= version }
}

/// The rack in which a replica is looked for.
fn rack(context: &BrokerContext, request: &FetchRequest, reader: Reader) -> Option<String> {
    let wanted = matches!(reader, Reader::Consumer { may_follow: true, .. })
        && context.config.replica_selector == ReplicaSelector::RackAware;
    wanted.then(|| request.rack_id.to_string()).filter(|rack| !rack.is_empty())
}

fn session_request(request: &FetchRequest, version: i16, is_follower: bool) -> SessionRequest {
    let by_id = TOPIC_IDS_FROM <= version;
    let topic_ref = |name: &str, id: Uuid| {
        if by_id { TopicRef::Id(TopicId(id)) } else { TopicRef::Name(TopicName::from(name)) }
    };
    let mut partitions = Vec::new();
    for topic in &request.topics {
        let reference = topic_ref(&topic.topic, topic.topic_id);
        partitions.extend(topic.partitions.iter().map(|asked| {
            let key = PartitionKey { topic: reference.clone(), partition: asked.partition };
            let fetch = PartitionFetch {
                offset: asked.fetch_offset,
                max_bytes: asked.partition_max_bytes,
                current_leader_epoch: asked.current_leader_epoch,
                last_fetched_epoch: asked.last_fetched_epoch,
                log_start: asked.log_start_offset,
            };
            (key, fetch)
        }));
    }
    let mut forgotten = Vec::new();
    for topic in &request.forgotten_topics_data {
        let reference = topic_ref(&topic.topic, topic.topic_id);
        forgotten.extend(
            topic
                .partitions
                .iter()
                .map(|number| PartitionKey { topic: reference.clone(), partition: *number }),
        );
    }
    SessionRequest {
        id: request.session_id,
        epoch: request.session_epoch,
        uses_topic_ids: by_id,
        is_follower,
        partitions,
        forgotten,
    }
}

/// A fetch that is being answered.
struct Job {
    context: Arc<BrokerContext>,
    connection: Connection,
    reply: Reply,
    reader: Reader,
    /// Of a consumer that may be sent to another replica.
    rack: Option<String>,
    bytes_min: usize,
    bytes_max: usize,
    deadline: Instant,
    fetching: Fetching,
}

type Read = Result<(Arc<Partition>, ReadAnswer), Rejection>;

/// Bytes of records that it brings.
fn planned(read: &Read) -> usize {
    read.as_ref().map_or(0, |(_, answer)| answer.plan.len())
}

/// Partitions that are looked at one after the other.
struct Round {
    /// By [`Shared::now_ms`](crate::shared::Shared::now_ms).
    now_ms: u64,
    /// Bytes of records that may still be added to the answer.
    left: usize,
    /// The answer has none yet.
    first: bool,
}

impl Job {
    async fn run(mut self) -> Frame {
        let mut reads = self.read_all();
        for (asked, read) in self.fetching.partitions.iter_mut().zip(&reads) {
            if let Ok((found, _)) = read
                && asked.partition.as_ptr() != Arc::as_ptr(found)
            {
                asked.partition = Arc::downgrade(found);
            }
        }
        if !self.is_enough(&reads) {
            self.wait_for_more(&mut reads).await;
        }
        self.finish(reads).await
    }

    /// Until it is enough, or the time is over.
    async fn wait_for_more(&self, reads: &mut [Read]) {
        let waiter = FetchWaiter::new();
        let mut to_register: Vec<usize> = (0..reads.len()).collect();
        while Instant::now() < self.deadline {
            for place in to_register {
                if let Ok((partition, answer)) = &reads[place] {
                    partition.wait_for_data((&waiter, place), answer.seen);
                }
            }
            if timeout_at(self.deadline, waiter.woken()).await.is_err() {
                return;
            }
            let News { moved, noted } = waiter.take_news();
            self.read_again(reads, moved.iter().chain(&noted).copied().collect());
            if self.is_enough(reads) {
                return;
            }
            to_register = moved;
        }
    }

    /// Looks again at those of these places; what the others answered stands.
    fn read_again(&self, reads: &mut [Read], places: BTreeSet<usize>) {
        let kept = |(place, read): (usize, &Read)| if places.contains(&place) { 0 } else { planned(read) };
        let mut round = self.round(reads.iter().enumerate().map(kept).sum());
        for place in places {
            // The old answer lives until the new one is there: time in here is not the follower's lag (D5).
            reads[place] = self.read_one(&self.fetching.partitions[place], &mut round);
        }
    }

    /// `kept`: bytes of records that the answer has already.
    fn round(&self, kept: usize) -> Round {
        let now_ms = self.context.shared.now_ms();
        Round { now_ms, left: self.bytes_max.saturating_sub(kept), first: kept == 0 }
    }

    /// Small reads come from the page cache, as the end of a log does. A large one may be an old part of the log and
    /// wait for the disk, and must not hold up a thread that serves others.
    async fn finish(self, reads: Vec<Read>) -> Frame {
        let read_now = |plan: &ReadPlan| if self.is_streamed(plan) { 0 } else { plan.len() };
        let planned: usize = reads.iter().flatten().map(|(_, answer)| read_now(&answer.plan)).sum();
        if planned <= READ_AT_ONCE_BYTES_MAX {
            return self.answer(reads);
        }
        match tokio::task::spawn_blocking(move || self.answer(reads)).await {
            Ok(frame) => frame,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The broker is stopping.
            Err(_) => Frame::default(),
        }
    }

    /// Where the records of each partition are; none is read yet.
    fn read_all(&self) -> Vec<Read> {
        let mut round = self.round(0);
        self.fetching.partitions.iter().map(|asked| self.read_one(asked, &mut round)).collect()
    }

    fn read_one(&self, asked: &Asked, round: &mut Round) -> Read {
        let read = self.find_and_read(asked, round);
        let bytes = planned(&read);
        round.left = round.left.saturating_sub(bytes);
        round.first &= bytes == 0;
        read
    }

    fn find_and_read(&self, asked: &Asked, round: &Round) -> Read {
        if let Some(known) = asked.partition.upgrade() {
            match self.read_at(&known, asked, round) {
                Ok(answer) => return Ok((known, answer)),
                // Unless it was removed or replaced since.
                Err(rejection) if self.find(&asked.key).is_some_and(|now| Arc::ptr_eq(&now, &known)) => {
                    return Err(rejection);
                }
                Err(_) => {}
            }
        }
        let PartitionKey { topic, partition } = &asked.key;
        let found = self.find(&asked.key);
        let found = found.ok_or_else(|| not_hosted(&self.context.metadata.image(), topic, *partition))?;
        let answer = self.read_at(&found, asked, round)?;
        Ok((found, answer))
    }

    fn find(&self, key: &PartitionKey) -> Option<Arc<Partition>> {
        match &key.topic {
            TopicRef::Name(name) => self.context.partitions.get(name, key.partition),
            TopicRef::Id(id) => self.context.partitions.get_by_id(*id, key.partition),
        }
    }

    fn read_at(
        &self,
        partition: &Arc<Partition>,
        Asked { key, fetch, .. }: &Asked,
        round: &Round,
    ) -> Result<ReadAnswer, Rejection> {
        if self.reply.api_version < ZSTD_FROM && self.becomes_zstd(&key.topic) {
            return Err(Rejection::UnsupportedCompressionType);
        }
        let request = ReadRequest {
            offset: fetch.offset,
            max_bytes: usize::try_from(fetch.max_bytes).unwrap_or(0).min(round.left),
            minimum_one_batch: round.first,
            current_leader_epoch: LeaderEpoch(fetch.current_leader_epoch),
            last_fetched_epoch: LeaderEpoch(fetch.last_fetched_epoch),
            log_start: fetch.log_start,
            reader: self.reader,
        };
        let mut answer = partition.read_at(&request, round.now_ms)?;
        if answer.diverging.is_none()
            && let Some(broker) = self.nearer_replica(partition, fetch.offset)
        {
            answer.plan = ReadPlan::EMPTY;
            answer.preferred_read_replica = Some(broker);
        }
        Ok(answer)
    }

    /// Whether all that is appended to the topic becomes zstd (CLI-06). What producers compress so is given to each
    /// reader as it is, as Kafka does: there are clients that read it and know no version from [`ZSTD_FROM`] on.
    fn becomes_zstd(&self, topic: &TopicRef) -> bool {
        let TopicRef::Name(name) = topic else { return false };
        self.context.topic_configs.get(name).compression_type == CompressionType::Zstd
    }

    /// The replica that the consumer shall read from instead of this leader.
    fn nearer_replica(&self, partition: &Partition, offset: i64) -> Option<BrokerId> {
        let rack = self.rack.as_deref()?;
        let followers = partition.readable_followers(offset);
        let image = self.context.metadata.image();
        let rack_of = |broker: BrokerId| {
            let live = image.brokers.get(&broker)?;
            live.address(&self.connection.listener.0)?;
            live.rack.as_deref()
        };
        nearest(rack, self.context.shared.own, &followers, rack_of)
    }

    fn count(&self, partition: &Partition, finished: &Result<PartitionAnswer, Rejection>) {
        match (self.reader, finished) {
            (Reader::Follower { .. }, Ok(answer)) if answer.records.len() == 0 => {}
            (Reader::Follower { .. }, Ok(answer)) => {
                self.context.shared.metrics.replication_bytes_out.add(answer.records.len() as u64);
            }
            (Reader::Consumer { .. }, Ok(answer)) => partition.counters().fetched(answer.records.len()),
            // The client asked the wrong broker.
            (_, Err(Rejection::NotLeaderOrFollower)) => {}
            (_, Err(_)) => partition.counters().fetch_failed(),
        }
    }

    /// Whether the answer need not wait: enough bytes, nothing to wait for, or something to tell at once.
    fn is_enough(&self, reads: &[Read]) -> bool {
        let mut bytes = 0;
        for read in reads {
            match read {
                Ok((_, answer)) if answer.diverging.is_none() && answer.preferred_read_replica.is_none() => {
                    bytes += answer.plan.len()
                }
                _ => return true,
            }
        }
        reads.is_empty() || self.bytes_min <= bytes
    }

    /// Whether the records are worth being read while the answer is written.
    fn is_streamed(&self, plan: &ReadPlan) -> bool {
        STREAMED_FROM_BYTES <= plan.len() && plan.can_be_streamed()
    }

    /// Reads the records, or begins to. The leadership is checked afterwards, and again after each part: what was read
    /// before a truncation is not answered.
    fn finish_read(
        &self,
        partition: &Arc<Partition>,
        answer: ReadAnswer,
        key: &PartitionKey,
    ) -> Result<PartitionAnswer, Rejection> {
        let epoch = answer.leader_epoch;
        let records = if answer.plan.is_empty() {
            Records::NONE
        } else if self.is_streamed(&answer.plan)
            && let Some(records) = answer.plan.stream()
        {
            Records::Stream(Box::new(ServedRecords::new(Arc::clone(partition), epoch, records)))
        } else {
            let read = answer.plan.read();
            // What stands there after a truncation may look like damage.
            if !partition.serves_in(epoch) {
                return Err(Rejection::NotLeaderOrFollower);
            }
            let records = read.map_err(|error| partition.refuse_read(error))?;
            Records::Read(records)
        };
        let shared = &self.context.shared;
        if answer.counts_as_throttled {
            shared.throttles.leader.record(records.len(), shared.now_ms());
        }
        if answer.is_for_reassignment {
            shared.metrics.reassignment_bytes_out.add(records.len() as u64);
        }
        Ok(PartitionAnswer {
            partition: key.partition,
            error_code: 0,
            high_watermark: answer.high_watermark,
            last_stable_offset: answer.last_stable_offset,
            log_start_offset: answer.log_start_offset,
            diverging: answer.diverging,
            current_leader: None,
            preferred_read_replica: answer.preferred_read_replica,
            aborted: answer.aborted,
            records,
        })
    }

    fn answer(&self, reads: Vec<Read>) -> Frame {
        let version = self.reply.api_version;
        let image = self.context.metadata.image();
        let mut hints = LeaderHints::new(&image, &self.connection.listener.0);
        let mut answers: Vec<PartitionAnswer> = Vec::with_capacity(reads.len());
        for (Asked { key, .. }, read) in self.fetching.partitions.iter().zip(reads) {
            let finished = read.and_then(|(partition, answer)| {
                let finished = self.finish_read(&partition, answer, key);
                self.count(&partition, &finished);
                finished
            });
            let answer = match finished {
                Ok(answer) => answer,
                Err(rejection) => {
                    let requests = &self.context.shared.metrics.requests;
                    requests.record_error(self.reply.api_key, rejection.code());
                    let mut refused = PartitionAnswer::refused(key.partition, rejection.code());
                    if LEADER_HINTS_FROM <= version {
                        refused.current_leader = hints.leader(rejection, &key.topic, key.partition);
                    }
                    refused
                }
            };
            answers.push(answer);
        }
        let told: Vec<Told> = answers.iter().map(told).collect();
        let sessions = &self.context.fetch_sessions;
        let now_ms = self.context.shared.now_ms();
        let (session_id, wanted) = sessions.finish(&self.fetching, &told, random_session_id, now_ms);
        let partitions = self.fetching.partitions.iter().zip(answers).zip(wanted);
        let partitions = partitions
            .filter_map(|((asked, answer), wanted)| wanted.then_some((&asked.key.topic, answer)))
            .collect::<Vec<_>>();
        // With that of the whole answer.
        let successes = 1 + partitions.iter().filter(|(_, answer)| answer.error_code == 0).count();
        self.context.shared.metrics.requests.record_successes(self.reply.api_key, successes);
        let endpoints = hints.endpoints().collect();
        let answer = FetchAnswer { error_code: 0, session_id, partitions, endpoints };
        encode(answer, version, self.reply.correlation_id)
    }
}

fn told(answer: &PartitionAnswer) -> Told {
    Told {
        has_records: 0 < answer.records.len(),
        is_special: answer.error_code != 0
            || answer.diverging.is_some()
            || answer.preferred_read_replica.is_some(),
        high_watermark: answer.high_watermark,
        log_start_offset: answer.log_start_offset,
    }
}

/// Session ids are positive; zero is left to the caller, who asks again.
fn random_session_id() -> i32 {
    i32::try_from(Uuid::new_v4().as_u128() & 0x7fff_ffff).expect("31 bits")
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
    use zurau_common::wire::control::to_wire_topic;

    use super::*;

    #[test]
    fn followers_and_clients_are_told_apart_in_every_version() {
        let consumer = |isolation, may_follow| Reader::Consumer { isolation, may_follow };
        let follower = |epoch: Option<i64>| Reader::Follower {
            broker: BrokerId(3),
            broker_epoch: epoch.map(BrokerEpoch),
        };
        let old = FetchRequest::default().with_replica_id(3.into());
        let new = |epoch| {
            let state = ReplicaState::default().with_replica_id(3.into()).with_replica_epoch(epoch);
            FetchRequest::default().with_replica_state(state)
        };
        let client = FetchRequest::default().with_replica_id((-1).into());
        let rows = [
            (old.clone(), 14, follower(None)),
            (new(7), 15, follower(Some(7))),
            (new(-1), 17, follower(None)),
            (client.clone(), 4, consumer(Isolation::ReadUncommitted, false)),
            (client.clone(), 11, consumer(Isolation::ReadUncommitted, true)),
            (client.clone().with_isolation_level(1), 17, consumer(Isolation::ReadCommitted, true)),
        ];
        for (request, version, expected) in rows {
            assert_eq!(reader(&request, version), expected, "v{version}");
        }
    }

    #[test]
    fn topics_are_named_as_their_version_names_them() {
        let id = Uuid::from_u128(4);
        let partition = FetchPartition::default()
            .with_partition(2)
            .with_fetch_offset(9)
            .with_current_leader_epoch(5)
            .with_last_fetched_epoch(4)
            .with_partition_max_bytes(100);
        let topic = FetchTopic::default()
            .with_topic(to_wire_topic("t"))
            .with_topic_id(id)
            .with_partitions(vec![partition]);
        let forgotten = ForgottenTopic::default()
            .with_topic(to_wire_topic("t"))
            .with_topic_id(id)
            .with_partitions(vec![7]);
        let request = FetchRequest::default()
            .with_session_id(3)
            .with_session_epoch(2)
            .with_topics(vec![topic])
            .with_forgotten_topics_data(vec![forgotten]);
        for (version, reference) in [(12, TopicRef::Name("t".into())), (13, TopicRef::Id(TopicId(id)))] {
            let session = session_request(&request, version, true);
            let key = |partition| PartitionKey { topic: reference.clone(), partition };
            let fetch = PartitionFetch {
                offset: 9,
                max_bytes: 100,
                current_leader_epoch: 5,
                last_fetched_epoch: 4,
                log_start: -1,
            };
            assert_eq!(session.partitions, [(key(2), fetch)]);
            assert_eq!(session.forgotten, [key(7)]);
            assert_eq!((session.id, session.epoch, session.is_follower), (3, 2, true));
            assert_eq!(session.uses_topic_ids, version == 13);
        }
    }
}
