//! How many independent multis become few requests: what fits into one, and what need not stand in it twice.

use std::collections::HashSet;
use std::ops::Range;

use super::op::Op;

/// One request of [`super::session::ZooKeeper::multi_batched`] (coordination.md, section 6).
const GROUPS_MAX: usize = 250;
const BYTES_MAX: usize = 256 * 1024;

/// Ranges of groups that fit into one multi.
pub(super) fn batches(groups: &[Vec<Op>]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, group) in groups.iter().enumerate() {
        let added = weight(group);
        if index > start && (index - start == GROUPS_MAX || bytes + added > BYTES_MAX) {
            ranges.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += added;
    }
    if start < groups.len() {
        ranges.push(start..groups.len());
    }
    ranges
}

/// Bytes that the operations take in a request, generously.
pub(super) fn weight(ops: &[Op]) -> usize {
    /// Header, lengths, version and access list.
    const OVERHEAD: usize = 64;
    let one = |op: &Op| match op {
        Op::Create { path, data, .. } | Op::SetData { path, data, .. } => path.len() + data.len() + OVERHEAD,
        Op::CheckAbsent { path } => 2 * (path.len() + OVERHEAD),
        Op::CheckExists { path } | Op::CheckVersion { path, .. } | Op::Delete { path, .. } => {
            path.len() + OVERHEAD
        }
    };
    ops.iter().map(one).sum()
}

/// Some groups as one multi.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) ops: Vec<Op>,
    /// For each of `ops` its index among all operations of the groups.
    origins: Vec<usize>,
}

/// All operations of the groups, in order, but each check only once: every group checks the controller's epoch and most
/// the same topic id, and one multi sees one moment. A check of what the multi itself writes stands where it stood.
pub(super) fn pack(groups: &[Vec<Op>]) -> Packed {
    let written: HashSet<&str> =
        groups.iter().flatten().filter(|op| version_checked(op).is_none()).map(Op::path).collect();
    let mut checked = HashSet::new();
    let (mut ops, mut origins) = (Vec::new(), Vec::new());
    for (index, op) in groups.iter().flatten().enumerate() {
        let again = version_checked(op)
            .is_some_and(|version| !written.contains(op.path()) && !checked.insert((op.path(), version)));
        if !again {
            ops.push(op.clone());
            origins.push(index);
        }
    }
    Packed { ops, origins }
}

/// What a check looks for: any version, or this one. `None`: the operation is no check, or leaves something behind for
/// a moment.
fn version_checked(op: &Op) -> Option<Option<i32>> {
    match op {
        Op::CheckExists { .. } => Some(None),
        Op::CheckVersion { version, .. } => Some(Some(*version)),
        Op::CheckAbsent { .. } | Op::Create { .. } | Op::SetData { .. } | Op::Delete { .. } => None,
    }
}

impl Packed {
    /// What each operation of the groups came to, from what the packed ones came to; `left_out` for a check that stands
    /// only once.
    pub(super) fn unpack<T: Clone>(&self, count: usize, stored: Vec<T>, left_out: &T) -> Vec<T> {
        let mut results = vec![left_out.clone(); count];
        for (origin, result) in self.origins.iter().zip(stored) {
            results[*origin] = result;
        }
        results
    }

    /// The group, counting from the first one packed, that holds the packed operation at `index`, and the operation's
    /// index within that group.
    pub(super) fn locate(&self, groups: &[Vec<Op>], index: usize) -> (usize, usize) {
        let mut index = self.origins[index];
        let mut group = 0;
        while index >= groups[group].len() {
            index -= groups[group].len();
            group += 1;
        }
        (group, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zk::op::OpResult;

    fn set(path: &str, bytes: usize) -> Op {
        Op::SetData { path: path.to_owned(), data: vec![0; bytes], version: None }
    }

    fn check(path: &str, version: i32) -> Op {
        Op::CheckVersion { path: path.to_owned(), version }
    }

    fn exists(path: &str) -> Op {
        Op::CheckExists { path: path.to_owned() }
    }

    #[test]
    fn batches_hold_250_groups_or_256_kib() {
        let small: Vec<Vec<Op>> = (0..600).map(|_| vec![set("/x", 10)]).collect();
        assert_eq!(batches(&small), [0..250, 250..500, 500..600]);
        let large: Vec<Vec<Op>> = (0..3).map(|_| vec![set("/x", 200 * 1024)]).collect();
        assert_eq!(batches(&large), [0..1, 1..2, 2..3]);
        let huge = vec![vec![set("/x", 10)], vec![set("/x", 400 * 1024)], vec![set("/x", 10)]];
        assert_eq!(batches(&huge), [0..1, 1..2, 2..3]);
        assert!(batches(&[]).is_empty());
    }

    #[test]
    fn a_check_stands_once_unless_the_multi_writes_what_it_checks() {
        let groups = vec![
            vec![exists("/id"), check("/epoch", 3), check("/a", 1), set("/a/x", 1)],
            vec![exists("/id"), check("/epoch", 3), check("/a", 2), set("/b", 1), check("/b", 1)],
            vec![check("/id", 0), check("/epoch", 3), set("/b", 1), check("/b", 1)],
        ];
        let packed = pack(&groups);
        let expected = [
            exists("/id"),
            check("/epoch", 3),
            check("/a", 1),
            set("/a/x", 1),
            check("/a", 2),
            set("/b", 1),
            check("/b", 1),
            check("/id", 0),
            set("/b", 1),
            check("/b", 1),
        ];
        assert_eq!(packed.ops, expected);
        let stored: Vec<OpResult> = (0..10).map(|version| OpResult::Set { version, mzxid: 0 }).collect();
        let results = packed.unpack(13, stored, &OpResult::Checked);
        let set_at = |index: usize| match results[index] {
            OpResult::Set { version, .. } => version,
            _ => -1,
        };
        assert_eq!((0..13).map(set_at).collect::<Vec<_>>(), [0, 1, 2, 3, -1, -1, 4, 5, 6, 7, -1, 8, 9]);
    }

    #[test]
    fn a_failed_operation_is_found_in_its_group() {
        let groups = vec![vec![exists("/id"), set("/a", 0)], vec![], vec![exists("/id"), set("/b", 0)]];
        let packed = pack(&groups);
        assert_eq!(packed.ops.len(), 3);
        assert_eq!(packed.locate(&groups, 0), (0, 0), "the first one to check bears the failure");
        assert_eq!(packed.locate(&groups, 1), (0, 1));
        assert_eq!(packed.locate(&groups, 2), (2, 1));
    }
}
