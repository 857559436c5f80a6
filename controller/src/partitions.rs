//! What a partition needs next: a start, a leader, a step of a move. One look at its facts, at most one write.

use zurau_common::assignment::{difference, union};
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId, TopicPartition};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::fence::{Expected, Fence, PartitionWrite};
use zurau_common::zk::state::PartitionState;

use crate::action::{Action, Note, PartitionChange, PartitionExtra, Reason, StopReplica, Write};
use crate::cluster::{Partition, Topic};
use crate::election::{self, Candidates, Choice, Fitness};
use crate::event::{Read, Subject};
use crate::machine::Machine;
use crate::office::{self, Finding, LogEnds, Office, RETRY_MAX};
use crate::pending::{Pending, PendingPartition, Purpose};
use crate::reassignment::{Move, NextStep};

/// How long an unclean election waits for the replicas' log ends, in milliseconds.
const LOG_ENDS_WAIT: u64 = 5_000;

/// The next epoch of a partition.
struct NextEpoch {
    leader: BrokerId,
    hosts: Vec<BrokerId>,
    target: Vec<BrokerId>,
    reason: Reason,
    recovery: bool,
    extra: PartitionExtra,
}

impl Machine {
    pub(crate) fn step_partition(&mut self, tp: &TopicPartition) {
        self.complain(tp);
        let Some(partition) = self.cluster.partitions.get(tp) else {
            self.refuse_proposals(tp);
            return;
        };
        if partition.work.in_flight.is_some() || partition.work.stale {
            return;
        }
        if let Some((_, started)) = self.standing(tp) {
            let readable = partition.state.value().is_some() && partition.isr.value().is_some();
            let unreadable_state = matches!(partition.state, Read::Bad { .. });
            if !started && partition.has_begun() {
                self.mark_started(tp);
            } else if started && !readable && holds(Rule::StartedStaysStarted) || unreadable_state {
                // An error: no start, no election, no stop. A serving leader goes on (F7).
                self.refuse_proposals(tp);
            } else if partition.state.is_absent() {
                self.start(tp);
            } else {
                self.find_lost_epoch(tp);
                self.remember_hosts(tp);
                self.review(tp);
                self.next_proposal(tp);
            }
        } else {
            self.refuse_proposals(tp);
        }
        self.send_to_untold(tp);
        self.publish(tp);
        self.cluster.forget_if_gone(tp);
    }

    /// The incarnation that a partition belongs to and whether it has had an ISR. `None` while the topic has no
    /// usable id or is being deleted.
    pub(crate) fn standing(&self, tp: &TopicPartition) -> Option<(TopicId, bool)> {
        let topic = self.cluster.topics.get(&tp.topic)?;
        if self.is_deleting(topic) || topic.problem.is_some() {
            return None;
        }
        let (topic_id, entry, _) = self.cluster.incarnation(&tp.topic)?;
        Some((topic_id, entry.is_started(tp.partition)))
    }

    pub(crate) fn is_deleting(&self, topic: &Topic) -> bool {
        topic.delete_requested && self.config.delete_topics
    }

    fn mark_started(&mut self, tp: &TopicPartition) {
        if let Some(topic) = self.cluster.topics.get_mut(&tp.topic) {
            topic.to_start.insert(tp.partition);
            self.cluster.dirty_topics.insert(tp.topic.clone());
        }
    }

    fn remember_hosts(&mut self, tp: &TopicPartition) {
        let Some((topic_id, _)) = self.standing(tp) else { return };
        let partition = self.partition_mut(tp);
        if let Some(state) = partition.state.value() {
            partition.work.hosted = Some((topic_id, state.replicas.clone(), state.leader_epoch));
        }
    }

    pub(crate) fn partition_mut(&mut self, tp: &TopicPartition) -> &mut Partition {
        self.cluster.partitions.get_mut(tp).expect("a partition under decision is known")
    }

