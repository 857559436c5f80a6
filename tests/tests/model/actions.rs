//! What can happen next, and how it changes the world.

use zurau_broker::cores::Replica;
use zurau_broker::cores::follower::Asked;
use zurau_broker::cores::steps::ReplicaLog;
use zurau_common::id::BrokerId;
use zurau_common::zk::znode::Znode;

use crate::broker::Stage;
use crate::tampering::Tampering;
use crate::world::{LAG_MS, SESSION_MS, World, partition};
use crate::zookeeper::PAST_MAX;

/// Brokers and controllers by index, messages by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Action {
    // Controllers.
    Claim(usize),
    Read(usize),
    /// Only the last of the changed paths is heard of yet.
    ReadPart(usize),
    Told(usize),
    Store(usize),
    HearOutcome(usize),
    Tick(usize),
    NoticeLostSession(usize),
    // Brokers.
    Register(usize),
    TakeOver(usize),
    Propose(usize),
    Look(usize),
    AskWhoLeads(usize),
    Ask(usize),
    CheckIsr(usize),
    SetStraysAside(usize),
    WriteResignation(usize),
    NoticeNewSession(usize),
    Restart(usize),
    Reconnect(usize),
    ReconnectController(usize),
    Deliver(u64),
    /// A call whose messages are lost is given up.
    GiveLostOrderUp(usize, BrokerId),
    GiveLostFetchUp(usize, BrokerId),
    GiveLostProposalUp(usize),
    // Clients.
    Produce(usize),
    Consume(usize),
    // Disks.
    Sync(usize),
    Checkpoint(usize),
    // Time.
    PassALittle,
    PassALease,
    PassALag,
    // Faults.
    Kill(usize),
    LosePower(usize),
    StopCleanly(usize),
    FailLog(usize),
    CutOff(usize),
    CutOffController(usize),
    PartFromControllers(usize),
    Depose,
    Deafen(usize),
    LoseOutcome(usize),
    LoseClaimAnswer(usize),
    LoseTakeOverAnswer(usize),
    GiveTakeOverUp(usize),
    LoseProposalAnswer(usize),
    GiveOrderUp(usize, BrokerId),
    GiveFetchUp(usize, BrokerId),
    GiveProposalUp(usize),
    Duplicate(u64),
    /// How many writes the server lags behind.
    LookStale(usize, usize),
    // Admins.
    Wish(usize),
    CancelWish,
    LowerMinimum,
    Tamper(Tampering),
}

impl Action {
    pub(crate) fn takes_time(self) -> bool {
        matches!(self, Self::PassALittle | Self::PassALease | Self::PassALag)
    }

    /// Whether it ends a trouble.
    pub(crate) fn heals(self) -> bool {
        matches!(self, Self::Restart(_) | Self::Reconnect(_) | Self::ReconnectController(_))
    }

    /// Whether it is a fault or the deed of an admin, and not the working of the cluster itself.
    pub(crate) fn is_disturbance(self) -> bool {
        self >= Self::Kill(0)
    }
}

