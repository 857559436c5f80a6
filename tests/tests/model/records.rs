//! What must hold among the logs of all replicas (R3 to R9, R14, R17).

use zurau_broker::cores::steps::ReplicaLog;
use zurau_common::id::{BrokerId, TopicId};

use crate::broker::Broker;
use crate::log::MemoryLog;
use crate::referee::{Meta, Referee};
use crate::world::World;

impl Referee {
    pub(crate) fn check_logs(&mut self, world: &World, meta: &Meta) {
        let logs: Vec<(BrokerId, &MemoryLog)> = world
            .brokers
            .iter()
            .filter_map(|broker| Some((broker.id, broker.disk.log.as_ref()?)))
            .filter(|(_, log)| Some(log.topic_id) == meta.topic_id)
            .collect();
        for (index, (id, log)) in logs.iter().enumerate() {
            let bounds = 0 <= log.high_watermark() && log.high_watermark() <= log.log_end_offset();
            self.demand(bounds, || format!("R14: bounds of {id}"));
            let entries = log.epochs().entries();
            let rising = entries.windows(2).all(|pair| {
                pair[0].leader_epoch < pair[1].leader_epoch && pair[0].start_offset < pair[1].start_offset
            });
            self.demand(rising, || format!("R17: the history of {id} does not rise: {entries:?}"));
            let covered = (0..).zip(&log.records).find(|(at, r)| log.epoch_at(*at) != Some(r.epoch));
            self.demand(covered.is_none(), || {
                format!("R17: {id} has {covered:?} under another epoch: {entries:?}")
            });
            for (other_id, other) in &logs[..index] {
                if let Some(offset) = first_broken_epoch(log, other) {
                    self.violate(format!(
                        "R7: {id} and {other_id} share the epoch of {offset} and differ before: {:?} {:?}",
                        log.records, other.records
                    ));
                }
                let below = log.high_watermark().min(other.high_watermark());
                let agree = log.read(0, to_count(below)) == other.read(0, to_count(below));
                let excused = self.excused;
                self.demand(agree || excused, || {
                    format!(
                        "R6: {id} and {other_id} differ below {below}: {:?} {:?}",
                        log.records, other.records
                    )
                });
            }
        }
    }

    /// R3, R4, R5, R9: what was committed is where it must be.
    pub(crate) fn check_data(&mut self, world: &World, meta: &Meta) {
        let readmitted = |broker: &Broker| broker.is_registered() && self.readmitted.contains(&broker.id);
        let whole = |broker: &Broker| !broker.is_twin && (!broker.disk.lost || readmitted(broker));
        let mut problems = Vec::new();
        for member in world.brokers.iter().filter(|broker| whole(broker)) {
            let (in_sync, eligible) = (meta.isr.contains(&member.id), meta.elr.contains(&member.id));
            if !in_sync && !eligible {
                continue;
            }
            let empty = MemoryLog::new(meta.topic_id.unwrap_or(TopicId(uuid::Uuid::nil())));
            let log = member.disk.log.as_ref().filter(|log| Some(log.topic_id) == meta.topic_id);
            // A registered broker without the log would have left.
            let log = log.unwrap_or(&empty);
            if log.log_end_offset() < self.committed_end {
                problems.push(format!(
                    "R4: {} may be elected and ends at {}, {} is committed: {meta:?}",
                    member.id,
                    log.log_end_offset(),
                    self.committed_end
                ));
            }
            for (offset, value) in &self.acknowledged {
                if log.read(*offset, 1).first().map(|record| record.value) != Some(*value) {
                    problems.push(format!("R5: {} may be elected and lacks {value} at {offset}", member.id));
                }
            }
            for leader in world.brokers.iter().filter(|_| in_sync) {
                if let Some(problem) = strong_isr(leader, member, log) {
                    problems.push(problem);
                }
            }
        }
        for (offset, value) in &self.acknowledged {
            let held = world.brokers.iter().any(|broker| {
                let log = broker.disk.log.as_ref();
                log.is_some_and(|log| log.read(*offset, 1).first().map(|r| r.value) == Some(*value))
            });
            if !held {
                problems.push(format!("R9: {value}, acknowledged at {offset}, is nowhere"));
            }
        }
        if let Some(problem) = problems.into_iter().next() {
            self.violate(problem);
        }
    }

    /// What every replica must hold in the end.
    pub(crate) fn check_everywhere(&mut self, world: &World) {
        for broker in &world.brokers {
            let Some(log) = &broker.disk.log else { continue };
            for (offset, value) in &self.acknowledged.clone() {
                let held = log.read(*offset, 1).first().map(|record| record.value) == Some(*value);
                let excused = self.excused;
                self.demand(held || excused, || {
                    format!("{} lacks {value} at {offset} in the end", broker.id)
                });
            }
        }
    }
}

fn to_count(offset: i64) -> usize {
    usize::try_from(offset).unwrap_or(0)
}

/// R3: what anybody exposed who thinks it leads is on every replica that can be elected cleanly.
fn strong_isr(leader: &Broker, member: &Broker, log: &MemoryLog) -> Option<String> {
    leader.process.as_ref()?.leader()?;
    let exposed = leader.disk.log.as_ref()?;
    if exposed.topic_id != log.topic_id {
        return None;
    }
    let below = to_count(exposed.high_watermark());
    (exposed.read(0, below) != log.read(0, below)).then(|| {
        format!(
            "R3: {} exposes {below} records that {} lacks: {:?} {:?}",
            leader.id, member.id, exposed.records, log.records
        )
    })
}

/// An offset at which both logs have one epoch although they differ at or below it (R7).
fn first_broken_epoch(one: &MemoryLog, other: &MemoryLog) -> Option<usize> {
    let mut differ = false;
    for (offset, (mine, theirs)) in one.records.iter().zip(&other.records).enumerate() {
        differ |= mine != theirs;
        if differ && mine.epoch == theirs.epoch {
            return Some(offset);
        }
    }
    None
}