    pub(crate) fn fitness(&self, partition: &Partition, broker: BrokerId) -> Fitness {
        match self.cluster.live(broker) {
            None => Fitness::Gone,
            Some(live) => match partition.work.refusal(broker, live.epoch) {
                Some(refusal) => Fitness::Refused { retry_at: refusal.retry_at },
                None if self.is_leaving(broker) => Fitness::Leaving,
                None => Fitness::Fit,
            },
        }
    }

    /// First election: `replicas` is valid, names a live broker, and all lower partitions exist.
    fn start(&mut self, tp: &TopicPartition) {
        let partition = &self.cluster.partitions[tp];
        let Some(replicas) = partition.replicas.value().cloned() else { return };
        let topic = self.cluster.topics.get(&tp.topic);
        let contiguous = topic.map_or(0, |topic| topic.contiguous);
        let topic_version = topic.and_then(|topic| topic.node.version());
        if tp.partition >= contiguous || !partition.exists {
            return;
        }
        let choice = election::elect_first(&replicas, self.now, |id| self.fitness(partition, id));
        if let Choice::Elected(leader) = choice {
            let epoch = NextEpoch {
                leader,
                hosts: replicas.clone(),
                target: replicas,
                reason: Reason::NewPartition,
                recovery: false,
                extra: PartitionExtra { topic_version, ..PartitionExtra::default() },
            };
            self.write_epoch(tp, epoch);
        }
    }

    /// Looks at the leader's office, then does what it calls for.
    fn review(&mut self, tp: &TopicPartition) {
        let confirmed = self.confirmed.remove(tp);
        let partition = &self.cluster.partitions[tp];
        let finding = office::look(&self.cluster, partition, confirmed, self.now);
        let now = self.now;
        if confirmed {
            self.partition_mut(tp).work.confirming = false;
        }
        match finding {
            Finding::Unchanged => {}
            Finding::Now(office) => self.partition_mut(tp).work.office = office,
            Finding::Confirm(broker) => {
                self.partition_mut(tp).work.confirming = true;
                self.read_again(Subject::Broker(broker));
                return;
            }
            Finding::NoAnswer(broker, registration) => {
                let work = &mut self.partition_mut(tp).work;
                work.refuse(broker, registration, now);
                work.office = Office::Vacant(Reason::NoAnswer);
            }
            Finding::Resigned(broker, registration) => {
                let work = &mut self.partition_mut(tp).work;
                work.refuse(broker, registration, now);
                work.office = Office::Vacant(Reason::Resigned);
            }
        }
        self.stop_leaving(tp);
        match self.cluster.partitions[tp].work.office {
            Office::Vacant(reason) => self.elect(tp, reason),
            Office::Awaited { deadline, .. } => {
                self.deadlines.insert((deadline, tp.clone()));
                self.move_from_leaving_leader(tp);
            }
            Office::Held { .. } => {
                let work = &mut self.partition_mut(tp).work;
                work.offline = None;
                work.refusals.retain(|_, refusal| now < refusal.retry_at.plus(RETRY_MAX));
                self.advance(tp);
            }
            Office::Unjudged => {}
        }
        self.record_left(tp);
    }

