//! Recovery from directories that a crash may leave behind.

use super::*;
use crate::core::change::{Change, Stamp};

const LIMITS: Limits = Limits { min_session_timeout_ms: 1, max_session_timeout_ms: 1_000 };
const NOW: Now = Now { monotonic_ms: 0, unix_ms: 0 };

fn transaction(zxid: i64) -> Transaction {
    let change = Change::OpenSession { id: zxid, timeout_ms: 100, password: [0; 16] };
    Transaction { stamp: Stamp { zxid, time_ms: 0 }, changes: vec![change] }
}

fn only_log(directory: &Path) -> PathBuf {
    let logs = numbers(directory, "log").unwrap();
    assert_eq!(logs.len(), 1);
    file(directory, "log", logs[0])
}

fn recovered(directory: &Path) -> i64 {
    Journal::open(directory, LIMITS, NOW).unwrap().1.zxid()
}

#[test]
fn committed_transactions_survive_and_a_torn_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (mut journal, _) = Journal::open(directory, LIMITS, NOW).unwrap();
    journal.commit(&[transaction(1), transaction(2)]).unwrap();
    journal.commit(&[transaction(3)]).unwrap();
    drop(journal);
    let log = only_log(directory);
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(recovered(directory), 2);
    // What recovery kept is safe from the next crash as well.
    assert_eq!(recovered(directory), 2);
}

#[test]
fn a_snapshot_replaces_the_log_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (mut journal, mut core) = Journal::open(directory, LIMITS, NOW).unwrap();
    for zxid in 1..=5 {
        journal.commit(&[transaction(zxid)]).unwrap();
        core.replay(&transaction(zxid), NOW);
    }
    journal.snapshot(5, &core.to_snapshot()).unwrap();
    journal.commit(&[transaction(6)]).unwrap();
    drop(journal);
    assert_eq!(numbers(directory, "snapshot").unwrap(), [5]);
    assert_eq!(recovered(directory), 6);
}

#[test]
fn a_crash_between_snapshot_and_new_log_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (mut journal, mut core) = Journal::open(directory, LIMITS, NOW).unwrap();
    journal.commit(&[transaction(1), transaction(2)]).unwrap();
    core.replay(&transaction(1), NOW);
    write_snapshot(directory, 1, &core.to_snapshot()).unwrap();
    drop(journal);
    assert_eq!(recovered(directory), 2);
}

#[test]
fn a_directory_has_one_user_and_damage_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (journal, _) = Journal::open(directory, LIMITS, NOW).unwrap();
    let refused = Journal::open(directory, LIMITS, NOW).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    drop(journal);
    let snapshot = file(directory, "snapshot", 0);
    let bytes = fs::read(&snapshot).unwrap();
    fs::write(&snapshot, &bytes[..bytes.len() - 1]).unwrap();
    let refused = Journal::open(directory, LIMITS, NOW).unwrap_err();
    assert!(refused.to_string().contains("no snapshot"), "{refused}");
}
