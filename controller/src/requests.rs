//! Requests of brokers that wait for an answer: AlterIsr and controlled shutdown. Each is answered exactly once.

use std::collections::{BTreeMap, VecDeque};

use zurau_common::id::{BrokerEpoch, BrokerId, PartitionEpoch, TopicPartition};
use zurau_common::rejection::Rejection;
use zurau_common::zk::fence::{IsrWrite, PartitionWrite};

use crate::action::{Action, Note, PartitionExtra, StoredIsrAnswer};
use crate::cluster::Partition;
use crate::election;
use crate::event::{Millis, Proposal, ProposalTopic, Read, RequestId, Subject};
use crate::isr::{self, Judgement};
use crate::machine::Machine;
use crate::pending::{PendingPartition, Purpose};

/// A proposal is judged anew after a conflict or a stale cache; after so many times the leader shall ask again.
const TRIES_MAX: u32 = 4;

/// How long a controlled shutdown waits for leaderships to move, in milliseconds.
const SHUTDOWN_WAIT: u64 = 5_000;

/// One partition of an AlterIsr request.
#[derive(Debug, Clone)]
pub(crate) struct WaitingProposal {
    request: RequestId,
    index: usize,
    broker: BrokerId,
    broker_epoch: BrokerEpoch,
    proposal: Proposal,
    tries: u32,
}

#[derive(Debug, Clone)]
struct AlterIsrRequest {
    outcomes: Vec<Option<Result<StoredIsrAnswer, Rejection>>>,
    open: usize,
}

#[derive(Debug, Clone)]
struct Shutdown {
    request: RequestId,
    broker: BrokerId,
    broker_epoch: BrokerEpoch,
    deadline: Millis,
    /// A leadership that is still moving, the last one: while it is, the others need not be looked at.
    moving: Option<TopicPartition>,
}

/// What is not answered yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests {
    alter_isr: BTreeMap<RequestId, AlterIsrRequest>,
    /// Proposals by partition, in the order in which they came; the first is judged when no write is in flight.
    waiting: BTreeMap<TopicPartition, VecDeque<WaitingProposal>>,
    shutdowns: Vec<Shutdown>,
}

impl Requests {
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.shutdowns.iter().map(|shutdown| shutdown.deadline).min()
    }
}

impl Machine {
    pub(crate) fn alter_isr(
        &mut self,
        request: RequestId,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        proposals: Vec<Proposal>,
    ) {
        if !self.is_active() {
            // Still taking office: the leader asks again.
            let outcomes = Err(Rejection::NotController);
            self.actions.push(Action::AnswerAlterIsr { request, outcomes });
            return;
        }
        if !self.is_current(broker, broker_epoch) {
            let outcomes = Err(Rejection::StaleBrokerEpoch);
            self.actions.push(Action::AnswerAlterIsr { request, outcomes });
            return;
        }
        let open = proposals.len();
        self.requests.alter_isr.insert(request, AlterIsrRequest { outcomes: vec![None; open], open });
        for (index, proposal) in proposals.into_iter().enumerate() {
            let known = self.partition_of(&proposal);
            let waiting = WaitingProposal { request, index, broker, broker_epoch, proposal, tries: 0 };
            match known {
                Ok(tp) => {
                    self.cluster.dirty_partitions.insert(tp.clone());
                    self.requests.waiting.entry(tp).or_default().push_back(waiting);
                }
                Err(rejection) => self.answer_proposal(&waiting, Err(rejection)),
            }
        }
        if open == 0 {
            self.finish_if_complete(request);
        }
    }

    fn partition_of(&self, proposal: &Proposal) -> Result<TopicPartition, Rejection> {
        let (topic, unknown) = match &proposal.topic {
            ProposalTopic::Name(name) => (Some(name.clone()), Rejection::UnknownTopicOrPartition),
            ProposalTopic::Id(id) => {
                let entry = self.cluster.topic_ids.get(id).and_then(Read::value);
                let topic = entry.map(|entry| entry.topic.clone());
                let current = topic.filter(|topic| {
                    self.cluster.incarnation(topic).is_some_and(|(current, ..)| current == *id)
                });
                (current, Rejection::UnknownTopicId)
            }
        };
        let tp = TopicPartition::new(topic.ok_or(unknown)?, proposal.partition);
        let known = self.standing(&tp).is_some() && self.cluster.partitions.contains_key(&tp);
        known.then_some(tp).ok_or(Rejection::UnknownTopicOrPartition)
    }

