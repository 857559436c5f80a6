//! One task, one connection and one queue per live broker: requests go out in order, one at a time, and are repeated
//! with growing pauses until the broker answers or its registration is gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::{
    LeaderAndIsrRequest, OffsetForLeaderEpochRequest, StopReplicaRequest, UpdateMetadataRequest,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, warn};
use zurau_common::http::instruments::Timer;
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{
    LEADER_AND_ISR_VERSION, LeaderAndIsrHeader, STOP_REPLICA_VERSION, UPDATE_METADATA_VERSION,
    leader_and_isr_request,
};
use zurau_common::wire::peer::Peer;

use crate::action::{LiveBroker, PartitionMetadata, StopReplica};
use crate::event::{Event, LeaderAndIsrAnswer};
use crate::inbox::Inbox;
use crate::messages::{self, Sender};
use crate::queue::{BrokerQueue, Outgoing};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const OFFSET_FOR_LEADER_EPOCH_VERSION: i16 = 4;

/// What comes back from brokers.
#[derive(Debug)]
pub(crate) enum Reply {
    Event(Event),
    /// A broker knows a newer controller: look whether this one is still in office.
    NewerController,
}

/// What every broker is told: kept whole, so that a new one can be told everything.
#[derive(Debug, Default)]
struct Image {
    live: Vec<LiveBroker>,
    partitions: BTreeMap<TopicPartition, PartitionMetadata>,
}

struct Link {
    broker: LiveBroker,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    line: Mutex<Line>,
    changed: Notify,
    /// How long what was sent had waited, the longest of each request.
    waited: Arc<Timer>,
}

/// What waits for a broker.
struct Line {
    queue: BrokerQueue,
    /// Since when something does.
    since: Option<Instant>,
}

impl Line {
    /// The next request, and since when something of it may have waited.
    fn next(&mut self) -> Option<(Outgoing, Instant)> {
        let next = self.queue.next_outgoing();
        let since = self.since.unwrap_or_else(Instant::now);
        if next.is_none() || self.queue.is_empty() {
            self.since = None;
        }
        Some((next?, since))
    }

    /// It was not answered, so it waits on.
    fn put_back(&mut self, request: Outgoing, since: Instant) {
        self.queue.put_back(request);
        self.since = Some(self.since.map_or(since, |other| other.min(since)));
    }
}

/// What waits for a broker at one moment, and how long that took lately.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) broker: BrokerId,
    pub(crate) records: usize,
    pub(crate) waited: Arc<Timer>,
}

/// Of one controller in one epoch. Dropping it closes every connection.
pub(crate) struct Outbox {
    links: HashMap<BrokerId, Link>,
    image: Arc<Mutex<Image>>,
    controller_id: i32,
    controller_epoch: ControllerEpoch,
    timeout: Duration,
    replies: Inbox<Reply>,
}

impl Outbox {
    /// `timeout`: time to wait for a broker's answer, `controller.socket.timeout.ms`.
    pub(crate) fn new(
        controller_id: i32,
        controller_epoch: ControllerEpoch,
        timeout: Duration,
        replies: Inbox<Reply>,
    ) -> Self {
        Self {
            links: HashMap::new(),
            image: Arc::default(),
            controller_id,
            controller_epoch,
            timeout,
            replies,
        }
    }

    /// Before anything is sent: the epoch was raised while taking office (N14).
    pub(crate) fn set_controller_epoch(&mut self, epoch: ControllerEpoch) {
        assert!(
            self.links.is_empty() || epoch == self.controller_epoch,
            "requests of two epochs would be mixed"
        );
        self.controller_epoch = epoch;
    }

    pub(crate) fn set_live_brokers(&mut self, live: Vec<LiveBroker>) {
        self.links.retain(|id, link| {
            live.iter().any(|now| {
                now.broker == *id
                    && now.broker_epoch == link.broker.broker_epoch
                    && now.address == link.broker.address
            })
        });
        self.image.lock().live.clone_from(&live);
        for link in self.links.values() {
            link.change(BrokerQueue::brokers_changed);
        }
        for broker in live {
            if !self.links.contains_key(&broker.broker) {
                self.links.insert(broker.broker, self.link(broker));
            }
        }
    }

