//! What must hold after every step (cases/invariants.md, sections 2, 3 and 8). The referee sees everything at once, which
//! no process can.

use std::collections::{BTreeMap, BTreeSet};

use zurau_broker::cores::steps::ReplicaLog;
use zurau_broker::cores::storing::OpenProposal;
use zurau_common::assignment::{difference, same_set};
use zurau_common::id::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId};
use zurau_common::leader_and_isr::LeaderAndIsr;
use zurau_common::zk::isr::decode_ids;
use zurau_common::zk::op::Node;
use zurau_common::zk::state::PartitionState;
use zurau_common::zk::topic::decode_topic;
use zurau_common::zk::znode::Znode;
use zurau_controller::action::{Note, Reason, Write};

use crate::broker::{Broker, Process, Waiter};
use crate::controller::Stored;
use crate::log::Record;
use crate::messages::Order;
use crate::world::{FETCH_WAIT_MS, SESSION_MS, World, partition};
use crate::zookeeper::ZooKeeper;

/// More elections than a cluster holds before something else happens.
const ELECTIONS_MAX: u64 = 12;

/// How often a broker may be elected again in one moment.
const SECOND_CHOICES_MAX: u64 = 4;

/// What is stored of the partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta {
    pub(crate) topic_id: Option<TopicId>,
    pub(crate) state: Option<PartitionState>,
    pub(crate) isr: Vec<BrokerId>,
    pub(crate) elr: Vec<BrokerId>,
    /// Owner of a `leader` znode of the current epoch.
    pub(crate) owner: Option<i64>,
}

impl Meta {
    pub(crate) fn read(zookeeper: &ZooKeeper) -> Self {
        let tp = partition();
        let get = |znode: Znode| zookeeper.get(&znode.path());
        let ids = |znode: Znode| get(znode).and_then(|node| decode_ids(&node.data).ok()).unwrap_or_default();
        let topic_id = get(Znode::Topic(tp.topic.clone()));
        let topic_id = topic_id.and_then(|node| decode_topic(&node.data).ok().flatten());
        // An emptied node: its one entry still says which incarnation it is.
        let emptied = get(Znode::State(tp.clone())).is_some();
        let topic_id = topic_id.or_else(|| {
            let entries = zookeeper.below("/brokers/topic_ids");
            let id = entries.get(1).filter(|_| emptied && entries.len() == 2)?;
            TopicId::parse(id.rsplit_once('/')?.1)
        });
        let state_node = get(Znode::State(tp.clone()));
        let leader = get(Znode::Leader(tp.clone()));
        let owner = leader.filter(|leader| state_node.is_some_and(|state| state.mzxid < leader.czxid));
        Self {
            topic_id,
            state: state_node.and_then(|node| PartitionState::decode(&node.data).ok()),
            isr: ids(Znode::Isr(tp.clone())),
            elr: ids(Znode::Elr(tp)),
            owner: owner.map(|node| node.ephemeral_owner),
        }
    }
}

#[derive(Debug, Clone, Copy, Hash)]
struct LastOwner {
    session: i64,
    lived: bool,
    gone: bool,
    epoch: LeaderEpoch,
    leader: BrokerId,
}

#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Referee {
    pub(crate) violation: Option<String>,
    values: u64,
    pub(crate) acknowledged: BTreeMap<i64, u64>,
    consumed: BTreeMap<i64, u64>,
    pub(crate) committed_end: i64,
    high_watermarks: BTreeMap<i32, i64>,
    told_ends: BTreeMap<i32, i64>,
    /// Who took office in an epoch, under which session, and when.
    offices: BTreeMap<(TopicId, LeaderEpoch), (BrokerId, i64, u64)>,
    registrations: BTreeMap<(BrokerId, BrokerEpoch), u64>,
    highest_state: Option<(TopicId, LeaderEpoch, ControllerEpoch)>,
    views: BTreeMap<(u64, i64), (Option<TopicId>, ControllerEpoch, LeaderEpoch)>,
    commanders: BTreeMap<(u64, i64), (ControllerEpoch, u64)>,
    /// Registrations under which somebody was added to the ISR.
    pub(crate) readmitted: BTreeSet<BrokerId>,
    /// Incarnations whose topic was removed by hand.
    ended: BTreeSet<TopicId>,
    /// How far a follower has fetched in an epoch, under its newest registration there.
    fetches: BTreeMap<(TopicId, LeaderEpoch, BrokerId), (BrokerEpoch, i64)>,
    /// How often a broker was elected in one registration by one controller in one moment, after it or others had
    /// refused.
    second_choices: BTreeMap<(BrokerId, i32, u64), (u64, u64)>,
    /// An unclean election has been held: acknowledged records may be lost.
    pub(crate) excused: bool,
    /// Elections since the last disturbance or passing of time.
    pub(crate) elections_now: u64,
    /// The session that owned the last `leader` znode of the current epoch, and whether it lived when that vanished.
    /// With that epoch.
    last_owner: Option<LastOwner>,
    epochs: BTreeSet<LeaderEpoch>,
}

