//! What leaders and followers do with records: the thin logic of the shell around the production rules.

use zurau_broker::cores::follower::{Asked, FetchPosition, FetchedOutcome, FollowerAction};
use zurau_broker::cores::progress::FollowerFetch;
use zurau_broker::cores::steps::{self, LeaderRead, ReplicaLog};
use zurau_broker::cores::storing::{
    Fate, OpenProposal, ProposalAnswer, Seen, StoredFacts, fate_of, look, paths, resignation,
};
use zurau_broker::cores::{Replica, isr::Proposal};
use zurau_common::assignment::difference;
use zurau_common::id::{BrokerEpoch, BrokerId, LeaderEpoch, TopicId};
use zurau_common::rejection::Rejection;
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::controller::ActiveController;
use zurau_common::zk::isr::StoredIsr;
use zurau_common::zk::op::MultiError;
use zurau_common::zk::znode::Znode;
use zurau_controller::event::{Proposal as WireProposal, ProposalTopic};

use crate::broker::{Process, Proposer, Waiter};
use crate::log::{MemoryLog, Record};
use crate::messages::{Caller, Message};
use crate::referee::Meta;
use crate::world::{RECORDS_PER_FETCH, SESSION_MS, World, partition};

impl World {
    /// Replica and log of a broker, while its process has both.
    fn pair(&mut self, broker: usize) -> Option<(&mut Process, &mut MemoryLog)> {
        let known = &mut *self.brokers[broker];
        Some((known.process.as_mut()?, known.disk.log.as_mut()?))
    }

    pub(crate) fn settle(&mut self, broker: usize) {
        let lease = self.holds_lease(broker);
        let Some((process, log)) = self.pair(broker) else { return };
        let Some(replica) = &process.replica else { return };
        let settled = steps::settle(replica, log, &mut process.commits, || lease);
        if settled.risen {
            self.referee.raised(&self.zookeeper, &self.brokers[broker]);
        }
        for (waiter, outcome) in settled.acknowledged {
            if outcome.is_ok() {
                self.referee.acknowledged(&self.zookeeper, &self.brokers[broker], waiter);
            }
        }
    }

    pub(crate) fn propose(&mut self, broker: usize) {
        let now = self.now;
        let Some((process, log)) = self.pair(broker) else { return };
        let ends = steps::log_ends(log);
        let Some(leader) = process.replica.as_mut().and_then(Replica::leader_mut) else { return };
        if leader.propose(ends, now).is_some() {
            process.proposer = Proposer { wanted: true, since: now, ..Proposer::default() };
        }
    }

    /// The periodic look at the ISR.
    pub(crate) fn check_isr(&mut self, broker: usize) {
        self.settle(broker);
        self.propose(broker);
    }

    pub(crate) fn produce(&mut self, broker: usize) {
        let may_serve = self.may_serve(broker);
        let Some((process, _)) = self.pair(broker) else { return };
        let Some(replica) = &process.replica else { return };
        let admitted = steps::admit_append(replica, LeaderEpoch::UNKNOWN, true, |_| may_serve);
        let Ok(leader_epoch) = admitted else { return };
        let value = self.referee.next_value();
        let Some((process, log)) = self.pair(broker) else { return };
        log.append(value, leader_epoch);
        let log_end = log.log_end_offset();
        process.commits.wait(log_end, Waiter { offset: log_end - 1, value });
        self.referee.served(&self.zookeeper, &self.brokers[broker], self.now);
        self.settle(broker);
    }

    /// A consumer reads everything committed, and asks for the end.
    pub(crate) fn consume(&mut self, broker: usize) {
        let may_serve = self.may_serve(broker);
        let Some((process, log)) = self.pair(broker) else { return };
        let Some(leader) = process.leader() else { return };
        let (epoch, high_watermark) = (leader.leader_epoch(), log.high_watermark());
        let committed = log.read(0, usize::try_from(high_watermark).unwrap_or(0));
        let knows = leader.knows_the_committed_end(high_watermark);
        let topic_id = log.topic_id;
        if Meta::read(&self.zookeeper).topic_id != Some(topic_id) {
            return;
        }
        self.referee.consumed(epoch, &committed);
        if may_serve && knows {
            self.referee.served(&self.zookeeper, &self.brokers[broker], self.now);
            self.referee.told_end(epoch, high_watermark);
        }
    }