    /// Records that wait for each live broker, in the order of their ids.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.links.iter().map(|(broker, link)| Waiting {
            broker: *broker,
            records: link.shared.line.lock().queue.len(),
            waited: Arc::clone(&link.shared.waited),
        });
        let mut waiting: Vec<Waiting> = waiting.collect();
        waiting.sort_unstable_by_key(|one| one.broker);
        waiting
    }

    fn link(&self, broker: LiveBroker) -> Link {
        let line = Line { queue: BrokerQueue::new(), since: Some(Instant::now()) };
        let shared =
            Arc::new(Shared { line: Mutex::new(line), changed: Notify::new(), waited: Arc::default() });
        let courier = Courier {
            sender: Sender {
                controller_id: self.controller_id,
                controller_epoch: self.controller_epoch,
                broker_epoch: broker.broker_epoch,
            },
            broker: broker.clone(),
            shared: Arc::clone(&shared),
            image: Arc::clone(&self.image),
            timeout: self.timeout,
            replies: self.replies.clone(),
        };
        Link { broker, shared, task: tokio::spawn(courier.run()) }
    }

    fn change(&self, broker: BrokerId, epoch: BrokerEpoch, change: impl FnOnce(&mut BrokerQueue)) {
        // Meant for a registration that is gone: a new one is told everything anyway.
        if let Some(link) = self.links.get(&broker).filter(|link| link.broker.broker_epoch == epoch) {
            link.change(change);
        }
    }

    pub(crate) fn leader_and_isr(&self, broker: BrokerId, epoch: BrokerEpoch, record: LeaderAndIsr) {
        self.change(broker, epoch, |queue| queue.tell(record));
    }

    pub(crate) fn full_leader_and_isr(
        &self,
        broker: BrokerId,
        epoch: BrokerEpoch,
        records: Vec<LeaderAndIsr>,
    ) {
        self.change(broker, epoch, |queue| queue.tell_everything(records));
    }

    pub(crate) fn stop_replica(&self, broker: BrokerId, epoch: BrokerEpoch, stop: StopReplica) {
        self.change(broker, epoch, |queue| queue.stop(stop));
    }

    pub(crate) fn query_log_end(&self, broker: BrokerId, epoch: BrokerEpoch, partition: TopicPartition) {
        self.change(broker, epoch, |queue| queue.ask_log_end(partition));
    }

    pub(crate) fn metadata(&self, changes: Vec<(TopicPartition, Option<PartitionMetadata>)>) {
        // Held until both is done: whoever is due the whole image takes it with these changes in it.
        let mut image = self.image.lock();
        for link in self.links.values() {
            link.change(|queue| queue.publish(&changes));
        }
        for (partition, metadata) in changes {
            match metadata {
                Some(metadata) => image.partitions.insert(partition, metadata),
                None => image.partitions.remove(&partition),
            };
        }
    }

    /// Nothing more is sent.
    pub(crate) fn close(&mut self) {
        self.links.clear();
    }
}

impl Link {
    fn change(&self, change: impl FnOnce(&mut BrokerQueue)) {
        let mut line = self.shared.line.lock();
        change(&mut line.queue);
        line.since.get_or_insert_with(Instant::now);
        drop(line);
        self.shared.changed.notify_one();
    }
}

/// Delivers one broker's queue.
struct Courier {
    sender: Sender,
    broker: LiveBroker,
    shared: Arc<Shared>,
    image: Arc<Mutex<Image>>,
    timeout: Duration,
    replies: Inbox<Reply>,
}