    /// Elects a leader for a vacant office.
    fn elect(&mut self, tp: &TopicPartition, reason: Reason) {
        let Some((_, started)) = self.standing(tp) else { return };
        let partition = &self.cluster.partitions[tp];
        let Some(state) = partition.state.value() else { return };
        let assigned = partition.replicas.value().map_or(&[][..], Vec::as_slice);
        let target = self.target_of(partition);
        if target.is_none() && !holds(Rule::TargetStandsIn) {
            return;
        }
        let target = target.unwrap_or(&state.target);
        let fitness = |id| self.fitness(partition, id);
        let choice = if started && (!partition.isr.is_absent() || holds(Rule::StartedStaysStarted)) {
            let candidates = Candidates { target, assigned, isr: partition.isr(), elr: partition.elr() };
            election::elect(&candidates, self.now, fitness)
        } else {
            election::elect_first(&union(&state.target, &state.replicas), self.now, fitness)
        };
        match choice {
            Choice::Elected(leader) => {
                let epoch = self.same_hosts(state, leader, reason);
                // Told and silent: the same epoch is offered again, none is burnt (L4). One that refused has noted the
                // epoch as spent, so it is offered another, after a pause.
                let again = leader == state.leader && reason == Reason::NoAnswer;
                let registration = self.cluster.live(leader).map(|live| live.epoch);
                match registration.filter(|epoch| again && partition.work.refusal(leader, *epoch).is_some()) {
                    Some(registration) if partition.work.epoch_floor.is_none() => {
                        self.offer_again(tp, registration);
                    }
                    _ => self.write_epoch(tp, epoch),
                }
            }
            Choice::Wait(at) => {
                self.deadlines.insert((at, tp.clone()));
                self.offline(tp, "the replicas in sync refused to lead and are asked again".to_owned());
            }
            Choice::Nobody
                if started && self.cluster.unclean_election(&tp.topic, self.config.unclean_election) =>
            {
                self.elect_uncleanly(tp);
            }
            Choice::Nobody => {
                let why = format!(
                    "no live replica is in sync: ISR {:?}, ELR {:?}, hosts {:?}",
                    partition.isr(),
                    partition.elr(),
                    state.replicas
                );
                self.offline(tp, why);
            }
        }
    }

    fn offer_again(&mut self, tp: &TopicPartition, registration: BrokerEpoch) {
        let deadline = self.now.plus(self.config.leader_election_wait);
        self.partition_mut(tp).work.office = Office::Awaited { registration, deadline };
        self.deadlines.insert((deadline, tp.clone()));
        self.send_leader_and_isr(tp);
    }

    fn offline(&mut self, tp: &TopicPartition, why: String) {
        let work = &mut self.partition_mut(tp).work;
        if work.offline.as_ref() != Some(&why) {
            work.offline = Some(why.clone());
            self.note(Note::Offline { partition: tp.clone(), why });
        }
    }

    /// Asks the live replicas how far their logs go, then takes the longest one.
    fn elect_uncleanly(&mut self, tp: &TopicPartition) {
        let partition = &self.cluster.partitions[tp];
        let Some(state) = partition.state.value().cloned() else { return };
        let order = union(&state.target, &state.replicas);
        let live: Vec<(BrokerId, BrokerEpoch)> = order
            .iter()
            .filter(|id| matches!(self.fitness(partition, **id), Fitness::Fit | Fitness::Leaving))
            .filter_map(|id| Some((*id, self.cluster.live(*id)?.epoch)))
            .collect();
        if live.is_empty() {
            self.offline(tp, format!("no replica is alive: hosts {:?}", state.replicas));
            return;
        }
        let (now, deadline) = (self.now, self.now.plus(LOG_ENDS_WAIT));
        let work = &mut self.partition_mut(tp).work;
        let first = work.log_ends.is_none();
        let ends = work.log_ends.get_or_insert_with(|| LogEnds { deadline, ..LogEnds::default() });
        let mut questions = Vec::new();
        for (broker, broker_epoch) in &live {
            if ends.asked.insert(*broker, *broker_epoch) != Some(*broker_epoch) {
                ends.answers.remove(broker);
                let (broker, broker_epoch) = (*broker, *broker_epoch);
                questions.push(Action::QueryLogEnd { broker, broker_epoch, partition: tp.clone() });
            }
        }
        let complete = live.iter().all(|(id, _)| ends.answers.contains_key(id));
        if complete || ends.deadline <= now && !ends.answers.is_empty() {
            let is_live = |id: BrokerId| live.iter().any(|(other, _)| *other == id);
            let ends = ends.clone();
            let answer = |id| if is_live(id) { ends.answers.get(&id).copied() } else { None };
            if let Some(leader) = election::elect_uncleanly(&order, answer) {
                let mut epoch = self.same_hosts(&state, leader, Reason::BrokerGone);
                let partition = &self.cluster.partitions[tp];
                epoch.recovery = !partition.isr().contains(&leader) && !partition.elr().contains(&leader);
                self.write_epoch(tp, epoch);
            }
            return;
        }
        if first {
            self.deadlines.insert((deadline, tp.clone()));
        }
        self.actions.extend(questions);
    }

