//! `error` children: what is wrong with an admin's input, said where the admin looks (D18). Written only after the
//! input has stayed wrong for a while, and never into a partition that is being taken away, because an admin's own
//! recursive delete would trip over it (L9).

use zurau_common::id::TopicPartition;
use zurau_common::rule::{Rule, holds};

use crate::action::{Note, Write};
use crate::cluster::Partition;
use crate::event::{Millis, Read, Subject, WriteOutcome};
use crate::machine::Machine;
use crate::office::Work;
use crate::pending::{Complaint, Pending};

/// How long an input must have been wrong before it is called so, in milliseconds.
pub(crate) const PATIENCE: u64 = 500;

impl Machine {
    /// Compares what stands in the `error` children with what is wrong, and writes at most one of them.
    pub(crate) fn complain(&mut self, tp: &TopicPartition) {
        let Some(partition) = self.cluster.partitions.get(tp) else { return };
        if partition.work.complaining || partition.work.stale {
            return;
        }
        let (wrong, shown) = (self.wrong_input(tp, partition), partition.error.clone());
        let (wrong_wish, shown_wish) = (self.wrong_wish(partition), partition.reassignment_error.clone());
        let exists = partition.exists;
        if exists && let Some(text) = self.due(tp, wrong, shown.clone(), |work| &mut work.wrong_since) {
            let complaint = Complaint { partition: tp.clone(), text: text.clone(), about_wish: false };
            let write = Write::PartitionError { partition: tp.clone(), text, exists: shown.is_some() };
            self.issue_complaint(write, complaint);
        } else if let Some(text) =
            self.due(tp, wrong_wish, shown_wish.clone(), |work| &mut work.wish_wrong_since)
        {
            let complaint = Complaint { partition: tp.clone(), text: text.clone(), about_wish: true };
            let write =
                Write::ReassignmentError { partition: tp.clone(), text, exists: shown_wish.is_some() };
            self.issue_complaint(write, complaint);
        }
    }

    fn issue_complaint(&mut self, write: Write, complaint: Complaint) {
        if let Some(text) = &complaint.text {
            let what = if complaint.about_wish { "wanted assignment of" } else { "partition" };
            let subject = format!("{what} {}", complaint.partition);
            self.note(Note::Rejected { subject, why: text.clone() });
        }
        self.partition_mut(&complaint.partition).work.complaining = true;
        self.issue(write, Pending::Complaint(complaint));
    }

    /// The text to write now (`Some(None)`: remove it), if what is shown is not what is wrong.
    #[allow(clippy::option_option, reason = "whether to write, and what")]
    fn due(
        &mut self,
        tp: &TopicPartition,
        wrong: Option<String>,
        shown: Option<String>,
        since: impl Fn(&mut Work) -> &mut Option<Millis>,
    ) -> Option<Option<String>> {
        let now = self.now;
        let since = since(&mut self.partition_mut(tp).work);
        if wrong == shown {
            *since = None;
            return None;
        }
        if wrong.is_some() {
            let first = *since.get_or_insert(now);
            let at = if holds(Rule::ErrorsWait) { first.plus(PATIENCE) } else { first };
            if now < at {
                self.deadlines.insert((at, tp.clone()));
                return None;
            }
        }
        *since = None;
        Some(wrong)
    }

    pub(crate) fn complaint_written(&mut self, complaint: Complaint, outcome: &WriteOutcome) {
        let Some(partition) = self.cluster.partitions.get_mut(&complaint.partition) else { return };
        partition.work.complaining = false;
        if matches!(outcome, WriteOutcome::Stored { .. }) {
            let shown =
                if complaint.about_wish { &mut partition.reassignment_error } else { &mut partition.error };
            *shown = complaint.text;
        } else if partition.work.in_flight.is_none() {
            partition.work.stale = true;
            self.read_again(Subject::Partition(complaint.partition.clone()));
        }
        self.cluster.dirty_partitions.insert(complaint.partition);
    }

    /// What is wrong with the partition's own znodes.
    fn wrong_input(&self, tp: &TopicPartition, partition: &Partition) -> Option<String> {
        let empty =
            partition.replicas.is_absent() && partition.state.is_absent() && partition.isr.is_absent();
        let topic = self.cluster.topics.get(&tp.topic)?;
        if empty || self.is_deleting(topic) {
            return None;
        }
        if let Some(problem) = &topic.problem {
            return Some(problem.clone());
        }
        let started =
            self.cluster.incarnation(&tp.topic).is_some_and(|(_, entry, _)| entry.is_started(tp.partition));
        if let Some(why) = wrong_record(partition, started) {
            return Some(why);
        }
        match &partition.replicas {
            Read::Bad { why, .. } => return Some(why.clone()),
            Read::Absent if started => {
                return Some(
                    "the znode 'replicas' is missing; write the assigned replicas, such as [1,2,3]".into(),
                );
            }
            Read::Absent | Read::Value(_) => {}
        }
        let replicas = partition.replicas.value()?;
        if partition.state.is_absent() && !started {
            return self.wrong_start(tp, topic.contiguous, replicas);
        }
        let unknown = replicas.iter().find(|id| !self.cluster.is_known(**id))?;
        Some(format!(
            "broker {unknown} of 'replicas' has never registered; the assignment waits until it does"
        ))
    }

    /// Why a partition that shall begin cannot.
    fn wrong_start(
        &self,
        tp: &TopicPartition,
        contiguous: i32,
        replicas: &[zurau_common::id::BrokerId],
    ) -> Option<String> {
        if tp.partition >= contiguous {
            return Some(format!(
                "partition {contiguous} does not exist; partitions are numbered from 0 without gaps, and this one \
                 starts by itself when the lower ones are there"
            ));
        }
        if replicas.iter().any(|id| self.cluster.live(*id).is_some()) {
            return None;
        }
        let words: Vec<String> = replicas.iter().map(ToString::to_string).collect();
        Some(format!(
            "no broker of [{}] is registered; the partition starts by itself when one is",
            words.join(",")
        ))
    }

    /// What is wrong with the wanted assignment.
    fn wrong_wish(&self, partition: &Partition) -> Option<String> {
        match &partition.wanted {
            Read::Absent => None,
            Read::Bad { why, .. } => Some(why.clone()),
            Read::Value(_) if !partition.exists => Some("there is no such partition".to_owned()),
            Read::Value(wanted) => {
                let unknown = wanted.value.iter().find(|id| !self.cluster.is_known(**id))?;
                Some(format!("broker {unknown} has never registered; the move begins by itself when it does"))
            }
        }
    }
}

/// What is wrong with the records that only Zürau writes.
fn wrong_record(partition: &Partition, started: bool) -> Option<String> {
    match &partition.state {
        Read::Bad { why, .. } => return Some(why.clone()),
        Read::Absent if started => {
            return Some(
                "the znode 'state' of a partition that holds records is missing; restore it".to_owned(),
            );
        }
        Read::Absent | Read::Value(_) => {}
    }
    match &partition.isr {
        Read::Bad { why, .. } => return Some(format!("ISR: {why}")),
        Read::Absent if started => {
            return Some(
                "the znode 'ISR' of a partition that holds records is missing; restore it".to_owned(),
            );
        }
        Read::Absent | Read::Value(_) => {}
    }
    for (name, list) in [("ELR", &partition.elr), ("leaving", &partition.leaving)] {
        if let Read::Bad { why, .. } = list {
            return Some(format!("{name}: {why}"));
        }
    }
    None
}