    /// What the follower would ask now, if nothing is under way to that leader.
    pub(crate) fn question(&self, broker: usize) -> Option<FetchPosition> {
        let known = &self.brokers[broker];
        let (process, log) = (known.process.as_ref()?, known.disk.log.as_ref()?);
        let asked = steps::fetch_position(process.replica.as_ref()?, log)?;
        (!process.fetches.contains_key(&asked.leader)).then_some(asked)
    }

    pub(crate) fn ask(&mut self, broker: usize) {
        let Some(asked) = self.question(broker) else { return };
        let Some(from) = self.caller(broker) else { return };
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.fetches.insert(asked.leader, (from.call, asked));
        let broker_epoch = process.broker_epoch;
        let Some(topic_id) = self.brokers[broker].disk.log.as_ref().map(|log| log.topic_id) else { return };
        self.send(Message::Fetch { from, to: asked.leader, broker_epoch, topic_id, asked });
    }

    pub(crate) fn answer_fetch(
        &mut self,
        broker: usize,
        from: Caller,
        (broker_epoch, topic_id): (BrokerEpoch, TopicId),
        asked: FetchPosition,
    ) {
        let now = self.now;
        if self.brokers[broker].disk.log.as_ref().is_some_and(|log| log.topic_id != topic_id) {
            let outcome = FetchedOutcome::Rejected(Rejection::UnknownTopicId);
            self.send(Message::Fetched { to: from, topic_id, asked, outcome, records: Vec::new() });
            return;
        }
        let Some((process, log)) = self.pair(broker) else { return };
        let Some(replica) = &mut process.replica else { return };
        if asked.asked == Asked::EpochEnd {
            let last = LeaderEpoch(asked.last_fetched_epoch);
            let found = steps::epoch_end(replica, log, asked.leader_epoch, last);
            let outcome = found.map_or_else(FetchedOutcome::Rejected, FetchedOutcome::EpochEnd);
            self.send(Message::Fetched { to: from, topic_id, asked, outcome, records: Vec::new() });
            return;
        }
        let fetch = FollowerFetch { offset: asked.offset, broker_epoch: Some(broker_epoch), now_ms: now };
        let read = LeaderRead {
            current_leader_epoch: asked.leader_epoch,
            offset: asked.offset,
            last_fetched_epoch: LeaderEpoch(asked.last_fetched_epoch),
            follower: Some((from.broker, fetch, asked.log_start)),
        };
        let admitted = steps::admit_read(replica, log, &read);
        let current = replica.leader().map(|leader| leader.leader_epoch());
        let key = current.map(|epoch| (log.topic_id, epoch, from.broker));
        if let Some(key) = key.filter(|(_, epoch, _)| admitted == Ok(None) && *epoch == asked.leader_epoch) {
            self.referee.fetched(key, broker_epoch, asked.offset);
        }
        if admitted.is_ok() {
            self.settle(broker);
            self.propose(broker);
        }
        let Some((process, log)) = self.pair(broker) else { return };
        let mut records = Vec::new();
        let outcome = match admitted {
            Err(rejection) => FetchedOutcome::Rejected(rejection),
            Ok(Some(end)) => FetchedOutcome::Diverging(end),
            Ok(None) => {
                records = log.read(asked.offset, RECORDS_PER_FETCH);
                FetchedOutcome::Records { high_watermark: log.high_watermark(), log_start: 0 }
            }
        };
        if let Some(leader) = process.replica.as_mut().and_then(Replica::leader_mut) {
            leader.record_answer(from.broker, now, now);
        }
        self.send(Message::Fetched { to: from, topic_id, asked, outcome, records });
    }