impl Referee {
    pub(crate) fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    pub(crate) fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(what());
        }
    }

    pub(crate) fn next_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    pub(crate) fn process_ended(&mut self, process: &Process) {
        self.views.remove(&(process.number, process.session));
        self.commanders.remove(&(process.number, process.session));
    }

    pub(crate) fn registered(&mut self, broker: BrokerId, epoch: BrokerEpoch, process: u64) {
        let owner = *self.registrations.entry((broker, epoch)).or_insert(process);
        self.demand(owner == process, || format!("M7: two processes hold broker epoch {epoch} of {broker}"));
    }

    pub(crate) fn obeyed(&mut self, broker: &Broker, order: &Order) {
        let Some(process) = &broker.process else { return };
        let key = (process.number, process.session);
        let now = (order.controller_epoch, order.connection);
        let before = *self.commanders.get(&key).unwrap_or(&now);
        self.commanders.insert(key, before.max(now));
        let id = broker.id;
        self.demand(before <= now, || format!("M4, F9: {id} obeys controller {now:?} after {before:?}"));
        let named = order.broker_epoch;
        let own = process.broker_epoch;
        self.demand(named == own, || format!("M5: {id} of {own} obeys an order for {named}"));
    }

    pub(crate) fn took_office(
        &mut self,
        zookeeper: &ZooKeeper,
        (broker, session): (BrokerId, i64),
        order: &LeaderAndIsr,
        now: u64,
    ) {
        let key = (order.topic_id, order.leader_epoch);
        let before = *self.offices.entry(key).or_insert((broker, session, now));
        let same = (before.0, before.1) == (broker, session);
        self.demand(same, || {
            format!("M3, F5: epoch {} is led by {before:?} and {broker}", order.leader_epoch)
        });
        let current = zookeeper.get(&Znode::TopicIdEntry(order.topic_id).path()).is_some();
        self.demand(current, || format!("M11, F4: {broker} takes office for an incarnation that is over"));
    }

    /// A leader has answered a fetch that was sent in its epoch, by a log that does not part from its own.
    pub(crate) fn fetched(
        &mut self,
        key: (TopicId, LeaderEpoch, BrokerId),
        registration: BrokerEpoch,
        offset: i64,
    ) {
        let known = self.fetches.entry(key).or_insert((registration, offset));
        // In one registration and epoch its log only grows; an earlier fetch may come late.
        *known = (*known).max((registration, offset));
    }

    pub(crate) fn has_fetched(
        &self,
        key: (TopicId, LeaderEpoch, BrokerId),
        registration: BrokerEpoch,
        offset: i64,
    ) -> bool {
        self.fetches.get(&key) == Some(&(registration, offset))
    }

    /// R13, N11: who was added to the ISR fetched everything committed in this epoch, in the registration in which it
    /// lives, and is wanted.
    fn joined(&mut self, zookeeper: &ZooKeeper, added: &[BrokerId]) {
        let meta = Meta::read(zookeeper);
        let (Some(topic_id), Some(state)) = (meta.topic_id, &meta.state) else { return };
        for member in added {
            let registration = zookeeper.get(&Znode::BrokerEpoch(*member).path());
            let registration = registration.map(|node| BrokerEpoch(i64::from(node.version)));
            let fetch = self.fetches.get(&(topic_id, state.leader_epoch, *member)).copied();
            let committed = self.committed_end;
            let reached = fetch.is_some_and(|(of, end)| Some(of) == registration && committed <= end);
            self.demand(reached, || {
                format!(
                    "R13: {member} of {registration:?} joins with {fetch:?}, {committed} is committed: {meta:?}"
                )
            });
            let complete = difference(&state.target, &difference(&meta.isr, added)).is_empty();
            self.demand(!complete || state.target.contains(member), || {
                format!("N11: {member} joins, and the target was in sync: {meta:?}")
            });
        }
        self.readmitted.extend(added);
    }

    /// A leader stored its ISR itself.
    pub(crate) fn isr_stored(
        &mut self,
        zookeeper: &ZooKeeper,
        (leader, topic_id): (BrokerId, TopicId),
        open: &OpenProposal,
    ) {
        let OpenProposal { stored, proposal, .. } = open;
        let current = zookeeper.get(&Znode::TopicIdEntry(topic_id).path()).is_some();
        self.demand(current, || format!("M11, F4: {leader} stores the ISR of an incarnation that is over"));
        self.joined(zookeeper, &difference(&proposal.isr, &stored.isr));
        let has_leader = proposal.isr.contains(&leader);
        self.demand(has_leader, || format!("M6: {leader} leaves its own ISR: {proposal:?}"));
    }

    /// `wish`: as it stood before.
    pub(crate) fn controller_wrote(
        &mut self,
        zookeeper: &ZooKeeper,
        stored: &Stored,
        wish: Option<&Node>,
        now: u64,
    ) {
        if let Write::PartitionError { text: Some(text), .. } = &stored.write {
            // The topic was created at 0, and its author had half a second to complete it.
            self.demand(500 <= now, || format!("L9: an error at once: {text}"));
        }
        let current = zookeeper.text(&Znode::ControllerEpoch.path()).unwrap_or_default();
        let (mine, raised) = (stored.epoch, matches!(stored.write, Write::RaiseControllerEpoch { .. }));
        let in_office = raised || current == mine.to_string();
        self.demand(in_office, || {
            format!("M2: a write of controller {mine} is stored under {current}: {:?}", stored.write)
        });
        if let Write::NameTopic { topic_id, .. } = &stored.write {
            let over = self.ended.contains(topic_id);
            self.demand(!over, || format!("M11: a topic gets the id of one that was removed: {topic_id}"));
        }
        let Write::Partition(change) = &stored.write else { return };
        if change.write.isr.is_some() {
            // The leader's own registration comes first.
            let added: Vec<BrokerId> =
                change.fence.broker_epochs.iter().skip(1).map(|(member, _)| *member).collect();
            self.joined(zookeeper, &added);
        }
        if let Some(decided_from) = change.extra.remove_wanted {
            let target = change.write.state.as_ref().map(|state| state.target.clone());
            let replicas = zookeeper.text(&Znode::Replicas(partition()).path());
            let replicas = replicas.and_then(|text| decode_ids(text.as_bytes()).ok());
            self.demand(target == replicas, || format!("N9: a move to {target:?} leaves {replicas:?}"));
            // One that was removed and made anew meanwhile begins at version 0 again: nothing tells it from the first.
            let version = wish.map(|node| node.version);
            let wish = wish.and_then(|node| decode_ids(&node.data).ok());
            let same = matches!((&wish, &target), (Some(wish), Some(target)) if same_set(wish, target))
                || version == Some(decided_from);
            self.demand(same, || format!("N9: the wish {wish:?} ends with a move to {target:?}"));
        }
    }

    /// `since`: when the controller took office.
    pub(crate) fn noted(&mut self, zookeeper: &ZooKeeper, note: &Note, (since, now): (u64, u64)) {
        let in_office_ms = now - since;
        match note {
            Note::Elected { reason, recovery, leader_epoch, leader, .. } => {
                if matches!(reason, Reason::Refused | Reason::Resigned | Reason::NoAnswer) {
                    let registration = zookeeper.get(&Znode::BrokerEpoch(*leader).path());
                    let key = (*leader, registration.map_or(-1, |node| node.version), since);
                    let known = self.second_choices.entry(key).or_default();
                    *known = if known.0 == now { (now, known.1 + 1) } else { (now, 1) };
                    let times = known.1;
                    self.demand(times <= SECOND_CHOICES_MAX, || {
                        format!("L4: {leader} is elected {times} times in a moment, after refusals")
                    });
                }
                let before = self.epochs.range(..*leader_epoch).next_back().copied();
                let last = self.last_owner.filter(|last| Some(last.epoch) == before);
                self.excused |= *recovery;
                self.elections_now += 1;
                let elections = self.elections_now;
                self.demand(elections < ELECTIONS_MAX, || format!("L4: {elections} elections in a moment"));
                let resigned = *reason != Reason::Resigned || last.is_none_or(|last| last.lived);
                self.demand(resigned, || {
                    "L5, M5: the leader's session ended, and it is said to have resigned".into()
                });
                let restarted = *reason == Reason::BrokerRestarted;
                let stands = last.is_some_and(|last| {
                    let registered = zookeeper.get(&Znode::Broker(last.leader).path());
                    registered.is_some_and(|node| node.ephemeral_owner == last.session)
                });
                self.demand(!(restarted && stands), || {
                    "N10: an epoch ends as if its leader had registered anew, and it did not".into()
                });
            }
            Note::TookOffice { brokers, .. } => {
                let meta = Meta::read(zookeeper);
                let hosts = meta.state.map_or(Vec::new(), |state| state.replicas);
                let waited = SESSION_MS <= in_office_ms || hosts.len() <= 2 * brokers;
                self.demand(waited, || format!("L12: elections begin with {brokers} of {hosts:?}"));
            }
            _ => {}
        }
    }

    /// A registration id was stored.
    pub(crate) fn claimed(&mut self, broker: BrokerId, over_former: bool, foreign: bool) {
        self.demand(over_former, || {
            format!("N12: {broker} registers over another registration than it knew")
        });
        self.demand(!foreign, || format!("D12, F11: {broker} takes the registration of a living process"));
    }

    pub(crate) fn raised(&mut self, zookeeper: &ZooKeeper, broker: &Broker) {
        let (Some(process), Some(log)) = (&broker.process, &broker.disk.log) else { return };
        let Some(leader) = process.leader() else { return };
        let meta = Meta::read(zookeeper);
        let (epoch, high_watermark) = (leader.leader_epoch(), log.high_watermark());
        let in_sync = leader.isr().stored().isr.len();
        let enough = leader.min_in_sync() <= in_sync;
        self.demand(enough, || format!("R12: the high watermark rises with {in_sync} in sync"));
        for member in leader.isr().maximal().into_iter().filter(|member| *member != broker.id) {
            let fetch = self.fetches.get(&(log.topic_id, epoch, member)).copied();
            let reached = fetch.is_some_and(|(_, end)| high_watermark <= end);
            self.demand(reached, || {
                format!(
                    "R12: the high watermark of epoch {epoch} rises to {high_watermark}, {member}: {fetch:?}"
                )
            });
        }
        let current = meta.topic_id == Some(log.topic_id);
        let leads = meta.state.is_some_and(|state| state.leader == broker.id && state.leader_epoch == epoch);
        if leads && current {
            self.committed_end = self.committed_end.max(high_watermark);
        }
    }

    pub(crate) fn acknowledged(&mut self, zookeeper: &ZooKeeper, broker: &Broker, waiter: Waiter) {
        let (Some(process), Some(log)) = (&broker.process, &broker.disk.log) else { return };
        if Meta::read(zookeeper).topic_id != Some(log.topic_id) {
            // Of an incarnation that is over.
            return;
        }
        let held = log.read(waiter.offset, 1).first().map(|record| record.value) == Some(waiter.value);
        let committed = waiter.offset < log.high_watermark() && process.leader().is_some();
        let id = broker.id;
        self.demand(held && committed, || format!("R20: {id} acknowledges {waiter:?} too early"));
        let before = *self.acknowledged.entry(waiter.offset).or_insert(waiter.value);
        let same = before == waiter.value || self.excused;
        self.demand(same, || format!("one offset, two acknowledgements: {waiter:?} and {before}"));
    }

    pub(crate) fn consumed(&mut self, epoch: LeaderEpoch, records: &[Record]) {
        for (offset, record) in (0..).zip(records) {
            let before = *self.consumed.entry(offset).or_insert(record.value);
            let same = before == record.value || self.excused;
            self.demand(same, || format!("R8: epoch {epoch} shows {record:?} at {offset}, {before} before"));
        }
    }

    /// Somebody was told the end of the partition.
    pub(crate) fn told_end(&mut self, epoch: LeaderEpoch, end: i64) {
        let highest = self.told_ends.range(..=epoch.0).map(|(_, end)| *end).max().unwrap_or(0);
        let excused = self.excused;
        self.demand(highest <= end || excused, || format!("R15: epoch {epoch} tells {end} after {highest}"));
        let told = self.told_ends.entry(epoch.0).or_insert(end);
        *told = (*told).max(end);
    }

    /// A broker served what only a leader with the right to it may.
    pub(crate) fn served(&mut self, zookeeper: &ZooKeeper, broker: &Broker, now: u64) {
        let (Some(process), Some(log)) = (&broker.process, &broker.disk.log) else { return };
        let Some(leader) = process.leader() else { return };
        let office = self.offices.get(&(log.topic_id, leader.leader_epoch()));
        if office.is_none_or(|(_, session, _)| zookeeper.is_live(*session)) {
            return;
        }
        let newer = self.offices.range((log.topic_id, leader.leader_epoch().next())..);
        let mut newer = newer.filter(|((topic_id, _), _)| *topic_id == log.topic_id);
        let since = newer.next().map(|(_, (_, _, since))| *since);
        let too_late = since.is_some_and(|since| since + 2 * FETCH_WAIT_MS + 1_000 < now);
        let id = broker.id;
        self.demand(!too_late, || format!("F10, N2: {id} serves long after its successor took office"));
    }

    pub(crate) fn truncated(&mut self, broker: &Broker, end: i64, high_watermark: i64) {
        let excused = self.excused || broker.disk.lost;
        let id = broker.id;
        self.demand(excused || high_watermark <= end, || {
            format!("R16: {id} cuts its log to {end}, below its high watermark {high_watermark}")
        });
    }

    /// A copy was deleted, because the controller said so. It may host again by now, but nobody counts on it yet.
    pub(crate) fn deleted(&mut self, zookeeper: &ZooKeeper, broker: BrokerId, topic_id: TopicId) {
        let meta = Meta::read(zookeeper);
        let counted = meta.isr.contains(&broker) || meta.elr.contains(&broker);
        let current = meta.topic_id == Some(topic_id);
        self.demand(!(counted && current), || {
            format!("F9, N5: {broker} deletes a copy that counts: {meta:?}")
        });
    }

    /// A directory was renamed.
    pub(crate) fn set_aside(&mut self, zookeeper: &ZooKeeper, broker: BrokerId, topic_id: TopicId) {
        if zookeeper.get(&Znode::TopicIdEntry(topic_id).path()).is_none() {
            return;
        }
        let meta = Meta::read(zookeeper);
        let host = meta.state.is_none_or(|state| state.replicas.contains(&broker));
        self.demand(!host, || format!("F8, N5, N7: {broker} gives up a copy that it hosts"));
    }

    /// After every step.
    pub(crate) fn check(&mut self, world: &World) {
        let meta = Meta::read(&world.zookeeper);
        self.check_meta(&meta);
        if let Some(state) = &meta.state {
            let epoch = state.leader_epoch;
            self.epochs.insert(epoch);
            let leader = state.leader;
            match (meta.owner, &mut self.last_owner) {
                (Some(session), last) => {
                    *last = Some(LastOwner { session, lived: true, gone: false, epoch, leader })
                }
                (None, Some(last)) if !last.gone && last.epoch == epoch => {
                    last.gone = true;
                    last.lived = world.zookeeper.is_live(last.session);
                }
                (None, _) => {}
            }
        }
        self.check_processes(world, &meta);
        self.check_logs(world, &meta);
        if !self.excused {
            self.check_data(world, &meta);
        }
    }

    fn check_meta(&mut self, meta: &Meta) {
        let (Some(topic_id), Some(state)) = (meta.topic_id, &meta.state) else { return };
        let (leader_epoch, controller_epoch) = (state.leader_epoch, state.controller_epoch);
        if let Some((id, leader, controller)) = self.highest_state
            && id == topic_id
        {
            self.demand(leader <= leader_epoch, || format!("M1: leader epoch {leader_epoch} after {leader}"));
            self.demand(controller <= controller_epoch, || {
                format!("M1, N14: controller epoch {controller_epoch} after {controller}")
            });
        }
        self.highest_state = Some((topic_id, leader_epoch, controller_epoch));
        let foreign = meta.isr.iter().chain(&meta.elr).find(|id| !state.replicas.contains(id));
        self.demand(foreign.is_none(), || {
            format!("R1, N8, L10: {foreign:?} is in sync and no host: {meta:?}")
        });
        let both = meta.isr.iter().find(|id| meta.elr.contains(id));
        self.demand(both.is_none(), || format!("D2: {both:?} is in sync and eligible"));
    }

    fn check_processes(&mut self, world: &World, meta: &Meta) {
        for broker in &world.brokers {
            let Some(process) = &broker.process else { continue };
            let Some(replica) = &process.replica else { continue };
            if let Some(view) = replica.view() {
                let topic_id = broker.disk.log.as_ref().map(|log| log.topic_id);
                let now = (topic_id, view.controller_epoch, view.leader_epoch);
                let before = self.views.insert((process.number, process.session), now).unwrap_or(now);
                let id = broker.id;
                let back = before.0 == now.0 && (now.1 < before.1 || now.2 < before.2);
                self.demand(!back, || format!("M4: {id} goes back from {before:?} to {now:?}"));
            }
            if meta.owner == Some(process.session)
                && let Some(state) = &meta.state
            {
                let in_sync = meta.isr.is_empty() || meta.isr.contains(&broker.id);
                let elected = state.leader == broker.id && in_sync;
                self.demand(elected, || format!("R1: the leader znode is of {}: {meta:?}", broker.id));
            }
            let Some(log) = &broker.disk.log else { continue };
            if Some(log.topic_id) != meta.topic_id {
                continue;
            }
            if let Some(leader) = replica.leader() {
                let epoch = leader.leader_epoch().0;
                let before = self.high_watermarks.insert(epoch, log.high_watermark()).unwrap_or(0);
                self.demand(before <= log.high_watermark(), || {
                    format!("R15: the high watermark of epoch {epoch} falls from {before}")
                });
                self.check_maximal(broker, meta);
                let office = self.offices.get(&(log.topic_id, leader.leader_epoch()));
                let own = office.is_some_and(|(_, session, _)| *session == process.session);
                self.demand(own, || format!("L11: {} leads by the word of another session", broker.id));
            }
            let lost = broker.disk.lost && broker.is_registered() && meta.isr.contains(&broker.id);
            let alone = meta.isr.len() + meta.elr.len() == 1;
            let readmitted = self.readmitted.contains(&broker.id);
            self.demand(!lost || alone || readmitted, || {
                format!("M8, N1: {} is back, lost records, and is in sync: {meta:?}", broker.id)
            });
        }
    }

    /// R10: whoever may be elected is counted by the leader.
    fn check_maximal(&mut self, broker: &Broker, meta: &Meta) {
        let (Some(process), Some(state)) = (&broker.process, &meta.state) else { return };
        let Some(leader) = process.leader() else { return };
        let current = state.leader == broker.id && state.leader_epoch == leader.leader_epoch();
        if !current || meta.owner != Some(process.session) {
            return;
        }
        let maximal = leader.isr().maximal();
        let missed = meta.isr.iter().find(|id| !maximal.contains(id));
        self.demand(missed.is_none(), || {
            format!("R10: {missed:?} is stored and not counted by leader {}: {maximal:?}", broker.id)
        });
    }

    /// Members that were added to the ISR since the last call: what they lost does not matter any more.
    pub(crate) fn take_readmitted(&mut self) -> BTreeSet<BrokerId> {
        std::mem::take(&mut self.readmitted)
    }

    /// Another ensemble, whose versions begin anew.
    pub(crate) fn begin_anew(&mut self) {
        self.registrations.clear();
        self.second_choices.clear();
    }

    /// Another incarnation of the topic: what was known of the last one is over.
    pub(crate) fn forget_records(&mut self, ended: impl Iterator<Item = TopicId>) {
        self.ended.extend(ended);
        self.acknowledged.clear();
        self.consumed.clear();
        self.committed_end = 0;
        self.high_watermarks.clear();
        self.told_ends.clear();
        self.epochs.clear();
        self.last_owner = None;
    }
}
