//! Starting, registering and ending broker processes: the thin logic of the shell around the production rules.

use zurau_broker::cores::registration::{appearance, claim, claimed, former_of, is_still_ours, own_paths};
use zurau_broker::cores::storing::{Departure, departure};
use zurau_broker::cores::{Incarnation, Replica};
use zurau_common::id::{BrokerEpoch, TopicId};
use zurau_common::rule::{Rule, holds};
use zurau_common::zk::broker::{Address, Endpoints};
use zurau_common::zk::topic::{decode_topic, only_incarnation};
use zurau_common::zk::znode::{TOPIC_IDS, Znode};

use crate::broker::{Broker, Process, Proposer, Stage};
use crate::world::{SESSION_MS, World, partition};

impl World {
    pub(crate) fn start_process(&mut self, broker: usize) {
        let number = self.draw();
        let session = self.zookeeper.open_session();
        let truncation = self.config.truncation;
        let broker = &mut *self.brokers[broker];
        let mut process = Process::new(number, session);
        if let Some(log) = &mut broker.disk.log {
            log.open();
            process.replica = Some(Replica::new(broker.id, log.topic_id, truncation));
        }
        broker.process = Some(process);
        broker.cut_off_since = None;
    }

    /// The process is gone; its session ends when ZooKeeper has not heard of it for a session timeout.
    pub(crate) fn kill(&mut self, broker: usize) {
        let now = self.now;
        if let Some(process) = self.brokers[broker].process.take() {
            self.referee.process_ended(&process);
            let since = self.brokers[broker].cut_off_since.take().unwrap_or(now);
            self.orphans.push((process.session, since));
        }
    }

    /// The machine loses its page cache.
    pub(crate) fn lose_power(&mut self, broker: usize) {
        self.kill(broker);
        let disk = &mut self.brokers[broker].disk;
        disk.boot += 1;
        if disk.log.as_mut().is_some_and(|log| log.lose_power()) {
            disk.lost = true;
        }
    }

    /// A clean stop: everything is flushed, the directory says so, the session is closed.
    pub(crate) fn stop_cleanly(&mut self, broker: usize) {
        let boot_id = self.boot_id(broker);
        let Some(process) = self.brokers[broker].process.take() else { return };
        self.referee.process_ended(&process);
        let disk = &mut self.brokers[broker].disk;
        if let Some(log) = &mut disk.log {
            log.sync();
            log.write_checkpoint();
        }
        if let Some(id) = process.held.filter(|_| process.stage == Stage::Live) {
            disk.home = Some(Incarnation { id, next_id: -1, boot_id, clean: true });
        }
        self.brokers[broker].cut_off_since = None;
        self.zookeeper.end_session(process.session);
    }

    /// Ends the sessions that ZooKeeper has not heard of for a session timeout.
    pub(crate) fn end_sessions(&mut self) {
        let now = self.now;
        let over = |since: u64| since + SESSION_MS <= now;
        let (ended, left): (Vec<_>, Vec<_>) = self.orphans.drain(..).partition(|(_, since)| over(*since));
        self.orphans = left;
        let mut sessions: Vec<i64> = ended.into_iter().map(|(session, _)| session).collect();
        for broker in &self.brokers {
            if let (Some(process), Some(since)) = (&broker.process, broker.cut_off_since)
                && over(since)
            {
                sessions.push(process.session);
            }
        }
        let cut_off = self.controllers.iter().filter(|one| one.cut_off_since.is_some_and(over));
        sessions.extend(cut_off.map(|controller| controller.session));
        for session in sessions {
            self.zookeeper.end_session(session);
        }
    }

    /// The broker hears that its session is over: it stops everything and begins a new one (L11).
    pub(crate) fn begin_new_session(&mut self, broker: usize) {
        let session = self.zookeeper.open_session();
        let Some(process) = &mut self.brokers[broker].process else { return };
        self.referee.process_ended(process);
        process.session = session;
        process.lane = None;
        process.proposer = Proposer::default();
        process.fetches.clear();
        process.lease_until = 0;
        process.lapsed = false;
        process.resigning = None;
        process.claiming = None;
        process.commits.drain();
        if holds(Rule::NumbersOfSession) {
            process.commander = zurau_broker::cores::Commander::default();
            process.live = None;
            if let Some(replica) = &mut process.replica {
                replica.forget();
            }
        } else if let Some(replica) = &mut process.replica {
            replica.stop(None);
        }
        process.stage = Stage::Start;
    }

