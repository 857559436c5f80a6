//! Gets ISR changes stored: gathers the open proposals of all partitions and sends them to the active controller in one
//! AlterPartition, or, with `isr.update.path=zookeeper`, stores them itself under the same fences. A proposal counts
//! until its fate is known; whatever is unclear is settled by reading what is stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::AlterPartitionRequest;
use kafka_protocol::messages::alter_partition_request::{BrokerState, PartitionData, TopicData};
use kafka_protocol::messages::alter_partition_response::PartitionData as AnsweredPartition;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use zurau_common::config::IsrUpdatePath;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::wire::control::{
    ALTER_PARTITION_VERSION, TAG_ELR, TaggedFields, from_wire_ids, get_ids, put_ids,
};
use zurau_common::wire::peer::Peer;
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::op::MultiError;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::znode::Znode;

use crate::context::BrokerContext;
use crate::partition::Partition;
use crate::replica::storing::{Fate, OpenProposal, ProposalAnswer, Seen, fate_of, look, paths};
use crate::resignations::{Resignation, resign};
use crate::shared::PartitionRequest;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Proposals in one request: a multi of the controller holds as many partitions.
const BATCH_MAX: usize = 1_000;

struct Pending {
    partition: Arc<Partition>,
    since: Instant,
}

type Batch = Vec<(Arc<Partition>, OpenProposal)>;

/// Serves the partitions' requests until the broker ends.
pub(crate) struct Proposer {
    context: Arc<BrokerContext>,
    requests: mpsc::UnboundedReceiver<PartitionRequest>,
    pending: HashMap<TopicPartition, Pending>,
    resigning: Vec<Resignation>,
    controller: Option<Peer>,
    pause: Duration,
}

impl Proposer {
    pub(crate) fn new(
        context: Arc<BrokerContext>,
        requests: mpsc::UnboundedReceiver<PartitionRequest>,
    ) -> Self {
        let (pending, resigning) = (HashMap::new(), Vec::new());
        Self { context, requests, pending, resigning, controller: None, pause: FIRST_PAUSE }
    }

    pub(crate) async fn run(mut self) {
        loop {
            if self.pending.is_empty() && self.resigning.is_empty() {
                let Some(request) = self.requests.recv().await else { return };
                self.take(request);
            }
            while let Ok(request) = self.requests.try_recv() {
                self.take(request);
            }
            self.resign().await;
            let batch = self.batch();
            if batch.is_empty() {
                if !self.pending.is_empty() || !self.resigning.is_empty() {
                    // They wait for the lease, or for ZooKeeper.
                    sleep(LONGEST_PAUSE / 4).await;
                }
                continue;
            }
            let retried = match self.context.config.isr_update_path {
                IsrUpdatePath::Controller => self.ask_controller(batch).await,
                IsrUpdatePath::Zookeeper => self.store(batch).await,
            };
            if retried {
                sleep(self.pause).await;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.check_unanswered().await;
            } else {
                self.pause = FIRST_PAUSE;
            }
        }
    }

    fn take(&mut self, request: PartitionRequest) {
        match request {
            PartitionRequest::StoreIsr(partition) => {
                let id = partition.id().clone();
                self.pending.insert(id, Pending { partition, since: Instant::now() });
            }
            PartitionRequest::Resign(resignation) => self.resigning.push(resignation),
            PartitionRequest::DiskError { directory, error } => {
                let context = Arc::clone(&self.context);
                // Not waited for: it waits for partitions, and they may wait for the disk.
                drop(tokio::task::spawn_blocking(move || context.partitions.note_error(directory, &error)));
            }
        }
    }

    /// Tries only while ZooKeeper answers: proposals may be stored without it.
    async fn resign(&mut self) {
        if self.resigning.is_empty() {
            return;
        }
        match self.context.zookeeper.current() {
            Some(zookeeper) if self.context.has_zookeeper() => {
                self.resigning = resign(&zookeeper, std::mem::take(&mut self.resigning)).await;
            }
            Some(_) => {}
            // What a session wrote as its own ended with it.
            None => self.resigning.clear(),
        }
    }

    /// The open proposals; forgets partitions that have none any more.
    fn batch(&mut self) -> Batch {
        let mut batch = Vec::new();
        self.pending.retain(|_, pending| match pending.partition.open_proposal() {
            Some(open) => {
                if batch.len() < BATCH_MAX {
                    batch.push((Arc::clone(&pending.partition), open));
                }
                true
            }
            None => pending.partition.has_proposal(),
        });
        batch
    }