impl World {
    /// Everything that can happen now.
    pub(crate) fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for controller in 0..self.controllers.len() {
            self.enabled_of_controller(controller, &mut actions);
        }
        for broker in 0..self.brokers.len() {
            self.enabled_of_broker(broker, &mut actions);
            self.enabled_faults_of_broker(broker, &mut actions);
        }
        self.enabled_of_network(&mut actions);
        let b = &self.budgets;
        if b.long_time > 0 {
            actions.extend([Action::PassALittle, Action::PassALease, Action::PassALag]);
        }
        if b.depose > 0 && self.zookeeper.get(&Znode::Controller.path()).is_some() {
            actions.push(Action::Depose);
        }
        if b.wish > 0 {
            actions.extend((0..self.config.wishes.len()).map(Action::Wish));
            if self.zookeeper.get(&Znode::Reassignment(partition()).path()).is_some() {
                actions.push(Action::CancelWish);
            }
        }
        if b.lower_minimum > 0 && self.min_insync > 1 {
            actions.push(Action::LowerMinimum);
        }
        if b.tamper > 0 {
            actions.extend(self.tamperings.iter().copied().map(Action::Tamper));
        }
        actions
    }

    fn enabled_of_controller(&self, c: usize, actions: &mut Vec<Action>) {
        let (known, b) = (&self.controllers[c], &self.budgets);
        if known.cut_off_since.is_some() {
            actions.push(Action::ReconnectController(c));
        } else if !self.zookeeper.is_live(known.session) {
            actions.push(Action::NoticeLostSession(c));
        } else if b.controller_cut_off > 0 && known.office.is_some() {
            actions.push(Action::CutOffController(c));
        }
        if self.can_claim(c) {
            actions.push(Action::Claim(c));
        }
        let Some(active) = &known.office else { return };
        let reached = known.cut_off_since.is_none() && self.zookeeper.is_live(known.session);
        if reached {
            if self.has_news(c) && active.reading.is_none() {
                actions.push(Action::Read(c));
                if self.zookeeper.dirty[c].len() > 1 && !self.config.coarse {
                    actions.push(Action::ReadPart(c));
                }
            }
            if !active.writes.is_empty() {
                actions.push(Action::Store(c));
                if b.lose_answer > 0 {
                    actions.push(Action::LoseOutcome(c));
                }
            }
            if b.deafen > 0 && active.reading.is_none() {
                actions.push(Action::Deafen(c));
            }
        }
        if active.reading.is_some() {
            actions.push(Action::Told(c));
        }
        if !active.done.is_empty() {
            actions.push(Action::HearOutcome(c));
        }
        if active.machine.next_deadline().is_some_and(|at| at.0 <= self.now) {
            actions.push(Action::Tick(c));
        }
        for (broker, link) in &active.links {
            if link.under_way.is_some() && b.give_up > 0 {
                actions.push(Action::GiveOrderUp(c, *broker));
            }
        }
    }

    fn enabled_of_broker(&self, i: usize, actions: &mut Vec<Action>) {
        let broker = &self.brokers[i];
        let Some(process) = &broker.process else {
            if self.config.never_back != Some(i) || self.budgets.kill > 0 {
                actions.push(Action::Restart(i));
            }
            return;
        };
        if broker.cut_off_since.is_some() {
            actions.push(Action::Reconnect(i));
        } else if !self.zookeeper.is_live(process.session) {
            actions.push(Action::NoticeNewSession(i));
        } else {
            let may_register = !broker.is_twin || matches!(process.stage, Stage::Start | Stage::Claim { .. });
            if process.stage != Stage::Live && may_register {
                actions.push(Action::Register(i));
            }
            if process.lane.is_some() {
                actions.push(Action::TakeOver(i));
            }
            if process.proposer.look {
                actions.push(Action::Look(i));
                if self.budgets.stale_read > 0 {
                    actions.extend((1..=PAST_MAX).map(|age| Action::LookStale(i, age)));
                }
            } else if process.proposer.wanted
                && process.proposer.call.is_none()
                && self.open_proposal(i).is_some()
            {
                actions.push(Action::Propose(i));
            }
            if self.asks_who_leads(i) {
                actions.push(Action::AskWhoLeads(i));
            }
            if process.strays_due {
                actions.push(Action::SetStraysAside(i));
            }
            if process.resigning.is_some() {
                actions.push(Action::WriteResignation(i));
            }
        }
        if self.is_worth_asking(i) {
            actions.push(Action::Ask(i));
        }
        if process.leader().is_some() {
            if self.wants_another_isr(i) {
                actions.push(Action::CheckIsr(i));
            }
            if self.budgets.produce > 0 && self.may_serve(i) {
                actions.push(Action::Produce(i));
            }
            if self.budgets.consume > 0 {
                actions.push(Action::Consume(i));
            }
        }
        if self.budgets.power_loss > 0 && broker.disk.log.as_ref().is_some_and(|log| log.unsynced() > 0) {
            actions.extend([Action::Sync(i), Action::Checkpoint(i)]);
        }
    }

    fn enabled_faults_of_broker(&self, i: usize, actions: &mut Vec<Action>) {
        let (broker, b) = (&self.brokers[i], &self.budgets);
        let Some(process) = broker.process.as_ref().filter(|_| !broker.is_twin) else { return };
        if b.kill > 0 {
            actions.push(Action::Kill(i));
        }
        if b.power_loss > 0 && self.may_lose_power(i) {
            actions.push(Action::LosePower(i));
        }
        if b.stop > 0 && process.stage == Stage::Live {
            actions.push(Action::StopCleanly(i));
        }
        if b.cut_off > 0 && broker.cut_off_since.is_none() && process.stage == Stage::Live {
            actions.push(Action::CutOff(i));
        }
        if b.lose_answer > 0 && self.is_connected(i) {
            if matches!(process.stage, Stage::Claim { .. }) {
                actions.push(Action::LoseClaimAnswer(i));
            }
            if process.lane.as_ref().is_some_and(|lane| lane.plan.is_some()) {
                actions.push(Action::LoseTakeOverAnswer(i));
            }
            if process.lane.as_ref().is_some_and(|lane| lane.plan.is_none() && lane.rounds > 0) {
                actions.push(Action::GiveTakeOverUp(i));
            }
            if self.config.own_isr_path && process.proposer.wanted && !process.proposer.look {
                actions.push(Action::LoseProposalAnswer(i));
            }
        }
        if b.give_up > 0 {
            actions.extend(process.fetches.keys().map(|leader| Action::GiveFetchUp(i, *leader)));
            if process.proposer.call.is_some() {
                actions.push(Action::GiveProposalUp(i));
            }
        }
        if b.part > 0 && process.leader().is_some() {
            actions.push(Action::PartFromControllers(i));
        }
        if b.fail_log > 0 && process.leader().is_some() && process.resigning.is_none() {
            actions.push(Action::FailLog(i));
        }
    }

    /// The condition of R9: fewer brokers have lost records than must be in sync.
    fn may_lose_power(&self, broker: usize) -> bool {
        let others = self.brokers.iter().enumerate().filter(|(index, _)| *index != broker);
        let lost = others.filter(|(_, other)| other.disk.lost).count();
        lost + 1 < self.min_insync.min(self.config.replicas.len())
    }

    /// Whether a fetch could change anything: else followers would ask for ever.
    fn is_worth_asking(&self, i: usize) -> bool {
        let Some(asked) = self.question(i) else { return false };
        let Some(log) = &self.brokers[i].disk.log else { return false };
        let leader = &self.brokers[self.index_of(asked.leader)];
        let Some(leads) = leader.process.as_ref().and_then(|process| process.leader()) else { return false };
        let Some(leaders) = &leader.disk.log else { return false };
        leads.leader_epoch() != asked.leader_epoch
            || asked.asked == Asked::EpochEnd
            || leaders.records != log.records
            || leaders.high_watermark() != log.high_watermark()
            || leaders.high_watermark() != leaders.log_end_offset()
            || self.outsiders(self.index_of(asked.leader)).contains(&self.brokers[i].id)
    }

    /// Takes one step.
    pub(crate) fn take(&mut self, action: Action) {
        self.step(action);
        self.forget_dead_letters();
        let mut referee = std::mem::take(&mut self.referee);
        referee.check(self);
        for broker in referee.take_readmitted() {
            let index = self.index_of(broker);
            if self.brokers[index].is_registered() {
                self.brokers[index].disk.lost = false;
            }
        }
        self.referee = referee;
    }

    fn step(&mut self, action: Action) {
        match action {
            Action::Claim(c) => self.claim_office(c),
            Action::ReadPart(c) => self.read(c, true),
            Action::Read(c) => {
                self.read(c, false);
                if self.config.coarse {
                    self.told(c);
                }
            }
            Action::Told(c) => self.told(c),
            Action::Store(c) => self.store(c, false),
            Action::HearOutcome(c) => self.hear_outcome(c),
            Action::Tick(c) => self.tick(c),
            Action::NoticeLostSession(c) => {
                self.controllers[c].office = None;
                self.controllers[c].session = self.zookeeper.open_session();
            }
            Action::Register(i) => self.register(i, false),
            Action::TakeOver(i) => self.take_over(i, false),
            Action::Propose(i) => self.send_proposal(i, false),
            Action::Look(i) => self.look_again(i, 0),
            Action::AskWhoLeads(i) => self.ask_who_leads(i),
            Action::Ask(i) => self.ask(i),
            Action::CheckIsr(i) => self.check_isr(i),
            Action::SetStraysAside(i) => self.look_for_strays(i),
            Action::WriteResignation(i) => self.write_resignation(i),
            Action::NoticeNewSession(i) => self.begin_new_session(i),
            Action::Restart(i) => self.start_process(i),
            Action::Reconnect(i) => self.reconnect(i),
            Action::ReconnectController(c) => self.reconnect_controller(c),
            Action::Deliver(number) => self.deliver(number, false),
            Action::GiveLostOrderUp(c, broker) => self.give_order_up(c, broker),
            Action::GiveLostFetchUp(i, leader) => self.give_fetch_up(i, leader),
            Action::GiveLostProposalUp(i) => self.give_proposal_up(i),
            Action::Sync(i) => {
                if let Some(log) = &mut self.brokers[i].disk.log {
                    log.sync();
                }
            }
            Action::Checkpoint(i) => {
                if let Some(log) = &mut self.brokers[i].disk.log {
                    log.write_checkpoint();
                }
            }
            other => self.disturb(other),
        }
    }

    fn disturb(&mut self, action: Action) {
        self.referee.elections_now = 0;
        let b = &mut self.budgets;
        let budget = match action {
            Action::Produce(_) => &mut b.produce,
            Action::Consume(_) => &mut b.consume,
            Action::PassALittle | Action::PassALease | Action::PassALag => &mut b.long_time,
            Action::Kill(_) => &mut b.kill,
            Action::LosePower(_) => &mut b.power_loss,
            Action::StopCleanly(_) => &mut b.stop,
            Action::CutOff(_) => &mut b.cut_off,
            Action::CutOffController(_) => &mut b.controller_cut_off,
            Action::PartFromControllers(_) => &mut b.part,
            Action::FailLog(_) => &mut b.fail_log,
            Action::Depose => &mut b.depose,
            Action::Deafen(_) => &mut b.deafen,
            Action::LoseOutcome(_)
            | Action::LoseClaimAnswer(_)
            | Action::LoseTakeOverAnswer(_)
            | Action::GiveTakeOverUp(_)
            | Action::LoseProposalAnswer(_) => &mut b.lose_answer,
            Action::GiveOrderUp(..) | Action::GiveFetchUp(..) | Action::GiveProposalUp(_) => &mut b.give_up,
            Action::Duplicate(_) => &mut b.duplicate,
            Action::LookStale(..) => &mut b.stale_read,
            Action::Wish(_) | Action::CancelWish => &mut b.wish,
            Action::LowerMinimum => &mut b.lower_minimum,
            _ => &mut b.tamper,
        };
        *budget = budget.saturating_sub(1);
        match action {
            Action::Produce(i) => self.produce(i),
            Action::Consume(i) => self.consume(i),
            Action::PassALittle => self.pass(FETCH_PAUSE_MS),
            Action::PassALease => self.pass(SESSION_MS / 2),
            Action::PassALag => self.pass(LAG_MS + 1),
            Action::Kill(i) => self.kill(i),
            Action::LosePower(i) => self.lose_power(i),
            Action::StopCleanly(i) => self.stop_cleanly(i),
            Action::FailLog(i) => self.fail_log(i),
            Action::CutOff(i) => self.brokers[i].cut_off_since = Some(self.now),
            Action::CutOffController(c) => self.controllers[c].cut_off_since = Some(self.now),
            Action::PartFromControllers(i) => self.brokers[i].is_parted = true,
            Action::Depose => self.zookeeper.remove(&Znode::Controller.path()),
            Action::Deafen(c) => self.deafen(c),
            Action::LoseOutcome(c) => self.store(c, true),
            Action::LoseClaimAnswer(i) => self.register(i, true),
            Action::LoseTakeOverAnswer(i) => self.take_over(i, true),
            Action::GiveTakeOverUp(i) => self.give_take_over_up(i),
            Action::LoseProposalAnswer(i) => self.send_proposal(i, true),
            Action::GiveOrderUp(c, broker) => self.give_order_up(c, broker),
            Action::GiveFetchUp(i, leader) => self.give_fetch_up(i, leader),
            Action::GiveProposalUp(i) => self.give_proposal_up(i),
            Action::Duplicate(number) => self.deliver(number, true),
            Action::LookStale(i, age) => self.look_again(i, age),
            Action::Wish(index) => {
                let wish = self.config.wishes[index];
                self.zookeeper.put(&Znode::Reassignment(partition()).path(), wish.as_bytes());
            }
            Action::CancelWish => self.remove_wish(),
            Action::LowerMinimum => self.lower_minimum(),
            Action::Tamper(what) => self.tamper(what),
            other => unreachable!("{other:?} is no disturbance"),
        }
    }

    fn look_again(&mut self, broker: usize, age: usize) {
        if let Some(process) = &mut self.brokers[broker].process {
            process.proposer.look = false;
        }
        self.look_at_stored(broker, age);
    }

    /// An admin lowers `min.insync.replicas`, and every broker hears of it.
    fn lower_minimum(&mut self) {
        self.min_insync -= 1;
        let rules = self.config.rules(self.min_insync);
        for i in 0..self.brokers.len() {
            let Some(process) = &mut self.brokers[i].process else { continue };
            if let Some(leader) = process.replica.as_mut().and_then(Replica::leader_mut) {
                leader.set_rules(rules);
            }
            self.check_isr(i);
        }
    }

    fn give_fetch_up(&mut self, broker: usize, leader: BrokerId) {
        if let Some(process) = &mut self.brokers[broker].process {
            process.fetches.remove(&leader);
        }
    }

    fn reconnect(&mut self, broker: usize) {
        self.brokers[broker].cut_off_since = None;
        self.renew_leases();
    }

    fn reconnect_controller(&mut self, controller: usize) {
        self.controllers[controller].cut_off_since = None;
        if self.zookeeper.is_live(self.controllers[controller].session) {
            self.deafen(controller);
        }
    }

    pub(crate) fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        self.renew_leases();
        self.end_sessions();
    }

    /// Whoever reaches ZooKeeper has written again and again meanwhile.
    fn renew_leases(&mut self) {
        let now = self.now;
        for broker in &mut self.brokers {
            if broker.process.is_none() {
                continue;
            }
            let broker = &mut **broker;
            let Some(process) = &mut broker.process else { continue };
            let live = process.stage == Stage::Live && self.zookeeper.is_live(process.session);
            if broker.cut_off_since.is_none() && live {
                process.lease_until = now + SESSION_MS / 2;
            } else {
                process.lapsed |= process.lease_until <= now;
            }
        }
    }
}

const FETCH_PAUSE_MS: u64 = 1_001;