    /// The next step of a registration. `lost`: the answer of a claim does not come.
    pub(crate) fn register(&mut self, broker: usize, lost: bool) {
        let Some(process) = &self.brokers[broker].process else { return };
        match process.stage {
            Stage::Start => self.announce(broker),
            Stage::Claim { next } => self.claim(broker, next, lost),
            Stage::Depart { next } => self.depart(broker, next),
            Stage::Appear => self.appear(broker),
            Stage::Live => {}
        }
    }

    fn former(&self, broker: usize) -> Option<(i64, i32)> {
        self.zookeeper.get(&Znode::BrokerEpoch(self.brokers[broker].id).path()).map(former_of)
    }

    fn announce(&mut self, broker: usize) {
        let former = self.former(broker);
        let next = i64::try_from(self.draw()).expect("a small number");
        let held = former.map_or(-1, |(id, _)| id);
        let boot_id = self.boot_id(broker);
        let copied = self.brokers[self.index_of(self.brokers[broker].id)].disk.home.clone();
        let Broker { disk, process: Some(process), is_twin, .. } = &mut *self.brokers[broker] else { return };
        if *is_twin {
            disk.home = copied;
        }
        if process.held.is_none() {
            process.complete = disk.home.as_ref().is_some_and(|home| home.is_complete_for(held, &boot_id));
        }
        if let Some(home) = &mut disk.home
            && (process.complete || process.held.is_some())
        {
            home.id = held;
            home.next_id = next;
        }
        process.stage = Stage::Claim { next };
        if !holds(Rule::LeaveBeforeComplete) {
            disk.home = Some(Incarnation { id: next, next_id: -1, boot_id, clean: false });
        }
    }

    /// Decides the claim, then stores it: two steps, between which others may register.
    fn claim(&mut self, broker: usize, next: i64, lost: bool) {
        let former = self.former(broker);
        let id = self.brokers[broker].id;
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        if let Some((decided_from, ops)) = process.claiming.take() {
            let session = process.session;
            let standing = self.zookeeper.get(&Znode::Broker(id).path()).map(|node| node.ephemeral_owner);
            if self.zookeeper.multi(&ops, session).is_ok() {
                self.referee.claimed(id, decided_from == former, self.is_foreign(broker, standing));
                let epoch = BrokerEpoch(i64::from(self.former(broker).expect("stored just now").1));
                if !lost {
                    // Otherwise the next step finds out.
                    self.claimed(broker, next, epoch);
                }
            }
            return;
        }
        if let Some(epoch) = claimed(former, next) {
            self.claimed(broker, next, epoch);
            return;
        }
        let nodes = self.zookeeper.get_many(&own_paths(id), 0);
        let disk = &self.brokers[broker].disk;
        let process = self.brokers[broker].process.as_ref().expect("it runs");
        if !is_still_ours(former, process.held) {
            // Another process uses the id: this one ends.
            self.kill(broker);
            return;
        }
        let held = former.map_or(-1, |(id, _)| id);
        let boot_id = self.boot_id(broker);
        let is_own_directory = disk.home.as_ref().is_some_and(|home| home.made(held, &boot_id));
        let ours = nodes[0].as_ref().is_none_or(|node| node.ephemeral_owner == process.session)
            || process.held.is_some()
            || is_own_directory;
        if ours {
            // Else it waits for the other registration to end.
            let ops = claim(id, former, next, &nodes);
            self.brokers[broker].process.as_mut().expect("it runs").claiming = Some((former, ops));
        }
    }

    /// Whether a registration is of a process on another machine that runs and has its session.
    fn is_foreign(&self, broker: usize, owner: Option<i64>) -> bool {
        let others = self.brokers.iter().enumerate().filter(|(index, _)| *index != broker);
        let mut sessions = others.filter_map(|(_, other)| other.process.as_ref().map(|one| one.session));
        owner.is_some_and(|owner| sessions.any(|session| session == owner))
    }