impl Courier {
    async fn run(self) {
        let mut peer: Option<Peer> = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let next = self.shared.line.lock().next();
            let Some((request, since)) = next else {
                self.shared.changed.notified().await;
                continue;
            };
            self.shared.waited.record(since.elapsed());
            match self.deliver(&mut peer, &request).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    let broker = self.broker.broker;
                    debug!(%broker, "a control request was not answered: {error:#}; trying again in {pause:?}");
                    if pause >= LONGEST_PAUSE {
                        warn!(%broker, "broker does not answer control requests: {error:#}");
                    }
                    self.shared.line.lock().put_back(request, since);
                    peer = None;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn deliver(&self, peer: &mut Option<Peer>, request: &Outgoing) -> anyhow::Result<()> {
        if peer.as_ref().is_none_or(Peer::is_closed) {
            let address = self.broker.address.to_string();
            let client_id = format!("zurau-controller-{}", self.sender.controller_id);
            *peer = Some(Peer::connect(&address, &client_id, CONNECT_TIMEOUT.min(self.timeout)).await?);
        }
        let Some(peer) = peer else { return Ok(()) };
        match request {
            Outgoing::LeaderAndIsr { full, partitions } => self.tell(peer, *full, partitions).await?,
            Outgoing::StopReplicas(stops) => self.stop(peer, stops).await?,
            Outgoing::FullMetadata => {
                let message = {
                    let image = self.image.lock();
                    let partitions = image.partitions.iter().map(|(tp, metadata)| (tp, Some(metadata)));
                    messages::update_metadata(self.sender, true, &image.live, partitions)
                };
                self.update_metadata(peer, &message).await?;
            }
            Outgoing::Metadata(changes) => {
                let partitions = changes.iter().map(|(tp, metadata)| (tp, metadata.as_ref()));
                let message = {
                    let image = self.image.lock();
                    messages::update_metadata(self.sender, false, &image.live, partitions)
                };
                self.update_metadata(peer, &message).await?;
            }
            Outgoing::LogEnds(partitions) => self.ask_log_ends(peer, partitions).await?,
        }
        Ok(())
    }

    async fn tell(&self, peer: &Peer, full: bool, partitions: &[LeaderAndIsr]) -> anyhow::Result<()> {
        let header = LeaderAndIsrHeader {
            controller_id: self.sender.controller_id,
            controller_epoch: self.sender.controller_epoch,
            broker_epoch: self.sender.broker_epoch,
            full,
        };
        let leaders: Vec<(BrokerId, String, u16)> = {
            let image = self.image.lock();
            let leads = |id: BrokerId| partitions.iter().any(|record| record.leader == id);
            let live = image.live.iter().filter(|live| leads(live.broker));
            live.map(|live| (live.broker, live.address.host.clone(), live.address.port)).collect()
        };
        let message: LeaderAndIsrRequest = leader_and_isr_request(header, partitions, &leaders);
        let response = peer.call_within(self.timeout, LEADER_AND_ISR_VERSION, &message).await?;
        self.look_at(response.error_code)?;
        let answers: Vec<LeaderAndIsrAnswer> = messages::leader_and_isr_answers(partitions, &response);
        for answer in answers.iter().filter(|answer| answer.outcome.is_err()) {
            let (broker, partition, epoch) = (self.broker.broker, &answer.partition, answer.leader_epoch);
            warn!(%broker, %partition, %epoch, "LeaderAndIsr was refused: {:?}", answer.outcome);
        }
        let (broker, broker_epoch) = (self.broker.broker, self.broker.broker_epoch);
        self.reply(Reply::Event(Event::LeaderAndIsrAnswered { broker, broker_epoch, answers }));
        Ok(())
    }

    async fn stop(&self, peer: &Peer, stops: &[StopReplica]) -> anyhow::Result<()> {
        let message: StopReplicaRequest = messages::stop_replica(self.sender, stops);
        let response = peer.call_within(self.timeout, STOP_REPLICA_VERSION, &message).await?;
        self.look_at(response.error_code)?;
        let whole = Rejection::from_code(response.error_code);
        for stop in stops {
            let found = response.partition_errors.iter().find(|answer| {
                *answer.topic_name.0 == *stop.partition.topic
                    && answer.partition_index == stop.partition.partition
            });
            let outcome = match (whole, found) {
                (Some(rejection), _) => Err(rejection),
                (None, Some(answer)) => Rejection::from_code(answer.error_code).map_or(Ok(()), Err),
                (None, None) => Ok(()),
            };
            if let Err(rejection) = outcome {
                let (broker, partition) = (self.broker.broker, &stop.partition);
                warn!(%broker, %partition, topic_id = %stop.topic_id, "StopReplica was refused: {rejection}");
            }
            self.reply(Reply::Event(Event::ReplicaStopped {
                broker: self.broker.broker,
                broker_epoch: self.broker.broker_epoch,
                stop: stop.clone(),
                outcome,
            }));
        }
        Ok(())
    }

    async fn update_metadata(&self, peer: &Peer, message: &UpdateMetadataRequest) -> anyhow::Result<()> {
        let response = peer.call_within(self.timeout, UPDATE_METADATA_VERSION, message).await?;
        self.look_at(response.error_code)?;
        if let Some(rejection) = Rejection::from_code(response.error_code) {
            warn!(broker = %self.broker.broker, "UpdateMetadata was refused: {rejection}");
        }
        Ok(())
    }

    async fn ask_log_ends(&self, peer: &Peer, partitions: &[TopicPartition]) -> anyhow::Result<()> {
        let message: OffsetForLeaderEpochRequest = messages::log_end_query(partitions);
        let response = peer.call_within(self.timeout, OFFSET_FOR_LEADER_EPOCH_VERSION, &message).await?;
        for tp in partitions {
            let topic = response.topics.iter().find(|topic| *topic.topic.0 == *tp.topic);
            let found = topic.and_then(|topic| topic.partitions.iter().find(|p| p.partition == tp.partition));
            let end = found
                .filter(|answer| answer.error_code == 0)
                .map(|answer| (LeaderEpoch(answer.leader_epoch), answer.end_offset));
            let (broker, partition) = (self.broker.broker, tp.clone());
            self.reply(Reply::Event(Event::LogEnd { broker, partition, end }));
        }
        Ok(())
    }

    /// A broker that knows another registration of itself than the controller has not heard the request: it is
    /// repeated until ZooKeeper says which of the two is right.
    fn look_at(&self, error_code: i16) -> anyhow::Result<()> {
        match Rejection::from_code(error_code) {
            Some(rejection @ Rejection::StaleBrokerEpoch) => Err(rejection.into()),
            Some(Rejection::StaleControllerEpoch) => {
                self.reply(Reply::NewerController);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn reply(&self, reply: Reply) {
        self.replies.put(reply);
    }
}