    pub(crate) fn apply_fetched(
        &mut self,
        broker: usize,
        (to, topic_id): (Caller, TopicId),
        (asked, outcome): (FetchPosition, FetchedOutcome),
        records: &[Record],
    ) {
        let Some((process, log)) = self.pair(broker) else { return };
        if process.fetches.get(&asked.leader).is_some_and(|(call, _)| *call == to.call) {
            process.fetches.remove(&asked.leader);
        }
        let Some(replica) = process.replica.as_mut().filter(|_| log.topic_id == topic_id) else {
            // Of another incarnation: the fetcher holds the replica that it asked for.
            return;
        };
        match steps::decide_on_answer(replica, log, asked, outcome) {
            Some(FollowerAction::Append { high_watermark, .. }) => {
                if log.append_fetched(asked.offset, records) {
                    steps::adopt_high_watermark(log, high_watermark);
                }
            }
            Some(FollowerAction::Truncate { end, agrees }) => {
                if agrees {
                    replica.agree();
                }
                let high_watermark = log.high_watermark();
                if end < log.log_end_offset() {
                    log.truncate_to(end);
                    self.referee.truncated(&self.brokers[broker], end, high_watermark);
                }
            }
            Some(FollowerAction::AskLeaderStart | FollowerAction::BackOff(_) | FollowerAction::Ignore)
            | None => {}
        }
    }

    fn facts(process: &Process) -> Option<StoredFacts> {
        let replica = process.replica.as_ref()?;
        let leader = replica.leader()?;
        Some(StoredFacts {
            leader_epoch: leader.leader_epoch(),
            state_version: replica.view()?.state_version,
            partition_epoch: leader.isr().stored().partition_epoch,
        })
    }

    /// The proposal in flight, if the broker may make one now.
    pub(crate) fn open_proposal(&self, broker: usize) -> Option<OpenProposal> {
        if !self.may_serve(broker) {
            return None;
        }
        let process = self.brokers[broker].process.as_ref()?;
        let isr = process.leader()?.isr();
        let facts = Self::facts(process)?;
        Some(OpenProposal { facts, stored: isr.stored().clone(), proposal: isr.proposal()?.clone() })
    }

    /// Sends the open proposal, or stores it. `lost`: the answer of the write does not come.
    pub(crate) fn send_proposal(&mut self, broker: usize, lost: bool) {
        let Some(open) = self.open_proposal(broker) else { return };
        if !self.config.own_isr_path {
            self.ask_controller(broker, &open.proposal, open.facts);
            return;
        }
        let own = self.brokers[broker].id;
        let Some((process, log)) = self.pair(broker) else { return };
        let (topic_id, session) = (log.topic_id, process.session);
        let ops = open.operations(&partition(), topic_id, (own, process.broker_epoch));
        let result = self.zookeeper.multi(&ops, session);
        if result.is_ok() {
            self.referee.isr_stored(&self.zookeeper, (own, topic_id), &open);
        }
        let fate = match result {
            _ if lost => {
                self.lose_answer(broker, open.facts.leader_epoch);
                Fate::Look
            }
            Ok(_) => Fate::Stored(open.stored_by()),
            Err(MultiError::Failed { .. }) => Fate::Look,
            Err(_) => Fate::Retry { lost: false },
        };
        self.conclude(broker, open.facts, fate);
    }

    /// The controller that a broker finds in ZooKeeper.
    fn active_controller(&self) -> Option<(usize, u64)> {
        let node = self.zookeeper.get(&Znode::Controller.path())?;
        let id = ActiveController::decode(&node.data).ok()?.controller_id;
        let index = usize::try_from(id).ok()?;
        let office = self.controllers[index].office.as_ref()?;
        Some((index, office.serial))
    }

