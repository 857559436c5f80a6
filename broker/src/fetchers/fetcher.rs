//! One fetcher: a connection to one leader, and a loop of Fetch requests over the partitions it follows there. A
//! partition that cannot go on backs off alone. The request format is Fetch v17: topics by id, the follower and its
//! registration named (KIP-903), the leader's epoch and the last fetched epoch for truncation (KIP-320, KIP-595). Requests
//! name what has changed since the one before (`session`).
//!
//! With `replica.truncation.path=offsets-for-leader-epoch` those that have to ask where an epoch ends go first, all in one
//! request; who has its answer fetches with the others then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use kafka_protocol::messages::OffsetForLeaderEpochRequest;
use kafka_protocol::messages::fetch_request::{
    FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState,
};
use kafka_protocol::messages::fetch_response::{FetchResponse, PartitionData};
use kafka_protocol::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};
use zurau_common::id::{BrokerId, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{TAG_TOPIC_ID, put_topic_id, to_wire_topic};
use zurau_common::wire::peer::Peer;

use super::session::{FetchSession, Name, Turn};
use super::{AddressBook, FetchSettings, FetchersObserved};
use crate::partition::{FetchStep, Partition};
use crate::replica::follower::{Asked, EpochEndOffset, FetchPosition, FetchedOutcome};
use crate::shared::{Shared, wall_clock_ms};

const FETCH_VERSION: i16 = 17;
const LIST_OFFSETS_VERSION: i16 = 7;
const OFFSET_FOR_LEADER_EPOCH_VERSION: i16 = 4;
/// Asks for the log start.
const EARLIEST: i64 = -2;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_BACK_OFF_MS: u64 = 10;
/// A request under way gets so long when the set of partitions grows, before it is given up for one that names the
/// new ones too.
const PATIENCE: Duration = Duration::from_millis(20);

/// A partition in a fetcher's care.
struct Followed {
    partition: Arc<Partition>,
    ask_from: Option<Instant>,
    back_off_ms: u64,
    /// The last answer left it with everything that was committed; such a one is never throttled.
    in_sync: bool,
    /// Records below the leader's high watermark that were missing when it last answered.
    lag: i64,
}

/// The partitions of one fetcher; changed by the control plane, read by the fetcher.
#[derive(Default)]
pub(super) struct Work {
    followed: Mutex<HashMap<TopicPartition, Followed>>,
    grown: Notify,
}

impl Work {
    pub(super) fn add(&self, partition: Arc<Partition>) {
        let followed = Followed { ask_from: None, back_off_ms: 0, in_sync: false, lag: 0, partition };
        self.followed.lock().insert(followed.partition.id().clone(), followed);
    }

    pub(super) fn remove(&self, id: &TopicPartition) {
        self.followed.lock().remove(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.followed.lock().is_empty()
    }

    /// After additions: the fetcher takes them up at once.
    pub(super) fn changed(&self) {
        self.grown.notify_one();
    }

    /// What to ask now, and when to look again if that is before anything else happens. `throttle_ms`: how long those
    /// that are throttled and not in sync have to wait.
    fn questions(&self, leader: BrokerId, throttle_ms: Option<u64>) -> (Vec<Question>, Option<Instant>) {
        let now = Instant::now();
        let throttled_until = throttle_ms.map(|wait_ms| now + Duration::from_millis(wait_ms));
        let mut next: Option<Instant> = None;
        let mut questions = Vec::new();
        for followed in self.followed.lock().values() {
            let throttled =
                throttled_until.filter(|_| !followed.in_sync && followed.partition.is_throttled_follower());
            if let Some(at) = followed.ask_from.filter(|at| now < *at).or(throttled) {
                next = Some(next.map_or(at, |next| next.min(at)));
                continue;
            }
            if let Some(position) = followed.partition.fetch_position().filter(|p| p.leader == leader) {
                questions.push(Question { partition: Arc::clone(&followed.partition), position });
            }
        }
        (questions, next)
    }

    /// Each partition with its lag.
    pub(super) fn lags(&self) -> Vec<(TopicPartition, i64)> {
        self.followed.lock().iter().map(|(id, one)| (id.clone(), one.lag)).collect()
    }

    pub(super) fn observe(&self) -> FetchersObserved {
        let followed = self.followed.lock();
        FetchersObserved {
            lag_max: followed.values().map(|one| one.lag).max().unwrap_or(0),
            backing_off: followed.values().filter(|one| one.back_off_ms != 0).count(),
            dead: 0,
        }
    }

    /// `lag`: records that are missing below the leader's high watermark; negative when there are more here.
    fn go_on(&self, id: &TopicPartition, lag: i64) {
        if let Some(followed) = self.followed.lock().get_mut(id) {
            followed.in_sync = lag <= 0;
            followed.lag = lag.max(0);
            followed.back_off_ms = 0;
            followed.ask_from = None;
        }
    }

    /// Returns the pause in milliseconds; it doubles each time.
    fn back_off(&self, id: &TopicPartition, max_ms: u64) -> u64 {
        let mut followed = self.followed.lock();
        let Some(followed) = followed.get_mut(id) else { return 0 };
        followed.back_off_ms =
            (2 * followed.back_off_ms).clamp(FIRST_BACK_OFF_MS, max_ms.max(FIRST_BACK_OFF_MS));
        followed.ask_from = Some(Instant::now() + Duration::from_millis(followed.back_off_ms));
        followed.back_off_ms
    }
}

struct Question {
    partition: Arc<Partition>,
    position: FetchPosition,
}

impl Question {
    fn name(&self) -> Name {
        (self.partition.topic_id(), self.partition.id().partition)
    }
}

pub(super) struct Fetcher {
    shared: Arc<Shared>,
    settings: FetchSettings,
    addresses: Arc<AddressBook>,
    leader: BrokerId,
    work: Arc<Work>,
}

impl Fetcher {
    pub(super) fn new(
        shared: Arc<Shared>,
        settings: FetchSettings,
        addresses: Arc<AddressBook>,
        (leader, work): (BrokerId, Arc<Work>),
    ) -> Self {
        Self { shared, settings, addresses, leader, work }
    }

    /// Fetches until it is dropped.
    pub(super) async fn run(self) {
        let mut back_off_ms = 0;
        loop {
            match self.connect().await {
                Ok(peer) => {
                    back_off_ms = 0;
                    let reason = self.fetch_from(&peer).await;
                    info!(leader = %self.leader, reason, "fetching is interrupted");
                }
                Err(reason) => {
                    back_off_ms =
                        (2 * back_off_ms).clamp(FIRST_BACK_OFF_MS, self.settings.back_off_max_ms.max(10));
                    debug!(leader = %self.leader, back_off_ms, "the leader cannot be reached: {reason:#}");
                    sleep(Duration::from_millis(back_off_ms)).await;
                }
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<Peer> {
        let address = self.addresses.get(self.leader);
        let address =
            address.ok_or_else(|| anyhow::anyhow!("no address of broker {} is known", self.leader))?;
        let client_id = format!("zurau-follower-{}", self.shared.own);
        let peer = Peer::connect(&address, &client_id, CONNECT_TIMEOUT).await?;
        debug!(leader = %self.leader, address, "connected to fetch");
        Ok(peer)
    }

    /// Asks again and again over one connection. Ends with the reason why that has become useless.
    async fn fetch_from(&self, peer: &Peer) -> String {
        let mut session = FetchSession::default();
        loop {
            let throttle_ms = self.shared.throttles.follower.exceeded(self.shared.now_ms());
            let (questions, next) = self.work.questions(self.leader, throttle_ms);
            if questions.is_empty() {
                let later = Instant::now() + Duration::from_secs(3_600);
                tokio::select! {
                    () = self.work.grown.notified() => {}
                    () = sleep_until(next.unwrap_or(later)) => {}
                    () = peer.closed() => return "the connection was closed".to_owned(),
                }
                continue;
            }
            let (epoch_ends, questions): (Vec<_>, Vec<_>) =
                questions.into_iter().partition(|question| question.position.asked == Asked::EpochEnd);
            if !epoch_ends.is_empty() {
                match self.ask_epoch_ends(peer, epoch_ends).await {
                    Ok(()) => continue,
                    Err(reason) => return reason,
                }
            }
            let wait_ms = match next {
                None => self.settings.wait_max_ms,
                Some(next) => {
                    let until = next.saturating_duration_since(Instant::now()).as_millis();
                    self.settings.wait_max_ms.min(i32::try_from(until).unwrap_or(i32::MAX))
                }
            };
            let turn = session.turn(questions.iter().map(|question| (question.name(), &question.position)));
            let request = self.request(turn, &questions, wait_ms);
            let limit = Duration::from_millis(self.settings.call_timeout_ms);
            let call = peer.call_within(limit, FETCH_VERSION, &request);
            tokio::pin!(call);
            let answer = tokio::select! {
                answer = &mut call => answer,
                () = self.work.grown.notified() => match timeout(PATIENCE, &mut call).await {
                    Ok(answer) => answer,
                    // The answers of a connection come in order: only another one can be faster.
                    Err(_) => return "the set of partitions has grown".to_owned(),
                },
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return error.to_string(),
            };
            let refused = Rejection::from_code(answer.error_code);
            session.answered(answer.session_id, refused.is_some());
            match refused {
                None => self.apply(peer, questions, answer).await,
                Some(rejection) if is_of_session(rejection) => {
                    debug!(leader = %self.leader, %rejection, "the leader does not know the fetch session; opening one");
                }
                Some(rejection) => {
                    warn!(leader = %self.leader, %rejection, "the leader refuses to answer a fetch; trying again");
                    sleep(Duration::from_millis(self.settings.back_off_max_ms)).await;
                }
            }
        }
    }

    fn request(&self, turn: Turn, questions: &[Question], wait_ms: i32) -> FetchRequest {
        let mut topics: HashMap<TopicId, Vec<FetchPartition>> = HashMap::new();
        for index in turn.named {
            let Question { partition, position } = &questions[index];
            topics.entry(partition.topic_id()).or_default().push(
                FetchPartition::default()
                    .with_partition(partition.id().partition)
                    .with_current_leader_epoch(position.leader_epoch.0)
                    .with_fetch_offset(position.offset)
                    .with_last_fetched_epoch(position.last_fetched_epoch)
                    .with_log_start_offset(position.log_start)
                    .with_partition_max_bytes(self.settings.partition_bytes_max),
            );
        }
        let topics = topics
            .into_iter()
            .map(|(id, partitions)| FetchTopic::default().with_topic_id(id.0).with_partitions(partitions));
        let mut forgotten: HashMap<TopicId, Vec<i32>> = HashMap::new();
        for (topic, partition) in turn.forgotten {
            forgotten.entry(topic).or_default().push(partition);
        }
        let forgotten = forgotten.into_iter().map(|(id, partitions)| {
            ForgottenTopic::default().with_topic_id(id.0).with_partitions(partitions)
        });
        let state = ReplicaState::default()
            .with_replica_id(self.shared.own.0.into())
            .with_replica_epoch(self.shared.broker_epoch().0);
        FetchRequest::default()
            .with_replica_state(state)
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(self.settings.bytes_min)
            .with_max_bytes(self.settings.answer_bytes_max)
            .with_session_id(turn.session_id)
            .with_session_epoch(turn.session_epoch)
            .with_topics(topics.collect())
            .with_forgotten_topics_data(forgotten.collect())
    }

    async fn apply(&self, peer: &Peer, questions: Vec<Question>, answer: FetchResponse) {
        let mut answered: HashMap<Name, PartitionData> = HashMap::new();
        for topic in answer.responses {
            let topic_id = TopicId(topic.topic_id);
            answered
                .extend(topic.partitions.into_iter().map(|data| ((topic_id, data.partition_index), data)));
        }
        if answered.is_empty() {
            return;
        }
        let mut syncs = Vec::new();
        for question in questions {
            // Who is not mentioned stands where it stood.
            let Some(data) = answered.remove(&question.name()) else { continue };
            self.apply_one(peer, &question, data).await;
            syncs.extend(question.partition.wait_for_due_flush(wall_clock_ms()));
        }
        // A sync that fails takes its partition offline by itself.
        join_all(syncs).await;
    }

    async fn apply_one(&self, peer: &Peer, question: &Question, data: PartitionData) {
        let Question { partition, position } = question;
        let records = data.records.clone().unwrap_or_default();
        let outcome = outcome_of(&data);
        if !records.is_empty() && partition.is_throttled_follower() {
            self.shared.throttles.follower.record(records.len(), self.shared.now_ms());
        }
        self.shared.metrics.replication_bytes_in.add(records.len() as u64);
        if !records.is_empty() && partition.is_being_added() {
            self.shared.metrics.reassignment_bytes_in.add(records.len() as u64);
        }
        let step = partition.apply_fetch(*position, outcome, &records, wall_clock_ms());
        if self.go_on(peer, question, step).await {
            let reached = partition.fetch_position().map_or(-1, |position| position.offset);
            self.work.go_on(partition.id(), data.high_watermark - reached);
        }
    }

    /// What follows from an answer that was applied; whether the partition is asked about again at once.
    async fn go_on(&self, peer: &Peer, question: &Question, mut step: FetchStep) -> bool {
        let Question { partition, position } = question;
        if step == FetchStep::AskLeaderStart {
            step = match self.leader_start(peer, question).await {
                Ok(start) => partition.apply_leader_start(*position, start),
                Err(rejection) => FetchStep::BackOff(rejection),
            };
        }
        match step {
            FetchStep::BackOff(rejection) => {
                let pause_ms = self.work.back_off(partition.id(), self.settings.back_off_max_ms);
                debug!(
                    partition = %partition.id(), leader = %self.leader, leader_epoch = %position.leader_epoch,
                    offset = position.offset, %rejection, pause_ms, "the leader refused a fetch; trying again"
                );
            }
            // Whoever changed the role changes the set of partitions too; until then it is not asked about.
            FetchStep::Stop => {}
            FetchStep::Continue | FetchStep::AskLeaderStart => return true,
        }
        false
    }

    /// Asks where the epochs of these logs end, and cuts the logs (KIP-101). Each question has its own outcome: those
    /// that are refused back off, those that agree fetch next.
    ///
    /// # Errors
    /// Why the connection is of no use any more.
    async fn ask_epoch_ends(&self, peer: &Peer, questions: Vec<Question>) -> Result<(), String> {
        let request = self.epoch_end_request(&questions);
        let limit = Duration::from_millis(self.settings.call_timeout_ms);
        let call = peer.call_within(limit, OFFSET_FOR_LEADER_EPOCH_VERSION, &request);
        let answer = call.await.map_err(|error| error.to_string())?;
        let mut outcomes: HashMap<(String, i32), FetchedOutcome> = HashMap::new();
        for topic in answer.topics {
            for end in topic.partitions {
                let found = EpochEndOffset { leader_epoch: end.leader_epoch, end_offset: end.end_offset };
                let rejection = Rejection::from_code(end.error_code);
                let outcome = rejection.map_or(FetchedOutcome::EpochEnd(found), FetchedOutcome::Rejected);
                outcomes.insert((topic.topic.to_string(), end.partition), outcome);
            }
        }
        for question in questions {
            let id = question.partition.id();
            let outcome = outcomes.remove(&(id.topic.to_string(), id.partition));
            // One that the answer leaves out must not be asked about again and again.
            let outcome = outcome.unwrap_or(FetchedOutcome::Rejected(Rejection::UnknownServerError));
            let nothing = Bytes::new();
            let step = question.partition.apply_fetch(question.position, outcome, &nothing, wall_clock_ms());
            self.go_on(peer, &question, step).await;
        }
        Ok(())
    }

    fn epoch_end_request(&self, questions: &[Question]) -> OffsetForLeaderEpochRequest {
        let mut topics: HashMap<TopicId, OffsetForLeaderTopic> = HashMap::new();
        for Question { partition, position } in questions {
            let topic = topics.entry(partition.topic_id()).or_insert_with(|| {
                let mut topic =
                    OffsetForLeaderTopic::default().with_topic(to_wire_topic(&partition.id().topic));
                put_topic_id(&mut topic.unknown_tagged_fields, TAG_TOPIC_ID, partition.topic_id());
                topic
            });
            topic.partitions.push(
                OffsetForLeaderPartition::default()
                    .with_partition(partition.id().partition)
                    .with_current_leader_epoch(position.leader_epoch.0)
                    .with_leader_epoch(position.last_fetched_epoch),
            );
        }
        OffsetForLeaderEpochRequest::default()
            .with_replica_id(self.shared.own.0.into())
            .with_topics(topics.into_values().collect())
    }

    /// Asks where the leader's log begins.
    async fn leader_start(&self, peer: &Peer, question: &Question) -> Result<i64, Rejection> {
        let id = question.partition.id();
        let partition = ListOffsetsPartition::default()
            .with_partition_index(id.partition)
            .with_current_leader_epoch(question.position.leader_epoch.0)
            .with_timestamp(EARLIEST);
        let topic =
            ListOffsetsTopic::default().with_name(to_wire_topic(&id.topic)).with_partitions(vec![partition]);
        let request =
            ListOffsetsRequest::default().with_replica_id(self.shared.own.0.into()).with_topics(vec![topic]);
        let answer = peer.call(LIST_OFFSETS_VERSION, &request).await.map_err(|error| {
            debug!(partition = %id, %error, "the leader's log start is unknown");
            Rejection::NetworkException
        })?;
        let found = answer.topics.first().and_then(|topic| topic.partitions.first());
        let found = found.ok_or(Rejection::UnknownServerError)?;
        match Rejection::from_code(found.error_code) {
            None if 0 <= found.offset => Ok(found.offset),
            None => Err(Rejection::UnknownServerError),
            Some(rejection) => Err(rejection),
        }
    }
}

/// The leader restarted, or gave the session's place to another one.
fn is_of_session(rejection: Rejection) -> bool {
    matches!(
        rejection,
        Rejection::FetchSessionIdNotFound
            | Rejection::InvalidFetchSessionEpoch
            | Rejection::FetchSessionTopicIdError
    )
}

fn outcome_of(data: &PartitionData) -> FetchedOutcome {
    if let Some(rejection) = Rejection::from_code(data.error_code) {
        return FetchedOutcome::Rejected(rejection);
    }
    let diverging = &data.diverging_epoch;
    if 0 <= diverging.end_offset {
        return FetchedOutcome::Diverging(EpochEndOffset {
            leader_epoch: diverging.epoch,
            end_offset: diverging.end_offset,
        });
    }
    FetchedOutcome::Records { high_watermark: data.high_watermark, log_start: data.log_start_offset }
}