    /// Sends the batch to the controller. Returns whether anything has to be sent again.
    async fn ask_controller(&mut self, batch: Batch) -> bool {
        let answers = match self.call_controller(&batch).await {
            Ok(answers) => answers,
            Err((reason, lost)) => {
                debug!(partitions = batch.len(), "no answer to AlterPartition: {reason:#}");
                self.controller = None;
                for (partition, open) in batch.iter().filter(|_| lost) {
                    partition.lose_answer(open.facts.leader_epoch);
                }
                return true;
            }
        };
        let mut retry = false;
        for (partition, open) in batch {
            let key = (partition.topic_id(), partition.id().partition);
            let fate = match answers.get(&key) {
                Some(answer) => fate_of(&open.facts, answer_of(answer)),
                None => Fate::Retry { lost: false },
            };
            retry |= self.settle(&partition, &open, fate).await;
        }
        retry
    }

    /// The answers by partition, or why there are none and whether the request may have had an effect.
    async fn call_controller(
        &mut self,
        batch: &Batch,
    ) -> Result<HashMap<(TopicId, i32), AnsweredPartition>, (anyhow::Error, bool)> {
        if self.controller.as_ref().is_none_or(Peer::is_closed) {
            self.controller = Some(connect(&self.context).await.map_err(|reason| (reason, false))?);
        }
        let peer = self.controller.as_ref().expect("connected just now");
        let request = alter_partition(self.context.shared.own, self.context.broker_epoch(), batch);
        let call = peer.call_within(CALL_TIMEOUT, ALTER_PARTITION_VERSION, &request);
        let answer = call.await.map_err(|error| (error.into(), true))?;
        if let Some(rejection) = Rejection::from_code(answer.error_code) {
            return Err((anyhow::anyhow!("the controller refused it: {rejection}"), false));
        }
        let mut answers = HashMap::new();
        for topic in answer.topics {
            for partition in topic.partitions {
                answers.insert((TopicId(topic.topic_id), partition.partition_index), partition);
            }
        }
        Ok(answers)
    }

    /// Stores the batch without the controller's help.
    async fn store(&mut self, batch: Batch) -> bool {
        let Some(zookeeper) = self.context.zookeeper.current() else { return true };
        let own = (self.context.shared.own, self.context.broker_epoch());
        let groups = batch.into_iter().map(|(partition, open)| {
            let ops = open.operations(partition.id(), partition.topic_id(), own);
            ((partition, open), ops)
        });
        let mut retry = false;
        for ((partition, open), result) in zookeeper.multi_batched(groups.collect()).await {
            let fate = match result {
                Ok(_) => Fate::Stored(open.stored_by()),
                Err(MultiError::Failed { .. }) => Fate::Look,
                Err(MultiError::Unknown) => {
                    partition.lose_answer(open.facts.leader_epoch);
                    Fate::Look
                }
                Err(MultiError::SessionEnded | MultiError::Refused(_)) => Fate::Retry { lost: false },
            };
            retry |= self.settle(&partition, &open, fate).await;
        }
        retry
    }

    /// Tells the partition. Returns whether the proposal has to be sent again.
    async fn settle(&mut self, partition: &Arc<Partition>, open: &OpenProposal, fate: Fate) -> bool {
        let leader_epoch = open.facts.leader_epoch;
        match fate {
            Fate::Stored(stored) => partition.settle_isr(leader_epoch, &stored),
            Fate::Refused(rejection) => partition.refuse_proposal(leader_epoch, rejection),
            Fate::Look => return !self.look(partition, open).await,
            Fate::Retry { lost } => {
                if lost {
                    partition.lose_answer(leader_epoch);
                }
                return true;
            }
        }
        false
    }

    /// Settles a proposal by what is stored. False if that cannot be read.
    async fn look(&self, partition: &Arc<Partition>, open: &OpenProposal) -> bool {
        let Some(zookeeper) = self.context.zookeeper.current() else { return false };
        let leader_epoch = open.facts.leader_epoch;
        let Ok(nodes) = zookeeper.get_many(&paths(partition.id())).await else { return false };
        match look(&open.facts, &nodes) {
            Seen::Replaced => partition.lose_leadership(leader_epoch, "another election is recorded"),
            Seen::Stored(stored) => partition.settle_isr(leader_epoch, &stored),
            Seen::Nothing => return false,
        }
        true
    }