    fn ask_controller(&mut self, broker: usize, proposal: &Proposal, facts: StoredFacts) {
        let Some((to, serial)) = self.active_controller() else { return };
        if self.brokers[broker].is_parted {
            return;
        }
        let topic_id = self.brokers[broker].disk.log.as_ref().expect("it leads").topic_id;
        let Some(from) = self.caller(broker) else { return };
        let process = self.brokers[broker].process.as_mut().expect("it leads");
        process.proposer.call = Some(from.call);
        let broker_epoch = process.broker_epoch;
        let epoch_of = |id: &BrokerId| {
            proposal.broker_epochs.iter().find(|(member, _)| member == id).map(|(_, epoch)| *epoch)
        };
        let proposal = WireProposal {
            topic: ProposalTopic::Id(topic_id),
            partition: partition().partition,
            leader_epoch: facts.leader_epoch,
            partition_epoch: proposal.partition_epoch,
            isr: proposal.isr.clone(),
            broker_epochs: proposal.isr.iter().map(epoch_of).collect(),
            elr: Some(proposal.elr.clone()),
        };
        self.send(Message::AlterIsr { from, to, serial, broker_epoch, proposal: Box::new(proposal) });
    }

    pub(crate) fn hear_proposal_answer(
        &mut self,
        broker: usize,
        to: Caller,
        answer: Result<ProposalAnswer, Rejection>,
    ) {
        let process = self.brokers[broker].process.as_mut().expect("the call is of this process");
        if process.proposer.call != Some(to.call) {
            return;
        }
        process.proposer.call = None;
        // A request whose answer has come is not on its way any more.
        self.network
            .retain(|_, message| !matches!(&**message, Message::AlterIsr { from, .. } if *from == to));
        let process = self.brokers[broker].process.as_mut().expect("as before");
        let Some(facts) = Self::facts(process) else { return };
        let mut answer = answer;
        if self.config.drops_elr
            && let Ok(answer) = &mut answer
        {
            answer.elr = None;
        }
        let fate = fate_of(&facts, answer);
        self.conclude(broker, facts, fate);
    }

    /// The call is given up: it may have had an effect.
    pub(crate) fn give_proposal_up(&mut self, broker: usize) {
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.proposer.call = None;
        if let Some(epoch) = process.leader().map(|leader| leader.leader_epoch()) {
            self.lose_answer(broker, epoch);
        }
    }

    fn lose_answer(&mut self, broker: usize, leader_epoch: LeaderEpoch) {
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        let leader = process.replica.as_mut().and_then(Replica::leader_mut);
        if let Some(leader) = leader.filter(|leader| leader.leader_epoch() == leader_epoch) {
            leader.lose_answer();
        }
    }

    fn conclude(&mut self, broker: usize, facts: StoredFacts, fate: Fate) {
        match fate {
            Fate::Stored(stored) => self.hear_stored(broker, facts.leader_epoch, stored),
            Fate::Refused(_) => {
                let now = self.now;
                let process = self.brokers[broker].process.as_mut().expect("it runs");
                process.proposer.wanted = false;
                if let Some(leader) = process.replica.as_mut().and_then(Replica::leader_mut) {
                    leader.refuse_proposal(now);
                }
                self.settle(broker);
            }
            Fate::Look => self.brokers[broker].process.as_mut().expect("it runs").proposer.look = true,
            Fate::Retry { lost } => {
                if lost {
                    self.lose_answer(broker, facts.leader_epoch);
                }
            }
        }
    }

    fn hear_stored(&mut self, broker: usize, leader_epoch: LeaderEpoch, stored: StoredIsr) {
        let (now, own) = (self.now, self.brokers[broker].id);
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        let leader = process.replica.as_mut().and_then(Replica::leader_mut);
        let Some(leader) = leader.filter(|leader| leader.leader_epoch() == leader_epoch) else { return };
        let since = std::mem::take(&mut process.proposer).since;
        if !stored.isr.contains(&own) {
            self.resign(broker);
            self.lose_leadership(broker);
            return;
        }
        leader.hear_stored(stored, now);
        // Older news settles nothing: what is open is sent again.
        let wanted = leader.isr().proposal().is_some();
        process.proposer = Proposer { wanted, since, ..Proposer::default() };
        self.settle(broker);
        self.propose(broker);
    }