    pub(crate) fn log_end(&mut self, broker: BrokerId, tp: &TopicPartition, end: Option<(LeaderEpoch, i64)>) {
        let Some(partition) = self.cluster.partitions.get_mut(tp) else { return };
        if let Some(ends) = &mut partition.work.log_ends {
            ends.answers.insert(broker, end);
            self.cluster.dirty_partitions.insert(tp.clone());
        }
    }

    /// The replicas that the admin wants; `None` when what stands there cannot be used and `state.target` stands in.
    pub(crate) fn target_of<'a>(&self, partition: &'a Partition) -> Option<&'a [BrokerId]> {
        let usable = |ids: &Vec<BrokerId>| ids.iter().all(|id| self.cluster.is_known(*id));
        match &partition.wanted {
            Read::Absent => {}
            Read::Bad { .. } => return None,
            Read::Value(wanted) => return usable(&wanted.value).then_some(wanted.value.as_slice()),
        }
        partition.replicas.value().filter(|ids| usable(ids)).map(Vec::as_slice)
    }

    /// What a partition with a serving leader needs.
    fn advance(&mut self, tp: &TopicPartition) {
        if self.move_from_leaving_leader(tp) {
            return;
        }
        let partition = &self.cluster.partitions[tp];
        let Some(state) = partition.state.value() else { return };
        if partition.work.epoch_floor.is_some_and(|floor| floor > state.leader_epoch) {
            // A follower's history is ahead of `state`: the epoch goes above it.
            let epoch = self.same_hosts(state, state.leader, Reason::Refused);
            self.write_epoch(tp, epoch);
            return;
        }
        // Without a readable ELR nobody knows whose copy is still needed.
        let movable = !matches!(partition.elr, Read::Bad { .. });
        if let Some(target) = self.target_of(partition).filter(|_| movable) {
            let step = Move {
                target,
                assigned: partition.replicas.value().map(Vec::as_slice),
                wish_stands: !partition.wanted.is_absent(),
                isr: partition.isr(),
                elr: partition.elr(),
                state_hosts: &state.replicas,
                state_target: &state.target,
                leader: state.leader,
            };
            if let Some(epoch) = self.next_move(partition, state, &step) {
                self.write_epoch(tp, epoch);
                return;
            }
        }
        self.prefer(tp);
    }

    fn next_move(&self, partition: &Partition, state: &PartitionState, step: &Move<'_>) -> Option<NextEpoch> {
        match step.next() {
            NextStep::Nothing => None,
            NextStep::Grow { hosts, target } => {
                let epoch = self.same_hosts(state, state.leader, Reason::Reassignment);
                Some(NextEpoch { hosts, target, ..epoch })
            }
            NextStep::MoveLeader => {
                let fitness = |id| self.fitness(partition, id);
                let leader = election::elect_better(step.target, step.isr, fitness)?;
                Some(self.same_hosts(state, leader, Reason::Reassignment))
            }
            NextStep::Complete { leaving } => {
                let before = partition.leaving.value().map_or(&[][..], Vec::as_slice);
                let all = difference(&union(before, &leaving), step.target);
                let extra = PartitionExtra {
                    topic_version: None,
                    replicas: Some((step.target.to_vec(), partition.replicas.version())),
                    remove_wanted: partition.wanted.version(),
                    leaving: (all != before).then(|| (all, partition.leaving.version())),
                };
                let epoch = self.same_hosts(state, state.leader, Reason::ReassignmentDone);
                let target = step.target.to_vec();
                Some(NextEpoch { hosts: target.clone(), target, extra, ..epoch })
            }
        }
    }

    /// Controlled shutdown: another fit member of the ISR leads. Whether a write was asked for.
    fn move_from_leaving_leader(&mut self, tp: &TopicPartition) -> bool {
        let partition = &self.cluster.partitions[tp];
        let Some(state) = partition.state.value() else { return false };
        if !self.is_leaving(state.leader) || partition.isr.is_absent() {
            return false;
        }
        let target = self.target_of(partition).unwrap_or(&state.target);
        let order = union(target, &state.replicas);
        let successor = election::elect_better(&order, partition.isr(), |id| self.fitness(partition, id));
        let Some(leader) = successor else { return false };
        let epoch = self.same_hosts(state, leader, Reason::ControlledShutdown);
        self.write_epoch(tp, epoch);
        true
    }

    /// The preferred replica, if somebody asked for it and it can lead.
    fn prefer(&mut self, tp: &TopicPartition) {
        let work = &mut self.partition_mut(tp).work;
        if !std::mem::take(&mut work.prefer) {
            return;
        }
        let partition = &self.cluster.partitions[tp];
        let Some(state) = partition.state.value() else { return };
        let target = self.target_of(partition).unwrap_or(&state.target);
        let Some(preferred) = target.first().copied().filter(|id| *id != state.leader) else { return };
        if partition.isr().contains(&preferred) && self.fitness(partition, preferred) == Fitness::Fit {
            let epoch = self.same_hosts(state, preferred, Reason::Preferred);
            self.write_epoch(tp, epoch);
        }
    }

    fn same_hosts(&self, state: &PartitionState, leader: BrokerId, reason: Reason) -> NextEpoch {
        NextEpoch {
            leader,
            hosts: state.replicas.clone(),
            target: state.target.clone(),
            reason,
            recovery: false,
            extra: PartitionExtra::default(),
        }
    }

    /// The one place that writes `state`.
    fn write_epoch(&mut self, tp: &TopicPartition, next: NextEpoch) {
        let (Some((topic_id, _)), Some(live)) = (self.standing(tp), self.cluster.live(next.leader)) else {
            return;
        };
        let partition = &self.cluster.partitions[tp];
        let stored = partition.state.value().map_or(LeaderEpoch::UNKNOWN, |state| state.leader_epoch);
        let floor = partition.work.epoch_floor.unwrap_or(LeaderEpoch::UNKNOWN);
        let mut extra = next.extra;
        if extra.leaving.is_none()
            && let Some(leaving) = partition.leaving.value()
            && holds(Rule::HostsDoNotLeave)
        {
            // A host of this epoch must not be told later to delete its copy (N5).
            let rest = difference(leaving, &next.hosts);
            if rest.len() != leaving.len() {
                extra.leaving = Some((rest, partition.leaving.version()));
            }
        }
        let mut epoch = stored.max(floor).next();
        if partition.state.is_absent() {
            epoch = epoch.max(self.cluster.former_epochs.of(&tp.topic));
        }
        if next.reason == Reason::Reassignment && !holds(Rule::MoveIsAnEpoch) {
            epoch = stored;
        }
        let mut state = PartitionState::new(next.leader, epoch, self.epoch, next.hosts, next.target);
        state.recovery = next.recovery && holds(Rule::RecoveryIsRecorded);
        state.reason = Some(next.reason.words().into());
        let write = PartitionWrite {
            state: Some(state),
            delete_leader: partition.leader.is_some(),
            ..PartitionWrite::default()
        };
        let fence = self.fence(tp, topic_id, Vec::new());
        let purpose = Purpose::Epoch { leader: next.leader, registration: live.epoch, reason: next.reason };
        self.write_partition(PendingPartition { fence, write, extra, purpose });
    }

    /// What a write on the partition is decided from, as far as it is stored.
    pub(crate) fn fence(
        &self,
        tp: &TopicPartition,
        topic_id: TopicId,
        broker_epochs: Vec<(BrokerId, BrokerEpoch)>,
    ) -> Fence {
        let partition = &self.cluster.partitions[tp];
        let expected = |version: Option<i32>| version.map_or(Expected::Absent, Expected::Version);
        Fence {
            partition: tp.clone(),
            topic_id,
            state: expected(partition.state.version()),
            isr: expected(partition.isr.version()),
            controller_epoch_version: Some(self.epoch_version),
            broker_epochs,
        }
    }

    pub(crate) fn write_partition(&mut self, pending: PendingPartition) {
        let tp = pending.fence.partition.clone();
        let change = PartitionChange {
            fence: pending.fence.clone(),
            write: pending.write.clone(),
            extra: pending.extra.clone(),
        };
        let id = self.issue(Write::Partition(Box::new(change)), Pending::Partition(Box::new(pending)));
        let work = &mut self.partition_mut(&tp).work;
        assert!(work.in_flight.is_none(), "{tp}: two writes in flight: {:?} and {id:?}", work.in_flight);
        work.in_flight = Some(id);
    }

    /// Tells hosts of an earlier epoch to delete their copies.
    fn stop_leaving(&mut self, tp: &TopicPartition) {
        let partition = &self.cluster.partitions[tp];
        let (Some(state), Some(leaving)) = (partition.state.value(), partition.leaving.value()) else {
            return;
        };
        let Some((topic_id, _)) = self.standing(tp) else { return };
        let leader_epoch = state.leader_epoch;
        // Only who is no host of the current epoch (N5).
        let hosts = if holds(Rule::HostsDoNotLeave) { &state.replicas[..] } else { &[] };
        let due: Vec<(BrokerId, BrokerEpoch)> = difference(leaving, hosts)
            .into_iter()
            .filter(|id| !partition.work.left.contains(id))
            .filter_map(|id| Some((id, self.cluster.live(id)?.epoch)))
            // The full LeaderAndIsr names the partition, and must not bring the copy back.
            .filter(|(id, epoch)| self.cluster.brokers[id].told_in_full == Some(*epoch))
            .filter(|(id, epoch)| partition.work.stopping.get(id).is_none_or(|(sent, _)| sent != epoch))
            .collect();
        for (broker, broker_epoch) in due {
            self.partition_mut(tp).work.stopping.insert(broker, (broker_epoch, leader_epoch));
            let stop = StopReplica { partition: tp.clone(), topic_id, leader_epoch };
            self.actions.push(Action::StopReplica { broker, broker_epoch, stop });
        }
    }

    /// Takes those who did out of `leaving`, when nothing more urgent is to be written.
    fn record_left(&mut self, tp: &TopicPartition) {
        let partition = &self.cluster.partitions[tp];
        let Some((topic_id, _)) = self.standing(tp) else { return };
        let (Some(leaving), Some(version)) = (partition.leaving.value(), partition.leaving.version()) else {
            return;
        };
        let left: Vec<BrokerId> = partition.work.left.iter().copied().collect();
        let rest = difference(leaving, &left);
        // Before the leader has taken office its take-over write is on its way, and one of the two would fail.
        if partition.work.in_flight.is_some() || rest.len() == leaving.len() || !office::is_held(partition) {
            return;
        }
        let extra = PartitionExtra { leaving: Some((rest, Some(version))), ..PartitionExtra::default() };
        let fence = self.fence(tp, topic_id, Vec::new());
        let write = PartitionWrite::default();
        self.write_partition(PendingPartition { fence, write, extra, purpose: Purpose::Left });
    }
}
