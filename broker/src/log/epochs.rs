//! Where each leader epoch starts in the log: the history that truncation and epoch queries stand on.
//!
//! Pure. Entries strictly increase in epoch and in start offset (R17). Rules: KIP-101, KIP-279, HW-03, HW-06, LOG-07.

use super::checkpoint::{self, CheckpointError};

/// `leader_epoch` began with the record at `start_offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEntry {
    pub leader_epoch: i32,
    pub start_offset: i64,
}

/// Answer to "where does this epoch end?". `UNDEFINED` when nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch not above the asked one, -1 for undefined.
    pub leader_epoch: i32,
    /// Exclusive end of that epoch, -1 for undefined.
    pub end_offset: i64,
}

impl EpochEnd {
    pub const UNDEFINED: Self = Self { leader_epoch: -1, end_offset: -1 };
}

/// The epoch history of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderEpochs {
    entries: Vec<EpochEntry>,
}

impl LeaderEpochs {
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    pub fn latest(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    /// Records that `leader_epoch` starts at `start_offset`; older entries that contradict it go. Returns whether
    /// anything changed. An epoch that is the latest already, or is again without the entries that go, keeps its (smaller)
    /// start.
    pub fn assign(&mut self, leader_epoch: i32, start_offset: i64) -> bool {
        assert!(leader_epoch >= 0 && start_offset >= 0, "epoch {leader_epoch} at offset {start_offset}");
        let mut changed = false;
        while let Some(last) = self.latest() {
            if last.leader_epoch == leader_epoch && last.start_offset <= start_offset {
                return changed;
            }
            if last.leader_epoch < leader_epoch && last.start_offset < start_offset {
                break;
            }
            self.entries.pop();
            changed = true;
        }
        self.entries.push(EpochEntry { leader_epoch, start_offset });
        true
    }

    /// As [`LeaderEpochs::assign`]; returns the history before the change, so that a failed write can be undone.
    pub fn clone_if_changed(&mut self, leader_epoch: i32, start_offset: i64) -> Option<Self> {
        let unchanged = self
            .latest()
            .is_some_and(|latest| latest.leader_epoch == leader_epoch && latest.start_offset <= start_offset);
        if unchanged {
            return None;
        }
        let before = self.clone();
        self.assign(leader_epoch, start_offset);
        Some(before)
    }

    /// Kafka 3.x semantics: the largest known epoch not above `asked` and where the next one begins; below the
    /// oldest entry the asked epoch and the oldest's start; above the latest, or without history, undefined.
    pub fn end_offset_for(&self, asked: i32, log_end_offset: i64) -> EpochEnd {
        let above = self.entries.partition_point(|entry| entry.leader_epoch <= asked);
        match (above.checked_sub(1).map(|floor| self.entries[floor]), self.entries.get(above)) {
            _ if asked < 0 => EpochEnd::UNDEFINED,
            (Some(floor), Some(next)) => {
                EpochEnd { leader_epoch: floor.leader_epoch, end_offset: next.start_offset }
            }
            (None, Some(oldest)) => EpochEnd { leader_epoch: asked, end_offset: oldest.start_offset },
            (Some(latest), None) if latest.leader_epoch == asked => {
                EpochEnd { leader_epoch: asked, end_offset: log_end_offset }
            }
            _ => EpochEnd::UNDEFINED,
        }
    }

    /// The epoch under which the record at `offset` was written.
    pub fn epoch_at(&self, offset: i64) -> Option<i32> {
        let after = self.entries.partition_point(|entry| entry.start_offset <= offset);
        after.checked_sub(1).map(|index| self.entries[index].leader_epoch)
    }

    /// Drops entries that start at or after `end_offset`. Returns whether anything changed.
    pub fn truncate_from_end(&mut self, end_offset: i64) -> bool {
        let keep = self.entries.partition_point(|entry| entry.start_offset < end_offset);
        let changed = keep < self.entries.len();
        self.entries.truncate(keep);
        changed
    }

    /// Drops entries wholly below `start_offset`; the one that covers it now starts there.
    pub fn truncate_from_start(&mut self, start_offset: i64) -> bool {
        let after = self.entries.partition_point(|entry| entry.start_offset <= start_offset);
        let Some(covering) = after.checked_sub(1) else { return false };
        if covering == 0 && self.entries[0].start_offset == start_offset {
            return false;
        }
        self.entries[covering].start_offset = start_offset;
        self.entries.drain(..covering);
        true
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Text of `leader-epoch-checkpoint`.
    pub fn encode(&self) -> String {
        checkpoint::encode(self.entries.iter().map(|e| format!("{} {}", e.leader_epoch, e.start_offset)))
    }

    /// Reads `leader-epoch-checkpoint`; anything doubtful is an error, and the history is then rebuilt (LOG-06).
    pub fn decode(text: &[u8]) -> Result<Self, CheckpointError> {
        let mut epochs = Self::default();
        for line in checkpoint::decode(text)? {
            let parsed = line.split_once(' ').and_then(|(epoch, offset)| {
                Some((epoch.trim().parse::<i32>().ok()?, offset.trim().parse::<i64>().ok()?))
            });
            let Some((leader_epoch, start_offset)) =
                parsed.filter(|(epoch, start)| *epoch >= 0 && *start >= 0)
            else {
                return Err(CheckpointError::Entry(line.to_owned()));
            };
            if let Some(last) = epochs.latest()
                && (last.leader_epoch >= leader_epoch || last.start_offset >= start_offset)
            {
                return Err(CheckpointError::Entry(line.to_owned()));
            }
            epochs.entries.push(EpochEntry { leader_epoch, start_offset });
        }
        Ok(epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epochs(entries: &[(i32, i64)]) -> LeaderEpochs {
        let entries =
            entries.iter().map(|&(leader_epoch, start_offset)| EpochEntry { leader_epoch, start_offset });
        LeaderEpochs { entries: entries.collect() }
    }

    #[test]
    fn hw_03_r17_end_offset_for_epoch() {
        let history = epochs(&[(2, 10), (3, 20), (6, 30)]);
        //          asked  answer
        let rows = [
            (-1, (-1, -1)),
            (0, (0, 10)), // below the oldest
            (2, (2, 20)),
            (3, (3, 30)),
            (4, (3, 30)), // never seen (HW-03)
            (6, (6, 45)), // latest: log end
            (7, (-1, -1)),
        ];
        for (asked, (leader_epoch, end_offset)) in rows {
            assert_eq!(history.end_offset_for(asked, 45), EpochEnd { leader_epoch, end_offset }, "{asked}");
        }
        assert_eq!(LeaderEpochs::default().end_offset_for(0, 45), EpochEnd::UNDEFINED);
    }

    #[test]
    fn assign_removes_what_it_contradicts() {
        type History = &'static [(i32, i64)];
        //   before, assigned, after
        let rows: [(History, (i32, i64), History); 8] = [
            (&[], (0, 0), &[(0, 0)]),
            (&[(0, 0)], (0, 5), &[(0, 0)]),
            (&[(0, 0), (1, 5)], (2, 5), &[(0, 0), (2, 5)]), // HW-06: an epoch without records gives way
            (&[(0, 0), (4, 5)], (2, 7), &[(0, 0), (2, 7)]),
            (&[(0, 0), (1, 8)], (1, 6), &[(0, 0), (1, 6)]),
            (&[(3, 4)], (3, 0), &[(3, 0)]),
            // Fetched under an older epoch than one that was begun here without records: the older one goes on.
            (&[(0, 0), (1, 2)], (0, 2), &[(0, 0)]),
            (&[(0, 0), (1, 5), (2, 7)], (1, 7), &[(0, 0), (1, 5)]),
        ];
        for (before, (epoch, start), after) in rows {
            let mut history = epochs(before);
            history.assign(epoch, start);
            assert_eq!(history, epochs(after), "{before:?} + {epoch}@{start}");
        }
    }

    #[test]
    fn truncates_from_both_ends() {
        let history = epochs(&[(2, 10), (3, 20), (6, 30)]);
        for (start, expected) in [
            (5, epochs(&[(2, 10), (3, 20), (6, 30)])),
            (15, epochs(&[(2, 15), (3, 20), (6, 30)])),
            (20, epochs(&[(3, 20), (6, 30)])),
            (99, epochs(&[(6, 99)])),
        ] {
            let mut cut = history.clone();
            cut.truncate_from_start(start);
            assert_eq!(cut, expected, "from start {start}");
        }
        for (end, expected) in
            [(31, epochs(&[(2, 10), (3, 20), (6, 30)])), (30, epochs(&[(2, 10), (3, 20)])), (10, epochs(&[]))]
        {
            let mut cut = history.clone();
            cut.truncate_from_end(end);
            assert_eq!(cut, expected, "from end {end}");
        }
    }

    #[test]
    fn damaged_checkpoints_are_refused() {
        for text in
            ["", "0", "1\n0\n", "0\n2\n0 0\n", "0\n1\n0 0\n1 5\n", "0\n1\n-1 0\n", "0\n2\n1 0\n0 9\n", "\0\0"]
        {
            assert!(LeaderEpochs::decode(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn strictly_increasing_after_any_steps(steps in prop::collection::vec((0..3u8, 0..8i32, 0..40i64), 0..30)) {
            let mut history = LeaderEpochs::default();
            for (step, epoch, offset) in steps {
                match step {
                    0 => { history.assign(epoch, offset); }
                    1 => { history.truncate_from_end(offset); }
                    _ => { history.truncate_from_start(offset); }
                }
                let increasing = history.entries().is_sorted_by(|a, b| {
                    a.leader_epoch < b.leader_epoch && a.start_offset < b.start_offset
                });
                prop_assert!(increasing);
                prop_assert_eq!(LeaderEpochs::decode(history.encode().as_bytes()).unwrap(), history.clone());
            }
        }
    }
}
