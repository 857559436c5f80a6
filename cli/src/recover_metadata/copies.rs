//! Which copy of a partition is the best, and what the others are worth. Pure.
//!
//! The ISR of a partition is gone, but not what it stood for: a committed record is in the log of every replica that was
//! in sync. So of all copies the one whose last record has the highest leader epoch, and of those the longest log, has
//! every committed record. Only copies equal to it are put into the ISR; the others catch up from them. A high watermark
//! moves before it is in a checkpoint, so a checkpoint can show that the best copy is not good enough, but never that a
//! lesser one is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use zurau_broker::log::{LeaderEpochs, SurveyedLog};
use zurau_common::id::{BrokerId, TopicPartition};

use super::plan::Directory;

/// A broker's log of one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy<'a> {
    pub(super) broker: BrokerId,
    /// Of the log directory.
    directory: &'a Path,
    pub(super) log: &'a SurveyedLog,
}

impl fmt::Display for Copy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broker {}'s in {}", self.broker, self.directory.display())
    }
}

impl Copy<'_> {
    /// The greatest has every committed record.
    fn end(&self) -> (i32, i64) {
        (self.log.last_epoch, self.log.log_end_offset)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(self.log.partition.to_string())
    }
}

/// The copies that the brokers will serve: of two in one broker's directories the one that its start takes.
///
/// # Errors
/// Two of one broker differ, and nothing says which one its start takes.
pub(super) fn served<'a>(
    directories: &'a [Directory],
    warnings: &mut Vec<String>,
) -> Result<Vec<Copy<'a>>, String> {
    let mut homes: BTreeMap<(&TopicPartition, BrokerId), Vec<Copy<'a>>> = BTreeMap::new();
    for Directory { path, broker, logs, .. } in directories {
        for log in logs {
            let copy = Copy { broker: *broker, directory: path, log };
            homes.entry((&log.partition, *broker)).or_default().push(copy);
        }
    }
    homes.into_values().map(|copies| served_of_one_broker(copies, warnings)).collect()
}

fn served_of_one_broker<'a>(
    mut copies: Vec<Copy<'a>>,
    warnings: &mut Vec<String>,
) -> Result<Copy<'a>, String> {
    copies.sort_by_key(|copy| Reverse(copy.log.precedence));
    let (taken, others) = (copies[0], &copies[1..]);
    for other in others {
        let (partition, (moves, known)) = (&taken.log.partition, taken.log.precedence);
        let same = (taken.end(), taken.log.topic_id) == (other.end(), other.log.topic_id);
        if taken.log.precedence == other.log.precedence && !same {
            return Err(format!(
                "broker {} has {partition} in two log directories, {} and {}, and nothing tells which one is the later; move \
                 the older one away first (one ends at {} of epoch {}, the other at {} of epoch {})",
                taken.broker,
                taken.directory.display(),
                other.directory.display(),
                taken.log.log_end_offset,
                taken.log.last_epoch,
                other.log.log_end_offset,
                other.log.last_epoch,
            ));
        }
        let (other_moves, other_known) = other.log.precedence;
        let why = match (moves == other_moves, same) {
            (_, true) if taken.log.precedence == other.log.precedence => "they are equal".to_owned(),
            (true, _) => format!(
                "it is known to reach {}, the other one {}",
                known.unwrap_or(0),
                other_known.unwrap_or(0)
            ),
            (false, _) => format!(
                "it comes from move {moves} between log directories, the other one from {other_moves}"
            ),
        };
        warnings.push(format!(
            "broker {} has {partition} twice: taken is {}, for {why}; not taken is {}",
            taken.broker,
            taken.path().display(),
            other.path().display(),
        ));
        if taken.end() < other.end() {
            warnings.push(format!(
                "the copy of {partition} that broker {} does not take has more in it ({} of epoch {}, against {} of epoch {}); \
                 if that is the right one, move {} away first",
                taken.broker,
                other.log.log_end_offset,
                other.log.last_epoch,
                taken.log.log_end_offset,
                taken.log.last_epoch,
                taken.path().display(),
            ));
        }
    }
    Ok(taken)
}