    /// A leader whose proposal gets no answer for a session timeout may have been replaced without knowing (L7).
    async fn check_unanswered(&mut self) {
        let Some(zookeeper) = self.context.zookeeper.current() else { return };
        let limit = zookeeper.session_timeout();
        let overdue: Vec<Arc<Partition>> = self
            .pending
            .values_mut()
            .filter(|pending| limit <= pending.since.elapsed())
            .map(|pending| {
                pending.since = Instant::now();
                Arc::clone(&pending.partition)
            })
            .collect();
        for partition in overdue {
            let Some(facts) = partition.stored_facts() else { continue };
            let path = Znode::State(partition.id().clone()).path();
            warn!(
                partition = %partition.id(), leader_epoch = %facts.leader_epoch,
                "the ISR change has no answer for a session timeout; asking ZooKeeper who leads"
            );
            if zookeeper.sync(&path).await.is_err() {
                return;
            }
            match zookeeper.get(&path).await {
                Ok(Some(state)) if state.version == facts.state_version => {}
                Ok(Some(state)) if PartitionState::decode(&state.data).is_ok() => {
                    partition.lose_leadership(facts.leader_epoch, "another election is recorded");
                }
                // A missing or unreadable state is the controller's business; a serving leader goes on (F7).
                _ => {}
            }
        }
    }
}

/// Connects to the active controller.
async fn connect(context: &BrokerContext) -> anyhow::Result<Peer> {
    let zookeeper = context.zookeeper.current().ok_or_else(|| anyhow::anyhow!("no ZooKeeper session"))?;
    let node = timeout(CONNECT_TIMEOUT, zookeeper.get(&Znode::Controller.path())).await??;
    let node = node.ok_or_else(|| anyhow::anyhow!("no controller is active"))?;
    let controller = ActiveController::decode(&node.data)?;
    let address = format!("{}:{}", controller.host, controller.port);
    let client_id = format!("zurau-broker-{}", context.shared.own);
    let peer = Peer::connect(&address, &client_id, CONNECT_TIMEOUT).await?;
    info!(controller = controller.controller_id, address, "connected to the controller");
    Ok(peer)
}

/// Connects to the active controller, for requests other than proposals.
pub(crate) async fn connect_to_controller(context: &BrokerContext) -> anyhow::Result<Peer> {
    connect(context).await
}

fn alter_partition(own: BrokerId, broker_epoch: BrokerEpoch, batch: &Batch) -> AlterPartitionRequest {
    let mut topics: HashMap<TopicId, Vec<PartitionData>> = HashMap::new();
    for (partition, open) in batch {
        let OpenProposal { facts, proposal, .. } = open;
        let mut fields = TaggedFields::new();
        put_ids(&mut fields, TAG_ELR, &proposal.elr);
        let members = proposal.isr.iter().map(|id| {
            let known = proposal.broker_epochs.iter().find(|(member, _)| member == id);
            BrokerState::default()
                .with_broker_id(id.0.into())
                .with_broker_epoch(known.map_or(-1, |(_, epoch)| epoch.0))
        });
        topics.entry(partition.topic_id()).or_default().push(
            PartitionData::default()
                .with_partition_index(partition.id().partition)
                .with_leader_epoch(facts.leader_epoch.0)
                .with_new_isr_with_epochs(members.collect())
                .with_partition_epoch(proposal.partition_epoch.0)
                .with_unknown_tagged_fields(fields),
        );
    }
    let topics = topics
        .into_iter()
        .map(|(id, partitions)| TopicData::default().with_topic_id(id.0).with_partitions(partitions));
    AlterPartitionRequest::default()
        .with_broker_id(own.0.into())
        .with_broker_epoch(broker_epoch.0)
        .with_topics(topics.collect())
}

fn answer_of(answer: &AnsweredPartition) -> Result<ProposalAnswer, Rejection> {
    match Rejection::from_code(answer.error_code) {
        Some(rejection) => Err(rejection),
        None => Ok(ProposalAnswer {
            leader_epoch: LeaderEpoch(answer.leader_epoch),
            isr: from_wire_ids(&answer.isr),
            elr: get_ids(&answer.unknown_tagged_fields, TAG_ELR).ok().flatten(),
            partition_epoch: PartitionEpoch(answer.partition_epoch),
        }),
    }
}