    /// Decides to give the leadership back; the write comes later.
    pub(crate) fn resign(&mut self, broker: usize) {
        let Some(process) = &mut self.brokers[broker].process else { return };
        let view = process.replica.as_ref().and_then(|replica| replica.view());
        let node = self.zookeeper.get(&Znode::Leader(partition()).path());
        let (Some(view), Some(node)) = (view, node) else { return };
        process.resigning = resignation(&partition(), node, process.session, view.state_version);
    }

    pub(crate) fn write_resignation(&mut self, broker: usize) {
        let Some(process) = &mut self.brokers[broker].process else { return };
        let Some(ops) = process.resigning.take() else { return };
        let owner = self.zookeeper.get(&Znode::Leader(partition()).path()).map(|node| node.ephemeral_owner);
        if self.zookeeper.multi(&ops, process.session).is_ok() && owner != Some(process.session) {
            self.referee.violate("F6: a broker that resigned deleted the leader znode of another");
        }
    }

    /// The disk fails: the replica is of no more use, and leadership is given back.
    pub(crate) fn fail_log(&mut self, broker: usize) {
        self.resign(broker);
        let Some(process) = &mut self.brokers[broker].process else { return };
        process.log_failed = true;
        process.commits.drain();
        process.proposer = Proposer::default();
        if let Some(replica) = &mut process.replica {
            replica.stop(Some(Rejection::KafkaStorageError));
        }
    }

    fn lose_leadership(&mut self, broker: usize) {
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.commits.drain();
        process.proposer = Proposer::default();
        if let Some(replica) = &mut process.replica {
            replica.stop(None);
        }
    }

    /// Settles a proposal by what is stored, as a server shows it that lags `age` writes behind.
    pub(crate) fn look_at_stored(&mut self, broker: usize, age: usize) {
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        let Some(facts) = Self::facts(process) else {
            process.proposer = Proposer::default();
            return;
        };
        match look(&facts, &self.zookeeper.get_many(&paths(&partition()), age)) {
            Seen::Replaced if 0 < age => {}
            Seen::Replaced => self.lose_leadership(broker),
            Seen::Stored(stored) => self.hear_stored(broker, facts.leader_epoch, stored),
            Seen::Nothing => {}
        }
    }

    /// A leader whose proposal has had no answer for a session timeout (L7).
    pub(crate) fn asks_who_leads(&self, broker: usize) -> bool {
        let Some(process) = &self.brokers[broker].process else { return false };
        let open = process.leader().is_some_and(|leader| leader.isr().proposal().is_some());
        open && process.proposer.since + SESSION_MS <= self.now && holds(Rule::UnansweredLeaderAsks)
    }

    pub(crate) fn ask_who_leads(&mut self, broker: usize) {
        let now = self.now;
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.proposer.since = now;
        let Some(facts) = Self::facts(process) else { return };
        let state = self.zookeeper.get(&Znode::State(partition()).path());
        if state.is_some_and(|state| state.version != facts.state_version) {
            self.lose_leadership(broker);
        }
    }

    /// Whether the periodic look would change anything.
    pub(crate) fn wants_another_isr(&self, broker: usize) -> bool {
        let known = &self.brokers[broker];
        let (Some(process), Some(log)) = (&known.process, &known.disk.log) else { return false };
        process
            .leader()
            .is_some_and(|leader| leader.clone().propose(steps::log_ends(log), self.now).is_some())
    }

    /// Replicas that the leader may still add.
    pub(crate) fn outsiders(&self, broker: usize) -> Vec<BrokerId> {
        let Some(leader) = self.brokers[broker].process.as_ref().and_then(Process::leader) else {
            return Vec::new();
        };
        let hosts = Meta::read(&self.zookeeper).state.map_or_else(Vec::new, |state| state.replicas);
        difference(&hosts, &leader.isr().stored().isr)
    }
}