/// What the copies of one partition are worth.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Judgement {
    /// Those that have every committed record that is left; not empty if there was a copy.
    pub(super) in_sync: Vec<BrokerId>,
    pub(super) log_end_offset: i64,
    /// Which copy is the best, why, and what the others lack; a line for each.
    pub(super) reasons: Vec<String>,
    /// What shows that committed records are in none of the copies.
    pub(super) losses: Vec<String>,
}

/// Judges the copies that brokers serve of one incarnation of a partition; not empty.
pub(super) fn judge(copies: &[&Copy<'_>]) -> Judgement {
    let Some(best) = copies.iter().copied().max_by_key(|copy| (copy.end(), Reverse(copy.broker))) else {
        return Judgement::default();
    };
    let (epoch, log_end_offset) = best.end();
    let (equal, others): (Vec<&Copy<'_>>, Vec<_>) = copies.iter().partition(|copy| copy.end() == best.end());
    let above = |epoch: bool| match epoch {
        true => "no other ends in so high an epoch",
        false => "none of those that end in this epoch is longer",
    };
    let names: Vec<String> = equal.iter().map(ToString::to_string).collect();
    let mut reasons = vec![match others.as_slice() {
        [] => format!("all copies end at {log_end_offset} with epoch {epoch}"),
        others => format!(
            "best: {}, which ends at {log_end_offset} with epoch {epoch}; {}",
            names.join(" and "),
            above(others.iter().all(|other| other.log.last_epoch < epoch))
        ),
    }];
    reasons.extend(others.iter().map(|other| format!("not in sync: {other}, which {}", lack(other, best))));
    let losses = copies.iter().filter_map(|copy| {
        let shared = parting(copy, best).unwrap_or(log_end_offset);
        (shared < copy.log.committed).then(|| {
            format!(
                "the checkpoints beside {copy} say that everything below {} of {} was committed, and the best copy has only what is \
                 below {shared} of that",
                copy.log.committed, copy.log.partition
            )
        })
    });
    Judgement {
        in_sync: equal.iter().map(|copy| copy.broker).collect(),
        log_end_offset,
        losses: losses.collect(),
        reasons,
    }
}

fn lack(copy: &Copy<'_>, best: &Copy<'_>) -> String {
    let (epoch, end) = copy.end();
    match parting(copy, best) {
        Some(offset) => format!(
            "ends at {end} with epoch {epoch} and is another history from {offset} on; those {} offsets are cut off",
            end - offset
        ),
        None if best.log.log_end_offset < end => format!(
            "ends at {end} with epoch {epoch}; the {} offsets that the best has not are cut off",
            end - best.log.log_end_offset
        ),
        None => format!(
            "ends at {end} with epoch {epoch}; {} offsets are missing and will be fetched",
            best.log.log_end_offset - end
        ),
    }
}

/// From where on the logs hold records of different epochs, as far as their histories tell. Those of compacted logs may lack
/// epochs, of which no record is left.
fn parting(one: &Copy<'_>, other: &Copy<'_>) -> Option<i64> {
    if one.log.compacted || other.log.compacted {
        return None;
    }
    let end = one.log.log_end_offset.min(other.log.log_end_offset);
    let starts = |history: &'_ LeaderEpochs| -> Vec<i64> {
        history.entries().iter().map(|entry| entry.start_offset).collect()
    };
    let (ours, theirs) = (starts(&one.log.history), starts(&other.log.history));
    let from = *ours.first()?.max(theirs.first()?);
    let mut starts: Vec<i64> =
        ours.into_iter().chain(theirs).filter(|start| (from..end).contains(start)).collect();
    starts.sort_unstable();
    starts.into_iter().find(|start| one.log.history.epoch_at(*start) != other.log.history.epoch_at(*start))
}