    fn boot_id(&self, broker: usize) -> String {
        let machine = if self.brokers[broker].is_twin { "twin" } else { "own" };
        format!("{machine} {}", self.brokers[broker].disk.boot)
    }

    fn claimed(&mut self, broker: usize, next: i64, epoch: BrokerEpoch) {
        let process = self.brokers[broker].process.as_mut().expect("it runs");
        process.broker_epoch = epoch;
        let first = process.held.is_none();
        process.held = Some(next);
        process.stage = if first { Stage::Depart { next } } else { Stage::Appear };
        let number = process.number;
        self.referee.registered(self.brokers[broker].id, epoch, number);
        if !first {
            self.complete(broker, next);
        }
    }

    fn complete(&mut self, broker: usize, id: i64) {
        let boot_id = self.boot_id(broker);
        self.brokers[broker].disk.home = Some(Incarnation { id, next_id: -1, boot_id, clean: false });
    }

    /// Leaves what it cannot honour, then the directory is complete.
    fn depart(&mut self, broker: usize, next: i64) {
        let tp = partition();
        let topic = self.zookeeper.get(&Znode::Topic(tp.topic.clone()).path());
        let topic_id = topic.and_then(|node| {
            let stored = decode_topic(&node.data).ok().flatten();
            stored.or_else(|| self.only_incarnation())
        });
        let known = &self.brokers[broker];
        let process = known.process.as_ref().expect("it runs");
        if let Some(topic_id) = topic_id {
            let held = known.disk.log.as_ref().is_some_and(|log| log.topic_id == topic_id);
            if !(held && process.complete) {
                let paths = [Znode::Isr(tp.clone()), Znode::Elr(tp.clone()), Znode::State(tp.clone())];
                let nodes = self.zookeeper.get_many(&paths.map(|znode| znode.path()), 0);
                let own = (known.id, process.broker_epoch);
                match departure(&tp, topic_id, &nodes, own) {
                    Departure::Leave(ops) => {
                        // Stored or not, or the session is over: the next step looks.
                        let _ = self.zookeeper.multi(&ops, process.session);
                        return;
                    }
                    // There is nothing better: what it lost must not have been committed.
                    Departure::LastOne => self.brokers[broker].disk.lost = false,
                    Departure::NotNamed => {}
                }
            }
        }
        self.complete(broker, next);
        self.brokers[broker].process.as_mut().expect("it runs").stage = Stage::Appear;
    }

    /// Of the topic, as the entries of topic ids tell it.
    fn only_incarnation(&self) -> Option<TopicId> {
        let entries = self.zookeeper.nodes().filter_map(|(path, node)| {
            let id = path.strip_prefix(TOPIC_IDS)?.strip_prefix('/')?;
            Some((TopicId::parse(id)?, node.data.as_slice()))
        });
        only_incarnation(&partition().topic, entries)
    }

    fn appear(&mut self, broker: usize) {
        let known = &self.brokers[broker];
        let (id, process) = (known.id, known.process.as_ref().expect("it runs"));
        let address = Address { host: format!("host{id}"), port: 9092 };
        let endpoints = Endpoints::new(Vec::new(), None, "model".to_owned());
        let version = i32::try_from(process.broker_epoch.0).expect("a small number");
        let ops = appearance(id, version, address.encode(), endpoints.encode());
        let (session, held) = (process.session, process.held);
        let stored = self.zookeeper.multi(&ops, session).is_ok();
        let own = self.zookeeper.get(&Znode::Broker(id).path()).is_some_and(|n| n.ephemeral_owner == session);
        if stored || own {
            let lease_until = self.now + SESSION_MS / 2;
            let process = self.brokers[broker].process.as_mut().expect("it runs");
            process.stage = Stage::Live;
            process.lease_until = lease_until;
            return;
        }
        if !is_still_ours(self.former(broker), held) {
            self.kill(broker);
        }
    }
}
