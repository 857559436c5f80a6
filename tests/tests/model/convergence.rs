//! What must have come about once nothing is wrong any more (M9, M12, L6, L8; cases/invariants.md, section 5).

use zurau_broker::cores::steps::ReplicaLog;
use zurau_common::id::BrokerId;
use zurau_common::zk::znode::Znode;

use crate::referee::Meta;
use crate::world::{World, partition};

/// What must be so after healing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// The cluster has its full strength.
    Full,
    /// Somebody leads.
    Leader,
    /// Nobody believes to lead who was replaced.
    NoStaleLeader,
    Nothing,
}

impl World {
    /// What is still missing.
    pub(crate) fn missing(&self, expectation: Expectation) -> Option<String> {
        match expectation {
            Expectation::Full => self.not_converged(),
            Expectation::Leader => self.no_leader(&Meta::read(&self.zookeeper), false),
            Expectation::NoStaleLeader => self.stale_leader(),
            Expectation::Nothing => None,
        }
    }

    fn no_leader(&self, meta: &Meta, full: bool) -> Option<String> {
        let Some(state) = &meta.state else { return Some(format!("there is no state: {meta:?}")) };
        let index = self.index_of(state.leader);
        let leader = &self.brokers[index];
        let Some(process) = &leader.process else { return Some("the leader does not run".to_owned()) };
        if meta.owner != Some(process.session) || process.leader().is_none() {
            return Some(format!("{} does not lead: {meta:?}", leader.id));
        }
        if !self.may_serve(index) {
            return Some(format!("L6: {} leads and does not serve", leader.id));
        }
        let enough = process.leader().is_some_and(|leader| leader.has_enough_in_sync());
        (full && !enough)
            .then(|| format!("L8: {} refuses producers, too few are in sync: {meta:?}", leader.id))
    }

    fn stale_leader(&self) -> Option<String> {
        let state = Meta::read(&self.zookeeper).state?;
        let stale = self.brokers.iter().find(|broker| {
            let leader = broker.process.as_ref().and_then(|process| process.leader());
            broker.id != state.leader
                && leader.is_some_and(|leader| leader.leader_epoch() < state.leader_epoch)
        });
        stale.map(|broker| format!("L7: {} believes to lead, and {} was elected", broker.id, state.leader))
    }

    fn not_converged(&self) -> Option<String> {
        let meta = Meta::read(&self.zookeeper);
        let state = meta.state.as_ref();
        let Some(state) = state else { return Some("there is no state".to_owned()) };
        if self.controllers.iter().filter(|controller| controller.office.is_some()).count() != 1 {
            return Some("M12: not one controller".to_owned());
        }
        // D4: the last one in sync has no log and refuses to lead; only an unclean election helps.
        let has_log = |id: &BrokerId| self.brokers[self.index_of(*id)].disk.log.is_some();
        if !meta.isr.is_empty() && !meta.isr.iter().chain(&meta.elr).any(has_log) {
            return None;
        }
        let mut in_sync = meta.isr.clone();
        let mut target = state.target.clone();
        in_sync.sort();
        target.sort();
        let tp = partition();
        for (znode, what) in [
            (Znode::Reassignment(tp.clone()), "the wish"),
            (Znode::Leaving(tp.clone()), "leaving"),
            (Znode::PartitionError(tp), "an error"),
        ] {
            if let Some(text) = self.zookeeper.text(&znode.path()) {
                return Some(format!("{what} stands: {text}"));
            }
        }
        if in_sync != target || !meta.elr.is_empty() || state.replicas.len() != target.len() {
            return Some(format!("the ISR is not the target: {meta:?}"));
        }
        if let Some(why) = self.no_leader(&meta, true) {
            return Some(why);
        }
        let leader = &self.brokers[self.index_of(state.leader)];
        let end = leader.disk.log.as_ref().map(|log| log.log_end_offset());
        for broker in self.brokers.iter().filter(|broker| !broker.is_twin) {
            let log = broker.disk.log.as_ref();
            if !target.contains(&broker.id) {
                if log.is_some() {
                    return Some(format!("M10: {} keeps a copy", broker.id));
                }
                continue;
            }
            let ends = log.map(|log| (log.log_end_offset(), log.high_watermark()));
            if ends.map(|(end, _)| end) != end || ends.map(|(_, committed)| committed) != end {
                return Some(format!("{} is at {ends:?}, the leader ends at {end:?}", broker.id));
            }
            let view = broker.process.as_ref().and_then(|process| process.replica.as_ref()?.view());
            if view.map(|view| (view.leader, view.leader_epoch)) != Some((state.leader, state.leader_epoch)) {
                return Some(format!("M9: {} believes {view:?}", broker.id));
            }
            let known = broker.process.as_ref().and_then(|process| process.metadata.as_ref());
            if known.map(|known| (known.leader, known.leader_epoch))
                != Some((Some(state.leader), state.leader_epoch))
            {
                return Some(format!("M9: clients of {} hear {known:?}", broker.id));
            }
        }
        None
    }
}