    /// Judges the proposals of a partition while no write is in flight.
    pub(crate) fn next_proposal(&mut self, tp: &TopicPartition) {
        while let Some(partition) = self.cluster.partitions.get(tp)
            && partition.work.in_flight.is_none()
            && !partition.work.stale
            && let Some(proposal) = self.take_proposal(tp)
        {
            self.judge_proposal(tp, proposal);
        }
    }

    /// There is nothing that could be changed: the topic ends, or its znodes are in disorder.
    pub(crate) fn refuse_proposals(&mut self, tp: &TopicPartition) {
        while let Some(waiting) = self.take_proposal(tp) {
            self.refuse_proposal(tp, &waiting, Rejection::UnknownTopicOrPartition);
        }
    }

    fn take_proposal(&mut self, tp: &TopicPartition) -> Option<WaitingProposal> {
        let queue = self.requests.waiting.get_mut(tp)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.requests.waiting.remove(tp);
        }
        first
    }

    fn judge_proposal(&mut self, tp: &TopicPartition, waiting: WaitingProposal) {
        let partition = &self.cluster.partitions[tp];
        let (Some(state), Read::Value(stored), Some((topic_id, _))) =
            (partition.state.value(), &partition.isr, self.standing(tp))
        else {
            // A leader may be heard before the watch that tells of the ISR it has just created.
            if partition.state.value().is_some() && partition.isr.is_absent() && waiting.tries == 0 {
                self.judge_after_reading(tp, waiting);
            } else {
                self.refuse_proposal(tp, &waiting, Rejection::UnknownTopicOrPartition);
            }
            return;
        };
        if !self.is_current(waiting.broker, waiting.broker_epoch) {
            self.refuse_proposal(tp, &waiting, Rejection::StaleBrokerEpoch);
            return;
        }
        let view = isr::Stored {
            leader: state.leader,
            leader_epoch: state.leader_epoch,
            hosts: &state.replicas,
            isr: &stored.value,
            elr: partition.elr(),
            partition_epoch: PartitionEpoch(stored.version),
        };
        let eligible = |id| self.cluster.live(id).map(|live| live.epoch).filter(|_| !self.is_leaving(id));
        match isr::judge(&view, waiting.broker, &waiting.proposal, eligible) {
            Judgement::Refuse(rejection) => self.refuse_proposal(tp, &waiting, rejection),
            Judgement::AlreadyStored => {
                let answer = stored_answer(partition);
                self.answer_proposal(&waiting, answer);
            }
            Judgement::ReadAgain => self.judge_after_reading(tp, waiting),
            Judgement::Store { isr, elr, added } => {
                let mut epochs = vec![(waiting.broker, waiting.broker_epoch)];
                epochs.extend(added);
                let fence = self.fence(tp, topic_id, epochs);
                let elr_exists = !partition.elr.is_absent();
                let isr = Some(IsrWrite { isr, elr, elr_exists });
                let write = PartitionWrite { isr, ..PartitionWrite::default() };
                let extra = PartitionExtra::default();
                let purpose = Purpose::Proposal(waiting);
                self.write_partition(PendingPartition { fence, write, extra, purpose });
            }
        }
    }

    fn judge_after_reading(&mut self, tp: &TopicPartition, waiting: WaitingProposal) {
        self.partition_mut(tp).work.stale = true;
        self.read_again(Subject::Partition(tp.clone()));
        self.proposal_again(tp, waiting);
    }

    /// Conflict, lost answer or stale cache: judged anew when the partition has been read again.
    pub(crate) fn proposal_again(&mut self, tp: &TopicPartition, mut waiting: WaitingProposal) {
        waiting.tries += 1;
        if waiting.tries >= TRIES_MAX {
            self.refuse_proposal(tp, &waiting, Rejection::InvalidUpdateVersion);
            return;
        }
        self.requests.waiting.entry(tp.clone()).or_default().push_front(waiting);
    }

    pub(crate) fn proposal_stored(&mut self, tp: &TopicPartition, waiting: WaitingProposal) {
        let partition = &self.cluster.partitions[tp];
        let answer = stored_answer(partition);
        if let Ok(stored) = &answer {
            let (isr, elr) = (stored.isr.clone(), stored.elr.clone());
            let partition_epoch = stored.partition_epoch;
            self.note(Note::IsrStored { partition: tp.clone(), isr, elr, partition_epoch });
        }
        self.answer_proposal(&waiting, answer);
    }

    fn refuse_proposal(&mut self, tp: &TopicPartition, waiting: &WaitingProposal, rejection: Rejection) {
        let broker = waiting.broker;
        self.note(Note::ProposalRefused { partition: tp.clone(), broker, rejection });
        self.answer_proposal(waiting, Err(rejection));
    }

    fn answer_proposal(&mut self, waiting: &WaitingProposal, outcome: Result<StoredIsrAnswer, Rejection>) {
        let Some(request) = self.requests.alter_isr.get_mut(&waiting.request) else { return };
        let place = &mut request.outcomes[waiting.index];
        assert!(place.is_none(), "{waiting:?} is answered twice: {place:?}, then {outcome:?}");
        *place = Some(outcome);
        request.open -= 1;
        self.finish_if_complete(waiting.request);
    }

    fn finish_if_complete(&mut self, request: RequestId) {
        if self.requests.alter_isr.get(&request).is_some_and(|waiting| waiting.open == 0)
            && let Some(done) = self.requests.alter_isr.remove(&request)
        {
            let outcomes = Ok(done.outcomes.into_iter().flatten().collect());
            self.actions.push(Action::AnswerAlterIsr { request, outcomes });
        }
    }

    pub(crate) fn controlled_shutdown(
        &mut self,
        request: RequestId,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
    ) {
        // Versions 0 and 1 do not carry it.
        let current = self.cluster.live(broker).map(|live| live.epoch);
        let broker_epoch = current.filter(|_| broker_epoch.0 < 0).unwrap_or(broker_epoch);
        let refusal = match (self.is_active(), self.is_current(broker, broker_epoch)) {
            (false, _) => Some(Rejection::NotController),
            (true, false) => Some(Rejection::StaleBrokerEpoch),
            (true, true) => None,
        };
        if let Some(rejection) = refusal {
            let outcome = Err(rejection);
            self.actions.push(Action::AnswerControlledShutdown { request, outcome });
            return;
        }
        if let Some(known) = self.cluster.brokers.get_mut(&broker) {
            known.leaving_in = Some(broker_epoch);
        }
        // Where it follows nothing changes.
        let led = self.cluster.hosted_by(broker).filter(|tp| self.leads(broker, tp));
        let led: Vec<TopicPartition> = led.cloned().collect();
        self.cluster.dirty_partitions.extend(led);
        let deadline = self.now.plus(SHUTDOWN_WAIT);
        self.requests.shutdowns.push(Shutdown { request, broker, broker_epoch, deadline, moving: None });
    }

    /// Answers those whose leaderships are where they can be.
    pub(crate) fn answer_shutdowns(&mut self) {
        for mut shutdown in std::mem::take(&mut self.requests.shutdowns) {
            let moves = |tp: &TopicPartition| {
                self.leads(shutdown.broker, tp)
                    && self.cluster.partitions.get(tp).is_some_and(|partition| self.can_move(partition))
            };
            if !shutdown.moving.as_ref().is_some_and(&moves) {
                let hosted = self.cluster.hosted_by(shutdown.broker);
                shutdown.moving = hosted.rev().find(|tp| moves(tp)).cloned();
            }
            let alive = self.is_current(shutdown.broker, shutdown.broker_epoch);
            if shutdown.moving.is_some() && alive && self.now < shutdown.deadline {
                self.requests.shutdowns.push(shutdown);
                continue;
            }
            let hosted = self.cluster.hosted_by(shutdown.broker);
            let remaining = hosted.filter(|tp| self.leads(shutdown.broker, tp)).cloned().collect();
            let request = shutdown.request;
            self.actions.push(Action::AnswerControlledShutdown { request, outcome: Ok(remaining) });
        }
    }

    fn leads(&self, broker: BrokerId, tp: &TopicPartition) -> bool {
        let state = self.cluster.partitions.get(tp).and_then(|partition| partition.state.value());
        state.is_some_and(|state| state.leader == broker)
    }

    fn can_move(&self, partition: &Partition) -> bool {
        let successor =
            election::elect_better(partition.isr(), partition.isr(), |id| self.fitness(partition, id));
        partition.work.in_flight.is_some() || partition.work.stale || successor.is_some()
    }
}

/// What a leader is told about its partition: what is stored now.
fn stored_answer(partition: &Partition) -> Result<StoredIsrAnswer, Rejection> {
    let (Some(state), Read::Value(isr)) = (partition.state.value(), &partition.isr) else {
        return Err(Rejection::UnknownTopicOrPartition);
    };
    Ok(StoredIsrAnswer {
        leader: state.leader,
        leader_epoch: state.leader_epoch,
        isr: isr.value.clone(),
        elr: partition.elr().to_vec(),
        partition_epoch: PartitionEpoch(isr.version),
        recovery: state.recovery,
    })
}
